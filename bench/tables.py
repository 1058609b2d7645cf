#!/usr/bin/env python3
"""Writes the tables of the documents from bench/results.

usage: bench/tables.py [--check]     --check changes nothing, and fails if a table is not what the results say

A table stands between <!-- table: NAME --> and <!-- /table -->. All results are of one machine and one commit. In README.md
and docs/benchmarks.md a time, rate or share that was measured stands in a table, and nowhere else.
"""

import json
import re
import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
MEASURED = [ROOT / "README.md", ROOT / "docs/benchmarks.md"]
DOCUMENTS = [*MEASURED, ROOT / "docs/operations.md", ROOT / "docs/deploy.md"]
MARK = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- /table -->)", re.S)
# A figure that somebody measured: a time, a rate, a share, a size. Not the bound that a trial keeps to.
FIGURE = re.compile(r"\b\d[\d.,]* ?(?:ns|us|µs|ms|s|seconds?|minutes?|QPS|x|%|[KMG]i?B)(?!\w)")
BOUNDS = {"100 ms"}
# What the article measured for a GPT-2 behind an endpoint with a V100: the case that foretype was made for.
ARTICLE = {"PyTorch, V100": (None, 1172), "TensorRT container, V100": (7.5, 531)}

# Results that no other table is compared with.
APART = {"peers-typeahead-smollm2"}
machines = {}


def read(name):
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def load(name):
    """A result file whose machine and commit must be those of the others."""
    result = read(name)
    if name not in APART:
        machines[name] = result["machine"]
    return result


def rows(name, **wanted):
    return [row for row in load(name)["rows"] if all(row[key] == value for key, value in wanted.items())]


def row(name, **wanted):
    found = rows(name, **wanted)
    assert len(found) == 1, f"{name}: {len(found)} rows with {wanted}"
    return found[0]


def number(value, digits=3):
    """Three significant digits, and none behind the point from 100 on."""
    if value is None:
        return "n/a"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - len(str(int(value))))}f}"


def share(part, digits=1):
    return f"{100 * part:.{digits}f} %"


def interval(of):
    """A mean with its bootstrap interval."""
    return f"{of['mean']:.3f}, {of['low']:.3f} to {of['high']:.3f}"


def table(head, *lines):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(out + ["| " + " | ".join(map(str, line)) + " |" for line in lines]) + "\n"


def source(name):
    result = load(name)
    machine = result["machine"]
    return (
        f"`bench/results/{name}.json`: {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, "
        f"commit `{machine['commit']}`. Command: `{result['command']}`.\n\n"
    )


def results():
    """What a person feels, for the README."""
    lines = []
    for label, name in (("demo, 2M parameters", "peers-typeahead-demo"), ("GPT-2 124M, random weights", "peers-typeahead-gpt2")):
        own = row(name, server="foretype int8")
        others = peers(name)
        lines += [
            (f"{label}: time of a key, p50", *(f"{number(ms)} ms" for ms in (own["key_p50_ms"], best(others, "key_p50_ms")))),
            ("... p99", *(f"{number(ms)} ms" for ms in (own["key_p99_ms"], best(others, "key_p99_ms")))),
            ("... people who type at once, p99 of a key within 100 ms", own["sustained"], best(others, "sustained", max)),
        ]
    own = row("peers-paper", server="foretype int8", tool="jmeter", clients=4)
    others = peers("peers-paper", tool="jmeter", clients=4)
    lines += [
        ("paper case, four clients: requests a second", number(own["qps"]), number(best(others, "qps", max))),
        ("... mean time of a request", *(f"{number(ms)} ms" for ms in (own["mean_ms"], best(others, "mean_ms")))),
    ]
    article = "; ".join(f"{name} {ms:,} ms" + (f" at {qps} QPS" if qps else "") for name, (qps, ms) in ARTICLE.items())
    machine = next(iter(machines.values()))
    head = (f"{machine['cores']} cores of {machine['cpu']}, no GPU", "foretype int8", "best of the other servers")
    return table(head, *lines) + (
        "\nThe last column has the best that any of the other servers reached, each figure by itself. "
        f"The paper case asks for ten candidates of 42 tokens in all. The article's own figures: {article}.\n"
        f"All others are from `bench/results/peers-*.json`, one run of `make bench` at commit `{machine['commit']}`.\n"
    )


