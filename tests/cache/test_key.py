"""What is part of a program's key, and what is not."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import torchtpu
from torchtpu.cache import key
from torchtpu.cache.store import store

# Each function records one program; all must have different keys, and the same ones in every process.
KEYS = """
import json, sys
import torch, torchtpu
from torchtpu.cache.store import store

def f(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).to("tpu")

variants = {
    "add": lambda: f(3, 5) + f(3, 5),
    "one operand twice": lambda: (lambda a: a + a)(f(3, 5)),
    "sub": lambda: f(3, 5) - f(3, 5),
    "scalar": lambda: f(3, 5) + 2.5,
    "int scalar": lambda: f(3, 5) + 2,
    "shape": lambda: f(3, 6) + f(3, 6),
    "rank": lambda: f(3, 5, 1) + f(3, 5, 1),
    "broadcast": lambda: f(3, 5) + f(5),
    "dtype": lambda: f(3, 5, dtype=torch.float64) + f(3, 5, dtype=torch.float64),
    "mixed": lambda: f(3, 5) + f(3, 5, dtype=torch.float64),
    "strides": lambda: f(5, 3).t() + f(3, 5),
    "offset": lambda: f(4, 5)[1:] + f(3, 5),
    "static": lambda: f(3, 5).sum(0),
    "another static": lambda: f(3, 5).sum(1),
    "keepdim": lambda: f(3, 5).sum(0, keepdim=True),
    "in place": lambda: f(3, 5).add_(f(3, 5)),
    "overload": lambda: torch.max(f(3, 5), 1),
    "LAPACK": lambda: torch.linalg.qr(f(3, 5))[1].cpu(),  # its functions have to be found in a process that lowers nothing
    "other overload": lambda: torch.max(f(3, 5)),
}
found = {}
for name, run in variants.items():
    before = set(store().keys())
    held = run()
    torchtpu.synchronize()
    found[name] = sorted(set(store().keys()) - before)
with torchtpu.eager_mode("fused"):
    def window(keep):
        for _ in range(2):  # at sight of the second it is compiled
            a = f(7)
            b = a * 2
            c = b + a
            held = (a, b, c) if keep else (a, c)
            del b
            torchtpu.synchronize()
            torchtpu.wait_for_compiles()
    for keep in (False, True):
        before = set(store().keys())
        window(keep)
        found[f"window {keep}"] = sorted(set(store().keys()) - before)
