"""PyTorch with Hugging Face transformers' `generate`: the status quo."""

import torch
import transformers
from transformers import AutoModelForCausalLM

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def version():
    return f"PyTorch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"


class Engine:
    def __init__(self, variant, models, threads):
        torch.set_num_threads(threads)
        checkpoint = (models / "checkpoint.txt").read_text().strip()
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=TYPES[variant]).eval()
        # Nothing ends a row before its length.
        self.model.generation_config.eos_token_id = None

    def run(self, rows, new_tokens, **sampling):
        ids = torch.tensor(rows)
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, pad_token_id=0, **sampling
            )
        return out[:, ids.shape[1] :].tolist()

    def generate(self, rows, new_tokens):
        return self.run(rows, new_tokens, do_sample=False)

    def candidates(self, ids, count, new_tokens):
        return self.run([ids], new_tokens, do_sample=True, top_k=50, num_return_sequences=count)
