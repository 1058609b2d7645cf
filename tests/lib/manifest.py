"""The container of a Kubernetes manifest as arguments of `docker run`, so that a test runs what a cluster would."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ROOT / "deploy/kubernetes/overlays"


def objects(overlay):
    """What an overlay makes, as Kubernetes would get it."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(OVERLAYS / overlay)], check=True, capture_output=True, text=True
    )
    return list(yaml.safe_load_all(built.stdout))


def only(found, kind):
    """The one object of a kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


@dataclass
class Probe:
    """Asks until so many answers in a row were wrong."""

    path: str
    port: int
    period_s: float
    timeout_s: float
    failures: int


@dataclass
class ContainerOf:
    """The one container of a Deployment."""

    arguments: list[str]
    environment: dict[str, str]
    options: list[str]
    probes: dict[str, Probe]
    pre_stop_s: int
    grace_s: int


def container_of(found):
    """Whatever this doesn't know is an error: a test must not run less than what the manifest says."""
    pod = only(found, "Deployment")["spec"]["template"]["spec"]
    settings = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    (container,) = pod["containers"]
    known = {"name", "image", "args", "env", "envFrom", "ports", "startupProbe", "readinessProbe", "livenessProbe"}
    known |= {"lifecycle", "securityContext", "volumeMounts", "resources"}
    assert container.keys() <= known, container.keys() - known
    environment = {}
    for source in container.get("envFrom", []):
        environment |= settings[source["configMapRef"]["name"]]
    environment |= {each["name"]: each["value"] for each in container.get("env", [])}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    options = [*security(pod["securityContext"] | container["securityContext"]), *volumes(pod, container)]
    limits = container.get("resources", {}).get("limits", {})
    options += ["--memory", str(size(limits["memory"]))] if "memory" in limits else []
    return ContainerOf(
        arguments=container["args"],
        environment=environment,
        options=options,
        probes={name: probe(container[f"{name}Probe"], ports) for name in ("startup", "readiness", "liveness")},
        pre_stop_s=container["lifecycle"]["preStop"]["sleep"]["seconds"],
        grace_s=pod["terminationGracePeriodSeconds"],
    )


def security(context):
    context = dict(context)
    user, group = context.pop("runAsUser"), context.pop("runAsGroup")
    options = ["--user", f"{user}:{group}", "--group-add", str(context.pop("fsGroup"))]
    assert context.pop("runAsNonRoot") and user != 0
    # Docker's default profile is what RuntimeDefault means.
    assert context.pop("seccompProfile") == {"type": "RuntimeDefault"}
    if not context.pop("allowPrivilegeEscalation"):
        options += ["--security-opt", "no-new-privileges"]
    if context.pop("readOnlyRootFilesystem"):
        options += ["--read-only"]
    options += [word for right in context.pop("capabilities")["drop"] for word in ("--cap-drop", right)]
    assert not context, f"unknown parts of a security context: {context}"
    return options


def volumes(pod, container):
    """Empty folders are memory here, which the pod's group may write to."""
    by_name = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    group = pod["securityContext"]["fsGroup"]
    for mount in container["volumeMounts"]:
        assert mount.keys() == {"name", "mountPath"}, mount
        folder = by_name[mount["name"]]
        yield from ("--tmpfs", f"{mount['mountPath']}:size={size(folder['sizeLimit'])},mode=2775,gid={group},exec")


def probe(found, ports):
    found = dict(found)
    get = found.pop("httpGet")
    made = Probe(
        path=get["path"],
        port=ports[get["port"]],
        period_s=found.pop("periodSeconds"),
        timeout_s=found.pop("timeoutSeconds"),
        failures=found.pop("failureThreshold"),
    )
    assert not found, f"unknown parts of a probe: {found}"
    return made


def size(text):
    """Bytes of a quantity such as 256Mi."""
    return int(text[:-2]) << {"Ki": 10, "Mi": 20, "Gi": 30}[text[-2:]]
