//! Loads a checkpoint into the engines of any grid.

use super::index::{Progress, Tensor};
use super::read::{Buffer, Checkpoint, row_blocks};
use super::replicas;
use super::validate;
use anyhow::Context;
use base::{ensure_input, in_order};
use engine::{
    Conversion, Engine, Frozen, MASTER, OptimizerRule, ScaleState, StateSlice, StateSpec,
    TensorSlice,
};
use model::{Layout, ModelShard, Param};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Reads the slices of this rank, including copies that no rank saved. No rank waits for another.
/// When all have read, call `cast_master_to_model` on all, then `verify` with their
/// `replica_digests`.
pub fn read_into(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let store = engine.store();
    let index = &checkpoint.index;
    if index.is_import() {
        return read_weights_into(checkpoint, engine);
    }
    ensure_input!(
        index.pending.is_none(),
        "{}: the update of its last step is delayed (topology.offload.delay), which this version \
         cannot apply: continue with the gptrain that wrote it and delay: 0 for one step and save, \
         or give --reset-optimizer, which drops that update and the optimizer's states",
        checkpoint.folder.display()
    );
    ensure_input!(
        !index.weights_only,
        "{}: its optimizer's states were removed (checkpoint.keep_weights_every): give --reset-optimizer to \
         continue from its weights with new states",
        checkpoint.folder.display()
    );
    ensure_sound(checkpoint, &validate::readable(index, store.model(), engine.rule()))?;
    ensure_sound(checkpoint, &validate::groups(index))?;
    read_states(checkpoint, engine, |state| state.saved)?;
    engine.set_scale(index.loss_scale, index.updates(), index.skipped());
    Ok(index.progress)
}

/// Reads the master weights only. The optimizer's states are initialised, and its updates count
/// from here.
pub fn read_weights_into(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let index = &checkpoint.index;
    ensure_sound(checkpoint, &validate::weights(index, engine.store().model()))?;
    ensure_sound(checkpoint, &validate::groups(index))?;
    engine.init();
    read_states(checkpoint, engine, |state| state.name == MASTER)?;
    engine.set_scale(index.loss_scale.map(ScaleState::without_counters), 0, 0);
    Ok(index.progress)
}

fn read_states(
    checkpoint: &Checkpoint,
    engine: &Engine,
    which: impl Fn(&StateSpec) -> bool,
) -> anyhow::Result<()> {
    let store = engine.store();
    store.clear_padding();
    engine.init_exchange();
    let is_continued = |slice: &StateSlice| {
        !slice.state.extent.serves_exchange()
            || is_continued(checkpoint, &slice.param, &slice.state)
    };
    let slices = store
        .slices()
        .into_iter()
        .filter(|slice| which(&slice.state) && is_continued(slice));
    let put = &mut |slice: &StateSlice, first, bytes: &[u8]| store.write(slice, first, bytes);
    read_all(checkpoint, &slices.collect::<Vec<_>>(), Some(engine.rule()), put)?;
    engine.set_steps(checkpoint.index.progress.step);
    Ok(())
}

/// Whether a state that serves the exchange of gradients was saved in the engine's form.
fn is_continued(checkpoint: &Checkpoint, param: &Param, state: &StateSpec) -> bool {
    let tensor = checkpoint.index.tensor(&param.name);
    let saved = tensor.and_then(|tensor| tensor.saved().find(|(name, _)| *name == state.name));
    saved.is_some_and(|(_, saved)| (saved.dtype, saved.extent) == (state.dtype, state.extent))
}

/// Describes, in one line, the states of the exchange of gradients that do not continue from the
/// checkpoint.
pub fn exchange_restarts(checkpoint: &Checkpoint, engine: &Engine) -> Option<String> {
    let model = engine.store().model();
    let layout = Layout::new(model, ModelShard::whole(model));
    let mut reset = BTreeMap::new();
    let mut unused = BTreeMap::new();
    for param in layout.params() {
        let states = engine.rule().states(&param.spec).into_iter();
        let ours: Vec<_> = states
            .filter(|state| state.extent.serves_exchange())
            .collect();
        for state in ours
            .iter()
            .filter(|state| !is_continued(checkpoint, param, state))
        {
            *reset.entry(state.name.to_string()).or_insert(0) += 1;
        }
        let saved = checkpoint
            .index
            .tensor(&param.name)
            .into_iter()
            .flat_map(|t| t.saved());
        for (name, state) in saved.filter(|(_, state)| state.extent.serves_exchange()) {
            if ours
                .iter()
                .all(|ours| (ours.name, ours.extent) != (name, state.extent))
            {
                *unused.entry(name.to_string()).or_insert(0) += 1;
            }
        }
    }
    let list = |states: &BTreeMap<String, usize>| {
        let states = states
            .iter()
            .map(|(name, count)| format!("{name} of {count} matrices"));
        states.collect::<Vec<_>>().join(" and ")
    };
    let reset_line = format!("{} are initialised again", list(&reset));
    let unused_line = format!("{} in the checkpoint are not used", list(&unused));
    let lines = [(reset.is_empty(), reset_line), (unused.is_empty(), unused_line)];
    let lines: Vec<_> = lines
        .into_iter()
        .filter(|(none, _)| !none)
        .map(|(_, line)| line)
        .collect();
    let why = "another compression or tensor parallelism than when it was saved";
    (!lines.is_empty()).then(|| format!("{}: {why}", lines.join("; ")))
}

