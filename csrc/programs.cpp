#include "programs.h"

#include "window.h"

#include <algorithm>

namespace torchtpu {

ProgramPtr Programs::find(uint64_t hash, const std::vector<uint64_t>& key) {
  const auto it = programs_.find(hash);
  if (it == programs_.end()) {
    return nullptr;
  }
  for (auto& program : it->second) {
    if (program->key == key) {
      program->used = ++clock_;
      return program;
    }
  }
  return nullptr;
}

ProgramPtr Programs::add(uint64_t hash, const std::vector<uint64_t>& key) {
  if (count_ >= policy().max_programs) {
    evict();
  }
  auto program = std::make_shared<Program>();
  program->key = key;
  program->used = ++clock_;
  programs_[hash].push_back(program);
  seen_.erase(hash);
  ++count_;
  return program;
}

uint32_t Programs::see(uint64_t hash) {
  constexpr size_t kMaxSeen = size_t(1) << 16;
  if (seen_.size() >= kMaxSeen) {
    seen_.clear();
  }
  return ++seen_[hash];
}

// Drops the quarter that was not used for longest.
void Programs::evict() {
  std::vector<uint64_t> times;
  for (const auto& bucket : programs_) {
    for (const auto& program : bucket.second) {
      times.push_back(program->used);
    }
  }
  const size_t quarter = std::max<size_t>(1, times.size() / 4);
  std::nth_element(times.begin(), times.begin() + int64_t(quarter) - 1, times.end());
  const uint64_t oldest = times[quarter - 1];
  for (auto it = programs_.begin(); it != programs_.end();) {
    auto& bucket = it->second;
    const size_t before = bucket.size();
    bucket.erase(
        std::remove_if(bucket.begin(), bucket.end(), [&](const ProgramPtr& p) { return p->used <= oldest; }), bucket.end());
    count_ -= before - bucket.size();
    it = bucket.empty() ? programs_.erase(it) : std::next(it);
  }
}

} // namespace torchtpu
