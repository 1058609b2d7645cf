"""SIGTERM to the container's entry point, nginx in front of the real server, in the middle of a batch, lists of prompts, streams and
keystrokes: what was sent before is answered whole, and nothing of it is refused.

usage: stop.py FORETYPE [ROUNDS]
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINES = 3000


def batch_line(number):
    return json.dumps({"input": f"solar {number}", "suggestions": 2, "max_new_tokens": 3})


def prompts(count):
    inputs = [f"wireless {count} {number}" for number in range(32)]
    body = {"inputs": inputs, "parameters": {"max_new_tokens": 8}}
    return body, lambda answer: len(json.loads(answer)) == 32


def stream(count):
    body = {"inputs": f"heat {count}", "stream": True}
    return body, lambda answer: "generated_text" in json.loads(answer.rsplit("data: ", 1)[-1])


def keystroke(count):
    body = {"input": "wireless charging"[: 1 + count % 17], "session": f"person-{count % 3}"}
    return body, lambda answer: "suggestions" in json.loads(answer)


class Container:
    """What `docker run IMAGE serve` starts, on this machine."""

    def __init__(self, foretype, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        if not (programs / "foretype").exists():
            (programs / "foretype").symlink_to(foretype)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "TMPDIR": str(folder),
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            "FORETYPE_MODEL": str(ROOT / "models/demo"),
            "FORETYPE_KV_POOL_MIB": "64",
        }
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            ["bash", ROOT / "nginx/serve", "serve"], env=environment, stdout=self.log, stderr=self.log
        )
        self.wrong = []
        self.stopped = threading.Event()
        self.answered = 0

    def said(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def ask(self, body, content_type="application/json", path="/invocations", method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ready(self):
        until = time.monotonic() + 120
        while True:
            assert self.process.poll() is None and time.monotonic() < until, self.said()
            try:
                if self.ask(None, path="/ping", method="GET")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def again_and_again(self, make):
        """One request after the other until the container is stopped."""
        count = 0
        while not self.stopped.is_set():
            body, is_whole = make(count)
            self.check(json.dumps(body), "application/json", is_whole)
            count += 1

    def check(self, body, content_type, is_whole):
        try:
            status, answer = self.ask(body, content_type)
            if status != 200 or not is_whole(answer):
                self.wrong.append(f"{body[:80]}: {status} {answer[-300:]}")
            self.answered += 1
        except (OSError, http.client.HTTPException) as error:
            self.wrong.append(f"{body[:80]}: {error!r}")


def whole_batch(answer):
    lines = answer.splitlines()
    return len(lines) == LINES and all("suggestions" in json.loads(line) for line in lines)


def stop(foretype, folder, number):
    container = Container(foretype, folder)
    container.ready()
    body = "\n".join(map(batch_line, range(LINES)))
    batch = threading.Thread(target=container.check, args=(body, "application/jsonlines", whole_batch))
    others = [threading.Thread(target=container.again_and_again, args=(make,)) for make in (prompts, stream, keystroke) * 2]
    for thread in (batch, *others):
        thread.start()
    until = time.monotonic() + 60
    while container.answered < 30:
        assert time.monotonic() < until and not container.wrong, container.wrong
        time.sleep(0.01)
    time.sleep(0.04 * number)
    assert batch.is_alive(), "the batch was answered before the container was stopped"
    container.stopped.set()
    # Until nginx has accepted the connections that were opened before.
    time.sleep(0.1)
    asked = time.monotonic()
    container.process.send_signal(signal.SIGTERM)
    code = container.process.wait(40)
    took = time.monotonic() - asked
    for thread in (batch, *others):
        thread.join(10)
    assert not container.wrong, container.wrong[:5]
    assert code == 0 and took < 30, (code, took, container.said())


def main():
    foretype, rounds = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            stop(foretype, Path(folder), number)
    print(f"e2e: stopped {rounds} times behind nginx, and nothing that was sent before was refused")


main()
