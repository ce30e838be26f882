//! The files of one tensor rank, and the places of the optimizer's states in them.

use super::super::super::torch::{Element, Tensor, TorchFile};
use super::super::AdamState;
use super::super::arguments::{Arguments, ELSEWHERE};
use super::super::run::Source;
use super::buffers::{self, Starts};
use super::names::{self, Entry};
use super::states::{PlainOptimizer, StatePlaces};
use base::Problems;
use std::path::Path;

/// Places of a stage's states.
pub enum States {
    /// Entries in the parameter groups of the plain optimizer.
    Plain(StatePlaces),
    /// Offsets in the buffers of the distributed optimizer.
    Flat(Starts),
}

impl States {
    /// Places of the states of a stage, or the reason why they cannot be read.
    pub fn find(
        file: &TorchFile,
        entries: &[(usize, Entry)],
        optimizer: &Result<PlainOptimizer, String>,
        path: &Path,
        args: &Arguments,
    ) -> anyhow::Result<Result<States, String>> {
        let buffers = buffers::buffer_file(path);
        match optimizer {
            Err(_) if buffers.is_file() => {
                Ok(buffers::starts(file, entries, &buffers, args)?.map(States::Flat))
            }
            Err(why) => Ok(Err(why.clone())),
            Ok(optimizer) => Ok(optimizer.slots(entries)?.map(States::Plain)),
        }
    }
}

/// A tensor rank's files.
pub struct Rank {
    file: TorchFile,
    /// Buffers of the distributed optimizer.
    buffers: Option<TorchFile>,
    /// By number in the stage.
    params: Vec<RankParam>,
}

/// A parameter in a rank's file.
struct RankParam {
    name: String,
    /// By state. If the optimizer's states are not read, the model's weight each time.
    tensors: [Tensor; 3],
}

impl Rank {
    /// Opens the files of a rank, and finds the tensors of its parameters.
    pub fn open(path: &Path, states: Option<&States>, half: bool) -> anyhow::Result<Rank> {
        let file = TorchFile::open(path)?;
        let root = file.root();
        let mut buffers = None;
        let mut plain = None;
        match states {
            None => {}
            Some(States::Flat(_)) => buffers = Some(TorchFile::open(&buffers::buffer_file(path))?),
            Some(States::Plain(slots)) => {
                let optimizer = PlainOptimizer::open(&root, half)?;
                plain = Some((optimizer.map_err(|why| root.problem(why))?, slots));
            }
        }
        let mut params = Vec::new();
        for (number, (_, entry)) in stage_entries(&file)?.into_iter().enumerate() {
            let weight = entry.value.tensor()?;
            let mut tensors = [weight.clone(), weight.clone(), weight.clone()];
            if let Some((optimizer, slots)) = &plain
                && let Some(slot) = slots.get(number)
            {
                for (tensor, state) in tensors.iter_mut().zip(AdamState::ALL) {
                    if let Some(value) = optimizer.state(*slot, state)? {
                        *tensor = value.tensor()?.clone();
                    }
                }
            }
            params.push(RankParam { name: entry.name, tensors });
        }
        Ok(Rank { file, buffers, params })
    }

    /// Passes the values of a state of a parameter to `each`, some MiB at a time.
    pub fn read(
        &self,
        states: Option<&States>,
        source: &Source,
        state: AdamState,
        each: &mut dyn FnMut(&[f32]),
    ) -> anyhow::Result<()> {
        let Source { name, shape, entry, .. } = source;
        let root = self.file.root();
        let param = self.param(source)?;
        if let (Some(States::Flat(starts)), Some(buffers)) = (states, &self.buffers) {
            let (chunk, start) = starts[*entry];
            let root = buffers.root();
            let buffer = buffers::state(&root, chunk, state)?.map_err(|why| root.problem(why))?;
            return buffers.each_floats(buffer.tensor()?, start..start + source.numel(), each);
        }
        let tensor = &param.tensors[state as usize];
        if tensor.shape != *shape {
            let found = &tensor.shape;
            let state = state.name();
            return Err(root.problem(format!(
                "the {state} of {name} is {found:?}, tensor rank 0's weight {shape:?}"
            )));
        }
        self.file.each_floats(tensor, 0..tensor.numel(), each)
    }

    /// Type of a state of a parameter.
    pub fn element(
        &self,
        states: Option<&States>,
        source: &Source,
        state: AdamState,
    ) -> anyhow::Result<Element> {
        let param = self.param(source)?;
        if let (Some(States::Flat(starts)), Some(buffers)) = (states, &self.buffers) {
            let (chunk, _) = starts[source.entry];
            let root = buffers.root();
            let buffer = buffers::state(&root, chunk, state)?.map_err(|why| root.problem(why))?;
            return Ok(buffer.tensor()?.element);
        }
        Ok(param.tensors[state as usize].element)
    }

    fn param(&self, Source { name, entry, .. }: &Source) -> anyhow::Result<&RankParam> {
        let param = self.params.get(*entry).filter(|param| param.name == *name);
        param.ok_or_else(|| {
            let root = self.file.root();
            root.problem(format!("{name} is not where rank 0 has it"))
        })
    }
}

/// The parameters of a file with the numbers of their chunks, in the optimizer's order.
pub fn stage_entries(file: &TorchFile) -> anyhow::Result<Vec<(usize, Entry<'_>)>> {
    let root = file.root();
    let mut entries = Vec::new();
    for chunk in 0.. {
        let model = match chunk {
            0 => root.some("model").or_else(|| root.some("model0")),
            _ => root.some(&format!("model{chunk}")),
        };
        let Some(model) = model else { break };
        let found = names::entries(&model)?.map_err(|name| {
            Problems::one(file.place(), format!("{name} is not in gptrain's model"), ELSEWHERE)
        })?;
        entries.extend(found.into_iter().map(|entry| (chunk, entry)));
    }
    Ok(entries)
}
