#include "describe.h"

#include <c10/util/strides.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace torchtpu {

namespace {

py::object dtype_object(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::tuple int_tuple(c10::IntArrayRef values) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = py::int_(values[i]);
  }
  return out;
}

py::object python_value(const c10::IValue& item) {
  if (item.isNone() || item.isGenerator()) {
    return py::none();
  }
  if (item.isInt()) {
    return py::int_(item.toInt());
  }
  if (item.isSymInt()) {
    return py::int_(item.toSymInt().guard_int(__FILE__, __LINE__));
  }
  if (item.isBool()) {
    return py::bool_(item.toBool());
  }
  if (item.isDouble()) {
    return py::float_(item.toDouble());
  }
  if (item.isComplexDouble()) {
    const auto z = item.toComplexDouble();
    return py::reinterpret_steal<py::object>(PyComplex_FromDoubles(z.real(), z.imag()));
  }
  if (item.isString()) {
    return py::str(item.toStringRef());
  }
  if (item.isDevice()) {
    return py::str(item.toDevice().str());
  }
  if (item.isList()) {
    py::list out;
    for (const auto& x : item.toListRef()) {
      out.append(python_value(x));
    }
    return out;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu operators do not take an argument of type ", item.tagKind());
}

const char* number_kind(const c10::Scalar& value) {
  return value.isFloatingPoint() ? "float" : value.isComplex() ? "complex" : value.isBoolean() ? "bool" : "int";
}

// The template of one argument: what the builder puts there. Operands and scalars are taken in order.
//   ("t", operand)  ("n", kind)  ("h", dtype, wrapped, kind)  ("v", value)  [ ... ]
class Template {
 public:
  Template(const Call& call) : call_(call) {}

  py::object argument(const ArgumentInfo& info, const c10::IValue& item) {
    switch (info.kind) {
      case ArgumentInfo::Tensor:
        return tensor(info, item);
      case ArgumentInfo::TensorList:
        if (item.isNone()) {
          return value(item);
        } else {
          py::list out;
          for (const auto& x : item.toListRef()) {
            out.append(tensor(info, x));
          }
          return out;
        }
      case ArgumentInfo::Number:
        return item.isNone() ? value(item) : number(info, item.toScalar());
      case ArgumentInfo::NumberList:
        if (item.isNone()) {
          return value(item);
        } else {
          py::list out;
          for (const auto& x : item.toListRef()) {
            out.append(number(info, x.toScalar()));
          }
          return out;
        }
      case ArgumentInfo::Float:
        return item.isDouble() ? number(info, c10::Scalar(item.toDouble())) : value(item);
      case ArgumentInfo::ScalarType:
        if (item.isInt()) {
          return py::make_tuple("v", dtype_object(static_cast<c10::ScalarType>(item.toInt())));
        }
        return value(item);
      default:
        return value(item);
    }
  }

 private:
  py::object value(const c10::IValue& item) {
    return py::make_tuple("v", python_value(item));
  }

  py::object number(const ArgumentInfo& info, const c10::Scalar& x) {
    const bool one = info.one_is_static && !x.isComplex() && !x.isBoolean() && x.toDouble() == 1.0;
    if (one) {
      return py::make_tuple("v", py::int_(1));
    }
    if (info.is_static) {
      return py::make_tuple("v", python_value(c10::IValue(x)));
    }
    return py::make_tuple("n", number_kind(x));
  }

  py::object tensor(const ArgumentInfo& info, const c10::IValue& item) {
    if (item.isNone() || !item.toTensor().defined()) {
      return py::make_tuple("v", py::none());
    }
    const auto& t = item.toTensor();
    if (t.device().type() == kTpu) {
      return py::make_tuple("t", next_operand_++);
    }
    const auto x = t.item();
    if (info.is_static) {
      return py::make_tuple("v", python_value(c10::IValue(x)));
    }
    return py::make_tuple("h", dtype_object(t.scalar_type()), t.unsafeGetTensorImpl()->is_wrapped_number(), number_kind(x));
  }

  const Call& call_;
  size_t next_operand_ = 0;
};

py::dict describe(const Call& call, const torch::jit::Stack& stack, size_t base) {
  const auto& info = *call.info;
  py::dict out;
  out["name"] = info.name;
  out["overload"] = info.overload;
  Template make(call);
  py::list arguments;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    arguments.append(make.argument(info.arguments[i], stack[base + i]));
  }
  out["arguments"] = arguments;
  py::list slots;
  for (const Slot* slot : call.slots) {
    if (slot->value) {
      const auto& spec = spec_of(slot->value->spec);
      slots.append(py::make_tuple(dtype_object(spec.dtype), int_tuple(spec.shape)));
    } else {
      slots.append(py::make_tuple(py::none(), slot->nbytes));
    }
  }
  out["slots"] = slots;
  py::list operands;
  for (const auto& operand : call.operands) {
    const auto* t = operand.tensor;
    operands.append(py::make_tuple(
        operand.slot, dtype_object(c10::typeMetaToScalarType(t->dtype())), int_tuple(t->sizes()), int_tuple(t->strides()),
        t->storage_offset(), t->is_conj(), t->is_neg()));
  }
  out["operands"] = operands;
  out["default_float"] = dtype_object(c10::get_default_dtype_as_scalartype());
  out["random"] = info.random;
  return out;
}

