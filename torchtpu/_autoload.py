"""Registers the `tpu` device with PyTorch.

PyTorch calls `autoload` near the end of `import torch` (entry point `torch.backends`), so this is light: it loads
the native core and names things; JAX is imported when the first tensor is made.
"""

from __future__ import annotations

import sys
import warnings

_registered = False


def autoload() -> None:
    """The entry point. What stands in the way of the device is a warning here: otherwise nothing that imports torch
    would run, rebuilding the native core included. `import torchtpu` raises the error of a core that does not load,
    the first use of the device that of a setting; PyTorch would bury both under an error of its own."""
    try:
        register()
    except ValueError as error:  # what `config.check` says
        warnings.warn(f"the tpu device cannot be used: {error}", stacklevel=2)
    except ImportError as error:
        warnings.warn(
            f"the tpu device is not available: torchtpu's native core could not be loaded ({error}). "
            "Rebuild it for this version of PyTorch: pip install --no-build-isolation --force-reinstall torchtpu",
            stacklevel=2,
        )


def register() -> None:
    """Registers the device; does nothing the second time.

    Raises ImportError when the native core is missing or was built for another PyTorch, RuntimeError when another
    package has taken PyTorch's one place for a device from outside, ValueError for a bad TORCHTPU_* variable.
    """
    global _registered
    import torch  # where this is the first import of it, the entry point registers the device

    if _registered:
        return
    taken = torch._C._get_privateuse1_backend_name()
    other = sys.modules.get("torch.tpu")
    if taken not in ("privateuseone", "tpu") or other is not None:
        owner = f" (torch.tpu is {other.__name__})" if other is not None else ""
        raise RuntimeError(
            f"torchtpu cannot register its device: PyTorch has one place for a device from outside, and another "
            f"package has taken it as '{taken}'{owner}. Uninstall one of the two, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the one that you want."
        )
    from torchtpu import _C  # noqa: F401  (registers guard, hooks, allocator and operators)

    if taken != "tpu":
        torch.utils.rename_privateuse1_backend("tpu")
    from torchtpu import device

    torch._register_device_module("tpu", device)
    _registered = True
    if not hasattr(torch.Tensor, "is_tpu"):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    from torchtpu.eager import install

    install()
