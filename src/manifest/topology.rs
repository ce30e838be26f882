//! Section `topology`: the split of the work over ranks.

use super::choices::{
    GradientHome, LayerSplitName, OffloadWhat, RankOrder, Recompute, ReplicaRule, Schedule,
    ShardRule, StateReplicas,
};
use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::report::Report;
use plan::grid::{self, Axis, Grid};
use plan::levels::Levels;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

kinds! {
#[derive(Copy)]
/// Compression of gradients between replicas.
Compression() at "topology.compression",
    CompressionName, CompressionForm, CompressionSection = "Compression" {
    /// Whole gradients.
    None = "none";
} settings {
    /// Low-rank factors of the blocks' matrices, with error feedback.
    #[schemars(required)]
    PowerSgd = "powersgd", powersgd: PowerSgd();
}
}

impl Compression {
    fn powersgd(self) -> Option<PowerSgd> {
        match self {
            Compression::None => None,
            Compression::PowerSgd(settings) => Some(settings),
        }
    }
}

settings! {
/// Division of the work: tensor × pipeline × data ranks.
Topology(raw) {
    /// Ranks that share each matrix (--tensor-model-parallel-size). Default: 1.
    tensor: usize = 1, in 1..=65_536;
    /// Pipeline stages (--pipeline-model-parallel-size). Default: 1.
    pipeline: usize = 1, in 1..=65_536;
    /// Replicas that share the batch, or auto: as many as the ranks of the job have room for,
    /// ranks / (tensor × pipeline); without a launcher as many as the machine's GPUs have, on CPUs 1. The
    /// run's folder keeps the number. Default: 1.
    data: ReplicasForm => usize = replicas(raw.data), written Some(Replicas(*data).into());
    /// State that is sharded among replicas: 0 nothing, 1 optimizer states, 2 also gradients, 3 also
    /// weights (--zero-stage). In a pipeline, 2 sums the gradients of blocks over replicas after every
    /// micro-batch, and 3 needs schedule: breadth_first with 3 or more chunks. Default: 0.
    zero: u8 = 0, in 0..=3;
    /// Micro-batches whose gradients of blocks a rank adds up before replicas sum them, at zero: 2 and 3
    /// with schedule: breadth_first; any number above those of a step sums once per step. The gradients of
    /// a chunk are then whole at a time. Default: 1.
    zero_every: usize = 1, in 1..=1_000_000;
    /// Replicas of a shard group: all, node (those on a node), or a number that divides data. With fewer
    /// than data, gradients are summed and weights gathered at two levels: among the neighbours of a group,
    /// then among the copies in the other groups, which send 1 / shard of the bytes. At zero: 2 and 3 the
    /// groups hold gradients and weights, each a copy; optimizer states are divided among all replicas.
    /// For nodes whose network is slower than their own links. Without effect on one replica. Default: all.
    shard: ShardForm => Shard = shard(raw.shard);
    /// Replicas that divide the optimizer states: all, or those of a shard group (shard). With shard every
    /// group has all states, and its copies sum their gradients and send no weights to each other: more
    /// memory, and no gather between groups after the update. Needs zero ≥ 1; the same with one level.
    /// Default: all.
    states: StateReplicas = StateReplicas::All;
    /// Whether tensor-parallel ranks divide norms and dropout along the sequence
    /// (--sequence-parallel); with tensor: 1 it is off. Default: false.
    sequence_parallel: bool = false;
    /// Order of forward and backward passes in the pipeline. Default: 1f1b.
    schedule: Schedule = Schedule::OneFOneB;
    /// Chunks of layers per stage, for schedule: interleaved and breadth_first. Default: 2.
    chunks: usize
        => usize = if schedule.has_chunks() { raw.chunks.unwrap_or(2) } else { 1 },
        in 2..=1024, written Some(*chunks).filter(|chunks| *chunks > 1);
    /// Whether messages between stages overlap with the passes of schedule: interleaved
    /// (--overlap-p2p-communication); on GPUs this needs independent streams. Default: false.
    overlap_p2p: bool = false;
    /// Layers of the stages: a rule, or a list of layers per stage; with several chunks, per
    /// chunk in the model's order; 0 leaves the first stage its embedding alone, the last its head. Default:
    /// uniform.
    layer_split: LayerSplitForm => LayerSplit = layer_split(raw.layer_split);
    /// Ranks with adjacent numbers, next after tensor-parallel ranks. Default: data.
    neighbours: RankOrder = RankOrder::Data;
    /// Activations that forward drops and backward recomputes. Default: none.
    recompute: Recompute = Recompute::None;
    /// State in the host's memory instead of the device's: none, optimizer, full, or settings. The
    /// results are the same. Default: none.
    offload: OffloadForm => Offload = offload(raw.offload);
    /// Compression of gradients between replicas, for slow networks: powersgd; with zero at most 1. A
    /// single replica sends and compresses nothing. Default: none.
    compression: CompressionForm => Option<PowerSgd>
        = Compression::read(raw.compression, CompressionName::None).powersgd(),
        written compression.and_then(|settings| Compression::PowerSgd(settings).written());
}

#[derive(Copy)]
/// State in the memory of the host (ZeRO-Offload: Ren et al. 2021).
Offload(raw) {
    /// State to offload. Default: none.
    what: OffloadWhat = OffloadWhat::None;
    /// Memory of gradients that wait for the update. Default: auto.
    gradients: GradientHome = GradientHome::Auto;
}

#[derive(Copy)]
/// Replicas sum low-rank factors of the gradients of block matrices, and add the error to the next
/// step's gradients (PowerSGD: Vogels, Karimireddy & Jaggi 2019). A different tensor parallelism
/// compresses different shards, so it trains slightly differently. A save averages the errors of the
/// replicas, which changes later steps by rounding.
PowerSgd(raw) {
    /// Columns of the factors: a matrix becomes 4·rank·(rows + columns) bytes. Default: 4.
    rank: usize = 4, in 1..=32;
    /// Steps at the start of the run without compression. Default: 1000.
    start_step: u64 = 1000, in 0..=1_000_000_000_000_000u64;
    /// Compression rate above which a matrix is compressed. Default: 2.
    min_rate: f64 = 2.0, in 1.0..=1e6;
}
}

