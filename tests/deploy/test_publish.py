"""build_and_push.sh with stand-ins for `aws`, `docker` and `oras`: what is built, pushed and refused (D4, D7, D11).

tests/container has a real engine and registry.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

HOST = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"

# One program for all three; what it knows is a file beside it.
STANDIN = """#!{python}
import fcntl, json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
path = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "state.json")
if words[:1] == ["login"]: sys.stdin.read()
# Two of them run at once in a pipe.
lock = open(path + ".lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
state = json.load(open(path))
state["calls"].append([name, *words])
json.dump(state, open(path, "w"))
option = lambda word: words[words.index(word) + 1]
line = " ".join([name, *words])
tag = lambda: option("--image-ids").removeprefix("imageTag=")
if line.startswith("aws sts"): print("123456789012")
elif "describe-repositories" in line:
    if state["repository"] is None: sys.exit("RepositoryNotFoundException")
    print(state["mutability"] if "Mutability" in line else state["host"] + "/" + state["repository"])
elif "create-repository" in line:
    state["repository"], state["mutability"] = option("--repository-name"), option("--image-tag-mutability")
elif "describe-images" in line:
    if tag() not in state["images"]: sys.exit("An error occurred (ImageNotFoundException)")
    print("sha256:" + tag())
elif "batch-get-image" in line: print(state["type"])
elif "get-login-password" in line: print("secret")
elif line.startswith("docker buildx version"): sys.exit(0 if state["buildx"] else 1)
elif line.startswith("docker image inspect"): print(state["images"][words[-1].split("sha256:")[1]])
elif "--label" in words: state["label"] = option("--label").split("=")[1]
elif line.startswith("docker push"): state["images"][words[-1].rsplit(":", 1)[1]] = state["label"]
elif line.startswith("docker manifest inspect"): print(json.dumps({{"schemaVersion": 2, "mediaType": state["type"]}}, indent=3))
json.dump(state, open(path, "w"))
"""


class Machine:
    """A checkout of the script's own, and programs that only note what they are asked."""

    def __init__(self, folder):
        self.checkout, self.programs = folder / "checkout", folder / "bin"
        (self.checkout / "tools").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copy(ROOT / "build_and_push.sh", self.checkout)
        (self.checkout / "Cargo.toml").write_text('version = "0.1.0"\n')
        (self.checkout / ".gitignore").write_text("/sbom.cdx.json\n")
        (self.checkout / "tools/sbom.sh").write_text('#!/bin/sh\necho {} >"$1"\n')
        (self.checkout / "tools/sbom.sh").chmod(0o755)
        for program in ("aws", "docker", "oras"):
            (self.programs / program).write_text(STANDIN.format(python=sys.executable))
            (self.programs / program).chmod(0o755)
        self.change(calls=[], repository=None, mutability="MUTABLE", host=HOST, images={}, type=DOCKER, buildx=True)
        self.git("init", "--quiet")
        self.commit()

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=self.checkout, check=True, capture_output=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", "x")

    def state(self):
        return json.loads((self.programs / "state.json").read_text())

    def change(self, **values):
        before = self.state() if (self.programs / "state.json").exists() else {}
        (self.programs / "state.json").write_text(json.dumps(before | values))

    def push(self, *words):
        self.change(calls=[])
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "AWS_REGION": "eu-central-1", "HOME": "/nonexistent"}
        return subprocess.run([self.checkout / "build_and_push.sh", *words], capture_output=True, text=True, env=environment)

    def calls(self, begin):
        return [call for call in self.state()["calls"] if " ".join(call).startswith(begin)]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_image_is_one_that_sagemaker_takes(machine):
    found = machine.push("foretype")
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(rf"{HOST}/foretype:[0-9a-f]{{12}}\n", found.stdout)
    (build,) = machine.calls("docker buildx build")
    assert {"--provenance=false", "--sbom=false", "--output", "type=docker"} <= set(build)
    assert len(machine.calls("docker push")) == 2


def test_an_older_builder_has_no_such_options(machine):
    machine.change(buildx=False)
    assert machine.push("foretype").returncode == 0
    (build,) = machine.calls("docker build ")
    assert not any("provenance" in word for word in build)


@pytest.mark.parametrize("kind", ["application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json", "None"])
@pytest.mark.parametrize("elsewhere", [[], ["--registry", "127.0.0.1:5000"]])
def test_a_manifest_that_sagemaker_refuses_is_an_error(machine, kind, elsewhere):
    machine.change(type=kind)
    found = machine.push("foretype", *elsewhere)
    assert found.returncode == 1 and found.stdout == ""
    assert kind in found.stderr and "SageMaker doesn't take its manifest" in found.stderr and DOCKER in found.stderr


