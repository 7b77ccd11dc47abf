"""`out=` and in-place calls: sizes, dtypes and overlaps are checked as on the CPU."""

import pytest
import torch


def _same_error(call):
    """The call's error on both devices: type and text."""
    said = []
    for device in ("cpu", "tpu"):
        with pytest.raises(Exception) as caught:
            call(device)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.all(torch.ones(3, device=d), out=torch.empty((), dtype=torch.int64, device=d)),
        lambda d: torch.isin(torch.ones(3, device=d), torch.ones(2, device=d), out=torch.empty(3, dtype=torch.int64, device=d)),
        lambda d: torch.angle(torch.ones(3, device=d), out=torch.empty(3, dtype=torch.int64, device=d)),
        lambda d: torch.ones(1, 3, device=d).floor_divide_(torch.ones(4, 3, device=d)),
        lambda d: torch.ones(3, device=d).expand(2, 3).mul_(2),
        lambda d: torch.searchsorted(torch.ones(3, device=d), torch.ones(2, device=d), out=torch.empty(2, device=d)),
    ],
)
def test_refused_as_on_the_cpu(call):
    _same_error(call)


@pytest.mark.parametrize("empty", [True, False])
def test_out_without_a_meta_kernel(mode, empty):
    def run(d):
        x = torch.arange(12.0, device=d).reshape(3, 4) - 5
        outs = []
        for fn, dtypes in (
            (lambda **k: torch.masked_select(x, x > 0, **k), [torch.float32]),
            (lambda **k: torch.nonzero(x, **k), [torch.int64]),
            (lambda **k: torch.logcumsumexp(x, 0, **k), [torch.float32]),
            (lambda **k: torch.geqrf(x, **k), [torch.float32, torch.float32]),
        ):
            plain = fn()
            shapes = [t.shape for t in (plain if isinstance(plain, tuple) else (plain,))]
            out = [torch.empty(0 if empty else s, dtype=t, device=d) for s, t in zip(shapes, dtypes)]
            back = fn(out=tuple(out) if len(out) > 1 else out[0])
            assert all(a is b for a, b in zip(back if isinstance(back, tuple) else (back,), out))
            outs += [o.cpu() for o in out]
        return outs

    for a, b in zip(run("tpu"), run("cpu")):
        torch.testing.assert_close(a, b)


def test_out_order_of_batch_norm():
    def run(d):
        x = torch.arange(24.0, device=d).reshape(2, 3, 4)
        mean, var = torch.zeros(3, device=d), torch.ones(3, device=d)
        out = [torch.empty(s, device=d) for s in ((2, 3, 4), (3,), (3,))]
        torch.ops.aten._native_batch_norm_legit.out(
            x, None, None, mean, var, True, 0.1, 1e-5, out=out[0], save_mean=out[1], save_invstd=out[2]
        )
        return [t.cpu() for t in (*out, mean, var)]

    for a, b in zip(run("tpu"), run("cpu")):
        torch.testing.assert_close(a, b)


def test_writes_through_views_without_elements():
    base = torch.zeros(0, 0, device="tpu")
    base.diagonal(0, -2, -1).mul_(0.5)
    assert base.sum().item() == 0 and base.cpu().shape == (0, 0)


def test_a_fill_may_write_an_element_twice():
    x = torch.ones(3, device="tpu")
    torch._foreach_zero_([x[:1].expand(3)])
    assert x.cpu().tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("source", ["cpu", "tpu"])
def test_a_copy_does_not_write_an_element_twice(source):
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(1, device="tpu").expand(3).copy_(torch.ones(3, device=source))
