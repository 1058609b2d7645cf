"""deploy/kubernetes: every overlay is valid for three versions of Kubernetes, and says what the server needs."""

import re
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lib"), str(ROOT / "bench")]

import day  # noqa: E402
import manifest  # noqa: E402

KUBERNETES = ROOT / "deploy/kubernetes"
NAMES = sorted(folder.name for folder in manifest.OVERLAYS.iterdir())
# The newest that kubernetes-validate knows, and the oldest that is still maintained beside it.
VERSIONS = ["1.35", "1.36", "1.37"]
# What operators define has no schema in Kubernetes: the group and version that they serve, and fields that they need.
OTHERS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"selector", "endpoints"},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"groups"},
    ("keda.sh/v1alpha1", "ScaledObject"): {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "triggers"},
}


@pytest.fixture(scope="session")
def overlays():
    return {name: manifest.objects(name) for name in NAMES}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_overlay_is_valid(overlays, name, version):
    for found in overlays[name]:
        if fields := OTHERS.get((found["apiVersion"], found["kind"])):
            assert fields <= found["spec"].keys(), found
        else:
            kubernetes_validate.validate(found, version, strict=True)


def test_a_wrong_field_is_found(overlays):
    deployment = manifest.only(overlays["cpu"], "Deployment")
    broken = yaml.safe_load(yaml.safe_dump(deployment))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_the_overlays_are_what_their_names_say(overlays):
    kinds = {name: {found["kind"] for found in overlays[name]} for name in NAMES}
    base = {"ServiceAccount", "ConfigMap", "Service", "Deployment", "PodDisruptionBudget"}
    watched = base | {"ServiceMonitor", "PrometheusRule", "NetworkPolicy"}
    assert kinds == {
        "cpu": base,
        "gpu": base,
        "cpu-adapter": watched | {"HorizontalPodAutoscaler"},
        "cpu-keda": watched | {"ScaledObject"},
    }
    for name in NAMES:
        spec = manifest.only(overlays[name], "Deployment")["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert container["resources"]["limits"].get("nvidia.com/gpu") == ("1" if name == "gpu" else None)
        # Who scales sets the number; two that do would undo each other's.
        assert ("replicas" in spec) == (name in ("cpu", "gpu"))


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_ends_after_its_answers(overlays, name):
    found = manifest.container_of(overlays[name])
    # docs/operations.md: nginx 7 s, the server 20 s and a little, together less than 30 s.
    assert found.grace_s >= found.pre_stop_s + 30
    startup, liveness = found.probes["startup"], found.probes["liveness"]
    assert startup.period_s * startup.failures >= 600, "a model that is downloaded and built has less time than that"
    assert liveness.period_s * liveness.failures > 120, "the server has no time to heal by itself"


def test_variables_are_those_of_the_server(overlays):
    """A name FORETYPE_... that there isn't would do nothing, without a word."""
    known = set(re.findall(r"`([A-Z0-9_]+)`", (ROOT / "docs/tuning.md").read_text())) | {"FORETYPE_CACHE"}
    for name in NAMES:
        names = {key for key in manifest.container_of(overlays[name]).environment if key.startswith("FORETYPE_")}
        assert names <= known, names - known
        # Otherwise the Service `foretype` is FORETYPE_PORT=tcp://..., which is the variable of --port.
        pod = manifest.only(overlays[name], "Deployment")["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is False


def test_metrics_are_those_of_the_server(overlays):
    told = re.findall(r"\| `(foretype_\w+)` \|", (ROOT / "docs/operations.md").read_text())
    known = {name + end for name in told for end in ("", "_bucket")}
    texts = [path.read_text() for path in (KUBERNETES / "components").rglob("*.yaml")]
    asked = {name for text in texts for name in re.findall(r"\bforetype_\w+", text)}
    assert {"foretype_queue_seconds_bucket", "foretype_engine_healthy"} <= asked
    assert asked - known == {"foretype_queue_wait_p90"}, "only the adapter's own metric is none of the server's"
    adapter = KUBERNETES / "components/autoscaling-adapter"
    values = yaml.safe_load((adapter / "adapter-values.yaml").read_text())
    autoscaler = manifest.only(overlays["cpu-adapter"], "HorizontalPodAutoscaler")["spec"]
    # The cores are busy with lookahead whenever somebody types.
    (metric,) = (metric["object"] for metric in autoscaler["metrics"])
    assert metric["metric"]["name"] == values["rules"]["custom"][0]["name"]["as"]
    services = [found["metadata"]["name"] for found in overlays["cpu-adapter"] if found["kind"] == "Service"]
    assert metric["describedObject"]["name"] in services
    # Both ways to scale have the same bounds and the same thresholds, and they are what bench/day.py simulates.
    keda = manifest.only(overlays["cpu-keda"], "ScaledObject")["spec"]
    (trigger,) = keda["triggers"]
    seconds = float(trigger["metadata"]["threshold"])
    assert metric["target"]["value"] == f"{seconds * 1000:.0f}m"
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (keda["minReplicaCount"], keda["maxReplicaCount"])
    assert (seconds, keda["minReplicaCount"]) == (day.WAIT_P90_S, day.LEAST)
    down = autoscaler["behavior"]["scaleDown"]
    assert (down["stabilizationWindowSeconds"], down["policies"][0]["periodSeconds"]) == (day.QUIET_S, day.DOWN_EVERY_S)
    assert autoscaler["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]


def test_names_in_selectors_are_there(overlays):
    for name in NAMES:
        labels = manifest.only(overlays[name], "Deployment")["spec"]["template"]["metadata"]["labels"]
        for found in overlays[name]:
            selector = found["spec"].get("selector", {}) if found["kind"] in ("Service", "PodDisruptionBudget") else {}
            wanted = selector.get("matchLabels", selector)
            assert wanted.items() <= labels.items(), found
        for found in overlays[name]:
            if found["kind"] == "ServiceMonitor":
                wanted = found["spec"]["selector"]["matchLabels"].items()
                services = [each["metadata"] for each in overlays[name] if each["kind"] == "Service"]
                assert [each["name"] for each in services if wanted <= each["labels"].items()] == ["foretype-pods"]


def test_the_container_of_a_manifest_becomes_arguments(overlays):
    found = manifest.container_of(overlays["cpu"])
    assert found.arguments == ["serve"]
    assert found.environment["FORETYPE_MODEL"].startswith("s3://")
    options = " ".join(found.options)
    for wanted in (
        "--user 10001:10001 --group-add 10001",
        "--security-opt no-new-privileges --read-only --cap-drop ALL",
        "--tmpfs /tmp:size=268435456,mode=2775,gid=10001,exec --tmpfs /cache:size=21474836480,mode=2775,gid=10001,exec",
        "--memory 2147483648",
    ):
        assert wanted in options, options
    assert found.probes["readiness"] == manifest.Probe("/ping", 8080, 2, 2, 2)
    assert manifest.container_of(overlays["gpu"]).environment["FORETYPE_BACKEND"] == "tensorrt"
    # What it doesn't know, it doesn't leave out.
    broken = yaml.safe_load(yaml.safe_dump(overlays["cpu"]))
    manifest.only(broken, "Deployment")["spec"]["template"]["spec"]["containers"][0]["command"] = ["sh"]
    with pytest.raises(AssertionError, match="command"):
        manifest.container_of(broken)
