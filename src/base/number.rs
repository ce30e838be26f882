//! Numbers as people write them, in manifests and flags alike: `64`, `3e-4`, `1_000_000`, `100k`,
//! `1.5B`. A unit is K, M, B, G or T of either case, and means thousands, millions and so on.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

/// Number without rounding: whole ones are exact above 2^53.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

/// Reasons why text is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotANumber {
    /// Another word.
    Text,
    /// A leading zero, which some programs read as octal or hexadecimal.
    LeadingZero,
    /// Infinite, or NaN.
    NotFinite,
    TooLarge,
}

/// Units and their powers of ten.
const UNITS: [(char, i32); 5] = [('k', 3), ('m', 6), ('b', 9), ('g', 9), ('t', 12)];

impl Number {
    pub fn parse(text: &str) -> Result<Number, NotANumber> {
        let unsigned = text.trim_start_matches(['-', '+']);
        if matches!(&*unsigned.to_lowercase(), ".inf" | ".nan") {
            return Err(NotANumber::NotFinite);
        }
        if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(NotANumber::Text);
        }
        let second = unsigned
            .as_bytes()
            .get(1)
            .filter(|_| unsigned.starts_with('0'));
        if second.is_some_and(|c| c.is_ascii_digit() || matches!(c, b'x' | b'o' | b'b' | b'_')) {
            return Err(NotANumber::LeadingZero);
        }
        let (digits, power) = without_unit(text);
        if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
            return Err(NotANumber::Text);
        }
        let digits: String = digits.chars().filter(|c| *c != '_').collect();
        let whole = digits.parse::<u64>().ok();
        if let Some(whole) = whole.and_then(|whole| whole.checked_mul(10u64.pow(power as u32))) {
            return Ok(Number::Whole(whole));
        }
        // A unit is an exponent, so that 1.1B is rounded once.
        let real = match power {
            0 => digits.parse(),
            _ if digits.contains(['e', 'E']) => return Err(NotANumber::Text),
            power => format!("{digits}e{power}").parse::<f64>(),
        };
        match real {
            Ok(real) if real.is_infinite() => Err(NotANumber::TooLarge),
            Ok(real) => Ok(Number::Real(real)),
            Err(_) => Err(NotANumber::Text),
        }
    }

    pub fn real(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Real(real) => real,
        }
    }

    /// Whole number; `300e9` is one. None if it is negative, or has a fraction.
    pub fn whole(self) -> Option<u64> {
        match self {
            Number::Whole(whole) => Some(whole),
            Number::Real(real) => {
                // f64 has each whole number up to 2^53.
                let is_whole = real.fract() == 0.0 && (0.0..9e15).contains(&real);
                is_whole.then_some(real as u64)
            }
        }
    }
}

/// Text without its unit, and the unit's power of ten.
fn without_unit(text: &str) -> (&str, i32) {
    let unit = UNITS.iter().find_map(|(unit, power)| {
        let digits = text.strip_suffix([*unit, unit.to_ascii_uppercase()])?;
        Some((digits.trim_end(), *power))
    });
    unit.unwrap_or((text, 0))
}

/// Value of a flag: any finite number.
pub fn real(text: &str) -> Result<f64, String> {
    let number = Number::parse(text.trim()).map(Number::real);
    number.map_err(|_| "a number is written as in 0.5, 3e-4, 1_000 or 1.5B".to_string())
}

/// Value of a flag: a number in a range.
pub fn real_in(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text: &str| {
        let least = range.start();
        let most = range.end();
        real(text)
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("write a number from {least} to {most}"))
    }
}

/// Value of a flag: a whole number that the type holds.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = Number::parse(text.trim()).ok().and_then(Number::whole);
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| "write a whole number from 0 up, such as 64, 100k or 3e9".to_string())
}

/// Value of a flag: a whole number in a range.
pub fn whole_in<T: TryFrom<u64> + PartialOrd + Display + Clone + Send + Sync>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text: &str| {
        let least = range.start();
        let most = range.end();
        whole(text)
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("write a whole number from {least} to {most}"))
    }
}

/// Value of a flag: a whole number from 1 up.
pub fn count(text: &str) -> Result<NonZeroUsize, String> {
    let number = whole::<usize>(text).ok().and_then(NonZeroUsize::new);
    number.ok_or_else(|| "write a whole number from 1 up, such as 64".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        use Number::{Real, Whole};
        for (text, number) in [
            ("64", Whole(64)),
            ("1_000_000", Whole(1_000_000)),
            ("100k", Whole(100_000)),
            ("1B", Whole(1_000_000_000)),
            ("2 M", Whole(2_000_000)),
            ("18446744073709551615", Whole(u64::MAX)),
            ("1.1G", Real(1.1e9)),
            ("1.5t", Real(1.5e12)),
            ("3e9", Real(3e9)),
            ("-1", Real(-1.0)),
            ("-2.5K", Real(-2500.0)),
            (".5", Real(0.5)),
            ("0.5", Real(0.5)),
            ("0", Whole(0)),
            ("18446744073709551616k", Real(2f64.powi(64) * 1e3)),
        ] {
            assert_eq!(Number::parse(text), Ok(number), "{text}");
        }
        for text in ["", "B", "k", "many", "1kk", "1_", "_1", "1__0", "1_k", "1e3k", "1 000", "0x"]
        {
            assert!(Number::parse(text).is_err(), "{text}");
        }
        assert_eq!(Number::parse("010"), Err(NotANumber::LeadingZero));
        assert_eq!(Number::parse("0b1"), Err(NotANumber::LeadingZero));
        assert_eq!(Number::parse("-.inf"), Err(NotANumber::NotFinite));
        assert_eq!(Number::parse("1e999"), Err(NotANumber::TooLarge));
    }

    #[test]
    fn flags_take_the_same_numbers_and_name_their_limits() {
        assert_eq!(whole::<usize>("3e9"), Ok(3_000_000_000));
        assert_eq!(whole::<u64>("1.5k"), Ok(1500));
        for wrong in ["-1", "1.5", "5B"] {
            assert!(whole::<u32>(wrong).unwrap_err().contains("100k"), "{wrong}");
        }
        assert_eq!(real("-1"), Ok(-1.0));
        assert!(real("nan").is_err() && real(".inf").is_err());
        assert!(whole_in(1..=9u32)("0").unwrap_err().contains("from 1 to 9"));
        assert_eq!(real_in(0.0..=1.0)("0.5"), Ok(0.5));
        assert!(count("0").is_err());
    }
}
