"""Fixtures that all tests share."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest

import torchtpu


def pytest_configure(config):
    """One compile cache for the session, all its workers and the processes that tests start; never the user's."""
    if not hasattr(config, "workerinput"):
        config.torchtpu_cache = os.environ["TORCHTPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="torchtpu-tests-")


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.torchtpu_cache, ignore_errors=True)


@pytest.fixture(params=["debug", "strict", "fused"])
def mode(request):
    """Runs a test once in each eager mode."""
    with torchtpu.eager_mode(request.param):
        yield request.param


@pytest.fixture
def run_python():
    """Runs Python code in a process of its own and returns its standard output.

    `run_python(code, fails=False, NAME="value", …)`: keywords set environment variables (None removes one). With
    `fails` the process must fail, and its standard error is returned.
    """

    def run(code, fails=False, **environment):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        # The process imports what this one does, installed or not.
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        for name, value in environment.items():
            env.pop(name, None)
            if value is not None:
                env[name] = str(value)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=300
        )
        assert (done.returncode != 0) == fails, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if fails else done.stdout

    return run
