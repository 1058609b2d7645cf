"""The obvious wrapper of an encoder-decoder in transformers, for gunicorn: POST /invocations {"inputs": [text, ...],
"max_new_tokens": 50} to [{"generated_text": ..., "details": {"generated_tokens": 50}}, ...], all in one batch, greedily.

PEER_VARIANT is the type of the weights; PEER_MODELS and PEER_THREADS are as worker.py's arguments.
"""

import os
from pathlib import Path

import torch
from flask import Flask, request
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

app = Flask(__name__)
torch.set_num_threads(int(os.environ["PEER_THREADS"]))
checkpoint = Path((Path(os.environ["PEER_MODELS"]) / "checkpoint.txt").read_text().strip())
tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"), pad_token="<pad>", eos_token="</s>")
model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=TYPES[os.environ["PEER_VARIANT"]]).eval()
# Nothing ends an answer before its length.
model.generation_config.eos_token_id = None


def answers(inputs, new_tokens):
    batch = tokenizer(inputs, return_tensors="pt", padding=True)
    with torch.inference_mode():
        # The first token of each row is the one that answers begin with.
        rows = model.generate(
            batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=new_tokens, do_sample=False
        )[:, 1:]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [{"generated_text": text, "details": {"generated_tokens": rows.shape[1]}} for text in texts]


answers(["a"], 2)


@app.get("/ping")
def ping():
    return ""


@app.post("/invocations")
def invocations():
    asked = request.get_json()
    return answers(asked["inputs"], asked["max_new_tokens"])
