"""Operators whose result's size or value depends on data: they read from the device and then record ordinary ones.

All elements stay on the device; what is read is a count, an extreme or a rank.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_libraries: list[torch.library.Library] = []

# Operators that ATen lacks and that the ones here are made of; their lowerings are in the table as all others.
_INTERNAL = (
    "lexicographic_order(Tensor rows) -> Tensor",
    "lstsq(Tensor A, Tensor B, float rcond, str driver) -> (Tensor, Tensor, Tensor, Tensor)",
)


# Conversions to layouts that XLA lacks.
_SPARSE = ("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc")


def _no_sparse(*args: Any, **kwargs: Any) -> Any:
    """Refuses a conversion that would otherwise run on the CPU and fail on the way back."""
    raise NotImplementedError("sparse tensors are not supported on tpu. Convert on the CPU: .cpu().to_sparse()")


def _refuse(op: torch._ops.OpOverload, *args: Any, empty: bool = True, **kwargs: Any) -> None:
    """Raises what the CPU raises for these arguments, which it sees as small tensors with the same sizes being equal.

    empty: whether it sees sizes of zero as such; some of LAPACK's functions crash on them.
    """
    sizes = sorted({n for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) for n in a.shape} | {0, 1})

    def small(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        shape = [max(sizes.index(n), 0 if empty else 1) for n in a.shape]
        return torch.arange(1, math.prod(shape) + 1).sqrt().reshape(shape).to(a.dtype)  # of full rank

    op(*map(small, args), **{name: small(a) for name, a in kwargs.items()})


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
        from torchtpu.lowering.validate import scalar_type

        raise RuntimeError(f"nonzero: Expected out tensor to have scalar type Long but got scalar type{scalar_type(out.dtype)}")
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


# Unique values


def _runs(ordered: torch.Tensor, order: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs of equal entries along the first dimension: where each starts, the run of each entry, and how long each is.

    order: int64[n], where each entry came from; the runs are given for the entries in their original order.
    """
    n = ordered.shape[0]
    differs = torch.ne(ordered[1:], ordered[:-1])
    if differs.dim() > 1:
        differs = differs.flatten(1).any(1)
    first = torch.ones(min(n, 1), dtype=torch.bool, device=ordered.device)
    changes = torch.cat([first, differs])
    starts = _nonzero(changes)[:, 0]
    run = changes.cumsum(0) - 1
    if order is not None:
        run = torch.empty_like(run).scatter_(0, order, run)
    return starts, run, torch.cat([starts, starts.new_full((1,), n)]).diff()


