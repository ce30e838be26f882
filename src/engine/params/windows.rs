//! Weights that are whole on the device only while in use: the windows shared by blocks under ZeRO
//! 3, and those for weights stored on the host. One is used while the next is filled, or those of a
//! chunk of layers while those of the next chunk are filled.

use super::plan::{Residence, Values};
use super::{InFlight, ShardedParams};
use model::Direction;

impl ShardedParams<'_> {
    /// Makes a windowed bucket whole: a block of ZeRO 3, or also the embedding if weights are on
    /// the host. Starts to make the next ones of the pass whole (`WindowCounts::ahead`): their windows
    /// are those of buckets that this pass, or the passes of this chunk, have used. If weights are copied
    /// from the host before a gather, also starts the copy for the bucket after these.
    pub(super) fn gather_block(&self, block: usize) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        self.begin_window(in_flight, block);
        self.finish_window(in_flight, block);
        let mut last = block;
        for _ in 0..self.windows.ahead {
            let Some(next) = self.next_windowed(last) else { return };
            self.begin_window(in_flight, next);
            last = next;
        }
        if let Some(after) = self.next_windowed(last) {
            self.begin_share(in_flight, after);
        }
    }

    /// Bucket that a pass uses after another, if it has a window.
    fn next_windowed(&self, index: usize) -> Option<usize> {
        let next = match self.direction.get() {
            Direction::Forward => index + 1,
            Direction::Backward => index.checked_sub(1)?,
        };
        let bucket = self.buckets.get(next)?;
        bucket.weights.residence.has_window().then_some(next)
    }

    /// Starts to make a bucket whole, unless its window already holds it.
    fn begin_window(&self, in_flight: &mut InFlight, index: usize) {
        let previous = in_flight.gathered.contents(index).replace(index);
        if previous == Some(index) {
            return;
        }
        // A prefetch into this window may still be running and must end before it is overwritten.
        if let Some(unused) = previous {
            self.finish_window(in_flight, unused);
        }
        let bucket = &self.buckets[index];
        let Values { residence, whole, own, .. } = bucket.weights;
        if residence == Residence::Host && self.level == 0 {
            let fill = self.be.transfer(own, bucket.own_part(whole));
            in_flight.fills[index] = Some(fill);
            return;
        }
        self.begin_share(in_flight, index);
        self.finish_fill(in_flight, index);
        // Behind the gather among copies that followed the update, which may still run.
        in_flight.gathers[index].extend(self.begin(bucket.gathers()));
    }

    /// Starts copying this rank's piece of a bucket from the host to the device, unless it is there.
    /// The gather of the shard previously in that buffer must be complete.
    fn begin_share(&self, in_flight: &mut InFlight, index: usize) {
        let bucket = &self.buckets[index];
        let Some(share) = bucket.share else { return };
        let previous = in_flight.shares.contents(index).replace(index);
        if previous != Some(index) {
            if let Some(unused) = previous {
                self.finish_fill(in_flight, unused);
            }
            in_flight.fills[index] = Some(self.be.transfer(bucket.weights.own, share));
        }
    }

    fn finish_fill(&self, in_flight: &mut InFlight, index: usize) {
        if let Some(fill) = in_flight.fills[index].take() {
            self.be.join_transfer(fill);
        }
    }

    /// Orders everything enqueued from now on after the gather of a bucket.
    fn finish_window(&self, in_flight: &mut InFlight, index: usize) {
        self.finish_fill(in_flight, index);
        self.finish(std::mem::take(&mut in_flight.gathers[index]));
    }
}
