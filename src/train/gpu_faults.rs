//! Faults of a rank's GPU during training, as reported by NVML: uncorrected ECC errors, rows of
//! memory that wait for a reset, and the driver's Xid errors (NVIDIA, "Xid Errors",
//! docs.nvidia.com/deploy/xid-errors).
//!
//! Each rank polls its own GPU every ten seconds and when its run ends. It records hardware faults
//! in the file of sick nodes itself, because its process may not live longer. Rank 0 reads that
//! file and reports the faults. Faults that a program causes (a bad address) are reported but not
//! recorded.

use super::watch::{Ended, Event, RunView, Watcher};
use base::Moment;
use device::{Faults, Monitor};
use launch::Device;
use launch::events::{self, Kind};
use launch::rank::Rank;
use launch::sick_nodes::{self, Reason};
use manifest::Manifest;
use std::path::PathBuf;
use std::time::Duration;

/// Poll interval.
const POLL: Duration = Duration::from_secs(10);

const RESET: &str = "reset the GPU (nvidia-smi -r) or restart the node";
const REPLACE: &str = "restart the node; if it comes again, the GPU is to be replaced";
const LINK: &str = "run NVIDIA's field diagnostics; reset the GPU and those that it is linked with";

/// NVIDIA's table, restricted to errors relevant to training: number, description, and the remedy for
/// a hardware fault; None if a program causes the error. For other errors only the number is reported.
const XIDS: &[(u64, &str, Option<&str>)] = &[
    (13, "graphics engine exception", None),
    (31, "memory page fault", None),
    (43, "the GPU stopped processing", None),
    (45, "preemptive cleanup, after other errors", None),
    (48, "double-bit ECC error", Some(RESET)),
    (61, "breakpoint of the internal micro-controller", Some(RESET)),
    (62, "halt of the internal micro-controller", Some(RESET)),
    (63, "a row of memory is to be remapped", Some(RESET)),
    (64, "a row of memory could not be remapped", Some(REPLACE)),
    (74, "NVLink error", Some(LINK)),
    (79, "the GPU has fallen off the bus", Some(REPLACE)),
    (94, "contained ECC error", Some(RESET)),
    (95, "uncontained ECC error", Some(RESET)),
    (119, "the GPU's system processor (GSP) gave no answer", Some(RESET)),
    (120, "error of the GPU's system processor (GSP)", Some(RESET)),
    (140, "ECC error that was not recovered", Some(RESET)),
];

/// Fault, described for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    what: String,
    /// Remedy for a hardware fault; None if a program causes it.
    remedy: Option<&'static str>,
}

/// Fault detection of one rank.
pub struct GpuFaults {
    folder: PathBuf,
    host: String,
    /// For example "rank 3, GPU 3 (PCI …)".
    device: String,
    polled: Option<Moment>,
    /// Counters at the last poll, and Xid errors that were not reported yet.
    last: Faults,
    /// On rank 0: time, in seconds since 1970, up to which recorded faults have been reported.
    reported_until: f64,
}

impl Watcher for GpuFaults {
    fn name(&self) -> &'static str {
        "GPU faults"
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        if let Event::Step(_) = event {
            self.poll(run, false);
        }
        Ok(())
    }

    fn on_end(&mut self, run: &RunView, _: &anyhow::Result<Ended>) {
        self.poll(run, true);
    }
}

impl GpuFaults {
    /// Starts the detection. Faults counted by the GPU before are ignored.
    pub fn new(
        rank: &Rank,
        m: &Manifest,
        device: &Device,
        monitor: Option<&dyn Monitor>,
    ) -> GpuFaults {
        let at_start = monitor.map(|monitor| monitor.faults()).unwrap_or_default();
        let Faults { uncorrected, xids, .. } = at_start;
        GpuFaults {
            folder: m.log.folder.clone(),
            host: base::hostname(),
            device: format!("rank {}, {}", rank.number(), device.processor()),
            polled: None,
            last: Faults { uncorrected, xids, ..Faults::default() },
            reported_until: base::unix_time().as_secs_f64(),
        }
    }

