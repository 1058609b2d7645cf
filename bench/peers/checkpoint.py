"""A GPT-2 checkpoint folder as `save_pretrained` writes it, read without PyTorch."""

import json
from pathlib import Path


class Checkpoint:
    """Shapes and weights. Matrices of layers are [in, out], as GPT-2 keeps them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.layers = self.config["n_layer"]
        self.heads = self.config["n_head"]
        self.hidden = self.config["n_embd"]
        self.head_dim = self.hidden // self.heads
        self.vocabulary_size = self.config["vocab_size"]
        self.positions = self.config["n_positions"]
        self.epsilon = self.config.get("layer_norm_epsilon", 1e-5)

    def weights(self):
        """Names without the prefix `transformer.`, and float32 arrays."""
        import numpy
        from safetensors.numpy import load_file

        tensors = load_file(self.folder / "model.safetensors")
        return {name.removeprefix("transformer."): array.astype(numpy.float32) for name, array in tensors.items()}

    def vocabulary(self):
        """Pieces by id, and the merges as `left right`."""
        if (self.folder / "vocab.json").exists():
            ids = json.loads((self.folder / "vocab.json").read_text())
            lines = (self.folder / "merges.txt").read_text().splitlines()
            merges = [line for line in lines if line and not line.startswith("#version")]
        else:
            tokenizer = json.loads((self.folder / "tokenizer.json").read_text())
            ids = dict(tokenizer["model"]["vocab"])
            ids.update({added["content"]: added["id"] for added in tokenizer.get("added_tokens", [])})
            merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
        pieces = [f"<unused{index}>" for index in range(self.vocabulary_size)]
        for piece, index in ids.items():
            pieces[index] = piece
        return pieces, merges

    def tokenizer(self):
        """The byte-level tokenizer of the package `tokenizers`."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        if (self.folder / "tokenizer.json").exists():
            return Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        files = [str(self.folder / name) for name in ("vocab.json", "merges.txt")]
        tokenizer = Tokenizer(models.BPE.from_file(*files))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
