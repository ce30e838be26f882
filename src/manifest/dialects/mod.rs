//! Other programs' words for the settings of a manifest: the only place where they are written. The
//! same rows are read by imports, exports, messages about unknown keys and unknown options, and
//! docs/coming-from.md.

mod table;

pub use table::ROWS;

use serde_json::{Value as Json, json};

/// A program, or a part of one, that has its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Arguments of Megatron-LM and Megatron-DeepSpeed.
    Megatron,
    /// Megatron's state of the learning rate's schedule. The first name is the current one.
    Schedule,
    /// config.json of the Llama families. transformers writes the first name, and reads all.
    Llama,
    /// config.json of GPT-2.
    Gpt2,
    /// config.json of BLOOM.
    Bloom,
    /// transformers' `TrainingArguments`, and DeepSpeed's configuration.
    HuggingFace,
    NanoGpt,
    LitGpt,
    Torchtitan,
    /// config.json of OLMo-core; `*` is the module that mixes positions.
    OlmoCore,
    LlmC,
    /// Short forms that people type.
    Short,
}

impl Dialect {
    /// Columns of docs/coming-from.md.
    pub const COLUMNS: [(&'static str, &'static [Dialect]); 7] = [
        ("Megatron-LM", &[Dialect::Megatron]),
        (
            "Hugging Face, DeepSpeed",
            &[Dialect::Llama, Dialect::Gpt2, Dialect::Bloom, Dialect::HuggingFace],
        ),
        ("nanoGPT", &[Dialect::NanoGpt]),
        ("litgpt", &[Dialect::LitGpt]),
        ("torchtitan", &[Dialect::Torchtitan]),
        ("OLMo-core", &[Dialect::OlmoCore]),
        ("llm.c (`train_gpt2cu`)", &[Dialect::LlmC]),
    ];

    /// Number of dialects.
    const COUNT: usize = Dialect::Short as usize + 1;

    /// Dialects whose names people type into a manifest or a command line: not llm.c's single letters.
    const TYPED: [Dialect; 9] = [
        Dialect::Megatron,
        Dialect::Llama,
        Dialect::Gpt2,
        Dialect::Bloom,
        Dialect::HuggingFace,
        Dialect::NanoGpt,
        Dialect::LitGpt,
        Dialect::Torchtitan,
        Dialect::Short,
    ];

    /// Names of a setting, written as in a manifest: `model.layers`, or with a value that the names
    /// imply, `precision: bf16`. Of several rows the first counts; empty if the dialect has none.
    pub fn names(self, setting: &str) -> Vec<&'static str> {
        self.row(setting)
            .map_or(Vec::new(), |row| row.names(self).collect())
    }

    /// First name of a setting, which must be in the table.
    pub fn name(self, setting: &str) -> &'static str {
        self.row(setting)
            .and_then(|row| row.names(self).next())
            .unwrap_or_else(|| panic!("{self:?} has no name for {setting}"))
    }

    /// Whether it is one of this dialect's names.
    pub fn knows(self, name: &str) -> bool {
        ROWS.iter().any(|row| row.has(self, name))
    }

    /// Row with this dialect's names of a setting.
    pub fn row(self, setting: &str) -> Option<&'static Row> {
        let mut rows = ROWS.iter().filter(|row| row.names(self).next().is_some());
        rows.find(|row| row.is(setting))
    }

    /// Name of the same length in steps, where the setting counts samples.
    pub fn steps(self, setting: &str) -> &'static str {
        ROWS.iter()
            .filter(|row| row.is(setting) && row.unit == table::SAMPLES)
            .find_map(|row| row.names(self).next())
            .unwrap_or_else(|| panic!("{self:?} counts no steps for {setting}"))
    }

    /// This dialect's name and value for a setting, of which `settings` is the manifest as JSON. None
    /// if the manifest does not have it.
    pub fn written(self, setting: &str, settings: &Json) -> Option<(&'static str, Json)> {
        let row = self
            .row(setting)
            .unwrap_or_else(|| panic!("{self:?} has no name for {setting}"));
        let Meaning::Setting { key, value } = row.meaning else { return None };
        let ours = settings.pointer(&format!("/{}", key.replace('.', "/")))?;
        let theirs = match (row.conversion, value) {
            (_, Some(value)) => json!(ours == value),
            (Conversion::Opposite, _) => json!(!ours.as_bool()?),
            (Conversion::Choice(words), _) => {
                json!(words.iter().find(|(_, word)| ours == word)?.0)
            }
            _ => ours.clone(),
        };
        Some((self.name(setting), theirs))
    }

    /// Options that have one value alone in gptrain: name, value and reason.
    pub fn fixed(self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        ROWS.iter()
            .filter_map(|row| match row.meaning {
                Meaning::Only { value, why } => Some((row, value, why)),
                _ => None,
            })
            .flat_map(move |(row, value, why)| row.names(self).map(move |name| (name, value, why)))
    }
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
    /// A part of the model that has one form in gptrain: an import refuses any other value, written as
    /// in JSON.
    Only { value: &'static str, why: &'static str },
    /// A part of the training that has one form in gptrain: an import notes any other value, written as
    /// in JSON or as bare text.
    Noted { value: &'static str, why: &'static str },
}

