"""The gpu image on a stand-in for NVIDIA's base: what is in it, what it says without a GPU, and what its build refuses."""

import json
import os
import subprocess

import pytest
from conftest import ROOT, Container, docker

GPU = "foretype:gpu-standin"
QUERY = {"input": "lithium ion"}


@pytest.fixture
def gpu_image(monkeypatch):
    monkeypatch.setattr("conftest.IMAGE", GPU)
    return GPU


def build(tag, **arguments):
    """The other stages are those of run.sh, so that only the last one is built."""
    values = json.loads(os.environ.get("FORETYPE_BUILD_ARGS", "{}")) | arguments
    words = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    words = ["docker", "build", "--network", "host", "--target", "gpu", "--tag", tag, *words, str(ROOT)]
    built = subprocess.run(words, capture_output=True, text=True)
    return built.returncode, built.stdout + built.stderr


def shell(image, script):
    return docker("run", "--rm", "--network", "none", "--user", "root", "--entrypoint", "sh", image, "-c", script).stdout


def test_its_size_is_that_of_its_files(gpu_image):
    size = int(docker("image", "inspect", "--format", "{{.Size}}", gpu_image).stdout)
    # A file with several links counts once.
    files = shell(gpu_image, "find / -xdev -type f ! -path '/proc/*' ! -path '/sys/*' -printf '%D:%i %s\\n' | sort -u | cut -d ' ' -f 2")
    real = sum(int(line) for line in files.split())
    print(f"container: the gpu image has {size} bytes in its layers, and {real} in its files")
    # What a later layer changes of the base, such as the lists of packages, is in both.
    assert real <= size <= real + 16 * 2**20
    names = shell(gpu_image, "cd /usr/lib/x86_64-linux-gnu && for f in libnvinfer.so*; do [ -L $f ] && echo link || echo file; done").split()
    assert sorted(names) == ["file", "link"]


def test_it_has_the_packages_of_its_cuda(gpu_image):
    versions = "dpkg-query --show --showformat '${Version}\\n' libnvinfer11 libnvonnxparsers11"
    assert set(shell(gpu_image, versions).split()) == {"11.4.0.106-1+cuda13.4"}
    found = shell(gpu_image, "ldconfig -p || /sbin/ldconfig -p")
    missing = [name for name in ("libnvinfer.so.11", "libnvrtc.so.13", "libcublas.so.13", "libcudnn.so.9") if name not in found]
    assert not missing, found
    libraries = shell(gpu_image, "ls /opt/foretype").split()
    assert "libonnxruntime_providers_cuda.so" in libraries
    assert sum(name.startswith("libonnxruntime.so") for name in libraries) == 1

    code, said = build("foretype:gpu-standin-12", CUDA="12.9.1", ACCEPT_NVIDIA_LICENCES="yes")
    assert code == 0, said[-2000:]
    assert set(shell("foretype:gpu-standin-12", versions).split()) == {"11.4.0.106-1+cuda12.9"}
    found = shell("foretype:gpu-standin-12", "ldconfig -p || /sbin/ldconfig -p")
    assert "libnvrtc.so.12" in found and "libnvrtc.so.13" not in found
    assert "libonnxruntime_providers_cuda.so" not in shell("foretype:gpu-standin-12", "ls /opt/foretype")


def test_without_a_gpu_a_ping_says_so(gpu_image):
    with Container() as container:
        container.wait_listening()
        while "is being loaded" in (said := container.ping()).body.decode():
            pass
        assert said.status == 503
        assert "no GPU can be used: the CUDA driver libcuda.so.1 can't be loaded" in said.body.decode()
    # Who wants the CPU says so.
    with Container(env={"FORETYPE_BACKEND": "auto", "FORETYPE_DEVICE": "cpu"}) as container:
        container.healthy()
        assert container.invoke(QUERY).status == 200
        assert container.execute("id -u; echo ${LD_LIBRARY_PATH-unset}").stdout == "10001\nunset\n"


def test_all_gpus_of_an_instance_are_the_default(gpu_image):
    variables = json.loads(docker("image", "inspect", "--format", "{{json .Config.Env}}", gpu_image).stdout)
    assert {"FORETYPE_BACKEND=tensorrt", "FORETYPE_DEVICE=cuda:all"} <= set(variables)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "accept them with --build-arg ACCEPT_NVIDIA_LICENCES=yes"),
        ({"ACCEPT_NVIDIA_LICENCES": "no"}, "under NVIDIA's licences"),
        ({"ACCEPT_NVIDIA_LICENCES": "yes", "CUDA": "11.8.0"}, "CUDA can't be '11.8.0'"),
    ],
)
def test_its_build_refuses_in_words(arguments, words):
    code, said = build("foretype:refused", **arguments)
    assert code != 0 and words in said, said[-2000:]
