"""What schemathesis can't know from the OpenAPI document: what texts a model takes, how JSON Lines are written, and which fields
contradict each other.

JSON Schema can't say "so many tokens" or "one line of characters that the vocabulary has"; the document names formats instead, and
here are texts of these formats. They are short: each character may be a token, and the demo model has room for 128.
"""

import json
import string

import schemathesis
from hypothesis import strategies as st

LETTERS = string.ascii_lowercase + string.digits
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)

schemathesis.openapi.format("query-text", TEXTS)
schemathesis.openapi.format("prompt-text", TEXTS)
schemathesis.openapi.format("template-text", st.text(LETTERS, max_size=8).map(lambda before: before + " {input}"))
schemathesis.openapi.media_type("text/plain", TEXTS.map(str.encode))
schemathesis.openapi.media_type("text/csv", TEXTS.map(str.encode))

LINES = st.lists(st.builds(lambda text: json.dumps({"input": text}), TEXTS), min_size=1, max_size=5)
schemathesis.openapi.media_type("application/jsonlines", LINES.map(lambda lines: "\n".join(lines).encode()))


def same(*values):
    """Whether all that are there are equal."""
    there = [value for value in values if value is not None]
    return all(value == there[0] for value in there)


def agrees(body):
    """Whether no field contradicts another. The server refuses such bodies with 400, as the Rust tests check case by case; the
    document can't say so, so that schemathesis would take the refusal of a body with fields that are fine one by one for a fault.
    """
    many = isinstance(body.get("inputs"), list)
    if many and (body.get("stream") or body.get("session")):
        return False
    parameters = body.get("parameters")
    if isinstance(parameters, dict):
        counts = [parameters.get(name) for name in ("num_return_sequences", "n", "best_of")]
        if isinstance(parameters.get("min_new_tokens") or parameters.get("min_tokens"), int) or parameters.get("watermark"):
            return False
        if parameters.get("max_length") is not None:
            return False
        both = parameters.get("stop") is not None and parameters.get("stop_sequences") is not None
        several = any(count not in (None, 1) for count in counts)
        if not same(*counts) or both or (several and (body.get("stream") or not parameters.get("do_sample"))):
            return False
        if searches(body) and (several or body.get("stream") or parameters.get("do_sample")):
            return False
    # The versions that a model has can't be made up.
    if isinstance(body.get("shares"), dict):
        return False
    if "prompt" in body:
        ids = [id for id in flat(body["prompt"]) if isinstance(id, (int, float))]
        # A model may have fewer tokens than the document allows. 7.0 is an integer to JSON Schema, and no token to the server.
        if any(isinstance(id, float) or id > 255 for id in ids) or (ids and body.get("template") is not None):
            return False
        if body.get("use_beam_search") and any(body.get(field) is not None for field in ("stream", "temperature", "top_p", "n", "best_of")):
            return False
        alone = body.get("best_of") in (None, 1 if body.get("n") is None else body["n"])
        return alone and not (body.get("echo") and body.get("logprobs") is not None)
    return True


def flat(value):
    """The elements of a list and of the lists in it."""
    return [element for part in value for element in flat(part)] if isinstance(value, list) else [value]


def searches(body):
    """Whether a body of Text Generation Inference asks for beams."""
    parameters = body.get("parameters")
    return isinstance(parameters, dict) and parameters.get("num_beams") not in (None, 1)


def asks_to_close(body, case):
    """Closing needs a session's name in a header, which the body's schema can't say."""
    header = (case.headers or {}).get("X-Amzn-SageMaker-Session-Id")
    return body.get("requestType") in ("CLOSE", "CLOSE_SESSION") and header in (None, "", "NEW_SESSION")


def only_misses_format(case):
    """Whether a case is meant to be refused for the format of a text. The formats above are proposals, not rules: the server takes
    other texts too, such as one with a control character in a prompt. What it refuses, the Rust tests check.
    """
    phase = case.meta.phase.data if case.meta else None
    keywords = [keyword for mutation in getattr(phase, "mutations", ()) for keyword in mutation.keywords]
    return "format" in keywords or getattr(phase, "scenario", None) == "invalid_format"


@schemathesis.hook
def filter_case(context, case):
    body = case.body
    # A stream is of one prompt, and a search with beams has none.
    streams_many = case.path == "/generate_stream" and isinstance(body, dict) and (isinstance(body.get("inputs"), list) or searches(body))
    # utoipa leaves `minProperties` out of the document.
    changes_nothing = case.path == "/models/{name}" and body == {}
    fine = not isinstance(body, dict) or (agrees(body) and not asks_to_close(body, case) and not streams_many and not changes_nothing)
    return fine and not only_misses_format(case)
