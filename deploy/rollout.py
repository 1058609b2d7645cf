"""How an update is shifted from the old instances to the new ones, and what undoes it."""

from deploy.aws import Stop


def size(text, least, most, what):
    """10% or 2: a share of the capacity, or a number of instances."""
    number = text.removesuffix("%")
    if not number.isdigit() or int(number) < 1:
        raise Stop(f"{what} is a number of instances or a percentage, such as 1 or 10%, not {text!r}")
    if text.endswith("%") and not least <= int(number) <= most:
        raise Stop(f"{what} is {least}% to {most}%, not {text}")
    return {"Type": "CAPACITY_PERCENT" if text.endswith("%") else "INSTANCE_COUNT", "Value": int(number)}


def policy(options):
    """The policy that the options name; by default all traffic at once, after the new instances were watched."""
    bake = 60 if options.bake_seconds is None else options.bake_seconds
    limit = {"MaximumExecutionTimeoutInSeconds": 3600 if options.rollout_timeout is None else options.rollout_timeout}
    if options.rolling:
        return {
            "RollingUpdatePolicy": {"MaximumBatchSize": size(options.rolling, 5, 50, "--rolling"), "WaitIntervalInSeconds": bake} | limit
        }
    routing = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": bake}
    if options.canary:
        routing = {"Type": "CANARY", "CanarySize": size(options.canary, 1, 50, "--canary"), "WaitIntervalInSeconds": bake}
    if options.linear:
        routing = {"Type": "LINEAR", "LinearStepSize": size(options.linear, 10, 50, "--linear"), "WaitIntervalInSeconds": bake}
    wait = {"TerminationWaitInSeconds": options.keep_old_seconds or 0}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": routing} | wait | limit}


def named(options):
    values = (options.rolling, options.canary, options.linear, options.bake_seconds, options.rollout_timeout, options.keep_old_seconds)
    return options.all_at_once or any(value is not None for value in values)


def deployment(options, last):
    """`last` is how the endpoint was updated before, which stays unless something else is named; its alarms, too."""
    made = {key: last[key] for key in ("BlueGreenUpdatePolicy", "RollingUpdatePolicy") if last and last.get(key)}
    if named(options) or not made:
        made = policy(options)
    alarms = last.get("AutoRollbackConfiguration", {}).get("Alarms", []) if last else []
    if options.rollback_alarm:
        alarms = [{"AlarmName": name} for name in options.rollback_alarm if name != "none"]
    if len(alarms) > 10:
        raise Stop(f"{len(alarms)} alarms are too many: SageMaker takes 10")
    return made | ({"AutoRollbackConfiguration": {"Alarms": alarms}} if alarms else {})


def update_request(endpoint, config, options, last=None):
    """Live counts and weights stay, whatever the configuration says of them, unless they were named."""
    request = {"EndpointName": endpoint, "EndpointConfigName": config, "RetainAllVariantProperties": True}
    overridden = {
        "DesiredInstanceCount": options.instances,
        "DesiredWeight": options.weight,
        "DataCaptureConfig": (options.capture, options.capture_percent, options.capture_kms),
    }
    exclude = [{"VariantPropertyType": kind} for kind, value in overridden.items() if value not in (None, (None, None, None))]
    if exclude:
        request["ExcludeRetainedVariantProperties"] = exclude
    return request | {"DeploymentConfig": deployment(options, last)}
