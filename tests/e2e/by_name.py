"""Models by name: loads one twice, uses it, unloads it, and leaves one loaded.

usage: by_name.py URL FOLDER
"""

import json
import sys
import urllib.error
import urllib.request

URL, FOLDER = sys.argv[1:]


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def expect(status, method, path, body=None):
    found, text = call(method, path, body)
    assert found == status, (method, path, found, text)
    return json.loads(text) if text else None


expect(200, "GET", "/ping")
expect(404, "POST", "/models/a/invoke", {"input": "heat"})
expect(404, "POST", "/models", {"model_name": "a", "url": FOLDER + "/nowhere"})
expect(200, "POST", "/models", {"model_name": "a", "url": FOLDER})
expect(409, "POST", "/models", {"model_name": "a", "url": FOLDER})
expect(200, "POST", "/models", {"model_name": "b", "url": FOLDER})
assert [model["modelName"] for model in expect(200, "GET", "/models")["models"]] == ["a", "b"]
assert expect(200, "POST", "/models/a/invoke", {"input": "heat"})["suggestions"]
assert expect(200, "POST", "/v1/completions", {"model": "b", "prompt": "heat"})["model"] == "b"
expect(200, "DELETE", "/models/a")
expect(404, "DELETE", "/models/a")
expect(404, "POST", "/models/a/invoke", {"input": "heat"})
print("e2e: models by name are fine")
