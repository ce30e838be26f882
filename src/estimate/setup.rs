//! Setup to estimate: a model, a topology, machines and a program. Manifests and rows of measured runs
//! are converted to it.

use super::counts::Counts;
use super::hardware::Hardware;
use super::mixture::{Degrees, Mixture};
use super::rates;
use super::trainers::{self, Trainer};
use manifest::{
    self, LayerSplit, Manifest, Model, OffloadWhat, Optimizer, Position, Precision, Recompute,
    Topology,
};
use model::flops_per_token;
use plan::split;
use std::ops::Range;

/// Trainer: gptrain itself, with a dry run of its engine, or another program, whose needs are predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Program {
    Gptrain,
    Other(&'static Trainer),
}

impl Program {
    /// Program that a manifest names.
    pub fn from_framework(framework: manifest::Framework) -> Program {
        trainers::lookup(framework.name()).map_or(Program::Gptrain, Program::Other)
    }

    pub fn name(self) -> &'static str {
        match self {
            Program::Gptrain => "gptrain",
            Program::Other(trainer) => &trainer.name,
        }
    }

    /// Whether it has tensor and pipeline parallelism.
    pub fn cuts_layers(self) -> bool {
        !matches!(self, Program::Other(trainer) if trainer.replicas_only)
    }

    /// The ZeRO levels it has, without and with a pipeline.
    pub fn zero_levels(self, pipeline: usize) -> &'static [u8] {
        match (self, pipeline) {
            (Program::Gptrain, 1) => &[0, 1, 2, 3],
            (Program::Gptrain, _) => &[0, 1, 2],
            (Program::Other(trainer), 1) => &trainer.zero,
            (Program::Other(trainer), _) => &trainer.piped,
        }
    }

    pub fn recomputes(self) -> &'static [Recompute] {
        match self {
            Program::Gptrain => Recompute::ALL,
            Program::Other(trainer) => &trainer.recompute,
        }
    }

    /// Chunks of layers that a stage may hold, of the interleaved schedule.
    pub fn chunks(self) -> &'static [usize] {
        match self {
            Program::Gptrain => &[2, 4],
            Program::Other(trainer) => &trainer.chunks,
        }
    }
}

/// Element types in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    F32,
    Fp16,
    Bf16,
    /// bf16 with gradients accumulated in fp32.
    Bf16Fp32Grad,
    /// bf16 whose blocks' products are in 8 or 4 bits.
    Fp8,
    Fp4,
}

impl Numbers {
    /// Bits of the operands of the blocks' products.
    pub fn bits(self) -> f64 {
        match self {
            Numbers::F32 => 32.0,
            Numbers::Fp16 | Numbers::Bf16 | Numbers::Bf16Fp32Grad => 16.0,
            Numbers::Fp8 => 8.0,
            Numbers::Fp4 => 4.0,
        }
    }
}

/// Bytes per parameter that the optimizer keeps in addition to the fp32 master copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    Adam,
    Adam8bit,
    Adafactor,
    Muon,
}

impl Moments {
    pub fn bytes(self) -> f64 {
        match self {
            Moments::Adam => 8.0,
            Moments::Adam8bit => 2.0,
            Moments::Adafactor => 0.0,
            Moments::Muon => 4.0,
        }
    }
}

/// State in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub optimizer: bool,
    pub weights: bool,
}

/// Extras that gptrain's cuts may use in addition to the setup's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// States, or weights too, in the host's memory.
    pub offload: bool,
    /// AdamW's moments in 8 bits.
    pub adam8bit: bool,
    /// Gradients of low rank between replicas.
    pub powersgd: bool,
}

impl Extras {
    /// Extras that need less memory.
    pub const SMALLER: Extras = Extras { offload: true, adam8bit: true, powersgd: false };
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub model: Model,
    /// Parameters of a rank: `Counts::new` of model and topology.
    pub counts: Counts,
    pub topology: Topology,
    /// Experts of the layers, of which `model` is the dense part. None for a dense model.
    pub mixture: Option<Mixture>,
    /// Degrees beside the topology's.
    pub degrees: Degrees,
    /// Samples of a micro-batch and of a step.
    pub micro: usize,
    pub global: usize,
    pub numbers: Numbers,
    pub moments: Moments,
    pub offload: Offload,
    pub program: Program,
    pub hardware: &'static Hardware,
    /// Devices of a node.
    pub per_node: usize,
    /// Whether each launch waits for its kernel (CUDA_LAUNCH_BLOCKING=1).
    pub blocking: bool,
    /// Whether gradients are compressed to low rank before they are sent.
    pub power_sgd: bool,
    /// Period with the same machines and software, of measured runs.
    pub regime: Option<String>,
}

