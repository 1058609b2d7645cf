"""Amazon SageMaker's contract with a container, over plain HTTP."""

import http.client
import itertools
import json
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Container, docker, wait_for

QUERY = {"input": "wireless char"}


@pytest.mark.alone
def test_ping_is_quick_and_empty(demo):
    for method in ("GET", "POST", "HEAD"):
        answer = demo.request(method, "/ping")
        assert (answer.status, answer.body) == (200, b"")
    seconds = [demo.ping().seconds for _ in range(50)]
    assert max(seconds) < 2
    assert statistics.median(seconds) < 0.25


def test_invocations_answers_the_client_of_old(demo):
    answer = demo.invoke({"input": "wireless char"})
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
    assert all(found["text"].startswith("wireless char") for found in answer.json()["suggestions"])


def test_what_sagemaker_passes_on_comes_back(demo):
    name = "X-Amzn-SageMaker-Custom-Attributes"
    assert demo.invoke(QUERY, headers={name: "trace=1"}).headers[name] == "trace=1"


def test_all_routes_reach_the_server(demo):
    assert demo.request("GET", "/execution-parameters").json()["BatchStrategy"] == "MULTI_RECORD"
    assert b"# TYPE" in demo.request("GET", "/metrics").body
    assert demo.request("GET", "/openapi.json").json()["openapi"]
    model = demo.request("GET", "/v1/models").json()["data"][0]["id"]
    answer = demo.invoke({"model": model, "prompt": "wireless", "max_tokens": 4}, path="/v1/completions")
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", None, 404),
        ("GET", "/invocationsx", None, 404),
        ("GET", "/../etc/passwd", None, 400),
        ("GET", "/invocations", None, 405),
        ("POST", "/invocations", "{", 400),
        ("POST", "/invocations", '{"input": 1}', 400),
    ],
)
def test_errors_are_json_whoever_finds_them(demo, method, path, body, status):
    answer = demo.request(method, path, body)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["error"]["message"]


def padded(size):
    start, end = b'{"input": "wireless char"', b"}"
    return start + b" " * (size - len(start) - len(end)) + end


def test_bodies_up_to_sagemakers_limit_are_taken(demo):
    assert demo.invoke(padded(6_291_456)).status == 200


@pytest.mark.parametrize("size", [7 << 20, 10 << 20, 26 << 20])
def test_larger_bodies_get_413_as_json(demo, size):
    for _ in range(3):
        answer = demo.invoke(padded(size))
        assert answer.status == 413
        assert answer.json()["error"]["kind"] == "body_too_large"


@pytest.mark.alone
def test_slow_clients_hold_nobody_up(demo):
    def drip(seconds):
        """A request that arrives in small pieces."""
        body = json.dumps(QUERY).encode()
        with socket.create_connection(("127.0.0.1", demo.port)) as connection:
            connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            time.sleep(seconds / 4)
            connection.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode())
            for byte in body:
                connection.sendall(bytes([byte]))
                time.sleep(seconds / 2 / len(body))
            return connection.recv(1 << 16).split(b"\r\n", 1)[0]

    # Many that say little for long, some of them nothing at all.
    idle = [socket.create_connection(("127.0.0.1", demo.port)) for _ in range(200)]
    with ThreadPoolExecutor(50) as pool:
        slow = [pool.submit(drip, 6) for _ in range(50)]
        for _ in range(20):
            assert demo.ping().seconds < 2
            answer = demo.invoke(QUERY)
            assert answer.status == 200 and answer.seconds < 2
            time.sleep(0.1)
        assert {result.result() for result in slow} == {b"HTTP/1.1 200 OK"}
    for connection in idle:
        connection.close()


def test_a_body_that_stops_coming_ends_the_connection(demo):
    with socket.create_connection(("127.0.0.1", demo.port), timeout=40) as connection:
        connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        started = time.monotonic()
        answer = connection.recv(4096)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
        assert 10 < time.monotonic() - started < 35


