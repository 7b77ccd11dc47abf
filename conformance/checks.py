"""The checks of one operator: the device against the CPU, on the samples of PyTorch's database."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from conformance import compare, samples
from conformance.catalogue import Entry
from conformance.compare import Different
from conformance.samples import Inputs

DEVICE = "tpu"

# What the CPU says when it lacks a kernel for a dtype; the device may have one.
_LACKING = ("not implemented for", "not supported", "unsupported", "Unsupported", "is not implemented", "expected scalar type")


# The deviation of equal elements is a rounding error, and its derivative that error divided by itself.
_SPREADS = {"masked.std", "std", "std_mean"}

# Operators whose first dimension is a part of the matrix: with equal rows it has no inverse.
_SINGULAR = {"linalg.tensorsolve", "linalg.tensorinv"}


class Refused(Exception):
    """The CPU itself doesn't take this sample: there is nothing to compare with."""


def applies(entry: Entry, dtype: str, check: str) -> bool:
    """Whether a check exists for this operator and dtype."""
    info = entry.info
    kind = getattr(torch, dtype)
    if check in ("gradient", "gradgrad"):
        if not info.supports_autograd or not (kind.is_floating_point or kind.is_complex):
            return False
        return kind in info.supported_backward_dtypes("cpu") and (check == "gradient" or bool(info.supports_gradgrad))
    if check == "inplace":
        return info.get_inplace() is not None
    if check == "out":
        return bool(info.supports_out) and entry.database == "op"
    return check != "errors"


@functools.lru_cache(maxsize=2)
def _inputs(entry: Entry, dtype: str, limit: int | None, requires_grad: bool) -> tuple[Inputs, ...]:
    made = list(entry.info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=requires_grad))
    if entry.database == "foreach":
        made += list(entry.info.sample_zero_size_inputs("cpu", getattr(torch, dtype), requires_grad=requires_grad))
    return tuple(Inputs(entry.name, sample) for sample in samples.choose(made, limit))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


# What is computed, on either device: a function of (entry, inputs, device) that gives results to compare.


def forward(entry: Entry, inputs: Inputs, device: str) -> Any:
    """The operator's result."""
    x, args, kwargs = inputs.on(device)
    result = entry.info.op(x, *args, **kwargs)
    return compare.gathered(entry.name, result, (x, args, kwargs))


