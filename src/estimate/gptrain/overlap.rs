//! Overlap of messages with computation, by the order of events in the engine's dry run. Ops, and
//! messages that the next op waits for, follow each other on one clock. An asynchronous message starts
//! when it is issued, after earlier ones in its queue, and stops the clock at the wait for its end. So the
//! credit of a message is at most the computation that it overlaps, and at most its own duration.

use crate::parts::TRAFFIC;
use comm::dry::WaitPoint;

/// Event of a rank.
#[derive(Clone, Copy, Debug)]
pub enum TimedEvent {
    /// Seconds of ops.
    Compute(f64),
    /// Messages within a node share its links, and those between nodes its adapters.
    /// `row` is that of `TRAFFIC`.
    Send { wait: WaitPoint, row: usize, in_node: bool, seconds: f64 },
    /// Wait, as `Event::Finish`.
    Finish(i64),
}

/// Seconds of collectives and messages that overlap computation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overlap {
    pub all: f64,
    /// Seconds of asynchronous messages between stages of a pipeline.
    pub messages: f64,
    /// By rows of `TRAFFIC`.
    pub rows: [f64; TRAFFIC.len()],
}

/// Overlap in a step that follows others like it, so that a message may end in the next step.
pub fn overlap(step: &[TimedEvent]) -> Overlap {
    let mut clock = Clock::default();
    clock.play(step);
    let Overlap { all, messages, rows } = clock.play(step);
    Overlap { all: all.max(0.0), messages: messages.max(0.0), rows }
}

/// Seconds of all messages of a step that may overlap computation.
pub fn overlappable_seconds(step: &[TimedEvent]) -> Overlap {
    let mut overlap = Overlap::default();
    for event in step {
        if let TimedEvent::Send {
            wait: wait @ (WaitPoint::Soon | WaitPoint::Queued | WaitPoint::Message),
            row,
            seconds,
            ..
        } = *event
        {
            overlap.add(wait, row, seconds);
        }
    }
    overlap
}

impl Overlap {
    fn add(&mut self, wait: WaitPoint, row: usize, seconds: f64) {
        self.all += seconds;
        self.rows[row] += seconds;
        if wait == WaitPoint::Message {
            self.messages += seconds;
        }
    }
}

/// Time of a rank, and its asynchronous messages.
#[derive(Default)]
struct Clock {
    now: f64,
    /// Asynchronous messages in the order in which they were issued.
    messages: Vec<Message>,
    /// Number of completed messages.
    completed: usize,
}

struct Message {
    wait: WaitPoint,
    row: usize,
    in_node: bool,
    end: f64,
}

impl Clock {
    /// Seconds of asynchronous messages, minus the waits for their ends.
    fn play(&mut self, step: &[TimedEvent]) -> Overlap {
        let before = self.messages.len() as i64;
        let mut overlap = Overlap::default();
        for event in step {
            match *event {
                TimedEvent::Compute(seconds) => self.now += seconds,
                TimedEvent::Send { wait, row, in_node, seconds } => {
                    self.send(wait, row, in_node, seconds);
                    overlap.add(wait, row, if wait == WaitPoint::Now { 0.0 } else { seconds });
                }
                TimedEvent::Finish(number) => {
                    let index = usize::try_from(before + number - 1).ok();
                    let Some(message) = index.and_then(|i| self.messages.get(i)) else { continue };
                    let waited = (message.end - self.now).max(0.0);
                    self.now += waited;
                    overlap.add(message.wait, message.row, -waited);
                }
            }
        }
        overlap
    }

