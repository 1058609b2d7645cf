//! The links of a chain, and which of its values share memory.
//!
//! Values have numbers: first the node's inputs, then its outputs, and then those that stay inside.

/// The values that a link reads and makes.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// An input that is left out is `None`.
    pub(super) inputs: Vec<Option<usize>>,
    pub(super) outputs: Vec<usize>,
}

/// For each value behind the node's inputs the memory that it has, by number; `None` for the node's outputs. A value
/// has the memory of an earlier one that no link reads any more.
///
/// # Errors
/// A link reads a value that isn't made yet, or makes one twice.
pub(super) fn places<'a>(
    inputs: usize,
    outputs: usize,
    links: impl Iterator<Item = &'a Link> + Clone,
) -> Result<Vec<Option<usize>>, String> {
    let last_uses = last_uses(inputs, links.clone())?;
    let (mut places, mut free) = (vec![None; last_uses.len()], Vec::new());
    let mut count = 0;
    for (at, link) in links.enumerate() {
        let made = link.outputs.iter().map(|value| value - inputs);
        for value in made.clone().filter(|value| *value >= outputs) {
            places[value] = free.pop().or_else(|| {
                count += 1;
                Some(count - 1)
            });
        }
        // Also what nobody reads.
        let mut ended: Vec<usize> = read(link, inputs).chain(made).filter(|value| last_uses[*value] == at).collect();
        ended.sort_unstable();
        ended.dedup();
        free.extend(ended.into_iter().filter_map(|value| places[value]));
    }
    Ok(places)
}

/// For each value behind the node's inputs the link that uses it last.
fn last_uses<'a>(inputs: usize, links: impl Iterator<Item = &'a Link> + Clone) -> Result<Vec<usize>, String> {
    let count = links.clone().map(|link| link.outputs.len()).sum();
    let mut last_uses = vec![None; count];
    for (at, link) in links.enumerate() {
        for value in read(link, inputs) {
            match last_uses.get_mut(value) {
                Some(Some(last)) => *last = at,
                _ => return Err(format!("link {at} reads a value that is not made yet")),
            }
        }
        for value in &link.outputs {
            match value.checked_sub(inputs).and_then(|value| last_uses.get_mut(value)) {
                Some(new @ None) => *new = Some(at),
                _ => return Err(format!("link {at} makes the value {value}, which is another's")),
            }
        }
    }
    // So many were made, each once.
    Ok(last_uses.into_iter().flatten().collect())
}

/// What a link reads of the values behind the node's inputs.
fn read(link: &Link, inputs: usize) -> impl Iterator<Item = usize> {
    link.inputs.iter().flatten().filter_map(move |value| value.checked_sub(inputs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(inputs: &[usize], outputs: &[usize]) -> Link {
        Link { inputs: inputs.iter().copied().map(Some).collect(), outputs: outputs.to_vec() }
    }

    #[test]
    fn values_that_are_needed_at_a_time_have_memory_of_their_own() {
        // One input, one output (1), and 2, 3, ... inside.
        let links = [link(&[0], &[2]), link(&[2], &[3]), link(&[3, 2], &[4]), link(&[4], &[5, 6]), link(&[5], &[1])];
        let places = places(1, 1, links.iter()).expect("an order");
        assert_eq!(places, [None, Some(0), Some(1), Some(2), Some(1), Some(0)]);
    }

    #[test]
    fn values_are_made_once_and_before_they_are_read() {
        for links in [
            vec![link(&[1], &[1])],
            vec![link(&[0], &[1]), link(&[1], &[1])],
            vec![link(&[0], &[0])],
            vec![link(&[0], &[7])],
            vec![link(&[7], &[1])],
        ] {
            let error = places(1, 1, links.iter()).expect_err("refused");
            assert!(error.starts_with("link "), "{error}");
        }
    }
}
