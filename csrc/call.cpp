// From an ATen call's arguments to the words of its signature's key, and the scalars that are operands.
#include "recorder.h"

#include "device.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <cstring>

namespace torchtpu {

namespace {

// Tags of key words; a tag is the low byte of the first word of an item.
enum Tag : uint64_t { kNone = 1, kTensor, kHostScalar, kUndefinedTensor, kList, kInt, kBool, kDouble, kComplex, kString,
                      kDevice, kGenerator, kFloatOperand, kIntOperand, kBoolOperand, kComplexOperand };

constexpr uint64_t kUnwritten = uint64_t(1) << 63; // instead of a value's spec: memory that nobody wrote

uint64_t bits(double value) {
  uint64_t out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

[[noreturn]] void mixed_devices(c10::Device one, c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ", other, "!");
}

void add_number(Call& call, const c10::Scalar& value, bool as_static) {
  auto& words = call.words;
  if (value.isFloatingPoint()) {
    if (as_static) {
      words.push_back(kDouble);
      words.push_back(bits(value.toDouble()));
    } else {
      words.push_back(kFloatOperand);
      call.floats.push_back(value.toDouble());
    }
  } else if (value.isComplex()) {
    const auto z = value.toComplexDouble();
    if (as_static) {
      words.push_back(kComplex);
      words.push_back(bits(z.real()));
      words.push_back(bits(z.imag()));
    } else {
      words.push_back(kComplexOperand);
      call.floats.push_back(z.real());
      call.floats.push_back(z.imag());
    }
  } else {
    const bool boolean = value.isBoolean();
    const int64_t n = boolean ? int64_t(value.toBool()) : value.toLong();
    if (as_static) {
      words.push_back(boolean ? kBool : kInt);
      words.push_back(uint64_t(n));
    } else {
      words.push_back(boolean ? kBoolOperand : kIntOperand);
      call.ints.push_back(n);
    }
  }
}

// A list's length, then what `add` makes of each member; or that there is no list.
template <class Add>
void add_list(Call& call, const c10::IValue& item, const Add& add) {
  if (item.isNone()) {
    call.words.push_back(kNone);
    return;
  }
  const auto list = item.toListRef();
  call.words.push_back(kList | uint64_t(list.size()) << 8);
  for (const auto& x : list) {
    add(x);
  }
}

void add_tensor(Call& call, const c10::IValue& item, uint32_t argument) {
  auto& words = call.words;
  if (item.isNone()) {
    words.push_back(kNone);
    return;
  }
  c10::TensorImpl* tensor = item.unsafeToTensorImpl();
  if (tensor == c10::UndefinedTensorImpl::singleton()) {
    words.push_back(kUndefinedTensor);
    return;
  }
  if (tensor->device_type() != kTpu) {
    TORCH_CHECK_TYPE(tensor->layout() == c10::kStrided, "tpu operators take dense tensors, not ", tensor->layout());
    if (tensor->device_type() != c10::DeviceType::CPU || tensor->dim() != 0) {
      mixed_devices(c10::Device(kTpu, call.device < 0 ? current_device() : call.device), tensor->device());
    }
    // A 0-d CPU tensor, or a Python number: read now, used as an operand.
    const auto dtype = c10::typeMetaToScalarType(tensor->dtype());
    words.push_back(kHostScalar | uint64_t(dtype) << 8 | uint64_t(tensor->is_wrapped_number()) << 16);
    add_number(call, item.toTensor().item(), call.info->arguments[argument].is_static);
    return;
  }
  TORCH_CHECK_TYPE(tensor->layout() == c10::kStrided, call.info->name, " on tpu takes dense tensors, not ", tensor->layout());
  if (call.device < 0) {
    call.device = tensor->device().index();
  } else if (call.device != tensor->device().index()) {
    mixed_devices(c10::Device(kTpu, call.device), tensor->device());
  }
  Slot* slot = slot_of(tensor);
  if (slot->stamp != call.stamp) {
    slot->stamp = call.stamp;
    slot->index = uint32_t(call.slots.size());
    call.slots.push_back(slot);
  }
  const auto sizes = tensor->sizes();
  const auto strides = tensor->strides();
  words.push_back(
      kTensor | uint64_t(uint8_t(c10::typeMetaToScalarType(tensor->dtype()))) << 8 | uint64_t(sizes.size()) << 16 |
      uint64_t(tensor->is_conj()) << 24 | uint64_t(tensor->is_neg()) << 25 |
      uint64_t(slot->index) << 32);
  words.push_back(slot->value ? slot->value->spec : kUnwritten | slot->nbytes);
  words.push_back(uint64_t(tensor->storage_offset()));
  for (int64_t n : sizes) {
    words.push_back(uint64_t(n));
  }
  for (int64_t n : strides) {
    words.push_back(uint64_t(n));
  }
  call.operands.push_back({tensor, slot->index, argument});
  call.largest = std::max(call.largest, tensor->numel());
}

void add_static(Call& call, const c10::IValue& item) {
  auto& words = call.words;
  if (item.isNone()) {
    words.push_back(kNone);
  } else if (item.isInt()) {
    words.push_back(kInt);
    words.push_back(uint64_t(item.toInt()));
  } else if (item.isBool()) {
    words.push_back(kBool);
    words.push_back(item.toBool());
  } else if (item.isDouble()) {
    words.push_back(kDouble);
    words.push_back(bits(item.toDouble()));
  } else if (item.isComplexDouble()) {
    words.push_back(kComplex);
    words.push_back(bits(item.toComplexDouble().real()));
    words.push_back(bits(item.toComplexDouble().imag()));
  } else if (item.isList()) {
    add_list(call, item, [&](const c10::IValue& x) { add_static(call, x); });
  } else if (item.isString()) {
    const auto& text = item.toStringRef();
    words.push_back(kString | uint64_t(text.size()) << 8);
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      words.push_back(word);
    }
  } else if (item.isDevice()) {
    words.push_back(kDevice | uint64_t(uint8_t(item.toDevice().type())) << 8);
  } else if (item.isSymInt()) {
    words.push_back(kInt);
    words.push_back(uint64_t(item.toSymInt().guard_int(__FILE__, __LINE__)));
  } else if (item.isGenerator()) {
    words.push_back(kGenerator);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, call.info->name, " on tpu does not take an argument of type ", item.tagKind());
  }
}

void add_argument(Call& call, const ArgumentInfo& argument, const c10::IValue& item, uint32_t index) {
  switch (argument.kind) {
    case ArgumentInfo::Tensor:
      add_tensor(call, item, index);
      return;
    case ArgumentInfo::TensorList:
      add_list(call, item, [&](const c10::IValue& x) { add_tensor(call, x, index); });
      return;
    case ArgumentInfo::Number: {
      if (item.isNone()) {
        call.words.push_back(kNone);
        return;
      }
      const c10::Scalar value = item.toScalar();
      const bool one = argument.one_is_static && !value.isComplex() && !value.isBoolean() && value.toDouble() == 1.0;
      if (one) {
        call.words.push_back(kInt); // 1 and 1.0 are the same program
        call.words.push_back(1);
      } else {
        add_number(call, value, argument.is_static);
      }
      return;
    }
    case ArgumentInfo::NumberList:
      add_list(call, item, [&](const c10::IValue& x) { add_number(call, x.toScalar(), argument.is_static); });
      return;
    case ArgumentInfo::Float:
      if (item.isDouble()) {
        add_number(call, c10::Scalar(item.toDouble()), argument.is_static);
      } else {
        add_static(call, item);
      }
      return;
    case ArgumentInfo::Generator:
      call.words.push_back(kGenerator);
      return;
    default:
      add_static(call, item);
  }
}

} // namespace

