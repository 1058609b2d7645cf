"""`autoscale`, inference components, and calls of an endpoint."""

import io
import json

import pytest
from conftest import IMAGE, ROLE, create, deploy, refused

from deploy import aws as deploy_aws

MADE = ["create", "shared", "--components", "--role", ROLE, "--instance-type", "ml.g5.2xlarge", "--managed-instances", "1:4"]
FIRST = [
    "component",
    "create",
    "shared",
    "first",
    "--image",
    IMAGE,
    "--memory-mib",
    "2048",
    "--accelerators",
    "1",
    "--model-data",
    "s3://bucket/a.tar.gz",
]


def specification(aws):
    (policy,) = aws.policies.values()
    return policy["TargetTrackingScalingPolicyConfiguration"]


@pytest.mark.parametrize(
    ("words", "metric", "value"),
    [
        ([], "SageMakerVariantConcurrentRequestsPerModelHighResolution", 8),
        (["--concurrency", "4"], "SageMakerVariantConcurrentRequestsPerModelHighResolution", 4),
        (["--metric", "invocations", "--target", "900"], "SageMakerVariantInvocationsPerInstance", 900),
        (["--serverless"], "SageMakerVariantProvisionedConcurrencyUtilization", 0.7),
    ],
)
def test_metrics_that_sagemaker_knows(aws, words, metric, value):
    create()
    deploy("autoscale", "terms", *words)
    made = specification(aws)
    assert made["PredefinedMetricSpecification"] == {"PredefinedMetricType": metric} and made["TargetValue"] == value


@pytest.mark.parametrize(
    ("metric", "name", "space", "dimensions"),
    [
        ("cpu", "CPUUtilization", "/aws/sagemaker/Endpoints", {"EndpointName": "terms", "VariantName": "AllTraffic"}),
        ("gpu", "GPUUtilization", "/aws/sagemaker/Endpoints", {"EndpointName": "terms", "VariantName": "AllTraffic"}),
        ("backlog", "ApproximateBacklogSizePerInstance", "AWS/SageMaker", {"EndpointName": "terms"}),
    ],
)
def test_other_metrics(aws, metric, name, space, dimensions):
    create()
    deploy("autoscale", "terms", "--metric", metric)
    made = specification(aws)["CustomizedMetricSpecification"]
    assert (made["MetricName"], made["Namespace"], made["Statistic"]) == (name, space, "Average")
    assert {one["Name"]: one["Value"] for one in made["Dimensions"]} == dimensions


def test_scaling_ends_and_changes(aws):
    create()
    deploy("autoscale", "terms", "--min", "1", "--max", "3")
    deploy("autoscale", "terms", "--min", "2", "--max", "5")
    (target,) = aws.targets.values()
    assert (target["MinCapacity"], target["MaxCapacity"]) == (2, 5)
    deploy("autoscale", "terms", "--remove")
    assert not aws.targets
    assert "isn't scaled" in refused("autoscale", "terms", "--remove")


def test_a_refused_policy_leaves_no_target(aws):
    create()
    aws.refuse("PutScalingPolicy", "not authorized to perform: cloudwatch:PutMetricAlarm", "AccessDeniedException")
    assert "PutMetricAlarm" in refused("autoscale", "terms")
    assert not aws.targets


@pytest.mark.parametrize(("words", "says"), [(["--min", "5", "--max", "2"], "above --max"), (["--min", "0"], "--metric backlog")])
def test_scaling_that_can_not_be(aws, words, says):
    assert says in refused("autoscale", "terms", *words)


# ---- inference components


