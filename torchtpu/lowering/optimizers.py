"""Fused optimizer steps. They give back every list that their schema marks as written."""

from __future__ import annotations

from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.numeric import select
from torchtpu.lowering.registry import lower


class _Step:
    """What the fused optimizers share: gradients, loss scaling, and scalars cast once for each dtype."""

    def __init__(self, maximize, grad_scale, found_inf):
        self.maximize = maximize
        self.grad_scale = grad_scale
        self.skip = None if found_inf is None else found_inf.reshape(()) == 1
        self.cache = {}

    def scalar(self, name, dtype, make):
        """`make()` in the type that a parameter is computed in."""
        key = (name, dtype)
        if key not in self.cache:
            self.cache[key] = make().reshape(()).astype(dtype)
        return self.cache[key]

    def gradient(self, grad, dtype):
        """The gradient to use, and the one to store (unscaled where there is a scale)."""
        value = grad.astype(dtype)
        if self.grad_scale is not None:
            value = value / self.scalar("grad_scale", dtype, lambda: self.grad_scale)
            stored = value.astype(grad.dtype)
        else:
            stored = grad
        return (-value if self.maximize else value), stored

    def keep(self, new, old):
        """The new value in the old one's dtype, or the old one where an overflow was found."""
        new = new.astype(old.dtype)
        return new if self.skip is None or new is old else select(self.skip, old, new)


@lower("_fused_sgd")
def fused_sgd(
    self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
    grad_scale=None, found_inf=None,
):
    step = _Step(maximize, grad_scale, found_inf)
    params, stored_grads, buffers = [], [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        dtype = dtypes.opmath(param.dtype)
        g, stored = step.gradient(grad, dtype)
        p = param.astype(dtype)
        g = g + p * step.scalar("weight_decay", dtype, lambda: weight_decay)
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            factor = step.scalar("momentum", dtype, lambda: momentum)
            if is_first_step:
                buffer = g
            else:
                buffer = old.astype(dtype) * factor + g * step.scalar("undamped", dtype, lambda: 1 - dampening)
            buffers.append(step.keep(buffer, old))
            g = g + buffer * factor if nesterov else buffer
        params.append(step.keep(p - g * step.scalar("lr", dtype, lambda: lr), param))
        stored_grads.append(step.keep(stored, grad))
    return params, stored_grads, buffers


def _adam(
    decoupled, self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
    amsgrad, maximize, grad_scale, found_inf,
):
    step = _Step(maximize, grad_scale, found_inf)
    # 1 - beta in double, before it is rounded: with beta = 0.999 a single-precision difference keeps four digits.
    rest1, rest2 = 1 - beta1, 1 - beta2
    out = [], [], [], [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        dtype = dtypes.opmath(param.dtype)

        def scalar(name, make, dtype=dtype):
            return step.scalar(name, dtype, make)

        r1, r2 = scalar("rest1", lambda: rest1), scalar("rest2", lambda: rest2)
        rate, decay = scalar("lr", lambda: lr), scalar("weight_decay", lambda: weight_decay)
        g, stored = step.gradient(grad, dtype)
        p = param.astype(dtype)
        if decoupled:
            p = p * scalar("shrink", lambda rate=rate, decay=decay: 1 - rate * decay)
        else:
            g = g + p * decay
        count = state_steps[i].reshape(()).astype(dtype)
        # 1 - beta^step without cancellation.
        correction1 = -lax.expm1(count * scalar("log1", lambda r1=r1: lax.log1p(-r1)))
        correction2 = -lax.expm1(count * scalar("log2", lambda r2=r2: lax.log1p(-r2)))
        old_avg = exp_avgs[i].astype(dtype)
        average = old_avg + (g - old_avg) * r1
        square = exp_avg_sqs[i].astype(dtype) * scalar("beta2", lambda: beta2) + g * g * r2
        top = square
        if amsgrad:
            top = lax.max(max_exp_avg_sqs[i].astype(dtype), square)
            out[4].append(step.keep(top, max_exp_avg_sqs[i]))
        denominator = lax.sqrt(top) * lax.rsqrt(correction2) + scalar("eps", lambda: eps)
        p = p - (rate / correction1) * (average / denominator)
        out[0].append(step.keep(p, param))
        out[1].append(step.keep(stored, grad))
        out[2].append(step.keep(average, exp_avgs[i]))
        out[3].append(step.keep(square, exp_avg_sqs[i]))
    if not amsgrad:
        out[4].extend(max_exp_avg_sqs)
    return out


@lower("_fused_adam")
def fused_adam(
    self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
    maximize, grad_scale=None, found_inf=None,
):
    return _adam(
        False, self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
        amsgrad, maximize, grad_scale, found_inf,
    )


@lower("_fused_adamw")
def fused_adamw(
    self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
    maximize, grad_scale=None, found_inf=None,
):
    return _adam(
        True, self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
        amsgrad, maximize, grad_scale, found_inf,
    )


def _adagrad(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf):
    step = _Step(maximize, grad_scale, found_inf)
    params, stored_grads, sums = [], [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        dtype = dtypes.opmath(param.dtype)
        g, stored = step.gradient(grad, dtype)
        p = param.astype(dtype)
        g = g + p * step.scalar("weight_decay", dtype, lambda: weight_decay)
        count = state_steps[i].reshape(()).astype(dtype)
        rate = step.scalar("lr", dtype, lambda: lr) / (1 + (count - 1) * step.scalar("decay", dtype, lambda: lr_decay))
        total = state_sums[i].astype(dtype) + g * g
        p = p - rate * g / (lax.sqrt(total) + step.scalar("eps", dtype, lambda: eps))
        params.append(step.keep(p, param))
        stored_grads.append(step.keep(stored, grad))
        sums.append(step.keep(total, state_sums[i]))
    return params, stored_grads, sums


@lower("_fused_adagrad")
def fused_adagrad(
    self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None, found_inf=None
):
    """This overload's schema marks the steps as written, though nothing changes them."""
    written = _adagrad(
        self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf
    )
    return *written, list(state_steps)


@lower("_fused_adagrad.tensor_lr")
def fused_adagrad_tensor_lr(
    self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None, found_inf=None
):
    return _adagrad(
        self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf
    )
