"""When two results are the same: tolerances, operators whose result is not unique, and random operators.

A floating result passes when it is close to the CPU's (`torch.testing`'s defaults for the dtype, or what the operator
declares in PyTorch's database for any device, whichever is wider). Where it isn't, a second look decides: the CPU
computes the same in 64-bit floats, and the device's result passes when its largest distance from that is not more than
twice the CPU's own, plus the default tolerance. So a sum that adds in another order passes, and a half-precision
result that is more exact than the CPU's passes; a wrong one doesn't. TOLERANCES lists the operators that need more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# rtol, atol: torch.testing's defaults, with atol of the half types widened to one unit in the last place near 0.01.
_DEFAULT = {
    torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7), torch.complex64: (1.3e-6, 1e-5), torch.complex128: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5), torch.float8_e4m3fn: (0.125, 2**-9), torch.float8_e5m2: (0.25, 2**-16),
}  # fmt: skip

# (operator, dtype) → (rtol, atol), each with its reason.
TOLERANCES: dict[tuple[str, torch.dtype], tuple[float, float]] = {
    # The gradient exp(erfinv(x)²) magnifies the last digit of erfinv.
    ("erfinv", torch.float32): (2e-5, 1e-5),
    # Second derivatives divide by the squared differences of the singular values.
    ("linalg.cond", torch.complex64): (2e-5, 1e-5),
    # The second derivative sums terms a thousand times its size.
    ("linalg.householder_product", torch.float32): (5e-5, 1e-5),
}

# Results that are memory nobody has written.
UNINITIALISED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip

RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "normal.in_place", "normal.number_mean",
    "uniform", "rand_like", "randn", "randn_like", "randint", "randint_like", "multinomial",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
}  # fmt: skip

# Lowest and highest value that a random operator's result can have.
_RANGES: dict[str, Callable[[Any, tuple, dict], tuple[float, float]]] = {
    "bernoulli": lambda x, a, k: (0, 1),
    "exponential": lambda x, a, k: (0, math.inf),
    "geometric": lambda x, a, k: (1, math.inf),
    "log_normal": lambda x, a, k: (0, math.inf),
    "uniform": lambda x, a, k: (k.get("from", a[0] if a else 0), k.get("to", a[1] if len(a) > 1 else 1)),
    "randint": lambda x, a, k: (k.get("low", 0), math.inf) if "low" in k else (-math.inf, math.inf),
    "multinomial": lambda x, a, k: (0, x.size(-1) - 1),
}


class Different(AssertionError):
    """The device's result is not the CPU's."""


def is_random(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether this call draws random numbers."""
    if name in RANDOM:
        return not (name == "nn.functional.rrelu" and kwargs.get("training") is False)
    if name in ("svd_lowrank", "pca_lowrank"):
        return kwargs.get("M") is not None  # then the rank is not the one asked for, and the result depends on the draw
    if "multi_head" in name and len(args) > 9 and args[9]:
        return kwargs.get("training", True)
    if "attention" in name or "multi_head" in name or "_flash" in name or "_efficient" in name:
        training = kwargs.get("training", True) if "multi_head" in name else True
        return bool(training) and any(kwargs.get(k) not in (None, 0, 0.0) for k in ("dropout_p", "dropout"))
    return False


# Operators that say where an element was: among equal ones any of them. name → position of `dim` behind the input.
TIES = {"sort": 0, "argsort": 0, "msort": None, "mode": 0, "median": 0, "nanmedian": 0, "kthvalue": 1, "topk": 1}


def _dim(name: str, x: torch.Tensor, args: tuple, kwargs: dict[str, Any]) -> int:
    if name == "msort":
        return 0
    at = TIES[name]
    given = kwargs.get("dim", args[at] if at is not None and len(args) > at and not isinstance(args[at], bool) else -1)
    return given % max(x.dim(), 1)


