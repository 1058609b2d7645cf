"""Clients of other systems, unchanged but for the URL: Hugging Face's, Text Generation Inference's, LangChain's and boto3's.

usage: neighbours.py URL FORETYPE     the server, and the program that stands in for SageMaker's runtime
"""

import json
import re
import subprocess
import sys

import boto3
import botocore.config
import openai
from huggingface_hub import InferenceClient
from langchain_aws import SagemakerEndpoint
from langchain_aws.llms.sagemaker_endpoint import LLMContentHandler
from text_generation import Client

URL, FORETYPE = sys.argv[1:]
PROMPT = "wireless"


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
    for check in (hugging_face, text_generation, boto, langchain, openai_client):
        check()
        print(f"e2e: {check.__name__} is fine")
finally:
    standin.terminate()
