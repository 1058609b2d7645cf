#!/usr/bin/env python3
"""What other programs make of mistyped queries, beside foretype: MRR@10 with intervals, into one result file.

usage: mistyped.py LISTS OUT --popular FILE --server URL --command WORDS

LISTS is evaluate-typos.jsonl of `foretype evaluate --typos`: what was typed, and foretype's ranks. Every other program knows the
popular queries and nothing else, as they were counted in the model's training corpus. SERVER is a foretype server with the same model
and no tolerance, which completes what SymSpell has corrected. It needs symspellpy and completype (requirements/mistyped.txt), and
Debian's groonga-bin and groonga-plugin-suggest; what is missing has no rows and says why in "absent".
"""

import argparse
import heapq
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

LIST = 10
RESAMPLES = 2000
SEED = 1
WORD = re.compile(r"[^\W\d_]+")


def popular_queries(path):
    pairs = (line.rsplit("\t", 1) for line in Path(path).read_text().splitlines())
    return {query: int(count) for query, count in pairs}


class SymSpell:
    """SymSpell on the words of the popular queries, then foretype's exact method on the corrected text.

    A word that is typed to its end is looked up among all words, the last one among their beginnings."""

    def __init__(self, popular, server):
        import symspellpy

        self.server, self.closest = server, symspellpy.Verbosity.CLOSEST
        words, beginnings = Counter(), Counter()
        for query, count in popular.items():
            for word in WORD.findall(query):
                words[word] += count
        for word, count in words.items():
            for end in range(1, len(word) + 1):
                beginnings[word[:end]] += count
        self.words, self.beginnings = (self.dictionary(symspellpy.SymSpell(2, 7), counts) for counts in (words, beginnings))

    @staticmethod
    def dictionary(speller, counts):
        for word, count in counts.items():
            speller.create_dictionary_entry(word, count)
        return speller

    def corrected(self, typed):
        """As it stands if a word is known so, else in small letters, else the closest one."""

        def one(match):
            word = match[0]
            speller = self.beginnings if match.end() == len(typed) else self.words
            for known in (word, word.lower()):
                if known in speller.words:
                    return known
            if len(word) < 3:
                return word
            found = speller.lookup(word.lower(), self.closest, 1 if len(word) < 5 else 2)
            return found[0].term if found else word

        return WORD.sub(one, typed)

    def __call__(self, typed):
        body = json.dumps({"input": self.corrected(typed), "suggestions": LIST, "tolerance": "off"}).encode()
        request = urllib.request.Request(f"{self.server}/invocations", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return [suggestion["text"] for suggestion in json.load(response)["suggestions"]]
        except urllib.error.HTTPError as error:
            # In full width, some texts have more tokens than the model's context: nothing is suggested for them.
            if json.load(error)["error"]["kind"] != "input_too_long":
                raise
            return []


class Levenshtein:
    """A Levenshtein automaton over the popular queries, as Elasticsearch's completion suggester has it with "fuzzy": edits by
    "AUTO", swaps count as one, the first character is right, and a query's weight is its count times the length of what it has in
    common with the typed text from the start. In small letters, as its analyzer "simple" would have them."""

    def __init__(self, popular):
        self.root = {}
        for query, count in popular.items():
            node = self.root
            for character in query.lower():
                node = node.setdefault(character, {})
            node.setdefault("", []).append((count, query))

    def __call__(self, typed):
        typed = typed.lower()
        edits = 0 if len(typed) < 3 else 1 if len(typed) < 6 else 2
        found = {}
        first = self.root.get(typed[0])
        if first:
            start = list(range(len(typed) + 1))
            self.walk((first, typed[0], None, self.row(typed, start, None, "", typed[0]), start), typed, edits, found)
        common = {query: len(os.path.commonprefix([query.lower(), typed])) for query in found}
        return heapq.nsmallest(LIST, found, key=lambda query: (-found[query] * common[query], query))

    def walk(self, state, typed, edits, found):
        node, character, _, row, before = state
        if row[-1] <= edits:
            self.collect(node, found)
        elif min(row) <= edits:
            for following, child in node.items():
                if following:
                    self.walk((child, following, None, self.row(typed, row, before, character, following), row), typed, edits, found)

    @staticmethod
    def row(typed, row, before, previous, character):
        made = [row[0] + 1]
        for at, key in enumerate(typed):
            cost = min(made[at] + 1, row[at + 1] + 1, row[at] + (key != character))
            if before and at and key == previous and typed[at - 1] == character:
                cost = min(cost, before[at - 1] + 1)
            made.append(cost)
        return made

    def collect(self, node, found):
        open_nodes = [node]
        while open_nodes:
            for key, child in open_nodes.pop().items():
                if key:
                    open_nodes.append(child)
                else:
                    found.update((query, count) for count, query in child)


class Completype:
    """completype, with a query's share of the greatest count as its popularity."""

    def __init__(self, popular):
        import completype

        most = max(popular.values())
        documents = [{"id": place, "text": text, "popularity": count / most} for place, (text, count) in enumerate(popular.items())]
        self.index = completype.Index.from_documents(documents)

    def __call__(self, typed):
        return [suggestion.text for suggestion in self.index.complete(typed, limit=LIST)]


class Groonga:
    """Groonga's suggest plugin: its completions, and its corrections where it has none. It keeps queries in small letters, so case is
    left out of the comparison."""

    def __init__(self, popular):
        self.folder = tempfile.TemporaryDirectory()
        base = Path(self.folder.name) / "db"
        create = ["groonga-suggest-create-dataset", base, "query"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(["groonga", base], **pipe)
        self.written = {}
        for query, count in sorted(popular.items(), key=lambda item: item[1]):
            self.written[query.lower()] = query
        items = [{"_key": query, "kana": [query], "freq": count, "freq2": count} for query, count in popular.items()]
        self.send("load --table item_query --values " + self.quoted(json.dumps(items)))

    @staticmethod
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        (status, *_), *body = json.loads(self.process.stdout.readline())
        if status:
            raise RuntimeError(f"groonga refused {command[:200]}")
        return body[0]

    def __call__(self, typed):
        ask = "suggest --table item_query --column kana --frequency_threshold 1 --limit 10 --query " + self.quoted(typed)
        answer = self.send(ask + " --types complete") or {}
        if len(answer.get("complete", [[0]])[0]) and answer["complete"][0][0] == 0:
            answer = self.send(ask + " --types correct")
        found = next(iter(answer.values()))[2:]
        return [self.written.get(key, key) for key, _ in found]


def contenders(popular, server):
    """Each contender by name, or why it is absent."""
    made, absent = {}, {}
    makers = {
        "SymSpell, then foretype exact": lambda: SymSpell(popular, server),
        "Levenshtein automaton over popular queries": lambda: Levenshtein(popular),
        "completype": lambda: Completype(popular),
        "Groonga": lambda: Groonga(popular),
    }
    for name, maker in makers.items():
        try:
            made[name] = maker()
        except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
            absent[name] = str(error)
            print(f"mistyped: {name} is absent: {error}", file=sys.stderr)
    return made, absent


def interval(values):
    """The mean with its 95 % bootstrap interval, seeded."""
    draw = random.Random(SEED)
    count = len(values)
    means = sorted(sum(draw.choices(values, k=count)) / count for _ in range(RESAMPLES))
    return {"mean": sum(values) / count, "low": means[int(0.025 * RESAMPLES)], "high": means[int(0.975 * RESAMPLES) - 1]}


def ranks(lists, others):
    """Rank of each query by set, style and method, in the order of the lists; and whether the list is that of the plain text."""
    found, same, order = defaultdict(dict), defaultdict(list), {}
    for entry in lists:
        case = (entry["set"], entry["style"], entry["query"], entry["typed"], entry["meant"])
        order[case] = None
        found[entry["method"]][case] = entry["rank"]
        same[entry["set"], entry["style"], entry["method"]].append(entry["same"])
    plain = {}
    for count, case in enumerate(order):
        if count % 1000 == 0:
            print(f"mistyped: {count} of {len(order)} lists", file=sys.stderr)
        group, style, query, typed, meant = case
        for name, contender in others.items():
            listed = contender(typed)
            found[name][case] = listed.index(query) + 1 if query in listed else None
            if (name, meant) not in plain:
                plain[name, meant] = listed if typed == meant else contender(meant)
            same[group, style, name].append(listed == plain[name, meant])
    return found, same


def result(lists, others):
    """A row for each set, style and method. Queries are drawn, not lists: a query's lists depend on each other."""
    found, same = ranks(lists, others)
    out, scores = [], {}
    for method, by_case in found.items():
        by_query = defaultdict(list)
        for (group, style, query, _, _), rank in by_case.items():
            by_query[group, style, query].append(1 / rank if rank else 0)
        for (group, style, query), values in by_query.items():
            scores.setdefault((group, style, method), {})[query] = sum(values) / len(values)
    for (group, style, method), by_query in scores.items():
        own = scores[group, style, "merged"]
        row = {"set": group, "style": style, "method": method, "queries": len(by_query)}
        row |= {"mrr": interval(list(by_query.values()))}
        row |= {"behind_merged": interval([own[query] - score for query, score in by_query.items()])}
        kept = same[group, style, method]
        out.append(row | {"same_list": sum(kept) / len(kept)})
    return out


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("lists", type=Path)
    args.add_argument("out", type=Path)
    args.add_argument("--popular", type=Path, required=True)
    args.add_argument("--server", required=True)
    args.add_argument("--command", required=True)
    args = args.parse_args()
    lists = [json.loads(line) for line in args.lists.read_text().splitlines()]
    popular = popular_queries(args.popular)
    overlap = popular.keys() & {entry["query"] for entry in lists if "unseen" in entry["set"]}
    if overlap:
        sys.exit(f"{len(overlap)} held-out queries are among the popular ones, such as {sorted(overlap)[0]!r}")
    made, absent = contenders(popular, args.server)
    about = {"title": "MRR@10 of mistyped queries", "machine": machine.describe(), "command": args.command}
    args.out.write_text(json.dumps(about | {"absent": absent, "rows": result(lists, made)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