def _flat_unique(
    self: torch.Tensor, order: torch.Tensor | None, ordered: torch.Tensor, inverse: bool, counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    starts, run, lengths = _runs(ordered, order)
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    return ordered.index_select(0, starts), run.reshape(self.shape) if inverse else nothing, lengths if counts else nothing


def _unique2(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sorted distinct values, and if asked for int64: each element's value (of self's shape), each value's count."""
    _refuse(aten._unique2.default, self)
    ordered, order = self.reshape(-1).sort(stable=True)
    return _flat_unique(self, order, ordered, return_inverse, return_counts)


def _unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`_unique2` without counts."""
    return _unique2(self, sorted, return_inverse)[:2]


def _rows_unique(self: torch.Tensor, dim: int, ordered: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    moved = self.movedim(dim, 0)
    rows = moved.reshape(moved.shape[0], -1) if self.numel() else moved.reshape(moved.shape[0], 0)
    order = None
    if not ordered:
        order = torch.ops.torchtpu.lexicographic_order(rows)
        rows = rows.index_select(0, order)
    starts, run, lengths = _runs(rows, order)
    values = rows.index_select(0, starts).reshape(starts.shape[0], *moved.shape[1:])
    return values.movedim(0, dim).contiguous(), run, lengths


def _unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct slices of a dimension in lexicographic order, the slice that each became, and their counts."""
    _refuse(aten.unique_dim.default, self, dim)
    return _rows_unique(self, dim, False)


def _unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`unique_dim` that only joins neighbours."""
    _refuse(aten.unique_dim_consecutive.default, self, dim)
    return _rows_unique(self, dim, True)


def _unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values without repeated neighbours, flattened or along a dimension; inverse and counts as in `_unique2`."""
    _refuse(aten.unique_consecutive.default, self, False, False, dim)
    if dim is not None and (dim != 0 or self.dim() != 1):
        return _rows_unique(self, dim, True)
    return _flat_unique(self, None, self.reshape(-1), return_inverse, return_counts)


def _bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """How often each of 0, 1, … occurs in an integer vector, int64; or the sum of its weights, in float."""
    _refuse(aten.bincount.default, self, None, minlength)
    if self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    least, most = torch.stack(self.aminmax()).tolist()
    if least < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = max(minlength, most + 1)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    source = torch.ones_like(self, dtype=dtype) if weights is None else weights.to(dtype)
    return torch.zeros(size, dtype=dtype, device=self.device).index_add_(0, self.long(), source)


def _padded_to_jagged(dense: torch.Tensor, offsets: list[torch.Tensor], total_L: int | None = None) -> torch.Tensor:
    """The rows of dense (batch, width, *), cut to the lengths that offsets int64[batch + 1] give, one after the other."""
    (ends,) = offsets
    total = int(ends[-1]) if total_L is None else total_L
    position = torch.arange(total, device=dense.device)
    row = torch.searchsorted(ends[1:], position, right=True)
    column = (position - ends.index_select(0, row)).clamp(max=dense.shape[1] - 1)  # rows may be cut to the width
    return dense.flatten(0, 1).index_select(0, row * dense.shape[1] + column)


def _kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None,
    layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """Kaiser's window, floating[window_length]; PyTorch's own composition calls a kernel of the CPU."""
    result = torch.kaiser_window(min(window_length, 2), periodic, beta, dtype=dtype, layout=layout).dtype  # raises for bad arguments
    if window_length <= 1:
        return torch.ones(window_length, dtype=result, device=device)
    compute = torch.float64 if result == torch.float64 else torch.float32
    middle = (window_length - 1 + periodic) / 2
    ratio = torch.arange(window_length, dtype=compute, device=device) / middle - 1
    window = torch.i0(beta * (1 - ratio * ratio).sqrt()) / torch.i0(torch.full((), beta, dtype=compute, device=device))
    return window.to(result)


# Least squares


def _lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solutions X of min |A X - B|; residuals, ranks (int64) and singular values where LAPACK's driver gives them, else empty."""
    _refuse(aten.linalg_lstsq.default, self, b, rcond, empty=False, driver=driver)
    driver = driver or "gelsy"
    m, n = self.shape[-2:]
    vector = b.dim() == 1 or b.shape == self.shape[:-1]
    right = b.unsqueeze(-1) if vector else b
    # PyTorch's own error for batches that do not fit.
    torch.add(*(torch.empty(x.shape[:-2], device="meta") for x in (self, right)))
    if rcond is None:
        rcond = torch.finfo(self.dtype).eps * max(m, n)
    solution, residuals, rank, values = torch.ops.torchtpu.lstsq(self, right, rcond, driver)
    full = m > n and driver != "gelsy" and (driver == "gels" or bool((rank == n).all()))
    return (
        solution.squeeze(-1) if vector else solution,
        residuals if full else residuals.new_empty(0),
        rank if driver != "gels" else rank.new_empty(0),
        values if driver in ("gelsd", "gelss") else values.new_empty(0),
    )


def register() -> None:
    """Registers these kernels on the device's key and the internal operators' schemas, once."""
    if _libraries:
        return
    internal = torch.library.Library("torchtpu", "FRAGMENT")
    for schema in _INTERNAL:
        internal.define(schema)
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _libraries.extend([internal, library])
    kernels: dict[str, Callable[..., Any]] = {
        "nonzero": _nonzero,
        "masked_select": _masked_select,
        "nonzero.out": _nonzero_out,
        "masked_select.out": _masked_select_out,
        "equal": _equal,
        "repeat_interleave.Tensor": _repeat_interleave,
        "_unique": _unique,
        "_unique2": _unique2,
        "unique_dim": _unique_dim,
        "unique_dim_consecutive": _unique_dim_consecutive,
        "unique_consecutive": _unique_consecutive,
        "bincount": _bincount,
        "_padded_dense_to_jagged_forward": _padded_to_jagged,
        "linalg_lstsq": _lstsq,
        "kaiser_window": _kaiser_window,
        "kaiser_window.periodic": _kaiser_window,
        "kaiser_window.beta": _kaiser_window,
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel)
    for name in _SPARSE:
        library.impl(name, _no_sparse)
