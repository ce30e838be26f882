//! Which datasets a run reads from which sample on. The checkpoint keeps it, so that weights and
//! datasets may change in the middle of a run, and what was read before is neither repeated nor
//! skipped.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use manifest::{Data, Dataset, Sequences};

/// The history and the intention of a run's mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixturePlan {
    pub stages: Vec<PlannedStage>,
}

/// A stretch of the run with one mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedStage {
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

/// The manifest's `Sequences`, as the checkpoint writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharePart {
    Split(String, usize),
    Range(f64, f64),
}

impl MixturePlan {
    /// What a run of `samples` reads.
    pub fn of(data: &Data, samples: u64) -> MixturePlan {
        let stages = data.mixtures().filter(|(from, _)| *from == 0 || *from < samples);
        let stages =
            stages.map(|(from, datasets)| PlannedStage::new(from, samples, datasets)).collect();
        MixturePlan { stages }
    }

    /// One mixture for all of `samples`.
    pub fn new(datasets: &[Dataset], samples: u64) -> MixturePlan {
        MixturePlan { stages: vec![PlannedStage::new(0, samples, datasets)] }
    }

    /// Whether it can be followed: what a checkpoint says is not believed.
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
                return Err(format!("{:?} is no part of a dataset", share.part));
            }
        }
        Ok(())
    }

    /// This plan, with a dataset found in another place.
    pub fn moved(mut self, from: &str, to: &str) -> MixturePlan {
        for share in self.stages.iter_mut().flat_map(|stage| &mut stage.datasets) {
            if share.prefix == Path::new(from) {
                share.prefix = to.into();
            }
        }
        self
    }

    /// This plan, followed from sample `consumed` on by what the manifest now says: the same plan
    /// where nothing changed, or where the run is to end there.
    pub fn continued(mut self, data: &Data, samples: u64, consumed: u64) -> MixturePlan {
        if samples <= consumed {
            return self;
        }
        if consumed == 0 {
            return MixturePlan::of(data, samples);
        }
        // What never gave a sample leaves no trace; what did stays as it was.
        self.stages.retain(|stage| stage.from < consumed);
        let (mut now, mut later) = (None, Vec::new());
        for (from, datasets) in data.mixtures() {
            match from <= consumed {
                true => now = Some(PlannedStage::new(consumed, samples, datasets)),
                false => later.push(PlannedStage::new(from, samples, datasets)),
            }
        }
        let last = self.stages.last().expect("a plan starts with a stage");
        let changes =
            |now: &PlannedStage| (&last.datasets, last.until) != (&now.datasets, now.until);
        let later = later.into_iter().filter(|stage| stage.from < samples);
        let rest: Vec<PlannedStage> = now.filter(changes).into_iter().chain(later).collect();
        self.stages.extend(rest);
        self
    }
}

impl PlannedStage {
    fn new(from: u64, until: u64, datasets: &[Dataset]) -> PlannedStage {
        PlannedStage { from, until, datasets: datasets.iter().map(Share::from).collect() }
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
    /// Equal for two shares that are the same samples, whatever their weight.
    pub fn part_key(&self) -> String {
        let prefix: PathBuf = self.prefix.components().collect();
        format!("{prefix:?} {:?}", self.part)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_cannot_be_followed_is_told() {
        let stage = |from, part| {
            let share = Share { prefix: "d".into(), weight: 1.0, part };
            PlannedStage { from, until: 9, datasets: vec![share] }
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
