#!/usr/bin/env python3
"""Prompts of several lines, and what transformers makes of them, for `make parity-prompts`.

usage: prompts.py draw PROMPTS                         draws 200 prompts from this repository's documents and sources
       prompts.py reference CHECKPOINT PROMPTS FILE    continues them greedily in f32; goes on where it was stopped

FILE has a line of JSON for each prompt: the tokens of the prompt and of the answer, and for each step of the answer the
second best token and by how much the best one's log-probability is higher.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEED = 27
PROMPTS = 200
NEW = 60
# Prompts that are continued at once.
BATCH = 10


def draw(target):
    """Runs of 3 to 8 lines, each with text in it, half of them of documents and half of programs."""
    rng = random.Random(SEED)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = listed.stdout.split("\n")
    prompts = []
    for pattern in ["*.md", "*.rs"]:
        files = sorted(name for name in tracked if Path(name).match(pattern) and not name.startswith("tests/goldens"))
        texts = [(ROOT / name).read_text().split("\n") for name in files]
        wanted = len(prompts) + PROMPTS // 2
        while len(prompts) < wanted:
            lines = rng.choice(texts)
            count = rng.randint(3, 8)
            first = rng.randrange(len(lines))
            part = "\n".join(lines[first : first + count]).rstrip()
            if part.count("\n") >= 2 and 80 <= len(part) <= 700:
                prompts.append(part)
    # A batch of prompts has nearly one length.
    prompts.sort(key=len)
    target.write_text(json.dumps(prompts, ensure_ascii=False, indent=0) + "\n")


def reference(checkpoint, prompts, target):
    """Greedy answers of transformers in f32, with the margin of every choice."""
    import torch
    import transformers

    file = str(checkpoint / "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    tokenizer.pad_token_id = ends[0]
    prompts = json.loads(prompts.read_text())
    done = len(target.read_text().splitlines()) if target.exists() else 0
    with target.open("a") as out, torch.no_grad():
        for first in range(done, len(prompts), BATCH):
            batch = prompts[first : first + BATCH]
            given = tokenizer(batch, padding=True, return_tensors="pt", return_token_type_ids=False)
            form = dict(pad_token_id=ends[0], output_logits=True, return_dict_in_generate=True)
            answer = model.generate(**given, max_new_tokens=NEW, do_sample=False, **form)
            best = [torch.log_softmax(logits, -1).topk(2) for logits in answer.logits]
            for row, mask in enumerate(given.attention_mask):
                new = answer.sequences[row, len(mask) :].tolist()
                # An answer that has ended is filled up.
                new = new[: next((i + 1 for i, token in enumerate(new) if token in ends), len(new))]
                seconds = [pair.indices[row, 1].item() for pair in best[: len(new)]]
                gaps = [(pair.values[row, 0] - pair.values[row, 1]).item() for pair in best[: len(new)]]
                ids = given.input_ids[row][mask.bool()].tolist()
                versions = [torch.__version__, transformers.__version__]
                line = dict(input=ids, tokens=new, seconds=seconds, gaps=gaps, versions=versions)
                out.write(json.dumps(line) + "\n")
            out.flush()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    dict(draw=draw, reference=reference)[command](*map(Path, arguments))
