#include "device.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

namespace py = pybind11;

namespace torchtpu {

// Defined in window.cpp.
void cut(c10::DeviceIndex device, const char* reason);
void synchronize(c10::DeviceIndex device);

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using c10::StreamId;

std::atomic<int> known_count{-1};
std::atomic<bool> started{false};
std::atomic<bool> forked{false};
thread_local DeviceIndex current = 0;

// Only atomics here: a child of a threaded process may do nothing else before exec.
void after_fork_in_child() {
  if (started.load()) {
    forked.store(true);
  }
}

const int fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

} // namespace

DeviceIndex device_count() {
  int count = known_count.load(std::memory_order_relaxed);
  if (count >= 0) {
    return static_cast<DeviceIndex>(count);
  }
  // No lock of our own is held while the GIL is taken; two threads may both ask, and agree.
  py::gil_scoped_acquire gil;
  try {
    count = py::module_::import("torchtpu.runtime.client").attr("device_count")().cast<int>();
  } catch (py::error_already_set& error) {
    // python_error keeps the Python type on the way through PyTorch's own frames.
    error.restore();
    python_error kept;
    kept.persist();
    throw kept;
  }
  TORCH_CHECK(count <= kMaxDevices - 1, "tpu: XLA reports ", count, " devices; at most ",
              kMaxDevices - 1, " are supported");
  known_count.store(count);
  return static_cast<DeviceIndex>(count);
}

DeviceIndex current_device() {
  return current;
}

DeviceIndex checked_device(DeviceIndex index) {
  check_not_forked();
  if (index == -1) {
    return current;
  }
  const int count = device_count();
  TORCH_CHECK(index >= 0 && index < count, "Invalid device index ", static_cast<int>(index),
              ": there ", count == 1 ? "is " : "are ", count, " tpu device",
              count == 1 ? "" : "s", " (valid indices are 0 to ", count - 1, ")");
  return index;
}

void set_device(DeviceIndex index) {
  current = checked_device(index);
}

bool runtime_started() {
  return started.load(std::memory_order_relaxed);
}

void check_not_forked() {
  TORCH_CHECK(!forked.load(std::memory_order_relaxed),
              "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, "
              "you must use the 'spawn' start method");
}

namespace {

// Streams are names only: XLA orders the work of a device itself, by data dependence.
// Id 0 is the default stream, 1..32 the pool, anything above was made by getNewStream.
constexpr StreamId kPoolSize = 32;
std::atomic<StreamId> next_pool_stream{0};
std::atomic<StreamId> next_new_stream{kPoolSize + 1};
thread_local std::array<StreamId, kMaxDevices> current_stream{};

// What was on the device when `record` ran has been sent there; `done` says it was waited for.
struct Event {
  bool timing = false;
  DeviceIndex device = 0;
  std::atomic<bool> done{true};
  std::chrono::steady_clock::time_point time;
};

Event* as_event(void* event) {
  return static_cast<Event*>(event);
}

Stream make_stream(DeviceIndex index, StreamId id) {
  return Stream(Stream::UNSAFE, Device(DeviceType::PrivateUse1, index), id);
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::PrivateUse1;
  }

  Device exchangeDevice(Device device) const override {
    const DeviceIndex before = current;
    if (device.index() != before) {
      set_device(device.index());
    }
    return Device(type(), before);
  }

  Device getDevice() const override {
    return Device(type(), current);
  }

