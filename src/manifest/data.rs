//! Section `data`: datasets, their shares and blends, and masks.

use super::Model;
use super::choices::{DataRule, PartName};
use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::lr::Length;
use super::paths::resolve;
use super::report::Report;
use super::tree;
use base::Count;
use plan::segments::BatchSchedule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

kinds! {
#[derive(Copy)]
/// Training objective.
Objective() at "data.objective", ObjectiveName, ObjectiveForm, ObjectiveSection = "Objective" {
    /// Predict the next token from all before it.
    Causal = "causal";
} settings {
    /// Prefix language modelling: all tokens of a random prefix attend to each other; the loss is on the
    /// rest.
    #[schemars(required)]
    PrefixLm = "prefix_lm", prefix_lm: PrefixLm();
}
}

settings! {
/// Datasets in Megatron's format (PREFIX.bin and PREFIX.idx), sample order and masks.
Data(raw, blends: &mut BlendReader, run: &RunInputs) {
    /// Seed of the sample order. Default: 1234, as Megatron's.
    seed: u64 = 1234, in 0..=4_294_967_295u64;
    /// Trainer whose sample order and split rule is used. Default: mcore.
    rule: DataRule = DataRule::MegatronCore;
    /// Training data: a prefix, or a list of datasets with weights. Relative prefixes start at the
    /// manifest's folder.
    #[schemars(required)]
    train: Blend => Vec<Dataset> = blends.blend(raw.train, "data.train", 0);
    /// Changes of the training datasets or weights at later points of the run. Each dataset continues
    /// at its next sample: no sample is repeated or skipped. Default: none.
    stages: Vec<StageSection> => Vec<DataStage> = blends.stages(raw.stages, run);
    /// Samples that are left out, `FROM..TO` in the numbers of the log's *consumed samples*: of
    /// `[8000..12000]` the step that ends with sample 8000 is the last before, and sample 12000 is the
    /// first after. They count as consumed, also for the learning rate. For data that raise the loss;
    /// may change at any resume. Default: none.
    skip: Vec<String> => Vec<SampleRange> = blends.skip(raw.skip);
    /// Named validation sets: name → a prefix, or a list of datasets with weights. The name "*" makes a set
    /// of each match of a prefix with `*`, named by what it matches, or of each group of a `weights_file`.
    /// Default: one
    /// set named `valid`, the valid share of the training datasets (if their split has one).
    #[schemars(with = "Option<BTreeMap<String, Blend>>")]
    valid: Named => Vec<ValidSet> = blends.valid(raw.valid, &train);
    /// Folder that caches the sample order if it takes more than a second to build; a relative path
    /// starts at the working folder (--data-cache-path). Default: `order` in the run's folder.
    cache: PathBuf = run.folder.join("order");
    /// Path of tokenizer.json, which is used to show text. Default: none.
    tokenizer: PathBuf => Option<PathBuf> = raw.tokenizer.map(|path| blends.resolve(path)),
        written tokenizer.clone();
    /// Handling of the end-of-document token. Default: none.
    eod: Eod => Option<Eod> = raw.eod.map(Eod::read);
    /// Whether tokens attend only to their own document, and positions restart in each. The bounds come
    /// from the index and not from a token: for data without EOD
    /// (--dataloader-inter-document-masking). As in Megatron-Core, a sequence of the index counts as a
    /// document. Default: false.
    inter_document_masking: bool = false;
    /// Whether samples have one token more than seq_len, which is only a target. Without it the last
    /// position of a sample has no target. Default: true.
    add_extra_token_to_sequence: bool = true;
    /// Whether the last tokens of a validation set that do not fill a sample are dropped. If false,
    /// they become a padded sample. Default: true.
    drop_last_partial_validation_sequence: bool = true;
    /// Training objective. Default: causal.
    objective: ObjectiveForm => Objective
        = Objective::read(raw.objective, ObjectiveName::Causal);
} [
    /// Shares of train, valid and test, such as `969,30,1` (--split), for every dataset without its own
    /// `split` or `range`. Default: `969,30,1` without `valid`, else the whole of every dataset.
    split: String;
    /// Weights of the training datasets by their size: tokens^size_exponent, for datasets without
    /// `weight`. 1 is in proportion to the tokens, 0 equal, 0.3 a temperature of 1 / 0.3 (as for
    /// languages in XLM-R). Default: none; a weight that is not given is 1.
    size_exponent: f64, in 0.0..=1.0;
]

#[derive(Copy)]
/// Handling of the end-of-document (EOD) token.
Eod(raw) {
    /// Id of the token.
    token: u32, required in 0..=2_147_483_647;
    /// Whether positions whose input is the EOD token have no loss (--eod-mask-loss). Default: false.
    mask_loss: bool = false;
    /// Whether positions restart after the token (--reset-position-ids). Default: false.
    reset_positions: bool = false;
    /// Whether tokens attend only to their own document (--reset-attention-mask). Default: false.
    reset_attention: bool = false;
}

#[derive(Copy)]
/// Prefix language modelling: all tokens of a random prefix of each sample attend to each other.
PrefixLm(raw) {
    /// Whether the prefix has no loss (--loss-on-targets-only). Default: true.
    loss_on_targets_only: bool = true;
}
}