def peers(name, **wanted):
    """The rows of other servers."""
    return [r for r in rows(name, **wanted) if not r["server"].startswith("foretype") and not r["absent"]]


def best(others, key, choose=min):
    """The best that any of the other servers reached, each figure by itself."""
    return choose(r[key] for r in others)


def sizing():
    """How many people type at once, for a person who chooses an instance."""
    lines = [
        (label, row(name, server="foretype int8")["sustained"], row(name, server="foretype int8")["own_sustained"])
        for label, name in (
            ("GPT-2 124M, random weights, int8", "peers-typeahead-gpt2"),
            ("demo, 2M parameters, int8", "peers-typeahead-demo"),
        )
    ]
    machine = next(iter(machines.values()))
    head = (f"{machine['cores']} cores of {machine['cpu']}", "people at once", "... who agree with no suggestion")
    return table(head, *lines)


def engine(precision):
    name = "peers-engine"
    cells = list(dict.fromkeys((r["prompt"], r["rows"], r["new"]) for r in rows(name)))
    engines = list(dict.fromkeys(r["engine"] for r in rows(name, precision=precision, own=False)))
    lines = []
    for prompt, count, new in cells:
        at = {"prompt": prompt, "rows": count, "new": new}
        own = row(name, own=True, precision=precision, **at)
        ratios = [row(name, engine=e, **at)["total_ratio"] for e in engines]
        lines.append(
            (f"{prompt} x {count}, {new}", f"{number(own['total_ms'])} ms", f"{number(own['step_ms'])} ms")
            + tuple(f"{r:.2f}x" if r else "n/a" for r in ratios)
        )
    return source(name) + table(("prompt tokens x rows, new tokens", "foretype", "a step", *engines), *lines)


def typing(name):
    # Results of before 2026-11-27 have no times of the keys that agree with nothing.
    times = {"key_p50_ms": "key, p50", "key_p99_ms": "key, p99", "agreeing_p50_ms": "key that agrees, p50"}
    times |= {"own_key_p50_ms": "key that doesn't, p50", "own_key_p99_ms": "... p99"}
    times = {key: head for key, head in times.items() if all(key in r for r in rows(name))}
    lines = [
        (r["server"], *(f"{number(r[key])} ms" for key in times), r["sustained"], r["own_sustained"])
        for r in rows(name)
    ]  # fmt: skip
    return source(name) + table(("server", *times.values(), "people at once", "... who agree with nothing"), *lines)


def paper():
    lines = [
        (r["server"], r["tool"], r["clients"], number(r["qps"]), f"{number(r['mean_ms'])} ms", f"{number(r['p99_ms'])} ms")
        for r in rows("peers-paper")
    ]
    return source("peers-paper") + table(("server", "client", "clients", "QPS", "mean", "p99"), *lines)


def http():
    lines = [
        (r["request"], r["clients"], r["client"], f"{r['per_second']:,.0f}", f"{r['p50_us']:,.0f} us", f"{r['p99_us']:,.0f} us")
        for r in rows("peers-http")
    ]
    return source("peers-http") + table(("request", "connections", "client", "requests a second", "p50", "p99"), *lines)


METHODS = {"merged": "foretype, merged with popular queries", "tolerant": "foretype, tolerant", "exact": "foretype, exact"}
METHODS |= {"popular-tolerant": "foretype's popular queries alone"}


def mistyped(group):
    """MRR@10 of each style and program. It depends on the commit, not on the machine."""
    result = read("mistyped")
    found = [r for r in result["rows"] if r["set"] == group]
    styles = list(dict.fromkeys(r["style"] for r in found))
    methods = list(dict.fromkeys(r["method"] for r in found))
    methods.sort(key=lambda method: list(METHODS).index(method) if method in METHODS else len(METHODS))
    cells = {(r["method"], r["style"]): r for r in found}
    counted = {r["queries"] for r in found}
    assert len({r["style"] for r in found}) * len(methods) == len(found), f"mistyped: rows of {group} are missing"

    def cell(method, style):
        mrr = cells[method, style]["mrr"]
        return interval(mrr) if mrr["high"] > 0 else "0"

    lines = [(METHODS.get(method, method), *(cell(method, style) for style in styles)) for method in methods]
    absent = "".join(f" {name} is absent: {reason}." for name, reason in result["absent"].items())
    return (
        f"`bench/results/mistyped.json`: {min(counted)} to {max(counted)} queries, commit `{result['machine']['commit']}`. "
        f"Command: `{result['command']}`.{absent}\n\n" + table(("typed", *styles), *lines)
    )


