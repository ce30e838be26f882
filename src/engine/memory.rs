//! Memory of a rank: laid out once to measure, reserved, then laid out again.

use super::arenas::Arenas;
use super::execute::MessageBuffers;
use super::groups::{Groups, context, model_shard, pipeline_rank, slots};
use super::masters::{MasterWindows, PIECE};
use super::measures::Measures;
use super::params::{self, Norms, Offload, OffloadPlan, ParamMemory};
use super::powersgd::Compression;
use super::replica_check;
use super::rule::{OptimizerRule, Place};
use super::scalars::{Scalars, SumCounts};
use super::update::Update;
use base::DType;
use device::{Arena, Backend};
use manifest::{GradientHome, Manifest, Precision};
use model::layers::fp8;
use model::{Activations, Cx, GradBuffers, Inputs, Layout, Tables};
use plan::schedule;
use plan::segments::MicroShape;

/// Every buffer of a rank.
pub struct RankMemory {
    pub params: ParamMemory,
    pub update: Update,
    pub measures: Measures,
    pub compression: Option<Compression>,
    pub tables: Tables,
    pub training: TrainingBuffers,
    /// Activations of evaluations, as `TrainingBuffers::slots`.
    pub eval: Vec<Vec<Activations>>,
    pub scalars: Scalars,
    /// Buffers for fp8 operands.
    pub fp8: Option<fp8::Fp8Pass>,
}

/// Resolves `offload.gradients`: moves gradients to the host if the manifest leaves the choice open
/// and they would not fit the device memory that it allows.
pub fn resolve_gradient_home(
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
    lay_out(be, groups, m, rule, causal, &measured);
    let fits = measured.memory_plan(be.workspace()).total() <= most;
    if fits { m.clone() } else { m.with_gradients(GradientHome::Host) }
}

/// Whether fp8 codes of weights are kept through a step: if a step has several micro-batches and
/// every rank holds its layers' weights all the time.
fn keeps_codes(groups: &Groups, m: &Manifest) -> bool {
    let micros = m.batch.micros();
    let several = m
        .batch
        .ramp()
        .sizes()
        .any(|size| size > micros.at(size) * groups.replicas());
    let whole = params::zero_level(groups, m) < 3 && !OffloadPlan::from_manifest(m).weights;
    m.precision == Precision::Fp8 && several && whole
}

/// Lays out the memory of a rank. Deterministic: equal arguments give equal addresses.
pub fn lay_out(
    be: &dyn Backend,
    groups: &Groups,
    m: &Manifest,
    rule: &dyn OptimizerRule,
    causal: bool,
    arenas: &Arenas,
) -> RankMemory {
    let train = context(be, groups, m, true);
    let layout = Layout::new(&m.model, model_shard(groups, m));
    let level = params::zero_level(groups, m);
    let on_host = OffloadPlan::from_manifest(m);
    let windows = on_host.count_windows(m, level, &layout.shard.chunks);
    let mut buckets =
        params::plan_buckets(level, groups.levels, &layout, train.dtype, on_host, windows, arenas);
    let fp8 = (m.precision == Precision::Fp8).then(|| {
        let keeps = keeps_codes(groups, m);
        params::plan_fp8_codes(&mut buckets, &layout, keeps, be, &arenas.weights);
        let largest = m.schedule().largest_micros();
        let evaluated = m.batch.micro * m.model.seq_len;
        let tokens = largest.iter().map(|micro| micro.samples * micro.tokens);
        let tokens = tokens.fold(evaluated, usize::max);
        let space = arenas
            .workspace
            .matrix(1, fp8::bytes(&train, tokens), DType::U8);
        fp8::Fp8Pass { space, keeps, new_weights: false }
    });
    let [train, eval] =
        [true, false].map(|training| Cx { fp8, ..context(be, groups, m, training) });
    let (states, maxima) = params::plan_states(&layout, &buckets, rule, on_host.states, arenas);
    let offload = on_host.states.then(|| {
        if rule.needs_global_sums() {
            let longest = maxima.longest;
            let masters =
                MasterWindows::plan(&states, longest, train.dtype, PIECE, &arenas.optimizer);
            Offload::on_device(masters, arenas)
        } else {
            Offload::plan(&buckets, &states, train.dtype, PIECE, &arenas.staging)
        }
    });
    let place = Place { groups, layout: &layout, sharded: level > 0 };
    // Shares memory with activations, none of which are kept between steps.
    let len = rule.scratch(&place, &states);
    let scratch = arenas
        .saved
        .temporary(|saved| saved.matrix(1, len, DType::F32));
    let update = Update::new(&states, layout.shard.tp_rank, m, scratch);
    let compression = Compression::plan(&layout, &buckets, &states, m, arenas);
    let tables = Tables::plan(&train, &arenas.inputs);
    let params = layout.params().count();
    let digests = replica_check::plan_digests(groups, &states, maxima, params, &arenas.inputs);
    let local_sums = compression.as_ref().map_or(0, Compression::sums);
    let sums = SumCounts { sums: update.sums(), most: maxima.parts, local: local_sums };
    let scalars = Scalars::plan(sums, digests, &arenas.inputs);
    let measures = Measures::plan(&update, maxima.parts, m, arenas);
    let norms = on_host.grads.then(|| Norms {
        grads: update.host_grads(&buckets, &layout, scalars.sums, measures.zeros),
        sums: Norms::plan_sums(level, &buckets, &arenas.grads),
    });
    let inputs =
        PassInputs { train: &train, eval: &eval, causal, layout: &layout, tables: &tables };
    // Micro-batches of all shapes share their bytes: one of them is in use at a time.
    for micro in m.schedule().largest_micros() {
        plan_training(groups, m, &inputs, &scalars, micro, arenas);
    }
    let training = plan_training(groups, m, &inputs, &scalars, m.schedule().first_micro(), arenas);
    let eval = plan_evaluation(groups, m, &inputs, arenas);
    RankMemory {
        params: ParamMemory { layout, buckets, windows, states, offload, norms },
        update,
        measures,
        compression,
        tables,
        training,
        eval,
        scalars,
        fp8,
    }
}

