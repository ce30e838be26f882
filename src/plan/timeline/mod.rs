//! Simulated execution time of a schedule, including waits for messages. The estimator's search
//! ranks schedules by it, `draw` prints it, and it detects deadlocks.

use super::schedule::{Action, Pass, PipelineRank, Side, leading_exchange};
use std::fmt;

/// Durations of the ranks' actions, in seconds or any other unit.
#[derive(Clone, Debug)]
pub struct Costs {
    /// One micro-batch in each virtual stage.
    pub forward: Vec<f64>,
    pub backward: Vec<f64>,
    /// One group of exchanged messages, after all its ranks have posted their sides; or one
    /// asynchronous message.
    pub message: f64,
}

/// Start and end of a forward or a backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub forward: bool,
    pub pass: Pass,
    pub start: f64,
    pub end: f64,
}

/// Computations of each rank, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    pub ranks: Vec<Vec<Interval>>,
}

impl Timeline {
    /// Time at which the last rank finishes.
    pub fn end(&self) -> f64 {
        let ends = self.ranks.iter().filter_map(|intervals| intervals.last());
        ends.map(|interval| interval.end).fold(0.0, f64::max)
    }

    /// Fraction of all ranks' time without computation.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self
            .ranks
            .iter()
            .flatten()
            .map(|interval| interval.end - interval.start)
            .sum();
        1.0 - busy / (self.end() * self.ranks.len() as f64)
    }
}

/// Error of a schedule that cannot finish: ranks wait for messages that are never sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlock {
    /// Each unfinished rank, and the messages that it waits for.
    pub waiting: Vec<(usize, Vec<Action>)>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self
            .waiting
            .iter()
            .map(|(rank, at)| format!("rank {rank} waits for {at:?}"));
        f.write_str(&ranks.collect::<Vec<_>>().join("; "))
    }
}

/// Simulates the orders of a pipeline's ranks, from `schedule::with_messages` or
/// `with_async_messages`. Semantics are those of NCCL. Exchanged messages end when every peer has
/// posted its side. An asynchronous message moves once both ranks have started it, after earlier
/// ones of its kind and direction. The nth message that a rank sends to another is the nth that the
/// other receives; for asynchronous ones, the nth of its kind.
///
/// # Panics
/// If those two are not the same message, because the wrong data would arrive.
pub fn simulate(orders: &[Vec<Action>], costs: &Costs) -> Result<Timeline, Deadlock> {
    let mut simulation = Simulation::new(orders, costs);
    let ranks = orders.len();
    // A rank that advances can unblock only its neighbours.
    let mut awake: Vec<usize> = (0..ranks).rev().collect();
    let mut is_awake = vec![true; ranks];
    while let Some(rank) = awake.pop() {
        is_awake[rank] = false;
        if simulation.advance(rank) {
            for near in [(rank + 1) % ranks, (rank + ranks - 1) % ranks] {
                if !std::mem::replace(&mut is_awake[near], true) {
                    awake.push(near);
                }
            }
        }
    }
    simulation.finish()
}

/// Side of a message (whether it is an activation, the previous virtual stage, the micro-batch),
/// and the time at which it was posted.
type Posted = ((bool, usize, usize), f64);

/// Messages from one rank to another in order, as sent and as received. `ends` has the end times of
/// asynchronous ones.
#[derive(Clone, Default)]
struct Channel {
    sent: Vec<Posted>,
    received: Vec<Posted>,
    ends: Vec<f64>,
}

impl Channel {
    /// End of an asynchronous message; None until both sides have started it.
    fn end(&mut self, number: usize, cost: f64) -> Option<f64> {
        while self.ends.len() <= number {
            let sent = self.sent.get(self.ends.len())?;
            let received = self.received.get(self.ends.len())?;
            let previous = self.ends.last().copied().unwrap_or(0.0);
            self.ends.push(previous.max(sent.1).max(received.1) + cost);
        }
        Some(self.ends[number])
    }
}

struct Simulation<'a> {
    orders: &'a [Vec<Action>],
    costs: &'a Costs,
    /// Index of the next action, and clock, of each rank.
    at: Vec<(usize, f64)>,
    /// Messages that each rank waits for: channel and index.
    posted: Vec<Vec<(usize, usize)>>,
    /// Asynchronous messages not yet awaited: side, channel and index.
    pending: Vec<Vec<(Side, (usize, usize))>>,
    /// Indexed by `Simulation::channel`.
    channels: Vec<Channel>,
    intervals: Vec<Vec<Interval>>,
}