def balance():
    """Shares and counts, which don't depend on the machine's speed."""
    result = read("balance")
    shares = ("saved", "saved_round_robin", "computed", "computed_round_robin", "killed_moved", "added_moved")
    names = {"nginx": "nginx", "haproxy": "HAProxy"}
    lines = [(names[r["balancer"]], *(share(r[key], 0) for key in shares), r["keys_while_killed"]) for r in result["rows"]]
    head = ("balancer", "positions saved", "... with round robin", "positions computed", "... with round robin")
    head += ("people moved by a killed server", "... by an added one", "keys meanwhile, none failed")
    return table(head, *lines) + f"\n`bench/results/balance.json`, commit `{result['machine']['commit']}`. Command: `{result['command']}`.\n"


def turnover():
    """What the prefix cache remembers: the eviction of before beside that of now."""
    result = read("turnover")
    machine, cells = result["machine"], {(r["server"], r["mib"]): r for r in result["rows"]}

    def pair(mib, written):
        return (written(cells[server, mib]) for server in ("before", "now"))

    lines = [
        (
            mib,
            *pair(mib, lambda r: share(r["remembered"], 0)),
            *pair(mib, lambda r: f"{number(r['p50_ms'])} ms"),
            *pair(mib, lambda r: f"{number(r['p99_ms'])} ms"),
        )
        for mib in sorted({mib for _, mib in cells})
    ]
    head = ("MiB", "remembered, before", "... now", "p50, before", "... now", "p99, before", "... now")
    about = f"`bench/results/turnover.json`: {machine['cores']} cores of {machine['cpu']}, commit `{machine['commit']}`"
    return f"{about}, {result['rows'][0]['keys']} keys a cell.\n\n" + table(head, *lines)


def turnover_demo():
    """What the prefix cache remembers of thousands of people."""
    result = read("turnover-demo")
    lines = [(r["mib"], share(r["remembered"], 0), number(r["positions_a_key"])) for r in result["rows"]]
    about = f"`bench/results/turnover-demo.json`: commit `{result['machine']['commit']}`, {result['rows'][0]['keys']:,} keys a cell"
    return f"{about}. Command: `{result['command']}`.\n\n" + table(("MiB", "remembered", "positions computed for a key"), *lines)


def people_at_once():
    """How many people type at once with tolerance auto and off, by processor; the ratio is that of the means."""
    result = read("people-at-once")

    def pair(turns):
        ratio = mean(turns["auto"]) / mean(turns["off"])
        return (*(", ".join(map(str, turns[tolerance])) for tolerance in ("auto", "off")), f"{ratio:.2f}")

    lines = [(r["processor"], f"`{r['commit']}`", *pair(r["sustained"]), *pair(r["own_sustained"])) for r in result["rows"]]
    head = ("processor", "commit", "agreeing: auto", "off", "ratio", "agreeing with nothing: auto", "off", "ratio")
    return f"`bench/results/people-at-once.json`. Command: `{result['command']}`.\n\n" + table(head, *lines)


def day():
    """The simulated day, and what a million keys cost on what was measured."""
    result, measured = load("day"), load("peers-typeahead-gpt2")
    assert result["machine"] == measured["machine"], "day.json is of other measurements; run make day"
    prices = json.loads((ROOT / "bench/prices.json").read_text())
    assert result["prices"] == prices, "bench/prices.json has changed; run make day"
    (name,) = [name for name, each in prices["instances"].items() if each["measured"]]
    usd = prices["instances"][name]["usd_per_hour"]
    lines = [
        (
            r["policy"],
            f"{r['least']} to {r['most']}",
            number(r["hours"]),
            f"{number(r['p99_ms'])} ms",
            share(r["slow_share"], 2),
            share(r["refused_share"], 2),
            f"${r['hours'] * usd / r['keys'] * 1e6:.2f}",
        )
        for r in result["rows"]
    ]
    head = ("what the number of instances follows", "instances", "instance hours", "p99", "keys over 100 ms", "refused", "a million keys")
    others = ", ".join(
        f"`{other}` (${each['usd_per_hour']}) from {each['usd_per_hour'] / usd:.2f}x of its keys"
        for other, each in prices["instances"].items()
        if not each["measured"]
    )
    return table(head, *lines) + (
        f"\n`bench/results/day.json`: {result['rows'][0]['keys'] / 1e6:.0f} million keys of up to {result['peak_people']:,} people at once; "
        f"`{name}` at ${usd} an hour, `bench/prices.json` of {prices['date']}. An instance is at 100 ms, p99, when it is "
        f"{100 * result['utilisation_at_100_ms']:.0f} % busy. No other instance was measured. They are cheaper from these speeds on: {others}.\n"
    )


