import torch

import torchtpu


def test_nothing_compiles_after_a_warm_up(mode):
    model = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.Dropout(0.5)).to("tpu")
    sizes = {"debug": 21, "strict": 22, "fused": 23}
    x = torch.ones(sizes[mode], 7).to("tpu")

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        model.zero_grad()
        return loss.item()

    state, cpu_state = torch.tpu.get_rng_state(), torch.get_rng_state()
    assert torchtpu.warmup(step, x) > 0
    assert torch.equal(torch.tpu.get_rng_state(), state) and torch.equal(torch.get_rng_state(), cpu_state)
    with torchtpu.forbid_compiles():
        step(x)
    assert torchtpu.warmup(step, x) == 0


def test_a_function_whose_programs_never_settle_ends():
    sizes = iter(range(301, 400))

    def grow():
        n = next(sizes)
        return (torch.ones(n).to("tpu") * 2).sum().item()

    assert torchtpu.warmup(grow) > 0
    assert next(sizes) < 320
