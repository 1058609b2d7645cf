"""`create`: every option as SageMaker is asked for it, and nothing left of an endpoint that can't be made (D8, D9, D11)."""

import json
import subprocess
import sys

import pytest
from conftest import DATA, IMAGE, ROLE, ROOT, create, deploy, endpoint, refused

from deploy import names

BARE = ["create", "terms", "--image", IMAGE, "--role", ROLE]


def variant(aws):
    return endpoint(aws)[1]["ProductionVariants"][0]


def test_the_plain_case(aws, capsys):
    create()
    found, config, model = endpoint(aws)
    assert variant(aws) | {"ModelName": ""} == {
        "VariantName": "AllTraffic",
        "ModelName": "",
        "InstanceType": "ml.c7i.xlarge",
        "InitialInstanceCount": 1,
        "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": 600,
        "ContainerStartupHealthCheckTimeoutInSeconds": 600,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    assert model["PrimaryContainer"]["ModelDataUrl"] == DATA and model["ExecutionRoleArn"] == ROLE
    owner = [{"Key": "foretype:endpoint", "Value": "terms"}]
    assert all(request["Tags"] == owner for name, request in aws.calls if name.startswith("Create"))
    assert "terms is in service" in capsys.readouterr().err


def test_names_of_one_second_differ():
    made = [names.fresh("x" * 63) for _ in range(2000)]
    assert len(set(made)) == 2000
    assert all(names.checked(name).startswith(names.made_for("x" * 63)) for name in made)


@pytest.mark.parametrize(
    ("words", "where", "expected"),
    [
        (["--volume-gib", "50"], "variant", {"VolumeSizeInGB": 50}),
        (["--routing", "random"], "variant", {"RoutingConfig": {"RoutingStrategy": "RANDOM"}}),
        (["--weight", "0.5", "--variant", "A"], "variant", {"InitialVariantWeight": 0.5, "VariantName": "A"}),
        (["--startup-timeout", "900"], "variant", {"ContainerStartupHealthCheckTimeoutInSeconds": 900}),
        (
            ["--subnet", "subnet-1", "--subnet", "subnet-2", "--security-group", "sg-1"],
            "model",
            {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1", "subnet-2"]}},
        ),
        (["--network-isolation"], "model", {"EnableNetworkIsolation": True}),
        (["--volume-kms", "alias/disk"], "config", {"KmsKeyId": "alias/disk"}),
        (["--detailed-observability"], "config", {"MetricsConfig": {"EnableDetailedObservability": True}}),
        (
            ["--capture", "s3://bucket/seen", "--capture-percent", "10", "--capture-kms", "alias/c"],
            "config",
            {
                "DataCaptureConfig": {
                    "EnableCapture": True,
                    "InitialSamplingPercentage": 10,
                    "DestinationS3Uri": "s3://bucket/seen",
                    "KmsKeyId": "alias/c",
                    "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
                    "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json", "application/jsonlines"]},
                }
            },
        ),
        (
            [
                "--async-output",
                "s3://bucket/out",
                "--async-failure",
                "s3://bucket/err",
                "--async-concurrency",
                "4",
                "--async-success-topic",
                "arn:aws:sns:eu-central-1:123456789012:done",
                "--async-kms",
                "alias/a",
            ],
            "config",
            {
                "AsyncInferenceConfig": {
                    "ClientConfig": {"MaxConcurrentInvocationsPerInstance": 4},
                    "OutputConfig": {
                        "S3OutputPath": "s3://bucket/out",
                        "S3FailurePath": "s3://bucket/err",
                        "KmsKeyId": "alias/a",
                        "NotificationConfig": {"SuccessTopic": "arn:aws:sns:eu-central-1:123456789012:done"},
                    },
                }
            },
        ),
    ],
)
def test_options(aws, words, where, expected):
    create(*words)
    made = {"variant": variant(aws), "model": endpoint(aws)[2], "config": endpoint(aws)[1]}[where]
    assert {key: made[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("words", "container"),
    [
        (
            ["--model-data", "s3://bucket/bundle"],
            {"ModelDataSource": {"S3DataSource": {"S3Uri": "s3://bucket/bundle/", "S3DataType": "S3Prefix", "CompressionType": "None"}}},
        ),
        (
            ["--model-data", "s3://bucket/many/", "--multi-model"],
            {"Mode": "MultiModel", "ModelDataUrl": "s3://bucket/many/", "MultiModelConfig": {"ModelCacheSetting": "Enabled"}},
        ),
        (["--container-metrics"], {"ContainerMetricsConfig": {"MetricsEndpoints": [{"MetricsEndpointPath": "/metrics"}]}}),
        # An image with its model inside.
        ([], {}),
    ],
)
def test_where_the_model_is(aws, words, container):
    deploy(*BARE, *words)
    assert endpoint(aws)[2]["PrimaryContainer"] == {"Image": IMAGE, "Environment": {}} | container


@pytest.mark.parametrize(
    ("kind", "version"),
    [("ml.g4dn.xlarge", True), ("ml.p5.48xlarge", True), ("ml.g6e.2xlarge", True), ("ml.c6gd.large", False), ("ml.m7i.large", False)],
)
def test_machines_with_a_gpu_get_a_driver_of_today(aws, kind, version):
    create("--instance-type", kind)
    assert variant(aws).get("InferenceAmiVersion") == ("al2023-ami-sagemaker-inference-gpu-4-1" if version else None)


def test_another_driver(aws):
    create("--instance-type", "ml.g5.xlarge", "--ami-version", "al2-ami-sagemaker-inference-gpu-3-1")
    assert variant(aws)["InferenceAmiVersion"] == "al2-ami-sagemaker-inference-gpu-3-1"


def test_serverless(aws):
    create("--serverless-memory-mib", "3072", "--serverless-concurrency", "20", "--serverless-provisioned", "2")
    made = variant(aws)
    assert made["ServerlessConfig"] == {"MemorySizeInMB": 3072, "MaxConcurrency": 20, "ProvisionedConcurrency": 2}
    assert set(made) == {"VariantName", "ModelName", "ServerlessConfig", "InitialVariantWeight"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--serverless-memory-mib", "3000"], "1024, 2048"),
        (["--serverless-memory-mib", "2048", "--instances", "2", "--network-isolation"], "can't have --instances, --network-isolation"),
        (["--serverless-concurrency", "2"], "--serverless-memory-mib makes"),
        (["--subnet", "subnet-1"], "go together"),
        (["--model-data", "model.tar.gz"], "s3://BUCKET"),
        (["--model-data", "s3://bucket/model.tgz"], "called .tar.gz"),
        (["--model-data", "s3://bucket/many", "--multi-model"], "ends with /"),
        (["--multi-model"], "--multi-model needs --model-data"),
        (["--capture-percent", "3"], "--capture s3://"),
        (["--async-failure", "s3://bucket/x"], "--async-output makes"),
        (["--tag", "foretype:endpoint=other"], "says whose"),
        (["--env-remove", "NO"], "no NO in the environment"),
        (["--env", "A=" + "x" * 40000], "32 KiB"),
    ],
)
def test_what_does_not_go_together_is_said_before_aws_is_asked(aws, words, says):
    assert says in refused(*BARE, *words)
    assert aws.writes() == []