MODELS = {"demo": "demo, 2M parameters", "smollm2": "SmolLM2-135M", "fine-tuned": "SmolLM2-135M, fine-tuned"}
SETS = {"heldout_unseen": "unseen", "unseen": "unseen", "seen": "of the corpus"}


def fine_tuned():
    """Quality of the demo and of SmolLM2 before and after its fine-tuning. It doesn't depend on the machine."""
    result = read("fine-tuned")
    lines = [
        (
            f"{MODELS[r['model']]}, {r['precision']}",
            SETS[r["set"]],
            f"{r['nats_per_character']:.2f}",
            f"{r['mrr']:.3f}",
            share(r["saved"]),
        )
        for r in sorted(result["rows"], key=lambda r: r["set"] == "seen")
    ]
    training, queries = result["training"], result["rows"][0]["queries"]
    head = ("model", "queries", "nats a character, in f32", "MRR@10", "keystrokes saved")
    return (
        f"`bench/results/fine-tuned.json`: {queries} queries a set, commit `{result['machine']['commit']}`. The fine-tuning took "
        f"{training['passes']} passes over the corpus, {training['minutes']} minutes on {training['device']}.\n\n" + table(head, *lines)
    )


def typos(name):
    """Lists of one model for queries with errors and in other styles. They depend on the commit, not on the machine."""
    result = read(name)
    lines = [
        (
            r["style"],
            SETS[r["set"]],
            r["lists"],
            interval(r["mrr"]),
            share(r["of_right"]),
            share(r["same"]),
            share(r["lost"]),
        )
        for r in result["typos"]
    ]
    head = ("typed", "queries", "lists", "MRR@10", "of the right text's", "the same list", "certain first suggestion lost")
    about = f"`bench/results/{name}.json`: {result['typos'][0]['queries']} queries a set, commit `{result['machine']['commit']}`."
    return f"{about}\n\n" + table(head, *lines)


def lifecycle():
    """Keys while models come and go, against keys without that in the same rounds."""
    result = read("lifecycle")
    machine = result["swap"]["machine"]
    lines = [
        (case, r["keys"], r["failed"], f"{number(r['p50_ms'])} ms", f"{number(r['p99_ms'])} ms", f"{r['p99_ratio']:.2f}")
        for part in ("swap", "warm")
        for case, r in result[part].items()
        if "p99_ratio" in r
    ]
    memory, wake = result["memory"], result["wake"]
    return (
        f"`bench/results/lifecycle.json`: {machine['cores']} cores of {machine['cpu']}, commit `{machine['commit']}`.\n\n"
        + table(("case", "keys", "failed", "p50", "p99", "p99 against the first case"), *lines)
        + f"\nMemory before the first of {memory['swaps']:,} swaps: {memory['before']} MiB; after 5: {memory['after_5']} MiB; after all: "
        f"{memory['after_all']} MiB. A model that sleeps answers after {number(wake['answer_ms'])} ms, of which its load takes "
        f"{number(wake['load_ms'])} ms and the search {number(wake['search_ms'])} ms.\n"
    )


def gpu(lines):
    """What the kit measured on a GPU: a machine of its own, which the other tables are not compared with."""
    result = read("gpu-kit-h200")
    machine, found = result["machine"], result["rows"]
    checks = [r["outcome"] for r in found if r["engine"] == "onnxruntime" and not r["figures"]]
    ran = [outcome for outcome in checks if not outcome.startswith("not run")]
    passed = sum(outcome.startswith("passed") for outcome in ran)
    return (
        f"`bench/results/gpu-kit-h200.json`: {machine['gpu']}, {machine['cores']} cores of {machine['cpu']}, commit `{machine['commit']}`; "
        f"ONNX Runtime's CUDA provider, f16; {passed} of {len(ran)} checks passed.\n\n" + lines(found)
    )


