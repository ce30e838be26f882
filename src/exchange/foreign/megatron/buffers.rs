//! States of the distributed optimizer, `distrib_optim.pt`: the flat buffers of a rank's parameters, whose
//! order is not in the files.
//!
//! A buffer has a chunk's parameters from the last to the first, each beginning at a multiple of 64
//! elements since 2023-12, in buckets whose ends are padded there and not in the file. An order is taken if
//! the model's weights prove it: they are the f32 weights, rounded.

use super::super::super::torch::{Element, TorchFile, Value};
use super::super::AdamState;
use super::super::arguments::Arguments;
use super::names::Entry;
use half::{bf16, f16};
use model::Weight;
use std::path::{Path, PathBuf};

/// Name of the file, in the folder of a rank's file.
pub const FILE: &str = "distrib_optim.pt";
/// Elements compared at each end of a parameter.
const COMPARED: usize = 256;

/// Chunk of a parameter, and its first element in the chunk's buffer.
pub type Starts = Vec<(usize, usize)>;

/// Path of the file of states that belongs to a rank's file.
pub fn buffer_file(path: &Path) -> PathBuf {
    path.with_file_name(FILE)
}

/// Layout of a buffer in some version.
#[derive(Clone, Copy)]
struct Order {
    /// Elements that the start of a parameter is a multiple of.
    align: usize,
    /// Elements at which a bucket is full.
    bucket: Option<usize>,
    /// Whether the embedding that another stage shares has a bucket of its own.
    shared: bool,
}

impl Order {
    /// Those of all versions, with the bucket's size of the arguments, or its default.
    fn all(args: &Arguments) -> anyhow::Result<Vec<Order>> {
        let count = |name: &str| args.optional_count(name);
        let data = count("topology.data")?.unwrap_or(1) as usize;
        let size = count("ddp_bucket_size")?.map(|size| size as usize);
        let buckets = [size, Some(40_000_000.max(data.saturating_mul(1_000_000))), None];
        let mut orders = Vec::new();
        for bucket in buckets.into_iter().skip_while(Option::is_none) {
            for (align, shared) in [(64, false), (64, true), (1, false), (1, true)] {
                orders.push(Order { align, bucket, shared });
            }
        }
        Ok(orders)
    }

    /// First elements of a chunk's parameters, and the elements of its buffer.
    fn starts(&self, sizes: &[(usize, bool)]) -> (Vec<usize>, usize) {
        let mut starts = vec![0; sizes.len()];
        // First element of the bucket in the buffer, and of the next parameter in the bucket.
        let mut bucket = 0;
        let mut next = 0usize;
        for (number, (size, tied)) in sizes.iter().enumerate().rev() {
            next = next.next_multiple_of(self.align);
            let alone = self.shared && *tied;
            if alone && next > 0 {
                (bucket, next) = (bucket + next, 0);
            }
            starts[number] = bucket + next;
            next += size;
            if alone || self.bucket.is_some_and(|full| next >= full) {
                (bucket, next) = (bucket + next, 0);
            }
        }
        (starts, bucket + next)
    }
}

