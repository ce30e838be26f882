//! Tables of measured runs, one per row: the setup, its time and its memory.

pub mod check;

use base::Problems;
use estimate::counts::Counts;
use estimate::hardware::{self, Hardware};
use estimate::logs::StepMedians;
use estimate::machine;
use estimate::mixture::Degrees;
use estimate::mixture::published::{self, Published};
use estimate::setup::{Moments, Numbers, Offload, Program, Setup};
use estimate::trainers::{self, Trainer};
use manifest::{
    Dropout, Family, LayerSplit, Model, RankOrder, Recompute, Schedule, Shard, Sizes,
    StateReplicas, Topology,
};
use std::sync::LazyLock;

/// Runs to which the shipped constants are fitted: those of one institute, and published ones of many.
pub const SHIPPED: &str = include_str!("../data/measured_runs.csv");
pub const VTRAIN: &str = include_str!("../data/vtrain_open.csv");
pub const PUBLIC: &str = include_str!("../data/public_open.csv");
/// Published runs of mixtures of experts.
pub const EXPERTS: &str = include_str!("../data/experts_open.csv");
/// Published runs that only score the planner.
pub const HELD: &str = include_str!("../data/held_open.csv");

/// All shipped runs from which something can be learned.
pub fn shipped() -> Vec<&'static Row> {
    static ALL: LazyLock<Vec<Row>> = LazyLock::new(|| {
        let tables = [SHIPPED, VTRAIN, PUBLIC];
        tables
            .into_iter()
            .flat_map(|text| read(text, "shipped").expect("the shipped rows are well-formed"))
            .collect()
    });
    let is_learned = |row: &&Row| row.setup.as_ref().is_ok_and(|setup| !setup.is_foreign());
    ALL.iter().filter(is_learned).collect()
}

/// Shipped runs with experts or context parallelism, from which nothing is learned.
pub fn foreign() -> Vec<Row> {
    let tables = [PUBLIC, EXPERTS].into_iter();
    let rows =
        tables.flat_map(|text| read(text, "shipped").expect("the shipped rows are well-formed"));
    rows.filter(|row| row.setup.as_ref().is_ok_and(Setup::is_foreign))
        .collect()
}

/// Shipped runs from which nothing is learned, so that they score the planner as other people's runs do.
pub fn held() -> &'static [Row] {
    static HELD_ROWS: LazyLock<Vec<Row>> =
        LazyLock::new(|| read(HELD, "shipped").expect("the shipped rows are well-formed"));
    &HELD_ROWS
}

const BLOOM_VOCAB: usize = 250_880;

/// Measured run, or run to predict.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: String,
    pub line: usize,
    /// Setup of the run, or the reason why it is unknown.
    pub setup: Result<Setup, String>,
    /// Source of the measurements; for those with a period, the document's number.
    pub source: String,
    /// Rows of one group are the same configuration.
    pub group: String,
    pub flags: Vec<String>,
    /// Printed seconds, or those derived from printed TFLOPs or days.
    pub seconds: Option<f64>,
    pub seconds_printed: bool,
    pub memory_gb: Option<f64>,
    /// Whether it fitted; None if unknown.
    pub fits: Option<bool>,
    pub tflops: Option<f64>,
    /// GPUs as the row counts them.
    pub devices: Option<usize>,
    pub use_time: bool,
    pub use_memory: bool,
}

/// Rows of a log of a run of `setup`. `source` is the log's name.
pub fn from_log(medians: Vec<StepMedians>, source: &str, setup: &Setup) -> Vec<Row> {
    medians
        .into_iter()
        .map(|medians| Row {
            id: medians.id,
            line: medians.line,
            group: format!("batch {}", medians.batch),
            source: source.to_string(),
            seconds: medians.seconds,
            seconds_printed: true,
            memory_gb: medians.memory_gb,
            fits: Some(true),
            tflops: medians.tflops,
            devices: None,
            flags: Vec::new(),
            use_time: true,
            use_memory: true,
            setup: Ok(Setup { global: medians.batch, ..setup.clone() }),
        })
        .collect()
}

