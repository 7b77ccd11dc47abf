"""Connectionist temporal classification: the forward and backward recursions over time."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower


def _logsumexp(*terms):
    top = terms[0]
    for t in terms[1:]:
        top = lax.max(top, t)
    safe = jnp.where(top == -jnp.inf, jnp.zeros((), top.dtype), top)
    total = sum(lax.exp(t - safe) for t in terms)
    return lax.log(total) + safe


def _states(targets, target_lengths, longest, blank):
    """The labels with blanks between them, (N, 2 * longest + 1)."""
    n = target_lengths.shape[0]
    if targets.ndim == 1:
        starts = lax.cumsum(target_lengths) - target_lengths
        places = starts[:, None] + jnp.arange(longest)[None, :]
        size = targets.shape[0]
        labels = jnp.take(targets, jnp.clip(places, 0, size - 1)) if size else jnp.zeros((n, longest), targets.dtype)
    else:
        labels = targets[:, :longest]
    labels = jnp.where(jnp.arange(longest)[None, :] < target_lengths[:, None], labels, blank)
    out = jnp.full((n, 2 * longest + 1), blank, labels.dtype)
    return out.at[:, 1::2].set(labels) if longest else out


def _shift(x, by, fill):
    """x moved along the last dimension by `by` places, filled."""
    low, high = (by, 0) if by > 0 else (0, -by)
    padded = jnp.pad(x, ((0, 0), (low, high)), constant_values=fill)
    return padded[:, : x.shape[1]] if by > 0 else padded[:, -by:]


def _lengths(log_probs, targets, input_lengths, target_lengths, longest, blank):
    n = log_probs.shape[1]
    input_lengths = jnp.asarray(input_lengths, jnp.int64).reshape(n)
    target_lengths = jnp.asarray(target_lengths, jnp.int64).reshape(n)
    states = _states(targets, target_lengths, longest, blank)
    emitted = jnp.take_along_axis(log_probs, jnp.broadcast_to(states, (log_probs.shape[0], *states.shape)), axis=2)
    # A label may be reached from two states back unless it is a blank or repeats the label before.
    skip = (states != blank) & (states != _shift(states, 2, blank))
    return input_lengths, target_lengths, states, emitted, skip


@lower("_ctc_loss")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    width = context().outs[1].shape[2]
    longest = (width - 1) // 2
    inputs, lengths, _, emitted, skip = _lengths(log_probs, targets, input_lengths, target_lengths, longest, blank)
    n, dtype = log_probs.shape[1], log_probs.dtype
    none = jnp.asarray(-jnp.inf, dtype)
    place = jnp.arange(width)[None, :]
    first = jnp.where((place == 0) | ((place == 1) & (lengths[:, None] > 0)), emitted[0], none)

    def step(alpha, emit):
        jump = jnp.where(skip, _shift(alpha, 2, -jnp.inf), none)
        alpha = _logsumexp(alpha, _shift(alpha, 1, -jnp.inf), jump) + emit
        return alpha, alpha

    _, rest = lax.scan(step, first, emitted[1:])
    alphas = jnp.concatenate([first[None], rest])
    last = jnp.clip(inputs - 1, 0, log_probs.shape[0] - 1)
    final = alphas[last, jnp.arange(n)]
    end = jnp.take_along_axis(final, (2 * lengths)[:, None], axis=1)[:, 0]
    before = jnp.take_along_axis(final, jnp.clip(2 * lengths - 1, 0)[:, None], axis=1)[:, 0]
    loss = -_logsumexp(end, jnp.where(lengths > 0, before, none))
    empty = jnp.where(lengths == 0, jnp.zeros((), dtype), jnp.asarray(jnp.inf, dtype))
    return jnp.where(inputs == 0, empty, loss), jnp.moveaxis(alphas, 0, 1)


@lower("_ctc_loss_backward")
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    width = log_alpha.shape[2]
    longest = (width - 1) // 2
    inputs, lengths, states, emitted, skip = _lengths(
        log_probs, targets, input_lengths, target_lengths, longest, blank
    )
    steps, n, classes = log_probs.shape
    dtype = log_probs.dtype
    none = jnp.asarray(-jnp.inf, dtype)
    place = jnp.arange(width)[None, :]
    ends = (place == 2 * lengths[:, None]) | ((place == 2 * lengths[:, None] - 1) & (lengths[:, None] > 0))
    onward = _shift(skip, -2, False)

    def step(beta, item):
        t, emit = item
        jump = jnp.where(onward, _shift(beta, -2, -jnp.inf), none)
        moved = _logsumexp(beta, _shift(beta, -1, -jnp.inf), jump) + emit
        start = jnp.where(ends, emit, none)
        beta = jnp.where((t == inputs - 1)[:, None], start, jnp.where((t < inputs - 1)[:, None], moved, none))
        return beta, beta

    start = jnp.full((n, width), -jnp.inf, dtype)
    _, betas = lax.scan(step, start, (jnp.arange(steps), emitted), reverse=True)
    both = jnp.moveaxis(log_alpha, 1, 0) + betas
    inside = (jnp.arange(steps)[:, None] < inputs[None, :])[:, :, None]
    both = jnp.where(inside & (place <= 2 * lengths[:, None])[None], both, none)
    # Probability mass of each class at each time: a scatter-add of exp(alpha + beta) relative to the likelihood.
    mass = lax.exp(both + neg_log_likelihood[None, :, None] - emitted)
    mass = jnp.where(both == -jnp.inf, jnp.zeros((), dtype), mass)
    onehot = (states[:, :, None] == jnp.arange(classes)[None, None, :]).astype(dtype)
    per_class = jnp.einsum("tns,nsc->tnc", mass, onehot, precision=lax.Precision.HIGHEST)
    out = (lax.exp(log_probs) - per_class) * grad[None, :, None]
    out = jnp.where(inside, out, jnp.zeros((), dtype))
    if zero_infinity:
        out = jnp.where((neg_log_likelihood == jnp.inf)[None, :, None], jnp.zeros((), dtype), out)
    return out