@pytest.fixture(scope="module")
def slow():
    """A container with a fiftieth of a core: a stream takes a second or more on any machine, and a client that comes late still sees
    it begin."""
    with Container() as container:
        container.healthy()
        docker("update", "--cpus", "0.02", container.name)
        yield container


# What is drawn with a seed that was there already comes from memory, all at once.
SEEDS = itertools.count()


def arrivals(container, body, accept):
    """Each piece of a streamed answer, and how long after the request it came."""
    connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=60)
    pieces, started = [], time.monotonic()
    connection.request("POST", "/invocations", json.dumps(body), {"Content-Type": "application/json", "Accept": accept})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    while piece := response.read1(1 << 16):
        pieces.append((time.monotonic() - started, piece))
    connection.close()
    return response, pieces


@pytest.mark.parametrize("accept", ["application/jsonlines", "text/event-stream"])
def test_streams_arrive_token_by_token(slow, accept):
    body = {"inputs": "wireless", "parameters": {"max_new_tokens": 60, "do_sample": True, "temperature": 3.0}, "stream": True}
    seen = []
    # One that comes apart is enough: some streams are short, and a busy client may be late. What is held back on the way comes
    # together, and late, every time.
    for _ in range(20):
        body["parameters"]["seed"] = next(SEEDS)
        response, pieces = arrivals(slow, body, accept)
        assert response.headers["Content-Type"].startswith(accept)
        assert response.headers["Transfer-Encoding"] == "chunked"
        lines = [line for line in b"".join(piece for _, piece in pieces).splitlines() if line]
        last = json.loads(lines[-1].removeprefix(b"data: "))
        assert last["details"]["finish_reason"]
        seen.append([round(at, 3) for at, _ in pieces])
        if len(pieces) >= 5 and pieces[0][0] < pieces[-1][0] / 2:
            return
    pytest.fail(f"tokens came together or late: {seen}")


def test_json_lines_are_answered_line_by_line(demo):
    texts = [f"{word} {letter}" for word in ("wireless", "lithium", "optical") for letter in "abcdefghijklmnop"]
    lines = [json.dumps({"input": text, "suggestions": 2, "tolerance": "off"}) for text in texts]
    lines[5], lines[17] = "{", '{"input": 7}'
    answer = demo.request("POST", "/invocations", "\n".join(lines) + "\n", {"Content-Type": "application/jsonlines"})
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/jsonlines"
    answers = [json.loads(line) for line in answer.body.splitlines()]
    assert len(answers) == len(lines)
    for number, (text, answer) in enumerate(zip(texts, answers)):
        if number in (5, 17):
            assert answer["error"]["kind"]
        else:
            assert all(found["text"].startswith(text) for found in answer["suggestions"])


def test_the_logs_have_no_pings_and_no_colours(demo):
    for _ in range(20):
        demo.ping()
    demo.request("GET", "/nowhere")
    wait_for("a line for what is nowhere", lambda: "/nowhere" in demo.logs())
    logs = demo.logs()
    assert "/ping" not in logs
    assert "\x1b" not in logs


def test_nothing_answers_for_a_minute_gives_504_and_pings_stay_quick():
    with Container() as container:
        container.healthy()
        container.signal("foretype", "STOP")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(container.invoke, QUERY)
            time.sleep(1)
            pings = [container.ping() for _ in range(5)]
            answer = asked.result()
        assert {ping.status for ping in pings} == {504}
        # nginx's limits, 1.5 s and 60 s, and what a busy machine adds to them.
        assert min(ping.seconds for ping in pings) < 2
        assert answer.status == 504 and 55 < answer.seconds < 80
        assert answer.json()["error"]["kind"] == "timeout"
        container.signal("foretype", "CONT")
        container.healthy()
        assert container.invoke(QUERY).status == 200


