"""Reads the technical nouns of WordNet 3.0 from its own files (`data.noun`, `index.noun`,
`cntlist.rev`).

Not a WordNet library: only words, hypernyms and parts of the synsets that a patent search
may name. Proper names, slang, dated words and weapons are left out.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LEXICOGRAPHER_FILES = {"06", "08", "19", "22", "27"}  # artifact, body, phenomenon, process, substance
# Only below these synsets, named by a word and the start of the gloss ...
INCLUDED = [
    ("device", "an instrumentality invented"), ("equipment", "an instrumentality needed"),
    ("implement", "instrumentation (a piece"), ("machine", "any mechanical or electrical"),
    ("vehicle", "a conveyance that transports"), ("system", "instrumentality that combines"),
    ("material", "the tangible substance"), ("compound", "(chemistry) a substance formed"),
    ("chemical_element", "any of the more than"), ("mixture", "(chemistry) a substance consisting"),
    ("physical_phenomenon", "a natural phenomenon involving"), ("chemical_process", "(chemistry) any process"),
    ("organ", "a fully differentiated"), ("tissue", "part of an organism"), ("bone", "rigid connective"),
    ("body_fluid", "the liquid parts"), ("fabric", "artifact made by weaving"),
]
# ... and never below these.
EXCLUDED = {
    "weapon", "explosive", "explosive_device", "instrument_of_punishment", "instrument_of_execution", "drug_of_abuse", "soft_drug", "narcotic", "restraint",
    "musical_instrument", "trap", "toy", "decoration", "religious_text", "fecal_matter", "breast", "sex_organ",
    "genitalia", "body_waste", "poison", "ammunition", "reproductive_organ", "excretory_product",
    "intoxicant", "game_equipment", "playing_card", "sports_equipment", "money", "military_vehicle", "military_machine",
    "warplane", "bomber", "warship", "adipose_tissue", "fatty_tissue", "gambling_device", "computer_virus", "tobacco", "drink", "beverage", "food", "feed",
}
DATED = re.compile(
    r"\b(slang|informal|archaic|obsolete|formerly|medieval|Roman|disparaging|dated|old term|ancient|"
    r"used in the past|used by the|biblical|Middle Ages|century|American Indian|religious|trade name)\b"
)
WORD = re.compile(r"[a-z][a-z-]*[a-z](_[a-z-]*[a-z])*")


@dataclass
class Synset:
    words: list[str]
    weight: float
    hypernym: str | None
    parts: list[str]


@dataclass
class Record:
    """One line of data.noun."""

    file: str
    words: list[str]
    hypernyms: list[str]
    parts: list[str]
    gloss: str


def read_records(path: Path) -> dict[str, Record]:
    records = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):
            continue
        data, _, gloss = line.partition(" | ")
        part = data.split()
        words = part[4 : 4 + 2 * int(part[3], 16) : 2]
        pointers = part[5 + 2 * len(words) :]
        links = list(zip(pointers[0::4], pointers[1::4]))
        hypernyms = [offset for kind, offset in links if kind in ("@", "@i")]
        parts = [offset for kind, offset in links if kind == "%p"]
        records[part[0]] = Record(part[1], words, hypernyms, parts, gloss)
    return records


def counts_by_word(path: Path) -> Counter:
    """How often each noun was tagged in WordNet's semantic concordance, in the technical files."""
    counts: Counter = Counter()
    for line in path.read_text(encoding="latin-1").splitlines():
        key, _, count = line.split()
        word, _, sense = key.partition("%1:")
        if sense[:2] in LEXICOGRAPHER_FILES:
            counts[word, sense[:2]] += int(count)
    return counts


def first_senses(path: Path) -> dict[str, str]:
    """The offset of the most usual sense of each noun."""
    senses = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            part = line.split()
            senses[part[0]] = part[-int(part[2])]
    return senses


class Selection:
    """Which records are technical, by walking up their hypernyms; a word only in its first sense."""

    def __init__(self, records: dict[str, Record], senses: dict[str, str]):
        self.records = records
        self.senses = senses
        self.verdicts: dict[str, tuple[bool, bool]] = {}

    def below(self, offset: str) -> tuple[bool, bool]:
        """(below an included synset, below an excluded one)."""
        if offset not in self.verdicts:
            record = self.records[offset]
            inside = any(w in record.words and record.gloss.startswith(g) for w, g in INCLUDED)
            outside = not EXCLUDED.isdisjoint(record.words)
            for above in record.hypernyms:
                more_inside, more_outside = self.below(above)
                inside, outside = inside or more_inside, outside or more_outside
            self.verdicts[offset] = inside, outside
        return self.verdicts[offset]

    def words(self, offset: str) -> list[str]:
        record = self.records[offset]
        if self.below(offset) != (True, False) or DATED.search(record.gloss):
            return []
        if record.file not in LEXICOGRAPHER_FILES or any(w[0].isupper() for w in record.words):
            return []
        usual = [w for w in record.words if self.senses.get(w) == offset]
        return [w.replace("_", " ") for w in usual if WORD.fullmatch(w) and 3 < len(w) < 30]


def technical_synsets(folder: Path) -> list[Synset]:
    """Synsets with a weight that follows the frequencies; most usual word first in each."""
    records, counts = read_records(folder / "data.noun"), counts_by_word(folder / "cntlist.rev")
    chosen, synsets = Selection(records, first_senses(folder / "index.noun")), []
    for offset, record in records.items():
        words = chosen.words(offset)
        tagged = sum(counts[w.replace(" ", "_"), record.file] for w in words)
        known = tagged or any(" " in w for w in words)
        if words and known:
            above = [chosen.words(o) for o in record.hypernyms]
            parts = [p[0] for p in map(chosen.words, record.parts) if p]
            hypernym = next((words[0] for words in above if words), None)
            synsets.append(Synset(words, 1 + tagged**0.4, hypernym, parts))
    return synsets
