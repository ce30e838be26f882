//! Detection of slow pairs of nodes. In each round every node has another partner, and all ranks of
//! all pairs exchange messages in both directions at once. If all ranks are on one node, ranks are
//! paired.

use super::bench_rank::BenchRank;
use super::outliers::{self, Findings, Pair};
use super::print;
use super::scratch::Scratch;
use anyhow::Result;
use base::DType;
use comm::{Group, Message};
use estimate::hardware::Hardware;
use estimate::measured::{PairSpeed, Slow};
use launch::GroupFactory;
use std::time::Instant;

/// Number of units from which only some pairs are measured, and the number of rounds then.
const ALL_PAIRS: usize = 32;
const FEWER_ROUNDS: usize = 12;

/// Number of retries of pairs that seem slow, which keep their best rate; and the approximate
/// number of rounds that this takes.
const RETRIES: usize = 2;
const SPARE_ROUNDS: usize = 4;

/// Bytes of the first messages, which determine the size of the next, and the maximum.
const TRIED: usize = 64 << 10;
const LARGEST: usize = 256 << 20;

/// End of this part in seconds since the start; and the minimum time of a round, even if it is
/// late.
const END: (f64, f64) = (53.0, 7.6);
const LEAST_SECONDS: f64 = 0.05;
const LEAST_RETRY_SECONDS: f64 = 0.4;

/// End of the retries, in seconds since the start.
const RETRY_END: (f64, f64) = (56.0, 8.2);

/// Multiple of END after which no more pairs are measured.
const HOPELESS: f64 = 3.0;

/// Node, or rank if there is only one node.
struct Unit {
    name: String,
    ranks: Vec<usize>,
}

/// Measurements, equal on every rank.
pub struct Pairs {
    units: Vec<String>,
    /// Either "nodes" or "ranks".
    pub units_are: &'static str,
    /// Ranks of a unit that took part.
    rails: usize,
    pairs: Vec<Pair>,
    found: Findings,
    rounds: (usize, usize),
}

pub fn measure(bench: &BenchRank, scratch: &Scratch, factory: &GroupFactory) -> Result<Pairs> {
    let (units, units_are) = units(bench);
    let rails = units.iter().map(|unit| unit.ranks.len()).min().unwrap_or(0);
    let names = units.iter().map(|unit| unit.name.clone()).collect();
    let mut measured = Pairs {
        units: names,
        units_are,
        rails,
        pairs: Vec::new(),
        found: Findings::default(),
        rounds: (0, 0),
    };
    if units.len() < 2 {
        return Ok(measured);
    }
    let field = Field::new(bench, scratch, factory, &units, rails);
    let rounds = rounds(units.len());
    measured.rounds.1 = rounds.len();
    let shared = units_are == "ranks" && bench.shares_processors();
    let usual = if shared { outliers::SHARED } else { outliers::LINKS };
    let tolerance = bench.options.tolerance.unwrap_or(usual);
    let find_slow = |pairs: &[Pair]| outliers::find_slow(units.len(), pairs, tolerance);
    let mut clock = bench.rank.on_first(|| Ok(bench.seconds()))?;
    let mut meet = |measured: &mut Pairs, round: &[(usize, usize)], left: usize, least: f64| {
        let seconds = (bench.allow(END.0, END.1) - clock) / left as f64;
        let (rates, now) = field.round(round, seconds.max(least))?;
        clock = now;
        rates
            .into_iter()
            .for_each(|rate| keep_best(&mut measured.pairs, rate));
        anyhow::Ok(now)
    };
    for (number, round) in rounds.iter().enumerate() {
        bench.phase(&format!("pairing {units_are}: round {} of {}", number + 1, rounds.len()));
        measured.rounds.0 += 1;
        let now = meet(&mut measured, round, rounds.len() - number + SPARE_ROUNDS, LEAST_SECONDS)?;
        if now > HOPELESS * bench.allow(END.0, END.1) {
            break;
        }
    }
    'retries: for _ in 0..RETRIES {
        measured.found = find_slow(&measured.pairs);
        bench.phase("pairing slow ones again");
        for round in plan_retries(&measured.found, &measured.pairs) {
            let now = meet(&mut measured, &round, SPARE_ROUNDS, LEAST_RETRY_SECONDS)?;
            if now > bench.allow(RETRY_END.0, RETRY_END.1) {
                break 'retries;
            }
        }
    }
    measured.found = find_slow(&measured.pairs);
    Ok(measured)
}