impl<'a> Simulation<'a> {
    fn new(orders: &'a [Vec<Action>], costs: &'a Costs) -> Simulation<'a> {
        let intervals = |order: &Vec<Action>| Vec::with_capacity(order.len() / 2 + 1);
        Simulation {
            orders,
            costs,
            at: vec![(0, 0.0); orders.len()],
            posted: vec![Vec::new(); orders.len()],
            pending: vec![Vec::new(); orders.len()],
            channels: vec![Channel::default(); 4 * orders.len()],
            intervals: orders.iter().map(intervals).collect(),
        }
    }

    /// Advances a rank until it waits for messages. Returns whether it did anything.
    fn advance(&mut self, rank: usize) -> bool {
        let mut moved = false;
        while let Some(action) = self.orders[rank].get(self.at[rank].0) {
            let (next, clock) = self.at[rank];
            let stage = action.pass().chunk * self.orders.len() + rank;
            let after = match *action {
                Action::Forward(pass) => self.compute(rank, true, pass, self.costs.forward[stage]),
                Action::Backward(pass) => {
                    self.compute(rank, false, pass, self.costs.backward[stage])
                }
                Action::Loss(_) => (next + 1, clock),
                Action::Exchange(..) => {
                    let group = leading_exchange(&self.orders[rank][next..]);
                    if self.posted[rank].is_empty() {
                        self.post(rank, group, clock);
                        moved = true;
                    }
                    let Some(posted) = self.last_post(rank) else { return moved };
                    self.posted[rank].clear();
                    (next + group.len(), posted + self.costs.message)
                }
                Action::Begin(side, pass) => {
                    let number = self.post_one(rank, side, pass, true, clock);
                    self.pending[rank].push((side, number));
                    (next + 1, clock)
                }
                Action::Await(side, _) => {
                    let index = self.pending[rank]
                        .iter()
                        .position(|(other, _)| *other == side)
                        .expect("a message is begun before it is awaited");
                    let (channel, number) = self.pending[rank][index].1;
                    let end = self.channels[channel].end(number, self.costs.message);
                    let Some(end) = end else { return moved };
                    self.pending[rank].remove(index);
                    (next + 1, clock.max(end))
                }
            };
            (self.at[rank], moved) = (after, true);
        }
        moved
    }

    fn compute(&mut self, rank: usize, forward: bool, pass: Pass, cost: f64) -> (usize, f64) {
        let (next, start) = self.at[rank];
        self.intervals[rank].push(Interval { forward, pass, start, end: start + cost });
        (next + 1, start + cost)
    }

    fn post(&mut self, rank: usize, group: &[Action], clock: f64) {
        for action in group {
            if let Action::Exchange(side, pass) = *action {
                let number = self.post_one(rank, side, pass, false, clock);
                self.posted[rank].push(number);
            }
        }
    }

    /// Posts one side of a message. Returns its channel and its index in that channel.
    fn post_one(
        &mut self,
        rank: usize,
        side: Side,
        pass: Pass,
        asynchronous: bool,
        clock: f64,
    ) -> (usize, usize) {
        let ranks = self.orders.len();
        let stage = pass.chunk * ranks + rank;
        let sender = if matches!(side, Side::RecvX | Side::SendDx) { stage - 1 } else { stage };
        let what = (side.forward(), sender, pass.micro);
        let channel = self.channel(rank, side, asynchronous);
        let Channel { sent, received, .. } = &mut self.channels[channel];
        let (mine, other) = if side.sends() { (sent, received) } else { (received, sent) };
        let number = mine.len();
        if let Some((posted, _)) = other.get(number) {
            assert_eq!(what, *posted, "message {number} between two ranks");
        }
        mine.push((what, clock));
        (channel, number)
    }

    /// Channel 2r leads from rank r to the next rank, channel 2r + 1 to the previous one. With two
    /// ranks these are the same channel, for messages of any kind. Asynchronous messages have
    /// further channels, one per kind and direction.
    fn channel(&self, rank: usize, side: Side, asynchronous: bool) -> usize {
        let ranks = self.orders.len();
        let pp = PipelineRank { rank, ranks, chunks: 1 };
        let from = if side.sends() { rank } else { side.peer(pp) };
        let apart = !side.forward() && (asynchronous || ranks > 2);
        2 * ranks * usize::from(asynchronous) + 2 * from + usize::from(apart)
    }

    /// Time at which the last peer posted its side of a rank's messages; None if one is missing.
    fn last_post(&self, rank: usize) -> Option<f64> {
        self.posted[rank]
            .iter()
            .try_fold(0.0f64, |latest, (channel, number)| {
                let Channel { sent, received, .. } = &self.channels[*channel];
                let sent = sent.get(*number)?;
                let received = received.get(*number)?;
                Some(latest.max(sent.1).max(received.1))
            })
    }

    fn finish(self) -> Result<Timeline, Deadlock> {
        let waiting: Vec<_> = self
            .at
            .iter()
            .enumerate()
            .filter_map(|(rank, (next, _))| {
                let left = &self.orders[rank][*next..];
                let messages = leading_exchange(left).len().max(1);
                (!left.is_empty()).then(|| (rank, left[..messages].to_vec()))
            })
            .collect();
        if !waiting.is_empty() {
            return Err(Deadlock { waiting });
        }
        Ok(Timeline { ranks: self.intervals })
    }
}

/// Draws the timeline as text, about `columns` wide: one row per rank, time to the right. A forward
/// is filled with the number of its micro-batch, a backward with the number in brackets. A letter
/// names the chunk if a rank has several.
pub fn draw(timeline: &Timeline, columns: usize) -> String {
    let scale = columns as f64 / timeline.end();
    let chunks = timeline
        .ranks
        .iter()
        .flatten()
        .map(|interval| interval.pass.chunk + 1)
        .max();
    let mut text = String::new();
    for (rank, intervals) in timeline.ranks.iter().enumerate() {
        let mut row: Vec<char> = Vec::new();
        for interval in intervals {
            let [from, to] =
                [interval.start, interval.end].map(|time| (time * scale).round() as usize);
            row.resize(from, '·');
            let cell = cell(interval, chunks.unwrap_or(1) > 1);
            row.extend(cell.chars().chain(std::iter::repeat(' ')).take(to - from));
            if !interval.forward && to > from + 1 {
                row[to - 1] = ']';
            }
        }
        row.resize(columns, '·');
        text.push_str(&format!("{rank:>3} │{}│\n", row.into_iter().collect::<String>()));
    }
    text.push_str(&format!("bubble {:.1} %\n", 100.0 * timeline.bubble()));
    text
}

/// Text of an interval: "3", "3b", "[3b".
fn cell(interval: &Interval, chunked: bool) -> String {
    let chunk = if chunked { char::from(b'a' + (interval.pass.chunk % 26) as u8) } else { ' ' };
    let open = if interval.forward { "" } else { "[" };
    format!("{open}{}{chunk}", interval.pass.micro)
}

#[cfg(test)]
mod tests;
