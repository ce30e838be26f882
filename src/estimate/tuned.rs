//! Measured table of cuts: the document that `gptrain tune` writes, and that `estimate --calibrate`
//! reads. Its columns are those in which the trainers of large models report their tuning.

use super::words;
use base::table::{Cell, Rows, Table};
use base::{Bytes, Problems};
use manifest::Precision;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// First field of the document; a document of another version is refused.
pub const FORMAT: &str = "gptrain tune 1";

/// Document of `gptrain tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// Always `FORMAT`.
    pub format: String,
    pub name: String,
    /// Effective manifest, to which the settings of a row are added.
    pub manifest: String,
    pub precision: Precision,
    /// Machine of the plan.
    pub hardware: String,
    /// Steps of each cut, of which the first was not counted.
    pub steps: u64,
    pub rows: Vec<TunedRow>,
}

/// Result of a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutResult {
    Measured,
    OutOfMemory,
    /// It failed, hung, or reached its time limit.
    Failed,
    /// Its settings contradict each other.
    Refused,
    /// Not measured yet.
    #[default]
    Open,
}

/// Cut, planned and measured. Figures that a cut lacks are None.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TunedRow {
    /// Settings of the cut, `KEY=VALUE`.
    pub set: Vec<String>,
    pub result: CutResult,
    pub nodes: Option<usize>,
    pub parameters: Option<u64>,
    pub data: Option<usize>,
    pub tensor: Option<usize>,
    pub pipeline: Option<usize>,
    pub micro_batch: Option<usize>,
    /// Batch of the measured steps.
    pub global_batch: Option<usize>,
    /// Bytes of the fullest rank: on its device, and of its process on the host.
    pub device_bytes: Option<u64>,
    pub host_bytes: Option<u64>,
    /// Bytes that the plan has for that device.
    pub planned_bytes: Option<u64>,
    /// Seconds of a step, measured and planned.
    pub sec: Option<f64>,
    pub planned_sec: Option<f64>,
    /// TFLOP/s of a rank by both formulas.
    pub tflops_simple: Option<f64>,
    pub tflops: Option<f64>,
    pub notes: String,
}

impl Tuned {
    /// Reads the document in a file of that name; None if the text is something else.
    pub fn read(text: &str, name: &str) -> Result<Option<Tuned>, Problems> {
        let value: Option<Value> = serde_json::from_str(text).ok();
        let format = value.as_ref().and_then(|value| value["format"].as_str());
        if format != Some(FORMAT) {
            return Ok(None);
        }
        let remedy = "give what `gptrain tune --json` printed";
        let tuned: Tuned = serde_json::from_str(text)
            .map_err(|error| Problems::one(name, format!("is damaged: {error}"), remedy))?;
        let is_time = |row: &TunedRow| row.sec.is_none_or(|sec| sec.is_finite() && sec > 0.0);
        if let Some(row) = tuned.rows.iter().position(|row| !is_time(row)) {
            let what = format!("is damaged: row {} has no valid time", row + 1);
            return Err(Problems::one(name, what, remedy));
        }
        Ok(Some(tuned))
    }

    /// Its rows, the fastest first, and those without a time at the end.
    pub fn table(&self) -> Table {
        let mut rows: Vec<&TunedRow> = self.rows.iter().collect();
        let seconds = |row: &TunedRow| row.sec.unwrap_or(f64::INFINITY);
        rows.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let count = |value: Option<usize>| Cell::optional(value);
        Rows::new(rows)
            .column("nodes", "nodes", |row| count(row.nodes))
            .column("size", "parameters", |row| match row.parameters {
                None => Cell::optional(None::<usize>),
                Some(parameters) => Cell::new(parameters, words::size(parameters as f64)),
            })
            .column("DP", "data", |row| count(row.data))
            .column("TP", "tensor", |row| count(row.tensor))
            .column("PP", "pipeline", |row| count(row.pipeline))
            .column("MBS", "micro_batch", |row| count(row.micro_batch))
            .column("GBS", "global_batch", |row| count(row.global_batch))
            .column("mem", "device_bytes", |row| match row.result {
                CutResult::OutOfMemory => Cell::new(row.device_bytes, "OOM"),
                _ => memory(row.device_bytes),
            })
            .column("planned", "planned_bytes", |row| memory(row.planned_bytes))
            .column("host", "host_bytes", |row| memory(row.host_bytes))
            .column("sec/it", "sec", |row| Cell::optional(row.sec.map(words::step)))
            .column("planned", "planned_sec", |row| {
                Cell::optional(row.planned_sec.map(words::step))
            })
            .column("TFLOPs", "tflops_simple", |row| Cell::optional(row.tflops_simple.map(rate)))
            .column("improved", "tflops", |row| Cell::optional(row.tflops.map(rate)))
            .column("notes", "notes", |row| row.notes.clone())
            .json("result", |row| {
                serde_json::to_value(row.result)
                    .map(bare)
                    .unwrap_or_default()
            })
            .json("set", |row| Cell::new(row.set.clone(), ""))
            .table()
    }
}

/// Cell of JSON alone.
fn bare(value: Value) -> Cell {
    Cell::new(value, "")
}

fn memory(bytes: Option<u64>) -> Cell {
    Cell::optional(bytes.map(|bytes| Cell::new(bytes, Bytes(bytes).to_string())))
}

/// TFLOP/s with three digits: a processor reaches hundredths.
fn rate(tflops: f64) -> Cell {
    let digits = if tflops < 1.0 { 3 } else { 1 };
    Cell::fixed(tflops, digits)
}
