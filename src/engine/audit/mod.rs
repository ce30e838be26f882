//! Weights that must be equal on several ranks, compared bit by bit: what tensor parallelism does
//! not split, what replicas repeat, and a tied embedding with its copy. A flipped bit or a missed
//! reduction makes them drift apart in silence.

#[cfg(test)]
mod tests;

use super::{Engine, Groups, Moment};
use crate::base::DType;
use crate::comm::Group;
use crate::device::{Arena, Tensor};
use crate::model::{Layout, Slot, Split, Weight};
use crate::plan::grid::{Grid, Place};
use std::fmt;
use std::ops::Range;

/// A weight that is not the same on all ranks that must have it alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// "block.3.attn.qkv.weight", or "block.3.attn.qkv.weight (first moment)".
    pub tensor: String,
    /// Ranks of the world that agree with most, and those that do not (of two, the second).
    pub alike: Vec<usize>,
    pub odd: Vec<usize>,
    grid: Grid,
}

/// An audit failed, on this rank's groups or elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drifted {
    /// What this rank saw: empty where only others did.
    pub found: Vec<Drift>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |rank: &usize| format!("{rank} ({})", self.grid.place(*rank).name());
        let list = |ranks: &[usize]| ranks.iter().map(name).collect::<Vec<_>>().join(", ");
        let (odd, alike) = (list(&self.odd), list(&self.alike));
        write!(f, "{} on rank {odd} is not the same as on rank {alike}", self.tensor)
    }
}

impl fmt::Display for Drifted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found[..] {
            [] => write!(f, "weights that must be equal differ on other ranks"),
            [drift] => write!(f, "{drift}"),
            [drift, more @ ..] => write!(f, "{drift}; and {} more weights differ", more.len()),
        }
    }
}

impl std::error::Error for Drifted {}

/// Room for the digests of the largest group: of each weight live, and as the optimizer keeps it.
pub fn room(groups: &Groups, layout: &Layout, arena: &Arena) -> Tensor {
    let ranks = groups.tensor.size().max(groups.data.size()).max(groups.ends.size());
    arena.matrix(ranks, (1 + Moment::ALL.len()) * layout.slots().count(), DType::I64)
}

/// Part of a weight that is to be equal among the ranks of a group.
struct View {
    name: String,
    at: Tensor,
}

/// A range of a bucket, in elements of the layout, where it lies, and what it is of each weight.
type Region = (Range<usize>, Tensor, &'static str);

impl Engine<'_> {
    /// Compares every weight, and what the optimizer keeps of it, among the ranks that must have it
    /// alike. All ranks call this after the same step; either all give `Ok` or none. Costs a pass
    /// over the weights on the device, and messages of 8 bytes a weight.
    pub fn audit(&self) -> Result<(), Drifted> {
        let Groups { tensor, data, ends, grid, at, .. } = &self.groups;
        self.zero.settle(&**data);
        let whole = |slot: &Slot| slot.spec.split == Split::Whole;
        let shared = self.manifest.model.tied_head;
        let tied = |slot: &Slot| shared && slot.spec.weight == Weight::TokenEmbed;
        let mut found = Vec::new();
        self.compare(&**tensor, self.views(whole, |bucket| self.own(bucket)), &mut found, |i| {
            grid.rank(Place { tensor: i, ..*at })
        });
        self.compare(
            &**data,
            self.views(|_| true, |bucket| self.repeated(bucket)),
            &mut found,
            |i| grid.rank(Place { data: i, ..*at }),
        );
        self.compare(
            &**ends,
            self.views(tied, |bucket| self.live_region(bucket)),
            &mut found,
            |i| grid.rank(Place { pipeline: i * (grid.pipeline - 1), ..*at }),
        );
        self.agree(found)
    }

    /// The live weights of a bucket, where they are whole.
    fn live_region(&self, bucket: usize) -> Vec<Region> {
        let whole = self.zero.whole_weights(bucket);
        let range = self.layout.buckets[bucket].range.clone();
        whole.into_iter().map(|live| (range.clone(), live, "")).collect()
    }

    /// This rank's own part of a bucket.
    fn own(&self, bucket: usize) -> Vec<Region> {
        let (live, range) = (self.zero.own_weights(bucket), self.zero.own(bucket));
        let [master, first, second] = self.optimizer.owned(bucket);
        let mut regions = vec![(range.clone(), live, "")];
        if master.addr() != live.addr() {
            regions.push((range.clone(), master, " (master)"));
        }
        regions.push((range.clone(), first, " (first moment)"));
        regions.push((range, second, " (second moment)"));
        regions
    }

    /// What all replicas have of a bucket.
    fn repeated(&self, bucket: usize) -> Vec<Region> {
        if self.zero.shares() { self.live_region(bucket) } else { self.own(bucket) }
    }

    /// The weights asked for, each as far as the regions of its bucket have it.
    fn views(
        &self,
        of: impl Fn(&Slot) -> bool,
        regions: impl Fn(usize) -> Vec<Region>,
    ) -> Vec<View> {
        let mut views = Vec::new();
        for (number, bucket) in self.layout.buckets.iter().enumerate() {
            for (range, flat, what) in regions(number) {
                let parts = bucket.within(range.clone()).filter(|(slot, _)| of(slot));
                views.extend(parts.map(|(slot, part)| View {
                    name: format!("{}{what}", slot.name),
                    at: flat.span(part.start - range.start, part.len()),
                }));
            }
        }
        views
    }

    /// Adds the views that are not the same on all ranks of a group; `rank` is the number in the
    /// world of a member.
    fn compare(
        &self,
        group: &dyn Group,
        views: Vec<View>,
        found: &mut Vec<Drift>,
        rank: impl Fn(usize) -> usize,
    ) {
        if group.size() == 1 || views.is_empty() {
            return;
        }
        let (size, count) = (group.size(), views.len());
        let weights: Vec<Tensor> = views.iter().map(|view| view.at).collect();
        let all = self.scalars.digests.span(0, size * count);
        let part = all.span(group.rank() * count, count);
        self.be.digests(&weights, part.set());
        group.all_gather(part, all);
        let mut digests = vec![0u64; size * count];
        self.be.download(all, bytemuck::cast_slice_mut(&mut digests));
        for (i, view) in views.iter().enumerate() {
            let of: Vec<u64> = (0..size).map(|member| digests[member * count + i]).collect();
            let votes = |digest: &u64| of.iter().filter(|other| *other == digest).count();
            let most = of.iter().rev().max_by_key(|digest| votes(digest)).expect("a member");
            let (alike, odd): (Vec<usize>, Vec<usize>) =
                (0..size).partition(|member| of[*member] == *most);
            if !odd.is_empty() {
                let [alike, odd] =
                    [alike, odd].map(|members| members.into_iter().map(&rank).collect());
                let grid = self.groups.grid;
                found.push(Drift { tensor: view.name.clone(), alike, odd, grid });
            }
        }
    }

    /// All ranks learn whether any of them found something.
    fn agree(&self, found: Vec<Drift>) -> Result<(), Drifted> {
        let any = self.scalars.norm;
        let mine = if found.is_empty() { 0.0f32 } else { 1.0 };
        self.be.upload(bytemuck::bytes_of(&mine), any);
        self.groups.tensor.all_reduce(any);
        self.groups.sum_over_stages_and_replicas(any);
        if self.scalar(any) == 0.0 { Ok(()) } else { Err(Drifted { found }) }
    }
}
