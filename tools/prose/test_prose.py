"""What the linter of prose finds, and what it leaves alone."""

import tempfile
import unittest
from pathlib import Path

import prose

# 36 words.
LONG = (
    "A request that waits in the queue is answered with what was found until its deadline, and a request whose client has "
    "gone is dropped within one step, so that nobody computes for nothing at all."
)


class Prose(unittest.TestCase):
    def found(self, text, name="a.md"):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, name).write_text(text)
            return prose.check(Path(folder), [name])

    def assert_finds(self, text, *messages, name="a.md"):
        found = self.found(text, name)
        self.assertEqual(len(found), len(messages), found)
        for line, message in zip(found, messages):
            self.assertIn(message, line)

    def test_a_sentence_of_too_many_words(self):
        self.assertEqual(self.found(LONG.replace("nobody computes", "nobody")), [])
        self.assertEqual(self.found(LONG.replace(", and a", ". A")), [])
        self.assert_finds(f"# A title\n\nGood. {LONG}\n", "a.md:3: a sentence of")
        self.assert_finds(f"| a | b |\n|---|---|\n| one | {LONG} |\n", "a.md:3: a sentence of")
        self.assert_finds(f"//! Good.\n//! {LONG}\nfn f() {{}} // {LONG}\n", "a.rs:1: a sentence of", name="a.rs")

    def test_a_misspelt_word(self):
        self.assert_finds("Good.\n\nThe server wil stop.\n", "a.md:3: unknown word: wil", "a.md:3: wil ==> will")
        self.assert_finds("//! The servre stops.\n", "a.rs:1: unknown word: servre", name="a.rs")
        self.assert_finds("struct A {\n    /// The servre.\n    a: u8,\n", "a.rs:2: unknown word: servre", name="a.rs")

    def test_a_term_that_has_another_name_here(self):
        self.assert_finds("A dear request waits.\n", "dear ==> expensive")

    def test_style(self):
        self.assert_finds("The server is is ready.\n", "lexical_illusions")

    def test_a_link_without_a_target(self):
        self.assertEqual(self.found("## Good `code`\n\nSee [this](a.md#good-code) and [that](#good-code).\n"), [])
        self.assert_finds("See [that](b.md).\n", "a.md:1: a link to b.md")
        self.assert_finds("# Good\n\nSee [this](#bad).\n", "a.md:3: a link to #bad")
        self.assert_finds("It is in `src/gone.rs`.\n", "a.md:1: there is no src/gone.rs")

    def test_code_is_not_prose(self):
        text = f"Run `servre\nwil` and [`teh`](a.md), see <https://teh.example/teh>.\n\n```sh run\nteh {LONG}\n```\n"
        self.assertEqual(self.found(text + "\n[teh]: https://teh.example\n<!-- teh -->\n"), [])
        rust = "// The servre wil stop.\n//// The servre wil stop.\nfn teh() {} // teh\n/// ```\n/// let servre = 1;\n/// ```\n"
        self.assertEqual(self.found(rust, "a.rs"), [])

if __name__ == "__main__":
    unittest.main()
