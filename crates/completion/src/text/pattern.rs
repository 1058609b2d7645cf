//! A pre-tokenizer's pattern as a program of a matcher that follows all ways to match at once, the preferred one first.
//!
//! What the patterns of tokenizers are made of is understood: character classes, alternatives, repetition, and looking
//! ahead at one character. Anything else is refused by name. This module knows nothing of where a text is split.

use fancy_regex::{Expr, LookAround};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// The most instructions of a program.
const MAX_INSTRUCTIONS: usize = 4096;

/// The index of an instruction.
pub(super) type Place = u16;

/// One instruction. Where an instruction doesn't say what comes next, it is the one behind it.
#[derive(Clone, Debug)]
pub(super) enum Instruction {
    /// Reads one character of a set, by its index in [`Program::sets`].
    Read(u16),
    /// Passes if the next character is in the set (`true`), or if none is (`false`). The end of a text is in no set.
    Look(u16, bool),
    /// Goes on in several places, the preferred one first.
    Fork(Vec<Place>),
    /// Matches.
    Match,
}

/// A pattern.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) code: Vec<Instruction>,
    /// The sets of characters that the instructions name.
    pub(super) sets: Vec<ClassUnicode>,
}

impl Program {
    /// Compiles a regular expression.
    pub(super) fn regex(pattern: &str) -> Result<Self, String> {
        let tree = Expr::parse_tree(pattern).map_err(|error| error.to_string())?;
        let mut program = Self::default();
        program.expression(&tree.expr)?;
        program.finish()
    }

    /// Any of some texts; of several that match, the longest.
    pub(super) fn longest_of(texts: &[&str]) -> Result<Self, String> {
        let mut sorted = texts.to_vec();
        sorted.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let mut program = Self::default();
        program.alternatives(&sorted, |program, text| program.literal(text, false))?;
        program.finish()
    }

    /// A run of characters of one set, or one such character.
    pub(super) fn characters(set: ClassUnicode, run: bool) -> Result<Self, String> {
        let mut program = Self::default();
        let read = |program: &mut Self| program.read(set.clone());
        program.repeat(1, if run { usize::MAX } else { 1 }, true, &read)?;
        program.finish()
    }

    fn finish(mut self) -> Result<Self, String> {
        self.push(Instruction::Match)?;
        Ok(self)
    }

    fn push(&mut self, instruction: Instruction) -> Result<usize, String> {
        if self.code.len() == MAX_INSTRUCTIONS {
            return Err("has a pattern that is too long".to_owned());
        }
        self.code.push(instruction);
        Ok(self.code.len() - 1)
    }

    fn here(&self) -> Place {
        self.code.len() as Place
    }

    fn set(&mut self, set: ClassUnicode) -> u16 {
        let known = self.sets.iter().position(|other| *other == set);
        known.unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        }) as u16
    }

    fn read(&mut self, set: ClassUnicode) -> Result<(), String> {
        let set = self.set(set);
        self.push(Instruction::Read(set)).map(|_| ())
    }

    fn literal(&mut self, text: &str, any_case: bool) -> Result<(), String> {
        for character in text.chars() {
            let mut set = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
            if any_case {
                set.try_case_fold_simple().map_err(|error| error.to_string())?;
            }
            self.read(set)?;
        }
        Ok(())
    }

    fn expression(&mut self, expression: &Expr) -> Result<(), String> {
        match expression {
            Expr::Empty => Ok(()),
            Expr::Literal { val, casei } => self.literal(val, *casei),
            Expr::Delegate { inner, casei, .. } => {
                let parser = regex_syntax::ParserBuilder::new().case_insensitive(*casei).build().parse(inner);
                self.hir(&parser.map_err(|error| error.to_string())?)
            }
            Expr::Concat(parts) => parts.iter().try_for_each(|part| self.expression(part)),
            Expr::Alt(parts) => self.alternatives(parts, |program, part| program.expression(part)),
            Expr::Group(inner) => self.expression(inner),
            Expr::Repeat { child, lo, hi, greedy } => {
                self.repeat(*lo, *hi, *greedy, &|program| program.expression(child))
            }
            Expr::LookAround(inner, LookAround::LookAhead) => self.look(inner, true),
            Expr::LookAround(inner, LookAround::LookAheadNeg) => self.look(inner, false),
            _ => Err("has a pattern with more than classes, alternatives, repetition and (?!...)".to_owned()),
        }
    }

    fn hir(&mut self, hir: &Hir) -> Result<(), String> {
        match hir.kind() {
            HirKind::Empty => Ok(()),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|error| error.to_string())?.to_owned();
                self.literal(&text, false)
            }
            HirKind::Class(Class::Unicode(set)) => self.read(set.clone()),
            HirKind::Repetition(repetition) => {
                let most = repetition.max.map_or(usize::MAX, |most| most as usize);
                self.repeat(repetition.min as usize, most, repetition.greedy, &|program| program.hir(&repetition.sub))
            }
            HirKind::Capture(capture) => self.hir(&capture.sub),
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.hir(part)),
            HirKind::Alternation(parts) => self.alternatives(parts, |program, part| program.hir(part)),
            HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => Err("has a pattern with an assertion".to_owned()),
        }
    }

    fn look(&mut self, inner: &Expr, wanted: bool) -> Result<(), String> {
        let mut ahead = Self::default();
        ahead.expression(inner)?;
        let (Some(set), [Instruction::Read(_)]) = (ahead.sets.pop(), &ahead.code[..]) else {
            return Err("has a pattern that looks ahead at more than one character".to_owned());
        };
        let set = self.set(set);
        self.push(Instruction::Look(set, wanted)).map(|_| ())
    }

    fn alternatives<T>(
        &mut self,
        parts: &[T],
        mut compile: impl FnMut(&mut Self, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let fork = self.push(Instruction::Fork(Vec::new()))?;
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for part in parts {
            starts.push(self.here());
            compile(self, part)?;
            ends.push(self.push(Instruction::Fork(Vec::new()))?);
        }
        self.code[fork] = Instruction::Fork(starts);
        for end in ends {
            self.code[end] = Instruction::Fork(vec![self.here()]);
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        least: usize,
        most: usize,
        greedy: bool,
        compile: &dyn Fn(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let choice = |inside: Place, outside: Place| {
            Instruction::Fork(if greedy { vec![inside, outside] } else { vec![outside, inside] })
        };
        (0..least).try_for_each(|_| compile(self))?;
        if most == usize::MAX {
            let fork = self.push(Instruction::Fork(Vec::new()))?;
            compile(self)?;
            self.push(Instruction::Fork(vec![fork as Place]))?;
            self.code[fork] = choice(fork as Place + 1, self.here());
            return Ok(());
        }
        let mut forks = Vec::new();
        for _ in least..most {
            forks.push(self.push(Instruction::Fork(Vec::new()))?);
            compile(self)?;
        }
        for fork in forks {
            self.code[fork] = choice(fork as Place + 1, self.here());
        }
        Ok(())
    }
}

/// The set of characters that a predicate holds for.
pub(super) fn set_of(predicate: impl Fn(char) -> bool) -> ClassUnicode {
    ClassUnicode::new(('\0'..=char::MAX).filter(|&c| predicate(c)).map(|c| ClassUnicodeRange::new(c, c)))
}
