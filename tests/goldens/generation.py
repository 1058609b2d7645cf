"""Makes the goldens of generation: tiny random models with tokenizers of many kinds, and what transformers' `generate` answers.

Each kind becomes a folder `generation/KIND`: a checkpoint and `answers.json`, a list with an entry for each prompt:

    prompt    the text that is sent
    input     its token ids, as the tokenizer has them with `add_special_tokens`
    greedy    the new token ids, the end token left out, and whether an end token came
    gaps      best score minus second best at each step: a small gap excuses another choice
    text      what the new tokens add to the prompt's text, special tokens skipped
    beams     beam searches: the parameters, the new token ids of each sequence with its end token, and `also`, the
              answers that transformers gives when each log-probability is moved at random by up to half of TIE: another
              answer than those is wrong

The kinds of SAMPLED have `sampling.json` too, a list with an entry for each combination of parameters:

    prompt, parameters
    probabilities    of every token id that can be drawn as the first one

usage: generation.py [--out FOLDER] [KIND...]
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    LogitsProcessor,
    MistralForCausalLM,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)

import reference

PROMPTS = 20
NEW = 40
CONTEXT = 96
# Scores that are nearer than this may be in another order.
TIE = 1e-4
# The beam searches of every prompt; the last one's `early_stopping` takes turns.
BEAMS = [
    dict(num_beams=4, length_penalty=0.6),
    dict(num_beams=4, length_penalty=1.2),
    dict(num_beams=3, num_return_sequences=3, repetition_penalty=1.3, no_repeat_ngram_size=3, min_new_tokens=4),
]
STOPPING = [True, False, "never"]
SAMPLED = ["gpt2", "llama", "qwen2"]
SAMPLING = [
    dict(temperature=1.0),
    dict(temperature=0.5),
    dict(temperature=1.7, top_k=12),
    dict(temperature=1.0, top_p=0.7),
    dict(temperature=1.0, typical_p=0.6),
    dict(temperature=0.8, top_k=30, top_p=0.8),
    dict(temperature=1.2, top_p=0.9, typical_p=0.7),
    dict(temperature=1.0, repetition_penalty=1.5),
    dict(temperature=0.7, top_k=20, top_p=0.95, repetition_penalty=1.8),
    dict(temperature=1.5, top_k=40, typical_p=0.5, repetition_penalty=0.7),
]
SPACE = "\u2581"
TEXT = """\
The first line of a text.
A second one,  with two spaces and\ta tab.

def solar(cell):
    return cell * 2

Heat pumps move heat; "pumps" move water. Größe, naïve, café, 5 €, 10 %.
"""


def byte_level(bos: bool = False, merges: int = 40, prefix: bool = False) -> Tokenizer:
    """GPT-2's kind; with `bos`, the post-processor starts every text with `<s>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_end|>", "<s>")])
    if bos:
        special = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=special)
    return tokenizer


