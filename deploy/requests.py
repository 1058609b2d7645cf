"""What an option changes in a model, a variant and a configuration, in the words of SageMaker's API.

The same functions make a new endpoint, from defaults, and an update, from what is there. An option that isn't named is None and changes
nothing; `nothing` (--env-remove, --no-model-data and the like) is said in words of its own.
"""

from deploy.aws import Stop, say

# For instances with an NVIDIA GPU: SageMaker's own default has a driver of 2021, with which no current CUDA starts.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
GPU_FAMILIES = ("g4dn", "g5", "g6", "g6e", "gr6", "g7e", "p4d", "p4de", "p5", "p5e", "p5en", "p6", "p6-b200", "p6-b300", "p6e-gb200")
ARCHIVES = (".tgz", ".tar", ".zip", ".gz", ".tbz2", ".bz2", ".xz", ".zst")


def family(instance_type):
    return instance_type.removeprefix("ml.").split(".")[0]


def has_gpu(instance_type):
    return family(instance_type) in GPU_FAMILIES


def has_local_storage(instance_type):
    """Such an instance has a disk of its own, whose size and key are fixed."""
    name = family(instance_type)
    return has_gpu(instance_type) or name.startswith(("trn", "inf2")) or (name[-1] == "d" and name[0] in "mcr")


def new_model(options):
    return apply_to_model({"PrimaryContainer": {"Environment": {}}}, options)


def new_variant(name, options):
    variant = {
        "VariantName": name,
        "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": 600,
        "ContainerStartupHealthCheckTimeoutInSeconds": 600,
    }
    if options.serverless_memory_mib is None:
        variant |= {
            "InstanceType": "ml.c7i.xlarge",
            "InitialInstanceCount": 1,
            "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        }
    if options.components:
        del variant["InitialVariantWeight"]
    return apply_to_variant(variant, options, fresh=True)


# ---- the model


def model_source(container, address, multi_model):
    """Where the model comes from: an archive to unpack, a prefix with the files as they are, or many archives under a prefix."""
    container.pop("ModelDataUrl", None)
    container.pop("ModelDataSource", None)
    bucket, _, key = address.removeprefix("s3://").partition("/")
    if not address.startswith("s3://") or not bucket:
        raise Stop(f"--model-data is s3://BUCKET/..., not {address!r}; `aws s3 cp` brings a file there")
    if multi_model:
        if key and not key.endswith("/"):
            raise Stop(f"with --multi-model the model data is a prefix that ends with /, under which the archives are; not {address!r}")
        container["ModelDataUrl"] = address
    elif address.endswith(".tar.gz"):
        container["ModelDataUrl"] = address
    elif address.endswith(ARCHIVES):
        raise Stop(f"SageMaker unpacks archives that are called .tar.gz, not {address.rsplit('/', 1)[1]!r}; `foretype pack` makes one")
    else:
        # A prefix with the files as they are: nothing to unpack, so large models start sooner.
        source = {"S3Uri": address.rstrip("/") + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}


def environment(container, options):
    made = dict(container.get("Environment", {}))
    for key in options.env_remove or ():
        if key not in made:
            raise Stop(f"there is no {key} in the environment to remove; there are: {', '.join(sorted(made)) or 'none'}")
        del made[key]
    made |= dict(options.env or ())
    if len(made) > 100:
        raise Stop(f"{len(made)} environment variables are too many: SageMaker takes 100")
    if sum(len(key) + len(value) for key, value in made.items()) > 32 * 1024:
        raise Stop("the environment is over 32 KiB, which is the most that SageMaker takes")
    return made


def apply_to_container(container, options):
    if options.image is not None:
        container["Image"] = options.image
    multi_model = container.get("Mode") == "MultiModel" if options.multi_model is None else options.multi_model
    if options.multi_model is not None:
        container.pop("Mode", None)
        container.pop("MultiModelConfig", None)
        if multi_model:
            container |= {"Mode": "MultiModel", "MultiModelConfig": {"ModelCacheSetting": "Enabled"}}
    if options.no_model_data:
        container.pop("ModelDataUrl", None)
        container.pop("ModelDataSource", None)
    elif options.model_data is not None:
        model_source(container, options.model_data, multi_model)
    if options.env or options.env_remove:
        container["Environment"] = environment(container, options)
    if options.container_metrics is False:
        container.pop("ContainerMetricsConfig", None)
    elif options.container_metrics:
        container["ContainerMetricsConfig"] = {"MetricsEndpoints": [{"MetricsEndpointPath": "/metrics"}]}
    return container


def names_container(options):
    named = (options.image, options.model_data, options.env, options.env_remove, options.multi_model, options.container_metrics)
    return options.no_model_data or any(value is not None for value in named)


def names_model(options):
    """Whether a variant's model has to be made anew."""
    named = (options.role, options.subnet, options.network_isolation)
    return names_container(options) or options.no_vpc or any(value is not None for value in named)


def apply_to_model(model, options):
    if options.role is not None:
        model["ExecutionRoleArn"] = options.role
    network(model, options)
    if names_container(options):
        if "PrimaryContainer" not in model:
            raise Stop("this model is a pipeline of containers, which deploy can't change; make a model by hand")
        apply_to_container(model["PrimaryContainer"], options)
    return model


def network(thing, options):
    if options.network_isolation is not None:
        thing.pop("EnableNetworkIsolation", None)
        if options.network_isolation:
            thing["EnableNetworkIsolation"] = True
    if bool(options.subnet) != bool(options.security_group):
        raise Stop("--subnet and --security-group go together: SageMaker takes both or neither")
    if options.no_vpc:
        thing.pop("VpcConfig", None)
    if options.subnet:
        thing["VpcConfig"] = {"SecurityGroupIds": options.security_group, "Subnets": options.subnet}


# ---- the variant


def set_or_drop(thing, key, value, nothing="none"):
    """A named value is set; the word for nothing takes it out."""
    if value == nothing:
        thing.pop(key, None)
    elif value is not None:
        thing[key] = value


def apply_to_variant(variant, options, fresh=False):
    before = variant.get("InstanceType")
    simple = {
        "InstanceType": options.instance_type,
        "InitialInstanceCount": options.instances,
        "InitialVariantWeight": options.weight,
        "ContainerStartupHealthCheckTimeoutInSeconds": options.startup_timeout,
        "ModelDataDownloadTimeoutInSeconds": options.download_timeout,
        "VolumeSizeInGB": options.volume_gib,
    }
    variant |= {key: value for key, value in simple.items() if value is not None}
    if options.routing is not None:
        strategy = {"least-outstanding": "LEAST_OUTSTANDING_REQUESTS", "random": "RANDOM"}[options.routing]
        variant["RoutingConfig"] = {"RoutingStrategy": strategy}
    if options.managed_instances is not None:
        least, most = options.managed_instances
        variant["ManagedInstanceScaling"] = {"Status": "ENABLED", "MinInstanceCount": least, "MaxInstanceCount": most}
    serverless(variant, options)
    kind = variant.get("InstanceType")
    set_or_drop(variant, "InferenceAmiVersion", options.ami_version)
    if options.ami_version is None and kind and (fresh or kind != before):
        # An image of a GPU machine doesn't start on another, and the other way round.
        variant.pop("InferenceAmiVersion", None)
        if has_gpu(kind):
            variant["InferenceAmiVersion"] = GPU_AMI
    if options.volume_gib and kind and has_local_storage(kind):
        say(f"warning: {kind} has a disk of its own, whose size is fixed; SageMaker may refuse --volume-gib")
    return variant


def serverless(variant, options):
    config = dict(variant.get("ServerlessConfig", {}))
    named = {
        "MemorySizeInMB": options.serverless_memory_mib,
        "MaxConcurrency": options.serverless_concurrency,
        "ProvisionedConcurrency": options.serverless_provisioned,
    }
    named = {key: value for key, value in named.items() if value is not None}
    if not named:
        return
    if not config and "MemorySizeInMB" not in named:
        raise Stop("--serverless-memory-mib makes an endpoint serverless; the other --serverless options need it")
    config = {"MaxConcurrency": 5} | config | named
    variant["ServerlessConfig"] = config
    # SageMaker decides these itself.
    for key in ("ModelDataDownloadTimeoutInSeconds", "ContainerStartupHealthCheckTimeoutInSeconds"):
        if getattr(options, {"M": "download_timeout", "C": "startup_timeout"}[key[0]]) is None:
            variant.pop(key, None)


# ---- the configuration


def capture(options):
    request = {
        "EnableCapture": True,
        "InitialSamplingPercentage": 100 if options.capture_percent is None else options.capture_percent,
        "DestinationS3Uri": options.capture,
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
        "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json", "application/jsonlines"]},
    }
    if options.capture_kms:
        request["KmsKeyId"] = options.capture_kms
    return request


