//! Checks of datasets, their shares and blends, and masks.

use super::super::choices::PartName;
use super::super::define::Written;
use super::super::forms::{self, Blend, DatasetForm, Named};
use super::super::lr::Length;
use super::super::report::Report;
use super::super::settings::raw;
use super::super::{Data, DataStage, Dataset, Eod, Model, Sequences, ValidSet, tree};
use super::paths::resolve;
use base::Count;
use std::path::{Path, PathBuf};

const DEFAULT_SPLIT: &str = "969,30,1";

/// Inputs from the rest of the manifest.
pub struct Run<'a> {
    pub model: &'a Model,
    pub samples: u64,
    /// Folder of the run.
    pub folder: &'a Path,
}

/// Checks the data section. Relative prefixes are resolved against `folder`.
pub fn data(raw: raw::Data, run: &Run, folder: &Path, report: &mut Report) -> Data {
    let separate = raw.valid.is_some();
    let fallback = raw.split.clone().or((!separate).then(|| DEFAULT_SPLIT.to_string()));
    if let Some(split) = &raw.split {
        shares(split, "data.split", report);
    }
    let data = Data::read(raw, &mut Blends { fallback, folder, report }, run);
    if let Some(eod) = &data.eod {
        known_token(eod, run.model, report);
        one_bound(eod, data.inter_document_masking, report);
    }
    data
}

/// Reader of blends of datasets.
pub struct Blends<'a, 'r> {
    /// Split of a dataset without its own; None uses the whole dataset.
    fallback: Option<String>,
    folder: &'a Path,
    report: &'a mut Report<'r>,
}

impl Blends<'_, '_> {
    pub fn blend(&mut self, blend: Option<Blend>, path: &str, which: usize) -> Vec<Dataset> {
        let only = |prefix| forms::Dataset { prefix: Some(prefix), ..Default::default() };
        let list: Vec<(String, forms::Dataset)> = match blend {
            None => return Vec::new(),
            Some(Blend::Prefix(prefix)) => vec![(path.to_string(), only(prefix))],
            Some(Blend::One(dataset)) => vec![(path.to_string(), dataset)],
            Some(Blend::Several(list)) => {
                let item = |(i, form)| match form {
                    DatasetForm::Prefix(prefix) => (format!("{path}.{i}"), only(prefix)),
                    DatasetForm::Full(dataset) => (format!("{path}.{i}"), dataset),
                };
                list.into_iter().enumerate().map(item).collect()
            }
        };
        if list.is_empty() && self.report.sound(&[path]) {
            self.report.add(path, format!("{path} has no dataset"), "give at least one prefix");
        }
        let list: Vec<Dataset> =
            list.into_iter().map(|(path, dataset)| self.dataset(dataset, &path, which)).collect();
        if !list.is_empty() && list.iter().all(|dataset| dataset.weight == 0.0) {
            self.report.add(
                path,
                format!("{path}: all weights are 0"),
                "give one dataset a weight above 0",
            );
        }
        list
    }

    /// Checks that each stage begins after the previous one, and before the run ends.
    pub fn stages(&mut self, stages: Option<Vec<forms::DataStage>>, run: &Run) -> Vec<DataStage> {
        let mut after = 0;
        let mut checked = Vec::new();
        for (i, stage) in stages.into_iter().flatten().enumerate() {
            let path = format!("data.stages.{i}");
            let train = self.blend(stage.train, &format!("{path}.train"), 0);
            let tokens = stage.from_tokens.is_some();
            let from = Length { samples: stage.from_samples, tokens: stage.from_tokens };
            let seq_len = run.model.seq_len;
            let from = from.resolve(&path, "from_", seq_len, self.report).unwrap_or(0);
            let given = if tokens { "from_tokens" } else { "from_samples" };
            let place = format!("{path}.{given}");
            let sound = self.report.sound(&[&path, "train", "batch", "model.seq_len"]);
            let begins = format!("{path} begins at sample {}", Count(from));
            if sound && from == 0 {
                let remedy = "add from_samples or from_tokens";
                self.report.add(&path, format!("{path} does not say where it begins"), remedy);
            } else if sound && from <= after {
                let what = format!("{begins}, the stage before it at {}", Count(after));
                self.report.add(&place, what, "write the stages in the order they begin");
            } else if sound && from >= run.samples {
                let what = format!("{begins}; the run ends at {}", Count(run.samples));
                self.report.add(&place, what, "begin earlier, or train longer");
            }
            after = after.max(from);
            checked.push(DataStage { from, train });
        }
        checked
    }

