//! Decodes compressed bodies within a bound, so that a small body can't become a large one in memory. Of HTTP it
//! knows the values of `Content-Encoding` only.

use std::io::{Error as IoError, Read};

use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use crate::error::{Error, Kind};

/// What `Accept-Encoding` says of the bodies that are taken.
pub const ACCEPTED: &str = "gzip, deflate, zstd";

/// The largest window of zstd, as a power of two: 8 MiB, RFC 9659's bound for HTTP.
const ZSTD_WINDOW_LOG: u32 = 23;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, or RFC 1951 without a header, which some clients send under the same name.
    Deflate,
    /// RFC 8878.
    Zstd,
}

impl Encoding {
    /// The encoding of a value of `Content-Encoding`; `None` if the body isn't compressed.
    ///
    /// # Errors
    /// If it is one that this server doesn't decode.
    pub fn named(value: &str) -> Result<Option<Self>, Error> {
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "deflate" => Ok(Some(Self::Deflate)),
            "zstd" => Ok(Some(Self::Zstd)),
            other => {
                let message = format!("the content encoding is {other}; send gzip, deflate, zstd or none");
                Err(Error::new(Kind::UnsupportedMediaType, message))
            }
        }
    }

    /// The decoded body.
    ///
    /// # Errors
    /// If it isn't of this encoding, or has more than `limit` bytes. No more than that is decoded.
    pub fn decode(self, body: &[u8], limit: usize) -> Result<Vec<u8>, Error> {
        let decoded = match self {
            Self::Gzip => read(MultiGzDecoder::new(body), limit),
            Self::Deflate if has_zlib_header(body) => read(ZlibDecoder::new(body), limit),
            Self::Deflate => read(DeflateDecoder::new(body), limit),
            Self::Zstd => zstd::Decoder::with_buffer(body).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                read(decoder, limit)
            }),
        };
        let decoded = decoded.map_err(|error| {
            let message = format!("the body is labelled {self:?} and can't be decoded: {error}").to_lowercase();
            Error::new(Kind::InvalidJson, message)
        })?;
        if decoded.len() > limit {
            let message = format!("the decoded body is over {limit} bytes; an input needs far less");
            return Err(Error::new(Kind::BodyTooLarge, message));
        }
        Ok(decoded)
    }
}

/// Reads to the end, but not further than one byte over the limit.
fn read(decoder: impl Read, limit: usize) -> Result<Vec<u8>, IoError> {
    let mut decoded = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}

/// Whether a body begins as RFC 1950 says: the method is 8, and the first two bytes are a multiple of 31.
fn has_zlib_header(body: &[u8]) -> bool {
    matches!(body, [first, second, ..]
        if first & 0x0f == 8 && (u16::from(*first) * 256 + u16::from(*second)).is_multiple_of(31))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;

    fn encoded(encoding: Encoding, body: &[u8]) -> Vec<u8> {
        match encoding {
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            Encoding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            Encoding::Zstd => zstd::encode_all(body, 3).unwrap(),
        }
    }

    const ALL: [Encoding; 3] = [Encoding::Gzip, Encoding::Deflate, Encoding::Zstd];

    #[test]
    fn what_was_encoded_is_decoded_within_the_limit() {
        let body = br#"{"input": "heat"}"#;
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(body).unwrap();
        assert_eq!(Encoding::Deflate.decode(&raw.finish().unwrap(), 100).unwrap(), body);
        for encoding in ALL {
            let small = encoded(encoding, body);
            assert_eq!(encoding.decode(&small, body.len()).unwrap(), body);
            assert_eq!(encoding.decode(&small, body.len() - 1).unwrap_err().kind, Kind::BodyTooLarge);
            let cut = encoding.decode(&small[..small.len() - 5], 100).unwrap_err();
            assert_eq!(cut.kind, Kind::InvalidJson, "{cut:?}");
            assert_eq!(encoding.decode(&[0xff; 20], 100).unwrap_err().kind, Kind::InvalidJson);
        }
    }

    #[test]
    fn a_bomb_is_decoded_no_further_than_the_limit() {
        let zeros = vec![0; 64 << 20];
        for encoding in ALL {
            let bomb = encoded(encoding, &zeros);
            assert!(bomb.len() < 100_000);
            let started = std::time::Instant::now();
            assert_eq!(encoding.decode(&bomb, 10_000).unwrap_err().kind, Kind::BodyTooLarge);
            // To decode all of it would take a tenth of a second and more.
            assert!(started.elapsed() < std::time::Duration::from_millis(50), "{:?}", started.elapsed());
        }
    }

    #[test]
    fn names_are_those_of_http() {
        assert_eq!(Encoding::named(" GZIP").unwrap(), Some(Encoding::Gzip));
        assert_eq!(Encoding::named("identity").unwrap(), None);
        for other in ["br", "gzip, gzip", "compress"] {
            assert_eq!(Encoding::named(other).unwrap_err().kind, Kind::UnsupportedMediaType);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64), which in 0..3usize) {
            let _ = ALL[which].decode(&body, 1000);
        }
    }
}
