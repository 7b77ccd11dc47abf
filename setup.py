"""Builds torchtpu._C against the torch that is installed. All else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
COMMANDS_THAT_COMPILE = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install", "develop"}

NO_TORCH = """\
torchtpu: building needs torch (2.11 to 2.14), and it must be the torch that you'll run with.
Install it first, then install torchtpu without build isolation:
    pip install -r requirements.txt
    pip install --no-build-isolation -e .
"""


def sources(pattern):
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").glob(pattern))


def extension():
    """The extension and the command that builds it; torch is imported here and nowhere else."""
    # An installed torchtpu would load itself (and maybe a stale _C) when torch is imported.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        raise SystemExit(f"{NO_TORCH}({error})") from error
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    module = CppExtension(
        "torchtpu._C",
        sources("*.cpp"),
        include_dirs=[str(ROOT / "csrc")],
        depends=[*sources("*.h"), *sources("*.inc")],
        extra_compile_args=["-O2", "-std=c++20", "-fvisibility=hidden", "-g0"],
    )
    return {"ext_modules": [module], "cmdclass": {"build_ext": BuildExtension}}


# Metadata and source archives need no compiler. TORCHTPU_NO_EXTENSION=1 registers an editable
# install without compiling (scripts/set_up.py does, then compiles incrementally).
compiles = COMMANDS_THAT_COMPILE.intersection(sys.argv[1:]) and os.environ.get("TORCHTPU_NO_EXTENSION") != "1"
setup(**(extension() if compiles else {}))
