"""What there is to run: every operator, module and optimizer of PyTorch's databases, with a name and a family."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

OPERATOR_CHECKS = ("forward", "gradient", "gradgrad", "inplace", "out", "noncontiguous", "expanded", "errors")
MODULE_CHECKS = ("forward", "gradient", "errors")
OPTIMIZER_CHECKS = ("forward", "errors")
CHECKS = OPERATOR_CHECKS

# In the order in which the report shows them.
DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One operator, module or optimizer. `database` is "op", "foreach", "module" or "optim"."""

    database: str
    name: str
    family: str
    info: Any

    @property
    def key(self) -> str:
        """A name that no other entry has."""
        return self.name if self.database == "op" else f"{self.database}:{self.name}"

    def dtypes(self) -> list[str]:
        """Names of the dtypes that the CPU supports, in the report's order."""
        if self.database == "optim":
            kinds = {torch.float32, torch.float64, torch.bfloat16}
        else:
            kinds = set(self.info.supported_dtypes("cpu"))
        names = {str(kind).removeprefix("torch.") for kind in kinds}
        return [name for name in DTYPES if name in names] + sorted(names - set(DTYPES))

    def checks(self) -> tuple[str, ...]:
        """The checks that exist for this kind of entry."""
        if self.database == "module":
            return MODULE_CHECKS
        return OPTIMIZER_CHECKS if self.database == "optim" else OPERATOR_CHECKS


_PREFIXES = (
    ("foreach", ("_foreach_",)),
    ("linear algebra", ("linalg.", "svd", "pca_lowrank", "cholesky", "lu", "ormqr", "geqrf", "qr", "triangular_solve",
                        "matrix_exp", "logdet", "pinverse", "inverse", "trapz")),
    ("matrix products", ("mm", "bmm", "matmul", "__rmatmul__", "addmm", "addmv", "addbmm", "baddbmm", "addr", "mv", "dot",
                         "vdot", "inner", "outer", "ger", "kron", "einsum", "tensordot", "chain_matmul", "_int_mm",
                         "nn.functional.linear", "nn.functional.bilinear", "nn.functional.scaled_", "_scaled_mm",
                         "torch._scaled_mm", "cross", "cdist", "dist")),
    ("FFT", ("fft.", "stft", "istft", "signal.")),
    ("sparse", ("sparse.", "to_sparse", "_segment", "torch.ops.aten._sparse")),
    ("special functions", ("special.", "polygamma", "mvlgamma", "igamma", "igammac", "lgamma", "digamma", "erf", "i0")),
    ("masked", ("masked.",)),
    ("convolution", ("nn.functional.conv",)),
    ("pooling", ("nn.functional.avg_pool", "nn.functional.max_pool", "nn.functional.max_unpool",
                 "nn.functional.adaptive_", "nn.functional.fractional_", "nn.functional.lp_pool", "max_pool2d")),
    ("upsampling", ("nn.functional.interpolate", "nn.functional.upsample", "nn.functional.grid_sample",
                    "nn.functional.affine_grid", "grid_sampler", "_upsample", "nn.functional.pixel_",
                    "nn.functional.unfold", "nn.functional.fold", "nn.functional.pad", "nn.functional.channel")),
    ("normalisation", ("nn.functional.batch_norm", "nn.functional.layer_norm", "nn.functional.group_norm",
                       "nn.functional.instance_norm", "nn.functional.local_response_norm", "nn.functional.rms_norm",
                       "nn.functional.normalize", "native_batch_norm", "_native_batch_norm", "_batch_norm",
                       "native_layer_norm", "native_group_norm", "renorm")),
    ("attention and embedding", ("nn.functional.multi_head", "nn.functional.embedding", "torch.ops.aten._flash",
                                 "torch.ops.aten._efficient", "torch.ops.aten._safe_softmax", "nn.functional.one_hot")),
    ("random", ("nn.functional.dropout", "nn.functional.alpha_dropout", "nn.functional.feature_alpha", "bernoulli",
                "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "rand", "multinomial",
                "nn.functional.rrelu")),
    ("loss", ("nn.functional.cosine_similarity", "nn.functional.pairwise", "nn.functional.pdist",
              "nn.functional.kl_div", "nn.functional.cross_entropy", "nn.functional.binary_cross")),
    ("indexing and scatter", ("index_", "scatter", "gather", "take", "put", "__getitem__", "masked_", "nonzero", "where",
                              "argwhere", "_unsafe_masked_index", "diagonal_scatter", "select_scatter", "slice_scatter",
                              "as_strided_scatter", "bincount", "histc", "histogram", "histogramdd", "searchsorted",
                              "bucketize", "unravel_index", "fill", "isin")),
    ("sorting and scans", ("sort", "msort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "quantile",
                           "nanquantile", "unique", "unique_consecutive", "cum", "logcumsumexp", "_logcumsumexp",
                           "diff", "cumulative_trapezoid")),
    ("creation", ("arange", "linspace", "logspace", "ones", "zeros", "full", "empty", "new_", "eye", "tril_indices",
                  "triu_indices", "scalar_tensor", "meshgrid", "cartesian_prod", "combinations", "complex", "polar",
                  "zero_", "fill")),
)  # fmt: skip

