//! A better machine is not slower: relations that predictions of all programs must hold, whatever was
//! learned. They are counted over the machines of the table, and over each of them with one column improved.

use crate::predictor::Predictor;
use crate::rows;
use base::table::{Cell, Printout, Rows};
use estimate::hardware::{self, CPU, Hardware};
use estimate::machine;
use estimate::setup::{Program, Setup};
use estimate::trainers::{self, Trainer};
use serde_json::json;

/// A better machine on which a program is slower.
#[derive(Clone, Debug)]
pub struct Broken {
    pub program: &'static str,
    /// Which of the shapes.
    pub shape: String,
    pub worse: String,
    pub better: String,
    /// Share by which the better machine is slower.
    pub slower: f64,
}

/// Number of relations, and those that are broken.
#[derive(Clone, Debug, Default)]
pub struct Relations {
    pub count: usize,
    pub broken: Vec<Broken>,
}

/// Relative difference below which two times are the same.
const SAME: f64 = 1e-3;

/// Value of a column of a machine.
type Value = fn(&Hardware) -> String;

/// Settings of which each makes a machine better, or changes nothing.
const IMPROVEMENTS: &[(&str, Value)] = &[
    ("peak_tflops", |hw| (1.25 * hw.peak_tflops).to_string()),
    ("hbm_gb_s", |hw| (1.25 * hw.hbm_gb_s).to_string()),
    ("memory_gib", |hw| (1.25 * hw.memory_gib).to_string()),
    ("bus_gb_s", |hw| (2.0 * hw.bus_gb_s).to_string()),
    ("network_gb_s", |hw| (4.0 * hw.network_gb_s).to_string()),
    ("ring_share", |_| "1".to_string()),
    ("blocking", |_| "false".to_string()),
];

/// Shapes of runs over several nodes: of programs that cut layers, and of those with replicas alone.
const COLUMNS: &str = "id,hardware,n_layers,hidden,n_heads,vocab,seq_len,framework,tp,pp,dp,mbs,gbs,\
    precision,act_ckpt\n";
const CUT: &str = "7B,h100-80g,32,4096,32,50304,2048,PROGRAM,4,2,4,1,512,fp16,none\n\
    65B,h100-80g,64,8192,64,50304,2048,PROGRAM,8,4,8,2,1024,fp16,full\n";
const REPLICAS: &str = "7B,h100-80g,32,4096,32,50304,2048,PROGRAM,1,1,16,1,512,fp16,none\n\
    7B full,h100-80g,32,4096,32,50304,4096,PROGRAM,1,1,64,4,1024,fp16,full\n";

/// Setups of a program's shapes.
fn shapes(trainer: &Trainer) -> Vec<(String, Setup)> {
    let table = if trainer.piped.is_empty() { REPLICAS } else { CUT };
    let text = format!("{COLUMNS}{table}").replace("PROGRAM", &trainer.name);
    let rows = rows::read(&text, "physics").expect("the shapes have all columns");
    rows.into_iter()
        .map(|row| (row.id, row.setup.expect("every program runs its shapes")))
        .collect()
}

/// Checks every program on every pair of machines of which one is better.
pub fn check(predictor: &Predictor) -> Relations {
    let machines: Vec<&'static Hardware> = hardware::table()
        .iter()
        .filter(|hw| hw.name != CPU)
        .collect();
    let mut found = Relations::default();
    for name in trainers::names() {
        let trainer = trainers::lookup(name).expect("a row of the table");
        for (shape, setup) in shapes(trainer) {
            let seconds = |hardware: &'static Hardware| {
                let blocking = hardware.blocking;
                let setup = Setup { hardware, blocking, per_node: 8, ..setup.clone() };
                predictor.predict(&setup).seconds
            };
            let mut compare = |worse: (&Hardware, f64), better: (&Hardware, f64), what: &str| {
                found.count += 1;
                let slower = better.1 / worse.1 - 1.0;
                if slower > SAME {
                    found.broken.push(Broken {
                        program: Program::Other(trainer).name(),
                        shape: shape.clone(),
                        worse: worse.0.name.clone(),
                        better: format!("{}{what}", better.0.name),
                        slower,
                    });
                }
            };
            let all: Vec<(&'static Hardware, f64)> =
                machines.iter().map(|hw| (*hw, seconds(hw))).collect();
            for a in &all {
                for b in all.iter().filter(|b| a.0.is_exceeded_by(b.0)) {
                    compare(*a, *b, "");
                }
                for (column, value) in IMPROVEMENTS {
                    let set = format!("hardware.{column}={}", value(a.0));
                    let row = machine::with_settings(a.0, &[set]).expect("within its limits");
                    compare(*a, (row, seconds(row)), &format!(" {column}"));
                }
            }
        }
    }
    found
}

/// Adds the relations to the selftest.
pub fn add_relations(predictor: &Predictor, out: &mut Printout) {
    let Relations { count, broken } = check(predictor);
    out.json["relations"] = json!({ "count": count, "broken": broken.len() });
    out.line(format!(
        "\nA better machine is not slower: {count} relations of all programs, {} broken",
        broken.len()
    ));
    let table = Rows::new(&broken)
        .column("program", "program", |b| b.program)
        .column("shape", "shape", |b| b.shape.clone())
        .column("worse", "worse", |b| b.worse.clone())
        .column("better", "better", |b| b.better.clone())
        .column("slower", "slower", |b| Cell::percent(b.slower))
        .table();
    out.json["relations"]["list"] = table.json();
    if !broken.is_empty() {
        out.table(table);
    }
}

#[test]
fn a_better_machine_is_not_slower() {
    let found = check(Predictor::shipped());
    assert!(found.count > 10_000, "{} relations", found.count);
    assert!(found.broken.is_empty(), "{:#?}", found.broken);
}
