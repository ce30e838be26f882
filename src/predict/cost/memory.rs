//! Peak memory of a device, stage by stage, in GB of 1000 MiB as logs print it.
//! Activations: Korthikanti et al. 2022; states: Rajbhandari et al. 2020.

use super::constants::M;
use estimate::mixture::Mixture;
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
    let cuts = s.stages();
    let stages = cuts
        .iter()
        .enumerate()
        .map(|(stage, cut)| {
            let [dense, experts] = s.stage_parameters(stage);
            let dense = states(s, dense, s.replicas(), k);
            let experts = states(s, experts, s.expert_replicas(), k);
            let [weights, gradients, optimizer] = [0, 1, 2].map(|kind| dense[kind] + experts[kind]);
            let weights = weights + gathered(s, k);
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

/// Bytes that one parameter of the weights has on a device.
fn live(s: &Setup) -> f64 {
    if s.numbers == Numbers::F32 { 4.0 } else { 2.0 }
}

/// Factor of weights and gradients beside the formula's. DeepSpeed's flat copies are padded and doubled; the
/// others' buffers are what they are counted.
fn flat(s: &Setup, constant: M, k: &[f64]) -> f64 {
    let trainer = s.trainer();
    let flat = trainer.eager || trainer.deepspeed && !trainer.host_inputs;
    if flat { k[constant as usize] } else { 1.0 }
}

/// Bytes of gathered weights: ZeRO-3 holds the layer at work and the next.
fn gathered(s: &Setup, k: &[f64]) -> f64 {
    if s.topology.zero < 3 {
        return 0.0;
    }
    let layer = s.mixture.map_or(s.counts.block, |mixture| {
        let m = &s.model;
        let experts = (mixture.experts / s.degrees.expert) as f64 * mixture.expert(m);
        mixture.layer(m, m.layers - 1, s.topology.tensor) + experts
    });
    flat(s, M::Replicated, k) * 2.0 * live(s) * layer.max(s.counts.tokens / 2.0)
}

/// Bytes of weights, gradients and optimizer of a rank with so many parameters, of which `replicas` ranks
/// have the same.
fn states(s: &Setup, parameters: f64, replicas: usize, k: &[f64]) -> [f64; 3] {
    let zero = s.topology.zero;
    let share = |level: u8| if zero >= level { replicas as f64 } else { 1.0 };
    let live = live(s);
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
    let on_device = |away: bool| if away { 0.0 } else { 1.0 };
    let replicated = flat(s, M::Replicated, k);
    [
        replicated * (live * parameters / share(3) * on_device(s.offload.weights)),
        replicated * live * parameters / share(2) * on_device(s.offload.weights)
            + k[M::Fp32Grad as usize] * accumulated / share(2),
        flat(s, M::Sharded, k) * (master + s.moments.bytes() + step) * parameters / share(1)
            * on_device(s.offload.optimizer),
    ]
}

/// Bytes kept between forward and backward, bytes of one layer during its work, and of the logits.
fn activations(s: &Setup, stage: usize, layers: usize, k: &[f64]) -> [f64; 3] {
    let m = &s.model;
    let t = s.topology.tensor as f64;
    let trainer = s.trainer();
    let sbh = (s.rows() * m.hidden) as f64;
    let wide = if s.numbers == Numbers::F32 { 2.0 } else { 1.0 };
    let whole = if s.splits_sequence() { t } else { 1.0 };
    // Megatron-DeepSpeed's ZeRO scripts keep the checkpoints in the host's memory.
    let kept = if trainer.host_inputs { 0.0 } else { 1.0 };
    // Per score: softmax, its dropped-out copy and the mask; op by op there are more copies.
    let per_score = match (s.keeps_no_scores(), trainer.eager) {
        (true, _) => 0.0,
        (false, true) => 8.0,
        (false, false) => 5.0,
    };
    let scores = (m.seq_len * s.rows() * m.heads) as f64 / t;
    let split = s
        .mixture
        .map_or(24.0 * sbh, |mixture| expert_activations(s, &mixture));
    let cheap = sbh * 10.0 / whole + split / t;
    let all = cheap + per_score * scores;
    let stages = s.topology.pipeline;
    let held = match s.topology.schedule {
        schedule if schedule.keeps_all_micros() => s.micros() as f64,
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
        Recompute::Selective if trainer.selective > 0.0 && s.mixture.is_none() => {
            (layers * saved_by_operator(s, whole), all)
        }
        Recompute::Selective => (layers * cheap, per_score * scores),
        Recompute::None => (layers * all, 0.0),
    };
    // Two buffers of other context ranks' keys and values.
    let ranks = (s.degrees.context > 1).then(|| m.heads());
    let keys = ranks.map_or(0.0, |heads| 8.0 * (s.rows() * heads.kv * heads.dim) as f64 / t);
    let last = stage + 1 == stages;
    let kept = if trainer.tiled_logits { m.hidden } else { m.vocab_padded };
    let logits = if last { (s.rows() * kept) as f64 / t * 10.0 } else { 0.0 };
    [
        k[M::Stash as usize] * wide * held * saved,
        k[M::Working as usize] * wide * (working + keys),
        k[M::Logits as usize] * logits,
    ]
}

/// Bytes in 16 bits that a rank keeps of a layer if recomputation is selected by operator: the layer's input,
/// attention's output, and every second product, which are queries, values and the first of the feed-forward
/// part (torchtitan's `_apply_op_sac`). The last product is saved too, but no backward pass needs it.
fn saved_by_operator(s: &Setup, whole: f64) -> f64 {
    let m = &s.model;
    let heads = m.heads();
    let split = 2 * heads.query_width() + heads.kv * heads.dim + m.ffn_hidden;
    2.0 * s.rows() as f64 * (m.hidden as f64 / whole + split as f64 / s.topology.tensor as f64)
}

/// Bytes in 16 bits that all tensor ranks together keep of a layer with experts: queries, keys, values and
/// their output; the rows of the experts, gates, values and products in them, and the rows that
/// return; the same inside the shared experts. As many rows come as are sent.
fn expert_activations(s: &Setup, mixture: &Mixture) -> f64 {
    let m = &s.model;
    let heads = m.heads();
    let attention = 2 * (heads.query_width() + heads.kv * heads.dim);
    let row = 2 * m.hidden + 3 * mixture.width;
    let width = attention + mixture.chosen * row + 3 * mixture.shared;
    2.0 * (s.rows() * width) as f64
}

/// Bytes per token and layer of Llama 3 8B, by the order of its products, of which every second is recomputed.
#[test]
fn recomputation_by_operator_keeps_every_second_product() {
    let row = crate::rows::held().iter().find(|row| row.id == "held-01");
    let s = row.expect("a held row").setup.as_ref().expect("a setup");
    let (hidden, keys, inner) = (4096, 1024, 14336);
    // Queries, keys, values, output; gate, inner, outer, whose product no backward pass needs.
    let products = [hidden, keys, keys, hidden, inner, inner, 0];
    let every_second: usize = products.iter().step_by(2).sum();
    let [input, attention] = [hidden, hidden];
    let bytes = 2 * (input + attention + every_second);
    let k = [1.0; 7];
    let saved = |s: &Setup| memory(s, &k).stages[0][3].1 * GB / (32 * 8192) as f64;
    let near = |found: f64, count: usize| (found / count as f64 - 1.0).abs() < 1e-9;
    assert!(near(saved(s), bytes), "{} bytes, not {bytes}", saved(s));
    let halved = s
        .clone()
        .with_topology(|t| (t.tensor, t.sequence_parallel) = (2, true));
    assert!(near(saved(&halved), bytes / 2), "{}", saved(&halved));
    let all = s.clone().with_topology(|t| t.recompute = Recompute::None);
    assert!(saved(&all) > 2.0 * saved(s));
}
