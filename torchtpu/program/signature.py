"""One recorded operation as the native core describes it, and how it is applied inside a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.lowering import dtypes, registry, views
from torchtpu.lowering.call import Check, Context, Number, OutSpec, call
from torchtpu.lowering.graph import call_decomposed


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor argument: which of the operation's storages it views, and how."""

    slot: int
    view: views.View
    dtype: torch.dtype

    def text(self) -> str:
        """Dtype, sizes and strides as the user knows them."""
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}{list(self.view.sizes)} (strides {list(self.view.strides)})"


def overload(name: str, overload_name: str) -> torch._ops.OpOverload:
    """The operator object of "aten::add", "Tensor"."""
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload_name or "default")


def _is_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    count = 1
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        if size != 1 and stride != count:
            return 0 in sizes
        count *= size
    return True


class Signature:
    """All that a repeat of one operation needs, without the values.

    arguments: a template for each schema argument: ("t", operand), ("n", kind) a scalar operand, ("h", dtype, wrapped,
    kind) a 0-d CPU tensor read as a scalar operand, ("v", value) a static value, or a list of these.
    """

    def __init__(self, told: dict[str, Any]):
        self.op = overload(told["name"], told["overload"])
        self.name: str = told["name"]
        self.arguments = told["arguments"]
        self.default_float: torch.dtype = told["default_float"]
        self.random: bool = told["random"]
        self.operands = [
            Operand(slot, views.View(dtypes.to_numpy_dtype(dtype), tuple(sizes), tuple(strides), offset, conj, neg), dtype)
            for slot, dtype, sizes, strides, offset, conj, neg in told["operands"]
        ]
        self.description: str | None = None  # as the compile cache's keys have it, made when first needed
        self.needs: list[int] = told.get("needs", [])
        self.fresh = told.get("fresh", [])
        self.written: list[int] = told.get("written", [])
        self.writes = {slot: (dtypes.to_numpy_dtype(dtype), tuple(shape)) for slot, dtype, shape in told.get("writes", [])}
        self.outs = [None if f is None else OutSpec(f[0], tuple(f[1])) for f in self.fresh]
        self.outs += [OutSpec(self.operands[o].dtype, self.operands[o].view.sizes) for o in self.written]

    def text(self) -> str:
        """The operation and its operands, for errors."""
        title = self.name + ("." + self.op._overloadname if self.op._overloadname != "default" else "")
        return f"{title}({', '.join(o.text() for o in self.operands)})"

    def bind(self, tensors: Sequence[Any], floats: Callable[[], Any], ints: Callable[[], Any]) -> list[Any]:
        """The template filled in: JAX arrays, `Number`s and static values in schema order."""

        def number(kind: str) -> Any:
            if kind == "float":
                return floats()
            if kind == "complex":
                real = floats()
                return lax.complex(real, floats())
            return ints() != 0 if kind == "bool" else ints()

        def fill(item: Any) -> Any:
            if isinstance(item, list):
                return [fill(x) for x in item]
            tag = item[0]
            if tag == "t":
                return tensors[item[1]]
            if tag == "n":
                return Number(number(item[1]), item[1])
            if tag == "h":
                value = number(item[3])
                return Number(value, item[3]) if item[2] else jnp.asarray(value, dtypes.to_numpy_dtype(item[1]))
            return item[1]

        return [fill(item) for item in self.arguments]

    def lower(self, tensors: Sequence[Any], floats: Callable, ints: Callable, checks: list[Check]) -> list[Any]:
        """The operation's results on arrays of the tensors' own shapes: fresh ones, then written ones."""
        arguments = self.bind(tensors, floats, ints)
        key = None
        if self.random:
            seed, offset = ints(), ints()
            low, high = jnp.int64(0xFFFFFFFF), jnp.int64(32)
            words = [seed & low, lax.shift_right_logical(seed, high), offset & low, lax.shift_right_logical(offset, high)]
            key = jnp.stack(words).astype(jnp.uint32)
        ctx = Context(self.outs, key, self.default_float)
        ctx.contiguous = [_is_contiguous(o.view.sizes, o.view.strides) for o in self.operands]
        run = call if registry.find(self.op) is not None else call_decomposed
        results = run(self.op, arguments, ctx)
        checks.extend(dataclasses.replace(c, where=self) for c in ctx.checks)
        return results

    def apply(
        self, bases: dict[int, jax.Array | None], floats: Callable, ints: Callable, checks: list[Check]
    ) -> list[Any]:
        """New values of the written storages, then of the fresh results.

        bases: the needed storages' values by slot; None for one that was never written.
        """
        tensors = [views.read(bases.get(o.slot), o.view) for o in self.operands]
        results = self.lower(tensors, floats, ints, checks)
        fresh, written = results[: len(self.fresh)], results[len(self.fresh) :]
        new = dict(bases)
        for index, value in zip(self.written, written, strict=True):
            operand = self.operands[index]
            dtype, shape = self.writes[operand.slot]
            whole = self._covers(operand, dtype, shape)
            new[operand.slot] = views.write(new.get(operand.slot), operand.view, value, dtype, shape, whole)
        out = [new[slot] for slot in self.writes]
        for value, told in zip(fresh, self.fresh, strict=True):
            if told is not None:
                view = views.View(value.dtype, tuple(told[1]), tuple(told[2]), 0)
                out.append(views.to_memory(value, view, tuple(told[3])))
        return out

    def _covers(self, operand: Operand, dtype: Any, shape: tuple[int, ...]) -> bool:
        view = operand.view
        if view.offset or view.dtype != dtype:
            return False
        count = 1
        for size, stride in sorted(zip(view.sizes, view.strides, strict=True), key=lambda item: item[1]):
            if size != 1:
                if stride != count:
                    return False
                count *= size
        total = 1
        for n in shape:
            total *= n
        return count == total


def infer_outputs(told: dict[str, Any]) -> list[Any] | None:
    """Dtypes and sizes of an operation's fresh results by tracing its lowering, where PyTorch has no meta kernel.

    None when that cannot tell.
    """
    signature = Signature(told)
    shapes = [jax.ShapeDtypeStruct(o.view.sizes, o.view.dtype) for o in signature.operands]
    entry = registry.find(signature.op)
    if entry is None:
        return None

    def run(*tensors: Any) -> Any:
        import torchtpu.lowering.call as call_module

        arguments = signature.bind(tensors, lambda: jnp.float64(1), lambda: jnp.int64(1))
        ctx = Context([], jnp.zeros(4, jnp.uint32), signature.default_float)
        return call_module.raw(signature.op, arguments, ctx)

    try:
        with jax.enable_x64(True):
            results = jax.eval_shape(run, *shapes)
    except Exception:
        return None  # the lowering needs to know its results' sizes
    results = results if isinstance(results, tuple) else (results,)
    if len(results) < len(registry.fresh_returns(signature.op)):
        return None

    def spec(x: Any) -> Any:
        if isinstance(x, list):
            return [spec(v) for v in x]
        return None if x is None else (dtypes.to_torch_dtype(x.dtype), tuple(x.shape))

    return [spec(x) for x in results[: len(registry.fresh_returns(signature.op))]]
