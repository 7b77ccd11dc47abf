// Recording: operations collect in a window until the mode's policy cuts it.
#include "window.h"

#include "device.h"

#include <algorithm>
#include <atomic>

namespace torchtpu {

namespace {

std::atomic<Mode> current_mode{Mode::Strict};
constexpr size_t kMaxChecks = 1024; // unread error flags before the oldest are looked at
constexpr size_t kMinWindow = 256; // operations that a window cut by content has at least
constexpr size_t kFirstLook = 1024; // operations after which a window is searched for a loop, and again at each doubling

uint64_t next_window = 1; // under the recorder's lock; a window's number is its own among all lanes

} // namespace

Mode mode() {
  return current_mode.load(std::memory_order_relaxed);
}

void set_mode(Mode mode) {
  if (mode != current_mode.load()) {
    cut_all("mode change");
    current_mode = mode;
    set_track_origins(mode == Mode::Debug);
  }
}

Policy& policy() {
  static auto* instance = new Policy;
  return *instance;
}

Window::Window() : id(next_window++) {}

void Window::clear() {
  id = next_window++;
  nodes.clear();
  codes.clear();
  key.clear();
  marks.clear();
  externals.clear();
  results.clear();
  floats.clear();
  ints.clear();
  bytes = 0;
}

Recorder::Recorder(c10::DeviceIndex device, uint32_t lane) : device_(device), lane_(lane) {}

uint32_t Window::input(const ValuePtr& value) {
  if (!value) {
    return kUninitialized;
  }
  if (value->window != id) {
    value->window = id;
    value->code = external_code(uint32_t(externals.size()));
    externals.push_back(value);
  }
  return value->code;
}

void Window::add_result(const ValuePtr& value) {
  value->window = id;
  value->code = result_code(uint32_t(results.size()));
  results.push_back(value);
  bytes += spec_of(value->spec).nbytes;
}

void Recorder::append(const Signature& signature, const Call& call, std::vector<ValuePtr>& fresh) {
  auto& w = window_;
  for (size_t i = 0; i < call.slots.size(); ++i) {
    const auto& value = call.slots[i]->value;
    if (!signature.needs[i] || !value || value->array) {
      continue;
    }
    if (!value->error && value->window != w.id) {
      materialize(value); // another thread recorded it
      TORCH_INTERNAL_ASSERT(value->array || value->error, "a value of another window has not been computed");
    }
    TORCH_CHECK(!value->error, "this tensor has no value, because the operation that makes it failed: ", *value->error);
  }
  Node node{&signature, uint32_t(w.codes.size()), 0, uint32_t(w.results.size()), 0, uint32_t(w.floats.size()), uint32_t(w.ints.size())};
  w.key.push_back(signature.id);
  for (size_t i = 0; i < call.slots.size(); ++i) {
    if (signature.needs[i]) {
      const uint32_t code = w.input(call.slots[i]->value);
      w.codes.push_back(code);
      w.key.push_back(code);
      node.codes += 1;
    }
  }
  auto produce = [&](SpecId spec) {
    auto value = c10::make_intrusive<Value>(spec, device_);
    value->lane = lane_;
    w.add_result(value);
    return value;
  };
  for (const auto& [slot, spec] : signature.writes) {
    call.slots[slot]->value = produce(spec);
  }
  for (const auto& result : signature.fresh) {
    if (result.defined) {
      fresh.push_back(produce(result.spec));
    }
  }
  node.results = uint32_t(w.results.size()) - node.first_result;
  w.floats.insert(w.floats.end(), call.floats.begin(), call.floats.end());
  w.ints.insert(w.ints.end(), call.ints.begin(), call.ints.end());
  w.nodes.push_back(node);
  mark_ = (mark_ << 4) + signature.mark * 0x9E3779B97F4A7C15ull; // an operation counts for the 16 after it
  w.marks.push_back(mark_);
  counters().operations += 1;
}

void Recorder::operation_done() {
  switch (mode()) {
    case Mode::Fused: {
      const size_t n = window_.nodes.size();
      if (n >= kMinWindow && anchors_.contains(mark_)) {
        flush("period");
      } else if (n >= policy().max_window || window_.bytes >= policy().max_bytes) {
        cut_by_content(0, "size limit");
      } else if (n >= kFirstLook && (n & (n - 1)) == 0) {
        if (const size_t period = window_.period()) {
          cut_by_content(n - period, "period");
        }
      }
      return;
    }
    case Mode::Strict:
      flush("strict");
      return;
    case Mode::Debug:
      flush("debug");
      wait();
      verify_checks();
  }
}

// The least number of operations after which the window's end repeats itself three times over, or 0.
size_t Window::period() const {
  const size_t n = marks.size();
  for (size_t d = 1; d <= n / 3; ++d) {
    if (marks[n - 1] == marks[n - 1 - d] && std::equal(marks.end() - int64_t(2 * d), marks.end(), marks.end() - int64_t(3 * d))) {
      return d;
    }
  }
  return 0;
}

void Recorder::cut_by_content(size_t from, const char* reason) {
  const auto& marks = window_.marks;
  const size_t n = marks.size();
  if (n <= kMinWindow) {
    flush(reason);
    return;
  }
  size_t last = std::max(from, kMinWindow - 1);
  for (size_t i = last; i < n; ++i) {
    if (marks[i] <= marks[last]) {
      last = i;
    }
  }
  constexpr size_t kMaxAnchors = 4096;
  if (anchors_.size() >= kMaxAnchors) {
    anchors_.clear();
  }
  anchors_.insert(marks[last]);
  if (last + 1 == n) {
    flush(reason);
    return;
  }
  // The operations after the cut are recorded anew into the next window.
  Window head, rest;
  {
    Window whole = take_window();
    head.take(whole, 0, last + 1);
    rest.take(whole, last + 1, n);
  }
  std::exception_ptr failure;
  try {
    run(head, reason);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  head.clear();
  window_.take(rest, 0, rest.nodes.size());
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void Window::take(const Window& from, size_t begin, size_t end) {
  for (size_t n = begin; n < end; ++n) {
    Node node = from.nodes[n];
    const bool last = n + 1 == from.nodes.size();
    const size_t end_float = last ? from.floats.size() : from.nodes[n + 1].first_float;
    const size_t end_int = last ? from.ints.size() : from.nodes[n + 1].first_int;
    key.push_back(node.signature->id);
    const uint32_t first_code = node.first_code, first_result = node.first_result;
    const int64_t first_float = node.first_float, first_int = node.first_int;
    node.first_code = uint32_t(codes.size());
    node.first_result = uint32_t(results.size());
    node.first_float = uint32_t(floats.size());
    node.first_int = uint32_t(ints.size());
    for (uint32_t c = first_code; c < first_code + node.codes; ++c) {
      const uint32_t code = from.codes[c];
      codes.push_back(input(code == kUninitialized ? ValuePtr() : code & 1 ? from.results[code >> 1] : from.externals[(code >> 1) - 1]));
      key.push_back(codes.back());
    }
    for (uint32_t r = first_result; r < first_result + node.results; ++r) {
      add_result(from.results[r]);
    }
    floats.insert(floats.end(), from.floats.begin() + first_float, from.floats.begin() + int64_t(end_float));
    ints.insert(ints.end(), from.ints.begin() + first_int, from.ints.begin() + int64_t(end_int));
    nodes.push_back(node);
    marks.push_back(from.marks[n]);
  }
}

Window Recorder::take_window() {
  Window work;
  if (!spare_.empty()) {
    work = std::move(spare_.back());
    spare_.pop_back();
  }
  std::swap(work, window_);
  return work;
}

void Recorder::flush(const char* reason) {
  if (window_.nodes.empty()) {
    return;
  }
  Window work = take_window();
  run(work, reason);
  work.clear();
  if (spare_.size() < 4) {
    spare_.push_back(std::move(work));
  }
  if (checks_.size() > kMaxChecks) {
    verify_checks();
  }
}

} // namespace torchtpu
