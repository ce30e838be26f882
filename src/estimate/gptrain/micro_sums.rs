//! Price of ZeRO 2 and 3: messages between replicas in every micro-batch. The seconds of them that
//! computation does not hide, the size of a micro-batch from which it would hide all, and whether ZeRO 2
//! saves memory for it.

use super::dry_run;
use super::stage_times::StageTimes;
use crate::setup::Setup;
use base::{Count, Seconds};
use manifest::{Manifest, Topology};

/// Share of a step in messages that are not hidden, above which they are described.
const SEEN: f64 = 0.01;

/// Describes messages that are not hidden, and a ZeRO 2 that saves nothing. `stages` are those of the plan.
pub fn describe(m: &Manifest, s: &Setup, stages: &[dry_run::Stage]) -> Vec<String> {
    if s.topology.zero < 2 || s.topology.data == 1 {
        return Vec::new();
    }
    let saves_nothing = describe_no_saving(m).filter(|_| s.topology.zero == 2);
    describe_exposed(s, stages)
        .into_iter()
        .chain(saves_nothing)
        .collect()
}

/// A rank sums up gradients in two windows of a block's size, which may be as large as all of them.
fn describe_no_saving(m: &Manifest) -> Option<String> {
    let topology = Topology { zero: 1, ..m.topology.clone() };
    let [one, two] = [&Manifest { topology, ..m.clone() }, m].map(dry_run::memory);
    (one <= two).then(|| {
        format!(
            "\nZeRO 2 saves no memory here, because it sums gradients in two windows of a block's size:\n  \
             {two} a rank, and {one} with topology.zero=1, which sends once a step"
        )
    })
}

/// Messages of the stage that waits longest for them. None if computation hides them, or they hardly
/// matter.
fn describe_exposed(s: &Setup, stages: &[dry_run::Stage]) -> Option<String> {
    let times = StageTimes::new(stages, s);
    let of_stages = times.replica_messages();
    let (sent, hidden) = of_stages.max_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1)))?;
    let micros = s.micros() as f64;
    if micros * (sent - hidden) < SEEN * times.seconds(s.micros()) {
        return None;
    }
    let gathers = if s.topology.zero == 3 { " and gathers weights" } else { "" };
    let enough = if hidden > 0.0 { enough_tokens(s, sent / hidden) } else { String::new() };
    Some(format!(
        "\nZeRO {} sums gradients{gathers} between replicas in every micro-batch: {} of a step,\n  \
         of which computation hides {}{enough}",
        s.topology.zero,
        Seconds(micros * sent),
        Seconds(micros * hidden),
    ))
}

/// Messages take as long for a micro-batch of any size, and computation grows with it.
fn enough_tokens(s: &Setup, times: f64) -> String {
    let micro = (times * s.micro as f64).ceil() as usize;
    let tokens = |micro: usize| Count((micro * s.model.seq_len) as u64);
    let samples = s.global / s.topology.data;
    let divisor = (micro..=samples).find(|micro| samples.is_multiple_of(*micro));
    let setting = divisor.map_or(String::new(), |micro| format!(", batch.micro={micro}"));
    format!(
        "; all from {} tokens a micro-batch on (here {}{setting})",
        tokens(micro),
        tokens(s.micro)
    )
}
