//! Starts a run from Hugging Face weights: into the run of a manifest, or into a new run's folder
//! with a manifest made from config.json.

use super::divergence::{self, Divergence};
use super::{new_manifest, one_line, quoted, run_name};
use crate::new_checkpoint::{WholeWeight, save_weights};
use anyhow::Context;
use base::output::Existing;
use base::progress::{Progress, Unit};
use base::{DType, Problems, output};
use checkpoint::atomic_folder::{self, FolderKind};
use checkpoint::disk::Disk;
use checkpoint::{self, DataId, safetensors};
use engine::{model_dtype, saved_shape};
use exchange::hf::{self, Companions, HfConfig, HfTensor, Weights, read_config, tensors_of};
use launch::run_folder::FolderLock;
use manifest::{self, Loaded, Manifest, Model};
use model::{Layout, ModelShard, Param};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use train::{changed_settings, last_checkpoint, resume, saving};

/// Maximum seq_len of a new manifest; longer samples need an explicit setting.
const LONGEST: usize = 4096;

/// Result of an import.
pub struct Imported {
    /// Checkpoint of step 0.
    pub checkpoint: PathBuf,
    /// One line, such as "LlamaForCausalLM, 2,100,000 parameters in bf16".
    pub what: String,
    /// Keys of config.json that were ignored.
    pub unknown: Vec<String>,
    pub divergence: Option<Divergence>,
}

impl Imported {
    /// Prints the result. `manifest` is that of the run, `output` the folder of a new run.
    pub fn say(&self, manifest: &Path, output: Option<&Path>) {
        base::say!("wrote {} of {}", self.checkpoint.display(), self.what);
        if !self.unknown.is_empty() {
            base::say!("ignored unknown keys of config.json: {}", self.unknown.join(", "));
        }
        if let Some(divergence) = &self.divergence {
            base::say!("{divergence}");
        }
        let manifest = manifest.display();
        match output.map(Path::display) {
            Some(output) => {
                base::say!("next: name a dataset in {manifest}, then `gptrain run {output}`");
            }
            None => base::say!("next: `gptrain run {manifest}` continues from it"),
        }
    }

    /// Result as JSON.
    pub fn object(&self, manifest: &Path) -> Value {
        json!({
            "checkpoint": self.checkpoint, "weights": self.what, "manifest": manifest,
            "unknown_keys": self.unknown,
            "divergence": self.divergence.as_ref().map(ToString::to_string),
        })
    }
}

/// Writes the weights in `from` as the checkpoint of step 0 of the manifest's run. `reference`:
/// logits to compare the first ones with.
pub fn import_into(
    from: &Path,
    loaded: &Loaded,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    let m = &loaded.manifest;
    let lock = FolderLock::take(&m.log.folder)?;
    import_locked(from, loaded, reference).inspect_err(|_| lock.remove_unused())
}

/// Like `import_into`, by the process that has locked the run's folder.
fn import_locked(
    from: &Path,
    loaded: &Loaded,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    let m = &loaded.manifest;
    let checkpoints = saving::folder(m);
    output::name_removed(&checkpoint::clean(&Disk::default(), &checkpoints)?);
    if let Some(found) = checkpoint::latest(&checkpoints)? {
        return Err(Problems::one(
            loaded.source.display().to_string(),
            format!("the run has a checkpoint already: {}", found.folder.display()),
            "import into a new run: --set log.folder=DIR",
        )
        .into());
    }
    let config = read_config(from)?;
    same_model(&config.model, &m.model, from)?;
    let source = Source::open(from, config)?;
    let checkpoint = source.save(loaded, resume::data_ids(m)?, &checkpoints)?;
    last_checkpoint::note(&m.log.folder, 0)?;
    source.done(checkpoint.clone(), &checkpoint, m, reference)
}

