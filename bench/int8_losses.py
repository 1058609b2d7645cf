"""Where int8 loses on a Llama: the divergence from f32 by matrix, weights and activations apart.

usage: int8_losses.py CHECKPOINT [OUT.txt]     needs what bench/int8_losses.requirements.txt names

A simulation in NumPy of what the CPU kernels round: weights with a scale for each output, activations in groups with a
scale each. Factors are those of engine-build/src/smoothing.rs and the choice of weights that of
engine-build/src/rounding.rs, both for the first twelve of the queries. The kernels themselves are measured by
`foretype build --quantize int8`.
"""

import json
import pathlib
import sys

import machine
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
PARTS = {
    "q/k/v": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "output": ["self_attn.o_proj"],
    "gate/up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}


def rounded(x, group):
    """Rows in groups of inputs, each to multiples of its largest magnitude / 127."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % group))).reshape(len(x), -1, group)
    scale = np.maximum(np.abs(padded).max(-1, keepdims=True), 1e-30) / 127
    return (np.round(padded / scale) * scale).reshape(len(x), -1)[:, : x.shape[1]].astype(np.float32)


def chosen(matrix, read):
    """The matrix, `[outputs, inputs]`, rounded so that the error of one input makes up for those of the others."""
    scale = np.maximum(np.abs(matrix).max(1), 1e-30) / 127
    squares = (read * read).sum(0)
    shares = 1 / (squares + squares.mean())
    found, lacking = matrix.copy(), np.zeros((len(read), len(matrix)), np.float32)
    for _ in range(2):
        for i in range(matrix.shape[1]):
            column = read[:, i]
            lacking -= np.outer(column, matrix[:, i] - found[:, i])
            wanted = matrix[:, i] + column @ lacking * shares[i]
            found[:, i] = np.clip(np.round(wanted / scale), -127, 127) * scale
            lacking += np.outer(column, matrix[:, i] - found[:, i])
    return found


def factors(activations, weights, exponent=0.5):
    found = (np.maximum(activations, 1e-5) / np.maximum(weights, 1e-5)) ** exponent
    return np.clip(found / found.mean(), 1e-3, 1e3).astype(np.float32)


class Model:
    """A Llama whose maps round as `rounds` says: {part: (whether weights, group of activations or None)}."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.layers, self.heads = self.config["num_hidden_layers"], self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.size = self.config["hidden_size"] // self.heads
        self.weights["head"] = self.weights["model.embed_tokens.weight"]
        self.rounds, self.read, self.cache, self.chooses, self.observes = {}, {}, {}, False, False

    def name(self, layer, part):
        return f"model.layers.{layer}.{part}.weight"

    def matrix(self, name, layer, part):
        matrix = self.weights[name]
        if not self.rounds.get(part, (False, None))[0]:
            return matrix
        if name not in self.cache:
            read = self.read.get((layer, part)) if self.chooses else None
            self.cache[name] = rounded(matrix, matrix.shape[1]) if read is None else chosen(matrix, read)
        return self.cache[name]

    def maps(self, x, layer, part):
        """The products of `x` with the part's matrices."""
        if self.observes:
            self.read[layer, part] = x
        group = self.rounds.get(part, (False, None))[1]
        x = x if group is None else rounded(x, group)
        names = ["head"] if part == "head" else [self.name(layer, name) for name in PARTS[part]]
        return [x @ self.matrix(name, layer, part).T for name in names]

    def norm(self, x, name):
        root = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / root * self.weights[name]

    def turned(self, x, positions):
        x = x.reshape(len(x), -1, self.size)
        half = self.size // 2
        angles = positions[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(self, x, layer, texts):
        query, key, value = self.maps(x, layer, "q/k/v")
        positions = np.concatenate([np.arange(len(text), dtype=np.float32) for text in texts])
        query, key = self.turned(query, positions), self.turned(key, positions)
        value = value.reshape(len(x), -1, self.size)
        mixed, start = np.zeros_like(query), 0
        for text in texts:
            rows = slice(start, start + len(text))
            hidden = np.triu(np.full((len(text), len(text)), -1e30, np.float32), 1)
            for head in range(self.heads):
                of = head * self.kv_heads // self.heads
                scores = query[rows, head] @ key[rows, of].T / np.sqrt(self.size) + hidden
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                mixed[rows, head] = scores / scores.sum(-1, keepdims=True) @ value[rows, of]
            start += len(text)
        return self.maps(mixed.reshape(len(x), -1), layer, "output")[0]

    def run(self, texts):
        """Log-probabilities of the next token after each position of each text."""
        x = self.matrix("model.embed_tokens.weight", 0, "embedding")[np.concatenate(texts)]
        for layer in range(self.layers):
            x = x + self.attention(self.norm(x, self.name(layer, "input_layernorm")), layer, texts)
            gate, up = self.maps(self.norm(x, self.name(layer, "post_attention_layernorm")), layer, "gate/up")
            x = x + self.maps(gate / (1 + np.exp(-gate)) * up, layer, "down")[0]
        logits = self.maps(self.norm(x, "model.norm.weight"), 0, "head")[0].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def observe(self, texts):
        """Keeps what the maps read for the texts."""
        self.rounds, self.cache, self.observes = {}, {}, True
        self.run(texts)
        self.observes = False

    def largest(self, layer, part):
        return np.abs(self.read[layer, part]).max(0)

    def smooth(self):
        """Moves factors from what maps read into their weights. The head's matrix is no longer the embedding then."""
        by = factors(self.largest(0, "head"), np.abs(self.weights["head"]).max(0), 1 / 3)
        self.weights["head"] = self.weights["head"] * by
        self.weights["model.norm.weight"] = self.weights["model.norm.weight"] / by
        for layer in range(self.layers):
            by = factors(self.shared(self.largest(layer, "output")), self.shared(self.by_input(layer, "output")))
            self.multiply(layer, "self_attn.v_proj", 1 / by.reshape(-1, 1))
            self.multiply(layer, "self_attn.o_proj", np.repeat(by, self.heads // self.kv_heads, 0).reshape(-1))
            by = factors(self.largest(layer, "down"), self.by_input(layer, "down"))
            self.multiply(layer, "mlp.up_proj", 1 / by[:, None])
            self.multiply(layer, "mlp.down_proj", by)
            for norm, part in (("input_layernorm", "q/k/v"), ("post_attention_layernorm", "gate/up")):
                by = factors(self.largest(layer, part), self.by_input(layer, part))
                self.multiply(layer, norm, 1 / by)
                for name in PARTS[part]:
                    self.multiply(layer, name, by)

    def by_input(self, layer, part):
        """The largest magnitude of each input's weights."""
        return np.max([np.abs(self.weights[self.name(layer, name)]).max(0) for name in PARTS[part]], 0)

    def shared(self, largest):
        """The largest of what the query heads of a key-value head read."""
        return largest.reshape(self.kv_heads, -1, self.size).max(1)

    def multiply(self, layer, part, by):
        self.weights[self.name(layer, part)] = self.weights[self.name(layer, part)] * by


def divergence(reference, found):
    return (np.exp(reference) * (reference - found)).sum(-1).mean(), (reference.argmax(-1) == found.argmax(-1)).mean()


def table(model, texts, reference):
    """Lines of the loss of each part alone, and of all together."""
    every = [*PARTS, "head", "embedding"]
    cases = [(f"weights of {part}", {part: (True, None)}) for part in every]
    cases += [(f"activations of {part}, groups of 128", {part: (False, 128)}) for part in every[:-1]]
    cases.append(("all weights", {part: (True, None) for part in every}))
    for group in (128, 64, 32):
        cases.append((f"all activations, groups of {group}", {part: (False, group) for part in every}))
        cases.append((f"all, groups of {group}", {part: (True, group) for part in every}))
    for name, rounds in cases:
        model.rounds = rounds
        yield name, *divergence(reference, model.run(texts))


def main():
    folder = pathlib.Path(sys.argv[1])
    lines = (HERE / "int8_losses.queries.txt").read_text().splitlines()
    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), Model(folder)
    start = [model.config["bos_token_id"]]
    encode = lambda lines: [np.array(start + tokenizer.encode(line).ids) for line in lines]
    observed, texts = encode(lines[:12]), encode(lines[12:])
    reference = model.run(texts)
    columns = [list(table(model, texts, reference))]
    model.observe(observed)
    model.smooth()
    columns.append(list(table(model, texts, reference)))
    # Once more, because the factors change what is read.
    model.observe(observed)
    model.chooses = True
    columns.append(list(table(model, texts, reference)))
    report = [
        f"int8 on SmolLM2-135M, simulated: divergence from f32 in nats / equal first tokens, "
        f"{len(reference)} positions, commit {machine.describe()['commit']}",
        f"{'rounded':44}{'to the nearest':>20}{'with factors':>20}{'and chosen':>20}",
    ]
    for row in zip(*columns):
        losses = "".join(f"{loss:>12.4f} / {equal:.3f}" for _, loss, equal in row)
        report.append(f"{row[0][0]:44}{losses}")
    text = "\n".join(report) + "\n"
    print(text, end="")
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2]).write_text(text)


main()