/// Nodes in the order of their first ranks; or ranks.
fn units(bench: &BenchRank) -> (Vec<Unit>, &'static str) {
    let mut nodes: Vec<Unit> = Vec::new();
    for (rank, node) in bench.nodes.iter().enumerate() {
        match nodes.iter_mut().find(|unit| unit.name == *node) {
            Some(unit) => unit.ranks.push(rank),
            None => nodes.push(Unit { name: node.clone(), ranks: vec![rank] }),
        }
    }
    if nodes.len() > 1 {
        return (nodes, "nodes");
    }
    (
        (0..bench.nodes.len())
            .map(|rank| Unit { name: format!("rank {rank}"), ranks: vec![rank] })
            .collect(),
        "ranks",
    )
}

/// Partners in each round: every pair once for up to 32 units, otherwise 12 rounds of them.
/// Exclusive or for powers of two; otherwise the circle method, in which one of an odd number
/// rests.
fn rounds(units: usize) -> Vec<Vec<(usize, usize)>> {
    let even = units.next_multiple_of(2);
    let meet = |round: usize| -> Vec<(usize, usize)> {
        let pairs: Vec<(usize, usize)> = if units.is_power_of_two() {
            (0..units).map(|unit| (unit, unit ^ (round + 1))).collect()
        } else {
            (0..even / 2)
                .map(|seat| match seat {
                    0 => (even - 1, round),
                    _ => ((round + seat) % (even - 1), (round + even - 1 - seat) % (even - 1)),
                })
                .collect()
        };
        let ordered = pairs.into_iter().map(|(a, b)| (a.min(b), a.max(b)));
        let mut round: Vec<_> = ordered.filter(|(_, b)| *b < units).collect();
        round.sort_unstable();
        round.dedup();
        round
    };
    let all = even - 1;
    if units <= ALL_PAIRS {
        (0..all).map(meet).collect()
    } else {
        (0..FEWER_ROUNDS)
            .map(|i| meet(i * all / FEWER_ROUNDS))
            .collect()
    }
}

/// Rounds for retries: slow links, and slow units with their best partners. Each unit appears at
/// most once per round.
fn plan_retries(found: &Findings, pairs: &[Pair]) -> Vec<Vec<(usize, usize)>> {
    let mut due: Vec<(usize, usize)> = found.links.iter().map(|pair| (pair.a, pair.b)).collect();
    for (unit, best) in &found.units {
        due.extend(
            pairs
                .iter()
                .find(|pair| (pair.a == *unit || pair.b == *unit) && pair.rate == *best)
                .map(|pair| (pair.a, pair.b)),
        );
    }
    let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
    for pair in due {
        match rounds.iter_mut().find(|round| {
            round
                .iter()
                .all(|(a, b)| ![pair.0, pair.1].iter().any(|unit| unit == a || unit == b))
        }) {
            Some(round) => round.push(pair),
            None => rounds.push(vec![pair]),
        }
    }
    rounds
}

/// Adds a pair's rate, or keeps the better one.
fn keep_best(pairs: &mut Vec<Pair>, new: Pair) {
    match pairs
        .iter_mut()
        .find(|old| (old.a, old.b) == (new.a, new.b))
    {
        Some(old) => old.rate = old.rate.max(new.rate),
        None => pairs.push(new),
    }
}

/// State of a rank in the tournament.
struct Field<'a> {
    bench: &'a BenchRank<'a>,
    scratch: &'a Scratch,
    units: &'a [Unit],
    rails: usize,
    /// Group of the ranks with this rank's number in each unit; None for a rank without
    /// counterparts.
    rail: Option<Box<dyn Group>>,
}

