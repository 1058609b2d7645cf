"""Sends the requests whose errors docs/api.md shows, and compares status, kind and message with the table."""

import json
import urllib.error
import urllib.request

JSON = "application/json"
# A server that is well gives no such error. Unit tests beside src/http/errors.rs have their messages.
NOT_TRIED = {"internal", "not_ready", "out_of_memory", "overloaded"}
MODEL = {"model_name": "one", "url": "models/demo"}


def rows(document):
    """By kind: the status and the message of the table under the heading Errors."""
    table = document.split("\n## Errors\n")[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")]
    return {kind.strip("`"): (int(status), message) for kind, status, _, message, _ in cells}


def answer(url, body=None, content_type=JSON, method=None):
    request = urllib.request.Request(url, body, {"Content-Type": content_type}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def requests(demo, by_name):
    """By kind: what to send."""
    url = f"{demo}/invocations"
    field = lambda **fields: (url, json.dumps(fields).encode())
    return {
        "invalid_utf8": (url, b'{"input": "\xff"}'),
        "invalid_json": (url, b'{"input": '),
        "invalid_field": field(input=5),
        "invalid_value": field(input="wireless", suggestions=0),
        "empty_input": field(input=""),
        "input_too_long": field(input="a" * 1001),
        "invalid_input": field(input="wire\a"),
        "not_found": (f"{demo}/nothing",),
        "model_not_found": (f"{by_name}/models/two/invoke", b'{"input": "wireless"}'),
        "method_not_allowed": (url,),
        "model_exists": (f"{by_name}/models", json.dumps(MODEL).encode()),
        "body_too_large": (url, b"a" * 1_100_000),
        "unsupported_media_type": (url, b"wireless", "text/plain"),
    }


def check(document, demo, by_name):
    """What is wrong with the table, as lines for people."""
    table, sent = rows(document), requests(demo, by_name)
    wrong = [f"{kind}: a row without a request" for kind in table.keys() - sent.keys() - NOT_TRIED]
    answer(*sent["model_exists"])
    for kind, request in sent.items():
        status, body = answer(*request)
        error = json.loads(body).get("error", {})
        told = table.get(kind, (None, None))
        if (status, error.get("kind"), error.get("message")) != (told[0], kind, told[1]):
            wrong.append(f"{kind}: the table has {told}, the server {status} {error}")
    answer(f"{by_name}/models/{MODEL['model_name']}", method="DELETE")
    return wrong