    /// The message that is waited for first has the link first; the others end later by as much.
    fn send(&mut self, wait: WaitPoint, row: usize, in_node: bool, seconds: f64) {
        let after = |other: &&Message| match wait {
            WaitPoint::Now => false,
            WaitPoint::Soon | WaitPoint::Message => other.wait == wait,
            WaitPoint::Queued => other.wait == WaitPoint::Queued || other.in_node == in_node,
        };
        let completed = self.messages[self.completed..]
            .iter()
            .take_while(|message| message.end <= self.now);
        self.completed += completed.count();
        let earlier = self.messages[self.completed..].iter().filter(after);
        let start = earlier.fold(self.now, |start, other| start.max(other.end));
        let later = |other: &&mut Message| {
            other.in_node == in_node && other.end > start && !after(&&**other)
        };
        self.messages[self.completed..]
            .iter_mut()
            .filter(later)
            .for_each(|other| other.end += seconds);
        let end = start + seconds;
        match wait {
            WaitPoint::Now => self.now = end,
            WaitPoint::Soon | WaitPoint::Queued | WaitPoint::Message => {
                self.messages.push(Message { wait, row, in_node, end });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TimedEvent::{Compute, Finish};

    /// Tensor-parallel ranks are on one node here, replicas are not.
    fn send(group: &str, wait: WaitPoint, seconds: f64) -> TimedEvent {
        let row = TRAFFIC
            .iter()
            .position(|(name, _)| *name == group)
            .expect("a row");
        TimedEvent::Send { wait, row, in_node: group == "tensor", seconds }
    }

    fn check(step: &[TimedEvent], seconds: f64) {
        assert_eq!(overlap(step).all, seconds, "{step:?}");
    }

    /// The smaller of the message and of what is computed beside it, and no more.
    #[test]
    fn a_message_hides_behind_what_is_computed_between_its_begin_and_its_end() {
        let step = |message| {
            let sum = send("data", WaitPoint::Queued, message);
            [Compute(5.0), sum, Compute(3.0), Finish(1), Compute(7.0)]
        };
        check(&step(2.0), 2.0);
        check(&step(4.0), 3.0);
        check(&[Compute(5.0), send("data", WaitPoint::Now, 2.0), Compute(3.0)], 0.0);
        let at_once = send("data", WaitPoint::Queued, 2.0);
        check(&[Compute(5.0), at_once, Finish(1), Compute(7.0)], 0.0);
    }

    /// Sums of one queue after each other; a message of the other queue beside them on another link, and
    /// before them on the same.
    #[test]
    fn queues_keep_their_order_and_share_a_link() {
        let sum = || send("data", WaitPoint::Queued, 4.0);
        let end = Finish;
        check(&[sum(), sum(), Compute(6.0), end(1), end(2)], 6.0);
        let beside = |group| {
            let ahead = send(group, WaitPoint::Soon, 2.0);
            [sum(), Compute(1.0), ahead, Compute(2.0), end(2), Compute(3.0), end(1)]
        };
        // Beside 6 s: 4 and 2 s on two links, and on one.
        check(&beside("tensor"), 6.0);
        check(&beside("data"), 6.0);
        // The sum on the shared link ends at 6 s, that on its own at 4.
        let waits = |group| {
            let ahead = send(group, WaitPoint::Soon, 2.0);
            [sum(), Compute(1.0), ahead, Compute(2.0), end(2), end(1)]
        };
        check(&waits("tensor"), 5.0);
        check(&waits("data"), 3.0);
        check(&[sum(), send("data", WaitPoint::Now, 2.0), Compute(3.0), end(1)], 3.0);
        check(&[sum(), send("tensor", WaitPoint::Now, 2.0), Compute(3.0), end(1)], 4.0);
    }

    /// Messages after each other, beside sums on another link, and before them on the same.
    #[test]
    fn messages_have_a_queue_of_their_own() {
        let message = || send("pipeline", WaitPoint::Message, 2.0);
        let step = [message(), message(), Compute(3.0), Finish(1), Finish(2)];
        assert_eq!(
            overlap(&step),
            Overlap { all: 3.0, messages: 3.0, rows: [0.0, 3.0, 0.0, 0.0, 0.0, 0.0] }
        );
        let sum = |group| send(group, WaitPoint::Queued, 4.0);
        let step = |group| [sum(group), message(), Compute(5.0), Finish(2), Finish(1)];
        let rows = |tensor, data| [tensor, 2.0, data, 0.0, 0.0, 0.0];
        let tensor = Overlap { all: 6.0, messages: 2.0, rows: rows(4.0, 0.0) };
        assert_eq!(overlap(&step("tensor")), tensor);
        let data = Overlap { all: 5.0, messages: 2.0, rows: rows(0.0, 3.0) };
        assert_eq!(overlap(&step("data")), data);
    }

    /// Weights gathered at a step's end are waited for in the next.
    #[test]
    fn what_is_begun_at_the_end_hides_in_the_next_step() {
        let gather = || send("data", WaitPoint::Queued, 4.0);
        check(&[Compute(3.0), Finish(0), Compute(9.0), gather()], 3.0);
        check(&[Compute(3.0), Finish(-1), Compute(9.0), Finish(0), gather(), gather()], 7.0);
    }
}