/// Reads everything into a single rank, and compares the model weights with the saved digests.
pub fn load(checkpoint: &Checkpoint, engine: &Engine) -> anyhow::Result<Progress> {
    let progress = read_into(checkpoint, engine)?;
    engine.store().cast_master_to_model();
    replicas::verify(checkpoint, &[replicas::replica_digests(engine)])?;
    Ok(progress)
}

/// Reads the master weights into frozen weights.
pub fn load_weights(folder: &Path, weights: &Frozen) -> anyhow::Result<Progress> {
    load_weights_with(folder, weights, &|_| ())
}

/// The same. Calls `loaded` with the number of bytes of each part in f32, as it is written.
pub fn load_weights_with(
    folder: &Path,
    weights: &Frozen,
    loaded: &dyn Fn(usize),
) -> anyhow::Result<Progress> {
    let checkpoint = Checkpoint::open(folder)?;
    ensure_sound(&checkpoint, &validate::weights(&checkpoint.index, weights.model()))?;
    let put = &mut |slice: &StateSlice, first, bytes: &[u8]| {
        weights.write(slice, first, bytes);
        loaded(bytes.len());
    };
    read_all(&checkpoint, &weights.slices(), None, put)?;
    Ok(checkpoint.index.progress)
}

/// Fails with the findings about a checkpoint, if there are any.
fn ensure_sound(checkpoint: &Checkpoint, found: &[String]) -> anyhow::Result<()> {
    ensure_input!(found.is_empty(), "{}: {}", checkpoint.folder.display(), found.join("; "));
    Ok(())
}

/// Threads that read and verify: the number of concurrent requests.
const READERS: usize = 4;

/// Receives rows of a slice: the slice, its first row, and the values.
type Put<'a> = &'a mut dyn FnMut(&StateSlice, usize, &[u8]);

/// Rows of a slice that are read together.
struct Job<'a> {
    slice: &'a StateSlice,
    tensor: &'a Tensor,
    /// Rows of the whole state.
    rows: Range<usize>,
    /// Conversion from other states, if the checkpoint does not have this one.
    made: Option<Arc<Conversion>>,
}

/// Reads ahead on threads, and passes runs of rows to `put`. Missing states are converted by the
/// optimizer's rule.
fn read_all(
    checkpoint: &Checkpoint,
    slices: &[StateSlice],
    rule: Option<&dyn OptimizerRule>,
    put: Put,
) -> anyhow::Result<()> {
    let mut jobs = Vec::new();
    for slice in slices {
        let name = &slice.param.name;
        let tensor = checkpoint
            .index
            .tensor(name)
            .with_context(|| format!("no tensor {name}"))?;
        let spec = &slice.state;
        let made = rule
            .and_then(|rule| rule.convert(spec, &|name| tensor.form(name)))
            .map(Arc::new);
        let read = made.as_ref().map_or(spec.name, |made| made.from[0].name);
        jobs.extend(row_blocks(tensor, read, slice.slice.rows())?.map(|rows| Job {
            slice,
            tensor,
            rows,
            made: made.clone(),
        }));
    }
    let spare = RefCell::new(Vec::<Buffer>::new());
    let jobs = jobs
        .into_iter()
        .map(|job| (job, spare.borrow_mut().pop().unwrap_or_default()));
    in_order(
        READERS,
        READERS + 2,
        jobs,
        || (),
        |(), (job, mut buffer)| job.read(checkpoint, &mut buffer).map(|()| (job, buffer)),
        |read| {
            let (job, buffer) = read?;
            put(job.slice, job.rows.start - job.slice.slice.at[0], buffer.bytes());
            spare.borrow_mut().push(buffer);
            Ok(())
        },
    )
}

impl Job<'_> {
    fn read(&self, from: &Checkpoint, buffer: &mut Buffer) -> anyhow::Result<()> {
        let StateSlice { state, slice, param, .. } = self.slice;
        let Some(made) = &self.made else {
            return self.read_state(from, buffer, state, slice.cols());
        };
        let at = [self.rows.start, slice.at[1]];
        let size = [self.rows.len(), slice.size[1]];
        let part = state
            .extent
            .param_part(TensorSlice { at, size }, [param.spec.rows, param.spec.cols]);
        let mut bytes = Vec::new();
        for source in &made.from {
            self.read_state(from, buffer, source, source.extent.covering_part(part).cols())?;
            bytes.push(buffer.bytes().to_vec());
        }
        buffer.set((made.compute)(part, &bytes));
        Ok(())
    }

    /// Reads columns of a state, for this job's rows.
    fn read_state(
        &self,
        from: &Checkpoint,
        buffer: &mut Buffer,
        state: &StateSpec,
        cols: Range<usize>,
    ) -> anyhow::Result<()> {
        from.read(buffer, self.tensor, state.name, self.rows.clone(), cols)?;
        // No update writes such values, so no run did.
        let found = validate::values(state.name, state.dtype, buffer.bytes());
        ensure_input!(
            found.is_empty(),
            "{}: {} of {} has {} in rows {}..{}",
            from.folder.display(),
            state.name,
            self.tensor.name,
            found.join(", "),
            self.rows.start,
            self.rows.end
        );
        Ok(())
    }
}
