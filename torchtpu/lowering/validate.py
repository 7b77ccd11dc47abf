"""Checks of arguments that PyTorch makes inside its CPU kernels, where meta kernels do not reach.

They run once for each new signature, at the call, and raise what the CPU raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtpu.lowering import registry

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
    fn = _checks.get(name) or _checks.get(name.split(".")[0])
    if fn is not None:
        fn(signature, {a.name: t for a, t in zip(signature.op._schema.arguments, signature.arguments, strict=True)})


def _dtype(signature: Any, template: Any) -> torch.dtype | None:
    return signature.operands[template[1]].dtype if isinstance(template, tuple) and template[0] == "t" else None


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


def _scalar_type(dtype: torch.dtype) -> str:
    names = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long",
             torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool"}  # fmt: skip
    return names.get(dtype, str(dtype).removeprefix("torch."))


@_check("all", "any")
def _all_any(signature: Any, arguments: dict[str, Any]) -> None:
    out = _out(signature)
    if out not in (None, torch.bool, torch.uint8):
        name = signature.name.split("::")[1]
        raise RuntimeError(f"{name} only supports bool tensor for result, got: {_scalar_type(out)}")


@_check("isin")
def _isin(signature: Any, arguments: dict[str, Any]) -> None:
    out = _out(signature)
    if out not in (None, torch.bool):
        names = {torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char", torch.float32: "float",
                 torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}  # fmt: skip
        raise RuntimeError(f"Expected out tensor to have dtype bool, but got {names.get(out, out)} instead")


@_check("searchsorted", "bucketize")
def _searchsorted(signature: Any, arguments: dict[str, Any]) -> None:
    out, narrow = _out(signature), arguments.get("out_int32") == ("v", True)
    if out is not None and out is not (torch.int32 if narrow else torch.int64):
        raise RuntimeError(
            "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or Long(int64) depending on whether "
            f"out_int32 flag is True, but we got output tensor's dtype {_scalar_type(out)} and out_int32 flag is {narrow}"
        )
