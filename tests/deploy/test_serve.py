"""nginx/serve with a real nginx and a stand-in for the server: bounds, beginnings and ends (D10, D11, R8, R12)."""

import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT

SERVE = ROOT / "nginx/serve"


def wait_for(what, condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} never happened"
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def alive(pid):
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def of_nginx(container):
    """The processes of a container's nginx: they work in its folder."""
    (folder,) = container.tmp.glob("foretype.*")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


class Served:
    """What `docker run IMAGE serve` would start, on this machine."""

    def __init__(self, folder, **variables):
        self.tmp, self.port = folder / "tmp", free_port()
        self.tmp.mkdir(exist_ok=True)
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        if not (programs / "foretype").exists():
            (programs / "foretype").symlink_to(ROOT / "tests/deploy/standin_server.py")
        own = {
            "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "TMPDIR": str(self.tmp),
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
        }
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            ["bash", SERVE, "serve"], env=own | variables, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(40)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def ready(self):
        def answers():
            assert self.process.poll() is None, self.said()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for("nginx", answers)
        return self

    def ask(self, path="/invocations", body=b"", method="POST", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def ends(self):
        return self.process.wait(40), self.said()

    def nginx(self):
        # nginx writes its pid behind the first moment at which it can be connected to.
        def pids():
            return [text for file in self.tmp.glob("foretype.*/nginx.pid") if (text := file.read_text().strip())]

        wait_for("nginx's pid", pids)
        (pid,) = pids()
        return int(pid)

    def bodies(self):
        """The bytes of bodies in files, which have no name: nginx removes it at once."""
        size = 0
        for process in of_nginx(self):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                try:
                    if "/body/" in os.readlink(descriptor):
                        size += descriptor.stat().st_size
                except OSError:
                    continue
        return size


@pytest.fixture
def served(tmp_path):
    made = []

    def start(**variables):
        made.append(Served(tmp_path, **variables))
        return made[-1]

    yield start
    for one in made:
        one.__exit__()


def test_it_serves_and_ends_well(served, tmp_path):
    container = served().ready()
    status, _, seen = container.ask()
    assert status == 200 and seen["FORETYPE_MODEL"] == "/opt/ml/model" and seen["FORETYPE_MAX_BODY_BYTES"] == "6291456"
    container.process.terminate()
    assert container.ends()[0] == 0
    assert not list(container.tmp.iterdir())


# ---- bounds


def test_bodies_are_bounded_as_the_server_bounds_them(served):
    container = served().ready()
    assert container.ask(body=b" " * 6_291_456)[0] == 200
    status, _, answer = container.ask(body=b" " * 6_291_457)
    assert status == 413 and answer["error"]["kind"] == "body_too_large" and "6291456 bytes" in answer["error"]["message"]


def test_the_bound_follows_the_servers(served):
    container = served(FORETYPE_MAX_BODY_BYTES="1000").ready()
    assert container.ask(body=b" " * 1000)[0] == 200
    assert container.ask(body=b" " * 1001)[0] == 413


def half(container, size):
    """A client that sends most of a body, and stops."""
    connection = socket.create_connection(("127.0.0.1", container.port))
    connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b" " * (size - 1))
    return connection


def test_thirty_clients_with_half_bodies_hold_little(served):
    container = served(FORETYPE_LARGE_BODIES="4").ready()
    clients = [half(container, 6_000_000) for _ in range(4)]
    wait_for("four bodies", lambda: container.bodies() >= 4 * 5_500_000)
    for _ in range(26):
        status, headers, answer = container.ask(body=b" " * 200_000)
        assert (status, headers["Retry-After"], answer["error"]["kind"]) == (429, "1", "overloaded")
    assert container.bodies() <= 4 * 6_000_000
    # People who type, and health, aren't kept waiting by them.
    assert container.ask(body=b'{"input": "amazon"}')[0] == 200
    assert container.ask("/ping", method="GET")[0] == 200
    for client in clients:
        client.close()
    wait_for("room", lambda: container.ask(body=b" " * 200_000)[0] == 200)


