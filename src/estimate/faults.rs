//! Cost of faults: steps that are repeated, saves, and restarts; and the interval of saves at which it is
//! least (Young 1974; Daly, "A higher order estimate of the optimum checkpoint interval", 2006, eq. 20).

use super::days::Days;
use super::hardware::Hardware;
use super::words::span;
use base::Bytes;
use manifest::Manifest;
use serde_json::{Value, json};

/// Steps from a step's end until a save of it into memory is complete on all nodes: it is written during
/// the next step.
const MEMORY_LAG: f64 = 1.0;

/// Share of the useful time for which fewer saves are preferred.
const SLACK: f64 = 0.002;

/// Least useful share, so that the calendar of a run that hardly gets on is finite.
const LEAST_USEFUL: f64 = 1e-6;

/// Faults of a run and its saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Mean time between faults of the whole job, in seconds. Faults are taken to be independent.
    pub every: f64,
    /// Seconds from a fault to the first step of the next start.
    pub restart: f64,
    /// Seconds until a checkpoint is written to the shared file system; None if its rate is unknown.
    pub write: Option<f64>,
    /// Bytes of a checkpoint, taken to be spread evenly over the devices.
    pub bytes: f64,
    /// Bandwidth between a device and its host, in bytes/s.
    pub link: f64,
    /// Devices of a node.
    pub per_node: usize,
    /// Whether training continues while a checkpoint is written, after it was copied to the host.
    pub continues: bool,
    /// Steps between saves to the shared file system.
    pub interval: u64,
    /// Steps between saves into the memory of the nodes.
    pub memory_interval: Option<u64>,
}

/// Shares of a run's wall-clock time. Their sum is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Steps, each counted once.
    pub useful: f64,
    /// Steps that were taken before a fault and not saved.
    pub repeated: f64,
    /// Training waits for saves.
    pub saves: f64,
    pub restarts: f64,
}

impl Faults {
    /// Those of `plan.fault_hours`, for gptrain or another program, whose saves training waits for.
    pub fn of(m: &Manifest, is_gptrain: bool, hw: &Hardware, hours: f64) -> Faults {
        let bytes = engine::saved_bytes(m) as f64;
        Faults {
            every: hours * 3600.0,
            restart: m.plan.restart_s,
            write: m.plan.storage_gb_s.map(|rate| bytes / (rate * 1e9)),
            bytes,
            link: hw.link_gb_s * 1e9,
            per_node: hw.per_node,
            continues: is_gptrain && m.checkpoint.in_flight > 0,
            interval: m.checkpoint.interval,
            memory_interval: m.checkpoint.memory_interval.filter(|_| is_gptrain),
        }
    }

    /// Seconds in which training waits for a save.
    fn stall(&self, devices: usize) -> f64 {
        let copy = self.bytes / devices as f64 / self.link;
        if self.continues { copy } else { self.write.unwrap_or(copy).max(copy) }
    }

    /// Shares of the time of a run.
    pub fn shares(&self, run: &Days) -> Shares {
        let step = run.mean_step();
        let stall = self.stall(run.devices);
        let on_disk = self.interval as f64 * step;
        // Time between saves, all waits in it, and the time until one counts.
        let (between, waits, lag) = match self.memory_interval {
            None => {
                let lag = if self.continues { self.write.unwrap_or(0.0) } else { 0.0 };
                (on_disk, stall, lag)
            }
            Some(steps) => {
                let copy = self.bytes / run.devices as f64 / self.link;
                let between = steps as f64 * step;
                (between, copy + stall * between / on_disk, MEMORY_LAG * step)
            }
        };
        let every = self.every;
        let attempts = (self.restart + lag) / every;
        let useful = between / (every * attempts.exp() * ((between + waits) / every).exp_m1());
        let saves = useful * waits / between;
        let useful = useful.max(LEAST_USEFUL);
        let restarts = -(-self.restart / every).exp_m1();
        let repeated = (1.0 - useful - saves - restarts).max(0.0);
        Shares { useful, repeated, saves, restarts }
    }