sections! {
/// Training data from a point of the run, which replace the previous data.
#[schemars(rename = "DataStage")]
StageSection {
    /// First sample of the stage, counted from the start of the run.
    from_samples: u64, in 1..=1_000_000_000_000_000u64;
    /// First token of the stage, instead of from_samples.
    from_tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Prefix, or list of datasets with weights, as in data.train.
    #[schemars(required)]
    train: Blend;
}

/// Dataset of a blend.
#[schemars(rename = "Dataset")]
DatasetSection {
    /// PREFIX of PREFIX.bin and PREFIX.idx. With `*` or `?`, each dataset whose PREFIX matches.
    prefix: PathBuf;
    /// File of weights, ranges and prefixes, instead of the other keys, as Megatron-DeepSpeed's
    /// `--train-weighted-split-paths-path` reads it. Relative prefixes start at its folder.
    weights_file: PathBuf;
    /// Share of the samples, relative to the other weights. Default: 1.
    weight: f64, in 0.0..=1e12;
    /// Shares of train, valid and test, instead of data.split.
    split: String;
    /// Part of the split that is read. Default: train in data.train, valid in data.valid.
    part: PartName;
    /// Range of the sequences, instead of a split: `0.95..1.0` reads the last twentieth.
    range: String;
}
}

forms! {
    /// One dataset or several.
    Blend {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// One dataset.
        One(DatasetSection),
        /// Several, each with a weight.
        Several(Vec<DatasetForm>),
    }
    /// A dataset, or only its prefix.
    DatasetForm {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// With a weight, a split or a range.
        Full(DatasetSection),
    }
}

/// Validation sets by name, in the order written.
#[derive(Clone, Debug, Default)]
pub struct Named(pub Vec<(String, Blend)>);

impl Serialize for Named {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, blend)| (name, blend)))
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Named, D::Error> {
        let sorted = BTreeMap::<String, Blend>::deserialize(deserializer)?;
        Ok(Named(sorted.into_iter().collect()))
    }
}

/// Split without `data.split` and `data.valid`, as Megatron's.
pub const DEFAULT_SPLIT: &str = "969,30,1";

/// Samples that are left out of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRange(pub Range<u64>);

/// Training datasets from one sample of the run on.
#[derive(Clone, Debug, PartialEq)]
pub struct DataStage {
    /// First sample read from them.
    pub from: u64,
    pub train: Vec<Dataset>,
}

/// Dataset, or a share of one, in a blend.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// `PREFIX` of `PREFIX.bin` and `PREFIX.idx`; relative to the manifest's folder.
    pub prefix: PathBuf,
    pub weight: f64,
    pub part: Sequences,
}

