//! Writes a checkpoint as a Hugging Face folder.

use super::companions::Companions;
use super::companions::FOLDER;
use super::config::{target, write_config};
use super::family::dialect;
use super::mup;
use super::names::{HfTensor, tensors_of};
use super::weights::{INDEX, ONE};
use crate::tokenizer;
use anyhow::{Context, ensure};
use base::output::Existing;
use base::progress::{Progress, Unit};
use base::{Bytes, DType};
use checkpoint::atomic_folder::FolderKind;
use checkpoint::{Checkpoint, Tensor, atomic_folder, safetensors};
use engine::{MASTER, model_dtype};
use manifest::{Family, Manifest, Model};
use model::{Layout, ModelShard, ParamSpec};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Options of an export.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokenizer; None for the run's own.
    pub tokenizer: Option<PathBuf>,
    /// Whether to replace an existing model.
    pub existing: Existing,
    /// Type of the weights. None: the type in which the run computes, or, before the first step of an
    /// imported model, each tensor's type there.
    pub dtype: Option<DType>,
    /// Maximum size of a file, unless a single tensor is larger.
    pub shard: Bytes,
}

/// Result of an export.
#[derive(Clone, Debug)]
pub struct Exported {
    pub family: Family,
    pub dtype: DType,
    pub bytes: Bytes,
    /// Bytes of weights.
    pub files: usize,
    /// Whether a tokenizer was copied.
    pub tokenizer: bool,
}

/// Writes config.json, the weights, and the tokenizer and generation settings of the run into `to`,
/// which is new or empty, completely or not at all. Holds one tensor at a time.
pub fn export(from: &Path, to: &Path, options: Options) -> anyhow::Result<Exported> {
    let checkpoint = Checkpoint::open(from)?;
    let m = checkpoint.manifest()?;
    let family = target(&m.model, &from.display().to_string())?;
    let dtype = options.dtype.unwrap_or(model_dtype(m.precision));
    let companions = companions(from, &checkpoint, &m, options.tokenizer.as_deref())?;
    let types = match options.dtype {
        None if checkpoint.index.is_import() => checkpoint.index.imported_types.clone(),
        _ => BTreeMap::new(),
    };
    let types = TensorTypes { usual: dtype, others: types };
    let tokens = companions.token_ids();
    let carried = companions.config().filter(|config| {
        config.get(dialect(family).name("model.family")) == Some(&json!(family.name()))
    });
    atomic_folder::write(to, FolderKind::Model, options.existing, |to| {
        let plan = FilePlan::new(&checkpoint, &m.model, family, types, options.shard)?;
        let bytes = plan.write(&checkpoint, to)?;
        let config = write_config(family, &m.model, torch_name(dtype), &tokens, carried);
        let path = to.join("config.json");
        fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
        let tokenizer = companions.write(to, &tokens)?;
        let files = plan.files.len();
        Ok(Exported { family, dtype, bytes: Bytes(bytes), files, tokenizer })
    })
}

/// Files that are exported with the weights of a checkpoint.
fn companions(
    from: &Path,
    checkpoint: &Checkpoint,
    m: &Manifest,
    asked: Option<&Path>,
) -> anyhow::Result<Companions> {
    let run = from
        .parent()
        .and_then(Path::parent)
        .unwrap_or(&m.log.folder);
    let run = if run.join(FOLDER).exists() { run } else { &m.log.folder };
    let run = checkpoint.index.imported.is_some().then_some(run);
    let own = tokenizer::own(from, m.data.tokenizer.as_deref());
    let path = tokenizer::choose(asked, own, m.model.vocab)?;
    Companions::new(run, path.as_deref(), m.data.eod.map(|eod| eod.token))
}

/// Name of a type in config.json.
fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        other => panic!("weights as {other}"),
    }
}

/// Types of the exported tensors.
struct TensorTypes {
    usual: DType,
    /// Names in safetensors of other types, by tensor.
    others: BTreeMap<String, String>,
}

impl TensorTypes {
    fn dtype(&self, tensor: &HfTensor) -> DType {
        let other = self
            .others
            .get(&tensor.name)
            .and_then(|name| safetensors::float_type(name));
        other.unwrap_or(self.usual)
    }

    fn bytes(&self, tensor: &HfTensor) -> u64 {
        (tensor.numel() * self.dtype(tensor).size()) as u64
    }
}

/// Assignment of tensors to files.
struct FilePlan<'c> {
    model: &'c Model,
    /// Each weight of the checkpoint, and its tensors in the export.
    weights: Vec<(&'c Tensor, ParamSpec, Vec<HfTensor>)>,
    types: TensorTypes,
    /// Tensors of each file, in the order of writing.
    files: Vec<Vec<HfTensor>>,
}