@pytest.mark.parametrize("missing", ["--image", "--role"])
def test_what_is_missing_is_said(aws, missing):
    words = {"--image": IMAGE, "--role": ROLE}
    del words[missing]
    assert f"{missing} is missing" in refused("create", "terms", *[word for pair in words.items() for word in pair])


@pytest.mark.parametrize("name", ["terms-", "terms_2", "t" * 64, ""])
def test_names_that_are_none(aws, name):
    assert "can't be an endpoint's name" in refused("create", name, "--image", IMAGE, "--role", ROLE)
    assert aws.writes() == []


@pytest.mark.parametrize(
    ("operation", "code", "message"),
    [
        (
            "CreateModel",
            "ValidationException",
            "Could not access model data at s3://bucket/model.tar.gz. Please ensure that the role exists.",
        ),
        ("CreateEndpointConfig", "ValidationException", "Could not find model."),
        ("CreateEndpoint", "ResourceLimitExceeded", "The account-level service limit 'ml.c7i.xlarge for endpoint usage' is 0 Instances"),
        (
            "CreateEndpoint",
            "AccessDeniedException",
            "User: arn:aws:iam::123456789012:user/u is not authorized to perform: sagemaker:CreateEndpoint",
        ),
        ("CreateModel", "ValidationException", "Unsupported manifest media type application/vnd.oci.image.index.v1+json for image x:1."),
    ],
)
def test_a_refused_create_leaves_nothing_and_is_a_sentence(aws, operation, code, message):
    aws.refuse(operation, message, code)
    said = refused(*BARE, "--model-data", DATA)
    assert code in said and message in said and "\n" not in said
    assert not aws.models and not aws.configs and not aws.endpoints


