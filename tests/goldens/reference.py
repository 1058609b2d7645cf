"""What transformers computes: the part that the tiny goldens and the real-size parity check share.

A reference is one safetensors file. For each prompt `i` it holds

    source.{i}  i64 [t]        the encoder's token ids, in references of encoder-decoders only
    prompt.{i}  i64 [n]        the token ids fed, to the decoder where there is an encoder
    logits.{i}  f32 [n, V]     after each of them (the tiny goldens) or [1, V], after the last (the parity check)
    greedy.{i}  i64 [g]        the greedy continuation, which does not stop at the end-of-text token
    gap.{i}     f32 [g]        best logit minus second best at each step: a small gap excuses another choice

Everything runs in float32 on the CPU with eager attention. A model with transformers' default initialisation (standard
deviation 0.02, biases 0) says the same token whatever it is asked, and a test against it proves nothing; `randomise`
makes one that does not.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

transformers.utils.logging.disable_progress_bar()
# Sums in one order on every machine; and on a busy one, threads that wait for each other are slower than one.
torch.set_num_threads(1)

# Standard deviation of a logit; the best two are then about 1 apart.
LOGIT_STD = 3.0
# How much a matrix widens what it is given, where nothing else is said. At 1 the token just read shines through the tied head and repeats for ever.
GAIN = 2.5
# Of everything that defaults to a constant (biases 0, layer norm weights 1), so that leaving one out shows.
OFFSET_STD = 0.1
# The matrices with a row per token or position.
VOCABULARIES = (
    "wte.weight",
    "wpe.weight",
    "embed_in.weight",
    "embed_tokens.weight",
    "embed_positions.weight",
    "embed_out.weight",
    "lm_head.weight",
    "shared.weight",
    "word_embeddings.weight",
)
# A table of biases of query-key products.
BIASES = "relative_attention_bias.weight"
# T5 does not divide query-key products by the root of the head size: its matrices for queries are smaller by that.
UNSCALED_QUERIES = ("SelfAttention.q.weight", "EncDecAttention.q.weight")


@dataclass
class Continuation:
    """One prompt's answer."""

    logits: torch.Tensor  # [n, V], one row per prompt token
    tokens: list[int]  # [g]
    gaps: list[float]  # [g]


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int, gain: float = GAIN) -> None:
    """Fills every parameter so that layers outweigh what they add to, and the output depends on the prompt."""
    generator = torch.Generator().manual_seed(seed)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, parameter in sorted(model.named_parameters()):
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if name.endswith(VOCABULARIES):
            parameter.mul_(LOGIT_STD / parameter.shape[1] ** 0.5)
        elif name.endswith(BIASES):
            pass
        elif parameter.dim() == 2:
            inputs = 1 if name in linear else 0  # Linear is [out, in], GPT-2's Conv1D [in, out]
            # Centred, or the mean of what an activation lets through becomes the same addition to every position.
            parameter.sub_(parameter.mean(dim=inputs, keepdim=True)).mul_(gain / parameter.shape[inputs] ** 0.5)
            if name.endswith(UNSCALED_QUERIES):
                parameter.mul_(model.config.d_kv**-0.5)
        else:
            parameter.mul_(OFFSET_STD).add_(1.0 if name.endswith("weight") else 0.0)


def load(folder: Path) -> PreTrainedModel:
    """Loads a checkpoint as it was stored, widened to float32."""
    kind = AutoModelForSeq2SeqLM if AutoConfig.from_pretrained(folder).is_encoder_decoder else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def random_prompts(seed: int, count: int, longest: int, vocabulary: int) -> list[list[int]]:
    """Random ids below `vocabulary`; the first prompt has one token, the second `longest`, the rest any length."""
    rng = random.Random(seed)
    lengths = [1, longest] + [rng.randint(1, longest) for _ in range(count - 2)]
    return [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths]


@torch.no_grad()
def continue_greedily(
    model: PreTrainedModel, prompts: list[list[int]], steps: int, sources: list[list[int]] | None = None
) -> list[Continuation]:
    """Takes the likeliest token up to `steps` times, as long as prompt and answer together fit the context.

    Prompts, and sources, of equal length share a batch, so none is padded.
    """
    answers = {}
    sizes = [(len(prompt), len(sources[i]) if sources else 0) for i, prompt in enumerate(prompts)]
    positions = model.config.n_positions if sources else model.config.max_position_embeddings
    for size in sorted(set(sizes)):
        members = [i for i in range(len(prompts)) if sizes[i] == size]
        fed = "decoder_input_ids" if sources else "input_ids"
        given = dict(input_ids=torch.tensor([sources[i] for i in members])) if sources else {}
        step = model(**given, **{fed: torch.tensor([prompts[i] for i in members])}, use_cache=True)
        answers |= {i: Continuation(rows, [], []) for i, rows in zip(members, step.logits)}
        if sources:
            given = dict(encoder_outputs=(step.encoder_last_hidden_state,))
        for _ in range(min(steps, positions - size[0])):
            if answers[members[0]].tokens:
                newest = torch.tensor([answers[i].tokens[-1:] for i in members])
                step = model(**given, **{fed: newest}, past_key_values=step.past_key_values, use_cache=True)
            best = step.logits[:, -1].topk(2)  # [members, 2]
            for i, tokens, logits in zip(members, best.indices.tolist(), best.values.tolist()):
                answers[i].tokens.append(tokens[0])
                answers[i].gaps.append(logits[0] - logits[1])
    return [answers[i] for i in range(len(prompts))]


def assert_varied(answers: list[Continuation], distinct_share: float) -> int:
    """Fails unless answers differ between prompts and between steps; returns how many first tokens there are."""
    assert len({tuple(answer.tokens) for answer in answers}) == len(answers), "two prompts got the same continuation"
    first = len({answer.tokens[0] for answer in answers})
    assert first >= distinct_share * len(answers), f"only {first} different first tokens in {len(answers)} answers"
    pairs = [pair for answer in answers for pair in zip(answer.tokens, answer.tokens[1:])]
    assert sum(a != b for a, b in pairs) >= 0.5 * len(pairs), "answers mostly repeat one token"
    return first


def save_expected(
    file: Path,
    prompts: list[list[int]],
    answers: list[Continuation],
    last_row_only: bool = False,
    sources: list[list[int]] | None = None,
) -> None:
    """Writes the reference file, with the versions that made it in its metadata."""
    tensors = {f"source.{i}": torch.tensor(source) for i, source in enumerate(sources or [])}
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tensors[f"prompt.{i}"] = torch.tensor(prompt)
        tensors[f"logits.{i}"] = (answer.logits[-1:] if last_row_only else answer.logits).contiguous()
        tensors[f"greedy.{i}"] = torch.tensor(answer.tokens)
        tensors[f"gap.{i}"] = torch.tensor(answer.gaps)
    # One key only: safetensors writes several in no fixed order.
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"
    save_file(tensors, file, metadata={"made_by": made_by})