impl<'a> Field<'a> {
    fn new(
        bench: &'a BenchRank<'a>,
        scratch: &'a Scratch,
        factory: &GroupFactory,
        units: &'a [Unit],
        rails: usize,
    ) -> Field<'a> {
        let me = bench.rank.number();
        let mine = (0..rails).find(|rail| units.iter().any(|unit| unit.ranks[*rail] == me));
        let rail = mine.map(|rail| {
            let ranks: Vec<usize> = units.iter().map(|unit| unit.ranks[rail]).collect();
            factory.group(&format!("bench rail {rail}"), &ranks)
        });
        Field { bench, scratch, units, rails, rail }
    }

    /// Rates in GB/s of the pairs of a round, which takes about `seconds`; and rank 0's clock at
    /// its end.
    fn round(&self, round: &[(usize, usize)], seconds: f64) -> Result<(Vec<Pair>, f64)> {
        let mut best: Vec<Pair> = round
            .iter()
            .map(|(a, b)| Pair { a: *a, b: *b, rate: 0.0 })
            .collect();
        let mut plans = vec![MessagePlan { bytes: TRIED, repeats: 1 }; round.len()];
        let mut clock = 0.0;
        for _ in 0..MessagePlan::TRIES {
            let mine = (self.exchange(round, &plans)?, self.bench.seconds());
            let took = self.bench.rank.all_gather(&mine)?;
            clock = took[0].1;
            for ((pair, plan), at) in best.iter_mut().zip(&mut plans).zip(0..) {
                let (a, b) = round[at];
                let slower = |rail: usize| {
                    let [one, other] = [a, b].map(|unit| took[self.units[unit].ranks[rail]].0);
                    one.max(other)
                };
                if plan.repeats > 0 {
                    let rate = |rail| plan.bytes as f64 / slower(rail) / 1e9;
                    pair.rate = pair.rate.max((0..self.rails).map(rate).sum());
                    let slowest = (0..self.rails).map(slower).fold(0.0, f64::max);
                    *plan = plan.next(slowest, seconds, self.scratch.half().min(LARGEST));
                }
            }
        }
        Ok((best, clock))
    }

    /// Mean seconds of exchanges with this rank's partner; 0 for a rank that rests.
    fn exchange(&self, round: &[(usize, usize)], plans: &[MessagePlan]) -> Result<f64> {
        let Some(rail) = &self.rail else { return Ok(0.0) };
        let me = rail.rank();
        let Some(at) = round.iter().position(|(a, b)| *a == me || *b == me) else { return Ok(0.0) };
        let (a, b) = round[at];
        let peer = if a == me { b } else { a };
        let plan = plans[at];
        let be = self.bench.backend();
        self.scratch.with(|arena| {
            let [x, y] = [0; 2].map(|_| arena.matrix(1, plan.bytes / 4, DType::F32));
            let start = Instant::now();
            for _ in 0..plan.repeats {
                rail.exchange(&[Message::Send { to: peer, x }, Message::Recv { from: peer, x: y }]);
            }
            be.sync()?;
            Ok(start.elapsed().as_secs_f64() / plan.repeats.max(1) as f64)
        })
    }
}

/// Next messages of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MessagePlan {
    bytes: usize,
    /// Number of exchanges; 0 when the pair is done.
    repeats: usize,
}

impl MessagePlan {
    /// Number of exchanges per round. Sizes grow from one to the next.
    const TRIES: usize = 4;

    /// Growth from one exchange to the next. Larger steps are harder to predict.
    const GROWTH: usize = 16;

    /// Plan after messages that took `took`, in a round of `seconds`: as large as a sixth of it
    /// permits, in powers of 4 up to `largest`.
    fn next(self, took: f64, seconds: f64, largest: usize) -> MessagePlan {
        let largest = largest.min(self.bytes * MessagePlan::GROWTH);
        let mut bytes = self.bytes;
        let mut each = took;
        while bytes * 4 <= largest && each * 4.0 <= seconds / 6.0 {
            (bytes, each) = (bytes * 4, each * 4.0);
        }
        MessagePlan { bytes, repeats: (seconds / 4.0 / each).min(3.0) as usize }
    }
}

impl Pairs {
    pub fn rows(&self) -> Vec<PairSpeed> {
        let name = |unit: usize| self.units[unit].clone();
        self.pairs
            .iter()
            .map(|pair| PairSpeed { a: name(pair.a), b: name(pair.b), gb_s: pair.rate })
            .collect()
    }