/// Conversion between the other program's value and the setting's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    Count,
    Number,
    Flag,
    /// A flag whose true is the setting's false.
    Opposite,
    /// Their word and ours. Of several words for one of ours the first is written.
    Choice(&'static [(&'static str, &'static str)]),
    /// A function of the import, and one of the export.
    Custom,
}

/// One meaning, and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub meaning: Meaning,
    pub conversion: Conversion,
    /// The setting's value, if it is not the value that these names have; may be empty.
    pub unit: &'static str,
    /// For each `Dialect`: names, separated by spaces, and a remark after a semicolon.
    cells: [&'static str; Dialect::COUNT],
}

/// Defines the methods with which the table adds a dialect's cell to a row.
macro_rules! columns {
    ($($column:ident: $dialect:ident),*) => {
        impl Row {
            $(const fn $column(self, cell: &'static str) -> Row {
                self.with(Dialect::$dialect, cell)
            })*
        }
    };
}

columns! {
    megatron: Megatron, schedule: Schedule, llama: Llama, gpt2: Gpt2, bloom: Bloom, hf: HuggingFace,
    nanogpt: NanoGpt, litgpt: LitGpt, titan: Torchtitan, olmo: OlmoCore, llmc: LlmC, short: Short
}

impl Row {
    const fn new(meaning: Meaning, conversion: Conversion) -> Row {
        Row { meaning, conversion, unit: "", cells: [""; Dialect::COUNT] }
    }

    const fn with(mut self, dialect: Dialect, cell: &'static str) -> Row {
        self.cells[dialect as usize] = cell;
        self
    }

    /// Name in config.json of all families.
    const fn config(self, cell: &'static str) -> Row {
        self.llama(cell).gpt2(cell).bloom(cell)
    }

    const fn unit(mut self, unit: &'static str) -> Row {
        self.unit = unit;
        self
    }

    /// Names of a dialect for this, as it writes them.
    pub fn names(&self, dialect: Dialect) -> impl Iterator<Item = &'static str> {
        let cell = self.cells[dialect as usize];
        let names = cell.split(';').next().unwrap_or_default();
        names.split_whitespace()
    }

    /// Whether a dialect's name is one of the row's; a name of the row that ends with `*` is a beginning.
    pub fn has(&self, dialect: Dialect, name: &str) -> bool {
        self.names(dialect).any(|known| is_named(known, name))
    }

    /// Remark about a dialect's names; may be empty.
    pub fn remark(&self, dialect: Dialect) -> &'static str {
        self.cells[dialect as usize]
            .split_once(';')
            .map_or("", |(_, remark)| remark.trim())
    }

    /// Whether the row is of a setting, written as `Dialect::names` has it.
    fn is(&self, setting: &str) -> bool {
        match self.meaning {
            Meaning::Setting { key, value: None } => key == setting,
            Meaning::Setting { key, value: Some(value) } => {
                setting.split_once(": ") == Some((key, value))
            }
            _ => false,
        }
    }

    /// Names by which `find` finds the row.
    fn typed_names(&self) -> impl Iterator<Item = &'static str> {
        Dialect::TYPED
            .into_iter()
            .flat_map(|dialect| self.names(dialect))
    }
}

