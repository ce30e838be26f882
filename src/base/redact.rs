//! Removes credentials from texts that users, files and libraries give: the user and password of a
//! URL, its query (a signed URL is a password), and the parameters of a signature without their URL.
//! Each message passes through here before it reaches a terminal or a file.

use std::borrow::Cow;

/// Replacement of a credential.
const HIDDEN: &str = "***";

/// Parameters of signed requests, in lower case.
const PARAMETERS: [&str; 7] = [
    "x-amz-signature=",
    "x-amz-credential=",
    "x-amz-security-token=",
    "awsaccesskeyid=",
    "signature=",
    "access_token=",
    "sig=",
];

/// Start of a password in the debug text of a URL.
const DEBUG: &str = "password: Some(\"";

/// The text without credentials.
pub fn redact(text: &str) -> Cow<'_, str> {
    let lower = text.to_ascii_lowercase();
    let has_parameter = PARAMETERS.iter().any(|name| lower.contains(name));
    if !has_parameter && !text.contains("://") && !text.contains(DEBUG) {
        return text.into();
    }
    without_passwords(&without_parameters(&without_urls(text))).into()
}

/// Redacts each URL: a scheme, `://`, and all up to a space or a quote.
fn without_urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        let end = url
            .find(|c: char| c.is_whitespace() || "\"<>`".contains(c))
            .unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        let bare = url.trim_end_matches([')', ',', ';', '.', ':', '\'', ']', '}']);
        // The bracket of an IPv6 address is not punctuation.
        let bare = if bare.starts_with('[') && !bare.contains(']') { url } else { bare };
        shown += before;
        shown += &redact_url(bare, before.ends_with("file://"));
        shown += &url[bare.len()..];
        rest = after;
    }
    shown + rest
}

/// URL after its scheme and `://`.
fn redact_url(url: &str, is_path: bool) -> String {
    let (user, url) = split_user(url);
    let user = if user.is_empty() { String::new() } else { format!("{HIDDEN}@") };
    let end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let (host, path) = url.split_at(end);
    let host = match host.rsplit_once(':') {
        // A URL without its host: "user:password".
        Some((name, port)) if !is_port(port) && !port.contains(']') => format!("{name}:{HIDDEN}"),
        _ => host.to_string(),
    };
    let path = match path.find(['?', '#']) {
        Some(at) if !is_path && at + 1 < path.len() => format!("{}{HIDDEN}", &path[..=at]),
        _ => path.to_string(),
    };
    user + &host + &path
}

/// Splits a URL at the last `@`, or its code, that ends a user and password. These may contain any
/// character, also those that must be written as codes; an `@` in a path ends neither.
fn split_user(url: &str) -> (&str, &str) {
    let ends = url.match_indices("@").chain(url.match_indices("%40"));
    let is_user = |user: &str| match user.split_once('/') {
        None => true,
        Some((host, _)) => host
            .rsplit_once(':')
            .is_some_and(|(_, port)| !is_port(port)),
    };
    let ends = ends
        .filter(|(at, _)| is_user(&url[..*at]))
        .map(|(at, end)| (at, at + end.len()));
    let (user, rest) = ends.max().unwrap_or((0, 0));
    (&url[..user], &url[rest..])
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn without_parameters(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let starts_here = |at: usize| {
        let is_start = lower[..at]
            .chars()
            .next_back()
            .is_none_or(|c| !c.is_alphanumeric() && c != '-');
        let name = PARAMETERS
            .iter()
            .find(|name| is_start && lower[at..].starts_with(**name))?;
        Some(at + name.len())
    };
    let mut shown = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.char_indices() {
        let Some(value) = starts_here(at).filter(|_| at >= done) else { continue };
        let end = text[value..]
            .find(|c: char| c.is_whitespace() || "&\"'<>,;".contains(c))
            .map_or(text.len(), |length| value + length);
        shown += &text[done..value];
        shown += HIDDEN;
        done = end;
    }
    shown + &text[done..]
}

fn without_passwords(text: &str) -> String {
    let mut parts = text.split(DEBUG);
    let mut shown = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part.find("\")").unwrap_or(part.len());
        shown += DEBUG;
        shown += HIDDEN;
        shown += &part[end..];
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn credentials_of_every_form_of_url_are_hidden() {
        let users = [
            "user:SECRET@",
            "SECRET@",
            ":SECRET@",
            "a@b:SECRET@",
            "user:SECRET%40",
            "user:SECRET/1@",
            "user:SECRET?x#y@",
        ];
        let hosts = ["host", "host:9000", "10.0.0.1:80", "[::1]:9000", "a-b.example.org"];
        let paths = [
            "",
            "/",
            "/bucket/step-1/index.json",
            "/a:b/c",
            "/a?list-type=2&token=SECRET",
            "?X-Amz-Signature=SECRET&x=1",
            "/x#access=SECRET",
        ];
        let texts = [
            "{}",
            "({})",
            "for url ({}): refused",
            "\"{}\"",
            "<Endpoint>{}</Endpoint>",
            "`{}`,\n{}; {}.",
            "http%3A is not {} é",
        ];
        for scheme in ["http", "https", "s3", "HTTP", "s3+https", "postgresql"] {
            for (user, host) in users.iter().flat_map(|user| hosts.map(|host| (user, host))) {
                for (path, text) in paths.iter().flat_map(|path| texts.map(|text| (path, text))) {
                    let url = format!("{scheme}://{user}{host}{path}");
                    let shown = redact(&text.replace("{}", &url)).into_owned();
                    assert!(!shown.contains("SECRET"), "{url} in {text}: {shown}");
                    assert!(shown.contains(&format!("{scheme}://***@{host}")), "{url}: {shown}");
                }
            }
        }
        for (text, shown) in [
            ("http://user:SECRET is not a URL", "http://user:*** is not a URL"),
            ("/b/k?X-Amz-Signature=SECRET&partNumber=2", "/b/k?X-Amz-Signature=***&partNumber=2"),
            ("AWS4 Credential=id, Signature=SECRET", "AWS4 Credential=id, Signature=***"),
            (
                "Url { username: \"u\", password: Some(\"SECRET\") }",
                "Url { username: \"u\", password: Some(\"***\") }",
            ),
            ("s3://bucket/a?sig=SECRET, then http://h", "s3://bucket/a?***, then http://h"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "runs/a: another run is writing here (process 7 on n1)",
            "copied step-00000008 to s3://gptrain/runs/a, 1.2 MB in 3 s",
            "s3://gptrain/a@b/c: NoSuchBucket: it does not exist",
            "http://127.0.0.1:9000/gptrain/a@b: refused",
            "http://[fe80::1]:9000: refused (see http://[::1])",
            "file:///data/why?/a#b=c holds file:///x",
            "write s3://BUCKET/PREFIX or file:///FOLDER, not x:// or ://",
            "rank 3 (node n1): a.jsonl:12: user@example.org",
            "is that s3://bucket/a? the signature = wrong",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
