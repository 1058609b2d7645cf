"""Fine-tunes a Llama on queries, and measures its loss on other queries before, meanwhile and afterwards.

usage: fine_tune.py MODEL QUERIES.txt OUT --measure FILE.txt ...     [--minutes N] [--seed N] [--threads N] [--rate R]
                                                                     [--device cuda] [--rows N]

Each query is the start token, the query and the end token, as foretype reads it: token 0 on both sides for SmolLM2.
Lower layers, embedding and head stay as they are, so that a step neither goes back through them nor keeps anything for
them. OUT is what MODEL is, with other weights; measured.json there has what was measured. SIGTERM and Ctrl-C end the
training early, and what it has is saved.

Queries share beginnings, and a beginning is computed once for its neighbours: a row isn't a query but a tree of about
64 prefixes, each of which attends to its own prefixes only. Each prefix learns at once how often each token follows it
in all queries. So the whole corpus, with its repetitions, costs a fifth of its tokens.
"""

import argparse
import json
import math
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

PREFIXES = 64  # of a row, at most
MEASURED_ROWS = 4  # at once
TRAINED = 0.5  # of the layers, from the last one down
WARM_UP = 10  # steps
SAMPLE = 100  # queries of each file that are measured meanwhile
PARTS = 4  # of the time; after each but the last, queries are measured

Prefix = tuple[int, ...]  # token ids from the start token on


@dataclass
class Batch:
    """Rows of trees, and what follows each prefix. `here` counts the prefixes of all rows, padding left out."""

    ids: torch.Tensor  # [rows, longest]
    positions: torch.Tensor  # [rows, longest]
    mask: torch.Tensor  # [rows, 1, longest, longest], what is added to the scores of attention
    real: torch.Tensor  # [rows, longest], false for padding
    here: torch.Tensor  # [pairs]
    next: torch.Tensor  # [pairs], token ids
    weight: torch.Tensor  # [pairs]


class Trees:
    """Queries as rows of prefixes, where alphabetical neighbours share a row."""

    def __init__(self, queries: Counter[Prefix]):
        self.followers: dict[Prefix, Counter[int]] = defaultdict(Counter)
        self.rows: list[list[Prefix]] = [[]]
        for query, count in sorted(queries.items()):
            prefixes = [query[:length] for length in range(1, len(query))]
            for prefix, token in zip(prefixes, query[1:]):
                self.followers[prefix][token] += count
            present = set(self.rows[-1])
            if len(present | set(prefixes)) > PREFIXES and present:
                self.rows.append([])
                present = set()
            self.rows[-1] += [prefix for prefix in prefixes if prefix not in present]
        # A prefix is in several rows: the loss on what follows it is divided among them.
        self.copies = Counter(prefix for row in self.rows for prefix in row)
        self.tokens = sum(count * (len(query) - 1) for query, count in queries.items())

    def batch(self, rows: list[list[Prefix]], device: torch.device) -> Batch:
        shape = len(rows), max(map(len, rows))
        # NumPy's arrays, because writing single elements of PyTorch's takes longer than a GPU's step.
        ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        real = np.zeros(shape, bool)
        # Padding attends to itself, since a softmax over nothing has no value.
        seen = np.tile(np.eye(shape[1], dtype=bool), (len(rows), 1, 1))
        pairs, here = [], 0
        for r, row in enumerate(rows):
            places = {prefix: place for place, prefix in enumerate(row)}
            for place, prefix in enumerate(row):
                ids[r, place], positions[r, place], real[r, place] = prefix[-1], len(prefix) - 1, True
                if len(prefix) > 1:
                    seen[r, place] |= seen[r, places[prefix[:-1]]]
                share = 1 / self.copies[prefix]
                pairs += [(here, token, count * share) for token, count in self.followers[prefix].items()]
                here += 1
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))[:, np.newaxis]
        here, tokens, weights = zip(*pairs)
        columns = np.array(here), np.array(tokens), np.array(weights, np.float32)
        return Batch(*(torch.from_numpy(array).to(device) for array in (ids, positions, mask, real, *columns)))


def loss_of(model, batch: Batch) -> torch.Tensor:
    """Weighted sum of the negative log-likelihoods of all tokens after the first."""
    hidden = model.base_model(
        input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
    ).last_hidden_state
    logits = model.lm_head(hidden[batch.real])  # [prefixes, vocabulary]
    losses = logits.logsumexp(-1)[batch.here] - logits[batch.here, batch.next]  # [pairs]
    return (batch.weight * losses).sum()


@dataclass
class Measured:
    """Queries to measure with: all of a file, and some."""

    name: str
    all: Trees
    some: Trees
    characters: int  # of all, an end for each query included


@torch.no_grad()
def mean_loss(model, trees: Trees) -> float:
    """Nats a token, the end token included."""
    groups = (trees.rows[at : at + MEASURED_ROWS] for at in range(0, len(trees.rows), MEASURED_ROWS))
    return sum(loss_of(model, trees.batch(group, model.device)).item() for group in groups) / trees.tokens


class Course:
    """What was measured in the course of the training, printed as it comes."""

    def __init__(self, model, files: list[Measured]):
        self.model, self.files, self.rows = model, files, []

    def measure(self, when: str, some: bool, **more) -> None:
        for file in self.files:
            trees = file.some if some else file.all
            loss = mean_loss(self.model, trees)
            row = {
                "when": when,
                "set": file.name,
                "sample": some,
                "nats_per_token": round(loss, 4),
                "perplexity": round(math.exp(loss), 2),
            }
            if not some:
                row["nats_per_character"] = round(loss * trees.tokens / file.characters, 4)
            self.rows.append(row | more)
            print(", ".join(f"{key} {value}" for key, value in self.rows[-1].items()), flush=True)