impl Setup {
    /// Cuts over so many devices: tensor ranks that fast links join, up to one pipeline stage a layer.
    pub fn grids(&self, devices: usize) -> Vec<(usize, usize, usize)> {
        let mut grids = Vec::new();
        let context = self.degrees.context;
        if !devices.is_multiple_of(context) {
            return grids;
        }
        let devices = devices / context;
        for tensor in 1..=self.link_domain().min(devices) {
            let possible = self.has_fast_links(tensor, devices)
                && self.model.heads().kv.is_multiple_of(tensor)
                && devices.is_multiple_of(tensor);
            if !possible {
                continue;
            }
            let rest = devices / tensor;
            if tensor > 1 && !self.program.cuts_layers() {
                continue;
            }
            let deepest = if self.program.cuts_layers() { self.model.layers } else { 1 };
            let pipelines = (1..=deepest.min(rest)).filter(|p| rest.is_multiple_of(*p));
            grids.extend(pipelines.map(|pipeline| (tensor, pipeline, rest / pipeline)));
        }
        grids
    }

    /// Setup of a manifest, as a program would train it.
    pub fn new(m: &Manifest, program: Program, hardware: &'static Hardware) -> Setup {
        let wide = matches!(program, Program::Other(trainer) if trainer.wide_sums);
        Setup {
            counts: Counts::new(&m.model, m.topology.tensor),
            model: m.model.clone(),
            topology: m.topology.clone(),
            mixture: None,
            degrees: Degrees::default(),
            micro: m.batch.micros().at(m.batch.global),
            global: m.batch.global,
            numbers: match m.precision {
                Precision::F32 | Precision::Tf32 => Numbers::F32,
                Precision::Fp16 => Numbers::Fp16,
                Precision::Fp8 if hardware.fp8_tflops > 0.0 => Numbers::Fp8,
                _ if wide => Numbers::Bf16Fp32Grad,
                _ => Numbers::Bf16,
            },
            moments: match m.optimizer {
                Optimizer::AdamW(_) => Moments::Adam,
                Optimizer::Adam8bit(_) => Moments::Adam8bit,
                Optimizer::Adafactor(_) => Moments::Adafactor,
                Optimizer::Muon(_) => Moments::Muon,
            },
            offload: Offload {
                optimizer: m.topology.offload.what != OffloadWhat::None,
                weights: m.topology.offload.what == OffloadWhat::Full,
            },
            program,
            hardware,
            per_node: hardware.per_node,
            blocking: hardware.blocking && program != Program::Gptrain,
            power_sgd: m.topology.compression.is_some(),
            regime: None,
        }
    }

