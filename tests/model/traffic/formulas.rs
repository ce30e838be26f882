//! Bytes that a rank sends in an optimizer step, by the formulas of the literature. The total of a
//! group equals them exactly. So do the bytes of each rank if the group's size divides the tensors.

/// All-reduce of a tensor over n ranks (ring, which reaches the lower bound: Patarasuk & Yuan
/// 2009).
pub fn all_reduce(ranks: usize, bytes: f64) -> f64 {
    2.0 * all_gather(ranks, bytes)
}

/// All-gather of a tensor of which each of n ranks has a part.
pub fn all_gather(ranks: usize, whole: f64) -> f64 {
    (ranks - 1) as f64 / ranks as f64 * whole
}

/// Reduce-scatter of a tensor over n ranks.
pub fn reduce_scatter(ranks: usize, whole: f64) -> f64 {
    all_gather(ranks, whole)
}

/// Inputs of the formulas: group sizes of a rank, its layers, and its memory layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
    /// Replicas of a shard group.
    pub shard: usize,
    /// Whether every copy has all optimizer states.
    pub equal_states: bool,
    /// Sequence parallelism.
    pub sequence: bool,
    /// ZeRO stage.
    pub zero: u8,
    /// Micro-batches of this rank, and those whose gradients it adds up before a sum over replicas.
    pub micros: usize,
    pub zero_every: usize,
    /// Blocks of the longest chunk, if the weights of two chunks are whole at a time.
    pub whole_chunk: Option<usize>,
    /// Tokens per micro-batch, N.
    pub tokens: usize,
    /// Bytes of its residual stream, [N, H], and whether the tensor-parallel ranks split it.
    pub stream: f64,
    pub divides: bool,
    /// Additional entries to and exits from a split region by recompute, per block.
    pub again: [usize; 2],
    /// Bytes of all ranks' maxima of a shared fp8 operand, for tokens and for a weight; 0 if there
    /// are none.
    pub maxima: [f64; 2],
    /// Whether the maxima of weights are gathered for the first micro-batch only.
    pub keeps_codes: bool,
    /// Number of this rank's chunks with a previous virtual stage, and with a next one.
    pub before: usize,
    pub after: usize,
    pub buckets: Vec<Bucket>,
    /// Bytes of the f32 gradient of a tied embedding that another stage also holds, or 0.
    pub tied: f64,
    /// Sums of an optimizer that all-reduces in its update.
    pub sums: Sums,
}

/// Bytes of an optimizer's f32 sums over all its all-reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// All sums: replicas that share parameters (ZeRO) add up their parts.
    pub all: f64,
    /// Sums over parameters that tensor parallelism splits.
    pub split: f64,
    /// Sums of a tied embedding that another stage also holds.
    pub tied: f64,
}

/// Weights that are gathered and reduced together, including padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub kind: Kind,
    /// Bytes of its model weights, of its f32 gradients, and of the gradients of weights that
    /// tensor parallelism does not split.
    pub weights: f64,
    pub grads: f64,
    pub unsplit: f64,
    /// Bytes of the low-rank factors and of uncompressed gradients.
    pub low_rank: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Embedding,
    Block,
    Head,
    /// The last stage's copy of the embedding.
    Copy,
}

/// Bytes that a rank sends in a step, by group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Volume {
    /// Activations among tensor-parallel ranks, and (`tp_async`) gradients of unsplit weights.
    pub tensor: f64,
    pub tp_async: f64,
    pub pipeline: f64,
    pub data: f64,
    /// Gradients and weights at two levels: in a shard group, and among the copies.
    pub shard: f64,
    pub copies: f64,
    /// Gradient of the tied embedding between the first and the last stage.
    pub embedding: f64,
}

/// One f32 that all ranks of a group sum: the loss, the norm of the gradient.
const NUMBER: f64 = 4.0;

/// Bytes that a rank sends in a step.
pub fn sent(step: &Step) -> Volume {
    let Step { pipeline, sequence, tied, sums, .. } = *step;
    let blocks = step
        .buckets
        .iter()
        .filter(|bucket| bucket.kind == Kind::Block);
    let share = if step.divides { step.stream / step.tensor as f64 } else { step.stream };
    // Sent and received messages are equal in number.
    let messages = (step.micros * (step.before + step.after)) as f64;
    // All-gather of the shares that each rank sent (Narayanan et al. 2021, § 4.1).
    let scattered = if step.divides && !sequence { messages } else { 0.0 };
    // Agreement on whether all gradients are finite.
    let agreed = f64::from(u8::from(is_compressed(step)));
    let [data, shard, copies] = replicas(step, blocks.count());
    let tp_async =
        |bucket: &Bucket| all_reduce(step.tensor, bucket.unsplit) * reductions(step, bucket);
    Volume {
        tensor: step.micros as f64 * activations(step)
            + kept_codes(step)
            + scattered * all_gather(step.tensor, step.stream)
            + all_reduce(step.tensor, sums.split)
            + (1.0 + agreed) * all_reduce(step.tensor, NUMBER),
        tp_async: if sequence { step.buckets.iter().map(tp_async).sum() } else { 0.0 },
        pipeline: messages * share + (2.0 + agreed) * all_reduce(pipeline, NUMBER),
        data,
        shard,
        copies,
        embedding: all_reduce(2, tied) + all_reduce(2, sums.tied),
    }
}

