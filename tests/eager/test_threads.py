"""Threads, autograd's own thread, and the end of the process."""

import subprocess
import sys
import threading

import pytest
import torch


def test_many_threads_record_at_once(mode):
    errors, results = [], {}

    def work(k):
        try:
            x = torch.full((16, 16), float(k), device="tpu")
            for _ in range(20):
                x = (x @ x) / (x.abs().sum() + 1) + k
            y = x.clone().requires_grad_()
            (y * y).sum().backward()
            results[k] = (x.cpu(), y.grad.cpu())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors and len(results) == 6
    for k, (x, grad) in results.items():
        want = torch.full((16, 16), float(k))
        for _ in range(20):
            want = (want @ want) / (want.abs().sum() + 1) + k
        torch.testing.assert_close(x, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(grad, 2 * x)


EXITS = {
    "pending work": "x = torch.ones(4, device='tpu') + 1",
    "thread": "import threading; threading.Thread(target=lambda: (torch.ones(4, device='tpu') + 1).cpu()).start()",
    "background compile": "\nfor _ in range(3):\n    x = torch.ones(4, device='tpu')\n    for i in range(300):\n        x = x * 1.5 + 1\n    x.cpu()",
    "exception": "x = torch.ones(4, device='tpu'); raise SystemExit(0)",
    "globals hold tensors": "model = torch.nn.Linear(3, 3).to('tpu'); y = model(torch.ones(1, 3, device='tpu')); y.sum().backward()",
}


@pytest.mark.parametrize("name", EXITS)
@pytest.mark.parametrize("which", ["strict", "fused"])
def test_the_interpreter_ends_cleanly(name, which):
    code = f"import torch, torchtpu\ntorchtpu.set_eager_mode('{which}')\n{EXITS[name]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def test_tensors_die_without_the_gil(mode):
    """Autograd drops saved tensors on its own thread."""
    for _ in range(5):
        x = torch.randn(64, 64, device="tpu", requires_grad=True)
        y = x
        for _ in range(10):
            y = torch.tanh(y @ x)
        y.sum().backward()
        del y
    assert torch.isfinite(x.grad).all().item()
