"""Checks of arguments that PyTorch makes inside its CPU kernels, where meta kernels do not reach.

They run once for each new signature, at the call, and raise what the CPU raises.
"""

from __future__ import annotations

import math
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


@_check("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")
def _ask_the_cpu(signature: Any, arguments: dict[str, Any]) -> None:
    """Runs the CPU's kernel on zeros for its errors; for operators that no values of arguments can make fail otherwise."""

    def fill(item: Any) -> Any:
        if isinstance(item, list):
            return [fill(x) for x in item]
        if item[0] == "t":
            operand = signature.operands[item[1]]
            return torch.zeros(operand.view.sizes, dtype=operand.dtype)
        return item[1] if item[0] == "v" else 0.0

    if sum(math.prod(o.view.sizes) for o in signature.operands) < 2**20:
        schema = signature.op._schema.arguments
        values = {a.name: fill(arguments[a.name]) for a in schema}
        signature.op(*(values[a.name] for a in schema if not a.kwarg_only), **{a.name: values[a.name] for a in schema if a.kwarg_only})


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
