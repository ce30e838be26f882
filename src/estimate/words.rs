//! Spans of time and sums of money as a planner says them.

use base::{Count, Seconds};

/// "27.1 days"; below one day "3 h 20 m", "55.0 s".
pub fn span(seconds: f64) -> String {
    match seconds / 86400.0 {
        days @ 1.0.. => format!("{days:.1} days"),
        _ => Seconds(seconds).to_string(),
    }
}

/// "$145,875"; below a hundred with cents. `sign` is the currency's, if it is known.
pub fn money(sign: &str, sum: f64) -> String {
    match sum {
        100.0.. => format!("{sign}{}", Count(sum.round() as u64)),
        _ => format!("{sign}{sum:.2}"),
    }
}

/// "41,678"; below a hundred with two digits.
pub fn hours(count: f64) -> String {
    match count {
        100.0.. => Count(count.round() as u64).to_string(),
        _ => format!("{count:.2}"),
    }
}

/// Tokens as people write them: "366e9", "300B", "1.5T", "300_000_000_000".
pub fn tokens(text: &str) -> Result<f64, String> {
    let plain = text.trim().replace('_', "");
    let units = [("K", 1e3), ("M", 1e6), ("B", 1e9), ("G", 1e9), ("T", 1e12)];
    let upper = plain.to_ascii_uppercase();
    let unit = units.iter().find_map(|(unit, size)| Some((upper.strip_suffix(unit)?, *size)));
    let (number, size) = unit.unwrap_or((&upper, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number * size),
        _ => Err("a number of tokens is written as in 366e9, 300B, 1.5T or 300_000_000_000".into()),
    }
}

#[test]
fn tokens_are_read_as_people_write_them() {
    for (text, count) in [
        ("366e9", 366e9),
        ("300B", 3e11),
        ("300_000_000_000", 3e11),
        ("1.5t", 1.5e12),
        ("2 M", 2e6),
    ] {
        assert_eq!(tokens(text), Ok(count), "{text}");
    }
    for wrong in ["", "B", "-1B", "many", "nan", "infB", "0"] {
        assert!(tokens(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn small_and_large_spans_have_their_own_units() {
    assert_eq!(span(27.1 * 86400.0), "27.1 days");
    assert_eq!(span(55.0), "55.0 s");
    assert_eq!(span(12_000.0), "3 h 20 m");
    assert_eq!([145_875.2, 0.004].map(|sum| money("$", sum)), ["$145,875", "$0.00"]);
    assert_eq!([41_678.0, 0.02].map(hours), ["41,678", "0.02"]);
}
