"""The cache as users meet it: in new processes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

# Trains a little, and prints the losses, how much was compiled, what was loaded from where, and the cache's warnings.
TRAIN = """
import json, warnings
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torchtpu
    from torchtpu.program.stats import loads
    torch.manual_seed(0)
    w = torch.randn(6, 5).to("tpu").requires_grad_()
    x = torch.ones(3, 6).to("tpu")
    losses = []
    for _ in range(3):
        loss = (x @ w).tanh().square().mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
        losses.append(loss.item())
        torchtpu.wait_for_compiles()
    try:
        torch.nn.functional.embedding(torch.tensor([1, 9]).to("tpu"), w.detach()).sum().item()
    except IndexError as error:
        losses.append(str(error))
    warned = [str(w.message) for w in caught if "compile cache" in str(w.message)]
print(json.dumps([losses, torchtpu.compile_count(), loads(), warned]))
"""


def test_a_second_process_compiles_nothing(run_python, tmp_path):
    settings = {"TORCHTPU_CACHE_DIR": tmp_path, "TORCHTPU_EAGER_MODE": "fused"}
    losses, compiles, loaded, warned = json.loads(run_python(TRAIN, **settings))
    assert compiles > 10 and not warned and set(loaded) <= {"memory"} and len(losses) == 4
    again, compiles, loaded, warned = json.loads(run_python(TRAIN, **settings))
    assert again == losses
    assert compiles == 0 and loaded["disk"] > 10 and not warned


def test_processes_that_start_together_compile_each_program_once(run_python, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHTPU_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", TRAIN]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [json.loads(process.communicate(timeout=200)[0]) for process in processes]
    assert all(losses == outputs[0][0] for losses, *_ in outputs)
    assert sum(compiles for _, compiles, *_ in outputs) == len(list(tmp_path.rglob("*.entry")))
    assert not any(warned for *_, warned in outputs)
    losses, compiles, _, _ = json.loads(run_python(TRAIN, TORCHTPU_CACHE_DIR=tmp_path))
    assert losses == outputs[0][0] and compiles == 0


def test_damaged_files_are_misses(tmp_path, monkeypatch):
    """A few of what `make fuzz` does."""
    path = Path(__file__).parents[2] / "scripts" / "fuzz_cache.py"
    spec = importlib.util.spec_from_file_location("fuzz_cache", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.fuzz(400, seed=3, root=tmp_path)