impl<'c> FilePlan<'c> {
    fn new(
        checkpoint: &'c Checkpoint,
        model: &'c Model,
        family: Family,
        types: TensorTypes,
        shard: Bytes,
    ) -> anyhow::Result<FilePlan<'c>> {
        let layout = Layout::new(model, ModelShard::whole(model));
        let mut weights = Vec::new();
        for param in layout.params() {
            let tensor = checkpoint
                .index
                .tensor(&param.name)
                .with_context(|| format!("the checkpoint has no {}", param.name))?;
            let theirs = tensors_of(family, param, &tensor.shape, model.heads());
            ensure!(!theirs.is_empty(), "{} has no place in a {}", param.name, family.name());
            weights.push((tensor, param.spec, theirs));
        }
        let mut files = vec![Vec::new()];
        let mut held = 0;
        for tensor in weights.iter().flat_map(|(.., theirs)| theirs) {
            let bytes = types.bytes(tensor);
            if held > 0 && held + bytes > shard.0 {
                files.push(Vec::new());
                held = 0;
            }
            held += bytes;
            files
                .last_mut()
                .expect("one from the start")
                .push(tensor.clone());
        }
        Ok(FilePlan { model, weights, types, files })
    }

    fn file(&self, number: usize) -> String {
        match self.files.len() {
            1 => ONE.to_string(),
            all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
        }
    }

    /// Writes all files, and an index if there are several. Returns the bytes.
    fn write(&self, checkpoint: &Checkpoint, to: &Path) -> anyhow::Result<u64> {
        let mut values = self.values(checkpoint);
        let numbers: usize = self.files.iter().flatten().map(HfTensor::numel).sum();
        let total = self
            .files
            .iter()
            .flatten()
            .map(|tensor| self.types.bytes(tensor))
            .sum();
        let progress = Progress::new("exporting", total, Unit::Bytes);
        let mut bytes = 0;
        let mut map = Map::new();
        for (number, tensors) in self.files.iter().enumerate() {
            let file = self.file(number);
            bytes += self.write_file(&to.join(&file), tensors, &mut values, &progress)?;
            map.extend(
                tensors
                    .iter()
                    .map(|tensor| (tensor.name.clone(), json!(file))),
            );
        }
        if self.files.len() > 1 {
            let metadata = json!({"total_parameters": numbers, "total_size": total});
            let index = json!({"metadata": metadata, "weight_map": map});
            let path = to.join(INDEX);
            let text = format!("{index:#}\n");
            bytes += text.len() as u64;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(bytes)
    }

    /// Values of every tensor, in the order of the files.
    fn values(&self, checkpoint: &Checkpoint) -> impl Iterator<Item = anyhow::Result<Vec<f32>>> {
        self.weights.iter().flat_map(|(tensor, spec, theirs)| {
            let whole = checkpoint.whole(tensor, MASTER);
            let (ours, error) = match whole {
                Ok(mut ours) => {
                    mup::fold(spec, self.model, &mut ours);
                    (ours, None)
                }
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            let count = if error.is_some() { 0 } else { theirs.len() };
            let taken = theirs[..count]
                .iter()
                .map(move |theirs| Ok(theirs.take(&ours)));
            error.into_iter().chain(taken)
        })
    }

    fn write_file(
        &self,
        path: &Path,
        tensors: &[HfTensor],
        values: &mut impl Iterator<Item = anyhow::Result<Vec<f32>>>,
        progress: &Progress,
    ) -> anyhow::Result<u64> {
        let failed = || format!("cannot write {}", path.display());
        let wanted = tensors.iter().map(|tensor| {
            let dtype = safetensors::dtype_name(self.types.dtype(tensor));
            (tensor.name.clone(), dtype, tensor.shape.clone())
        });
        let metadata = BTreeMap::from([("format", "pt".to_string())]);
        let (header, data) = safetensors::header(&wanted.collect::<Vec<_>>(), &metadata, 64)?;
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).with_context(failed)?);
        out.write_all(&header).with_context(failed)?;
        for (tensor, values) in tensors.iter().zip(values) {
            let values = values?;
            let written = match self.types.dtype(tensor).halves(&values) {
                Some(bits) => out.write_all(bytemuck::cast_slice(&bits)),
                None => out.write_all(bytemuck::cast_slice(&values)),
            };
            written.with_context(failed)?;
            progress.add(self.types.bytes(tensor));
        }
        out.into_inner()
            .map_err(|error| error.into_error())
            .with_context(failed)?;
        Ok(header.len() as u64 + data)
    }
}
