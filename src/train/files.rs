//! The files that a manifest names, compared with it: what does not go together is found before the
//! run, not when a sample or a prompt first needs it.

use base::{Count, Problem, Problems};
use checkpoint::place::Place;
use data::Tokenizer;
use data::indexed::Indexed;
use manifest::Manifest;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What is wrong with the files of a manifest.
#[derive(Debug, Default)]
pub struct Files {
    /// Files that contradict the manifest, or are damaged.
    pub wrong: Problems,
    /// Files that are not here. A run needs them; a manifest may be written before they are.
    pub missing: Problems,
}

impl Files {
    /// An error for a run, which needs all of them.
    pub fn ready(self) -> Result<(), Problems> {
        let Files { mut wrong, missing } = self;
        wrong.list.extend(missing.list);
        wrong.or(())
    }
}

/// Looks at the tokenizer and at pieces of every dataset. Reads at most 8 MiB of each.
pub fn check(m: &Manifest) -> anyhow::Result<Files> {
    let mut files = Files::default();
    if let Some(path) = &m.data.tokenizer {
        match path.exists() {
            true => files.tokenizer(m, path)?,
            false => files.missing.list.push(Problem {
                place: "data.tokenizer".into(),
                what: format!("{} does not exist", path.display()),
                remedy: "check the path, or leave data.tokenizer out".into(),
            }),
        }
    }
    if let Some(also) = &m.checkpoint.also {
        files.wrong.collect(Place::open(also).map(drop))?;
    }
    for prefix in prefixes(m) {
        files.dataset(m, &prefix)?;
    }
    Ok(files)
}

/// The samples of a manifest whose files are here: too few tokens for one, too many to be put in
/// order, or an order that this machine's memory has no room for. A run finds these itself when it
/// opens its datasets, and one whose order is kept in `data.cache` needs no such memory.
pub fn samples(m: &Manifest) -> anyhow::Result<Files> {
    let mut files = Files::default();
    let (seq_len, run, eval) = (m.model.seq_len, m.train.samples, m.train.eval_samples);
    let told = files.wrong.collect(data::foresee(&m.data, seq_len, run, eval))?;
    files.missing = told.unwrap_or_default();
    Ok(files)
}

/// Each dataset once.
fn prefixes(m: &Manifest) -> BTreeSet<PathBuf> {
    let valid = m.data.valid.iter().flat_map(|set| &set.datasets);
    let valid = valid.map(|dataset| dataset.prefix.clone());
    m.data.train_prefixes().into_iter().cloned().chain(valid).collect()
}

impl Files {
    fn tokenizer(&mut self, m: &Manifest, path: &Path) -> anyhow::Result<()> {
        // A run trains on ids and only carries the file, which may be of a kind that others read.
        let mut unread = Problems::default();
        let Some(tokenizer) = unread.collect(Tokenizer::load(path))? else {
            let why = unread.list.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>();
            let shown = path.display();
            tracing::warn!("prompts and texts cannot be read: {shown} {}", why.join("; "));
            return Ok(());
        };
        let shown = path.display();
        if tokenizer.vocab() > m.model.vocab {
            let vocab = Count(tokenizer.vocab() as u64);
            let what = format!("is {}, and {shown} has {vocab} ids", Count(m.model.vocab as u64));
            self.wrong.add(
                "model.vocab",
                what,
                format!("set model.vocab to {}", tokenizer.vocab()),
            );
        }
        let special = |id: u32| tokenizer.specials().iter().any(|(_, special)| *special == id);
        if let (Some(eod), Some(own)) = (m.data.eod, tokenizer.eod())
            && !special(eod.token)
        {
            let what =
                format!("is {}, which ends no document: {shown} has {own} for it", eod.token);
            self.wrong.add("data.eod.token", what, format!("set data.eod.token to {own}"));
        }
        Ok(())
    }

    fn dataset(&mut self, m: &Manifest, prefix: &Path) -> anyhow::Result<()> {
        let dataset = match Indexed::open(prefix) {
            Ok(dataset) => dataset,
            Err(error) => {
                let here = data::indexed::index_path(prefix).exists();
                let list = if here { &mut self.wrong } else { &mut self.missing };
                list.collect::<()>(Err(error))?;
                return Ok(());
            }
        };
        let highest = highest_of_pieces(&dataset)?;
        if highest >= m.model.vocab as i32 {
            let place = prefix.display().to_string();
            let what = format!("holds id {highest}; model.vocab is {}", m.model.vocab);
            let remedy = "set model.vocab to the size of the tokenizer it was built with";
            self.wrong.add(place, what, remedy);
        }
        Ok(())
    }
}

/// Pieces of a dataset that are looked at, and tokens of each.
const PIECES: u64 = 64;
const PIECE: u64 = 32 << 10;

/// The highest id of pieces at equal distances, the first and the last tokens among them; of a
/// dataset of 2 million tokens or fewer, of all. −1 where there are none.
fn highest_of_pieces(dataset: &Indexed) -> anyhow::Result<i32> {
    let total = dataset.tokens();
    let count = PIECE.min(total);
    let mut tokens = vec![0; count as usize];
    let mut highest = -1;
    for piece in 0..total.div_ceil(PIECE).min(PIECES) {
        let last = total.div_ceil(PIECE).min(PIECES) - 1;
        let first = (total - count) as u128 * piece as u128 / last.max(1) as u128;
        dataset.tokens_from(first as u64, &mut tokens)?;
        highest = highest.max(tokens.iter().copied().max().unwrap_or(-1));
    }
    Ok(highest)
}
