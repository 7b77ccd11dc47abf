// The extension module torchtpu._C.
#include "describe.h"
#include "device.h"
#include "generator.h"
#include "recorder.h"
#include "window.h"

#include <torch/csrc/THP.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace torchtpu {

namespace {

void install(const py::dict& table) {
  auto& c = callbacks();
  auto take = [&](const char* name, PyRef& into) {
    if (table.contains(name)) {
      into = PyRef::borrow(py::object(table[name]).ptr());
    }
  };
  take("describe_operator", c.describe_operator);
  take("infer_outputs", c.infer_outputs);
  take("make_signature", c.make_signature);
  take("build", c.build);
  take("build_parts", c.build_parts);
  take("improve", c.improve);
  take("verify", c.verify);
  take("explain_failure", c.explain_failure);
  take("explain_call", c.explain_call);
  take("fallback", c.fallback);
  take("from_host", c.from_host);
  take("to_host", c.to_host);
  take("across", c.across);
  take("user_line", c.user_line);
  take("nan_check", c.nan_check);
}

py::dict stats_of(c10::DeviceIndex device) {
  const auto s = memory_stats(device);
  py::dict out;
  out["allocated_bytes.current"] = s.current;
  out["allocated_bytes.peak"] = s.peak;
  out["allocated_bytes.allocated"] = s.allocated;
  out["allocated_bytes.freed"] = s.freed;
  out["allocation.current"] = s.count;
  out["allocation.peak"] = s.peak_count;
  out["allocation.allocated"] = s.allocations;
  out["allocation.freed"] = s.frees;
  out["num_ooms"] = s.out_of_memory;
  out["limit"] = memory_limit();
  return out;
}

py::dict read_counters() {
  const auto& c = counters();
  py::dict out;
  out["operations"] = c.operations;
  out["windows"] = c.windows;
  out["programs_run"] = c.programs_run;
  out["hits"] = c.hits;
  out["signatures"] = c.signatures;
  out["launches_by_parts"] = c.launches_by_parts;
  return out;
}

py::list read_window_log() {
  Lock lock;
  py::list out;
  for (const auto& w : window_log()) {
    py::dict item;
    item["content"] = w.content;
    item["reason"] = w.reason;
    item["how"] = w.how;
    item["operations"] = w.operations;
    item["inputs"] = w.inputs;
    item["results"] = w.results;
    item["lane"] = w.lane;
    item["first"] = w.first;
    item["start"] = w.start;
    item["end"] = w.end;
    out.append(item);
  }
  return out;
}

// The jax.Array of a tensor that covers its storage, for zero-copy exchange.
py::object array_of(const at::Tensor& tensor) {
  Lock lock;
  TORCH_CHECK(tensor.device().type() == kTpu, "expected a tpu tensor, got one on ", tensor.device());
  Slot* slot = slot_of(tensor.unsafeGetTensorImpl());
  TORCH_CHECK(covers_storage(tensor.unsafeGetTensorImpl()) && slot->value, "the tensor is a view or was never written");
  PyObject* array = materialize(slot->value);
  slot->value->exported = true;
  return py::reinterpret_borrow<py::object>(array);
}

at::Tensor tensor_of(const py::object& array, std::vector<int64_t> shape, const py::object& dtype, c10::DeviceIndex device) {
  Lock lock;
  recorder(device);
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  auto tensor = make_contiguous(shape, type, device);
  auto value = c10::make_intrusive<Value>(intern_spec(type, shape), device);
  value->array = PyRef::borrow(array.ptr());
  value->exported = true;
  slot_of(tensor.unsafeGetTensorImpl())->value = std::move(value);
  return tensor;
}

void bind_core(py::module_& m) {
  m.def("_install", &install);
  m.def("_memory_stats", &stats_of);
  m.def("_reset_peak_memory", &reset_peak);
  m.def("_reset_accumulated_memory", &reset_accumulated);
  m.def("_set_memory_limit", &set_memory_limit);
  m.def("_counters", &read_counters);
  m.def("_reset_counters", [] { counters() = Counters(); });
  m.def("_mode", [] { return int(mode()); });
  m.def("_set_mode", [](int value) { set_mode(static_cast<Mode>(value)); }, py::call_guard<py::gil_scoped_release>());
  m.def("_set_policy", [](size_t max_window, int64_t max_bytes, size_t max_programs, uint32_t sight, bool background, bool nan_check) {
    policy() = {max_window, max_bytes, max_programs, sight, background, nan_check};
  });
  m.def("_cut_all", [](const std::string& reason) { cut_all(reason.c_str()); }, py::call_guard<py::gil_scoped_release>());
  m.def("_cut", [](c10::DeviceIndex d, const std::string& reason) { cut(d, reason.c_str()); }, py::call_guard<py::gil_scoped_release>());
  m.def("_cut_lane", [](const std::string& reason) { cut_lane(reason.c_str()); }, py::call_guard<py::gil_scoped_release>());
  m.def("_window_log", &read_window_log);
  m.def("_clear_window_log", [] {
    Lock lock;
    clear_window_log();
  });
  m.def("_synchronize", &synchronize, py::call_guard<py::gil_scoped_release>());
  m.def("_pending", [](c10::DeviceIndex d) {
    Lock lock;
    return pending_operations(d);
  });
  m.def("_programs", [](c10::DeviceIndex d) {
    Lock lock;
    return programs_of(d).count();
  });
  m.def("_array_of", &array_of);
  m.def("_tensor_of", &tensor_of);
}

} // namespace

} // namespace torchtpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  torchtpu::bind_core(m);
  torchtpu::bind_device(m);
  torchtpu::bind_generator(m);
}
