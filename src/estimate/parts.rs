//! A run's plan beside what was measured: one table of the parts of a step, in seconds. The run
//! writes it after its first steps; `status`, the report and `estimate --calibrate` read it.

use base::table::{Cell, Rows, Table};
use comm::{BACKWARD_MESSAGES, FORWARD_MESSAGES, GRAD_SUM, PIPELINE, SHARD, SHARD_COPIES};
use device::{FP8_PRODUCT, HEAD_PRODUCT, OpTimes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Purposes of a rank's traffic, and their groups: tensor parallelism (activations, and gradients of
/// weights that it does not split), pipeline, replicas, the two copies of a tied embedding, and the two
/// levels of replicas.
pub const TRAFFIC: [(&str, &[&str]); 6] = [
    ("tensor", &["tensor", "tp_async"]),
    ("pipeline", &[PIPELINE, FORWARD_MESSAGES, BACKWARD_MESSAGES]),
    ("data", &[GRAD_SUM]),
    ("tied", &["embedding"]),
    ("shard", &[SHARD]),
    ("copies", &[SHARD_COPIES]),
];

/// Row of `TRAFFIC` from which on the rows are for two levels of replicas.
pub const LEVELS: usize = 4;

/// Part of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Products,
    Attention,
    Elements,
    Head,
    Optimizer,
    Tensor,
    Pipeline,
    Data,
    Input,
    Save,
    Other,
}

impl Part {
    /// All parts with their names, in the order of the table.
    pub const ALL: [(Part, &str); 11] = [
        (Part::Products, "matrix products"),
        (Part::Attention, "attention"),
        (Part::Elements, "norms and element-wise"),
        (Part::Head, "head and loss"),
        (Part::Optimizer, "optimizer"),
        (Part::Tensor, "tensor collectives"),
        (Part::Pipeline, "pipeline bubble and messages"),
        (Part::Data, "data collectives"),
        (Part::Input, "input"),
        (Part::Save, "save"),
        (Part::Other, "other"),
    ];

    pub const COUNT: usize = Part::ALL.len();

    pub fn name(self) -> &'static str {
        Part::ALL[self as usize].1
    }

    /// Part that an op of a pass belongs to.
    pub fn from_op(name: &str) -> Part {
        match name {
            "gemm" | FP8_PRODUCT => Part::Products,
            HEAD_PRODUCT | "cross entropy" => Part::Head,
            _ if name.starts_with("attention") => Part::Attention,
            _ => Part::Elements,
        }
    }

    /// Part that a row of `TRAFFIC` belongs to.
    pub fn from_traffic(row: usize) -> Part {
        [Part::Tensor, Part::Pipeline, Part::Data, Part::Pipeline, Part::Data, Part::Data][row]
    }
}

/// Seconds of each part, by `Part::ALL`.
pub type PartSeconds = [f64; Part::COUNT];

/// Seconds of a step as one rank measured them.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    pub ops: OpTimes,
    /// Waits of the rank's thread, by group. Those of its device are in `ops`.
    pub waits: BTreeMap<String, f64>,
    pub input: f64,
    pub save: f64,
    /// The whole step.
    pub seconds: f64,
}

impl StepTimes {
    /// Seconds of each part. The rest is `Part::Other`.
    pub fn parts(&self) -> PartSeconds {
        let mut parts = [0.0; Part::COUNT];
        for (name, seconds) in &self.ops.passes {
            parts[Part::from_op(name) as usize] += seconds;
        }
        parts[Part::Optimizer as usize] = self.ops.once.values().sum();
        for (group, seconds) in self.waits.iter().chain(&self.ops.waits) {
            let row = TRAFFIC
                .iter()
                .position(|(_, groups)| groups.contains(&&**group));
            if let Some(row) = row {
                parts[Part::from_traffic(row) as usize] += seconds;
            }
        }
        parts[Part::Input as usize] = self.input;
        parts[Part::Save as usize] = self.save;
        parts[Part::Other as usize] = (self.seconds - parts.iter().sum::<f64>()).max(0.0);
        parts
    }
}

/// Row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartRow {
    pub name: String,
    pub planned: f64,
    pub measured: f64,
}

impl PartRow {
    /// Seconds by which the part takes longer than planned.
    pub fn excess(&self) -> f64 {
        self.measured - self.planned
    }
}

/// The parts of a step, planned and measured, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartTable {
    /// Last of the measured steps.
    pub step: u64,
    /// Samples of a step.
    pub batch: usize,
    pub parts: Vec<PartRow>,
}

/// Deviation of a step from its plan above which a part is named.
const DEVIATION: f64 = 0.1;

impl PartTable {
    pub fn new(
        step: u64,
        batch: usize,
        planned: &PartSeconds,
        measured: &PartSeconds,
    ) -> PartTable {
        PartTable {
            step,
            batch,
            parts: Part::ALL
                .map(|(part, name)| {
                    let planned = planned[part as usize];
                    let measured = measured[part as usize];
                    PartRow { name: name.to_string(), planned, measured }
                })
                .to_vec(),
        }
    }

    /// Row of a part; zeros if the table has none.
    pub fn row(&self, part: Part) -> (f64, f64) {
        let row = self.parts.iter().find(|row| row.name == part.name());
        row.map_or((0.0, 0.0), |row| (row.planned, row.measured))
    }

    /// Sets the measured seconds of a part.
    pub fn set_measured(&mut self, part: Part, seconds: f64) {
        if let Some(row) = self.parts.iter_mut().find(|row| row.name == part.name()) {
            row.measured = seconds;
        }
    }