void scan(Call& call, OperatorInfo& info, const torch::jit::Stack& stack, size_t base) {
  call.clear();
  call.info = &info;
  static uint64_t next_stamp = 1; // under the recorder's lock
  call.stamp = next_stamp++;
  // Global settings that a lowering may read are part of the key.
  call.words.push_back(
      uint64_t(info.id) | uint64_t(c10::get_default_dtype_as_scalartype()) << 32 |
      uint64_t(at::globalContext().float32MatmulPrecision()) << 40);
  for (uint32_t i = 0; i < info.arguments.size(); ++i) {
    add_argument(call, info.arguments[i], stack[base + i], i);
  }
}

void Call::clear() {
  info = nullptr;
  device = -1;
  words.clear();
  operands.clear();
  slots.clear();
  floats.clear();
  ints.clear();
  largest = 0;
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle)
    : op(handle), name(handle.operator_name().name), overload(handle.operator_name().overload_name) {
  for (const auto& argument : handle.schema().arguments()) {
    ArgumentInfo out;
    auto type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    auto element = type->cast<c10::ListType>() ? type->expectRef<c10::ListType>().getElementType() : nullptr;
    if (element && element->cast<c10::OptionalType>()) {
      element = element->expectRef<c10::OptionalType>().getElementType();
    }
    const auto kind = type->kind();
    if (kind == c10::TypeKind::TensorType) {
      out.kind = ArgumentInfo::Tensor;
    } else if (element && element->kind() == c10::TypeKind::TensorType) {
      out.kind = ArgumentInfo::TensorList;
    } else if (kind == c10::TypeKind::NumberType) {
      out.kind = ArgumentInfo::Number;
    } else if (element && element->kind() == c10::TypeKind::NumberType) {
      out.kind = ArgumentInfo::NumberList;
    } else if (kind == c10::TypeKind::FloatType) {
      out.kind = ArgumentInfo::Float;
    } else if (kind == c10::TypeKind::GeneratorType) {
      out.kind = ArgumentInfo::Generator;
      random = true;
    } else if (kind == c10::TypeKind::ScalarTypeType) {
      out.kind = ArgumentInfo::ScalarType;
    } else if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
      out.kind = ArgumentInfo::Int;
    }
    out.is_write = argument.alias_info() && argument.alias_info()->isWrite();
    out.is_out = argument.is_out();
    out.reads = !out.is_out;
    has_out = has_out || out.is_out;
    out.one_is_static = argument.name() == "alpha" || argument.name() == "beta";
    arguments.push_back(out);
  }
  random = random || handle.hasTag(at::Tag::nondeterministic_seeded);
}

} // namespace torchtpu
