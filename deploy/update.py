"""Changes of an endpoint. What isn't named stays as it is, live counts and weights among it; what fails is undone."""

import copy

from deploy import checks, create, names, requests, rollout
from deploy.aws import Refused, Stop, say
from deploy.snapshot import Snapshot, model

STATES = "an endpoint of inference components has no model; `component update` changes those"


def differences(before, after, at=""):
    """For people: what changes, a line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{at}.{key}" if at else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{at}[{number}]")
    elif before != after:
        yield f"{at}: {'nothing' if before is None else before} -> {'nothing' if after is None else after}"


def must_not_scale(aws, snapshot, variant, change):
    """SageMaker refuses some changes of a variant that is scaled, with words that don't say what to do."""
    resource = f"endpoint/{snapshot.name}/variant/{variant['VariantName']}"
    found = aws.call("application-autoscaling", "describe_scalable_targets", ServiceNamespace="sagemaker", ResourceIds=[resource])
    if found.get("ScalableTargets"):
        raise Stop(
            f"{variant['VariantName']} of {snapshot.name} is scaled automatically, and meanwhile {change}; "
            f"`autoscale {snapshot.name} --variant {variant['VariantName']} --remove` first, and `autoscale` again afterwards"
        )


def plan(aws, snapshot, options, name):
    """The models by name and the configuration that the options make of what is there."""
    config = copy.deepcopy(snapshot.config)
    meant = snapshot.variant(options.variant)
    place = next(found for key in ("ProductionVariants", "ShadowProductionVariants") for found in config.get(key, []) if found == meant)
    if options.instance_type not in (None, meant.get("InstanceType")):
        must_not_scale(aws, snapshot, meant, f"its type can't change from {meant.get('InstanceType')} to {options.instance_type}")
    made = {}
    if "ModelName" not in meant:
        if requests.names_container(options):
            raise Stop(STATES)
    elif requests.names_model(options):
        before = model(aws, meant["ModelName"])
        after = requests.apply_to_model(copy.deepcopy(before), options)
        for line in differences(before, after):
            say(f"  {line}")
        if before != after:
            made[name] = after
            place["ModelName"] = name
    requests.apply_to_variant(place, options)
    requests.apply_to_config(config, options)
    checks.config(config, list(made.values()))
    return made, config


def apply(aws, snapshot, options, made, config, name, guarded=True):
    """Brings a planned configuration to the endpoint, and waits; goes back if it fails."""
    for line in differences(snapshot.config, config):
        say(f"  {line}")
    if config == snapshot.config and not made and not rollout.named(options):
        raise Stop(f"nothing was named that {snapshot.name} doesn't have already; it is left as it is")
    given = names.carried(snapshot.tags) | dict(options.tag or [])
    tags = names.tags(snapshot.name, given)
    request = rollout.update_request(snapshot.name, name, options, snapshot.last_deployment)
    if not guarded:
        # Between configurations with other variants SageMaker shifts all at once, and takes no policy.
        del request["DeploymentConfig"]
    checks.rollout(request, config)
    done = create.make(aws, made, config, name, tags)
    try:
        aws.call("sagemaker", "update_endpoint", **request)
    except BaseException:
        create.undo(aws, done)
        raise
    if aws.dry_run:
        say(f"dry run: the calls that would change {snapshot.name} are above; nothing was changed")
        return
    settle(aws, snapshot, options, done, name)
    if options.tag:
        aws.call("sagemaker", "add_tags", ResourceArn=snapshot.arn, Tags=names.tags(snapshot.name, options.tag)[1:])


