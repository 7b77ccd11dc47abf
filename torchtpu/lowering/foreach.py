"""`_foreach_*`: the base operator's own lowering, once for each tensor of the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchtpu.lowering import call, dtypes, registry
from torchtpu.lowering.registry import lower

aten = torch.ops.aten

_PLAIN_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_KINDS = {"b": "bool", "i": "int", "f": "float", "c": "complex"}


def _number(value: Any) -> call.Number:
    """A Scalar that `call` has made a 0-d array, as the number that it was: it promotes differently from a tensor."""
    if isinstance(value, bool | int | float | complex):
        return call.Number.of(value)
    return call.Number(value, _KINDS[value.dtype.kind])


def _bind(op: torch._ops.OpOverload, positional: list[Any], keyword: dict[str, Any]) -> list[Any]:
    values, rest = [], iter(positional)
    for argument in op._schema.arguments:
        if not argument.kwarg_only:
            value = next(rest, None)
        else:
            value = keyword.get(argument.name, argument.default_value if argument.has_default_value() else None)
        values.append(value)
    return values


class _Each:
    """Applies one operator to the rows of a list, in the order of the outer operator's results."""

    def __init__(self, op: torch._ops.OpOverload):
        self.op = op
        self.entry = registry.find(op)
        self.outer = call.context()
        self.numbers: dict[Any, Any] = {}  # a shared scalar is converted once for each dtype, not once a tensor

    def _cast_number(self, number: call.Number, dtype: np.dtype) -> Any:
        if not hasattr(number.value, "astype"):
            return np.asarray(number.value).astype(dtype)[()]
        key = (id(number.value), dtype)
        if key not in self.numbers:
            self.numbers[key] = number.value.astype(dtype)
        return self.numbers[key]

    def _direct(self, values: list[Any], keyword: dict[str, Any]) -> Any:
        """The common case needs no promotion: every operand has one floating type and numbers only follow it."""
        if self.entry is None or self.entry.kind is None or self.entry.static:
            return None
        operands = [*values, *keyword.values()]
        if any(isinstance(v, call.Number) and v.kind == "complex" for v in operands):
            return None
        types = {v.dtype for v in operands if not isinstance(v, call.Number)}
        if len(types) != 1 or next(iter(types)) not in _PLAIN_FLOATS:
            return None
        dtype = next(iter(types))

        def prepare(v):
            return self._cast_number(v, dtype) if isinstance(v, call.Number) else v

        return self.entry.fn(*map(prepare, values), **{k: prepare(v) for k, v in keyword.items()})

    def row(self, index: int, values: list[Any], keyword: dict[str, Any]) -> Any:
        spec = self.outer.outs[index]
        out = self._direct(values, keyword)
        if out is not None:
            return call.cast(out, dtypes.to_numpy_dtype(spec.dtype))
        inner = call.Context([spec], None, self.outer.default_float)
        inner.checks = self.outer.checks
        return call.call(self.op, _bind(self.op, values, keyword), inner)[0]


def _rows(op: torch._ops.OpOverload, rows: list[list[Any]], **keyword: Any) -> list[Any]:
    each = _Each(op)
    return [each.row(i, row, keyword) for i, row in enumerate(rows)]


def _unary(name: str, op: torch._ops.OpOverload) -> None:
    lower(f"_foreach_{name}")(lambda self: _rows(op, [[x] for x in self]))


for _name in (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max zero"
).split():
    _unary(_name, getattr(aten, _name).default)


@lower("_foreach_clone")
def foreach_clone(self, memory_format=None):
    return list(self)


@lower("_foreach_copy")
def foreach_copy(self, src, non_blocking=False):
    return _rows(aten.copy.default, [[x, y] for x, y in zip(self, src, strict=True)])


