//! The flat groups of a stage, put together from the partitions of its data ranks.

use super::super::super::torch::TorchFile;
use super::super::Kept;
use super::optimizer::{partition, slice, updates};
use super::{Folder, Group, Place};
use base::Problems;

impl Folder {
    /// The files of a stage, opened, their partitions as long as its groups.
    pub(super) fn files(&mut self, stage: usize) -> anyhow::Result<&[Vec<TorchFile>]> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != stage) {
            self.open = None;
            let [tensor, _, data] = self.found.grid;
            let mut files = Vec::new();
            for model in stage * tensor..(stage + 1) * tensor {
                let opened = (0..data).map(|data| TorchFile::open(&self.files[&(data, model)]));
                files.push(opened.collect::<anyhow::Result<Vec<_>>>()?);
            }
            for rank in &files {
                self.partitions(rank, &self.stages[stage])?;
            }
            self.open = Some((stage, files));
        }
        Ok(&self.open.as_ref().expect("opened above").1)
    }

    /// Whether the partitions of a rank are equal and hold its groups; their step is the run's.
    fn partitions(&self, files: &[TorchFile], groups: &[Group]) -> anyhow::Result<()> {
        for (group, params) in groups.iter().enumerate() {
            let mut lens = Vec::new();
            for file in files {
                let optimizer = file.root().need("optimizer_state_dict")?;
                let updates = updates(file, &optimizer)?;
                if updates != self.found.updates {
                    let first = self.found.updates;
                    let what = format!("Adam's step is {updates}, in the first file it is {first}");
                    return Err(optimizer.problem(what));
                }
                let master = partition(&optimizer, group, Kept::Master)?;
                let len = master.tensor()?.numel();
                for kept in [Kept::FirstMoment, Kept::SecondMoment] {
                    let other = partition(&optimizer, group, kept)?.tensor()?.numel();
                    if other != len {
                        let name = kept.name();
                        let what = format!(
                            "the {name} of group {group} has {other} elements, its weights {len}"
                        );
                        return Err(optimizer.problem(what));
                    }
                }
                lens.push(len);
                let equal = lens[0] == len || lens.len() == files.len() && len < lens[0];
                if !equal {
                    let first = lens[0];
                    let what = format!(
                        "partition {group} has {len} elements, that of data rank 0 {first}"
                    );
                    return Err(master.problem(what));
                }
            }
            let held: usize = lens.iter().sum();
            let needed: usize =
                params.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            if held < needed {
                let last = files.last().expect("a data rank").root();
                let what = format!(
                    "the partitions of group {group} hold {held} elements, its parameters have {needed}"
                );
                return Err(last.problem(what));
            }
        }
        Ok(())
    }

    /// A tensor rank's share of a parameter, put together from the partitions of all data ranks.
    pub(super) fn fragments(
        &mut self,
        name: &str,
        rank: usize,
        kept: Kept,
    ) -> anyhow::Result<Vec<f32>> {
        let place = self.place(name)?;
        self.fragments_at(&place, name, rank, kept)
    }

    pub(super) fn fragments_at(
        &mut self,
        place: &Place,
        name: &str,
        rank: usize,
        kept: Kept,
    ) -> anyhow::Result<Vec<f32>> {
        let Place { stage, group, first, shape } = place;
        let numel: usize = shape.iter().product();
        let (mut values, mut begin) = (Vec::with_capacity(numel), 0);
        for file in &self.files(*stage)?[rank] {
            let optimizer = file.root().need("optimizer_state_dict")?;
            let partition = partition(&optimizer, *group, kept)?;
            let tensor = partition.tensor()?;
            let end = begin + tensor.numel();
            let part = match optimizer.some("param_slice_mappings") {
                Some(maps) => slice(&maps, *group, name)?,
                None => {
                    let from = (*first).max(begin);
                    let to = (first + numel).min(end);
                    (from < to).then(|| from - begin..to - begin)
                }
            };
            begin = end;
            let Some(part) = part else { continue };
            if part.end > tensor.numel() {
                let (len, end) = (tensor.numel(), part.end);
                let what = format!("partition {group} has {len} elements, {name} reaches to {end}");
                return Err(partition.problem(what));
            }
            values.extend(file.floats(tensor, part)?);
        }
        if values.len() != numel {
            let held = values.len();
            let what = format!(
                "the partitions of mp_rank {:02} hold {held} of the {numel} elements of {name}",
                stage * self.found.grid[0] + rank
            );
            let remedy = "copy the files of the optimizer again";
            return Err(Problems::one(self.dir.display().to_string(), what, remedy).into());
        }
        Ok(values)
    }
}
