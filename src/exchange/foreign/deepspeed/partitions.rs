//! The flat groups of ZeRO-1, put together from the partitions of a stage's data ranks.

use super::super::super::torch::{IS_WHOLE, TorchFile};
use super::super::split_run::{ParamPlace, ShareReader};
use super::super::{AdamState, Opened, same_updates};
use super::files::RankFiles;
use super::layers::name_of;
use super::optimizer::{partition, slice, updates};
use super::{FlatGroup, numel};
use base::Problems;
use model::Param;
use std::path::PathBuf;

/// Files of one stage, opened: [tensor rank][data rank].
type StageFiles = Vec<Vec<TorchFile>>;

/// Reader of a folder's partitions.
pub struct PartitionReader {
    pub stages: Stages,
    pub open: Opened<StageFiles>,
}

/// Groups and files of all stages.
pub struct Stages {
    pub dir: PathBuf,
    /// Names and shapes of each stage's groups, in their order.
    pub groups: Vec<Vec<FlatGroup>>,
    /// The number that the first block has in the pipeline's list of layers.
    pub first_block: usize,
    pub files: RankFiles,
    /// Tensor and data ranks.
    pub ranks: [usize; 2],
    pub updates: u64,
}

impl Stages {
    /// Opens the files of a stage, whose partitions are as long as its groups.
    fn open(&self, stage: usize) -> anyhow::Result<StageFiles> {
        let [tensor, data] = self.ranks;
        let mut files = StageFiles::new();
        for model in stage * tensor..(stage + 1) * tensor {
            let opened = (0..data).map(|data| TorchFile::open(&self.files[&(model, data)]));
            files.push(opened.collect::<anyhow::Result<Vec<_>>>()?);
        }
        for rank in &files {
            self.check(rank, &self.groups[stage])?;
        }
        Ok(files)
    }

    /// Whether the partitions of a rank are equal and hold its groups; their step is the run's.
    fn check(&self, files: &[TorchFile], groups: &[FlatGroup]) -> anyhow::Result<()> {
        for (group, params) in groups.iter().enumerate() {
            let mut lens = Vec::new();
            for file in files {
                let optimizer = file.root().need("optimizer_state_dict")?;
                same_updates(&optimizer, updates(file, &optimizer)?, self.updates)?;
                let master = partition(&optimizer, group, AdamState::Master)?;
                let len = master.tensor()?.numel();
                for state in [AdamState::FirstMoment, AdamState::SecondMoment] {
                    let other = partition(&optimizer, group, state)?.tensor()?.numel();
                    if other != len {
                        let name = state.name();
                        return Err(optimizer.problem(format!(
                            "the {name} of group {group} has {other} elements, its weights {len}"
                        )));
                    }
                }
                lens.push(len);
                let equal = lens[0] == len || lens.len() == files.len() && len < lens[0];
                if !equal {
                    let first = lens[0];
                    return Err(master.problem(format!(
                        "partition {group} has {len} elements, that of data rank 0 {first}"
                    )));
                }
            }
            let held: usize = lens.iter().sum();
            let needed: usize = params.iter().map(numel).sum();
            if held < needed {
                let last = files.last().expect("a data rank").root();
                return Err(last.problem(format!(
                    "the partitions of group {group} hold {held} elements, its parameters have {needed}"
                )));
            }
        }
        Ok(())
    }

    /// Group of a parameter, and its first element in the flat group.
    fn find(&self, place: &ParamPlace) -> Option<(usize, usize)> {
        self.groups[place.stage]
            .iter()
            .enumerate()
            .find_map(|(group, params)| {
                let number = params.iter().position(|(name, _)| *name == place.name)?;
                Some((group, params[..number].iter().map(numel).sum()))
            })
    }
}

impl ShareReader for PartitionReader {
    /// Puts a share together from the partitions of all data ranks.
    fn read(
        &mut self,
        place: &ParamPlace,
        rank: usize,
        state: AdamState,
    ) -> anyhow::Result<Vec<f32>> {
        let PartitionReader { stages, open } = self;
        let ParamPlace { stage, name, shape, .. } = place;
        let (group, first) = stages
            .find(place)
            .expect("a place is in its stage's groups");
        let numel: usize = shape.iter().product();
        let mut values = Vec::with_capacity(numel);
        let mut begin = 0;
        for file in &open.get(*stage, || stages.open(*stage))?[rank] {
            let optimizer = file.root().need("optimizer_state_dict")?;
            let partition = partition(&optimizer, group, state)?;
            let tensor = partition.tensor()?;
            let end = begin + tensor.numel();
            let part = match optimizer.some("param_slice_mappings") {
                Some(maps) => slice(&maps, group, name)?,
                None => {
                    let from = first.max(begin);
                    let to = (first + numel).min(end);
                    (from < to).then(|| from - begin..to - begin)
                }
            };
            begin = end;
            let Some(part) = part else { continue };
            if part.end > tensor.numel() {
                let len = tensor.numel();
                let end = part.end;
                return Err(partition.problem(format!(
                    "partition {group} has {len} elements, {name} reaches to {end}"
                )));
            }
            values.extend(file.floats(tensor, part)?);
        }
        if values.len() != numel {
            let held = values.len();
            return Err(Problems::one(
                stages.dir.display().to_string(),
                format!(
                    "the partitions of mp_rank {:02} hold {held} of the {numel} elements of {name}",
                    stage * stages.ranks[0] + rank
                ),
                IS_WHOLE,
            )
            .into());
        }
        Ok(values)
    }

    fn name(&self, param: &Param) -> Option<String> {
        name_of(param, self.stages.first_block)
    }
}
