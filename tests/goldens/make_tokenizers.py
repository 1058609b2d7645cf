"""Makes `tokenizers/*.json`: small trained tokenizers of the kinds that people have.

Each has the normalizer, the pre-tokenizer and the added tokens of its namesake, and a few hundred tokens trained on the
text below. They need only the package `tokenizers`; the same version gives the same bytes.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from texts import ENGLISH

TEXT = (ENGLISH + """\
Heat exchanger 2024, lithium-ion battery 48V 100Ah, it's 20 °C; we're sure they'll say I'd've won't. WIRELESS CHARGING
US 10,123,456 B2 and EP 1234567 A1, 3.14159, IPv6 2001:db8::1, H2O2 TiO2 5G. naïve café, größere Förderbänder, éé ñ ü
リチウムイオン二次電池用の正極活物質 一种基于神经网络的图像识别方法及装置 способ изготовления полупроводниковой
пластины 한국어 분리막의 제조 방법 👍🏽 😀😀 👩‍👧 != ... -- // (a) [b] "c" {d} <e> a_b  two  spaces   three
\ttab\tab\n\nlines\n
""") * 3

TOKENS = 620

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
END = AddedToken("<|endoftext|>", special=True, normalized=False)


def byte_level(pre_tokenizer, normalizer=None, added=(), ignore_merges=False) -> Tokenizer:
    """A trained byte-level tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_tokens(list(added))
    tokenizer.add_special_tokens([END])
    return tokenizer


def split(pattern: str):
    """A pattern's matches, then bytes."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), bytes_only])


def sentence_pieces(legacy: bool) -> Tokenizer:
    """Llama 2's kind: merges of characters, bytes for other characters, and every way to make a token as a merge."""
    text = [line.replace(" ", "\u2581") for line in TEXT.splitlines()]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", behavior="merged_with_next")
    common = sorted({c for line in text for c in line if c.isascii() and c not in "{}|\t"} | {"\u2581", "é"})
    trainer = trainers.BpeTrainer(vocab_size=TOKENS - 259, limit_alphabet=80, initial_alphabet=common, show_progress=False)
    trained.train_from_iterator(text, trainer)
    pieces = json.loads(trained.to_str())["model"]
    characters = [token for token in pieces["vocab"] if len(token) == 1]
    made = ["".join(pair) for pair in pieces["merges"]]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + made + characters
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    # As transformers converts SentencePiece's models: for each token, in its order, all pairs of tokens that spell it.
    merges = [
        (token[:at], token[at:])
        for token in dict.fromkeys(made)
        for at in sorted(range(1, len(token)), key=lambda at: (vocab.get(token[:at], 0), vocab.get(token[at:], 0)))
        if token[:at] in vocab and token[at:] in vocab
    ]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        start = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(start)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Metaspace("\u2581", prepend_scheme="first")
        tokenizer.add_tokens([AddedToken("<|tool|>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return tokenizer


def kinds() -> dict[str, Tokenizer]:
    """All of them."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tools = [AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<tool_call>>")]
    return {
        "prefix_space": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "smollm2": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])),
        "llama3": byte_level(split(LLAMA3), ignore_merges=True),
        "qwen2": byte_level(split(QWEN2), normalizers.NFC(), tools),
        # GPT-NeoX's runs of spaces, and a word: found in the composed text.
        "neox": byte_level(gpt2, normalizers.NFC(), ["  ", "    ", "sure"]),
        "llama2": sentence_pieces(legacy=True),
        "metaspace": sentence_pieces(legacy=False),
    }


def main() -> None:
    """Writes them."""
    folder = Path(__file__).parent / "tokenizers"
    folder.mkdir(exist_ok=True)
    for name, tokenizer in kinds().items():
        (folder / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
