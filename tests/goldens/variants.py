"""The golden checkpoints' configurations: `make_goldens.py` makes a folder of each.

Heads, groups and widths are chosen so that no two sizes of a model are equal where a mistake could hide behind it.
TensorRT-RTX cannot build models narrower than 32 for every GPU, so the newer ones are not. They are stored in 16 bits
and have fewer prompts, which keeps each around a hundred kilobytes; their gain is lower, so that float32's own rounding
stays far below 1e-4 and the tests can ask for that.
"""

from dataclasses import dataclass

import torch
from transformers import (
    BloomForCausalLM,
    GPT2LMHeadModel,
    GPTJForCausalLM,
    GPTNeoForCausalLM,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    T5ForConditionalGeneration,
)

import reference


@dataclass
class Variant:
    """What sets one golden apart from its family's defaults."""

    about: str
    config: dict
    # Of weights and prompts: the first that keeps the promises of DISTINCT_SHARE and CLEAR_GAP.
    seed: int = 1
    stored: torch.dtype = torch.float32
    shard_size: str = "1GB"
    # Names without the `transformer.` prefix, causal masks among the tensors: as in the first GPT-2 checkpoints.
    bare: bool = False
    # vocab.json and merges.txt in place of tokenizer.json.
    split_tokenizer: bool = False
    # pytorch_model.bin in place of model.safetensors: an "archive", or the "old" format of before PyTorch 1.6.
    pickled: str = ""
    model: type[PreTrainedModel] = GPT2LMHeadModel
    gain: float = reference.GAIN
    prompts: int = 12
    longest_prompt: int = 20
    # Tokens of the longest source, in encoder-decoders; their folders are in the folder `t5`.
    longest_source: int = 0
    # An encoder-decoder's head with a matrix of its own, and the configuration as transformers wrote it before version 5.
    own_head: bool = False


def gpt2_shape(layers: int, heads: int, head_size: int, positions: int = 32, vocab: int = 281, **more) -> dict:
    """The shape of a GPT-2, by the size of its heads."""
    return dict(
        n_layer=layers, n_head=heads, n_embd=heads * head_size, n_positions=positions, vocab_size=vocab, **more
    )


GPT2 = {
    "plain": Variant("GPT-2's own kind", gpt2_shape(2, 4, 16, positions=64)),
    "untied": Variant("a head of its own", gpt2_shape(2, 3, 8, vocab=282, tie_word_embeddings=False)),
    "inner": Variant(
        "n_inner is not 4 * n_embd; gelu is the exact one, by erf",
        gpt2_shape(2, 2, 12, vocab=288, n_inner=40, activation_function="gelu"),
        seed=2,
    ),
    "inverse": Variant("attention scaled by 1 / layer", gpt2_shape(3, 3, 8, scale_attn_by_inverse_layer_idx=True)),
    "unscaled": Variant("attention not scaled", gpt2_shape(2, 2, 12, scale_attn_weights=False)),
    "fp16": Variant("stored as fp16", gpt2_shape(2, 4, 8), stored=torch.float16),
    "bf16": Variant("stored as bf16", gpt2_shape(2, 3, 8), stored=torch.bfloat16),
    "sharded": Variant("stored in several files", gpt2_shape(3, 2, 12), shard_size="32KB"),
    "bare": Variant("names without `transformer.`, masks stored", gpt2_shape(2, 2, 8), bare=True),
    "relu": Variant(
        "relu, another epsilon, one head, a short context, an odd vocabulary",
        gpt2_shape(2, 1, 8, positions=24, vocab=283, activation_function="relu", layer_norm_epsilon=1e-3),
    ),
    "pickled_old": Variant(
        "pytorch_model.bin of before PyTorch 1.6", gpt2_shape(2, 2, 8), stored=torch.float16, pickled="old"
    ),
    "vocabmerges": Variant("no tokenizer.json", gpt2_shape(1, 2, 8), split_tokenizer=True),
}


def small(model: type[PreTrainedModel], about: str, stored: torch.dtype = torch.float16, **more) -> Variant:
    """A variant of one of the newer families. What is no field of `Variant` goes into the configuration."""
    fields = {name: more.pop(name) for name in ("seed", "shard_size", "gain", "pickled") if name in more}
    config = dict(vocab_size=281, max_position_embeddings=32) | more
    fields = dict(gain=SMALL_GAIN, prompts=8, longest_prompt=14) | fields
    return Variant(about, config, stored=stored, model=model, **fields)


SMALL_GAIN = 1.5

