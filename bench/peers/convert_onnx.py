"""The standard export: transformers' GPT-2 with past keys and values, one ONNX graph. usage: CHECKPOINT OUT"""

import sys
from pathlib import Path

import torch

from step_model import StepModel

checkpoint, out = map(Path, sys.argv[1:])
model = StepModel(checkpoint, "eager")
inputs, outputs = model.names()
axes = {"input_ids": {0: "batch", 1: "new"}, "position_ids": {0: "batch", 1: "new"}}
axes |= {"attention_mask": {0: "batch", 1: "total"}, "logits": {0: "batch", 1: "new"}}
axes |= {name: {0: "batch", 2: "past"} for name in inputs[3:]} | {name: {0: "batch", 2: "total"} for name in outputs[1:]}
with torch.no_grad():
    torch.onnx.export(
        model,
        model.example(),
        str(out / "model.onnx"),
        input_names=inputs,
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=17,
        do_constant_folding=True,
        dynamo=False,
    )