def test_a_failed_create_leaves_nothing(aws, capsys):
    aws.fate = "Failed"
    assert "ping health check" in refused(*BARE, "--model-data", DATA)
    assert not aws.models and not aws.configs and not aws.endpoints
    assert "/aws/sagemaker/Endpoints/terms" in capsys.readouterr().err


def test_a_failed_create_may_be_kept(aws):
    aws.fate = "Failed"
    assert "It is kept" in refused(*BARE, "--model-data", DATA, "--keep-failed")
    assert aws.endpoints and aws.models


def test_an_endpoint_that_is_there_is_not_touched(aws):
    create()
    aws.calls.clear()
    assert "`update` changes it" in refused(*BARE)
    assert aws.writes() == []


def test_what_can_not_be_undone_is_named(aws, capsys):
    aws.refuse("CreateEndpoint", "no", "ResourceLimitExceeded")
    aws.refuse("DeleteModel", "not authorized", "AccessDeniedException")
    refused(*BARE, "--model-data", DATA)
    (left,) = aws.models
    assert f"{left} is left behind" in capsys.readouterr().err


def test_a_wait_that_ends_undoes_nothing(aws, monkeypatch):
    aws.fate = "Creating"
    assert "still Creating" in refused(*BARE, "--wait-minutes", "0")
    assert aws.endpoints and aws.models


def test_no_credentials_is_a_sentence(monkeypatch):
    environment = {
        "PATH": "/usr/bin:/bin",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": "/nonexistent",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    found = subprocess.run([sys.executable, ROOT / "deploy/deploy.py", *BARE], capture_output=True, text=True, env=environment)
    assert found.returncode == 1 and found.stderr.startswith("deploy: ") and "credentials" in found.stderr
    del environment["AWS_DEFAULT_REGION"]
    found = subprocess.run([sys.executable, ROOT / "deploy/deploy.py", *BARE], capture_output=True, text=True, env=environment)
    assert found.returncode == 1 and "--region" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("command", ["create", "invoke", "stream", "autoscale", "component", "local"])
def test_a_dry_run_needs_no_aws(command):
    """Not even boto3."""
    words = {
        "create": BARE[1:],
        "invoke": ["terms", "amazon"],
        "stream": ["terms", "amazon"],
        "autoscale": ["terms"],
        "component": ["create", "terms", "first", "--image", IMAGE, "--memory-mib", "512"],
        "local": ["--image", "image", "--model", "/model"],
    }[command]
    for start in (["-S", "-m", "deploy"], ["-S", "deploy/deploy.py"]):
        found = subprocess.run([sys.executable, *start, command, *words, "--dry-run"], capture_output=True, text=True, env={}, cwd=ROOT)
        assert found.returncode == 0, found.stderr
        assert found.stdout and "in service" not in found.stdout + found.stderr


def test_a_dry_run_prints_the_calls(aws, capsys):
    deploy(*BARE, "--dry-run")
    said = capsys.readouterr()
    assert said.out.count('"operation"') == 3 and "nothing was made" in said.err and aws.calls == []
    assert json.loads(said.out.split("\n}\n")[0] + "}")["operation"] == "create_model"
