// Transfers: between host and device, between devices, and reading one element.
#include "describe.h"
#include "device.h"
#include "recorder.h"
#include "window.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/library.h>

namespace torchtpu {

namespace {

Slot* slot_of(const at::Tensor& t) {
  return torchtpu::slot_of(t.unsafeGetTensorImpl());
}

// Records `self.copy_(src)` for two tensors on one device.
void record_copy(const at::Tensor& self, const at::Tensor& src) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{self, src, false};
  record_boxed(op, {}, &stack);
}

// A CPU tensor's bytes as a new value for the whole of `dst`, which has the same sizes, strides and dtype.
void upload(const at::Tensor& host, const at::Tensor& dst) {
  check_not_forked();
  const auto device = dst.device().index();
  const auto shape = memory_shape(dst.sizes(), dst.strides());
  Lock lock;
  recorder(device); // checks the index and starts the runtime
  auto value = c10::make_intrusive<Value>(intern_spec(dst.scalar_type(), shape), device);
  {
    Gil gil;
    PyRef python_shape = to_python(shape);
    value->array = checked(PyObject_CallFunction(
        callbacks().from_host.get(), "KnsOi", (unsigned long long)(uintptr_t)host.const_data_ptr(), Py_ssize_t(host.nbytes()),
        dtype_name(dst.scalar_type()), python_shape.get(), int(device)));
  }
  slot_of(dst)->value = std::move(value);
}

bool is_plain(const at::Tensor& t) {
  return !t.is_conj() && !t.is_neg();
}

// A dense tensor that holds nothing but `t`'s elements.
at::Tensor compact(const at::Tensor& t) {
  if (is_plain(t) && covers_storage(t.unsafeGetTensorImpl()) && slot_of(t)->value &&
      spec_of(slot_of(t)->value->spec).dtype == t.scalar_type()) {
    return t;
  }
  const at::Tensor src = t.resolve_conj().resolve_neg();
  at::Tensor out = make_contiguous(src.sizes(), src.scalar_type(), src.device().index());
  record_copy(out, src);
  return out;
}

at::Tensor download(const at::Tensor& t) {
  check_not_forked();
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor out;
  if (t.numel() == 0) {
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
  }
  Lock lock;
  const at::Tensor src = compact(t);
  out = at::empty_strided(src.sizes(), src.strides(), src.options().device(at::kCPU).pinned_memory(false));
  auto& r = recorder(src.device().index());
  const ValuePtr value = slot_of(src)->value;
  PyObject* array = materialize(value);
  Gil gil;
  PyRef keep = PyRef::borrow(array);
  checked(PyObject_CallFunction(
      callbacks().to_host.get(), "OKn", keep.get(), (unsigned long long)(uintptr_t)out.mutable_data_ptr(), Py_ssize_t(out.nbytes())));
  r.verify_checks();
  return out;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  (void)non_blocking; // the host's memory is always read before we return
  at::AutoDispatchBelowADInplaceOrView below;
  if (dst.numel() == 0 && self.numel() == 0) {
    return dst;
  }
  if (!self.sizes().equals(dst.sizes())) {
    TORCH_CHECK(
        at::is_expandable_to(self.sizes(), dst.sizes()), "The size of tensor a (",
        dst.dim() ? dst.size(-1) : 1, ") must match the size of tensor b (", self.dim() ? self.size(-1) : 1,
        ") at non-singleton dimension ", std::max<int64_t>(0, dst.dim() - 1));
  }
  at::assert_no_internal_overlap(dst);
  const bool from_tpu = self.device().type() == kTpu, to_tpu = dst.device().type() == kTpu;
  TORCH_CHECK_NOT_IMPLEMENTED(
      (from_tpu || self.device().is_cpu()) && (to_tpu || dst.device().is_cpu()),
      "Cannot copy between ", self.device(), " and ", dst.device(), self.device().is_meta() ? ": a meta tensor has no data" : "");
  if (from_tpu && to_tpu) {
    if (self.device() == dst.device()) {
      record_copy(dst, self.expand(dst.sizes()));
      return dst;
    }
    const at::Tensor src = compact(self.to(dst.scalar_type()).expand(dst.sizes()));
    at::Tensor moved = make_tensor(src.sizes(), src.strides(), src.scalar_type(), dst.device().index());
    {
      Lock lock;
      PyObject* array = materialize(slot_of(src)->value);
      recorder(dst.device().index());
      auto value = c10::make_intrusive<Value>(slot_of(src)->value->spec, dst.device().index());
      Gil gil;
      value->array = checked(PyObject_CallFunction(callbacks().across.get(), "Oi", array, int(dst.device().index())));
      slot_of(moved)->value = std::move(value);
    }
    record_copy(dst, moved);
    return dst;
  }
  if (from_tpu) {
    at::Tensor host = download(self);
    dst.copy_(host);
    return dst;
  }
  if (dst.numel() == 0) {
    return dst;
  }
  const bool whole = covers_storage(dst.unsafeGetTensorImpl()) && is_plain(dst);
  const at::Tensor target = whole ? dst : make_contiguous(dst.sizes(), dst.scalar_type(), dst.device().index());
  const auto dtype = dst.scalar_type();
  at::Tensor host = self.resolve_conj().resolve_neg();
  if (host.scalar_type() != dtype || !host.sizes().equals(target.sizes()) || !host.strides().equals(target.strides())) {
    at::Tensor staged = at::empty_strided(target.sizes(), target.strides(), at::TensorOptions().dtype(dtype).device(at::kCPU));
    staged.copy_(host);
    host = staged;
  }
  upload(host, target);
  if (!whole) {
    record_copy(dst, target);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (!dst.sizes().equals(self.sizes())) {
    dst.resize_(self.sizes());
  }
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  return at::native::_local_scalar_dense_cpu(download(self));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

// The schemas do not say that the second argument is written, so PyTorch's fallback for lazy conjugates would hand us a
// copy of it. We read the bits ourselves.
void read_bits_ourselves(torch::Library& m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  read_bits_ourselves(m);
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  read_bits_ourselves(m);
}

} // namespace

} // namespace torchtpu
