"""Inputs: samples of a database, moved to a device with their layout, or given another layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# (operator, position of the argument) that PyTorch wants on the CPU on every device.
KEEP_ON_CPU = {("tensor_split", 0)}


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `fn` applied to each tensor in its lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, list | tuple):
        items = [map_tensors(v, fn) for v in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {k: map_tensors(v, fn) for k, v in value.items()}
    return value


def move(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on `device` with the same strides and offset; a leaf that requires a gradient where `tensor` does."""
    with torch.no_grad():
        copy = _copy(tensor.detach(), device)
    return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy


def _copy(t: torch.Tensor, device: str) -> torch.Tensor:
    if t.layout != torch.strided or t.is_quantized or t.is_nested:
        return t.clone().to(device)
    if t.is_conj():
        return _copy(t.conj(), device).conj()
    if t.is_neg():
        return _copy(t._neg_view(), device)._neg_view()
    if t.is_contiguous() and t.storage_offset() == 0:
        return t.clone().to(device)
    size = t.untyped_storage().nbytes() // t.element_size()
    base = t.as_strided((size,), (1,), 0)
    return base.clone().to(device).as_strided(t.size(), t.stride(), t.storage_offset())


def place(value: Any, device: str) -> Any:
    """`value` with its tensors copied to `device`, and arguments that name the CPU naming `device`."""
    if isinstance(value, torch.Tensor):
        return move(value, device)
    if isinstance(value, list | tuple):
        items = [place(v, device) for v in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {k: place(v, device) for k, v in value.items()}
    if isinstance(value, str) and value == "cpu":
        return device
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device(device)
    return value


class Inputs:
    """The arguments of one call. `input` comes first; copies are fresh, so a call may write to them."""

    def __init__(self, name: str, sample: Any):
        self.name = name
        self.input, self.args, self.kwargs = sample.input, sample.args, dict(sample.kwargs)
        self.finish = sample.output_process_fn_grad
        self.broadcasts = sample.broadcasts_input

    def on(self, device: str) -> tuple[Any, tuple, dict[str, Any]]:
        """(input, args, kwargs), copied to the device."""
        args = tuple(
            a if (self.name, i) in KEEP_ON_CPU else place(a, device) for i, a in enumerate(self.args)
        )
        return place(self.input, device), args, place(self.kwargs, device)

    def changed(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """These inputs with every tensor replaced by fn(tensor)."""
        other = object.__new__(Inputs)
        other.__dict__.update(self.__dict__)
        other.input, other.args, other.kwargs = (map_tensors(v, fn) for v in (self.input, self.args, self.kwargs))
        return other

    def text(self) -> str:
        """Sizes, dtypes and other arguments in one line."""

        def show(v: Any) -> str:
            if isinstance(v, torch.Tensor):
                return f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}"
            if isinstance(v, list | tuple):
                return "(" + ", ".join(map(show, v)) + ")"
            return repr(v)

        parts = [show(self.input), *map(show, self.args), *(f"{k}={show(v)}" for k, v in self.kwargs.items())]
        return ", ".join(parts)[:300]


_WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
    torch.float8_e4m3fn: torch.float64, torch.float8_e5m2: torch.float64,
}  # fmt: skip


def widen(inputs: Inputs) -> Inputs:
    """The same inputs with 64-bit floats, for the result that both devices are measured against."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        target = _WIDER.get(t.dtype)
        return t if target is None else t.detach().to(target).requires_grad_(t.requires_grad)

    other = inputs.changed(wide)
    for key, value in other.kwargs.items():
        if isinstance(value, torch.dtype):
            other.kwargs[key] = _WIDER.get(value, value)
    other.args = tuple(_WIDER.get(a, a) if isinstance(a, torch.dtype) else a for a in other.args)
    return other


def noncontiguous(inputs: Inputs) -> Inputs:
    """The same values with gaps between elements."""

    def gaps(t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided or t.numel() < 2 or t.dim() == 0:
            return t
        with torch.no_grad():
            wide = torch.stack([t.detach(), torch.zeros_like(t)], dim=-1)
        return wide[..., 0].detach().requires_grad_(t.requires_grad)

    return inputs.changed(gaps)


def expanded(inputs: Inputs, batch_only: bool) -> Inputs | None:
    """Floating inputs repeat their first slice through a stride of zero. None when no input can.

    batch_only: only where the first dimension is a batch of matrices; a matrix of equal rows has no inverse.
    """
    changed = 0

    def spread(t: torch.Tensor) -> torch.Tensor:
        nonlocal changed
        least = 3 if batch_only else 1
        if t.layout != torch.strided or t.dim() < least or t.size(0) < 2 or not (t.is_floating_point() or t.is_complex()):
            return t
        changed += 1
        return t.detach()[:1].clone().expand_as(t).requires_grad_(t.requires_grad)

    other = inputs.changed(spread)
    return other if changed else None


def choose(samples: list[Any], limit: int | None) -> list[Any]:
    """At most `limit` samples, spread evenly; the first and the last are among them."""
    if limit is None or len(samples) <= limit:
        return samples
    if limit == 1:
        return samples[:1]
    return [samples[round(i * (len(samples) - 1) / (limit - 1))] for i in range(limit)]
