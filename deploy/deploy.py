#!/usr/bin/env python3
"""Brings an image and a model to an Amazon SageMaker endpoint, and changes, asks, scales and deletes it.

    deploy.py create NAME --image URI --model-data s3://bucket/model.tar.gz --role ARN
    deploy.py update NAME --image URI --model-data s3://bucket/other.tar.gz --role ARN
    deploy.py invoke NAME "wireless char"
    deploy.py stream NAME "wireless char"
    deploy.py autoscale NAME --min 1 --max 4
    deploy.py delete NAME
    deploy.py local --image IMAGE --model BUNDLE

What is made is told by its name: models and endpoint configurations are called NAME-TIME. --dry-run prints the calls instead of
making them. endpoint.yaml is the same as a CloudFormation template; a test keeps the two in step.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone

VARIANT = "AllTraffic"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


# ---- what the calls are asked for; plain functions, compared with endpoint.yaml by a test


def model_request(name, args):
    container = {"Image": args.image, "Environment": dict(args.env)}
    if args.model_data.endswith(".tar.gz"):
        container["ModelDataUrl"] = args.model_data
    else:
        # A prefix with the files as they are: nothing to unpack, so large models start sooner.
        source = {"S3Uri": args.model_data.rstrip("/") + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    return {"ModelName": name, "ExecutionRoleArn": args.role, "PrimaryContainer": container}


def config_request(name, args):
    variant = {
        "VariantName": VARIANT,
        "ModelName": name,
        "InstanceType": args.instance_type,
        "InitialInstanceCount": args.instances,
        "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": args.download_timeout,
        "ContainerStartupHealthCheckTimeoutInSeconds": args.startup_timeout,
    }
    if args.ami_version:
        variant["InferenceAmiVersion"] = args.ami_version
    return {"EndpointConfigName": name, "ProductionVariants": [variant]}


def endpoint_request(endpoint, config):
    return {"EndpointName": endpoint, "EndpointConfigName": config}


def update_request(endpoint, config, args):
    """New instances beside the old ones; the old ones stay if the new ones fail, or if an alarm goes off while they are tried."""
    deployment = {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": args.bake_seconds},
            "TerminationWaitInSeconds": 0,
            "MaximumExecutionTimeoutInSeconds": 3600,
        }
    }
    if args.rollback_alarm:
        deployment["AutoRollbackConfiguration"] = {"Alarms": [{"AlarmName": name} for name in args.rollback_alarm]}
    return endpoint_request(endpoint, config) | {"DeploymentConfig": deployment}


def target_request(endpoint, args):
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}",
        "ScalableDimension": DIMENSION,
        "MinCapacity": args.min,
        "MaxCapacity": args.max,
    }


def policy_request(endpoint, args):
    return {
        "PolicyName": f"{endpoint}-concurrency",
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}",
        "ScalableDimension": DIMENSION,
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": args.concurrency,
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
            },
            "ScaleOutCooldown": 60,
            "ScaleInCooldown": 300,
        },
    }


# ---- AWS


class Aws:
    """The clients, made when they are needed; in a dry run it prints what would be asked."""

    def __init__(self, args):
        self.args = args

    def client(self, service):
        import boto3

        if service == "sagemaker-runtime":
            return boto3.client(service, region_name=self.args.region, endpoint_url=self.args.endpoint_url)
        return boto3.client(service, region_name=self.args.region)

    def call(self, service, operation, request):
        if self.args.dry_run:
            print(json.dumps({"service": service, "operation": operation, "request": request}, indent=2))
            return {}
        return getattr(self.client(service), operation)(**request)

    def quietly(self, service, operation, request):
        """For what may be gone already."""
        try:
            self.call(service, operation, request)
        except Exception as error:  # boto3 makes its classes of errors at run time
            code = getattr(error, "response", {}).get("Error", {}).get("Code")
            if code not in ("ValidationException", "ObjectNotFoundException", "ResourceNotFound"):
                raise


def wait(aws, endpoint, minutes):
    """Until the endpoint's state is a last one; says when it changes."""
    if aws.args.dry_run:
        return {"EndpointStatus": "InService"}
    started, last = time.monotonic(), None
    while True:
        found = aws.call("sagemaker", "describe_endpoint", {"EndpointName": endpoint})
        status = found["EndpointStatus"]
        if status != last:
            say(f"{time.monotonic() - started:6.0f} s  {endpoint}: {status}")
            last = status
        if status not in ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"):
            return found
        if time.monotonic() - started > minutes * 60:
            sys.exit(f"deploy: {endpoint} is still {status} after {minutes} minutes; look at it in the console, or wait on")
        time.sleep(aws.args.poll_seconds)


