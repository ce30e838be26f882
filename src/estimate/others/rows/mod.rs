//! Tables of measured runs, one a row: what was run, and what it took.

pub mod check;
mod csv;
pub mod logs;

use crate::counts::Counts;
use crate::hardware;
use crate::setup::{Framework, Moments, Numbers, Offload, Program, Setup};
use base::Problems;
use manifest::{
    Dropout, Family, LayerSplit, Model, RankOrder, Recompute, Schedule, Sizes, Topology,
};

/// The runs the shipped constants are fitted to.
pub const SHIPPED: &str = include_str!("../../data/measured_runs.csv");

/// A measured run, or one to be predicted.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: String,
    pub line: usize,
    /// What was run, or why that cannot be known.
    pub setup: Result<Setup, String>,
    /// Rows of one group are the same configuration.
    pub group: String,
    pub flags: Vec<String>,
    /// Printed, or what the printed TFLOPs or days say.
    pub seconds: Option<f64>,
    pub seconds_printed: bool,
    pub memory_gb: Option<f64>,
    /// Whether it fitted; None if nobody says.
    pub fits: Option<bool>,
    pub tflops: Option<f64>,
    /// GPUs as the row counts them.
    pub devices: Option<usize>,
    pub use_time: bool,
    pub use_memory: bool,
}

impl Row {
    /// What is odd about it.
    pub fn odd(&self) -> Vec<String> {
        check::odd(self, self.devices)
    }

    /// What was run and what it took, if it may be learned from or scored.
    pub fn timing(&self) -> Option<(&Setup, f64)> {
        let setup = self.setup.as_ref().ok().filter(|_| self.use_time)?;
        Some((setup, self.seconds?))
    }

    /// The same for memory.
    pub fn weight(&self) -> Option<(&Setup, f64)> {
        let setup =
            self.setup.as_ref().ok().filter(|_| self.use_memory && self.fits != Some(false))?;
        Some((setup, self.memory_gb?))
    }
}

struct Fields<'a> {
    names: &'a [String],
    values: &'a [String],
}

impl Fields<'_> {
    fn text(&self, name: &str) -> &str {
        let at = self.names.iter().position(|n| n == name);
        at.and_then(|i| self.values.get(i)).map_or("", |v| v.trim())
    }
    fn number(&self, name: &str) -> Option<f64> {
        self.text(name).parse().ok()
    }
    fn count(&self, name: &str) -> Result<usize, String> {
        let text = self.text(name);
        match text.parse::<usize>() {
            Ok(n) if n > 0 && n <= 1 << 24 => Ok(n),
            _ if text.is_empty() => Err(format!("{name} is missing")),
            _ => Err(format!("{name} `{text}` is not a whole number")),
        }
    }
}

pub fn read(text: &str, name: &str) -> Result<Vec<Row>, Problems> {
    let records = csv::records(text);
    let Some(((_, names), rest)) = records.split_first() else {
        return Err(Problems::one(name, "the file is empty", "give a table of measured runs"));
    };
    let names: Vec<String> = names.iter().map(|n| n.trim().to_string()).collect();
    let needed = [
        "id",
        "hardware",
        "n_layers",
        "hidden",
        "n_heads",
        "vocab",
        "seq_len",
        "framework",
        "tp",
        "pp",
        "dp",
        "mbs",
        "gbs",
    ];
    let missing: Vec<&str> =
        needed.into_iter().filter(|column| !names.iter().any(|n| n == column)).collect();
    if !missing.is_empty() {
        let what = format!("not a table of measured runs: no column {}", missing.join(", "));
        let remedy = "the columns are those of src/estimate/data/measured_runs.csv";
        return Err(Problems::one(format!("{name}:1"), what, remedy));
    }
    Ok(rest.iter().map(|(line, values)| row(*line, &Fields { names: &names, values })).collect())
}

