"""A stand-in for SageMaker and Application Auto Scaling behind boto3, with the refusals and answers of the real one.

moto takes what AWS refuses, so these tests don't rely on it. Requests are checked against the constraints of AWS's own service model
(required members, enumerations, patterns, lengths), and answers are bytes on the wire, so that boto3 reads errors as it does those
of AWS. The bodies of refusals are as AWS writes them.
"""

import copy
import functools
import json
import re

import botocore.session
from botocore.awsrequest import AWSResponse

ACCOUNT, REGION = "123456789012", "eu-central-1"
WHEN = 1790000000.0
BOTH = "Both ModelDataUrl and ModelDataSource are specified. Specify only one of them."


class Refusal(Exception):
    def __init__(self, message, code="ValidationException", status=400):
        super().__init__(message)
        self.code, self.status = code, status


def violations(shape, value, at=""):
    """What AWS's own front end would find wrong with a request."""
    if shape.type_name == "structure":
        for name in shape.required_members:
            if name not in value:
                yield f"Value at '{at}{name}' failed to satisfy constraint: Member must not be null"
        for name, inner in value.items():
            yield from violations(shape.members[name], inner, f"{at}{name}.")
    elif shape.type_name == "list":
        yield from length(shape, len(value), at)
        for number, inner in enumerate(value):
            yield from violations(shape.member, inner, f"{at}{number}.")
    elif shape.type_name == "map":
        yield from length(shape, len(value), at)
    elif shape.type_name == "string":
        yield from length(shape, len(value), at)
        # Python has neither \p{...}, as in tags, nor UTF-16's halves, as in Application Auto Scaling.
        pattern = shape.metadata.get("pattern", "")
        if pattern and "\\p{" not in pattern and "\\u" not in pattern and not re.fullmatch(pattern, value):
            yield f"Value '{value}' at '{at}' failed to satisfy constraint: Member must satisfy regular expression pattern: {pattern}"
        if shape.enum and value not in shape.enum:
            yield f"Value '{value}' at '{at}' failed to satisfy constraint: Member must satisfy enum value set: {shape.enum}"
    elif shape.type_name in ("integer", "long", "float"):
        yield from length(shape, value, at)


def length(shape, size, at):
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and size < low) or (high is not None and size > high):
        yield f"Value at '{at}' failed to satisfy constraint: Member must be between {low} and {high}"


@functools.cache
def service_models():
    loaded = botocore.session.get_session()
    return {name: loaded.get_service_model(name) for name in ("sagemaker", "application-autoscaling")}


class Raw:
    def __init__(self, body):
        self.body = body

    def stream(self, **_):
        yield self.body


