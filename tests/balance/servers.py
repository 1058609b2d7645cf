"""Servers of the demo model, and the balancers of deploy/balance in front of them, as processes of this machine."""

import http.client
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

BALANCE = Path(__file__).resolve().parents[2] / "deploy/balance"
# A busy machine takes its time: the limit is far off.
PATIENCE_S = 180


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"{what} never happened"
        time.sleep(0.05)


def answers(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Server:
    """`foretype serve` with caches of a size. Without lookahead what is saved depends on the requests alone."""

    def __init__(self, foretype, scratch, cache_mib):
        self.port = free_port()
        self.command = [
            foretype,
            "serve",
            "--model",
            "models/demo",
            "--port",
            str(self.port),
            "--cache",
            f"{scratch}/cache",
        ]
        self.command += ["--threads", "1", "--replicas", "1", "--no-lookahead", "--log-requests", "errors"]
        # On a machine whose cores others use a step may take seconds.
        self.command += ["--hang-after-ms", "60000"]
        self.command += ["--prefix-cache-mib", str(cache_mib), "--kv-pool-mib", str(cache_mib)]
        self.log = Path(scratch, f"server-{self.port}.log")
        self.start()

    def start(self):
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait_for(f"a ready server ({self.log.read_text()})", lambda: answers(self.port))

    def invocations(self):
        """Requests of people that it has answered."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            counts = re.findall(r'foretype_http_requests_total\{.*"/invocations".*\} (\d+)', answer.read().decode())
        return sum(map(int, counts))

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()


class Balancer:
    """A configuration of deploy/balance as it is, but for ports, addresses, and a header that names the server."""

    def __init__(self, kind, scratch):
        self.kind, self.scratch, self.port = kind, Path(scratch), free_port()
        self.process = None

    def run(self, servers, round_robin=False):
        """Serves in front of these servers from now on; a running one changes its configuration without a pause."""
        text = getattr(self, self.kind)(servers, round_robin)
        path = self.scratch / f"{self.kind}.conf"
        path.write_text(text)
        if self.process is None:
            command = {
                "nginx": ["/usr/sbin/nginx", "-p", str(self.scratch), "-c", str(path)],
                "haproxy": ["/usr/sbin/haproxy", "-W", "-f", str(path)],
            }[self.kind]
            self.process = subprocess.Popen(command, stderr=(self.scratch / f"{self.kind}.log").open("a"))
        else:
            self.process.send_signal({"nginx": signal.SIGHUP, "haproxy": signal.SIGUSR2}[self.kind])
        self.settled(servers)

    def settled(self, servers):
        """Until every server gets requests and no other one does: the old configuration is gone."""
        wanted = {server.port for server in servers}
        wait_for("the new configuration", lambda: answers(self.port) and self.served() == wanted)

    def served(self):
        return {self.reached(session) for session in range(40)}

    def assignments(self, sessions):
        """The port of the server that each session belongs to: where three requests in a row end.

        HAProxy counts a request a moment longer than its client does. So bounded load sends one elsewhere now and then,
        on a busy machine also two in a row."""
        found = {}
        for session in sessions:
            ports = [self.reached(session) for _ in range(3)]
            while len(set(ports[-3:])) > 1:
                ports.append(self.reached(session))
            found[session] = ports[-1]
        return found

    def reached(self, session):
        """The port of the server that a request of the session reaches; none while a balancer is replaced."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/v1/models", headers={"X-Amzn-SageMaker-Session-Id": f"person-{session}"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            return int(answer.headers["X-Served-By"].rsplit(":", 1)[-1])
        except OSError:
            return None
        finally:
            connection.close()

    def nginx(self, servers, round_robin):
        text = (BALANCE / "nginx.conf").read_text()
        lines = "".join(
            f"        server 127.0.0.1:{server.port} max_conns=64 max_fails=1 fail_timeout=2s;\n" for server in servers
        )
        options = "max_conns=64 max_fails=1 fail_timeout=2s"
        text, count = re.subn(rf"(?:        server 10\.0\.0\.\d:8080 {options};\n){{4}}", lines, text)
        assert count == 1, "the servers of nginx.conf are not where this test looks for them"
        text = replaced(text, "listen 8080;", f"listen 127.0.0.1:{self.port};")
        text = replaced(text, "worker_processes auto;", "worker_processes 1; daemon off; pid nginx.pid;")
        text = replaced(
            text, "proxy_pass http://foretype;", "proxy_pass http://foretype; add_header X-Served-By $upstream_addr;"
        )
        # What nginx keeps in folders of the system otherwise.
        folders = "".join(
            f"    {kind}_temp_path {kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = replaced(text, "    server_tokens off;\n", f"    server_tokens off;\n{folders}")
        return replaced(text, "        hash $affinity consistent;\n", "") if round_robin else text

    def haproxy(self, servers, round_robin):
        text = (BALANCE / "haproxy.cfg").read_text()
        lines = "".join(
            f"    server place{place} 127.0.0.1:{server.port} id {place}\n"
            for place, server in enumerate(servers, start=1)
        )
        text, count = re.subn(r"(?:    server \w+ 10\.0\.0\.\d:8080 id \d\n){4}", lines, text)
        assert count == 1, "the servers of haproxy.cfg are not where this test looks for them"
        text = replaced(text, "bind :8080", f"bind 127.0.0.1:{self.port}")
        text = replaced(
            text,
            "    default_backend foretype\n",
            "    default_backend foretype\n    http-response set-header X-Served-By %bp:%sp\n",
        )
        if not round_robin:
            return text
        for line in ("    hash-type consistent djb2 avalanche\n", "    hash-balance-factor 300\n"):
            text = replaced(text, line, "")
        return replaced(text, "balance hash var(txn.who)", "balance roundrobin")

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


def replaced(text, old, new):
    assert text.count(old) == 1, f"{old!r} is not once in the configuration"
    return text.replace(old, new)
