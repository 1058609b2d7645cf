#!/usr/bin/env python3
"""Writes the demo model's corpus: made-up patent search queries, one a line.

Two sources: `topics.txt` (hand-written vocabulary by field of technology) and WordNet 3.0
(technical nouns). About 60 % of the lines are plain terms, 40 % expressions in a
Patsnap-like syntax. Terms are combined within one topic, or along WordNet's synonym,
hypernym and part relations, never at random.

This is not a log: no person typed these queries, and their counts only follow a Zipf-like
law. The output depends on nothing but the two sources and the seed.
"""

import argparse
import random
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import wordnet

LINES = 200_000
PLAIN_SHARE = 0.6
WORDNET_SHARE = 0.12  # of the plain terms and of the expressions
VALID_SHARE = 0.02
HELD_OUT_TERMS = 20  # one term in so many
QUERIES_PER_LIST = 1000
POPULAR = 20_000

FIELDS = {"TTL": 40, "TA": 25, "TAC": 12, "ABST": 10, "CLMS": 8, "TACD": 5}
DATES = ["[20180101 TO 20201231]", "[20200101 TO 20231231]", "[20150101 TO 20191231]"]
DISTANCES = ["$W3", "$W5", "$W10"]

# Templates over one topic: {m} main term or another name for it, {s} {s2} {s3} distinct
# names, {t} any term, {x} a term containing the main term, {a} {b} aspects, {u} use,
# {v} verb, {c} {d} IPC classes, {f} {g} fields. A trailing q puts quotes around
# the operand where it has several words.
PLAIN = {
    "{t}": 62, "{m}": 9, "{m} {a}": 8, "{x} {a}": 2, "{m} for {u}": 9,
    "method for {v} {m}": 5, "{m} {v1} method": 3, "apparatus for {v} {m}": 1,
    "system for {v} {m}": 1, "device for {v} {m}": 1,
}
EXPRESSIONS = {
    "{f}:({t})": 16, "{f}:({m})": 8, "{f}:({tq})": 2, "{f}:({m} AND {a})": 14,
    "{f}:({x} AND {a})": 4, "{f}:({m} AND ({a} OR {b}))": 5, "{f}:(({s} OR {s2}) AND {a})": 5,
    "{f}:({s} OR {s2})": 5, "{f}:({s} OR {s2} OR {s3})": 2, "{f}:({m} AND {u})": 3,
    "{f}:({m}) AND {g}:({a})": 5, "{f}:({m}) NOT {g}:({a})": 3, "{f}:({m} AND {a} AND {b})": 2,
    "{f}:({m}) AND IPC:{c}": 5, "IPC:{c}": 6, "IPC:{c} AND {f}:({a})": 3, "IPC:{c} AND {f}:({m})": 3,
    "IPC:({c} OR {d})": 2, "CPC:{c}": 2, "CPC:{c} AND {f}:({m})": 1, "{mq} {w} {aq}": 4,
    "{mq} AND {aq}": 3, "{f}:({mq} {w} {aq})": 2, "{aq} $SEN {mq}": 1, "({sq} OR {s2q}) AND {aq}": 2,
    "{f}:({m}) AND PBD:{date}": 2, "{f}:({m} AND {a}) AND APD:{date}": 1,
}
# Never in the training text: they are drawn like the others and all go to the unseen queries.
HELD_OUT_TEMPLATES = {
    "{m} {v1} apparatus": 1, "{f}:({m} AND {a}) NOT {g}:({b})": 1, "IPC:{c} NOT {f}:({a})": 1,
    "{f}:({mq} $PRE3 {aq})": 1, "{mq} $PARA {aq}": 1, "{m} {a} for {u}": 1,
}
# Over one WordNet synset: {t} a word of it, {s} {s2} {s3} its synonyms, {h} hypernym, {p} part.
WORDNET_EXPRESSIONS = {
    "{f}:({t})": 30, "{f}:({s} OR {s2})": 20, "{f}:({s} OR {s2} OR {s3})": 5, "{f}:({tq})": 5,
    "{f}:({t} AND {p})": 20, "{f}:({h}) NOT {g}:({t})": 6, "{f}:({t} OR {h})": 10,
    "{tq} {w} {pq}": 4,
}