def test_an_immutable_tag_from_other_arguments_is_an_error(machine):
    assert machine.push("foretype", "--immutable", "--build-arg", "MODEL=").returncode == 0
    same = machine.push("foretype", "--immutable", "--build-arg", "MODEL=")
    assert same.returncode == 0 and "from the same sources and arguments" in same.stderr
    assert not machine.calls("docker push") and not machine.calls("docker buildx build")
    other = machine.push("foretype", "--immutable", "--build-arg", "CPU_RUNTIME_IMAGE=debian@sha256:1")
    assert other.returncode == 1 and "other sources or arguments" in other.stderr and other.stdout == ""
    assert not machine.calls("docker push") and not machine.calls("docker buildx build")


def test_the_next_commit_is_pushed_and_leaves_the_versions_tag(machine):
    first = machine.push("foretype", "--immutable")
    machine.commit()
    second = machine.push("foretype", "--immutable")
    assert second.returncode == 0 and second.stdout != first.stdout
    assert "foretype:0.1.0 stays what it is" in second.stderr
    assert [call[-1] + "\n" for call in machine.calls("docker push")] == [second.stdout]


def test_another_tag_of_what_is_there(machine):
    first = machine.push("foretype", "--immutable").stdout.strip()
    found = machine.push("foretype", "--immutable", "--tag", "tried")
    assert found.returncode == 0 and not machine.calls("docker buildx build")
    assert machine.calls("docker tag") == [["docker", "tag", first, f"{HOST}/foretype:tried"]]
    assert len(machine.calls("docker push")) == 1


def test_changes_that_are_not_committed_and_models_count(machine):
    (machine.checkout / "Cargo.toml").write_text('version = "0.1.0"\n# changed\n')
    assert machine.push("foretype", "--immutable").stdout.endswith("-dirty\n")
    (machine.checkout / "Cargo.toml").write_text('version = "0.1.0"\n# changed again\n')
    assert machine.push("foretype", "--immutable").returncode == 1
    machine.git("checkout", "Cargo.toml")
    (machine.checkout / "model").mkdir()
    (machine.checkout / "model/config.json").write_text("{}")
    words = ["other", "--immutable", "--build-arg", "MODEL=model"]
    machine.change(images={}, repository=None)
    assert machine.push(*words).returncode == 0
    (machine.checkout / "model/config.json").write_text("{ }")
    assert machine.push(*words).returncode == 1


def test_outside_git_it_says_so(machine):
    shutil.rmtree(machine.checkout / ".git")
    found = machine.push("foretype")
    assert found.returncode == 1 and "no git checkout" in found.stderr and "fatal" not in found.stderr
    named = machine.push("foretype", "--revision", "r7")
    assert named.returncode == 0 and named.stdout == f"{HOST}/foretype:r7\n"
    assert "can't be" in machine.push("foretype", "--revision", "a b").stderr


def test_another_projects_checkout_gives_no_name(machine):
    shutil.rmtree(machine.checkout / ".git")
    subprocess.run(["git", "init", "--quiet", machine.checkout.parent], check=True)
    assert "no git checkout" in machine.push("foretype").stderr


def test_the_sbom_is_in_the_image_and_beside_it(machine):
    found = machine.push("foretype")
    (build,) = machine.calls("docker buildx build")
    assert "SBOM=sbom.cdx.json" in build
    (attach,) = machine.calls("oras attach")
    assert found.stdout.strip() in attach and "application/vnd.cyclonedx+json" in attach
    machine.push("foretype", "--no-sbom")
    assert not machine.calls("oras") and not any("SBOM" in word for word in machine.calls("docker buildx build")[0])


def test_a_dry_run_needs_nothing(machine, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for tool in ("bash", "git", "sed", "head", "dirname", "sort", "cut", "sha256sum", "find"):
        (bare / tool).symlink_to(shutil.which(tool))

    def bill():
        """What an earlier push from this checkout has left may stay."""
        return (ROOT / "sbom.cdx.json").stat().st_mtime_ns if (ROOT / "sbom.cdx.json").exists() else None

    def push(*options):
        words = [ROOT / "build_and_push.sh", "x", "--dry-run", "--target", "gpu", *options]
        return subprocess.run(words, capture_output=True, text=True, env={"PATH": str(bare)})

    before = bill()
    refused = push()
    assert refused.returncode == 1 and "accept them with --build-arg ACCEPT_NVIDIA_LICENCES=yes" in refused.stderr
    found = push("--build-arg", "ACCEPT_NVIDIA_LICENCES=yes")
    assert found.returncode == 0, found.stderr
    assert "--target gpu" in found.stderr and "-gpu" in found.stdout and bill() == before
