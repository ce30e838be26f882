//! Dump of a failed process group. A folder with `verdict.json`, which holds the failure line, and
//! `rank-00037.json`, the flight recorder of each rank.

use super::hang::diagnose;
use super::report::RankReport;
use anyhow::Context;
use base::Problems;
use base::output::{self, Existing};
use std::fs;
use std::path::{Path, PathBuf};

/// Contents of a dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Dump {
    /// Failure line.
    pub line: Option<String>,
    /// Indexed by rank; ranks without a file are reported as unknown.
    pub ranks: Vec<RankReport>,
    /// Files that could not be read, with the reason.
    pub damaged: Vec<String>,
}

/// Writes the failure line unless another rank has written it. Returns whether this call wrote it.
pub fn claim_diagnosis(folder: &Path, line: &str) -> anyhow::Result<bool> {
    let new = write_new(folder, "verdict.json", &serde_json::json!({ "verdict": line }))?;
    output::claim(&new, &folder.join("verdict.json"))
}

/// Writes the report of one rank.
pub fn write_rank(folder: &Path, report: &RankReport) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("rank-{:05}.json", report.rank));
    output::write(&path, Existing::Replaced, &serde_json::to_vec_pretty(report)?)
}

/// Writes under a name unique to this process and machine.
fn write_new(folder: &Path, name: &str, value: &impl serde::Serialize) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let new = folder.join(format!("{name}.{}.{}", base::hostname(), std::process::id()));
    fs::write(&new, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("writing {}", new.display()))?;
    Ok(new)
}

impl Dump {
    /// Reads the dump in a folder, as far as its files can be read.
    pub fn read(folder: &Path) -> anyhow::Result<Dump> {
        let mut dump = Dump { line: None, ranks: Vec::new(), damaged: Vec::new() };
        let context = || format!("reading {}", folder.display());
        for entry in fs::read_dir(folder).with_context(context)? {
            let path = entry.with_context(context)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !name.ends_with(".json") {
                continue;
            }
            let read = fs::read(&path).map_err(anyhow::Error::from);
            let kept = read.and_then(|bytes| dump.add_file(&name, &bytes));
            if let Err(error) = kept {
                dump.damaged.push(format!("{}: {error}", path.display()));
            }
        }
        dump.damaged.sort();
        if dump.line.is_none() && dump.ranks.is_empty() {
            return Err(Problems::one(
                folder.display().to_string(),
                "holds no dump: neither verdict.json nor rank-*.json",
                "give the folder of a run that failed with several ranks",
            )
            .into());
        }
        dump.fill_ranks();
        Ok(dump)
    }

    fn add_file(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        if name == "verdict.json" {
            let value: serde_json::Value = serde_json::from_slice(bytes)?;
            self.line = value["verdict"].as_str().map(str::to_string);
        } else if name.starts_with("rank-") {
            self.ranks.push(serde_json::from_slice(bytes)?);
        }
        Ok(())
    }

    /// Fills `ranks` up to the highest rank that any group mentions.
    fn fill_ranks(&mut self) {
        /// Limit far above any machine's ranks, so that a damaged file cannot exhaust memory.
        const MOST: usize = 1 << 20;
        let mentioned = self.ranks.iter().flat_map(|report| {
            let others = report
                .groups
                .iter()
                .flat_map(|group| group.ranks.iter().copied());
            others.chain([report.rank])
        });
        let size = mentioned
            .filter(|rank| *rank < MOST)
            .max()
            .map_or(0, |rank| rank + 1);
        let mut ranks: Vec<RankReport> = (0..size).map(RankReport::unknown).collect();
        for report in self.ranks.drain(..).filter(|report| report.rank < size) {
            let rank = report.rank;
            ranks[rank] = report;
        }
        self.ranks = ranks;
    }

    /// Hang diagnosis from the reports.
    pub fn diagnose(&self) -> Option<String> {
        diagnose(&self.ranks, 0.0)
    }
}