/// Selection of a dataset's sequences.
#[derive(Clone, Debug, PartialEq)]
pub enum Sequences {
    /// One part (0 train, 1 valid, 2 test) of a split string such as `969,30,1`.
    Split { weights: String, which: usize },
    /// Range between two fractions of the sequences, `0.95..1.0`.
    Range(f64, f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ValidSet {
    pub name: String,
    pub datasets: Vec<Dataset>,
}

impl Data {
    /// Whether every sample has a plain causal mask.
    pub fn causal(&self) -> bool {
        let cut = self.eod.is_some_and(|eod| eod.reset_attention) || self.inter_document_masking;
        self.objective == Objective::Causal && !cut
    }

    /// Mixtures of training datasets, each with its first sample.
    pub fn mixtures(&self) -> impl Iterator<Item = (u64, &[Dataset])> {
        let later = self
            .stages
            .iter()
            .map(|stage| (stage.from, &stage.train[..]));
        std::iter::once((0, &self.train[..])).chain(later)
    }

    /// Training datasets without duplicates.
    pub fn train_prefixes(&self) -> Vec<&PathBuf> {
        let mut prefixes = Vec::new();
        for dataset in self.mixtures().flat_map(|(_, datasets)| datasets) {
            if !prefixes.contains(&&dataset.prefix) {
                prefixes.push(&dataset.prefix);
            }
        }
        prefixes
    }
}

/// Inputs from the rest of the manifest.
pub struct RunInputs<'a> {
    pub model: &'a Model,
    pub schedule: &'a BatchSchedule,
    pub samples: u64,
    /// Folder of the run.
    pub folder: &'a Path,
}

/// Reader of blends of datasets.
pub struct BlendReader<'a, 'r> {
    /// Split of a dataset without its own; None uses the whole dataset.
    pub fallback: Option<String>,
    pub folder: &'a Path,
    pub report: &'a mut Report<'r>,
}

/// Sections of a blend, each with its place in the manifest; that of the blend is `path`.
pub fn list_sections(blend: Blend, path: &str) -> Vec<(String, DatasetSection)> {
    let only = |prefix| DatasetSection { prefix: Some(prefix), ..Default::default() };
    match blend {
        Blend::Prefix(prefix) => vec![(path.to_string(), only(prefix))],
        Blend::One(dataset) => vec![(path.to_string(), dataset)],
        Blend::Several(list) => list
            .into_iter()
            .enumerate()
            .map(|(i, form)| match form {
                DatasetForm::Prefix(prefix) => (format!("{path}.{i}"), only(prefix)),
                DatasetForm::Full(dataset) => (format!("{path}.{i}"), dataset),
            })
            .collect(),
    }
}

impl BlendReader<'_, '_> {
    fn blend(&mut self, blend: Option<Blend>, path: &str, which: usize) -> Vec<Dataset> {
        let Some(blend) = blend else { return Vec::new() };
        let list = list_sections(blend, path);
        if list.is_empty() && self.report.are_valid(&[path]) {
            self.report
                .add(path, format!("{path} has no dataset"), "give at least one prefix");
        }
        let datasets: Vec<Dataset> = list
            .into_iter()
            .map(|(path, dataset)| self.dataset(dataset, &path, which))
            .collect();
        if !datasets.is_empty() && datasets.iter().all(|dataset| dataset.weight == 0.0) {
            self.report.add(
                path,
                format!("{path}: all weights are 0"),
                "give one dataset a weight above 0",
            );
        }
        datasets
    }

    /// Checks that each stage begins after the previous one, and before the run ends.
    fn stages(&mut self, stages: Option<Vec<StageSection>>, run: &RunInputs) -> Vec<DataStage> {
        let mut after = 0;
        let mut checked = Vec::new();
        for (i, stage) in stages.into_iter().flatten().enumerate() {
            let path = format!("data.stages.{i}");
            let train = self.blend(stage.train, &format!("{path}.train"), 0);
            let tokens = stage.from_tokens.is_some();
            let from = Length { samples: stage.from_samples, tokens: stage.from_tokens };
            let from = from
                .resolve(&path, "from_", run.schedule, self.report)
                .unwrap_or(0);
            let given = if tokens { "from_tokens" } else { "from_samples" };
            let place = format!("{path}.{given}");
            let is_valid = self
                .report
                .are_valid(&[&path, "train", "batch", "model.seq_len"]);
            let begins = format!("{path} begins at sample {}", Count(from));
            if is_valid && from == 0 {
                self.report.add(
                    &path,
                    format!("{path} does not say where it begins"),
                    "add from_samples or from_tokens",
                );
            } else if is_valid && from <= after {
                self.report.add(
                    &place,
                    format!("{begins}, the stage before it at {}", Count(after)),
                    "write the stages in the order they begin",
                );
            } else if is_valid && from >= run.samples {
                self.report.add(
                    &place,
                    format!("{begins}; the run ends at {}", Count(run.samples)),
                    "begin earlier, or train longer",
                );
            }
            after = after.max(from);
            checked.push(DataStage { from, train });
        }
        checked
    }