def asynchronous(config, options):
    made = config.get("AsyncInferenceConfig", {})
    output, client = dict(made.get("OutputConfig", {})), dict(made.get("ClientConfig", {}))
    topics = dict(output.get("NotificationConfig", {}))
    for place, key, value in [
        (output, "S3OutputPath", options.async_output),
        (output, "S3FailurePath", options.async_failure),
        (output, "KmsKeyId", options.async_kms),
        (topics, "SuccessTopic", options.async_success_topic),
        (topics, "ErrorTopic", options.async_error_topic),
        (client, "MaxConcurrentInvocationsPerInstance", options.async_concurrency),
    ]:
        if value is not None:
            place[key] = value
    if not (output or topics or client):
        return
    if "S3OutputPath" not in output:
        raise Stop("--async-output makes an endpoint asynchronous; the other --async options need it")
    if topics:
        output["NotificationConfig"] = topics
    config["AsyncInferenceConfig"] = {"OutputConfig": output} | ({"ClientConfig": client} if client else {})


def apply_to_config(config, options):
    set_or_drop(config, "KmsKeyId", options.volume_kms)
    if options.capture == "none":
        config.pop("DataCaptureConfig", None)
    elif options.capture is not None:
        config["DataCaptureConfig"] = capture(options)
    elif options.capture_percent is not None or options.capture_kms is not None:
        if "DataCaptureConfig" not in config:
            raise Stop("--capture s3://... says where to; --capture-percent and --capture-kms need it")
        percent = {"InitialSamplingPercentage": options.capture_percent} if options.capture_percent is not None else {}
        config["DataCaptureConfig"] |= percent | ({"KmsKeyId": options.capture_kms} if options.capture_kms else {})
    asynchronous(config, options)
    if options.detailed_observability is not None:
        config["MetricsConfig"] = config.get("MetricsConfig", {}) | {"EnableDetailedObservability": options.detailed_observability}
    # Models bring these; a configuration without models, for inference components, has its own.
    if all("ModelName" not in variant for variant in config["ProductionVariants"]):
        if options.role is not None:
            config["ExecutionRoleArn"] = options.role
        network(config, options)
    return config
