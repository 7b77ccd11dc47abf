// Windows: operations that were recorded and not yet run, and the programs that run them.
#pragma once

#include "programs.h"
#include "recorder.h"
#include "storage.h"

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace torchtpu {

enum class Mode { Debug, Strict, Fused };
Mode mode();
// Cuts all devices first: operations recorded under one mode run under it.
void set_mode(Mode mode);

// Settings of the cut policy, from torchtpu.config.
struct Policy {
  size_t max_window = 4096; // operations
  int64_t max_bytes = int64_t(8) << 30; // of a window's results
  size_t max_programs = 8192; // kept for each device
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
  Window();
  uint64_t id; // its own among all lanes, and a new one after clear()
  std::vector<Node> nodes;
  std::vector<uint32_t> codes;
  std::vector<uint64_t> key; // a signature and its wiring, for each node
  std::vector<uint64_t> marks; // for each node: what the last operations up to it were
  std::vector<ValuePtr> externals;
  std::vector<ValuePtr> results;
  std::vector<double> floats;
  std::vector<int64_t> ints;
  int64_t bytes = 0; // of all results
  void clear();
  uint32_t input(const ValuePtr& value); // its wiring code, as an external input when another window made it
  void add_result(const ValuePtr& value);
  // Appends the operations [begin, end) of another window, which is of no use afterwards.
  void take(const Window& from, size_t begin, size_t end);
  size_t period() const;
};

// What torchtpu.explain() shows of a window that ran.
struct WindowRecord {
  uint64_t content; // a hash of operations and wiring, the same in every process
  std::string reason; // why the window ended
  const char* how; // "hit", "compiled", "parts", "failed"
  uint32_t operations, inputs, results, lane;
  std::string first; // name of its first operation
  int64_t start, end; // nanoseconds of the steady clock
};
const std::vector<WindowRecord>& window_log();
void clear_window_log();

// What one thread has recorded on one device and not yet run.
class Recorder {
 public:
  Recorder(c10::DeviceIndex device, uint32_t lane);
  // Appends an operation; `fresh` receives the values of its new results.
  void append(const Signature& signature, const Call& call, std::vector<ValuePtr>& fresh);
  // Ends the operation by the mode's policy: Debug and Strict run it now.
  void operation_done();
  void flush(const char* reason);
  void verify_checks();
  void wait(); // until the device is idle
  size_t pending() const {
    return window_.nodes.size();
  }

 private:
  Window take_window();
  // Cuts at the operation, from `from` on, whose mark is least: wherever a loop's repeats begin in the window, they end
  // at the same one.
  void cut_by_content(size_t from, const char* reason);
  void run(Window& window, const char* reason);
  const char* run(Window& window);
  void build_parts(std::vector<Window>& parts);
  void adopt(Program& program, PyObject* object, const Window& window);
  void run_whole(Window& window, Program& program, const std::vector<uint8_t>& alive);
  void run_parts(Window& window);
  void fail(Window& window, const std::shared_ptr<std::string>& reason);
  void hold_back();
  PyRef describe(const Window& window, const std::vector<uint8_t>& alive, const std::vector<uint8_t>& donated);
  PyObject* scalars(const void* data, size_t n, bool floating);

  c10::DeviceIndex device_;
  uint32_t lane_;
  Window window_;
  uint64_t mark_ = 0;
  std::unordered_set<uint64_t> anchors_; // marks after which windows are cut
  std::vector<Window> spare_;
  std::unordered_map<std::string, PyRef> scalar_cache_;
  std::vector<std::pair<PyRef, PyRef>> checks_; // error flags and the program that made them
  std::deque<PyRef> in_flight_; // an array of each of the last windows
  bool running_parts_ = false;
  PyRef last_; // an array of the last program, to wait for
};

// A thread has a lane of its own on every device, so that threads that record at once don't mix their windows.
// Autograd's threads record into the lane of the thread that called backward().
Recorder& recorder(c10::DeviceIndex device);
// Makes a value's array exist, whatever lane it is pending in. Throws if the operation that makes it failed.
PyObject* materialize(const ValuePtr& value);
void cut(c10::DeviceIndex device, const char* reason); // every lane of a device
void cut_all(const char* reason); // every lane of every device
void cut_lane(const char* reason); // this thread's lane on every device
void synchronize(c10::DeviceIndex device);
size_t pending_operations(c10::DeviceIndex device);
Programs& programs_of(c10::DeviceIndex device);

} // namespace torchtpu