    /// Ranges of samples, in ascending order.
    fn skip(&mut self, ranges: Option<Vec<String>>) -> Vec<SampleRange> {
        let mut checked: Vec<SampleRange> = Vec::new();
        for (i, text) in ranges.into_iter().flatten().enumerate() {
            let path = format!("data.skip.{i}");
            let number = |text: &str| text.trim().replace(['_', ','], "").parse::<u64>().ok();
            let ends = text
                .split_once("..")
                .map(|(from, to)| (number(from), number(to)));
            let Some((Some(from), Some(to))) = ends.filter(|(from, to)| from < to) else {
                let what = format!("{path} \"{text}\" is not a range of samples");
                self.report
                    .add(&path, what, "write FROM..TO, such as 8000..12000");
                continue;
            };
            let before = checked.last().map_or(0, |before| before.0.end);
            if from < before {
                let what = format!("{path} begins at {from}, the range before it ends at {before}");
                self.report
                    .add(&path, what, "write the ranges in ascending order");
            }
            checked.push(SampleRange(from..to));
        }
        checked
    }

    /// Validation sets as written, or derived from the valid share of the training datasets.
    fn valid(&mut self, sets: Option<Named>, train: &[Dataset]) -> Vec<ValidSet> {
        let Some(sets) = sets else { return derive_valid_sets(train, self.fallback.as_deref()) };
        let written: Vec<String> = match self.report.root().at("data.valid").map(|n| &n.value) {
            Some(tree::Value::Map(entries)) => {
                entries.iter().map(|entry| entry.key.clone()).collect()
            }
            _ => Vec::new(),
        };
        let mut sets = sets.0;
        sets.sort_by_key(|(name, _)| written.iter().position(|key| key == name));
        let mut valid = Vec::new();
        for (name, blend) in sets {
            let path = format!("data.valid.{name}");
            if !name
                .chars()
                .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            {
                self.report.add(
                    "data.valid",
                    format!("\"{}\" cannot name a validation set", name),
                    "use letters, digits, `-` and `_`",
                );
            }
            valid.push(ValidSet { datasets: self.blend(Some(blend), &path, 1), name });
        }
        valid
    }

    fn dataset(&mut self, raw: DatasetSection, path: &str, which: usize) -> Dataset {
        let weight = raw.weight.unwrap_or(1.0);
        let prefix = raw.prefix.clone().unwrap_or_default();
        let ending = prefix
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if matches!(ending, "bin" | "idx") {
            self.report.add(
                path,
                format!("{path}: {} is one of the dataset's two files", prefix.display()),
                format!("write {}", prefix.with_extension("").display()),
            );
        }
        if raw.prefix.is_none() && self.report.are_valid(&[path]) {
            self.report.add(
                path,
                format!("{path} has neither a prefix nor a weights_file"),
                "give the PREFIX of PREFIX.bin",
            );
        }
        if raw.prefix.is_some() && prefix.as_os_str().is_empty() {
            self.report.add(
                path,
                format!("{path}: the prefix is empty"),
                "give the PREFIX of PREFIX.bin",
            );
        }
        Dataset { prefix: self.resolve(prefix), weight, part: self.part(raw, path, which) }
    }

    fn part(&mut self, raw: DatasetSection, path: &str, which: usize) -> Sequences {
        let which = match raw.part {
            None => which,
            Some(part) => part as usize,
        };
        if let Some(text) = &raw.range {
            let other = [("split", raw.split.is_some()), ("part", raw.part.is_some())];
            for (key, _) in other.iter().filter(|(_, given)| *given) {
                self.report.add(
                    &format!("{path}.{key}"),
                    format!("{path} has a range and a {key}"),
                    "keep one of them",
                );
            }
            return self.range(text, &format!("{path}.range"));
        }
        let own = raw.split.is_some();
        let Some(weights) = raw.split.or(self.fallback.clone()) else {
            return Sequences::Range(0.0, 1.0);
        };
        let place = if own { format!("{path}.split") } else { path.to_string() };
        let shares =
            if own { shares(&weights, &place, self.report) } else { split_shares(&weights) };
        if shares.is_some_and(|shares| shares[which] == 0.0) {
            let part = PartName::ALL[which].name();
            self.report.add(
                &place,
                format!("{path}: the split {weights} leaves nothing to {part}"),
                format!("give {part} a share above 0, or a range"),
            );
        }
        Sequences::Split { weights, which }
    }

