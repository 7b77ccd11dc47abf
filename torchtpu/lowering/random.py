"""Random operators. Streams differ from the CPU's; distributions, ranges and errors are the same.

Every draw starts from `context().key()`: the generator's seed and offset, for a counter-based generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.lowering import dtypes
from torchtpu.lowering.call import cast, context
from torchtpu.lowering.index import take_along
from torchtpu.lowering.registry import lower
from torchtpu.lowering.shape import broadcast_to, iota, zero, zeros

_F64 = np.dtype(np.float64)


def _bits(shape: Sequence[int], width: int = 32) -> jax.Array:
    return jax.random.bits(context().key(), tuple(shape), np.dtype(f"uint{width}"))


def _threefry() -> jax.Array:
    """A key for JAX's rejection samplers, which accept no other kind."""
    return jax.random.wrap_key_data(jax.random.bits(context().key(), (2,), np.dtype(np.uint32)), impl="threefry2x32")


def _unit(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform in [0, 1) with as many random bits as the type's significand holds, so that 1 is never rounded to."""
    if dtype == _F64:
        return lax.mul(lax.shift_right_logical(_bits(shape, 64), np.uint64(11)).astype(_F64), np.float64(2.0**-53))
    digits = min(jnp.finfo(dtype).nmant + 1, 24)
    number = lax.shift_right_logical(_bits(shape), np.uint32(32 - digits)).astype(np.float32)
    return lax.mul(number, np.float32(2.0**-digits))


def _unit_of(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform draws for a result type; both parts of a complex number are drawn."""
    if np.issubdtype(dtype, np.complexfloating):
        part = np.dtype(np.float64 if dtype == np.complex128 else np.float32)
        return lax.complex(_unit(shape, part), _unit(shape, part))
    return _unit(shape, dtype)


def _inner(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform in (0, 1), both ends excluded, in float64 or float32."""
    if dtype == _F64:
        number = lax.shift_right_logical(_bits(shape, 64), np.uint64(12)).astype(_F64)
        return lax.mul(lax.add(number, np.float64(0.5)), np.float64(2.0**-52))
    number = lax.shift_right_logical(_bits(shape), np.uint32(9)).astype(np.float32)
    return lax.mul(lax.add(number, np.float32(0.5)), np.float32(2.0**-23))


def _standard_normal(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Normal draws by the inverse of the distribution, in float64 or float32."""
    u = _inner(shape, dtype)
    u = lax.sub(lax.mul(u, np.asarray(2, u.dtype)), np.asarray(1, u.dtype))
    return lax.mul(lax.erf_inv(u), np.asarray(np.sqrt(2), u.dtype))


def _compute_dtype(dtype: np.dtype | None = None) -> np.dtype:
    """The real type that draws of a type, by default the result's, are made in."""
    dtype = context().out_dtype if dtype is None else dtype
    return _F64 if dtype in (_F64, np.dtype(np.complex128)) else np.dtype(np.float32)


def _operand(value: jax.Array | float, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    return broadcast_to(cast(jnp.asarray(value), dtype), shape)


def _check_positive(value: jax.Array | float, message: str) -> None:
    value = jnp.asarray(value)
    context().check(lax.gt(value, zero(value.dtype)), RuntimeError, message)


# Continuous distributions


def _uniform(low: jax.Array | float, high: jax.Array | float) -> jax.Array:
    shape, u = context().out_shape, _unit_of(context().out_shape, context().out_dtype)
    low, high = (cast(jnp.asarray(v), u.dtype) for v in (low, high))
    span = lax.sub(high, low)
    if np.issubdtype(u.dtype, np.complexfloating):
        low = lax.mul(low, np.asarray(1 + 1j, u.dtype))
    return lax.add(lax.mul(u, broadcast_to(span, shape)), broadcast_to(low, shape))


@lower("uniform")
def uniform(self, from_=0.0, to=1.0):
    low, high = jnp.asarray(from_), jnp.asarray(to)
    context().check(lax.le(low, high), RuntimeError, "uniform_ expects to return a [from, to) range, but found from > to")
    return _uniform(from_, to)


@lower("rand", "rand_like")
def rand(size, *, dtype=None, memory_format=None, names=None):
    return _unit_of(context().out_shape, context().out_dtype)


def _normal(mean: jax.Array | float, std: jax.Array | float) -> jax.Array:
    shape, out = context().out_shape, context().out_dtype
    dtype = _compute_dtype()
    if np.issubdtype(out, np.complexfloating):
        # The variance is shared by the two parts.
        parts = (_standard_normal(shape, dtype), _standard_normal(shape, dtype))
        draws = lax.mul(lax.complex(*parts), np.asarray(np.sqrt(0.5), out))
        return lax.add(lax.mul(draws, _operand(std, shape, out)), _operand(mean, shape, out))
    draws = _standard_normal(shape, dtype)
    return lax.add(lax.mul(draws, _operand(std, shape, dtype)), _operand(mean, shape, dtype))


@lower("normal", "normal_functional")
def normal(self, mean=0.0, std=1.0):
    std = jnp.asarray(std)
    context().check(lax.ge(std, zero(std.dtype)), RuntimeError, "normal expects std >= 0.0")
    return _normal(mean, std)


@lower(
    "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float", "normal.float_float_out"
)
def normal_of(mean, std=1.0, size=None, *, dtype=None):
    std = jnp.asarray(std)
    if not np.issubdtype(std.dtype, np.complexfloating):
        context().check(lax.ge(std, zero(std.dtype)), RuntimeError, "normal expects all elements of std >= 0.0")
    return _normal(mean, std)


@lower("randn", "randn_like")
def randn(size, *, dtype=None, memory_format=None, names=None):
    return _normal(0.0, 1.0)


@lower("log_normal")
def log_normal(self, mean=1.0, std=2.0):
    _check_positive(std, "log_normal_ expects std > 0.0")
    return lax.exp(_normal(mean, std))


@lower("exponential")
def exponential(self, lambd=1.0):
    _check_positive(lambd, "exponential_ expects lambda > 0.0")
    shape, dtype = context().out_shape, _compute_dtype()
    return lax.div(lax.neg(lax.log(_inner(shape, dtype))), _operand(lambd, shape, dtype))


@lower("cauchy")
def cauchy(self, median=0.0, sigma=1.0):
    _check_positive(sigma, "cauchy_ expects sigma > 0.0")
    shape, dtype = context().out_shape, _compute_dtype()
    angle = lax.mul(lax.sub(_inner(shape, dtype), np.asarray(0.5, dtype)), np.asarray(np.pi, dtype))
    return lax.add(lax.mul(lax.tan(angle), _operand(sigma, shape, dtype)), _operand(median, shape, dtype))


# Discrete distributions


@lower("geometric")
def geometric(self, p):
    p = jnp.asarray(p)
    inside = lax.bitwise_and(lax.gt(p, zero(p.dtype)), lax.lt(p, np.asarray(1, p.dtype)))
    context().check(inside, RuntimeError, "geometric_ expects p to be in (0, 1)")
    shape = context().out_shape
    dtype = np.dtype(np.float32) if context().out_dtype in (*dtypes.HALF, np.dtype(np.float32)) else _F64
    trials = lax.div(lax.log(_inner(shape, dtype)), lax.log1p(lax.neg(_operand(p, shape, dtype))))
    return lax.max(lax.ceil(trials), np.asarray(1, dtype))


def _bernoulli(p: jax.Array | float, shape: Sequence[int]) -> jax.Array:
    p = jnp.asarray(p)
    if np.issubdtype(p.dtype, np.floating) or p.dtype in dtypes.HALF:
        ok = lax.bitwise_and(lax.ge(p, zero(p.dtype)), lax.le(p, np.asarray(1, p.dtype)))
        context().check(ok, RuntimeError, "bernoulli expects p to be in [0, 1]")
    dtype = _F64 if p.dtype == _F64 and p.ndim else np.dtype(np.float32)
    return lax.lt(_unit(shape, dtype), _operand(p, shape, dtype))


@lower("bernoulli")
def bernoulli(self):
    return _bernoulli(self, self.shape)


@lower("bernoulli.p", "bernoulli.float", "bernoulli.Tensor")
def bernoulli_p(self, p=0.5):
    return _bernoulli(p, self.shape)


@lower("poisson")
def poisson(self):
    context().check(
        lax.ge(self, zero(self.dtype)), RuntimeError, "invalid Poisson rate, expected rate to be non-negative"
    )
    rate = self.astype(_F64 if self.dtype == _F64 else np.float32)
    return jax.random.poisson(_threefry(), rate, rate.shape, np.dtype(np.int64 if rate.dtype == _F64 else np.int32))


@lower("binomial")
def binomial(count, prob):
    # PyTorch has no meta kernels for this one and for the gamma family: the results' types are taken from here.
    shape, dtype = np.broadcast_shapes(count.shape, prob.shape), _compute_dtype(count.dtype)
    result = count.dtype
    count, prob = _operand(count, shape, dtype), _operand(prob, shape, dtype)
    one = np.asarray(1, dtype)
    # PyTorch gives 0 for a negative count, and for prob beyond its ends what the ends give.
    safe = lax.max(count, zero(dtype))
    bad = lax.ne(prob, prob) | lax.ne(count, count)
    draws = jax.random.binomial(
        _threefry(),
        lax.select(bad, zeros(shape, dtype), safe),
        lax.select(bad, zeros(shape, dtype), lax.clamp(zero(dtype), prob, one)),
        shape,
        dtype,
    )
    return lax.select(bad, lax.full(shape, np.nan, dtype), draws).astype(result)


def _below(shape: Sequence[int], count: int) -> jax.Array:
    """Uniform integers in [0, count), as uint32 or uint64. More random bits than needed keep the bias below 2**-16."""
    if count <= 1:
        return zeros(shape, np.dtype(np.uint32))
    width = 32 if count <= 2**16 or (count <= 2**32 and count & (count - 1) == 0) else 64
    bits = _bits(shape, width)
    return bits if count >= 2**width else lax.rem(bits, np.asarray(count, bits.dtype))


def _integers(low: int, high: int) -> jax.Array:
    """Integers in [low, high), in the result's type."""
    dtype = context().out_dtype
    draws = _below(context().out_shape, high - low)
    if dtype == np.bool_:
        return lax.ne(lax.add(draws, np.asarray(low, draws.dtype)), zero(draws.dtype)) if low >= 0 else draws != 0
    if np.issubdtype(dtype, np.unsignedinteger):
        return lax.add(draws.astype(dtype), np.asarray(low % 2 ** (8 * dtype.itemsize), dtype))
    # Wrapping additions are right whatever the width of the range.
    return cast(lax.add(draws.astype(np.int64), np.int64(low)), dtype)


def _greatest(dtype: np.dtype) -> int:
    """The last of the integers that random_() draws from."""
    if dtype == np.bool_:
        return 1
    if np.issubdtype(dtype, np.integer):
        return int(np.iinfo(dtype).max)
    return 2 ** (jnp.finfo(dtype).nmant + 1)


@lower("random")
def random(self):
    return _integers(0, _greatest(context().out_dtype) + 1)


@lower("random.to")
def random_to(self, to):
    return _integers(0, to)


@lower("random.from")
def random_from(self, from_, to=None):
    return _integers(from_, _greatest(context().out_dtype) + 1 if to is None else to)


@lower("randint", "randint_like")
def randint(*args, dtype=None, memory_format=None):
    # ([low,] high, size) or (self, [low,] high), where a `high` may be a tensor.
    bounds = [a for a in args if isinstance(a, int)]
    if bounds:
        return _integers(bounds[0] if len(bounds) > 1 else 0, bounds[-1])
    draws = _bits(context().out_shape, 64)
    return lax.rem(draws, broadcast_to(lax.reshape(args[-1], ()).astype(np.uint64), draws.shape))


@lower("randperm")
def randperm(n, *, dtype=None):
    if n <= 1:
        return zeros((n,), context().out_dtype)
    index = iota(np.int32 if n < 2**31 else np.int64, (n,), 0)
    # Equal keys would keep their order; with 64 bits of key they do not matter.
    keys = (_bits((n,)),) if n <= 1024 else (_bits((n,)), _bits((n,)))
    return lax.sort((*keys, index), dimension=0, is_stable=False, num_keys=len(keys))[-1]


@lower("multinomial")
def multinomial(self, num_samples, replacement=False):
    shape = context().out_shape
    dtype = _F64 if self.dtype == _F64 else np.dtype(np.float32)
    p = self.astype(dtype)
    last = p.ndim - 1
    valid = lax.bitwise_and(lax.is_finite(p), lax.ge(p, zero(dtype)))
    context().check(valid, RuntimeError, "probability tensor contains either `inf`, `nan` or element < 0")
    total = lax.reduce(p, zero(dtype), lax.add, (last,))
    context().check(
        lax.gt(total, zero(dtype)), RuntimeError, "invalid multinomial distribution (sum of probabilities <= 0)"
    )
    if 0 in shape:
        return zeros(shape, np.dtype(np.int64))
    if not replacement or num_samples == 1:
        # The first of exponential clocks to ring is a draw, the next one a draw without it. Zeros never ring.
        clocks = lax.div(p, lax.neg(lax.log(_inner(p.shape, dtype))))
        if num_samples == 1:
            return lax.reshape(lax.argmax(clocks, last, np.int32), shape)
        return lax.top_k(clocks, num_samples)[1]
    sums = lax.cumsum(p, last)
    n = p.shape[last]
    mark = lax.mul(_unit(shape, dtype), lax.broadcast_in_dim(total, shape, tuple(range(last))))
    mark = lax.min(mark, lax.broadcast_in_dim(lax.squeeze(sums[..., n - 1 :], (last,)), shape, tuple(range(last))))
    return _first_above(sums, mark)


def _first_above(sums: jax.Array, mark: jax.Array) -> jax.Array:
    """The first position whose running sum exceeds the mark; if rounding left none, the first that reaches it."""
    last = sums.ndim - 1
    n = sums.shape[last]
    found = []
    for strict in (True, False):
        start, end = zeros(mark.shape, np.dtype(np.int32)), lax.full(mark.shape, n, np.int32)
        for _ in range(n.bit_length()):
            middle = lax.div(lax.add(start, end), np.int32(2))
            at = take_along(sums, last, lax.min(middle, np.int32(n - 1)))
            stop = lax.gt(at, mark) if strict else lax.ge(at, mark)
            active = lax.lt(start, end)
            end = lax.select(active & stop, middle, end)
            start = lax.select(active & lax.bitwise_not(stop), lax.add(middle, np.int32(1)), start)
        found.append(start)
    return lax.select(lax.lt(found[0], np.int32(n)), found[0], lax.min(found[1], np.int32(n - 1)))


# Dropout


@lower("native_dropout")
def native_dropout(input, p, train=None):
    shape, out = input.shape, input.dtype
    if train is False:
        return input, lax.full(shape, True, np.bool_)
    compute = dtypes.opmath(out)
    keep = lax.sub(np.float64(1), jnp.asarray(p).astype(_F64))
    mask = lax.lt(_unit(shape, np.dtype(np.float32)), _operand(keep, shape, np.dtype(np.float32)))
    # With p = 1 nothing is kept, whatever the scale.
    scale = lax.select(lax.gt(keep, np.float64(0)), lax.div(np.float64(1), keep), np.float64(0))
    scaled = lax.mul(input.astype(compute), _operand(scale, shape, compute))
    return lax.mul(scaled, mask.astype(compute)), mask


@lower("native_dropout_backward")
def native_dropout_backward(grad_output, mask, scale):
    compute = dtypes.opmath(context().out_dtype)
    scale = _operand(scale, grad_output.shape, compute)
    return lax.mul(lax.mul(grad_output.astype(compute), mask.astype(compute)), scale)


@lower("_masked_scale")
def masked_scale(self, mask, scale):
    return native_dropout_backward(self, mask, scale)


# Gamma family


@lower("_standard_gamma")
def standard_gamma(self):
    dtype = _compute_dtype(self.dtype)
    draws = jax.random.gamma(_threefry(), self.astype(dtype), self.shape, dtype)
    # PyTorch keeps draws away from zero, where the density is not defined.
    return lax.max(draws, np.asarray(jnp.finfo(self.dtype).tiny, dtype)).astype(self.dtype)


@lower("_standard_gamma_grad")
def standard_gamma_grad(self, output):
    dtype = _compute_dtype(self.dtype)
    return lax.random_gamma_grad(self.astype(dtype), output.astype(dtype)).astype(self.dtype)


@lower("_sample_dirichlet")
def sample_dirichlet(self):
    dtype = _compute_dtype(self.dtype)
    # Logarithms keep tiny concentrations from giving 0 / 0.
    logs = jax.random.loggamma(_threefry(), self.astype(dtype), self.shape, dtype)
    draws = jax.nn.softmax(logs, axis=-1)
    info = jnp.finfo(self.dtype)
    return lax.clamp(np.asarray(info.tiny, dtype), draws, np.asarray(1 - float(info.epsneg), dtype)).astype(self.dtype)


def _quadrature(points: int = 81, end: float = 3.4) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for integrals over (0, ∞): the double-exponential substitution, good for any rate of decay."""
    t = np.linspace(-end, end, points)
    nodes = np.exp(np.pi / 2 * np.sinh(t))
    return nodes, nodes * np.pi / 2 * np.cosh(t) * (t[1] - t[0])


@lower("_dirichlet_grad")
def dirichlet_grad(x, alpha, total):
    """How a Beta(alpha, total - alpha) draw x moves with alpha at a fixed quantile, divided by 1 - x.

    That is -dF/dalpha / (pdf (1 - x)) for the distribution function F, where dF/dalpha is the integral of
    (log t - E[log t]) pdf(t) over the side of x with less weight. CPU: piecewise approximations, right to 3e-3.
    """
    out = x.dtype
    alpha, total = alpha.astype(_F64), total.astype(_F64)
    beta = total - alpha
    x = jnp.clip(x.astype(_F64), np.finfo(np.float64).tiny, 1 - 2.0**-53)
    mean = lax.digamma(alpha) - lax.digamma(total)
    log_x, log_rest = jnp.log(x), jnp.log1p(-x)
    nodes, weights = (jnp.asarray(a) for a in _quadrature())
    below = x * total < alpha

    def add(i, sums):
        u = nodes[i]
        # Below: t = x exp(-u). Above: 1 - t = (1 - x) exp(-u).
        left = jnp.exp((beta - 1) * (jnp.log1p(-x * jnp.exp(-u)) - log_rest) - u * alpha) * x / (1 - x)
        log_t = jnp.log1p((x - 1) * jnp.exp(-u))
        right = jnp.exp((alpha - 1) * (log_t - log_x) - u * beta)
        return sums + weights[i] * jnp.where(below, (mean + u - log_x) * left, (log_t - mean) * right)

    return lax.fori_loop(0, nodes.shape[0], add, jnp.zeros(x.shape, _F64)).astype(out)
