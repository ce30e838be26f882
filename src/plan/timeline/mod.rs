//! What a schedule costs in time: the ranks' own orders played through, with the waits between
//! them. It times what the estimator searches, is drawn for the reader, and finds deadlocks.

use super::schedule::{Action, Pass, leading_messages};
use std::fmt;

/// Seconds (or any other unit) of what ranks do.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Of each virtual stage, for one micro-batch.
    pub forward: Vec<f64>,
    pub backward: Vec<f64>,
    /// Of one group of messages, once all its ranks have posted their sides.
    pub message: f64,
}

/// A forward or a backward, from when to when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub forward: bool,
    pub pass: Pass,
    pub start: f64,
    pub end: f64,
}

/// What each rank did, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    pub ranks: Vec<Vec<Span>>,
}

impl Timeline {
    /// When the last rank has finished.
    pub fn end(&self) -> f64 {
        let ends = self.ranks.iter().filter_map(|spans| spans.last());
        ends.map(|span| span.end).fold(0.0, f64::max)
    }

    /// The share of all ranks' time in which they compute nothing.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.ranks.iter().flatten().map(|span| span.end - span.start).sum();
        1.0 - busy / (self.end() * self.ranks.len() as f64)
    }
}

/// Ranks that wait for each other for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlock {
    /// Each rank that has not finished, and the messages it waits at.
    pub waiting: Vec<(usize, Vec<Action>)>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.waiting.iter().map(|(rank, at)| format!("rank {rank} waits at {at:?}"));
        f.write_str(&ranks.collect::<Vec<_>>().join("; "))
    }
}

/// Plays the orders of a pipeline's ranks, `schedule::with_messages` of each. A group of messages is
/// over when every peer has posted its side, as NCCL has it; the nth message of one rank to another
/// is the nth that the other receives from it.
///
/// # Panics
/// Where those two are not the same message: the wrong data would arrive.
pub fn simulate(orders: &[Vec<Action>], costs: &Costs) -> Result<Timeline, Deadlock> {
    let mut play = Play::new(orders, costs);
    let ranks = orders.len();
    // A rank that gets on may free its two neighbours, nobody else.
    let mut awake: Vec<usize> = (0..ranks).rev().collect();
    let mut is_awake = vec![true; ranks];
    while let Some(rank) = awake.pop() {
        is_awake[rank] = false;
        if play.advance(rank) {
            for near in [(rank + 1) % ranks, (rank + ranks - 1) % ranks] {
                if !std::mem::replace(&mut is_awake[near], true) {
                    awake.push(near);
                }
            }
        }
    }
    play.finish()
}

/// One side of a message: whether it is an activation, the virtual stage before it, the micro-batch;
/// and when it was posted.
type Posted = ((bool, usize, usize), f64);

/// The messages from one rank to another, in order: as sent and as received.
#[derive(Clone, Default)]
struct Lane {
    sent: Vec<Posted>,
    received: Vec<Posted>,
}

struct Play<'a> {
    orders: &'a [Vec<Action>],
    costs: &'a Costs,
    /// Of each rank: the next action and the clock.
    at: Vec<(usize, f64)>,
    /// The messages each rank waits for: lane and number.
    posted: Vec<Vec<(usize, usize)>>,
    /// Lane 2r goes from rank r to the one after it, lane 2r + 1 to the one before.
    lanes: Vec<Lane>,
    spans: Vec<Vec<Span>>,
}

