"""OpenVINO's graph through its own PyTorch frontend, with the keys and values as its state, in full precision and with weights
in int8; and its tokenizer. usage: CHECKPOINT OUT"""

import sys
from pathlib import Path

import numpy
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation

from checkpoint import Checkpoint
from step_model import StepModel

checkpoint, out = map(Path, sys.argv[1:])


def trace():
    """The graph with flat inputs and outputs, named."""
    model = StepModel(checkpoint, "sdpa")
    inputs, outputs = model.names()
    with torch.no_grad():
        graph = ov.convert_model(model, example_input=model.example())
    heads, head_dim = model.config.n_head, model.config.n_embd // model.config.n_head
    for port, name in zip(graph.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
        past = name.startswith("past")
        port.get_node().set_partial_shape(ov.PartialShape([-1, heads, -1, head_dim] if past else [-1, -1]))
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()
    return graph, inputs[3:], outputs[1:]


def reorder_by_beam(graph, pasts):
    """An input `beam_idx`: which row of the state each row continues."""
    batch = graph.input("input_ids").get_partial_shape()[0]
    beams = ops.parameter(ov.PartialShape([batch]), dtype=ov.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().add_names({"beam_idx"})
    graph.add_parameters([beams])
    for name in pasts:
        port = graph.input(name)
        consumers = port.get_target_inputs()
        gathered = ops.gather(port, beams, ops.constant(0))
        for consumer in consumers:
            consumer.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def start_empty(graph):
    """The state begins with no positions, for as many rows as there are inputs."""
    shape = ops.shape_of(graph.input("input_ids"), output_type="i64")
    batch = ops.gather(shape, ops.constant(numpy.array([0])), ops.constant(0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            sizes = [size.min_length for size in node.get_output_partial_shape(0)]
            parts = [ops.constant(numpy.array([size], dtype=numpy.int64)) for size in sizes]
            parts[0] = batch
            zero = ops.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([ops.broadcast(zero, ops.concat(parts, axis=0))])
    graph.validate_nodes_and_infer_types()


def tokenizer(folder):
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    source = Checkpoint(checkpoint)
    pieces, _ = source.vocabulary()
    end = pieces[source.config["eos_token_id"]]
    own = PreTrainedTokenizerFast(tokenizer_object=source.tokenizer(), bos_token=end, eos_token=end)
    for graph, name in zip(convert_tokenizer(own, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(graph, folder / f"openvino_{name}.xml")


def save(graph, name):
    folder = out / name
    folder.mkdir(exist_ok=True)
    ov.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    tokenizer(folder)


graph, pasts, presents = trace()
reorder_by_beam(graph, pasts)
apply_make_stateful_transformation(graph, dict(zip(pasts, presents, strict=True)))
start_empty(graph)
save(graph, "fp32")
import nncf  # noqa: E402 - slow to load, and only needed here

save(nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_ASYM), "int8")
