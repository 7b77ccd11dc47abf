"""Checks of arguments that PyTorch makes inside its CPU kernels, where meta kernels do not reach.

They run once for each new signature, at the call, and raise what the CPU raises. `cpu_error` asks the CPU itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchtpu.lowering import registry

# Elements that are worth computing on the CPU to learn what it says of a call.
_LARGEST = 2**22

_checks: dict[str, Callable[[Any, dict[str, Any]], None]] = {}


def _check(*names: str) -> Callable:
    def decorate(fn: Callable) -> Callable:
        for name in names:
            _checks[name] = fn
        return fn

    return decorate


def validate(signature: Any) -> None:
    """Raises the CPU's error for arguments that no program could serve."""
    name = registry.functional_name(signature.op)
    _check_written_dtype(signature)
    fn = _checks.get(name) or _checks.get(name.split(".")[0])
    if fn is None and name.startswith("_foreach_") and not any(o.dtype.is_floating_point for o in signature.operands):
        fn = _as_cpu  # integers and complex numbers, for which not every operator is defined
    if fn is not None:
        fn(signature, {a.name: t for a, t in zip(signature.op._schema.arguments, signature.arguments, strict=True)})


def cpu_error(signature: Any, dtypes: bool = False) -> Exception | None:
    """What the CPU raises for a call, run on tensors of zeros and ones; None where it accepts it, has no kernel, or it is large.

    dtypes: also that it lacks the dtype.
    """
    if sum(math.prod(o.view.sizes) for o in signature.operands) > _LARGEST:
        return None
    numbers = {"bool": True, "int": 1, "float": 1.0, "complex": 1 + 0j}

    def fill(item: Any) -> Any:
        if isinstance(item, list):
            return [fill(x) for x in item]
        if item[0] == "t":
            operand = signature.operands[item[1]]
            make = torch.ones if operand.dtype.is_floating_point else torch.zeros  # weights add up, indices are in range
            return make(operand.view.sizes, dtype=operand.dtype)
        if item[0] == "n":
            return numbers[item[1]]
        if item[0] == "h":
            return torch.tensor(numbers[item[3]], dtype=item[1])
        return "cpu" if isinstance(item[1], str) and item[1].startswith("tpu") else item[1]

    values = [fill(item) for item in signature.arguments]
    schema = signature.op._schema.arguments
    positional = [v for a, v in zip(schema, values, strict=True) if not a.kwarg_only]
    keyword = {a.name: v for a, v in zip(schema, values, strict=True) if a.kwarg_only}
    try:
        with torch.no_grad():
            signature.op(*positional, **keyword)
    except Exception as error:
        lacking = "not implemented for" in str(error) or str(error).startswith("Could not run")
        return None if lacking and not dtypes else error
    return None


def _dtype(signature: Any, template: Any) -> torch.dtype | None:
    return signature.operands[template[1]].dtype if isinstance(template, tuple) and template[0] == "t" else None


def scalar_type(dtype: torch.dtype) -> str:
    """PyTorch's name of a dtype in its messages: "Float", "Long"."""
    return torch.zeros((), dtype=dtype).type().rpartition(".")[2].removesuffix("Tensor")


def _check_written_dtype(signature: Any) -> None:
    """An operator that makes floats of integers cannot write them into integers."""
    entry = registry.find(signature.op)
    if entry is None or entry.kind != "int_to_float":
        return
    for written in registry.written_arguments(signature.op, entry):
        position = [a.name for a in signature.op._schema.arguments].index(written)
        kind = _dtype(signature, signature.arguments[position])
        if kind is not None and not (kind.is_floating_point or kind.is_complex):
            made = next((o.dtype for o in signature.operands if o.dtype.is_floating_point or o.dtype.is_complex), signature.default_float)
            raise RuntimeError(f"result type {scalar_type(made)} can't be cast to the desired output type {scalar_type(kind)}")


@_check("pow.Tensor_Scalar")
def _pow(signature: Any, arguments: dict[str, Any]) -> None:
    base, exponent = _dtype(signature, arguments["self"]), arguments["exponent"]
    if base is None or base.is_floating_point or base.is_complex or exponent[0] != "v":
        return
    if isinstance(exponent[1], int) and exponent[1] < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _out(signature: Any) -> torch.dtype | None:
    arguments = zip(signature.op._schema.arguments, signature.arguments, strict=True)
    return next((_dtype(signature, template) for argument, template in arguments if argument.is_out), None)


