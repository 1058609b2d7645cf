//! A writer that counts and hashes what passes through, so that no file is read again for its checksum.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use bundle::manifest::hexadecimal;

/// Writes on, and keeps the checksum and size of what was written.
#[derive(Debug)]
pub struct Hashed<W> {
    inner: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    /// Hashes what is written to `inner` from now on.
    pub fn new(inner: W) -> Self {
        Self::resumed(inner, Sha256::new(), 0)
    }

    /// Continues the hash of `bytes` bytes that were written before.
    pub(crate) fn resumed(inner: W, hasher: Sha256, bytes: u64) -> Self {
        Self { inner, hasher, bytes }
    }

    /// Number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The SHA-256 until now, in hexadecimal.
    pub fn sha256(&self) -> String {
        hexadecimal(&self.hasher.clone().finalize())
    }

    /// The underlying writer.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes three bytes at a time.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            let taken = &buffer[..buffer.len().min(3)];
            self.0.extend(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_what_was_taken_counts() {
        let mut writer = Hashed::new(Slow(Vec::new()));
        assert_eq!(writer.write(b"abcd").unwrap(), 3);
        assert_eq!(writer.bytes(), 3);
        // FIPS 180-2's example.
        assert_eq!(writer.sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        writer.write_all(b"defg").unwrap();
        assert_eq!((writer.bytes(), writer.get_ref().0.as_slice()), (7, &b"abcdefg"[..]));
        assert_eq!(writer.sha256(), hexadecimal(&Sha256::digest(b"abcdefg")));
    }
}
