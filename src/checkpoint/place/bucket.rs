//! Copies in a bucket with the S3 protocol, by the crate `object_store`. Credentials, region and
//! endpoint are settings (`AWS_ACCESS_KEY_ID`, …, `AWS_ENDPOINT_URL`); no message contains them.
//!
//! A store proves the contents of an object by its ETag: the MD5 of the object, or of the MD5s of
//! its parts. If the ETag is something else (SSE-KMS, some stores), the object is read back.

mod limited;

use super::super::folder;
use super::super::index;
use super::{AT_ONCE, Next, Settings, Stopped, Store};
use anyhow::{Result, anyhow, bail};
use base::{Problems, in_order, redact};
use limited::LimitedConnector;
use md5::{Digest, Md5};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, MultipartUpload, ObjectMeta, ObjectStoreExt, RetryConfig,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Minimum bytes of a part, and maximum number of parts in S3.
const PART: u64 = 8 << 20;
const PARTS: u64 = 10_000;

/// Maximum number of pages of a list, of 1,000 names each.
const PAGES: usize = 1000;

/// Timeout of a request in seconds: a part at 70 kB/s.
const REQUEST_S: u64 = 120;

/// Poll interval of a request that may be stopped.
const POLL: Duration = Duration::from_millis(200);

/// Retries of a request after an error of the store or a broken connection. After longer failures
/// the copy as a whole is retried.
const RETRY: RetryConfig = RetryConfig {
    backoff: BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(5),
        base: 2.0,
    },
    max_retries: 4,
    retry_timeout: Duration::from_secs(30),
};

/// Variables of which one is set if the environment has credentials. Without them the credentials
/// of the machine (EC2) are used.
const CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

pub struct BucketStore {
    url: String,
    prefix: Path,
    store: AmazonS3,
    has_credentials: bool,
    stopped: Stopped,
    /// Its threads wait for the network, for all copies.
    runtime: Runtime,
}

impl BucketStore {
    /// Opens `BUCKET/PREFIX`.
    pub fn open(path: &str, settings: &Settings) -> Result<BucketStore> {
        let url = format!("s3://{path}");
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let mistake = |what: String| Problems::one(url.clone(), what, SETTINGS);
        let prefix = Path::parse(prefix).map_err(|error| mistake(error.to_string()))?;
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::new();
        for (name, value) in settings {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_bucket_name(bucket).with_retry(RETRY);
        builder = builder.with_http_connector(LimitedConnector);
        let client = |key| AmazonS3ConfigKey::Client(key);
        let timeout = format!("{REQUEST_S} seconds");
        builder = builder.with_config(client(ClientConfigKey::Timeout), timeout);
        let endpoints = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
        let endpoint = endpoints
            .iter()
            .find_map(|key| builder.get_config_value(key));
        if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(mistake(format!(
                "the endpoint {endpoint} is not http://HOST:PORT or https://HOST"
            ))
            .into());
        }
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
            builder = builder.with_config(client(ClientConfigKey::AllowHttp), "true");
        }
        // Deletes each object with a request that every store supports.
        let store = builder
            .with_disable_bulk_delete(true)
            .build()
            .map_err(|error| mistake(plain(&error)))?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime
            .worker_threads(1)
            .thread_name("s3")
            .enable_all()
            .build()?;
        let has_credentials = CREDENTIALS.iter().any(|name| settings.contains_key(*name));
        let stopped = Stopped::default();
        Ok(BucketStore { url, prefix, store, has_credentials, stopped, runtime })
    }

    fn path(&self, name: &str) -> Path {
        let whole = self.prefix.parts().map(|part| part.as_ref().to_string());
        Path::from_iter(whole.chain(name.split('/').map(str::to_string)))
    }

    /// Runs a request for a file, or for the whole place.
    fn ask<T>(
        &self,
        name: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.wait(request)
            .map_err(|error| self.failed(name, &error))
    }

    /// Waits for a request, unless it is stopped.
    fn wait<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        self.runtime.block_on(async {
            let mut request = pin!(request);
            while !self.stopped.load(Ordering::Relaxed) {
                if let Ok(done) = tokio::time::timeout(POLL, &mut request).await {
                    return done;
                }
            }
            Err(Error::Generic { store: "S3", source: "stopped".into() })
        })
    }

    fn failed(&self, name: &str, error: &Error) -> anyhow::Error {
        let place = if name.is_empty() { self.url.clone() } else { format!("{}/{name}", self.url) };
        let hint = if self.has_credentials {
            ""
        } else {
            "; the environment has no credentials (AWS_ACCESS_KEY_ID)"
        };
        anyhow!("{place}: {}{hint}", plain(error))
    }

    /// Lists the folders and files in a folder of the place, or with "" in the place itself.
    fn list(&self, folder: &str) -> Result<(Vec<Path>, Vec<ObjectMeta>)> {
        let whole = if folder.is_empty() { self.prefix.clone() } else { self.path(folder) };
        let prefix = (!whole.is_root()).then(|| format!("{whole}/"));
        let mut folders = Vec::new();
        let mut files = Vec::new();
        let mut page_token = None;
        for _ in 0..PAGES {
            let delimiter = Some("/".into());
            let options = PaginatedListOptions { delimiter, page_token, ..Default::default() };
            let read = || {
                let page = self
                    .store
                    .list_paginated(prefix.as_deref(), options.clone());
                self.ask(folder, page)
            };
            // The library does not retry a truncated list.
            let page = read().or_else(|_| read())?;
            folders.extend(page.result.common_prefixes);
            files.extend(page.result.objects);
            page_token = page.page_token;
            if page_token.is_none() {
                return Ok((folders, files));
            }
        }
        bail!("{}: the store's list has more than {PAGES} pages: use a prefix of its own", self.url)
    }

    fn upload(&self, file: &str, part: usize, next: Next) -> Result<bool> {
        let path = self.path(file);
        let mut upload = self.ask(file, self.store.put_multipart(&path))?;
        let sent = self.parts(file, part, next, &mut *upload);
        if sent.is_err() {
            // If this fails too, only a lifecycle rule of the bucket removes the remaining parts.
            let _ = self.runtime.block_on(upload.abort());
        }
        let digest = sent?;
        let put = self.ask(file, upload.complete())?;
        Ok(is_digest(put.e_tag.as_deref(), &digest))
    }

    /// Uploads all parts. Returns the expected ETag of the object.
    fn parts(
        &self,
        file: &str,
        part: usize,
        next: Next,
        upload: &mut dyn MultipartUpload,
    ) -> Result<String> {
        let mut all = Md5::new();
        let mut count = 0;
        loop {
            let bytes = next(part)?;
            if bytes.is_empty() {
                return Ok(format!("{}-{count}", hex(&all.finalize())));
            }
            all.update(Md5::digest(&bytes));
            count += 1;
            self.ask(file, upload.put_part(bytes.into()))?;
        }
    }
}

