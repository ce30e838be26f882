//! A place of checkpoints beside a run's folder, as a URL names it.

/// What a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceUrl<'a> {
    /// A folder by its whole path, of `file:///FOLDER`.
    Folder(&'a str),
    /// `BUCKET/PREFIX` of `s3://BUCKET/PREFIX`; the bucket's name is one that S3 takes.
    Bucket(&'a str),
}

impl PlaceUrl<'_> {
    /// What to write instead of what is none.
    pub const REMEDY: &'static str = "write s3://BUCKET/PREFIX or file:///FOLDER";

    /// An error says what the URL is, after "is".
    pub fn read(url: &str) -> Result<PlaceUrl<'_>, &'static str> {
        match url.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Ok(PlaceUrl::Folder(path)),
            Some(("file", _)) => Err("no whole path"),
            Some(("s3", path)) if is_bucket(path.split('/').next().unwrap_or_default()) => {
                Ok(PlaceUrl::Bucket(path))
            }
            Some(("s3", _)) => {
                Err("no bucket: 3 to 63 lower-case letters, digits, dots and hyphens")
            }
            _ => Err("no place of checkpoints"),
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
