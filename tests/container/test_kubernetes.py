"""The image as deploy/kubernetes runs it: the manifest's arguments, variables, folders, rights and probes."""

import functools
import http.server
import os
import sys
import threading
import time

import pytest
from conftest import DEMO, ROOT, Container, docker

sys.path.insert(0, str(ROOT / "tests/lib"))

import manifest  # noqa: E402


@pytest.fixture
def store():
    """A web server with the demo model: what stands for the bucket that a manifest names."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(DEMO))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def passes(container, probe):
    """One probe, as the kubelet makes it."""
    try:
        return 200 <= container.request("GET", probe.path, timeout=probe.timeout_s).status < 400
    except OSError:
        return False


def test_the_container_of_the_manifest_starts_answers_and_ends(store):
    found = manifest.container_of(manifest.objects("cpu"))
    # The store is another one than the manifest's; the port too, because the network is this machine's.
    environment = found.environment | {"FORETYPE_MODEL": store}
    command = tuple(found.arguments)
    with Container(model=None, env=environment, options=found.options, command=command) as container:
        startup = found.probes["startup"]
        for _ in range(startup.failures):
            if passes(container, startup):
                break
            assert container.running(), container.logs()
            time.sleep(startup.period_s)
        assert passes(container, found.probes["readiness"]), container.logs()
        assert passes(container, found.probes["liveness"]), container.logs()
        assert container.invoke({"input": "wireless char"}).status == 200
        assert b"foretype_queue_seconds_bucket" in container.request("GET", "/metrics").body
        assert "warning: there is no variable" not in container.logs()
        # The end of a pod: preStop, during which keys are answered, then SIGTERM, then the rest of the grace period.
        until = time.monotonic() + found.pre_stop_s
        while time.monotonic() < until:
            assert container.invoke({"input": "wireless char"}).status == 200
            time.sleep(0.2)
        docker("stop", "--time", str(found.grace_s - found.pre_stop_s), container.name)
        assert container.wait_exit() == 0, container.logs()


def test_the_manifest_asks_for_the_port_of_the_image():
    found = manifest.container_of(manifest.objects("cpu"))
    image = os.environ.get("FORETYPE_IMAGE", "foretype:test")
    exposed = docker("image", "inspect", "--format", "{{json .Config.ExposedPorts}}", image).stdout
    assert {probe.port for probe in found.probes.values()} == {8080} and "8080/tcp" in exposed