    /// Polls if the interval has passed, or if `at_once`.
    fn poll(&mut self, run: &RunView, at_once: bool) {
        let Some(monitor) = &run.monitor else { return };
        let rank = run.rank;
        if !at_once && self.polled.is_some_and(|polled| polled.elapsed() < POLL) {
            return;
        }
        self.polled = Some(Moment::now());
        let mut faults = monitor.faults();
        faults.xids.splice(0..0, self.last.xids.drain(..));
        let new = new_faults(&self.last, &faults);
        self.last = Faults { xids: Vec::new(), ..faults };
        let line = |hardware: bool| {
            let faults = new
                .iter()
                .filter(|fault| fault.remedy.is_some() == hardware);
            let what = faults
                .map(|fault| fault.what.as_str())
                .collect::<Vec<_>>()
                .join("; ");
            let whole = format!("node {}, {}: {what}", self.host, self.device);
            Some(whole).filter(|_| !what.is_empty())
        };
        if let Some(line) = line(false) {
            tracing::warn!("{line}");
            if !rank.is_first() {
                events::add(&self.folder, Kind::Warning, &line); // it prints nothing
            }
        }
        if let Some(line) = line(true)
            && let Err(error) = sick_nodes::add(&self.folder, &self.host, Reason::Gpu, &line)
        {
            tracing::warn!("{line}; it is not recorded: {error:#}");
        }
        if rank.is_first() {
            self.report_recorded();
        }
    }

    /// Reports the faults that ranks have recorded.
    fn report_recorded(&mut self) {
        let nodes = sick_nodes::read(&self.folder).unwrap_or_default();
        for node in nodes
            .iter()
            .filter(|node| node.reason == Reason::Gpu && node.at > self.reported_until)
        {
            tracing::warn!("{}", node.evidence);
        }
        self.reported_until = nodes
            .iter()
            .map(|node| node.at)
            .fold(self.reported_until, f64::max);
    }
}

/// New faults between two polls.
fn new_faults(before: &Faults, now: &Faults) -> Vec<Fault> {
    let hardware = |what: String, remedy| Fault { what, remedy: Some(remedy) };
    let mut found = Vec::new();
    let errors = now.uncorrected.saturating_sub(before.uncorrected);
    if errors > 0 {
        let noun = if errors == 1 { "error" } else { "errors" };
        found.push(hardware(format!("{errors} uncorrected ECC {noun}"), RESET));
    }
    if now.rows_pending && !before.rows_pending {
        found.push(hardware("rows of its memory wait to be remapped".into(), RESET));
    }
    if now.remap_failed && !before.remap_failed {
        found.push(hardware("rows of its memory could not be remapped".into(), REPLACE));
    }
    if now.lost && !before.lost {
        found.push(hardware("the GPU no longer responds".into(), REPLACE));
    }
    found.extend(now.xids.iter().map(|xid| xid_fault(*xid)));
    for fault in &mut found {
        if let Some(remedy) = fault.remedy {
            fault.what += &format!(": {remedy}");
        }
    }
    found
}

fn xid_fault(xid: u64) -> Fault {
    let known = XIDS.iter().find(|(number, ..)| *number == xid);
    let (_, what, remedy) = known.unwrap_or(&(0, "see NVIDIA's table of Xid errors", None));
    let more = if known.is_some() && remedy.is_none() { ", which a program causes" } else { "" };
    Fault { what: format!("Xid {xid}, {what}{more}"), remedy: *remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(before: &Faults, now: &Faults) -> Vec<(bool, String)> {
        let new = new_faults(before, now).into_iter();
        new.map(|fault| (fault.remedy.is_some(), fault.what))
            .collect()
    }

    #[test]
    fn what_is_new_is_told_once_with_its_cause() {
        let none = Faults { uncorrected: 5, ..Faults::default() };
        assert_eq!(faults(&none, &none), []);
        let xids = vec![13, 79, 999];
        let bad = Faults { uncorrected: 6, rows_pending: true, xids, ..none.clone() };
        let said = faults(&none, &bad);
        let expected = [
            (true, "1 uncorrected ECC error: reset the GPU"),
            (true, "rows of its memory wait to be remapped: reset"),
            (false, "Xid 13, graphics engine exception, which a program causes"),
            (true, "Xid 79, the GPU has fallen off the bus: restart the node"),
            (false, "Xid 999, see NVIDIA's table of Xid errors"),
        ];
        assert_eq!(said.len(), expected.len(), "{said:?}");
        for ((hardware, what), (is, begins)) in said.iter().zip(expected) {
            assert!(*hardware == is && what.starts_with(begins), "{what}");
        }
        let after = Faults { xids: Vec::new(), ..bad.clone() };
        assert_eq!(faults(&after, &after), []);
        let reset = faults(&after, &Faults::default());
        assert_eq!(reset, [], "a driver that was loaded again counts from 0");
        let lost = Faults { lost: true, remap_failed: true, ..after.clone() };
        assert_eq!(faults(&after, &lost).len(), 2);
    }

    #[test]
    fn the_table_is_in_order_and_has_what_hardware_does() {
        assert!(XIDS.is_sorted_by_key(|(number, ..)| *number));
        for (xid, hardware) in [(31, false), (43, false), (45, false), (48, true), (95, true)] {
            assert_eq!(xid_fault(xid).remedy.is_some(), hardware, "{xid}");
        }
    }
}
