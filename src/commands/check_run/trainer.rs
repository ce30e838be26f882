//! Checkpoint of another trainer: its settings under a change, and its weights and moments.

use super::change::{Change, LossMean, StateChange};
use base::Problems;
use exchange::foreign::{
    self, AdamState, Choices, ForeignRun, Format, Replicated, RunDescription, detect,
};
use exchange::source::{self, ParamSource};
use exchange::{Pairs, queries_keys_values};
use manifest::{Dropout, Manifest, Model, Topology};
use model::{Layout, ModelShard, Param, Weight};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Argument of Megatron with which the loss is the mean over the tokens of the global batch.
const PER_TOKEN: &str = "calculate_per_token_loss";

/// File in a checkpoint of Hugging Face's Trainer that has its step.
const TRAINER_STATE: &str = "trainer_state.json";

/// Checkpoint of another trainer.
pub struct Trainer {
    from: PathBuf,
    sets: Vec<String>,
    pub found: RunDescription,
    /// Manifest without a change, with the trainer's topology.
    pub manifest: Manifest,
    /// Rules of the trainer that no setting of the manifest has.
    pub base: Change,
}

/// Source of weights and moments.
enum States {
    Trainer(Box<ForeignRun>),
    HuggingFace(Box<ParamSource>),
}

impl Trainer {
    pub fn open(from: &Path, sets: Vec<String>) -> anyhow::Result<Trainer> {
        let format = match detect(from)? {
            // Without its optimizer's states, and the settings that an import asks for.
            Format::HfTrainer => Format::HuggingFace,
            format => format,
        };
        if format == Format::Gptrain {
            return Err(Problems::one(
                from.display().to_string(),
                "is a checkpoint of gptrain, and not of another trainer",
                "repeat its steps with gptrain inspect-ckpt --replay STEPS",
            )
            .into());
        }
        let choices = Choices { sets, format: Some(format), ..Choices::default() };
        // Compares the tensors with the model.
        let source = source::open(from, &choices)?;
        let mut found = source.facts().clone();
        if format == Format::HuggingFace {
            found.step = saved_step(from);
        }
        let base = Change::none(found.decayed, mean_of(&found));
        let manifest = without_the_run(from, source.manifest())?;
        let from = from.to_path_buf();
        Ok(Trainer { from, sets: choices.sets, found, manifest, base })
    }

    /// Number of tensor ranks that the files have shares of.
    pub fn tensor_ranks(&self) -> usize {
        self.found.grid[0]
    }

    /// Reader of the state under a change, as tensor rank `rank` has it, and the settings.
    pub fn reader(&self, change: &Change, rank: usize) -> anyhow::Result<(StateReader, Manifest)> {
        let replicated = match change.state {
            StateChange::OwnCopies => Replicated::Rank(rank),
            _ => Replicated::Mean,
        };
        let choices = Choices {
            replicated,
            mask_padding: change.mask_padding,
            sets: [&self.sets[..], &change.sets].concat(),
            format: Some(self.found.format),
            ..Choices::default()
        };
        let (states, mut m) = open_states(&self.from, &choices)?;
        let tensor = match change.state {
            StateChange::OwnCopies => self.tensor_ranks(),
            _ => 1,
        };
        m.topology = Topology { tensor, ..m.topology.single_rank() };
        if change.unties() {
            m.model.tied_head = false;
        }
        let model = m.model.clone();
        Ok((StateReader { states, model, state: change.state, unties: change.unties() }, m))
    }
}

/// Opens a checkpoint without a comparison of its tensors with the model, of which a change may leave out
/// some.
fn open_states(from: &Path, choices: &Choices) -> anyhow::Result<(States, Manifest)> {
    let format = choices.format.map_or_else(|| detect(from), Ok)?;
    if format == Format::HuggingFace {
        let source = source::open(from, choices)?;
        let m = without_the_run(from, source.manifest())?;
        return Ok((States::HuggingFace(Box::new(source)), m));
    }
    let run = foreign::open(from, format, choices)?;
    let loaded = source::planned_run(&run, choices)?;
    let m = without_the_run(from, &loaded.manifest)?;
    Ok((States::Trainer(Box::new(run)), m))
}