def gathered(name: str, result: Any, call: tuple) -> Any:
    """The result with indices replaced by what they point at: which of equal elements is chosen is free."""
    x, args, kwargs = call
    if name not in TIES or name == "msort" or not isinstance(x, torch.Tensor) or x.dim() == 0:
        return result
    if name == "argsort":
        return x.gather(_dim(name, x, args, kwargs), result)
    if isinstance(result, torch.Tensor) or result[1].numel() == 0:
        return result
    values, index = result
    if index.dim() < x.dim():
        dim = _dim(name, x, args, kwargs)
        return values, x.gather(dim, index.unsqueeze(dim)).squeeze(dim)
    return values, x.gather(_dim(name, x, args, kwargs), index)


def has_ties(name: str, call: tuple) -> bool:
    """Whether an operator of TIES meets equal elements: then it is free which of them receives the gradient."""
    x, args, kwargs = call
    if name not in TIES or not isinstance(x, torch.Tensor) or x.dim() == 0:
        return False
    ordered = x.detach().sort(_dim(name, x, args, kwargs)).values
    dim = _dim(name, x, args, kwargs)
    return bool((ordered.diff(dim=dim) == 0).any())


def _usv(result: Any) -> Any:
    u, s, v = result
    return (u * s.unsqueeze(-2).to(u.dtype)) @ v.mH, s


def _eigh(result: Any) -> Any:
    return (result[0], result[1].abs()) if isinstance(result, tuple) else result


# Operators whose result has a free choice (a sign, a phase, a basis), and what doesn't depend on the choice.
INVARIANTS: dict[str, Callable[[Any], Any]] = {
    "svd_lowrank": _usv,
    "pca_lowrank": _usv,
    "linalg.eigh": _eigh,
    # In evaluation the CPU saves no statistics, where other devices do; and of half types it saves half statistics, where
    # others, and PyTorch's own meta kernels, have float32.
    "native_batch_norm": lambda result: result[0],
    "_native_batch_norm_legit": lambda result: result[0],
    "_batch_norm_with_update": lambda result: result[0],
    "native_layer_norm": lambda result: [t.to(result[0].dtype) for t in result],
}


