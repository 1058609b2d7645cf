"""What the tests of `deploy` share: an AWS that is a stand-in, and the program in this process."""

import os
import sys
import time
from pathlib import Path

import boto3
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

from standin import REGION, SageMaker  # noqa: E402

from deploy import cli  # noqa: E402

ROLE = "arn:aws:iam::123456789012:role/service-role/foretype"
DATA = "s3://bucket/model.tar.gz"
IMAGE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/foretype:1"


@pytest.fixture(scope="session")
def session():
    """One for all tests: what boto3 reads from its files takes longer than most of them."""
    return boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name=REGION)


@pytest.fixture
def aws(monkeypatch, session):
    """SageMaker without anything in it."""
    made = SageMaker()
    for service in made.services:
        session.events.register(f"before-send.{service}", made.send, unique_id=f"standin-{service}")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
    # boto3 waits before it asks again what was refused for being too much.
    monkeypatch.setattr(time, "sleep", lambda _: None)
    yield made
    for service in made.services:
        session.events.unregister(f"before-send.{service}", unique_id=f"standin-{service}")


def deploy(*words):
    """The program; ends with SystemExit and a sentence where something is wrong."""
    waits = words[0] not in ("autoscale", "invoke", "stream", "local")
    cli.main([*words, "--poll-seconds", "0"] if waits else list(words))


def refused(*words):
    """The sentence with which the program ends."""
    with pytest.raises(SystemExit) as ended:
        deploy(*words)
    assert isinstance(ended.value.code, str) and ended.value.code.startswith("deploy: "), ended.value.code
    return ended.value.code


def create(*words, name="terms"):
    deploy("create", name, "--image", IMAGE, "--role", ROLE, "--model-data", DATA, *words)


def endpoint(aws, name="terms"):
    """What lives: the endpoint, its configuration, its first variant's model."""
    found = aws.endpoints[name]
    config = aws.configs[found["EndpointConfigName"]]
    return found, config, aws.models.get(config["ProductionVariants"][0].get("ModelName"))


def pytest_runtest_logreport(report):
    """`make test` lists what was left out (tests/lib/require.sh)."""
    path = os.environ.get("FORETYPE_SKIPPED")
    if report.skipped and path:
        with open(path, "a") as file:
            file.write(f"deploy: {report.nodeid.split('::')[1]}: {report.longrepr[2]}\n")