impl Store for BucketStore {
    fn set_stop_flag(&mut self, stopped: Stopped) {
        self.stopped = stopped;
    }

    fn folders(&self) -> Result<Vec<String>> {
        let (folders, _) = self.list("")?;
        Ok(folders
            .iter()
            .filter_map(|path| path.filename().map(str::to_string))
            .collect())
    }

    fn files(&self, folder: &str) -> Result<BTreeMap<String, u64>> {
        let (_, files) = self.list(folder)?;
        Ok(files
            .into_iter()
            .filter_map(|object| Some((object.location.filename()?.into(), object.size)))
            .collect())
    }

    fn bytes(&self, file: &str) -> Result<Option<u64>> {
        match self.wait(self.store.head(&self.path(file))) {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(file, &error)),
        }
    }

    fn read(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let path = self.path(file);
        let read = || self.ask(file, self.store.get_range(&path, range.clone()));
        Ok(read().or_else(|_| read())?.to_vec())
    }

    fn write(&self, file: &str, bytes: u64, next: Next) -> Result<bool> {
        let part = PART.max(bytes.div_ceil(PARTS).next_multiple_of(1 << 20));
        if bytes > part {
            return self.upload(file, part as usize, next);
        }
        let content = next(bytes as usize)?;
        let digest = hex(&Md5::digest(&content));
        let put = self.ask(file, self.store.put(&self.path(file), content.into()))?;
        Ok(is_digest(put.e_tag.as_deref(), &digest))
    }

    fn remove_file(&self, file: &str) -> Result<()> {
        self.ask(file, self.store.delete(&self.path(file)))
    }

    /// Removes the index first, because a checkpoint without an index is not a checkpoint.
    fn remove(&self, folder: &str) -> Result<()> {
        let mut files = self.files(folder)?;
        let delete = |(): &mut (), file: String| {
            self.ask(folder, self.store.delete(&self.path(&format!("{folder}/{file}"))))
        };
        if files.remove(index::NAME).is_some() {
            delete(&mut (), index::NAME.to_string())?;
        }
        let rest = files.into_keys();
        in_order(AT_ONCE, AT_ONCE, rest, || (), delete, |done: Result<()>| done)
    }

    /// Renames the index.
    fn set_aside(&self, step: u64) -> Result<()> {
        let folder = folder::name(step);
        let from = super::index_name(&folder);
        let to = format!("{folder}/aside-{}", index::NAME);
        self.ask(&from, self.store.copy(&self.path(&from), &self.path(&to)))?;
        self.ask(&from, self.store.delete(&self.path(&from)))
    }

    fn upload_folder(&self, step: u64) -> String {
        folder::name(step)
    }

    /// Invalidates a checkpoint that exists under the name.
    fn begin(&self, step: u64) -> Result<()> {
        let file = super::index_name(&folder::name(step));
        match self.bytes(&file)? {
            Some(_) => self.ask(&file, self.store.delete(&self.path(&file))),
            None => Ok(()),
        }
    }

    fn publish(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// Remedy for an unusable bucket.
const SETTINGS: &str = "write s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
                        (AWS_REGION too, or AWS_ENDPOINT_URL of a store that is not Amazon's)";

/// Whether the library can use a URL as endpoint: it panics on a wrong port.
fn is_endpoint(url: &str) -> bool {
    let rest = url
        .strip_prefix("http://")
        .or(url.strip_prefix("https://"))
        .unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = host
        .rsplit_once(':')
        .filter(|(_, port)| !port.contains(']'));
    !host.is_empty() && port.is_none_or(|(_, port)| port.is_empty() || port.parse::<u16>().is_ok())
}

fn is_digest(e_tag: Option<&str>, digest: &str) -> bool {
    e_tag.is_some_and(|e_tag| e_tag.trim_matches('"') == digest)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Error text of S3 without its XML; otherwise the text of the library, in one line. Without the
/// credentials of its URLs, which a shorter text could hide from a later look.
fn plain(error: &Error) -> String {
    let text = redact(&error.to_string()).into_owned();
    let within = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once(&format!("</{tag}>"))?.0.to_string())
    };
    match (within("Code"), within("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => text
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(400)
            .collect(),
    }
}
