//! Checks of files before a run: those that a manifest names are compared with it, so that
//! inconsistencies are found before a sample or a prompt first needs a file.

use super::report::metrics;
use super::tokenizers::Tokenizers;
use super::{last_checkpoint, status};
use base::{Count, Problem, Problems, input};
use checkpoint::place::Place;
use data::Tokenizer;
use data::indexed::Indexed;
use data::tokenizer::TOKENIZER;
use exchange::tokenizer;
use launch::{crash_loop, events, sick_nodes};
use manifest::Manifest;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Files of a run's folder that every start reads and replaces.
const RUN_FILES: [&str; 8] = [
    manifest::IN_FOLDER,
    "checkpoints/latest",
    crash_loop::NAME,
    events::NAME,
    last_checkpoint::NAME,
    metrics::NAME,
    sick_nodes::NAME,
    status::NAME,
];

/// Fails if something else has the name of a file of the run's folder: reading a pipe or a device
/// may never end.
pub fn check_run_folder(folder: &Path) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for path in RUN_FILES.map(|name| folder.join(name)) {
        if let Err(error) = input::open(&path)
            && error.kind() == ErrorKind::InvalidInput
        {
            problems.add(
                path.display().to_string(),
                error.to_string(),
                "remove it: the run writes its own",
            );
        }
    }
    problems.or(())
}

/// Problems with the files of a manifest.
#[derive(Debug, Default)]
pub struct FileFindings {
    /// Files that contradict the manifest, or are damaged.
    pub wrong: Problems,
    /// Missing files. A run needs them, but a manifest may be written before they exist.
    pub missing: Problems,
    /// Notes: files that cannot be checked, and settings that are probably unintended.
    pub notes: Vec<String>,
}

impl FileFindings {
    /// Fails on any problem, because a run needs all files.
    pub fn into_result(self) -> Result<(), Problems> {
        let FileFindings { mut wrong, missing, .. } = self;
        wrong.list.extend(missing.list);
        wrong.or(())
    }
}

/// Checks the tokenizer and pieces of every dataset. Reads at most 8 MiB of each.
pub fn check_files(m: &Manifest) -> anyhow::Result<FileFindings> {
    let mut files = FileFindings::default();
    let mut unusual_end = None;
    if let Some(path) = &m.data.tokenizer {
        if path.exists() {
            unusual_end = files.check_tokenizer(m, path)?;
        } else {
            let copy = m.log.folder.join(tokenizer::FOLDER).join(TOKENIZER);
            let remedy = if copy.exists() {
                format!("the run has a copy: --set data.tokenizer={}", copy.display())
            } else {
                "check the path (--set data.tokenizer=FILE), or leave it out".to_string()
            };
            files.missing.add(
                "data.tokenizer",
                format!("{} does not exist", path.display()),
                remedy,
            );
        }
    }
    if let Some(also) = &m.checkpoint.also {
        files.wrong.collect(Place::open(also).map(drop))?;
    }
    let mut tokenizers = Tokenizers::new(m)?;
    for (prefix, key) in prefixes(m) {
        files.check_dataset(m, &key, &prefix, &mut tokenizers)?;
    }
    if let (Some(eod), Some(unusual)) = (m.data.eod, unusual_end)
        && !tokenizers.is_appended(eod.token)
    {
        files.wrong.list.extend(unusual.list);
    }
    files.notes = tokenizers.notes();
    Ok(files)
}

/// Checks the samples of a manifest whose files exist: too few tokens for one, too many to be
/// ordered, or an order that does not fit this machine's memory. A run finds these itself when it
/// opens its datasets. An order in `data.cache` needs no such memory.
pub fn check_samples(m: &Manifest) -> anyhow::Result<FileFindings> {
    let mut files = FileFindings::default();
    let seq_len = m.model.seq_len;
    let run = m.train.samples;
    let eval = m.train.eval_samples;
    let missing = files
        .wrong
        .collect(data::check(&m.data, seq_len, run, eval))?;
    files.missing = missing.unwrap_or_default();
    Ok(files)
}

/// Prefixes of all datasets, each with the first key that names it.
fn prefixes(m: &Manifest) -> BTreeMap<PathBuf, String> {
    let train = ("data.train".to_string(), &m.data.train);
    let stages = m
        .data
        .stages
        .iter()
        .enumerate()
        .map(|(at, stage)| (format!("data.stages.{at}.train"), &stage.train));
    let valid = m
        .data
        .valid
        .iter()
        .map(|set| (format!("data.valid.{}", set.name), &set.datasets));
    let mut prefixes = BTreeMap::new();
    for (key, datasets) in [train].into_iter().chain(stages).chain(valid) {
        for (at, dataset) in datasets.iter().enumerate() {
            let key = if datasets.len() > 1 { format!("{key}.{at}.prefix") } else { key.clone() };
            prefixes.entry(dataset.prefix.clone()).or_insert(key);
        }
    }
    prefixes
}

