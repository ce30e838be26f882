//! Price of ZeRO 2 and 3: messages between replicas in every micro-batch. The seconds of them that
//! computation does not hide, the size of a micro-batch from which it would hide all, and whether the level
//! saves memory for it.

use super::dry_run;
use super::stage_times::StageTimes;
use crate::setup::Setup;
use base::{Count, Seconds};
use manifest::{Manifest, OffloadWhat, Schedule, Topology};

/// Share of a step in messages that are not hidden, above which they are described.
const SEEN: f64 = 0.01;

/// Describes messages that are not hidden, and a level that saves nothing. `stages` are those of the plan.
pub fn describe(m: &Manifest, s: &Setup, stages: &[dry_run::Stage]) -> Vec<String> {
    let Topology { zero, data, pipeline, .. } = s.topology;
    if zero < 2 || data == 1 {
        return Vec::new();
    }
    let may_save_nothing = zero == 2 || pipeline > 1;
    let saves_nothing = may_save_nothing
        .then(|| describe_no_saving(m, stages))
        .flatten();
    describe_exposed(s, stages)
        .into_iter()
        .chain(saves_nothing)
        .collect()
}

/// A rank sums up gradients in windows, and in a pipeline gathers weights into others, which may be as large
/// as all that the level shards.
fn describe_no_saving(m: &Manifest, stages: &[dry_run::Stage]) -> Option<String> {
    let level = m.topology.zero;
    let topology = Topology { zero: level - 1, ..m.topology.clone() };
    let below = dry_run::memory(&Manifest { topology, ..m.clone() });
    let (_, ours) = dry_run::peak(stages);
    let why = match (level, m.topology.zero_every) {
        (2, 1) => "it sums gradients in two windows of a block's size",
        (2, _) => "it sums gradients in windows of a chunk's size",
        _ if m.topology.offload.what == OffloadWhat::Full => {
            "weights are on the host at every level"
        }
        _ => "it gathers weights into windows of two chunks' size",
    };
    let sends = match (level, m.topology.zero_every) {
        (2, 1) => ", which sends once a step",
        (2, _) => " and topology.zero_every=1, which sends once a step",
        _ => "",
    };
    (below <= ours).then(|| {
        format!(
            "\nZeRO {level} saves no memory here, because {why}:\n  {ours} a rank, and {below} with \
             topology.zero={}{sends}",
            level - 1
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
    let is_alone = s.topology.pipeline == 1;
    let gathers = if s.topology.zero == 3 && is_alone { " and gathers weights" } else { "" };
    let every = match s.topology.zero_every {
        1 => "in every micro-batch".to_string(),
        every => format!("every {every} micro-batches"),
    };
    let enough = if hidden > 0.0 { enough_tokens(s, sent / hidden) } else { String::new() };
    Some(format!(
        "\nZeRO {} sums gradients{gathers} between replicas {every}: {} of a step,\n  \
         of which computation hides {}{enough}{}",
        s.topology.zero,
        Seconds(micros * sent),
        Seconds(micros * hidden),
        longer_sums(s),
    ))
}

/// Breadth first, twice as many micro-batches may be summed at once. A sum still hides behind the last of
/// them only, because the next one needs its windows.
fn longer_sums(s: &Setup) -> String {
    let twice = 2 * s.topology.zero_every;
    if s.topology.schedule != Schedule::BreadthFirst || twice > s.micros() {
        return String::new();
    }
    format!(";\n  with topology.zero_every={twice} half of both")
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
