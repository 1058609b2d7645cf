"""The command line: which command takes which options."""

import argparse
import sys

from deploy import calls, components, create, delete, local, options, scaling, update
from deploy.aws import Aws, Stop

EXAMPLES = """
    python3 -m deploy create NAME --image URI --model-data s3://bucket/model.tar.gz --role ARN
    python3 -m deploy update NAME --image URI --canary 10% --rollback-alarm ALARM
    python3 -m deploy invoke NAME "wireless char"
    python3 -m deploy autoscale NAME --min 1 --max 4
    python3 -m deploy delete NAME

`update` changes what is named and keeps the rest. --dry-run prints the calls that would change something and makes none of them.
"""


def parser():
    top = argparse.ArgumentParser(prog="deploy", description=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--region", help="default: what boto3 finds")
    common.add_argument("--dry-run", action="store_true", help="print the calls; only commands that read an endpoint need AWS")
    common.add_argument("--poll-seconds", type=float, default=10, help="between two looks at an endpoint (%(default)s)")
    # Named by some commands only; the functions that make requests ask for all of them.
    none = (
        "image",
        "model_data",
        "env",
        "env_remove",
        "container_metrics",
        "startup_timeout",
        "download_timeout",
        "role",
        "multi_model",
        "subnet",
        "security_group",
        "network_isolation",
        "variant",
        "instance_type",
        "instances",
        "weight",
        "routing",
        "volume_gib",
        "ami_version",
        "managed_instances",
        "serverless_memory_mib",
        "serverless_concurrency",
        "serverless_provisioned",
        "volume_kms",
        "capture",
        "capture_percent",
        "capture_kms",
        "detailed_observability",
        "async_output",
        "async_failure",
        "async_kms",
        "async_success_topic",
        "async_error_topic",
        "async_concurrency",
        "canary",
        "linear",
        "rolling",
        "bake_seconds",
        "keep_old_seconds",
        "rollout_timeout",
        "rollback_alarm",
        "tag",
        "endpoint_url",
        "async_input",
        "text",
    )
    unnamed = dict.fromkeys(none) | dict.fromkeys(
        ("no_model_data", "no_vpc", "all_at_once", "components", "keep_failed", "untagged"), False
    )
    commands = top.add_subparsers(dest="command", required=True)

    def command(name, function, help_text, *groups, named=True, under=commands):
        made = under.add_parser(name, help=help_text, description=help_text, parents=[common])
        made.set_defaults(**unnamed | {"function": function})
        if named:
            made.add_argument("name", help="the endpoint")
        for group in groups:
            group(made)
        return made

    of = options
    everything = (of.of_container, of.of_model, of.of_variant, of.of_config, of.of_tags, of.of_waiting)
    made = command("create", create.create, "a new endpoint", *everything)
    made.add_argument("--components", action="store_true", help="without a model: for inference components")
    made.add_argument("--keep-failed", action="store_true", help="keep an endpoint that can't be made, to look at")
    command("update", update.update, "changes what is named of an endpoint", *everything, of.of_rollout)
    made = command("add-variant", update.add_variant, "one more variant, like --variant or the first, but for what is named", *everything)
    made.add_argument("new_variant", help="its name")
    made.add_argument("--shadow", action="store_true", help="it gets a copy of the traffic, and its answers go to nobody")
    command("remove-variant", update.remove_variant, "one variant less", of.of_waiting).add_argument("old_variant")
    made = command("weights", update.weights, "shares of the traffic", of.of_waiting)
    made.add_argument("shares", nargs="+", type=options.pair, metavar="VARIANT=WEIGHT")
    command("autoscale", scaling.autoscale, "as many instances as the load needs", of.of_scaling)
    made = command("delete", delete.delete, "the endpoint and what was made for it", of.of_waiting)
    made.add_argument("--untagged", action="store_true", help="also an endpoint that wasn't made here")
    made = command("invoke", calls.invoke, "completes a text", of.of_calls)
    made.add_argument("text", nargs="?")
    made.add_argument("--target-model", metavar="ARCHIVE", help="multi-model: which")
    made.add_argument("--async-input", metavar="S3", help="asynchronous: a request that lies there; prints where the answer will be")
    command("stream", calls.stream, "completes a text, as it comes", of.of_calls).add_argument("text")
    command("local", local.local, "the image on this machine, behind SageMaker's runtime API", of.of_local, named=False)
    actions = commands.add_parser("component", help="inference components of an endpoint").add_subparsers(dest="action", required=True)
    for action, groups in {"create": (of.of_container, of.of_tags), "update": (of.of_container,), "delete": ()}.items():
        made = command(action, components.component, f"{action} an inference component", *groups, of.of_waiting, under=actions)
        made.add_argument("component", help="its name")
        if action != "delete":
            made.add_argument("--variant", help="(AllTraffic)")
            made.add_argument("--memory-mib", type=options.between(128, 1 << 24), metavar="MIB", help="memory of a copy")
            made.add_argument("--cpus", type=float, help="cores of a copy")
            made.add_argument("--accelerators", type=float, help="GPUs of a copy")
            made.add_argument("--copies", type=options.between(0, 10000), help="(1)")
    return top


def main(argv=None):
    given = parser().parse_args(argv)
    try:
        given.function(Aws(given.region, given.endpoint_url, given.dry_run, given.poll_seconds), given)
    except Stop as stop:
        sys.exit(f"deploy: {stop}")
    except BrokenPipeError:
        # Whoever reads has read enough, as `head` does.
        sys.stdout = None
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit("deploy: interrupted; what AWS has begun goes on")
