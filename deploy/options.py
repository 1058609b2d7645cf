"""The options of the commands. None is what isn't named: `create` takes a default for it, `update` leaves it as it is."""

import argparse
import re


def pair(text):
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"it is KEY=VALUE, not {text!r}")
    return key, value


def variable(text):
    key, value = pair(text)
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", key):
        raise argparse.ArgumentTypeError(f"{key!r} can't be the name of an environment variable")
    return key, value


def between(least, most):
    def number(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"it is a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return number


def span(text):
    least, _, most = text.partition(":")
    if not least.isdigit() or not most.isdigit() or int(least) > int(most) or int(most) < 1:
        raise argparse.ArgumentTypeError(f"it is LEAST:MOST, such as 1:4, not {text!r}")
    return int(least), int(most)


switch = {"action": argparse.BooleanOptionalAction, "default": None}


def of_container(to):
    group = to.add_argument_group("the model and its container")
    group.add_argument("--image", help="URI that build_and_push.sh printed")
    group.add_argument(
        "--model-data",
        metavar="S3",
        help="s3://.../model.tar.gz of `foretype pack`, or a prefix with a bundle's files; not needed for an image with its model inside",
    )
    group.add_argument("--env", type=variable, action="append", metavar="K=V", help="for the container; may be given again")
    group.add_argument("--env-remove", action="append", metavar="K", help="takes a variable out")
    group.add_argument("--container-metrics", **switch, help="has SageMaker scrape the container's /metrics into CloudWatch")
    group.add_argument("--startup-timeout", type=between(60, 3600), metavar="SECONDS", help="until /ping is healthy (600)")
    group.add_argument("--download-timeout", type=between(60, 3600), metavar="SECONDS", help="for the model (600)")


def of_model(to):
    group = to.add_argument_group("the model's rights and network")
    group.add_argument("--role", metavar="ARN", help="the role that SageMaker takes")
    group.add_argument("--no-model-data", action="store_true", help="the model is in the image")
    group.add_argument("--multi-model", **switch, help="many archives under --model-data, loaded by name (SageMaker's MultiModel mode)")
    group.add_argument("--subnet", action="append", metavar="ID", help="VPC: a subnet; may be given again")
    group.add_argument("--security-group", action="append", metavar="ID", help="VPC: a security group; may be given again")
    group.add_argument("--no-vpc", action="store_true", help="takes the VPC out")
    group.add_argument("--network-isolation", **switch, help="the container reaches nothing and nobody")


def of_variant(to):
    group = to.add_argument_group("instances")
    group.add_argument("--variant", metavar="NAME", help="the variant that is meant, where there are several (AllTraffic)")
    group.add_argument("--instance-type", metavar="TYPE", help="(ml.c7i.xlarge)")
    group.add_argument("--instances", type=between(1, 10000), metavar="N", help="(1)")
    group.add_argument("--weight", type=float, help="share of the traffic against other variants' (1)")
    group.add_argument("--routing", choices=["least-outstanding", "random"], help="which instance a request goes to (least-outstanding)")
    group.add_argument("--volume-gib", type=between(1, 512), metavar="GIB", help="disk of an instance")
    group.add_argument(
        "--ami-version", metavar="NAME", help="decides the NVIDIA driver; `none` leaves it to SageMaker (the newest for GPUs)"
    )
    group.add_argument(
        "--managed-instances", type=span, metavar="LEAST:MOST", help="SageMaker scales the instances under inference components"
    )
    group = to.add_argument_group("serverless")
    group.add_argument("--serverless-memory-mib", type=int, metavar="MIB", help="makes the endpoint serverless: 1024 to 6144")
    group.add_argument("--serverless-concurrency", type=between(1, 200), metavar="N", help="requests at once (5)")
    group.add_argument("--serverless-provisioned", type=between(1, 200), metavar="N", help="of these, kept warm")


def of_config(to):
    group = to.add_argument_group("the endpoint's configuration")
    group.add_argument("--volume-kms", metavar="KEY", help="encrypts the instances' disks; `none` takes it out")
    group.add_argument("--capture", metavar="S3", help="writes requests and answers there: typed texts, too; `none` ends it")
    group.add_argument("--capture-percent", type=between(0, 100), metavar="N", help="of the requests (100)")
    group.add_argument("--capture-kms", metavar="KEY", help="encrypts what is captured")
    group.add_argument("--detailed-observability", **switch, help="SageMaker's detailed metrics")
    group = to.add_argument_group("asynchronous")
    group.add_argument("--async-output", metavar="S3", help="makes the endpoint asynchronous; answers are left there")
    group.add_argument("--async-failure", metavar="S3", help="where errors are left")
    group.add_argument("--async-kms", metavar="KEY", help="encrypts answers")
    group.add_argument("--async-success-topic", metavar="ARN", help="SNS topic that is told of answers")
    group.add_argument("--async-error-topic", metavar="ARN", help="SNS topic that is told of errors")
    group.add_argument("--async-concurrency", type=between(1, 1000), metavar="N", help="requests at once on an instance")


def of_rollout(to):
    group = to.add_argument_group("how traffic moves to the new instances; as at the last update, if none of these is named")
    policy = group.add_mutually_exclusive_group()
    policy.add_argument("--all-at-once", action="store_true", help="all, once the new instances are healthy (the default at first)")
    policy.add_argument("--canary", metavar="SIZE", help="a share first, such as 10%% or 1 instance, then the rest")
    policy.add_argument("--linear", metavar="SIZE", help="a share after the other")
    policy.add_argument("--rolling", metavar="SIZE", help="replaces instances in batches, without a second fleet")
    group.add_argument("--bake-seconds", type=between(0, 3600), metavar="S", help="watches each step so long (60)")
    group.add_argument(
        "--keep-old-seconds", type=between(0, 3600), metavar="S", help="keeps the old instances so long after the last step (0)"
    )
    group.add_argument("--rollout-timeout", type=between(600, 28800), metavar="S", help="goes back after so long (3600)")
    group.add_argument(
        "--rollback-alarm", action="append", metavar="NAME", help="CloudWatch alarm that undoes it; again for more, `none` for none"
    )


def of_tags(to):
    to.add_argument("--tag", type=pair, action="append", metavar="K=V", help="on all that is made; may be given again")


def of_waiting(to):
    to.add_argument("--wait-minutes", type=float, default=30, help="%(default)s")


def of_scaling(to):
    to.add_argument("--variant", metavar="NAME", help="(AllTraffic)")
    to.add_argument("--component", metavar="NAME", help="scales the copies of an inference component instead")
    to.add_argument("--serverless", action="store_true", help="scales a serverless variant's provisioned concurrency instead")
    to.add_argument("--min", type=between(0, 10000), default=1, help="(%(default)s)")
    to.add_argument("--max", type=between(1, 10000), default=4, help="(%(default)s)")
    to.add_argument(
        "--metric",
        choices=["concurrency", "invocations", "cpu", "gpu", "backlog"],
        default="concurrency",
        help="requests at once, requests a minute, percent of all cores, of all GPUs, or waiting requests; of an instance (%(default)s)",
    )
    to.add_argument("--target", type=float, help="its value that is aimed at (8, 600, 60, 60, 5)")
    to.add_argument("--concurrency", type=float, help="the same as --target")
    to.add_argument("--out-seconds", type=between(0, 3600), default=60, help="between two steps up (%(default)s)")
    to.add_argument("--in-seconds", type=between(0, 3600), default=300, help="between two steps down (%(default)s)")
    to.add_argument("--remove", action="store_true", help="ends the scaling; the instances stay")


def of_calls(to):
    to.add_argument("--variant", metavar="NAME", help="asks this variant")
    to.add_argument("--component", metavar="NAME", help="asks this inference component")
    to.add_argument("--endpoint-url", help="such as of `foretype local-endpoint`")


def of_local(to):
    to.add_argument("--image", required=True)
    to.add_argument("--model", metavar="FOLDER", help="a bundle or checkpoint; not needed for an image with its model inside")
    to.add_argument("--port", type=int, default=8081, help="of the runtime API (%(default)s)")
    to.add_argument("--container-port", type=int, default=8080, help="of the container itself (%(default)s)")
    to.add_argument("--foretype", default="target/release/foretype", help="the binary whose local-endpoint it is (%(default)s)")
    to.add_argument("--network", help="docker network, such as host")
    to.add_argument("--env", type=variable, action="append", metavar="K=V")
