//! Detection of stragglers in a run (defined in `plan::stragglers`). Rank 0 receives each rank's
//! busy time with the heartbeats, without another collective, and reports stragglers.
//!
//! Busy time is the time of a step from its start to its outcome, minus waits in collectives and
//! messages. Reading data counts, because a slow disk makes a straggler too. A CPU rank, and one
//! whose GPU communicates through the host, waits on its own thread. With NCCL the host is steps
//! ahead of the GPU, so its timestamps are useless. Events before and after each operation of the
//! compute stream measure the wait instead. Waits inside a CUDA graph are not measured: ranks of a
//! tensor group, whose sums are in graphs, appear equal.

use super::watch::{Event, Requests, RunView, Watcher};
use base::Moment;
use comm::{BusyWindow, RankBusy};
use device::{Health, Monitor};
use launch::rank::Rank;
use launch::sick_nodes::{self, Reason};
use plan::grid::Axis;
use plan::robust::median;
use plan::stragglers::{Busy, Straggler, StragglerWatch, WINDOW};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Poll interval of the ranks' windows.
const POLL: Duration = Duration::from_secs(1);

/// Straggler detection of one rank.
pub struct Stragglers {
    /// Busy times of the steps of this window.
    seconds: Vec<f64>,
    windows: u64,
    /// Wait time of the GPU's stream up to the last step.
    device_waited: f64,
    processor: String,
    /// On rank 0 of several.
    detector: Option<StragglerDetector>,
}

/// Detector of stragglers among all ranks.
struct StragglerDetector {
    watch: StragglerWatch,
    folder: PathBuf,
    /// Last window that was assessed.
    assessed: u64,
    polled: Moment,
}

impl Watcher for Stragglers {
    fn name(&self) -> &'static str {
        "stragglers"
    }

    fn requests(&mut self, run: &RunView) -> anyhow::Result<Requests> {
        self.poll(run.rank);
        Ok(Requests::NONE)
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        if let Event::Step(done) = event {
            self.step(run.rank, done.seconds, done.waited, run.monitor.as_deref());
        }
        Ok(())
    }
}

impl Stragglers {
    /// Starts the detection. `processor` is the rank's processor, among those of its node.
    pub fn new(rank: &Rank, folder: &Path, processor: String) -> Stragglers {
        let detector = || StragglerDetector {
            watch: StragglerWatch::default(),
            folder: folder.to_path_buf(),
            assessed: 0,
            polled: Moment::now(),
        };
        let detector = (rank.is_first() && rank.grid.size() > 1).then(detector);
        Stragglers { seconds: Vec::new(), windows: 0, device_waited: 0.0, processor, detector }
    }

    /// Records a step's time, and the time in it that the rank's thread waited for others.
    fn step(&mut self, rank: &Rank, seconds: f64, waited: f64, monitor: Option<&dyn Monitor>) {
        let recorder = rank.world().recorder();
        let device = recorder.waited().device;
        let on_device = device - std::mem::replace(&mut self.device_waited, device);
        self.seconds.push((seconds - waited - on_device).max(0.0));
        if self.seconds.len() < WINDOW {
            return;
        }
        self.windows += 1;
        recorder.record_busy(BusyWindow {
            number: self.windows,
            seconds: median(std::mem::take(&mut self.seconds)),
            processor: self.processor.clone(),
            health: monitor
                .map(|monitor| health(&monitor.health()))
                .unwrap_or_default(),
        });
    }

    /// Reports new stragglers, on rank 0, between two steps.
    fn poll(&mut self, rank: &Rank) {
        let Some(detector) = &mut self.detector else { return };
        if detector.assessed == self.windows || detector.polled.elapsed() < POLL {
            return;
        }
        detector.polled = Moment::now();
        let ranks = rank.world().busy();
        let last = ranks
            .iter()
            .map(|rank| rank.windows.back().map_or(0, |window| window.number));
        let newest = last.min().unwrap_or(0);
        let window = |rank: &RankBusy| rank.windows.iter().find(|w| w.number == newest).cloned();
        // None if some ranks are several windows ahead of others; a later poll finds a common
        // window.
        let windows: Option<Vec<BusyWindow>> = ranks.iter().map(window).collect();
        if let Some(windows) = windows.filter(|_| newest > detector.assessed) {
            detector.assessed = newest;
            detector.assess(rank, &ranks, &windows);
        }
    }
}

impl StragglerDetector {
    /// Warns of the stragglers in a window of every rank, and records their nodes.
    fn assess(&mut self, rank: &Rank, ranks: &[RankBusy], windows: &[BusyWindow]) {
        let place = |number: usize| (&ranks[number].node, &windows[number].processor);
        let busy = |number: usize| Busy {
            stage: rank.grid.coord(number)[Axis::Pipeline],
            seconds: windows[number].seconds,
            shares: (0..ranks.len())
                .filter(|other| place(*other) == place(number))
                .count()
                > 1,
        };
        let busy: Vec<Busy> = (0..ranks.len()).map(busy).collect();
        for found in self.watch.observe(&busy) {
            let slow = &ranks[found.rank];
            let window = &windows[found.rank];
            let line = line(&found, slow, window, rank.grid.coord(found.rank)[Axis::Pipeline]);
            tracing::warn!("{line}");
            let added = sick_nodes::add(&self.folder, &slow.node, Reason::Straggles, &line);
            if let Err(error) = added {
                tracing::warn!("{} is not noted: {error:#}", slow.node);
            }
        }
    }
}

/// For example "rank 37 (node n12, TP1 PP3 DP0) is slow: busy for 0.41 s of a step, 2.6 % more than
/// the median of the 96 ranks of stage 3 (7.1 scatters), over three windows of 50 steps; GPU 3 …,
/// 1410 MHz, 82 °C".
fn line(found: &Straggler, slow: &RankBusy, window: &BusyWindow, stage: usize) -> String {
    let Straggler { more, score, peers, .. } = *found;
    let name = &slow.name;
    let seconds = base::Seconds(window.seconds);
    let than = match score {
        Some(score) => {
            let times = if score < 100.0 { format!("{score:.1}") } else { "> 100".to_string() };
            format!("the median of the {peers} ranks of stage {stage} ({times} scatters)")
        }
        None => "the only other rank of its stage".to_string(),
    };
    let health = Some(&window.health).filter(|health| !health.is_empty());
    let health = health.map_or(String::new(), |health| format!(", {health}"));
    format!(
        "{name} is slow: busy for {seconds} of a step, {:.1} % more than {than}, over three \
         windows of {WINDOW} steps; {}{health}",
        100.0 * more,
        window.processor
    )
}

fn health(health: &Health) -> String {
    let Health { gpu_mhz, gpu_watts, gpu_celsius } = health;
    let mhz = gpu_mhz.map(|mhz| format!("{mhz} MHz"));
    let watts = gpu_watts.map(|watts| format!("{watts:.0} W"));
    let celsius = gpu_celsius.map(|celsius| format!("{celsius} °C"));
    [mhz, watts, celsius]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}
