"""How containers begin and end: loading, stopping under load, dying, and models that can't be used."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import DEMO, IMAGE, Container, docker, wait_for

QUERY = {"input": "wireless char"}


@pytest.mark.alone
def test_pings_say_when_it_is_ready():
    with Container() as container:
        container.wait_listening()
        seen = []
        while not seen or seen[-1].status != 200:
            seen.append(container.ping())
            assert time.monotonic() - container.started < 60, container.logs()
        # The first healthy ping is the truth.
        answer = container.invoke(QUERY)
        assert answer.status == 200
        assert {ping.status for ping in seen} <= {200, 503}
        assert max(ping.seconds for ping in seen) < 2


def batch(size, salt):
    lines = [json.dumps({"input": f"{salt}{number:04d} w", "suggestions": 20}) for number in range(size)]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.alone
def test_sigterm_under_load_loses_nothing_and_ends_in_time():
    with Container() as container:
        container.healthy()
        signalled, results, lock = threading.Event(), [], threading.Lock()

        def client(worker):
            number = 0
            while not (signalled.is_set() and time.monotonic() > ended[0]):
                number += 1
                # Whether it was sent, or refused, before the signal. This thread may come too late with what it means to send.
                before = []

                def sent():
                    before.append(not signalled.is_set())

                try:
                    answer = container.invoke({"input": f"{chr(97 + worker)}{number}", "suggestions": 50}, sent=sent)
                    outcome = answer.status
                except ConnectionRefusedError:
                    sent()
                    outcome = "refused"
                    time.sleep(0.05)
                except OSError as error:
                    sent()
                    outcome = repr(error)
                with lock:
                    results.append((before[0], outcome))

        ended = [float("inf")]
        with ThreadPoolExecutor(32) as pool:
            clients = [pool.submit(client, worker) for worker in range(16)]
            long = [pool.submit(container.request, "POST", "/invocations", batch(150, f"q{n}"), {"Content-Type": "application/jsonlines"}) for n in range(2)]
            time.sleep(1.5)
            stopped = time.monotonic()
            signalled.set()
            docker("kill", "--signal", "TERM", container.name)
            code = container.wait_exit(32)
            took = time.monotonic() - stopped
            ended[0] = 0
            for task in clients:
                task.result()
            answers = [task.result() for task in long]
        assert code == 0, container.logs()
        assert took < 30
        lost = [outcome for before, outcome in results if before and outcome not in (200, 429)]
        assert not lost, lost
        for answer in answers:
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert len(lines) == 150 and all("suggestions" in line for line in lines)
        assert "cancelled=0" in container.logs()
        print(f"\n{len(results)} requests, none lost; ended {took:.1f} s after SIGTERM")


@pytest.mark.alone
def test_docker_stop_ends_an_idle_container_at_once():
    with Container() as container:
        container.healthy()
        started = time.monotonic()
        docker("stop", "--time", "30", container.name)
        assert time.monotonic() - started < 5
        assert container.wait_exit() == 0


def test_it_can_be_stopped_while_it_loads():
    with Container() as container:
        container.wait_listening()
        docker("stop", "--time", "30", container.name)
        assert container.wait_exit() == 0


@pytest.mark.parametrize("process", ["nginx", "foretype"])
def test_the_container_ends_when_either_dies(process):
    with Container() as container:
        container.healthy()
        container.signal(process, "KILL")
        assert container.wait_exit() != 0
        assert f"{process} ended with status 137" in container.logs()


def built(folder):
    docker("run", "--rm", "--network", "none", "--user", str(os.getuid()), "--volume", f"{DEMO}:/in:ro", "--volume", f"{folder}:/out", IMAGE, "build", "/in", "--out", "/out/bundle")
    return folder / "bundle"


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda bundle: [path.unlink() for path in bundle.iterdir()], "found: nothing"),
        (lambda bundle: cut(bundle / "model.weights"), "the manifest says"),
        (lambda bundle: flip(bundle / "model.weights"), "SHA-256 differs"),
        (lambda bundle: (bundle / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda bundle: (bundle / "manifest.json").write_text("{"), "not a manifest"),
    ],
    ids=["empty", "short", "changed", "incomplete", "no manifest"],
)
def test_a_broken_model_is_told_by_ping_and_one_log_line(tmp_path, spoil, words):
    bundle = built(tmp_path)
    spoil(bundle)
    with Container(model=bundle) as container:
        pings = [container.wait_listening()]

        def is_told():
            pings.append(container.ping())
            return words.encode() in pings[-1].body

        wait_for(words, is_told)
        # Whoever tries again and again would say so by then.
        time.sleep(3)
        pings.append(container.ping())
        assert {ping.status for ping in pings} == {503} and words in pings[-1].json()["error"]["message"]
        assert container.invoke(QUERY).status == 503
        assert container.running()
        errors = [line for line in container.logs().splitlines() if "ERROR" in line]
        assert len(errors) == 1 and words in errors[0], container.logs()
        docker("stop", "--time", "30", container.name)
        assert container.wait_exit() == 0


def test_models_come_as_bundles_checkpoints_archives_and_one_folder_down(tmp_path):
    bundle = built(tmp_path)
    docker("run", "--rm", "--network", "none", "--user", str(os.getuid()), "--volume", f"{tmp_path}:/work", IMAGE, "pack", "/work/bundle", "--out", "/work/model.tar.gz")
    (tmp_path / "unpacked").mkdir()
    import tarfile

    with tarfile.open(tmp_path / "model.tar.gz") as archive:
        assert all(member.isreg() for member in archive)
        archive.extractall(tmp_path / "unpacked", filter="data")
    down = tmp_path / "down"
    down.mkdir()
    bundle.rename(down / "inner")
    for model in (tmp_path / "unpacked", down):
        with Container(model=model) as container:
            container.healthy()
            assert container.invoke(QUERY).status == 200
