"""A slice of the conformance run: every operator and module, one sample, in worker processes as in the full run."""

import pytest

from conformance import catalogue, exceptions, runner


def _run(shard=(1, 1), **options):
    entries = catalogue.select(shard=shard)
    results = runner.run(entries, samples=1, limit=60.0, **options)
    assert len(results) > len(entries) / 2
    failures, _ = exceptions.judge(results, exceptions.load())
    lines = [f"{r['key']} {r['dtype']} {r['check']}: {r['outcome']} {r.get('error', '')}" for r in failures]
    assert not lines, "\n" + "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2, 3, 4])
def test_float32_forward_and_gradient(part):
    _run(shard=(part, 4), dtypes=["float32"], checks=("forward", "gradient"))


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2])
def test_half_and_integer_forward(part):
    _run(shard=(part, 2), dtypes=["bfloat16", "int64"], checks=("forward",))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["debug", "fused"])
def test_other_modes(mode):
    _run(shard=(1, 8), mode=mode, dtypes=["float32"], checks=("forward", "gradient"))
