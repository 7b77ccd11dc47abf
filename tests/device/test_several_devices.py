"""Several devices in one process: each test is a process with four devices of XLA's CPU client."""

import pytest

FOUR = {"TORCHTPU_CPU_DEVICES": 4, "TORCHTPU_PLATFORM": "cpu"}


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_operations(run_python, mode):
    run_python(
        """
        import torch, torchtpu
        from torch import nn

        a = torch.full((4, 4), 0.5, device="tpu:3", requires_grad=True)
        (a @ a).relu().sum().backward()
        assert a.grad.device == torch.device("tpu:3") and a.grad.tolist() == [[4.0] * 4] * 4
        assert torch.tpu.current_device() == 0

        def train(device):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            model.to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            for _ in range(4):
                loss = model(torch.ones(2, 4, device=device)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert model[0].weight.device == torch.device(device)
            return loss.item()

        assert abs(train("tpu:2") - train("cpu")) < 1e-6

        # A pipeline: gradients go back over the copies.
        x = torch.ones(3, device="tpu:0", requires_grad=True)
        middle = (x * 2).to("tpu:1")
        end = (middle * 3).to("tpu:3", non_blocking=True)
        assert end.device.index == 3
        end.sum().backward()
        assert x.grad.tolist() == [6.0] * 3 and x.grad.device.index == 0

        # Copies into views, with another dtype, from other devices.
        b = torch.zeros(3, 3, device="tpu:1")
        b[1:].copy_(torch.arange(3, device="tpu:2"))
        b.t()[0].copy_(torch.tensor([7.0, 8.0, 9.0], device="tpu:3").double())
        assert b.tolist() == [[7.0, 0.0, 0.0], [8.0, 1.0, 2.0], [9.0, 1.0, 2.0]]

        # An optimizer and a norm over parameters on three devices.
        parameters = [nn.Parameter(torch.ones(2, device=f"tpu:{i}")) for i in range(3)]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 2.0)
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        assert abs(norm.item() - 24**0.5) < 1e-5
        torch.optim.SGD(parameters, lr=1.0).step()
        assert all(abs(p.sum().item() - 2 * (1 - 2 / 24**0.5)) < 1e-5 for p in parameters)

        for mixed in (lambda: x + middle, lambda: torch.cat([x, middle]), lambda: x + torch.tensor(1.0, device="tpu:1")):
            try:
                mixed()
            except RuntimeError as error:
                assert "Expected all tensors to be on the same device" in str(error), error
            else:
                raise AssertionError("no error")
        assert (middle + torch.tensor(1.0)).device.index == 1  # a number on the CPU goes anywhere

        try:
            with torch.tpu.device(2):
                torch.ones(2, device="tpu") @ torch.ones(3, device="tpu")
        except RuntimeError:
            pass
        assert torch.tpu.current_device() == 0
        """,
        TORCHTPU_EAGER_MODE=mode,
        **FOUR,
    )


def test_state_of_each_device(run_python):
    run_python(
        """
        import io, threading, warnings
        import torch, torchtpu

        # Random state: one seed for all, then one device's own.
        torch.manual_seed(3)
        first = [torch.rand(2, device=f"tpu:{i}").tolist() for i in range(4)]
        assert first[0] == first[1] == first[2] == first[3]
        torch.tpu.manual_seed(9)
        assert torch.rand(2, device="tpu:0").tolist() != torch.rand(2, device="tpu:1").tolist()
        with torch.tpu.device(1):
            torch.tpu.manual_seed(3)
            assert torch.rand(2, device="tpu").tolist() == first[1]
        states = torch.tpu.get_rng_state_all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch asks whether all four are meant
            with torch.random.fork_rng(device_type="tpu"):
                for i in range(4):
                    torch.rand(5, device=f"tpu:{i}")
        assert all(map(torch.equal, states, torch.tpu.get_rng_state_all()))
        assert torch.Generator(device="tpu:2").device.index == 2

        # Streams and events belong to a device; entering a stream makes its device current.
        stream = torch.tpu.Stream(2)
        with torch.tpu.stream(stream):
            assert torch.tpu.current_device() == 2 and torch.tpu.current_stream() == stream
            assert torch.empty(1, device="tpu").device.index == 2
        with torch.Stream("tpu:1"):
            assert torch.accelerator.current_device_index() == 1
        assert torch.tpu.current_device() == 0 and torch.tpu.current_stream(2) == torch.tpu.default_stream(2)
        event = torch.Event("tpu:1")
        event.record(torch.tpu.current_stream(1))
        event.synchronize()
        torch.tpu.synchronize(3)
        torch.accelerator.synchronize(torch.device("tpu:2"))

        # The current device is each thread's own.
        seen = {}

        def work(i):
            torch.tpu.set_device(i)
            x = torch.full((20, 20), float(i), device="tpu")
            for _ in range(20):
                x = x + 1
            seen[i] = x.device.index, x.mean().item(), torch.tpu.current_device()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert seen == {i: (i, i + 20.0, i) for i in range(4)}
        assert torch.tpu.current_device() == 0

        # Memory is counted for each device.
        before = [torch.tpu.memory_allocated(i) for i in range(4)]
        held = torch.ones(1000, device="tpu:2")
        torch.tpu.synchronize(2)
        assert [torch.tpu.memory_allocated(i) - b for i, b in enumerate(before)] == [0, 0, 4000, 0]

        # Files keep the index, unless map_location says otherwise.
        file = io.BytesIO()
        torch.save(torch.ones(2, device="tpu:3"), file)
        for location, index in ((None, 3), ({"tpu:3": "tpu:1"}, 1), ("tpu", 0), ("tpu:2", 2)):
            file.seek(0)
            assert torch.load(file, map_location=location).device.index == index
        with torch.device("tpu:1"):
            assert torch.randn(2).device == torch.nn.Linear(1, 1).weight.device == torch.device("tpu:1")
        """,
        **FOUR,
    )


def test_a_file_from_a_device_that_is_not_here(tmp_path, run_python):
    path = tmp_path / "x.pt"
    run_python(f"import torch, torchtpu; torch.save(torch.ones(2, device='tpu:3'), {str(path)!r})", **FOUR)
    error = run_python(
        f"import torch, torchtpu; torch.load({str(path)!r})",
        fails=True, TORCHTPU_CPU_DEVICES=1, TORCHTPU_PLATFORM="cpu",
    )
    assert "torch.tpu.device_count() is 1" in error and "map_location" in error