def test_models_by_name():
    with Container(at="/opt/ml/models/terms/model", env={"SAGEMAKER_MULTI_MODEL": "true"}) as container:
        container.healthy()
        load = {"model_name": "terms", "url": "/opt/ml/models/terms/model"}
        assert container.request("GET", "/models").json() == {"models": []}
        assert container.invoke(QUERY, path="/models/terms/invoke").status == 404
        assert container.invoke(load, path="/models").status == 200
        assert container.invoke(load, path="/models").status == 409
        assert container.request("GET", "/models/terms").status == 200
        assert container.request("GET", "/models").json()["models"][0]["modelName"] == "terms"
        assert container.invoke(QUERY, path="/models/terms/invoke").json()["suggestions"]
        assert container.request("DELETE", "/models/terms").status == 200
        assert container.request("DELETE", "/models/terms").status == 404
        assert container.ping().status == 200


def test_the_port_is_8080_unless_bound_to_another():
    with Container(network="none", env={"SAGEMAKER_BIND_TO_PORT": ""}) as container:
        script = 'exec 3<>/dev/tcp/127.0.0.1/8080; printf "GET /ping HTTP/1.0\\r\\n\\r\\n" >&3; head -1 <&3'
        for _ in range(100):
            found = docker("exec", container.name, "bash", "-c", script, check=False).stdout
            if " 200 " in found:
                break
            time.sleep(0.1)
        assert " 200 " in found, container.logs()


@pytest.mark.alone
def test_pings_stay_quick_when_the_model_is_saturated():
    with Container() as container:
        container.healthy()
        stop = time.monotonic() + 8
        statuses = []

        def load(worker):
            number = 0
            while time.monotonic() < stop:
                number += 1
                text = f"{'abcdefghijklmnop'[worker % 16]}{number % 1000:03d}"
                body = {"input": text, "suggestions": 100, "max_new_tokens": 32}
                statuses.append(container.invoke(body).status)

        threads = [threading.Thread(target=load, args=(worker,)) for worker in range(48)]
        for thread in threads:
            thread.start()
        pings = []
        while time.monotonic() < stop:
            pings.append(container.ping())
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert {ping.status for ping in pings} == {200}
        assert max(ping.seconds for ping in pings) < 2
        assert set(statuses) <= {200, 429} and 200 in statuses
        slowest = max(ping.seconds for ping in pings)
        print(f"\n{len(statuses)} requests in 8 s; slowest of {len(pings)} pings {slowest * 1000:.0f} ms")


@pytest.mark.parametrize(
    "options",
    [
        ["--read-only", "--tmpfs", "/tmp"],
        ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"],
        ["--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "ALL", "--user", "1000:1000", "--security-opt", "no-new-privileges"],
    ],
    ids=["read-only", "no-capabilities", "nobody"],
)
def test_it_runs_with_few_rights(options):
    with Container(options=options) as container:
        container.healthy()
        assert container.invoke(QUERY).status == 200
        assert container.invoke(padded(3 << 20)).status == 200
        docker("stop", "--time", "30", container.name)
        assert container.wait_exit() == 0


def test_the_image_has_what_it_needs_and_no_more(demo):
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", demo.name).stdout)
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.multi-models"] == "true"
    for tool in ("python3", "gcc", "cc", "cargo", "rustc", "git", "curl"):
        assert demo.execute(f"command -v {tool} || echo none").stdout == "none\n"
    assert demo.execute("ls /opt/foretype/model").stdout == "LICENSE\n"
    # Nobody in particular, nginx and its workers included.
    assert demo.execute("id -u; cat /proc/[0-9]*/status | grep ^Uid | sort -u | wc -l").stdout == "10001\n1\n"


def test_a_model_can_be_built_into_the_image(monkeypatch):
    monkeypatch.setattr("conftest.IMAGE", "foretype:baked")
    with Container(model=None) as container:
        container.healthy()
        assert container.invoke(QUERY).status == 200