def trained_part(model) -> list[torch.nn.Parameter]:
    """The upper layers and the last norm; all others no longer take part in training."""
    model.requires_grad_(False)
    layers = model.base_model.layers
    upper = [*layers[len(layers) - round(TRAINED * len(layers)) :], model.base_model.norm]
    for part in upper:
        part.requires_grad_(True)
    return [parameter for part in upper for parameter in part.parameters()]


class Stopped:
    """True once SIGTERM or SIGINT has come."""

    def __init__(self):
        self.come = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

    def stop(self, number, frame) -> None:
        self.come = True

    def __bool__(self) -> bool:
        return self.come


def share_of_rate(step: int, progress: float) -> float:
    """Linear warm-up, then a cosine over the time that there is, down to 2 %."""
    return min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))


def train(model, trees: Trees, course: Course, args: argparse.Namespace) -> dict:
    """Steps over rows in random order until the time is over, measuring included, or a signal comes."""
    rng, parameters, stopped = random.Random(args.seed), trained_part(model), Stopped()
    optimizer = torch.optim.AdamW(parameters, lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)
    # What a step's rows weigh differs; the mean keeps each query's part the same wherever its row is.
    weight = trees.tokens / len(trees.rows) * args.rows
    left: list[list[Prefix]] = []
    started, processor_started, minutes = time.monotonic(), time.process_time(), 0.0
    steps, prefixes, measured, recent = 0, 0, 0, 0.0
    while (progress := minutes / args.minutes) < 1 and not stopped:
        if progress >= (measured + 1) / PARTS:
            measured += 1
            course.measure("meanwhile", some=True, minutes=round(minutes, 1), steps=steps, prefixes=prefixes)
        if len(left) < args.rows:
            left = rng.sample(trees.rows, len(trees.rows))
        rows = [left.pop() for _ in range(args.rows)]
        for group in optimizer.param_groups:
            group["lr"] = args.rate * share_of_rate(steps, progress)
        loss = loss_of(model, trees.batch(rows, model.device)) / weight
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        minutes = (time.monotonic() - started) / 60
        steps, prefixes, recent = steps + 1, prefixes + sum(map(len, rows)), recent + loss.item()
        if steps % 20 == 0:
            print(f"step {steps}, {prefixes} prefixes, {minutes:.1f} min, training loss {recent / 20:.3f}", flush=True)
            recent = 0.0
    return {
        "steps": steps, "prefixes": prefixes, "passes": round(prefixes / sum(map(len, trees.rows)), 2),
        "minutes": round(minutes, 1), "cpu_minutes": round((time.process_time() - processor_started) / 60, 1),
        "device": device_name(args), "rows": args.rows, "seed": args.seed, "rate": args.rate,
        "trained_parameters": sum(parameter.numel() for parameter in parameters),
    }  # fmt: skip


def device_name(args: argparse.Namespace) -> str:
    """What it was trained on, for people."""
    return torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads"


class Reader:
    """Reads files of queries as a model does."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        ends = config["eos_token_id"]
        self.start = config["bos_token_id"]
        self.end = ends[0] if isinstance(ends, list) else ends
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def trees(self, lines: list[str]) -> Trees:
        counts = Counter(lines)
        encodings = self.tokenizer.encode_batch(list(counts), add_special_tokens=False)
        return Trees(Counter({(self.start, *e.ids, self.end): counts[line] for line, e in zip(counts, encodings)}))

    def measured(self, file: Path, seed: int) -> Measured:
        lines = lines_of(file)
        some = random.Random(seed).sample(lines, min(SAMPLE, len(lines)))
        return Measured(file.stem, self.trees(lines), self.trees(some), sum(len(line) + 1 for line in lines))


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def save(model, source: Path, folder: Path) -> None:
    """The folder is whole once the weights are there: they come last and at once."""
    config = json.loads((source / "config.json").read_text()) | {"torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    # The head is the embedding.
    weights = {name: value.half().cpu().contiguous() for name, value in model.state_dict().items()}
    del weights["lm_head.weight"]
    partial = folder / "model.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.rename(folder / "model.safetensors")


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("model", type=Path, help="folder of the checkpoint to start from")
    args.add_argument("queries", type=Path, help="what to train on, one query a line, frequent ones repeated")
    args.add_argument("out", type=Path, help="folder of the new checkpoint")
    args.add_argument("--measure", type=Path, action="append", default=[], help="other queries, one a line")
    args.add_argument("--minutes", type=float, default=100, help="of training; 0 only measures")
    args.add_argument("--seed", type=int, default=20)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    args.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args.add_argument("--rows", type=int, default=4, help="of a step, about 64 prefixes each; a GPU wants 16")
    args = args.parse_args()

    torch.set_num_threads(args.threads)
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    reader = Reader(args.model)
    trees = reader.trees(lines_of(args.queries))
    sizes = {"tokens": trees.tokens, "prefixes": len(trees.copies), "prefixes_in_rows": sum(map(len, trees.rows))}
    print(json.dumps(sizes), flush=True)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    course = Course(model, [reader.measured(file, args.seed) for file in args.measure])
    course.measure("before", some=False)
    course.measure("before", some=True)
    training = None
    if args.minutes > 0:
        training = train(model, trees, course, args)
        print(json.dumps(training), flush=True)
        model.half().float()  # measured as it is saved
        course.measure("after", some=False)
        course.measure("after", some=True, **{key: training[key] for key in ("minutes", "steps", "prefixes")})
    args.out.mkdir(parents=True, exist_ok=True)
    measured = {"corpus": sizes, "training": training, "losses": course.rows}
    (args.out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    if training:
        save(model, args.model, args.out)


main()
