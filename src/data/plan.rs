//! Which datasets a run reads from which sample on. The checkpoint keeps it, so that weights and
//! datasets may change in the middle of a run, and what was read before is neither repeated nor
//! skipped.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::manifest::{Dataset, Part};

/// The history and the intention of a run's mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub stages: Vec<Stage>,
}

/// A stretch of the run with one mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// The first sample it gives.
    pub from: u64,
    /// The end of the run as it was meant when the stage began. Megatron orders whole epochs for
    /// the samples a run asks for, so the order depends on it; it stays if the run gets longer.
    pub until: u64,
    pub datasets: Vec<Share>,
}

/// A dataset, or a part of one, and its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub prefix: PathBuf,
    pub weight: f64,
    pub part: SharePart,
}

/// The manifest's `Part`, as the checkpoint writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharePart {
    Split(String, usize),
    Range(f64, f64),
}

impl Plan {
    /// One mixture for a whole run of `samples`.
    pub fn new(datasets: &[Dataset], samples: u64) -> Plan {
        let datasets = datasets.iter().map(Share::from).collect();
        Plan { stages: vec![Stage { from: 0, until: samples, datasets }] }
    }

    /// This plan, with a dataset found in another place.
    pub fn moved(mut self, from: &str, to: &str) -> Plan {
        for share in self.stages.iter_mut().flat_map(|stage| &mut stage.datasets) {
            if share.prefix == Path::new(from) {
                share.prefix = to.into();
            }
        }
        self
    }

    /// This plan, followed from sample `consumed` on by what the manifest now says: the same plan
    /// where nothing changed, or where the run is to end there.
    pub fn continued(mut self, datasets: &[Dataset], samples: u64, consumed: u64) -> Plan {
        if samples <= consumed {
            return self;
        }
        let datasets: Vec<Share> = datasets.iter().map(Share::from).collect();
        // A stage that never gave a sample leaves no trace.
        self.stages.retain(|stage| stage.from == 0 || stage.from < consumed);
        let last = self.stages.last().expect("a plan starts with a stage");
        if last.datasets != datasets || last.until != samples {
            if consumed == 0 {
                self.stages.clear();
            }
            self.stages.push(Stage { from: consumed, until: samples, datasets });
        }
        self
    }
}

impl From<&Dataset> for Share {
    fn from(dataset: &Dataset) -> Share {
        let part = match &dataset.part {
            Part::Split { weights, which } => SharePart::Split(weights.clone(), *which),
            Part::Range(from, to) => SharePart::Range(*from, *to),
        };
        Share { prefix: dataset.prefix.clone(), weight: dataset.weight, part }
    }
}

impl Share {
    /// Whether two shares are the same samples, whatever their weight.
    pub fn is_same_part(&self, other: &Share) -> bool {
        (&self.prefix, &self.part) == (&other.prefix, &other.part)
    }

    /// The part, in words.
    pub fn describe(&self) -> String {
        match &self.part {
            SharePart::Split(weights, which) => {
                format!("its {} part of the split {weights}", super::split::PARTS[*which])
            }
            SharePart::Range(from, to) => format!("its range {from}..{to}"),
        }
    }
}
