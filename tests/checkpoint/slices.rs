//! A checkpoint does not know who wrote it: slices of many ranks are one tensor, and any rectangle
//! of it can be read.

use crate::common::saved::{STATES, Saved, SavedTensor};
use gptrain::base::rng;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{
    Buffer, Checkpoint, Share, Tensor, WrittenPart, publish, save, write_part,
};
use gptrain::engine::{MODEL, TensorSlice};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Cuts of tensors, by rank.
type Cuts = Vec<Vec<(usize, Cut)>>;

/// A rectangle of a tensor, copied out.
struct Cut {
    at: [usize; 2],
    size: [usize; 2],
    kept: [Vec<f32>; 3],
}

fn cut(tensor: &SavedTensor, at: [usize; 2], size: [usize; 2]) -> Cut {
    let copy = |values: &Vec<f32>| {
        let row = |r: usize| &values[r * tensor.cols() + at[1]..][..size[1]];
        (at[0]..at[0] + size[0])
            .flat_map(|r| row(r).to_vec())
            .collect()
    };
    Cut { at, size, kept: tensor.kept.each_ref().map(copy) }
}

/// Writes what `ranks` ranks hold, each a list of (tensor, cut).
fn write(
    saved: &Saved,
    ranks: &[Vec<(usize, Cut)>],
    checkpoints: &Path,
) -> anyhow::Result<PathBuf> {
    let fresh = checkpoints.join("step-00000005.tmp-x");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh)?;
    let disk = Disk::default();
    let parts: anyhow::Result<Vec<WrittenPart>> = ranks
        .iter()
        .enumerate()
        .map(|(rank, cuts)| {
            let shares: Vec<Share> = cuts
                .iter()
                .map(|(number, cut)| (*number, &saved.tensors[*number], cut))
                .flat_map(|(number, tensor, cut)| {
                    let slice = TensorSlice { at: cut.at, size: cut.size };
                    tensor.shares_of(number, slice, cut.kept.each_ref().map(Vec::as_slice), None)
                })
                .collect();
            write_part(&disk, &fresh, rank, &shares, &saved.state)
        })
        .collect();
    publish(&disk, &fresh, parts?, &saved.state)
}

/// Four ranks: a matrix by columns (one of them cut again by rows), a vector by columns, a wide
/// matrix by rows.
fn grid(saved: &Saved) -> Vec<Vec<(usize, Cut)>> {
    let t = &saved.tensors;
    vec![
        vec![(0, cut(&t[0], [0, 0], [24, 10])), (1, cut(&t[1], [0, 0], [1, 25]))],
        vec![(0, cut(&t[0], [0, 10], [7, 30])), (2, cut(&t[2], [0, 0], [2, 7000]))],
        vec![(0, cut(&t[0], [7, 10], [17, 30]))],
        vec![(1, cut(&t[1], [0, 25], [1, 15])), (2, cut(&t[2], [2, 0], [1, 7000]))],
    ]
}

#[test]
fn what_four_ranks_wrote_is_what_one_wrote() {
    let saved = Saved::tiny(5);
    let folder = tempfile::tempdir().unwrap();
    let many = write(&saved, &grid(&saved), &folder.path().join("many")).unwrap();
    let one = save(&Disk::default(), &folder.path().join("one"), &saved.shares(), &saved.state);
    let (many, one) = (Checkpoint::open(&many).unwrap(), Checkpoint::open(&one.unwrap()).unwrap());
    assert_eq!((many.index.shards.len(), one.index.shards.len()), (12, 3));
    for tensor in &one.index.tensors {
        let other = many.index.tensor(&tensor.name).unwrap();
        assert_eq!(tensor.states[MODEL], other.states[MODEL], "{}", tensor.name);
        for state in STATES {
            let digest = |tensor: &Tensor| tensor.states[state].digest;
            assert_eq!(digest(tensor), digest(other), "{}", tensor.name);
            let whole = one.whole(tensor, state).unwrap();
            assert_eq!(whole, many.whole(other, state).unwrap(), "{}", tensor.name);
            // Any rectangle, from either.
            let [rows, cols] = tensor.matrix().unwrap();
            for case in 0..50 {
                let draw = |k: u64, n: usize| rng::below(case, k, n as u64) as usize;
                let (r, c) = (draw(0, rows), draw(1, cols));
                let (h, w) = (1 + draw(2, rows - r), 1 + draw(3, cols - c));
                let row = |r: usize| whole[r * cols + c..r * cols + c + w].to_vec();
                let expected: Vec<f32> = (r..r + h).flat_map(row).collect();
                for (checkpoint, tensor) in [(&one, tensor), (&many, other)] {
                    assert_eq!(read(checkpoint, tensor, state, r..r + h, c..c + w), expected);
                }
            }
        }
    }
    let same = gptrain::checkpoint::inspect::diff(&one.folder, &many.folder).unwrap();
    assert!(same.equal() && same.state.is_empty(), "{same:?}");
}

