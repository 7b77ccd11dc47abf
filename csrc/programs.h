// Compiled windows of one device, by key; the least recently used go when there are too many.
#pragma once

#include "common.h"

#include <memory>
#include <unordered_map>

namespace torchtpu {

struct Program {
  std::vector<uint64_t> key; // in full: a hash alone does not decide
  PyRef object; // torchtpu.program.Program, null before the first compile was asked for
  PyRef call; // its executable once it is ready
  bool has_checks = false;
  bool quick = false; // compiled with little effort
  uint32_t runs = 0; // of a quick program, until it is worth more
  bool failed = false; // compiling it as a whole failed: it runs from its parts
  uint64_t used = 0; // when it was asked for last
};
using ProgramPtr = std::shared_ptr<Program>;

class Programs {
 public:
  // The program of a key, or null.
  ProgramPtr find(uint64_t hash, const std::vector<uint64_t>& key);
  ProgramPtr add(uint64_t hash, const std::vector<uint64_t>& key);
  // Counts one more sight of a window that has no program. By hash: that another window has the same one only means
  // that it is compiled sooner.
  uint32_t see(uint64_t hash);
  size_t count() const {
    return count_;
  }

 private:
  void evict();
  std::unordered_map<uint64_t, std::vector<ProgramPtr>> programs_;
  std::unordered_map<uint64_t, uint32_t> seen_;
  size_t count_ = 0;
  uint64_t clock_ = 0;
};

} // namespace torchtpu
