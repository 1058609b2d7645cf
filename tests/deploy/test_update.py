"""`update` keeps everything that isn't named (D1), shifts traffic as it is told, and undoes what fails."""

import copy

import pytest
from conftest import IMAGE, create, deploy, endpoint, refused

OTHER = IMAGE.replace(":1", ":2")
EVERYTHING = [
    "--instance-type",
    "ml.g5.xlarge",
    "--instances",
    "3",
    "--env",
    "FORETYPE_BEAMS=8",
    "--env",
    "FORETYPE_THREADS=2",
    "--subnet",
    "subnet-1",
    "--security-group",
    "sg-1",
    "--network-isolation",
    "--volume-kms",
    "alias/disk",
    "--capture",
    "s3://bucket/seen",
    "--capture-percent",
    "5",
    "--capture-kms",
    "alias/seen",
    "--container-metrics",
    "--tag",
    "team=search",
    "--tag",
    "cost=1",
    "--tag",
    "a=b",
    "--startup-timeout",
    "900",
    "--download-timeout",
    "1200",
    "--detailed-observability",
]


def kept(aws, changed=()):
    """The configuration and the model without what has another name after every update."""
    _, config, model = copy.deepcopy(endpoint(aws))
    del config["EndpointConfigName"], config["ProductionVariants"][0]["ModelName"], model["ModelName"]
    for key in changed:
        del model["PrimaryContainer"][key]
    return config, model


def test_an_endpoint_of_four_gpu_instances_survives_an_update_of_the_image(aws):
    create(*EVERYTHING)
    # Scaled since: the configuration says 3.
    aws.endpoints["terms"]["ProductionVariants"][0] |= {"DesiredInstanceCount": 4, "CurrentInstanceCount": 4}
    config, model = kept(aws, ["Image"])
    deploy("update", "terms", "--image", OTHER)
    after_config, after_model = kept(aws, ["Image"])
    assert endpoint(aws)[2]["PrimaryContainer"]["Image"] == OTHER
    assert after_model == model
    config["ProductionVariants"][0]["InitialInstanceCount"] = 4
    assert after_config == config
    assert aws.endpoints["terms"]["ProductionVariants"][0]["DesiredInstanceCount"] == 4
    (request,) = aws.asked("UpdateEndpoint")
    assert request["RetainAllVariantProperties"] is True and "ExcludeRetainedVariantProperties" not in request
    made = aws.asked("CreateModel")[1]
    tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
    assert tags == {"foretype:endpoint": "terms", "team": "search", "cost": "1", "a": "b"}


def test_what_is_named_changes(aws):
    create(*EVERYTHING)
    deploy(
        "update", "terms", "--instances", "6", "--env", "FORETYPE_BEAMS=16", "--env-remove", "FORETYPE_THREADS", "--capture-percent", "0"
    )
    (request,) = aws.asked("UpdateEndpoint")
    assert [one["VariantPropertyType"] for one in request["ExcludeRetainedVariantProperties"]] == [
        "DesiredInstanceCount",
        "DataCaptureConfig",
    ]
    found, config, model = endpoint(aws)
    assert found["ProductionVariants"][0]["DesiredInstanceCount"] == 6
    assert model["PrimaryContainer"]["Environment"] == {"FORETYPE_BEAMS": "16"}
    assert config["DataCaptureConfig"]["InitialSamplingPercentage"] == 0
    assert config["DataCaptureConfig"]["KmsKeyId"] == "alias/seen"


def test_a_change_of_the_instances_alone_keeps_the_model(aws):
    create()
    before = endpoint(aws)[1]["ProductionVariants"][0]["ModelName"]
    deploy("update", "terms", "--instances", "2")
    assert endpoint(aws)[1]["ProductionVariants"][0]["ModelName"] == before and len(aws.models) == 1


def test_another_instance_type_brings_another_machine_image(aws):
    create("--instance-type", "ml.g5.xlarge")
    deploy("update", "terms", "--instance-type", "ml.c7i.xlarge")
    assert "InferenceAmiVersion" not in endpoint(aws)[1]["ProductionVariants"][0]
    deploy("update", "terms", "--instance-type", "ml.g6.xlarge")
    assert endpoint(aws)[1]["ProductionVariants"][0]["InferenceAmiVersion"].endswith("gpu-4-1")


