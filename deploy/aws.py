"""Calls of AWS: their errors as sentences, dry runs that only read, and waiting for an endpoint."""

import json
import sys
import time


class Stop(Exception):
    """Ends the program with a sentence."""


class Refused(Stop):
    """AWS said no."""

    def __init__(self, service, operation, code, message):
        super().__init__(f"AWS refused {operation} of {service} ({code}): {message}")
        self.code, self.message = code, message

    @property
    def missing(self):
        """SageMaker has no code of its own for what isn't there; only its words tell it from other refusals."""
        if self.code in ("ObjectNotFoundException", "ResourceNotFound", "ResourceNotFoundException"):
            return True
        return self.code == "ValidationException" and self.message.startswith(("Could not find", "Cannot find"))


BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")
READS = ("describe_", "list_", "get_")


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Aws:
    """The clients, made when they are needed. In a dry run what reads is asked and what changes is printed."""

    def __init__(self, region=None, endpoint_url=None, dry_run=False, poll_seconds=10):
        self.region, self.endpoint_url = region, endpoint_url
        self.dry_run, self.poll_seconds = dry_run, poll_seconds
        self.clients = {}

    def client(self, service):
        if service not in self.clients:
            try:
                import boto3
                from botocore.config import Config
            except ImportError:
                raise Stop("boto3 is missing; pip install --require-hashes -r deploy/requirements.txt brings it") from None
            # Only the runtime's address is named on the command line: of `foretype local-endpoint`.
            url = self.endpoint_url if service == "sagemaker-runtime" else None
            config = Config(retries={"mode": "standard", "max_attempts": 8})
            with sentences(service, "a client"):
                self.clients[service] = boto3.client(service, region_name=self.region, endpoint_url=url, config=config)
        return self.clients[service]

    def call(self, service, operation, /, **request):
        if self.dry_run and not operation.startswith(READS):
            print(json.dumps({"service": service, "operation": operation, "request": request}, indent=2))
            return {}
        client = self.client(service)
        with sentences(service, operation):
            return getattr(client, operation)(**request)

    def pages(self, service, operation, key, /, **request):
        """All that a call which answers in pages lists."""
        found = []
        while True:
            page = self.call(service, operation, **request)
            found += page.get(key, [])
            if not page.get("NextToken"):
                return found
            request["NextToken"] = page["NextToken"]

    def find(self, service, operation, /, **request):
        """None for what isn't there; any other refusal is one."""
        try:
            return self.call(service, operation, **request)
        except Refused as refused:
            if not refused.missing:
                raise
            return None

    def drop(self, operation, /, **request):
        """Deletes what may be gone already."""
        return self.find("sagemaker", operation, **request)

    def tags(self, arn):
        return {tag["Key"]: tag["Value"] for tag in self.pages("sagemaker", "list_tags", "Tags", ResourceArn=arn)}

    def wait(self, endpoint, minutes, until_gone=False):
        """Until the endpoint's state is a last one; says when it changes. None: it is gone."""
        started, last, deleting = time.monotonic(), None, False
        while True:
            found = self.find("sagemaker", "describe_endpoint", EndpointName=endpoint)
            if found is None and until_gone:
                return None
            if found is None:
                raise Stop(f"{endpoint} is gone; somebody else has deleted it")
            status = found["EndpointStatus"]
            if status != last:
                say(f"{time.monotonic() - started:6.0f} s  {endpoint}: {status}")
                last = status
            # What was asked to go may look as before for a moment.
            deleting |= status == "Deleting"
            if status not in BUSY and (deleting or not until_gone):
                return found
            if time.monotonic() - started > minutes * 60:
                raise Stop(f"{endpoint} is still {status} after {minutes:g} minutes; nothing was undone. Look at it in the console")
            time.sleep(self.poll_seconds)


class sentences:  # noqa: N801  used as a statement
    """Turns boto3's exceptions, whose classes are made at run time, into sentences."""

    def __init__(self, service, operation):
        self.service, self.operation = service, operation

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if error is None or isinstance(error, Stop) or not isinstance(error, Exception):
            return
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            said = answer["Error"]
            raise Refused(self.service, self.operation, said.get("Code", "?"), said.get("Message", "no reason given")) from None
        if type(error).__module__.startswith(("botocore", "boto3")):
            words = " ".join(str(error).split())
            hint = "; --region or AWS_REGION names one" if type(error).__name__ == "NoRegionError" else ""
            raise Stop(f"{self.operation} of {self.service} could not be asked: {words}{hint}") from None