    /// Sums over the parts.
    pub fn total(&self) -> PartRow {
        let sum = |of: fn(&PartRow) -> f64| self.parts.iter().map(of).sum::<f64>();
        let planned = sum(|row| row.planned);
        let measured = sum(|row| row.measured);
        PartRow { name: "step".to_string(), planned, measured }
    }

    /// Part that explains most of the step's deviation from its plan; None if the step is within a
    /// tenth of it.
    pub fn largest_deviation(&self) -> Option<&PartRow> {
        let total = self.total();
        if total.excess().abs() <= DEVIATION * total.planned {
            return None;
        }
        let towards = total.excess().signum();
        self.parts
            .iter()
            .max_by(|a, b| (towards * a.excess()).total_cmp(&(towards * b.excess())))
    }

    /// Formats seconds of this table in one unit.
    pub fn time(&self, seconds: f64) -> String {
        if self.total().measured < 10.0 {
            format!("{:.1} ms", 1e3 * seconds)
        } else {
            format!("{seconds:.2} s")
        }
    }

    /// One sentence about the step and the part that breaks the plan.
    pub fn summary(&self) -> String {
        let total = self.total();
        let planned = self.time(total.planned);
        let measured = self.time(total.measured);
        match self.largest_deviation() {
            None => format!("a step takes {measured}, as planned ({planned})"),
            Some(part) => {
                let part = self.explain(part);
                format!("a step takes {measured}, {planned} were planned; {part}")
            }
        }
    }

    /// "most of the difference is in attention: 40.0 ms, planned 20.0 ms"
    pub fn explain(&self, part: &PartRow) -> String {
        let [measured, planned] = [part.measured, part.planned].map(|s| self.time(s));
        format!("most of the difference is in {}: {measured}, planned {planned}", part.name)
    }

    /// Rows that are not zero in both columns, and the sum.
    fn shown(&self) -> Vec<PartRow> {
        self.parts
            .iter()
            .filter(|row| row.planned.max(row.measured).abs() > 0.0)
            .cloned()
            .chain([self.total()])
            .collect()
    }

    /// The parts that are not zero, and their sum.
    pub fn table(&self) -> Table {
        Rows::new(&self.shown())
            .text("time of a step", |row| row.name.clone())
            .text("planned", |row| self.cell(row.planned))
            .text("measured", |row| self.cell(row.measured))
            .table()
    }

    fn cell(&self, seconds: f64) -> Cell {
        Cell::new(seconds, self.time(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(planned: [f64; 3], measured: [f64; 3]) -> PartTable {
        let all = |of: [f64; 3]| {
            let mut all = [0.0; Part::COUNT];
            all[..3].copy_from_slice(&of);
            all
        };
        PartTable::new(5, 8, &all(planned), &all(measured))
    }

    #[test]
    fn ops_and_waits_are_those_of_their_parts() {
        let seconds = |pairs: &[(&'static str, f64)]| pairs.iter().copied().collect();
        let passes = seconds(&[
            ("gemm", 1.0),
            (FP8_PRODUCT, 2.0),
            (HEAD_PRODUCT, 4.0),
            ("cross entropy", 8.0),
            ("attention backward", 16.0),
            ("layernorm", 32.0),
        ]);
        let once = seconds(&[("gemm", 0.5), ("adamw", 0.25)]);
        let waits = [("tensor", 64.0), (PIPELINE, 128.0), ("embedding", 256.0), (GRAD_SUM, 500.0)];
        let waits = waits
            .iter()
            .map(|(group, seconds)| (group.to_string(), *seconds))
            .chain([("control data".to_string(), 9.0)])
            .collect();
        let device_waits = BTreeMap::from([(GRAD_SUM.to_string(), 12.0)]);
        let ops = OpTimes { passes, once, waits: device_waits };
        let times = StepTimes { ops, waits, input: 1024.0, save: 0.0, seconds: 2048.0 };
        let parts = times.parts();
        assert_eq!(parts[..5], [3.0, 16.0, 32.0, 12.0, 0.75]);
        assert_eq!(parts[5..10], [64.0, 384.0, 512.0, 1024.0, 0.0]);
        assert_eq!(parts.iter().sum::<f64>(), 2048.0, "the rest is in the last part");
        let short = StepTimes { seconds: 1.0, ..times }.parts();
        assert_eq!(short[Part::Other as usize], 0.0);
    }

    #[test]
    fn the_part_that_breaks_the_plan_is_named() {
        let slower = table([1.0, 1.0, 1.0], [1.1, 2.0, 0.9]);
        assert_eq!(slower.largest_deviation().unwrap().name, "attention");
        assert!(
            slower
                .summary()
                .contains("most of the difference is in attention: 2000.0 ms")
        );
        let faster = table([1.0, 1.0, 1.0], [0.2, 0.9, 1.2]);
        assert_eq!(faster.largest_deviation().unwrap().name, "matrix products");
        let near = table([1.0, 1.0, 1.0], [1.3, 0.9, 0.9]);
        assert!(near.largest_deviation().is_none() && near.summary().contains("as planned"));
        assert_eq!(near.shown().len(), 4, "three parts and their sum");
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut table = table([1.0, 0.5, 0.25], [1.5, 0.1, 0.3]);
        table.set_measured(Part::Save, 0.125);
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<PartTable>(&text).unwrap(), table);
        assert_eq!((table.row(Part::Save), table.row(Part::Attention)), ((0.0, 0.125), (0.5, 0.1)));
    }
}
