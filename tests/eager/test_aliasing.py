"""A storage is a value: writes through any view are seen through every other one."""

import pytest
import torch

VIEWS = {
    "itself": lambda x: x,
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[1:3],
    "step": lambda x: x[:, ::2],
    "last step": lambda x: x[..., 1::3],
    "select": lambda x: x[:, 1],
    "narrow": lambda x: x.narrow(2, 1, 3),
    "diagonal": lambda x: x.diagonal(0, 0, 1),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "view": lambda x: x.view(6, -1),
    "flatten": lambda x: x.flatten(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 1), 2),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "chain": lambda x: x.transpose(0, 2)[1:5:2, :, 0].t(),
    "data": lambda x: x.data,
    "detach": lambda x: x.detach()[2],
    "scalar": lambda x: x[1, 1, 1],
}

WRITES = {
    "add_": lambda v: v.add_(3),
    "mul_": lambda v: v.mul_(v),
    "zero_": lambda v: v.zero_(),
    "fill_": lambda v: v.fill_(7),
    "copy_": lambda v: v.copy_(torch.arange(v.numel()).reshape(v.shape).to(v.dtype)),
    "setitem": lambda v: v.__setitem__(..., 5),
    "clamp_": lambda v: v.clamp_(2, 9),
}


def _run(device, view, write):
    base = torch.arange(72, dtype=torch.float32).reshape(3, 4, 6).to(device)
    other = base.view(-1)
    v = VIEWS[view](base)
    WRITES[write](v)
    after = v + 1
    base.mul_(2)  # and the reverse: write the base, read the view
    return [t.cpu() for t in (base, other, v, after, base.transpose(0, 2) + 0)]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_write_through_a_view(view, write, mode):
    for got, want in zip(_run("tpu", view, write), _run("cpu", view, write), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64, torch.bfloat16])
def test_write_through_a_dtype_view(dtype, mode):
    """Bits only: XLA's CPU client takes denormal floats for zero, so nothing is computed on the floats."""
    results = []
    for device in ("cpu", "tpu"):
        base = torch.arange(24, dtype=torch.float32).reshape(4, 6).to(device)
        v = base.view(dtype)
        v[1:3, ::2] = v[0:2, 1::2].clone()
        v[3] = 1
        results.append([t.cpu() for t in (base.view(torch.int32), v, base[:, 1:3].clone().view(torch.int32))])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_overlapping_windows_read_and_written(mode):
    for device in ("cpu", "tpu"):
        x = torch.arange(8.0).to(device)
        w = x.unfold(0, 3, 1)
        x[2] = 100
        assert w.cpu()[0, 2] == 100 and w.cpu()[2, 0] == 100
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            x[:1].expand(4).add_(1)
        assert x.cpu()[0] == 0


def test_set_and_data(mode):
    x, y = torch.zeros(4, device="tpu"), torch.ones(6, device="tpu")
    alias = x.view(2, 2)
    x.set_(y)
    x[0] = 9
    assert y.cpu().tolist() == [9, 1, 1, 1, 1, 1] and alias.cpu().tolist() == [[0, 0], [0, 0]]
    x.data = torch.full((3,), 2.0, device="tpu")
    assert y.cpu()[0] == 9 and x.cpu().tolist() == [2, 2, 2]
    x.set_(y.untyped_storage(), 2, (2, 2), (2, 1))
    assert x.cpu().tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("size", [(2, 2), (8,), (3, 5), (0,)])
def test_resize_keeps_what_fits(size, mode):
    results = []
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0).to(device)
        x.resize_(size)
        n = min(6, x.numel())
        results.append((x.shape, x.flatten()[:n].cpu()))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1])


def test_storage_resize(mode):
    x = torch.arange(4.0, device="tpu")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(16)
    x.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert x.cpu().tolist() == [1, 2, 3, 4]


def test_version_counter_catches_a_modified_saved_tensor(mode):
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_complex_views(mode):
    for device in ("cpu", "tpu"):
        z = torch.tensor([1 + 2j, 3 - 4j]).to(device)
        real = torch.view_as_real(z)
        real[:, 1] *= 10
        assert z.cpu().tolist() == [1 + 20j, 3 - 40j]
        z.imag.zero_()
        assert real.cpu().tolist() == [[1, 0], [3, 0]]
        assert z.conj().mul(1j).cpu().tolist() == [1j, 3j]


@pytest.mark.parametrize("fmt", [torch.channels_last, torch.contiguous_format])
def test_memory_formats_survive(fmt, mode):
    x = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=fmt)
    t = x.to("tpu")
    assert t.stride() == x.stride()
    y = (t * 2 + 1).relu()
    assert y.stride() == (x * 2 + 1).relu().stride()
    torch.testing.assert_close(y.cpu(), (x * 2 + 1).relu(), rtol=0, atol=0)
    y[:, 1] = 0
    torch.testing.assert_close(y.cpu().sum(), (x * 2 + 1).relu().sum() - (x * 2 + 1).relu()[:, 1].sum())


def test_expanded_input_and_out(mode):
    x = torch.arange(3.0, device="tpu").unsqueeze(1).expand(3, 4)
    assert (x + 1).cpu().tolist() == (torch.arange(3.0).unsqueeze(1).expand(3, 4) + 1).tolist()
    out = torch.empty(4, 3, device="tpu").t()
    torch.add(x, 1, out=out)
    assert out.stride() == (1, 3) and out.cpu().tolist() == (x + 1).cpu().tolist()
    small = torch.empty(0, device="tpu")
    torch.mul(x, 2, out=small)
    assert small.shape == (3, 4) and small.cpu().tolist() == (x * 2).cpu().tolist()


LAZY = {
    "conj": lambda z: z.conj(),
    "imaginary part of conj": lambda z: z.conj().imag,
    "transposed conj": lambda z: z.conj().t(),
    "slice of conj": lambda z: z.conj()[1:, ::2],
    "adjoint": lambda z: z.mH,
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_conjugate_and_negative_are_part_of_the_view(name, mode):
    """`conj()` and the imaginary part of a conjugate are views with a bit: reads and writes must honour it."""
    results = []
    for device in ("cpu", "tpu"):
        z = (torch.arange(9.0) + 1j * (torch.arange(9.0) + 1)).reshape(3, 3).to(device)
        v = LAZY[name](z)
        found = [v.clone(), v * 2, v.sum(), v.contiguous().clone(), v.to(torch.complex128)]
        v.mul_(3)
        v[0] = 5 + 0 * v[0]
        v.copy_(v.clone() + 1)
        found += [v, z, torch.cat([v, v])]
        out = torch.empty_like(z).conj()
        torch.mul(z, 2, out=out)
        results.append([t.cpu() for t in (*found, out)])
    for got, want in zip(*results[::-1], strict=True):
        torch.testing.assert_close(got, want)


def test_writes_through_views_of_empty_tensors(mode):
    x = torch.zeros(1, 1, 0, 0, device="tpu")
    x.diagonal(0, -2, -1).mul_(0.5)
    assert torch.bmm(x.view(1, 0, 0), x.view(1, 0, 0)).shape == (1, 0, 0)
    assert (x + 1).cpu().shape == (1, 1, 0, 0)
