"""Operators of torchtpu's own, which ATen does not have, and assertions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowering.call import context
from torchtpu.lowering.registry import lower


@lower("torchtpu::resized")
def resized(self, numel):
    """A flat tensor cut or extended with zeros to `numel` elements."""
    if self.shape[0] >= numel:
        return lax.slice(self, (0,), (numel,))
    return lax.pad(self, jnp.zeros((), self.dtype), [(0, numel - self.shape[0], 0)])


@lower("_assert_async")
def assert_async(self, assert_msg="Expected Tensor with single nonzero value, but got zero"):
    context().check(jnp.reshape(self != 0, ()), RuntimeError, assert_msg.replace("{", "{{").replace("}", "}}"))
    return ()
