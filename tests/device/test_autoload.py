"""Registration. Each test has a process of its own, as this can be done once in a process."""

import importlib.metadata

import pytest

INSTALLED = any(e.name == "torchtpu" for e in importlib.metadata.entry_points(group="torch.backends"))
needs_install = pytest.mark.skipif(not INSTALLED, reason="torchtpu is not installed: no entry point")


@needs_install
def test_importing_torch_is_enough(run_python):
    out = run_python(
        """
        import sys, torch
        print("jax" in sys.modules)
        print(torch.ones(2, device="tpu").sum().item(), torch.randn(3, device="tpu").is_tpu)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=None,
    )
    assert out.splitlines() == ["False", "2.0 True"]


def test_switched_off_then_imported_by_hand(run_python):
    out = run_python(
        """
        import torch
        print(hasattr(torch, "tpu"))
        import torchtpu
        print(torch.ones(2).to("tpu").device)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
    )
    assert out.splitlines() == ["False", "tpu:0"]


@pytest.mark.parametrize("autoload", [0, 1])
def test_the_package_first(run_python, autoload):
    out = run_python(
        """
        import torchtpu, torch
        print(torchtpu.__version__, torchtpu.get_eager_mode(), torch.ones(1).tpu().device)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
        TORCHTPU_EAGER_MODE=None,
    )
    assert out.split() == ["0.1.0", "fused", "tpu:0"]


def test_idempotent(run_python):
    run_python(
        """
        import torchtpu, torch
        from torchtpu._autoload import autoload, register
        before = torch.tpu
        autoload(); register(); autoload()
        assert torch.tpu is before and torch._C._get_privateuse1_backend_name() == "tpu"
        """
    )


def test_another_package_has_the_place(run_python):
    error = run_python(
        """
        import torch
        torch.utils.rename_privateuse1_backend("toaster")
        import torchtpu
        """,
        fails=True,
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
    )
    assert "another package has taken it as 'toaster'" in error


def test_unknown_mode(run_python):
    error = run_python("import torchtpu", fails=True, TORCHTPU_EAGER_MODE="quick", TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert "TORCHTPU_EAGER_MODE='quick' is not valid: expected one of debug, strict, fused" in error


@needs_install
@pytest.mark.parametrize(
    ("name", "value"), [("TORCHTPU_EAGER_MODE", "quick"), ("TORCHTPU_MAX_WINDOW", "x"), ("TORCHTPU_FALLBACK", "maybe")]
)
def test_bad_setting_stops_the_device_and_not_pytorch(run_python, name, value):
    out = run_python(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        print([str(w.message) for w in caught if "tpu" in str(w.message)])
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
        print(x.grad.tolist())
        for use in (torch.tpu.is_available, torch.tpu.init, lambda: torch.ones(1, device="tpu"), lambda: x.to("tpu")):
            try:
                use()
                print("no error")
            except ValueError as error:
                print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=None,
        TORCHTPU_PLATFORM="cpu",
        **{name: value},
    )
    warned, grad, *errors = out.splitlines()
    said = f"{name}={value!r} is not valid: expected "
    assert f"the tpu device cannot be used: {said}" in warned
    assert grad == "[2.0, 2.0]"
    assert len(errors) == 4 and all(error.startswith(said) for error in errors)


def test_public_names():
    import torchtpu

    for name in torchtpu.__all__:
        assert getattr(torchtpu, name) is not None
    assert set(torchtpu.__all__) <= set(dir(torchtpu))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torchtpu.nothing  # noqa: B018