class SageMaker:
    """`calls` are what was asked; `refuse` makes the next calls of an operation fail; `fate` is what becomes of a new configuration."""

    def __init__(self):
        self.services = service_models()
        self.calls, self.refusals = [], {}
        self.endpoints, self.configs, self.models, self.components = {}, {}, {}, {}
        self.targets, self.policies, self.tags = {}, {}, {}
        self.fate = "InService"

    def refuse(self, operation, message, code="ValidationException"):
        self.refusals[operation] = Refusal(message, code)

    def asked(self, operation):
        return [request for name, request in self.calls if name == operation]

    def writes(self):
        return [name for name, _ in self.calls if not name.startswith(("Describe", "List"))]

    def send(self, request, **_):
        """For boto3's event before-send."""
        service = "sagemaker" if request.headers["X-Amz-Target"].decode().startswith("SageMaker") else "application-autoscaling"
        operation = request.headers["X-Amz-Target"].decode().split(".")[1]
        asked = json.loads(request.body or b"{}")
        self.calls.append((operation, asked))
        try:
            if operation in self.refusals:
                raise self.refusals[operation]
            wrong = list(violations(self.services[service].operation_model(operation).input_shape, asked))
            if wrong:
                raise Refusal(f"{len(wrong)} validation errors detected: " + "; ".join(wrong))
            status, answer = 200, getattr(self, re.sub(r"(?<!^)([A-Z])", r"_\1", operation).lower())(asked) or {}
        except Refusal as refusal:
            status, answer = refusal.status, {"__type": refusal.code, "message": str(refusal)}
        body = json.dumps(answer, default=str).encode()
        return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.1"}, Raw(body))

    # ---- things with names

    @staticmethod
    def arn(kind, name):
        return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}/{name.lower()}"

    def put(self, things, kind, name, request):
        if name in things:
            raise Refusal(f'Cannot create already existing {kind} "{self.arn(kind, name)}".')
        made = copy.deepcopy(request)
        self.tags[self.arn(kind, name)] = made.pop("Tags", [])
        things[name] = made
        return made

    def get(self, things, kind, name, words=None):
        if name not in things:
            raise Refusal(f'Could not find {words or kind} "{self.arn(kind, name)}".')
        return things[name]

    @staticmethod
    def listed(things, contains, answer):
        return [answer(name) for name in things if contains is None or contains.lower() in name.lower()]

    def list_tags(self, asked):
        # Two to a page, so that whoever reads the first only is found out.
        first = int(asked.get("NextToken", 0))
        there = self.tags.get(asked["ResourceArn"], [])
        return {"Tags": there[first : first + 2]} | ({"NextToken": str(first + 2)} if len(there) > first + 2 else {})

    def add_tags(self, asked):
        self.tags[asked["ResourceArn"]] += asked["Tags"]
        return {"Tags": self.tags[asked["ResourceArn"]]}

    # ---- models and configurations

    def create_model(self, asked):
        container = asked.get("PrimaryContainer", {})
        if "ModelDataUrl" in container and "ModelDataSource" in container:
            raise Refusal(BOTH)
        made = self.put(self.models, "model", asked["ModelName"], asked)
        if container.get("ModelDataUrl", "").endswith(".tar.gz"):
            # So AWS answers DescribeModel, and would not take it.
            source = {"S3Uri": container["ModelDataUrl"], "S3DataType": "S3Object", "CompressionType": "Gzip", "ETag": "5d41402a"}
            made["PrimaryContainer"]["ModelDataSource"] = {"S3DataSource": source}
        return {"ModelArn": self.arn("model", asked["ModelName"])}

    def describe_model(self, asked):
        found = self.get(self.models, "model", asked["ModelName"])
        return {"EnableNetworkIsolation": False} | found | {"ModelArn": self.arn("model", asked["ModelName"]), "CreationTime": WHEN}

    def delete_model(self, asked):
        self.get(self.models, "model", asked["ModelName"])
        del self.models[asked["ModelName"]]

    def list_models(self, asked):
        made = self.listed(
            self.models,
            asked.get("NameContains"),
            lambda name: {"ModelName": name, "ModelArn": self.arn("model", name), "CreationTime": WHEN},
        )
        return {"Models": made}

    def create_endpoint_config(self, asked):
        for variant in asked["ProductionVariants"] + asked.get("ShadowProductionVariants", []):
            if "ModelName" in variant:
                self.get(self.models, "model", variant["ModelName"])
            elif "ExecutionRoleArn" not in asked:
                raise Refusal("ExecutionRoleArn is required for endpoint configs without model names.")
            if ("ServerlessConfig" in variant) == ("InstanceType" in variant):
                raise Refusal("Exactly one of ServerlessConfig and InstanceType must be specified.")
        self.put(self.configs, "endpoint-config", asked["EndpointConfigName"], asked)
        return {"EndpointConfigArn": self.arn("endpoint-config", asked["EndpointConfigName"])}

    def describe_endpoint_config(self, asked):
        name = asked["EndpointConfigName"]
        found = self.get(self.configs, "endpoint-config", name, "endpoint configuration")
        return {"EnableNetworkIsolation": False} | found | {"EndpointConfigArn": self.arn("endpoint-config", name), "CreationTime": WHEN}

    def delete_endpoint_config(self, asked):
        self.get(self.configs, "endpoint-config", asked["EndpointConfigName"], "endpoint configuration")
        del self.configs[asked["EndpointConfigName"]]

    def list_endpoint_configs(self, asked):
        def answer(name):
            return {"EndpointConfigName": name, "EndpointConfigArn": self.arn("endpoint-config", name), "CreationTime": WHEN}

        return {"EndpointConfigs": self.listed(self.configs, asked.get("NameContains"), answer)}

    # ---- endpoints

    def live(self, variants):
        made = []
        for variant in variants:
            one = {"VariantName": variant["VariantName"]}
            if "InitialInstanceCount" in variant:
                one |= {"DesiredInstanceCount": variant["InitialInstanceCount"], "CurrentInstanceCount": variant["InitialInstanceCount"]}
            if "ModelName" in variant:
                one |= {
                    "DesiredWeight": variant.get("InitialVariantWeight", 1.0),
                    "CurrentWeight": variant.get("InitialVariantWeight", 1.0),
                }
            made.append(one)
        return made

    def create_endpoint(self, asked):
        config = self.get(self.configs, "endpoint-config", asked["EndpointConfigName"], "endpoint configuration")
        made = self.put(self.endpoints, "endpoint", asked["EndpointName"], asked)
        for key in ("ProductionVariants", "ShadowProductionVariants"):
            if key in config:
                made[key] = self.live(config[key])
        self.becomes(made, "Creating", self.fate if self.fate != "RolledBack" else "Failed")
        return {"EndpointArn": self.arn("endpoint", asked["EndpointName"])}

    @staticmethod
    def becomes(endpoint, now, then):
        endpoint["states"] = [now, then]
        if then == "Failed":
            endpoint["FailureReason"] = "The primary container for production variant AllTraffic did not pass the ping health check."

    def describe_endpoint(self, asked):
        found = self.get(self.endpoints, "endpoint", asked["EndpointName"])
        states = found["states"]
        status = states.pop(0) if len(states) > 1 else states[0]
        if status == "Gone":
            del self.endpoints[asked["EndpointName"]]
            return self.describe_endpoint(asked)
        answer = {key: value for key, value in found.items() if key != "states"}
        moments = {"CreationTime": WHEN, "LastModifiedTime": WHEN}
        return answer | moments | {"EndpointArn": self.arn("endpoint", asked["EndpointName"]), "EndpointStatus": status}

    def update_endpoint(self, asked):
        name, config_name = asked["EndpointName"], asked["EndpointConfigName"]
        found = self.get(self.endpoints, "endpoint", name)
        config = self.get(self.configs, "endpoint-config", config_name, "endpoint configuration")
        if len(found["states"]) > 1:
            raise Refusal(f'Cannot update in-progress endpoint "{self.arn("endpoint", name)}".')
        before = {variant["VariantName"]: variant for variant in found["ProductionVariants"]}
        after = self.live(config["ProductionVariants"])
        if asked.get("DeploymentConfig") and set(before) != {variant["VariantName"] for variant in after}:
            raise Refusal("DeploymentConfig can't be used when the variant names of the endpoint configurations differ.")
        if self.fate == "RolledBack":
            found["states"] = ["Updating", "RollingBack", "InService"]
            found["FailureReason"] = "One or more configured alarm(s) moved into ALARM state."
            return {"EndpointArn": self.arn("endpoint", name)}
        if asked.get("RetainAllVariantProperties"):
            excluded = {one["VariantPropertyType"] for one in asked.get("ExcludeRetainedVariantProperties", [])}
            for variant in after:
                kept = [word for word in ("InstanceCount", "Weight") if f"Desired{word}" not in excluded]
                old = before.get(variant["VariantName"], {})
                variant |= {key: old[key] for word in kept for key in (f"Desired{word}", f"Current{word}") if key in old}
        found |= {"EndpointConfigName": config_name, "ProductionVariants": after}
        found.pop("ShadowProductionVariants", None)
        if "ShadowProductionVariants" in config:
            found["ShadowProductionVariants"] = self.live(config["ShadowProductionVariants"])
        if "DeploymentConfig" in asked:
            found["LastDeploymentConfig"] = asked["DeploymentConfig"]
        self.becomes(found, "Updating", self.fate)
        if self.fate == "Failed":
            # What comes next is whoever goes back.
            self.fate = "InService"
        return {"EndpointArn": self.arn("endpoint", name)}

    def update_endpoint_weights_and_capacities(self, asked):
        found = self.get(self.endpoints, "endpoint", asked["EndpointName"])
        for wanted in asked["DesiredWeightsAndCapacities"]:
            for variant in found["ProductionVariants"]:
                if variant["VariantName"] == wanted["VariantName"]:
                    variant |= {"DesiredWeight": wanted["DesiredWeight"], "CurrentWeight": wanted["DesiredWeight"]}
        found["states"] = ["Updating", "InService"]
        return {"EndpointArn": self.arn("endpoint", asked["EndpointName"])}

    def delete_endpoint(self, asked):
        found = self.get(self.endpoints, "endpoint", asked["EndpointName"])
        if len(found["states"]) > 1:
            raise Refusal(f'Cannot update in-progress endpoint "{self.arn("endpoint", asked["EndpointName"])}".')
        found["states"] = ["Deleting", "Gone"]

    def list_endpoints(self, asked):
        def answer(name):
            moments = {"CreationTime": WHEN, "LastModifiedTime": WHEN}
            return {"EndpointName": name, "EndpointArn": self.arn("endpoint", name), "EndpointStatus": "InService"} | moments

        return {"Endpoints": self.listed(self.endpoints, asked.get("NameContains"), answer)}

    # ---- inference components

    def create_inference_component(self, asked):
        self.get(self.endpoints, "endpoint", asked["EndpointName"])
        made = self.put(self.components, "inference-component", asked["InferenceComponentName"], asked)
        container = made["Specification"]["Container"]
        image = container.pop("Image")
        container["DeployedImage"] = {"SpecifiedImage": image, "ResolvedImage": image + "@sha256:0"}
        made["states"] = ["Creating", self.fate]
        return {"InferenceComponentArn": self.arn("inference-component", asked["InferenceComponentName"])}

    def describe_inference_component(self, asked):
        name = asked["InferenceComponentName"]
        found = self.get(self.components, "inference-component", name, "inference component")
        status = found["states"].pop(0) if len(found["states"]) > 1 else found["states"][0]
        if status == "Gone":
            del self.components[name]
            return self.describe_inference_component(asked)
        answer = {key: value for key, value in found.items() if key not in ("states", "RuntimeConfig")}
        rest = {"EndpointArn": "arn", "CreationTime": WHEN, "LastModifiedTime": WHEN, "InferenceComponentStatus": status}
        return answer | rest | {"InferenceComponentArn": self.arn("inference-component", name)}

    def update_inference_component(self, asked):
        found = self.get(self.components, "inference-component", asked["InferenceComponentName"], "inference component")
        found |= {key: value for key, value in asked.items() if key in ("Specification", "RuntimeConfig")}
        found["states"] = ["Updating", "InService"]
        return {"InferenceComponentArn": "arn:aws:sagemaker:eu-central-1:123456789012:inference-component/x"}

    def delete_inference_component(self, asked):
        found = self.get(self.components, "inference-component", asked["InferenceComponentName"], "inference component")
        found["states"] = ["Deleting", "Gone"]

    def list_inference_components(self, asked):
        there = [name for name, found in self.components.items() if found["EndpointName"] == asked.get("EndpointNameEquals")]
        rest = {
            "CreationTime": WHEN,
            "LastModifiedTime": WHEN,
            "EndpointName": asked.get("EndpointNameEquals"),
            "VariantName": "AllTraffic",
        }
        return {
            "InferenceComponents": [
                {"InferenceComponentName": name, "InferenceComponentArn": "arn", "EndpointArn": "arn"} | rest for name in there
            ]
        }

    # ---- Application Auto Scaling

    def register_scalable_target(self, asked):
        key = (asked["ResourceId"], asked["ScalableDimension"])
        self.targets[key] = self.targets.get(key, {}) | asked

    def put_scaling_policy(self, asked):
        if (asked["ResourceId"], asked["ScalableDimension"]) not in self.targets:
            raise Refusal("No scalable target registered for service namespace: sagemaker", "ObjectNotFoundException")
        self.policies[asked["PolicyName"]] = asked
        return {"PolicyARN": "arn:aws:autoscaling:eu-central-1:123456789012:scalingPolicy:x", "Alarms": []}

    def describe_scalable_targets(self, asked):
        wanted = asked.get("ResourceIds")
        return {
            "ScalableTargets": [
                one | {"RoleARN": "r", "CreationTime": WHEN} for one in self.targets.values() if not wanted or one["ResourceId"] in wanted
            ]
        }

    def deregister_scalable_target(self, asked):
        if (asked["ResourceId"], asked["ScalableDimension"]) not in self.targets:
            raise Refusal("No scalable target registered for service namespace: sagemaker", "ObjectNotFoundException")
        del self.targets[asked["ResourceId"], asked["ScalableDimension"]]
