// Creation and views: what PyTorch needs to make tensors and to look at them differently. Nothing here runs a program.
#include "device.h"
#include "recorder.h"
#include "window.h"

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

namespace torchtpu {

namespace {

c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  return checked_device(device ? device->index() : c10::DeviceIndex(-1));
}

at::Tensor empty_memory_format(
    at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
    std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "tpu tensors are dense; layout ", *layout, " is not supported");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  const auto type = c10::dtype_or_default(dtype);
  const auto index = index_of(device);
  AllocationHint hint(sizes, type);
  c10::OptionalDeviceGuard guard;
  if (index != current_device()) {
    guard.reset_device(c10::Device(kTpu, index));
  }
  return at::detail::empty_generic(sizes, allocator(), kTensorKeys, type, format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "tpu tensors are dense; layout ", *layout, " is not supported");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  return make_tensor(sizes, strides, c10::dtype_or_default(dtype), index_of(device));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == sizes && !format) {
    return self;
  }
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  const size_t needed = impl->numel() ? (size_t(impl->storage_offset()) + size_t(impl->numel())) * impl->itemsize() : 0;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    resize_storage(storage, needed);
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  auto* impl = self.unsafeGetTensorImpl();
  if (strides.data()) {
    impl->set_sizes_and_strides(sizes, strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  const size_t needed = impl->numel()
      ? at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), size_t(offset))
      : 0;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    resize_storage(storage, needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const int64_t n = int64_t(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, {n}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) {
    return self;
  }
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) {
  return at::native::view_as_real(self);
}

at::Tensor view_as_complex(const at::Tensor& self) {
  return at::native::view_as_complex(self);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
      self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() && self.strides() == other.strides();
}

void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &view_as_real);
  m.impl("view_as_complex", &view_as_complex);
  m.impl("is_set_to", &is_set_to);
  m.impl("record_stream", &record_stream);
}

at::Tensor resized_meta(const at::Tensor& self, int64_t numel) {
  return at::detail::empty_meta({numel}, self.scalar_type());
}

// Operators of our own.
TORCH_LIBRARY(torchtpu, m) {
  // A flat tensor cut or extended to `numel` elements: a storage that changes its size.
  m.def("resized(Tensor self, int numel) -> Tensor");
}

TORCH_LIBRARY_IMPL(torchtpu, Meta, m) {
  m.impl("resized", &resized_meta);
}

} // namespace

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  Lock lock;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  Slot* old = slot_of(storage);
  c10::OptionalDeviceGuard guard;
  if (old->device != current_device()) {
    guard.reset_device(c10::Device(kTpu, old->device));
  }
  auto pointer = allocator()->allocate(nbytes);
  if (old->value && nbytes) {
    const auto spec = spec_of(old->value->spec);
    const int64_t item = int64_t(c10::elementSize(spec.dtype));
    const bool even = int64_t(nbytes) % item == 0;
    const auto dtype = even ? spec.dtype : c10::ScalarType::Byte;
    const int64_t width = even ? item : 1;
    at::Tensor flat = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), kTensorKeys,
        c10::scalarTypeToTypeMeta(dtype));
    flat.unsafeGetTensorImpl()->set_sizes_contiguous({int64_t(old->nbytes) / width});
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("torchtpu::resized", "");
    torch::jit::Stack stack{flat, int64_t(nbytes) / width};
    record_boxed(op, {}, &stack);
    static_cast<Slot*>(pointer.get_context())->value = slot_of(stack[0].toTensor().unsafeGetTensorImpl())->value;
  }
  storage->set_data_ptr_noswap(std::move(pointer));
  storage->set_nbytes(nbytes);
}

} // namespace torchtpu
