"""The folder of a GPT-2 or a Llama as `save_pretrained` writes it, read without PyTorch."""

import json
from pathlib import Path


# Layers, heads, width and positions in config.json.
GPT2 = ("n_layer", "n_head", "n_embd", "n_positions")
LLAMA = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")


class Checkpoint:
    """Shapes and weights. Matrices of layers are as the family keeps them: [in, out] in GPT-2, [out, in] in Llama."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.is_llama = self.config["model_type"] == "llama"
        named = LLAMA if self.is_llama else GPT2
        self.layers, self.heads, self.hidden, self.positions = (self.config[field] for field in named)
        self.head_dim = self.hidden // self.heads
        self.vocabulary_size = self.config["vocab_size"]
        self.epsilon = self.config.get("rms_norm_eps" if self.is_llama else "layer_norm_epsilon", 1e-5)
        ends = self.config.get("eos_token_id", self.vocabulary_size - 1)
        self.end = ends[0] if isinstance(ends, list) else ends

    def weights(self):
        """Names without the prefix `transformer.` or `model.`, and float32 arrays."""
        import numpy
        from safetensors.numpy import load_file

        tensors = load_file(self.folder / "model.safetensors")
        prefix = "model." if self.is_llama else "transformer."
        return {name.removeprefix(prefix): array.astype(numpy.float32) for name, array in tensors.items()}

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
