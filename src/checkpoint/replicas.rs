//! What ranks hold of the live weights: every copy of each equal to what was saved.
//!
//! Each rank computes the digests of what it holds; a weight's copy is what several ranks hold of it
//! together, and digests of parts add up. So a few bytes of each rank prove, or name, what differs.

use super::digest::{Digest, Values};
use super::read::Checkpoint;
use crate::base::DType;
use crate::engine::{Engine, Piece, Replica};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Mutex, MutexGuard};

/// Bytes of a live weight that are looked at together: they stay in a core's cache.
const TOGETHER: usize = 512 << 10;

/// What one rank holds of one copy of a weight, for forward and backward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub name: String,
    pub replica: Replica,
    pub dtype: String,
    pub values: u64,
    pub digest: Digest,
}

/// Of this rank. Every rank of the data-parallel group calls it: it waits for what is under way.
pub fn held(engine: &Engine) -> Vec<Held> {
    engine.settle();
    let (dtype, pieces) = (engine.live_dtype(), engine.live_pieces());
    let mut all: Vec<Held> = Vec::new();
    for (piece, digest) in pieces.iter().zip(digests(engine, &pieces)) {
        let (name, values) = (piece.slot.name.clone(), piece.numel() as u64);
        match all.last_mut().filter(|last| last.name == name && last.replica == piece.replica) {
            Some(last) => {
                last.values += values;
                last.digest = last.digest.and(digest);
            }
            None => {
                let (replica, dtype) = (piece.replica, dtype.to_string());
                all.push(Held { name, replica, dtype, values, digest });
            }
        }
    }
    all
}

/// Rows of a piece on the host, as they lie in memory.
struct Block {
    piece: usize,
    first: usize,
    size: usize,
    words: Vec<u32>,
}

/// Digests of live pieces: copied out of the engine here, computed by threads beside.
fn digests(engine: &Engine, pieces: &[Piece]) -> Vec<Digest> {
    let dtype = engine.live_dtype();
    let digests = Mutex::new(vec![Digest::default(); pieces.len()]);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(4);
    let (send, blocks) = sync_channel::<Block>(threads);
    let (give, spare) = channel::<Vec<u32>>();
    let blocks = Mutex::new(blocks);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (give, blocks, digests) = (give.clone(), &blocks, &digests);
            scope.spawn(move || {
                let next = || lock(blocks).recv().ok();
                while let Some(block) = next() {
                    let digest = block.digest(&pieces[block.piece], dtype);
                    let sum = &mut lock(digests)[block.piece];
                    *sum = sum.and(digest);
                    give.send(block.words).ok();
                }
            });
        }
        for (number, piece) in pieces.iter().enumerate() {
            let [rows, cols] = piece.size;
            let at_once = (TOGETHER / dtype.size() / cols).max(1);
            for first in (0..rows).step_by(at_once) {
                let rows = first..(first + at_once).min(rows);
                let size = rows.len() * cols * dtype.size();
                let mut words = spare.try_recv().unwrap_or_default();
                words.resize(size.div_ceil(4), 0);
                engine.read_live(piece, rows, &mut bytemuck::cast_slice_mut(&mut words)[..size]);
                send.send(Block { piece: number, first, size, words }).expect("a digesting thread");
            }
        }
        drop(send);
    });
    digests.into_inner().unwrap_or_else(|held| held.into_inner())
}

impl Block {
    fn digest(&self, piece: &Piece, dtype: DType) -> Digest {
        let bytes: &[u8] = &bytemuck::cast_slice(&self.words)[..self.size];
        let values = match dtype {
            DType::F32 => Values::F32(bytemuck::cast_slice(bytes)),
            half => Values::halves(half, bytemuck::cast_slice(bytes)),
        };
        let at = [piece.at[0] + self.first, piece.at[1]];
        Digest::of_rectangle(piece.slot.spec.cols, at, piece.size[1], values)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

/// A copy of a weight: what ranks hold of it together.
#[derive(Default)]
struct Copy<'h> {
    ranks: Vec<usize>,
    dtype: &'h str,
    values: u64,
    digest: Digest,
}

type Copies<'h> = BTreeMap<&'h str, BTreeMap<Replica, Copy<'h>>>;

fn copies(world: &[Vec<Held>]) -> Copies<'_> {
    let mut copies = Copies::new();
    for (rank, all) in world.iter().enumerate() {
        for held in all {
            let copy = copies.entry(&held.name).or_default().entry(held.replica).or_default();
            copy.ranks.push(rank);
            copy.dtype = &held.dtype;
            copy.values += held.values;
            copy.digest = copy.digest.and(held.digest);
        }
    }
    copies
}

/// Every copy of every live weight, among what all ranks hold, is bit for bit what was in memory
/// before the save.
pub fn verify(checkpoint: &Checkpoint, world: &[Vec<Held>]) -> anyhow::Result<()> {
    let copies = copies(world);
    let folder = checkpoint.folder.display();
    for tensor in &checkpoint.index.tensors {
        let (name, saved) = (&tensor.name, &tensor.live);
        let copies = copies.get(name.as_str()).with_context(|| format!("no rank has {name}"))?;
        for copy in copies.values() {
            let Copy { dtype, digest, values, .. } = copy;
            let ranks = ranks(&copy.ranks);
            ensure!(
                *values == tensor.numel() as u64,
                "{ranks}: {values} of {} values of {name}",
                tensor.numel()
            );
            ensure!(
                saved.dtype == *dtype && saved.digest == *digest,
                "{folder}: the live weight {name} ({dtype}) is not the one that was in memory when \
                 the checkpoint was saved ({}), on {ranks}: digest {digest}, saved {}",
                saved.dtype,
                saved.digest
            );
        }
    }
    Ok(())
}

fn ranks(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        [rest @ .., last] => {
            let rest: Vec<String> = rest.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", rest.join(", "))
        }
        [] => "no rank".to_string(),
    }
}
