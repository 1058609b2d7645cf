"""Deletes an endpoint, and of what is around it only what provably belongs to it.

Proof is the tag foretype:endpoint with the endpoint's name. All that can be asked is asked first, then the endpoint is deleted. When
SageMaker refuses that, nothing else is touched. What another endpoint uses stays.
"""

from deploy import names, scaling
from deploy.aws import Refused, Stop, say
from deploy.snapshot import similar

KINDS = {
    # kind: list operation, its key, the field of a name, the field of an ARN
    "configuration": ("list_endpoint_configs", "EndpointConfigs", "EndpointConfigName", "EndpointConfigArn", "delete_endpoint_config"),
    "model": ("list_models", "Models", "ModelName", "ModelArn", "delete_model"),
}


def tagged(aws, endpoint, kind):
    """The names of what was made for an endpoint. Names say where to look, tags whose a thing is."""
    operation, key, field, arn, _ = KINDS[kind]
    begin = names.made_for(endpoint)
    found = aws.pages("sagemaker", operation, key, NameContains=begin.strip("-"))
    return [thing[field] for thing in found if thing[field].startswith(begin) and aws.tags(thing[arn]).get(names.OWNER) == endpoint]


def used_by_others(aws, endpoint):
    """Configurations and models that other endpoints run with."""
    configurations, used = set(), set()
    for other in aws.pages("sagemaker", "list_endpoints", "Endpoints"):
        if other["EndpointName"] == endpoint:
            continue
        found = aws.find("sagemaker", "describe_endpoint", EndpointName=other["EndpointName"]) or {}
        configurations.add(found.get("EndpointConfigName"))
    for name in configurations - {None}:
        config = aws.find("sagemaker", "describe_endpoint_config", EndpointConfigName=name) or {}
        for key in ("ProductionVariants", "ShadowProductionVariants"):
            used |= {variant.get("ModelName") for variant in config.get(key, [])}
    return {"configuration": configurations, "model": used}


def must_be_ours(aws, options, found):
    tags = aws.tags(found["EndpointArn"])
    if names.STACK in tags:
        raise Stop(f"{options.name} belongs to the CloudFormation stack {tags[names.STACK]}; delete that. Nothing was deleted")
    if tags.get(names.OWNER) != options.name and not options.untagged:
        raise Stop(
            f"{options.name} has no tag {names.OWNER}={options.name}, so it wasn't made here. Nothing was deleted; "
            "--untagged deletes it nevertheless, and leaves its configuration and models"
        )
    # Older moto and regions without inference components answer nothing.
    components = aws.pages("sagemaker", "list_inference_components", "InferenceComponents", EndpointNameEquals=options.name)
    if components:
        there = ", ".join(component["InferenceComponentName"] for component in components)
        raise Stop(f"{options.name} has the inference components {there}; `component delete` removes one. Nothing was deleted")


def delete(aws, options):
    names.checked(options.name)
    found = aws.find("sagemaker", "describe_endpoint", EndpointName=options.name)
    belongings = {kind: tagged(aws, options.name, kind) for kind in KINDS}
    if found is None and not any(belongings.values()):
        raise Stop(f"there is no endpoint called {options.name} here{similar(aws, options.name)}. Nothing was deleted")
    targets = []
    if found is not None:
        must_be_ours(aws, options, found)
        targets = scaling.targets(aws, options.name, [variant["VariantName"] for variant in found.get("ProductionVariants", [])])
    else:
        say(f"the endpoint {options.name} is gone already; this is what it has left")
    elsewhere = used_by_others(aws, options.name)
    for kind, things in belongings.items():
        for thing in [thing for thing in things if thing in elsewhere[kind]]:
            say(f"the {kind} {thing} stays: another endpoint uses it")
            things.remove(thing)
    remove(aws, options, found, targets, belongings)


def remove(aws, options, found, targets, belongings):
    if found is not None:
        # The one call that may be refused while all is there.
        try:
            aws.call("sagemaker", "delete_endpoint", EndpointName=options.name)
        except Refused as refused:
            raise Stop(f"{refused}. Nothing was deleted") from None
        for target in targets:
            scaling.deregister(aws, target)
        if not aws.dry_run and aws.wait(options.name, options.wait_minutes, until_gone=True) is not None:
            raise Stop(f"{options.name} could not be deleted by SageMaker; its configurations and models are kept")
    left = []
    for kind, things in belongings.items():
        _, _, field, _, operation = KINDS[kind]
        for thing in things:
            try:
                aws.drop(operation, **{field: thing})
                if not aws.dry_run:
                    say(f"deleted the {kind} {thing}")
            except Refused as refused:
                left.append(f"the {kind} {thing}: {refused}")
    if left:
        raise Stop(f"{options.name} is gone, but these are left; run it again to try them again:\n  " + "\n  ".join(left))
    say(f"dry run: {options.name} is as before" if aws.dry_run else f"{options.name} is gone")
