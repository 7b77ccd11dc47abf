"""Calling a lowering: promotion, scalars, the context that it runs in, and results cast to what PyTorch expects."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchtpu.lowering import dtypes, registry

_NUMBER_TYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64, "complex": torch.complex128}


@dataclasses.dataclass(frozen=True)
class Number:
    """A Python number that reached an operator: takes part in promotion only by its category."""

    value: Any  # a Python number or a traced 0-d array
    kind: str  # "bool", "int", "float" or "complex"

    @staticmethod
    def of(value: bool | int | float | complex) -> Number:
        return Number(value, type(value).__name__)

    def array(self) -> jax.Array:
        """The number as a 0-d array of the widest type of its kind."""
        return jnp.asarray(self.value, dtypes.to_numpy_dtype(_NUMBER_TYPES[self.kind]))


@dataclasses.dataclass(frozen=True)
class OutSpec:
    """What PyTorch expects of one result."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclasses.dataclass
class Check:
    """A condition that must hold at run time (an index in range), with the exception to raise when it does not."""

    ok: jax.Array  # 0-d bool
    value: jax.Array  # 0-d int64, put into the message as {value}
    exception: type[Exception]
    message: str
    where: Any = None  # the signature of the operation that asked


class Context:
    """What a lowering may ask for besides its arguments."""

    def __init__(self, outs: Sequence[OutSpec | None] = (), key_data: Any = None, default_float: torch.dtype = torch.float32):
        self.outs: list[Any] = list(outs)
        self.key_data = key_data
        self.default_float = default_float
        self.checks: list[Check] = []
        # Whether each tensor operand is contiguous; empty when unknown. PyTorch picks some layouts by it (det's LU).
        self.contiguous: list[bool] = []
        self._keys = 0

    @property
    def out_dtype(self) -> np.dtype:
        """XLA dtype of the first result."""
        return dtypes.to_numpy_dtype(self.outs[0].dtype)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self.outs[0].shape

    def key(self) -> jax.Array:
        """A fresh random key (Philox: the generator's seed and offset). Each call gives another stream."""
        if self.key_data is None:
            raise RuntimeError("this operator was not recorded as a random one")
        key = jax.random.wrap_key_data(self.key_data, impl="rbg")
        self._keys += 1
        return key if self._keys == 1 else jax.random.fold_in(key, self._keys)

    def check(self, ok: jax.Array, exception: type[Exception], message: str, value: jax.Array | int = 0) -> None:
        """Raises `exception(message.format(value=...))` at the next synchronisation unless all of `ok` holds.

        When `ok` has elements, `value` must have the same shape and the first offending one is reported.
        """
        ok = jnp.asarray(ok)
        value = jnp.broadcast_to(jnp.asarray(value, jnp.int64), ok.shape)
        if ok.size == 0:
            return
        if ok.ndim:
            flat, values = ok.reshape(-1), value.reshape(-1)
            # argmin of a bool is slow on some platforms; the product of two reductions is not.
            value = jnp.where(flat, np.iinfo(np.int64).min, values).max()
            ok = flat.all()
        self.checks.append(Check(ok, value, exception, message))


class _Stack(threading.local):
    def __init__(self) -> None:
        self.items: list[Context] = []


_stack = _Stack()


def context() -> Context:
    """The context of the lowering that is running."""
    return _stack.items[-1]


@contextlib.contextmanager
def entered(ctx: Context) -> Iterator[Context]:
    """Makes `ctx` the current context."""
    _stack.items.append(ctx)
    try:
        yield ctx
    finally:
        _stack.items.pop()


def _schema_type(argument: Any) -> str:
    return str(argument.type).replace("Optional[", "").replace("]", "").replace("List[", "")


