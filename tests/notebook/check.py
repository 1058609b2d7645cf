"""Runs deploy/foretype.ipynb: against moto where it asks AWS, and `foretype local-endpoint` where it invokes.

usage: check.py FORETYPE      the program

  FORETYPE_TORCH_VENV  an environment with PyTorch and transformers, for the training; without it, the demo's
                       checkpoint is used
"""

import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import boto3
import nbclient
import nbformat
from moto.core.responses import ActionResult
from moto.sagemaker.responses import SageMakerResponse
from moto.server import ThreadedMotoServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "deploy/foretype.ipynb"
REGION = "eu-central-1"


def check_committed(notebook):
    """What a run leaves behind is not committed."""
    nbformat.validate(notebook)
    for number, cell in enumerate(notebook.cells):
        assert cell.cell_type != "code" or not cell.outputs and cell.execution_count is None, (
            f"cell {number} has outputs: clear them"
        )


def start(*words):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, re.search(r"http://[^ ,]*[0-9]", process.stdout.readline()).group()


def printed(notebook, words):
    """What the cell printed that has these words in its source."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and words in cell.source]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def main():
    program = sys.argv[1]
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    check_committed(notebook)
    # moto lacks it; no endpoint here has any.
    none = ActionResult({"InferenceComponents": []})
    SageMakerResponse.list_inference_components = lambda _: none
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    lent = os.environ.get("FORETYPE_TORCH_VENV")
    with tempfile.TemporaryDirectory() as scratch:
        # The endpoint that is invoked: the demo, as AWS would answer.
        server, address = start(
            program, "serve", "--model", ROOT / "models/demo", "--port", "0", "--cache", f"{scratch}/cache"
        )
        runtime, runtime_address = start(program, "local-endpoint", "--target", address, "--port", "0")
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": runtime_address,
            "FORETYPE_WORK": f"{scratch}/work",
            "FORETYPE_PROGRAM": program,
            "BUCKET": "models",
            "ROLE": "arn:aws:iam::123456789012:role/service-role/foretype",
            "IMAGE": f"123456789012.dkr.ecr.{REGION}.amazonaws.com/foretype:1",
            "INSTANCE": "ml.c5.xlarge",  # moto doesn't know newer ones
            "TRAIN": "yes" if lent else "no",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if lent:
            os.environ["TRAINING_PYTHON"] = f"{lent}/bin/python"
        try:
            location = {"LocationConstraint": REGION}
            boto3.client("s3").create_bucket(Bucket="models", CreateBucketConfiguration=location)
            client = nbclient.NotebookClient(
                notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": ROOT / "deploy"}}
            )
            client.execute()
            for words in ('ask(local, {"input"', "ask(aws, "):
                said = printed(notebook, words)
                assert "wireless char" in said and re.match(r"0\.\d\d  ", said), said
            assert (
                boto3.client("s3").head_object(Bucket="models", Key="foretype/model.tar.gz")["ContentLength"] > 100_000
            )
            sagemaker = boto3.client("sagemaker")
            assert not sagemaker.list_endpoints()["Endpoints"] and not sagemaker.list_models()["Models"], (
                "nothing that costs is left"
            )
        finally:
            for process in (runtime, server):
                process.terminate()
                process.wait()
            moto.stop()
    print("notebook: all is well")


main()