FAMILIES = {
    "gptj": small(
        GPTJForCausalLM, "rotary over half of each head", n_layer=2, n_head=3, n_embd=48, rotary_dim=8, n_inner=56
    ),
    "gptj_full": small(
        GPTJForCausalLM,
        "rotary over whole heads, a tied head, gelu by erf",
        n_layer=2, n_head=2, n_embd=32, rotary_dim=16, tie_word_embeddings=True, activation_function="gelu", gain=2.5,
    ),
    "neo": small(
        GPTNeoForCausalLM,
        "global and local attention, within the window",
        num_layers=2, num_heads=3, hidden_size=36, intermediate_size=52, attention_types=[[["global", "local"], 1]],
        window_size=32, max_position_embeddings=48, gain=2.5,
    ),
    "neox": small(
        GPTNeoXForCausalLM,
        "side by side, rotary over a quarter of each head",
        num_hidden_layers=2, num_attention_heads=3, hidden_size=48, intermediate_size=56,
    ),
    "neox_sequential": small(
        GPTNeoXForCausalLM,
        "one after the other, no attention biases, linear rope, tied, in several files",
        num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=40, use_parallel_residual=False,
        gain=2.5, attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new", shard_size="16KB",
        rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=5000.0, partial_rotary_factor=1.0),
    ),
    "llama": small(
        LlamaForCausalLM,
        "three heads share keys and values, stored as bf16",
        torch.bfloat16,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, hidden_size=48, intermediate_size=40,
    ),
    "llama_wide": small(
        LlamaForCausalLM,
        "heads wider than the hidden size, one of keys, all biases, a tied head, llama3 rope",
        num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16, hidden_size=36,
        gain=2.5, intermediate_size=44, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
            original_max_position_embeddings=24,
        ),
    ),
    "pickled": small(
        LlamaForCausalLM,
        "pytorch_model.bin in several files",
        torch.bfloat16,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=44,
        shard_size="16KB", pickled="archive",
    ),
    "mistral": small(
        MistralForCausalLM,
        "a sliding window, within it",
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=40, intermediate_size=48,
        sliding_window=32, max_position_embeddings=48,
    ),
    "qwen2": small(
        Qwen2ForCausalLM,
        "biases of queries, keys and values, a tied head",
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, hidden_size=48, intermediate_size=52,
        tie_word_embeddings=True, gain=2.5, seed=2,
    ),
    "opt": small(
        OPTForCausalLM,
        "positions from row 2",
        num_hidden_layers=2, num_attention_heads=3, hidden_size=48, ffn_dim=56, word_embed_proj_dim=48, gain=2.5,
    ),
    "opt_post": small(
        OPTForCausalLM,
        "norms behind the blocks, a narrower embedding",
        num_hidden_layers=2, num_attention_heads=4, hidden_size=40, ffn_dim=52, word_embed_proj_dim=32,
        do_layer_norm_before=False, tie_word_embeddings=False,
    ),
    "opt_bare": small(
        OPTForCausalLM,
        "no biases, no last norm, an untied head, gelu",
        num_hidden_layers=2, num_attention_heads=2, hidden_size=32, ffn_dim=44, word_embed_proj_dim=32, enable_bias=False,
        _remove_final_layer_norm=True, tie_word_embeddings=False, activation_function="gelu",
    ),
    "bloom": small(
        BloomForCausalLM,
        "linear biases of six heads, which are no power of two; a head of its own",
        n_layer=2, n_head=6, hidden_size=48, seq_length=32, tie_word_embeddings=False,
    ),
    "bloom_tied": small(
        BloomForCausalLM,
        "four heads, a tied head, another epsilon, stored as bf16",
        torch.bfloat16,
        n_layer=2, n_head=4, hidden_size=40, seq_length=32, layer_norm_epsilon=1e-3, gain=6.0, seed=2,
    ),
}  # fmt: skip



def encoder_decoder(about: str, stored: torch.dtype = torch.float16, **more) -> Variant:
    """A variant of T5."""
    fields = {name: more.pop(name) for name in ("seed", "gain", "longest_source", "own_head") if name in more}
    config = dict(vocab_size=283, n_positions=48) | more
    fields = dict(gain=SMALL_GAIN, prompts=8, longest_prompt=9, longest_source=40) | fields
    return Variant(about, config, stored=stored, model=T5ForConditionalGeneration, **fields)


T5 = {
    "t5/relu": encoder_decoder(
        "the first generation: a tied, scaled head; heads wider than the model, few buckets",
        d_model=36, d_kv=14, num_heads=3, d_ff=52, num_layers=2, num_decoder_layers=3,
        relative_attention_num_buckets=10, relative_attention_max_distance=23, gain=2.5, seed=7,
    ),
    "t5/gated": encoder_decoder(
        "version 1.1: a gated network, a head of its own; heads narrower than the model, stored as bf16",
        torch.bfloat16,
        d_model=40, d_kv=8, num_heads=4, d_ff=44, num_layers=3, num_decoder_layers=2, feed_forward_proj="gated-gelu",
        own_head=True,
    ),
    "t5/long": encoder_decoder(
        "sources beyond the last bucket, another activation, a tied head that is not scaled, one layer",
        d_model=32, d_kv=12, num_heads=2, d_ff=48, num_layers=1, num_decoder_layers=1, feed_forward_proj="gated-silu",
        n_positions=200, longest_source=180, tie_word_embeddings=False,
    ),
}  # fmt: skip

VARIANTS = GPT2 | FAMILIES | T5