    fn range(&mut self, text: &str, path: &str) -> Sequences {
        let ends = text.split_once("..").or(text.split_once(':'));
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
        if let Some((Some(from), Some(to))) = ends.map(|(from, to)| (number(from), number(to)))
            && (0.0..to).contains(&from)
            && to <= 1.0
        {
            return Sequences::Range(from, to);
        }
        self.report.add(
            path,
            format!("{path} \"{text}\" is not a range within 0..1"),
            "write FROM..TO, such as 0.95..1.0",
        );
        Sequences::Range(0.0, 1.0)
    }

    fn resolve(&self, path: PathBuf) -> PathBuf {
        resolve(self.folder, &path)
    }
}

/// Valid share of the training datasets whose splits have one.
fn derive_valid_sets(train: &[Dataset], fallback: Option<&str>) -> Vec<ValidSet> {
    let datasets: Vec<Dataset> = train
        .iter()
        .filter_map(|dataset| match &dataset.part {
            Sequences::Split { weights, which: 0 }
                if split_shares(weights).is_some_and(|w| w[1] > 0.0) =>
            {
                let part = Sequences::Split { weights: weights.clone(), which: 1 };
                Some(Dataset { part, ..dataset.clone() })
            }
            _ => None,
        })
        .collect();
    let any = fallback.is_some() && datasets.iter().any(|dataset| dataset.weight > 0.0);
    any.then(|| ValidSet { name: "valid".to_string(), datasets })
        .into_iter()
        .collect()
}

/// The three shares of a split; None after reporting a problem.
pub fn shares(split: &str, path: &str, report: &mut Report) -> Option<[f64; 3]> {
    let shares = split_shares(split);
    if shares.is_none() {
        report.add(
            path,
            format!("{path} \"{split}\" is not up to three numbers, 0 or more"),
            "write the shares of train, valid and test, such as 969,30,1",
        );
    }
    shares
}

/// Parses `969,30,1` or `98/2`; missing numbers are 0.
pub fn split_shares(split: &str) -> Option<[f64; 3]> {
    let mut shares = [0.0; 3];
    let words: Vec<&str> = split.split([',', '/']).collect();
    for (i, word) in words.iter().enumerate() {
        let number = word.trim().parse::<f64>().ok()?;
        *shares.get_mut(i)? = number;
        if !number.is_finite() || number < 0.0 {
            return None;
        }
    }
    (shares.iter().sum::<f64>() > 0.0).then_some(shares)
}

impl Written for Vec<Dataset> {
    type Raw = Blend;

    fn written(&self) -> Option<Blend> {
        Some(
            self.iter()
                .map(|dataset| {
                    let (split, part, range) = match &dataset.part {
                        Sequences::Split { weights, which } => {
                            (Some(weights.clone()), Some(PartName::ALL[*which]), None)
                        }
                        Sequences::Range(from, to) => {
                            (None, None, Some(format!("{from:?}..{to:?}")))
                        }
                    };
                    let prefix = Some(dataset.prefix.clone());
                    let weight = Some(dataset.weight);
                    DatasetSection { prefix, weight, split, part, range, weights_file: None }.into()
                })
                .collect::<Vec<DatasetForm>>()
                .into(),
        )
    }
}

impl Written for Vec<DataStage> {
    type Raw = Vec<StageSection>;

    fn written(&self) -> Option<Vec<StageSection>> {
        Some(
            self.iter()
                .map(|stage| StageSection {
                    from_samples: Some(stage.from),
                    from_tokens: None,
                    train: stage.train.written(),
                })
                .collect(),
        )
    }
}

impl Written for Vec<SampleRange> {
    type Raw = Vec<String>;

    fn written(&self) -> Option<Vec<String>> {
        let ranges = self
            .iter()
            .map(|SampleRange(range)| format!("{}..{}", range.start, range.end));
        Some(ranges.collect())
    }
}

impl Written for Vec<ValidSet> {
    type Raw = Named;

    fn written(&self) -> Option<Named> {
        Some(Named(
            self.iter()
                .filter_map(|set| Some((set.name.clone(), set.datasets.written()?)))
                .collect(),
        ))
    }
}
