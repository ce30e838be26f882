//! Axes: pixel positions of values, ticks and their labels.

use crate::Count;

/// Axis from `low` to `high`, drawn from pixel `from` to pixel `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub low: f64,
    pub high: f64,
    pub log: bool,
    pub from: f64,
    pub to: f64,
}

impl Axis {
    /// Pixel of a value.
    pub fn pixel(&self, value: f64) -> f64 {
        let f = |v: f64| if self.log { v.ln() } else { v };
        let share = (f(value) - f(self.low)) / (f(self.high) - f(self.low));
        self.from + share * (self.to - self.from)
    }

    /// Round values within the axis, about one every `spacing` pixels.
    pub fn ticks(&self, spacing: f64) -> Vec<f64> {
        let wanted = ((self.to - self.from).abs() / spacing).max(2.0);
        if self.log && (self.high / self.low).log10() > 1.0 {
            self.log_ticks(wanted)
        } else {
            self.linear_ticks(wanted)
        }
    }

    /// Multiples of 1, 2, 2.5 or 5 times a power of ten: the finest with at most `wanted` ticks.
    fn linear_ticks(&self, wanted: f64) -> Vec<f64> {
        let power = 10f64.powf(((self.high - self.low) / wanted).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0, 20.0].map(|nice| nice * power);
        let step = steps
            .into_iter()
            .find(|step| (self.high / step).floor() - (self.low / step).ceil() < wanted)
            .unwrap_or(power * 50.0);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }

    /// Powers of ten, with 2 and 5 in between if there is space; otherwise every second, third, …
    /// power.
    fn log_ticks(&self, wanted: f64) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let mantissas: &[f64] = if decades * 2.2 <= wanted { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / wanted).ceil().max(1.0) as i32;
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
        let all = powers.flat_map(|p| mantissas.iter().map(move |m| m * 10f64.powi(p)));
        all.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v))
            .collect()
    }
}

/// Labels for ticks: `0.25`, `10,000`, `2e-4`. All have the same number of decimals, except on a
/// logarithmic axis, which may show 0.01 and 100.
pub fn labels(ticks: &[f64], log: bool) -> Vec<String> {
    if log {
        ticks
            .iter()
            .flat_map(|tick| even_labels(&[*tick]))
            .collect()
    } else {
        even_labels(ticks)
    }
}

fn even_labels(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    let exact = |text: &str, tick: f64| {
        let value: f64 = text.parse().unwrap_or(f64::NAN);
        (value - tick).abs() <= largest.min(tick.abs()) * 1e-6
    };
    if largest < 1e-2 {
        let decimals = (0..4).find(|d| ticks.iter().all(|t| exact(&format!("{t:.d$e}"), *t)));
        let decimals = decimals.unwrap_or(4);
        return ticks
            .iter()
            .map(|t| if *t == 0.0 { "0".into() } else { format!("{t:.decimals$e}") })
            .collect();
    }
    let same = (0..4).find(|d| ticks.iter().all(|t| exact(&format!("{t:.d$}"), *t)));
    ticks.iter().map(|t| tick_label(*t, same)).collect()
}

fn tick_label(tick: f64, decimals: Option<usize>) -> String {
    match decimals {
        Some(_) if tick.abs() >= 1e6 => short_number(tick),
        Some(0) if tick >= 1e4 => Count(tick as u64).to_string(),
        Some(decimals) => format!("{tick:.decimals$}"),
        // The range is too wide for common decimals: each label is as short as possible.
        None => {
            let text = format!("{tick:.6}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
    }
}

/// Short form with at most three significant digits: `950`, `1.2k`, `3.75M`, `1.2B`, `0.4T`.
pub fn short_number(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let (divisor, unit) = units
        .into_iter()
        .find(|(d, _)| value.abs() >= 0.9995 * d)
        .unwrap_or((1.0, ""));
    let value = value / divisor;
    let decimals = match value.abs() {
        hundreds if hundreds >= 99.95 => 0,
        tens if tens >= 9.995 => 1,
        _ => 2,
    };
    let mut text = format!("{value:.decimals$}");
    if text.contains('.') {
        text = text.trim_end_matches('0').trim_end_matches('.').to_string();
    }
    text + unit
}
