"""The demo's model and data, on the device and on the CPU."""

import copy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
gpt_model = pytest.importorskip("gpt_model")

CONFIG = gpt_model.GPTConfig(vocab=97, blocks=2, width=32, heads=4, length=16)


@pytest.fixture(scope="module")
def text():
    return gpt_model.Text(limit=50_000)


def model():
    torch.manual_seed(0)
    return gpt_model.GPT(CONFIG)


def train(model, text, device, steps=3):
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = gpt_model.learning_rate(step, steps, warm_up=2)
        x, y = text.batch(4, CONFIG.length, generator)
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack([loss.cpu() for loss in losses])


def test_text_is_the_standard_library(text):
    whole = torch.cat([text.train, text.validation])
    assert text.files > 50
    assert len(whole) >= 50_000
    assert whole.min() >= 0 and whole.max() < text.vocab
    assert text.decode(text.encode("def f(x):\n    return x\n").tolist()) == "def f(x):\n    return x\n"
    assert text.decode(text.encode("é").tolist()) == "\N{REPLACEMENT CHARACTER}"


def test_targets_are_one_character_on(text):
    x, y = text.batch(4, 16, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (4, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_demo_model_has_the_advertised_size(text):
    count = sum(p.numel() for p in gpt_model.GPT(gpt_model.GPTConfig(text.vocab)).parameters())
    assert 0.75e6 < count < 0.85e6


def test_model_file_knows_no_device():
    source = (ROOT / "examples" / "gpt_model.py").read_text()
    assert "torchtpu" not in source and '"tpu"' not in source


def test_learning_rate_warms_up_and_falls():
    rates = [gpt_model.learning_rate(i, 1000, peak=1.0, warm_up=10) for i in range(1000)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_losses_match_the_cpu(text, mode):
    import torchtpu

    expected = train(model(), text, "cpu")
    with torchtpu.eager_mode(mode):
        found = train(model(), text, "tpu")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_debug_and_strict_agree_to_the_bit(text):
    import torchtpu

    found = []
    for mode in ("debug", "strict"):
        with torchtpu.eager_mode(mode):
            found.append(train(model(), text, "tpu"))
    assert torch.equal(*found)


def test_weights_stay_tied_on_the_device():
    moved = model().to("tpu")
    assert moved.head.weight is moved.tokens.weight


def test_generation_on_the_device(text):
    prompt = text.validation[: CONFIG.length][None].to("tpu")
    made = model().to("tpu").generate(prompt, 5)
    assert made.shape == (1, 5) and made.device.type == "tpu"
    assert all(0 <= token < CONFIG.vocab for token in made[0].tolist())
