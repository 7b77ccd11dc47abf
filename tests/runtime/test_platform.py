import pytest

from torchtpu.runtime import client, platform


def test_client():
    assert client.platform() in platform.ORDER
    assert client.device_count() == len(client.devices()) >= 1
    assert client.device(0) is client.devices()[0]
    with pytest.raises(RuntimeError, match="Invalid device index 99"):
        client.device(99)
    free, total = client.memory_info(0)
    assert 0 <= free <= total


def test_several_cpu_devices(run_python):
    out = run_python(
        """
        import torch, torchtpu
        print(torch.tpu.device_count(), torch.tpu.is_initialized())
        tensors = [torch.full((2,), i, device=f"tpu:{i}") for i in range(4)]
        print([str(t.device) for t in tensors], [t.tolist() for t in tensors])
        moved = tensors[3].to("tpu:1")
        print(moved.device, moved.tolist(), (moved + tensors[1]).tolist())
        with torch.tpu.device(2):
            print(torch.tpu.current_device(), torch.empty(1, device="tpu").device)
        print(torch.tpu.current_device())
        try:
            torch.empty(1, device="tpu:4")
        except RuntimeError as error:
            print(error)
        states = torch.tpu.get_rng_state_all()
        torch.manual_seed(5)
        print(len(states), [g.initial_seed() for g in torch.tpu.default_generators])
        """,
        TORCHTPU_CPU_DEVICES=4,
        TORCHTPU_PLATFORM="cpu",
    )
    lines = out.splitlines()
    assert lines[0] == "4 False"
    assert lines[1] == "['tpu:0', 'tpu:1', 'tpu:2', 'tpu:3'] [[0, 0], [1, 1], [2, 2], [3, 3]]"
    assert lines[2] == "tpu:1 [3, 3] [4, 4]"
    assert lines[3:5] == ["2 tpu:2", "0"]
    assert "4" in lines[5] and "device" in lines[5]
    assert lines[6] == "4 [5, 5, 5, 5]"


def test_too_few_devices_because_jax_runs_already(run_python):
    error = run_python(
        """
        import jax
        jax.numpy.ones(1)
        import torch, torchtpu
        torch.ones(1, device="tpu")
        """,
        fails=True,
        TORCHTPU_CPU_DEVICES=3,
        TORCHTPU_PLATFORM="cpu",
    )
    assert "TORCHTPU_CPU_DEVICES=3, but JAX was already running in this process with 1 CPU device." in error


@pytest.mark.parametrize("name", ["tpu", "cuda"])
def test_missing_platform_says_what_to_install(run_python, name):
    try:
        import jax

        pytest.skip(f"this machine has a {name} device: {jax.local_devices(backend=name)[0]}")
    except RuntimeError:
        pass
    out = run_python(
        """
        import torch, torchtpu
        print(torch.tpu.is_available(), torch.tpu.device_count(), torch.device("tpu", 0))
        try:
            torch.ones(1, device="tpu")
        except RuntimeError as error:
            print(error)
        print(torch.ones(1))
        """,
        TORCHTPU_PLATFORM=name,
    )
    lines = out.splitlines()
    assert lines[0] == "False 0 tpu:0"
    assert f"no device on platform '{name}' (TORCHTPU_PLATFORM={name})" in lines[1]
    assert f"pip install 'torchtpu[{name}]'" in lines[1]
    assert lines[-1] == "tensor([1.])"


def test_users_jax_keeps_its_settings(run_python):
    out = run_python(
        """
        import torch, torchtpu
        x = torch.arange(3, device="tpu") * 2
        y = torch.ones(2, dtype=torch.float64, device="tpu").sum()
        print(x.tolist(), y.item())
        import jax, jax.numpy as jnp
        print(jnp.arange(3).dtype, jnp.ones(1).dtype, jax.config.jax_enable_x64)
        """
    )
    assert out.splitlines() == ["[0, 2, 4] 2.0", "int32 float32 False"]


def test_light_until_the_first_tensor(run_python):
    out = run_python(
        """
        import sys, torch, torchtpu
        torch.manual_seed(1)
        torch.ones(2, requires_grad=True).sum().backward()  # the autograd engine counts devices
        torch.Generator(device="tpu")
        print("jax" in sys.modules, torch.tpu.is_initialized(), torch.tpu.is_available())
        torch.ones(1, device="tpu")
        print("jax" in sys.modules, torch.tpu.is_initialized())
        """,
        TORCHTPU_PLATFORM="cpu",
    )
    assert out.splitlines() == ["False False True", "True True"]
