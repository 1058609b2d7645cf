#!/usr/bin/env python3
"""Trains the demo model on corpus.py's output: a byte-level BPE tokenizer and a small GPT-2.

Writes a Hugging Face checkpoint folder (`tokenizer.json`, `config.json`, `model.safetensors` in
fp16). Each row is `<|endoftext|>query<|endoftext|>` at positions 0, 1, ..., with a loss on every
token after the first: the server starts every query the same way. On CPU, seeded.
"""

import argparse
import json
import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

END = "<|endoftext|>"
VOCABULARY = 4096
POSITIONS = 64
BATCH = 64
WARM_UP = 200
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def train_tokenizer(lines: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


@dataclass
class Row:
    ids: list[int]
    weight: float


def merged(lines: list[str]) -> list[tuple[str, float]]:
    """Repeated lines made fewer, heavier ones: the same expected loss for less work."""
    rows = []
    for line, count in Counter(lines).items():
        repeats = math.isqrt(count)
        rows += [(line, count / repeats)] * repeats
    return rows


def encode(tokenizer: Tokenizer, lines: list[tuple[str, float]]) -> list[Row]:
    """Rows with the end token on both sides; a row longer than the model is left out."""
    end = tokenizer.token_to_id(END)
    encodings = tokenizer.encode_batch([line for line, _ in lines])
    rows = [Row([end, *e.ids, end], weight) for e, (_, weight) in zip(encodings, lines)]
    return [row for row in rows if len(row.ids) <= POSITIONS]


def batches(rows: list[Row], rng: random.Random):
    """Shuffled batches of about equally long rows: ids and token weights, both [batch, longest]."""
    order = sorted(rows, key=lambda row: (len(row.ids), rng.random()))
    starts = list(range(0, len(order), BATCH))
    rng.shuffle(starts)
    for start in starts:
        chosen = order[start : start + BATCH]
        ids = [torch.tensor(row.ids) for row in chosen]
        weights = [torch.full((len(row.ids),), row.weight) for row in chosen]
        yield pad_sequence(ids, batch_first=True), pad_sequence(weights, batch_first=True)


def loss_of(model: GPT2LMHeadModel, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of the negative log-likelihoods of all tokens after the first."""
    logits = model(ids).logits[:, :-1]  # [batch, length - 1, vocabulary]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses @ weights[:, 1:].flatten()


@torch.no_grad()
def evaluate(model: GPT2LMHeadModel, rows: list[Row]) -> float:
    """Mean negative log-likelihood, in nats per token, the final end token included."""
    model.eval()
    total = sum(float(loss_of(model, *batch)) for batch in batches(rows, random.Random(0)))
    model.train()
    return total / sum((len(row.ids) - 1) * row.weight for row in rows)


def new_model(end: int, layers: int, width: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=width, n_layer=layers, n_head=width // 64,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=end, eos_token_id=end,
    )
    return GPT2LMHeadModel(config)


def optimizer_of(model: GPT2LMHeadModel) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))


def rate(step: int, steps: int) -> float:
    """Share of the learning rate: linear warm-up, then a cosine down to 2 %."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, (step - WARM_UP) / (steps - WARM_UP))))


def train(model: GPT2LMHeadModel, rows: dict[str, list[Row]], epochs: int, seed: int) -> None:
    rng, optimizer, started = random.Random(seed), optimizer_of(model), time.monotonic()
    per_epoch = math.ceil(len(rows["train"]) / BATCH)
    steps, step = epochs * per_epoch, 0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: rate(s, steps))
    for epoch in range(epochs):
        total = 0.0
        for ids, weights in batches(rows["train"], rng):
            loss = loss_of(model, ids, weights) / weights[:, 1:].sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step, total = step + 1, total + loss.item()
            if step % 200 == 0:
                print(f"step {step}/{steps} loss {loss.item():.3f} {time.monotonic() - started:.0f} s", flush=True)
        report = {name: round(evaluate(model, part), 4) for name, part in rows.items() if name != "train"}
        print(f"epoch {epoch + 1} mean training loss {total / per_epoch:.4f} {report}", flush=True)


def save(model: GPT2LMHeadModel, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--corpus", type=Path, required=True, help="folder with train.txt and valid.txt")
    args.add_argument("--unseen", type=Path, required=True, help="held-out queries, one a line")
    args.add_argument("--out", type=Path, required=True, help="checkpoint folder")
    args.add_argument("--layers", type=int, default=3)
    args.add_argument("--width", type=int, default=192)
    args.add_argument("--epochs", type=int, default=5)
    args.add_argument("--threads", type=int, default=1, help="more only where cores are idle")
    args.add_argument("--seed", type=int, default=20)
    args = args.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    texts = {name: read_lines(args.corpus / f"{name}.txt") for name in ("train", "valid")}
    texts["unseen"] = read_lines(args.unseen)
    tokenizer = train_tokenizer(texts["train"])
    rows = {name: encode(tokenizer, merged(lines)) for name, lines in texts.items()}
    model = new_model(tokenizer.token_to_id(END), args.layers, args.width)
    counts = {name: (len(part), sum(len(row.ids) for row in part)) for name, part in rows.items()}
    print(json.dumps({"parameters": model.num_parameters(), "merged rows and tokens": counts}), flush=True)
    train(model, rows, args.epochs, args.seed)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
