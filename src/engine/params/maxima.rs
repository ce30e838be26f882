//! Largest needs among the data-parallel ranks of a stage. Their shards begin and end at different
//! places of the parameters, so they hold different states. Every rank reserves the largest needs:
//! the memory of one rank is then the memory of all.

use crate::states::StateSpec;
use base::div_exact;
use device::{Arena, Tensor};
use model::{Bucket, Layout, Param};
use std::ops::Range;

/// Needs of a data-parallel rank, or the largest of each kind among several.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankMaxima {
    /// Parameters of which it updates elements.
    pub parts: usize,
    /// Elements of the longest part.
    pub longest: usize,
    /// States with elements.
    pub states: usize,
    /// Bytes of the states with memory of their own.
    pub device_bytes: usize,
    pub host_bytes: usize,
}

impl RankMaxima {
    /// Counts the needs of every rank. `weights` holds this rank's shard of each bucket's model weights,
    /// `specs` the states of each parameter of `layout`.
    pub fn new(
        layout: &Layout,
        weights: &[Tensor],
        specs: &[Vec<StateSpec>],
        on_host: impl Fn(&StateSpec) -> bool,
    ) -> RankMaxima {
        let mut every_rank = RankMaxima::default();
        let mut ranks = Vec::new();
        let mut specs = specs.iter();
        for (bucket, weights) in layout.buckets.iter().zip(weights) {
            let shard = weights.numel();
            ranks.resize(div_exact(bucket.range.len(), shard), RankMaxima::default());
            let model = weights.memory();
            for (param, specs) in bucket.params.iter().zip(&mut specs) {
                let add = |rank: &mut RankMaxima, spec: &StateSpec, part: &Range<usize>| {
                    let len = spec.extent.shard(param, part).len();
                    rank.states += 1;
                    if spec.has_own_memory(specs, on_host(spec), model) {
                        let bytes = Arena::reserved_bytes(len, spec.dtype);
                        *rank.bytes_mut(on_host(spec)) += bytes;
                    }
                };
                let (sharded, whole): (Vec<&StateSpec>, Vec<&StateSpec>) =
                    specs.iter().partition(|spec| spec.extent.is_sharded());
                for spec in whole {
                    add(&mut every_rank, spec, &(0..param.numel()));
                }
                for (number, part) in parts(bucket, param, shard) {
                    let rank = &mut ranks[number];
                    rank.parts += 1;
                    rank.longest = rank.longest.max(part.len());
                    for spec in &sharded {
                        add(rank, spec, &part);
                    }
                }
            }
        }
        let largest = |need: fn(&RankMaxima) -> usize| {
            need(&every_rank) + ranks.iter().map(need).max().unwrap_or(0)
        };
        RankMaxima {
            parts: largest(|rank| rank.parts),
            longest: largest(|rank| rank.longest),
            states: largest(|rank| rank.states),
            device_bytes: largest(|rank| rank.device_bytes),
            host_bytes: largest(|rank| rank.host_bytes),
        }
    }

    fn bytes_mut(&mut self, on_host: bool) -> &mut usize {
        if on_host { &mut self.host_bytes } else { &mut self.device_bytes }
    }
}

/// Ranks that update elements of a parameter, each with its part, for shards of `shard` elements.
fn parts(
    bucket: &Bucket,
    param: &Param,
    shard: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let first = param.offset - bucket.range.start;
    let end = first + param.numel();
    (first / shard..end.div_ceil(shard)).map(move |rank| {
        let part = first.max(rank * shard)..end.min((rank + 1) * shard);
        (rank, part.start - first..part.end - first)
    })
}
