"""Property: a random program over views and in-place writes gives the CPU's result in every mode."""

import os

import hypothesis
import hypothesis.strategies as st
import torch

import torchtpu
from tests.properties import programs

_step = st.tuples(st.integers(0, 6), st.integers(0, 11), st.integers(0, 40), st.integers(0, 40))
_settings = hypothesis.settings(
    max_examples=int(os.environ.get("PROGRAMS", "40")), deadline=None, derandomize="PROGRAMS" not in os.environ,
    suppress_health_check=list(hypothesis.HealthCheck), database=None,
)


@_settings
@hypothesis.given(st.lists(_step, min_size=5, max_size=40), st.integers(0, 4), st.integers(0, 2))
def test_strict(program, shape, dtype):
    with torchtpu.eager_mode("strict"):
        assert programs.difference(program, shape, dtype) is None


@_settings
@hypothesis.given(st.lists(_step, min_size=5, max_size=40), st.integers(0, 4), st.integers(0, 2))
def test_debug(program, shape, dtype):
    with torchtpu.eager_mode("debug"):
        assert programs.difference(program, shape, dtype) is None


@_settings
@hypothesis.given(st.lists(_step, min_size=5, max_size=40), st.integers(0, 4), st.integers(0, 2))
def test_fused_from_parts(program, shape, dtype):
    """The first sight of a window runs from the executables of its parts."""
    with torchtpu.eager_mode("fused"):
        assert programs.difference(program, shape, dtype) is None


@hypothesis.settings(_settings, max_examples=max(4, _settings.max_examples // 20))
@hypothesis.given(st.lists(_step, min_size=5, max_size=40), st.integers(0, 4), st.integers(0, 2))
def test_fused_as_one_program(program, shape, dtype):
    with torchtpu.eager_mode("fused"):
        for _ in range(3):  # compiled at the second sight
            result = programs.difference(program, shape, dtype)
            torchtpu.wait_for_compiles()
            assert result is None
        torch.tpu.synchronize()