def made_for(endpoint):
    """How the names of its models and configurations begin; 63 characters are the most that SageMaker takes."""
    return endpoint[: 63 - len("-20260101-000000")] + "-"


def make_model_and_config(aws, args):
    name = f"{made_for(args.name)}{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    aws.call("sagemaker", "create_model", model_request(name, args))
    aws.call("sagemaker", "create_endpoint_config", config_request(name, args))
    return name


def drop_model_and_config(aws, name):
    aws.quietly("sagemaker", "delete_endpoint_config", {"EndpointConfigName": name})
    aws.quietly("sagemaker", "delete_model", {"ModelName": name})


def create(aws, args):
    config = make_model_and_config(aws, args)
    aws.call("sagemaker", "create_endpoint", endpoint_request(args.name, config))
    found = wait(aws, args.name, args.wait_minutes)
    if found["EndpointStatus"] != "InService":
        say(f"the container's log: /aws/sagemaker/Endpoints/{args.name} in CloudWatch")
        sys.exit(f"deploy: {args.name} is {found['EndpointStatus']}: {found.get('FailureReason', 'no reason given')}")
    say(f"{args.name} is in service. Try: deploy.py invoke {args.name} amazon")


def update(aws, args):
    before = aws.call("sagemaker", "describe_endpoint", {"EndpointName": args.name}).get("EndpointConfigName")
    config = make_model_and_config(aws, args)
    try:
        aws.call("sagemaker", "update_endpoint", update_request(args.name, config, args))
    except Exception:
        drop_model_and_config(aws, config)
        raise
    found = wait(aws, args.name, args.wait_minutes)
    if aws.args.dry_run or (found["EndpointStatus"] == "InService" and found["EndpointConfigName"] == config):
        say(f"{args.name} has {config}; {before} is kept, to go back to")
        return
    # SageMaker has gone back by itself if it could; an endpoint that failed is put back here.
    if found["EndpointStatus"] != "InService":
        say(f"going back to {before}")
        aws.call("sagemaker", "update_endpoint", endpoint_request(args.name, before))
        after = wait(aws, args.name, args.wait_minutes)["EndpointStatus"]
        if after != "InService":
            sys.exit(f"deploy: {args.name} is {after} also with {before}; {config} is kept to look at")
    drop_model_and_config(aws, config)
    sys.exit(f"deploy: the update failed, {args.name} has {before} as before: {found.get('FailureReason', 'no reason given')}")


def body(args):
    return json.dumps({"input": args.text})


def invoke(aws, args):
    response = aws.call(
        "sagemaker-runtime",
        "invoke_endpoint",
        {"EndpointName": args.name, "ContentType": "application/json", "Body": body(args)},
    )
    if not args.dry_run:
        print(json.dumps(json.loads(response["Body"].read()), indent=2, ensure_ascii=False))


def stream(aws, args):
    request = {"input": args.text, "stream": True}
    response = aws.call(
        "sagemaker-runtime",
        "invoke_endpoint_with_response_stream",
        {"EndpointName": args.name, "ContentType": "application/json", "Body": json.dumps(request)},
    )
    for event in response.get("Body", ()):
        sys.stdout.buffer.write(event["PayloadPart"]["Bytes"])
        sys.stdout.flush()


def autoscale(aws, args):
    aws.call("application-autoscaling", "register_scalable_target", target_request(args.name, args))
    aws.call("application-autoscaling", "put_scaling_policy", policy_request(args.name, args))
    say(f"{args.name}: {args.min} to {args.max} instances, {args.concurrency:g} requests at once on each")


def delete(aws, args):
    """The endpoint, and every model and configuration that was made for it."""
    resource = {"ServiceNamespace": "sagemaker", "ResourceId": f"endpoint/{args.name}/variant/{VARIANT}"}
    aws.quietly("application-autoscaling", "deregister_scalable_target", resource | {"ScalableDimension": DIMENSION})
    aws.quietly("sagemaker", "delete_endpoint", {"EndpointName": args.name})
    if args.dry_run:
        return
    # Others may have names that begin the same way: a time has to follow, and nothing else.
    ours = re.compile(re.escape(made_for(args.name)) + r"\d{8}-\d{6}")
    sagemaker = aws.client("sagemaker")
    for pages, key, field, operation in [
        ("list_endpoint_configs", "EndpointConfigs", "EndpointConfigName", "delete_endpoint_config"),
        ("list_models", "Models", "ModelName", "delete_model"),
    ]:
        names = [found[field] for page in sagemaker.get_paginator(pages).paginate() for found in page[key]]
        for name in filter(ours.fullmatch, names):
            say("deleting", name)
            aws.quietly("sagemaker", operation, {field: name})
    say(f"{args.name} is gone")