/// Buffers of the forward and backward passes of a training step.
pub struct TrainingBuffers {
    /// Samples and tokens for which they are laid out.
    pub micro: MicroShape,
    /// Activations of the micro-batches in flight, by slot and chunk. The chunks of a slot share its
    /// bytes.
    pub slots: Vec<Vec<Activations>>,
    pub work: GradBuffers,
    pub messages: MessageBuffers,
}

/// Inputs of the layout of passes.
pub struct PassInputs<'a> {
    pub train: &'a Cx<'a>,
    pub eval: &'a Cx<'a>,
    /// Whether no batch has its own mask.
    pub causal: bool,
    pub layout: &'a Layout,
    pub tables: &'a Tables,
}

impl PassInputs<'_> {
    /// Lays out the activations of a micro-batch, by chunk.
    fn plan_slot(
        &self,
        cx: &Cx,
        inputs: Inputs,
        saved: &Arena,
        workspace: &Arena,
    ) -> Vec<Activations> {
        let chunks = self.layout.shard.chunks.iter();
        saved.overlay(
            chunks.map(|chunk| Activations::plan(cx, chunk, inputs, self.tables, saved, workspace)),
        )
    }
}

/// Lays out the activations of every micro-batch in flight, and the buffers of a backward pass. The next
/// layout overlaps the same bytes.
pub fn plan_training(
    groups: &Groups,
    m: &Manifest,
    passes: &PassInputs,
    scalars: &Scalars,
    micro: MicroShape,
    arenas: &Arenas,
) -> TrainingBuffers {
    let PassInputs { train, causal, .. } = *passes;
    let pp = pipeline_rank(groups, m);
    let MicroShape { samples, tokens } = micro;
    let inputs = plan_inputs(slots(groups, m, samples), micro, causal, arenas);
    let rows = samples * tokens;
    let (work, messages, slots) = arenas.workspace.temporary(|workspace| {
        let scale = scalars.scaler.scale;
        let work = GradBuffers::plan(train, rows, scale, scalars.z_loss, workspace);
        let messages = MessageBuffers::plan(&train.tp, work.stream, pp, &m.topology, workspace);
        let slots = arenas.saved.temporary(|saved| {
            let slots = inputs.iter();
            slots
                .map(|inputs| passes.plan_slot(train, *inputs, saved, workspace))
                .collect()
        });
        (work, messages, slots)
    });
    TrainingBuffers { micro, slots, work, messages }
}

/// Lays out the activations of evaluations, over the bytes of training.
fn plan_evaluation(
    groups: &Groups,
    m: &Manifest,
    passes: &PassInputs,
    arenas: &Arenas,
) -> Vec<Vec<Activations>> {
    let micro = MicroShape { samples: m.batch.micro, tokens: m.model.seq_len };
    let slots = schedule::forward_slots(pipeline_rank(groups, m));
    let inputs = plan_inputs(slots, micro, passes.causal, arenas);
    arenas.workspace.temporary(|workspace| {
        // A sample of an evaluation task packs several questions, each with its own mask.
        let own_masks = !m.train.eval_tasks.is_empty();
        inputs
            .into_iter()
            .map(|inputs| if own_masks { inputs.with_masks() } else { inputs })
            .map(|inputs| passes.plan_slot(passes.eval, inputs, workspace, workspace))
            .collect()
    })
}

/// Inputs of micro-batches. The next ones overlap the same bytes.
fn plan_inputs(count: usize, micro: MicroShape, causal: bool, arenas: &Arenas) -> Vec<Inputs> {
    let MicroShape { samples, tokens } = micro;
    let plan = |arena: &Arena| Inputs::plan(samples, tokens, causal, arena);
    arenas
        .inputs
        .temporary(|arena| (0..count).map(|_| plan(arena)).collect())
}
