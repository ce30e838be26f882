//! Order of a rank's actions in the next step.

use super::groups::{actions, messages_overlap};
use manifest::Topology;
use plan::schedule::{Action, PipelineRank};
use std::cell::{Ref, RefCell};

/// Steps whose messages are exchanged although they could overlap, where the device loads its kernels
/// lazily. The first of them loads kernels and times products, the second captures graphs. All this
/// may wait for the whole device, and thus for a receive that has begun, whose sender may in turn wait
/// for what this rank sends next.
const EXCHANGED_STEPS: u64 = 2;

/// Order of the last step, which is that of the next one unless a ramp-up changes its micro-batches.
pub struct StepOrder {
    pp: PipelineRank,
    topology: Topology,
    /// Whether the first steps exchange their messages.
    lazy: bool,
    last: RefCell<Last>,
}

#[derive(Default)]
struct Last {
    micros: usize,
    /// Consecutive steps of `micros` micro-batches.
    steps: u64,
    exchanged: bool,
    actions: Vec<Action>,
}

impl StepOrder {
    /// `lazy`: the device loads its kernels when they are first used.
    pub fn new(pp: PipelineRank, topology: &Topology, lazy: bool) -> StepOrder {
        let lazy = lazy && messages_overlap(topology);
        StepOrder { pp, topology: topology.clone(), lazy, last: RefCell::default() }
    }

    /// Actions of the next step, of `micros` micro-batches. Slots are the same whether or not its
    /// messages overlap, and so are the graphs of its passes.
    pub fn next(&self, micros: usize) -> Ref<'_, [Action]> {
        {
            let last = &mut *self.last.borrow_mut();
            let repeats = last.micros == micros;
            let steps = if repeats { last.steps } else { 0 };
            let exchanged = self.lazy && steps < EXCHANGED_STEPS;
            if !repeats || exchanged != last.exchanged {
                let overlap_p2p = self.topology.overlap_p2p && !exchanged;
                let topology = Topology { overlap_p2p, ..self.topology.clone() };
                last.actions = actions(self.pp, &topology, micros).0;
            }
            last.micros = micros;
            last.steps = steps + 1;
            last.exchanged = exchanged;
        }
        Ref::map(self.last.borrow(), |last| &last.actions[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(chunks: usize) -> Topology {
        let text = "
model: {layers: 24, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 8}
lr: {peak: 1e-3}
train: {samples: 800}
";
        let interleaved = "pipeline: 4, schedule: interleaved, overlap_p2p: true";
        let set = format!("topology={{{interleaved}, chunks: {chunks}}}");
        manifest::for_test(text, &[set]).topology
    }

    /// Passes of a step, with their slots, and whether it begins messages.
    fn step(order: &StepOrder, micros: usize) -> (Vec<Action>, bool) {
        let actions = order.next(micros);
        let begins = actions
            .iter()
            .any(|action| matches!(action, Action::Begin(..)));
        (
            actions
                .iter()
                .filter(|action| {
                    matches!(action, Action::Forward(_) | Action::Backward(_) | Action::Loss(_))
                })
                .copied()
                .collect(),
            begins,
        )
    }

    #[test]
    fn no_message_overlaps_while_kernels_are_loaded() {
        for chunks in [2, 3] {
            for rank in 0..4 {
                let pp = PipelineRank { rank, ranks: 4, chunks };
                let topology = topology(chunks);
                let order = |lazy| StepOrder::new(pp, &topology, lazy);
                let lazy = order(true);
                let eager = order(false);
                for (micros, begins) in [
                    (8, false),
                    (8, false),
                    (8, true),
                    (8, true),
                    (12, false),
                    (12, false),
                    (12, true),
                ] {
                    let [ours, theirs] = [&lazy, &eager].map(|order| step(order, micros));
                    assert_eq!((ours.1, theirs.1), (begins, true), "{micros} micro-batches");
                    assert_eq!(ours.0, theirs.0, "passes and slots");
                }
            }
        }
    }
}
