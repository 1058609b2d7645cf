"""Makes the golden checkpoints: tiny random GPT-2s of odd shapes and what transformers computes with them.

Each variant becomes a folder beside this file: a checkpoint as `save_pretrained` writes it, and `expected.safetensors`
(`reference.py` says what is in it; it is not part of the checkpoint). The same versions on the same kind of machine
give the same bytes. `make goldens` runs this through `rebuild.sh`, in the Python that `requirements.txt` pins.
"""

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

import reference

PROMPTS = 12
LONGEST_PROMPT = 20
STEPS = 12
# At least this share of a variant's answers begin with tokens of their own,
DISTINCT_SHARE = 0.75
# and no choice is closer than this, many times what float32 rounding moves a logit: any correct engine agrees.
CLEAR_GAP = 2e-3

END_OF_TEXT = "<|endoftext|>"
MERGES = 24
TEXT = """\
how to grow tomatoes in a small garden and when to water the plants in the summer heat, where to find the best running
shoes for flat feet, what is the weather in the north this weekend, the cheapest train from the city to the sea, how long
to boil an egg, how to learn the guitar in thirty days, is there a pharmacy near the station that is open on Sunday, why
is the sky blue, the name of the song in the film about the lighthouse, chocolate cake without eggs, how to repair
a leaking tap, opening hours of the city library, the difference between weather and climate, and how to write a letter.
"""


@dataclass
class Variant:
    """What sets one golden apart from GPT-2's defaults."""

    about: str
    config: dict
    # Of weights and prompts: the first that keeps the promises of DISTINCT_SHARE and CLEAR_GAP.
    seed: int = 1
    stored: torch.dtype = torch.float32
    shard_size: str = "1GB"
    # Names without the `transformer.` prefix, causal masks among the tensors: as in the first GPT-2 checkpoints.
    bare: bool = False
    # vocab.json and merges.txt in place of tokenizer.json.
    split_tokenizer: bool = False


def shape(layers: int, heads: int, head_size: int, positions: int = 32, vocab: int = 281, **more) -> dict:
    """A configuration's shape in the words of this file."""
    return dict(
        n_layer=layers, n_head=heads, n_embd=heads * head_size, n_positions=positions, vocab_size=vocab, **more
    )


VARIANTS = {
    "plain": Variant("GPT-2's own kind", shape(2, 4, 16, positions=64)),
    "untied": Variant("a head of its own", shape(2, 3, 8, vocab=282, tie_word_embeddings=False)),
    "inner": Variant(
        "n_inner is not 4 * n_embd; gelu is the exact one, by erf",
        shape(2, 2, 12, vocab=288, n_inner=40, activation_function="gelu"),
        seed=2,
    ),
    "inverse": Variant("attention scaled by 1 / layer", shape(3, 3, 8, scale_attn_by_inverse_layer_idx=True)),
    "unscaled": Variant("attention not scaled", shape(2, 2, 12, scale_attn_weights=False)),
    "fp16": Variant("stored as fp16", shape(2, 4, 8), stored=torch.float16),
    "bf16": Variant("stored as bf16", shape(2, 3, 8), stored=torch.bfloat16),
    "sharded": Variant("stored in several files", shape(3, 2, 12), shard_size="32KB"),
    "bare": Variant("names without `transformer.`, masks stored", shape(2, 2, 8), bare=True),
    "relu": Variant(
        "relu, another epsilon, one head, a short context, an odd vocabulary",
        shape(2, 1, 8, positions=24, vocab=283, activation_function="relu", layer_norm_epsilon=1e-3),
    ),
    "vocabmerges": Variant("no tokenizer.json", shape(1, 2, 8), split_tokenizer=True),
}


def train_tokenizer() -> GPT2Tokenizer:
    """A byte-level BPE of GPT-2's kind: the 256 bytes in its order, a few merges, then the end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False),
    )
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    tokens = alphabet + [left + right for left, right in merges] + [END_OF_TEXT]
    return GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


def strip_prefix(folder: Path, config: GPT2Config) -> None:
    """Renames a saved model's tensors to a bare GPT2Model's, and stores the causal masks as old versions did."""
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    mask = torch.ones(config.n_positions, config.n_positions).tril()[None, None]  # [1, 1, query, key]
    tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(config.n_layer)}
    save_file(tensors, file, metadata={"format": "pt"})


def make_checkpoint(folder: Path, variant: Variant, tokenizer: GPT2Tokenizer) -> None:
    """Writes one random checkpoint with its tokenizer."""
    end = tokenizer.eos_token_id
    config = GPT2Config(**variant.config, bos_token_id=end, eos_token_id=end)
    model = GPT2LMHeadModel(config)
    reference.randomise(model, variant.seed)
    model.to(variant.stored).save_pretrained(folder, max_shard_size=variant.shard_size)
    if variant.bare:
        strip_prefix(folder, config)
    if variant.split_tokenizer:
        tokenizer.backend_tokenizer.model.save(str(folder))
    else:
        tokenizer.save_pretrained(folder)


def main() -> None:
    """Makes every variant anew and prints what became of it."""
    parser = argparse.ArgumentParser(description="Makes the golden checkpoints.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where (default: beside this file)")
    out = parser.parse_args().out

    tokenizer = train_tokenizer()
    for name, variant in VARIANTS.items():
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        make_checkpoint(folder, variant, tokenizer)
        model = reference.load(folder)
        prompts = reference.random_prompts(variant.seed, PROMPTS, LONGEST_PROMPT, len(tokenizer))
        answers = reference.continue_greedily(model, prompts, STEPS)
        first = reference.assert_varied(answers, DISTINCT_SHARE)
        smallest_gap = min(gap for answer in answers for gap in answer.gaps)
        assert smallest_gap > CLEAR_GAP, f"{name}: a choice by {smallest_gap}; take another seed"
        reference.save_expected(folder / "expected.safetensors", prompts, answers)
        size_kib = sum(file.stat().st_size for file in folder.iterdir()) / 1024
        print(
            f"{name:12} {size_kib:6.0f} KiB  first tokens {first}/{PROMPTS}  smallest gap {smallest_gap:.4f}"
            f"  {variant.about}"
        )


if __name__ == "__main__":
    main()
