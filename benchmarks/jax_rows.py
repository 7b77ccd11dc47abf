"""The same steps written by hand in JAX, each one jax.jit, starting from the same weights."""

import functools

import jax
import jax.numpy as jnp

from benchmarks import rows

LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


def adamw(params, first, second, count, grads):
    """torch.optim.AdamW's update with its default settings."""
    correct1, correct2 = 1 - BETA1**count, 1 - BETA2**count

    def update(p, m, v, g):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        p = p * (1 - LEARNING_RATE * DECAY)
        return p - LEARNING_RATE / correct1 * m / (jnp.sqrt(v / correct2) + EPSILON), m, v

    done = {k: update(params[k], first[k], second[k], grads[k]) for k in params}
    return tuple({k: v[i] for k, v in done.items()} for i in range(3))


def training(loss_of, params, *data):
    """A whole training step as one jitted function that donates its state."""

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def train(params, first, second, count, *data):
        loss, grads = jax.value_and_grad(loss_of)(params, *data)
        return loss, *adamw(params, first, second, count, grads)

    zeros = jax.tree.map(jnp.zeros_like, params)
    state, count = (params, zeros, jax.tree.map(jnp.zeros_like, params)), 0

    def step():
        nonlocal state, count
        count += 1
        loss, *state = train(*state, float(count), *data)
        return loss

    return step


def arrays(model):
    """The model's parameters, tied ones once."""
    return {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}


def layer_norm(params, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"]


def linear(params, name, x):
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def attention(params, name, x, heads):
    batch, length, width = x.shape
    qkv = linear(params, f"{name}.qkv", x).reshape(batch, length, 3, heads, width // heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    y = jax.nn.softmax(scores, axis=-1) @ v
    return linear(params, f"{name}.out", y.swapaxes(1, 2).reshape(batch, length, width))


def cross_entropy(logits, targets):
    logs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(logs, targets[..., None], axis=-1).mean()


def gpt(config, batch):
    def loss_of(params, tokens, targets):
        x = params["tokens.weight"][tokens] + params["positions.weight"][: tokens.shape[1]]
        for i in range(config.blocks):
            name = f"blocks.{i}"
            x = x + attention(params, f"{name}.attention", layer_norm(params, f"{name}.norm1", x), config.heads)
            up = linear(params, f"{name}.up", layer_norm(params, f"{name}.norm2", x))
            x = x + linear(params, f"{name}.down", jax.nn.gelu(up, approximate=False))
        return cross_entropy(layer_norm(params, "norm", x) @ params["tokens.weight"].T, targets)

    tokens = (jnp.asarray(t.int().numpy()) for t in rows.gpt_inputs(config.vocab, batch, config.length))
    return training(loss_of, arrays(rows.gpt_model(config)), *tokens)


def mlp():
    def loss_of(params, x, y):
        for i in range(20):
            x = jax.nn.relu(linear(params, str(2 * i), x))
        return jnp.square(x - y).mean()

    return training(loss_of, arrays(rows.mlp_model()), *(jnp.asarray(t.numpy()) for t in rows.mlp_inputs()))


def elementwise():
    x, y = (jnp.asarray(t.numpy()) for t in rows.elementwise_inputs())

    @jax.jit
    def compute(x, y):
        z = x
        for _ in range(4):
            z = -jnp.tanh(z * 1.1 + y)
        return z

    return lambda: compute(x, y)


def add():
    x, y = jnp.ones((8, 8)), jnp.ones((8, 8))
    compute = jax.jit(jnp.add)
    return lambda: compute(x, y)


BUILDERS = {
    "gpt-tiny": lambda: gpt(*rows.TINY),
    "gpt-tiny-fused": lambda: gpt(*rows.TINY),
    "gpt-small": lambda: gpt(*rows.SMALL),
    "mlp": mlp,
    "elementwise": elementwise,
    "add": add,
}