forms! {
    /// Number of replicas, or a rule for it.
    ReplicasForm {
        /// By a rule.
        Rule(ReplicaRule),
        /// The number.
        Number(Replicas),
    }
    /// Replicas of a shard group: a rule, or their number.
    ShardForm {
        /// By a rule.
        Rule(ShardRule),
        /// The number.
        Number(ShardSize),
    }
    /// State in the host's memory, by name or with settings.
    OffloadForm {
        /// By name, with its defaults.
        Name(OffloadWhat),
        /// With settings.
        Settings(raw::Offload),
    }
    /// Layers of stages: a rule, or the number for each stage.
    LayerSplitForm {
        /// By a rule.
        Rule(LayerSplitName),
        /// Layers of each stage, first to last.
        Layers(Vec<LayerCount>),
    }
}

/// Number of replicas.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Replicas(#[schemars(range(min = 1, max = 1_048_576))] pub usize);

/// Number of ranks from which `topology.data: auto` follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Not known: `auto` is refused.
    Unknown,
    /// Those of one replica.
    OneReplica,
    Number(usize),
}

/// Number of replicas; 1 for `auto`, which `Topology::resolve_replicas` has replaced.
fn replicas(form: Option<ReplicasForm>) -> usize {
    match form {
        Some(ReplicasForm::Number(Replicas(number))) => number,
        None | Some(ReplicasForm::Rule(ReplicaRule::Auto)) => 1,
    }
}

