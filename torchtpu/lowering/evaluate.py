"""Running one lowering on CPU tensors, without the device: what the tests of lowerings and of decompositions use."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torchtpu.lowering import dtypes, registry
from torchtpu.lowering.call import Context, Number, OutSpec, call


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A CPU tensor as a JAX array of the same dtype and shape (call under `jax.enable_x64(True)`)."""
    dtype = dtypes.to_numpy_dtype(tensor.dtype)
    data = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    raw = data.reshape(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8)
    return jnp.asarray(raw.view(dtype).reshape(tuple(tensor.shape)))


def to_torch(array: Any) -> torch.Tensor:
    """A JAX array as a CPU tensor."""
    host = np.ascontiguousarray(np.asarray(array))
    if host.size == 0:
        return torch.empty(np.shape(array), dtype=dtypes.to_torch_dtype(host.dtype))
    raw = torch.from_numpy(host.reshape(-1).view(np.uint8).copy())
    return raw.view(dtypes.to_torch_dtype(host.dtype)).reshape(np.shape(array))


def _bind(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[Any]:
    values: list[Any] = []
    rest = list(args)
    for argument in op._schema.arguments:
        if rest and not argument.kwarg_only:
            values.append(rest.pop(0))
        elif argument.name in kwargs:
            values.append(kwargs[argument.name])
        else:
            values.append(argument.default_value if argument.has_default_value() else None)
    return values


def evaluate(op: torch._ops.OpOverload, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[list, list]:
    """Runs `op` through its lowering and on the CPU.

    Returns (actual, expected): the flattened results, fresh returns first and then the written arguments.
    Scalars are operands of the program, as on the device. A failed run-time check is raised.
    """
    entry = registry.find(op)
    assert entry is not None, f"no lowering for {op}"
    values = _bind(op, args, kwargs)
    host = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, values)
    names = [a.name for a in op._schema.arguments]
    n_positional = sum(not a.kwarg_only for a in op._schema.arguments)
    returned = op(*host[:n_positional], **dict(zip(names[n_positional:], host[n_positional:], strict=True)))
    returned = returned if isinstance(returned, tuple) else (returned,)
    expected: list[torch.Tensor | None] = []
    for value, spec in zip(returned, op._schema.returns, strict=False):
        if spec.alias_info is None or not spec.alias_info.is_write:
            expected.extend(value if isinstance(value, list) else [value])
    for name in registry.written_arguments(op, entry):
        value = host[names.index(name)]
        if value is not None:
            expected.extend(value if isinstance(value, list | tuple) else [value])
    outs = [None if e is None else OutSpec(e.dtype, tuple(e.shape)) for e in expected]

    traced: list[Any] = []
    contiguous: list[bool] = []

    def describe(argument: Any, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [describe(argument, v) for v in value]
        if isinstance(value, torch.Tensor):
            contiguous.append(value.is_contiguous())
            traced.append(to_jax(value))
            return ("array", len(traced) - 1)
        kind = str(argument.type)
        numeric = isinstance(value, bool | int | float | complex)
        scalar = numeric and ("number" in kind or "Tensor" in kind or ("float" in kind and isinstance(value, float)))
        if scalar and argument.name not in entry.static:
            number = Number.of(value)
            traced.append(number.array())
            return ("number", len(traced) - 1, number.kind)
        return ("static", value)

    def rebuild(item: Any, arrays: tuple) -> Any:
        if isinstance(item, list):
            return [rebuild(i, arrays) for i in item]
        if item[0] == "array":
            return arrays[item[1]]
        if item[0] == "number":
            return Number(arrays[item[1]], item[2])
        return item[1]

    with jax.enable_x64(True):
        described = [describe(a, v) for a, v in zip(op._schema.arguments, values, strict=True)]
        messages: list[Any] = []

        def program(key: Any, *arrays: Any) -> Any:
            ctx = Context(outs, key, torch.get_default_dtype())
            ctx.contiguous = contiguous
            results = call(op, [rebuild(d, arrays) for d in described], ctx)
            messages[:] = ctx.checks
            return results, [(c.ok, c.value) for c in ctx.checks]

        key = jnp.array([seed, 0, 0, 0], jnp.uint32)
        results, checks = jax.jit(program)(key, *traced)
        for (ok, value), check in zip(checks, messages, strict=True):
            if not bool(ok):
                raise check.exception(check.message.format(value=int(value)))
        return [None if r is None else to_torch(r) for r in results], expected


def compare(op: torch._ops.OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Asserts that a lowering gives the CPU's dtypes, shapes and values."""
    actual, expected = evaluate(op, *args, **kwargs)
    for a, e in zip(actual, expected, strict=True):
        if e is not None:
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
