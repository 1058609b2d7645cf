"""Makes the golden checkpoints: tiny random models of odd shapes and what transformers computes with them.

Each variant becomes a folder beside this file: a checkpoint as `save_pretrained` writes it, and `expected.safetensors`
(`reference.py` says what is in it; it is not part of the checkpoint). The same versions on the same kind of machine
give the same bytes. `make goldens` runs this through `rebuild.sh`, in the Python that `requirements.txt` pins.
"""

import argparse
import json
import math
import shutil
from collections import Counter, OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Tokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import reference
from texts import ENGLISH
from variants import VARIANTS, Variant

STEPS = 12
# At least this share of a variant's answers begin with tokens of their own,
DISTINCT_SHARE = 0.75
# and no choice is closer than this, many times what float32 rounding moves a logit: any correct engine agrees.
CLEAR_GAP = 2e-3

END_OF_TEXT = "<|endoftext|>"
MERGES = 24


def train_tokenizer() -> GPT2Tokenizer:
    """A byte-level BPE of GPT-2's kind: the 256 bytes in its order, a few merges, then the end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(
        [ENGLISH],
        trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False),
    )
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    tokens = alphabet + [left + right for left, right in merges] + [END_OF_TEXT]
    return GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """A SentencePiece unigram model of T5's kind: the words of the text and its characters, an end behind every source."""
    words = Counter(f"\u2581{word}" for word in ENGLISH.split())
    letters = Counter("".join(words.elements()))
    scored = {**letters, **{word: 9 * count for word, count in words.items() if len(word) > 2}}
    scores = [(piece, math.log(count / 4000)) for piece, count in sorted(scored.items())]
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram([(token, 0.0) for token in special] + scores, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.add_special_tokens(special + ["<extra_id_0>", "<extra_id_1>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def old_configuration(folder: Path) -> None:
    """Says of the head what transformers said before version 5."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config["scale_decoder_outputs"]
    file.write_text(json.dumps(config | {"tie_word_embeddings": False}, indent=2) + "\n")


def make_encoder_decoder(folder: Path, variant: Variant, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes one random checkpoint that has an encoder."""
    config = variant.model.config_class(
        **variant.config, decoder_start_token_id=tokenizer.pad_token_id, pad_token_id=0, eos_token_id=1
    )
    model = variant.model(config)
    if variant.own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    reference.randomise(model, variant.seed, variant.gain)
    if config.scale_decoder_outputs:
        # Or the logits would be smaller by the scale.
        model.shared.weight.data.mul_(config.d_model**0.5 / 2)
    model.to(variant.stored).save_pretrained(folder)
    if variant.own_head:
        old_configuration(folder)
    tokenizer.save_pretrained(folder)


def strip_prefix(folder: Path, config: PreTrainedConfig) -> None:
    """Renames a saved model's tensors to a bare GPT2Model's, and stores the causal masks as old versions did."""
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    mask = torch.ones(config.n_positions, config.n_positions).tril()[None, None]  # [1, 1, query, key]
    tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(config.n_layer)}
    save_file(tensors, file, metadata={"format": "pt"})


def pickle_weights(folder: Path, old: bool) -> None:
    """Writes the weights as `torch.save` does: vectors as views of one storage, every other matrix transposed."""
    for file in sorted(folder.glob("model*.safetensors")):
        tensors = load_file(file)
        vectors = [name for name, tensor in tensors.items() if tensor.dim() == 1]
        if vectors:
            joined = torch.cat([tensors[name] for name in vectors])
            tensors |= zip(vectors, joined.split([len(tensors[name]) for name in vectors]))
        for name in [name for name, tensor in sorted(tensors.items()) if tensor.dim() == 2][::2]:
            tensors[name] = tensors[name].t().contiguous().t()
        out = folder / file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
        torch.save(OrderedDict(tensors), out, _use_new_zipfile_serialization=not old)
        file.unlink()
    index = folder / "model.safetensors.index.json"
    if index.exists():
        text = index.read_text().replace('"model-', '"pytorch_model-').replace(".safetensors", ".bin")
        (folder / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


def make_checkpoint(folder: Path, variant: Variant, tokenizer: GPT2Tokenizer) -> None:
    """Writes one random checkpoint with its tokenizer."""
    end = tokenizer.eos_token_id
    config = variant.model.config_class(**variant.config, bos_token_id=end, eos_token_id=end)
    model = variant.model(config)
    reference.randomise(model, variant.seed, variant.gain)
    model.to(variant.stored).save_pretrained(folder, max_shard_size=variant.shard_size)
    if variant.bare:
        strip_prefix(folder, config)
    if variant.pickled:
        pickle_weights(folder, variant.pickled == "old")
    if variant.split_tokenizer:
        tokenizer.backend_tokenizer.model.save(str(folder))
    else:
        tokenizer.save_pretrained(folder)


def main() -> None:
    """Makes every variant anew and prints what became of it."""
    parser = argparse.ArgumentParser(description="Makes the golden checkpoints.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where (default: beside this file)")
    parser.add_argument("only", nargs="*", help="names of variants (default: all)")
    arguments = parser.parse_args()

    bytes_tokenizer, pieces_tokenizer = train_tokenizer(), unigram_tokenizer()
    for name, variant in VARIANTS.items():
        if arguments.only and name not in arguments.only:
            continue
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        tokenizer, sources = bytes_tokenizer, None
        if variant.longest_source:
            tokenizer = pieces_tokenizer
            sources = reference.random_prompts(
                variant.seed + 1000, variant.prompts, variant.longest_source, len(tokenizer)
            )
            make_encoder_decoder(folder, variant, tokenizer)
        else:
            make_checkpoint(folder, variant, tokenizer)
        model = reference.load(folder)
        prompts = reference.random_prompts(variant.seed, variant.prompts, variant.longest_prompt, len(tokenizer))
        answers = reference.continue_greedily(model, prompts, STEPS, sources)
        first = reference.assert_varied(answers, DISTINCT_SHARE)
        smallest_gap = min(gap for answer in answers for gap in answer.gaps)
        assert smallest_gap > CLEAR_GAP, f"{name}: a choice by {smallest_gap}; take another seed"
        reference.save_expected(folder / "expected.safetensors", prompts, answers, sources=sources)
        size_kib = sum(file.stat().st_size for file in folder.iterdir()) / 1024
        print(
            f"{name:12} {size_kib:6.0f} KiB  first tokens {first}/{variant.prompts}  smallest gap {smallest_gap:.4f}"
            f"  {variant.about}"
        )


if __name__ == "__main__":
    main()
