//! JSON of other programs. Python's `json` writes NaN, Infinity and -Infinity, which JSON does not have;
//! serde writes them as `null`.

use std::borrow::Cow;

use serde::de::{DeserializeOwned, Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// U+FEFF in UTF-8, with which some editors begin a file.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Words of Python, longest first.
const NOT_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Reads a number, with `null` as NaN.
pub fn null_is_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads JSON as Python's `json` does: after a byte order mark, and with numbers that are not finite as
/// `null`. The place in an error refers to `text`.
pub fn from_python<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let strict = match serde_json::from_slice(text) {
        Ok(value) => return Ok(value),
        Err(strict) => strict,
    };
    let finite = FiniteJson::new(text);
    if finite.text == text {
        return Err(strict);
    }
    serde_json::from_slice(&finite.text).map_err(|error| {
        let (line, column) = (error.line(), finite.column(error.line(), error.column()));
        // serde_json reads the place back from the message.
        Error::custom(format!("{} at line {line} column {column}", without_place(&error)))
    })
}

/// Message of an error without its line and column.
pub fn without_place(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.rfind(" at line ").unwrap_or(text.len()));
    text
}

/// JSON in which numbers that are not finite are `null`: Python's words, and numbers beyond f64. All
/// else is copied, right or wrong.
pub struct FiniteJson<'t> {
    pub text: Cow<'t, [u8]>,
    /// Places in `text` of `null` for NaN, which is a byte shorter.
    grown: Vec<usize>,
}

