//! Weights that are whole on the device only while they are used: the windows that blocks share under
//! ZeRO 3, and where weights lie on the host. One is used while the next one is filled.

use super::{InFlight, ShardedParams};
use device::Home;

impl ShardedParams<'_> {
    /// Makes a bucket with a window whole (a block of ZeRO 3; with weights on the host, the embedding
    /// too), and begins to do so with the one after it in the direction of travel; where weights come
    /// from the host before they are gathered, they begin to come for the one after that.
    pub(super) fn gather_block(&self, block: usize) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        self.begin_window(in_flight, block);
        self.finish_window(in_flight, block);
        let last = std::mem::replace(&mut in_flight.gathered.last, block);
        let has_window = |b: &usize| self.buckets.get(*b).is_some_and(|bucket| bucket.windowed);
        let after = |b: usize| {
            let next = if block < last { b.checked_sub(1) } else { Some(b + 1) };
            next.filter(has_window)
        };
        if let Some(next) = after(block) {
            self.begin_window(in_flight, next);
            after(next).into_iter().for_each(|number| self.begin_share(in_flight, number));
        }
    }

    /// Begins to make a bucket whole, unless its window has it.
    fn begin_window(&self, in_flight: &mut InFlight, number: usize) {
        let before = in_flight.gathered.whole[number % 2].replace(number);
        if before == Some(number) {
            return;
        }
        // A prefetch into this window may still be running: it must end before it is overwritten.
        if let Some(late) = before {
            self.finish_window(in_flight, late);
        }
        let (bucket, start) = (&self.buckets[number], self.layout.buckets[number].range.start);
        if bucket.own_weights.home() == Home::Host && self.level == 0 {
            let fill = self.be.transfer(bucket.own_weights, bucket.own_window(start));
            in_flight.fills[number] = Some(fill);
            return;
        }
        self.begin_share(in_flight, number);
        self.finish_fill(in_flight, number);
        in_flight.gathers[number] = Some(self.groups.data.begin(bucket.gather()));
    }

    /// Begins to copy a bucket's own share from the host to the device, unless it is there; the gather
    /// of what was in its place is done.
    fn begin_share(&self, in_flight: &mut InFlight, number: usize) {
        let bucket = &self.buckets[number];
        let Some(share) = bucket.share else { return };
        let before = in_flight.shares[number % 2].replace(number);
        if before != Some(number) {
            before.into_iter().for_each(|unused| self.finish_fill(in_flight, unused));
            in_flight.fills[number] = Some(self.be.transfer(bucket.own_weights, share));
        }
    }

    fn finish_fill(&self, in_flight: &mut InFlight, number: usize) {
        if let Some(fill) = in_flight.fills[number].take() {
            self.be.join_transfer(fill);
        }
    }

    /// What is enqueued from now on finds a bucket whole.
    fn finish_window(&self, in_flight: &mut InFlight, number: usize) {
        self.finish_fill(in_flight, number);
        if let Some(pending) = in_flight.gathers[number].take() {
            self.groups.data.finish(pending);
        }
    }
}