    /// Steps between saves to the shared file system at which they and the steps repeated cost least, or
    /// about: as many as cost `SLACK` more, at most those of the run. Not so few that a save would begin
    /// before the one before it is written.
    pub fn best_interval(&self, run: &Days) -> u64 {
        let step = run.mean_step();
        let best = (2.0 * self.stall(run.devices) * self.every).sqrt() / step;
        let written = self.write.map_or(0.0, |write| (write / step).ceil());
        let steps = run.steps().max(1);
        let mut interval = (best.round().max(written) as u64).clamp(1, steps);
        let on_disk = Faults { memory_interval: None, ..*self };
        let useful = |interval| Faults { interval, ..on_disk }.shares(run).useful;
        let least = (1.0 - SLACK) * useful(interval);
        let longer = |interval: u64| interval + interval.div_ceil(4);
        while longer(interval) <= steps && useful(longer(interval)) > least {
            interval = longer(interval);
        }
        interval
    }

    /// The settings under which more of the time is useful, with the shares.
    pub fn better(&self, run: &Days) -> Vec<(String, Shares)> {
        let interval = self.best_interval(run);
        let on_disk = Faults { interval, memory_interval: None, ..*self };
        let mut tried = vec![(format!("checkpoint.interval={interval}"), on_disk)];
        if self.continues && run.devices > self.per_node {
            let in_memory = Faults { memory_interval: Some(1), ..*self };
            tried.push(("checkpoint.memory_interval=1".to_string(), in_memory));
        }
        let today = self.shares(run).useful;
        let mut better: Vec<(String, Shares)> = tried
            .into_iter()
            .map(|(set, faults)| (set, faults.shares(run)))
            .filter(|(_, shares)| shares.useful > today + 0.001)
            .collect();
        better.sort_by(|a, b| a.1.useful.total_cmp(&b.1.useful));
        better
    }
}

impl Faults {
    /// Lines for the user: what faults cost, and what makes them cheaper.
    pub fn describe(&self, run: &Days) -> Vec<String> {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let Shares { useful, repeated, saves, restarts } = self.shares(run);
        let mut lines = vec![format!(
            "A fault every {}: {} of the time is useful; repeated steps {}, saves {}, restarts {}",
            span(self.every),
            percent(useful),
            percent(repeated),
            percent(saves),
            percent(restarts)
        )];
        let better = self.better(run).into_iter();
        lines.extend(
            better.map(|(set, shares)| {
                format!("  {} of it with --set {set}", percent(shares.useful))
            }),
        );
        if self.write.is_none() {
            lines.push(format!(
                "  The time to write {} per checkpoint is not counted: give plan.storage_gb_s",
                Bytes(self.bytes as u64)
            ));
        }
        lines
    }

