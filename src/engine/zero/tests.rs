use super::*;
use crate::comm::{Message, Solo};
use crate::device::cpu::Cpu;
use crate::manifest;
use crate::model::Part;

/// One of two ranks, of which the other is not there: what is begun and finished is written down.
#[derive(Default)]
struct Log(RefCell<Vec<String>>);

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
    fn all_reduce(&self, _: Tensor) {
        self.write("waits");
    }
    fn all_gather(&self, _: Tensor, _: Tensor) {
        self.write("waits");
    }
    fn reduce_scatter(&self, _: Tensor, _: Tensor) {
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

/// What is said while the blocks of a four-layer model are walked backwards once.
fn backwards(level: u8) -> String {
    let text = "
model: {layers: 4, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 16}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let loaded = manifest::parse(text, "test", std::path::Path::new("."), &[]);
    let model = loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest.model;
    let layout = Layout::new(&model, Part { dp: 2, ..Part::whole(&model) });
    let cpu = Cpu::new(Some(1));
    let measured = Arenas::measuring();
    Zero::new(level, 0, &layout, DType::BF16, &measured);
    let arenas = measured.reserve(&cpu).unwrap();
    let zero = Zero::new(level, 0, &layout, DType::BF16, &arenas);
    let log = Log::default();
    let keeper = Keeper {
        be: &cpu,
        zero: &zero,
        layout: &layout,
        data: &log,
        partial: &Solo,
        sequence: false,
        tied: false,
    };
    for block in (1..=4).rev() {
        keeper.weights(block);
        keeper.grads(block);
        log.write(&format!("block {block}"));
        keeper.grads_done(block, true);
    }
    log.write("end");
    keeper.finish(&Solo);
    log.0.take().join(", ")
}

/// A block's gradients are on their way while the next block computes, and (where two buffers take
/// turns) until the one after that needs the buffer.
#[test]
fn gradients_travel_while_the_next_block_computes() {
    let finish = ", finish".repeat(4);
    let scattered = |kind: &str| {
        let blocks = [4, 3, 2, 1].map(|block| format!("block {block}, begin {kind}"));
        format!("{}, end{finish}", blocks.join(", "))
    };
    assert_eq!(backwards(0), scattered("all_reduce"));
    assert_eq!(backwards(1), scattered("reduce_scatter"));
    assert_eq!(
        backwards(2),
        "block 4, begin reduce_scatter, block 3, begin reduce_scatter, \
         finish, block 2, begin reduce_scatter, finish, block 1, begin reduce_scatter, \
         end, finish, finish"
    );
}

/// Stage 3 gathers the block below while a block computes.
#[test]
fn weights_arrive_while_the_block_before_computes() {
    let said = backwards(3);
    let gathers: Vec<&str> =
        said.split(", ").filter(|what| !what.contains("reduce_scatter")).collect();
    assert!(!gathers.contains(&"waits"), "{said}");
    assert_eq!(gathers[..3], ["begin all_gather", "finish", "block 4"], "{said}");
    let below = gathers.iter().position(|what| *what == "block 3").unwrap();
    assert!(gathers[..below].iter().filter(|what| **what == "begin all_gather").count() > 2);
}