impl Row {
    /// Problems of the row.
    pub fn problems(&self) -> Vec<String> {
        check::problems(self, self.devices)
    }

    /// The same run with asynchronous kernel launches.
    pub fn with_async_launches(mut self) -> Row {
        if let Ok(setup) = &mut self.setup {
            setup.blocking = false;
        }
        self
    }

    /// Setup and time, if the row can be used for learning or scores.
    pub fn timing(&self) -> Option<(&Setup, f64)> {
        let setup = self.setup.as_ref().ok().filter(|_| self.use_time)?;
        Some((setup, self.seconds?))
    }

    /// The same for memory.
    pub fn memory(&self) -> Option<(&Setup, f64)> {
        let setup = self
            .setup
            .as_ref()
            .ok()
            .filter(|_| self.use_memory && self.fits != Some(false))?;
        Some((setup, self.memory_gb?))
    }
}

struct Fields<'a> {
    names: &'a [String],
    values: &'a [String],
}

impl Fields<'_> {
    fn text(&self, name: &str) -> &str {
        let column = self.names.iter().position(|n| n == name);
        column
            .and_then(|i| self.values.get(i))
            .map_or("", |v| v.trim())
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

/// Records of comma-separated values, each with its line.
fn records(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader
        .has_headers(false)
        .flexible(true)
        .terminator(csv::Terminator::Any(b'\n'));
    let records = reader
        .from_reader(text.as_bytes())
        .into_records()
        .map_while(Result::ok);
    let fields = |record: csv::StringRecord| {
        let line = record.position().map_or(0, |at| at.line() as usize);
        (line, record.iter().map(str::to_string).collect::<Vec<_>>())
    };
    records
        .map(fields)
        .filter(|(_, fields)| fields.iter().any(|f| !f.trim().is_empty()))
        .collect()
}

pub fn read(text: &str, name: &str) -> Result<Vec<Row>, Problems> {
    read_with(text, name, Given::default())
}

/// The user's knowledge of programs and machines that the tables do not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    /// Program whose formulas rows of unknown programs have.
    pub family: Option<&'static Trainer>,
    /// Machine of a file, which rows have by its name.
    pub machine: Option<&'static Hardware>,
}

impl Given {
    /// Machine of a row.
    fn hardware(&self, name: &str, regime: &str) -> Result<&'static Hardware, String> {
        match self.machine {
            Some(own) if own.name == name.to_ascii_lowercase() => Ok(own),
            Some(own) => hardware::for_run(name, regime)
                .map_err(|p| format!("{}, nor that of --hardware, {}", p.list[0].what, own.name)),
            None => hardware::for_run(name, regime).map_err(|p| {
                format!(
                    "{}: --hardware FILE.yaml, with the same name, describes it",
                    p.list[0].what
                )
            }),
        }
    }
}

/// Columns that a table must have.
const COLUMNS: &str =
    "id hardware n_layers hidden n_heads vocab seq_len framework tp pp dp mbs gbs";

/// The same, with the user's programs and machines in addition to the tables.
pub fn read_with(text: &str, name: &str, given: Given) -> Result<Vec<Row>, Problems> {
    let records = records(text);
    let Some(((_, names), rest)) = records.split_first() else {
        return Err(Problems::one(name, "the file is empty", "give a table of measured runs"));
    };
    let names: Vec<String> = names.iter().map(|n| n.trim().to_string()).collect();
    let missing: Vec<&str> = COLUMNS
        .split(' ')
        .filter(|column| !names.iter().any(|n| n == column))
        .collect();
    if !missing.is_empty() {
        return Err(Problems::one(
            format!("{name}:1"),
            format!("not a table of measured runs: no column {}", missing.join(", ")),
            "the columns are those of src/predict/data/measured_runs.csv",
        ));
    }
    let fields = |values| Fields { names: &names, values };
    Ok(rest
        .iter()
        .map(|(line, values)| row(*line, &fields(values), given))
        .collect())
}