    /// Validation sets as written, or derived from the valid share of the training datasets.
    pub fn valid(&mut self, sets: Option<Named>, train: &[Dataset]) -> Vec<ValidSet> {
        let Some(sets) = sets else { return derived(train, self.fallback.as_deref()) };
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
            if !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_')) {
                let what = format!("\"{}\" cannot name a validation set", name);
                self.report.add("data.valid", what, "use letters, digits, `-` and `_`");
            }
            valid.push(ValidSet { datasets: self.blend(Some(blend), &path, 1), name });
        }
        valid
    }

    fn dataset(&mut self, raw: forms::Dataset, path: &str, which: usize) -> Dataset {
        let weight = raw.weight.unwrap_or(1.0);
        let prefix = raw.prefix.clone().unwrap_or_default();
        let ending = prefix.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if matches!(ending, "bin" | "idx") {
            let what = format!("{path}: {} is one of the dataset's two files", prefix.display());
            let remedy = format!("write {}", prefix.with_extension("").display());
            self.report.add(path, what, remedy);
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

    fn part(&mut self, raw: forms::Dataset, path: &str, which: usize) -> Sequences {
        let which = match raw.part {
            None => which,
            Some(part) => part as usize,
        };
        if let Some(text) = &raw.range {
            let other = [("split", raw.split.is_some()), ("part", raw.part.is_some())];
            for (key, _) in other.iter().filter(|(_, given)| *given) {
                let what = format!("{path} has a range and a {key}");
                self.report.add(&format!("{path}.{key}"), what, "keep one of them");
            }
            return self.range(text, &format!("{path}.range"));
        }
        let own = raw.split.is_some();
        let Some(weights) = raw.split.or(self.fallback.clone()) else {
            return Sequences::Range(0.0, 1.0);
        };
        let place = if own { format!("{path}.split") } else { path.to_string() };
        let shares = match own {
            true => shares(&weights, &place, self.report),
            false => numbers(&weights),
        };
        if shares.is_some_and(|shares| shares[which] == 0.0) {
            let part = PartName::ALL[which].name();
            let what = format!("{path}: the split {weights} leaves nothing to {part}");
            self.report.add(&place, what, format!("give {part} a share above 0, or a range"));
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
        let what = format!("{path} \"{text}\" is not a range within 0..1");
        self.report.add(path, what, "write FROM..TO, such as 0.95..1.0");
        Sequences::Range(0.0, 1.0)
    }

    pub fn resolve(&self, path: PathBuf) -> PathBuf {
        resolve(self.folder, &path)
    }
}

/// Valid share of the training datasets whose splits have one.
fn derived(train: &[Dataset], fallback: Option<&str>) -> Vec<ValidSet> {
    let of = |dataset: &Dataset| match &dataset.part {
        Sequences::Split { weights, which: 0 } if numbers(weights).is_some_and(|w| w[1] > 0.0) => {
            let part = Sequences::Split { weights: weights.clone(), which: 1 };
            Some(Dataset { part, ..dataset.clone() })
        }
        _ => None,
    };
    let datasets: Vec<Dataset> = train.iter().filter_map(of).collect();
    let any = fallback.is_some() && datasets.iter().any(|dataset| dataset.weight > 0.0);
    any.then(|| ValidSet { name: "valid".to_string(), datasets }).into_iter().collect()
}

/// The three shares of a split; None after reporting a problem.
fn shares(split: &str, path: &str, report: &mut Report) -> Option<[f64; 3]> {
    let shares = numbers(split);
    if shares.is_none() {
        let what = format!("{path} \"{split}\" is not up to three numbers, 0 or more");
        report.add(path, what, "write the shares of train, valid and test, such as 969,30,1");
    }
    shares
}

/// Parses `969,30,1` or `98/2`; missing numbers are 0.
fn numbers(split: &str) -> Option<[f64; 3]> {
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

fn known_token(eod: &Eod, model: &Model, report: &mut Report) {
    let token = eod.token;
    if report.sound(&["data.eod.token", "model.vocab"]) && token as usize >= model.vocab {
        let what = format!("data.eod.token {token} is not below model.vocab {}", model.vocab);
        report.add("data.eod.token", what, "give the tokenizer's end-of-document id");
    }
}

/// Documents end either at a token or at the bounds of the index, not both.
fn one_bound(eod: &Eod, by_index: bool, report: &mut Report) {
    let resets =
        [("reset_attention", eod.reset_attention), ("reset_positions", eod.reset_positions)];
    for (key, _) in resets.iter().filter(|(_, on)| by_index && *on) {
        let what = format!("data.eod.{key} and data.inter_document_masking both end documents");
        let remedy = "keep one: the token, or the bounds of the index";
        report.add("data.inter_document_masking", what, remedy);
    }
}

impl Written for Vec<Dataset> {
    type Raw = Blend;

    fn written(&self) -> Option<Blend> {
        let full = |dataset: &Dataset| {
            let (split, part, range) = match &dataset.part {
                Sequences::Split { weights, which } => {
                    (Some(weights.clone()), Some(PartName::ALL[*which]), None)
                }
                Sequences::Range(from, to) => (None, None, Some(format!("{from:?}..{to:?}"))),
            };
            let (prefix, weight) = (Some(dataset.prefix.clone()), Some(dataset.weight));
            forms::Dataset { prefix, weight, split, part, range }.into()
        };
        Some(self.iter().map(full).collect::<Vec<DatasetForm>>().into())
    }
}

impl Written for Vec<DataStage> {
    type Raw = Vec<forms::DataStage>;

    fn written(&self) -> Option<Vec<forms::DataStage>> {
        let stage = |stage: &DataStage| forms::DataStage {
            from_samples: Some(stage.from),
            from_tokens: None,
            train: stage.train.written(),
        };
        Some(self.iter().map(stage).collect())
    }
}

impl Written for Vec<ValidSet> {
    type Raw = Named;

    fn written(&self) -> Option<Named> {
        let set = |set: &ValidSet| Some((set.name.clone(), set.datasets.written()?));
        Some(Named(self.iter().filter_map(set).collect()))
    }
}
