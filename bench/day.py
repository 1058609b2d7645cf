#!/usr/bin/env python3
"""A day of people who type, at servers whose number follows the load: instances, times and cost, into
bench/results/day.json.

usage: bench/day.py [--peak PEOPLE] [--start SECONDS]

    --peak   people at once at the evening's peak (560)
    --start  the time that a new instance takes from the decision to its first answer (120)

It simulates. An instance is one queue, and its service times have the median and the 99th percentile of a key in
bench/results, as a lognormal distribution. They are scaled by one factor, so that the simulated instance has the
measured p99 at the measured number of people. Prices are those of bench/prices.json. Not simulated: caches of new
instances are warm, people stay when servers are slow, and their keys are spread evenly.
"""

import argparse
import bisect
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
MEASURED = "peers-typeahead-gpt2"
SERVER = "foretype int8"
# What bench/src/people.rs makes of a person: 5 to 8 keys a second, and 1 to 3 s between queries of some 27 characters.
KEYS_PER_PERSON_S = 27 / (27 / 6.5 + 2)
# deploy/kubernetes: what the number of instances follows, and how fast.
WAIT_P90_S = 0.01
UTILISATION = 0.4
LEAST, MOST = 2, 64
UP_EVERY_S, DOWN_EVERY_S, QUIET_S = 30, 120, 600
# The autoscaler's own tolerance: it leaves things as they are within a tenth of the target.
TOLERANCE = 0.1
# `--max-queued`: one key more is refused.
QUEUED = 256
STEP_S = 15
DAY_S = 86_400
SLOW_S = 0.1
QUANTILES = [number / 1000 for number in range(5, 1000, 10)] + [0.999]


@dataclass
class Queue:
    """Waits and times of one instance by its utilisation, from a long run of single keys."""

    mean_s: float
    utilisations: list[float]
    waits: list[list[float]]
    times: list[list[float]]

    def at(self, utilisation):
        """The row of the nearest simulated utilisation that isn't lower."""
        return min(bisect.bisect_left(self.utilisations, utilisation), len(self.utilisations) - 1)


def services(median_s, p99_s, scale, count, seed=1):
    draw = random.Random(seed)
    sigma = math.log(p99_s / median_s) / 2.3263
    return [scale * median_s * math.exp(draw.gauss(0, sigma)) for _ in range(count)]


def quantiles(values, wanted):
    values = sorted(values)
    return [values[min(int(part * len(values)), len(values) - 1)] for part in wanted]


def run(service, keys_per_s, seed=2):
    """Waits and times of keys that come at random, in order of arrival (Lindley's recursion)."""
    draw, wait, waits, times = random.Random(seed), 0.0, [], []
    for taken in service:
        waits.append(wait)
        times.append(wait + taken)
        wait = max(0.0, wait + taken - draw.expovariate(keys_per_s))
    return waits, times


def calibrated(row):
    """Service times with which the simulated instance is as slow as the measured one was with people at its bound."""
    median_s, p99_s = row["key_p50_ms"] / 1000, row["key_p99_ms"] / 1000
    target_s, keys_per_s = row["sustained_p99_ms"] / 1000, row["sustained"] * KEYS_PER_PERSON_S
    low, high = 0.01, 10.0
    for _ in range(24):
        scale = (low + high) / 2
        service = services(median_s, p99_s, scale, 60_000)
        (found,) = quantiles(run(service, keys_per_s)[1], [0.99])
        low, high = (scale, high) if found < target_s else (low, scale)
    return scale, services(median_s, p99_s, scale, 200_000)


def queue(service):
    mean = sum(service) / len(service)
    utilisations = [number / 40 for number in range(1, 39)]
    runs = [run(service, utilisation / mean) for utilisation in utilisations]
    return Queue(
        mean_s=mean,
        utilisations=utilisations,
        waits=[quantiles(waits, QUANTILES) for waits, _ in runs],
        times=[quantiles(times, QUANTILES) for _, times in runs],
    )


def people(peak, seed=3):
    """People at once in each step of a day: a night, an evening, and three spikes that nobody announced."""
    draw, noise, found = random.Random(seed), 0.0, []
    spikes = [(3.0, 300, 3.0), (12.0, 600, 1.8), (20.5, 300, 2.0)]  # hour, seconds, factor
    for second in range(0, DAY_S, STEP_S):
        hour = second / 3600
        level = 0.15 + 0.85 * ((1 + math.cos((hour - 20) / 24 * 2 * math.pi)) / 2) ** 1.5
        noise = 0.95 * noise + 0.05 * draw.gauss(0, 0.3)
        factor = 1.0
        for at, lasts, most in spikes:
            # Half a minute to its height, and as long back.
            edge = min((second - at * 3600) / 30, (at * 3600 + lasts - second) / 30, 1)
            factor = max(factor, 1 + (most - 1) * max(edge, 0))
        found.append(peak * level * factor * math.exp(noise))
    return found


