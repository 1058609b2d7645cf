"""transformers' GPT-2 as a function of flat tensors, the form in which graphs are exported from it."""

import torch
from transformers import GPT2LMHeadModel


class FlatCache:
    """The little of transformers' cache that GPT-2's layers use: what is new goes behind what is there."""

    def __init__(self, pairs):
        self.pairs = list(pairs)

    def get_seq_length(self, layer_index=0):
        return self.pairs[layer_index][0].shape[2]

    def update(self, key, value, layer_index, *_):
        past_key, past_value = self.pairs[layer_index]
        pair = (torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2))
        self.pairs[layer_index] = pair
        return pair


class StepModel(torch.nn.Module):
    """(input_ids [B, S], attention_mask [B, P+S], position_ids [B, S], key and value [B, H, P, D] per layer) to
    (logits [B, S, V], key and value [B, H, P+S, D] per layer)."""

    def __init__(self, folder, attention):
        super().__init__()
        self.model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()
        self.config = self.model.config

    def names(self):
        """Inputs and outputs, in order."""
        layers = range(self.config.n_layer)
        inputs = ["input_ids", "attention_mask", "position_ids"]
        inputs += [f"past_key_values.{layer}.{part}" for layer in layers for part in ("key", "value")]
        outputs = ["logits"] + [f"present.{layer}.{part}" for layer in layers for part in ("key", "value")]
        return inputs, outputs

    def example(self, past=3, new=2, batch=2):
        """Inputs to trace with."""
        heads, head_dim = self.config.n_head, self.config.n_embd // self.config.n_head
        ids = torch.randint(0, self.config.vocab_size, (batch, new))
        mask = torch.ones((batch, past + new), dtype=torch.int64)
        positions = torch.arange(past, past + new).expand(batch, new).contiguous()
        pasts = [torch.randn(batch, heads, past, head_dim) for _ in range(2 * self.config.n_layer)]
        return (ids, mask, positions, *pasts)

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = FlatCache(zip(past[0::2], past[1::2], strict=True))
        total, new = attention_mask.shape[1], input_ids.shape[1]
        keys = torch.arange(total)[None, :]
        queries = (torch.arange(new) + (total - new))[:, None]
        allowed = (keys <= queries)[None, None] & (attention_mask != 0)[:, None, None, :]
        mask = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
        output = self.model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        return (output.logits, *[tensor for pair in cache.pairs for tensor in pair])
