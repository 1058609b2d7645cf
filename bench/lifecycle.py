#!/usr/bin/env python3
"""Measures what happens to keys while models come and go: swaps, warm starts, replicas that follow the load, sleep.

    bench/lifecycle.py target/release/foretype [--only swap,warm,replicas,wake] [--seconds 60] [--rounds 3]

Each part compares its cases in turns on the same machine, in rounds, and says the median of the rounds' ratios.
The results go to bench/results/lifecycle.json. Only Python's standard library is needed.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
# People who type, each a key in so many seconds: 200 keys a second.
PEOPLE, EVERY_S = 40, 0.2


class Server:
    """A server of the model with an operators' port, until the end of a `with`."""

    def __init__(self, arguments, *more):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        command = [arguments.server, "serve", "--model", arguments.model, "--cache", arguments.cache, "--port", "0"]
        command += ["--admin-port", "0", "--log-requests", "errors", *more]
        with open(self.log.name, "w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def __enter__(self):
        port = lambda line: int(re.search(r"http://[^:]+:(\d+)", line)[1])
        self.admin = port(self.said("operators connect here"))
        self.port = port(self.said("ready on http://"))
        self.name = ask(self.port, "POST", "/invocations", {"input": "a"})["model"]
        return self

    def said(self, words):
        """The next line of the log that has the words."""
        for _ in range(100_000):
            line = self.log.readline()
            if words in line:
                return line
            if "the model can't be loaded" in line:
                self.fail(line)
            if not line:
                if self.process.poll() is not None:
                    self.fail(f"the server ended: {open(self.log.name).read()}")
                time.sleep(0.01)
        self.fail(f"the server never says {words!r}")

    def fail(self, reason):
        self.process.kill()
        raise SystemExit(reason)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def rss_mib(self):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def swap(self):
        """Puts the same model in its own place."""
        ask(self.admin, "PUT", f"/models/{self.name}", {"url": self.process.args[3]})

    def replicas(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics").read().decode()
        return int(next(line for line in text.splitlines() if line.startswith("foretype_replicas")).split()[-1])


def ask(port, method, path, body):
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=data, headers=headers)
    return json.load(urllib.request.urlopen(request, timeout=300))


def queries(arguments):
    lines = open(ROOT / arguments.queries).read().splitlines()
    return [line.split("\t")[0] for line in lines if line.strip()]


async def person(port, words, until, drawn, times):
    """Types one query after another, a key each `EVERY_S`, and appends the time of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    session, due = f"p{drawn.randrange(1 << 60)}", time.monotonic() + drawn.random() * EVERY_S
    while due < until:
        # Some queries are typed much more often than others, as people do.
        query = words[min(int(drawn.paretovariate(0.7)) - 1, len(words) - 1)]
        for end in range(1, min(len(query), 20) + 1):
            await asyncio.sleep(max(0, due - time.monotonic()))
            body = json.dumps({"input": query[:end], "session": session}).encode()
            began = time.monotonic()
            writer.write(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
                         + str(len(body)).encode() + b"\r\n\r\n" + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            times.append((time.monotonic() - began) * 1000 if b" 200 " in head[:16] else float("inf"))
            due = max(due + EVERY_S, time.monotonic())
            if due >= until:
                break
    writer.close()


def keys(port, words, seconds, seed, people=PEOPLE):
    """The times of all keys in milliseconds, sorted; a failed key takes forever."""
    async def all_people():
        times, until = [], time.monotonic() + seconds
        await asyncio.gather(*(person(port, words, until, random.Random(f"{seed} {i}"), times) for i in range(people)))
        return sorted(times)
    return asyncio.run(all_people())


def summary(times):
    return {"keys": len(times), "failed": times.count(float("inf")), "p50_ms": round(times[len(times) // 2], 2),
            "p99_ms": round(times[len(times) * 99 // 100], 2)}


def turns(arguments, cases):
    """Runs the cases in turns: medians of their times, and of their p99 against the first case's of the same round."""
    found = {name: [] for name in cases}
    for turn in range(arguments.rounds):
        for name, case in cases.items():
            found[name].append(summary(case(turn)))
            print(f"round {turn + 1}, {name}: {found[name][-1]}", flush=True)
    first = found[next(iter(cases))]
    middle = lambda values: round(statistics.median(values), 2)
    return {name: {"keys": sum(one["keys"] for one in rounds), "failed": sum(one["failed"] for one in rounds),
                   "p50_ms": middle([one["p50_ms"] for one in rounds]),
                   "p99_ms": middle([one["p99_ms"] for one in rounds]),
                   "p99_ratio": middle([one["p99_ms"] / base["p99_ms"] for one, base in zip(rounds, first)])}
            for name, rounds in found.items()}


def swap(arguments, words):
    """Keys while the model is swapped every second, every five seconds, and not."""
    with Server(arguments) as server:
        keys(server.port, words, arguments.seconds, "warm up")
        server.swap()

        def case(every):
            def run(turn):
                stop = threading.Event()
                def swaps():
                    while every and not stop.wait(every):
                        server.swap()
                        done[every] += 1
                thread = threading.Thread(target=swaps)
                thread.start()
                times = keys(server.port, words, arguments.seconds, turn)
                stop.set()
                thread.join()
                return times
            return run
        done = {5: 0, 1: 0}
        found = turns(arguments, {"no swap": case(0), "a swap every 5 s": case(5), "a swap every second": case(1)})
        return {**found, "swaps": {"every 5 s": done[5], "every second": done[1]}}


def memory(arguments, words):
    """Memory of the process before and after many swaps."""
    with Server(arguments) as server:
        keys(server.port, words, 5, "warm up")
        sizes = [server.rss_mib()]
        for count in range(1, arguments.swaps + 1):
            server.swap()
            if count in (5, arguments.swaps // 2, arguments.swaps):
                sizes.append(server.rss_mib())
                print(f"{count} swaps: {sizes[-1]:.0f} MiB", flush=True)
        names = ["before", "after_5", "after_half", "after_all"]
        return {"swaps": arguments.swaps, **{name: round(size) for name, size in zip(names, sizes)}}


def warm(arguments, words):
    """The first keys of a new server, cold and with --warm-from, beside those of the server that it asks."""
    with Server(arguments) as old:
        keys(old.port, words, arguments.seconds, "warm up")

        def new(*more):
            def run(turn):
                with Server(arguments, *more) as server:
                    return keys(server.port, words, arguments.seconds, turn)
            return run
        return turns(arguments, {"a warm server": lambda turn: keys(old.port, words, arguments.seconds, turn),
                                 "a new one with --warm-from": new("--warm-from", f"http://127.0.0.1:{old.admin}"),
                                 "a new one": new()})


def wait_for(server, replicas):
    began = time.monotonic()
    while server.replicas() != replicas:
        if time.monotonic() - began > 120:
            raise SystemExit(f"there are never {replicas} replicas")
        time.sleep(0.05)


def replicas(arguments, words):
    """One replica, two under a load that fills its places, and one again, in each round. No key may fail."""
    # Nothing is remembered, and each person waits for an answer, so that these are more than one replica can answer.
    more = ["--replicas", "1..2", "--threads", "1", "--max-idle-time-ms", "2000", "--max-batch", "1", "--no-lookahead",
            "--prefix-cache-mib", "0", "--kv-pool-mib", "0"]
    failed = count = 0
    with Server(arguments, *more) as server:
        for turn in range(arguments.rounds):
            wait_for(server, 1)
            times = keys(server.port, words, 20, turn, people=4 * PEOPLE)
            grew = server.replicas() == 2
            quiet = keys(server.port, words, 5, turn, people=2)
            wait_for(server, 1)
            count, failed = count + len(times + quiet), failed + (times + quiet).count(float("inf"))
            print(f"round {turn + 1}: grew to two: {grew}, {len(times)} keys, failed until now: {failed}", flush=True)
            if not grew:
                raise SystemExit("the load was too small for a second replica")
    return {"rounds": arguments.rounds, "keys": count, "failed": failed}


def wake(arguments, _):
    """From a key at a model that sleeps to its answer, against the time of the load in it."""
    waits, loads, searches = [], [], []
    with Server(arguments, "--replicas", "0..1", "--max-idle-time-ms", "300") as server:
        for _ in range(10 * arguments.rounds):
            wait_for(server, 0)
            began = time.monotonic()
            answer = ask(server.port, "POST", "/invocations", {"input": "w"})
            searches.append(answer["timing"]["search_ms"])
            waits.append((time.monotonic() - began) * 1000)
            loads.append(float(re.search(r'load_ms"?[=:] ?([\d.]+)', server.said("a replica was added"))[1]))
    # The first search of a model that remembers nothing comes on top of the load, whoever started the load.
    until_search = [(wait - search) / load for wait, search, load in zip(waits, searches, loads)]
    ratio = lambda values: round(statistics.median(values), 3)
    return {"wakes": len(waits), "answer_ms": round(statistics.median(waits), 1), "load_ms": statistics.median(loads),
            "search_ms": round(statistics.median(searches), 1), "search_begins_ratio": ratio(until_search),
            "answer_ratio": ratio(wait / load for wait, load in zip(waits, loads))}


PARTS = {"swap": swap, "memory": memory, "warm": warm, "replicas": replicas, "wake": wake}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", help="the program")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--cache", default=str(ROOT / "target/bench/bundles"))
    parser.add_argument("--queries", default="models/demo/queries/popular.tsv")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--results", default=str(ROOT / "bench/results/lifecycle.json"))
    arguments = parser.parse_args()
    arguments.server = os.path.abspath(arguments.server)
    results = pathlib.Path(arguments.results)
    found = json.loads(results.read_text()) if results.exists() else {}
    where = machine.describe()
    for part in arguments.only.split(","):
        measured = PARTS[part](arguments, queries(arguments))
        found[part] = {"model": arguments.model, "machine": where, **measured}
        results.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps({part: measured}), flush=True)


if __name__ == "__main__":
    main()