class Autoscaler:
    """Kubernetes' rules: the most that any metric asks for; up at once, down after a quiet time, one by one."""

    def __init__(self, metrics, start_s, least=LEAST):
        self.metrics, self.start_s, self.least = metrics, start_s, least
        self.wanted, self.ready = least, [0.0] * least
        self.asked, self.up_at, self.down_at = [], -math.inf, -math.inf

    def step(self, now, wait_p90_s, utilisation):
        targets = {"wait": wait_p90_s / WAIT_P90_S, "cpu": min(utilisation, 1) / UTILISATION}
        ratios = [targets[metric] for metric in self.metrics]
        within = all(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
        asked = self.wanted if within else math.ceil(self.wanted * max(ratios))
        self.asked.append((now, asked))
        self.asked = [(then, count) for then, count in self.asked if now - then <= QUIET_S]
        if asked > self.wanted and now - self.up_at >= UP_EVERY_S:
            before, self.up_at = self.wanted, now
            self.wanted = min(asked, max(2 * self.wanted, self.wanted + 2), MOST)
            self.ready += [now + self.start_s] * (self.wanted - before)
        elif (most := max(count for _, count in self.asked)) < self.wanted and now - self.down_at >= DOWN_EVERY_S:
            self.down_at, self.wanted = now, max(most, self.wanted - 1, self.least)
            self.ready = sorted(self.ready)[: self.wanted]


def simulate(model, day, scaler):
    """One day; a fixed number of instances if `scaler` is a number."""
    keys = refused = hours = backlog_s = 0.0
    histogram, counts = {}, []
    for step, at_once in enumerate(day):
        now = step * STEP_S
        fixed = isinstance(scaler, int)
        paid = scaler if fixed else len(scaler.ready)
        count = scaler if fixed else max(1, sum(ready <= now for ready in scaler.ready))
        arrived = at_once * KEYS_PER_PERSON_S * STEP_S
        utilisation = arrived * model.mean_s / (count * STEP_S)
        # More work than time stays for the next step, and more than the queues hold is refused.
        before = backlog_s
        backlog_s = max(0.0, backlog_s + arrived * model.mean_s - count * STEP_S)
        excess = max(0.0, backlog_s - count * QUEUED * model.mean_s)
        backlog_s -= excess
        refused += excess / model.mean_s
        late_s = (before + backlog_s) / 2 / count
        row = model.at(utilisation)
        for time_s in model.times[row]:
            # Hundredths of an order of magnitude are fine enough for a percentile.
            place = round(100 * math.log10(late_s + time_s))
            histogram[place] = histogram.get(place, 0.0) + arrived / len(QUANTILES)
        keys, hours = keys + arrived, hours + paid * STEP_S / 3600
        counts.append(paid)
        if not fixed:
            wait_p90_s = late_s + model.waits[row][bisect.bisect_left(QUANTILES, 0.9)]
            scaler.step(now, wait_p90_s, utilisation)
    slow = sum(weight for place, weight in histogram.items() if 10 ** (place / 100) > SLOW_S)
    return {
        "keys": round(keys),
        "least": min(counts),
        "most": max(counts),
        "hours": round(hours, 1),
        "p99_ms": round(1000 * percentile(histogram, 0.99), 1),
        "slow_share": slow / keys,
        "refused_share": refused / keys,
    }


def percentile(histogram, part):
    left = part * sum(histogram.values())
    for place in sorted(histogram):
        left -= histogram[place]
        if left <= 0:
            return 10 ** (place / 100)
    raise AssertionError("a histogram without keys")


def needed(model, day):
    """The fewest instances with which the 99th percentile of every step is within 100 ms, if all are there in time."""
    p99 = bisect.bisect_left(QUANTILES, 0.99)
    good = [load for load, times in zip(model.utilisations, model.times, strict=True) if times[p99] <= SLOW_S]
    work = max(day) * KEYS_PER_PERSON_S * model.mean_s
    return max(LEAST, math.ceil(work / max(good))), max(good)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=560)
    parser.add_argument("--start", type=float, default=120)
    options = parser.parse_args()
    measured = json.loads((RESULTS / f"{MEASURED}.json").read_text())
    (row,) = [each for each in measured["rows"] if each["server"] == SERVER]
    scale, service = calibrated(row)
    model, day = queue(service), people(options.peak)
    peak, bound = needed(model, day)
    policies = {
        "as many as the highest spike needs, all day": peak,
        "wait in the queue, as the manifests have it": Autoscaler(("wait",), options.start),
        "the same with at least 10 instances": Autoscaler(("wait",), options.start, least=10),
        "wait in the queue and CPU": Autoscaler(("wait", "cpu"), options.start),
        "CPU only": Autoscaler(("cpu",), options.start),
    }
    prices = json.loads((Path(__file__).parent / "prices.json").read_text())
    rows = []
    for name, scaler in policies.items():
        rows.append({"policy": name} | simulate(model, day, scaler))
        print(rows[-1])
    result = {
        "title": f"A simulated day of up to {max(day):.0f} people at once",
        "machine": measured["machine"],
        "command": "make day",
        "measured": MEASURED,
        "prices": prices,
        "start_s": options.start,
        "scale": round(scale, 3),
        "mean_service_ms": round(1000 * model.mean_s, 3),
        "utilisation_at_100_ms": bound,
        "peak_people": round(max(day)),
        "rows": rows,
    }
    (RESULTS / "day.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
