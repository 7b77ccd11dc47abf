// Windows: operations that were recorded and not yet run, and the programs that run them.
#pragma once

#include "recorder.h"
#include "storage.h"

#include <memory>
#include <unordered_map>

namespace torchtpu {

enum class Mode { Debug, Strict, Fused };
Mode mode();
// Cuts all devices first: operations recorded under one mode run under it.
void set_mode(Mode mode);

// Settings of the cut policy, from torchtpu.config.
struct Policy {
  size_t max_window = 4096; // operations
  uint32_t compile_at_sight = 2; // a window runs from its parts until it has been seen this often
  bool background = true; // compile whole windows in the background
  bool nan_check = false; // Debug: results must not hold NaN
};
Policy& policy();

struct Node {
  const Signature* signature;
  uint32_t first_code, codes; // its inputs, in Window::codes
  uint32_t first_result, results; // its results, in Window::results
  uint32_t first_float, first_int; // its scalars
};

// Wiring codes of a node's input.
constexpr uint32_t kUninitialized = 0;
inline uint32_t external_code(uint32_t index) {
  return (index + 1) << 1;
}
inline uint32_t result_code(uint32_t index) {
  return (index << 1) | 1;
}

struct Window {
  uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<uint32_t> codes;
  std::vector<uint64_t> key; // a signature and its wiring, for each node
  std::vector<ValuePtr> externals;
  std::vector<ValuePtr> results;
  std::vector<double> floats;
  std::vector<int64_t> ints;
  void clear();
};

struct Program {
  std::vector<uint64_t> key; // in full: a hash alone does not decide
  PyRef object; // torchtpu.program.Program, null before the first compile was asked for
  PyRef call; // its executable once it is ready
  bool has_checks = false;
  bool failed = false; // compiling it as a whole failed: it runs from its parts
  uint32_t seen = 0;
};

// One device's pending window and its programs.
class Recorder {
 public:
  explicit Recorder(c10::DeviceIndex device);
  // Appends an operation. `slots` are its distinct storages, `fresh` receives the values of its new results.
  void append(const Signature& signature, const Call& call, std::vector<ValuePtr>& fresh);
  // Ends the operation by the mode's policy: Debug and Strict run it now.
  void operation_done();
  // After a failed operation: gives the storages that it was to change in place their old values back.
  void restore(const Signature& signature, const Call& call);
  void flush(const char* reason);
  // Makes a value's array exist. Throws if the operation that makes it failed.
  PyObject* materialize(const ValuePtr& value);
  void verify_checks();
  void wait(); // until the device is idle
  size_t pending() const {
    return window_.nodes.size();
  }
  size_t programs() const;

 private:
  void run(Window& window);
  bool run_whole(Window& window, Program& program, const std::vector<uint8_t>& alive, const std::vector<uint8_t>& donated);
  void run_parts(Window& window);
  Program& program_for(const std::vector<uint64_t>& key);
  PyRef describe(const Window& window, const std::vector<uint8_t>& alive, const std::vector<uint8_t>& donated);
  PyObject* scalars(const void* data, size_t n, bool floating);

  c10::DeviceIndex device_;
  Window window_;
  std::vector<Window> spare_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Program>>> programs_;
  std::unordered_map<std::string, PyRef> scalar_cache_;
  std::vector<std::pair<PyRef, PyRef>> checks_; // error flags and the program that made them
  std::vector<uint32_t> failed_codes_; // inputs of the operation that failed last
  std::vector<ValuePtr> failed_inputs_;
  PyRef last_; // an array of the last program, to wait for
};

Recorder& recorder(c10::DeviceIndex device);
bool recorder_exists(c10::DeviceIndex device);
void cut(c10::DeviceIndex device, const char* reason);
void cut_all(const char* reason);
void synchronize(c10::DeviceIndex device);

} // namespace torchtpu