/// A rank opens the shards of all others, whose number no limit of open files bounds.
#[test]
fn a_checkpoint_of_many_ranks_needs_few_open_files() {
    let saved = Saved::tiny(5);
    let t = &saved.tensors;
    let mut ranks: Cuts = (0..280)
        .map(|i| vec![(2, cut(&t[2], [0, 25 * i], [3, 25]))])
        .collect();
    ranks[0].extend([(0, cut(&t[0], [0, 0], [24, 40])), (1, cut(&t[1], [0, 0], [1, 40]))]);
    let folder = tempfile::tempdir().unwrap();
    let written = write(&saved, &ranks, folder.path()).unwrap();
    let checkpoint = Checkpoint::open(&written).unwrap();
    assert_eq!(checkpoint.index.shards.len(), 3 * 280);
    let open = fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
        let to = fs::read_link(entry.as_ref().unwrap().path());
        to.is_ok_and(|to| to.starts_with(folder.path()))
    });
    let open = open.count();
    assert!((1..=200).contains(&open), "{open} files are open");
    assert!(saved.is_in(&written));
}

#[test]
fn holes_and_overlaps_are_refused() {
    let saved = Saved::tiny(5);
    let folder = tempfile::tempdir().unwrap();
    let opened = |change: &dyn Fn(&mut Cuts)| {
        let mut ranks = grid(&saved);
        change(&mut ranks);
        let written = write(&saved, &ranks, folder.path());
        let opened = written.and_then(|folder| Checkpoint::open(&folder));
        opened.map(|_| ()).map_err(|error| format!("{error:#}"))
    };
    assert_eq!(opened(&|_| ()), Ok(()));
    let hole = opened(&|ranks| drop(ranks[2].pop())).unwrap_err();
    assert!(hole.contains("matrix, first_moment: 450 of 960 values are present"), "{hole}");
    let twice = |ranks: &mut Vec<Vec<(usize, Cut)>>| {
        let again = cut(&saved.tensors[0], [23, 39], [1, 1]);
        ranks[3].push((0, again));
    };
    assert!(opened(&twice).unwrap_err().contains("overlaps another"));
}

/// A tensor of several chunks, cut where no chunk ends.
#[test]
fn rectangles_across_chunks() {
    let mut saved = Saved::tiny(5);
    let (rows, cols) = (1300, 1000); // 5.2 MB: two chunks
    saved.tensors.truncate(1);
    saved.tensors[0].shape = vec![rows, cols];
    saved.tensors[0].kept =
        [0, 1, 2].map(|k| (0..rows * cols).map(|i| (i * 3 + k) as f32).collect());
    let folder = tempfile::tempdir().unwrap();
    let written = saved.write(folder.path());
    let checkpoint = Checkpoint::open(&written).unwrap();
    let tensor = &checkpoint.index.tensors[0];
    assert_eq!(
        tensor.states["master"].pieces.as_ref().unwrap()[0]
            .chunks
            .len(),
        2
    );
    for (r, c) in
        [(0..rows, 0..cols), (1040..1060, 17..940), (1048..1049, 0..cols), (0..rows, 3..4)]
    {
        let out = read(&checkpoint, tensor, STATES[1], r.clone(), c.clone());
        let value = |r: usize, c: usize| ((r * cols + c) * 3 + 1) as f32;
        let expected = r.clone().flat_map(|r| c.clone().map(move |c| value(r, c)));
        assert!(out.iter().copied().eq(expected), "{r:?} {c:?}");
    }
    let mut bytes = fs::read(written.join("first_moment-00000.safetensors")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(written.join("first_moment-00000.safetensors"), bytes).unwrap();
    let out = &mut Buffer::default();
    checkpoint
        .read(out, tensor, STATES[1], 0..1, 0..cols)
        .unwrap(); // the first chunk is sound
    let told = checkpoint
        .read(out, tensor, STATES[1], 1299..1300, 0..cols)
        .unwrap_err();
    assert!(format!("{told:#}").contains("bytes 4198400..5204096"), "{told:#}");
}

/// A rectangle's values.
fn read(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    state: &str,
    rows: Range<usize>,
    cols: Range<usize>,
) -> Vec<f32> {
    let mut buffer = Buffer::default();
    checkpoint
        .read(&mut buffer, tensor, state, rows, cols)
        .unwrap();
    buffer.values(tensor.states[state].dtype)
}