    /// Slow units and links, and a network that is slow as a whole.
    pub fn slow(&self, hardware: Option<&Hardware>) -> Vec<Slow> {
        let sheet = hardware.map(|hw| match self.units_are {
            "nodes" => hw.network_gb_s * self.rails.min(hw.per_node) as f64 / hw.per_node as f64,
            _ => hw.bus_gb_s,
        });
        print::slow_pairs(&self.units, self.units_are, &self.found, sheet)
    }

    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.found.undecided {
            notes.push(format!(
                "with two {} the slow one cannot be identified: compare with usual figures",
                self.units_are
            ));
        }
        if self.rounds.0 < self.rounds.1 {
            let (done, all) = self.rounds;
            notes.push(format!("there was time for {done} of {all} rounds of pairs"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everyone_meets_everyone_once_and_nobody_twice_in_a_round() {
        for units in 2..=ALL_PAIRS {
            let rounds = rounds(units);
            assert_eq!(rounds.len(), units.next_multiple_of(2) - 1, "{units} units");
            let mut met = BTreeSet::new();
            for round in &rounds {
                let mut there = BTreeSet::new();
                for (a, b) in round {
                    assert!(a < b && *b < units, "{units} units: {a} meets {b}");
                    assert!(there.insert(*a) && there.insert(*b), "{units} units: {round:?}");
                    assert!(met.insert((*a, *b)), "{units} units: {a} meets {b} twice");
                }
                assert!(there.len() + 1 >= units);
            }
            assert_eq!(met.len(), units * (units - 1) / 2);
        }
    }

    #[test]
    fn above_32_units_each_has_twelve_different_partners() {
        for units in [33, 50, 64, 100, 512] {
            let rounds = rounds(units);
            assert_eq!(rounds.len(), FEWER_ROUNDS);
            for unit in 0..units {
                let partners: BTreeSet<usize> = rounds
                    .iter()
                    .filter_map(|round| {
                        round
                            .iter()
                            .find(|(a, b)| *a == unit || *b == unit)
                            .map(|(a, b)| a + b - unit)
                    })
                    .collect();
                assert!(partners.len() >= FEWER_ROUNDS - 1, "{units} units: {partners:?}");
            }
        }
    }

    #[test]
    fn messages_grow_as_far_as_the_time_of_a_round_allows() {
        let first = MessagePlan { bytes: TRIED, repeats: 1 };
        assert_eq!(first.next(1e-4, 0.1, LARGEST), MessagePlan { bytes: 16 * TRIED, repeats: 3 });
        assert_eq!(first.next(2e-3, 0.1, LARGEST), MessagePlan { bytes: 4 * TRIED, repeats: 3 });
        assert_eq!(first.next(1e-6, 10.0, 4 * TRIED), MessagePlan { bytes: 4 * TRIED, repeats: 3 });
        assert_eq!(first.next(1e-6, 10.0, TRIED), MessagePlan { bytes: TRIED, repeats: 3 });
        assert_eq!(first.next(0.03, 0.2, LARGEST), MessagePlan { bytes: TRIED, repeats: 1 });
        assert_eq!(first.next(0.03, 0.1, LARGEST), MessagePlan { bytes: TRIED, repeats: 0 });
    }

    #[test]
    fn slow_links_and_the_best_pairs_of_slow_units_meet_again() {
        let pair = |a, b, rate| Pair { a, b, rate };
        let found = Findings {
            units: vec![(0, 2.0)],
            links: vec![pair(1, 2, 1.0), pair(3, 4, 1.0)],
            ..Findings::default()
        };
        let pairs = [pair(0, 1, 1.0), pair(0, 3, 2.0), pair(1, 2, 1.0), pair(3, 4, 1.0)];
        assert_eq!(plan_retries(&found, &pairs), [vec![(1, 2), (3, 4)], vec![(0, 3)]]);
        assert!(plan_retries(&Findings::default(), &pairs).is_empty());
        let mut kept = pairs.to_vec();
        keep_best(&mut kept, pair(0, 1, 0.5));
        keep_best(&mut kept, pair(0, 3, 3.0));
        keep_best(&mut kept, pair(0, 4, 4.0));
        let rates: Vec<f64> = kept.iter().map(|pair| pair.rate).collect();
        assert_eq!(rates, [1.0, 3.0, 1.0, 1.0, 4.0]);
    }
}
