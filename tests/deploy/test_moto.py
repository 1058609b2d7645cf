"""An endpoint's life against moto, which others have written. What moto lacks is added here."""

import boto3
import pytest
from conftest import DATA, IMAGE, REGION, ROLE, deploy, refused
from moto import mock_aws
from moto.core.responses import ActionResult
from moto.sagemaker.responses import SageMakerResponse

# moto doesn't know newer ones.
OLDER = ["--instance-type", "ml.c5.xlarge"]


def update_endpoint(self):
    endpoint = self.sagemaker_backend.endpoints[self._get_param("EndpointName")]
    endpoint.endpoint_config_name = self._get_param("EndpointConfigName")
    return ActionResult({"EndpointArn": endpoint.arn})


@pytest.fixture
def sagemaker(monkeypatch):
    for key, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(SageMakerResponse, "update_endpoint", update_endpoint, raising=False)
    none = ActionResult({"InferenceComponents": []})
    monkeypatch.setattr(SageMakerResponse, "list_inference_components", lambda _: none, raising=False)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with mock_aws():
        yield boto3.client("sagemaker")


def test_an_endpoints_life(sagemaker):
    scaling = boto3.client("application-autoscaling")
    deploy(
        "create", "terms", "--image", IMAGE, "--role", ROLE, "--model-data", DATA, "--env", "FORETYPE_BEAMS=4", "--instances", "3", *OLDER
    )
    first = sagemaker.describe_endpoint(EndpointName="terms")
    assert first["EndpointStatus"] == "InService"
    deploy("update", "terms", "--env", "FORETYPE_LANES=8")
    second = sagemaker.describe_endpoint(EndpointName="terms")["EndpointConfigName"]
    assert second != first["EndpointConfigName"]
    (variant,) = sagemaker.describe_endpoint_config(EndpointConfigName=second)["ProductionVariants"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.c5.xlarge", 3)
    model = sagemaker.describe_model(ModelName=variant["ModelName"])["PrimaryContainer"]
    assert model["Environment"] == {"FORETYPE_BEAMS": "4", "FORETYPE_LANES": "8"} and model["ModelDataUrl"] == DATA
    deploy("autoscale", "terms", "--min", "1", "--max", "3")
    (target,) = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 3)
    sagemaker.create_model(ModelName="terms-of-others", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": "x"})
    deploy("delete", "terms")
    assert not sagemaker.list_endpoints()["Endpoints"] and not sagemaker.list_endpoint_configs()["EndpointConfigs"]
    assert [model["ModelName"] for model in sagemaker.list_models()["Models"]] == ["terms-of-others"]
    assert not scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert "no endpoint called terms" in refused("delete", "terms")
