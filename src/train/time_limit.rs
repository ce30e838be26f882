//! Time at which a run must leave its Slurm job, or end a start of `--minutes`, in order to save before
//! that time is over, based on its own slowest step and save. Rank 0 checks it, and all ranks leave
//! at the step that rank 0 selects.
//!
//! A thread queries Slurm at the start and every ten minutes, because administrators extend jobs.
//! Without an answer the run continues as if it had no limit; the SIGTERM that Slurm sends at the
//! end still causes a save.

use super::watch::{Event, Requests, RunView, Watcher};
use base::{Moment, Seconds, push_recent};
use launch::slurm::{Job, JobTime};
use manifest::{OnEnd, Slurm};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Interval between queries of Slurm, and between checks whether the process was stopped since.
const REREAD: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_secs(10);

/// Limit above which a job counts as unlimited: partitions without a limit report a year.
const UNLIMITED: Duration = Duration::from_secs(60 * 86_400);

/// Number of recent steps of which the slowest counts.
const RECENT: usize = 100;

/// Part of a job's time limit, one divided by this, above which `slurm.margin_s` counts as that share.
const MARGIN_SHARE: u32 = 2;

/// Assumed bytes per second of a rank's save, until one is measured.
const SAVED_PER_SECOND: f64 = 1e8;

pub struct TimeLimit {
    end: Arc<Mutex<Option<JobEnd>>>,
    /// Closed on drop, which ends the thread that queries Slurm. None for `--minutes`.
    open: Option<Sender<()>>,
    margin: Duration,
    steps: StepTimes,
    /// Seconds of the slowest save.
    save: Rc<Cell<f64>>,
}

/// Limits of the job and of `--minutes`; none on ranks other than 0.
impl Watcher for Vec<TimeLimit> {
    fn name(&self) -> &'static str {
        "time limit"
    }

    fn requests(&mut self, _: &RunView) -> anyhow::Result<Requests> {
        let due = self.iter_mut().filter_map(|limit| {
            let request = if limit.is_of_job() { Requests::LEAVE } else { Requests::STOP };
            limit.is_due().then_some(request)
        });
        Ok(due.fold(Requests::NONE, |all, request| all | request))
    }

    fn notice(&mut self, _: &RunView, event: &Event) -> anyhow::Result<()> {
        if let Event::Evaluated(time) = event {
            for limit in self {
                limit.record_evaluation(*time);
            }
        }
        Ok(())
    }
}