    pub fn json(&self, run: &Days) -> Value {
        let Shares { useful, repeated, saves, restarts } = self.shares(run);
        json!({ "hours": self.every / 3600.0, "useful": useful, "repeated": repeated, "saves": saves,
            "restarts": restarts, "best_interval": self.best_interval(run) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng;

    fn run(devices: usize, step: f64) -> Days {
        let micro = plan::segments::MicroShape { samples: 1, tokens: 1 };
        let segment =
            crate::days::Segment { global: 1, micro, steps: 100_000, seconds: step, tflops: 1.0 };
        Days { segments: vec![segment], devices, seconds: 1e5 * step, full_from: None }
    }

    fn faults(interval: u64, memory_interval: Option<u64>) -> Faults {
        Faults {
            every: 4.0 * 3600.0,
            restart: 300.0,
            write: Some(60.0),
            bytes: 2.4e12,
            link: 20e9,
            per_node: 8,
            continues: true,
            interval,
            memory_interval,
        }
    }

    /// Time that is useful when faults come by chance, played step by step.
    fn play(faults: &Faults, run: &Days) -> f64 {
        let step = run.mean_step();
        let (interval, lag) = match faults.memory_interval {
            Some(steps) => (steps, MEMORY_LAG * step),
            None => (faults.interval, faults.write.unwrap_or(0.0)),
        };
        let copy = faults.bytes / run.devices as f64 / faults.link;
        let (mut now, mut useful) = (0.0, 0.0);
        for fault in 0..20_000 {
            let chance = (rng::below(5, fault, 1 << 40) as f64 + 1.0) / (1u64 << 40) as f64;
            let left = -chance.ln() * faults.every;
            now += left;
            if left < faults.restart {
                continue; // in the restart, which begins again
            }
            let trained = left - faults.restart;
            let segment = interval as f64 * step + copy;
            // The newest save that has counted.
            let saves = ((trained - lag) / segment).floor().max(0.0);
            useful += saves * interval as f64 * step;
        }
        useful / now
    }

    #[test]
    fn the_useful_share_is_that_of_a_played_run() {
        let run = run(384, 100.0);
        for faults in [faults(100, None), faults(20, None), faults(5, None), faults(100, Some(1))] {
            let shares = faults.shares(&run);
            let played = play(&faults, &run);
            assert!((shares.useful - played).abs() < 0.008, "{faults:?}: {shares:?}, {played}");
            let sum = shares.useful + shares.repeated + shares.saves + shares.restarts;
            assert!((sum - 1.0).abs() < 1e-12 && shares.repeated > 0.0, "{shares:?}");
        }
    }

    #[test]
    fn the_best_interval_is_the_best() {
        let waits = Faults { continues: false, ..faults(100, None) };
        for (faults, step) in [(waits, 10.0), (waits, 1.0), (faults(100, None), 5.0)] {
            let run = run(384, step);
            let useful = |interval| Faults { interval, ..faults }.shares(&run).useful;
            let best = faults.best_interval(&run);
            let least = (60.0 / step) as u64;
            let tried = (least..4000).map(useful).fold(0.0, f64::max);
            assert!(
                useful(best) > tried - SLACK - 1e-3 && useful(2 * best) < tried - SLACK,
                "{best}: {}, {tried}",
                useful(best)
            );
        }
    }

    #[test]
    fn a_run_that_hardly_gets_on_has_shares_and_a_best_interval() {
        for (every, restart) in [(36.0, 300.0), (36.0, 1e6), (4e9, 0.0)] {
            for interval in [1, 1000, 1_000_000_000_000_000] {
                for step in [1e-6, 20.0, 1e5] {
                    let faults = Faults { every, restart, ..faults(interval, None) };
                    let Shares { useful, repeated, saves, restarts } = faults.shares(&run(8, step));
                    for share in [useful, repeated, saves, restarts] {
                        assert!((0.0..=1.0).contains(&share), "{faults:?}: {share}");
                    }
                    assert!(useful > 0.0 && faults.best_interval(&run(8, step)) > 0, "{faults:?}");
                }
            }
        }
    }

    #[test]
    fn saves_into_memory_are_better_and_faults_cost_less_when_they_are_rare() {
        let run = run(512, 80.0);
        let slow = |interval, memory| Faults { write: Some(600.0), ..faults(interval, memory) };
        let [disk, memory] = [None, Some(1)].map(|steps| slow(50, steps).shares(&run));
        assert!(memory.useful > disk.useful && memory.repeated < 0.02, "{memory:?} {disk:?}");
        let better = slow(500, None).better(&run);
        assert_eq!(better.len(), 2);
        assert!(better[0].0.starts_with("checkpoint.interval="), "{better:?}");
        assert_eq!(better[1].0, "checkpoint.memory_interval=1");
        let never = Faults { every: 1e12, ..faults(100, None) };
        assert!(never.shares(&run).useful > 0.999);
    }
}