def sentencepiece(bos: bool = True, metaspace: bool = False) -> Tokenizer:
    """Llama's kind: pieces with byte fallback."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = special + [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({SPACE} | set("abcdefghijklmnopqrstuvwxyzTAH.,"))
    words = [SPACE + letter for letter in "aehpst"] + ["he", "at", SPACE + "he", SPACE + "heat", "so", "la", "sola"]
    pieces += letters + words
    pairs = [(SPACE, letter) for letter in "aehpst"]
    pairs += [("h", "e"), ("a", "t"), (SPACE, "he"), (SPACE + "he", "at"), ("s", "o"), ("l", "a"), ("so", "la")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    strip = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(strip)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def llama(**more):
    shape = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=40)
    return LlamaForCausalLM, dict(shape, max_position_embeddings=CONTEXT, **more)


def gpt2(**more):
    return GPT2LMHeadModel, dict(n_layer=2, n_head=2, n_embd=32, n_positions=CONTEXT, **more)


# What sets a kind apart: tokenizer, model, names of its start and end tokens, rows of the vocabulary beyond the tokenizer's,
# and a token that is made likely.
KINDS = {
    "gpt2": dict(tokenizer=byte_level(), model=gpt2(), end=["<|endoftext|>"]),
    "gpt2_bos": dict(tokenizer=byte_level(bos=True), model=gpt2(), end=["<|endoftext|>"]),
    "gpt2_prefix": dict(tokenizer=byte_level(prefix=True), model=gpt2(), end=["<|endoftext|>"]),
    "padded": dict(tokenizer=byte_level(), model=gpt2(), end=["<|endoftext|>"], padding=21),
    "newlines": dict(tokenizer=byte_level(), model=gpt2(), end=["<|endoftext|>"], likely="Ċ"),
    "llama": dict(tokenizer=sentencepiece(), model=llama(), end=["</s>"]),
    "llama_no_bos": dict(tokenizer=sentencepiece(bos=False), model=llama(), end=["</s>"]),
    "llama_newlines": dict(tokenizer=sentencepiece(), model=llama(), end=["</s>"], likely="<0x0A>"),
    "mistral_metaspace": dict(
        tokenizer=sentencepiece(metaspace=True),
        model=(MistralForCausalLM, dict(llama()[1], sliding_window=CONTEXT)),
        end=["</s>"],
    ),
    "qwen2": dict(
        tokenizer=byte_level(),
        model=(Qwen2ForCausalLM, dict(llama()[1], tie_word_embeddings=True)),
        end=["<|im_end|>", "<|endoftext|>"],
        likely="<|im_end|>",
    ),
    "opt": dict(
        tokenizer=byte_level(bos=True),
        model=(
            OPTForCausalLM,
            dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=32, ffn_dim=40, word_embed_proj_dim=32,
                 max_position_embeddings=CONTEXT),
        ),
        end=["<|endoftext|>"],
    ),
    "neox": dict(
        tokenizer=byte_level(),
        model=(
            GPTNeoXForCausalLM,
            dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=40,
                 max_position_embeddings=CONTEXT),
        ),
        end=["<|endoftext|>", "<|im_end|>"],
    ),
}  # fmt: skip


def prompts(seed: int) -> list[str]:
    """Parts of the text, of several lines, with a few that are odd."""
    rng = random.Random(seed)
    odd = ["", " ", "\n", "a\n\nb", "  two  spaces ", "\ttab", "heat", " heat", "日本", "e\u0301"]
    parts = []
    while len(parts) < PROMPTS - len(odd):
        start = rng.randrange(len(TEXT) - 8)
        parts.append(TEXT[start : start + rng.randint(1, 40)])
    return odd + parts


def make(folder: Path, kind: str, seed: int) -> PreTrainedTokenizerFast:
    """Writes one random checkpoint."""
    given = KINDS[kind]
    backend, (model_class, config) = given["tokenizer"], given["model"]
    ends = [backend.token_to_id(token) for token in given["end"]]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=given["end"][0], bos_token="<s>")
    vocabulary = len(tokenizer) + given.get("padding", 0)
    # What a GPT-2 without a start token begins an empty prompt with.
    start = backend.token_to_id("<s>") if backend.post_processor or kind.startswith("llama") else ends[0]
    config = model_class.config_class(
        **config, vocab_size=vocabulary, bos_token_id=start, eos_token_id=ends, pad_token_id=ends[0]
    )
    model = model_class(config)
    reference.randomise(model, seed, 2.5)
    if likely := given.get("likely"):
        # Its row points where the last hidden states do more often.
        with torch.no_grad():
            model.get_output_embeddings().weight[backend.token_to_id(likely)] *= 2.0
    model.generation_config.eos_token_id = ends
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


class Noise(LogitsProcessor):
    """Moves every score by up to half of TIE."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids, scores):
        return scores + (torch.rand(scores.shape, generator=self.generator) - 0.5) * TIE


def given_to(model, tokenizer, prompt: str) -> tuple[list[int], dict]:
    """A prompt's tokens, and what every generation behind them has in common."""
    ends = model.generation_config.eos_token_id
    ids = tokenizer(prompt).input_ids or [model.config.bos_token_id]
    given = dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    given |= dict(pad_token_id=ends[0], return_dict_in_generate=True, output_scores=True)
    # Rows that no token has are left out here, and so they are there.
    return ids, given | dict(suppress_tokens=list(range(len(tokenizer), model.config.vocab_size)) or None)


