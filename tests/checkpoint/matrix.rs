//! Every optimizer on every grid and in every place: ten steps, saved after the fifth, and gone on with
//! from there in other cells.
//!
//! | of two cells | are equal |
//! |---|---|
//! | what one saved, and what the other has read and saves again | every state, bit for bit |
//! | losses and norms of steps 6 to 10, on one grid | bit for bit, wherever the states lie |
//! | the same, on two grids | but for the row's tolerance |
//! | cells that a row refuses | the words that say so |
//!
//! A row goes from each cell to those on the same grid, and from there two distances further than the
//! row before, so that seven rows together have gone every distance: a quarter of all pairs, in each of
//! which any row could fail.

use crate::grids::{Course, Done, close, parse, run, try_run};
use gptrain::base::Problems;
use gptrain::checkpoint::{self, Checkpoint, inspect};
use gptrain::engine::{Engine, optimizer_rule};
use gptrain::manifest::Loaded;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const CELLS: [&[&str]; 15] = [
    &[],
    &["data=2"],
    &["data=2", "zero=1"],
    &["data=4", "zero=2"],
    &["data=2", "zero=3"],
    &["data=2", "tensor=2"],
    &["data=2", "pipeline=2"],
    &["data=2", "tensor=2", "pipeline=2", "zero=1"],
    &["data=2", "pipeline=2", "zero=2"],
    &["data=2", "zero=1", "offload=optimizer"],
    &["data=2", "zero=3", "offload=full"],
    &["data=4", "shard=2", "zero=1"],
    &["data=4", "shard=2", "zero=3"],
    &["data=4", "shard=2", "pipeline=2", "zero=2"],
    &["data=4", "shard=2", "zero=2", "states=shard"],
];

const POWERSGD: &str = "topology.compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}";

/// A row: its tolerance of losses, relative, and what it sets.
macro_rules! rows {
    ($($name:ident: $tolerance:literal, [$($set:expr),+];)+) => {
        const ROWS: &[&str] = &[$(stringify!($name)),+];
        $(
            #[test]
            fn $name() {
                go(stringify!($name), $tolerance, &[$($set),+]);
            }
        )+
    };
}

rows! {
    adamw: 1e-6, ["optimizer.adamw={clip: 0.3}", "model.dropout=0.1"];
    adamw_in_bf16: 3e-4, ["optimizer.adamw={clip: 0.3}", "precision=bf16"];
    adam8bit: 1e-5, ["optimizer.adam8bit={clip: 0.3, block: 16}", "model.dropout=0.1"];
    adam8bit_in_bf16: 3e-4, ["optimizer.adam8bit={block: 16}", "precision=bf16"];
    adafactor: 1e-6, ["optimizer.adafactor={clip: 0.3, weight_decay: 0.1}", "model.dropout=0.1"];
    adafactor_in_bf16: 3e-4, ["optimizer.adafactor={scale_parameter: true}", "precision=bf16"];
    adamw_and_powersgd: 1e-5, ["optimizer.adamw={clip: 0.3}", POWERSGD];
    adam8bit_and_powersgd: 1e-5, ["optimizer.adam8bit={clip: 0.3, block: 16}", POWERSGD];
    adafactor_and_powersgd: 1e-5, ["optimizer.adafactor={clip: 0.3}", POWERSGD];
    muon: 1e-5, ["optimizer.muon={clip: 0.3}", "model.dropout=0.1"];
}

/// Row, cell, and the message that refuses the combination.
const REFUSED: [(&str, &str, &str); 6] = [
    ("muon", "offload=optimizer", "optimizer muon with topology.offload is not in this version"),
    ("muon", "offload=full", "optimizer muon with topology.offload is not in this version"),
    (
        "powersgd",
        "zero=2",
        "powersgd with topology.zero 2: every replica keeps an error of 4 bytes",
    ),
    (
        "powersgd",
        "zero=3",
        "powersgd with topology.zero 3: every replica keeps an error of 4 bytes",
    ),
    ("powersgd", "offload=full", "powersgd with topology.offload full: every replica keeps"),
    ("powersgd", "shard=2", "powersgd with topology.shard 2: its factors are summed over all"),
];

/// Steps of a run, and those before the save.
const STEPS: usize = 10;
const SAVED: usize = 5;
/// Tolerance of losses after PowerSGD was initialised again, or ended: part of the gradient is sent
/// in another step.
const ANEW: f64 = 5e-3;

fn manifest(row: &[&str], cell: &[&str]) -> Result<Loaded, Problems> {
    let small = ["model.layers=2", "batch.global=8"];
    let topology = cell.iter().map(|set| format!("topology.{set}"));
    let sets = small.iter().chain(row).map(|set| set.to_string());
    parse(&sets.chain(topology).collect::<Vec<_>>())
}

/// A cell's run, and what it saved.
struct Ran {
    loaded: Loaded,
    done: Done,
    saved: PathBuf,
}