/// Makes the folder `to` of a new run: a manifest, the weights as the checkpoint of step 0, and the
/// other files of the folder. Completely or not at all. `sets` change the manifest.
pub fn import_run(
    from: &Path,
    to: &Path,
    sets: &[String],
    existing: Existing,
    reference: Option<&Path>,
) -> anyhow::Result<Imported> {
    atomic_folder::check_vacant(to, FolderKind::Run, existing)?;
    let source = Source::open(from, read_config(from)?)?;
    let run = std::path::absolute(to).with_context(|| format!("cannot find {}", to.display()))?;
    let made = source.manifest(&run);
    let (text, loaded) = new_manifest(&made, &from.display().to_string(), &run, sets)?;
    if loaded.manifest.log.folder != run {
        return Err(Problems::one(
            "--set",
            format!("log.folder is the folder of --output, {}", run.display()),
            "leave log.folder out",
        )
        .into());
    }
    same_model(&source.config.model, &loaded.manifest.model, from)?;
    atomic_folder::write(to, FolderKind::Run, existing, |staging| {
        let write = |path: &Path, text: &str| {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write(&staging.join(manifest::IN_FOLDER), &text)?;
        let beside = staging.join(hf::FOLDER);
        fs::create_dir(&beside).with_context(|| format!("cannot create {}", beside.display()))?;
        hf::carry(from, &beside)?;
        let written = source.save(&loaded, Vec::new(), &staging.join("checkpoints"))?;
        last_checkpoint::note(staging, 0)?;
        let place = run.join("checkpoints").join(checkpoint::name(0));
        source.done(place, &written, &loaded.manifest, reference)
    })
}

/// Section `model` of a manifest for a Hugging Face folder.
pub fn model_section(from: &Path) -> anyhow::Result<String> {
    Ok(manifest::model_section(&read_config(from)?.model))
}

/// Complete Hugging Face folder.
struct Source<'a> {
    from: &'a Path,
    config: HfConfig,
    weights: Weights,
    /// Number of values of each type.
    types: BTreeMap<String, usize>,
    /// Types of the tensors.
    tensor_types: BTreeMap<String, String>,
}

