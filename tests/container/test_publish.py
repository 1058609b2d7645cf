"""build_and_push.sh with a real engine and registry; moto is AWS. What it does in odd cases is in tests/deploy."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import bcrypt
import boto3
import pytest
from conftest import ROOT, docker, free_port, listens, wait_for
from moto.server import ThreadedMotoServer

ACCOUNT, REGION = "123456789012", "eu-central-1"


@pytest.fixture(scope="module")
def aws():
    """The environment of someone whose AWS is a stand-in."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port())
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    values = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
    }
    before = dict(os.environ)
    os.environ.update(values)
    yield url
    os.environ.clear()
    os.environ.update(before)
    server.stop()


@pytest.fixture(scope="module")
def registry(tmp_path_factory, aws):
    """A registry that wants the password that ECR hands out."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    token = boto3.client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
    import base64

    user, password = base64.b64decode(token).decode().split(":", 1)
    (folder / "htpasswd").write_text(f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n")
    (folder / "config.yml").write_text(f"""
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: ecr, path: {folder}/htpasswd}}}}
""")
    process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("the registry", lambda: listens(port))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/")
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait()


def push(*words, env=None):
    # The AWS command line is beside this Python.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run([ROOT / "build_and_push.sh", *words], capture_output=True, text=True, env=env or os.environ | {"PATH": path})


def bases():
    """The bases that the image under test was built on: the build is one of layers that are there."""
    values = json.loads(os.environ.get("FORETYPE_BUILD_ARGS", "{}"))
    return [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]


@pytest.mark.parametrize("mutability", ["--mutable", "--immutable"])
def test_build_and_push_twice(registry, tmp_path, monkeypatch, mutability):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    name = "foretype" + mutability.replace("--", "-")
    words = [name, "--region", REGION, "--registry", registry, "--tag", "tried", *bases()]
    if mutability == "--immutable":
        words.append("--immutable")
    first = push(*words)
    assert first.returncode == 0, first.stderr
    image = first.stdout.strip()
    assert re.fullmatch(rf"{re.escape(registry)}/{name}:[0-9a-f]{{12}}(-dirty)?", image)
    (found,) = boto3.client("ecr").describe_repositories(repositoryNames=[name])["repositories"]
    assert found["imageScanningConfiguration"]["scanOnPush"]
    assert found["imageTagMutability"] == ("IMMUTABLE" if mutability == "--immutable" else "MUTABLE")
    again = push(*words)
    assert again.returncode == 0 and again.stdout == first.stdout, again.stderr
    assert "creating the repository" in first.stderr and "creating the repository" not in again.stderr
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image).stdout)
    assert re.fullmatch("[0-9a-f]{16}", labels["foretype.build"])
    listing = docker("run", "--rm", "--entrypoint", "cat", image, "/opt/foretype/sbom/sbom.cdx.json")
    assert json.loads(listing.stdout)["bomFormat"] == "CycloneDX"
    for tag in (image.rsplit(":", 1)[1], "tried", "0.1.0"):
        docker("rmi", "--force", f"{registry}/{name}:{tag}", check=False)
        docker("pull", "--quiet", f"{registry}/{name}:{tag}")


def test_build_and_push_says_what_is_wrong(tmp_path):
    assert push().returncode == 2
    assert "cpu or gpu" in push("x", "--target", "tpu").stderr
    nobody = push("x", env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)})
    assert nobody.returncode == 1 and "AWS doesn't know who you are" in nobody.stderr
