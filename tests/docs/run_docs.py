"""Runs the commands that the documents show.

Every fenced block of sh or python has one marker behind its language, which people who read the page don't see:

    run             it is executed, in the order of the document, and must exit with 0
    serves          it is executed until it says that it is ready and /ping is healthy; then it is stopped
    dry-run         every command is executed with --dry-run: make's targets, and what needs AWS
    not-run=REASON  it is left out, and the report says why

A block without a marker, or without a language, is an error. Blocks run in a copy of the repository's tree (links), where
target/release/foretype is the binary under test, path/to/checkpoint is a checkpoint, 127.0.0.1:8080 is a server with the demo
model, 127.0.0.1:8081 SageMaker's runtime API in front of it, and 127.0.0.1:8082 a server with models by name.

The table of errors in docs/api.md is tried too: see error_table.py.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import error_table

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["*.md", "docs/*.md", "bench/*.md", "fuzz/*.md", "models/demo/*.md"]
COMMANDS = {"sh", "bash", "console", "python"}
TEXTS = {"json", "text", "toml", "rust", "yaml"}
READY = re.compile(r"(?:is ready on (?=http))?(http://[^ ,]*[0-9])(?= speaks|[.,])")


@dataclass
class Block:
    document: str
    line: int
    language: str
    marker: str
    text: str

    def __str__(self):
        return f"{self.document}:{self.line}"


class Wrong(Exception):
    """What is wrong with a block, in words."""


def blocks(path):
    """The fenced blocks of a document, without the indentation of a list that they stand in."""
    document, fence, found = str(path.relative_to(ROOT)), None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        opening = re.match(r"( *)(```+)\s*(\S*)\s*(.*)$", line)
        if fence is None and opening:
            indent, fence, language, marker = opening.groups()
            found.append(Block(document, number, language, marker.strip(), ""))
        elif fence is not None and line.strip() == fence:
            fence = None
        elif fence is not None:
            found[-1].text += line.removeprefix(indent) + "\n"
    if fence is not None:
        raise Wrong(f"{found[-1]}: the block has no end")
    return found


def server(command, environment, cwd):
    """Starts a command that serves; the process and its address."""
    log = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        log.seek(0)
        if ready := READY.search(log.read()):
            return process, ready[1]
        time.sleep(0.05)
    log.seek(0)
    stop(process)
    raise Wrong(f"it did not say that it is ready:\n{log.read()}")


def stop(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    return process.wait(30)


class Runner:
    def __init__(self, binary, scratch):
        self.scratch, self.tree = scratch, scratch / "tree"
        self.tree.mkdir()
        for entry in ROOT.iterdir():
            if entry.name != "target":
                (self.tree / entry.name).symlink_to(entry)
        release = self.tree / "target" / "release"
        release.mkdir(parents=True)
        for file in [binary, *binary.parent.glob("libonnxruntime.so*")]:
            (release / file.name).symlink_to(file)
        shutil.copytree(ROOT / "models/demo", self.tree / "path/to/checkpoint", ignore=shutil.ignore_patterns("training", "queries"))
        own = {name: value for name, value in os.environ.items() if not name.startswith(("FORETYPE_", "SAGEMAKER_", "AWS_"))}
        self.environment = own | {
            "HOME": str(scratch),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FORETYPE_PORT": "0",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.started = []
        demo = self.start(["serve", "--model", "models/demo", "--page"])
        endpoint = self.start(["local-endpoint", "--target", demo, "--port", "0"])
        self.environment["AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME"] = endpoint
        by_name = self.start(["serve", "--multi-model"])
        keys = scratch / "keys.json"
        keys.write_text(json.dumps(error_table.KEYS))
        self.urls = demo, by_name, self.start(["serve", "--multi-model", "--api-key-file", str(keys)])
        # What documents show, and what is here instead.
        self.instead = {
            "http://127.0.0.1:8080": demo,
            "http://127.0.0.1:8081": endpoint,
            "http://127.0.0.1:8082": by_name,
            "--port 8082": "--port 0",
        }

    def start(self, arguments):
        process, url = server(["target/release/foretype", *arguments], self.environment, self.tree)
        self.started.append(process)
        return url

    def close(self):
        for process in self.started:
            stop(process)

    def command(self, block):
        text = block.text
        for shown, real in self.instead.items():
            text = text.replace(shown, real)
        if block.language == "python":
            return [sys.executable, "-c", text]
        # curl ends with 0 whatever the server says, unless it is told otherwise.
        return ["bash", "-euo", "pipefail", "-c", 'curl() { command curl --fail-with-body "$@"; }\n' + text]

    def run(self, block):
        done = subprocess.run(
            self.command(block), env=self.environment, cwd=self.tree, text=True, timeout=300,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )
        if done.returncode != 0:
            raise Wrong(f"it ended with {done.returncode}:\n{block.text}\n{done.stdout}")

    def serves(self, block):
        process, url = server(self.command(block), self.environment, self.tree)
        try:
            urllib.request.urlopen(f"{url}/ping", timeout=10).close()
        finally:
            code = stop(process)
        if code not in (0, -signal.SIGTERM):
            raise Wrong(f"it ended with {code} when it was stopped")

    def dry_run(self, block):
        lines = [f"{line} --dry-run" for line in commands(block)]
        self.run(Block(block.document, block.line, block.language, block.marker, "\n".join(lines)))

    def check(self, block):
        name, _, value = block.marker.partition("=")
        checks = {"run": self.run, "serves": self.serves, "dry-run": self.dry_run, "not-run": lambda _: None}
        if block.language in TEXTS and not block.marker:
            return False
        if block.language not in COMMANDS:
            raise Wrong(f"its language is {block.language!r}; say one of {sorted(COMMANDS | TEXTS)} behind the fence")
        if name not in checks or (name == "not-run") != bool(value):
            raise Wrong(f"its marker is {block.marker!r}; say run, serves, dry-run or not-run=REASON behind {block.language!r}")
        checks[name](block)
        return name != "not-run"


def commands(block):
    """The lines of a shell block, joined where they go on, without comments."""
    text = block.text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def check_errors(path, runner):
    """What is wrong with the table of errors."""
    return error_table.check(path.read_text(), *runner.urls) if path == ROOT / "docs/api.md" else []


def main():
    binary, *names = sys.argv[1:]
    paths = [ROOT / name for name in names] or sorted({path for pattern in DOCUMENTS for path in ROOT.glob(pattern)})
    passed = failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(Path(binary).resolve(), Path(scratch))
        try:
            for block in (block for path in paths for block in blocks(path)):
                started = time.monotonic()
                try:
                    if not runner.check(block):
                        if block.marker:
                            print(f"left    {block} {block.marker}", flush=True)
                    else:
                        passed += 1
                        print(f"ok      {block} {block.marker} ({time.monotonic() - started:.1f} s)", flush=True)
                except (Wrong, subprocess.TimeoutExpired, OSError) as error:
                    failed += 1
                    print(f"FAILED  {block}: {error}", flush=True)
            for wrong in (wrong for path in paths for wrong in check_errors(path, runner)):
                failed += 1
                print(f"FAILED  docs/api.md, errors: {wrong}", flush=True)
        finally:
            runner.close()
    print(f"docs: {passed} passed, {failed} failed")
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()
