//! Verifies that every rank's copies of the model weights equal the saved ones.
//!
//! Each rank computes the digests of its parts. Digests of parts add up, so a few bytes from each
//! rank verify a copy that several ranks hold together, or name the difference.

use super::digest::Digest;
use super::read::Checkpoint;
use anyhow::{Context, ensure};
use base::{DType, in_order};
use engine::{Engine, MODEL, Replica, StateSlice, TensorSlice};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Bytes of a model weight digested at a time; they stay in a core's cache.
const TOGETHER: usize = 512 << 10;

/// Digest of one rank's part of one copy of a model weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDigest {
    pub name: String,
    pub replica: Replica,
    pub dtype: DType,
    pub values: u64,
    pub digest: Digest,
}

/// Digests of this rank. A collective of the data-parallel group, because it waits for pending
/// gathers.
pub fn replica_digests(engine: &Engine) -> Vec<ReplicaDigest> {
    engine.store().wait_gathers();
    let slices = engine.store().model_slices();
    let mut replicas: Vec<ReplicaDigest> = Vec::new();
    for (slice, digest) in slices.iter().zip(digests(engine, &slices)) {
        let name = slice.param.name.clone();
        let values = slice.numel() as u64;
        match replicas
            .last_mut()
            .filter(|last| last.name == name && last.replica == slice.replica)
        {
            Some(last) => {
                last.values += values;
                last.digest = last.digest.and(digest);
            }
            None => {
                let replica = slice.replica;
                let dtype = slice.state.dtype;
                replicas.push(ReplicaDigest { name, replica, dtype, values, digest });
            }
        }
    }
    replicas
}

/// Rows of a slice on the host, in memory order.
struct Block {
    slice: usize,
    first: usize,
    rows: usize,
    bytes: Vec<u8>,
}

/// Digests of model weights. This thread copies them out of the engine; others compute the digests.
fn digests(engine: &Engine, slices: &[StateSlice]) -> Vec<Digest> {
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get())
        .min(4);
    let spare = RefCell::new(Vec::<Vec<u8>>::new());
    let blocks = slices.iter().enumerate().flat_map(|(number, slice)| {
        let [rows, _] = slice.slice.size;
        let at_once = (TOGETHER * rows / slice.bytes()).max(1);
        (0..rows)
            .step_by(at_once)
            .map(move |first| (number, first..(first + at_once).min(rows)))
    });
    let digest = |_: &mut (), block: Block| (block.digest(&slices[block.slice]), block);
    let mut digests = vec![Digest::default(); slices.len()];
    in_order(
        threads,
        2 * threads,
        blocks.map(|(number, rows)| {
            let slice = &slices[number];
            let first = rows.start;
            let count = rows.len();
            let mut bytes = spare.borrow_mut().pop().unwrap_or_default();
            bytes.resize(slice.bytes() / slice.slice.size[0] * count, 0);
            engine.store().read(slice, rows, &mut bytes);
            Block { slice: number, first, rows: count, bytes }
        }),
        || (),
        digest,
        |(digest, block)| {
            digests[block.slice] = digests[block.slice].and(digest);
            spare.borrow_mut().push(block.bytes);
            Ok(())
        },
    )
    .expect("the sink returns no error");
    digests
}

impl Block {
    fn digest(&self, slice: &StateSlice) -> Digest {
        let [row, col] = slice.slice.at;
        let at = [row + self.first, col];
        let size = [self.rows, slice.slice.size[1]];
        Digest::from_slice(
            slice.shape[1],
            &TensorSlice { at, size },
            slice.state.dtype,
            &self.bytes,
        )
    }
}

/// One copy of a weight, spread over several ranks.
struct WeightCopy {
    ranks: Vec<usize>,
    dtype: DType,
    values: u64,
    digest: Digest,
}

type WeightCopies<'h> = BTreeMap<&'h str, BTreeMap<Replica, WeightCopy>>;

fn copies(world: &[Vec<ReplicaDigest>]) -> WeightCopies<'_> {
    let mut copies = WeightCopies::new();
    for (rank, digests) in world.iter().enumerate() {
        for held in digests {
            let entry = copies.entry(&held.name).or_default().entry(held.replica);
            let copy = entry.or_insert_with(|| WeightCopy {
                ranks: Vec::new(),
                dtype: held.dtype,
                values: 0,
                digest: Digest::default(),
            });
            copy.ranks.push(rank);
            copy.values += held.values;
            copy.digest = copy.digest.and(held.digest);
        }
    }
    copies
}

/// Checks that every copy of every model weight on all ranks is bit-identical to memory before the
/// save. Imported weights are compared only in the precision of the import.
pub fn verify(checkpoint: &Checkpoint, world: &[Vec<ReplicaDigest>]) -> anyhow::Result<()> {
    let copies = copies(world);
    let folder = checkpoint.folder.display();
    let import = checkpoint.index.is_import();
    for tensor in &checkpoint.index.tensors {
        let name = &tensor.name;
        let saved = tensor.state(MODEL)?;
        let copies = copies
            .get(name.as_str())
            .with_context(|| format!("no rank has {name}"))?;
        for copy in copies.values() {
            let WeightCopy { dtype, digest, values, .. } = copy;
            let ranks = ranks(&copy.ranks);
            ensure!(
                *values == tensor.numel() as u64,
                "{ranks}: {values} of {} values of {name}",
                tensor.numel()
            );
            let rounded_again = import && saved.dtype != *dtype;
            ensure!(
                rounded_again || saved.dtype == *dtype && saved.digest == *digest,
                "{folder}: the model weight {name} ({dtype}) is not the one that was in memory when \
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