def test_bodies_of_unknown_length_count_as_large(served):
    container = served(FORETYPE_LARGE_BODIES="1").ready()
    client = half(container, 6_000_000)
    wait_for("a body", lambda: container.bodies() >= 5_500_000)
    connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=20)
    connection.request("POST", "/invocations", iter([b"x" * 10]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 429
    client.close()


def test_connections_are_bounded_and_health_is_not(served):
    container = served(FORETYPE_CONNECTIONS="3").ready()
    clients = []
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=20)
        connection.request("POST", "/invocations/slow", b"{}")
        clients.append(connection)
    wait_for("three requests", lambda: container.ask("/ping", method="GET")[2]["slow"] == 3)
    assert container.ask()[0] == 429
    assert [client.getresponse().status for client in clients] == [200] * 3


def test_health_takes_no_connection_from_requests(served):
    container = served(FORETYPE_CONNECTIONS="1", FORETYPE_NGINX_WORKERS="2").ready()
    pings = [http.client.HTTPConnection("127.0.0.1", container.port, timeout=20) for _ in range(3)]
    for ping in pings:
        ping.request("GET", "/ping?slow")
    wait_for("three pings", lambda: container.ask("/ping", method="GET")[2]["slow"] == 3)
    assert container.ask()[0] == 200


# ---- ends


def test_no_worker_of_nginx_stays_when_its_master_is_killed(served):
    container = served(FORETYPE_NGINX_WORKERS="3").ready()
    leader = container.nginx()
    wait_for("three workers", lambda: len(of_nginx(container)) == 4)
    processes = of_nginx(container)
    assert leader in processes
    # One group, for those who signal all of it.
    assert {os.getpgid(process) for process in processes} == {container.process.pid}
    os.kill(leader, signal.SIGKILL)
    code, said = container.ends()
    assert code == 1 and "nginx ended with status 137" in said
    wait_for("the workers' end", lambda: not any(alive(process) for process in processes), 5)
    with pytest.raises(ConnectionRefusedError):
        container.ask()


def test_nothing_stays_when_the_server_is_killed(served):
    container = served().ready()
    processes = of_nginx(container)
    children = Path(f"/proc/{container.process.pid}/task/{container.process.pid}/children").read_text().split()
    (server,) = [int(child) for child in children if int(child) not in processes]
    os.kill(server, signal.SIGKILL)
    code, said = container.ends()
    assert code == 1 and "foretype ended with status 137" in said
    wait_for("the workers' end", lambda: not any(alive(process) for process in processes), 5)


def test_a_server_that_does_not_start_is_told(served):
    code, said = served(STANDIN_FAILS="1").ends()
    assert code == 1 and "ended before it listened" in said


# ---- what it is started with


def test_without_a_folder_to_write_to_it_says_what_to_do(served, tmp_path):
    code, said = served(TMPDIR=str(tmp_path / "none")).ends()
    assert code == 1 and "--tmpfs /tmp" in said and "mktemp" not in said


def test_unknown_variables_are_named(served):
    container = served(FORETYPE_BEAM="8", FORETYPE_BEAMS="8", FORETYPE_LOG="info", FORETYPE_CONNECTIONS="100").ready()
    warnings = [line for line in container.said().splitlines() if "warning" in line]
    assert len(warnings) == 1 and "FORETYPE_BEAM;" in warnings[0]


@pytest.mark.parametrize(
    "name",
    ["FORETYPE_MAX_BODY_BYTES", "FORETYPE_NGINX_WORKERS", "FORETYPE_PROXY_TIMEOUT", "SAGEMAKER_BIND_TO_PORT", "FORETYPE_CONNECTIONS"],
)
def test_values_that_are_none_are_refused(served, name):
    code, said = served(**{name: "1; include /etc/passwd"}).ends()
    assert code == 1 and f"{name} can't be" in said


def test_two_models_are_an_error(served, tmp_path):
    for name in ("first", "second"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "manifest.json").write_text("{}")
    code, said = served(FORETYPE_MODEL=str(tmp_path / "models")).ends()
    assert code == 1 and "has 2 models, and one is served: first second" in said


def test_one_model_one_folder_down_is_served(served, tmp_path):
    (tmp_path / "models/first").mkdir(parents=True)
    for name in ("manifest.json", "config.json"):
        (tmp_path / "models/first" / name).write_text("{}")
    assert served(FORETYPE_MODEL=str(tmp_path / "models")).ready().ask()[0] == 200


def test_the_memory_of_many_models_is_the_machines(served):
    container = served(SAGEMAKER_MULTI_MODEL="true").ready()
    _, _, seen = container.ask()
    limits = [int(line.split()[1]) * 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if Path(file).exists() and Path(file).read_text().strip().isdigit():
            limits.append(int(Path(file).read_text()))
    assert int(seen["FORETYPE_MODELS_MIB"]) == min(limits) * 4 // 5 // 1048576
    assert "four fifths" in container.said()


def test_the_memory_that_is_named_is_taken(served):
    container = served(SAGEMAKER_MULTI_MODEL="true", FORETYPE_MODELS_MIB="300").ready()
    assert container.ask()[2]["FORETYPE_MODELS_MIB"] == "300"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_user_of_the_image_can_run_it(served, tmp_path, monkeypatch):
    """10001 of the Dockerfile: somebody whom the machine doesn't know."""
    monkeypatch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, user=10001, group=10001, extra_groups=[]))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    # A container's outputs belong to its user.
    (tmp_path / "log").touch()
    os.chown(tmp_path / "log", 10001, 10001)
    container = served().ready()
    assert container.ask(body=b" " * 3_000_000)[0] == 200
    assert {os.stat(f"/proc/{process}").st_uid for process in of_nginx(container)} == {10001}
    container.process.terminate()
    assert container.ends()[0] == 0
