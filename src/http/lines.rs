//! JSON Lines: splits a body into lines, without interpreting them.

use std::ops::Range;

/// The content types that mean JSON Lines.
pub const CONTENT_TYPES: [&str; 5] = [
    "application/jsonlines",
    "application/x-jsonlines",
    "application/x-ndjson",
    "application/jsonl",
    "application/json-lines",
];
/// The one that is sent.
pub const CONTENT_TYPE: &str = CONTENT_TYPES[0];

/// Where each line of a body is, line ends left out. Blank lines at the end are no lines; others are.
pub fn split(body: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut lines: Vec<Range<usize>> = body
        .split(|&byte| byte == b'\n')
        .map(|line| {
            let range = start..start + line.strip_suffix(b"\r").unwrap_or(line).len();
            start += line.len() + 1;
            range
        })
        .collect();
    while lines.last().is_some_and(|line| body[line.clone()].iter().all(u8::is_ascii_whitespace)) {
        lines.pop();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn texts(body: &str) -> Vec<&str> {
        split(body.as_bytes()).into_iter().map(|line| &body[line]).collect()
    }

    #[test]
    fn lines_end_in_either_way_and_blank_ones_count_only_between_others() {
        assert_eq!(texts("a\nb"), ["a", "b"]);
        assert_eq!(texts("a\r\nb\r\n"), ["a", "b"]);
        assert_eq!(texts("\na\n\n \nb\n \n\n"), ["", "a", "", " ", "b"]);
        assert!(texts("").is_empty() && texts("\n \r\n").is_empty());
    }

    proptest! {
        #[test]
        fn lines_are_in_order_and_hold_everything_but_line_ends(
            body in vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), any::<u8>()], 0..64),
        ) {
            let lines = split(&body);
            let mut from = 0;
            for line in &lines {
                prop_assert!(from <= line.start && line.end <= body.len());
                prop_assert!(body[from..line.start].iter().all(|b| b"\r\n".contains(b)));
                prop_assert!(!body[line.clone()].contains(&b'\n'));
                from = line.end;
            }
            prop_assert!(body[from..].iter().all(u8::is_ascii_whitespace));
        }
    }
}
