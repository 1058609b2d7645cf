//! Changes numbers in a graph's file, field by field, as the protobuf encoding has them: the tests' way to a graph that
//! no builder writes.

/// A field of a message: its number, and its content.
enum Field<'a> {
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
    /// Four or eight bytes, as they are with their key.
    Fixed(&'a [u8]),
}

/// `ModelProto.graph`, `GraphProto.node`, `NodeProto.attribute`.
const ATTRIBUTES: [u64; 3] = [7, 1, 5];
/// `AttributeProto.name`, `.i` and `.ints`.
const NAME: u64 = 1;
const INTEGER: u64 = 3;
const INTEGERS: u64 = 8;

/// The names of a graph's integer attributes, in order; each may occur often.
pub fn integers(graph: &[u8]) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    drop(with_integers(graph, &mut |name, value| {
        found.push((name.to_owned(), value));
        value
    }));
    found
}

/// The graph with each integer attribute as `change` makes it, given its name and value.
pub fn with_integers(graph: &[u8], change: &mut dyn FnMut(&str, i64) -> i64) -> Vec<u8> {
    rewrite(graph, &ATTRIBUTES, change)
}

/// Rewrites the messages at a path of field numbers, and with them the lengths of all that contain them.
fn rewrite(message: &[u8], path: &[u64], change: &mut dyn FnMut(&str, i64) -> i64) -> Vec<u8> {
    let name = fields(message).into_iter().find_map(|field| match field {
        Field::Bytes(NAME, name) => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    });
    let name = name.unwrap_or_default();
    let mut to = Vec::new();
    for field in fields(message) {
        match field {
            Field::Number(number, value) if path.is_empty() && [INTEGER, INTEGERS].contains(&number) => {
                push_number(&mut to, number << 3);
                push_number(&mut to, change(&name, value.cast_signed()).cast_unsigned());
            }
            Field::Number(number, value) => {
                push_number(&mut to, number << 3);
                push_number(&mut to, value);
            }
            Field::Bytes(number, bytes) => {
                let inner = path.split_first().filter(|(first, _)| **first == number);
                let bytes = inner.map_or_else(|| bytes.to_vec(), |(_, rest)| rewrite(bytes, rest, change));
                push_number(&mut to, number << 3 | 2);
                push_number(&mut to, bytes.len() as u64);
                to.extend(bytes);
            }
            Field::Fixed(bytes) => to.extend(bytes),
        }
    }
    to
}

fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let whole = message;
        let key = take_number(&mut message);
        found.push(match key & 7 {
            0 => Field::Number(key >> 3, take_number(&mut message)),
            2 => {
                let len = take_number(&mut message) as usize;
                let (bytes, rest) = message.split_at(len);
                message = rest;
                Field::Bytes(key >> 3, bytes)
            }
            wire @ (1 | 5) => {
                message = &message[if wire == 1 { 8 } else { 4 }..];
                Field::Fixed(&whole[..whole.len() - message.len()])
            }
            wire => panic!("wire type {wire}"),
        });
    }
    found
}

fn take_number(from: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = from.split_first().unwrap();
        *from = rest;
        value |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return value;
        }
    }
}

fn push_number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}