impl TimeLimit {
    /// Watches the job of this process. None outside of Slurm, and if the manifest ignores the end.
    /// `save` has the seconds of the slowest save.
    pub fn watch(settings: &Slurm, save: Rc<Cell<f64>>) -> Option<TimeLimit> {
        let job = Job::from_environment().filter(|_| settings.on_end != OnEnd::Ignore)?;
        let margin = Duration::from_secs_f64(settings.margin_s);
        let (open, closed) = channel();
        let end = Arc::default();
        let job_end = Arc::clone(&end);
        let interval = REREAD;
        #[cfg(feature = "testing")]
        let interval = super::testing::reread().unwrap_or(interval);
        if let Err(error) = base::threads::spawn("job's end", move || {
            loop {
                reread(&job, &job_end, margin);
                let asked = Moment::now();
                while asked.elapsed() < interval && Moment::now().stopped_since(asked).is_zero() {
                    if closed.recv_timeout(interval.min(POLL)) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            }
        }) {
            tracing::warn!("the job's end is ignored: {error:#}");
            return None;
        }
        Some(TimeLimit { end, open: Some(open), margin, steps: StepTimes::default(), save })
    }

    /// Ends a start so that its last save is complete when it has run for `limit`. `save` has the
    /// seconds of the slowest save.
    pub fn from_start(started: Moment, limit: Duration, save: Rc<Cell<f64>>) -> TimeLimit {
        let end = Some(JobEnd { asked: started, left: limit, limit: None });
        let end = Arc::new(Mutex::new(end));
        let margin = Duration::ZERO;
        TimeLimit { end, open: None, margin, steps: StepTimes::default(), save }
    }

    /// Whether it is a Slurm job's, not that of `--minutes`.
    fn is_of_job(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the run must leave now in order to save in time. Called between two steps. A start of
    /// `--minutes` trains at least a step.
    fn is_due(&mut self) -> bool {
        let save = self.save.get();
        self.steps.step_ended(Moment::now());
        if !self.is_of_job() && self.steps.recent.is_empty() {
            return false;
        }
        let slowest = self.steps.slowest();
        let Some(end) = *self.end.lock() else { return false };
        let left = end.left();
        let margin = end.margin(self.margin);
        if left > time_needed(slowest, save, margin) {
            return false;
        }
        let [left, slowest] = [left, slowest].map(|time| Seconds(time.as_secs_f64()));
        let save = Seconds(save);
        let what = if self.is_of_job() { "the job ends" } else { "--minutes are over" };
        tracing::info!("{what} in {left}: leaving (slowest step {slowest}, save {save})");
        true
    }

    /// Records the duration of an evaluation, which is expected of the next one.
    fn record_evaluation(&mut self, took: Duration) {
        self.steps.evaluation = took;
    }
}

/// Time for the rest of a step, its save, and a save in flight before it. Half a step is added,
/// because the next may be slower than all before.
fn time_needed(slowest: Duration, save: f64, margin: Duration) -> Duration {
    slowest.mul_f64(1.5) + Duration::from_secs_f64(2.0 * save) + margin
}

/// Expected seconds of a first save with this many bytes in total.
pub fn expected_save(bytes: u64, ranks: usize) -> f64 {
    bytes as f64 / (SAVED_PER_SECOND * ranks as f64)
}

fn reread(job: &Job, end: &Mutex<Option<JobEnd>>, margin: Duration) {
    match job.time() {
        Err(error) => tracing::warn!("when job {} ends is not known: {error:#}", job.id()),
        Ok(time) => {
            let mut known = end.lock();
            let before = *known;
            let now = time.map(|JobTime { left, limit }| JobEnd {
                asked: Moment::now(),
                left,
                limit: limit.max(before.and_then(|before| before.limit)),
            });
            *known = now;
            drop(known);
            let same = before.zip(now).is_some_and(|(before, now)| {
                before.left().abs_diff(now.left()) < Duration::from_secs(60)
            });
            let Some(now) = now.filter(|now| !same && now.left < UNLIMITED) else { return };
            let left = Seconds(now.left.as_secs_f64());
            let id = job.id();
            tracing::info!("job {id} ends in {left}: the run saves and leaves before that");
            if now.margin(margin) < margin {
                let [limit, margin, shorter] =
                    [now.limit.unwrap_or_default(), margin, now.margin(margin)]
                        .map(|time| Seconds(time.as_secs_f64()));
                tracing::warn!(
                    "slurm.margin_s ({margin}) is more than half of the job's time limit \
                     ({limit}), and counts as {shorter}: lower it, or raise sbatch --time"
                );
            }
        }
    }
}

/// End of the job, from a query of Slurm. Its limit does not run while the job is suspended.
#[derive(Clone, Copy)]
struct JobEnd {
    asked: Moment,
    /// Remaining time at that moment.
    left: Duration,
    /// Longest time limit of the job so far: an administrator may shorten it.
    limit: Option<Duration>,
}

impl JobEnd {
    fn left(self) -> Duration {
        self.left.saturating_sub(self.asked.elapsed())
    }

    /// Margin before the end. One that is longer than the job would end each start after a step.
    fn margin(self, wanted: Duration) -> Duration {
        self.limit
            .map_or(wanted, |limit| wanted.min(limit / MARGIN_SHARE))
    }
}

/// Durations of the last steps, each including what followed it.
#[derive(Default)]
struct StepTimes {
    before: Option<Moment>,
    recent: VecDeque<Duration>,
    /// Duration of the last evaluation, which may be older than the recorded steps.
    evaluation: Duration,
}

impl StepTimes {
    fn step_ended(&mut self, now: Moment) {
        if let Some(before) = self.before.replace(now) {
            self.record(now.since(before));
        }
    }

    fn record(&mut self, step: Duration) {
        push_recent(&mut self.recent, step, RECENT);
    }

    /// Expected duration of the slowest next step.
    fn slowest(&self) -> Duration {
        self.recent.iter().max().copied().unwrap_or_default() + self.evaluation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_the_recent_steps_counts_and_an_evaluation_long_ago() {
        let mut times = StepTimes::default();
        times.step_ended(Moment::now());
        assert_eq!(times.slowest(), Duration::ZERO);
        let mut step = |seconds: u64| {
            times.record(Duration::from_secs(seconds));
            times.slowest().as_secs()
        };
        assert_eq!([step(9), step(2)], [9, 9]);
        assert_eq!((0..98).map(|_| step(1)).max(), Some(9));
        assert_eq!(step(1), 2, "the slow one is 100 steps ago");
        times.evaluation = Duration::from_secs(30);
        assert_eq!(times.slowest().as_secs(), 30 + 2);
    }

    #[test]
    fn the_run_leaves_in_time_for_its_step_and_save() {
        let limit_of = |left, limit: Option<u64>| TimeLimit {
            end: Arc::new(Mutex::new(Some(JobEnd {
                asked: Moment::now(),
                left: Duration::from_secs(left),
                limit: limit.map(Duration::from_secs),
            }))),
            open: Some(channel().0),
            margin: Duration::from_secs(60),
            steps: StepTimes { evaluation: Duration::from_secs(100), ..Default::default() },
            save: Rc::new(Cell::new(20.0)),
        };
        let limit = |left| limit_of(left, None);
        // 1.5 · 100 s + 2 · 20 s + 60 s, and the time this test may take.
        assert!(limit(250).is_due());
        assert!(!limit(5000).is_due());
        // With a limit of 80 s, 40 s are the margin: 230 s are needed.
        assert!(limit_of(225, Some(80)).is_due() && !limit_of(235, Some(80)).is_due());
        let unknown = TimeLimit { end: Arc::default(), ..limit(0) };
        assert!(!{ unknown }.is_due(), "without an end the run continues");
        assert_eq!(expected_save(2_000_000_000, 4), 5.0);
    }

    #[test]
    fn a_start_of_minutes_trains_a_step_and_leaves_in_time() {
        let limit = |seconds| {
            let save = Rc::new(Cell::new(20.0));
            TimeLimit::from_start(Moment::now(), Duration::from_secs(seconds), save)
        };
        let mut over = limit(0);
        assert!(!over.is_due(), "no step has ended");
        assert!(over.is_due() && !over.is_of_job());
        let mut long = limit(5000);
        assert!(!long.is_due() && !long.is_due());
        // 1.5 · 3000 s + 2 · 20 s are less than the time that remains; 1.5 · 4000 s are not.
        long.steps.record(Duration::from_secs(3000));
        assert!(!long.is_due());
        long.steps.record(Duration::from_secs(4000));
        assert!(long.is_due());
    }
}
