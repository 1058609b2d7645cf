"""Clients of other systems, unchanged but for the URL: Hugging Face's, Text Generation Inference's, LangChain's, OpenAI's, and
AWS's boto3, command line and SageMaker SDK.

usage: neighbours.py URL FORETYPE     the server, and the program that stands in for SageMaker's runtime
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import boto3
import botocore.config
import openai
from huggingface_hub import InferenceClient
from langchain_aws import SagemakerEndpoint
from langchain_aws.llms.sagemaker_endpoint import LLMContentHandler
from sagemaker.core.deserializers import JSONDeserializer, JSONLinesDeserializer
from sagemaker.core.resources import Endpoint
from sagemaker.core.serializers import CSVSerializer, IdentitySerializer, JSONLinesSerializer, JSONSerializer
from text_generation import Client

URL, FORETYPE = sys.argv[1:]
PROMPT = "wireless"
AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_MAX_ATTEMPTS": "1"}


def hugging_face():
    for path in ("/invocations", ""):
        client = InferenceClient(model=URL + path)
        text = client.text_generation(PROMPT, max_new_tokens=6)
        whole = client.text_generation(PROMPT, max_new_tokens=6, details=True, decoder_input_details=True)
        assert whole.generated_text == text and text, whole
        assert "".join(token.text for token in whole.details.tokens) == text and whole.details.prefill
        assert "".join(client.text_generation(PROMPT, max_new_tokens=6, stream=True)) == text
        parts = list(client.text_generation(PROMPT, max_new_tokens=6, stream=True, details=True))
        assert parts[-1].generated_text == text and all(part.token.logprob <= 0 for part in parts)


def text_generation():
    client = Client(URL)
    whole = client.generate(PROMPT, max_new_tokens=6, decoder_input_details=True)
    assert whole.details.generated_tokens == len(whole.details.tokens) and whole.generated_text
    sampled = dict(do_sample=True, seed=3, temperature=0.8, top_k=20, top_p=0.9, typical_p=0.9, repetition_penalty=1.1)
    drawn = client.generate(PROMPT, max_new_tokens=6, truncate=3, stop_sequences=["zz"], **sampled)
    assert drawn.details.seed == 3
    parts = list(client.generate_stream(PROMPT, max_new_tokens=6))
    assert parts[-1].generated_text == whole.generated_text == "".join(part.token.text for part in parts)


def runtime():
    config = botocore.config.Config(retries={"max_attempts": 0})
    keys = dict(region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x")
    return boto3.client("sagemaker-runtime", endpoint_url=ENDPOINT, config=config, **keys)


def langchain():
    class Handler(LLMContentHandler):
        content_type = "application/json"
        accepts = "application/json"

        def transform_input(self, prompt, model_kwargs):
            return json.dumps({"inputs": prompt, "parameters": model_kwargs}).encode()

        def transform_output(self, output):
            return json.loads(output.read().decode())[0]["generated_text"]

    llm = SagemakerEndpoint(
        endpoint_name="foretype", client=runtime(), content_handler=Handler(), model_kwargs={"max_new_tokens": 6}
    )
    assert llm.invoke(PROMPT) == InferenceClient(model=URL).text_generation(PROMPT, max_new_tokens=6)


def boto():
    def ask(body, content_type):
        answer = runtime().invoke_endpoint(EndpointName="foretype", ContentType=content_type, Body=body)
        return json.loads(answer["Body"].read())

    (answer,) = ask(json.dumps({"inputs": PROMPT}), "application/json")
    assert ask(PROMPT, "text/plain") == ask(PROMPT, "text/csv") == [answer]
    assert ask(json.dumps({"prompt": PROMPT}), "application/json")["choices"]


def aws_command_line():
    """The command line's first version, which takes a body as it is; `fileb://` is read alike by the second."""
    program = pathlib.Path(sys.executable).with_name("aws")

    def ask(content_type, body, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            body_file, answer = pathlib.Path(folder, "body"), pathlib.Path(folder, "answer")
            body_file.write_text(body)
            command = [program, "sagemaker-runtime", "invoke-endpoint", "--endpoint-url", ENDPOINT]
            command += ["--endpoint-name", "foretype", "--content-type", content_type, "--body", f"fileb://{body_file}"]
            ran = subprocess.run([*command, *arguments, answer], capture_output=True, text=True, env={**os.environ, **AWS})
            told = json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr
            return told, answer.read_text() if answer.exists() else ""

    told, answer = ask("application/json", json.dumps({"input": PROMPT}))
    assert told["ContentType"].startswith("application/json"), told
    assert all(suggestion["text"].startswith(PROMPT) for suggestion in json.loads(answer)["suggestions"]), answer
    (text,) = json.loads(ask("application/json", json.dumps({"inputs": PROMPT}))[1])
    assert json.loads(ask("text/csv", PROMPT)[1]) == [text]
    lines = ask("application/jsonlines", json.dumps({"input": PROMPT}) + "\n" + json.dumps({"inputs": PROMPT}))[1]
    assert len(lines.splitlines()) == 2, lines
    told, _ = ask("application/json", json.dumps({"requestType": "NEW_SESSION"}), "--session-id", "NEW_SESSION")
    assert told["NewSessionId"], told
    told, _ = ask("application/json", "{}")
    assert "ModelError" in told and "missing field `input`" in told, told


def sagemaker_sdk():
    os.environ.update(AWS, AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME=ENDPOINT)

    def ask(body, serializer, deserializer):
        endpoint = Endpoint(endpoint_name="foretype", serializer=serializer, deserializer=deserializer)
        (accept,) = deserializer.ACCEPT
        return endpoint.invoke(body, content_type=serializer.CONTENT_TYPE, accept=accept, region="eu-central-1").body

    as_json = JSONDeserializer()
    assert ask({"input": PROMPT}, JSONSerializer(), as_json)["suggestions"]
    (answer,) = ask({"inputs": PROMPT}, JSONSerializer(), as_json)
    assert ask([PROMPT, "heat"], CSVSerializer(), as_json)[0] == answer, "a column of prompts"
    assert ask([[PROMPT, "heat"]], CSVSerializer(), as_json)[0] == answer, "a row of prompts"
    lines = ask([{"inputs": PROMPT}, {"input": PROMPT}], JSONLinesSerializer(), JSONLinesDeserializer())
    assert lines[0] == [answer] and lines[1]["suggestions"], lines
    assert ask(json.dumps({"inputs": PROMPT}).encode(), IdentitySerializer(), as_json) == [answer], "octets"
    assert ask(PROMPT.encode(), IdentitySerializer(content_type="text/plain"), as_json) == [answer]


def openai_client():
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    asked = dict(model=model, max_tokens=5, temperature=0)
    text = client.completions.create(prompt="heat", logprobs=5, **asked).choices[0]
    assert all(len(best) <= 5 for best in text.logprobs.top_logprobs)
    prefill = InferenceClient(model=URL).text_generation("heat", details=True, decoder_input_details=True).details.prefill
    ids = [token.id for token in prefill]
    tokens = client.completions.create(prompt=[ids, ids], echo=True, **asked).choices
    assert [choice.text for choice in tokens] == ["heat" + text.text] * 2


standin = subprocess.Popen(
    [FORETYPE, "local-endpoint", "--target", URL, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
ENDPOINT = re.search(r"http://[^ ,]*[0-9]", standin.stdout.readline()).group()
try:
    for check in (hugging_face, text_generation, boto, aws_command_line, sagemaker_sdk, langchain, openai_client):
        check()
        print(f"e2e: {check.__name__} is fine")
finally:
    standin.terminate()
