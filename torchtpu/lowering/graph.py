"""Lowering FX graphs of ATen operators: PyTorch's decompositions, traced once for each signature."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from torchtpu.lowering import call as call_module
from torchtpu.lowering import dtypes, registry
from torchtpu.lowering.call import Context, Number, OutSpec


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions for the operators that have no lowering of their own."""
    return {
        op: fn for op, fn in torch._decomp.decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload) and registry.find(op) is None
    }


@functools.cache
def functional_overload(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """`aten.add_.Tensor` and `aten.add.out` → `aten.add.Tensor`; the overload itself when there is no such form."""
    name = registry.functional_name(op)
    namespace = "aten"
    if "::" in name:
        namespace, name = name.split("::")
    base, _, overload = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    found = getattr(packet, overload or "default", None) if packet is not None else None
    return found if found is not None else op


@functools.cache
def decomposition(op: torch._ops.OpOverload) -> Any:
    """PyTorch's decomposition of an operator (of its functional form), or None."""
    return _decompositions().get(functional_overload(op)) or _decompositions().get(op)


def _outs(value: Any) -> list[OutSpec | None]:
    values = value if isinstance(value, list | tuple) else [value]
    flat: list[OutSpec | None] = []
    for v in values:
        for x in v if isinstance(v, list | tuple) else [v]:
            flat.append(OutSpec(x.dtype, tuple(x.shape)) if isinstance(x, torch.Tensor) else None)
    return flat


def interpret(module: torch.fx.GraphModule, inputs: Sequence[Any], ctx: Context) -> Any:
    """Runs an ATen graph on JAX arrays through the lowering table. Returns what the graph returns."""
    values: dict[torch.fx.Node, Any] = {}
    feed = iter(inputs)

    def look(item: Any) -> Any:
        return values[item] if isinstance(item, torch.fx.Node) else item

    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(feed)
        elif node.op == "get_attr":
            from torchtpu.lowering.evaluate import to_jax

            values[node] = to_jax(getattr(module, node.target))
        elif node.op == "output":
            return torch.fx.map_arg(node.args[0], look)
        elif node.target is operator.getitem:
            values[node] = look(node.args[0])[node.args[1]]
        elif isinstance(node.target, torch._ops.OpOverload):
            values[node] = _call_node(node, torch.fx.map_arg(node.args, look), torch.fx.map_arg(node.kwargs, look), ctx)
        else:
            raise NotImplementedError(f"{node.target} in a graph has no lowering to XLA")
    raise AssertionError("a graph without an output")


def _call_node(node: torch.fx.Node, args: tuple, kwargs: dict, ctx: Context) -> Any:
    op: Any = node.target
    arguments, rest = [], list(args)
    for argument in op._schema.arguments:
        if rest and not argument.kwarg_only:
            arguments.append(rest.pop(0))
        elif argument.name in kwargs:
            arguments.append(kwargs[argument.name])
        else:
            arguments.append(argument.default_value if argument.has_default_value() else None)
    inner = Context(_outs(node.meta["val"]), None, ctx.default_float)
    if ctx.key_data is not None:
        inner.key = ctx.key  # type: ignore[method-assign]  # one stream of keys for the whole graph
    flat = call_module.call(op, arguments, inner)
    ctx.checks.extend(inner.checks)
    val = node.meta["val"]
    if not isinstance(val, list | tuple):
        return flat[0]
    out: list[Any] = []
    at = 0
    for v in val:
        if isinstance(v, list | tuple):
            out.append(flat[at : at + len(v)])
            at += len(v)
        else:
            out.append(flat[at])
            at += 1
    return out


def call_decomposed(op: torch._ops.OpOverload, arguments: Sequence[Any], ctx: Context) -> list[jax.Array | None]:
    """Lowers an operator through PyTorch's decomposition; arguments and results as in `call`."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    target = functional_overload(op)
    fn = _decompositions().get(target)
    if fn is None:
        target, fn = op, _decompositions()[op]
    schema = [a for a in op._schema.arguments if not registry.is_out_argument(a)]
    values = [v for a, v in zip(op._schema.arguments, arguments, strict=True) if not registry.is_out_argument(a)]
    arrays: list[Any] = []

    def fake(v: Any) -> Any:
        if isinstance(v, Number):
            return v.value
        if isinstance(v, jax.Array):
            arrays.append(v)
            return torch.empty(v.shape, dtype=dtypes.to_torch_dtype(v.dtype))
        return "cpu" if isinstance(v, str) and v.startswith("tpu") else v

    with FakeTensorMode(allow_non_fake_inputs=True):
        faked = [pytree.tree_map(fake, v, is_leaf=lambda x: isinstance(x, Number)) for v in values]
        flat_inputs = [v for v in pytree.tree_leaves(faked) if isinstance(v, torch.Tensor)]

        def run(*tensors: torch.Tensor) -> Any:
            feed = iter(tensors)
            bound = pytree.tree_map(lambda v: next(feed) if isinstance(v, torch.Tensor) else v, faked)
            positional = [v for a, v in zip(schema, bound, strict=True) if not a.kwarg_only]
            keyword = {a.name: v for a, v in zip(schema, bound, strict=True) if a.kwarg_only and a.name != "generator"}
            return fn(*positional, **keyword)

        module = make_fx(run, decomposition_table=_decompositions(), tracing_mode="fake")(*flat_inputs)
    result = interpret(module, arrays, ctx)
    flat: list[Any] = []
    for item in result if isinstance(result, list | tuple) else [result]:
        flat.extend(item if isinstance(item, list | tuple) else [item])
    return [None if spec is None else call_module.conform(op, x, spec) for x, spec in zip(flat, ctx.outs, strict=True)]
