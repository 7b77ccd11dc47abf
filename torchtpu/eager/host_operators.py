"""Operators whose result's size or value depends on data: they read from the device and then record ordinary ones."""

from __future__ import annotations

import warnings

import torch

_library: torch.library.Library | None = None


def _nonzero(self: torch.Tensor) -> torch.Tensor:
    """Positions of the non-zero elements, int64[count, dim]."""
    count = int(torch.count_nonzero(self))
    return torch.nonzero_static(self, size=count)


def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Elements of `self` where `mask` is true, in row-major order."""
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, mask)
    positions = _nonzero(mask.reshape(-1))[:, 0]
    return torch.index_select(self.reshape(-1), 0, positions)


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """`out`, resized where it must be, holding the result."""
    if out.shape != result.shape:
        if out.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not match the "
                f"required output shape {list(result.shape)}.", stacklevel=3,
            )  # fmt: skip
        out.resize_(result.shape)
    return out.copy_(result)


def _nonzero_out(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != torch.int64:
        kind = out.type().rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(f"nonzero: Expected out tensor to have scalar type Long but got scalar type{kind}")
    return _into(out, _nonzero(self))


def _masked_select_out(self: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != self.dtype:
        raise RuntimeError("masked_select(): self and result must have the same scalar type")
    return _into(out, _masked_select(self, mask))


def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same sizes and elements."""
    if self.shape != other.shape:
        return False
    return self.numel() == 0 or bool(torch.eq(self, other).all())


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Index i, repeats[i] times, for each i."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = repeats.cumsum(0)
    total = int(ends[-1]) if output_size is None else output_size
    if bool((repeats < 0).any()):
        raise RuntimeError("repeats can not be negative")
    positions = torch.arange(total, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, positions, right=True).to(repeats.dtype)


def register() -> None:
    """Registers these kernels on the device's key, once."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _library.impl("nonzero", _nonzero)
    _library.impl("masked_select", _masked_select)
    _library.impl("nonzero.out", _nonzero_out)
    _library.impl("masked_select.out", _masked_select_out)
    _library.impl("equal", _equal)
    _library.impl("repeat_interleave.Tensor", _repeat_interleave)
