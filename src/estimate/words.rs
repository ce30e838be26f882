//! Formats of durations, money, counts and error bars in the planner's output.

use base::table::Cell;
use base::{Count, Seconds, number};

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// "27.1 days"; below two days "31.5 hours", "3 h 20 m", "55.0 s".
pub fn span(seconds: f64) -> String {
    match seconds / DAY {
        days @ 2.0.. => format!("{days:.1} days"),
        1.0.. => format!("{:.1} hours", seconds / HOUR),
        _ => Seconds(seconds).to_string(),
    }
}

/// "27.1 d", "31.5 h", "12.0 m": of at most eight letters below 100,000 days.
pub fn short_span(seconds: f64) -> String {
    match seconds / DAY {
        days @ 2.0.. => format!("{days:.1} d"),
        _ if seconds >= HOUR => format!("{:.1} h", seconds / HOUR),
        _ => format!("{:.1} m", seconds / 60.0),
    }
}

/// "$145,875"; below a hundred with cents. `sign` is the currency's.
pub fn money(sign: &str, sum: f64) -> String {
    let space = if sign.ends_with(|last: char| last.is_alphabetic()) { " " } else { "" };
    let sign = format!("{sign}{space}");
    match sum {
        100.0.. => format!("{sign}{}", Count(sum.round() as u64)),
        _ => format!("{sign}{sum:.2}"),
    }
}

