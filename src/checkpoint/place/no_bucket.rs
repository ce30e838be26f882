//! Replaces `bucket` in a build without the feature `object-store`: S3 is refused.

use super::{Next, Settings, Store};
use anyhow::Result;
use base::Problems;
use std::collections::BTreeMap;
use std::ops::Range;

/// Never constructed.
pub enum Bucket {}

impl Bucket {
    pub fn open(path: &str, _: &Settings) -> Result<Bucket> {
        let what = "this gptrain was built without S3 (the feature `object-store`)";
        let remedy = "build with it (`cargo build --release`), or use file:///FOLDER";
        Err(Problems::one(format!("s3://{path}"), what, remedy).into())
    }
}

impl Store for Bucket {
    fn folders(&self) -> Result<Vec<String>> {
        match *self {}
    }

    fn files(&self, _: &str) -> Result<BTreeMap<String, u64>> {
        match *self {}
    }

    fn bytes(&self, _: &str) -> Result<Option<u64>> {
        match *self {}
    }

    fn read(&self, _: &str, _: Range<u64>) -> Result<Vec<u8>> {
        match *self {}
    }

    fn write(&self, _: &str, _: u64, _: Next) -> Result<bool> {
        match *self {}
    }

    fn remove(&self, _: &str) -> Result<()> {
        match *self {}
    }

    fn set_aside(&self, _: u64) -> Result<()> {
        match *self {}
    }

    fn fresh(&self, _: u64) -> String {
        match *self {}
    }

    fn begin(&self, _: u64) -> Result<()> {
        match *self {}
    }

    fn publish(&self, _: u64) -> Result<()> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::Place;

    #[test]
    fn s3_is_refused_with_the_remedy() {
        let said = Place::open("s3://bucket/a").err().unwrap().to_string();
        for part in ["s3://bucket/a", "without S3", "cargo build --release", "file:///"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