def _promote(entry: registry.Lowering, schema: Any, values: list[Any], ctx: Context) -> list[Any]:
    """Casts the operands of a pointwise operator to the type that PyTorch computes in."""
    dimensioned: list[torch.dtype] = []
    zero_dim: list[torch.dtype] = []
    numbers: list[torch.dtype] = []
    for argument, value in zip(schema, values, strict=True):
        kind = _schema_type(argument)
        for v in value if isinstance(value, list | tuple) else [value]:
            if isinstance(v, jax.Array | np.ndarray):
                (dimensioned if v.ndim else zero_dim).append(dtypes.to_torch_dtype(v.dtype))
            elif isinstance(v, Number | bool | int | float | complex) and (
                kind == "Tensor" or (kind == "number" and argument.name in entry.promoting)
            ):
                number = v if isinstance(v, Number) else Number.of(v)
                numbers.append(_NUMBER_TYPES[number.kind])
    common = dtypes.result_type(dimensioned, zero_dim, numbers, ctx.default_float)
    if entry.kind == "int_to_float" and dtypes.category(common) < 2:
        common = ctx.default_float
    compute = dtypes.to_numpy_dtype(common)
    if entry.opmath:
        compute = dtypes.opmath(compute)

    def prepare(argument: Any, v: Any) -> Any:
        if isinstance(v, list | tuple) and _schema_type(argument) in ("Tensor", "number"):
            return [prepare(argument, x) for x in v]
        if isinstance(v, jax.Array | np.ndarray):
            v = jnp.asarray(v)
            return cast(v, compute) if v.dtype == np.bool_ else v.astype(compute)
        if isinstance(v, Number):
            return v.value if argument.name in entry.static else jnp.asarray(v.value).astype(compute)
        if isinstance(v, bool | int | float | complex) and _schema_type(argument) in ("Tensor", "number"):
            return v if argument.name in entry.static else jnp.asarray(Number.of(v).array()).astype(compute)
        return v

    return [prepare(a, v) for a, v in zip(schema, values, strict=True)]


def _plain(entry: registry.Lowering, argument: Any, value: Any) -> Any:
    """Numbers become 0-d arrays, or stay Python values where the lowering asked for static ones."""
    if isinstance(value, list | tuple):
        return [_plain(entry, argument, v) for v in value]
    if isinstance(value, Number):
        return value.value if argument.name in entry.static else value.array()
    if isinstance(value, bool | int | float | complex) and argument.name not in entry.static:
        kind = _schema_type(argument)
        if kind in ("Tensor", "number") or (kind == "float" and isinstance(value, float)):
            return Number.of(value).array()
    return value


def flatten_results(op: torch._ops.OpOverload, entry: registry.Lowering | None, result: Any) -> list[Any]:
    """A lowering's results as a flat list: fresh returns first, then written arguments."""
    flat: list[Any] = []
    for item in result if isinstance(result, tuple) else (result,):
        if isinstance(item, list):
            flat.extend(item)
        else:
            flat.append(item)
    return flat


def raw(op: torch._ops.OpOverload, arguments: Sequence[Any], ctx: Context) -> Any:
    """Prepares the arguments and runs the lowering; gives its results as they are. See `call`."""
    entry = registry.find(op)
    if entry is None:
        raise NotImplementedError(f"{op} has no lowering to XLA")
    schema, values = [], []
    for argument, value in zip(op._schema.arguments, arguments, strict=True):
        if not registry.is_out_argument(argument):
            schema.append(argument)
            values.append(value)
    if entry.kind is not None:
        values = _promote(entry, schema, values, ctx)
    else:
        values = [_plain(entry, a, v) for a, v in zip(schema, values, strict=True)]
    keyword = {
        a.name: v for a, v in zip(schema, values, strict=True)
        if a.kwarg_only and "Generator" not in str(a.type) and a.name not in ("layout", "device", "pin_memory")
    }
    positional = [v for a, v in zip(schema, values, strict=True) if not a.kwarg_only and "Generator" not in str(a.type)]
    with entered(ctx):
        return entry.fn(*positional, **keyword)


