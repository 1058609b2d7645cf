"""bench/day.py: its queue against what is known of queues, and its autoscaler against Kubernetes' rules."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import day  # noqa: E402


def test_waits_are_those_of_a_queue_with_one_server():
    draw = random.Random(7)
    service = [draw.expovariate(1 / 0.01) for _ in range(300_000)]
    waits, times = day.run(service, keys_per_s=60)
    # M/M/1 at a utilisation of 0.6: a mean wait of 1.5 service times.
    assert sum(waits) / len(waits) == pytest.approx(0.015, rel=0.08)
    assert day.quantiles(times, [0.5])[0] == pytest.approx(0.025 * 0.693, rel=0.08)


def test_service_times_have_the_measured_shape():
    service = day.services(0.002, 0.04, 1.0, 100_000)
    assert day.quantiles(service, [0.5, 0.99]) == pytest.approx([0.002, 0.04], rel=0.05)


def test_the_autoscaler_grows_at_once_and_shrinks_after_quiet():
    scaler = day.Autoscaler(("wait",), start_s=120)
    sizes = []
    for now in range(0, 300, day.STEP_S):
        scaler.step(now, wait_p90_s=1.0, utilisation=0.9)
        sizes.append(scaler.wanted)
    # At most twice as many every 30 s, and the bound at last.
    assert sizes[:7] == [4, 4, 8, 8, 16, 16, 32] and sizes[-1] == day.MOST
    assert max(scaler.ready) == 120 + 30 * 4, "the last ones answer when they have started"
    asked_until = 300 - day.STEP_S
    shrunk = [now for now in range(300, 2000, day.STEP_S) if step_down(scaler, now)]
    assert shrunk[0] > asked_until + day.QUIET_S
    assert all(later - now >= day.DOWN_EVERY_S for now, later in zip(shrunk, shrunk[1:], strict=False))


def step_down(scaler, now):
    before = scaler.wanted
    scaler.step(now, wait_p90_s=0.0, utilisation=0.01)
    assert before - scaler.wanted in (0, 1)
    return scaler.wanted < before


def test_near_the_target_nothing_changes():
    scaler = day.Autoscaler(("wait", "cpu"), start_s=120, least=5)
    for now in range(0, 3600, day.STEP_S):
        scaler.step(now, day.WAIT_P90_S * 1.05, day.UTILISATION * 0.95)
    assert scaler.wanted == 5


def test_more_instances_are_never_slower_and_too_few_refuse():
    service = day.services(0.002, 0.02, 1.0, 20_000)
    model = day.queue(service)
    people = day.people(100)[:960]
    found = [day.simulate(model, people, count) for count in (1, 4, 16)]
    assert len({each["keys"] for each in found}) == 1
    assert found[0]["p99_ms"] > found[1]["p99_ms"] >= found[2]["p99_ms"]
    assert found[0]["refused_share"] > 0 == found[2]["refused_share"]
    assert found[2]["hours"] == pytest.approx(16 * 960 * day.STEP_S / 3600)
