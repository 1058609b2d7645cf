//! The stack machine of a pickle, without what executes anything.
//!
//! Protocols 2 to 5 as far as `torch.save` uses them. A name is looked up in [`Global`], a call makes what that says,
//! and a persistent id is a storage. Whatever else an opcode may do in Python is refused by the opcode's name.

use std::collections::HashMap;
use std::rc::Rc;

use super::error::TorchError;
use super::globals::{Global, storage};
use super::values::{Heap, Value};

/// A pickle that runs.
pub(super) struct Machine<'a> {
    pickle: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack where a tuple or a group of items begins.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    heap: &'a mut Heap,
}

impl<'a> Machine<'a> {
    pub(super) fn new(pickle: &'a [u8], heap: &'a mut Heap) -> Self {
        Self { pickle, at: 0, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), heap }
    }

    /// Runs to the end, and returns the value and the bytes up to there.
    pub(super) fn run(mut self) -> Result<(Value, usize), TorchError> {
        loop {
            let start = self.at;
            let opcode = self.byte()?;
            match opcode {
                b'.' => {
                    let value = self.pop()?;
                    return Ok((value, self.at));
                }
                0x80 => self.protocol()?,
                0x95 => drop(self.bytes(8)?),
                b'(' => self.mark()?,
                b'}' | b']' | b')' | b't' | 0x85..=0x87 => self.container(opcode)?,
                b'a' | b'e' | b's' | b'u' | b'b' => self.fill(opcode)?,
                b'q' | b'r' | 0x94 | b'h' | b'j' => self.memory(opcode)?,
                b'c' | 0x93 | b'R' | b'Q' => self.name_or_call(opcode)?,
                _ => match self.plain(opcode)? {
                    Some(value) => self.push(value)?,
                    None => return Err(TorchError::Opcode { name: opcode_name(opcode), at: start }),
                },
            }
        }
    }

    fn protocol(&mut self) -> Result<(), TorchError> {
        if (2..=5).contains(&self.byte()?) { Ok(()) } else { self.broken("its protocol is none from 2 to 5") }
    }

    fn mark(&mut self) -> Result<(), TorchError> {
        self.heap.count()?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Numbers, texts and constants; `None` for an opcode that isn't known here.
    fn plain(&mut self, opcode: u8) -> Result<Option<Value>, TorchError> {
        let value = match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => self.long()?,
            b'G' => {
                self.bytes(8)?;
                Value::Float
            }
            b'X' | b'T' => {
                let length = self.length()?;
                self.text(length)?
            }
            0x8c | b'U' => {
                let length = self.byte()?.into();
                self.text(length)?
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    /// A whole number of up to 8 bytes, the sign in the last.
    fn long(&mut self) -> Result<Value, TorchError> {
        let length = self.byte()?.into();
        let bytes = self.bytes(length)?;
        if bytes.len() > 8 {
            return self.broken("a number has more than 64 bits");
        }
        let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if sign { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(Value::Int(i64::from_le_bytes(wide)))
    }

    fn container(&mut self, opcode: u8) -> Result<(), TorchError> {
        let value = match opcode {
            b'}' => self.heap.new_dict(),
            b']' | b')' => self.heap.new_sequence(Vec::new()),
            b't' => {
                let items = self.pop_mark()?;
                self.heap.new_sequence(items)
            }
            _ => {
                let count = usize::from(opcode - 0x84);
                let items = self.pop_many(count)?;
                self.heap.new_sequence(items)
            }
        };
        self.push(value)
    }

    /// Puts items into the container below them, or attributes on it.
    fn fill(&mut self, opcode: u8) -> Result<(), TorchError> {
        let items = match opcode {
            b'e' | b'u' => self.pop_mark()?,
            b's' => self.pop_many(2)?,
            _ => self.pop_many(1)?,
        };
        match (opcode, self.top()?) {
            (b'a' | b'e', Value::Sequence(list)) => self.heap.sequence_mut(list).extend(items),
            (b's' | b'u', Value::Dict(dict)) => {
                let (pairs, []) = items.as_chunks::<2>() else { return self.broken("a key has no value") };
                let pairs = pairs.iter().map(|[key, value]| (key.clone(), value.clone()));
                self.heap.dict_mut(dict).extend(pairs);
            }
            // The attributes of a state dictionary: `_metadata`, the versions of its modules. Nothing needs them.
            (b'b', Value::Dict(_)) if matches!(items[..], [Value::Dict(_) | Value::None]) => {}
            (b'b', _) => return self.broken("it sets attributes (BUILD) of something that is no dictionary"),
            _ => return self.broken("items are put into something that can't hold them"),
        }
        Ok(())
    }

    fn memory(&mut self, opcode: u8) -> Result<(), TorchError> {
        let index = match opcode {
            b'q' | b'h' => self.byte()?.into(),
            b'r' | b'j' => u32::from_le_bytes(self.array()?),
            _ => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
        };
        if matches!(opcode, b'h' | b'j') {
            let Some(value) = self.memo.get(&index).cloned() else {
                return self.broken("it asks for a value that it hasn't kept");
            };
            return self.push(value);
        }
        self.heap.count()?;
        let value = self.top()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn name_or_call(&mut self, opcode: u8) -> Result<(), TorchError> {
        let value = match opcode {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Global(Global::named(module, name)?)
            }
            0x93 => {
                let items = self.pop_many(2)?;
                let [Value::Text(module), Value::Text(name)] = &items[..] else {
                    return self.broken("a name is no text (STACK_GLOBAL)");
                };
                Value::Global(Global::named(module, name)?)
            }
            b'Q' => {
                let id = self.pop()?;
                let Value::Sequence(id) = id else { return self.broken("a persistent id is no tuple") };
                let found = storage(self.heap.sequence(id));
                let found = found.map_err(|what| TorchError::Broken { what, at: self.at })?;
                self.heap.new_storage(found)?
            }
            _ => self.call()?,
        };
        self.push(value)
    }

    fn call(&mut self) -> Result<Value, TorchError> {
        let items = self.pop_many(2)?;
        let [Value::Global(function), Value::Sequence(arguments)] = items[..] else {
            return self.broken("it calls something that is no function, or without arguments (REDUCE)");
        };
        let arguments = self.heap.sequence(arguments).to_vec();
        function.call(&arguments, self.heap).map_err(|what| TorchError::Broken { what, at: self.at })
    }

    fn push(&mut self, value: Value) -> Result<(), TorchError> {
        self.heap.count()?;
        self.stack.push(value);
        Ok(())
    }

    /// Values above the last mark.
    fn available(&self) -> usize {
        self.stack.len() - self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Value, TorchError> {
        let top = self.stack.last().filter(|_| self.available() > 0);
        top.cloned().ok_or(TorchError::Broken { what: "its stack is empty", at: self.at })
    }

    fn pop(&mut self) -> Result<Value, TorchError> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Value>, TorchError> {
        if self.available() < count {
            return self.broken("its stack is empty");
        }
        Ok(self.stack.split_off(self.stack.len() - count))
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, TorchError> {
        match self.marks.pop() {
            Some(height) => Ok(self.stack.split_off(height)),
            None => self.broken("a group of items has no beginning"),
        }
    }

    fn byte(&mut self) -> Result<u8, TorchError> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TorchError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn length(&mut self) -> Result<usize, TorchError> {
        Ok(usize::try_from(u32::from_le_bytes(self.array()?)).unwrap_or(usize::MAX))
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], TorchError> {
        let rest = self.pickle.get(self.at..).and_then(|rest| rest.get(..count));
        let Some(bytes) = rest else { return self.broken("it ends too early") };
        self.at += count;
        Ok(bytes)
    }

    fn text(&mut self, length: usize) -> Result<Value, TorchError> {
        let text = std::str::from_utf8(self.bytes(length)?);
        let text: Rc<str> = text.map_err(|_| TorchError::Broken { what: "a text is no UTF-8", at: self.at })?.into();
        Ok(Value::Text(text))
    }

    /// A name and the end of its line.
    fn line(&mut self) -> Result<&'a str, TorchError> {
        let rest = &self.pickle[self.at..];
        let Some(length) = rest.iter().take(1024).position(|byte| *byte == b'\n') else {
            return self.broken("a name has no end");
        };
        let line = self.bytes(length + 1)?;
        std::str::from_utf8(&line[..length]).or_else(|_| self.broken("a name is no UTF-8"))
    }

    fn broken<T>(&self, what: &'static str) -> Result<T, TorchError> {
        Err(TorchError::Broken { what, at: self.at })
    }
}

/// The name of an opcode that isn't read here, as Python's `pickletools` has it.
fn opcode_name(opcode: u8) -> String {
    let name = match opcode {
        b'0' => "POP",
        b'1' => "POP_MARK",
        b'2' => "DUP",
        b'B' => "BINBYTES",
        b'C' => "SHORT_BINBYTES",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'L' => "LONG",
        b'P' => "PERSID",
        b'S' => "STRING",
        b'V' => "UNICODE",
        b'd' => "DICT",
        b'g' => "GET",
        b'i' => "INST",
        b'l' => "LIST",
        b'o' => "OBJ",
        b'p' => "PUT",
        0x81 => "NEWOBJ",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x8b => "LONG4",
        0x8d => "BINUNICODE8",
        0x8e => "BINBYTES8",
        0x8f => "EMPTY_SET",
        0x90 => "ADDITEMS",
        0x91 => "FROZENSET",
        0x92 => "NEWOBJ_EX",
        0x96 => "BYTEARRAY8",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        other => return format!("{other:#04x}"),
    };
    name.to_owned()
}