/// Seconds in the unit of the largest of a column: "417.0 ms", "0.417 s", "95.0 s".
pub fn seconds_in_unit_of(seconds: f64, largest: f64) -> String {
    match largest {
        ..1.0 => format!("{:.1} ms", 1e3 * seconds),
        ..10.0 => format!("{seconds:.3} s"),
        ..100.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

/// "1.5 T", "366.0 B", "1.83 M", "950": numbers of tokens or parameters.
pub fn size(count: f64) -> String {
    match count {
        999.95e9.. => format!("{:.1} T", count / 1e12),
        1e9.. => format!("{:.1} B", count / 1e9),
        1e6.. => format!("{:.2} M", count / 1e6),
        1e4.. => format!("{:.0} k", count / 1e3),
        _ => format!("{count:.0}"),
    }
}

/// "1 device", "64 devices".
pub fn devices(count: usize) -> String {
    format!("{} device{}", Count(count as u64), if count == 1 { "" } else { "s" })
}

/// Change from one value to another: "+3.1 %"; "new" from 0.
pub fn change(from: f64, to: f64) -> Cell {
    let share = to / from - 1.0;
    let text = match from {
        _ if from == to => "–".to_string(),
        0.0 => "new".to_string(),
        _ => format!("{:+.1} %", 100.0 * share),
    };
    Cell::new(share, text)
}

/// Seconds of a step with at least three digits: "0.0412", "4.920", "95.00".
pub fn step(seconds: f64) -> Cell {
    match seconds {
        ..0.1 => Cell::fixed(seconds, 5),
        ..10.0 => Cell::fixed(seconds, 3),
        _ => Cell::fixed(seconds, 2),
    }
}

/// "± 20 %"; of a wide one both ends, "− 58 % + 140 %": nine in ten are within 1 + `error` times what is
/// planned, and that divided by it.
pub fn bar(error: f64) -> String {
    match error {
        ..0.3 => format!("± {:.0} %", 100.0 * error),
        _ => format!("− {:.0} % + {:.0} %", 100.0 * error / (1.0 + error), 100.0 * error),
    }
}

/// Error above which a bar is printed as a range.
const WIDE: f64 = 1.0;

/// Both ends of a bar.
pub fn range(planned: f64, error: f64) -> [f64; 2] {
    [planned / (1.0 + error), planned * (1.0 + error)]
}

/// Whether a bar is printed as a range.
pub fn is_wide(error: f64) -> bool {
    error > WIDE
}

/// Seconds with their bar: "4.92 s ± 20 %"; "30.0 ms to 2.3 s" of a bar above 100 %, which says more than
/// a number that may be far off.
pub fn with_bar(seconds: f64, error: f64) -> String {
    if !is_wide(error) {
        return format!("{} {}", Seconds(seconds), bar(error));
    }
    let [least, most] = range(seconds, error).map(Seconds);
    format!("{least} to {most}")
}

/// Price of one device for one hour, and the sign of its currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    pub sign: &'static str,
    pub sum: f64,
}

impl Price {
    /// As the hardware table has them.
    pub fn dollars(sum: f64) -> Price {
        Price { sign: "$", sum }
    }
}

/// A price as people write it: "2.10", in dollars as the hardware table's, or "€2.10", "2.10 CHF".
pub fn price(text: &str) -> Result<Price, String> {
    let (sign, sum) = read_money(text).ok_or("a price is written as in 2.10, €2.10 or 2.10 CHF")?;
    Ok(Price { sign: sign.unwrap_or("$"), sum })
}

/// A sum of money, of which the currency may be left to the price.
pub type Sum = (Option<&'static str>, f64);

/// A budget as people write it: "90000", "€90000", "2e6 CHF".
pub fn budget(text: &str) -> Result<Sum, String> {
    read_money(text).ok_or_else(|| "a budget is written as in 90000, €90000 or 2e6 CHF".to_string())
}

fn read_money(text: &str) -> Option<Sum> {
    let signs = ["$", "€", "£", "¥", "₹", "CHF", "EUR", "USD", "GBP"];
    let text = text.trim();
    let without = |sign: &&str| {
        text.strip_prefix(*sign)
            .or_else(|| text.strip_suffix(*sign))
    };
    let sign = signs.into_iter().find(|sign| without(sign).is_some());
    let number = sign.and_then(|sign| without(&sign)).unwrap_or(text);
    let sum = number::real(number).ok().filter(|sum| *sum >= 0.0)?;
    Some((sign, sum))
}

/// "41,678"; below a hundred with two digits.
pub fn hours(count: f64) -> String {
    match count {
        100.0.. => Count(count.round() as u64).to_string(),
        _ => format!("{count:.2}"),
    }
}

/// Tokens or parameters as people write them: "366e9", "300B", "1.5T", "300_000_000_000".
pub fn tokens(text: &str) -> Result<f64, String> {
    let number = number::real(text).ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| {
        "a number of tokens is written as in 366e9, 300B, 1.5T or 300_000_000_000".to_string()
    })
}

/// The lower end of a bar of any width is above 0.
#[test]
fn a_wide_bar_has_two_ends() {
    let all = [(0.08, "± 8 %"), (1.4, "− 58 % + 140 %"), (9.0, "− 90 % + 900 %")];
    all.iter()
        .for_each(|(error, text)| assert_eq!(bar(*error), *text));
    let all = [(0.2, "250 ms ± 20 %"), (1.0, "250 ms − 50 % + 100 %"), (7.3, "30 ms to 2.1 s")];
    all.iter()
        .for_each(|(error, text)| assert_eq!(with_bar(0.25, *error), *text));
}

#[test]
fn a_price_has_the_sign_that_it_is_given() {
    assert_eq!(price("2.1"), Ok(Price::dollars(2.1)));
    assert_eq!(price("€2.1"), Ok(Price { sign: "€", sum: 2.1 }));
    assert_eq!(price("2.1 CHF"), Ok(Price { sign: "CHF", sum: 2.1 }));
    assert_eq!(money("CHF", 337.2), "CHF 337");
    assert_eq!(budget("90_000"), Ok((None, 9e4)));
    assert_eq!(budget("€90000"), Ok((Some("€"), 9e4)));
    assert!(budget("ninety").unwrap_err().contains("€90000"));
    for wrong in ["", "two", "-1", "NaN", "€"] {
        assert!(price(wrong).unwrap_err().contains("€2.10"), "{wrong}");
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
fn a_columns_cells_have_one_unit() {
    assert_eq!(
        [0.4171, 0.02].map(|seconds| seconds_in_unit_of(seconds, 0.4171)),
        ["417.1 ms", "20.0 ms"]
    );
    assert_eq!(
        [0.4171, 1.9].map(|seconds| seconds_in_unit_of(seconds, 1.9)),
        ["0.417 s", "1.900 s"]
    );
    assert_eq!(seconds_in_unit_of(90_000.0, 90_000.0), "90000.0 s");
    assert_eq!([366e9, 1_830_000.0, 12_345.0, 17.0].map(size), ["366.0 B", "1.83 M", "12 k", "17"]);
    assert_eq!(
        [1e12, 15.6e12, 999.96e9, 999.9e9].map(size),
        ["1.0 T", "15.6 T", "1.0 T", "999.9 B"]
    );
    assert_eq!([1, 64].map(devices), ["1 device", "64 devices"]);
}

#[test]
fn small_and_large_spans_have_their_own_units() {
    assert_eq!(span(27.1 * 86400.0), "27.1 days");
    assert_eq!([1.99, 1.0].map(|days| span(days * DAY)), ["47.8 hours", "24.0 hours"]);
    assert_eq!(span(55.0), "55.0 s");
    let short = [48.0, 47.9, 0.5].map(|hours| short_span(hours * HOUR));
    assert_eq!(short, ["2.0 d", "47.9 h", "30.0 m"]);
    assert_eq!(span(12_000.0), "3 h 20 m");
    assert_eq!([145_875.2, 0.004].map(|sum| money("$", sum)), ["$145,875", "$0.00"]);
    assert_eq!([41_678.0, 0.02].map(hours), ["41,678", "0.02"]);
}