impl raw::Topology {
    /// Replaces `data: auto` by a number. Returns whether it was `auto`.
    pub(super) fn resolve_replicas(&mut self, ranks: Ranks, report: &mut Report) -> bool {
        const DATA: &str = "topology.data";
        let Some(ReplicasForm::Rule(ReplicaRule::Auto)) = self.data else { return false };
        let (tensor, pipeline) = (self.tensor.unwrap_or(1), self.pipeline.unwrap_or(1));
        let replica = tensor * pipeline;
        let number = match ranks {
            Ranks::Unknown => {
                report.add(
                    DATA,
                    "topology.data is auto, and this command does not know the number of ranks",
                    "give the number of replicas: --set topology.data=2",
                );
                1
            }
            Ranks::OneReplica => 1,
            Ranks::Number(ranks) if ranks > 0 && ranks.is_multiple_of(replica) => ranks / replica,
            Ranks::Number(ranks) => {
                let below = ranks / replica * replica;
                let near = match below {
                    0 => format!("{replica}"),
                    _ => format!("{below} or {}", below + replica),
                };
                report.add(
                    DATA,
                    format!(
                        "topology.data is auto, and {ranks} ranks are not divisible by tensor {tensor} × \
                         pipeline {pipeline} = {replica}"
                    ),
                    format!("start {near} ranks, or change topology.tensor or topology.pipeline"),
                );
                1
            }
        };
        self.data = Some(Replicas(number).into());
        true
    }
}

/// Number of replicas of a shard group.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ShardSize(#[schemars(range(min = 2, max = 1_048_576))] pub usize);

/// Replicas that divide one copy of the weights among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shard {
    All,
    /// Those on a node; all of them, unless `resolve_shard` finds several nodes.
    Node,
    Ranks(usize),
}

fn shard(form: Option<ShardForm>) -> Shard {
    match form {
        None | Some(ShardForm::Rule(ShardRule::All)) => Shard::All,
        Some(ShardForm::Rule(ShardRule::Node)) => Shard::Node,
        Some(ShardForm::Number(ShardSize(ranks))) => Shard::Ranks(ranks),
    }
}

impl Written for Shard {
    type Raw = ShardForm;

    fn written(&self) -> Option<ShardForm> {
        Some(match self {
            Shard::All => ShardRule::All.into(),
            Shard::Node => ShardRule::Node.into(),
            Shard::Ranks(ranks) => ShardSize(*ranks).into(),
        })
    }
}

/// Number of layers of a stage.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct LayerCount(#[schemars(range(min = 0, max = 10_000))] pub usize);

/// Split of layers into pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayerSplit {
    Uniform,
    /// Embedding and head count as a layer each: the first and last stage hold one layer less, and may
    /// hold none
    /// (Megatron-DeepSpeed's `type:transformer|embedding`).
    TransformerAndEmbedding,
    /// Minimises the cost of the most expensive stage.
    Balanced,
    /// Layers of each stage.
    Explicit(Vec<usize>),
}

fn layer_split(form: Option<LayerSplitForm>) -> LayerSplit {
    use LayerSplitName::{Balanced, TransformerAndEmbedding, Uniform};
    match form {
        None | Some(LayerSplitForm::Rule(Uniform)) => LayerSplit::Uniform,
        Some(LayerSplitForm::Rule(TransformerAndEmbedding)) => LayerSplit::TransformerAndEmbedding,
        Some(LayerSplitForm::Rule(Balanced)) => LayerSplit::Balanced,
        Some(LayerSplitForm::Layers(stages)) => {
            LayerSplit::Explicit(stages.into_iter().map(|stage| stage.0).collect())
        }
    }
}

impl Written for LayerSplit {
    type Raw = LayerSplitForm;

    fn written(&self) -> Option<LayerSplitForm> {
        Some(match self {
            LayerSplit::Uniform => LayerSplitName::Uniform.into(),
            LayerSplit::TransformerAndEmbedding => LayerSplitName::TransformerAndEmbedding.into(),
            LayerSplit::Balanced => LayerSplitName::Balanced.into(),
            LayerSplit::Explicit(stages) => stages
                .iter()
                .copied()
                .map(LayerCount)
                .collect::<Vec<_>>()
                .into(),
        })
    }
}

