//! Plan of a run's datasets by sample. The checkpoint stores it, so weights and datasets may change
//! during a run without repeating or skipping what was read before.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use manifest::{Data, Dataset, Sequences};

/// Past and future mixtures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixturePlan {
    pub stages: Vec<PlannedStage>,
}

/// Part of the run with one mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedStage {
    /// First sample.
    pub from: u64,
    /// Planned end of the run when the stage began. Megatron orders whole epochs for the samples
    /// that a run needs, so the order depends on it. It does not change if the run gets longer.
    pub until: u64,
    /// Seed of the order from this stage on. None: that of the stage before, and of the manifest in a
    /// plan whose seed never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    pub datasets: Vec<Share>,
}

/// Dataset, or a part of one, and its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub prefix: PathBuf,
    pub weight: f64,
    pub part: SharePart,
}

/// The manifest's `Sequences`, in the form stored in checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharePart {
    Split(String, usize),
    Range(f64, f64),
}

impl MixturePlan {
    /// Plan for a run of `samples`.
    pub fn from_data(data: &Data, samples: u64) -> MixturePlan {
        let stages = data
            .mixtures()
            .filter(|(from, _)| *from == 0 || *from < samples)
            .map(|(from, datasets)| PlannedStage::new(from, samples, datasets))
            .collect();
        MixturePlan { stages }
    }

    /// Plan with one mixture for all of `samples`.
    pub fn new(datasets: &[Dataset], samples: u64) -> MixturePlan {
        MixturePlan { stages: vec![PlannedStage::new(0, samples, datasets)] }
    }

    /// Seed of a stage; None if the plan's seed never changed.
    pub fn seed(&self, stage: usize) -> Option<u64> {
        self.stages[..=stage]
            .iter()
            .rev()
            .find_map(|stage| stage.seed)
    }

    /// Seed with which the run began; None if it never changed.
    pub fn first_seed(&self) -> Option<u64> {
        self.seed(0)
    }

    /// Checks a plan from a checkpoint, which is not trusted.
    pub fn check(&self) -> Result<(), String> {
        let first = self.stages.first().map(|stage| stage.from);
        if first != Some(0) || self.stages.windows(2).any(|two| two[0].from >= two[1].from) {
            return Err("its mixture's stages do not follow one another from sample 0 on".into());
        }
        let shares = self.stages.iter().flat_map(|stage| &stage.datasets);
        for share in shares {
            let known = match share.part {
                SharePart::Split(_, part) => part < super::split::PARTS.len(),
                SharePart::Range(from, to) => 0.0 <= from && from < to && to <= 1.0,
            };
            if !known {
                return Err(format!("{:?} is not a part of a dataset", share.part));
            }
        }
        Ok(())
    }

    /// Replaces the path of a dataset.
    pub fn with_moved_dataset(mut self, from: &str, to: &str) -> MixturePlan {
        for share in self.stages.iter_mut().flat_map(|stage| &mut stage.datasets) {
            if share.prefix == Path::new(from) {
                share.prefix = to.into();
            }
        }
        self
    }

    /// Continues this plan from sample `consumed` on with the manifest's datasets and seed; so far the
    /// seed was `seed`. Returns the same plan if nothing changed, or if the run ends there.
    pub fn continue_with(
        mut self,
        data: &Data,
        seed: u64,
        samples: u64,
        consumed: u64,
    ) -> MixturePlan {
        if samples <= consumed {
            return self;
        }
        if consumed == 0 {
            return MixturePlan::from_data(data, samples);
        }
        // A stage without samples is dropped; one with samples is kept unchanged.
        self.stages.retain(|stage| stage.from < consumed);
        let reseeded = data.seed != seed;
        if reseeded {
            self.stages[0].seed.get_or_insert(seed);
        }
        let mut now = None;
        let mut later = Vec::new();
        for (from, datasets) in data.mixtures() {
            if from <= consumed {
                let stage = PlannedStage::new(consumed, samples, datasets);
                now = Some(PlannedStage { seed: reseeded.then_some(data.seed), ..stage });
            } else {
                later.push(PlannedStage::new(from, samples, datasets));
            }
        }
        let last = self.stages.last().expect("a plan starts with a stage");
        let later = later.into_iter().filter(|stage| stage.from < samples);
        let rest: Vec<PlannedStage> = now
            .filter(|now| reseeded || (&last.datasets, last.until) != (&now.datasets, now.until))
            .into_iter()
            .chain(later)
            .collect();
        self.stages.extend(rest);
        self
    }
}

impl PlannedStage {
    fn new(from: u64, until: u64, datasets: &[Dataset]) -> PlannedStage {
        let datasets = datasets.iter().map(Share::from).collect();
        PlannedStage { from, until, seed: None, datasets }
    }
}

impl From<&Dataset> for Share {
    fn from(dataset: &Dataset) -> Share {
        let part = match &dataset.part {
            Sequences::Split { weights, which } => SharePart::Split(weights.clone(), *which),
            Sequences::Range(from, to) => SharePart::Range(*from, *to),
        };
        Share { prefix: dataset.prefix.clone(), weight: dataset.weight, part }
    }
}

impl Share {
    /// Key that is equal for two shares with the same samples, whatever their weight.
    pub fn part_key(&self) -> String {
        let prefix: PathBuf = self.prefix.components().collect();
        format!("{prefix:?} {:?}", self.part)
    }

    /// Description of the part.
    pub fn describe(&self) -> String {
        match &self.part {
            SharePart::Split(weights, which) => {
                format!("its {} part of the split {weights}", super::split::PARTS[*which])
            }
            SharePart::Range(from, to) => format!("its range {from}..{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_gaps_or_unknown_parts_is_refused() {
        let stage = |from, part| {
            let share = Share { prefix: "d".into(), weight: 1.0, part };
            PlannedStage { from, until: 9, seed: None, datasets: vec![share] }
        };
        let split = |part| SharePart::Split("9,1,0".into(), part);
        let check = |stages: Vec<PlannedStage>| MixturePlan { stages }.check();
        check(vec![stage(0, split(2)), stage(5, SharePart::Range(0.0, 0.5))]).unwrap();
        let wrong = [
            vec![],
            vec![stage(1, split(0))],
            vec![stage(0, split(0)), stage(0, split(0))],
            vec![stage(0, split(3))],
            vec![stage(0, SharePart::Range(0.5, 0.5))],
            vec![stage(0, SharePart::Range(f64::NAN, 1.0))],
        ];
        assert!(wrong.into_iter().all(|stages| check(stages).is_err()));
    }
}
