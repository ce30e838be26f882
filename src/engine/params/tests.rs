use super::*;
use crate::arenas::Arenas;
use crate::states::{Extent, TensorSlice};
use ::plan::levels::Levels;
use comm::{Group, Message, Solo};
use device::cpu::Cpu;
use model::{Direction, MicroBatch, ModelShard};
use std::rc::Rc;

/// Group of two ranks whose peer is absent. Records the start and end of collectives.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn write(&self, what: &str) {
        self.0.borrow_mut().push(what.to_string());
    }
}

impl Group for Log {
    fn size(&self) -> usize {
        2
    }
    fn rank(&self) -> usize {
        0
    }
    fn run(&self, _: Collective) {
        self.write("waits");
    }
    fn exchange(&self, _: &[Message]) {
        self.write("waits");
    }
    fn begin(&self, what: Collective) -> Pending {
        self.write(match what {
            Collective::AllReduce(_) => "begin all_reduce",
            Collective::AllGather { .. } => "begin all_gather",
            Collective::ReduceScatter { .. } => "begin reduce_scatter",
        });
        Solo.begin(Collective::AllReduce(Tensor::at(256, 1, 1, DType::F32)))
    }
    fn finish(&self, _: Pending) {
        self.write("finish");
    }
}

/// Records of backward passes of micro-batches through the blocks of a four-layer model.
fn backwards(level: u8, micros: usize) -> String {
    let text = "
model: {layers: 4, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 16}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let sets = [format!("topology={{data: 2, zero: {level}}}"), "precision=bf16".to_string()];
    let m = manifest::for_test(text, &sets);
    let layout = Layout::new(&m.model, ModelShard { dp: 2, ..ModelShard::whole(&m.model) });
    let cpu = Cpu::new(Some(1));
    let log = Log::default();
    let levels = Levels::one(2, 0);
    let measured = Arenas::measuring();
    let windows = WindowCounts::by_block(false);
    let plan = |arenas: &Arenas| {
        let on_device = OffloadPlan::default();
        plan_buckets(level, levels, &layout, DType::BF16, on_device, windows, arenas)
    };
    plan(&measured);
    let arenas = measured.reserve(&cpu).unwrap();
    let buckets = plan(&arenas);
    let groups = Groups { grad_sum: Box::new(log.clone()), ..Groups::solo() };
    let states = Vec::new();
    let memory = ParamMemory { layout, buckets, windows, states, offload: None, norms: None };
    let params = ShardedParams::new(&cpu, groups, &m, memory);
    for micro in 0..micros {
        let at = MicroBatch::new(micro, micros, 1);
        params.begin_pass(Direction::Backward);
        for block in (1..=4).rev() {
            params.weights(block);
            params.grads(block, at);
            log.write(&format!("block {block}"));
            params.grads_done(block, at);
        }
    }
    log.write("end");
    params.finish_grads();
    log.0.take().join(", ")
}

/// A block's gradients are reduced while the next block computes. With two alternating buffers,
/// they may be in flight until the block after that needs the buffer.
#[test]
fn gradients_travel_while_the_next_block_computes() {
    let finish = ", finish".repeat(4);
    let scattered = |kind: &str| {
        let blocks = [4, 3, 2, 1].map(|block| format!("block {block}, begin {kind}"));
        format!("{}, end{finish}", blocks.join(", "))
    };
    assert_eq!(backwards(0, 1), scattered("all_reduce"));
    assert_eq!(backwards(1, 1), scattered("reduce_scatter"));
    assert_eq!(
        backwards(2, 1),
        "block 4, begin reduce_scatter, block 3, begin reduce_scatter, \
         finish, block 2, begin reduce_scatter, finish, block 1, begin reduce_scatter, \
         end, finish, finish"
    );
}

/// The last two reductions of a micro-batch are waited for when the next one needs their windows: that
/// of block 1 overlaps block 4. Without ZeRO 2 only the last micro-batch is reduced.
#[test]
fn gradients_of_a_micro_batch_travel_while_the_next_computes() {
    assert_eq!(
        backwards(2, 2),
        "block 4, begin reduce_scatter, block 3, begin reduce_scatter, \
         finish, block 2, begin reduce_scatter, finish, block 1, begin reduce_scatter, \
         finish, block 4, begin reduce_scatter, finish, block 3, begin reduce_scatter, \
         finish, block 2, begin reduce_scatter, finish, block 1, begin reduce_scatter, \
         end, finish, finish"
    );
    let once = backwards(1, 2);
    assert!(once.starts_with("block 4, block 3, block 2, block 1, block 4, begin"), "{once}");
}

/// ZeRO 3 gathers the block below while a block computes.
#[test]
fn weights_arrive_while_the_block_before_computes() {
    let log = backwards(3, 1);
    let gathers: Vec<&str> = log
        .split(", ")
        .filter(|what| !what.contains("reduce_scatter"))
        .collect();
    assert!(!gathers.contains(&"waits"), "{log}");
    let first = ["begin all_gather", "finish", "begin all_gather", "block 4"];
    assert_eq!(gathers[..4], first, "{log}");
    let below = gathers.iter().position(|what| *what == "block 3").unwrap();
    assert!(
        gathers[..below]
            .iter()
            .filter(|what| **what == "begin all_gather")
            .count()
            > 2
    );
}

/// The part of a state that belongs to a slice of its parameter, for every extent.
#[test]
fn the_shape_of_a_state_follows_from_its_extent() {
    let slice = TensorSlice { at: [2, 128], size: [3, 192] };
    let part = |extent: Extent| extent.part_for(slice);
    assert_eq!(part(Extent::Like), slice);
    assert_eq!(part(Extent::Rows), TensorSlice { at: [2, 0], size: [3, 1] });
    assert_eq!(part(Extent::Cols), TensorSlice { at: [0, 128], size: [1, 192] });
    assert_eq!(part(Extent::PartCols(3)), TensorSlice { at: [0, 128], size: [3, 192] });
    assert!(Extent::PartCols(3).fits([1, 96]) && !Extent::PartCols(0).fits([1, 96]));
    assert_eq!(part(Extent::ColBlocks(64)), TensorSlice { at: [2, 2], size: [3, 3] });
    assert!(Extent::ColBlocks(64).fits([1, 128]) && !Extent::ColBlocks(64).fits([1, 96]));
    assert!(!Extent::ColBlocks(0).fits([1, 96]));
    for extent in [Extent::Like, Extent::Rows, Extent::Cols, Extent::ColBlocks(64)] {
        let part = part(extent);
        assert_eq!(extent.part_for(extent.param_part(part, [9, 640])), part, "{extent:?}");
        assert_eq!(extent.covering_part(slice), part, "{extent:?}");
    }
    let inside = TensorSlice { at: [2, 100], size: [3, 40] };
    assert_eq!(
        Extent::ColBlocks(64).covering_part(inside),
        TensorSlice { at: [2, 1], size: [3, 2] }
    );
}
