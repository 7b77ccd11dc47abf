"""What crosses processes: saved files, DataLoader workers, forks."""

import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def test_save_and_load(tmp_path):
    model = nn.Linear(3, 2).to("tpu")
    x = torch.arange(6, device="tpu").reshape(2, 3)
    path = tmp_path / "state.pt"
    torch.save({"model": model.state_dict(), "x": x, "view": x[1], "half": torch.ones(2, device="tpu").bfloat16()}, path)
    for location in (None, "tpu", "tpu:0", torch.device("tpu"), "cpu"):
        loaded = torch.load(path, map_location=location, weights_only=True)
        assert loaded["x"].device.type == ("cpu" if location == "cpu" else "tpu")
        assert loaded["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert loaded["half"].dtype == torch.bfloat16
        loaded["view"].zero_()
        assert loaded["x"][1].tolist() == [0, 0, 0]
    other = nn.Linear(3, 2).to("tpu")
    other.load_state_dict(loaded["model"])
    assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("zipped", [True, False])
def test_other_ways_to_load(tmp_path, zipped):
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3.0, device="tpu"), path, _use_new_zipfile_serialization=zipped)
    for location in ({"tpu:0": "cpu"}, lambda storage, where: storage, torch.device("cpu")):
        assert torch.load(path, map_location=location).device.type == "cpu"
    if zipped:
        assert torch.load(path, map_location="tpu", mmap=True).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="device 99"):
        torch.load(path, map_location="tpu:99")
    torch.save(nn.Linear(2, 2).to("tpu"), path, _use_new_zipfile_serialization=zipped)
    assert torch.load(path, weights_only=False).weight.is_tpu


def test_pickle():
    x = torch.arange(3, device="tpu")
    other, generator = pickle.loads(pickle.dumps((x, torch.Generator(device="tpu").manual_seed(5))))
    assert other.is_tpu and other.tolist() == [0, 1, 2]
    assert generator.device == x.device and generator.initial_seed() == 5


def test_load_without_the_package(tmp_path, run_python):
    path = tmp_path / "state.pt"
    torch.save({"w": torch.arange(4.0, device="tpu")}, path)
    out = run_python(
        f"""
        import sys, torch
        print(torch.load({str(path)!r}, map_location="cpu", weights_only=True)["w"].tolist(), "torchtpu" in sys.modules)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
    )
    assert out.strip() == "[0.0, 1.0, 2.0, 3.0] False"
    error = run_python(f"import torch; torch.load({str(path)!r})", fails=True, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert "tpu:0" in error


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    torch.ones(1, device="tpu")  # the runtime runs before the workers are forked
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    total = 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*pin_memory.*")
        warnings.filterwarnings("ignore", message=".*fork.*")
        for x, y in DataLoader(data, batch_size=2, num_workers=workers, pin_memory=True):
            assert x.is_pinned() and y.is_pinned()
            total += x.to("tpu", non_blocking=True).sum().item()
    assert total == 66.0


def test_data_loader_with_spawned_workers():
    torch.ones(1, device="tpu")
    loader = DataLoader(
        TensorDataset(torch.arange(6.0)), batch_size=3, num_workers=1, pin_memory=True, multiprocessing_context="spawn",
        persistent_workers=True,
    )
    for _ in range(2):
        assert [x.to("tpu", non_blocking=True).tolist() for (x,) in loader] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_fork_gives_a_clear_error(run_python):
    out = run_python(
        """
        import os, sys, warnings
        import torch, torchtpu
        warnings.simplefilter("error")  # before the runtime starts: nothing of it may warn at fork
        x = torch.ones(2, device="tpu")
        x.sum().item()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            torch.manual_seed(1)  # DataLoader workers do this
            print(torch.tpu._is_in_bad_fork(), torch.tpu.is_initialized(), torch.ones(2).sum().item())
            for use in (lambda: torch.ones(1, device="tpu"), lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(1).to("tpu"),
                        lambda: torch.tpu.synchronize(), lambda: torch.tpu.set_device(0)):
                try:
                    use()
                    print("no error")
                except RuntimeError as error:
                    print(error)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        print((x + 1).tolist())
        """
    )
    lines = out.splitlines()
    assert lines[0] == "True False 2.0"
    assert len(lines) == 8
    for line in lines[1:7]:
        assert line == (
            "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, "
            "you must use the 'spawn' start method"
        )
    assert lines[7] == "[2.0, 2.0]"


def test_fork_before_the_runtime_starts_is_fine(run_python):
    out = run_python(
        """
        import os, sys
        import torch, torchtpu
        print(torch.tpu.is_available(), flush=True)
        pid = os.fork()
        line = f"{torch.ones(2, device='tpu').sum().item()}\\n"
        os.write(1, line.encode())  # in one piece: both processes write
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        """,
        TORCHTPU_PLATFORM="cpu",
    )
    assert out.splitlines() == ["True", "2.0", "2.0"]
