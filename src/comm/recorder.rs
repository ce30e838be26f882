//! The flight recorder: what a rank last did with others, and what it is doing now.

use super::Op;
use super::report::{GroupCount, RankReport};
use crate::base::DType;
use crate::device::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// Events kept per rank.
const KEPT: usize = 256;

/// One operation with others. Times are seconds since the recorder was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counted over all groups, from 0.
    pub number: u64,
    pub group: String,
    pub op: Op,
    /// Counted per group (messages: per sender and receiver), from 1.
    pub sequence: u64,
    #[serde(with = "dtype_by_name")]
    pub dtype: DType,
    /// Of the whole tensor.
    pub bytes: u64,
    /// Rank of the world a message goes to or comes from.
    pub peer: Option<usize>,
    /// On the communication queue, with nobody waiting for it yet.
    pub queued: bool,
    pub enqueued: f64,
    pub started: Option<f64>,
    /// Rank of the world whose data was last waited for.
    pub awaiting: Option<usize>,
    pub finished: Option<f64>,
}

impl Event {
    /// An operation of a group on `x`, the `sequence`th: not yet entered.
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

/// The last events of one rank.
pub struct Recorder {
    born: Instant,
    state: Mutex<State>,
}

struct State {
    events: VecDeque<Event>,
    groups: Vec<GroupCount>,
    next: u64,
    doing: String,
    since: f64,
    node: String,
    place: String,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let state = State {
            events: VecDeque::new(),
            groups: Vec::new(),
            next: 0,
            doing: "starting".to_string(),
            since: 0.0,
            node: String::new(),
            place: String::new(),
        };
        Recorder { born: Instant::now(), state: Mutex::new(state) }
    }
}

impl Recorder {
    /// Name of the rank's machine.
    pub fn node(&self, name: &str) {
        self.lock().node = name.to_string();
    }

    /// "rank 37 (node n12, TP1 PP3 DP0)".
    pub(super) fn name(&self, rank: usize) -> String {
        let node = self.lock().node.clone();
        self.report(rank, &node, 0).name()
    }

    /// Where the rank is in the grid, as the verdict is to call it: "TP1 PP3 DP0".
    pub fn place(&self, place: &str) {
        self.lock().place = place.to_string();
    }

    /// What the rank does from now on: "reading data", "forward".
    pub fn doing(&self, what: &str) {
        let now = self.now();
        let mut state = self.lock();
        state.since = now;
        state.doing.clear();
        state.doing.push_str(what);
    }

    /// What was last said to be done.
    pub fn now_doing(&self) -> String {
        self.lock().doing.clone()
    }

    /// Everything, with the last `events` events, oldest first, and those unfinished.
    pub fn report(&self, rank: usize, node: &str, events: usize) -> RankReport {
        let now = self.now();
        let state = self.lock();
        let skipped = state.events.len().saturating_sub(events);
        let shown = |(i, event): &(usize, &Event)| *i >= skipped || event.finished.is_none();
        RankReport {
            rank,
            node: node.to_string(),
            place: state.place.clone(),
            doing: state.doing.clone(),
            doing_since: state.since,
            now,
            silent: None,
            ended: None,
            groups: state.groups.clone(),
            events: state.events.iter().enumerate().filter(shown).map(|(_, e)| e.clone()).collect(),
        }
    }

    /// Seconds since the recorder was made.
    pub fn now(&self) -> f64 {
        self.born.elapsed().as_secs_f64()
    }

    /// A group the rank belongs to. By name it has one of a kind.
    pub(super) fn join_group(&self, name: &str, ranks: &[usize]) {
        let mut state = self.lock();
        match state.groups.iter().find(|group| group.name == name) {
            Some(group) => assert_eq!(group.ranks, ranks, "two groups of one rank called {name}"),
            None => state.groups.push(GroupCount::new(name, ranks)),
        }
    }

    /// `event` is to happen; its number and time are given here.
    pub(super) fn enqueue(&self, event: Event) -> u64 {
        let now = self.now();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        if let Some(group) = state.groups.iter_mut().find(|group| group.name == event.group) {
            group.count(&event);
        }
        if state.events.len() == KEPT {
            state.events.pop_front();
        }
        state.events.push_back(Event { number, enqueued: now, ..event });
        number
    }

    pub(super) fn start(&self, number: u64) {
        let now = self.now();
        self.change(number, |event| event.started = Some(now));
    }

    pub(super) fn awaits(&self, number: u64, rank: usize) {
        self.change(number, |event| event.awaiting = Some(rank));
    }

    /// Somebody waits for what was queued.
    pub(super) fn wanted(&self, number: u64) {
        self.change(number, |event| event.queued = false);
    }

    pub(super) fn finish(&self, number: u64) {
        let now = self.now();
        self.change(number, |event| event.finished = Some(now));
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Event)) {
        let mut state = self.lock();
        let first = state.next - state.events.len() as u64;
        let place = number.checked_sub(first).map(|place| place as usize);
        if let Some(event) = place.and_then(|place| state.events.get_mut(place)) {
            change(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

mod dtype_by_name {
    use crate::base::DType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(dtype)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name);
        found.ok_or_else(|| D::Error::custom(format!("no dtype {name}")))
    }
}
