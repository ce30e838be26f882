//! Flight recorder: the last communication operations of a rank, its current phase, and the time it
//! has waited for others.

use super::Op;
use super::report::{BusyWindow, GroupCount, LogLine, RankBusy, RankReport};
use base::{DType, Moment};
use device::Tensor;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Events kept per rank.
const KEPT: usize = 256;

/// Log lines kept per rank.
const KEPT_LINES: usize = 64;

/// Busy-time windows kept per rank. Rank 0 receives the newest within a heartbeat.
const KEPT_WINDOWS: usize = 4;

/// Collective or message. Times are seconds since the recorder was created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counted over all groups, from 0.
    pub number: u64,
    pub group: String,
    pub op: Op,
    /// Counted per group (messages: per sender and receiver), from 1.
    pub sequence: u64,
    pub dtype: DType,
    /// Bytes of the whole tensor.
    pub bytes: u64,
    /// World rank that a message goes to or comes from.
    pub peer: Option<usize>,
    /// Whether it is on the communication queue and the rank does not wait for it yet.
    pub queued: bool,
    pub enqueued: f64,
    pub started: Option<f64>,
    /// World rank whose data it waited for last.
    pub awaiting: Option<usize>,
    pub finished: Option<f64>,
}

impl Event {
    /// Operation number `sequence` of a group, on `x`, not yet entered.
    pub(super) fn new(group: &str, op: Op, sequence: u64, x: Tensor, peer: Option<usize>) -> Event {
        Event {
            number: 0,
            group: group.to_string(),
            op,
            sequence,
            dtype: x.dtype,
            bytes: x.bytes() as u64,
            peer,
            queued: false,
            enqueued: 0.0,
            started: None,
            awaiting: None,
            finished: None,
        }
    }
}

/// Last events of one rank.
pub struct Recorder {
    created: Moment,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    log: VecDeque<LogLine>,
    groups: Vec<GroupCount>,
    /// Number of the next event.
    next_number: u64,
    phase: String,
    /// Start of the phase.
    phase_since: f64,
    node: String,
    coord: String,
    waited: Waited,
    /// Seconds that the rank's own thread has waited, by group.
    waits: BTreeMap<String, f64>,
    busy: VecDeque<BusyWindow>,
}

/// Seconds that a rank has spent in collectives and messages since its start, waiting for others or
/// moving bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waited {
    /// On its own thread.
    pub host: f64,
    /// On its GPU's compute stream outside of CUDA graphs, as far as the GPU's progress is known.
    pub device: f64,
}

/// Guard of `Recorder::begin_wait`.
pub(super) struct Waiting<'a> {
    recorder: &'a Recorder,
    group: &'a str,
    since: Moment,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.recorder
            .add_host_wait(self.group, self.since.elapsed().as_secs_f64());
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        let state = State { phase: "starting".to_string(), ..State::default() };
        Recorder { created: Moment::now(), state: Mutex::new(state) }
    }
}

impl Recorder {
    /// Sets the name of the rank's machine.
    pub fn set_node(&self, name: &str) {
        self.state.lock().node = name.to_string();
    }

    /// Name of the rank in messages: "rank 37 (node n12, TP1 PP3 DP0)".
    pub(super) fn name(&self, rank: usize) -> String {
        let node = self.state.lock().node.clone();
        self.report(rank, &node, 0).name()
    }

    /// Sets the rank's grid coordinates, for messages: "TP1 PP3 DP0".
    pub fn set_coord(&self, coord: &str) {
        self.state.lock().coord = coord.to_string();
    }

    /// Sets the rank's current activity: "reading data", "forward".
    pub fn set_phase(&self, what: &str) {
        let now = self.now();
        let mut state = self.state.lock();
        state.phase_since = now;
        state.phase.clear();
        state.phase.push_str(what);
    }

    /// Current phase.
    pub fn phase(&self) -> String {
        self.state.lock().phase.clone()
    }

    /// Records a log line, with its level and step.
    pub fn log(&self, level: &str, step: Option<u64>, text: &str) {
        let level = level.to_string();
        let text = text.to_string();
        let line = LogLine { at: self.now(), level, step, text };
        push_last(&mut self.state.lock().log, line, KEPT_LINES);
    }

    /// Counts the time until the guard is dropped as waiting of the rank's own thread in a group.
    pub(super) fn begin_wait<'a>(&'a self, group: &'a str) -> Waiting<'a> {
        Waiting { recorder: self, group, since: Moment::now() }
    }

