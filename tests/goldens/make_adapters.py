"""Makes the golden adapters: random LoRA adapters of golden checkpoints, and what PEFT's own merged models compute.

Each becomes a folder in `lora`: an adapter as PEFT's `save_pretrained` writes it, whose `base_model_name_or_path` is the
name of a golden, and `expected.safetensors` (`reference.py` says what is in it). `make goldens` runs this.
"""

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import reference

# That PEFT turns its setting for matrices [in, out] on, and merges a head.
warnings.filterwarnings("ignore", module="peft")

HERE = Path(__file__).parent
STEPS = 8
PROMPTS = 6
LONGEST = 12
# Of an element of the product that is added, against one of the weight.
STRENGTH = 0.5


@dataclass
class Adapter:
    """What sets one adapter apart."""

    about: str
    base: str
    config: dict
    # adapter_model.bin, as PEFT wrote it until 2023.
    pickled: bool = False


ADAPTERS = {
    "conv1d": Adapter(
        "GPT-2's [in, out] matrices, one of them square", "fp16", dict(r=3, target_modules=["c_attn", "c_proj", "c_fc"])
    ),
    "patterns": Adapter(
        "ranks and scales of their own, scaled by roots, a base whose names have no prefix",
        "bare",
        dict(
            r=4, lora_alpha=6, use_rslora=True, target_modules=["attn.c_proj", "c_fc"],
            rank_pattern={"h.1.mlp.c_fc": 2}, alpha_pattern={"attn.c_proj": 3},
        ),
    ),
    "linear": Adapter(
        "Llama: joined and transposed maps, the head too, in an old file",
        "llama",
        dict(r=2, lora_alpha=5, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"]),
        pickled=True,
    ),
    "some_layers": Adapter(
        "Llama: one layer only", "llama", dict(r=4, target_modules=["q_proj", "k_proj", "up_proj"], layers_to_transform=[1])
    ),
}  # fmt: skip


@torch.no_grad()
def randomise(model: PeftModel, seed: int) -> None:
    """Gives every adapter a product whose elements are as large as a weight's, and so an effect on every logit."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
            parameter.mul_((STRENGTH / max(parameter.shape) ** 0.5) ** 0.5)


def main() -> None:
    """Makes every adapter anew and prints what became of it."""
    for seed, (name, adapter) in enumerate(ADAPTERS.items()):
        folder, base = HERE / "lora" / name, HERE / adapter.base
        shutil.rmtree(folder, ignore_errors=True)
        model = get_peft_model(reference.load(base), LoraConfig(task_type="CAUSAL_LM", **adapter.config))
        randomise(model, seed)
        model.peft_config["default"].base_model_name_or_path = adapter.base
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # a model card to fill in
        file = folder / "adapter_model.safetensors"
        if adapter.pickled:
            torch.save(load_file(file), folder / "adapter_model.bin")
            file.unlink()
        # As somebody else would load it.
        merged = PeftModel.from_pretrained(reference.load(base), folder).merge_and_unload()
        plain = reference.load(base)
        vocabulary = plain.config.vocab_size
        prompts = reference.random_prompts(seed, PROMPTS, LONGEST, vocabulary)
        answers = reference.continue_greedily(merged, prompts, STEPS)
        without = reference.continue_greedily(plain, prompts, STEPS)
        effect = min((one.logits - other.logits).abs().max().item() for one, other in zip(answers, without))
        assert effect > 0.5, f"{name}: a prompt's logits change by {effect} only"
        reference.save_expected(folder / "expected.safetensors", prompts, answers)
        print(f"{name:12} logits change by at least {effect:.2f}  {adapter.about}")


if __name__ == "__main__":
    main()
