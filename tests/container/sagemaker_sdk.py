#!/usr/bin/env python3
"""The image in the local mode of the SageMaker Python SDK, which starts it with docker-compose. Not part of run.sh: the SDK is large.

    pip install 'sagemaker==2.257.7' docker      apt-get install docker-compose
    sagemaker_sdk.py IMAGE model.tar.gz
"""

import sys
from pathlib import Path

import boto3
from sagemaker.deserializers import JSONDeserializer
from sagemaker.local import LocalSession
from sagemaker.model import Model
from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer

image, archive = sys.argv[1:]
session = LocalSession(boto3.Session(region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"))
session.config = {"local": {"local_code": True, "serving_port": 18080}}
model = Model(
    image_uri=image,
    model_data=f"file://{Path(archive).resolve()}",
    role="arn:aws:iam::123456789012:role/local",
    sagemaker_session=session,
    predictor_cls=lambda name, session: Predictor(name, session, JSONSerializer(), JSONDeserializer()),
)
predictor = model.deploy(1, "local")
try:
    print(predictor.predict({"input": "amazon"})["suggestions"][0])
finally:
    predictor.delete_endpoint()