@dataclass
class Topic:
    """One [section] of topics.txt; `terms` are all names and compounds, most usual first."""

    main: str
    ipc: list[str]
    lists: dict[str, list[str]] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [self.main] + self.lists.get("same", [])


def read_topics(path: Path) -> list[Topic]:
    topics: list[Topic] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            main, ipc = line[1:].split("]")
            topics.append(Topic(main, ipc.split()))
            continue
        key, _, rest = line.partition(": ")
        items = [item.strip() for item in rest.split(",")]
        if key in ("same", "with", "for", "how"):
            topics[-1].lists[key] = items
        else:
            for rank, tail in enumerate(items):
                topics[-1].terms.setdefault(compound(key, tail), 1 / (rank + 2))
    return topics


def compound(stem: str, tail: str) -> str:
    if tail == ".":
        return stem
    return stem[:-1] + tail if stem.endswith("~") else f"{stem} {tail}"


class Draw:
    """Seeded draws with Zipf-like weights."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def ranked(self, items: list):
        """An item of a list whose first ones are the most usual."""
        return self.weighted(items, tuple(1 / (rank + 2) for rank in range(len(items))))

    def weighted(self, items: list, weights):
        return self.random.choices(items, cum_weights=list(accumulate(weights)))[0]

    def several(self, items: list, count: int) -> list:
        """Distinct items, earlier ones more often; shorter where there are not enough."""
        left, chosen = list(items), []
        while left and len(chosen) < count:
            chosen.append(self.ranked(left))
            left.remove(chosen[-1])
        return chosen


def quoted(term: str) -> str:
    return f'"{term}"' if " " in term else term


def fill(template: str, slots: dict[str, str]) -> str | None:
    """The template with its slots filled; None where one of them is missing."""
    names = re.findall(r"\{(\w+)\}", template)
    if any(name not in slots and name.removesuffix("q") not in slots for name in names):
        return None
    return re.sub(
        r"\{(\w+)\}", lambda m: slots[m[1]] if m[1] in slots else quoted(slots[m[1][:-1]]), template
    )


def common_slots(draw: Draw) -> dict[str, str]:
    fields, weights = list(FIELDS), list(FIELDS.values())
    return {
        "f": draw.weighted(fields, weights),
        "g": draw.weighted(fields, weights),
        "w": draw.ranked(DISTANCES),
        "date": draw.ranked(DATES),
    }


def topic_slots(topic: Topic, draw: Draw) -> dict[str, str]:
    slots = common_slots(draw)
    slots["m"] = topic.main if draw.random.random() < 0.6 else draw.ranked(topic.names)
    slots["t"] = draw.weighted(list(topic.terms), topic.terms.values())
    related = [term for term in topic.terms if any(name in term for name in topic.names)]
    slots["x"] = draw.ranked(related or topic.names)
    aspects = [a for a in topic.lists["with"] if a not in slots["m"] and a not in slots["x"]]
    verb = draw.ranked(topic.lists["how"])
    slots |= {"u": draw.ranked(topic.lists["for"]), "v": verb}
    if " " not in verb:
        slots["v1"] = verb
    slots |= zip(("s", "s2", "s3"), draw.several(topic.names, 3))
    slots |= zip(("a", "b"), draw.several(aspects, 2))
    slots |= zip(("c", "d"), draw.several(topic.ipc, 2))
    return slots


def synset_slots(synset: wordnet.Synset, draw: Draw) -> dict[str, str]:
    slots = common_slots(draw) | {"t": draw.ranked(synset.words)}
    if len(synset.words) > 1:
        slots |= zip(("s", "s2", "s3"), draw.several(synset.words, 3))
    if synset.parts:
        slots["p"] = draw.ranked(synset.parts)
    if synset.hypernym and synset.hypernym not in slots["t"]:
        slots["h"] = synset.hypernym
    return slots


class Queries:
    """Draws queries; knows for each whether its template is held out."""

    def __init__(self, topics: list[Topic], synsets: list[wordnet.Synset], seed: int):
        self.draw = Draw(seed)
        self.topics = topics
        self.topic_weights = [1 / (rank + 10) ** 0.5 for rank in range(len(topics))]
        self.synsets = synsets
        self.synset_weights = list(accumulate(s.weight for s in synsets))

    def next(self) -> tuple[str, bool]:
        while True:
            template, slots = self.template_and_slots()
            query = fill(template, slots)
            if query:
                return query, template in HELD_OUT_TEMPLATES

    def template_and_slots(self) -> tuple[str, dict[str, str]]:
        plain = self.draw.random.random() < PLAIN_SHARE
        if self.draw.random.random() < WORDNET_SHARE:
            synset = self.draw.random.choices(self.synsets, cum_weights=self.synset_weights)[0]
            templates = {"{t}": 1} if plain else WORDNET_EXPRESSIONS
            slots = synset_slots(synset, self.draw)
        else:
            templates = PLAIN if plain else EXPRESSIONS
            if self.draw.random.random() < 0.01:
                templates = HELD_OUT_TEMPLATES
            slots = topic_slots(self.draw.weighted(self.topics, self.topic_weights), self.draw)
        return self.draw.weighted(list(templates), templates.values()), slots


def phrases(text: str) -> list[str]:
    """All runs of whole words in it, of at most six words."""
    words = re.findall(r"[^\s()\"\[\]:*]+", text)
    starts = range(len(words))
    return [" ".join(words[i:j]) for i in starts for j in range(i + 1, min(i + 6, len(words)) + 1)]


def held_out_terms(topics: list[Topic], synsets: list[wordnet.Synset]) -> set[str]:
    """One term in HELD_OUT_TERMS: compounds and WordNet nouns, but nothing that is part of another."""
    terms = {term for t in topics for term in t.terms} | {w for s in synsets for w in s.words}
    own = {name for t in topics for name in t.names}
    own |= {item for t in topics for items in t.lists.values() for item in items}
    kept = own | {phrase for term in terms | own for phrase in phrases(term) if phrase != term}
    return {t for t in terms - kept if zlib.crc32(t.encode()) % HELD_OUT_TERMS == 0}


def generate(queries: Queries, held_out: set[str], lines: int) -> tuple[list[str], Counter]:
    """Training lines, and the counts of the queries that must not be among them."""
    training: list[str] = []
    unseen: Counter = Counter()
    while len(training) < lines:
        query, new_template = queries.next()
        if new_template or not held_out.isdisjoint(phrases(query)):
            unseen[query] += 1
        else:
            training.append(query)
    for query in set(training) & unseen.keys():
        del unseen[query]
    return training, unseen


def sample(counts: Counter, count: int, rng: random.Random) -> list[str]:
    """Distinct queries, the frequent ones more likely."""
    keyed = sorted(counts.items(), key=lambda item: rng.random() ** (1 / item[1]), reverse=True)
    return sorted(query for query, _ in keyed[:count])


def write(path: Path, lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    here = Path(__file__).resolve().parent
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun and cntlist.rev")
    args.add_argument("--corpus", type=Path, required=True, help="folder for train.txt and valid.txt")
    args.add_argument("--queries", type=Path, default=here.parent / "queries")
    args.add_argument("--seed", type=int, default=20)
    args = args.parse_args()

    topics, synsets = read_topics(here / "topics.txt"), wordnet.technical_synsets(args.wordnet)
    held_out = held_out_terms(topics, synsets)
    training, unseen = generate(Queries(topics, synsets, args.seed), held_out, LINES)
    counts = Counter(training)
    popular = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:POPULAR]
    rng = random.Random(args.seed)
    rng.shuffle(training)
    valid = round(VALID_SHARE * LINES)
    write(args.corpus / "valid.txt", training[:valid])
    write(args.corpus / "train.txt", training[valid:])
    write(args.queries / "seen.txt", sample(counts, QUERIES_PER_LIST, rng))
    write(args.queries / "heldout_unseen.txt", sample(unseen, QUERIES_PER_LIST, rng))
    write(args.queries / "popular.tsv", (f"{query}\t{count}" for query, count in popular))
    print(f"{len(topics)} topics, {sum(len(t.terms) for t in topics)} compounds, {len(synsets)} synsets")
    print(f"{len(training)} lines, {len(counts)} distinct; {len(unseen)} distinct unseen queries")


if __name__ == "__main__":
    main()
