"""PyTorch and XLA dtypes, and PyTorch's type promotion.

The promotion rules are those of https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_PAIRS: list[tuple[torch.dtype, np.dtype]] = [
    (torch.bool, np.dtype(np.bool_)),
    (torch.uint8, np.dtype(np.uint8)),
    (torch.uint16, np.dtype(np.uint16)),
    (torch.uint32, np.dtype(np.uint32)),
    (torch.uint64, np.dtype(np.uint64)),
    (torch.int8, np.dtype(np.int8)),
    (torch.int16, np.dtype(np.int16)),
    (torch.int32, np.dtype(np.int32)),
    (torch.int64, np.dtype(np.int64)),
    (torch.float16, np.dtype(np.float16)),
    (torch.bfloat16, np.dtype(ml_dtypes.bfloat16)),
    (torch.float32, np.dtype(np.float32)),
    (torch.float64, np.dtype(np.float64)),
    (torch.complex64, np.dtype(np.complex64)),
    (torch.complex128, np.dtype(np.complex128)),
    (torch.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)),
    (torch.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2)),
    (torch.float8_e4m3fnuz, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    (torch.float8_e5m2fnuz, np.dtype(ml_dtypes.float8_e5m2fnuz)),
    (torch.float8_e8m0fnu, np.dtype(ml_dtypes.float8_e8m0fnu)),
]
_TO_NUMPY = dict(_PAIRS)
_TO_TORCH = {n: t for t, n in _PAIRS}

HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def to_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The XLA (numpy) dtype of a PyTorch dtype. Raises TypeError for one that XLA lacks."""
    try:
        return _TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"{dtype} is not supported on tpu: XLA has no such type") from None


def to_torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The PyTorch dtype of a numpy or ml_dtypes dtype."""
    return _TO_TORCH[np.dtype(dtype)]


def opmath(dtype: np.dtype) -> np.dtype:
    """The type that PyTorch computes in: float32 for the half types, else the type itself."""
    return np.dtype(np.float32) if dtype in HALF else dtype


def category(dtype: torch.dtype) -> int:
    """0 bool, 1 integer, 2 floating, 3 complex: the order in which promotion ranks types."""
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def result_type(
    dimensioned: list[torch.dtype],
    zero_dim: list[torch.dtype],
    numbers: list[torch.dtype],
    default_float: torch.dtype = torch.float32,
) -> torch.dtype:
    """PyTorch's promotion of operands with dimensions, 0-d tensors and Python numbers.

    `numbers` holds torch.bool, int64, float64 or complex128, the types of Python's own numbers.
    """
    complex_default = torch.complex128 if default_float == torch.float64 else torch.complex64

    def join(types: list[torch.dtype]) -> torch.dtype | None:
        out: torch.dtype | None = None
        for t in types:
            out = t if out is None else torch.promote_types(out, t)
        return out

    number = join([{torch.float64: default_float, torch.complex128: complex_default}.get(t, t) for t in numbers])
    out: torch.dtype | None = None
    for t in (join(dimensioned), join(zero_dim), number):
        if t is None:
            continue
        if out is None:
            out = t
        elif category(t) > category(out):
            # A lower-priority operand decides only by its category.
            out = torch.promote_types(out, t) if not (t is number and t.is_complex) else torch.promote_types(out, t)
    return out if out is not None else default_float