def settle(aws, snapshot, options, done, name):
    found = aws.wait(snapshot.name, options.wait_minutes)
    if found["EndpointStatus"] == "InService" and found["EndpointConfigName"] == name:
        say(f"{snapshot.name} has {name}; {snapshot.config_name} is kept, to go back to")
        return
    # SageMaker has gone back by itself if it could; an endpoint that failed is put back here.
    if found["EndpointStatus"] != "InService":
        say(f"going back to {snapshot.config_name}")
        request = {"EndpointName": snapshot.name, "EndpointConfigName": snapshot.config_name, "RetainAllVariantProperties": True}
        try:
            aws.call("sagemaker", "update_endpoint", **request)
            after = aws.wait(snapshot.name, options.wait_minutes)["EndpointStatus"]
        except Refused as refused:
            raise Stop(f"{snapshot.name} is {found['EndpointStatus']} and can't go back: {refused}; {name} is kept to look at") from None
        if after != "InService":
            raise Stop(f"{snapshot.name} is {after} also with {snapshot.config_name}; {name} is kept to look at")
    create.undo(aws, done)
    reason = found.get("FailureReason", "no reason given")
    raise Stop(f"the update failed, {snapshot.name} has {snapshot.config_name} as before: {reason}")


def update(aws, options):
    snapshot = Snapshot(aws, options.name)
    snapshot.must_rest()
    if names.STACK in snapshot.tags:
        say(f"warning: {options.name} belongs to the CloudFormation stack {snapshot.tags[names.STACK]}, which won't know of this")
    name = names.fresh(options.name)
    made, config = plan(aws, snapshot, options, name)
    apply(aws, snapshot, options, made, config, name)


# ---- other variants: for A/B tests, and shadows that answer nobody


def add_variant(aws, options):
    """One more variant: a copy of an endpoint's, with what was named changed."""
    snapshot = Snapshot(aws, options.name)
    snapshot.must_rest()
    names.checked(options.new_variant, "a variant's name")
    name = names.fresh(options.name)
    config = copy.deepcopy(snapshot.config)
    like = copy.deepcopy(snapshot.variant(options.variant) if options.variant else snapshot.config["ProductionVariants"][0])
    if "ModelName" not in like:
        raise Stop(STATES)
    made = {}
    if requests.names_model(options):
        made[name] = requests.apply_to_model(model(aws, like["ModelName"]), options)
        like["ModelName"] = name
    like["VariantName"] = options.new_variant
    like["InitialInstanceCount"] = 1
    config.setdefault("ShadowProductionVariants" if options.shadow else "ProductionVariants", []).append(
        requests.apply_to_variant(like, options)
    )
    requests.apply_to_config(config, options)
    checks.config(config, list(made.values()))
    apply(aws, snapshot, as_for_all(options), made, config, name, guarded=False)


def remove_variant(aws, options):
    snapshot = Snapshot(aws, options.name)
    snapshot.must_rest()
    meant = snapshot.variant(options.old_variant)
    must_not_scale(aws, snapshot, meant, "it can't be removed")
    config = copy.deepcopy(snapshot.config)
    for key in ("ProductionVariants", "ShadowProductionVariants"):
        config[key] = [variant for variant in config.get(key, []) if variant["VariantName"] != meant["VariantName"]]
        if not config[key]:
            del config[key]
    if "ProductionVariants" not in config:
        raise Stop(f"{meant['VariantName']} is the only production variant of {options.name}; `delete {options.name}` removes the endpoint")
    apply(aws, snapshot, options, {}, config, names.fresh(options.name), guarded=False)


def as_for_all(options):
    """The count and weight of a new variant are of that variant; those that live keep theirs."""
    made = copy.copy(options)
    made.instances = made.weight = None
    return made


def weights(aws, options):
    """Shares of the traffic, at once and without a new configuration; a later update keeps them."""
    snapshot = Snapshot(aws, options.name)
    snapshot.must_rest()
    wanted = []
    for variant, weight in options.shares:
        snapshot.variant(variant)
        try:
            wanted.append({"VariantName": variant, "DesiredWeight": float(weight)})
        except ValueError:
            raise Stop(f"a weight is a number, not {weight!r}") from None
    aws.call("sagemaker", "update_endpoint_weights_and_capacities", EndpointName=options.name, DesiredWeightsAndCapacities=wanted)
    if aws.dry_run:
        say(f"dry run: the weights of {options.name} are as before")
        return
    aws.wait(options.name, options.wait_minutes)
    say(f"{options.name}: " + ", ".join(f"{variant} {weight}" for variant, weight in options.shares))
