//! The files of a step's folder, by the ranks in their names.

use super::super::arguments::Arguments;
use super::super::detect::list_names;
use super::super::incomplete;
use base::Problems;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Ends of the files' names: of the model, and of the optimizer.
pub const MODEL_STATES: &str = "_model_states.pt";
pub const OPTIM: &str = "_optim_states.pt";

/// Files by model-parallel and data rank.
pub type RankFiles = BTreeMap<(usize, usize), PathBuf>;

/// The files called `zero_pp_rank_D_mp_rank_MM` and `end`, with or without a type before it.
pub fn rank_files(dir: &Path, end: &str) -> anyhow::Result<RankFiles> {
    let mut files = RankFiles::new();
    for name in list_names(dir)? {
        let plain = name
            .strip_prefix("bf16_")
            .or(name.strip_prefix("fp16_"))
            .unwrap_or(&name);
        let ranks = between(plain, "zero_pp_rank_", end).and_then(|r| r.split_once("_mp_rank_"));
        if let Some((data, model)) = ranks
            && let (Some(data), Some(model)) = (rank(data), rank(model))
        {
            files.insert((model, data), dir.join(name));
        }
    }
    Ok(files)
}

/// The files of a folder of ZeRO-1.
pub struct Files {
    /// Names of the model's files, by model-parallel rank.
    pub models: Vec<String>,
    pub optim: RankFiles,
}

impl Files {
    pub fn list(dir: &Path) -> anyhow::Result<Files> {
        let number = |name: String| Some((rank(between(&name, "mp_rank_", MODEL_STATES)?)?, name));
        let ranks: BTreeSet<_> = list_names(dir)?.into_iter().filter_map(number).collect();
        if ranks.is_empty() {
            return Err(incomplete(dir, format!("has no mp_rank_00{MODEL_STATES}")));
        }
        let mut models = Vec::new();
        for (i, (number, name)) in ranks.into_iter().enumerate() {
            if number != i {
                return Err(incomplete(dir, format!("mp_rank_{i:02}{MODEL_STATES} is missing")));
            }
            models.push(name);
        }
        let optim = rank_files(dir, OPTIM)?;
        if optim.is_empty() {
            return Err(Problems::one(
                dir.display().to_string(),
                "has no zero_pp_rank_0_mp_rank_00_optim_states.pt: the optimizer's states are \
                 not there",
                "copy them too; weights alone come by way of Hugging Face's format",
            )
            .into());
        }
        Ok(Files { models, optim })
    }

    /// Tensor, pipeline and data ranks; an error names the file that is missing.
    pub fn grid(&self, dir: &Path, args: &Arguments) -> anyhow::Result<[usize; 3]> {
        let tensor = args.count("topology.tensor")? as usize;
        let pipeline = args.count("topology.pipeline")? as usize;
        let files = self.models.len();
        if tensor.checked_mul(pipeline) != Some(files) {
            return Err(args.problem(format!(
                "args has {} {tensor} and {} {pipeline}, the folder {files} \
                 mp_rank_NN_model_states.pt",
                args.name("topology.tensor"),
                args.name("topology.pipeline")
            )));
        }
        let data = 1 + self.optim.keys().map(|(_, data)| *data).max().unwrap_or(0);
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_owned();
        let prefix = if self
            .optim
            .values()
            .any(|path| name(path).to_string_lossy().starts_with("bf16_"))
        {
            "bf16_"
        } else {
            ""
        };
        for (data, model) in (0..data).flat_map(|data| (0..files).map(move |model| (data, model))) {
            if !self.optim.contains_key(&(model, data)) {
                let name = format!("{prefix}zero_pp_rank_{data}_mp_rank_{model:02}{OPTIM}");
                return Err(incomplete(dir, format!("{name} is missing")));
            }
        }
        Ok([tensor, pipeline, data])
    }
}

fn rank(text: &str) -> Option<usize> {
    text.parse().ok().filter(|rank| *rank < 1 << 20)
}

fn between<'n>(name: &'n str, before: &str, after: &str) -> Option<&'n str> {
    name.strip_prefix(before)?.strip_suffix(after)
}
