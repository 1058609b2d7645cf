"""What doesn't go together, said before AWS is asked for anything."""

from deploy.aws import Stop, say
from deploy.requests import has_gpu, has_local_storage


def models(made):
    """Each model that is about to be made."""
    for model in made:
        container = model.get("PrimaryContainer")
        if container is None:
            continue
        if not container.get("Image"):
            raise Stop("--image is missing: the URI that build_and_push.sh printed")
        if any(letter.isspace() for letter in container["Image"]) or len(container["Image"]) > 255:
            raise Stop(f"{container['Image']!r} is no image's URI")
        if not model.get("ExecutionRoleArn"):
            raise Stop("--role is missing: the ARN of the role that SageMaker takes")
        if container.get("Mode") == "MultiModel" and "ModelDataUrl" not in container:
            raise Stop("--multi-model needs --model-data: the prefix under which the archives are")


def serverless(config, made):
    variants = config["ProductionVariants"]
    if not any("ServerlessConfig" in variant for variant in variants):
        return
    if len(variants) > 1 or config.get("ShadowProductionVariants"):
        raise Stop("a serverless endpoint has one variant")
    variant = variants[0]
    memory = variant["ServerlessConfig"]["MemorySizeInMB"]
    if memory not in range(1024, 6145, 1024):
        raise Stop(f"--serverless-memory-mib is 1024, 2048, 3072, 4096, 5120 or 6144, not {memory}")
    ruled_out = {
        "--instance-type": "InstanceType" in variant,
        "--instances": "InitialInstanceCount" in variant,
        "--volume-gib": "VolumeSizeInGB" in variant,
        "--volume-kms": "KmsKeyId" in config,
        "--ami-version": "InferenceAmiVersion" in variant,
        "--routing": "RoutingConfig" in variant,
        "--managed-instances": "ManagedInstanceScaling" in variant,
        "--capture": "DataCaptureConfig" in config,
        "--async-output": "AsyncInferenceConfig" in config,
        "--subnet": any("VpcConfig" in model for model in made),
        "--network-isolation": any(model.get("EnableNetworkIsolation") for model in made),
        "--multi-model": any(model.get("PrimaryContainer", {}).get("Mode") == "MultiModel" for model in made),
    }
    found = [name for name, is_there in ruled_out.items() if is_there]
    if found:
        raise Stop(f"a serverless endpoint can't have {', '.join(found)}")


def config(config, made):
    """A configuration that is about to be made, with the models that it will have."""
    models(made)
    serverless(config, made)
    variants, shadows = config["ProductionVariants"], config.get("ShadowProductionVariants", [])
    if shadows and (len(variants), len(shadows)) != (1, 1):
        raise Stop("SageMaker takes a shadow variant beside exactly one production variant")
    if "AsyncInferenceConfig" in config and (len(variants) > 1 or shadows):
        raise Stop("an asynchronous endpoint has one variant")
    names = [variant["VariantName"] for variant in [*variants, *shadows]]
    if len(set(names)) != len(names):
        raise Stop(f"two variants have one name: {', '.join(names)}")
    for variant in variants:
        kind = variant.get("InstanceType", "")
        if config.get("KmsKeyId") and kind and has_local_storage(kind):
            say(f"warning: {kind} encrypts its own disk with a key of its hardware; --volume-kms doesn't apply to that")
        if variant.get("InferenceAmiVersion", "").find("-gpu-") >= 0 and kind and not has_gpu(kind):
            say(f"warning: {variant['InferenceAmiVersion']} is for machines with a GPU, and {kind} seems to have none")


def rollout(request, config):
    """How an update is shifted, against what it is an update of."""
    policy = request.get("DeploymentConfig", {})
    if "RollingUpdatePolicy" in policy:
        if len(config["ProductionVariants"]) > 1 or config.get("ShadowProductionVariants"):
            raise Stop("SageMaker rolls only endpoints of one variant; --all-at-once, --canary and --linear take others")
        if "ServerlessConfig" in config["ProductionVariants"][0]:
            raise Stop("SageMaker doesn't roll serverless endpoints; --all-at-once, --canary and --linear take them")
