//! Names that other trainers have for the settings of a manifest. The same rows are read by the
//! messages about unknown keys and unknown options, by imports, and by docs/coming-from.md.

mod table;

pub use table::ROWS;

/// A trainer whose names are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainer {
    Megatron,
    /// transformers' models and `TrainingArguments`, and DeepSpeed's configuration.
    HuggingFace,
    NanoGpt,
    LitGpt,
    Torchtitan,
    LlmC,
    /// Short forms that people type.
    Short,
}

impl Trainer {
    /// Trainers with a column in docs/coming-from.md, and its heading.
    pub const COLUMNS: [(Trainer, &'static str); 6] = [
        (Trainer::Megatron, "Megatron-LM"),
        (Trainer::HuggingFace, "Hugging Face, DeepSpeed"),
        (Trainer::NanoGpt, "nanoGPT"),
        (Trainer::LitGpt, "litgpt"),
        (Trainer::Torchtitan, "torchtitan"),
        (Trainer::LlmC, "llm.c (`train_gpt2cu`)"),
    ];
}

/// Meaning of a name in gptrain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A key, with a value if the name implies one: `topology.zero` and `1`.
    Setting { key: &'static str, value: Option<&'static str> },
    /// Nothing has to be set, for this reason.
    Unneeded(&'static str),
    /// gptrain does not have it.
    Lacking(&'static str),
    /// A model that gptrain does not have: an import refuses it.
    OtherModel(&'static str),
}

/// One meaning, and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub meaning: Meaning,
    /// The setting's value, if it is not the value that these names have; may be empty.
    pub unit: &'static str,
    /// For each `Trainer`: names, separated by spaces, and a remark after a semicolon.
    cells: [&'static str; 7],
}

impl Row {
    const fn new(meaning: Meaning) -> Row {
        Row { meaning, unit: "", cells: [""; 7] }
    }

    const fn with(mut self, trainer: Trainer, cell: &'static str) -> Row {
        self.cells[trainer as usize] = cell;
        self
    }

    const fn megatron(self, cell: &'static str) -> Row {
        self.with(Trainer::Megatron, cell)
    }

    const fn hf(self, cell: &'static str) -> Row {
        self.with(Trainer::HuggingFace, cell)
    }

    const fn nanogpt(self, cell: &'static str) -> Row {
        self.with(Trainer::NanoGpt, cell)
    }

    const fn litgpt(self, cell: &'static str) -> Row {
        self.with(Trainer::LitGpt, cell)
    }

    const fn titan(self, cell: &'static str) -> Row {
        self.with(Trainer::Torchtitan, cell)
    }

    const fn llmc(self, cell: &'static str) -> Row {
        self.with(Trainer::LlmC, cell)
    }

    const fn short(self, cell: &'static str) -> Row {
        self.with(Trainer::Short, cell)
    }

    const fn unit(mut self, unit: &'static str) -> Row {
        self.unit = unit;
        self
    }

    /// Names of a trainer for this, as it writes them.
    pub fn names(&self, trainer: Trainer) -> impl Iterator<Item = &'static str> {
        let cell = self.cells[trainer as usize];
        cell.split(';')
            .next()
            .into_iter()
            .flat_map(str::split_whitespace)
    }

    /// Remark about a trainer's names; may be empty.
    pub fn remark(&self, trainer: Trainer) -> &'static str {
        self.cells[trainer as usize]
            .split_once(';')
            .map_or("", |(_, remark)| remark.trim())
    }

    /// Names by which `find` finds the row: all but llm.c's single letters.
    fn all_names(&self) -> impl Iterator<Item = &'static str> {
        let columns = Trainer::COLUMNS.map(|(trainer, _)| trainer).into_iter();
        let words = columns
            .chain([Trainer::Short])
            .filter(|trainer| *trainer != Trainer::LlmC);
        words.flat_map(|trainer| self.names(trainer))
    }
}

/// Row of another trainer's name: `--global-batch-size`, `train.max_norm`. A name without its section
/// is found too.
pub fn find(name: &str) -> Option<&'static Row> {
    let plain = plain(name);
    let with = |same: &dyn Fn(&str) -> bool| ROWS.iter().find(|row| row.all_names().any(same));
    let last = plain.rsplit('.').next()?;
    with(&|name| name == plain)
        .or_else(|| with(&|name| name == last))
        .or_else(|| {
            // The last word of a name with a section, unless several rows have it.
            let ends = |name: &str| name.rsplit_once('.').is_some_and(|(_, word)| word == last);
            let mut rows = ROWS.iter().filter(|row| row.all_names().any(ends));
            rows.next().filter(|_| rows.next().is_none())
        })
}

/// Options of a trainer's models that gptrain does not have, with the reasons.
pub fn other_models(trainer: Trainer) -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = ROWS.iter().filter_map(move |row| match row.meaning {
        Meaning::OtherModel(why) => Some((row, why)),
        _ => None,
    });
    rows.flat_map(move |(row, why)| row.names(trainer).map(move |name| (name, why)))
}

/// `--Global-Batch-Size` as names are compared.
pub(super) fn plain(name: &str) -> String {
    name.trim_start_matches('-')
        .replace('-', "_")
        .to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::settings;

    #[test]
    fn every_row_names_a_setting_that_exists() {
        let all = crate::keys::all();
        for row in ROWS {
            if let Meaning::Setting { key, .. } = row.meaning {
                assert!(all.iter().any(|known| known == key), "there is no {key}");
            }
        }
        assert!(settings().len() > 50);
    }

    /// A value that a name implies is one that its key takes.
    #[test]
    fn every_implied_value_is_accepted() {
        let text = "model: {layers: 4, hidden: 64, heads: 4, vocab: 512, seq_len: 64}\n\
                    data: {train: a}\nbatch: {micro: 2, global: 4}\nlr: {peak: 1e-3}\n\
                    train: {samples: 400}\n";
        for row in ROWS {
            if let Meaning::Setting { key, value: Some(value) } = row.meaning {
                let set = format!("{key}={value}");
                let sets = [set.clone(), "topology.data=2".to_string()];
                let read = crate::parse(text, "m.yaml", std::path::Path::new("/"), &sets);
                assert!(read.is_ok(), "{set}: {}", read.err().unwrap());
            }
        }
    }

    #[test]
    fn a_name_has_one_meaning() {
        let mut seen = std::collections::HashMap::new();
        for row in ROWS {
            let mut names: Vec<&str> = row.all_names().collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                assert_eq!(name, plain(name), "names are compared in this form");
                let before = seen.insert(name, row.meaning);
                assert!(before.is_none(), "{name}: {before:?} and {:?}", row.meaning);
            }
        }
    }
}
