//! The files of a step's folder, by the ranks in their names.

use super::super::arguments::Arguments;
use anyhow::Context;
use base::Problems;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files of a folder, by their ranks.
pub struct Names {
    pub models: Vec<String>,
    pub optim: BTreeMap<(usize, usize), String>,
}

impl Names {
    pub fn list(dir: &Path) -> anyhow::Result<Names> {
        let failed = || format!("cannot list {}", dir.display());
        let mut names = Names { models: Vec::new(), optim: BTreeMap::new() };
        let mut ranks = BTreeSet::new();
        for entry in fs::read_dir(dir).with_context(failed)? {
            let Ok(name) = entry.with_context(failed)?.file_name().into_string() else { continue };
            let rank = |text: &str| text.parse::<usize>().ok().filter(|rank| *rank < 1 << 20);
            if let Some(number) = between(&name, "mp_rank_", "_model_states.pt")
                && let Some(number) = rank(number)
            {
                ranks.insert((number, name.clone()));
            }
            let plain = name.strip_prefix("bf16_").or(name.strip_prefix("fp16_")).unwrap_or(&name);
            if let Some(middle) = between(plain, "zero_pp_rank_", "_optim_states.pt")
                && let Some((data, model)) = middle.split_once("_mp_rank_")
                && let (Some(data), Some(model)) = (rank(data), rank(model))
            {
                names.optim.insert((data, model), name);
            }
        }
        let place = dir.display().to_string();
        let remedy = "copy the folder of the step whole";
        if ranks.is_empty() {
            let what = "has no mp_rank_00_model_states.pt";
            return Err(Problems::one(place, what, remedy).into());
        }
        for (i, (number, name)) in ranks.into_iter().enumerate() {
            if number != i {
                let what = format!("mp_rank_{i:02}_model_states.pt is missing");
                return Err(Problems::one(place, what, remedy).into());
            }
            names.models.push(name);
        }
        if names.optim.is_empty() {
            let what = "has no zero_pp_rank_0_mp_rank_00_optim_states.pt: the optimizer's states are \
                        not there";
            let remedy = "copy them too; weights alone come by way of Hugging Face's format";
            return Err(Problems::one(place, what, remedy).into());
        }
        Ok(names)
    }

    pub fn model(&self, rank: usize) -> &str {
        &self.models[rank]
    }

    /// Tensor, pipeline and data ranks; an error names the file that is missing.
    pub fn grid(&self, dir: &Path, args: &Arguments) -> anyhow::Result<[usize; 3]> {
        let tensor = args.count("tensor_model_parallel_size")? as usize;
        let pipeline = args.count("pipeline_model_parallel_size")? as usize;
        let files = self.models.len();
        if tensor.checked_mul(pipeline) != Some(files) {
            let what = format!(
                "args has tensor_model_parallel_size {tensor} and pipeline_model_parallel_size \
                 {pipeline}, the folder {files} mp_rank_NN_model_states.pt"
            );
            return Err(args.problem(what));
        }
        let data = 1 + self.optim.keys().map(|(data, _)| *data).max().unwrap_or(0);
        let bf16 = self.optim.values().any(|name| name.starts_with("bf16_"));
        for (data, model) in (0..data).flat_map(|data| (0..files).map(move |model| (data, model))) {
            if !self.optim.contains_key(&(data, model)) {
                let prefix = if bf16 { "bf16_" } else { "" };
                let name =
                    format!("{prefix}zero_pp_rank_{data}_mp_rank_{model:02}_optim_states.pt");
                let what = format!("{name} is missing");
                let remedy = "copy the folder of the step whole";
                return Err(Problems::one(dir.display().to_string(), what, remedy).into());
            }
        }
        Ok([tensor, pipeline, data])
    }
}

pub fn between<'n>(name: &'n str, before: &str, after: &str) -> Option<&'n str> {
    name.strip_prefix(before)?.strip_suffix(after)
}
