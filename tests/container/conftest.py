"""What the tests share: containers of the image, started as Amazon SageMaker starts them, and HTTP without a library between."""

import http.client
import json
import os
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = os.environ.get("FORETYPE_IMAGE", "foretype:test")
DEMO = ROOT / "models" / "demo"


def docker(*words, check=True, **options):
    return subprocess.run(["docker", *words], check=check, capture_output=True, text=True, **options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition, seconds=60):
    """Until a condition holds. A busy machine takes its time, so that the limit is far off."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} never happened"
        time.sleep(0.02)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Answer:
    def __init__(self, response, seconds):
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        self.seconds = seconds

    def json(self):
        return json.loads(self.body)


class Container:
    """A running container. The port is SAGEMAKER_BIND_TO_PORT's, so that many can run side by side on the host's network."""

    def __init__(self, model=DEMO, env=(), options=(), command=("serve",), at="/opt/ml/model", network="host"):
        self.port = free_port()
        self.name = f"foretype-test-{uuid.uuid4().hex[:12]}"
        variables = {"SAGEMAKER_BIND_TO_PORT": str(self.port)} | dict(env)
        words = ["run", "--detach", "--name", self.name, "--network", network]
        words += [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
        if model is not None:
            words += ["--volume", f"{model}:{at}:ro"]
        self.started = time.monotonic()
        docker(*words, *options, IMAGE, *command)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        docker("rm", "--force", self.name, check=False)

    def request(self, method, path, body=None, headers=None, timeout=90, sent=lambda: None):
        """Asks and waits for the answer; `sent` is called in between."""
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            sent()
            response = connection.getresponse()
            return Answer(response, time.monotonic() - started)
        finally:
            connection.close()

    def invoke(self, body, path="/invocations", **options):
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        body = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return self.request("POST", path, body, headers, **options)

    def ping(self, timeout=5):
        return self.request("GET", "/ping", timeout=timeout)

    def wait_listening(self, seconds=60):
        """Until something answers a ping, whatever it says."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.ping()
            except OSError:
                assert time.monotonic() < until and self.running(), self.logs()
                time.sleep(0.02)

    def healthy(self, seconds=60):
        until = time.monotonic() + seconds
        while self.wait_listening().status != 200:
            assert time.monotonic() < until, self.logs()
            time.sleep(0.02)
        return self

    def running(self):
        return self.state("Running") == "true"

    def state(self, field):
        return docker("inspect", "--format", f"{{{{.State.{field}}}}}", self.name).stdout.strip()

    def logs(self):
        found = docker("logs", self.name)
        return found.stdout + found.stderr

    def execute(self, script):
        return docker("exec", self.name, "bash", "-c", script)

    def signal(self, process, signal):
        """Signals all processes of a name; there is no pkill in the image."""
        script = f'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" != {process} ] || kill -{signal} "${{p#/proc/}}"; done'
        docker("exec", self.name, "bash", "-c", script, check=False)  # it may end with the container

    def wait_exit(self, seconds=40):
        until = time.monotonic() + seconds
        while self.running():
            assert time.monotonic() < until, "the container doesn't end:\n" + self.logs()
            time.sleep(0.1)
        return int(self.state("ExitCode"))


@pytest.fixture(scope="session")
def demo():
    """A container that tests may share: they only ask."""
    with Container() as container:
        yield container.healthy()