impl Source<'_> {
    fn open(from: &Path, config: HfConfig) -> anyhow::Result<Source<'_>> {
        let weights = Weights::open(from, config.family)?;
        let model = &config.model;
        let family = config.family;
        let layout = Layout::new(model, ModelShard::whole(model));
        let needed: Vec<HfTensor> = layout
            .params()
            .flat_map(|param| tensors(family, model, param))
            .collect();
        let types = weights.check(&needed, model.tied_head)?;
        weights.check_head(&needed, model.tied_head)?;
        let tensor_types = weights.types(&needed);
        Ok(Source { from, config, weights, types, tensor_types })
    }

    /// Writes the weights as the checkpoint of step 0, a part of the model at a time.
    fn save(
        &self,
        loaded: &Loaded,
        data: Vec<DataId>,
        checkpoints: &Path,
    ) -> anyhow::Result<PathBuf> {
        let m = &loaded.manifest;
        let numbers: usize = self.types.values().sum();
        let progress = Progress::new("reading", numbers as u64, Unit::Items("numbers"));
        let mut read = |param: &Param| {
            let whole = self.read(param, model_dtype(m.precision))?;
            progress.add(whole.values.len() as u64);
            anyhow::Ok(whole)
        };
        let mut state = saving::initial_state(loaded, data);
        let family = self.config.family.name();
        let from = self.from.display();
        state.imported = Some(format!("Hugging Face {family} in {from}"));
        let usual = safetensors::dtype_name(model_dtype(m.precision));
        state.imported_types = self.tensor_types.clone();
        state.imported_types.retain(|_, dtype| dtype != usual);
        let saved = save_weights(m, checkpoints, &state, &mut read)?;
        progress.finish();
        Ok(saved)
    }

    fn read(&self, param: &Param, dtype: DType) -> anyhow::Result<WholeWeight> {
        let shape = saved_shape(param, self.config.model.vocab);
        let mut values = vec![0.0; shape.iter().product()];
        for tensor in tensors(self.config.family, &self.config.model, param) {
            self.weights.read(&tensor, &mut values)?;
        }
        if dtype == DType::F16
            && dtype
                .halves(&values)
                .iter()
                .flatten()
                .any(|bits| bits & 0x7c00 == 0x7c00)
        {
            return Err(Problems::one(
                self.from.display().to_string(),
                format!("{} has values beyond 65,504, the largest of fp16", param.name),
                "set precision to bf16 or f32",
            )
            .into());
        }
        Ok(WholeWeight { shape, values })
    }

    /// Precision that uses the folder's weights without conversion.
    fn precision(&self) -> &'static str {
        let most = self.types.iter().max_by_key(|(_, count)| **count);
        match most.map(|(name, _)| name.as_str()) {
            Some("BF16") => "bf16",
            Some("F16") => "fp16",
            _ => "f32",
        }
    }

    /// Text of the new run's manifest.
    fn manifest(&self, run: &Path) -> String {
        let mut model = self.config.model.clone();
        model.seq_len = model.seq_len.min(LONGEST);
        let mut data = String::new();
        let tokenizer = hf::tokenizer_in(self.from);
        if let Some(name) = tokenizer.as_deref().and_then(Path::file_name) {
            data += &format!("  tokenizer: {}/{}\n", hf::FOLDER, name.display());
        }
        let eos = Companions::in_folder(self.from).token_ids().eos;
        let eos = eos
            .get(0)
            .unwrap_or(&eos)
            .as_u64()
            .filter(|id| *id < model.vocab as u64);
        if let Some(token) = eos {
            data += &format!("  eod: {{token: {token}}} # the end of a document\n");
        }
        self.manifest_text(run, &model, &data)
    }

    fn manifest_text(&self, run: &Path, model: &Model, data: &str) -> String {
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
            from = one_line(&self.from.display().to_string()),
            family = family.name(),
            run = one_line(&run.display().to_string()),
            name = quoted(run_name(run)),
            model = manifest::model_section(model),
            precision = self.precision(),
            folder = quoted(&run.display().to_string()),
        )
    }

    /// Result: `checkpoint` is the final path, and `written` the current one.
    fn done(
        &self,
        checkpoint: PathBuf,
        written: &Path,
        m: &Manifest,
        reference: Option<&Path>,
    ) -> anyhow::Result<Imported> {
        let compare = |reference| divergence::divergence(written, m, reference);
        let divergence = reference.map(compare).transpose()?;
        let types: Vec<String> = self
            .types
            .iter()
            .map(|(name, count)| {
                format!("{} parameters in {}", base::Count(*count as u64), name.to_lowercase())
            })
            .collect();
        let what = format!("{}: {}", self.config.family.name(), types.join(", "));
        Ok(Imported { checkpoint, what, unknown: self.config.unknown.clone(), divergence })
    }
}

fn tensors(family: manifest::Family, model: &Model, param: &Param) -> Vec<HfTensor> {
    tensors_of(family, param, &saved_shape(param, model.vocab), model.heads())
}

fn same_model(theirs: &Model, ours: &Model, from: &Path) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let theirs = manifest::model_settings(theirs);
    let ours = manifest::model_settings(ours);
    let text = |value: Option<&Value>| match value {
        None => "null".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let keys = theirs
        .keys()
        .chain(ours.keys().filter(|key| !theirs.contains_key(*key)));
    let free = |key: &&String| changed_settings::FREE.contains(&format!("model.{key}").as_str());
    for key in keys.filter(|key| {
        // Without a table of positions there, another position is the mistake.
        !free(key) && *key != "seq_len" && (*key != "positions" || theirs.contains_key(*key))
    }) {
        let theirs = text(theirs.get(key));
        let ours = text(ours.get(key));
        if theirs != ours {
            problems.add(
                from.join("config.json").display().to_string(),
                format!("model.{key} is {theirs} there, {ours} in the manifest"),
                format!("--set model.{key}={theirs}"),
            );
        }
    }
    problems.or(())
}
