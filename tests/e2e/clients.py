"""What people's programs do: OpenAI's official client, the Large Model Inference schema, streams, and JSON Lines over plain HTTP.

usage: clients.py URL
"""

import json
import sys
import urllib.request

import openai

URL = sys.argv[1]


def post(path, body, content_type="application/json", accept="*/*", headers=()):
    """Posts bytes or JSON; returns content type, headers and text."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": content_type, "Accept": accept, **dict(headers)}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers)) as answer:
        return answer.headers["Content-Type"], answer.headers, answer.read().decode()


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def openai_client():
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    asked = {"model": model.id, "prompt": "wireless", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=1)
    (choice,) = whole.choices
    assert choice.finish_reason in ("stop", "length") and "".join(choice.logprobs.tokens) == choice.text
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == choice.text
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    drawn = {**asked, "prompt": ["wireless", "heat"], "temperature": 1, "n": 3, "seed": 5}
    several = client.completions.create(**drawn)
    assert [choice.index for choice in several.choices] == list(range(6))
    again = client.completions.create(**drawn)
    assert [choice.text for choice in several.choices] == [choice.text for choice in again.choices]
    texts = [""] * 6
    for chunk in client.completions.create(**drawn, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in several.choices]
    echoed = client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == "wireless" + choice.text
    for wrong, error in (
        ({"model": "other"}, openai.NotFoundError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"suffix": "x"}, openai.BadRequestError),
    ):
        try:
            client.completions.create(**{**asked, **wrong})
        except error as refused:
            assert refused.param == next(iter(wrong)), refused
        else:
            raise AssertionError(wrong)


def suggestion_streams():
    body = {"input": "wireless ch", "suggestions": 5}
    whole = json.loads(post("/invocations", body)[2])
    content_type, _, text = post("/invocations", {**body, "stream": True})
    *suggestions, end = lines_of(text)
    assert content_type == "application/jsonlines" and end["finish"] == whole["finish"]
    assert [line["suggestion"]["text"] for line in suggestions] == [each["text"] for each in whole["suggestions"]]
    content_type, _, events = post("/invocations", {**body, "stream": True}, accept="text/event-stream")
    assert content_type == "text/event-stream"
    assert [json.loads(event.removeprefix("data: ")) for event in events.split("\n\n")[:-1]][:-1] == suggestions


def inference_schema():
    body = {"inputs": "wireless", "parameters": {"max_new_tokens": 5, "details": True}}
    (whole,) = json.loads(post("/invocations", body)[2])
    assert whole["details"]["generated_tokens"] == len(whole["details"]["tokens"]) <= 5
    assert json.loads(post("/invocations", {**body, "inputs": ["wireless", "wireless"]})[2]) == [whole, whole]
    tokens = lines_of(post("/invocations", {**body, "stream": True}, accept="application/jsonlines")[2])
    assert tokens[-1]["generated_text"] == whole["generated_text"] == "".join(t["token"]["text"] for t in tokens)


def batch():
    texts = [{"input": f"heat {letter}", "suggestions": 2, "tolerance": "off"} for letter in "abcdefghijklmnopqrstuvwxyz"]
    lines = [json.dumps(text) for text in texts]
    lines[3], lines[7] = "{", '{"inputs": "heat", "parameters": {"max_new_tokens": 3}}'
    content_type, _, text = post("/invocations", "\n".join(lines).encode() + b"\n", "application/jsonlines")
    answers = lines_of(text)
    assert content_type == "application/jsonlines" and len(answers) == len(lines)
    for index, (text, answer) in enumerate(zip(texts, answers)):
        if index == 3:
            assert answer["error"]["kind"] == "invalid_json", answer
        elif index == 7:
            assert isinstance(answer[0]["generated_text"], str), answer
        else:
            assert all(each["text"].startswith(text["input"]) for each in answer["suggestions"]), answer


def sessions():
    opened = post("/invocations", {"requestType": "NEW_SESSION"})[1]["X-Amzn-SageMaker-New-Session-Id"]
    session, expires = opened.split("; Expires=")
    assert expires.endswith("Z")
    named = {"X-Amzn-SageMaker-Session-Id": session}
    post("/invocations", {"input": "heat"}, headers=named)
    closed = post("/invocations", {"requestType": "CLOSE_SESSION"}, headers=named)[1]
    assert closed["X-Amzn-SageMaker-Closed-Session-Id"] == session


for check in (openai_client, suggestion_streams, inference_schema, batch, sessions):
    check()
    print(f"e2e: {check.__name__} is fine")