_CLASSES = {
    "UnaryUfuncInfo": "elementwise, one operand",
    "BinaryUfuncInfo": "elementwise, two operands",
    "ReductionOpInfo": "reductions",
    "SpectralFuncInfo": "FFT",
}


def _whole(name: str, prefix: str) -> bool:
    if not name.startswith(prefix):
        return False
    rest = name[len(prefix):]
    return not rest or prefix[-1] in "._" or not (rest[0].isalnum()) or prefix in ("cum", "rand", "svd", "empty", "lu")


def _family(info: Any) -> str:
    kind = type(info).__name__
    for family, prefixes in _PREFIXES:
        if any(_whole(info.name, prefix) or (prefix.startswith("nn.") and info.name.startswith(prefix)) for prefix in prefixes):
            return family
    if kind in _CLASSES:
        return _CLASSES[kind]
    if info.name.startswith("nn.functional."):
        return "loss" if "loss" in info.name or "nll" in info.name else "activations"
    reductions = ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "std", "var",
                  "norm", "logsumexp", "aminmax", "count_nonzero", "trace", "cov", "corrcoef", "trapezoid")  # fmt: skip
    if any(_whole(info.name, word) for word in reductions) or info.name.startswith(("std_", "var_")):
        return "reductions"
    if "softmax" in info.name:
        return "activations"
    return "shape, views and the rest"


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every entry of all databases."""
    from torch.testing._internal import common_methods_invocations as methods
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    found = [Entry("op", info.full_name, _family(info), info) for info in methods.op_db]
    for part in ("unary", "binary", "pointwise", "reduce", "other"):
        found += [Entry("foreach", i.full_name, "foreach", i) for i in getattr(methods, f"foreach_{part}_op_db")]
    found += [Entry("module", info.name, "modules", info) for info in module_db]
    found += [Entry("optim", info.name, "optimizers", info) for info in optim_db]
    return tuple(found)


def find(key: str) -> Entry:
    """The entry of that key. Raises KeyError."""
    return _by_key()[key]


@functools.cache
def _by_key() -> dict[str, Entry]:
    return {entry.key: entry for entry in entries()}


def select(
    names: list[str] | None = None,
    families: list[str] | None = None,
    databases: list[str] | None = None,
    shard: tuple[int, int] = (1, 1),
    keep: Callable[[Entry], bool] = lambda entry: True,
) -> list[Entry]:
    """The entries of the named operators, families and databases; of these every shard[1]-th, from shard[0] on."""
    known = entries()
    unknown = set(names or ()) - {e.name for e in known} - {e.key for e in known}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [
        e
        for e in known
        if (not names or e.name in names or e.key in names)
        and (not families or e.family in families)
        and (not databases or e.database in databases)
        and keep(e)
    ]
    return chosen[shard[0] - 1 :: shard[1]]
