//! Text forms of the numbers of a step.

use Format::*;
use base::svg::short_number;

/// Text form of a number.
#[derive(Clone, Copy)]
pub enum Format {
    /// Fixed number of decimals.
    Fixed(usize),
    /// `1.50e-4`, with this number of decimals.
    Exponent(usize),
    /// Python's `1.50E-04`, with this number of decimals.
    Scientific(usize),
    /// Whole number, padded to this width.
    Whole(usize),
    /// Whole number with grouped thousands.
    Count,
    /// Rate, rounded to a whole number with grouped thousands.
    Rate,
    /// `16.4k`.
    Brief,
    Seconds,
    Percent,
    /// Bytes as `31.2 GiB`.
    Memory,
    /// Bytes in Megatron's MB, of 1024² bytes.
    Megabytes,
    /// Five significant digits.
    Digits,
}

impl Format {
    pub fn show(self, value: f64) -> String {
        match self {
            Fixed(digits) => format!("{value:.digits$}"),
            Exponent(digits) => format!("{value:.digits$e}"),
            Scientific(_) if !value.is_finite() => value.to_string().to_uppercase(),
            Scientific(digits) => {
                let text = format!("{value:.digits$E}");
                let (mantissa, exponent) = text.split_once('E').expect("{:E} writes an E");
                match exponent.strip_prefix('-') {
                    Some(exponent) => format!("{mantissa}E-{exponent:0>2}"),
                    None => format!("{mantissa}E+{exponent:0>2}"),
                }
            }
            Whole(width) => format!("{:width$}", value as u64),
            Count => base::Count(value as u64).to_string(),
            Rate => base::Count(value.round() as u64).to_string(),
            Brief => short_number(value),
            Seconds => base::Seconds(value).to_string(),
            Percent => format!("{value:.1} %"),
            Memory => base::Bytes(value as u64).to_string(),
            Megabytes => format!("{:.1}", value / 1048576.0),
            Digits => match value.abs() {
                _ if !value.is_finite() => "–".into(),
                a if a >= 1e5 || (a < 1e-3 && a > 0.0) => format!("{value:.3e}"),
                a if a >= 100.0 => format!("{value:.1}"),
                _ => format!("{value:.4}"),
            },
        }
    }
}
