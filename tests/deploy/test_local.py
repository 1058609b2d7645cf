"""`deploy local` ends what it starts (D11), with a stand-in for docker."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

STANDIN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$0 $1" in *docker*run) exit "${DOCKER_CODE:-0}" ;; *foretype*) exec sleep 60 ;; esac
"""


def hear_interrupts():
    """A shell's background jobs ignore SIGINT, and so do these tests when they run in one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def started(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("docker", "foretype"):
        (tmp_path / "bin" / name).write_text(STANDIN)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bundle").mkdir()
    calls = tmp_path / "calls"

    def start(*words, **variables):
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "CALLS": str(calls)} | variables
        command = [sys.executable, ROOT / "deploy/deploy.py", "local", "--image", "image", "--foretype", "foretype", *words]
        options = {"env": environment, "cwd": tmp_path, "stderr": subprocess.PIPE, "text": True, "preexec_fn": hear_interrupts}
        return subprocess.Popen(command, **options), calls

    return start


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_container(started, which):
    process, calls = started("--model", "bundle")
    until = time.monotonic() + 20
    while not calls.exists() or "local-endpoint" not in calls.read_text():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(which)
    assert process.wait(20) == 0
    run, endpoint, stop = calls.read_text().splitlines()
    # A relative path would be the name of a volume.
    assert f"--volume {os.path.realpath(calls.parent)}/bundle:/opt/ml/model:ro" in run
    assert endpoint.startswith("foretype local-endpoint") and stop == "docker stop --time 30 foretype-local-8081"


def test_a_model_that_is_not_there_is_a_sentence(started):
    process, calls = started("--model", "none")
    assert "there is no folder none" in process.communicate(timeout=20)[1] and process.returncode == 1 and not calls.exists()


def test_a_container_that_does_not_start_is_a_sentence(started):
    process, calls = started("--model", "bundle", DOCKER_CODE="125")
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 1 and "docker could not start" in said and "Traceback" not in said
