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

uint64_t Window::number() {
  return next_window++;
}

void Window::clear() {
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

Recorder::Recorder(c10::DeviceIndex device, uint32_t lane) : device_(device), lane_(lane) {
  window_.id = next_window++;
}

uint32_t Window::input(const ValuePtr& value, bool pending) {
  if (!value) {
    return kUninitialized;
  }
  if (value->window != id) {
    TORCH_INTERNAL_ASSERT(pending || value->array || value->error, "a value of another window has not been computed");
    value->window = id;
    value->code = external_code(uint32_t(externals.size()));
    externals.push_back(value);
  }
  return value->code;
}

ValuePtr Window::result(SpecId spec, c10::DeviceIndex device, uint32_t lane) {
  auto value = c10::make_intrusive<Value>(spec, device);
  add_result(value, lane);
  bytes += spec_of(spec).nbytes;
  return value;
}

void Window::add_result(const ValuePtr& value, uint32_t lane) {
  value->window = id;
  value->lane = lane;
  value->code = result_code(uint32_t(results.size()));
  results.push_back(value);
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
  for (const auto& [slot, spec] : signature.writes) {
    call.slots[slot]->value = w.result(spec, device_, lane_);
  }
  for (const auto& result : signature.fresh) {
    if (result.defined) {
      fresh.push_back(w.result(result.spec, device_, lane_));
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
  Window rest = take_window();
  Window head = rest.head(last + 1);
  std::vector<ValuePtr> externals = std::move(rest.externals);
  auto inputs = [&](uint32_t code) {
    return code == kUninitialized ? ValuePtr() : code & 1 ? rest.results[code >> 1] : externals[(code >> 1) - 1];
  };
  std::vector<std::vector<ValuePtr>> operands;
  for (size_t i = last + 1; i < n; ++i) {
    const Node& node = rest.nodes[i];
    auto& list = operands.emplace_back();
    for (uint32_t c = node.first_code; c < node.first_code + node.codes; ++c) {
      list.push_back(inputs(rest.codes[c]));
    }
  }
  const uint32_t first = rest.nodes[last + 1].first_result;
  std::vector<ValuePtr> results(rest.results.begin() + first, rest.results.end());
  rest.results.clear();
  externals.clear();
  std::exception_ptr failure;
  try {
    run(head, reason);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  auto& w = window_;
  for (size_t i = last + 1; i < n; ++i) {
    const Node& old = rest.nodes[i];
    Node node{old.signature, uint32_t(w.codes.size()), old.codes, uint32_t(w.results.size()), old.results,
              uint32_t(w.floats.size()), uint32_t(w.ints.size())};
    w.key.push_back(old.signature->id);
    for (const auto& value : operands[i - last - 1]) {
      const uint32_t code = w.input(value);
      w.codes.push_back(code);
      w.key.push_back(code);
    }
    operands[i - last - 1].clear();
    for (uint32_t r = 0; r < old.results; ++r) {
      const auto& value = results[old.first_result - first + r];
      w.add_result(value, lane_);
      w.bytes += spec_of(value->spec).nbytes;
    }
    const bool end = i + 1 == n;
    w.floats.insert(
        w.floats.end(), rest.floats.begin() + old.first_float,
        end ? rest.floats.end() : rest.floats.begin() + rest.nodes[i + 1].first_float);
    w.ints.insert(
        w.ints.end(), rest.ints.begin() + old.first_int, end ? rest.ints.end() : rest.ints.begin() + rest.nodes[i + 1].first_int);
    w.nodes.push_back(node);
    w.marks.push_back(rest.marks[i]);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

// The first n operations as a window of their own.
Window Window::head(size_t n) const {
  Window out;
  const Node& next = nodes[n];
  out.id = next_window++;
  out.nodes.assign(nodes.begin(), nodes.begin() + int64_t(n));
  out.codes.assign(codes.begin(), codes.begin() + next.first_code);
  out.marks.assign(marks.begin(), marks.begin() + int64_t(n));
  out.results.assign(results.begin(), results.begin() + next.first_result);
  uint32_t last = 0;
  for (const uint32_t code : out.codes) {
    last = std::max(last, code & 1 ? 0 : code >> 1);
  }
  out.externals.assign(externals.begin(), externals.begin() + last);
  out.floats.assign(floats.begin(), floats.begin() + next.first_float);
  out.ints.assign(ints.begin(), ints.begin() + next.first_int);
  for (const auto& node : out.nodes) {
    out.key.push_back(node.signature->id);
    out.key.insert(out.key.end(), out.codes.begin() + node.first_code, out.codes.begin() + node.first_code + node.codes);
  }
  return out;
}

Window Recorder::take_window() {
  Window work;
  if (!spare_.empty()) {
    work = std::move(spare_.back());
    spare_.pop_back();
  }
  std::swap(work, window_);
  window_.clear();
  window_.id = next_window++;
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
