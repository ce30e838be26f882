//! Inspection of a Hugging Face folder.

use super::{Depth, Inspection, Overview, Row, StateRow};
use crate::foreign::{AdamState, Format};
use crate::hf::{Companions, HfTensor, Weights, read_config, tensors_of};
use anyhow::Result;
use base::progress::{Progress, Unit};
use checkpoint::inspect::{RunningStats, settings_by_key};
use checkpoint::safetensors::float_type;
use engine::saved_shape;
use model::{Layout, ModelShard};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

pub fn inspect(folder: &Path, depth: Depth) -> Result<Inspection> {
    let config = read_config(folder)?;
    let model = &config.model;
    let weights = Weights::open(folder, config.family)?;
    let layout = Layout::new(model, ModelShard::whole(model));
    let needed: Vec<HfTensor> = layout
        .params()
        .flat_map(|param| {
            tensors_of(config.family, param, &saved_shape(param, model.vocab), model.heads())
        })
        .collect();
    let mut damage = Vec::new();
    if let Err(problems) = weights.check(&needed, model.tied_head) {
        damage.extend(problems.list.into_iter().map(|problem| problem.what));
    }
    let version = Companions::in_folder(folder)
        .config()
        .and_then(|config| Some(config.get("transformers_version")?.as_str()?.to_string()))
        .map_or(String::new(), |version| format!(", transformers {version}"));
    let settings = settings_by_key(&manifest::model_section(model));
    let mut found = Inspection {
        overview: Overview {
            folder: folder.display().to_string(),
            format: Format::HuggingFace.word(),
            trainer: format!("Hugging Face ({}{version})", config.family.name()),
            progress: None,
            parameters: model::parameters(model),
            without_states: Some("the format has weights alone".into()),
            settings: settings.into_iter().collect(),
            wanted: Vec::new(),
        },
        tensors: Vec::new(),
        copies: Vec::new(),
        damage,
        notes: Vec::new(),
        read: depth,
    };
    if !config.unknown.is_empty() {
        let unknown = config.unknown.join(", ");
        found
            .notes
            .push(format!("an import ignores unknown keys of config.json: {unknown}"));
    }
    if depth > Depth::Facts {
        found.read_tensors(&weights, &needed)?;
    }
    Ok(found)
}

impl Inspection {
    /// Reads the tensors in the model's order, then others.
    fn read_tensors(&mut self, weights: &Weights, needed: &[HfTensor]) -> Result<()> {
        let state = AdamState::Master.saved_name();
        let numel = |shape: &[usize]| shape.iter().product::<usize>();
        let mut tensors: Vec<_> = weights.tensors().collect();
        let places: HashMap<&str, usize> = needed
            .iter()
            .enumerate()
            .map(|(place, tensor)| (tensor.name.as_str(), place))
            .collect();
        tensors.sort_by_key(|(name, _)| places.get(name).copied().unwrap_or(usize::MAX));
        let numbers = tensors
            .iter()
            .map(|(_, entry)| numel(&entry.shape) as u64)
            .sum();
        let progress = Progress::new("inspecting", numbers, Unit::Items("numbers"));
        for (name, entry) in tensors {
            let numel = numel(&entry.shape);
            let mut states = BTreeMap::new();
            let read = float_type(&entry.dtype).map(|_| weights.floats(name));
            match read {
                Some(Ok(values)) => {
                    let mut stats = RunningStats::default();
                    stats.add(&values);
                    let stats = stats.finish();
                    self.check(name, state, &stats, numel);
                    let dtype = entry.dtype.to_lowercase();
                    states.insert(state, StateRow { dtype, stats });
                }
                Some(Err(error)) => self.add_failure(error)?,
                None => {}
            }
            progress.add(numel as u64);
            let name = name.to_string();
            let shape = entry.shape.clone();
            self.tensors.push(Row { name, shape, copies: 1, states });
        }
        Ok(())
    }
}
