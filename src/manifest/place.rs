//! URL of a place for copies of checkpoints.

/// Parsed URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceUrl<'a> {
    /// Folder with an absolute path, from `file:///FOLDER`.
    Folder(&'a str),
    /// `BUCKET/PREFIX` from `s3://BUCKET/PREFIX`; S3 accepts the bucket's name.
    Bucket(&'a str),
}

impl PlaceUrl<'_> {
    /// Remedy for a wrong URL.
    pub const REMEDY: &'static str = "write s3://BUCKET/PREFIX or file:///FOLDER";

    /// Parses a URL. The error describes the URL, to be read after "is".
    pub fn read(url: &str) -> Result<PlaceUrl<'_>, &'static str> {
        match url.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Ok(PlaceUrl::Folder(path)),
            Some(("file", _)) => Err("not an absolute path"),
            Some(("s3", path)) if path.contains('?') => {
                Err("a signed URL: credentials are settings of the environment")
            }
            Some(("s3", path)) if is_bucket(path.split('/').next().unwrap_or_default()) => {
                Ok(PlaceUrl::Bucket(path))
            }
            Some(("s3", _)) => {
                Err("not a bucket: 3 to 63 lower-case letters, digits, dots and hyphens")
            }
            _ => Err("not a location of checkpoints"),
        }
    }
}

fn is_bucket(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name.chars().all(|c| plain(c) || c == '.' || c == '-')
        && name.starts_with(plain)
        && name.ends_with(plain)
}