/// None where the row refuses the cell.
fn ran(row: &[&str], cell: usize, folder: &Path) -> Option<Ran> {
    let text = |sets: &[&str]| sets.concat();
    let (of_row, of_cell) = (text(row), text(CELLS[cell]));
    let refused = REFUSED
        .iter()
        .filter(|(r, c, _)| of_row.contains(r) && of_cell.contains(c));
    let words: Vec<_> = refused.map(|(.., words)| *words).collect();
    let loaded = match manifest(row, CELLS[cell]) {
        Err(found) => {
            let said = found.to_string();
            let named = words.iter().any(|words| said.contains(words));
            assert!(named, "{:?}: {words:?} in: {said}", CELLS[cell]);
            return None;
        }
        Ok(loaded) => loaded,
    };
    assert!(words.is_empty(), "{:?} is not refused: {words:?}", CELLS[cell]);
    let done = run(&loaded, None, Course { steps: 0..STEPS, save: SAVED });
    let saved = done.save(&loaded, &folder.join(format!("{cell}")));
    Some(Ran { loaded, done, saved })
}

/// A cell without the place of its states.
fn grid(cell: usize) -> Vec<&'static str> {
    CELLS[cell]
        .iter()
        .copied()
        .filter(|set| !set.starts_with("offload"))
        .collect()
}

/// The cells that a row goes to from one.
fn targets(row: usize, from: usize) -> Vec<usize> {
    let near =
        [1, 2].map(|more| (from + 1 + (2 * row + more - 1) % (CELLS.len() - 1)) % CELLS.len());
    (0..CELLS.len())
        .filter(|to| grid(*to) == grid(from) || near.contains(to))
        .collect()
}

#[test]
fn the_rows_go_from_every_cell_to_every_other() {
    for from in 0..CELLS.len() {
        let all = (0..ROWS.len()).flat_map(|row| targets(row, from));
        assert_eq!(all.collect::<std::collections::BTreeSet<_>>().len(), CELLS.len());
    }
}

fn go(name: &str, tolerance: f64, row: &[&str]) {
    let number = ROWS.iter().position(|row| *row == name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..CELLS.len())
        .map(|cell| ran(row, cell, folder.path()))
        .collect();
    let (mut farthest, mut farthest_reset, mut pairs) = (0.0f64, 0.0f64, 0);
    for (from, of) in all.iter().enumerate() {
        let Some(of) = of else { continue };
        for to in targets(number, from) {
            let Some(other) = &all[to] else { continue };
            let what = format!("{name}: {:?} gone on with by {:?}", CELLS[from], CELLS[to]);
            let (off, exchange) = pair(of, other, grid(from) == grid(to), tolerance, &what);
            let most = if exchange { &mut farthest } else { &mut farthest_reset };
            *most = most.max(off);
            pairs += 1;
        }
    }
    println!(
        "{name}: {pairs} pairs; losses at most {farthest:.1e} apart, {farthest_reset:.1e} after a reset"
    );
}

/// One cell resumes the checkpoint of the other. Returns the largest difference of the losses, and
/// whether all states continued.
fn pair(of: &Ran, to: &Ran, same_grid: bool, tolerance: f64, what: &str) -> (f64, bool) {
    let (checkpoint, told) = (Checkpoint::open(&of.saved).unwrap(), Mutex::new(None));
    let look = |rank: usize, engine: &Engine| {
        if rank == 0 {
            *told.lock().unwrap() = checkpoint::exchange_restarts(&checkpoint, engine);
        }
    };
    let course = Course { steps: SAVED..STEPS, save: SAVED };
    let (arrived, done) = try_run(&to.loaded, Some(&checkpoint), course, &look, optimizer_rule);
    checkpoint::verify(&checkpoint, &arrived).unwrap();
    let before = &of.done.outcomes[SAVED..];
    if same_grid {
        assert_eq!(done.outcomes, before, "{what}");
        assert_eq!(of.done.outcomes, to.done.outcomes, "{what}");
    }
    let folder = tempfile::tempdir().unwrap();
    let again = done.save(&to.loaded, folder.path());
    let diff = inspect::diff(&of.saved, &again).unwrap();
    let told = told.into_inner().unwrap();
    let goes_on = told.is_none();
    // What is sent depends on the shares of a matrix, and on whether there are replicas.
    let topology =
        |ran: &Ran| (ran.loaded.manifest.topology.tensor, ran.loaded.manifest.topology.data);
    let compressed = of.loaded.manifest.topology.compression.is_some();
    assert_eq!(goes_on, !compressed || topology(of) == topology(to), "{what}: {told:?}");
    for tensor in &diff.tensors {
        let own = tensor
            .states
            .iter()
            .filter(|(state, _)| goes_on || !state.starts_with("powersgd"));
        let changed: Vec<_> = own.filter(|(_, change)| **change != 0.0).collect();
        assert!(changed.is_empty() && (tensor.equal || !goes_on), "{what}: {changed:?}\n{diff:?}");
    }
    assert!(diff.only_in_a.is_empty() && diff.only_in_b.is_empty(), "{what}: {diff:?}");
    let found = inspect::inspect(&again, true).unwrap().damage;
    assert!(found.is_empty(), "{what}: {found:?}");
    (close(&done.outcomes, before, if goes_on { tolerance } else { ANEW }, &what), goes_on)
}
