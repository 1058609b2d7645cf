"""Checks the prose of the documents and of all doc comments (`//!` and `///`): words, style, the length of sentences.

codespell finds common misspellings and the terms of `terms.txt`, which names what the documents say instead. pyspellchecker
knows the words of English, and `words.txt` has those of this project. proselint looks at style. A sentence has at most
MAX_WORDS words. Code, addresses, and what stands between backticks are not prose. In documents, a link or the path of a
source file must exist.

usage: prose.py [FILE...]     without files: the documents and every Rust source that git knows
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from spellchecker import SpellChecker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATTERNS = ["*.md", "*.rs"]
MAX_WORDS = 35
# Stands for a code span, a figure or an address: one word that no checker reads.
CODE = "§"

# A span of code or of a link's text may go on in the next line, but not in the next paragraph.
IN_PARAGRAPH = r"(?:[^\n]|\n(?!\n))"
SPANS = [
    (re.compile(r"<!--.*?-->"), ""),
    (re.compile(rf"(`+){IN_PARAGRAPH}+?\1"), lambda span: CODE + "\n" * span[0].count("\n")),
    (re.compile(rf"!?\[((?:(?!\]){IN_PARAGRAPH})*)\]\((?:[^()]|\([^)]*\))*\)"), r"\1"),
    (re.compile(rf"!?\[((?:(?!\]){IN_PARAGRAPH})*)\](?:\[[^\]]*\])?"), r"\1"),
    (re.compile(r"https?://[^\s)>]+|\b[\w/-]+\.(?:md|rs|py|sh|json|onnx|cpp)\b"), CODE),
    (re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)"), ""),
]
# A full stop behind these ends no sentence.
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|cf|et al|No)\.$")
# The product's name has no capital.
SENTENCE_END = re.compile(rf"[.!?][\"')]*\s+(?=[\"'(]*(?:[A-Z0-9{CODE}]|foretype))")
# Not f32 or GPT2: what has a digit in it is a name.
WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")


def prose_lines(path, text):
    """The lines of a file with what is not prose left empty, and None where a paragraph ends."""
    lines = text.splitlines()
    if path.suffix == ".rs":
        lines = [m[1] if (m := re.match(r"\s*//[!/](?!/) ?(.*)", line)) else "" for line in lines]
    fence = definition = False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("```"):
            fence = not fence
            yield ""
            continue
        # Four spaces behind an empty line are code too, but nobody here writes it like this.
        definition = re.match(r"\s*\[[^\]]+\]:\s", line)
        yield "" if fence or definition or stripped.startswith("<!--") else line


def without_code(lines):
    """The lines with code spans, links and emphasis taken off. A span may go on over the end of a line."""
    text = "\n".join(lines)
    for pattern, instead in SPANS:
        text = pattern.sub(instead, text)
    return text.split("\n")


def blocks(lines):
    """Paragraphs, list items, headings and table cells, each as (number of its first line, text)."""
    start, block = 0, []
    for number, line in enumerate([*lines, ""], 1):
        stripped = line.strip()
        is_new = re.match(r"[*+-] |\d+\. |#", stripped)
        if (not stripped or is_new or stripped.startswith("|")) and block:
            yield start, " ".join(block)
            block = []
        if stripped.startswith("|"):
            yield from ((number, cell.strip()) for cell in stripped.strip("|").split("|"))
        elif stripped:
            if not block:
                start = number
            block.append(re.sub(r"^(?:[*+-]|\d+\.|#+) +", "", stripped))


def sentences(text):
    """The sentences of a block."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        if not ABBREVIATION.search(text[start : end.start() + 1]):
            yield text[start : end.start() + 1]
            start = end.end()
    yield text[start:]


def long_sentences(lines):
    """What is wrong with the length of sentences: (line, message)."""
    for number, block in blocks(lines):
        for sentence in sentences(block):
            words = [word for word in sentence.split() if re.search(rf"\w|{CODE}", word)]
            if len(words) > MAX_WORDS:
                yield number, f"a sentence of {len(words)} words; {MAX_WORDS} are the most: {' '.join(words[:8])} ..."


def anchors(text):
    """The anchors of a document's headings, as GitHub names them."""
    headings = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(root, name):
    """Links of a document to files or headings that don't exist, and source files that it names so: (line, message)."""
    for number, line in enumerate((root / name).read_text().splitlines(), 1):
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:rs|py|sh|js))`", line):
            if not any((folder / path).exists() for folder in (root, (root / name).parent)):
                yield number, f"there is no {path}"
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", line):
            path, _, anchor = target.partition("#")
            file = (root / name).parent / path if path else root / name
            if not file.exists() or anchor and anchor not in anchors(file.read_text()):
                yield number, f"a link to {target}, which doesn't exist"


@functools.cache
def words():
    """The words, read once."""
    return Words()


class Words:
    """The words of English and of this project."""

    def __init__(self):
        self.english = SpellChecker(distance=1)
        listed = (HERE / "words.txt").read_text().split("\n")
        self.ours = {word for word in listed if word and not word.startswith("#")}

    def is_known(self, word):
        bare = re.sub(r"['’]s?$", "", word)
        forms = {word, word.lower(), bare, bare.lower()}
        return len(bare) < 3 or bool(forms & self.ours) or bool(self.english.known(forms))

    def unknown(self, lines):
        """Words that nobody knows: (line, message)."""
        for number, line in enumerate(lines, 1):
            # Names in the code, such as max_new_tokens, belong between backticks.
            for word in WORD.findall(line):
                if not self.is_known(word):
                    yield number, f"unknown word: {word}"


def tools(folder, files):
    """What codespell and proselint find in the files of a folder, which have the line numbers of the sources."""
    own = ["--ignore-words-list", "fro", "--dictionary", "-", "--dictionary", HERE / "terms.txt"]
    spelling = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *own, *files], cwd=folder, capture_output=True, text=True, check=False)
    yield from spelling.stdout.splitlines()
    style = subprocess.run(
        [sys.executable, "-m", "proselint", "check", "--config", HERE / "proselint.json", "-o", "json", *files],
        cwd=folder, capture_output=True, text=True, check=False)
    if not style.stdout.strip():
        raise SystemExit(f"proselint said nothing: {style.stderr}")
    for name, result in json.loads(style.stdout)["result"].items():
        path = Path(name.removeprefix("file://"))
        path = path.relative_to(folder) if path.is_absolute() else path
        for found in result.get("diagnostics", []):
            yield f"{path}:{found['pos'][0]}: {found['message']} ({found['check_path']})"


def check(root, files):
    """What is wrong with the files, as lines for people."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, written = Path(scratch).resolve(), []
        for name in files:
            lines = without_code(prose_lines(Path(name), (root / name).read_text()))
            if not any(lines):
                continue
            links = broken_links(root, name) if name.endswith(".md") else []
            wrong = [*long_sentences(lines), *words().unknown(lines), *links]
            found += [f"{name}:{number}: {message}" for number, message in sorted(wrong)]
            plain = folder / name
            plain.parent.mkdir(parents=True, exist_ok=True)
            # Words of two paragraphs are no repetition.
            plain.write_text("".join((line or "---") + "\n" for line in lines))
            written.append(name)
        found += tools(folder, written)
    return found


def main():
    files = sys.argv[1:]
    if not files:
        listed = subprocess.run(["git", "ls-files", "-z", *PATTERNS], cwd=ROOT, capture_output=True, text=True, check=True)
        files = [name for name in listed.stdout.split("\0") if name]
    found = check(ROOT, files)
    print("\n".join(found) or f"prose: {len(files)} files, nothing found")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