/// Settings without what only a whole run needs.
fn without_the_run(from: &Path, m: &Manifest) -> Result<Manifest, Problems> {
    refuse_dropout(from, m)?;
    let mut m = m.clone();
    m.data.valid = Vec::new();
    Ok(m)
}

fn refuse_dropout(from: &Path, m: &Manifest) -> Result<(), Problems> {
    let Dropout { embedding, attention, residual } = m.model.dropout;
    let most = embedding.max(attention).max(residual);
    if most == 0.0 {
        return Ok(());
    }
    Err(Problems::one(
        from.display().to_string(),
        format!("the run has a dropout of {most}, whose random numbers cannot be repeated here"),
        "take a step without dropout; if the run had none: --set model.dropout=0",
    ))
}

/// Step of a folder that Hugging Face's Trainer saved: in its state, or in its name `checkpoint-N`.
fn saved_step(from: &Path) -> u64 {
    let text = fs::read_to_string(from.join(TRAINER_STATE)).unwrap_or_default();
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    let name = from.file_name().unwrap_or_default().to_string_lossy();
    let named = name
        .rsplit_once('-')
        .and_then(|(_, step)| step.parse().ok());
    state["global_step"].as_u64().or(named).unwrap_or(0)
}

/// Mean of the losses that a trainer computes.
fn mean_of(found: &RunDescription) -> LossMean {
    let said = |name: &str| found.notes.iter().any(|note| note.contains(name));
    match found.format {
        Format::PytorchDcp | Format::HuggingFace => LossMean::Tokens,
        _ if said(PER_TOKEN) => LossMean::Tokens,
        _ => LossMean::MicroBatches,
    }
}

/// Reader of whole weights and moments.
pub struct StateReader {
    states: States,
    model: Model,
    state: StateChange,
    /// Whether a head that the files tie is read as a weight by itself.
    unties: bool,
}

impl StateReader {
    /// One state of a whole parameter.
    pub fn read(&mut self, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let values = match &mut self.states {
            States::HuggingFace(source) => source.read(param, state)?,
            States::Trainer(run) => {
                let is_head = param.spec.weight == Weight::HeadW && self.unties;
                if is_head && !run.holds(param) {
                    run.read(&self.model, &find_embedding(&self.model), state)?
                } else {
                    run.read(&self.model, param, state)?
                }
            }
        };
        Ok(self.turned(param, values))
    }

    /// Values with the rows of queries and keys in another order.
    fn turned(&self, param: &Param, values: Vec<f32>) -> Vec<f32> {
        if !matches!(param.spec.weight, Weight::QkvW | Weight::QkvB) {
            return values;
        }
        let heads = self.model.heads();
        let width = values.len() / heads.qkv_width();
        let halves = queries_keys_values(heads, Pairs::Halves).concat();
        let neighbours = queries_keys_values(heads, Pairs::Neighbours).concat();
        let [from, to] = match self.state {
            StateChange::None | StateChange::OwnCopies => return values,
            StateChange::FromNeighbours => [halves, neighbours],
            StateChange::FromHalves => [neighbours, halves],
        };
        let mut turned = vec![0.0; values.len()];
        for (from, to) in from.into_iter().zip(to) {
            turned[to * width..][..width].copy_from_slice(&values[from * width..][..width]);
        }
        turned
    }

    /// Notes from reading.
    pub fn remarks(&mut self) -> Vec<String> {
        match &mut self.states {
            States::Trainer(run) => run.remarks(),
            States::HuggingFace(source) => source.remarks(),
        }
    }
}

fn find_embedding(model: &Model) -> Param {
    let layout = Layout::new(model, ModelShard::whole(model));
    let mut params = layout.params();
    let found = params.find(|param| param.spec.weight == Weight::TokenEmbed);
    found.expect("every model has an embedding").clone()
}
