"""The lowering table: ATen operator → JAX function.

A lowering is a plain function over JAX arrays, named by the operator it serves:

    @pointwise("atan2", kind="int_to_float")
    def atan2(self, other):
        return jnp.arctan2(self, other)

    @lower("mm")
    def mm(self, mat2):
        return jnp.matmul(self, mat2)

One function serves every form of the operator: functional (`add.Tensor`), in-place (`add_.Tensor`) and `out=`
(`add.out`). A name without an overload serves all overloads; `"max.dim"` serves one. In-place forms drop the
trailing underscore, `out=` forms are looked up under the functional overload with the same arguments.

What a lowering gets
  * the operator's arguments in the order of its schema, without `out` arguments; keyword-only ones by keyword;
  * a tensor as a JAX array of the tensor's own shape (views are already resolved) and exact dtype;
  * a `Scalar` or `float` argument as a 0-d array (float64, int64, bool or complex128): its value is an operand of the
    program, so Python must not branch on it. Cast it to the type you compute in. Name it in `static=` to get a
    Python number, at the price of one program per value (an exponent, a norm's p);
  * `int`, `bool`, `str`, sizes and dtypes (`torch.dtype`) as Python values; a missing optional as None;
  * a generator as None: draw from `context().key()`.

What it gives back
  * the operator's results in the order of its schema: an array, or a tuple, a list for `Tensor[]`;
  * an in-place or `out=` form is served by the functional results;
  * an operator that returns nothing new but changes several arguments (foreach, fused optimizers) gives a tuple with
    one entry (array or list) for each argument that its schema marks as written, in order; one that returns results
    and also changes arguments (`mutates=` for those that the schema does not mark) gives the results first, then the
    changed arguments.
Results are cast to the dtype that PyTorch expects, so a comparison may compute in any type; shapes must match.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

MODULES = (
    "pointwise", "elementary", "special", "bessel", "polynomials", "reduce", "foreach", "optimizers", "create", "shape", "pad", "index", "scatter", "segment", "sort",
    "scan", "random", "embedding", "matmul", "linalg", "general", "conv", "pool", "norm", "activation", "loss", "distance", "ctc", "attention", "rnn",
    "upsample", "grid", "fft", "complex", "amp", "internal",
)


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A lowering and how its arguments are prepared."""

    fn: Callable[..., Any]
    kind: str | None = None  # promotion of a pointwise operator: "default", "int_to_float", or None
    promoting: frozenset[str] = frozenset()  # Scalar arguments that take part in promotion
    static: frozenset[str] = frozenset()  # arguments whose value is part of the program
    mutates: tuple[str, ...] = ()  # arguments written without the schema saying so
    opmath: bool = True  # half types are computed in float32
    platforms: tuple[str, ...] | None = None  # where XLA can do it; None: everywhere


_table: dict[str, Lowering] = {}
_loaded = False


def _register(names: tuple[str, ...], entry: Lowering) -> None:
    for name in names:
        if name in _table:
            raise ValueError(f"operator {name} has two lowerings")
        _table[name] = entry


def lower(
    *names: str, static: tuple[str, ...] = (), mutates: tuple[str, ...] = (), platforms: tuple[str, ...] | None = None
) -> Callable:
    """Registers a lowering for the named operators ("mm", "max.dim", "torchtpu::grow").

    static: arguments that arrive as Python values instead of operands of the program.
    mutates: arguments that the operator writes although its schema does not mark them.
    platforms: the XLA platforms that can do it; on others the operator runs on the CPU.
    """

    def decorate(fn: Callable) -> Callable:
        _register(names, Lowering(fn, static=frozenset(static), mutates=mutates, platforms=platforms))
        return fn

    return decorate


def pointwise(
    *names: str,
    kind: str = "default",
    promoting: tuple[str, ...] = ("other", "self", "exponent", "min", "max"),
    static: tuple[str, ...] = (),
    opmath: bool = True,
) -> Callable:
    """Registers an elementwise lowering whose operands arrive promoted by PyTorch's rules.

    kind: "default" computes in the promoted type (half types in float32), "int_to_float" makes integers the default
    floating type first. Tensors, and the Scalars named in `promoting`, decide the type; other Scalars are only cast.
    """
    if kind not in ("default", "int_to_float"):
        raise ValueError(f"unknown kind of promotion {kind!r}")

    def decorate(fn: Callable) -> Callable:
        _register(names, Lowering(fn, kind, frozenset(promoting), frozenset(static), opmath=opmath))
        return fn

    return decorate


def load() -> None:
    """Imports every family of lowerings once; JAX is imported here and not before."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    for module in MODULES:
        name = f"{__package__}.{module}"
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def table() -> dict[str, Lowering]:
    """All lowerings by name."""
    load()
    return _table


def is_out_argument(argument: Any) -> bool:
    """Whether a schema argument is an `out=` result."""
    return bool(argument.is_out)


def functional_name(op: torch._ops.OpOverload) -> str:
    """The table's name of an operator: `aten::add_.Tensor` and `aten::add.out` are both "add.Tensor"."""
    schema = op._schema
    namespace, base = schema.name.split("::")
    overload = schema.overload_name
    arguments = [a for a in schema.arguments if not is_out_argument(a)]
    if len(arguments) != len(schema.arguments):
        # A factory's functional form also takes dtype, device and the like; its `out=` form has them from `out`.
        options = {"dtype", "layout", "device", "pin_memory", "memory_format"} - {a.name for a in arguments}
        want = [(a.name, str(a.type)) for a in arguments]
        packet = getattr(getattr(torch.ops, namespace), base)
        for sibling in packet.overloads():
            other = getattr(packet, sibling)._schema
            plain = [(a.name, str(a.type)) for a in other.arguments if a.name not in options]
            if plain == want and not any(is_out_argument(a) for a in other.arguments):
                overload = other.overload_name
                break
    if base.startswith("__i") and base.endswith("__"):
        base = "__" + base[3:]
    elif base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    prefix = "" if namespace == "aten" else namespace + "::"
    return prefix + base + ("." + overload if overload else "")


@functools.cache
def find(op: torch._ops.OpOverload) -> Lowering | None:
    """The lowering that serves an operator overload, or None."""
    load()
    name = functional_name(op)
    entry = _table.get(name)
    if entry is None and "." in name:
        entry = _table.get(name.split(".")[0])
    return entry


def is_foreign(op: torch._ops.OpOverload) -> bool:
    """Whether the operator's lowering was registered by other code than this package."""
    name = functional_name(op)
    entry = _table.get(name) or _table.get(name.split(".")[0])  # ours need not be loaded for this
    return entry is not None and not entry.fn.__module__.startswith(f"{__package__}.")


def written_arguments(op: torch._ops.OpOverload, entry: Lowering | None) -> list[str]:
    """Names of the arguments an operator writes: `out=` ones, others in schema order, then the lowering's `mutates`."""
    written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    names = [a.name for a in written if a.is_out] + [a.name for a in written if not a.is_out]
    for extra in entry.mutates if entry else ():
        if extra not in names:
            names.append(extra)
    return names


def fresh_returns(op: torch._ops.OpOverload) -> list[Any]:
    """The schema's returns that are new tensors, not one of the written arguments."""
    return [r for r in op._schema.returns if r.alias_info is None or not r.alias_info.is_write]
