//! Memory of a rank: laid out once to measure, reserved, then laid out again.

use super::arenas::Arenas;
use super::groups::{Groups, begins_messages, context, model_shard, pipeline_rank, slots};
use super::masters::{Masters, PIECE};
use super::params::{self, BucketState, Norms, Offload, OnHost};
use super::play::MessageBuffers;
use super::powersgd::Compression;
use super::replica_check;
use super::rule::{OptimizerRule, Place};
use super::scalars::Scalars;
use super::states::ParamStates;
use super::update::Update;
use base::DType;
use device::{Arena, Backend, Tensor};
use manifest::{GradientHome, Manifest, Precision};
use model::layers::fp8;
use model::{Activations, Cx, GradBuffers, Inputs, Layout, Tables};
use plan::schedule;

/// Layout of a rank's memory.
pub struct Laid {
    pub layout: Layout,
    pub buckets: Vec<BucketState>,
    pub states: Vec<ParamStates>,
    pub offload: Option<Offload>,
    pub norms: Option<Norms>,
    pub update: Update,
    pub compression: Option<Compression>,
    pub tables: Tables,
    pub slots: Vec<Vec<Activations>>,
    pub work: GradBuffers,
    pub messages: MessageBuffers,
    pub eval: Vec<Vec<Activations>>,
    pub scalars: Scalars,
    /// Buffers for fp8 operands.
    pub fp8: Option<fp8::Fp8Pass>,
}

/// Resolves `offload.gradients`: moves gradients to the host if the manifest leaves the choice open
/// and they would not fit the device memory that it allows.
pub fn placed(
    be: &dyn Backend,
    groups: &Groups,
    m: &Manifest,
    rule: &dyn OptimizerRule,
    causal: bool,
) -> Manifest {
    let Some(most) = m.train.device_memory.filter(|_| m.gradients_are_open()) else {
        return m.clone();
    };
    let measured = Arenas::measuring();
    lay(be, groups, m, rule, causal, &measured);
    match measured.memory_plan(be.workspace()).total() > most {
        true => m.with_gradients(GradientHome::Host),
        false => m.clone(),
    }
}

/// Whether fp8 codes of weights are kept through a step: if a step has several micro-batches and
/// every rank holds its layers' weights all the time.
pub fn keeps_codes(groups: &Groups, m: &Manifest) -> bool {
    let largest = m.batch.ramp().sizes().max().expect("a batch");
    let several = largest > m.batch.micro * groups.replicas();
    let whole = params::zero_level(groups, m) < 3 && !OnHost::of(m).weights;
    m.precision == Precision::Fp8 && several && whole
}

/// Scratch of an update. Shares memory with activations, none of which are kept between steps.
fn scratch(len: usize, at: &Arenas) -> Tensor {
    at.saved.temporary(|saved| saved.matrix(1, len, DType::F32))
}

/// Lays out the memory of a rank. Deterministic: equal arguments give equal addresses.
pub fn lay(
    be: &dyn Backend,
    groups: &Groups,
    m: &Manifest,
    rule: &dyn OptimizerRule,
    causal: bool,
    at: &Arenas,
) -> Laid {
    let train = context(be, groups, m, true);
    let layout = Layout::new(&m.model, model_shard(groups, m));
    let (level, dp_rank) = (params::zero_level(groups, m), groups.gradients.rank());
    let on_host = OnHost::of(m);
    let mut buckets = params::buckets(level, dp_rank, &layout, train.dtype, on_host, at);
    let fp8 = (m.precision == Precision::Fp8).then(|| {
        let keeps = keeps_codes(groups, m);
        params::keep_codes(&mut buckets, &layout, keeps, be, &at.weights);
        let tokens = m.batch.micro * m.model.seq_len;
        let space = at.workspace.matrix(1, fp8::bytes(&train, tokens), DType::U8);
        fp8::Fp8Pass { space, keeps, new_weights: false }
    });
    let [train, eval] = [true, false].map(|it| Cx { fp8, ..context(be, groups, m, it) });
    let states = params::states(&layout, &buckets, rule, on_host.states, at);
    let offload = on_host.states.then(|| match rule.sums_up() {
        true => Offload::to_device(Masters::plan(&states, train.dtype, PIECE, &at.optimizer), at),
        false => Offload::plan(&buckets, &states, train.dtype, PIECE, &at.staging),
    });
    let place = Place { groups, layout: &layout, sharded: level > 0 };
    let scratch = scratch(rule.scratch(&place, &states), at);
    let update = Update::new(&states, layout.shard.tp_rank, m, scratch);
    let compression = Compression::plan(&layout, &buckets, &states, m, at);
    let tables = Tables::plan(&train, &at.inputs);
    let params = layout.params().count();
    let digests = replica_check::room(groups, &states, params, &at.inputs);
    let own = compression.as_ref().map_or(0, Compression::sums);
    let scalars = Scalars::plan([update.sums(), own], digests, &at.inputs);
    let norms = on_host.grads.then(|| Norms {
        squares: update.squares(&buckets, &layout, scalars.sums),
        sums: Norms::sums(level, &buckets, &at.grads),
    });
    let sums = [scalars.scaler.scale, scalars.z_loss];
    let passes = passes(groups, m, [&train, &eval], causal, (&layout, &tables), sums, at);
    let Passes { slots, work, messages, eval } = passes;
    Laid {
        layout,
        buckets,
        states,
        offload,
        norms,
        update,
        compression,
        tables,
        slots,
        work,
        messages,
        eval,
        scalars,
        fp8,
    }
}

/// Buffers of forward and backward passes.
struct Passes {
    slots: Vec<Vec<Activations>>,
    work: GradBuffers,
    messages: MessageBuffers,
    eval: Vec<Vec<Activations>>,
}

/// Lays out the activations of every micro-batch in flight, for training and evaluation (`of`), and
/// the buffers of a backward pass.
fn passes(
    groups: &Groups,
    m: &Manifest,
    of: [&Cx; 2],
    causal: bool,
    (layout, tables): (&Layout, &Tables),
    sums: [Tensor; 2],
    at: &Arenas,
) -> Passes {
    let [train, eval] = of;
    let pp = pipeline_rank(groups, m);
    let (held, evaluated) = (slots(groups, m), schedule::forward_slots(pp));
    let inputs = |_| Inputs::plan(m.batch.micro, m.model.seq_len, causal, &at.inputs);
    let inputs: Vec<Inputs> = (0..held.max(evaluated)).map(inputs).collect();
    let chunks = |cx: &Cx, inputs: Inputs, saved: &Arena, workspace: &Arena| {
        let plan = |chunk| Activations::plan(cx, chunk, inputs, tables, saved, workspace);
        saved.overlay(layout.shard.chunks.iter().map(plan))
    };
    let begun = begins_messages(&m.topology);
    let (work, messages, slots) = at.workspace.temporary(|workspace| {
        let work = GradBuffers::plan(train, inputs[0].rows(), sums, workspace);
        let messages = MessageBuffers::plan(&train.tp, work.stream, (pp, begun), workspace);
        let slots = inputs[..held].iter().map(|i| chunks(train, *i, &at.saved, workspace));
        (work, messages, slots.collect())
    });
    let evaluations = at.workspace.temporary(|workspace| {
        // A sample of an evaluation task packs several questions, each with its own mask.
        let masked = |i: &Inputs| if m.train.eval_tasks.is_empty() { *i } else { i.masked() };
        let inputs = inputs[..evaluated].iter().map(masked);
        let slots = inputs.map(|i| chunks(eval, i, workspace, workspace));
        slots.collect()
    });
    Passes { slots, work, messages, eval: evaluations }
}
