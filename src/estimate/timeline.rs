//! A pipeline's schedule in time.

use crate::manifest::Schedule;
use crate::plan::schedule::{Action, gpipe, one_f_one_b};
use std::collections::HashMap;

/// One computation of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    pub action: Action,
    pub start: f64,
    pub end: f64,
}

/// When each stage does what, given the seconds of a forward and a backward of each stage and what
/// a message takes. None for schedules that are not in `plan::schedule`.
pub fn simulate(
    schedule: Schedule,
    micros: usize,
    seconds: &[(f64, f64)],
    message: f64,
) -> Option<Vec<Vec<Bar>>> {
    let stages = seconds.len();
    let order = |stage| match schedule {
        Schedule::OneFOneB => Some(one_f_one_b(stage, stages, micros)),
        Schedule::GPipe => Some(gpipe(micros)),
        Schedule::Interleaved { .. } => None,
    };
    let orders: Vec<Vec<Action>> = (0..stages).map(order).collect::<Option<_>>()?;
    let mut bars: Vec<Vec<Bar>> = vec![Vec::new(); stages];
    let mut done: HashMap<(usize, Action), f64> = HashMap::new();
    let mut left: usize = orders.iter().map(Vec::len).sum();
    while left > 0 {
        let before = left;
        for stage in 0..stages {
            while let Some(action) = orders[stage].get(bars[stage].len()) {
                let from = match *action {
                    Action::Forward(_) if stage > 0 => Some(stage - 1),
                    Action::Backward(_) if stage + 1 < stages => Some(stage + 1),
                    _ => None,
                };
                let arrived = match from {
                    None => 0.0,
                    Some(from) => match done.get(&(from, *action)) {
                        Some(end) => end + message,
                        None => break,
                    },
                };
                let free = bars[stage].last().map_or(0.0, |bar| bar.end);
                let start = arrived.max(free);
                let long = match action {
                    Action::Forward(_) => seconds[stage].0,
                    _ => seconds[stage].1,
                };
                bars[stage].push(Bar { action: *action, start, end: start + long });
                done.insert((stage, *action), start + long);
                left -= 1;
            }
        }
        assert!(left < before, "no schedule of `plan` deadlocks");
    }
    Some(bars)
}

/// When the last one ends.
pub fn end(bars: &[Vec<Bar>]) -> f64 {
    bars.iter().flatten().map(|bar| bar.end).fold(0.0, f64::max)
}

/// As text, a line a stage: digits are forwards, letters backwards, dots waiting.
pub fn draw(bars: &[Vec<Bar>], columns: usize) -> String {
    let scale = columns as f64 / end(bars);
    let line = |(stage, bars): (usize, &Vec<Bar>)| {
        let mut cells = vec!['·'; columns];
        for bar in bars {
            let (from, to) =
                ((bar.start * scale).round() as usize, (bar.end * scale).round() as usize);
            let sign = match bar.action {
                Action::Forward(m) => char::from(b'0' + (m % 10) as u8),
                Action::Backward(m) => char::from(b'a' + (m % 26) as u8),
                _ => unreachable!("bars are computations"),
            };
            cells[from.min(columns)..to.min(columns)].fill(sign);
        }
        format!("{stage:>5}  {}", cells.into_iter().collect::<String>())
    };
    bars.iter().enumerate().map(line).collect::<Vec<_>>().join("\n") + "\n"
}
