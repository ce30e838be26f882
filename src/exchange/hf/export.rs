//! Writes a checkpoint as a Hugging Face folder.

use super::companions::Companions;
use super::config::{target, write_config};
use super::family::dialect;
use super::mup;
use super::names::{HfTensor, tensors_of};
use super::weights::{INDEX, ONE};
use crate::foreign::AdamState;
use crate::source::ParamSource;
use crate::tokenizer;
use anyhow::{Context, ensure};
use base::output::Existing;
use base::{Bytes, DType};
use checkpoint::atomic_folder::FolderKind;
use checkpoint::{atomic_folder, safetensors};
use engine::{model_dtype, saved_shape};
use manifest::{Family, Model};
use model::{Layout, ModelShard, Param};
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

/// A Hugging Face folder that is to be written.
pub struct Export<'s> {
    source: &'s mut ParamSource,
    options: Options,
    family: Family,
    dtype: DType,
    companions: Companions,
    plan: FilePlan,
}

impl<'s> Export<'s> {
    /// Plans the export of a checkpoint. Fails if no family has its model.
    pub fn new(source: &'s mut ParamSource, options: Options) -> anyhow::Result<Export<'s>> {
        let m = source.manifest();
        let family = target(&m.model, &source.facts().folder)?;
        let dtype = options.dtype.unwrap_or(model_dtype(m.precision));
        let asked = options.tokenizer.as_deref();
        let tokenizer = tokenizer::choose(asked, source.tokenizer.clone(), m.model.vocab)?;
        let eod = m.data.eod.map(|eod| eod.token);
        let companions = Companions::new(source.carried.clone(), tokenizer.as_deref(), eod)?;
        let others = match options.dtype {
            None => source.other_types(),
            Some(_) => BTreeMap::new(),
        };
        let types = TensorTypes { usual: dtype, others };
        let plan = FilePlan::new(&m.model, family, types, options.shard)?;
        Ok(Export { source, options, family, dtype, companions, plan })
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.plan.bytes())
    }

    /// Writes config.json, the weights, and the tokenizer and generation settings into `to`, which is
    /// new or empty, completely or not at all. Holds one parameter at a time.
    pub fn write(self, to: &Path) -> anyhow::Result<Exported> {
        let Export { source, options, family, dtype, companions, plan } = self;
        let tokens = companions.token_ids();
        let carried = companions.config().filter(|config| {
            config.get(dialect(family).name("model.family")) == Some(&json!(family.name()))
        });
        atomic_folder::write(to, FolderKind::Model, options.existing, |to| {
            let bytes = plan.write(source, to)?;
            let model = &source.manifest().model;
            let config = write_config(family, model, torch_name(dtype), &tokens, carried);
            let path = to.join("config.json");
            fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
            let tokenizer = companions.write(to, &tokens)?;
            let files = plan.files.len();
            Ok(Exported { family, dtype, bytes: Bytes(bytes), files, tokenizer })
        })
    }
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
struct FilePlan {
    params: Vec<Param>,
    types: TensorTypes,
    /// Tensors of each file, in the order of writing, with the numbers of their parameters.
    files: Vec<Vec<(usize, HfTensor)>>,
}

impl FilePlan {
    fn new(
        model: &Model,
        family: Family,
        types: TensorTypes,
        shard: Bytes,
    ) -> anyhow::Result<FilePlan> {
        let layout = Layout::new(model, ModelShard::whole(model));
        let params: Vec<Param> = layout.params().cloned().collect();
        let mut files = vec![Vec::new()];
        let mut held = 0;
        for (number, param) in params.iter().enumerate() {
            let shape = saved_shape(param, model.vocab);
            let theirs = tensors_of(family, param, &shape, model.heads());
            ensure!(!theirs.is_empty(), "{} has no place in a {}", param.name, family.name());
            for tensor in theirs {
                let bytes = types.bytes(&tensor);
                if held > 0 && held + bytes > shard.0 {
                    files.push(Vec::new());
                    held = 0;
                }
                held += bytes;
                files
                    .last_mut()
                    .expect("one from the start")
                    .push((number, tensor));
            }
        }
        Ok(FilePlan { params, types, files })
    }

    fn file(&self, number: usize) -> String {
        match self.files.len() {
            1 => ONE.to_string(),
            all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
        }
    }

    fn tensors(&self) -> impl Iterator<Item = &HfTensor> {
        self.files.iter().flatten().map(|(_, tensor)| tensor)
    }

    /// Bytes of the weights.
    fn bytes(&self) -> u64 {
        self.tensors().map(|tensor| self.types.bytes(tensor)).sum()
    }

    /// Writes all files, and an index if there are several. Returns the bytes.
    fn write(&self, source: &mut ParamSource, to: &Path) -> anyhow::Result<u64> {
        let numbers: usize = self.tensors().map(HfTensor::numel).sum();
        source.show_progress("exporting", 4 * numbers as u64);
        let mut ours = OpenParam { number: None, values: Vec::new() };
        let mut bytes = 0;
        let mut map = Map::new();
        for (number, tensors) in self.files.iter().enumerate() {
            let file = self.file(number);
            bytes += self.write_file(&to.join(&file), tensors, &mut ours, source)?;
            map.extend(
                tensors
                    .iter()
                    .map(|(_, tensor)| (tensor.name.clone(), json!(file))),
            );
        }
        if self.files.len() > 1 {
            let metadata = json!({"total_parameters": numbers, "total_size": self.bytes()});
            let index = json!({"metadata": metadata, "weight_map": map});
            let path = to.join(INDEX);
            let text = format!("{index:#}\n");
            bytes += text.len() as u64;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(bytes)
    }

    fn write_file(
        &self,
        path: &Path,
        tensors: &[(usize, HfTensor)],
        ours: &mut OpenParam,
        source: &mut ParamSource,
    ) -> anyhow::Result<u64> {
        let failed = || format!("cannot write {}", path.display());
        let wanted = tensors.iter().map(|(_, tensor)| {
            let dtype = safetensors::dtype_name(self.types.dtype(tensor));
            (tensor.name.clone(), dtype, tensor.shape.clone())
        });
        let metadata = BTreeMap::from([("format", "pt".to_string())]);
        let (header, data) = safetensors::header(&wanted.collect::<Vec<_>>(), &metadata, 64)?;
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).with_context(failed)?);
        out.write_all(&header).with_context(failed)?;
        for (number, tensor) in tensors {
            ours.read(*number, &self.params[*number], source)?;
            let values = tensor.take(&ours.values);
            let written = match self.types.dtype(tensor).halves(&values) {
                Some(bits) => out.write_all(bytemuck::cast_slice(&bits)),
                None => out.write_all(bytemuck::cast_slice(&values)),
            };
            written.with_context(failed)?;
        }
        out.into_inner()
            .map_err(|error| error.into_error())
            .with_context(failed)?;
        Ok(header.len() as u64 + data)
    }
}

/// Parameter that is in memory until another one is read.
struct OpenParam {
    number: Option<usize>,
    values: Vec<f32>,
}

impl OpenParam {
    fn read(
        &mut self,
        number: usize,
        param: &Param,
        source: &mut ParamSource,
    ) -> anyhow::Result<()> {
        if self.number != Some(number) {
            self.values = Vec::new(); // before the next is read
            self.values = source.read_valid(param, AdamState::Master)?;
            self.number = Some(number);
            mup::fold(&param.spec, &source.manifest().model, &mut self.values);
        }
        Ok(())
    }
}