/// First elements of a rank's parameters in its buffers, or the reason why they cannot be known.
pub fn starts(
    file: &TorchFile,
    entries: &[(usize, Entry)],
    path: &Path,
    args: &Arguments,
) -> anyhow::Result<Result<Starts, String>> {
    let buffers = TorchFile::open(path)?;
    let place = path.display();
    let chunks = 1 + entries.iter().map(|(chunk, _)| *chunk).max().unwrap_or(0);
    let mut places = vec![(0, 0); entries.len()];
    for chunk in 0..chunks {
        let own: Vec<(usize, &Entry)> = entries
            .iter()
            .enumerate()
            .filter(|(_, (held, _))| *held == chunk)
            .map(|(number, (_, entry))| (number, entry))
            .collect();
        let sizes = own
            .iter()
            .map(|(_, entry)| {
                let tied = matches!(entry.key.0, Weight::TokenEmbed | Weight::HeadW);
                Ok((entry.value.tensor()?.numel(), tied))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let held = match state(&buffers.root(), chunk, AdamState::Master)? {
            Ok(value) => value.tensor()?.numel(),
            Err(why) => return Ok(Err(format!("{place}: {why}"))),
        };
        let mut found = None;
        for order in Order::all(args)? {
            let (starts, len) = order.starts(&sizes);
            if len <= held && proved(file, &buffers, chunk, &own, &starts)? {
                found = Some(starts);
                break;
            }
        }
        let Some(starts) = found else {
            let count = own.len();
            return Ok(Err(format!(
                "{place}: in no order that is known do the {held} elements of buffer {chunk} agree with the \
                 {count} weights"
            )));
        };
        for ((number, _), start) in own.iter().zip(starts) {
            places[*number] = (chunk, start);
        }
    }
    Ok(Ok(places))
}

/// Whether the f32 weights at these places, rounded, are the model's.
fn proved(
    file: &TorchFile,
    buffers: &TorchFile,
    chunk: usize,
    own: &[(usize, &Entry)],
    starts: &[usize],
) -> anyhow::Result<bool> {
    let root = buffers.root();
    let Ok(masters) = state(&root, chunk, AdamState::Master)? else { return Ok(false) };
    let masters = masters.tensor()?;
    for ((_, entry), start) in own.iter().zip(starts) {
        let weight = entry.value.tensor()?;
        let (numel, most) = (weight.numel(), weight.numel().min(COMPARED));
        for from in [0, numel - most] {
            let theirs = file.floats(weight, from..from + most)?;
            let ours = buffers.floats(masters, start + from..start + from + most)?;
            if ours
                .iter()
                .map(|value| match weight.element {
                    Element::BF16 => bf16::from_f32(*value).to_f32(),
                    Element::F16 => f16::from_f32(*value).to_f32(),
                    _ => *value,
                })
                .ne(theirs)
            {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The buffer of a state of a chunk, or the reason why there is none.
pub fn state<'t>(
    root: &Value<'t>,
    chunk: usize,
    state: AdamState,
) -> anyhow::Result<Result<Value<'t>, String>> {
    let Some(types) = root.at(chunk as i64) else {
        return Ok(Err(format!("has no buffer {chunk}")));
    };
    let types = types.pairs()?;
    let [(_, buffer)] = types.as_slice() else {
        return Ok(Err(format!("buffer {chunk} is of {} types, not of one", types.len())));
    };
    let key = state.key("param");
    let Some(value) = buffer.some(key) else {
        return Ok(Err(format!("buffer {chunk} has no {key}")));
    };
    // Before 2024-02: a list, one tensor a bucket.
    match value.items() {
        Err(_) => Ok(Ok(value)),
        Ok(list) => match list.as_slice() {
            [one] => Ok(Ok(one.clone())),
            list => Ok(Err(format!(
                "buffer {chunk} is a list of {} buckets, as before 2024-02: save it once with a newer \
                 version",
                list.len()
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_run_backwards_with_aligned_starts_and_without_the_ends_of_buckets() {
        let sizes = [(100, true), (7, false), (70, false), (10, false)];
        let starts = |align, bucket, shared| Order { align, bucket, shared }.starts(&sizes);
        assert_eq!(starts(64, None, false), (vec![256, 192, 64, 0], 356));
        assert_eq!(starts(1, None, false), (vec![87, 80, 10, 0], 187));
        // The bucket is full behind the third parameter; the next begins at once.
        assert_eq!(starts(64, Some(130), false), (vec![198, 134, 64, 0], 298));
        // The shared embedding's bucket begins where an aligned parameter would.
        assert_eq!(starts(64, None, true), (vec![256, 192, 64, 0], 356));
        assert_eq!(starts(64, Some(130), true), (vec![198, 134, 64, 0], 298));
    }
}
