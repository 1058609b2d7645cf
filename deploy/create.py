"""A new endpoint. What was made for one that can't be made is removed again."""

from deploy import checks, names, requests
from deploy.aws import Refused, Stop, say


def make(aws, made, config, config_name, tags):
    """Models and a configuration; all or nothing. `made` are models by name."""
    done = []
    try:
        for name, model in made.items():
            aws.call("sagemaker", "create_model", ModelName=name, **model, Tags=tags)
            done.append(("delete_model", {"ModelName": name}))
        aws.call("sagemaker", "create_endpoint_config", EndpointConfigName=config_name, **config, Tags=tags)
        done.append(("delete_endpoint_config", {"EndpointConfigName": config_name}))
    except BaseException:
        undo(aws, done)
        raise
    return done


def undo(aws, done):
    """Takes back what was made, last first; what can't be taken back is named."""
    for operation, request in reversed(done):
        try:
            aws.drop(operation, **request)
            say(f"undone: {operation} {next(iter(request.values()))}")
        except Stop as stop:
            say(f"warning: {next(iter(request.values()))} is left behind: {stop}")


def plan(options):
    """The models by name, and the configuration."""
    name = names.fresh(options.name)
    variant = requests.new_variant(options.variant or names.VARIANT, options)
    config = {"ProductionVariants": [variant]}
    made = {}
    if options.components:
        refused = [
            flag for flag, value in {"--image": options.image, "--model-data": options.model_data, "--env": options.env}.items() if value
        ]
        if refused:
            raise Stop(f"with --components the endpoint has no model; {', '.join(refused)} belong to `component create`")
        if not options.role:
            raise Stop("--role is missing: the ARN of the role that SageMaker takes")
        if options.serverless_memory_mib is not None or options.async_output is not None:
            raise Stop("--components go neither with a serverless nor with an asynchronous endpoint")
    else:
        made[name] = requests.new_model(options)
        variant["ModelName"] = name
    config = requests.apply_to_config(config, options)
    checks.config(config, list(made.values()))
    return name, made, config


def create(aws, options):
    names.checked(options.name)
    tags = names.tags(options.name, options.tag or [])
    config_name, made, config = plan(options)
    if not aws.dry_run and aws.find("sagemaker", "describe_endpoint", EndpointName=options.name):
        raise Stop(f"there is an endpoint called {options.name} already; `update` changes it")
    done = make(aws, made, config, config_name, tags)
    try:
        aws.call("sagemaker", "create_endpoint", EndpointName=options.name, EndpointConfigName=config_name, Tags=tags)
    except BaseException:
        undo(aws, done)
        raise
    if aws.dry_run:
        say(f"dry run: the calls that would make {options.name} are above; nothing was made")
        return
    found = aws.wait(options.name, options.wait_minutes)
    if found["EndpointStatus"] == "InService":
        say(f"{options.name} is in service. Try: python3 -m deploy invoke {options.name} amazon")
        return
    reason = found.get("FailureReason", "no reason given")
    say(f"the container's log: /aws/sagemaker/Endpoints/{options.name} in CloudWatch")
    if options.keep_failed:
        raise Stop(f"{options.name} is {found['EndpointStatus']}: {reason}. It is kept; `delete {options.name}` removes it")
    try:
        aws.drop("delete_endpoint", EndpointName=options.name)
        aws.wait(options.name, options.wait_minutes, until_gone=True)
    except Refused as refused:
        raise Stop(f"{options.name} is {found['EndpointStatus']}: {reason}. It can't be removed: {refused}") from None
    undo(aws, done)
    raise Stop(f"{options.name} could not be made, and what was made of it is removed: {reason}")
