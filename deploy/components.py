"""Inference components: models that share the instances of an endpoint which was made with `create --components`."""

import time

from deploy import names, requests
from deploy.aws import Refused, Stop, say
from deploy.snapshot import Snapshot

BUSY = ("Creating", "Updating", "Deleting")


def compute(options, before=None):
    made = dict(before or {})
    named = {
        "MinMemoryRequiredInMb": options.memory_mib,
        "NumberOfCpuCoresRequired": options.cpus,
        "NumberOfAcceleratorDevicesRequired": options.accelerators,
    }
    made |= {key: value for key, value in named.items() if value is not None}
    if "MinMemoryRequiredInMb" not in made:
        raise Stop("--memory-mib is missing: what a copy of the component needs, caches included")
    return made


def specification(options, before=None):
    """Of a new component, or of one as SageMaker described it."""
    before = before or {}
    container = {}
    found = before.get("Container", {})
    if found:
        container = {"Image": found.get("DeployedImage", {}).get("SpecifiedImage") or found.get("Image")}
        container |= {key: found[key] for key in ("ArtifactUrl", "Environment", "ContainerMetricsConfig") if found.get(key)}
    if options.image is not None:
        container["Image"] = options.image
    if options.model_data is not None:
        if not options.model_data.startswith("s3://") or not options.model_data.endswith(".tar.gz"):
            raise Stop(f"a component's model is s3://BUCKET/....tar.gz, not {options.model_data!r}")
        container["ArtifactUrl"] = options.model_data
    if options.env or options.env_remove:
        container["Environment"] = requests.environment(container, options)
    if options.container_metrics:
        container["ContainerMetricsConfig"] = {"MetricsEndpoints": [{"MetricsEndpointPath": "/metrics"}]}
    if not container.get("Image"):
        raise Stop("--image is missing: the URI that build_and_push.sh printed")
    startup = dict(before.get("StartupParameters", {}))
    for key, value in [
        ("ModelDataDownloadTimeoutInSeconds", options.download_timeout),
        ("ContainerStartupHealthCheckTimeoutInSeconds", options.startup_timeout),
    ]:
        if value is not None:
            startup[key] = value
    made = {"Container": container, "ComputeResourceRequirements": compute(options, before.get("ComputeResourceRequirements"))}
    return made | ({"StartupParameters": startup} if startup else {})


def wait(aws, name, minutes, until_gone=False):
    started, last = time.monotonic(), None
    while True:
        found = aws.find("sagemaker", "describe_inference_component", InferenceComponentName=name)
        status = found["InferenceComponentStatus"] if found else None
        if status != last:
            say(f"{time.monotonic() - started:6.0f} s  {name}: {status or 'gone'}")
            last = status
        if status not in BUSY:
            if status in (None, "InService") and until_gone == (status is None):
                return
            reason = (found or {}).get("FailureReason", "no reason given")
            raise Stop(f"the component {name} is {status or 'gone'}: {reason}")
        if time.monotonic() - started > minutes * 60:
            raise Stop(f"the component {name} is still {status} after {minutes:g} minutes")
        time.sleep(aws.poll_seconds)


def create(aws, options):
    request = {
        "InferenceComponentName": names.checked(options.component, "a component's name"),
        "EndpointName": names.checked(options.name),
        "VariantName": options.variant or names.VARIANT,
        "Specification": specification(options),
        "RuntimeConfig": {"CopyCount": 1 if options.copies is None else options.copies},
        "Tags": names.tags(options.name, options.tag or []),
    }
    aws.call("sagemaker", "create_inference_component", **request)
    if not aws.dry_run:
        wait(aws, options.component, options.wait_minutes)
    say("dry run: nothing was made" if aws.dry_run else f"{options.component} is in service on {options.name}")


def described(aws, options):
    found = aws.find("sagemaker", "describe_inference_component", InferenceComponentName=options.component)
    if found is None or found.get("EndpointName") != options.name:
        raise Stop(f"{options.name} has no inference component called {options.component}. Nothing was changed")
    return found


def update(aws, options):
    found = described(aws, options)
    request = {"InferenceComponentName": options.component}
    keys = ("image", "model_data", "env", "env_remove", "memory_mib", "cpus", "accelerators", "container_metrics")
    keys += ("startup_timeout", "download_timeout")
    if any(getattr(options, key) is not None for key in keys):
        request["Specification"] = specification(options, found["Specification"])
    if options.copies is not None:
        request["RuntimeConfig"] = {"CopyCount": options.copies}
    if len(request) == 1:
        raise Stop("nothing was named that is to change")
    aws.call("sagemaker", "update_inference_component", **request)
    if not aws.dry_run:
        wait(aws, options.component, options.wait_minutes)
    say("dry run: nothing was changed" if aws.dry_run else f"{options.component} is in service")


def delete(aws, options):
    found = described(aws, options)
    if aws.tags(found["InferenceComponentArn"]).get(names.OWNER) != options.name:
        raise Stop(f"{options.component} has no tag {names.OWNER}={options.name}, so it wasn't made here. Nothing was deleted")
    try:
        aws.call("sagemaker", "delete_inference_component", InferenceComponentName=options.component)
    except Refused as refused:
        raise Stop(f"{refused}. Nothing was deleted") from None
    if not aws.dry_run:
        wait(aws, options.component, options.wait_minutes, until_gone=True)
    say("dry run: nothing was deleted" if aws.dry_run else f"{options.component} is gone")


def component(aws, options):
    if not aws.dry_run:
        Snapshot(aws, options.name).must_rest()
    {"create": create, "update": update, "delete": delete}[options.action](aws, options)
