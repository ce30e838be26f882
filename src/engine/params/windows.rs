//! Weights that are whole on the device only while in use: the windows shared by blocks under ZeRO
//! 3, and those for weights stored on the host. One window is used while the next is filled.

use super::plan::{Residence, Values};
use super::{InFlight, ShardedParams};

impl ShardedParams<'_> {
    /// Makes a windowed bucket whole: a block of ZeRO 3, or also the embedding if weights are on
    /// the host. Starts to make the next one of the pass whole. If weights are copied from the host
    /// before a gather, also starts the copy for the bucket after the next.
    pub(super) fn gather_block(&self, block: usize) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        self.begin_window(in_flight, block);
        self.finish_window(in_flight, block);
        let last = std::mem::replace(&mut in_flight.gathered.last, block);
        let forwards = block >= last;
        if let Some(next) = self.next_windowed(block, forwards) {
            self.begin_window(in_flight, next);
            if let Some(after_next) = self.next_windowed(next, forwards) {
                self.begin_share(in_flight, after_next);
            }
        }
    }

    /// Bucket that a pass uses after another, if it has a window.
    fn next_windowed(&self, index: usize, forwards: bool) -> Option<usize> {
        let next = if forwards { index + 1 } else { index.checked_sub(1)? };
        let bucket = self.buckets.get(next)?;
        bucket.weights.residence.has_window().then_some(next)
    }

    /// Starts to make a bucket whole, unless its window already holds it.
    fn begin_window(&self, in_flight: &mut InFlight, index: usize) {
        let previous = in_flight.gathered.whole.contents(index).replace(index);
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