def gpu_figures(found, model, what):
    (one,) = [r["figures"] for r in found if r["model"] == model and r["what"] == what and r["figures"]]
    return one


def gpu_steps(found):
    columns = {"a step": "median", "... after copies of 40 positions a row": "with scattered copies"}
    columns |= {"... after copies of one position a row": "with stores", "... that returns all logits": "with logits"}
    steps = {rows: gpu_figures(found, "gpt2", f"step of {rows} rows behind 40 positions") for rows in (1, 4, 10, 32, 64)}
    lines = [(rows, *(f"{number(step[name])} ms" for name in columns.values())) for rows, step in steps.items()]
    return table(("rows", *columns), *lines)


def gpu_requests(found):
    lines = []
    for tolerance in ("off", "auto"):
        for clients in (1, 2, 3, 4):
            case = gpu_figures(found, "gpt2", f"ten suggestions of 42 tokens, tolerance {tolerance}, {clients} clients")
            times = (f"{number(case[name])} ms" for name in ("median", "p99"))
            lines.append((f"the paper case, 124M, `--tolerance {tolerance}`", clients, *times, number(case["answers/s"])))
    for r in found:
        if r["engine"] == "pytorch":
            median = float(re.match(r"median ([\d.]+)", r["outcome"])[1])
            way = r["what"].split(", ")[1]
            lines.append((f"the paper case, 124M, PyTorch's `generate`, {way}", 1, f"{number(median)} ms", "", number(1000 / median)))
    for people in (1, 16, 64):
        typed = gpu_figures(found, "demo", f"{people} people who type")
        lines.append(("people who type, demo", people, "", f"{number(typed['p99'])} ms", number(typed["keys/s"])))
    return table(("what", "clients or people", "median", "p99", "answers a second"), *lines)


TABLES = {
    "balance": balance,
    "turnover": turnover,
    "turnover-demo": turnover_demo,
    "gpu-steps": lambda: gpu(gpu_steps),
    "gpu-requests": lambda: gpu(gpu_requests),
    "people-at-once": people_at_once,
    "day": day,
    "fine-tuned": fine_tuned,
    "accents": lambda: typos("accents"),
    "fine-tuned-typos": lambda: typos("fine-tuned"),
    "lifecycle": lifecycle,
    "mistyped-unseen": lambda: mistyped("heldout_unseen"),
    "mistyped-seen": lambda: mistyped("seen"),
    "results": results,
    "sizing": sizing,
    "engine-int8": lambda: engine("reduced"),
    "typing-gpt2": lambda: typing("peers-typeahead-gpt2"),
    "typing-smollm2": lambda: typing("peers-typeahead-smollm2"),
    "typing-demo": lambda: typing("peers-typeahead-demo"),
    "paper": paper,
    "http": http,
}


def strays(text):
    """Figures outside tables and code: what was measured and has no source."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", MARK.sub("", text), flags=re.S)
    return sorted({found[0] for found in FIGURE.finditer(prose)} - BOUNDS)


def without_commit():
    """Results for people that don't say what they are results of."""
    return [path.name for path in sorted(RESULTS.glob("*.txt")) if not re.search(r"commit [0-9a-f]{12}\b", path.read_text())]


def main():
    check, stale, used = sys.argv[1:] == ["--check"], [], set()
    for document in DOCUMENTS:
        text = document.read_text()
        written = MARK.sub(lambda mark: mark[1] + TABLES[mark[2]]() + mark[3], text)
        used |= {mark[2] for mark in MARK.finditer(text)}
        if written != text and check:
            stale.append(str(document.relative_to(ROOT)))
        elif written != text:
            document.write_text(written)
    if missing := TABLES.keys() - used:
        sys.exit(f"no document shows {', '.join(sorted(missing))}")
    if len({(m["cpu"], m["commit"]) for m in machines.values()}) > 1:
        sys.exit(f"the results are of several machines or commits: {machines}")
    for document in MEASURED:
        if found := strays(document.read_text()):
            sys.exit(f"{document.relative_to(ROOT)}: {', '.join(found)} stands outside a table that bench/tables.py writes")
    if found := without_commit():
        sys.exit(f"bench/results: {', '.join(found)} names no commit; run the command again that writes it")
    if stale:
        sys.exit(f"{', '.join(stale)}: not what bench/results says; run bench/tables.py")


main()