print(json.dumps([found, torchtpu.compile_count()]))
"""


def test_what_is_computed_decides_and_nothing_else(run_python, tmp_path):
    """Each change of the program is another key; another process, folder, user, rank, hash seed or line is not."""
    first, compiles = json.loads(run_python(KEYS, PYTHONHASHSEED="1", TORCHTPU_CACHE_DIR=tmp_path / "cache"))
    assert compiles > 0
    everything = [k for keys in first.values() for k in keys]
    assert all(first[name] for name in first if name != "window True"), first
    assert len(everything) == len(set(everything))
    assert first["window True"]  # a tensor alive that was not

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = {"RANK": "3", "LOCAL_RANK": "3", "USER": "somebody", "HOME": str(elsewhere), "PYTHONHASHSEED": "2"}
    moved = "import os\n" + "\n" * 50 + f"os.chdir({str(elsewhere)!r})\n" + KEYS
    second, compiles = json.loads(run_python(moved, TORCHTPU_CACHE_DIR=tmp_path / "cache", **other))
    assert second == first
    assert compiles == 0


def test_a_program_serves_every_device_of_its_kind(run_python, tmp_path):
    out = run_python(
        """
        import torch, torchtpu
        for i in range(3):
            x = torch.arange(6.0).to(f"tpu:{i}")
            y = torch.full((6,), 2.0, device=f"tpu:{i}")
            assert (x * y).tolist() == [0, 2, 4, 6, 8, 10] and (x * y).device.index == i
            print(torchtpu.compile_count())
        """,
        TORCHTPU_CPU_DEVICES=3, TORCHTPU_CACHE_DIR=tmp_path,
    )
    assert len(set(out.split())) == 1


def test_values_keep_their_type():
    values = [1, 1.0, True, "1", None, [1], [[1]], 0.0, -0.0, float("nan"), 1 + 0j, torch.float32, torch.float64, torch.strided]
    texts = [key.dump(key.plain(v)) for v in values]
    assert len(set(texts)) == len(values)
    with pytest.raises(key.NotCacheableError):
        key.plain(object())


def _environment(**options):
    import jax

    return key.environment(jax.devices("cpu")[0], options)


DESCRIPTION = {"operations": [{"op": "aten::neg"}], "nodes": [[0, [2], 0, 0]]}


@pytest.mark.parametrize("name", ["torchtpu", "lowerings", "torch", "jax", "jaxlib", "platform", "device", "client", "cpu", "processors", "XLA_FLAGS"])
def test_versions_device_and_options_are_part_of_it(name):
    environment = _environment()
    assert key.digest(DESCRIPTION, {**environment, name: "another"}) != key.digest(DESCRIPTION, environment)


def test_options_that_change_code_are_part_of_it():
    import jax

    keys = {key.digest(DESCRIPTION, _environment())}
    keys.add(key.digest(DESCRIPTION, _environment(xla_allow_excess_precision=True)))
    keys.add(key.digest(DESCRIPTION, _environment(xla_allow_excess_precision=False)))
    with jax.default_matmul_precision("bfloat16"):
        keys.add(key.digest(DESCRIPTION, _environment()))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        keys.add(key.digest(DESCRIPTION, _environment()))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(keys) == 5
    with jax.log_compiles(True):  # how loud JAX is changes nothing
        assert key.digest(DESCRIPTION, _environment()) in keys


def test_flags_of_xla_count_once_and_in_no_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_b=1 --xla_dump_to=/somewhere --xla_a=2 --xla_b=3")
    assert key._xla_flags("XLA_FLAGS") == ["--xla_a=2", "--xla_b=3"]


def test_the_number_of_processors_is_what_this_process_may_use(monkeypatch):
    import os

    monkeypatch.delenv("NPROC", raising=False)
    assert key.processors() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("NPROC", "3")
    assert key.processors() == 3


def test_the_lowerings_sources_are_part_of_it(monkeypatch, tmp_path):
    root = Path(torchtpu.__file__).parent
    for part in ("lowering", "program"):
        shutil.copytree(root / part, tmp_path / part)
    before = key.code_digest()
    monkeypatch.setattr(torchtpu, "__file__", str(tmp_path / "__init__.py"))
    digest = key.code_digest.__wrapped__
    assert digest() == before  # the folder is not part of it
    with open(tmp_path / "lowering" / "matmul.py", "a") as file:
        file.write("\n")
    assert digest() != before


def test_the_digest_begins_with_what_is_alike():
    environment = _environment()
    other = {**DESCRIPTION, "nodes": [[0, [4], 0, 0]]}
    a, b = key.digest(DESCRIPTION, environment), key.digest(other, environment)
    c = key.digest(DESCRIPTION, {**environment, "jax": "another"})
    assert a[:16] == b[:16] and a[16:48] != b[16:48] and a[48:] == b[48:]
    assert a[:48] == c[:48] and a[48:] != c[48:]
    assert len(a) == 80


def test_a_lowering_of_somebody_else_stays_in_the_process(monkeypatch):
    """Its code can change without a version of ours."""
    from torchtpu.lowering import registry

    entry = registry.find(torch.ops.aten.lgamma.default)

    def foreign(self):
        return entry.fn(self)

    monkeypatch.setitem(registry._table, "lgamma", registry.Lowering(foreign, entry.kind))
    assert registry.is_foreign(torch.ops.aten.lgamma.default) and not registry.is_foreign(torch.ops.aten.neg.default)
    torchtpu.synchronize()
    torchtpu.wait_for_compiles()  # of tests before this one
    before = store().keys()
    torch.lgamma(torch.ones(17).to("tpu")).cpu()
    assert store().keys() == before


def test_no_pickle_in_the_package():
    sources = Path(torchtpu.__file__).parent.rglob("*.py")
    names = [str(p) for p in sources if "import pickle" in p.read_text()]
    assert names == []