def test_components_share_instances(aws):
    deploy(*MADE)
    (config,) = aws.configs.values()
    (variant,) = config["ProductionVariants"]
    assert not aws.models and "ModelName" not in variant and config["ExecutionRoleArn"] == ROLE
    assert variant["ManagedInstanceScaling"] == {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 4}
    deploy(*FIRST, "--env", "FORETYPE_BEAMS=4", "--container-metrics")
    (made,) = aws.asked("CreateInferenceComponent")
    assert made["Specification"]["ComputeResourceRequirements"] == {
        "MinMemoryRequiredInMb": 2048,
        "NumberOfAcceleratorDevicesRequired": 1.0,
    }
    assert made["Specification"]["Container"]["ArtifactUrl"] == "s3://bucket/a.tar.gz" and made["RuntimeConfig"] == {"CopyCount": 1}
    # What isn't named stays, in the words of a request.
    deploy("component", "update", "shared", "first", "--memory-mib", "4096")
    (changed,) = aws.asked("UpdateInferenceComponent")
    assert changed["Specification"]["Container"] == made["Specification"]["Container"] and "RuntimeConfig" not in changed
    assert changed["Specification"]["ComputeResourceRequirements"]["NumberOfAcceleratorDevicesRequired"] == 1.0
    deploy("component", "update", "shared", "first", "--copies", "3")
    assert set(aws.asked("UpdateInferenceComponent")[1]) == {"InferenceComponentName", "RuntimeConfig"}
    deploy("autoscale", "shared", "--component", "first", "--max", "3")
    assert next(iter(aws.targets)) == ("inference-component/first", "sagemaker:inference-component:DesiredCopyCount")
    assert "has the inference components first" in refused("delete", "shared")
    assert aws.endpoints and aws.components
    deploy("component", "delete", "shared", "first")
    deploy("delete", "shared")
    assert not aws.components and not aws.endpoints and not aws.configs


def test_the_instances_under_components_are_updated(aws):
    deploy(*MADE)
    deploy("update", "shared", "--instances", "3")
    assert aws.endpoints["shared"]["ProductionVariants"][0]["DesiredInstanceCount"] == 3
    assert "`component update`" in refused("update", "shared", "--image", IMAGE)


def test_a_component_of_another_endpoint_is_not_touched(aws):
    deploy(*MADE)
    deploy(*FIRST)
    create(name="other")
    assert "has no inference component called first" in refused("component", "delete", "other", "first")
    aws.tags[aws.arn("inference-component", "first")] = []
    assert "wasn't made here" in refused("component", "delete", "shared", "first")
    assert aws.components


def test_a_component_that_fails_is_told(aws):
    deploy(*MADE)
    aws.fate = "Failed"
    assert "the component first is Failed" in refused(*FIRST)


@pytest.mark.parametrize("words", [["--image", IMAGE], ["--model-data", "s3://bucket/x/"]])
def test_an_endpoint_of_components_has_no_model(aws, words):
    assert "belong to `component create`" in refused(*MADE, *words)


# ---- calls


class Runtime:
    def __init__(self):
        self.asked = []

    def invoke_endpoint(self, **request):
        self.asked.append(request)
        return {"Body": io.BytesIO(b'{"suggestions": []}')}

    def invoke_endpoint_async(self, **request):
        self.asked.append(request)
        return {"OutputLocation": "s3://bucket/out/1"}

    def invoke_endpoint_with_response_stream(self, **request):
        self.asked.append(request)
        return {"Body": [{"PayloadPart": {"Bytes": b"{}\n"}}, {"ModelStreamError": {"Message": "broken"}}]}


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    monkeypatch.setattr(deploy_aws.Aws, "client", lambda _, service: made)
    return made


def test_calls_name_whom_they_ask(runtime, capsys):
    deploy("invoke", "terms", "amazon", "--variant", "B", "--target-model", "a.tar.gz", "--component", "first")
    (asked,) = runtime.asked
    assert (asked["TargetVariant"], asked["TargetModel"], asked["InferenceComponentName"]) == ("B", "a.tar.gz", "first")
    assert json.loads(asked["Body"]) == {"input": "amazon"}
    deploy("invoke", "terms", "--async-input", "s3://bucket/in.json")
    assert runtime.asked[1]["InputLocation"] == "s3://bucket/in.json" and "s3://bucket/out/1" in capsys.readouterr().out
    assert "a text is missing" in refused("invoke", "terms")


def test_a_stream_that_breaks_is_told(runtime):
    assert "broken" in refused("stream", "terms", "amazon")
