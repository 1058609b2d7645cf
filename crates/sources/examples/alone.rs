//! A download and nothing else: the clients that `sources` has, parts of the same size side by side, and the file on
//! the disk in the end. No checksum, no journal, no second attempt. `tests/download` compares a server's download with
//! it.
//!
//! usage: alone URL BYTES FILE     URL is http://HOST/PATH or s3://BUCKET/PATH

use std::error::Error;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};
use reqwest::header::RANGE;
use sources::Options;
use url::Url;

type Failure = Box<dyn Error>;

enum Client {
    Web(reqwest::Client),
    Store(AmazonS3, Path),
}

impl Client {
    fn new(url: &Url) -> Result<Self, Failure> {
        if url.scheme() != "s3" {
            return Ok(Self::Web(reqwest::Client::builder().build()?));
        }
        let store = AmazonS3Builder::from_env().with_url(url.as_str()).build()?;
        Ok(Self::Store(store, Path::from_url_path(url.path())?))
    }

    async fn read(&self, url: &Url, range: Range<u64>) -> Result<BoxStream<'static, Result<Bytes, Failure>>, Failure> {
        match self {
            Self::Web(client) => {
                let range = format!("bytes={}-{}", range.start, range.end - 1);
                let answer = client.get(url.clone()).header(RANGE, range).send().await?.error_for_status()?;
                Ok(answer.bytes_stream().map_err(Failure::from).boxed())
            }
            Self::Store(store, path) => {
                let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
                Ok(store.get_opts(path, options).await?.into_stream().map_err(Failure::from).boxed())
            }
        }
    }
}

fn main() -> Result<(), Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let [url, bytes, path] = std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "URL BYTES FILE")?;
    let (url, bytes, file) = (&Url::parse(&url)?, bytes.parse::<u64>()?, &File::create(PathBuf::from(path))?);
    let (client, Options { part_bytes, parallel, .. }) = (&Client::new(url)?, Options::new(PathBuf::new()));
    let parts = stream::iter((0..bytes).step_by(part_bytes as usize))
        .map(|start| async move {
            let mut at = start;
            let mut pieces = client.read(url, start..(start + part_bytes).min(bytes)).await?;
            while let Some(piece) = pieces.try_next().await? {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
            Ok::<_, Failure>(())
        })
        .buffer_unordered(parallel)
        .try_collect::<()>();
    // As the server's downloads run: on one thread.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(parts)?;
    file.sync_all()?;
    Ok(())
}