def invariant(name: str, finish: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """What to compare of an operator's result: our own choice, or the one that PyTorch's gradient checks use."""
    return INVARIANTS.get(name) or finish or (lambda result: result)


def tolerance(name: str, dtype: torch.dtype, info: Any) -> tuple[float, float]:
    """(rtol, atol) for an operator's results of a dtype: the default, or the widest that PyTorch's database declares."""
    rtol, atol = _DEFAULT[dtype]
    for decorate in getattr(info, "decorators", None) or ():
        for inner in getattr(decorate, "decorators", ()):
            declared = getattr(inner, "d", None)
            value = declared.get(dtype) if isinstance(declared, dict) else None
            if value is None:
                continue
            if isinstance(value, tuple):
                rtol, atol = max(rtol, value.rtol), max(atol, value.atol)
            elif isinstance(value, float):
                atol = max(atol, value)
    more = TOLERANCES.get((name, dtype), (0.0, 0.0))
    return max(rtol, more[0]), max(atol, more[1])


def same_kind(got: Any, want: Any) -> tuple[list[Any], list[Any]]:
    """The leaves of both results. Raises Different unless they agree in number, type, dtype, shape and device."""
    g, w = pytree.tree_leaves(got), pytree.tree_leaves(want)
    if len(g) != len(w):
        raise Different(f"{len(g)} results, expected {len(w)}")
    for a, b in zip(g, w):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            raise Different(f"{type(a).__name__}, expected {type(b).__name__}")
        if isinstance(b, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
                raise Different(f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}")
            if a.requires_grad != b.requires_grad:
                raise Different(f"requires_grad is {a.requires_grad}, expected {b.requires_grad}")
    return g, w


def on_device(results: list[Any], device: str) -> None:
    """Raises Different when a result lies elsewhere."""
    for r in results:
        if isinstance(r, torch.Tensor) and r.device.type != device:
            raise Different(f"the result is on {r.device}")


def in_range(name: str, results: list[Any], args: tuple) -> None:
    """Raises Different when a random operator's result has a value that it can't have."""
    rule = _RANGES.get(name)
    if rule is None:
        return
    low, high = rule(*args)
    for r in results:
        host = r.detach().cpu().double()
        if host.numel() and not bool(((host >= low) & (host <= high)).all()):
            raise Different(f"values from {host.min()} to {host.max()}, expected {low} to {high}")


def values(
    name: str, info: Any, got: list[Any], want: list[Any], exact: Callable[[], list[Any] | None] | None = None
) -> None:
    """Raises Different when the leaves of two results differ. `exact` computes the same in 64-bit floats."""
    reference: list[Any] | None = None
    for i, (a, b) in enumerate(zip(got, want)):
        if not isinstance(b, torch.Tensor):
            if not _plain(a, b):
                raise Different(f"{a!r}, expected {b!r}")
            continue
        a, b = _host(a), _host(b)
        if b.dtype not in _DEFAULT:
            if not torch.equal(a, b):
                raise Different(_summary(a, b))
            continue
        rtol, atol = tolerance(name, b.dtype, info)
        if b.itemsize == 1 or b.dtype == torch.complex32:
            wide = torch.complex64 if b.is_complex() else torch.float32
            a, b = a.to(wide), b.to(wide)
        if torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True).all():
            continue
        if reference is None and exact is not None:
            reference = exact()
        if reference is None or len(reference) != len(want) or not _as_exact(a, b, _host(reference[i]), rtol, atol):
            raise Different(_summary(a, b))


def _host(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    if t.layout != torch.strided:
        t = t.to_dense()
    return t.cpu().resolve_conj().resolve_neg()


def _plain(a: Any, b: Any) -> bool:
    if isinstance(b, float | complex) and isinstance(a, float | complex):
        return torch.isclose(torch.tensor(a), torch.tensor(b), rtol=1e-5, atol=1e-5, equal_nan=True).item()
    if isinstance(b, torch.device):
        return True
    return type(a) is type(b) and a == b


def _as_exact(a: torch.Tensor, b: torch.Tensor, reference: torch.Tensor, rtol: float, atol: float) -> bool:
    """Whether `a` is about as near to the reference as the CPU's `b`, and not finite where neither is."""
    if a.shape != reference.shape:
        return False
    wide = torch.complex128 if reference.is_complex() else torch.float64
    narrow = reference.to(a.dtype)  # infinite where the dtype ends
    reference = torch.where(torch.isinf(narrow), narrow.to(wide), reference.to(wide))
    a, b = a.to(wide), b.to(wide)
    # At a pole, 64-bit sines of multiples of pi leave something huge; infinity is what was meant.
    pole = torch.isinf(a) & (reference.abs() > 1e24)
    close = pole | torch.isclose(a, reference, rtol=rtol, atol=atol, equal_nan=True) | torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    finite = torch.isfinite(a) & torch.isfinite(b) & torch.isfinite(reference)
    # Where only the CPU overflowed there is nothing but the reference to go by.
    largest = torch.where(torch.isfinite(reference), reference.abs(), 0.0).max()
    close |= torch.isfinite(a) & ~torch.isfinite(b) & ((a - reference).abs() <= 8 * rtol * largest)
    if not bool((close | finite).all()):
        return False
    if not bool(finite.any()):
        return True
    mine = torch.where(finite, (a - reference).abs() - rtol * reference.abs(), 0.0).max()
    theirs = torch.where(finite, (b - reference).abs(), 0.0).max()
    return bool(mine <= 2 * theirs + atol)


def _summary(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.dtype == torch.bool or b.numel() == 0:
        wrong = int((a != b).sum())
        return f"{wrong} of {b.numel()} elements differ"
    wide = torch.complex128 if b.is_complex() else torch.float64 if b.is_floating_point() else torch.int64
    x, y = a.to(wide), b.to(wide)
    off = ~torch.isclose(x, y, rtol=0, atol=0, equal_nan=True)
    gap = torch.where(off, (x - y).abs(), torch.zeros((), dtype=torch.float64 if wide != torch.int64 else wide))
    where = int(torch.nan_to_num(gap.double(), nan=math.inf).argmax())
    return f"{int(off.sum())} of {b.numel()} elements differ, most {x.reshape(-1)[where].item()} against {y.reshape(-1)[where].item()}"
