"""Clients as people write them, with boto3, against a container behind the local endpoint."""

import contextlib
import json
import os
import subprocess

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from conftest import IMAGE, ROOT, Container, docker, free_port, listens, wait_for


@contextlib.contextmanager
def local_endpoint(container):
    """A boto3 client of SageMaker's runtime API in front of a container. The image leaves that command out: the binary beside it has it."""
    port = free_port()
    process = subprocess.Popen(
        [os.environ["FORETYPE_BINARY"], "local-endpoint", "--port", str(port), "--target", f"http://127.0.0.1:{container.port}"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for("the endpoint", lambda: process.poll() is None and listens(port))
        yield boto3.client(
            "sagemaker-runtime",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(retries={"mode": "standard"}),
        )
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def runtime(demo):
    """Only endpoint_url is not as it is against AWS; the rest is what any AWS client finds in its environment."""
    with local_endpoint(demo) as client:
        yield client


def test_the_paper_cases_client(runtime):
    endpoint_name = "foretype"
    data = {"input": "amazon", "tolerance": "off"}

    response = runtime.invoke_endpoint(EndpointName=endpoint_name, ContentType="application/json", Body=json.dumps(data))
    result = json.loads(response["Body"].read())

    assert response["ContentType"] == "application/json"
    assert all(found["text"].startswith("amazon") for found in result["suggestions"])


def test_attributes_go_there_and_back(runtime):
    response = runtime.invoke_endpoint(
        EndpointName="foretype", ContentType="application/json", Body=b'{"input": "a"}', CustomAttributes="trace=1"
    )
    assert response["CustomAttributes"] == "trace=1"


def test_sessions_are_opened_and_used(runtime):
    opened = runtime.invoke_endpoint(
        EndpointName="foretype", ContentType="application/json", Body=b'{"input": "a"}', SessionId="NEW_SESSION"
    )
    session = opened["NewSessionId"].split(";")[0]
    again = runtime.invoke_endpoint(
        EndpointName="foretype", ContentType="application/json", Body=b'{"input": "ab"}', SessionId=session
    )
    assert again["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_response_stream_comes_in_parts(runtime):
    body = {"inputs": "wireless", "parameters": {"max_new_tokens": 40, "do_sample": True, "temperature": 2.0}, "stream": True}
    response = runtime.invoke_endpoint_with_response_stream(
        EndpointName="foretype", ContentType="application/json", Accept="application/jsonlines", Body=json.dumps(body)
    )
    assert response["ContentType"] == "application/jsonlines"
    parts = [event["PayloadPart"]["Bytes"] for event in response["Body"]]
    lines = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert lines[-1]["details"]["finish_reason"]
    assert "".join(line["token"]["text"] for line in lines) == lines[-1]["generated_text"]


@pytest.mark.parametrize("operation", ["invoke_endpoint", "invoke_endpoint_with_response_stream"])
def test_a_containers_error_is_a_model_error(runtime, operation):
    with pytest.raises(ClientError) as raised:
        getattr(runtime, operation)(EndpointName="foretype", ContentType="application/json", Body=b'{"input": 1}')
    assert raised.value.response["Error"]["Code"] == "ModelError"
    assert raised.value.response["OriginalStatusCode"] == 400
    assert "input" in raised.value.response["OriginalMessage"]


def test_deploy_py_asks_it(runtime):
    words = ["python3", str(ROOT / "deploy/deploy.py")]
    import sys

    words[0] = sys.executable
    url = runtime.meta.endpoint_url
    environment = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    for command in ("invoke", "stream"):
        found = subprocess.run(
            [*words, command, "foretype", "wireless char", "--endpoint-url", url], capture_output=True, text=True, env=environment
        )
        assert found.returncode == 0, found.stderr
        assert "wireless char" in found.stdout


def test_models_by_name_through_the_endpoint():
    with Container(at="/opt/ml/models/terms/model", env={"SAGEMAKER_MULTI_MODEL": "true"}) as container:
        container.healthy()
        assert container.invoke({"model_name": "terms", "url": "/opt/ml/models/terms/model"}, path="/models").status == 200
        with local_endpoint(container) as client:
            response = client.invoke_endpoint(
                EndpointName="many", TargetModel="terms.tar.gz", ContentType="application/json", Body=b'{"input": "wire"}'
            )
            assert json.loads(response["Body"].read())["suggestions"]


def test_the_image_names_the_commands_that_it_leaves_out():
    found = docker("run", "--rm", IMAGE, "local-endpoint", "--port", "0", check=False)
    assert found.returncode == 1
    assert "leaves out the commands evaluate and local-endpoint" in found.stderr