def searched(model, ids: list[int], given: dict, parameters: dict) -> dict:
    """The sequences of a beam search, and other ones that are as good."""
    ends = model.generation_config.eos_token_id

    def sequences(*processors) -> list[list[int]]:
        common = dict(do_sample=False, max_new_tokens=NEW, logits_processor=list(processors))
        out = model.generate(**given, **parameters, **common)
        news = [sequence[len(ids) :].tolist() for sequence in out.sequences]
        # What is behind an end token only fills the row.
        return [new[: next((i + 1 for i, token in enumerate(new) if token in ends), len(new))] for new in news]

    found = sequences()
    also = [other for seed in (1, 2) if (other := sequences(Noise(seed))) != found]
    return dict(parameters=parameters, sequences=found, also=also)


@torch.no_grad()
def sampling(model, tokenizer) -> list[dict]:
    """The distributions that transformers draws from, behind prompts some of whose tokens are likely to come again."""
    entries = []
    prompts = ["heat pump", "so he", "def solar(cell):", " a a a", "the heat the heat"] * 2
    for parameters, prompt in zip(SAMPLING, prompts):
        _, given = given_to(model, tokenizer, prompt)
        # No top-k unless it is asked for; transformers' own default is 50.
        out = model.generate(**given, **(dict(top_k=0) | parameters), do_sample=True, max_new_tokens=1)
        shares = out.scores[0][0].double().softmax(0).tolist()
        probabilities = {id: share for id, share in enumerate(shares) if share > 0}
        entries.append(dict(prompt=prompt, parameters=parameters, probabilities=probabilities))
    return entries


@torch.no_grad()
def answer(model, tokenizer, prompt: str, turn: int) -> dict:
    """What transformers makes of a prompt."""
    ends = model.generation_config.eos_token_id
    ids, given = given_to(model, tokenizer, prompt)
    out = model.generate(**given, max_new_tokens=NEW, do_sample=False)
    new = out.sequences[0, len(ids) :].tolist()
    gaps = [(lambda best: (best[0] - best[1]).item())(score[0].topk(2).values) for score in out.scores]
    before = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    whole = tokenizer.decode(ids + new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    ended = new[-1] in ends
    greedy = new[:-1] if ended else new
    searches = [*BEAMS[:-1], dict(BEAMS[-1], early_stopping=STOPPING[turn % len(STOPPING)])]
    beams = [searched(model, ids, given, parameters) for parameters in searches]
    return dict(prompt=prompt, input=ids, greedy=greedy, ended=ended, gaps=gaps, text=whole[len(before) :], beams=beams)


def main() -> None:
    """Makes every kind anew and prints what became of it."""
    parser = argparse.ArgumentParser(description="Makes the goldens of generation.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "generation")
    parser.add_argument("only", nargs="*", help="kinds (default: all)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for seed, kind in enumerate(KINDS, 1):
        if arguments.only and kind not in arguments.only:
            continue
        folder = arguments.out / kind
        shutil.rmtree(folder, ignore_errors=True)
        tokenizer = make(folder, kind, seed)
        model = reference.load(folder)
        answers = [answer(model, tokenizer, prompt, turn) for turn, prompt in enumerate(prompts(seed))]
        # A line a prompt: the diff of a change says which.
        lines = ",\n".join(json.dumps(each, ensure_ascii=True) for each in answers)
        (folder / "answers.json").write_text(f"[\n{lines}\n]\n")
        if kind in SAMPLED:
            lines = ",\n".join(json.dumps(each) for each in sampling(model, tokenizer))
            (folder / "sampling.json").write_text(f"[\n{lines}\n]\n")
        searches = [search for each in answers for search in each["beams"]]
        newlines = sum("\n" in each["text"] for each in answers)
        print(
            f"{kind:18} different {len({tuple(each['greedy']) for each in answers}):2}  with line breaks {newlines:2}"
            f"  ended {sum(each['ended'] for each in answers):2}"
            f"  smallest gap {min(min(e['gaps']) for e in answers):.4f}"
            f"  beams with ties {sum(bool(search['also']) for search in searches)} of {len(searches)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
