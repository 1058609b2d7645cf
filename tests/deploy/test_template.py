"""endpoint.yaml asks CloudFormation for what `deploy` asks SageMaker for."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import DATA, IMAGE, ROLE, ROOT

from deploy import cli, create, requests, rollout, scaling

PATH = ROOT / "deploy/endpoint.yaml"
CREATE = ["create", "terms", "--image", IMAGE, "--role", ROLE]
NOTHING = object()


class Template(yaml.SafeLoader):
    pass


def intrinsic(loader, suffix, node):
    kind = {yaml.ScalarNode: "scalar", yaml.SequenceNode: "sequence", yaml.MappingNode: "mapping"}[type(node)]
    options = {} if kind == "scalar" else {"deep": True}
    return {"!" + suffix: getattr(loader, f"construct_{kind}")(node, **options)}


Template.add_multi_constructor("!", intrinsic)


class CloudFormation:
    """As much of it as the template uses."""

    def __init__(self, given):
        self.template = yaml.load(PATH.read_text(), Template)
        unknown = set(given) - set(self.template["Parameters"])
        assert not unknown, unknown
        self.values = {}
        for name, parameter in self.template["Parameters"].items():
            value = given.get(name, parameter.get("Default"))
            self.values[name] = [word for word in value.split(",") if word] if parameter["Type"] == "CommaDelimitedList" else value
        self.values |= {"ScalableTarget": "the target", "AWS::NoValue": NOTHING}

    def condition(self, name):
        return self.of(self.template["Conditions"][name])

    def of(self, value):
        if isinstance(value, list):
            return [self.of(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        (word, inner), *_ = [*value.items(), (None, None)]
        if word == "!If":
            return self.of(inner[1] if self.condition(inner[0]) else inner[2])
        resolve = {
            "!Ref": lambda: self.values[inner],
            "!GetAtt": lambda: "made",
            "!Sub": lambda: inner.replace("${EndpointName}", "terms"),
            "!Condition": lambda: self.condition(inner),
            "!Equals": lambda: str(self.of(inner[0])) == str(self.of(inner[1])),
            "!Not": lambda: not self.of(inner[0]),
            "!And": lambda: all(self.of(inner)),
            "!Or": lambda: any(self.of(inner)),
            "!Join": lambda: inner[0].join(self.of(inner[1])),
            "!Split": lambda: self.of(inner[1]).split(inner[0]),
            "!Select": lambda: self.of(inner[1])[inner[0]],
        }
        if word in resolve:
            return resolve[word]()
        return {key: found for key, one in value.items() if (found := self.of(one)) is not NOTHING}

    def made(self):
        resources = self.template["Resources"].items()
        return {name: self.of(one["Properties"]) for name, one in resources if "Condition" not in one or self.condition(one["Condition"])}


CASES = {
    "plain": (["--model-data", DATA], {"ModelData": DATA}),
    "in the image": ([], {}),
    "prefix": (["--model-data", "s3://bucket/bundle/"], {"ModelPrefix": "s3://bucket/bundle/"}),
    "many": (["--model-data", "s3://bucket/many/", "--multi-model"], {"ModelData": "s3://bucket/many/", "MultiModel": "true"}),
    "gpu": (["--instance-type", "ml.g5.xlarge", "--instances", "2"], {"InstanceType": "ml.g5.xlarge", "Instances": 2}),
    "gpu, other driver": (
        ["--instance-type", "ml.p5.48xlarge", "--ami-version", "al2-ami-sagemaker-inference-gpu-3-1"],
        {"InstanceType": "ml.p5.48xlarge", "AmiVersion": "al2-ami-sagemaker-inference-gpu-3-1"},
    ),
    "gpu, SageMaker's driver": (
        ["--instance-type", "ml.g5.xlarge", "--ami-version", "none"],
        {"InstanceType": "ml.g5.xlarge", "AmiVersion": "none"},
    ),
    "instances": (
        ["--volume-gib", "50", "--routing", "random", "--startup-timeout", "900", "--download-timeout", "800", "--volume-kms", "alias/d"],
        {"VolumeGiB": 50, "Routing": "RANDOM", "StartupTimeout": 900, "DownloadTimeout": 800, "VolumeKms": "alias/d"},
    ),
    "serverless": (
        ["--serverless-memory-mib", "3072", "--serverless-concurrency", "9"],
        {"ServerlessMemoryMiB": 3072, "ServerlessConcurrency": 9},
    ),
    "network": (
        ["--subnet", "subnet-1", "--subnet", "subnet-2", "--security-group", "sg-1", "--network-isolation"],
        {"Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1", "NetworkIsolation": "true"},
    ),
    "capture": (
        ["--capture", "s3://bucket/seen", "--capture-percent", "5", "--capture-kms", "alias/c"],
        {"Capture": "s3://bucket/seen", "CapturePercent": 5, "CaptureKms": "alias/c"},
    ),
    "async": (
        ["--async-output", "s3://bucket/out", "--async-failure", "s3://bucket/err"],
        {"AsyncOutput": "s3://bucket/out", "AsyncFailure": "s3://bucket/err"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_template_is_what_deploy_asks_for(case):
    words, given = CASES[case]
    made = CloudFormation({"EndpointName": "terms", "Image": IMAGE, "Role": ROLE} | given).made()
    _, models, config = create.plan(cli.parser().parse_args([*CREATE, *words]))
    (model,) = models.values()
    assert made["Model"] == model
    config["ProductionVariants"][0]["ModelName"] = "made"
    assert made["EndpointConfig"] == config
    assert ("ScalableTarget" in made) == (case != "serverless")


@pytest.mark.parametrize("kind", [*requests.GPU_FAMILIES, "c7i", "p3", "m6gd"])
def test_both_know_the_same_machines(kind):
    made = CloudFormation({"EndpointName": "terms", "Image": IMAGE, "Role": ROLE, "InstanceType": f"ml.{kind}.xlarge"}).made()
    (variant,) = made["EndpointConfig"]["ProductionVariants"]
    assert ("InferenceAmiVersion" in variant) == requests.has_gpu(f"ml.{kind}.xlarge")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--canary", "20%", "--rollback-alarm", "slow"], {"Rollout": "CANARY", "RolloutPercent": 20, "RollbackAlarm": "slow"}),
        (["--linear", "10%", "--bake-seconds", "30"], {"Rollout": "LINEAR", "BakeSeconds": 30}),
        (["--rolling", "25%"], {"Rollout": "ROLLING", "RolloutPercent": 25}),
    ],
)
def test_the_template_updates_as_deploy_does(words, given):
    made = CloudFormation({"EndpointName": "terms", "Image": IMAGE, "Role": ROLE} | given).made()["Endpoint"]
    assert made == rollout.update_request("terms", "made", cli.parser().parse_args(["update", "terms", *words]))


def test_the_template_scales_as_deploy_does():
    made = CloudFormation({"EndpointName": "terms", "Image": IMAGE, "Role": ROLE}).made()
    options = cli.parser().parse_args(["autoscale", "terms"])
    assert made["ScalableTarget"] == scaling.target_request(options)
    policy = scaling.policy_request(options)
    for key in scaling.target(options):
        del policy[key]
    assert made["ScalingPolicy"] == policy | {"ScalingTargetId": "the target"}


def test_cfn_lint_has_nothing_to_say():
    lint = Path(sys.executable).parent / "cfn-lint"
    found = subprocess.run([lint, "--include-checks", "I", "--", PATH], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
