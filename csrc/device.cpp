#include "device.h"

#include "generator.h"
#include "storage.h"
#include "window.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/utils/pybind.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

namespace py = pybind11;

namespace torchtpu {

namespace {

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};
std::atomic<int> known_devices{-1};
std::atomic<bool> forked{false};
std::atomic<c10::StreamId> next_stream{1};

void after_fork_in_child() {
  if (known_devices.load() >= 0) {
    forked = true;
  }
}

struct WatchForks {
  WatchForks() {
    pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  }
} watch_forks;

// A point in a device's work. PJRT has no device events: recording one sends what is pending, and the time of one with
// timing is taken once the device is idle.
struct Event {
  c10::DeviceIndex device;
  bool timed;
  std::chrono::steady_clock::time_point time;
};

struct TpuGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kTpu;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto old = current;
    if (device.index() != old) {
      setDevice(device);
    }
    return {kTpu, old};
  }
  c10::Device getDevice() const override {
    return {kTpu, current};
  }
  void setDevice(c10::Device device) const override {
    set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kMaxDevices) {
      current = device.index();
    }
  }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current;
    return c10::Stream(c10::Stream::UNSAFE, {kTpu, index}, current_streams.at(size_t(index)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kTpu, device.has_index() ? device.index() : current});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, {kTpu, device.has_index() ? device.index() : current}, next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& slot = current_streams.at(size_t(stream.device_index()));
    const c10::Stream old{c10::Stream::UNSAFE, stream.device(), slot};
    slot = stream.id();
    return old;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    if (!*event) {
      *event = new Event{stream.device_index(), timed, {}};
    }
    auto* e = static_cast<Event*>(*event);
    if (timed) {
      synchronize(stream.device_index());
    } else {
      cut(stream.device_index(), "event");
    }
    e->time = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event) {
      synchronize(static_cast<Event*>(event)->device);
    }
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "Both events must be recorded before calculating elapsed time.");
    const auto* a = static_cast<Event*>(first);
    const auto* b = static_cast<Event*>(second);
    TORCH_CHECK(a->timed && b->timed, "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(b->time - a->time).count();
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize(index < 0 ? current : index);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (...) {
      return 0;
    }
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, TpuGuard)

// Host memory that remembers being pinned. XLA copies from any host memory; this is for what PyTorch asks about it.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = nbytes ? c10::alloc_cpu(nbytes) : nullptr;
    if (data) {
      std::lock_guard<std::mutex> guard(mutex());
      blocks()[reinterpret_cast<uintptr_t>(data)] = nbytes;
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
  static bool owns(const void* pointer) {
    std::lock_guard<std::mutex> guard(mutex());
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto it = blocks().upper_bound(address);
    return it != blocks().begin() && address < std::prev(it)->first + std::prev(it)->second;
  }

 private:
  static void release(void* data) {
    if (!data) {
      return;
    }
    {
      std::lock_guard<std::mutex> guard(mutex());
      blocks().erase(reinterpret_cast<uintptr_t>(data));
    }
    c10::free_cpu(data);
  }
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  static std::map<uintptr_t, size_t>& blocks() {
    static auto* instance = new std::map<uintptr_t, size_t>;
    return *instance;
  }
};

struct TpuHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    try {
      return device_count() > 0;
    } catch (...) {
      return false;
    }
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return runtime_started();
  }
  void init() const override {
    device_count();
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto old = current;
    set_device(index);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<TpuGeneratorImpl>(index < 0 ? current : index);
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedAllocator::owns(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* instance = new PinnedAllocator;
    return instance;
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto index = device_of_pointer(data);
    TORCH_CHECK(index >= 0, "the pointer does not belong to a tpu tensor");
    return {kTpu, index};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

struct RegisterHooks {
  RegisterHooks() {
    at::RegisterPrivateUse1HooksInterface(new TpuHooks); // leaked: it may be asked until the very end
  }
} register_hooks;

} // namespace

c10::DeviceIndex device_count() {
  const int known = known_devices.load(std::memory_order_acquire);
  if (known >= 0) {
    return c10::DeviceIndex(known);
  }
  check_not_forked();
  Gil gil;
  PyRef module = checked(PyImport_ImportModule("torchtpu.runtime.client"));
  PyRef count = checked(PyObject_CallMethod(module.get(), "device_count", nullptr));
  const long n = PyLong_AsLong(count.get());
  if (n < 0 && PyErr_Occurred()) {
    throw_python_error();
  }
  known_devices = int(std::min<long>(n, kMaxDevices));
  return c10::DeviceIndex(known_devices.load());
}

c10::DeviceIndex current_device() {
  return current;
}

void set_device(c10::DeviceIndex index) {
  if (index == current) {
    return;
  }
  check_not_forked();
  const auto n = device_count();
  TORCH_CHECK(
      index >= 0 && index < n, "tpu device index ", int(index), " is out of range: there ", n == 1 ? "is 1 tpu device" : "are ",
      n == 1 ? "" : std::to_string(int(n)) + " tpu devices", ", with indices from 0 to ", int(n) - 1);
  current = index;
}

bool runtime_started() {
  return known_devices.load() >= 0 && !forked;
}

void check_not_forked() {
  TORCH_CHECK(
      !forked.load(std::memory_order_relaxed),
      "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the 'spawn' start method");
}

void bind_device(py::module_& m) {
  m.def("_device_count", [] { return int(device_count()); });
  m.def("_current_device", [] { return int(current); });
  m.def("_set_device", [](int index) { set_device(c10::DeviceIndex(index)); });
  m.def("_exchange_device", [](int index) {
    const int old = current;
    if (index >= 0) {
      set_device(c10::DeviceIndex(index));
    }
    return old;
  });
  m.def("_runtime_started", &runtime_started);
  m.def("_in_bad_fork", [] { return forked.load(); });
}

} // namespace torchtpu
