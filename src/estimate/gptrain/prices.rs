//! Seconds of ops and messages on a setup's device and links.

use super::overlap::TimedEvent;
use crate::hardware::{CPU, Hardware, Link, Shares};
pub use crate::parts::TRAFFIC;
use crate::parts::{LEVELS, Part, PartSeconds};
use crate::rings;
use crate::setup::Setup;
use comm::Op;
use comm::dry::{Event, Sent, Volume};
use device::{Tally, Work};
use plan::grid::{GRADIENT_AXES, SHARES, STAGES};

/// Rows of replicas in `TRAFFIC`: all of them, those of a shard group, and the copies.
const DATA: usize = 2;
const SHARD: usize = LEVELS;
const COPIES: usize = LEVELS + 1;
pub const REPLICAS: [usize; 3] = [DATA, SHARD, COPIES];

/// Purpose of their messages.
pub const REPLICA_MESSAGES: &str = "data parallel";

/// Seconds of the hops of a ring of replicas over nodes, for each gather or scatter and for each sum. 0
/// within a node, where they are short beside the bytes.
#[derive(Clone, Copy, Default)]
struct Hops {
    gather: f64,
    sum: f64,
}

impl Hops {
    fn new(s: &Setup, members: &[usize]) -> Hops {
        let joined = count_joined(s, members);
        // A CPU's latency is measured for a whole collective.
        if joined == members.len() || s.hardware.name == CPU {
            return Hops::default();
        }
        Hops {
            gather: rings::gather_latency(members.len(), joined),
            sum: rings::sum_latency(members.len(), joined),
        }
    }

    fn seconds(self, op: Op) -> f64 {
        match op {
            Op::AllGather | Op::ReduceScatter => self.gather,
            Op::AllReduce => self.sum,
            Op::Send | Op::Recv => 0.0,
        }
    }
}

/// Speeds of a setup's device and links.
#[derive(Clone, Copy)]
pub struct Prices<'a> {
    hw: &'a Hardware,
    shares: Shares,
    /// By the rows of `TRAFFIC`: whether within a node, and how fast.
    links: [(bool, Link); TRAFFIC.len()],
    hops: [Hops; TRAFFIC.len()],
    /// Factors of each part's seconds, by `Part::ALL`.
    factors: PartSeconds,
}

