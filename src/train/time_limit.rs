//! When a run has to leave its Slurm job, so that it has saved before the job ends: by its own
//! slowest step and save. Rank 0 looks, and all ranks leave at the step that it says.
//!
//! A thread asks Slurm at the start and every ten minutes, as administrators extend jobs. Without an
//! answer the run goes on as if it had no limit: SIGTERM, which Slurm sends at the end, still saves.

use super::slurm::Job;
use base::Seconds;
use manifest::{OnEnd, Slurm};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Time between two questions to Slurm; and the variable that says another, in seconds, for tests.
const REREAD: Duration = Duration::from_secs(600);
pub const REREAD_VARIABLE: &str = "GPTRAIN_TEST_REREAD";

/// Steps of which the slowest counts.
const RECENT: usize = 100;

/// Bytes that a rank is taken to save in a second, until a save is measured.
const SAVED_PER_SECOND: f64 = 1e8;

pub struct TimeLimit {
    /// The job's end, as last heard of.
    end: Arc<Mutex<Option<Instant>>>,
    /// Closed when this is dropped, which ends the thread.
    _open: Sender<()>,
    margin: Duration,
    steps: StepTimes,
}

impl TimeLimit {
    /// Of this process's job; None outside of Slurm, and where the manifest ignores the end.
    pub fn watch(settings: &Slurm) -> Option<TimeLimit> {
        let job = Job::of_environment().filter(|_| settings.on_end != OnEnd::Ignore)?;
        let (open, closed) = channel();
        let end = Arc::default();
        let told = Arc::clone(&end);
        let asked = std::env::var(REREAD_VARIABLE).ok().and_then(|every| every.parse().ok());
        let every = asked.map_or(REREAD, Duration::from_secs);
        let ask = move || {
            loop {
                reread(&job, &told);
                if closed.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        if let Err(error) = base::threads::spawn("job's end", ask) {
            tracing::warn!("the job's end is not looked at: {error:#}");
            return None;
        }
        let margin = Duration::from_secs_f64(settings.margin_s);
        Some(TimeLimit { end, _open: open, margin, steps: StepTimes::default() })
    }

    /// Called between two steps: whether the run has to leave now, to have saved in time. `save`:
    /// seconds of the slowest save.
    pub fn is_due(&mut self, save: f64) -> bool {
        let now = Instant::now();
        let slowest = self.steps.between_steps(now);
        let end = *self.end.lock();
        let left = end.map(|end| end.saturating_duration_since(now));
        let Some(left) = left.filter(|left| *left <= needed(slowest, save, self.margin)) else {
            return false;
        };
        let [left, slowest] = [left, slowest].map(|time| Seconds(time.as_secs_f64()));
        let save = Seconds(save);
        tracing::info!("the job ends in {left}: leaving (slowest step {slowest}, save {save})");
        true
    }

    /// An evaluation took this long; the next one is expected to.
    pub fn evaluated(&mut self, took: Duration) {
        self.steps.evaluation = took;
    }
}

/// What the rest of a step, its save and a save in flight before it may take: the step's half again,
/// as the next may be slower than all before.
fn needed(slowest: Duration, save: f64, margin: Duration) -> Duration {
    slowest.mul_f64(1.5) + Duration::from_secs_f64(2.0 * save) + margin
}

/// What a first save may take, with so many bytes in all.
pub fn expected_save(bytes: u64, ranks: usize) -> f64 {
    bytes as f64 / (SAVED_PER_SECOND * ranks as f64)
}

fn reread(job: &Job, end: &Mutex<Option<Instant>>) {
    match job.time_left() {
        Err(error) => tracing::warn!("when job {} ends is not known: {error:#}", job.id()),
        Ok(left) => {
            let known = left.and_then(|left| Instant::now().checked_add(left));
            let before = std::mem::replace(&mut *end.lock(), known);
            let apart = |(a, b): (Instant, Instant)| a.max(b) - a.min(b);
            let same = before.zip(known).is_some_and(|both| apart(both).as_secs() < 60);
            if let Some(left) = left.filter(|_| !same) {
                let (left, id) = (Seconds(left.as_secs_f64()), job.id());
                tracing::info!("job {id} ends in {left}: the run saves and leaves before that");
            }
        }
    }
}

/// How long the last steps took, each with what came after it.
#[derive(Default)]
struct StepTimes {
    before: Option<Instant>,
    recent: VecDeque<Duration>,
    /// Of the last evaluation, which may be longer ago than the steps.
    evaluation: Duration,
}

impl StepTimes {
    /// The slowest that the next step is expected to be.
    fn between_steps(&mut self, now: Instant) -> Duration {
        if let Some(before) = self.before.replace(now) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(now - before);
        }
        self.recent.iter().max().copied().unwrap_or_default() + self.evaluation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_the_recent_steps_counts_and_an_evaluation_long_ago() {
        let (mut times, mut now) = (StepTimes::default(), Instant::now());
        assert_eq!(times.between_steps(now), Duration::ZERO);
        let mut step = |seconds: u64| {
            now += Duration::from_secs(seconds);
            times.between_steps(now).as_secs()
        };
        assert_eq!([step(9), step(2)], [9, 9]);
        assert_eq!((0..98).map(|_| step(1)).max(), Some(9));
        assert_eq!(step(1), 2, "the slow one is 100 steps ago");
        times.evaluation = Duration::from_secs(30);
        assert_eq!(times.between_steps(now).as_secs(), 30 + 1);
    }

    #[test]
    fn the_run_leaves_in_time_for_its_step_and_save() {
        let limit = |left: u64| TimeLimit {
            end: Arc::new(Mutex::new(Some(Instant::now() + Duration::from_secs(left)))),
            _open: channel().0,
            margin: Duration::from_secs(60),
            steps: StepTimes { evaluation: Duration::from_secs(100), ..Default::default() },
        };
        // 1.5 · 100 s + 2 · 20 s + 60 s, and the time this test may take.
        assert!(limit(250).is_due(20.0));
        assert!(!limit(5000).is_due(20.0));
        let unknown = TimeLimit { end: Arc::default(), ..limit(0) };
        assert!(!{ unknown }.is_due(20.0), "without an end the run goes on");
        assert_eq!(expected_save(2_000_000_000, 4), 5.0);
    }
}