def test_a_variant_without_a_machine_image_stays_without(aws):
    create("--instance-type", "ml.g5.xlarge", "--ami-version", "none")
    deploy("update", "terms", "--image", OTHER)
    assert "InferenceAmiVersion" not in endpoint(aws)[1]["ProductionVariants"][0]


def test_options_can_be_taken_back(aws):
    create(*EVERYTHING)
    deploy("update", "terms", "--no-vpc", "--no-network-isolation", "--volume-kms", "none", "--capture", "none", "--no-container-metrics")
    _, config, model = endpoint(aws)
    assert not {"VpcConfig", "EnableNetworkIsolation"} & set(model) and not {"KmsKeyId", "DataCaptureConfig"} & set(config)
    assert "ContainerMetricsConfig" not in model["PrimaryContainer"]


def test_an_update_that_names_nothing_new_makes_nothing(aws):
    create()
    aws.calls.clear()
    assert "nothing was named" in refused("update", "terms", "--image", IMAGE)
    assert aws.writes() == []


def test_a_scaled_endpoints_type_is_not_changed(aws):
    create()
    deploy("autoscale", "terms")
    said = refused("update", "terms", "--instance-type", "ml.c7i.2xlarge")
    assert "autoscale terms --variant AllTraffic --remove" in said and "ml.c7i.xlarge to ml.c7i.2xlarge" in said
    assert len(aws.configs) == 1
    deploy("add-variant", "terms", "B", "--variant", "AllTraffic", "--instances", "2")
    assert "it can't be removed" in refused("remove-variant", "terms", "AllTraffic")
    deploy("remove-variant", "terms", "B")


