"""build_and_push.sh and deploy.py against stand-ins for AWS: moto for the API, Debian's docker-registry for ECR's registry."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import bcrypt
import boto3
import pytest
import yaml
from conftest import ROOT, docker, free_port, listens, wait_for
from moto.core.responses import ActionResult, EmptyResult
from moto.sagemaker.responses import SageMakerResponse
from moto.server import ThreadedMotoServer

sys.path.insert(0, str(ROOT / "deploy"))
import deploy  # noqa: E402

ACCOUNT, REGION = "123456789012", "eu-central-1"


def update_endpoint(self):
    """What moto lacks: the new configuration, at once. A name with `bad` in it stands for one that fails and is rolled back."""
    endpoint = self.sagemaker_backend.endpoints[self._get_param("EndpointName")]
    if "bad" not in self._get_param("EndpointConfigName"):
        endpoint.endpoint_config_name = self._get_param("EndpointConfigName")
    return ActionResult({"EndpointArn": endpoint.arn}) if hasattr(endpoint, "arn") else EmptyResult()


@pytest.fixture(scope="module")
def aws():
    """The environment of someone whose AWS is a stand-in."""
    SageMakerResponse.update_endpoint = update_endpoint
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
    for tag in (image.rsplit(":", 1)[1], "tried", "0.1.0"):
        docker("rmi", "--force", f"{registry}/{name}:{tag}", check=False)
        docker("pull", "--quiet", f"{registry}/{name}:{tag}")


def test_build_and_push_says_what_is_wrong(tmp_path):
    assert push().returncode == 2
    assert "cpu or gpu" in push("x", "--target", "tpu").stderr
    nobody = push("x", env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)})
    assert nobody.returncode == 1 and "AWS doesn't know who you are" in nobody.stderr


def test_build_and_push_needs_nothing_for_a_dry_run(tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("bash", "git", "sed", "head", "dirname"):
        (bare / tool).symlink_to(shutil.which(tool))
    found = push("foretype", "--dry-run", "--target", "gpu", env={"PATH": str(bare)})
    assert found.returncode == 0, found.stderr
    assert "+ docker build --target gpu" in found.stderr and "-gpu" in found.stdout


# ---- deploy.py


COMMON = ["--image", "image:1", "--role", f"arn:aws:iam::{ACCOUNT}:role/service-role/foretype"]
CREATE = ["create", "terms", *COMMON, "--model-data", "s3://bucket/model.tar.gz", "--poll-seconds", "0"]
# moto doesn't know the default.
OLDER = ["--instance-type", "ml.c5.xlarge"]


def test_an_endpoints_life(aws, capsys):
    sagemaker, scaling = boto3.client("sagemaker"), boto3.client("application-autoscaling")
    deploy.main([*CREATE, *OLDER])
    first = sagemaker.describe_endpoint(EndpointName="terms")
    assert first["EndpointStatus"] == "InService"
    config = sagemaker.describe_endpoint_config(EndpointConfigName=first["EndpointConfigName"])
    assert config["ProductionVariants"][0]["ContainerStartupHealthCheckTimeoutInSeconds"] == 600
    # Names have a second's time in them.
    time.sleep(1.1)
    deploy.main(["update", *CREATE[1:], *OLDER, "--env", "FORETYPE_BEAMS=8"])
    second = sagemaker.describe_endpoint(EndpointName="terms")["EndpointConfigName"]
    assert second != first["EndpointConfigName"]
    assert sagemaker.describe_model(ModelName=second)["PrimaryContainer"]["Environment"] == {"FORETYPE_BEAMS": "8"}
    deploy.main(["autoscale", "terms", "--min", "1", "--max", "3"])
    (target,) = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 3)
    sagemaker.create_model(ModelName="terms-of-others", ExecutionRoleArn=COMMON[3], PrimaryContainer={"Image": "x"})
    deploy.main(["delete", "terms"])
    assert not sagemaker.list_endpoints()["Endpoints"]
    assert not sagemaker.list_endpoint_configs()["EndpointConfigs"]
    assert [model["ModelName"] for model in sagemaker.list_models()["Models"]] == ["terms-of-others"]
    assert not scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    deploy.main(["delete", "terms"])


def test_a_failed_update_leaves_the_old_endpoint(aws):
    sagemaker = boto3.client("sagemaker")
    words = ["create", "bad", *CREATE[2:], *OLDER]
    deploy.main(words)
    before = sagemaker.describe_endpoint(EndpointName="bad")["EndpointConfigName"]
    time.sleep(1.1)
    with pytest.raises(SystemExit, match="the update failed"):
        deploy.main(["update", *words[1:]])
    assert sagemaker.describe_endpoint(EndpointName="bad")["EndpointConfigName"] == before
    assert [found["EndpointConfigName"] for found in sagemaker.list_endpoint_configs()["EndpointConfigs"]] == [before]
    deploy.main(["delete", "bad"])


@pytest.mark.parametrize("command", ["create", "update", "invoke", "stream", "autoscale", "delete", "local"])
def test_a_dry_run_needs_no_aws(command):
    """Not even boto3."""
    words = {
        "create": CREATE[1:],
        "update": CREATE[1:],
        "invoke": ["terms", "amazon"],
        "stream": ["terms", "amazon"],
        "local": ["--image", "image", "--model", "/model"],
    }.get(command, ["terms"])
    found = subprocess.run(
        [sys.executable, "-S", ROOT / "deploy/deploy.py", command, *words, "--dry-run"], capture_output=True, text=True, env={}
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout


# ---- the template


class Template(yaml.SafeLoader):
    pass


def intrinsic(loader, suffix, node):
    return {"!" + suffix: loader.construct_scalar(node)}


Template.add_multi_constructor("!", intrinsic)


def test_the_template_is_what_deploy_py_asks_for():
    template = yaml.load((ROOT / "deploy/endpoint.yaml").read_text(), Template)
    args = deploy.parser().parse_args(CREATE)
    scale = deploy.parser().parse_args(["autoscale", "terms"])
    given = {"EndpointName": "terms", "Image": args.image, "ModelData": args.model_data, "Role": args.role}
    parameters = {name: given.get(name, found.get("Default")) for name, found in template["Parameters"].items()}
    parameters |= {"ScalableTarget": "the target"}

    def resolve(value):
        if isinstance(value, dict):
            (first, *_) = [*value.items(), (None, None)]
            if first[0] == "!Ref":
                return parameters[first[1]]
            if first[0] == "!Sub":
                return re.sub(r"\$\{(\w+)\}", lambda found: str(parameters[found[1]]), first[1])
            if first[0] == "!GetAtt":
                return "made"
            return {key: resolve(inner) for key, inner in value.items()}
        return [resolve(inner) for inner in value] if isinstance(value, list) else value

    made = {name: resolve(resource["Properties"]) for name, resource in template["Resources"].items()}
    model = deploy.model_request("made", args)
    del model["ModelName"]
    assert made["Model"] == model
    config = deploy.config_request("made", args)
    del config["EndpointConfigName"]
    assert made["EndpointConfig"] == config
    assert made["Endpoint"] == deploy.endpoint_request("terms", "made")
    assert made["ScalableTarget"] == deploy.target_request("terms", scale)
    policy = deploy.policy_request("terms", scale)
    for key in ("ServiceNamespace", "ResourceId", "ScalableDimension"):
        del policy[key]
    assert made.pop("ScalingPolicy") == policy | {"ScalingTargetId": "the target"}