impl<'a> Prices<'a> {
    pub fn new(s: &Setup) -> Prices<'a> {
        let hw = s.hardware;
        // Ranks that are threads of one processor have a part of it each.
        let ranks = if hw.is_local { s.ranks() as f64 } else { 1.0 };
        let grid = s.topology.grid();
        let [tensor, stages, replicas] =
            [SHARES, STAGES, GRADIENT_AXES].map(|axes| grid.group(grid.first(), axes));
        let levels = s.topology.levels(0);
        let shard = levels.shard_group(&replicas);
        let copies = levels.copy_group(&replicas);
        let groups = [tensor, stages.clone(), replicas, stages, shard, copies];
        let mut links = groups
            .each_ref()
            .map(|members| (count_joined(s, members) == members.len(), link(s, members)));
        let mut hops = [Hops::default(); TRAFFIC.len()];
        for row in REPLICAS {
            hops[row] = Hops::new(s, &groups[row]);
            links[row].1 = ring_link(s, &groups[row]);
        }
        Prices { hw, shares: hw.shares().divide_among(ranks), links, hops, factors: hw.parts }
    }

    /// Prices with links between replicas that are faster by this factor.
    pub fn with_sums(mut self, times: f64) -> Prices<'a> {
        for row in REPLICAS {
            self.links[row].1.gb_s *= times;
        }
        self
    }

    /// For the ops of `Section::Once`, which are the optimizer's.
    pub fn once(mut self) -> Prices<'a> {
        let optimizer = self.factors[Part::Optimizer as usize];
        for part in [Part::Products, Part::Attention, Part::Elements, Part::Head] {
            self.factors[part as usize] = optimizer;
        }
        self
    }

    fn op(&self, name: &str, work: &Work) -> f64 {
        let seconds = self.hw.seconds(name, work, self.shares);
        let factor = self.factors[Part::from_op(name) as usize];
        (seconds + work.calls * self.hw.launch_us * 1e-6) * self.hw.slowdown * factor
    }

    fn message(&self, row: usize, op: Op, sent: &Sent) -> f64 {
        let (_, link) = self.links[row];
        let latency = sent.calls * (link.latency_us * 1e-6 + self.hops[row].seconds(op));
        let seconds = latency + sent.bytes / (link.gb_s * 1e9);
        seconds * self.hw.slowdown * self.factors[Part::from_traffic(row) as usize]
    }

    /// Seconds of ops one after the other.
    pub fn ops(&self, ops: &Tally) -> f64 {
        ops.iter().map(|(name, work)| self.op(name, work)).sum()
    }

    /// Seconds of messages one after the other.
    pub fn messages(&self, messages: &Volume) -> f64 {
        messages
            .iter()
            .map(|((group, op), sent)| self.message(row(group), *op, sent))
            .sum()
    }

    /// Seconds of ops and messages one after the other, by purpose.
    pub fn by_purpose(&self, ops: &Tally, messages: &Volume) -> Vec<(&'static str, f64)> {
        let compute = |part: Part| {
            let ours = ops.iter().filter(|(name, _)| Part::from_op(name) == part);
            ours.map(|(name, work)| self.op(name, work)).sum::<f64>()
        };
        let sent = |rows: &[usize]| {
            let ours = messages
                .iter()
                .filter(|((group, _), _)| rows.contains(&row(group)));
            ours.map(|((group, op), sent)| self.message(row(group), *op, sent))
                .sum::<f64>()
        };
        vec![
            ("matrix products", compute(Part::Products)),
            ("attention", compute(Part::Attention)),
            ("element-wise", compute(Part::Elements)),
            ("head and loss", compute(Part::Head)),
            ("tensor parallel", sent(&[0])),
            ("pipeline sends", sent(&[1, 3])),
            (REPLICA_MESSAGES, sent(&REPLICAS)),
        ]
    }

    /// Whether messages overlap with ops; false on a CPU, whose cores send them.
    pub fn overlaps(&self) -> bool {
        self.hw.name != CPU
    }

    /// Event of a rank, with its seconds.
    pub fn time(&self, event: &Event) -> TimedEvent {
        match event {
            Event::Compute(ops) => TimedEvent::Compute(self.ops(ops)),
            Event::Send { group, op, sent, wait } => {
                let row = row(group);
                let (in_node, _) = self.links[row];
                let seconds = self.message(row, *op, sent);
                TimedEvent::Send { wait: *wait, row, in_node, seconds }
            }
            Event::Finish(number) => TimedEvent::Finish(*number),
        }
    }
}

fn row(group: &str) -> usize {
    TRAFFIC
        .iter()
        .position(|(_, groups)| groups.contains(&group))
        .expect("a group of TRAFFIC")
}

/// Number of a group's members that the fast links join to its first.
fn count_joined(s: &Setup, members: &[usize]) -> usize {
    let domain = |rank: &usize| rank / s.link_domain();
    members
        .iter()
        .filter(|rank| domain(rank) == domain(&members[0]))
        .count()
}

/// Number of groups that share a node's adapters, if `joined` members of each are in one link domain, whose
/// nodes' adapters they all use.
fn groups_of_node(s: &Setup, joined: usize) -> f64 {
    let domain = s.link_domain();
    domain.div_ceil(joined) as f64 * (s.per_node as f64 / domain as f64)
}

/// Link of a rank to the next of its replicas; with two levels, of the copies.
pub fn replica_link(s: &Setup) -> Link {
    let grid = s.topology.grid();
    let replicas = grid.group(grid.first(), GRADIENT_AXES);
    if s.topology.has_two_levels() {
        return ring_link(s, &s.topology.levels(0).copy_group(&replicas));
    }
    ring_link(s, &replicas)
}

/// Link of a rank to the next in a ring of replicas.
fn ring_link(s: &Setup, members: &[usize]) -> Link {
    let joined = count_joined(s, members);
    if joined == members.len() {
        return link(s, members);
    }
    let nodes = members.len().div_ceil(joined);
    s.hardware.ring_link(groups_of_node(s, joined), nodes)
}

/// Link of a rank to the next of its group. The members of a group on one node are in one ring, which
/// leaves the node once: they share their part of its adapters.
pub fn link(s: &Setup, members: &[usize]) -> Link {
    let joined = count_joined(s, members);
    s.hardware
        .link(joined == members.len(), groups_of_node(s, joined))
}
