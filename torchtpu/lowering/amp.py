"""Gradient scaling for mixed precision."""

from __future__ import annotations

import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.numeric import select, up
from torchtpu.lowering.registry import lower


@lower("_amp_foreach_non_finite_check_and_unscale")
def non_finite_check_and_unscale(self, found_inf, inv_scale):
    """Unscales every gradient; `found_inf` becomes 1 when any of them holds an infinity or a NaN."""
    scaled, bad = [], found_inf != 0
    for grad in self:
        x = up(grad)
        scaled.append((x * inv_scale.reshape(()).astype(x.dtype)).astype(grad.dtype))
        bad = bad | ~lax.reduce_and(lax.is_finite(grad), tuple(range(grad.ndim)))
    return scaled, select(bad, 1, found_inf)


@lower("_amp_update_scale")
def update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    """Backs off after an overflow; grows after `growth_interval` steps without one, while the scale stays finite."""
    dtype = dtypes.opmath(self.dtype)
    scale = self.astype(dtype)
    shape = self.shape
    overflow = (found_inf != 0).reshape(shape)
    tracker = growth_tracker.reshape(shape)
    due = tracker + 1 == growth_interval
    grown = scale * scale_growth_factor.astype(dtype)
    grown = select(lax.is_finite(grown), grown, scale)
    new_scale = select(overflow, scale * scale_backoff_factor.astype(dtype), select(due, grown, scale))
    new_tracker = select(overflow | due, 0, tracker + np.int32(1))
    return new_scale, new_tracker.reshape(growth_tracker.shape)
