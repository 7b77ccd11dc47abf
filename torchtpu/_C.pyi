"""The native core, built from csrc/. For type checkers: everything in it is Any."""

from typing import Any

def __getattr__(name: str) -> Any: ...
