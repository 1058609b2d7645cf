"""The obvious wrapper of an engine, for gunicorn: POST /invocations {"input": text, "suggestions": 10, "total_tokens": 42} to
{"suggestions": [{"text": ...}]}, ten candidates by sampling. `max_new_tokens` may stand instead of `total_tokens`.

Which engine: the variables PEER_FAMILY, PEER_VARIANT, PEER_MODELS and PEER_THREADS, as worker.py's arguments.
"""

import importlib
import os
from pathlib import Path

from flask import Flask, request

from checkpoint import Checkpoint

app = Flask(__name__)
models = Path(os.environ["PEER_MODELS"])
tokenizer = Checkpoint((models / "checkpoint.txt").read_text().strip()).tokenizer()
family = importlib.import_module("engine_" + os.environ["PEER_FAMILY"])
engine = family.Engine(os.environ["PEER_VARIANT"], models, int(os.environ["PEER_THREADS"]))
engine.candidates([1, 2, 3], 2, 2)


@app.get("/ping")
def ping():
    return ""


@app.post("/invocations")
def invocations():
    asked = request.get_json()
    ids = tokenizer.encode(asked["input"]).ids
    new_tokens = asked.get("max_new_tokens") or max(asked.get("total_tokens", 42) - len(ids), 1)
    rows = engine.candidates(ids, asked.get("suggestions", 10), new_tokens)
    texts = [tokenizer.decode(ids + row) for row in rows]
    return {"suggestions": [{"text": text} for text in texts], "finish": "length"}