def local(_aws, args):
    """The image on this machine, with SageMaker's runtime API in front of it."""
    container = f"foretype-local-{args.port}"
    network = ["--network", args.network] if args.network else []
    network += [] if args.network == "host" else ["-p", f"{args.container_port}:8080"]
    inner = args.container_port if args.network == "host" else 8080
    commands = [
        ["docker", "run", "--detach", "--rm", "--name", container, *network, "--env", f"SAGEMAKER_BIND_TO_PORT={inner}"]
        + [word for key, value in args.env for word in ("--env", f"{key}={value}")]
        + ["--volume", f"{args.model}:/opt/ml/model:ro", args.image, "serve"],
        [args.foretype, "local-endpoint", "--port", str(args.port), "--target", f"http://127.0.0.1:{args.container_port}"],
    ]
    if args.dry_run:
        for command in commands:
            print(" ".join(command))
        return
    if not shutil.which(args.foretype):
        sys.exit(f"deploy: there is no {args.foretype}; `cargo build --release` makes it, and --foretype names another")
    subprocess.run(commands[0], check=True, stdout=subprocess.DEVNULL)
    say(f"invocations: deploy.py invoke any-name amazon --endpoint-url http://127.0.0.1:{args.port}   (Ctrl-C ends it)")
    try:
        subprocess.run(commands[1], check=True)
    except KeyboardInterrupt:
        pass
    finally:
        subprocess.run(["docker", "stop", "--time", "30", container], check=False, stdout=subprocess.DEVNULL)


# ---- the command line


def pair(text):
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("an environment entry is KEY=VALUE")
    return key, value


def parser():
    top = argparse.ArgumentParser(prog="deploy.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--region", help="default: what boto3 finds")
    common.add_argument("--dry-run", action="store_true", help="print the calls; needs no AWS")
    common.add_argument("--poll-seconds", type=float, default=10, help="between two looks at an endpoint (%(default)s)")
    common.add_argument("--endpoint-url", help="for invoke and stream: such as of `foretype local-endpoint`")
    commands = top.add_subparsers(dest="command", required=True)

    def command(function, help_text, name=True):
        made = commands.add_parser(function.__name__, help=help_text, parents=[common])
        made.set_defaults(function=function)
        if name:
            made.add_argument("name", help="the endpoint")
        return made

    for made in (command(create, "a new endpoint"), command(update, "another image or model for an endpoint")):
        made.add_argument("--image", required=True, help="URI that build_and_push.sh printed")
        made.add_argument("--model-data", required=True, help="s3://.../model.tar.gz of `foretype pack`, or a prefix with a bundle's files")
        made.add_argument("--role", required=True, help="ARN of the role that SageMaker takes")
        made.add_argument("--instance-type", default="ml.c7i.xlarge", help="%(default)s")
        made.add_argument("--instances", type=int, default=1, help="%(default)s")
        made.add_argument("--startup-timeout", type=int, default=600, metavar="SECONDS", help="until /ping is healthy (%(default)s)")
        made.add_argument("--download-timeout", type=int, default=600, metavar="SECONDS", help="for the model (%(default)s)")
        made.add_argument("--ami-version", help="InferenceAmiVersion, which decides the NVIDIA driver")
        made.add_argument("--env", type=pair, action="append", default=[], metavar="K=V", help="for the container")
        made.add_argument("--wait-minutes", type=float, default=30, help="%(default)s")
    made.add_argument("--bake-seconds", type=int, default=60, help="watch the new instances before the old ones go (%(default)s)")
    made.add_argument("--rollback-alarm", action="append", default=[], help="CloudWatch alarm that undoes the update")
    for made in (command(invoke, "complete a text"), command(stream, "complete a text, as it comes")):
        made.add_argument("text")
    made = command(autoscale, "as many instances as the load needs")
    made.add_argument("--min", type=int, default=1)
    made.add_argument("--max", type=int, default=4)
    made.add_argument("--concurrency", type=float, default=8, help="requests at once that an instance should have (%(default)s)")
    command(delete, "the endpoint and what was made for it")
    made = command(local, "the image on this machine, behind SageMaker's runtime API", name=False)
    made.add_argument("--image", required=True)
    made.add_argument("--model", required=True, help="absolute path of a bundle or checkpoint")
    made.add_argument("--port", type=int, default=8081, help="of the runtime API (%(default)s)")
    made.add_argument("--container-port", type=int, default=8080, help="of the container itself (%(default)s)")
    made.add_argument("--foretype", default="target/release/foretype", help="the binary whose local-endpoint it is (%(default)s)")
    made.add_argument("--network", help="docker network, such as host")
    made.add_argument("--env", type=pair, action="append", default=[], metavar="K=V")
    return top


def main(argv=None):
    args = parser().parse_args(argv)
    args.function(Aws(args), args)


if __name__ == "__main__":
    main()
