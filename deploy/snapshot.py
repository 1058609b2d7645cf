"""An endpoint as it is, in the words in which it would be asked for again."""

import copy

from deploy import names
from deploy.aws import Stop

# What CreateModel and CreateEndpointConfig take of what DescribeModel and DescribeEndpointConfig answer.
MODEL = ("ExecutionRoleArn", "PrimaryContainer", "Containers", "InferenceExecutionConfig", "VpcConfig", "EnableNetworkIsolation")
CONFIG = (
    "ProductionVariants",
    "ShadowProductionVariants",
    "DataCaptureConfig",
    "KmsKeyId",
    "AsyncInferenceConfig",
    "ExplainerConfig",
    "ExecutionRoleArn",
    "VpcConfig",
    "EnableNetworkIsolation",
    "MetricsConfig",
    "CrossRegionTrafficConfig",
)


def filled(answer, keys):
    """What is there; SageMaker refuses some empty values that it answers itself."""
    return {key: copy.deepcopy(answer[key]) for key in keys if answer.get(key) not in (None, "", [], {}, False)}


def as_asked(container):
    """A container's source once. SageMaker answers an archive both ways, and refuses both ways in a request."""
    source = container.get("ModelDataSource", {}).get("S3DataSource")
    if source and container.get("ModelDataUrl"):
        if source.get("CompressionType") == "Gzip":
            del container["ModelDataSource"]
        else:
            del container["ModelDataUrl"]
    if source:
        # Of the object that was there when the model was made.
        for key in ("ETag", "ManifestEtag"):
            source.pop(key, None)
    return filled(container, container)


def model(aws, name):
    found = aws.find("sagemaker", "describe_model", ModelName=name)
    if found is None:
        raise Stop(f"the model {name} is gone, so the variant that has it can't be kept; name --image, --role and --model-data again")
    made = filled(found, MODEL)
    if "PrimaryContainer" in made:
        made["PrimaryContainer"] = as_asked(made["PrimaryContainer"])
    return made


class Snapshot:
    """An endpoint, its configuration with the live counts and weights, and its tags."""

    def __init__(self, aws, name):
        names.checked(name)
        found = aws.find("sagemaker", "describe_endpoint", EndpointName=name)
        if found is None:
            raise Stop(f"there is no endpoint called {name} here{similar(aws, name)}")
        self.name, self.arn, self.status = name, found["EndpointArn"], found["EndpointStatus"]
        self.config_name = found["EndpointConfigName"]
        self.last_deployment = found.get("LastDeploymentConfig")
        config = aws.find("sagemaker", "describe_endpoint_config", EndpointConfigName=self.config_name)
        if config is None:
            raise Stop(f"{name} has lost its configuration {self.config_name}, so it isn't known what to keep; make a new endpoint")
        self.config = filled(config, CONFIG)
        live = {
            variant["VariantName"]: variant for key in ("ProductionVariants", "ShadowProductionVariants") for variant in found.get(key, [])
        }
        for variant in self.variants():
            as_it_lives(variant, live.get(variant["VariantName"], {}))
        self.tags = aws.tags(self.arn)

    def variants(self):
        return [*self.config["ProductionVariants"], *self.config.get("ShadowProductionVariants", [])]

    def variant(self, name=None):
        """The variant that is meant: by its name, or the only one."""
        found = [variant for variant in self.variants() if name in (None, variant["VariantName"])]
        if len(found) == 1:
            return found[0]
        there = ", ".join(variant["VariantName"] for variant in self.variants())
        raise Stop(f"{self.name} has the variants {there}; --variant names the one that is meant" + (f", not {name}" if name else ""))

    def must_rest(self):
        if self.status != "InService":
            raise Stop(f"{self.name} is {self.status}; it can be changed when it is InService")


def as_it_lives(variant, live):
    """Scaling and weights have changed since the configuration was made; going back to that would be a fall."""
    count = live.get("DesiredInstanceCount") or live.get("CurrentInstanceCount")
    if count and "InitialInstanceCount" in variant:
        variant["InitialInstanceCount"] = count
    weight = live.get("DesiredWeight", live.get("CurrentWeight"))
    if weight is not None and "InitialVariantWeight" in variant:
        variant["InitialVariantWeight"] = weight
    serverless = live.get("DesiredServerlessConfig") or live.get("CurrentServerlessConfig")
    if serverless and "ServerlessConfig" in variant:
        variant["ServerlessConfig"] = copy.deepcopy(serverless)


def similar(aws, name):
    """For a name that was mistyped: those that begin like it."""
    found = aws.call("sagemaker", "list_endpoints", NameContains=name[:3], MaxResults=100).get("Endpoints", [])
    there = [endpoint["EndpointName"] for endpoint in found if endpoint["EndpointName"].startswith(name[:3])][:5]
    return f"; there is: {', '.join(there)}" if there else ""