fn row(line: usize, f: &Fields, given: Given) -> Row {
    let setup = setup(f, given);
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
    let flags: Vec<String> = f
        .text("flags")
        .split(';')
        .filter(|f| !f.is_empty())
        .map(str::to_string)
        .collect();
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
        group: match f.text("config_group") {
            "" => f.text("id").to_string(),
            group => group.to_string(),
        },
        source: match (&setup, f.text("regime")) {
            (_, "") | (Err(_), _) => f.text("source").to_string(),
            (Ok(_), _) => document(f.text("source")).to_string(),
        },
        flags,
        setup,
    }
}

/// The number before the first underscore: `004` of `004_315df52b3709d61f.txt`.
fn document(source: &str) -> &str {
    source.split('_').next().unwrap_or(source)
}

fn simple_flops(s: &Setup) -> f64 {
    let size = s.model.layers as f64 * 12.0 * (s.model.hidden as f64).powi(2);
    size * 8.0 * (s.model.seq_len * s.global) as f64
}

/// Published mixture of experts that a row names. A row with expert parallelism must name one.
fn mixture(f: &Fields) -> Result<Option<&'static Published>, String> {
    match (f.text("mixture"), f.number("ep").filter(|n| *n > 1.0)) {
        ("", None) => Ok(None),
        ("", Some(ranks)) => Err(format!(
            "experts over {ranks} ranks: the column `mixture` names one of {}",
            published::PUBLISHED
                .iter()
                .map(|row| row.name)
                .collect::<Vec<_>>()
                .join(", ")
        )),
        (name, _) => published::find(name).map(Some),
    }
}

/// Degrees of the columns `cp` and `ep`.
fn degrees(f: &Fields) -> Degrees {
    let [context, expert] = ["cp", "ep"].map(|column| f.count(column).unwrap_or(1));
    Degrees { context, expert }
}

/// Program of a row, whose replica has so many ranks.
fn trainer(
    f: &Fields,
    replica: usize,
    family: Option<&Trainer>,
) -> Result<&'static Trainer, String> {
    let name = f.text("framework");
    let trainer = trainers::lookup(name).map_or_else(
        || {
            let advice = trainers::advice(name, replica > 1);
            family
                .map(|family| family.with_name(name))
                .ok_or(format!("unknown program `{name}`: {advice}"))
        },
        Ok,
    )?;
    Ok(trainer.for_length(f.count("seq_len")?, replica))
}

fn setup(f: &Fields, given: Given) -> Result<Setup, String> {
    let mixture = mixture(f)?;
    let regime = f.text("regime");
    let hardware = given.hardware(f.text("hardware"), regime)?;
    let hardware = match f.text("ring_share") {
        "" => hardware,
        share => {
            let set = format!("hardware.ring_share={share}");
            machine::with_settings(hardware, &[set]).map_err(|p| p.list[0].what.clone())?
        }
    };
    let trainer = trainer(f, f.count("tp")? * f.count("pp")?, given.family)?;
    let topology = topology(f, trainer)?;
    let model = match mixture {
        Some(named) => named.model(f.count("seq_len")?),
        None => model(f, topology.tensor)?,
    };
    if topology.pipeline > model.layers || model.layers > 10_000 {
        let stages = topology.pipeline;
        let layers = model.layers;
        return Err(format!("PP {stages} has more stages than {layers} layers"));
    }
    let optimizer = f.text("optimizer").to_lowercase();
    let offload = f.text("offload");
    let waits = !f.text("notes").contains("async=yes") && f.text("date") != "2022-02-17";
    let setup = Setup {
        micro: f.count("mbs")?,
        global: f.count("gbs")?,
        numbers: numbers(f.text("precision"), trainer, hardware)?,
        moments: match () {
            _ if optimizer.contains("8bit") => Moments::Adam8bit,
            _ if optimizer.contains("adafactor") => Moments::Adafactor,
            _ if optimizer.contains("muon") => Moments::Muon,
            _ => Moments::Adam,
        },
        offload: Offload {
            optimizer: offload.contains("optimizer") || offload.contains("opt-m"),
            weights: offload.contains("param"),
        },
        program: Program::Other(trainer),
        hardware,
        per_node: f.count("gpus_per_node").unwrap_or(hardware.per_node),
        blocking: match f.text("blocking") {
            "" => hardware.waited(regime) && waits,
            given => given == "1",
        },
        power_sgd: f.text("flags").contains("powersgd"),
        regime: Some(regime.to_string()).filter(|r| !r.is_empty()),
        counts: Counts::new(&model, topology.tensor),
        model,
        topology,
        mixture: mixture.map(|named| named.mixture),
        degrees: degrees(f),
    };
    match setup.degree_violations().first() {
        Some(why) => Err(why.clone()),
        None => Ok(setup),
    }
}

