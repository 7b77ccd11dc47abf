import copy

import pytest
import torch
from torch import nn

tpu = torch.tpu


def test_devices():
    assert tpu.is_available() and tpu.device_count() >= 1
    tpu.init()
    assert tpu.is_initialized()
    assert tpu.current_device() == 0
    assert tpu.get_device_name() == tpu.get_device_name("tpu:0") == tpu.get_device_properties(0).name
    properties = tpu.get_device_properties()
    assert properties.platform in ("tpu", "cuda", "cpu") and properties.total_memory > 0
    assert len(tpu.get_device_capability()) == 2
    assert tpu.is_bf16_supported()
    assert torch.bfloat16 in tpu.get_amp_supported_dtype()


def test_context_managers():
    with tpu.device(0), tpu.device(-1), tpu.device(None), tpu.device("tpu"), tpu.device(torch.device("tpu:0")):
        assert tpu.current_device() == 0
    with tpu.device_of(torch.ones(1, device="tpu")), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0
    tpu.set_device(0)
    tpu.set_device(-1)
    with pytest.raises(ValueError, match="Expected a tpu device"):
        tpu.set_device("cpu")


def test_invalid_index_names_index_and_count():
    count = tpu.device_count()
    for make in (
        lambda: tpu.set_device(77),
        lambda: torch.empty(1, device="tpu:77"),
        lambda: torch.ones(1).to("tpu:77"),
        lambda: tpu.synchronize(77),
        lambda: tpu.get_device_name(77),
        lambda: torch.accelerator.set_device_index(77),
    ):
        with pytest.raises(RuntimeError, match="77") as raised:
            make()
        assert str(count) in str(raised.value)
    assert tpu.current_device() == 0


def test_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "tpu"
    assert torch.accelerator.device_count() == tpu.device_count()
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        x = torch.ones(4, device=torch.accelerator.current_accelerator())
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() >= 16
    if hasattr(torch.accelerator, "get_memory_info"):
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total == tpu.mem_get_info()[1]
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("tpu:0")
    torch.accelerator.set_stream(stream)
    assert torch.get_device_module() is tpu and torch.get_device_module("tpu") is tpu
    assert torch._utils._get_available_device_type() == "tpu"
    torch.accelerator.empty_cache()
    assert x.sum().item() == 4


def test_device_of_things():
    x = torch.ones(2, 3, device="tpu")
    assert x.is_tpu and x.device == torch.device("tpu", 0) and x.get_device() == 0
    assert not torch.ones(1).is_tpu
    assert repr(x) == "tensor([[1., 1., 1.],\n        [1., 1., 1.]], device='tpu:0')"
    assert torch.ones(2).tpu().device == x.device
    assert nn.Linear(2, 2).tpu().weight.is_tpu
    assert x.untyped_storage().device == x.device
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.tpu().data.is_tpu
    assert torch.get_default_device().type == "cpu"
    with torch.device("tpu"):
        assert torch.zeros(1).is_tpu


def test_memory():
    tpu.synchronize()
    tpu.reset_peak_memory_stats()
    tpu.reset_accumulated_memory_stats()
    before = tpu.memory_allocated()
    x = torch.ones(1000, device="tpu")
    y = x + 1
    tpu.synchronize()
    assert tpu.memory_allocated() - before == 8000
    del x
    assert tpu.memory_allocated() - before == 4000
    assert tpu.max_memory_allocated() - before >= 8000
    assert tpu.memory_reserved() == tpu.memory_allocated()
    assert tpu.max_memory_reserved() == tpu.max_memory_allocated()
    stats = tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == tpu.memory_allocated()
    free, total = tpu.mem_get_info()
    assert 0 <= free <= total
    assert "bytes" in tpu.memory_summary()
    tpu.empty_cache()
    tpu.reset_peak_memory_stats()
    assert tpu.max_memory_allocated() == tpu.memory_allocated()
    assert y.sum().item() == 2000


def test_pinned_memory():
    x = torch.arange(10.0).pin_memory()
    assert x.is_pinned() and x[3:].is_pinned()
    assert not torch.arange(10.0).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().numel() == 0
    y = x.to("tpu", non_blocking=True)
    x.zero_()  # the copy must already have been made
    assert y.sum().item() == 45
    assert x.data_ptr() % 64 == 0


@pytest.mark.parametrize("deep", [copy.deepcopy, copy.copy])
def test_deepcopy(deep):
    x = torch.ones(3, device="tpu")
    pair = {"a": x, "b": x, "view": x[1:]}
    other = deep(pair)
    other["a"].add_(1)
    tied = deep is copy.copy
    assert x.tolist() == ([2.0] * 3 if tied else [1.0] * 3)
    assert other["b"].tolist() == [2.0] * 3 and other["view"].tolist() == [2.0] * 2
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("tpu")
    model[1].weight = model[0].weight
    clone = copy.deepcopy(model)
    assert clone[1].weight is clone[0].weight and clone[0].weight.is_tpu


def test_resize_storage():
    x = torch.ones(4, device="tpu")
    x.resize_(2)
    assert x.tolist() == [1.0, 1.0]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
