"""A large model is downloaded almost as quickly as its bytes come, in little memory, and a killed download goes on.

A server on this machine speaks the Hub's protocol and S3's. `foretype serve` and a client that downloads and does
nothing else (crates/sources/examples/alone.rs) fetch the same file in turns; both end when it is on the disk. Then a
server is killed in the middle of a download, and the next one must ask only for what is missing.

usage: check.py FORETYPE ALONE [--mib 2048] [--turns 3] [--most 1.2] [--mib-a-second N]
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_MIB = 200
PART = 16 << 20
PARALLEL = 8
COMMIT = "abc123"
LIST = """<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><Prefix>big/</Prefix><KeyCount>3</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>%s</ListBucketResult>"""
OBJECT = """<Contents><Key>big/%s</Key><LastModified>2026-11-25T00:00:00Z</LastModified><ETag>"%s"</ETag><Size>%d</Size>
<StorageClass>STANDARD</StorageClass></Contents>"""


class Standin(BaseHTTPRequestHandler):
    """The Hub and S3, with one model."""

    protocol_version = "HTTP/1.1"
    folder, sha256, rate = None, "", 0
    sent, begun, lock = 0, 0.0, threading.Lock()

    def log_message(self, *_):
        pass

    def do_GET(self):
        if "/api/models/" in self.path:
            files = [
                {"rfilename": file.name, "size": file.stat().st_size, "blobId": file.name} for file in self.files()
            ]
            for file in files:
                if file["rfilename"] == "model.safetensors":
                    file["lfs"] = {"sha256": self.sha256, "size": file["size"]}
            self.answer(json.dumps({"sha": COMMIT, "siblings": files}).encode())
        elif "list-type=2" in self.path:
            objects = (OBJECT % (file.name, file.name, file.stat().st_size) for file in self.files())
            self.answer((LIST % "".join(objects)).encode())
        else:
            self.send_file(self.folder / self.path.rsplit("/", 1)[1])

    def files(self):
        return sorted(self.folder.iterdir())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, path):
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        at, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, size)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - at))
        self.send_header("ETag", f'"{path.name}"')
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {at}-{end - 1}/{size}")
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            while at < end:
                count = os.sendfile(self.connection.fileno(), file.fileno(), at, min(end - at, 1 << 20))
                at += count
                self.pause(count)

    def pause(self, count):
        """Counts what was sent, and waits where a rate is set that all connections share."""
        with Standin.lock:
            Standin.sent += count
            ahead = Standin.sent / self.rate - (time.monotonic() - Standin.begun) if self.rate else 0
        if ahead > 0:
            time.sleep(ahead)

    @classmethod
    def reset(cls):
        with cls.lock:
            cls.sent, cls.begun = 0, time.monotonic()


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that was killed is no error of the server."""