  void setDevice(Device device) const override {
    set_device(device.index());
  }

  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) {
      current = device.index();
    }
  }

  Stream getStream(Device device) const override {
    const DeviceIndex index = index_of(device);
    return make_stream(index, current_stream[index]);
  }

  Stream getDefaultStream(Device device) const override {
    return make_stream(index_of(device), 0);
  }

  Stream getStreamFromGlobalPool(Device device, bool /*isHighPriority*/) const override {
    return make_stream(checked_device(device.index()), 1 + next_pool_stream++ % kPoolSize);
  }

  Stream getNewStream(Device device, int /*priority*/) const override {
    return make_stream(checked_device(device.index()), next_new_stream++);
  }

  Stream exchangeStream(Stream stream) const override {
    const DeviceIndex index = index_of(stream.device());
    return make_stream(index, std::exchange(current_stream[index], stream.id()));
  }

  bool queryStream(const Stream& stream) const override {
    // There is no cheaper answer that also covers what other threads have sent.
    synchronizeStream(stream);
    return true;
  }

  void synchronizeStream(const Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }

  void synchronizeDevice(const DeviceIndex device) const override {
    check_not_forked();
    if (runtime_started()) {
      torchtpu::synchronize(device == -1 ? current : device);
    }
  }

  // With timing the time is the host's, taken after all earlier work on the device has ended,
  // so recording such an event waits. Without timing it only sends pending work.
  void record(void** event, const Stream& stream, const DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    const DeviceIndex device = stream.device_index();
    TORCH_CHECK(device_index == -1 || device_index == device, "Event device index ",
                static_cast<int>(device_index), " does not match the stream's device index ",
                static_cast<int>(device));
    check_not_forked();
    if (*event == nullptr) {
      auto* made = new Event();
      made->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      *event = made;
    }
    Event* self = as_event(*event);
    self->device = device;
    if (self->timing) {
      synchronizeDevice(device);
      self->time = std::chrono::steady_clock::now();
      self->done = true;
    } else if (runtime_started()) {
      self->done = false;
      torchtpu::cut(device, "event");
    }
  }

  // Every later operation on the device already runs after what it reads; nothing to add.
  void block(void* /*event*/, const Stream& /*stream*/) const override {}

  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr && !as_event(event)->done) {
      synchronizeDevice(as_event(event)->device);
      as_event(event)->done = true;
    }
  }

  double elapsedTime(void* event1, void* event2, const DeviceIndex /*device_index*/) const override {
    TORCH_CHECK(event1 != nullptr && event2 != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(as_event(event1)->timing && as_event(event2)->timing,
                "Both events must be created with argument 'enable_timing=True'.");
    const std::chrono::duration<double, std::milli> elapsed =
        as_event(event2)->time - as_event(event1)->time;
    return elapsed.count();
  }

  void destroyEvent(void* event, const DeviceIndex /*device_index*/) const noexcept override {
    delete as_event(event);
  }

  DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (...) {
      return 0;
    }
  }

#if __has_include(<c10/core/DeviceCapability.h>)
  // No `override`: older versions do not have it. All types but the quantized ones.
  c10::DeviceCapability getDeviceCapability(Device /*device*/) const {
    c10::DeviceCapability capability;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_QInt8 = has.has_QUInt8 = has.has_QInt32 = 0;
    return capability;
  }
#endif

 private:
  // Streams exist without the runtime: the autograd engine asks for them in every thread.
  static DeviceIndex index_of(Device device) {
    return device.index() == -1 ? current : device.index();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

} // namespace

void bind_device(py::module_& m) {
  m.def("_device_count", [] { return static_cast<int>(device_count()); });
  m.def("_current_device", [] { return static_cast<int>(current_device()); });
  m.def("_set_device", [](int index) {
    TORCH_CHECK(index >= -1 && index < kMaxDevices, "Invalid device index ", index);
    set_device(static_cast<DeviceIndex>(index));
  });
  m.def("_exchange_device", [](int index) {
    const int before = current_device();
    if (index >= 0) {
      TORCH_CHECK(index < kMaxDevices, "Invalid device index ", index);
      set_device(static_cast<DeviceIndex>(index));
    }
    return before;
  });
  m.def("_restore_device", [](int index) {
    if (index >= 0 && index < kMaxDevices) {
      current = static_cast<DeviceIndex>(index);
    }
  });
  m.def("_runtime_started", &runtime_started);
  m.def("_mark_runtime_started", [] {
    check_not_forked();
    started = true;
  });
  m.def("_is_forked", [] { return forked.load(); });
  m.def("_check_not_forked", &check_not_forked);
}

} // namespace torchtpu
