// Which recorder a thread records into.
#include "device.h"
#include "window.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>

#include <array>
#include <mutex>

namespace torchtpu {

namespace {

struct Lane {
  std::array<std::unique_ptr<Recorder>, kMaxDevices> recorders;
  std::shared_ptr<c10::SafePyObject> token; // stands for the lane in PyTorch's thread-local state
};

struct Lanes {
  std::vector<std::unique_ptr<Lane>> all; // under the recorder's lock
  std::mutex mutex;
  std::vector<uint32_t> retired; // lanes of threads that have ended, under `mutex`
  std::array<Programs, kMaxDevices> programs;
};

Lanes& lanes() {
  static auto* instance = new Lanes;
  return *instance;
}

const std::string& key() {
  static const auto* text = new std::string("torchtpu.lane");
  return *text;
}

// A thread's own lane, given back when the thread ends.
struct OwnLane {
  int64_t number = -1;
  ~OwnLane() {
    if (number >= 0) {
      std::lock_guard<std::mutex> guard(lanes().mutex);
      lanes().retired.push_back(uint32_t(number));
    }
  }
};
thread_local OwnLane own;

void flush_lane(Lane& lane, const char* reason) {
  for (auto& recorder : lane.recorders) {
    if (recorder) {
      recorder->flush(reason);
    }
  }
}

uint32_t new_lane() {
  std::vector<uint32_t> ended;
  {
    std::lock_guard<std::mutex> guard(lanes().mutex);
    ended.swap(lanes().retired);
  }
  auto& all = lanes().all;
  for (uint32_t number : ended) {
    try {
      flush_lane(*all[number], "thread end");
    } catch (const std::exception&) {
      // The values that were not computed say why when somebody reads them.
    }
  }
  uint32_t number = uint32_t(all.size());
  if (ended.empty()) {
    Gil gil;
    all.push_back(std::make_unique<Lane>());
    PyRef token = checked(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)));
    Py_INCREF(token.get());
    all.back()->token = std::make_shared<c10::SafePyObject>(token.get(), getPyInterpreter());
  } else {
    number = ended.back();
    ended.pop_back();
    std::lock_guard<std::mutex> guard(lanes().mutex);
    lanes().retired.insert(lanes().retired.end(), ended.begin(), ended.end());
  }
  return number;
}

// Autograd restores the caller's thread-local state in its own threads, and with it the caller's lane.
uint32_t current_lane() {
  if (own.number >= 0) {
    return uint32_t(own.number);
  }
  using State = at::impl::ThreadLocalPythonObjects;
  if (State::contains(key())) {
    const auto* token = State::get(key()).get();
    const auto& all = lanes().all;
    for (uint32_t i = 0; i < all.size(); ++i) {
      if (all[i]->token.get() == token) {
        return i;
      }
    }
  }
  own.number = new_lane();
  State::set(key(), lanes().all[size_t(own.number)]->token);
  return uint32_t(own.number);
}

Recorder& recorder_at(c10::DeviceIndex device, uint32_t lane) {
  auto& entry = lanes().all.at(lane)->recorders.at(size_t(device));
  if (!entry) {
    checked_device(device);
    entry = std::make_unique<Recorder>(device, lane);
  }
  return *entry;
}

// The lanes that exist when it starts; flushing may add others.
template <class Fn>
void each_recorder(c10::DeviceIndex device, const Fn& fn) {
  for (size_t i = 0; i < lanes().all.size(); ++i) {
    if (auto& recorder = lanes().all[i]->recorders.at(size_t(device))) {
      fn(*recorder);
    }
  }
}

} // namespace

Recorder& recorder(c10::DeviceIndex device) {
  return recorder_at(device, current_lane());
}

Programs& programs_of(c10::DeviceIndex device) {
  return lanes().programs.at(size_t(device));
}

PyObject* materialize(const ValuePtr& value) {
  if (!value->array && !value->error) {
    recorder_at(value->device, value->lane).flush("host read");
  }
  TORCH_CHECK(!value->error, "this tensor has no value, because the operation that makes it failed: ", *value->error);
  TORCH_INTERNAL_ASSERT(value->array, "a value was never computed");
  return value->array.get();
}

void cut(c10::DeviceIndex device, const char* reason) {
  Lock lock;
  each_recorder(device, [&](Recorder& r) { r.flush(reason); });
}

void cut_all(const char* reason) {
  Lock lock;
  for (size_t i = 0; i < lanes().all.size(); ++i) {
    flush_lane(*lanes().all[i], reason);
  }
}

void cut_lane(const char* reason) {
  Lock lock;
  flush_lane(*lanes().all.at(current_lane()), reason);
}

void synchronize(c10::DeviceIndex device) {
  check_not_forked();
  Lock lock;
  each_recorder(device, [](Recorder& r) {
    r.flush("synchronize");
    r.wait();
    r.verify_checks();
  });
}

size_t pending_operations(c10::DeviceIndex device) {
  size_t n = 0;
  each_recorder(device, [&](Recorder& r) { n += r.pending(); });
  return n;
}

} // namespace torchtpu
