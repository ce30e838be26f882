//! Units with human-readable formatting.

use std::fmt;
use std::str::FromStr;

/// Number of bytes, displayed in binary units: `601.2 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Number of items, displayed with grouped thousands: `124,439,808`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

/// Duration in seconds, displayed for reading: `340 ms`, `12.3 s`, `4 m 05 s`, `3 d 4 h`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Bytes {
    /// Exact form that `from_str` parses to the same number: `2GiB`, `1536MiB`, `17B`.
    pub fn exact(self) -> String {
        let (unit, size) = UNITS[5..]
            .iter()
            .rev()
            .find(|(_, size)| self.0 > 0 && self.0.is_multiple_of(*size))
            .unwrap_or(&UNITS[0]);
        format!("{}{unit}", self.0 / size)
    }
}

/// Decimal units, then binary ones.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl FromStr for Bytes {
    type Err = &'static str;

    /// Parses a number and its unit: `2GiB`, `1.5 TB`.
    fn from_str(text: &str) -> Result<Bytes, &'static str> {
        let text = text.trim();
        let end = text
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let number: Result<f64, _> = text[..end].trim().parse();
        let unit = UNITS.iter().find(|(name, _)| *name == &text[end..]);
        match (number, unit) {
            (Ok(number), Some((_, size))) if (0.0..1e18).contains(&number) => {
                Ok(Bytes((number * *size as f64) as u64))
            }
            _ => Err("a number of bytes is written as in 2GiB, 512MiB or 1.5TB"),
        }
    }
}

impl Count {
    /// With its noun, which gets an `s` unless there is one: `1 rank`, `1,024 ranks`.
    pub fn with_noun(self, noun: &str) -> String {
        let s = if self.0 == 1 { "" } else { "s" };
        format!("{self} {noun}{s}")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // A tenth below 1,024 would be printed as 1024.0.
        while value >= 1023.95 && unit + 1 < names.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if unit == 0 { 0 } else { 1 };
        f.pad(&format!("{value:.digits$} {}", names[unit]))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

impl fmt::Display for Seconds {
    /// Rounds to the smallest unit that is printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        let minutes = (s / 60.0).round() as u64;
        let hours = (s / 3600.0).round() as u64;
        let whole = s.round() as u64;
        f.pad(&match s {
            _ if !s.is_finite() => "unknown".to_string(),
            _ if s > 0.0 && s < 0.0095 => format!("{:.2} ms", s * 1e3),
            _ if s < 0.9995 => format!("{:.0} ms", s * 1e3),
            _ if s < 59.95 => format!("{s:.1} s"),
            _ if whole < 3600 => format!("{} m {:02} s", whole / 60, whole % 60),
            _ if minutes < 24 * 60 => format!("{} h {:02} m", minutes / 60, minutes % 60),
            _ => format!("{} d {} h", hours / 24, hours % 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_print_as_a_person_reads_them() {
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(Bytes(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(Bytes((1 << 30) - 1).to_string(), "1.0 GiB");
        assert_eq!(Count(124_439_808).to_string(), "124,439,808");
        assert_eq!(Count(12).to_string(), "12");
        assert_eq!(Count(1).with_noun("rank"), "1 rank");
        assert_eq!(
            [Count(0).with_noun("rank"), Count(1024).with_noun("rank")],
            ["0 ranks", "1,024 ranks"]
        );
        assert_eq!(Seconds(0.34).to_string(), "340 ms");
        assert_eq!(
            [0.0, 0.0004, 0.0123].map(|s| Seconds(s).to_string()),
            ["0 ms", "0.40 ms", "12 ms"]
        );
        assert_eq!(Seconds(245.0).to_string(), "4 m 05 s");
        assert_eq!(Seconds(273_600.0).to_string(), "3 d 4 h");
        assert_eq!(
            [0.9994, 0.9999, 59.94, 59.96, 3599.4, 3599.9, 86_369.0, 86_399.0, 259_199.0]
                .map(|s| Seconds(s).to_string()),
            [
                "999 ms",
                "1.0 s",
                "59.9 s",
                "1 m 00 s",
                "59 m 59 s",
                "1 h 00 m",
                "23 h 59 m",
                "1 d 0 h",
                "3 d 0 h"
            ]
        );
        assert_eq!(format!("{:>8}", Bytes(17)), "    17 B");
    }

    #[test]
    fn bytes_are_read_as_they_are_written() {
        for (text, bytes) in [("2GiB", 2 << 30), ("1536MiB", 1536 << 20), ("17B", 17), ("0B", 0)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
            assert_eq!(Bytes(bytes).exact(), text);
        }
        assert_eq!(" 1.5 TB ".parse(), Ok(Bytes(1_500_000_000_000)));
        assert_eq!(Bytes((1 << 40) + 3).exact().parse(), Ok(Bytes((1 << 40) + 3)));
        for wrong in ["", "GiB", "2", "2gib", "-1GiB", "1e30GiB", "nanGiB"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }
}
