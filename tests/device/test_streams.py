import threading

import pytest
import torch

tpu = torch.tpu


def test_current_stream_is_per_thread():
    default = tpu.current_stream()
    assert default == tpu.default_stream() and default.stream_id == 0
    other = tpu.Stream()
    assert isinstance(other, torch.Stream) and isinstance(default, tpu.Stream)
    assert other != default and other.device == torch.device("tpu:0")
    seen = []
    with tpu.stream(other):
        assert tpu.current_stream() == other == torch.accelerator.current_stream()
        thread = threading.Thread(target=lambda: seen.append(tpu.current_stream()))
        thread.start()
        thread.join()
    assert tpu.current_stream() == default and seen == [default]
    with tpu.stream(None):
        assert tpu.current_stream() == default
    tpu.set_stream(other)
    assert tpu.current_stream() == other
    tpu.set_stream(default)


def test_torch_stream():
    stream = torch.Stream(device="tpu")
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(3, device="tpu") + 1
    stream.synchronize()
    assert stream.query()
    torch.accelerator.current_stream().wait_stream(stream)
    event = stream.record_event()
    torch.accelerator.current_stream().wait_event(event)
    assert x.sum().item() == 6
    assert torch.Stream(device="tpu") != stream
    x.record_stream(stream)


def test_work_under_streams_is_ordered(mode):
    streams = [tpu.Stream(), tpu.Stream(priority=-1)]
    x = torch.zeros(4, device="tpu")
    for i in range(6):
        with tpu.stream(streams[i % 2]):
            x.mul_(2).add_(1)
    assert x.tolist() == [63.0] * 4


def test_backward_under_a_stream():
    x = torch.ones(3, device="tpu", requires_grad=True)
    with tpu.stream(tpu.Stream()):
        loss = (x * x).sum()
    loss.backward()
    assert x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("make", [tpu.Event, lambda **kw: torch.Event(device="tpu", **kw)])
def test_events(make):
    event = make()
    assert event.query()
    event.synchronize()
    x = torch.ones(8, device="tpu") * 3
    event.record()
    event.synchronize()
    assert event.query() and x.sum().item() == 24
    event.wait(tpu.current_stream())
    start, end = make(enable_timing=True), make(enable_timing=True)
    start.record()
    (torch.ones(64, 64, device="tpu") @ torch.ones(64, 64, device="tpu")).sum()
    end.record()
    assert start.elapsed_time(end) > 0
    with pytest.raises((RuntimeError, ValueError)):
        event.elapsed_time(end)
    with pytest.raises((RuntimeError, ValueError)):
        make(enable_timing=True).elapsed_time(end)
