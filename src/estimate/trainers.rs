//! Table of other trainers (`trainers.yaml`).

use base::Problems;
use manifest::Recompute;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Usual bar of a program that was never measured: nine in ten rows of sources that were left out are
/// within.
pub const UNKNOWN_BAR: f64 = 0.65;

/// Row of the table, whose head describes the fields.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trainer {
    pub name: String,
    pub about: String,
    #[serde(default)]
    also: Vec<String>,
    pub zero: Vec<u8>,
    #[serde(default)]
    pub piped: Vec<u8>,
    #[serde(default = "every")]
    pub recompute: Vec<Recompute>,
    #[serde(default)]
    pub chunks: Vec<usize>,
    #[serde(default)]
    pub replicas_only: bool,
    #[serde(default)]
    pub eager: bool,
    #[serde(default)]
    pub unfused: bool,
    #[serde(default)]
    pub flash: bool,
    #[serde(default)]
    pub tuned: bool,
    #[serde(default)]
    pub selective: f64,
    #[serde(default)]
    pub sequence: bool,
    #[serde(default)]
    pub overlap: bool,
    #[serde(default)]
    pub scatter: bool,
    #[serde(default)]
    pub wide_sums: bool,
    #[serde(default)]
    pub deepspeed: bool,
    #[serde(default)]
    pub host_inputs: bool,
    #[serde(default)]
    pub uneven: bool,
    #[serde(default)]
    pub tiled_logits: bool,
    #[serde(default)]
    experts: bool,
    #[serde(default)]
    context: bool,
    #[serde(default)]
    long: Option<String>,
}

/// Tokens of a sequence from which `Trainer::long` applies.
const LONG: usize = 8192;

impl Trainer {
    /// The same formulas for a program that no shipped row measures.
    pub fn with_name(&self, name: &str) -> &'static Trainer {
        // A command reads a table once, and every setup points at its program.
        Box::leak(Box::new(Trainer { name: name.to_string(), ..self.clone() }))
    }

    /// The row of its runs with sequences of `seq_len` tokens, over so many ranks that share a replica.
    pub fn for_length(&'static self, seq_len: usize, ranks: usize) -> &'static Trainer {
        let long = self
            .long
            .as_deref()
            .filter(|_| seq_len >= LONG && ranks == 1);
        long.map_or(self, |name| lookup(name).expect("a row of the table"))
    }
}

fn every() -> Vec<Recompute> {
    Recompute::ALL.to_vec()
}

static TABLE: LazyLock<Vec<Trainer>> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("trainers.yaml")).expect("trainers.yaml is well-formed")
});

/// The row of that name, as manifests and measured runs write it.
pub fn lookup(name: &str) -> Option<&'static Trainer> {
    TABLE
        .iter()
        .find(|row| row.name == name || row.also.iter().any(|other| other == name))
}

/// Names of the rows with a mixture of experts (0) or context parallelism (1).
pub fn with_extension(number: usize) -> Vec<&'static str> {
    let rows = TABLE
        .iter()
        .filter(|row| [row.experts, row.context][number]);
    rows.map(|row| row.name.as_str()).collect()
}

/// Names of all rows.
pub fn names() -> Vec<&'static str> {
    TABLE.iter().map(|row| row.name.as_str()).collect()
}

/// The same of a flag or a setting, called `place`.
pub fn find(name: &str, place: &str) -> Result<&'static Trainer, Problems> {
    lookup(name).ok_or_else(|| {
        Problems::one(
            place,
            format!("unknown program `{name}`"),
            format!("{}: take one of gptrain, {}", advice(name, true), names().join(", ")),
        )
    })
}

/// Advice for an unknown program, with tensor or pipeline parallelism or without.
pub fn advice(name: &str, cuts_layers: bool) -> String {
    let near = find_nearest(name, cuts_layers);
    let bar = 100.0 * UNKNOWN_BAR;
    format!("--as {} has the nearest formulas, with a bar of about {bar:.0} %", near.name)
}

/// The newest row that shares most words of a name; without any, a row with that parallelism.
fn find_nearest(name: &str, cuts_layers: bool) -> &'static Trainer {
    let words = |name: &str| -> BTreeSet<String> {
        name.to_lowercase()
            .split(|c: char| !c.is_alphanumeric())
            .map(str::to_string)
            .collect()
    };
    let shared = |row: &&Trainer| words(&row.name).intersection(&words(name)).count();
    let can = TABLE
        .iter()
        .filter(|row| !(cuts_layers && row.replicas_only));
    let usual = lookup(if cuts_layers { "nemo" } else { "fsdp" }).expect("a row of the table");
    can.max_by_key(shared)
        .filter(|row| shared(row) > 0)
        .unwrap_or(usual)
}

#[test]
fn a_program_is_found_by_each_of_its_names() {
    for name in ["megatron-deepspeed", "deepspeed-zero3", "hf-deepspeed", "ddp", "fsdp"] {
        assert_eq!(lookup(name).unwrap().name, name);
    }
    assert_eq!(lookup("torchtitan-fsdp2-tp").unwrap().name, "torchtitan");
    assert!(
        find("megatron", "--as")
            .unwrap_err()
            .to_string()
            .contains("megatron-deepspeed")
    );
    let long = |seq_len, ranks| {
        &*lookup("deepspeed-zero3")
            .unwrap()
            .for_length(seq_len, ranks)
            .name
    };
    assert_eq!((long(4096, 1), long(8192, 2)), ("deepspeed-zero3", "deepspeed-zero3"));
    assert_eq!(long(8192, 1), "hf-deepspeed-liger");
    let near = |name, cuts_layers| &*find_nearest(name, cuts_layers).name;
    assert_eq!(
        (near("Megatron-Core", true), near("colossalai", true)),
        ("megatron-bridge", "nemo")
    );
    assert_eq!((near("torch_ddp", false), near("axolotl", false)), ("ddp", "fsdp"));
}