fn row(line: usize, f: &Fields) -> Row {
    let setup = setup(f);
    let printed = f.number("sec_per_iter");
    let implied = || {
        let s = setup.as_ref().ok()?;
        let tokens = (s.global * s.model.seq_len) as f64;
        let days = f.number("days_per_100b_tokens");
        days.map(|days| days * 86400.0 * tokens / 1e11)
    };
    let from_tflops = || {
        let s = setup.as_ref().ok()?;
        let tflops = f.number("tflops_reported")?;
        Some(simple_flops(s) / (tflops * 1e12 * s.ranks() as f64))
    };
    let flags: Vec<String> =
        f.text("flags").split(';').filter(|f| !f.is_empty()).map(str::to_string).collect();
    let seconds = printed.or_else(implied).or_else(from_tflops);
    Row {
        id: f.text("id").to_string(),
        line,
        seconds,
        seconds_printed: printed.is_some(),
        memory_gb: f.number("mem_gb"),
        fits: match f.text("outcome") {
            "ok" => Some(true),
            "OOM" => Some(false),
            _ => None,
        },
        tflops: f.number("tflops_reported"),
        devices: f.text("gpus").parse().ok(),
        use_time: f.text("use_time") != "0",
        use_memory: f.text("use_mem") != "0",
        group: f.text("config_group").to_string(),
        flags,
        setup,
    }
}

fn simple_flops(s: &Setup) -> f64 {
    let size = s.model.layers as f64 * 12.0 * (s.model.hidden as f64).powi(2);
    size * 8.0 * (s.model.seq_len * s.global) as f64
}

fn setup(f: &Fields) -> Result<Setup, String> {
    let hardware = hardware::find(f.text("hardware"), "").map_err(|p| p.list[0].what.clone())?;
    let framework = Framework::named(f.text("framework"))
        .ok_or_else(|| format!("unknown framework `{}`", f.text("framework")))?;
    let tensor = f.count("tp")?;
    let topology = Topology {
        tensor,
        pipeline: f.count("pp")?,
        data: f.count("dp")?,
        zero: f.text("zero_stage").parse().unwrap_or(0),
        sequence_parallel: false,
        schedule: Schedule::OneFOneB,
        chunks: 1,
        layer_split: match f.text("pp_partition") {
            t if t.starts_with("type:transformer|emb") => LayerSplit::TransformerAndEmbedding,
            _ => LayerSplit::Uniform,
        },
        neighbours: RankOrder::Data,
        recompute: Recompute::by_name(f.text("act_ckpt")).unwrap_or(Recompute::None),
        offload: manifest::Offload::NONE,
        compression: None,
    };
    let model = model(f, tensor)?;
    if topology.pipeline > model.layers || model.layers > 10_000 {
        return Err(format!(
            "PP {} has more stages than {} layers",
            topology.pipeline, model.layers
        ));
    }
    let optimizer = f.text("optimizer").to_lowercase();
    let offload = f.text("offload");
    let notes = f.text("notes");
    Ok(Setup {
        micro: f.count("mbs")?,
        global: f.count("gbs")?,
        numbers: match f.text("precision") {
            "bf16-fp32grad" => Numbers::Bf16Fp32Grad,
            "bf16" => Numbers::Bf16,
            "fp32" | "f32" => Numbers::F32,
            _ => Numbers::Fp16,
        },
        moments: match () {
            _ if optimizer.contains("8bit") => Moments::Adam8bit,
            _ if optimizer.contains("adafactor") => Moments::Adafactor,
            _ if optimizer.contains("muon") => Moments::Muon,
            _ => Moments::Adam,
        },
        offload: Offload {
            optimizer: offload.contains("optimizer"),
            weights: offload.contains("param"),
        },
        program: Program::Other(framework),
        hardware,
        per_node: f.count("gpus_per_node").unwrap_or(hardware.per_node),
        blocking: framework == Framework::MegatronDeepSpeed
            && !notes.contains("async=yes")
            && f.text("date") != "2022-02-17",
        power_sgd: f.text("flags").contains("powersgd"),
        regime: Some(f.text("regime").to_string()).filter(|r| !r.is_empty()),
        counts: Counts::new(&model, tensor),
        model,
        topology,
    })
}

/// GPT-2's form, or BLOOM's where the column `family` says so.
fn model(f: &Fields, tensor: usize) -> Result<Model, String> {
    let hidden = f.count("hidden")?;
    let vocab = f.count("vocab")?;
    let family = Family::by_name(f.text("family")).unwrap_or(Family::Gpt2);
    let sizes = Sizes {
        layers: f.count("n_layers")?,
        hidden,
        heads: f.count("n_heads")?,
        vocab,
        seq_len: f.count("seq_len")?,
    };
    Ok(Model {
        ffn_hidden: f.count("ffn_hidden").unwrap_or(4 * hidden),
        dropout: Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 },
        ..Model::with_defaults(family, sizes, tensor)
    })
}
