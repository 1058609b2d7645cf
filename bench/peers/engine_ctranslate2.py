"""CTranslate2's generator."""

import ctranslate2

from checkpoint import Checkpoint

TYPES = {"fp32": "float32", "int8": "int8_float32"}


def version():
    return f"CTranslate2 {ctranslate2.__version__}"


class Engine:
    def __init__(self, variant, models, threads):
        self.model = ctranslate2.Generator(
            str(models / "ctranslate2" / "model"), device="cpu", compute_type=TYPES[variant], intra_threads=threads
        )
        self.pieces, _ = Checkpoint((models / "checkpoint.txt").read_text().strip()).vocabulary()

    def generate(self, rows, new_tokens):
        results = self.model.generate_batch(
            [[self.pieces[token] for token in row] for row in rows],
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            end_token=[],
        )
        return [result.sequences_ids[0] for result in results]
