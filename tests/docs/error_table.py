"""Sends the requests whose errors docs/api.md shows, and compares status, kind and message with the table."""

import json
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

JSON = "application/json"
# A server that is well gives no such error. Unit tests beside src/http/errors.rs have their messages.
NOT_TRIED = {"internal", "not_ready", "out_of_memory", "overloaded"}
MODEL = {"model_name": "one", "url": "models/demo"}
SECRET = "page-0123456789abcdef"
KEYS = {"keys": [{"name": "page", "key": SECRET, "requests_per_second": 1}]}


def rows(document):
    """By kind: the status and the message of the table under the heading Errors."""
    table = document.split("\n## Errors\n")[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")]
    return {kind.strip("`"): (int(status), message) for kind, status, _, message, _ in cells}


def answer(url, body=None, content_type=JSON, method=None, key=None):
    headers = {"Content-Type": content_type} | ({"X-Api-Key": key} if key else {})
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def too_often(url):
    """The answer to a key that asks more often than it may."""
    for _ in range(100):
        status, body = answer(url, key=SECRET)
        if status != 200:
            break
    return status, body


def half_a_body(url):
    """The answer to a body of which the rest never comes."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(
            f"POST {place.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def requests(demo, by_name, keyed):
    """By kind: what to send, or what to do."""
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
        "unsupported_media_type": (url, b"wireless", "text/html"),
        "unauthorized": (f"{keyed}/models",),
        "rate_limited": lambda: too_often(f"{keyed}/models"),
        "request_timeout": lambda: half_a_body(url),
    }


def check(document, demo, by_name, keyed):
    """What is wrong with the table, as lines for people."""
    table, sent = rows(document), requests(demo, by_name, keyed)
    wrong = [f"{kind}: a row without a request" for kind in table.keys() - sent.keys() - NOT_TRIED]
    answer(*sent["model_exists"])
    for kind, request in sent.items():
        status, body = request() if callable(request) else answer(*request)
        error = json.loads(body).get("error", {})
        told = table.get(kind, (None, None))
        if (status, error.get("kind"), error.get("message")) != (told[0], kind, told[1]):
            wrong.append(f"{kind}: the table has {told}, the server {status} {error}")
    answer(f"{by_name}/models/{MODEL['model_name']}", method="DELETE")
    return wrong