fn numbers(text: &str, trainer: &Trainer, hw: &Hardware) -> Result<Numbers, String> {
    let has = |tflops: f64, bits: usize, numbers: Numbers| match tflops {
        0.0 => Err(format!("{} has no {bits}-bit products", hw.name)),
        _ => Ok(numbers),
    };
    match text {
        "bf16-fp32grad" => Ok(Numbers::Bf16Fp32Grad),
        "bf16" if trainer.wide_sums && !trainer.deepspeed => Ok(Numbers::Bf16Fp32Grad),
        "bf16" => Ok(Numbers::Bf16),
        "fp32" | "f32" => Ok(Numbers::F32),
        text if text.contains("fp8") => has(hw.fp8_tflops, 8, Numbers::Fp8),
        text if text.contains("fp4") => has(hw.fp4_tflops, 4, Numbers::Fp4),
        _ => Ok(Numbers::Fp16),
    }
}

fn topology(f: &Fields, trainer: &'static Trainer) -> Result<Topology, String> {
    let tensor = f.count("tp")?;
    let pipeline = f.count("pp")?;
    let chunks = f.count("vpp").unwrap_or(1);
    let written = f.text("act_ckpt");
    let levels = Program::Other(trainer).zero_levels(pipeline);
    let first = *levels.first().unwrap_or(&trainer.zero[0]);
    Ok(Topology {
        tensor,
        pipeline,
        data: f.count("dp")?,
        shard: Shard::All,
        states: StateReplicas::All,
        zero: f.text("zero_stage").parse().unwrap_or(first),
        zero_every: 1,
        sequence_parallel: trainer.sequence && tensor > 1,
        overlap_p2p: false,
        schedule: if chunks > 1 { Schedule::Interleaved } else { Schedule::OneFOneB },
        chunks,
        layer_split: match f.text("pp_partition") {
            t if t.starts_with("type:transformer|emb") => LayerSplit::TransformerAndEmbedding,
            _ => LayerSplit::Uniform,
        },
        neighbours: RankOrder::Data,
        recompute: match Recompute::by_name(written) {
            Some(recompute) => recompute,
            None if written.contains("block") => Recompute::Full,
            None if written.is_empty() || written == "none" => Recompute::None,
            None => Recompute::Selective, // recomputes single operators or layers
        },
        offload: manifest::Offload::NONE,
        compression: None,
    })
}

/// The family is that of the column `family`; else SwiGLU is Llama's, and BLOOM's vocabulary BLOOM's.
fn model(f: &Fields, tensor: usize) -> Result<Model, String> {
    let hidden = f.count("hidden")?;
    let vocab = f.count("vocab")?;
    let heads = f.count("n_heads")?;
    let family = Family::by_name(f.text("family")).unwrap_or(match f.text("ffn_kind") {
        "swiglu" => Family::Llama,
        _ if vocab == BLOOM_VOCAB => Family::Bloom,
        _ => Family::Gpt2,
    });
    let sizes =
        Sizes { layers: f.count("n_layers")?, hidden, heads, vocab, seq_len: f.count("seq_len")? };
    let kv_heads = f.count("n_kv_heads").ok().filter(|kv| *kv != heads);
    Ok(Model {
        ffn_hidden: f.count("ffn_hidden").unwrap_or(4 * hidden),
        kv_heads,
        dropout: Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 },
        ..Model::with_defaults(family, sizes, tensor)
    })
}