impl<'a> Play<'a> {
    fn new(orders: &'a [Vec<Action>], costs: &'a Costs) -> Play<'a> {
        let room = |order: &Vec<Action>| Vec::with_capacity(order.len() / 2 + 1);
        Play {
            orders,
            costs,
            at: vec![(0, 0.0); orders.len()],
            posted: vec![Vec::new(); orders.len()],
            lanes: vec![Lane::default(); 2 * orders.len()],
            spans: orders.iter().map(room).collect(),
        }
    }

    /// Goes on with a rank until it has to wait; whether it posted or got anything.
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
                _ => {
                    let group = leading_messages(&self.orders[rank][next..]);
                    if self.posted[rank].is_empty() {
                        self.post(rank, group, clock);
                        moved = true;
                    }
                    let Some(over) = self.over(rank) else { return moved };
                    self.posted[rank].clear();
                    (next + group.len(), over + self.costs.message)
                }
            };
            (self.at[rank], moved) = (after, true);
        }
        moved
    }

    fn compute(&mut self, rank: usize, forward: bool, pass: Pass, cost: f64) -> (usize, f64) {
        let (next, start) = self.at[rank];
        self.spans[rank].push(Span { forward, pass, start, end: start + cost });
        (next + 1, start + cost)
    }

    fn post(&mut self, rank: usize, group: &[Action], clock: f64) {
        let ranks = self.orders.len();
        let (before, after) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
        // Between two ranks there is one lane each way, whatever it carries.
        let back = usize::from(ranks > 2);
        for action in group {
            let Pass { micro, chunk, .. } = action.pass();
            let stage = chunk * ranks + rank;
            let (lane, sends, what) = match action {
                Action::SendY(_) => (2 * rank, true, (true, stage, micro)),
                Action::RecvX(_) => (2 * before, false, (true, stage - 1, micro)),
                Action::SendDx(_) => (2 * rank + back, true, (false, stage - 1, micro)),
                _ => (2 * after + back, false, (false, stage, micro)),
            };
            let Lane { sent, received } = &mut self.lanes[lane];
            let (side, other) = if sends { (sent, received) } else { (received, sent) };
            let number = side.len();
            if let Some((there, _)) = other.get(number) {
                assert_eq!(what, *there, "message {number} between two ranks");
            }
            side.push((what, clock));
            self.posted[rank].push((lane, number));
        }
    }

    /// When the last peer posted its side of a rank's messages, if all have.
    fn over(&self, rank: usize) -> Option<f64> {
        self.posted[rank].iter().try_fold(0.0f64, |latest, (lane, number)| {
            let Lane { sent, received } = &self.lanes[*lane];
            let (sent, received) = (sent.get(*number)?, received.get(*number)?);
            Some(latest.max(sent.1).max(received.1))
        })
    }

    fn finish(self) -> Result<Timeline, Deadlock> {
        let left = |(rank, (next, _)): (usize, &(usize, f64))| {
            let left = &self.orders[rank][*next..];
            (!left.is_empty()).then(|| (rank, leading_messages(left).to_vec()))
        };
        let waiting: Vec<_> = self.at.iter().enumerate().filter_map(left).collect();
        match waiting.is_empty() {
            true => Ok(Timeline { ranks: self.spans }),
            false => Err(Deadlock { waiting }),
        }
    }
}

/// A picture in text, about `columns` wide: a row a rank, time to the right. A forward is filled
/// with its micro-batch's number and a backward with it in brackets; the letter after it is the
/// chunk, where a rank has several.
pub fn draw(timeline: &Timeline, columns: usize) -> String {
    let scale = columns as f64 / timeline.end();
    let chunks = timeline.ranks.iter().flatten().map(|span| span.pass.chunk + 1).max();
    let mut text = String::new();
    for (rank, spans) in timeline.ranks.iter().enumerate() {
        let mut row: Vec<char> = Vec::new();
        for span in spans {
            let [from, to] = [span.start, span.end].map(|time| (time * scale).round() as usize);
            row.resize(from, '·');
            let cell = cell(span, chunks.unwrap_or(1) > 1);
            row.extend(cell.chars().chain(std::iter::repeat(' ')).take(to - from));
            if !span.forward && to > from + 1 {
                row[to - 1] = ']';
            }
        }
        row.resize(columns, '·');
        text.push_str(&format!("{rank:>3} │{}│\n", row.into_iter().collect::<String>()));
    }
    text.push_str(&format!("bubble {:.1} %\n", 100.0 * timeline.bubble()));
    text
}

/// "3", "3b", "[3b".
fn cell(span: &Span, chunked: bool) -> String {
    let chunk = if chunked { char::from(b'a' + (span.pass.chunk % 26) as u8) } else { ' ' };
    let open = if span.forward { "" } else { "[" };
    format!("{open}{}{chunk}", span.pass.micro)
}

#[cfg(test)]
mod tests;
