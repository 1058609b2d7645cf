"""What scripts download has a hash (R15), and the SBOM is one."""

import re
import subprocess

import pytest
from conftest import ROOT


def tracked(*patterns):
    found = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in found.stdout.splitlines() if (ROOT / line).exists()]


LOCKS = tracked("*requirements.in", "*requirements/*.in")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_requirement_is_pinned_and_hashed(path):
    lock = path.with_suffix(".txt").read_text()
    entries = re.split(r"^(?=[a-zA-Z0-9])", lock, flags=re.M)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"\S+==\S+", entry) and "--hash=sha256:" in entry, entry
    pinned = {re.sub(r"[-_.]+", "-", entry.split("==")[0].split("[")[0].lower()): entry.split()[0].split("==")[1] for entry in entries}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "-r")):
            name, version = line.split("==")
            assert pinned[re.sub(r"[-_.]+", "-", name.split("[")[0].lower())] == version, line
    # Where packages come from is the machine's matter.
    assert "://" not in lock and "index-url" not in lock


def test_scripts_install_only_what_is_hashed():
    wrong = []
    for path in tracked("*.sh", "Dockerfile", "nginx/serve", "Makefile"):
        text = path.read_text().replace("\\\n", " ")
        wrong += [
            f"{path.name}: {line.strip()}"
            for line in text.splitlines()
            if re.search(r'pip"? (install|download)', line) and "--require-hashes" not in line
        ]
    # This one says what is missing; it installs nothing.
    assert [line for line in wrong if "fail " not in line] == []


def test_a_crate_that_is_fetched_for_its_files_is_hashed():
    assert re.search(r"SHA256=[0-9a-f]{64}\b", (ROOT / "tools/tensorrt_headers.sh").read_text())
