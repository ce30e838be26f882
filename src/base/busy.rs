//! Number of busy processors, from the system's counters.

use std::fs::read_to_string;

/// Limits of an idle machine: busy share of all processors, and number of busy processors.
const SHARE: f64 = 0.1;
const LEAST: f64 = 0.3;

/// Clock ticks of all processors since boot; 0 if the system does not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ticks {
    busy: f64,
    all: f64,
    processors: f64,
}

/// Number of busy processors, and of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    pub busy: f64,
    pub processors: f64,
}

impl Busy {
    /// Whether more are busy than on an idle machine.
    pub fn exceeds_idle(&self) -> bool {
        self.busy > (SHARE * self.processors).max(LEAST)
    }
}

impl Ticks {
    pub fn now() -> Ticks {
        read_to_string("/proc/stat").map_or(Ticks::default(), |text| Ticks::read(&text))
    }

    /// Counts from the text of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
    fn read(text: &str) -> Ticks {
        let sum = text
            .lines()
            .find(|line| line.starts_with("cpu "))
            .unwrap_or("");
        let words = sum.split_whitespace();
        let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        let first = &numbers[..numbers.len().min(8)];
        let idle: f64 = first.iter().skip(3).take(2).sum();
        let all: f64 = first.iter().sum();
        let processors = text
            .lines()
            .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
            .count() as f64;
        Ticks { busy: all - idle, all, processors }
    }

    /// Busy processors between an earlier count and this one.
    pub fn since(&self, before: Ticks) -> Busy {
        let [busy, all] = [self.busy - before.busy, self.all - before.all];
        let processors = self.processors;
        Busy { busy: if all > 0.0 { processors * busy / all } else { 0.0 }, processors }
    }
}

#[test]
fn busy_processors_are_counted_from_the_systems_ticks() {
    let text = |user: u64, idle: u64| {
        format!("cpu  {user} 0 10 {idle} 5 0 1 2 99 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n")
    };
    let seen = Ticks::read(&text(130, 1010)).since(Ticks::read(&text(100, 1000)));
    assert!((seen.busy - 1.5).abs() < 1e-12 && seen.processors == 2.0, "{seen:?}");
    assert!(seen.exceeds_idle() && !Busy { busy: 0.2, ..seen }.exceeds_idle());
    assert_eq!(Ticks::default().since(Ticks::default()), Busy::default());
}
