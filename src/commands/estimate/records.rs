//! `gptrain estimate`: records to calibrate from, changes of `--what-if`, the hardware table.

use base::number::whole;
use base::table::{Cell, Printout, Rows};
use base::{DType, Problems, WrongInput};
use estimate::gptrain::local_cpu::{self, Care};
use estimate::hardware::{self, CPU, Hardware};
use estimate::mixture::KEYS;
use estimate::request::Request;
use estimate::setup::Setup;
use manifest::Topology;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Record of a run if the path is its folder, else the path.
fn record(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.to_path_buf() }
}

/// Text of a file, or of the record of a run.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let path = &record(path);
    base::input::is_there(path)?;
    let failed = |error| WrongInput::reading(error, format!("cannot read {}", path.display()));
    let bytes = base::input::read_named(path, base::input::LARGE).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))
}

/// Calibration from the output of `gptrain bench`, or from a run, by the plan of its own manifest.
/// Prints a summary on stderr.
pub fn learn(path: &Path, request: Request) -> anyhow::Result<Request> {
    let name = path.display().to_string();
    let record = record(path);
    let manifest = record.with_file_name("manifest.yaml");
    let is_run = record.ends_with("metrics.jsonl") && manifest.is_file();
    let run = is_run.then(|| manifest::load(&manifest, &[])).transpose()?;
    let (learned, line) =
        request.learn(&read(path)?, &name, run.as_ref().map(|run| &run.manifest))?;
    base::warn!("{name}: {line}");
    Ok(learned)
}

/// Settings of `--what-if`, "a=1,b=2".
pub struct Changes {
    pub sets: Vec<String>,
    /// Replicas that keep the number of devices; None if the changes give it, or if the
    /// number of devices is not divisible.
    replicas: Option<usize>,
}

impl Changes {
    pub fn read(text: &str, now: &Setup) -> Result<Changes, Problems> {
        let mut sets = split_pairs(text)?;
        let replicas = replicas_on_as_many_devices(&now.topology, now.degrees.context, &sets);
        sets.extend(replicas.map(|replicas| format!("topology.data={replicas}")));
        Ok(Changes { sets, replicas })
    }

    /// Error of the changed manifest. The number of replicas is not the user's.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let (Some(replicas), Some(found)) = (self.replicas, error.downcast_ref::<Problems>())
        else {
            return error;
        };
        let mut found = found.clone();
        for problem in found
            .list
            .iter_mut()
            .filter(|p| p.place == "--set topology.data")
        {
            problem.place = "--what-if".to_string();
            problem.what += &format!("; topology.data is {replicas} here, for as many devices");
            problem.remedy += ", or give topology.data too";
        }
        found.into()
    }
}

/// Replicas that keep the number of devices of `now` when tensor or pipeline change. None if `pairs`
/// set topology.data, or if the number of devices is not divisible. `context` is the degree of now.
pub fn replicas_on_as_many_devices(
    now: &Topology,
    context: usize,
    pairs: &[String],
) -> Option<usize> {
    let set = |name: &str| {
        let mut values = pairs.iter().filter_map(|pair| pair.split_once('='));
        values
            .rfind(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    let size = |name: &str, now: usize| set(name).map_or(Some(now), |value| whole(value).ok());
    let tensor = size("topology.tensor", now.tensor)?;
    let stages = size("topology.pipeline", now.pipeline)?;
    let ranks = now.ranks() * context;
    let replica = tensor
        .checked_mul(stages)?
        .checked_mul(size(KEYS[0], context)?)?;
    let is_set = set("topology.data").is_some() || set("topology").is_some();
    let same = replica == now.tensor * now.pipeline * context;
    let divides = replica > 0 && ranks.is_multiple_of(replica);
    (!is_set && !same && divides).then(|| ranks / replica)
}

/// Splits "a=1,b=2" into settings; a comma that no key follows belongs to a value.
fn split_pairs(text: &str) -> Result<Vec<String>, Problems> {
    let mut pairs: Vec<String> = Vec::new();
    for piece in text.split(',') {
        match (piece.contains('='), pairs.last_mut()) {
            (true, _) => pairs.push(piece.trim().to_string()),
            (false, Some(last)) => *last += &format!(",{piece}"),
            (false, None) => {
                return Err(Problems::one(
                    "--what-if",
                    format!("`{piece}` is neither a file nor key=value"),
                    "give settings as in topology.tensor=4,batch.micro=2, or a manifest",
                ));
            }
        }
    }
    Ok(pairs)
}

/// The hardware table.
pub fn list_hardware() -> Printout {
    let rows: Vec<Hardware> = hardware::table()
        .iter()
        .map(|row| match &*row.name {
            CPU => local_cpu::measure(row, DType::F32, None, Care::Full),
            _ => row.clone(),
        })
        .collect();
    let table = Rows::new(&rows)
        .column("name", "name", |h| h.name.clone())
        .column("TFLOP/s", "peak_tflops", |h| h.peak_tflops)
        .column("GB/s", "hbm_gb_s", |h| h.hbm_gb_s)
        .column("GiB", "memory_gib", |h| {
            Cell::new(h.memory_gib, ((100.0 * h.memory_gib).round() / 100.0).to_string())
        })
        .column("per hour", "price", |h| match &*h.name {
            CPU => Cell::new(h.price, "–"),
            _ => Cell::new(h.price, format!("${}", h.price)),
        })
        .column("", "about", |h| h.about.clone())
        .json("per_node", |h| h.per_node)
        .json("bus_gb_s", |h| h.bus_gb_s)
        .json("network_gb_s", |h| h.network_gb_s)
        .json("host_gib", |h| h.host_gib)
        .json("host_gb_s", |h| h.host_gb_s)
        .json("link_gb_s", |h| h.link_gb_s)
        .json("fp8_tflops", |h| h.fp8_tflops)
        .json("ring_share", |h| h.ring_share)
        .json("blocking", |h| h.blocking);
    Printout::from_table(table.table())
}
