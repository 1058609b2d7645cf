"""As many instances, copies of a component or provisioned serverless calls as the load needs."""

from deploy import names
from deploy.aws import Refused, Stop, say

SERVICE = "application-autoscaling"
NAMESPACE = {"ServiceNamespace": "sagemaker"}
COUNT = "sagemaker:variant:DesiredInstanceCount"
PROVISIONED = "sagemaker:variant:DesiredProvisionedConcurrency"
COPIES = "sagemaker:inference-component:DesiredCopyCount"

# metric: what SageMaker counts by itself, and the value that is aimed at if none is named
PREDEFINED = {
    "concurrency": ("SageMakerVariantConcurrentRequestsPerModelHighResolution", 8),
    "invocations": ("SageMakerVariantInvocationsPerInstance", 600),
}
CUSTOM = {
    "cpu": ("CPUUtilization", "/aws/sagemaker/Endpoints", 60),
    "gpu": ("GPUUtilization", "/aws/sagemaker/Endpoints", 60),
    "backlog": ("ApproximateBacklogSizePerInstance", "AWS/SageMaker", 5),
}


def target(options):
    """What is scaled."""
    if options.component:
        return NAMESPACE | {"ResourceId": f"inference-component/{options.component}", "ScalableDimension": COPIES}
    resource = f"endpoint/{options.name}/variant/{options.variant or names.VARIANT}"
    return NAMESPACE | {"ResourceId": resource, "ScalableDimension": PROVISIONED if options.serverless else COUNT}


def target_request(options):
    if options.min > options.max:
        raise Stop(f"--min {options.min} is above --max {options.max}")
    if options.min == 0 and options.metric != "backlog" and not options.component:
        raise Stop("--min 0 needs --metric backlog, of an asynchronous endpoint: others have no request at which to start again")
    return target(options) | {"MinCapacity": options.min, "MaxCapacity": options.max}


def metric(options):
    """The specification of the metric, and its value."""
    if options.component:
        kind, value = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution", 8
    elif options.serverless:
        kind, value = "SageMakerVariantProvisionedConcurrencyUtilization", 0.7
    elif options.metric in PREDEFINED:
        kind, value = PREDEFINED[options.metric]
    else:
        name, namespace, value = CUSTOM[options.metric]
        dimensions = [{"Name": "EndpointName", "Value": options.name}]
        if options.metric != "backlog":
            dimensions.append({"Name": "VariantName", "Value": options.variant or names.VARIANT})
        specification = {"MetricName": name, "Namespace": namespace, "Dimensions": dimensions, "Statistic": "Average"}
        return {"CustomizedMetricSpecification": specification}, value
    return {"PredefinedMetricSpecification": {"PredefinedMetricType": kind}}, value


def policy_request(options):
    specification, value = metric(options)
    aim = options.target if options.target is not None else options.concurrency if options.concurrency is not None else value
    tracking = {"TargetValue": aim} | specification | {"ScaleOutCooldown": options.out_seconds, "ScaleInCooldown": options.in_seconds}
    name = f"{options.component or options.name}-{options.metric}"
    return (
        {"PolicyName": name}
        | target(options)
        | {
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": tracking,
        }
    )


def targets(aws, endpoint, variants):
    """What of an endpoint is scaled, for `delete`."""
    resources = [f"endpoint/{endpoint}/variant/{variant}" for variant in variants]
    if not resources:
        return []
    try:
        found = aws.call(SERVICE, "describe_scalable_targets", **NAMESPACE, ResourceIds=resources)
    except Refused as refused:
        say(f"warning: whether {endpoint} is scaled can't be asked, so AWS ends that by itself: {refused}")
        return []
    return [
        {key: thing[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")} for thing in found.get("ScalableTargets", [])
    ]


def deregister(aws, thing):
    try:
        aws.find(SERVICE, "deregister_scalable_target", **thing)
    except Refused as refused:
        say(f"warning: {thing['ResourceId']} is still registered for scaling: {refused}")


def autoscale(aws, options):
    names.checked(options.name)
    thing = target(options)
    if options.remove:
        if aws.find(SERVICE, "deregister_scalable_target", **thing) is None:
            raise Stop(f"{thing['ResourceId']} isn't scaled")
        say("dry run: nothing was changed" if aws.dry_run else f"{thing['ResourceId']} keeps the instances that it has")
        return
    target_wanted, policy_wanted = target_request(options), policy_request(options)
    before = (
        []
        if aws.dry_run
        else aws.call(SERVICE, "describe_scalable_targets", **NAMESPACE, ResourceIds=[thing["ResourceId"]]).get("ScalableTargets")
    )
    aws.call(SERVICE, "register_scalable_target", **target_wanted)
    try:
        aws.call(SERVICE, "put_scaling_policy", **policy_wanted)
    except Refused:
        if not before:
            deregister(aws, thing)
        raise
    aim = policy_wanted["TargetTrackingScalingPolicyConfiguration"]["TargetValue"]
    words = f"{thing['ResourceId']}: {options.min} to {options.max}, {options.metric} {aim:g} on each"
    say(f"dry run: nothing was changed; it would be {words}" if aws.dry_run else words)