fn offload(form: Option<OffloadForm>) -> Offload {
    Offload::read(match form {
        None => raw::Offload::default(),
        Some(OffloadForm::Name(what)) => raw::Offload { what: Some(what), ..Default::default() },
        Some(OffloadForm::Settings(settings)) => settings,
    })
}

impl Topology {
    /// The schedule, unless it is the default: `, gpipe`, `, breadth_first with 3 chunks`. To follow the
    /// degrees of parallelism in a line of text.
    pub fn schedule_words(&self) -> String {
        match self.schedule {
            Schedule::OneFOneB => String::new(),
            Schedule::GPipe => format!(", {}", self.schedule.name()),
            Schedule::Interleaved | Schedule::BreadthFirst => {
                format!(", {} with {} chunks", self.schedule.name(), self.chunks)
            }
        }
    }

    /// Number of ranks: tensor × pipeline × data.
    pub fn ranks(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    /// Replicas of a shard group.
    pub fn shard_size(&self) -> usize {
        match self.shard {
            Shard::Ranks(ranks) if self.data > 1 => ranks,
            Shard::All | Shard::Node | Shard::Ranks(_) => self.data,
        }
    }

    /// Place of replica `rank` at the levels of replicas.
    pub fn levels(&self, rank: usize) -> Levels {
        Levels::new(self.data, self.shard_size(), rank).with_equal_states(self.copies_states())
    }

    /// Whether every copy has all optimizer states.
    pub fn copies_states(&self) -> bool {
        self.has_two_levels() && self.zero > 0 && self.states == StateReplicas::Shard
    }

    /// Whether replicas have two levels.
    pub fn has_two_levels(&self) -> bool {
        self.shard_size() < self.data
    }

    /// Grid of ranks.
    pub fn grid(&self) -> Grid {
        let order = match self.neighbours {
            RankOrder::Data => grid::DATA_FIRST,
            RankOrder::Pipeline => grid::STAGES_FIRST,
        };
        let sizes =
            [(Axis::Tensor, self.tensor), (Axis::Pipeline, self.pipeline), (Axis::Data, self.data)];
        Grid::new(order, &sizes)
    }

    /// Whether the home of gradients (host or device) is still to be decided, with Adafactor or another
    /// optimizer.
    pub fn gradients_are_open(&self, adafactor: bool) -> bool {
        let Offload { what, gradients } = self.offload;
        let on_device = self.compression.is_some() || adafactor;
        what != OffloadWhat::None && gradients == GradientHome::Auto && !on_device
    }

    /// The same topology without any parallelism.
    pub fn single_rank(&self) -> Topology {
        Topology {
            tensor: 1,
            pipeline: 1,
            data: 1,
            zero: 0,
            zero_every: 1,
            shard: Shard::All,
            states: StateReplicas::All,
            sequence_parallel: false,
            schedule: Schedule::OneFOneB,
            chunks: 1,
            layer_split: LayerSplit::Uniform,
            compression: None,
            ..*self
        }
    }
}

impl Schedule {
    /// Whether a stage has several chunks of layers.
    pub fn has_chunks(self) -> bool {
        matches!(self, Schedule::Interleaved | Schedule::BreadthFirst)
    }

    /// Whether the activations of all micro-batches of a step are kept at once.
    pub fn keeps_all_micros(self) -> bool {
        matches!(self, Schedule::GPipe | Schedule::BreadthFirst)
    }
}

impl Offload {
    /// No data on the host.
    pub const NONE: Offload = Offload { what: OffloadWhat::None, gradients: GradientHome::Auto };
}

impl Default for PowerSgd {
    fn default() -> PowerSgd {
        PowerSgd::read(raw::PowerSgd::default())
    }
}