def call(op: torch._ops.OpOverload, arguments: Sequence[Any], ctx: Context) -> list[jax.Array | None]:
    """Lowers one operator inside a trace.

    arguments: one entry for each argument of op's schema (`out` ones are ignored): JAX arrays for tensors, `Number`
    for wrapped numbers and Scalars, Python values for the rest.
    ctx.outs: the dtype and shape that PyTorch expects of each flattened result, None for an undefined one.
    Returns the flattened results: fresh returns, then written arguments. Raises NotImplementedError without a lowering.
    """
    flat = flatten_results(op, registry.find(op), raw(op, arguments, ctx))
    # An undefined result (output_mask, an optional) has no spec, whatever the lowering gives for it.
    return [None if spec is None else conform(op, x, spec) for x, spec in zip(flat, ctx.outs, strict=True)]


def conform(op: Any, value: Any, spec: OutSpec) -> jax.Array:
    """Casts a result to the expected dtype and insists on the expected shape."""
    out = jnp.asarray(value)
    if out.shape != spec.shape:
        raise AssertionError(f"lowering of {op} gave shape {out.shape}, PyTorch expects {spec.shape}")
    dtype = dtypes.to_numpy_dtype(spec.dtype)
    if out.dtype == dtype:
        return out
    return cast(out, dtype)


def cast(value: jax.Array, dtype: np.dtype) -> jax.Array:
    """PyTorch's conversion between dtypes (complex to real keeps the real part, anything to bool is != 0)."""
    if value.dtype == dtype:
        return value
    if np.issubdtype(value.dtype, np.complexfloating) and not np.issubdtype(dtype, np.complexfloating):
        if dtype == np.bool_:
            return value != 0
        value = value.real
    if dtype == np.bool_:
        return value != 0
    if value.dtype == np.bool_ and dtype.kind not in "iu":
        # XLA makes a selection of a product with a converted bool, which loses NaN * 0. Two conversions it leaves alone.
        return value.astype(np.uint8).astype(dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4 and value.dtype.kind not in "iub":
        # PyTorch goes through a wider integer, so that -1.0 becomes 255 in uint8; XLA alone would saturate.
        value = value.astype(np.int32)
    return value.astype(dtype)


_C_NAMES = {
    "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int", "int64": "int64_t", "uint16": "uint16_t",
    "uint32": "uint32_t", "uint64": "uint64_t", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float",
    "float64": "double",
}  # fmt: skip


def filler(value: Any, dtype: np.dtype) -> jax.Array:
    """A Scalar in the dtype of the tensor that it is written into; one that does not fit is a RuntimeError at run time.

    A double beyond float32's range becomes infinite instead: a check in every fill of a float tensor would cost more
    than it is worth.
    """
    value = jnp.asarray(value)
    to, fits = np.dtype(dtype), None
    number = value
    if np.issubdtype(value.dtype, np.complexfloating) and not np.issubdtype(to, np.complexfloating) and to != np.bool_:
        fits, number = value.imag == 0, value.real
    if to.kind in "iu" and number.dtype != np.bool_ and not (number.dtype.kind == "i" and to == np.int64):
        info = np.iinfo(to)
        # PyTorch lets negative numbers wrap around in unsigned types.
        low = -info.max if to.kind == "u" else info.min
        wide = number.astype(np.int64 if number.dtype.kind in "iu" else np.float64)
        high = min(info.max, np.iinfo(np.int64).max)  # no Scalar is a larger integer
        inside = (wide >= wide.dtype.type(max(low, -high - 1))) & (wide <= wide.dtype.type(high))
        fits = inside if fits is None else fits & inside
    elif to == np.float16 and number.dtype != np.float16:
        wide = number.astype(np.float64)
        inside = (jnp.abs(wide) <= 65504) | ~jnp.isfinite(wide)
        fits = inside if fits is None else fits & inside
    if fits is not None:
        name = _C_NAMES.get(to.name, to.name)
        context().check(fits, RuntimeError, f"value cannot be converted to type {name} without overflow")
    return cast(value, dtype)