def test_a_dry_run_reads_and_changes_nothing(aws, capsys):
    create()
    aws.calls.clear()
    capsys.readouterr()
    deploy("update", "terms", "--image", OTHER, "--dry-run")
    said = capsys.readouterr()
    assert aws.writes() == [] and OTHER in said.out and "RetainAllVariantProperties" in said.out
    assert "nothing was changed" in said.err and "in service" not in said.err + said.out


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ([], {"BlueGreenUpdatePolicy": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 60}}),
        (
            ["--canary", "10%"],
            {
                "BlueGreenUpdatePolicy": {
                    "Type": "CANARY",
                    "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
                    "WaitIntervalInSeconds": 60,
                }
            },
        ),
        (
            ["--linear", "1", "--bake-seconds", "30"],
            {
                "BlueGreenUpdatePolicy": {
                    "Type": "LINEAR",
                    "LinearStepSize": {"Type": "INSTANCE_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": 30,
                }
            },
        ),
    ],
)
def test_blue_and_green(aws, words, policy):
    create()
    deploy("update", "terms", "--image", OTHER, "--rollback-alarm", "slow", "--rollback-alarm", "failing", *words)
    (request,) = aws.asked("UpdateEndpoint")
    asked = request["DeploymentConfig"]
    assert asked["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == policy["BlueGreenUpdatePolicy"]
    assert asked["AutoRollbackConfiguration"] == {"Alarms": [{"AlarmName": "slow"}, {"AlarmName": "failing"}]}


def test_rolling_and_what_is_kept_of_it(aws):
    create("--instances", "4")
    deploy("update", "terms", "--image", OTHER, "--rolling", "25%", "--rollback-alarm", "slow")
    rolling = aws.asked("UpdateEndpoint")[0]["DeploymentConfig"]
    assert rolling["RollingUpdatePolicy"]["MaximumBatchSize"] == {"Type": "CAPACITY_PERCENT", "Value": 25}
    deploy("update", "terms", "--image", IMAGE)
    assert aws.asked("UpdateEndpoint")[1]["DeploymentConfig"] == rolling
    deploy("update", "terms", "--image", OTHER, "--all-at-once", "--rollback-alarm", "none")
    assert "AutoRollbackConfiguration" not in aws.asked("UpdateEndpoint")[2]["DeploymentConfig"]


@pytest.mark.parametrize(
    ("words", "says"), [(["--canary", "80%"], "1% to 50%"), (["--rolling", "2%"], "5% to 50%"), (["--linear", "x"], "such as 1 or 10%")]
)
def test_sizes_that_are_none(aws, words, says):
    create()
    assert says in refused("update", "terms", "--image", OTHER, *words)
    assert len(aws.models) == 1


def test_an_alarm_rolls_back_and_leaves_nothing(aws):
    create()
    before = aws.endpoints["terms"]["EndpointConfigName"]
    aws.fate = "RolledBack"
    said = refused("update", "terms", "--image", OTHER, "--canary", "10%", "--rollback-alarm", "slow")
    assert "as before" in said and "ALARM state" in said
    assert list(aws.configs) == [before] and len(aws.models) == 1


def test_an_endpoint_that_failed_is_put_back(aws):
    create("--instances", "3")
    before = aws.endpoints["terms"]["EndpointConfigName"]
    aws.fate = "Failed"
    assert "ping health check" in refused("update", "terms", "--image", OTHER)
    assert aws.endpoints["terms"]["EndpointConfigName"] == before and list(aws.configs) == [before]
    assert aws.asked("UpdateEndpoint")[1]["RetainAllVariantProperties"] is True


def test_a_refused_update_leaves_nothing(aws):
    create()
    aws.refuse(
        "UpdateEndpoint", "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 4 Instances", "ResourceLimitExceeded"
    )
    said = refused("update", "terms", "--image", OTHER)
    assert "ResourceLimitExceeded" in said and "service limit" in said
    assert len(aws.configs) == 1 and len(aws.models) == 1


def test_an_endpoint_that_moves_is_left_alone(aws):
    create()
    aws.endpoints["terms"]["states"] = ["Updating", "InService"]
    assert "it can be changed when it is InService" in refused("update", "terms", "--image", OTHER)


def test_a_mistyped_name_is_told_with_its_likes(aws):
    create(name="terms-of-patents")
    assert "there is: terms-of-patents" in refused("update", "terms-of-patent", "--image", OTHER)


# ---- variants


def test_a_second_variant_and_its_weights(aws):
    create("--instances", "4")
    deploy("add-variant", "terms", "B", "--image", OTHER, "--weight", "0.25", "--instances", "2")
    _, config, _ = endpoint(aws)
    first, second = config["ProductionVariants"]
    assert (first["InitialInstanceCount"], second["InitialInstanceCount"]) == (4, 2)
    assert (second["VariantName"], second["InitialVariantWeight"]) == ("B", 0.25)
    assert aws.models[second["ModelName"]]["PrimaryContainer"]["Image"] == OTHER
    assert "DeploymentConfig" not in aws.asked("UpdateEndpoint")[0]
    deploy("weights", "terms", "AllTraffic=1", "B=3")
    assert [variant["DesiredWeight"] for variant in aws.endpoints["terms"]["ProductionVariants"]] == [1, 3]
    # An update of one keeps the other, and asks which is meant.
    assert "--variant names" in refused("update", "terms", "--image", OTHER)
    deploy("update", "terms", "--variant", "AllTraffic", "--env", "FORETYPE_BEAMS=4")
    _, config, _ = endpoint(aws)
    assert [variant["InitialVariantWeight"] for variant in config["ProductionVariants"]] == [1, 3]
    assert [variant["InitialInstanceCount"] for variant in config["ProductionVariants"]] == [4, 2]
    assert config["ProductionVariants"][1]["ModelName"] == second["ModelName"]
    assert "rolls only endpoints of one variant" in refused("update", "terms", "--variant", "B", "--image", IMAGE, "--rolling", "1")
    deploy("remove-variant", "terms", "AllTraffic")
    assert [variant["VariantName"] for variant in endpoint(aws)[1]["ProductionVariants"]] == ["B"]
    assert "only production variant" in refused("remove-variant", "terms", "B")


def test_a_shadow(aws):
    create("--instances", "2")
    deploy("add-variant", "terms", "next", "--shadow", "--image", OTHER)
    _, config, _ = endpoint(aws)
    assert [variant["VariantName"] for variant in config["ShadowProductionVariants"]] == ["next"]
    assert "exactly one production variant" in refused("add-variant", "terms", "third", "--image", IMAGE)
    deploy("remove-variant", "terms", "next")
    assert "ShadowProductionVariants" not in endpoint(aws)[1]
