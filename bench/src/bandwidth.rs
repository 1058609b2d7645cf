//! How fast this machine reads memory: the floor under a step, which reads every weight once.

use std::time::Instant;

use crate::summary::Summary;

/// Size of the memory that is read, in bytes: far more than the caches hold.
const BYTES: usize = 512 << 20;
/// Reads of the whole, of which the median counts.
const ROUNDS: usize = 7;

/// Bytes per second that all cores together read, one block each, in order.
pub fn read_bytes_per_second(threads: usize) -> f64 {
    let words = vec![1u64; BYTES / size_of::<u64>()];
    let block = words.len().div_ceil(threads.max(1));
    let read = || {
        let started = Instant::now();
        let sum: u64 = std::thread::scope(|scope| {
            let readers: Vec<_> = words.chunks(block).map(|part| scope.spawn(move || sum(part))).collect();
            readers.into_iter().map(|reader| reader.join().unwrap_or(0)).sum()
        });
        std::hint::black_box(sum);
        BYTES as f64 / started.elapsed().as_secs_f64()
    };
    Summary::of((0..ROUNDS).map(|_| read())).map_or(f64::NAN, |summary| summary.median)
}

/// Independent sums side by side, so that the additions don't wait for each other.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let (blocks, rest) = words.as_chunks::<32>();
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        assert_eq!(sum(&vec![1; 1000]), 1000);
    }
}
