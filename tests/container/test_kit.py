"""The kit of `make gpu-kit` in a container that has a C library and a shell, and neither network, cargo, Python nor a GPU."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import docker

KIT = Path(os.environ.get("FORETYPE_GPU_KIT", "no kit"))
RUNTIME = os.environ.get("FORETYPE_RUNTIME_IMAGE", "no image")
SLICE_BYTES = 55_000_000


@pytest.mark.alone
def test_the_kit_runs_on_a_cpu_and_names_what_a_gpu_is_needed_for(tmp_path):
    archive = KIT / "foretype-gpu-kit.tar.gz"
    slices = sorted(KIT.glob("foretype-gpu-kit.tar.gz.*"))
    sizes = [part.stat().st_size for part in slices]
    assert max(sizes) <= SLICE_BYTES and sum(sizes) == archive.stat().st_size
    print(f"container: the kit has {archive.stat().st_size} bytes, in {len(slices)} slices of at most {max(sizes)}")
    # Together the slices are the archive.
    unpacked = tmp_path / "kit"
    unpacked.mkdir()
    tar = subprocess.Popen(["tar", "-C", unpacked, "-xz"], stdin=subprocess.PIPE)
    for part in slices:
        tar.stdin.write(part.read_bytes())
    tar.stdin.close()
    assert tar.wait() == 0

    results = tmp_path / "results"
    results.mkdir()
    words = ["run", "--rm", "--network", "none", "--volume", f"{unpacked / 'foretype-gpu-kit'}:/kit:ro", "--volume", f"{results}:/results"]
    started = time.monotonic()
    missing = docker(*words, RUNTIME, "sh", "-c", "command -v cargo pip python3 cc curl; true").stdout
    assert missing == "", missing
    ran = docker(*words, RUNTIME, "bash", "/kit/run.sh", "/results", check=False)
    seconds = time.monotonic() - started
    print(f"container: the kit ran for {seconds:.0f} s on a CPU")
    assert ran.returncode == 0, ran.stdout + ran.stderr

    found = json.loads((results / "kit.json").read_text())
    rows = {(row["engine"], row["what"]): row for row in found["rows"]}
    for engine in ("onnxruntime", "tensorrt", "tensorrt-rtx"):
        assert rows[engine, "checks and measurements"]["outcome"] == "not run: there is no NVIDIA GPU"
    passed = [what for (engine, what), row in rows.items() if engine == "cpu" and row["outcome"].startswith("passed")]
    for name in (
        "goldens_and_the_demo_have_the_logits_of_the_cpu",
        "encoder_decoders_have_the_logits_of_the_cpu",
        "replayed_graphs_equal_runs_one_by_one",
        "random_steps_and_copies_have_the_logits_of_the_cpu",
        "keystrokes_have_the_suggestions_of_the_cpu",
    ):
        assert name in passed, rows
    pinned = rows["cpu", "pinned_memory_reaches_the_device_and_comes_back_through_a_captured_copy"]
    assert pinned["outcome"].startswith("not run: ")
    for what in ("step of 10 rows behind 40 positions", "ten suggestions of 42 tokens, tolerance off, 4 clients", "8 people who type"):
        assert rows["cpu", what]["figures"], what
    assert "start of a server" in (results / "kit.txt").read_text()