/// Tensor parallelism, per micro-batch: a block is entered twice in forward and twice in backward,
/// and left as often. Without sequence parallelism entering is free and leaving is an all-reduce
/// (four per block: Shoeybi et al. 2019). With it they are an all-gather and a reduce-scatter, of
/// the same bytes (Korthikanti et al. 2022). In fp8 the product before each exit, whose sum is
/// split, gathers the maxima of both operands, except for a weight with kept codes.
fn activations(step: &Step) -> f64 {
    let ranks = step.tensor;
    let (enter, leave) = if step.sequence {
        (all_gather(ranks, step.stream), reduce_scatter(ranks, step.stream))
    } else {
        (0.0, all_reduce(ranks, step.stream))
    };
    // Maximum, sum and the target's logit of each token, f32, from each rank.
    let statistics = all_gather(ranks, (ranks * step.tokens * 3 * 4) as f64);
    let [entered, left] = step.again.map(|times| (4 + times) as f64);
    let [of_tokens, of_weight] = step.maxima;
    let maxima = of_tokens + if step.keeps_codes { 0.0 } else { of_weight };
    let of = |bucket: &Bucket| match bucket.kind {
        Kind::Block => entered * enter + left * (leave + all_gather(ranks, maxima)),
        Kind::Embedding => enter + leave,
        Kind::Head => enter + leave + statistics,
        Kind::Copy => 0.0,
    };
    step.buckets.iter().map(of).sum()
}

/// Maxima of a block's four matrices, once per step; each is split along one of its sums.
fn kept_codes(step: &Step) -> f64 {
    let blocks = step
        .buckets
        .iter()
        .filter(|bucket| matches!(bucket.kind, Kind::Block))
        .count();
    let each = if step.keeps_codes { 4.0 * all_gather(step.tensor, step.maxima[1]) } else { 0.0 };
    blocks as f64 * each
}

fn is_compressed(step: &Step) -> bool {
    step.buckets.iter().any(|bucket| bucket.low_rank.is_some())
}

/// Data parallelism (Rajbhandari et al. 2020): an all-reduce of the gradients without ZeRO. With
/// ZeRO, a reduce-scatter and an all-gather of the updated weights, which may be narrower.
/// Compressed gradients are all-reduced at every ZeRO level, because every replica needs all of
/// them. With two levels, a shard group does so, and the copies once per step for their shard; without
/// ZeRO the all-reduce is a reduce-scatter and an all-gather in the group, around that of the copies. Copies
/// with equal states all-reduce the gradients of their shard and gather no weights (Zhao et al. 2023).
fn replicas(step: &Step, blocks: usize) -> [f64; 3] {
    let ranks = step.shard;
    let copies = step.data / step.shard;
    let of = |bucket: &Bucket| match step.zero {
        0 => all_reduce(ranks, bucket.low_rank.unwrap_or(bucket.grads)),
        _ => {
            let gathers = match bucket.kind {
                Kind::Block if step.zero == 3 => gathers(blocks, step) / blocks as f64,
                _ => 1.0,
            };
            let reduced = match bucket.low_rank {
                None => reduce_scatter(ranks, bucket.grads) * reductions(step, bucket),
                Some(factors) => all_reduce(ranks, factors),
            };
            reduced + gathers * all_gather(ranks, bucket.weights)
        }
    };
    let numbers = if step.zero > 0 { 2.0 } else { 1.0 };
    let numbers = numbers + f64::from(u8::from(is_compressed(step)));
    let sums = if step.zero > 0 { step.sums.all } else { 0.0 };
    let numbers = numbers * all_reduce(step.data, NUMBER) + all_reduce(step.data, sums);
    let of_copies = |bucket: &Bucket| {
        let [grads, weights] = [bucket.grads, bucket.weights].map(|bytes| bytes / ranks as f64);
        match step.zero {
            0 => all_reduce(copies, grads),
            _ if step.equal_states => all_reduce(copies, grads),
            _ => reduce_scatter(copies, grads) + all_gather(copies, weights),
        }
    };
    let in_group = step.buckets.iter().map(of).sum::<f64>();
    match copies {
        1 => [in_group + numbers, 0.0, 0.0],
        _ => [numbers, in_group, step.buckets.iter().map(of_copies).sum()],
    }
}

/// Reductions of a bucket's gradients in a step.
fn reductions(step: &Step, bucket: &Bucket) -> f64 {
    let is_sharded = step.zero >= 2 && bucket.kind == Kind::Block;
    if is_sharded { step.micros.div_ceil(step.zero_every) as f64 } else { 1.0 }
}

/// ZeRO 3: gathers of blocks in a step, forward and backward. Two blocks are held at a time, so the
/// last two need no gather when the direction of the pass changes. Breadth first, two chunks are held,
/// for all micro-batches.
fn gathers(blocks: usize, step: &Step) -> f64 {
    if let Some(chunk) = step.whole_chunk {
        let held = blocks.min(2 * chunk);
        return (2 * blocks - held) as f64;
    }
    let held = blocks.min(2);
    (2 * step.micros * (blocks - held) + held) as f64
}
