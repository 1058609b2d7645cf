"""ONNX Runtime's two graphs in int8: the standard export quantised dynamically, and a graph of its fused operators for GPT-2
(Attention with past, SkipLayerNormalization, FastGelu), which is what its transformers tools make, with the head on the last
position only. usage: CHECKPOINT OUT"""

import sys
from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from checkpoint import Checkpoint

source, out = Checkpoint(sys.argv[1]), Path(sys.argv[2])
DOMAIN = "com.microsoft"


class Graph:
    """Nodes and weights, collected."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def node(self, operator, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs[0]


def fused():
    """(input_ids [B, S], position_ids [B, S], attention_mask [B, P+S] i32, past [2, B, H, P, D] per layer) to
    (logits [B, V] of the last position, present [2, B, H, P+S, D] per layer)."""
    graph, weights = Graph(), source.weights()
    for name, array in weights.items():
        graph.weight(name, array)
    embedded = [graph.node("Gather", ["wte.weight", "input_ids"], ["words"])]
    embedded.append(graph.node("Gather", ["wpe.weight", "position_ids"], ["places"]))
    residual = graph.node("Add", embedded, ["embedded"])
    norm = ["ln_1.weight", "ln_1.bias"]
    x = graph.node(
        "LayerNormalization", [residual, *[f"h.0.{n}" for n in norm]], ["h.0.in"], epsilon=source.epsilon, axis=-1
    )

    def linear(x, name, bias=True):
        y = graph.node("MatMul", [x, f"{name}.weight"], [f"{name}.product"])
        return graph.node("Add", [y, f"{name}.bias"], [f"{name}.sum"]) if bias else y

    def skip(x, residual, names, tag):
        """The sum and its norm, in one operator."""
        graph.node(
            "SkipLayerNormalization",
            [x, residual, *names],
            [f"{tag}.norm", "", "", f"{tag}.residual"],
            DOMAIN,
            epsilon=source.epsilon,
        )
        return f"{tag}.norm", f"{tag}.residual"

    for layer in range(source.layers):
        at = f"h.{layer}"
        graph.node(
            "Attention",
            [x, f"{at}.attn.c_attn.weight", f"{at}.attn.c_attn.bias", "attention_mask", f"past_{layer}"],
            [f"{at}.attention", f"present_{layer}"],
            DOMAIN,
            num_heads=source.heads,
            unidirectional=1,
        )
        y = linear(f"{at}.attention", f"{at}.attn.c_proj")
        x, residual = skip(y, residual, [f"{at}.ln_2.weight", f"{at}.ln_2.bias"], f"{at}.middle")
        y = linear(x, f"{at}.mlp.c_fc", bias=False)
        y = graph.node("FastGelu", [y, f"{at}.mlp.c_fc.bias"], [f"{at}.gelu"], DOMAIN)
        y = linear(y, f"{at}.mlp.c_proj")
        last = layer + 1 == source.layers
        names = ["ln_f.weight", "ln_f.bias"] if last else [f"h.{layer + 1}.{n}" for n in norm]
        x, residual = skip(y, residual, names, f"{at}.end")
    graph.weight("last", numpy.array(-1, dtype=numpy.int64))
    graph.weight("lm_head.weight", weights["wte.weight"].T)
    x = graph.node("Gather", [x, "last"], ["last_hidden"], axis=1)
    graph.node("MatMul", [x, "lm_head.weight"], ["logits"])
    past = [2, "batch", source.heads, "past", source.head_dim]
    value = helper.make_tensor_value_info
    inputs = [value(name, TensorProto.INT64, ["batch", "new"]) for name in ("input_ids", "position_ids")]
    inputs.append(value("attention_mask", TensorProto.INT32, ["batch", "total"]))
    inputs += [value(f"past_{layer}", TensorProto.FLOAT, past) for layer in range(source.layers)]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", source.vocabulary_size])]
    present = [2, "batch", source.heads, "total", source.head_dim]
    outputs += [value(f"present_{layer}", TensorProto.FLOAT, present) for layer in range(source.layers)]
    made = helper.make_graph(graph.nodes, "gpt2", inputs, outputs, graph.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def quantize(name_from, name_to):
    # Shape inference knows no fused operators; every product is of floats.
    quantize_dynamic(
        name_from,
        name_to,
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )


onnx.save(fused(), out / "fused.onnx")
quantize(out / "fused.onnx", out / "fused-int8.onnx")
(out / "fused.onnx").unlink()
standard = out.parent / "onnx" / "model.onnx"
if standard.exists():
    quantize(standard, out / "standard-int8.onnx")