def _binary(name: str, scalar_op: Any, tensor_op: Any, static: tuple[str, ...] = ()) -> None:
    """The Scalar, ScalarList, List and Tensor overloads of one operator."""

    def scalar(self, other):
        number = _number(other)
        return _rows(scalar_op, [[x, number] for x in self])

    def scalar_list(self, others):
        return _rows(scalar_op, [[x, _number(y)] for x, y in zip(self, others, strict=True)])

    def tensor_list(self, others, **keyword):
        keyword = {k: _number(v) for k, v in keyword.items()}
        return _rows(tensor_op, [[x, y] for x, y in zip(self, others, strict=True)], **keyword)

    def tensor(self, other, **keyword):
        keyword = {k: _number(v) for k, v in keyword.items()}
        return _rows(tensor_op, [[x, other] for x in self], **keyword)

    lower(f"_foreach_{name}.Scalar", static=static)(scalar)
    lower(f"_foreach_{name}.ScalarList", static=static)(scalar_list)
    lower(f"_foreach_{name}.List")(tensor_list)
    if name in ("add", "mul", "div"):
        lower(f"_foreach_{name}.Tensor")(tensor)


_binary("add", aten.add.Tensor, aten.add.Tensor)
_binary("sub", aten.sub.Tensor, aten.sub.Tensor)
_binary("mul", aten.mul.Tensor, aten.mul.Tensor)
_binary("div", aten.div.Tensor, aten.div.Tensor)
_binary("clamp_min", aten.clamp_min.default, aten.maximum.default)
_binary("clamp_max", aten.clamp_max.default, aten.minimum.default)
_binary("maximum", aten.clamp_min.default, aten.maximum.default)
_binary("minimum", aten.clamp_max.default, aten.minimum.default)
_binary("pow", aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, static=("exponent",))


@lower("_foreach_pow.ScalarAndTensor")
def foreach_pow_scalar(self, exponent):
    number = _number(self)
    return _rows(aten.pow.Scalar, [[number, x] for x in exponent])


def _ternary(name: str, op: torch._ops.OpOverload) -> None:
    def rows(self, tensor1, tensor2, numbers: Callable[[int], Any]):
        each = _Each(op)
        triples = zip(self, tensor1, tensor2, strict=True)
        return [each.row(i, list(row), {"value": numbers(i)}) for i, row in enumerate(triples)]

    def scalar(self, tensor1, tensor2, value=1):
        number = _number(value)
        return rows(self, tensor1, tensor2, lambda i: number)

    def scalar_list(self, tensor1, tensor2, scalars):
        return rows(self, tensor1, tensor2, lambda i: _number(scalars[i]))

    def tensor(self, tensor1, tensor2, scalars):
        return rows(self, tensor1, tensor2, lambda i: call.Number(scalars[i], _KINDS[scalars.dtype.kind]))

    lower(f"_foreach_{name}.Scalar")(scalar)
    lower(f"_foreach_{name}.ScalarList")(scalar_list)
    lower(f"_foreach_{name}.Tensor")(tensor)


_ternary("addcmul", aten.addcmul.default)
_ternary("addcdiv", aten.addcdiv.default)


@lower("_foreach_lerp.List")
def foreach_lerp(self, tensors1, weights):
    return _rows(aten.lerp.Tensor, [list(row) for row in zip(self, tensors1, weights, strict=True)])


@lower("_foreach_lerp.Scalar")
def foreach_lerp_scalar(self, tensors1, weight):
    number = _number(weight)
    return _rows(aten.lerp.Scalar, [[x, y, number] for x, y in zip(self, tensors1, strict=True)])


@lower("_foreach_lerp.ScalarList")
def foreach_lerp_scalar_list(self, tensors1, weight):
    return _rows(aten.lerp.Scalar, [[x, y, _number(w)] for x, y, w in zip(self, tensors1, weight, strict=True)])


@lower("_foreach_norm", static=("ord",))
def foreach_norm(self, ord=2, dtype=None):
    return _rows(aten.linalg_vector_norm.default, [[x, ord, None, False] for x in self], dtype=dtype)


@lower("_foreach_powsum", static=("ord",))
def foreach_powsum(self, ord=2, dtype=None):
    return _rows(aten.linalg__powsum.default, [[x, ord, None, False] for x in self], dtype=dtype)


@lower("_foreach_mm")
def foreach_mm(self, mat2):
    return _rows(aten.mm.default, [[x, y] for x, y in zip(self, mat2, strict=True)])
