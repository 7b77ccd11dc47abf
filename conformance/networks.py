"""The checks of a module and of an optimizer: the device against the CPU."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from conformance import compare, samples
from conformance.catalogue import Entry
from conformance.checks import DEVICE, _directions, _tensors
from conformance.compare import Different

_STEPS = 5
_ITERATIONS = 2

# Modules that draw random numbers in training; in evaluation they are compared by value.
_RANDOM = {
    "nn.Dropout", "nn.Dropout1d", "nn.Dropout2d", "nn.Dropout3d", "nn.AlphaDropout", "nn.FeatureAlphaDropout", "nn.RReLU",
    "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d", "nn.TransformerEncoder", "nn.TransformerEncoderLayer",
    "nn.TransformerDecoderLayer", "nn.Transformer", "nn.MultiheadAttention",
}  # fmt: skip


def applies(entry: Entry, dtype: str, check: str) -> bool:
    """Whether a check exists for this module or optimizer."""
    if entry.database == "optim":
        return check in ("forward",)
    return check in ("forward", "gradient")


def has_errors(entry: Entry) -> bool:
    """Whether the database knows wrong uses of it."""
    func = "module_error_inputs_func" if entry.database == "module" else "optim_error_inputs_func"
    return getattr(entry.info, func) is not None


def _module(entry: Entry, made: Any, training: bool, dtype: torch.dtype, device: str, state: Any) -> Any:
    """The module on a device with `state`, in training or evaluation."""
    args, kwargs = made.constructor_input.args, made.constructor_input.kwargs
    torch.manual_seed(0)
    module = entry.info.module_cls(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    module = module.to(dtype).train(training)
    if entry.info.is_lazy:  # makes its parameters from the first input, which must happen on the same device
        with torch.no_grad():
            module(*made.forward_input.args, **made.forward_input.kwargs)
    return module.to(device)


def _run_module(entry: Entry, made: Any, training: bool, dtype: torch.dtype, device: str, backward: bool) -> Any:
    module = _module(entry, made, training, dtype, device, None)
    args = samples.place(made.forward_input.args, device)
    kwargs = samples.place(made.forward_input.kwargs, device)
    torch.manual_seed(0)
    result = module(*args, **kwargs)
    if not backward:
        return result, [t.detach() for t in module.buffers()]
    outputs = [t for t in _tensors(result) if t.requires_grad]
    leaves = [t for t in (*_tensors((args, kwargs)), *module.parameters()) if t.requires_grad]
    if not outputs or not leaves:
        return []
    return list(torch.autograd.grad(outputs, leaves, _directions(outputs, 1), allow_unused=True))


def _module_jobs(entry: Entry, dtype: str, check: str, limit: int | None) -> list[Any]:
    kind = getattr(torch, dtype)
    jobs = []
    for training in (True, False):
        torch.manual_seed(0)
        inputs = entry.info.module_inputs_func(entry.info, device="cpu", dtype=kind, requires_grad=True, training=training)
        for made in samples.choose([m for m in inputs if m.forward_input is not None], limit):

            def one(made: Any = made, training: bool = training) -> None:
                def compute(device: str, wide: bool = False) -> Any:
                    # The module is made anew each time, so the 64-bit run starts from the same, rounded, parameters.
                    target = torch.float64 if wide else kind
                    sample = _widened(made) if wide else made
                    return _run_module(entry, sample, training, target, device, check == "gradient")

                want, got = compute("cpu"), compute(DEVICE)
                g, w = compare.same_kind(got, want)
                if not (training and entry.name in _RANDOM and _drops(made)):
                    compare.values(entry.name, entry.info, g, w)

            jobs.append((one, f"training={training} {made.desc}"))
    return jobs


def _widened(made: Any) -> Any:
    return made


def _drops(made: Any) -> bool:
    """Whether a module made from these inputs drops elements (the transformers of the database mostly don't)."""
    return made.constructor_input.kwargs.get("dropout", 0.1) != 0.0


def _error_jobs(entry: Entry) -> list[Any]:
    jobs = []
    if entry.database == "module":
        from torch.testing._internal.common_modules import ModuleErrorEnum

        for training in (True, False):
            for wrong in entry.info.module_error_inputs_func(
                entry.info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
            ):

                def build(device: str, wrong: Any = wrong, training: bool = training) -> None:
                    made = wrong.module_error_input
                    kwargs = samples.place(made.constructor_input.kwargs, device)
                    module = entry.info.module_cls(*made.constructor_input.args, **kwargs)
                    if wrong.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
                        return
                    module = module.to(device).train(training)
                    forward = made.forward_input
                    result = module(*samples.place(forward.args, device), **samples.place(forward.kwargs, device))
                    for t in _tensors(result):
                        t.cpu()

                jobs.append((lambda build=build: _same_error(build), "wrong use"))
        return jobs
    for wrong in entry.info.optim_error_inputs_func("cpu", torch.float32):

        def construct(device: str, wrong: Any = wrong) -> None:
            made = wrong.optimizer_error_input
            params = samples.place(made.params, device)
            if isinstance(params, list) and params and isinstance(params[0], torch.Tensor):
                params = [torch.nn.Parameter(p.detach()) if isinstance(p, torch.Tensor) else p for p in params]
            optimizer = entry.info.optim_cls(params, **made.kwargs)
            optimizer.step()

        jobs.append((lambda construct=construct: _same_error(construct), wrong.optimizer_error_input.desc))
    return jobs


def _same_error(build: Any) -> None:
    try:
        build("cpu")
    except Exception as error:
        expected = error
    else:
        return
    try:
        build(DEVICE)
    except Exception as error:
        if isinstance(error, type(expected)):
            return
        raise Different(f"{error!r:.200}, expected {expected!r:.200}") from None
    raise Different(f"no error, expected {expected!r:.200}")


def _train(entry: Entry, kwargs: dict[str, Any], dtype: torch.dtype, device: str) -> list[Any]:
    """Parameters after a few steps on a small least-squares problem, and the optimizer's state."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    weights = [torch.nn.Parameter(make(5, 4)), torch.nn.Parameter(make(4, 3))]
    if kwargs.get("differentiable"):  # such an optimizer steps on tensors that autograd follows
        weights = [w.clone() for w in weights]  # type: ignore[misc]
    x, y = make(6, 5), make(6, 3)
    kwargs = samples.place(copy.deepcopy(kwargs), device)
    optimizer = entry.info.optim_cls(weights, **kwargs)

    def closure() -> torch.Tensor:
        loss = ((torch.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()
        if not entry.info.only_supports_sparse_grads:
            for w, gradient in zip(weights, torch.autograd.grad(loss, weights)):
                w.grad = gradient
            return loss
        for w in weights:
            rows = torch.tensor([[0, 2]], device=device)
            w.grad = torch.sparse_coo_tensor(rows, torch.ones(2, w.size(1), dtype=dtype, device=device), w.shape)
        return loss

    for _ in range(_STEPS):
        if entry.info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = [optimizer.state[w] for w in weights if w in optimizer.state]
    kept = [v.detach() for s in state for k, v in sorted(s.items()) if isinstance(v, torch.Tensor) and k != "step"]
    return [*(w.detach() for w in weights), *kept]


def _optimizer_jobs(entry: Entry, dtype: str, limit: int | None) -> list[Any]:
    kind, info = getattr(torch, dtype), entry.info
    jobs = []
    for made in samples.choose(info.optim_inputs_func("cpu"), limit):
        for form in ("plain", *info.supported_impls):
            if form == "fused" and "cpu" not in info.supports_fused_on:
                continue
            kwargs = dict(made.kwargs)
            if info.step_requires_closure:
                # LBFGS's 20 iterations a step magnify the last digit: on the CPU its own float32 run ends far from its
                # float64 run, while in float64 both devices agree to 1e-7. Few iterations leave something to compare.
                kwargs["max_iter"] = _ITERATIONS
            flags = {} if form == "plain" else {form: True}
            if form == "plain" and "foreach" in info.supported_impls:
                flags = {"foreach": False}
            kwargs.update(flags)

            def one(kwargs: dict[str, Any] = kwargs) -> None:
                want, got = _train(entry, kwargs, kind, "cpu"), _train(entry, kwargs, kind, DEVICE)
                g, w = compare.same_kind(got, want)
                compare.values(entry.name, info, g, w, lambda: _train(entry, kwargs, torch.float64, "cpu"))

            jobs.append((one, f"{form} {made.desc}"))
    return jobs


def run(entry: Entry, dtype: str, check: str, limit: int | None) -> dict[str, Any]:
    """Runs one check of a module or optimizer; the same result as checks.run."""
    failed, first = 0, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if check == "errors":
                jobs = _error_jobs(entry)
            elif entry.database == "module":
                jobs = _module_jobs(entry, dtype, check, limit)
            else:
                jobs = _optimizer_jobs(entry, dtype, limit)
        except Exception as error:
            return {"outcome": "fail", "samples": 0, "failed": 0, "error": f"no samples: {type(error).__name__}: {error}"[:300]}
        for one, text in jobs:
            try:
                one()
            except Exception as error:
                failed += 1
                first = first or f"{type(error).__name__}: {str(error)[:300]} | {text}"
    if not jobs:
        return {"outcome": "none", "samples": 0}
    if failed:
        return {"outcome": "fail", "samples": len(jobs), "failed": failed, "error": " ".join(first.split())}
    return {"outcome": "pass", "samples": len(jobs)}
