"""The image on this machine, with SageMaker's runtime API in front of it."""

import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from deploy.aws import Stop, say


def commands(options, container):
    network = ["--network", options.network] if options.network else []
    network += [] if options.network == "host" else ["-p", f"127.0.0.1:{options.container_port}:8080"]
    inner = options.container_port if options.network == "host" else 8080
    volume = ["--volume", f"{Path(options.model).resolve()}:/opt/ml/model:ro"] if options.model else []
    run = ["docker", "run", "--detach", "--rm", "--name", container, *network, "--env", f"SAGEMAKER_BIND_TO_PORT={inner}"]
    run += [word for key, value in options.env or [] for word in ("--env", f"{key}={value}")]
    endpoint = [options.foretype, "local-endpoint", "--port", str(options.port), "--target", f"http://127.0.0.1:{options.container_port}"]
    return [*run, *volume, options.image, "serve"], endpoint


def local(aws, options):
    container = f"foretype-local-{options.port}"
    start, endpoint = commands(options, container)
    if aws.dry_run:
        for command in (start, endpoint):
            print(shlex.join(command))
        return
    if options.model and not Path(options.model).is_dir():
        raise Stop(f"there is no folder {options.model}; --model is a bundle or a checkpoint")
    if not shutil.which("docker"):
        raise Stop("docker is missing")
    if not shutil.which(options.foretype):
        raise Stop(f"there is no {options.foretype}; `cargo build --release` makes it, and --foretype names another")
    # SIGTERM, as of a supervisor or `timeout`, ends it as Ctrl-C does: the container must not stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = subprocess.run(start, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if found.returncode:
            raise Stop(f"docker could not start the container: {found.stderr.strip()}")
        say(f"invocations: python3 -m deploy invoke any-name amazon --endpoint-url http://127.0.0.1:{options.port}   (Ctrl-C ends it)")
        with subprocess.Popen(endpoint) as process:
            try:
                if process.wait():
                    raise Stop(f"{options.foretype} local-endpoint ended with {process.returncode}")
            finally:
                process.terminate()
    except KeyboardInterrupt:
        pass
    finally:
        # Another signal must not leave the container behind after all.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        subprocess.run(["docker", "stop", "--time", "30", container], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
