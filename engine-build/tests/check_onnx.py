"""Checks the graph of a bundle with ONNX's own checker: operators, types and full shape inference.

Usage: python check_onnx.py BUNDLE [...]      (needs the `onnx` package; exits 1 at the first fault)
"""

import json
import pathlib
import sys

import onnx


def dims(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def check(bundle):
    model_path = bundle / "model.onnx"
    onnx.checker.check_model(str(model_path), full_check=True)
    model = json.loads((bundle / "manifest.json").read_text())["model"]
    graph = onnx.load(str(model_path), load_external_data=False).graph
    layers = range(model["layers"])
    inputs = {"input_ids": ["batch", "tokens"], "past_len": ["batch"], "select": ["selected"]}
    # foretype's own attention finds positions by a table; ONNX's has a stretch of memory for each row.
    links = (attribute for node in graph.node for attribute in node.attribute if node.domain == "foretype")
    if any(link.name.endswith(".operator") and link.s == b"Attention" for link in links):
        cache = ["places", model["kv_heads"], model["head_dim"]]
        inputs["kv_places"] = ["batch", model["context"]]
    else:
        cache = ["batch", model["kv_heads"], model["context"], model["head_dim"]]
    inputs |= {f"past_{kind}_{layer}": cache for layer in layers for kind in "kv"}
    outputs = {"logits": ["selected", model["vocab_padded"]]}
    outputs |= {"topv": ["selected", model["top_k"]], "topi": ["selected", model["top_k"]], "lse": ["selected", 1]}
    outputs |= {f"present_{kind}_{layer}": cache for layer in layers for kind in "kv"}
    assert {v.name: dims(v) for v in graph.input} == inputs, "inputs differ from the manifest"
    assert [(v.name, dims(v)) for v in graph.output] == list(outputs.items()), "outputs differ from the manifest"
    weights = (bundle / "model.weights").stat().st_size
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            assert int(where["offset"]) % 4096 == 0, f"{tensor.name} does not start on a page"
            assert int(where["offset"]) + int(where["length"]) <= weights, f"{tensor.name} ends behind the file"
    print(f"{bundle}: {len(graph.node)} nodes, {len(graph.initializer)} constants, opset {graph_opset(model_path)}")


def graph_opset(path):
    return onnx.load(str(path), load_external_data=False).opset_import[0].version


for argument in sys.argv[1:] or sys.exit(__doc__):
    check(pathlib.Path(argument))
