// A storage is a value: what a tpu storage holds, and the allocator that makes storages.
#pragma once

#include "common.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace torchtpu {

// Dtype and row-major shape of a value; interned, so that a number stands for both in keys.
struct Spec {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t nbytes;
};
using SpecId = uint32_t;
SpecId intern_spec(c10::ScalarType dtype, c10::IntArrayRef shape);
const Spec& spec_of(SpecId id);

// One immutable array: a device buffer, or a result of an operation that has not run yet.
struct Value : c10::intrusive_ptr_target {
  Value(SpecId spec_, c10::DeviceIndex device_) : spec(spec_), device(device_) {}
  SpecId spec;
  c10::DeviceIndex device;
  bool exported = false; // somebody outside holds the array too: never donate it
  PyRef array; // jax.Array once computed
  uint64_t window = 0; // the window in which `code` means this value
  uint32_t code = 0;
  uint32_t lane = 0; // of that window
  std::shared_ptr<std::string> error; // set when the operation that makes it has failed
};
using ValuePtr = c10::intrusive_ptr<Value>;

// What a storage's data pointer leads to. A null value means memory that nobody has written.
struct Slot {
  ValuePtr value;
  size_t nbytes = 0;
  uint64_t address = 0; // what data_ptr() shows; no memory is there
  c10::DeviceIndex device = 0;
  uint64_t stamp = 0; // the call in which `index` numbers this slot
  uint32_t index = 0;
  Slot* previous = nullptr; // list of live slots, for the out-of-memory report
  Slot* next = nullptr;
  std::string* origin = nullptr; // where the user made it, when that is recorded
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::vector<int64_t>* sizes = nullptr; // kept with `origin`
};

Slot* slot_of(const c10::StorageImpl* storage);
inline Slot* slot_of(const c10::TensorImpl* tensor) {
  return slot_of(tensor->unsafe_storage().unsafeGetStorageImpl());
}

// Whether the view covers its storage exactly once, so that writing it replaces the whole value.
bool covers_storage(const c10::TensorImpl* tensor);
// Shape of a dense view in the order of memory; `order` receives the view's dimensions from outermost to innermost.
std::vector<int64_t> memory_shape(c10::IntArrayRef sizes, c10::IntArrayRef strides);

c10::Allocator* allocator();
void resize_storage(c10::StorageImpl* storage, size_t nbytes);
c10::DeviceIndex device_of_pointer(const void* pointer);

struct MemoryStats {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  int64_t count = 0, peak_count = 0, allocations = 0, frees = 0, out_of_memory = 0;
};
MemoryStats memory_stats(c10::DeviceIndex device);
void reset_peak(c10::DeviceIndex device);
void reset_accumulated(c10::DeviceIndex device);
// Bytes that a device may hold; 0 for no limit of our own. Recording where tensors are made costs a stack walk each.
void set_memory_limit(int64_t bytes);
int64_t memory_limit();
void set_track_origins(bool on);
// The text of an out-of-memory error. Takes the GIL.
std::string out_of_memory_text(c10::DeviceIndex device, int64_t asked);

// Names the sizes that the next allocation of this thread is for, for its report.
struct AllocationHint {
  AllocationHint(c10::IntArrayRef sizes, c10::ScalarType dtype);
  ~AllocationHint();
};

} // namespace torchtpu