// Runs Python code, turning its error into the same error on the C++ side.
template <typename F>
auto guarded(F&& body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

} // namespace

void describe_operator(OperatorInfo& info) {
  Gil gil;
  guarded([&] {
    TORCH_CHECK(callbacks().describe_operator, "torchtpu is not installed: `import torchtpu` first");
    py::handle callback(callbacks().describe_operator.get());
    py::dict told = callback(info.name, info.overload);
    info.lowered = told["lowered"].cast<bool>();
    const auto statics = told["static"].cast<py::frozenset>();
    const bool all_static = told["all_static"].cast<bool>();
    const auto written = told["written"].cast<py::list>();
    const auto unread = told["unread"].cast<py::frozenset>();
    const auto& schema = info.op.schema();
    for (size_t i = 0; i < info.arguments.size(); ++i) {
      const py::str name(schema.arguments()[i].name());
      info.arguments[i].is_static = all_static || statics.contains(name);
      if (unread.contains(name)) {
        info.arguments[i].reads = false;
      }
    }
    for (const auto& name : written) {
      const auto text = name.cast<std::string>();
      for (uint32_t i = 0; i < info.arguments.size(); ++i) {
        if (schema.arguments()[i].name() == text) {
          info.written.push_back(i);
        }
      }
    }
    info.described = true;
    return 0;
  });
}

bool infer_outputs(const Call& call, const torch::jit::Stack& stack, size_t base, Signature& signature) {
  Gil gil;
  return guarded([&] {
    py::handle callback(callbacks().infer_outputs.get());
    py::object told = callback(describe(call, stack, base));
    if (told.is_none()) {
      return false;
    }
    py::list results = told;
    const auto& schema = call.info->op.schema();
    size_t next = 0;
    for (const auto& ret : schema.returns()) {
      ReturnInfo plan{ReturnInfo::Constant};
      if (ret.alias_info() && ret.alias_info()->isWrite()) {
        plan.kind = ReturnInfo::Alias;
        for (uint32_t a = 0; a < schema.arguments().size(); ++a) {
          const auto* other = schema.arguments()[a].alias_info();
          if (other && *other == *ret.alias_info()) {
            plan.index = a;
          }
        }
      } else {
        py::object item = results[next++];
        const bool list = py::isinstance<py::list>(item);
        plan.kind = list ? ReturnInfo::FreshList : ReturnInfo::Fresh;
        plan.index = uint32_t(signature.fresh.size());
        py::list items = list ? item.cast<py::list>() : py::list(py::make_tuple(item));
        for (const auto& x : items) {
          ResultInfo result;
          if (x.is_none()) {
            result.defined = false;
          } else {
            auto pair = x.cast<py::tuple>();
            result.dtype = reinterpret_cast<THPDtype*>(pair[0].ptr())->scalar_type;
            result.sizes = pair[1].cast<std::vector<int64_t>>();
            const auto strides = c10::contiguous_strides(result.sizes);
            result.strides.assign(strides.begin(), strides.end());
            result.spec = intern_spec(result.dtype, result.sizes);
            result.nbytes = spec_of(result.spec).nbytes;
          }
          signature.fresh.push_back(std::move(result));
          plan.count += 1;
        }
      }
      signature.returns.push_back(plan);
    }
    return true;
  });
}