/// Row of another program's name: `--global-batch-size`, `train.max_norm`. A name without its section
/// is found too.
pub fn find(name: &str) -> Option<&'static Row> {
    let plain = plain(name);
    let last = plain.rsplit('.').next()?;
    let named = |wanted: &str| {
        let mut rows = ROWS.iter();
        let exact = rows.find(|row| row.typed_names().any(|name| name == wanted));
        exact.or_else(|| {
            let mut rows = ROWS.iter();
            rows.find(|row| row.typed_names().any(|name| is_named(name, wanted)))
        })
    };
    if let Some(row) = named(&plain).or_else(|| named(last)) {
        return Some(row);
    }
    // The last word of a name with a section, unless several rows have it.
    let ends = |name: &str| name.rsplit_once('.').is_some_and(|(_, word)| word == last);
    let mut rows = ROWS.iter().filter(|row| row.typed_names().any(ends));
    rows.next().filter(|_| rows.next().is_none())
}

/// Whether a name of the table is this one; one that ends with `*` is a beginning.
fn is_named(known: &str, name: &str) -> bool {
    match known.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => known == name,
    }
}

/// `--Global-Batch-Size` as names are compared.
pub fn plain(name: &str) -> String {
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

    const SMALL: &str = "model: {layers: 4, hidden: 64, heads: 4, vocab: 512, seq_len: 64}\n\
                         data: {train: a}\nbatch: {micro: 2, global: 4}\nlr: {peak: 1e-3}\n\
                         train: {samples: 400}\n";

    /// A value that a name implies, and each word of a choice, is one that its key takes.
    #[test]
    fn every_implied_value_is_accepted() {
        for row in ROWS {
            let Meaning::Setting { key, value } = row.meaning else { continue };
            let words: &[_] = match row.conversion {
                Conversion::Choice(words) => words,
                _ => &[],
            };
            for value in words.iter().map(|(_, ours)| *ours).chain(value) {
                let set = format!("{key}={value}");
                let sets = [set.clone(), "topology.data=2".to_string()];
                let read = crate::parse(SMALL, "m.yaml", std::path::Path::new("/"), &sets);
                assert!(read.is_ok(), "{set}: {}", read.err().unwrap());
            }
        }
    }

    /// The manifest has a value of the conversion's kind.
    #[test]
    fn conversions_are_those_of_their_settings() {
        let read = crate::parse(SMALL, "m.yaml", std::path::Path::new("/"), &[]).unwrap();
        let settings = crate::settings_json(&read.manifest);
        let mut converted = 0;
        for row in ROWS {
            let Meaning::Setting { key, value: None } = row.meaning else { continue };
            let Some(value) = settings.pointer(&format!("/{}", key.replace('.', "/"))) else {
                continue;
            };
            let fits = match row.conversion {
                Conversion::Count => value.is_u64(),
                Conversion::Number => value.is_f64(),
                Conversion::Flag | Conversion::Opposite => value.is_boolean(),
                Conversion::Choice(_) => value.is_string(),
                Conversion::Custom => continue,
            };
            assert!(fits, "{key} is {value}");
            converted += 1;
        }
        assert!(converted > 20, "{converted}");
    }

    #[test]
    fn a_name_has_one_meaning() {
        let mut seen = std::collections::HashMap::new();
        for row in ROWS {
            let mut names: Vec<&str> = row.typed_names().collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                assert_eq!(name, plain(name), "names are compared in this form");
                let before = seen.insert(name, row.meaning);
                assert!(
                    before.is_none_or(|before| before == row.meaning),
                    "{name}: {before:?} and {:?}",
                    row.meaning
                );
            }
        }
    }
}
