"""CTranslate2's own converter, once; the weights are quantised as it loads them. usage: CHECKPOINT OUT"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from ctranslate2.converters import TransformersConverter

checkpoint, out = map(Path, sys.argv[1:])
with tempfile.TemporaryDirectory() as scratch:
    # transformers' tokenizer is loaded too, and of a bare vocabulary it wants to be told which kind it is.
    for file in checkpoint.iterdir():
        if file.is_file():
            (Path(scratch) / file.name).symlink_to(file.resolve())
    if not (checkpoint / "tokenizer_config.json").exists():
        (Path(scratch) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2TokenizerFast"}))
    TransformersConverter(scratch).convert(str(out / "model"), force=True)
    shutil.copy(checkpoint / "config.json", out)