/// Names the key of a dataset that does not exist, and the flag for another place.
fn missing_dataset(key: &str, problems: Problems) -> Problems {
    Problems {
        list: problems
            .list
            .into_iter()
            .map(|problem| {
                let valid = match key.strip_prefix("data.valid.") {
                    Some(_) => ", or --set data.valid=null for the validation share of data.train",
                    None => "",
                };
                Problem {
                    place: key.to_string(),
                    what: format!("{} {}", problem.place, problem.what),
                    remedy: format!("moved data: --set {key}=PREFIX{valid}; {}", problem.remedy),
                }
            })
            .collect(),
    }
}

impl FileFindings {
    /// Checks the tokenizer. Returns the problem of an end-of-document token that the tokenizer does not
    /// name. The caller drops the problem if a dataset's documents end with that token.
    fn check_tokenizer(&mut self, m: &Manifest, path: &Path) -> anyhow::Result<Option<Problems>> {
        // A run trains on ids and only copies the file, which may have a format that other programs
        // read.
        let mut unread = Problems::default();
        let shown = path.display();
        let Some(tokenizer) = unread.collect(Tokenizer::load(path))? else {
            let reasons: Vec<&str> = unread.list.iter().map(|one| one.what.as_str()).collect();
            let reasons = reasons.join("; ");
            tracing::warn!("prompts and texts cannot be read: {shown} {reasons}");
            return Ok(None);
        };
        if tokenizer.vocab() > m.model.vocab {
            let vocab = Count(tokenizer.vocab() as u64);
            self.wrong.add(
                "model.vocab",
                format!("is {}, and {shown} has {vocab} ids", Count(m.model.vocab as u64)),
                format!("set model.vocab to {}", tokenizer.vocab()),
            );
        }
        if let (Some(eod), Some(own)) = (m.data.eod, tokenizer.eod())
            && !tokenizer
                .added_tokens()
                .iter()
                .any(|(_, id)| *id == eod.token)
        {
            return Ok(Some(Problems::one(
                "data.eod.token",
                format!("is {}, which ends no document: {shown} has {own} for it", eod.token),
                format!("set data.eod.token to {own}"),
            )));
        }
        Ok(None)
    }

    fn check_dataset(
        &mut self,
        m: &Manifest,
        key: &str,
        prefix: &Path,
        tokenizers: &mut Tokenizers,
    ) -> anyhow::Result<()> {
        let dataset = match Indexed::open(prefix) {
            Ok(dataset) => dataset,
            Err(error) => {
                if data::indexed::index_path(prefix).exists() {
                    self.wrong.collect::<()>(Err(error))?;
                } else {
                    let mut found = Problems::default();
                    found.collect::<()>(Err(error))?;
                    self.missing.list.extend(missing_dataset(key, found).list);
                }
                return Ok(());
            }
        };
        let recorded = tokenizers.compare(&dataset, &mut self.wrong)?;
        let highest = highest_id(&dataset)?;
        let place = prefix.display().to_string();
        if let Some(vocab) = recorded.filter(|vocab| highest >= 0 && highest as usize >= *vocab) {
            self.wrong.add(
                place.clone(),
                format!("holds id {highest}; the record of its tokenizer has {vocab} ids"),
                "it was built with another tokenizer, or is damaged: build it again",
            );
        }
        if highest >= m.model.vocab as i32 {
            self.wrong.add(
                place,
                format!("holds id {highest}; model.vocab is {}", m.model.vocab),
                "set model.vocab to the size of the tokenizer it was built with",
            );
        }
        Ok(())
    }
}

/// Number of pieces checked per dataset, and tokens per piece.
const PIECES: u64 = 64;
const PIECE: u64 = 32 << 10;

/// Highest id in pieces at equal distances, including the first and the last tokens; of a dataset
/// of 2 million tokens or fewer, in all. −1 if there are none.
fn highest_id(dataset: &Indexed) -> anyhow::Result<i32> {
    let total = dataset.tokens();
    let count = PIECE.min(total);
    let mut tokens = vec![0; count as usize];
    let mut highest = -1;
    for piece in 0..total.div_ceil(PIECE).min(PIECES) {
        let last = total.div_ceil(PIECE).min(PIECES) - 1;
        let first = (total - count) as u128 * piece as u128 / last.max(1) as u128;
        dataset.read_across(first as u64, &mut tokens)?;
        highest = highest.max(tokens.iter().copied().max().unwrap_or(-1));
    }
    Ok(highest)
}
