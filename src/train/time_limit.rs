//! Time at which a run must leave its Slurm job in order to save before the job ends, based on its
//! own slowest step and save. Rank 0 checks it, and all ranks leave at the step that rank 0
//! selects.
//!
//! A thread queries Slurm at the start and every ten minutes, because administrators extend jobs.
//! Without an answer the run continues as if it had no limit; the SIGTERM that Slurm sends at the
//! end still causes a save.

use super::watch::{Event, Requests, RunView, Watcher};
use base::{Seconds, push_recent};
use launch::slurm::Job;
use manifest::{OnEnd, Slurm};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Interval between queries of Slurm.
const REREAD: Duration = Duration::from_secs(600);

/// Limit above which a job counts as unlimited: partitions without a limit report a year.
const UNLIMITED: Duration = Duration::from_secs(60 * 86_400);

/// Number of recent steps of which the slowest counts.
const RECENT: usize = 100;

/// Assumed bytes per second of a rank's save, until one is measured.
const SAVED_PER_SECOND: f64 = 1e8;

pub struct TimeLimit {
    /// End of the job, from the last query.
    end: Arc<Mutex<Option<Instant>>>,
    /// Closed on drop, which ends the thread.
    _open: Sender<()>,
    margin: Duration,
    steps: StepTimes,
    /// Seconds of the slowest save.
    save: Rc<Cell<f64>>,
}

/// None on ranks other than 0, and outside a Slurm job.
impl Watcher for Option<TimeLimit> {
    fn name(&self) -> &'static str {
        "time limit"
    }

    fn requests(&mut self, _: &RunView) -> anyhow::Result<Requests> {
        Ok(Requests::LEAVE.when(self.as_mut().is_some_and(TimeLimit::is_due)))
    }

    fn notice(&mut self, _: &RunView, event: &Event) -> anyhow::Result<()> {
        if let (Event::Evaluated(time), Some(limit)) = (event, self) {
            limit.evaluated(*time);
        }
        Ok(())
    }
}

impl TimeLimit {
    /// Watches the job of this process. None outside of Slurm, and if the manifest ignores the end.
    /// `save` has the seconds of the slowest save.
    pub fn watch(settings: &Slurm, save: Rc<Cell<f64>>) -> Option<TimeLimit> {
        let job = Job::from_environment().filter(|_| settings.on_end != OnEnd::Ignore)?;
        let (open, closed) = channel();
        let end = Arc::default();
        let job_end = Arc::clone(&end);
        let interval = REREAD;
        #[cfg(feature = "testing")]
        let interval = super::testing::reread().unwrap_or(interval);
        let ask = move || {
            loop {
                reread(&job, &job_end);
                if closed.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        if let Err(error) = base::threads::spawn("job's end", ask) {
            tracing::warn!("the job's end is ignored: {error:#}");
            return None;
        }
        let margin = Duration::from_secs_f64(settings.margin_s);
        Some(TimeLimit { end, _open: open, margin, steps: StepTimes::default(), save })
    }

    /// Whether the run must leave now in order to save in time. Called between two steps.
    fn is_due(&mut self) -> bool {
        let (now, save) = (Instant::now(), self.save.get());
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

    /// Records the duration of an evaluation, which is expected of the next one.
    fn evaluated(&mut self, took: Duration) {
        self.steps.evaluation = took;
    }
}

/// Time for the rest of a step, its save, and a save in flight before it. Half a step is added,
/// because the next may be slower than all before.
fn needed(slowest: Duration, save: f64, margin: Duration) -> Duration {
    slowest.mul_f64(1.5) + Duration::from_secs_f64(2.0 * save) + margin
}

/// Expected seconds of a first save with this many bytes in total.
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
            if let Some(left) = left.filter(|left| !same && *left < UNLIMITED) {
                let (left, id) = (Seconds(left.as_secs_f64()), job.id());
                tracing::info!("job {id} ends in {left}: the run saves and leaves before that");
            }
        }
    }
}

/// Durations of the last steps, each including what followed it.
#[derive(Default)]
struct StepTimes {
    before: Option<Instant>,
    recent: VecDeque<Duration>,
    /// Duration of the last evaluation, which may be older than the recorded steps.
    evaluation: Duration,
}

impl StepTimes {
    /// Expected duration of the slowest next step.
    fn between_steps(&mut self, now: Instant) -> Duration {
        if let Some(before) = self.before.replace(now) {
            push_recent(&mut self.recent, now - before, RECENT);
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
            save: Rc::new(Cell::new(20.0)),
        };
        // 1.5 · 100 s + 2 · 20 s + 60 s, and the time this test may take.
        assert!(limit(250).is_due());
        assert!(!limit(5000).is_due());
        let unknown = TimeLimit { end: Arc::default(), ..limit(0) };
        assert!(!{ unknown }.is_due(), "without an end the run continues");
        assert_eq!(expected_save(2_000_000_000, 4), 5.0);
    }
}
