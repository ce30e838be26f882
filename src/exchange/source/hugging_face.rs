//! Reads a Hugging Face folder as the run that begins from its weights.

use super::new_run::{ensure_same_model, new_manifest, one_line, quoted, run_name};
use super::{HfFacts, ParamReader, ParamSource, absolute};
use crate::foreign::{AdamState, Choices, Format, RunDescription};
use crate::hf::{self, Companions, HfConfig, HfTensor, Weights, read_config, tensors_of};
use crate::tokenizer::OwnTokenizer;
use engine::saved_shape;
use manifest::{Family, Model};
use model::{Layout, ModelShard, Param};
use std::path::Path;

/// Maximum seq_len of a new manifest; longer samples need an explicit setting.
const LONGEST: usize = 4096;

/// Run of the manifest, where none is made.
const NO_RUN: &str = "imported";

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<ParamSource> {
    let config = read_config(from)?;
    let family = config.family;
    let model = &config.model;
    let weights = Weights::open(from, family)?;
    let layout = Layout::new(model, ModelShard::whole(model));
    let needed: Vec<HfTensor> = layout
        .params()
        .flat_map(|param| tensors(family, model, param))
        .collect();
    let types = weights.check(&needed, model.tied_head)?;
    weights.check_head(&needed, model.tied_head)?;
    let tensor_types = weights.types(&needed);
    let found = HfFacts { config, types };
    let run = absolute(choices.run.as_deref().unwrap_or(Path::new(NO_RUN)))?;
    let text = found.manifest(from, &run);
    // Without a new run, relative paths are those of the working folder.
    let folder = if choices.run.is_some() { &run } else { Path::new(".") };
    let place = from.display().to_string();
    let (text, loaded) = new_manifest(&text, &place, folder, &choices.sets)?;
    ensure_same_model(&found.config.model, &loaded.manifest.model, &place)?;
    let came = |path| OwnTokenizer { path, kept: true, came_with_weights: true };
    let trainer = format!("Hugging Face {}", family.name());
    let mut facts = RunDescription::new(Format::HuggingFace, trainer, from);
    facts.without_states = Some("the folder has weights alone".to_string());
    Ok(ParamSource {
        facts,
        loaded,
        text,
        hugging_face: Some(found),
        tensor_types,
        carried: Some(from.to_path_buf()),
        tokenizer: hf::tokenizer_in(from).map(came),
        reader: Box::new(HfReader { family, weights }),
        progress: None,
    })
}

struct HfReader {
    family: Family,
    weights: Weights,
}

impl ParamReader for HfReader {
    fn read(&mut self, model: &Model, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let shape = saved_shape(param, model.vocab);
        let mut values = vec![0.0; shape.iter().product()];
        if state == AdamState::Master {
            for tensor in tensors(self.family, model, param) {
                self.weights.read(&tensor, &mut values)?;
            }
        }
        Ok(values)
    }
}

fn tensors(family: Family, model: &Model, param: &Param) -> Vec<HfTensor> {
    tensors_of(family, param, &saved_shape(param, model.vocab), model.heads())
}

impl HfFacts {
    /// Precision that uses the folder's weights without conversion.
    fn precision(&self) -> &'static str {
        let most = self.types.iter().max_by_key(|(_, count)| **count);
        match most.map(|(name, _)| name.as_str()) {
            Some("BF16") => "bf16",
            Some("F16") => "fp16",
            _ => "f32",
        }
    }

    /// Text of the manifest of the run `run`.
    fn manifest(&self, from: &Path, run: &Path) -> String {
        let mut model = self.config.model.clone();
        model.seq_len = model.seq_len.min(LONGEST);
        let mut data = String::new();
        let tokenizer = hf::tokenizer_in(from);
        if let Some(name) = tokenizer.as_deref().and_then(Path::file_name) {
            data += &format!("  tokenizer: {}/{}\n", hf::FOLDER, name.display());
        }
        let eos = Companions::in_folder(from).token_ids().eos;
        let eos = eos
            .get(0)
            .unwrap_or(&eos)
            .as_u64()
            .filter(|id| *id < model.vocab as u64);
        if let Some(token) = eos {
            data += &format!("  eod: {{token: {token}}} # the end of a document\n");
        }
        self.manifest_text(from, run, &model, &data)
    }

    fn manifest_text(&self, from: &Path, run: &Path, model: &Model, data: &str) -> String {
        let HfConfig { family, positions, .. } = &self.config;
        let longest = if *positions > model.seq_len {
            format!("; the model was made for up to {positions}")
        } else {
            String::new()
        };
        format!(
            "\
# Continued pretraining of {from} ({family}): its weights are the checkpoint of step 0 here.
# Set the data (data.train), the length (train.steps) and the learning rate (lr.peak). Then:
#   gptrain run {run}
# Until the first step is saved, every setting except the model's shape may change. All settings:
#   gptrain manifest show {run}
name: {name}

# As in config.json. seq_len is the length of a sample{longest}.
# dropout and vocab_multiple may be added; init has no effect on imported weights.
{model}
precision: {precision} # as the imported weights; with f32 the same weights, updated the same way

data:
  # PREFIX of PREFIX.bin and PREFIX.idx, relative to this folder. To make them of text:
  #   gptrain data build TEXT --tokenizer {run}/hf --output PREFIX --append-eod
  train: corpus
{data}
batch:
  micro: 1
  global: 32

lr: # a tenth of a first training's, after a warm-up, keeps what the model has learned
  peak: 3e-5
  min: 3e-6
  warmup_samples: 640
  decay: cosine

topology: # ranks that share a model, and models side by side
  tensor: 1
  pipeline: 1
  data: 1

checkpoint:
  interval: 500

log:
  folder: {folder}

train:
  steps: 1000
",
            from = one_line(&from.display().to_string()),
            family = family.name(),
            run = one_line(&run.display().to_string()),
            name = quoted(run_name(run)),
            model = manifest::model_section(model),
            precision = self.precision(),
            folder = quoted(&run.display().to_string()),
        )
    }
}
