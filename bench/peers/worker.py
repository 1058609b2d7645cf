"""One engine behind standard input and output, a JSON object a line.

usage: worker.py FAMILY VARIANT MODELS THREADS      such as: worker.py onnxruntime standard-int8 target/bench/peers/models/gpt2 2

First it says {"ready": true, "version": ...} or {"error": ...}. Then it is asked {"prompt": [[ids], ...], "new_tokens": n}: rows of
one length, continued greedily by exactly n tokens each, whatever they are. It answers {"tokens": [[ids], ...], "seconds": s}.
"""

import importlib
import json
import sys
import time
from pathlib import Path


def main():
    family, variant, models, threads = sys.argv[1:]
    # Libraries print; the protocol has the real standard output to itself.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        module = importlib.import_module(f"engine_{family}")
        engine = module.Engine(variant, Path(models), int(threads))
        engine.generate([[1, 2, 3]], 2)
        answer({"ready": True, "version": module.version()})
    except Exception as error:  # noqa: BLE001 - whatever is wrong with an engine is told in its row of the table
        answer({"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"})
        return
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            started = time.perf_counter()
            tokens = engine.generate(asked["prompt"], asked["new_tokens"])
            answer({"tokens": tokens, "seconds": time.perf_counter() - started})
        except Exception as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})


main()