def _directions(outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """A vector for each output that its gradient is multiplied with: fixed numbers from 0.5 to 1.5."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for o in outputs:
        v = torch.rand(o.shape, generator=generator, dtype=torch.float64) + 0.5
        if o.is_complex():
            v = torch.complex(v, torch.rand(o.shape, generator=generator, dtype=torch.float64) - 0.5)
        made.append(v.to(o.dtype).to(o.device))
    return made


def gradient(entry: Entry, inputs: Inputs, device: str, second: bool = False, inplace: bool = False) -> list[Any]:
    """Gradients of every input that requires one; `second`: the gradients of those gradients."""
    x, args, kwargs = inputs.on(device)
    if device == "cpu" and compare.has_ties(entry.name, (x, args, kwargs)):
        raise Refused
    leaves = [t for t in _tensors((x, args, kwargs)) if t.requires_grad]
    if inplace:
        x = samples.map_tensors(x, torch.clone)
        result = entry.info.get_inplace()(x, *args, **kwargs)
        result = x if result is None else result
    else:
        result = entry.info.gradcheck_wrapper(entry.info.op, x, *args, **kwargs)
    result = compare.invariant(entry.name, inputs.finish)(result)
    outputs = [t for t in _tensors(result) if t.requires_grad]
    if not outputs or not leaves:
        return []
    first = torch.autograd.grad(outputs, leaves, _directions(outputs, 1), allow_unused=True, create_graph=second)
    if not second:
        return list(first)
    again = [g for g in first if g is not None and g.requires_grad]
    return list(torch.autograd.grad(again, leaves, _directions(again, 2), allow_unused=True)) if again else []


def inplace(entry: Entry, inputs: Inputs, device: str) -> Any:
    """The input after the in-place form; which must give back the input itself."""
    x, args, kwargs = inputs.on(device)
    with torch.no_grad():
        before = [t.shape for t in _tensors(x)]
        result = entry.info.get_inplace()(x, *args, **kwargs)
    if device == "cpu" and before != [t.shape for t in _tensors(x)]:
        raise Refused  # addbmm_ resizes what it should not have accepted
    if isinstance(x, torch.Tensor) and isinstance(result, torch.Tensor) and result is not x:
        raise Different("the in-place form gave back another tensor")
    return x


def _out(shape: str, entry: Entry, inputs: Inputs, device: str) -> Any:
    """What an `out=` of another layout ("gaps"), of no elements ("empty") or of integers ("integers") holds afterwards."""
    x, args, kwargs = inputs.on(device)
    with torch.no_grad():
        plain = entry.info.op(x, *args, **kwargs)
        if not _tensors(plain) or not isinstance(plain, torch.Tensor | tuple | list):
            raise Refused
        kinds = {
            "gaps": lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype, device=t.device)[..., 0],
            "empty": lambda t: torch.empty(0, dtype=t.dtype, device=t.device),
            "integers": lambda t: torch.empty(t.shape, dtype=torch.int64, device=t.device),
        }
        out = samples.map_tensors(plain, kinds[shape])
        before = [t.stride() for t in _tensors(out)]
        result = entry.info.op(x, *args, **kwargs, out=out)
    if device == "cpu" and shape == "gaps" and _writes_wrong(entry, inputs, plain, out):
        raise Refused
    for given, back in zip(_tensors(out), _tensors(result)):
        if given is not back and given.data_ptr() != back.data_ptr():
            raise Different("the out= form gave back another tensor")
    if shape == "gaps" and [t.stride() for t in _tensors(out)] != before:
        raise Different("the out= form changed the strides of a tensor of the right size")
    return _tensors(compare.invariant(entry.name, None)(compare.gathered(entry.name, out, (x, args, kwargs))))


def _writes_wrong(entry: Entry, inputs: Inputs, plain: Any, out: Any) -> bool:
    """Whether the CPU's out= form itself gives something else (some of its kernels pass over the strides of `out`)."""
    if compare.is_random(entry.name, inputs.args, inputs.kwargs) or entry.name in compare.UNINITIALISED:
        return False
    return any(not torch.allclose(a, b, equal_nan=True) for a, b in zip(_tensors(plain), _tensors(out)))


# How a sample is judged.


def _reference(compute: Callable, entry: Entry, inputs: Inputs) -> Callable[[], list[Any] | None]:
    def exact() -> list[Any] | None:
        try:
            return pytree.tree_leaves(compute(entry, samples.widen(inputs), "cpu"))
        except Exception:
            return None

    return exact


def _error(compute: Callable, entry: Entry, inputs: Inputs) -> Exception | None:
    try:
        result = compute(entry, inputs, DEVICE)
        for t in _tensors(result):
            t.cpu()
    except Exception as error:
        return error
    return None


def judge(
    compute: Callable[[Entry, Inputs, str], Any], entry: Entry, inputs: Inputs, finish: bool = False, refuses: bool = False
) -> None:
    """Compares one computation on both devices. Raises Different, or whatever the device raised.

    finish: results are compared through their invariant. refuses: where the CPU raises, the device must too.
    """
    try:
        want = compute(entry, inputs, "cpu")
    except (Different, Refused):
        raise Refused from None
    except Exception as error:
        if refuses and not any(word in str(error) for word in _LACKING):
            mine = _error(compute, entry, inputs)
            if not isinstance(mine, type(error)):
                raise Different(f"{mine!r:.200}, expected {error!r:.200}") from None
            return
        raise Refused from None
    got = compute(entry, inputs, DEVICE)
    random = compare.is_random(entry.name, inputs.args, inputs.kwargs)
    if finish and not random:
        rule = compare.invariant(entry.name, inputs.finish)
        plain = compute
        got, want = rule(got), rule(want)
        compute = lambda e, i, d: rule(plain(e, i, d))
    g, w = compare.same_kind(got, want)
    if _tensors((inputs.input, inputs.args, inputs.kwargs)) and (entry.name, 0) not in samples.KEEP_ON_CPU:
        compare.on_device(g, DEVICE if any(t.device.type == "cpu" for t in _tensors(w)) else "meta")
    if entry.name in compare.UNINITIALISED:
        return
    if random:
        compare.in_range(entry.name, g, (inputs.input, inputs.args, inputs.kwargs))
        return
    compare.values(entry.name, entry.info, g, w, _reference(compute, entry, inputs))


def _second(entry: Entry, inputs: Inputs, device: str) -> list[Any]:
    return gradient(entry, inputs, device, second=True)


def _inplace_gradient(entry: Entry, inputs: Inputs, device: str) -> list[Any]:
    return gradient(entry, inputs, device, inplace=True)


def _layouts(entry: Entry, dtype: str, limit: int | None, change: Callable[[Inputs], Inputs | None]) -> list[Callable]:
    differentiable = applies(entry, dtype, "gradient") and not (change is not samples.noncontiguous and entry.name in _SPREADS)
    jobs: list[Callable] = []
    for inputs in _inputs(entry, dtype, limit, differentiable):
        changed = change(inputs)
        if changed is None:
            continue
        jobs.append((lambda i=changed: _judge_layout(_detached, entry, i, finish=True), changed))
        if differentiable:
            jobs.append((lambda i=changed: _judge_layout(gradient, entry, i), changed))
    return jobs


def _judge_layout(compute: Callable, entry: Entry, inputs: Inputs, finish: bool = False) -> None:
    """Judges a layout, unless the CPU itself gives another result for contiguous tensors (it passes over some strides)."""
    try:
        judge(compute, entry, inputs, finish)
    except Different:
        plain = inputs.changed(lambda t: t.detach().clone(memory_format=torch.contiguous_format).requires_grad_(t.requires_grad))
        try:
            compare.values(entry.name, entry.info, *compare.same_kind(compute(entry, inputs, "cpu"), compute(entry, plain, "cpu")))
        except Different:
            raise Refused from None
        raise


def _detached(entry: Entry, inputs: Inputs, device: str) -> Any:
    with torch.no_grad():
        return forward(entry, inputs, device)


def _jobs(entry: Entry, dtype: str, check: str, limit: int | None) -> list[Any]:
    """(function that judges, inputs) for each sample of a check."""
    if check == "forward":
        return [(lambda i=i: judge(forward, entry, i, finish=True), i) for i in _inputs(entry, dtype, limit, False)]
    if check in ("gradient", "gradgrad"):
        compute = gradient if check == "gradient" else _second
        return [(lambda i=i: judge(compute, entry, i), i) for i in _inputs(entry, dtype, limit, True)]
    if check == "inplace":
        jobs = [(lambda i=i: judge(inplace, entry, i, refuses=True), i) for i in _inputs(entry, dtype, limit, False)]
        if entry.info.supports_inplace_autograd and applies(entry, dtype, "gradient"):
            usable = [i for i in _inputs(entry, dtype, limit, True) if not i.broadcasts]
            jobs += [(lambda i=i: judge(_inplace_gradient, entry, i), i) for i in usable]
        return jobs
    if check == "out":
        return [
            (lambda i=i, s=shape: judge(functools.partial(_out, s), entry, i, refuses=True), i)
            for i in _inputs(entry, dtype, limit, False)
            for shape in ("gaps", "empty", "integers")
        ]
    if check == "noncontiguous":
        return _layouts(entry, dtype, limit, samples.noncontiguous)
    if check == "expanded":
        if entry.name in _SINGULAR:
            return []
        batch_only = entry.family in ("linear algebra",)
        return _layouts(entry, dtype, limit, lambda inputs: samples.expanded(inputs, batch_only))
    if check == "errors":
        return _error_jobs(entry)
    raise ValueError(f"unknown check {check!r}")


def _error_jobs(entry: Entry) -> list[Any]:
    jobs = []
    for wrong in entry.info.error_inputs("cpu"):
        inputs = Inputs(entry.name, wrong.sample_input)

        def one(inputs: Inputs = inputs) -> None:
            try:
                forward(entry, inputs, "cpu")
            except Exception as error:
                expected = error
            else:
                raise Refused
            mine = _error(forward, entry, inputs)
            # An assertion without a message of its own is an accident of the CPU's kernel; any refusal is as good.
            accident = "Could this error message be improved?" in str(expected)
            if not isinstance(mine, Exception if accident else type(expected)):
                raise Different(f"{mine!r:.200}, expected {expected!r:.200}")

        jobs.append((one, inputs))
    return jobs


def run(entry: Entry, dtype: str, check: str, limit: int | None) -> dict[str, Any]:
    """Runs one check on at most `limit` samples.

    Gives {"outcome": "pass" | "fail" | "none", "samples": how many were compared, and for a failure "error" and the
    number of samples that "failed"}. "none": the CPU takes no sample, or the operator has none.
    """
    compared, failed, first = 0, 0, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            jobs = _jobs(entry, dtype, check, limit)
        except Exception as error:
            return {"outcome": "fail", "samples": 0, "failed": 0, "error": f"no samples: {type(error).__name__}: {error}"[:300]}
        for one, inputs in jobs:
            try:
                one()
            except Refused:
                continue
            except Exception as error:
                failed += 1
                first = first or f"{type(error).__name__}: {str(error)[:300]} | {inputs.text()}"
            compared += 1
    if not compared:
        return {"outcome": "none", "samples": 0}
    if failed:
        return {"outcome": "fail", "samples": compared, "failed": failed, "error": " ".join(first.split())}
    return {"outcome": "pass", "samples": compared}
