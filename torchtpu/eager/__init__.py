"""Eager execution: modes, errors and the connection between the native core and the Python packages."""

from torchtpu.eager.install import install

__all__ = ["install"]
