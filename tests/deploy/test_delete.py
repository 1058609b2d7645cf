"""`delete` takes what provably belongs to the endpoint, and nothing where SageMaker refuses (D2, D3)."""

import pytest
from conftest import IMAGE, ROLE, create, deploy, refused


def test_an_endpoints_end(aws, capsys):
    create("--tag", "a=1", "--tag", "b=2", "--tag", "c=3")
    deploy("update", "terms", "--image", IMAGE.replace(":1", ":2"))
    deploy("autoscale", "terms")
    create(name="other")
    deploy("delete", "terms")
    assert list(aws.endpoints) == ["other"] and len(aws.configs) == 1 and len(aws.models) == 1 and not aws.targets
    order = [name for name in aws.writes() if name.startswith(("Delete", "Deregister"))]
    assert order == ["DeleteEndpoint", "DeregisterScalableTarget", *["DeleteEndpointConfig"] * 2, *["DeleteModel"] * 2]
    assert "terms is gone" in capsys.readouterr().err


@pytest.mark.parametrize("code", ["AccessDeniedException", "ValidationException", "ThrottlingException"])
def test_a_refused_deletion_removes_nothing(aws, code):
    create()
    deploy("autoscale", "terms")
    message = 'Cannot update in-progress endpoint "arn:aws:sagemaker:eu-central-1:123456789012:endpoint/terms".'
    aws.refuse("DeleteEndpoint", message, code)
    aws.calls.clear()
    said = refused("delete", "terms")
    assert message in said and said.endswith("Nothing was deleted") and "is gone" not in said
    assert set(aws.writes()) == {"DeleteEndpoint"}
    assert aws.endpoints and aws.configs and aws.models and aws.targets


@pytest.mark.parametrize(
    "operation", ["ListTags", "ListModels", "ListEndpointConfigs", "ListEndpoints", "ListInferenceComponents", "DescribeEndpoint"]
)
def test_what_can_not_be_asked_is_not_deleted(aws, operation):
    create()
    aws.refuse(operation, "User: u is not authorized", "AccessDeniedException")
    aws.calls.clear()
    assert "AccessDeniedException" in refused("delete", "terms")
    assert aws.writes() == []


def test_a_mistyped_name_is_an_error(aws):
    create(name="terms")
    aws.calls.clear()
    said = refused("delete", "term")
    assert "no endpoint called term here; there is: terms" in said and "is gone" not in said
    assert aws.writes() == []
    assert "no endpoint called other" in refused("delete", "other")


def test_names_with_sixty_letters_in_common(aws):
    first, second = "a" * 60 + "-1", "a" * 60 + "-2"
    create(name=first)
    create(name=second)
    assert all(len(name) <= 63 for name in [*aws.models, *aws.configs])
    deploy("delete", first)
    assert list(aws.endpoints) == [second] and len(aws.models) == 1 and len(aws.configs) == 1
    deploy("update", second, "--instances", "2")


def test_what_only_looks_like_ours_stays(aws):
    """A name proves nothing: neither one of our kind without a tag, nor with another endpoint's."""
    create()
    (mine,) = aws.models
    like = mine[:-4] + "ffff"
    for name, tags in [(like, []), (mine[:-4] + "eeee", [{"Key": "foretype:endpoint", "Value": "terms2"}])]:
        aws.create_model({"ModelName": name, "ExecutionRoleArn": ROLE, "PrimaryContainer": {"Image": IMAGE}, "Tags": tags})
    deploy("delete", "terms")
    assert set(aws.models) == {like, mine[:-4] + "eeee"}


def test_what_another_endpoint_uses_stays(aws, capsys):
    create()
    (config,), (model,) = aws.configs, aws.models
    aws.create_endpoint({"EndpointName": "by-hand", "EndpointConfigName": config})
    deploy("delete", "terms")
    assert list(aws.configs) == [config] and list(aws.models) == [model] and list(aws.endpoints) == ["by-hand"]
    assert "another endpoint uses it" in capsys.readouterr().err


def test_an_endpoint_of_others_is_refused(aws):
    create()
    (config,) = aws.configs
    aws.create_endpoint({"EndpointName": "by-hand", "EndpointConfigName": config})
    aws.calls.clear()
    assert "wasn't made here" in refused("delete", "by-hand")
    assert aws.writes() == []
    deploy("delete", "by-hand", "--untagged")
    assert list(aws.endpoints) == ["terms"] and aws.configs


def test_an_endpoint_of_cloudformation_is_refused(aws):
    create()
    aws.tags[aws.arn("endpoint", "terms")].append({"Key": "aws:cloudformation:stack-name", "Value": "search"})
    assert "CloudFormation stack search" in refused("delete", "terms", "--untagged")
    assert aws.endpoints


def test_an_interrupted_deletion_goes_on(aws):
    create()
    aws.refuse("DeleteModel", "Rate exceeded", "LimitExceeded")
    said = refused("delete", "terms")
    assert "these are left" in said and "Rate exceeded" in said and not aws.endpoints and not aws.configs
    aws.refusals.clear()
    deploy("delete", "terms")
    assert not aws.models
    assert "no endpoint called terms" in refused("delete", "terms")


def test_a_dry_run_of_a_deletion_names_what_would_go(aws, capsys):
    create()
    aws.calls.clear()
    capsys.readouterr()
    deploy("delete", "terms", "--dry-run")
    said = capsys.readouterr()
    assert aws.writes() == [] and next(iter(aws.models)) in said.out and "delete_endpoint_config" in said.out
    assert "is gone" not in said.err
