//! Peak memory of a device, stage by stage, in GB of 1000 MiB as logs print it.
//! Activations: Korthikanti et al. 2022; states: Rajbhandari et al. 2020.

use super::constants::M;
use estimate::setup::{Numbers, Setup};
use manifest::{Recompute, Schedule};

const GB: f64 = 1000.0 * 1048576.0;
/// Near the limit PyTorch's cache returns memory. Above this share of the device, only half of additional
/// needs is reserved, up to the device's memory.
const FULL: f64 = 0.85;
const SQUEEZE: f64 = 0.5;

/// Memory of each stage, by purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub stages: Vec<Vec<(&'static str, f64)>>,
    pub capacity: f64,
}

impl Memory {
    pub fn stage(&self, stage: usize) -> f64 {
        self.stages[stage].iter().map(|(_, gb)| gb).sum()
    }

    /// The stage that needs most.
    pub fn peak(&self) -> usize {
        (0..self.stages.len())
            .max_by(|a, b| self.stage(*a).total_cmp(&self.stage(*b)).then(b.cmp(a)))
            .expect("a pipeline has a stage")
    }

    pub fn needed(&self) -> f64 {
        self.stage(self.peak())
    }

    /// Reserved memory, as nvidia-smi shows it.
    pub fn reserved(&self) -> f64 {
        let needed = self.needed();
        let full = FULL * self.capacity;
        if needed > full { full + SQUEEZE * (needed - full) } else { needed }
    }

    /// Reserved memory without a device's limit: what is above it counts in full, because there is
    /// nothing left to return.
    pub fn beyond_capacity(&self, reserved: f64) -> f64 {
        reserved + (1.0 / SQUEEZE - 1.0) * (reserved - self.capacity).max(0.0)
    }
}

pub fn memory(s: &Setup, k: &[f64]) -> Memory {
    let counts = &s.counts;
    let cuts = s.stages();
    let stages = cuts
        .iter()
        .enumerate()
        .map(|(stage, cut)| {
            let parameters = counts.stage(&s.model, cut.len(), stage == 0, stage + 1 == cuts.len());
            let [weights, gradients, optimizer] = states(s, parameters, k);
            let [saved, working, logits] = activations(s, stage, cut.len(), k);
            vec![
                ("weights", weights / GB),
                ("gradients", gradients / GB),
                ("optimizer", optimizer / GB),
                ("saved", saved / GB),
                ("working set", working / GB),
                ("logits", logits / GB),
                ("fixed", s.hardware.context_mib / 1000.0 + k[M::Fixed as usize]),
            ]
        })
        .collect();
    Memory { stages, capacity: s.hardware.memory_gib * 1.024 }
}

/// Bytes of weights, gradients and optimizer of a rank with so many parameters.
fn states(s: &Setup, parameters: f64, k: &[f64]) -> [f64; 3] {
    let zero = s.topology.zero;
    let share = |level: u8| if zero >= level { s.topology.data as f64 } else { 1.0 };
    let live = if s.numbers == Numbers::F32 { 4.0 } else { 2.0 };
    // DeepSpeed takes fp32 gradients for the step: of the shard, or twice the whole without ZeRO.
    let master = if s.numbers == Numbers::F32 { 0.0 } else { 4.0 };
    let trainer = s.trainer();
    let step = match (trainer.deepspeed, zero) {
        _ if s.numbers == Numbers::F32 => 0.0,
        (true, 0) => 8.0,
        (true, _) => 4.0,
        (false, 0) if trainer.eager => 0.0,
        (false, _) => 2.0,
    };
    let wide = s.numbers == Numbers::Bf16Fp32Grad;
    let accumulated = if wide { 4.0 * parameters } else { 0.0 };
    // ZeRO-3 holds the layer at work and the next.
    let gathered =
        if zero == 3 { 2.0 * live * s.counts.block.max(s.counts.tokens / 2.0) } else { 0.0 };
    let on_device = |away: bool| if away { 0.0 } else { 1.0 };
    // DeepSpeed's flat copies are padded and doubled; the others' buffers are what they are counted.
    let flat = trainer.eager || trainer.deepspeed && !trainer.host_inputs;
    let constant = |constant: M| if flat { k[constant as usize] } else { 1.0 };
    let replicated = constant(M::Replicated);
    [
        replicated * (live * parameters / share(3) * on_device(s.offload.weights) + gathered),
        replicated * live * parameters / share(2) * on_device(s.offload.weights)
            + k[M::Fp32Grad as usize] * accumulated / share(2),
        constant(M::Sharded) * (master + s.moments.bytes() + step) * parameters / share(1)
            * on_device(s.offload.optimizer),
    ]
}

/// Bytes kept between forward and backward, bytes of one layer during its work, and of the logits.
fn activations(s: &Setup, stage: usize, layers: usize, k: &[f64]) -> [f64; 3] {
    let m = &s.model;
    let t = s.topology.tensor as f64;
    let trainer = s.trainer();
    let sbh = (m.seq_len * s.micro * m.hidden) as f64;
    let wide = if s.numbers == Numbers::F32 { 2.0 } else { 1.0 };
    let whole = if s.topology.sequence_parallel { t } else { 1.0 };
    // Megatron-DeepSpeed's ZeRO scripts keep the checkpoints in the host's memory.
    let kept = if trainer.host_inputs { 0.0 } else { 1.0 };
    // Per score: softmax, its dropped-out copy and the mask; op by op there are more copies.
    let per_score = match (s.keeps_no_scores(), trainer.eager) {
        (true, _) => 0.0,
        (false, true) => 8.0,
        (false, false) => 5.0,
    };
    let scores = (m.seq_len * m.seq_len * s.micro * m.heads) as f64 / t;
    let cheap = sbh * (10.0 / whole + 24.0 / t);
    let all = cheap + per_score * scores;
    let stages = s.topology.pipeline;
    let held = match s.topology.schedule {
        Schedule::GPipe => s.micros() as f64,
        Schedule::Interleaved => {
            let more = 1.0 + (stages - 1) as f64 / (stages * s.topology.chunks) as f64;
            (s.micros().min(stages - stage) as f64 * more).min(s.micros() as f64)
        }
        _ => s.micros().min(stages - stage) as f64,
    };
    let layers = layers as f64;
    // DeepSpeed's pipe also keeps each micro-batch's input and output of the stage.
    let ends = if trainer.deepspeed && stages > 1 { 2.0 } else { 1.0 };
    let (saved, working) = match s.topology.recompute {
        Recompute::Full => (kept * 2.0 * sbh / whole * (layers + ends), all),
        Recompute::Selective => (layers * cheap, per_score * scores),
        Recompute::None => (layers * all, 0.0),
    };
    let last = stage + 1 == stages;
    let kept = if trainer.tiled_logits { m.hidden } else { m.vocab_padded };
    let logits = if last { (m.seq_len * s.micro * kept) as f64 / t * 10.0 } else { 0.0 };
    [
        k[M::Stash as usize] * wide * held * saved,
        k[M::Working as usize] * wide * working,
        k[M::Logits as usize] * logits,
    ]
}
