//! The flight recorder: what a rank last did with others, and what it is doing now.

use super::Op;
use crate::base::DType;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Events kept per rank.
const KEPT: usize = 256;

/// One operation with others. Times are seconds since the recorder was made.
#[derive(Clone, Debug)]
pub struct Event {
    /// Counted over all groups, from 0.
    pub number: u64,
    pub group: Arc<str>,
    pub op: Op,
    /// Counted per group (messages: per sender and receiver), from 1.
    pub sequence: u64,
    pub dtype: DType,
    /// Of the whole tensor.
    pub bytes: u64,
    /// Rank of the world a message goes to or comes from.
    pub peer: Option<usize>,
    pub enqueued: f64,
    pub started: Option<f64>,
    pub finished: Option<f64>,
}

/// A ring of the last events of one rank.
pub struct Recorder {
    born: Instant,
    state: Mutex<State>,
}

struct State {
    events: VecDeque<Event>,
    next: u64,
    doing: String,
    since: f64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let doing = "starting".to_string();
        let state = State { events: VecDeque::new(), next: 0, doing, since: 0.0 };
        Recorder { born: Instant::now(), state: Mutex::new(state) }
    }
}

impl Recorder {
    /// What the rank does from now on: "reading data", "forward".
    pub fn doing(&self, what: &str) {
        let now = self.now();
        let mut state = self.lock();
        state.since = now;
        state.doing.clear();
        state.doing.push_str(what);
    }

    /// What it does, and for how many seconds.
    pub fn now_doing(&self) -> (String, f64) {
        let now = self.now();
        let state = self.lock();
        (state.doing.clone(), now - state.since)
    }

    /// The last events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.iter().cloned().collect()
    }

    /// Seconds since the recorder was made.
    pub fn now(&self) -> f64 {
        self.born.elapsed().as_secs_f64()
    }

    /// `event` is to happen; its number and time are given here.
    pub(super) fn enqueue(&self, event: Event) -> u64 {
        let now = self.now();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
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

    pub(super) fn finish(&self, number: u64) {
        let now = self.now();
        self.change(number, |event| event.finished = Some(now));
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Event)) {
        let mut state = self.lock();
        let first = state.next - state.events.len() as u64;
        if let Some(event) =
            number.checked_sub(first).and_then(|i| state.events.get_mut(i as usize))
        {
            change(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
