"""Fused LSTM and GRU cells: PyTorch's recurrent layers call these on an out-of-tree device."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.registry import lower


def _up(x):
    return x.astype(dtypes.opmath(x.dtype))


def _biased(gates, bias):
    gates = _up(gates)
    return gates if bias is None else gates + bias.astype(gates.dtype)


def _split(x, parts):
    size = x.shape[1] // parts
    return [lax.slice_in_dim(x, i * size, (i + 1) * size, axis=1) for i in range(parts)]


def _join(*parts):
    return lax.concatenate(parts, 1)


@lower("_thnn_fused_lstm_cell")
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    i, f, g, o = _split(_biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias), 4)
    i, f, g, o = lax.logistic(i), lax.logistic(f), lax.tanh(g), lax.logistic(o)
    cy = f * _up(cx) + i * g
    # PyTorch's meta kernel does not take cells without biases: the results' dtypes are then taken from here.
    return tuple(x.astype(cx.dtype) for x in (o * lax.tanh(cy), cy, _join(i, f, g, o)))


@lower("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    i, f, g, o = _split(_up(workspace), 4)
    cx, cell = _up(cx), lax.tanh(_up(cy))
    grad_h = jnp.zeros_like(cell) if grad_hy is None else _up(grad_hy)
    grad_c = grad_h * o * (1 - cell * cell)
    if grad_cy is not None:
        grad_c = grad_c + _up(grad_cy)
    gates = _join(
        grad_c * g * (1 - i) * i, grad_c * cx * (1 - f) * f, grad_c * i * (1 - g * g), grad_h * cell * (1 - o) * o
    )
    return gates, grad_c * f, lax.reduce_sum(gates, (0,)) if has_bias else None


@lower("_thnn_fused_gru_cell")
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    ir, iz, n = _split(_biased(input_gates, input_bias), 3)
    hr, hz, hn = _split(_biased(hidden_gates, hidden_bias), 3)
    h = _up(hx)
    reset, update = lax.logistic(ir + hr), lax.logistic(iz + hz)
    new = lax.tanh(n + reset * hn)
    # PyTorch has no meta kernel for the GRU cell: the results' dtypes are taken from here.
    hy, workspace = new + update * (h - new), _join(reset, update, new, h, hn)
    return hy.astype(hx.dtype), workspace.astype(hx.dtype)


@lower("_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy, workspace, has_bias):
    reset, update, new, h, hn = _split(_up(workspace), 5)
    grad = _up(grad_hy)
    grad_update = grad * (h - new) * (1 - update) * update
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hn * (1 - reset) * reset
    on_input = _join(grad_reset, grad_update, grad_new)
    on_hidden = _join(grad_reset, grad_update, grad_new * reset)
    biases = [lax.reduce_sum(x, (0,)) if has_bias else None for x in (on_input, on_hidden)]
    results = (on_input, on_hidden, grad * update, *biases)
    return tuple(None if x is None else x.astype(workspace.dtype) for x in results)
