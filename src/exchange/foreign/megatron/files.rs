//! Folders of ranks in a step's folder, `mp_rank_TT[_PPP]`, and the grid that they are of.

use super::super::arguments::{Arguments, ELSEWHERE};
use super::super::detect::list_names;
use super::super::incomplete;
use base::Problems;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const FILE: &str = "model_optim_rng.pt";

/// The files by stage and tensor rank; an error names the one that is missing.
pub fn files(dir: &Path) -> anyhow::Result<Vec<Vec<PathBuf>>> {
    let mut found = BTreeSet::new();
    let mut staged = false;
    for name in list_names(dir)? {
        let folder = Some(&name).filter(|name| dir.join(name).is_dir());
        let Some(ranks) = folder.and_then(|name| name.strip_prefix("mp_rank_")) else { continue };
        let ranks: Option<Vec<usize>> = ranks.split('_').map(|rank| rank.parse().ok()).collect();
        match ranks.as_deref() {
            Some([tensor]) => found.insert((0, *tensor)),
            Some([tensor, stage]) => {
                staged = true;
                found.insert((*stage, *tensor))
            }
            _ => {
                let place = dir.display().to_string();
                return Err(Problems::one(
                    place,
                    format!("{name}: folders of experts are not read"),
                    ELSEWHERE,
                )
                .into());
            }
        };
    }
    let stages = 1 + found.iter().map(|(stage, _)| *stage).max().unwrap_or(0);
    let ranks = 1 + found.iter().map(|(_, tensor)| *tensor).max().unwrap_or(0);
    if stages * ranks > 1 << 16 {
        return Err(incomplete(dir, format!("names {stages} stages and {ranks} tensor ranks")));
    }
    let path = |stage: usize, tensor: usize| {
        let name = if staged {
            format!("mp_rank_{tensor:02}_{stage:03}")
        } else {
            format!("mp_rank_{tensor:02}")
        };
        let path = dir.join(&name).join(FILE);
        if path.is_file() {
            return Ok(path);
        }
        Err(incomplete(dir, format!("{name}/{FILE} is missing")))
    };
    (0..stages)
        .map(|stage| (0..ranks).map(|tensor| path(stage, tensor)).collect())
        .collect()
}

/// The files are as many as the arguments say.
pub fn grid(args: &Arguments, files: &[Vec<PathBuf>]) -> anyhow::Result<()> {
    let tensor = args.optional_count("topology.tensor")?.unwrap_or(1);
    let pipeline = args.optional_count("topology.pipeline")?.unwrap_or(1);
    if [tensor, pipeline] == [files[0].len() as u64, files.len() as u64] {
        return Ok(());
    }
    Err(args.problem(format!(
        "args has {} {tensor} and {} {pipeline}, the folder {} × {} of mp_rank_TT_PPP",
        args.name("topology.tensor"),
        args.name("topology.pipeline"),
        files[0].len(),
        files.len()
    )))
}
