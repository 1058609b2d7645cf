"""The paper case in PyTorch on this machine's GPU: what the kit's figures compare with.

Ten continuations of a prompt of 10 tokens, 32 new tokens each, by `generate` of transformers in f16, one request at
a time. Prints a row for each way to choose tokens: engine, what was measured and the outcome, with tabs between.

usage: pytorch.py CHECKPOINT
"""

import statistics
import sys
import time

import torch
import transformers

ROUNDS = 11
WAYS = {"sampled": {"do_sample": True, "top_k": 50}, "beam search": {"do_sample": False, "num_beams": 10}}


def main():
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float16).to("cuda").eval()
    # Nothing ends a row before its length.
    model.generation_config.eos_token_id = None

    def milliseconds(prompt, options):
        started = time.perf_counter()
        with torch.inference_mode():
            rows = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=32,
                num_return_sequences=10,
                pad_token_id=0,
                **options,
            )
        torch.cuda.synchronize()
        assert rows.shape == (10, 42), rows.shape
        return 1000 * (time.perf_counter() - started)

    version = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    for way, options in WAYS.items():
        prompts = [torch.randint(0, model.config.vocab_size, (1, 10), device="cuda") for _ in range(ROUNDS + 2)]
        times = [milliseconds(prompt, options) for prompt in prompts][2:]
        what = f"ten continuations of 42 tokens, {way}, one client"
        print(f"pytorch\t{what}\tmedian {statistics.median(times):.2f}, slowest {max(times):.2f} ({version}, f16)")


if __name__ == "__main__":
    main()
