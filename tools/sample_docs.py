#!/usr/bin/env python3
"""Draws doc comments at random, for a reader who judges whether each is understood without the code.

usage: tools/sample_docs.py SEED [COUNT] [DOC_DIR]     30 of target/doc, unless said otherwise

It reads what `cargo doc --workspace --no-deps --document-private-items` has written. Each item with a comment of its own has the same
chance: types, functions, methods, fields, variants, constants. What a trait of another crate says of its methods is left out.
"""

import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

PAGE = re.compile(r"(struct|enum|union|trait|fn|constant|static|type|macro)\.(\w+)\.html")
MEMBER = re.compile(r"(?:structfield|variant|method|tymethod|associatedconstant|associatedtype)\.(\S+)")
VOID = {"br", "hr", "img", "input", "link", "meta", "wbr"}


class Page(HTMLParser):
    """The comments of one page: pairs of a member's name, or none for the item itself, and the text."""

    def __init__(self):
        super().__init__()
        self.comments, self.member, self.depth, self.text = [], None, 0, []
        self.foreign = self.deref = False

    def handle_starttag(self, tag, attributes):
        if tag in VOID:
            return
        attributes = dict(attributes)
        classes = (attributes.get("class") or "").split()
        if self.depth:
            self.depth += 1
        elif "docblock" in classes:
            self.depth, self.text = 1, []
        elif (member := MEMBER.fullmatch(attributes.get("id") or "")) and tag in ("section", "span"):
            self.member, self.foreign = member[1], "trait-impl" in classes
        elif (attributes.get("id") or "").startswith("impl-"):
            self.foreign = True
        elif tag == "h2":
            self.deref = (attributes.get("id") or "").startswith("deref-")

    def handle_endtag(self, tag):
        if self.depth and tag not in VOID:
            self.depth -= 1
            if self.depth == 0 and not self.foreign and not self.deref:
                self.comments.append((self.member, " ".join("".join(self.text).split())))

    def handle_data(self, data):
        if self.depth:
            self.text.append(data)


def comments(folder):
    """All comments as (path, text), in the order of their paths."""
    found = {}
    for file in folder.rglob("*.html"):
        if not (name := PAGE.fullmatch(file.name)) or "src" in file.relative_to(folder).parts[:1]:
            continue
        html = file.read_text()
        # What a crate takes from elsewhere, such as the standard library, has its source there.
        if 'class="src" href="../' not in html:
            continue
        page = Page()
        page.feed(html)
        path = "::".join([*file.relative_to(folder).parts[:-1], name[2]])
        for member, text in page.comments:
            if text:
                found[f"{path}.{member}" if member else path] = text
    return sorted(found.items())


def main():
    seed, count, folder = [*sys.argv[1:], *["", "30", "target/doc"][len(sys.argv) - 1 :]][:3]
    if not seed:
        sys.exit(__doc__)
    every = comments(Path(folder))
    print(f"seed {seed}: {count} of {len(every)} comments\n")
    for path, text in random.Random(int(seed)).sample(every, int(count)):
        print(f"{path}\n    {text}\n")


if __name__ == "__main__":
    main()
