import pytest
import torch

from torchtpu import _C

tpu = torch.tpu


def test_manual_seed_seeds_the_device(mode):
    torch.manual_seed(7)
    assert tpu.initial_seed() == 7
    first = torch.randn(5, device="tpu")
    second = torch.randn(5, device="tpu")
    torch.manual_seed(7)
    assert torch.equal(torch.randn(5, device="tpu"), first)
    assert not torch.equal(first, second)
    tpu.manual_seed(7)
    assert torch.equal(torch.randn(5, device="tpu"), first)
    tpu.manual_seed_all(7)
    assert torch.equal(torch.randn(5, device="tpu"), first)
    tpu.seed()
    assert not torch.equal(torch.randn(5, device="tpu"), first)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_seeds_of_any_size(seed):
    torch.manual_seed(seed)
    assert tpu.initial_seed() == seed % 2**64
    assert torch.initial_seed() == seed % 2**64


def test_state():
    tpu.manual_seed(3)
    state = tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    first = torch.rand(4, device="tpu")
    assert not torch.equal(tpu.get_rng_state(), state)
    tpu.set_rng_state(state, "tpu:0")
    assert torch.equal(torch.rand(4, device="tpu"), first)
    tpu.set_rng_state_all(tpu.get_rng_state_all())
    with pytest.raises(RuntimeError, match="wrong size"):
        tpu.set_rng_state(state[:8])
    with pytest.raises(TypeError, match="ByteTensor"):
        tpu.set_rng_state(state.float())
    seed, offset = state.view(torch.int64).tolist()
    assert (seed, offset) == (3, 0)


def test_state_is_what_dtensor_expects():
    random = pytest.importorskip("torch.distributed.tensor._random")
    kind = getattr(random, "_PhiloxState", None)
    if kind is None:
        pytest.skip("this PyTorch has no _PhiloxState")
    tpu.manual_seed(7)
    torch.rand(5, device="tpu")
    state = kind(tpu.get_rng_state())
    assert int(state.seed) == 7 and int(state.offset) > 0 and int(state.offset) % 4 == 0
    state.offset = torch.tensor([4])
    tpu.set_rng_state(state.state)
    assert tpu.default_generators[0].get_offset() == 4


def test_fork_rng():
    tpu.manual_seed(3)
    first = torch.rand(4, device="tpu")
    tpu.manual_seed(3)
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(9, device="tpu")
    assert torch.equal(torch.rand(4, device="tpu"), first)


def test_generator():
    generator = torch.Generator(device="tpu")
    assert generator.device == torch.device("tpu:0")
    generator.manual_seed(11)
    first = torch.randn(6, device="tpu", generator=generator)
    default = tpu.get_rng_state()
    other = torch.Generator(device="tpu").manual_seed(11)
    assert torch.equal(torch.randn(6, device="tpu", generator=other), first)
    assert torch.equal(tpu.get_rng_state(), default)
    copied = generator.clone_state()
    assert torch.equal(torch.rand(3, device="tpu", generator=generator), torch.rand(3, device="tpu", generator=copied))
    generator.set_state(other.get_state())
    assert torch.equal(torch.rand(3, device="tpu", generator=generator), torch.rand(3, device="tpu", generator=other))
    assert generator.seed() == generator.initial_seed()
    with pytest.raises(RuntimeError):
        torch.randn(2, device="tpu", generator=torch.Generator())


def test_generator_counts():
    generator = torch.Generator(device="tpu").manual_seed(2**64 - 1)
    assert _C._generator_next(generator, 5) == (2**64 - 1, 0)
    assert _C._generator_next(generator, 4) == (2**64 - 1, 8)
    assert generator.get_offset() == 12
    generator.set_offset(4)
    assert _C._generator_next(generator, 1) == (2**64 - 1, 4)
    shared = generator.graphsafe_get_state()
    _C._generator_next(generator, 1)
    assert _C._generator_next(shared, 1) == (2**64 - 1, 12)
    with pytest.raises(TypeError):
        _C._generator_next(3, 1)


def test_default_generators():
    assert len(tpu.default_generators) == tpu.device_count()
    assert tpu.default_generators[0].device == torch.device("tpu:0")
    with pytest.raises(IndexError):
        tpu.default_generators[99]


def test_checkpoint_keeps_dropout():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="tpu", requires_grad=True)
    for reentrant in (False, True):
        x.grad = None
        y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5) * t, x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad != 0, y != 0)