    /// Other program whose formulas are used.
    ///
    /// # Panics
    /// For gptrain, which has no formulas but a dry run.
    pub fn trainer(&self) -> &'static Trainer {
        match self.program {
            Program::Other(trainer) => trainer,
            Program::Gptrain => panic!("formulas of other programs for gptrain"),
        }
    }

    /// Setup of another manifest, on the same machines.
    pub fn for_manifest(&self, m: &Manifest) -> Setup {
        let Setup { per_node, mixture, degrees, .. } = *self;
        Setup { per_node, mixture, degrees, ..Setup::new(m, self.program, self.hardware) }
    }

    /// Setup with another topology, and its counts and vocabulary.
    pub fn with_topology(mut self, change: impl FnOnce(&mut Topology)) -> Setup {
        change(&mut self.topology);
        let multiple = self.model.vocab_multiple * self.topology.tensor;
        self.model.vocab_padded = self.model.vocab.next_multiple_of(multiple);
        self.counts = Counts::new(&self.model, self.topology.tensor);
        self
    }

    /// Setup with samples of another length.
    pub fn with_length(mut self, seq_len: usize) -> Setup {
        self.model.positions = self.model.positions.or(Some(self.model.seq_len));
        self.model.seq_len = seq_len;
        self
    }

    /// Devices that the fast links join: those of a node, or of several (NVL72).
    pub fn link_domain(&self) -> usize {
        self.hardware.link_domain.max(self.per_node)
    }

    /// Whether fast links join all ranks of each group of `size` neighbours among `devices`.
    pub fn has_fast_links(&self, size: usize, devices: usize) -> bool {
        let domain = self.link_domain();
        domain.is_multiple_of(size) || devices <= domain
    }

    /// Notes on the basis of a plan whose run takes so many seconds.
    pub fn notes(&self, seconds: f64) -> Vec<String> {
        [self.hardware.notes(self.program.name(), seconds), self.foreign_notes()].concat()
    }

    /// Reasons why it cannot run: every rule of the topology, the batch and the shape that it violates.
    pub fn violations(&self) -> Vec<String> {
        let m = &self.model;
        let t = &self.topology;
        let mut found = Vec::new();
        let mut rule = |broken: bool, what: String| {
            if broken {
                found.push(what);
            }
        };
        let at_once = self.micro * t.data;
        let uneven = matches!(self.program, Program::Other(trainer) if trainer.uneven);
        rule(
            !uneven && !self.global.is_multiple_of(at_once),
            format!(
                "batch {} is not a multiple of micro {} × DP {}",
                self.global, self.micro, t.data
            ),
        );
        rule(
            t.pipeline > m.layers,
            format!("PP {} has more stages than {} layers", t.pipeline, m.layers),
        );
        rule(
            m.head_dim.is_none() && !m.hidden.is_multiple_of(m.heads),
            format!("hidden {} is not divisible by {} heads", m.hidden, m.heads),
        );
        rule(
            !m.heads().kv.is_multiple_of(t.tensor),
            format!("{} heads are not divisible by TP {}", m.heads().kv, t.tensor),
        );
        rule(
            t.layer_split == LayerSplit::TransformerAndEmbedding
                && !(m.layers + 2).is_multiple_of(t.pipeline),
            format!("{} layers + 2 is not divisible by PP {}", m.layers, t.pipeline),
        );
        found.extend(self.degree_violations());
        found
    }

    /// FLOPs of an iteration: of the model, and of the hardware, which include recomputation.
    pub fn flops(&self) -> (f64, f64) {
        let tokens = (self.global * self.model.seq_len) as f64;
        let flops = flops_per_token(&self.model);
        let more = self.more_forward_flops();
        let again = if self.topology.recompute == Recompute::Full { more } else { 0.0 };
        let hardware = flops.hardware(self.topology.recompute) + 3.0 * more + again;
        (tokens * (flops.model + 3.0 * more), tokens * hardware)
    }

    /// Model FLOPs of attention scores and their products, all positions with all.
    pub fn score_flops(&self) -> f64 {
        let m = &self.model;
        let each = 12.0 * (m.seq_len * m.layers * m.heads().query_width()) as f64;
        (self.global * m.seq_len) as f64 * each
    }

    /// TFLOP/s of a device by the rule 8 (6 without recomputation) FLOPs a parameter and token.
    pub fn simple_tflops(&self, seconds: f64) -> f64 {
        let factor = rates::simple_factor(self.topology.recompute);
        let tokens = (self.global * self.model.seq_len) as f64;
        let parameters = self.active_parameters();
        rates::simple_tflops(factor, parameters, tokens, seconds, self.ranks() as f64)
    }

    /// Micro-batches of a replica in a step.
    pub fn micros(&self) -> usize {
        (self.global / (self.micro * self.topology.data)).max(1)
    }

    /// Whether attention keeps no scores.
    pub fn keeps_no_scores(&self) -> bool {
        self.trainer().flash && self.model.position != Position::Alibi
    }

    /// A head dimension that tensor cores do not take well.
    pub fn has_odd_heads(&self) -> bool {
        !self.model.heads().dim.is_multiple_of(8)
    }

    pub fn ranks(&self) -> usize {
        self.topology.ranks() * self.degrees.context
    }

    /// Layers of each stage.
    pub fn stages(&self) -> Vec<Range<usize>> {
        let layers = self.model.layers;
        let stages = self.topology.pipeline;
        match &self.topology.layer_split {
            LayerSplit::TransformerAndEmbedding if (layers + 2).is_multiple_of(stages) => {
                split::with_ends(layers, stages)
            }
            LayerSplit::Explicit(sizes) if sizes.len() == stages => split::explicit(sizes),
            // A list by chunks has several parts a stage, about as many layers in each stage.
            LayerSplit::Explicit(_)
            | LayerSplit::Uniform
            | LayerSplit::Balanced
            | LayerSplit::TransformerAndEmbedding => split::uniform(layers, stages),
        }
    }

    /// Number of forward passes of a layer.
    pub fn forward_passes(&self) -> f64 {
        if self.topology.recompute == Recompute::Full { 2.0 } else { 1.0 }
    }
}
