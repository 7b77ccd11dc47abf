"""The conformance runner itself: layouts, comparison, exceptions, crashes, time-outs, resuming."""

import json
import math

import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput

from conformance import catalogue, checks, compare, exceptions, report, runner, samples


def _inputs(*args, **kwargs):
    return samples.Inputs("name", SampleInput(args[0], args=args[1:], kwargs=kwargs))


def test_move_keeps_the_layout():
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base.t(), base[1:, ::2], base[:1].expand(4, 6), base[:, 2], torch.empty(0, 3), torch.tensor(2.0)):
        moved = samples.move(view, "tpu")
        assert moved.stride() == view.stride() and moved.storage_offset() == view.storage_offset()
        assert torch.equal(moved.cpu(), view)
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert samples.move(conjugate, "tpu").is_conj()


def test_changed_inputs():
    inputs = _inputs(torch.randn(3, 4, requires_grad=True), torch.tensor([1, 2]), dim=1)
    gaps = samples.noncontiguous(inputs)
    assert torch.equal(gaps.input, inputs.input) and not gaps.input.is_contiguous() and gaps.input.requires_grad
    spread = samples.expanded(inputs, batch_only=False)
    assert spread.input.stride()[0] == 0 and torch.equal(spread.args[0], inputs.args[0])
    assert samples.expanded(inputs, batch_only=True) is None
    assert samples.choose(list(range(10)), 3) == [0, 4, 9]


def test_values_and_the_second_look():
    want = torch.tensor([1.0, 2.0])
    compare.values("add", None, [want + 1e-6], [want])
    with pytest.raises(compare.Different):
        compare.values("add", None, [want + 1e-3], [want])
    # The CPU is off by 1e-2 itself: so may we.
    compare.values("add", None, [want + 1e-3], [want], lambda: [want.double() + 1e-2])
    with pytest.raises(compare.Different):
        compare.values("add", None, [want + 1e-1], [want], lambda: [want.double() + 1e-2])
    with pytest.raises(compare.Different):
        compare.values("add", None, [torch.tensor([1.0, float("nan")])], [want], lambda: [want.double()])
    with pytest.raises(compare.Different):
        compare.same_kind(want.double(), want)


def test_a_wrong_operator_is_found():
    class Wrong:
        decorators = ()
        supports_autograd = False

        @staticmethod
        def op(x):
            return x + 1 if x.device.type == "cpu" else x + 2

    entry = catalogue.Entry("op", "wrong", "family", Wrong)
    with pytest.raises(compare.Different):
        checks.judge(checks.forward, entry, _inputs(torch.ones(2)))


def test_exceptions_are_judged_both_ways(tmp_path):
    path = tmp_path / "exceptions.toml"
    path.write_text('[[exception]]\nnames = ["a"]\nchecks = ["forward"]\nreason = "because"\n')
    rules = exceptions.load(path)
    result = {"key": "a", "dtype": "float32", "check": "forward", "outcome": "fail"}
    assert exceptions.judge([result], rules) == ([], [])
    passing = {**result, "outcome": "pass"}
    assert exceptions.judge([passing], rules) == ([], [passing])
    other = {**result, "check": "out"}
    assert exceptions.judge([other], rules) == ([other], [])
    path.write_text('[[exception]]\nnames = ["a"]\n')
    with pytest.raises(ValueError, match="reason"):
        exceptions.load(path)


def test_every_listed_name_exists():
    known = {entry.key for entry in catalogue.entries()}
    for rule in exceptions.load():
        assert rule.names <= known, rule.names - known


def test_crashes_and_time_outs_count_against_the_operator(monkeypatch):
    spoken = []

    class Process:
        """A worker that ends at the first case and is silent at the second."""

        served = 0

        def __init__(self, mode):
            self.lines = []

        def send(self, request):
            self.lines = [{"begin": request["cases"][0]}]
            if request["cases"][0][1] == "out":
                self.lines += [{"key": "a", "dtype": "float32", "check": "out", "outcome": "pass"}, {"done": "a"}]

        def read(self, limit):
            return self.lines.pop(0) if self.lines else None

        def ended(self):
            spoken.append(1)
            return "crash: the process ended with status -11" if len(spoken) == 1 else "timeout"

        def close(self):
            pass

    monkeypatch.setattr(runner, "_Worker", Process)
    cases = [("float32", c) for c in ("forward", "gradient", "out")]
    options = {"mode": "strict", "samples": 1, "limit": 1.0}
    found = list(runner._serve("a", cases, [None], options))
    assert [r["outcome"] for r in found] == ["crash", "timeout", "pass"]


def test_a_run_is_resumed(tmp_path):
    path = tmp_path / "results.jsonl"
    entries = catalogue.select(["add", "neg"])
    options = {"dtypes": ["float32"], "checks": ("forward",), "samples": 1, "results": path}
    first = runner.run(entries, **options)
    assert sorted(r["outcome"] for r in first) == ["pass", "pass"]
    path.write_text(path.read_text() + '{"key": "cut')
    told = []
    again = runner.run(entries, tell=told.append, **options)
    assert not told and len(again) == 2
    assert "2" in report.summary(again)
    assert json.loads(path.read_text().splitlines()[0])["key"] == "add"


def test_shards_cover_everything_once():
    whole = [e.key for e in catalogue.select()]
    parts = [e.key for i in (1, 2, 3) for e in catalogue.select(shard=(i, 3))]
    assert sorted(parts) == sorted(whole) and len(set(whole)) == len(whole)
    with pytest.raises(ValueError, match="unknown"):
        catalogue.select(["no_such_operator"])


def test_ties_are_judged_by_what_the_indices_point_at():
    x = torch.tensor([[2, 1, 1], [3, 3, 0]])
    for name, args in (("sort", (1,)), ("topk", (2, 1)), ("kthvalue", (2, 1)), ("mode", (1,)), ("median", (1, True))):
        values, index = getattr(torch, name)(x, *args)
        got = compare.gathered(name, (values, index), (x, args, {}))
        assert torch.equal(got[0], values) and torch.equal(got[1], values), name
        assert compare.has_ties(name, (x, args, {}))
    assert not compare.has_ties("sort", (torch.tensor([1.0, 2.0]), (), {}))


def test_where_the_cpu_alone_overflows_the_reference_decides():
    want, reference = torch.tensor([math.nan, 1.0]), torch.tensor([50.0, 1.0], dtype=torch.float64)
    compare.values("op", None, [torch.tensor([50.0, 1.0])], [want], lambda: [reference])
    with pytest.raises(compare.Different):
        compare.values("op", None, [torch.tensor([51.0, 1.0])], [want], lambda: [reference])
    pole = torch.tensor([1e33, 1.0], dtype=torch.float64)
    compare.values("op", None, [torch.tensor([math.inf, 1.0])], [torch.tensor([7e14, 1.0])], lambda: [pole])
