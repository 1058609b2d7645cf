"""Asks an endpoint: an answer, a stream, or an answer that is left in a bucket."""

import json
import sys

from deploy.aws import Stop

RUNTIME = "sagemaker-runtime"


def common(options):
    request = {"EndpointName": options.name, "ContentType": "application/json"}
    named = {
        "TargetVariant": options.variant,
        "InferenceComponentName": options.component,
        "TargetModel": getattr(options, "target_model", None),
    }
    return request | {key: value for key, value in named.items() if value is not None}


def invoke(aws, options):
    if options.async_input:
        if not options.async_input.startswith("s3://"):
            raise Stop(f"--async-input is s3://BUCKET/KEY, not {options.async_input!r}")
        request = {"EndpointName": options.name, "ContentType": "application/json", "InputLocation": options.async_input}
        print(aws.call(RUNTIME, "invoke_endpoint_async", **request).get("OutputLocation", ""))
        return
    if options.text is None:
        raise Stop("a text is missing")
    answer = aws.call(RUNTIME, "invoke_endpoint", **common(options), Body=json.dumps({"input": options.text}))
    if not aws.dry_run:
        print(json.dumps(json.loads(answer["Body"].read()), indent=2, ensure_ascii=False))


def stream(aws, options):
    body = json.dumps({"input": options.text, "stream": True})
    answer = aws.call(RUNTIME, "invoke_endpoint_with_response_stream", **common(options), Body=body)
    for event in answer.get("Body", ()):
        if "PayloadPart" not in event:
            raise Stop(f"the stream broke: {event}")
        sys.stdout.buffer.write(event["PayloadPart"]["Bytes"])
        sys.stdout.flush()