@_check("all", "any")
def _all_any(signature: Any, arguments: dict[str, Any]) -> None:
    out = _out(signature)
    if out not in (None, torch.bool, torch.uint8):
        name = signature.name.split("::")[1]
        raise RuntimeError(f"{name} only supports bool tensor for result, got: {scalar_type(out)}")


_CPP_NAMES = {
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char", torch.uint8: "unsigned char",
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.bool: "bool",
}  # fmt: skip


def _must_have(out: torch.dtype | None, want: torch.dtype | None) -> None:
    if out is not None and want is not None and out != want:
        said = [_CPP_NAMES.get(dtype, str(dtype).removeprefix("torch.")) for dtype in (want, out)]
        raise RuntimeError(f"Expected out tensor to have dtype {said[0]}, but got {said[1]} instead")


@_check("isin")
def _isin(signature: Any, arguments: dict[str, Any]) -> None:
    _must_have(_out(signature), torch.bool)


@_check("aminmax")
def _aminmax(signature: Any, arguments: dict[str, Any]) -> None:
    for name in ("min", "max"):
        _must_have(_dtype(signature, arguments.get(name)), _dtype(signature, arguments["self"]))


@_check("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")
def _histogram(signature: Any, arguments: dict[str, Any]) -> None:
    _as_cpu(signature, arguments, dtypes=True)


@_check("complex", "masked_scatter", "multinomial", "polar")
def _as_cpu(signature: Any, arguments: dict[str, Any], dtypes: bool = False) -> None:
    """The meta kernel checks little, the CPU a lot: dtypes and sizes that must agree, and ranges of arguments."""
    error = cpu_error(signature, dtypes)
    if error is not None:
        raise error


@_check("searchsorted", "bucketize")
def _searchsorted(signature: Any, arguments: dict[str, Any]) -> None:
    out, narrow = _out(signature), arguments.get("out_int32") == ("v", True)
    if out is not None and out is not (torch.int32 if narrow else torch.int64):
        raise RuntimeError(
            "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or Long(int64) depending on whether "
            f"out_int32 flag is True, but we got output tensor's dtype {scalar_type(out)} and out_int32 flag is {narrow}"
        )
    _as_cpu(signature, arguments)


@_check("convolution", "convolution_overrideable")
def _convolution(signature: Any, arguments: dict[str, Any]) -> None:
    def least(*names: str) -> int:
        return min((n for name in names for n in arguments[name][1]), default=1)

    # Worth asking only then: the CPU would compute the convolution.
    if least("padding", "output_padding") < 0 or least("stride", "dilation") < 1 or arguments["groups"][1] < 1:
        _as_cpu(signature, arguments)


@_check("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(signature: Any, arguments: dict[str, Any]) -> None:
    weight = _dtype(signature, arguments["weight"])
    if weight is not None and weight != _dtype(signature, arguments["self"]):
        _as_cpu(signature, arguments)


@_check("gelu", "gelu_backward")
def _gelu(signature: Any, arguments: dict[str, Any]) -> None:
    if arguments["approximate"][1] not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")


@_check("index_fill.int_Scalar")
def _index_fill(signature: Any, arguments: dict[str, Any]) -> None:
    kind = _dtype(signature, arguments["self"])
    if arguments["value"] == ("n", "complex") and kind is not None and not kind.is_complex:
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")


@_check("segment_reduce")
def _segment_reduce(signature: Any, arguments: dict[str, Any]) -> None:
    dtype = _dtype(signature, arguments["data"])
    torch.segment_reduce(torch.zeros(1, dtype=dtype), "sum", lengths=torch.ones(1, dtype=torch.int64))


@_check("hash_tensor")
def _hash_tensor(signature: Any, arguments: dict[str, Any]) -> None:
    torch.hash_tensor(torch.zeros(1, dtype=_dtype(signature, arguments["self"])), mode=arguments["mode"][1])


@_check("_assert_async")
def _assert_async(signature: Any, arguments: dict[str, Any]) -> None:
    torch.is_nonzero(torch.ones([min(n, 2) for n in signature.operands[0].view.sizes]))
