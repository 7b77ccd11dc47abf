// What PyTorch asks an accelerator for outside of operators, and its page-locked memory.
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

// Its classes are aligned by a value that g++ warns about in every file that includes them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"
#include <ATen/core/CachingHostAllocator.h>
#pragma GCC diagnostic pop
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "generator.h"

namespace torchtpu {

// Defined in storage.cpp.
c10::DeviceIndex device_of_pointer(const void* pointer);
void resize_storage(c10::StorageImpl* storage, size_t bytes);

namespace {

// XLA copies from any host memory, so "pinned" memory is plain memory with XLA's alignment
// that we recognise again. That is what `Tensor.is_pinned` and DataLoader need.
class HostAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free_block, c10::Device(c10::DeviceType::CPU)};
    }
    void* block = nullptr;
    TORCH_CHECK(posix_memalign(&block, kAlignment, bytes) == 0,
                "not enough host memory: you tried to allocate ", bytes, " pinned bytes");
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      blocks_.emplace(reinterpret_cast<uintptr_t>(block), bytes);
    }
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }

  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }

  // Also true for a pointer into the middle of a block.
  bool owns(const void* pointer) const {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) {
      return false;
    }
    const auto block = std::prev(after);
    return address < block->first + block->second;
  }

  // Host memory is copied before a transfer returns, so no block is ever still in use.
  bool record_event(void* pointer, void* /*context*/, c10::Stream /*stream*/) override {
    return owns(pointer);
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}

  void reset_peak_stats() override {}

 private:
  static constexpr size_t kAlignment = 64;

  static void free_block(void* block);

  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
};

HostAllocator& host_allocator() {
  static auto* const instance = new HostAllocator();
  return *instance;
}

void HostAllocator::free_block(void* block) {
  if (block == nullptr) {
    return;
  }
  auto& self = host_allocator();
  {
    std::unique_lock<std::shared_mutex> lock(self.mutex_);
    self.blocks_.erase(reinterpret_cast<uintptr_t>(block));
  }
  std::free(block);
}

struct Hooks final : public at::PrivateUse1HooksInterface {
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

  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return runtime_started() && index < deviceCount();
  }

  void init() const override {
    check_not_forked();
    device_count();
  }

  c10::DeviceIndex deviceCount() const override {
    try {
      return device_count();
    } catch (...) {
      return 0;
    }
  }

  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_device(index);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    set_device(index);
    return before;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    if (index >= 0 && index != before) {
      set_device(index);
    }
    return before;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator_ref(index);
  }

  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (index == -1) {
      index = current_device();
    } else if (index != 0) {
      index = checked_device(index);
    }
    return at::make_generator<TpuGeneratorImpl>(index);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &host_allocator();
  }

  bool isPinnedPtr(const void* data) const override {
    return host_allocator().owns(data);
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    const auto index = device_of_pointer(data);
    TORCH_CHECK(index >= 0, "The pointer ", data, " does not belong to a tpu storage");
    return c10::Device(c10::DeviceType::PrivateUse1, index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

// Runs when the extension is loaded; the hooks live as long as the process.
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &host_allocator());
  return true;
}();

} // namespace
} // namespace torchtpu
