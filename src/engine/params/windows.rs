//! Weights that are whole on the device only while in use: the windows shared by blocks under ZeRO
//! 3, and those for weights stored on the host. One window is used while the next is filled.

use super::{InFlight, ShardedParams};
use device::Home;

impl ShardedParams<'_> {
    /// Makes a windowed bucket whole: a block of ZeRO 3, or also the embedding if weights are on
    /// the host. Starts the same for the next one in the direction of the pass. If weights are
    /// copied from the host before a gather, also starts the copy for the one after that.
    pub(super) fn gather_block(&self, block: usize) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        self.begin_window(in_flight, block);
        self.finish_window(in_flight, block);
        let last = std::mem::replace(&mut in_flight.gathered.last, block);
        let after = |b: usize| {
            let next = if block < last { b.checked_sub(1) } else { Some(b + 1) };
            next.filter(|b| self.buckets.get(*b).is_some_and(|bucket| bucket.windowed))
        };
        if let Some(next) = after(block) {
            self.begin_window(in_flight, next);
            if let Some(number) = after(next) {
                self.begin_share(in_flight, number);
            }
        }
    }

    /// Starts to make a bucket whole, unless its window already holds it.
    fn begin_window(&self, in_flight: &mut InFlight, number: usize) {
        let previous = in_flight.gathered.whole[number % 2].replace(number);
        if previous == Some(number) {
            return;
        }
        // A prefetch into this window may still be running and must end before it is overwritten.
        if let Some(unused) = previous {
            self.finish_window(in_flight, unused);
        }
        let bucket = &self.buckets[number];
        let start = self.layout.buckets[number].range.start;
        if bucket.own_weights.home() == Home::Host && self.level == 0 {
            let fill = self
                .be
                .transfer(bucket.own_weights, bucket.own_part(bucket.weights, start));
            in_flight.fills[number] = Some(fill);
            return;
        }
        self.begin_share(in_flight, number);
        self.finish_fill(in_flight, number);
        in_flight.gathers[number] = Some(self.groups.grad_sum.begin(bucket.gather()));
    }

    /// Starts copying a bucket's own share from the host to the device, unless it is there. The
    /// gather of the share previously in that buffer must be complete.
    fn begin_share(&self, in_flight: &mut InFlight, number: usize) {
        let bucket = &self.buckets[number];
        let Some(share) = bucket.share else { return };
        let previous = in_flight.shares[number % 2].replace(number);
        if previous != Some(number) {
            if let Some(unused) = previous {
                self.finish_fill(in_flight, unused);
            }
            in_flight.fills[number] = Some(self.be.transfer(bucket.own_weights, share));
        }
    }

    fn finish_fill(&self, in_flight: &mut InFlight, number: usize) {
        if let Some(fill) = in_flight.fills[number].take() {
            self.be.join_transfer(fill);
        }
    }

    /// Orders everything enqueued from now on after the gather of a bucket.
    fn finish_window(&self, in_flight: &mut InFlight, number: usize) {
        self.finish_fill(in_flight, number);
        if let Some(pending) = in_flight.gathers[number].take() {
            self.groups.grad_sum.finish(pending);
        }
    }
}