void describe_signature(
    const Call& call, const torch::jit::Stack& stack, size_t base, const std::vector<uint32_t>& written, Signature& signature) {
  Gil gil;
  guarded([&] {
    auto told = describe(call, stack, base);
    py::list fresh;
    for (const auto& result : signature.fresh) {
      if (!result.defined) {
        fresh.append(py::none());
        continue;
      }
      const auto& spec = spec_of(result.spec);
      fresh.append(py::make_tuple(
          dtype_object(result.dtype), int_tuple(result.sizes), int_tuple(result.strides), int_tuple(spec.shape)));
    }
    told["fresh"] = fresh;
    told["written"] = py::cast(written);
    py::list writes;
    for (const auto& [slot, id] : signature.writes) {
      const auto& spec = spec_of(id);
      writes.append(py::make_tuple(slot, dtype_object(spec.dtype), int_tuple(spec.shape)));
    }
    told["writes"] = writes;
    py::list needs;
    for (size_t i = 0; i < signature.needs.size(); ++i) {
      if (signature.needs[i]) {
        needs.append(i);
      }
    }
    told["needs"] = needs;
    py::handle callback(callbacks().make_signature.get());
    signature.description = PyRef(callback(told).release().ptr());
    return 0;
  });
}

void throw_explained(const c10::Error& error, const Call& call, const torch::jit::Stack& stack, size_t base) {
  const char* type = dynamic_cast<const c10::OutOfMemoryError*>(&error) ? "OutOfMemoryError"
      : dynamic_cast<const c10::LinAlgError*>(&error)                   ? "LinAlgError"
      : dynamic_cast<const c10::IndexError*>(&error)                    ? "IndexError"
      : dynamic_cast<const c10::ValueError*>(&error)                    ? "ValueError"
      : dynamic_cast<const c10::TypeError*>(&error)                     ? "TypeError"
      : dynamic_cast<const c10::NotImplementedError*>(&error)           ? "NotImplementedError"
                                                                        : "RuntimeError";
  Gil gil;
  guarded([&] {
    py::handle callback(callbacks().explain_call.get());
    py::object better = callback(type, error.what_without_backtrace(), describe(call, stack, base));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(better.ptr())), better.ptr());
    return 0;
  });
  throw_python_error();
}

void note_fallback(const std::string& name, const std::string& overload) {
  Gil gil;
  guarded([&] {
    py::handle callback(callbacks().fallback.get());
    callback(overload.empty() ? name : name + "." + overload);
    return 0;
  });
}

const char* dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::Byte: return "uint8";
    case c10::ScalarType::UInt16: return "uint16";
    case c10::ScalarType::UInt32: return "uint32";
    case c10::ScalarType::UInt64: return "uint64";
    case c10::ScalarType::Char: return "int8";
    case c10::ScalarType::Short: return "int16";
    case c10::ScalarType::Int: return "int32";
    case c10::ScalarType::Long: return "int64";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::ComplexFloat: return "complex64";
    case c10::ScalarType::ComplexDouble: return "complex128";
    case c10::ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case c10::ScalarType::Float8_e5m2: return "float8_e5m2";
    case c10::ScalarType::Float8_e4m3fnuz: return "float8_e4m3fnuz";
    case c10::ScalarType::Float8_e5m2fnuz: return "float8_e5m2fnuz";
    case c10::ScalarType::Float8_e8m0fnu: return "float8_e8m0fnu";
    default: TORCH_CHECK_TYPE(false, c10::toString(dtype), " is not supported on tpu: XLA has no such type");
  }
}

PyRef to_python(c10::IntArrayRef values) {
  PyRef tuple = checked(PyTuple_New(Py_ssize_t(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), PyLong_FromLongLong(values[i]));
  }
  return tuple;
}

PyRef to_python_dtype(c10::ScalarType dtype) {
  return PyRef(dtype_object(dtype).release().ptr());
}

} // namespace torchtpu