def make_model(folder, size):
    """A checkpoint whose weights are random bytes behind a header; returns their SHA-256."""
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    count = size - 1024
    head = json.dumps({"x": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).ljust(1016).encode()
    hashed = hashlib.sha256()
    with (folder / "model.safetensors").open("wb") as file:
        for piece in [len(head).to_bytes(8, "little") + head, *(PART for _ in range(count // PART)), count % PART]:
            piece = piece if isinstance(piece, bytes) else os.urandom(piece)
            hashed.update(piece)
            file.write(piece)
    return hashed.hexdigest()


class Check:
    def __init__(self, options, scratch, url):
        self.options, self.scratch, self.url = options, scratch, url
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_ALLOW_HTTP": "true"}
        own = {"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT": url, "HF_ENDPOINT": url, "HF_HOME": str(scratch / "hf")}
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "AWS_", "FORETYPE_"))}
        self.environment = plain | keys | own
        self.bytes = options.mib << 20

    def alone(self, kind):
        """Seconds of a download that is nothing else."""
        name = "model.safetensors"
        url = f"s3://bucket/big/{name}" if kind == "s3" else f"{self.url}/org/big/resolve/{COMMIT}/{name}"
        target = self.scratch / "alone"
        Standin.reset()
        started = time.monotonic()
        subprocess.run([self.options.alone, url, str(self.bytes), target], check=True, env=self.environment)
        elapsed = time.monotonic() - started
        target.unlink()
        return elapsed

    def start(self, kind):
        model = "s3://bucket/big" if kind == "s3" else "org/big"
        (self.scratch / "socket").unlink(missing_ok=True)
        command = [
            self.options.foretype,
            "serve",
            "--model",
            model,
            "--cache",
            self.scratch / "cache",
            "--socket",
            self.scratch / "socket",
        ]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def serve(self, kind):
        """Seconds until a server has the model's files, and the most memory that it had until then, in MiB."""
        Standin.reset()
        started = time.monotonic()
        with self.start(kind) as server:
            for line in server.stderr:
                if "the model's files are here" in line:
                    break
            else:
                raise SystemExit("download: the server ended")
            elapsed = time.monotonic() - started
            status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
            server.kill()
        return elapsed, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def forget(self):
        for folder in ("hf", "cache"):
            subprocess.run(["rm", "-rf", self.scratch / folder], check=True)

    def compare(self, kind):
        alone, served, memory = [], [], []
        for _ in range(self.options.turns):
            alone.append(self.alone(kind))
            self.forget()
            elapsed, mib = self.serve(kind)
            served.append(elapsed)
            memory.append(mib)
        ratio = statistics.median(mine / its for mine, its in zip(served, alone, strict=True))
        figures = ", ".join(f"{mine:.1f}/{its:.1f}" for mine, its in zip(served, alone, strict=True))
        print(
            f"download: {kind}: {self.options.mib} MiB, served/alone {figures} s: {ratio:.2f} times; "
            f"{max(memory):.0f} MiB of memory"
        )
        return [
            *([f"{kind}: {ratio:.2f} times as long, above {self.options.most}"] if ratio > self.options.most else []),
            *([f"{kind}: {max(memory):.0f} MiB of memory, {MOST_MIB} at most"] if max(memory) > MOST_MIB else []),
        ]

    def resume(self, kind):
        """Kills a server in the middle, and lets another one go on."""
        self.forget()
        Standin.reset()
        with self.start(kind) as server:
            while Standin.sent < self.bytes // 2:
                assert server.poll() is None, "the server ended"
                time.sleep(0.005)
            server.send_signal(signal.SIGKILL)
        # What is still on its way to it isn't counted below.
        time.sleep(1)
        (journal,) = self.scratch.rglob("*.journal")
        done = sum(line.isdigit() for line in journal.read_text().split("\n")[1:])
        assert done >= self.bytes // 2 // PART - PARALLEL, done
        self.serve(kind)
        missing = self.bytes - done * PART
        print(
            f"download: {kind}: killed with {done} parts of 16 MiB; {Standin.sent >> 20} MiB came again, "
            f"{missing >> 20} were missing"
        )
        # A few bytes more are those of small files.
        return (
            []
            if Standin.sent <= missing + (1 << 20)
            else [f"{kind}: {Standin.sent} bytes came, and {missing} were missing"]
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("foretype", type=pathlib.Path)
    parser.add_argument("alone", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--most", type=float, default=1.2, help="times as long as the client alone, at most")
    parser.add_argument("--mib-a-second", type=int, default=0, help="what the server gives; without it, what it can")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("DOWNLOAD_FOLDER")) as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "model").mkdir()
        Standin.folder, Standin.rate = scratch / "model", options.mib_a_second << 20
        Standin.sha256 = make_model(Standin.folder, options.mib << 20)
        server = Quiet(("127.0.0.1", 0), Standin)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check = Check(options, scratch, f"http://127.0.0.1:{server.server_port}")
        wrong = []
        for kind in ("hub", "s3"):
            wrong += check.compare(kind) + check.resume(kind)
    if wrong:
        raise SystemExit("download: " + "; ".join(wrong))
    print("download: all is well")


if __name__ == "__main__":
    main()