impl<'t> FiniteJson<'t> {
    pub fn new(json: &'t [u8]) -> FiniteJson<'t> {
        let mut text = Vec::new();
        let mut grown = Vec::new();
        let mut at = 0;
        let mut copied = 0;
        while at < json.len() {
            let end = at + token(&json[at..]);
            if is_not_finite(&json[at..end]) {
                text.extend(&json[copied..at]);
                if end - at < 4 {
                    grown.push(text.len());
                }
                text.extend(b"null");
                text.extend(std::iter::repeat_n(b' ', (end - at).saturating_sub(4)));
                copied = end;
            }
            at = end;
        }
        if copied == 0 {
            return FiniteJson { text: json.into(), grown };
        }
        text.extend(&json[copied..]);
        FiniteJson { text: text.into(), grown }
    }

    /// Column in the original text of a line's column in `text`.
    pub fn column(&self, line: usize, column: usize) -> usize {
        let lines = self.text.split(|byte| *byte == b'\n').take(line - 1);
        let start: usize = lines.map(|line| line.len() + 1).sum();
        let grown = self
            .grown
            .iter()
            .filter(|at| (start..start + column).contains(at));
        column - grown.count()
    }
}

/// Bytes of a string, of a number, of a word of Python, or of anything else (1).
fn token(json: &[u8]) -> usize {
    let is_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    if let Some(word) = NOT_FINITE.iter().find(|word| json.starts_with(word)) {
        return word.len();
    }
    match json[0] {
        b'"' => string(json),
        b'-' | b'0'..=b'9' => json.iter().take_while(|byte| is_number(byte)).count(),
        _ => 1,
    }
}

/// Bytes of a string with its quotes, or of all that follows if it does not end.
fn string(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

fn is_not_finite(token: &[u8]) -> bool {
    let is_number = |token: &[u8]| serde_json::from_slice::<IgnoredAny>(token).is_ok();
    let value = |token| std::str::from_utf8(token).ok()?.parse::<f64>().ok();
    match token[0] {
        b'-' | b'0'..=b'9' if token.len() > 4 && is_number(token) => {
            value(token).is_some_and(f64::is_infinite)
        }
        _ => NOT_FINITE.contains(&token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng;
    use serde_json::{Value, json};

    #[test]
    fn numbers_that_are_not_finite_are_null() {
        let read = |text: &str| from_python::<Value>(text.as_bytes()).unwrap();
        let text =
            "\u{feff}{\"a\": [NaN, -Infinity], \"NaN\": \"Infinity\\\"NaN\", \"b\":Infinity}";
        assert_eq!(read(text), json!({"a": [null, null], "NaN": "Infinity\"NaN", "b": null}));
        assert_eq!(read("[1e999, -2E+308, 1e308]"), json!([null, null, 1e308]));
        assert_eq!(read(&format!("[{}]", "9".repeat(400))), json!([null]));
        assert_eq!(read("NaN"), Value::Null);
    }

    #[test]
    fn all_else_is_refused_at_its_place() {
        let why = |text: &str| {
            from_python::<Value>(text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(why("{\"a\": nan}"), "expected ident at line 1 column 8");
        assert_eq!(why("[NaN,\nNaN, NaN, x]"), "expected value at line 2 column 11");
        assert_eq!(why("[Infinity, NaN, x]"), "expected value at line 1 column 17");
        for text in ["{NaN: 1}", "NaNNaN", "1NaN", "NaN1", "--Infinity", "+Infinity", "[NaN", "nul"]
        {
            assert!(from_python::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }

    /// Random JSON by Python's rules, built together with the value that it means; and the same with a
    /// byte changed or removed, where a text without a word of Python keeps serde_json's verdict.
    #[test]
    fn random_json_of_python_is_read() {
        let mut random = Random { key: rng::key(7, "python"), drawn: 0 };
        for _ in 0..20_000 {
            let (text, meant) = random.value(4);
            assert_eq!(from_python::<Value>(text.as_bytes()).ok(), Some(meant), "{text}");
            let mut damaged = text.into_bytes();
            let at = random.below(damaged.len());
            match random.below(2) {
                0 => damaged[at] = b"\"{}[]:,NI-1\\ "[random.below(13)],
                _ => drop(damaged.remove(at)),
            }
            let has = |word: &[u8]| damaged.windows(word.len()).any(|bytes| bytes == word);
            let strict = serde_json::from_slice::<Value>(&damaged).ok();
            let read = from_python::<Value>(&damaged).ok();
            let widened =
                strict.is_none() && (has(b"1e") || NOT_FINITE.iter().any(|word| has(word)));
            assert!(widened || read == strict, "{}", String::from_utf8_lossy(&damaged));
        }
    }

    struct Random {
        key: u64,
        drawn: u64,
    }

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.drawn += 1;
            rng::below(self.key, self.drawn, n as u64) as usize
        }

        fn space(&mut self) -> &'static str {
            ["", "", " ", "\n", "\t\r\n "][self.below(5)]
        }

        fn string(&mut self) -> (String, String) {
            let parts = [
                ("a", "a"),
                ("NaN", "NaN"),
                ("\\\"", "\""),
                ("\\\\", "\\"),
                ("-Infinity", "-Infinity"),
                ("\\u00e9", "é"),
                ("日", "日"),
                ("\\n", "\n"),
            ];
            let (text, meant): (Vec<_>, Vec<_>) = (0..self.below(4))
                .map(|_| parts[self.below(parts.len())])
                .unzip();
            (format!("\"{}\"", text.concat()), meant.concat())
        }

        /// Text of a value, and the value that a reader should find.
        fn value(&mut self, depth: usize) -> (String, Value) {
            let words = ["null", "true", "-12", "1.5e3", "NaN", "Infinity", "-Infinity", "-1e999"];
            let plain = self.below(words.len());
            match self.below(if depth == 0 { 2 } else { 4 }) {
                0 => {
                    let meant = [json!(null), json!(true), json!(-12), json!(1500.0)];
                    (words[plain].into(), meant.get(plain).cloned().unwrap_or_default())
                }
                1 => {
                    let (text, meant) = self.string();
                    (text, meant.into())
                }
                2 => {
                    let items: Vec<_> = (0..self.below(4)).map(|_| self.value(depth - 1)).collect();
                    let (text, meant): (Vec<_>, Vec<_>) = items.into_iter().unzip();
                    let comma = format!("{},{}", self.space(), self.space());
                    (format!("[{}{}]", text.join(&comma), self.space()), meant.into())
                }
                _ => {
                    let mut text = Vec::new();
                    let mut meant = serde_json::Map::new();
                    for number in 0..self.below(4) {
                        let ((key, name), (value, of)) = (self.string(), self.value(depth - 1));
                        let key = format!("\"{number}{}", &key[1..]);
                        let name = number.to_string() + &name;
                        text.push(format!("{key}{}:{}{value}", self.space(), self.space()));
                        meant.insert(name, of);
                    }
                    (format!("{{{}{}}}", text.join(","), self.space()), meant.into())
                }
            }
        }
    }
}