    fn add_host_wait(&self, group: &str, seconds: f64) {
        let mut state = self.state.lock();
        state.waited.host += seconds;
        if let Some(sum) = state.waits.get_mut(group) {
            *sum += seconds;
        } else {
            state.waits.insert(group.to_string(), seconds);
        }
    }

    /// Seconds that the rank's own thread has waited so far, by group.
    pub fn waits(&self) -> BTreeMap<String, f64> {
        self.state.lock().waits.clone()
    }

    /// Adds waiting time of the GPU's compute stream.
    pub(super) fn add_device_wait(&self, seconds: f64) {
        self.state.lock().waited.device += seconds;
    }

    /// Time that the rank has waited so far.
    pub fn waited(&self) -> Waited {
        self.state.lock().waited
    }

    /// Adds a busy-time window, which the next heartbeat sends to rank 0.
    pub fn record_busy(&self, window: BusyWindow) {
        push_last(&mut self.state.lock().busy, window, KEPT_WINDOWS);
    }

    /// Windows recorded on this rank, not via rank 0.
    pub(super) fn busy(&self, rank: usize) -> RankBusy {
        let node = self.state.lock().node.clone();
        RankBusy::from_report(&self.report(rank, &node, 0))
    }

    /// State of the rank with its last `events` events and log lines, and all unfinished events,
    /// oldest first.
    pub fn report(&self, rank: usize, node: &str, events: usize) -> RankReport {
        let now = self.now();
        let state = self.state.lock();
        let skipped = state.events.len().saturating_sub(events);
        RankReport {
            rank,
            node: node.to_string(),
            coord: state.coord.clone(),
            phase: state.phase.clone(),
            phase_since: state.phase_since,
            now,
            silent: None,
            ended: None,
            groups: state.groups.clone(),
            events: state
                .events
                .iter()
                .enumerate()
                .filter(|(i, event)| *i >= skipped || event.finished.is_none())
                .map(|(_, e)| e.clone())
                .collect(),
            busy: state.busy.clone(),
            log: state
                .log
                .iter()
                .skip(state.log.len().saturating_sub(events))
                .cloned()
                .collect(),
        }
    }

    /// Seconds since the recorder was created, as far as they count for time limits.
    pub fn now(&self) -> f64 {
        self.created.waited().as_secs_f64()
    }

    /// Registers a group of this rank. A rank's group names are unique.
    pub(super) fn join_group(&self, name: &str, ranks: &[usize]) {
        let mut state = self.state.lock();
        match state.groups.iter().find(|group| group.name == name) {
            Some(group) => assert_eq!(group.ranks, ranks, "two groups of one rank called {name}"),
            None => state.groups.push(GroupCount::new(name, ranks)),
        }
    }

    /// Adds an event and sets its number and time.
    pub(super) fn enqueue(&self, event: Event) -> u64 {
        let now = self.now();
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        if let Some(group) = state
            .groups
            .iter_mut()
            .find(|group| group.name == event.group)
        {
            group.count(&event);
        }
        push_last(&mut state.events, Event { number, enqueued: now, ..event }, KEPT);
        number
    }

    /// Records that an operation has started.
    pub(super) fn start(&self, number: u64) {
        let now = self.now();
        self.change_event(number, |event| event.started = Some(now));
    }

    /// Sets the rank whose data an operation waits for.
    pub(super) fn set_waits_for(&self, number: u64, rank: usize) {
        self.change_event(number, |event| event.awaiting = Some(rank));
    }

    /// Marks a queued operation as one that the rank now waits for.
    pub(super) fn mark_waited(&self, number: u64) {
        self.change_event(number, |event| event.queued = false);
    }

    /// Records that an operation has finished.
    pub(super) fn finish(&self, number: u64) {
        let now = self.now();
        self.change_event(number, |event| event.finished = Some(now));
    }

    fn change_event(&self, number: u64, change: impl FnOnce(&mut Event)) {
        let mut state = self.state.lock();
        let first = state.next_number - state.events.len() as u64;
        let place = number.checked_sub(first).map(|place| place as usize);
        if let Some(event) = place.and_then(|place| state.events.get_mut(place)) {
            change(event);
        }
    }
}

/// Adds an item to the last `kept` ones.
fn push_last<T>(last: &mut VecDeque<T>, item: T, kept: usize) {
    if last.len() == kept {
        last.pop_front();
    }
    last.push_back(item);
}
