//! Counting device without memory or arithmetic: it records the bytes that an engine reserves, and
//! the FLOPs and memory traffic of each op. The planner runs the trainer's own step on it.

use super::{
    Backend, COPIES, LOGITS_CHUNK, MemoryKind, Op, Order, OutOfMemory, Section, Tally, Tensor,
    Transfer, Work, cuda,
};
use base::{Bytes, Moment};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// Counting device; see the module.
#[derive(Default)]
pub struct Dry {
    gpu: bool,
    reserved: Cell<usize>,
    section: Cell<Section>,
    tally: RefCell<Tally>,
    host: OnceCell<Box<Dry>>,
    /// Whether this is the host of a device.
    is_host: bool,
    /// None if the order of work is not checked. Shared with the host.
    order: Rc<RefCell<Option<Order>>>,
}

/// First address; no tensor has address 0.
const BASE: usize = 256;

impl Dry {
    /// Counts like a GPU; the default counts like a CPU.
    pub fn gpu() -> Dry {
        Dry { gpu: true, ..Dry::default() }
    }

    /// Also checks the order of work. Leaves out the wait of number `skip`, to show that it is
    /// found.
    pub fn ordered(skip: Option<usize>) -> Dry {
        let order = Rc::new(RefCell::new(Some(Order::new(skip))));
        Dry { order, ..Dry::gpu() }
    }

    /// Calls `with` on the checker; the default without one.
    pub fn order<T: Default>(&self, with: impl FnOnce(&mut Order) -> T) -> T {
        self.order
            .borrow_mut()
            .as_mut()
            .map(with)
            .unwrap_or_default()
    }

    /// Bytes reserved so far.
    pub fn reserved(&self) -> usize {
        self.reserved.get()
    }

    /// Work of all ops since the last `take`.
    pub fn take(&self) -> Tally {
        self.tally.take()
    }

    /// Device that counts the host's work and reservations.
    pub fn host_device(&self) -> &Dry {
        let order = self.order.clone();
        self.host
            .get_or_init(|| Box::new(Dry { is_host: true, order, ..Dry::default() }))
    }

    fn note(&self, name: &'static str, work: Work) {
        let name = self.section.get().op(name);
        *self.tally.borrow_mut().entry(name).or_default() += work;
    }
}

impl Backend for Dry {
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        let at = BASE + self.reserved.get().next_multiple_of(BASE);
        self.reserved.set(self.reserved.get() + bytes);
        Ok(at)
    }
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.host_device().reserve(bytes)
    }
    fn host(&self) -> &dyn Backend {
        self.host_device()
    }
    /// Counted as work of the host, because the device computes meanwhile.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        let [to_host, to_device] = COPIES;
        let name = if to.memory() == MemoryKind::Host { to_host } else { to_device };
        self.host_device().note(name, Work::op(0).moving([from]));
        Transfer(self.order(|order| order.transfer(from, to, name)))
    }
    fn join_transfer(&self, transfer: Transfer) {
        self.order(|order| order.join_transfer(transfer.0));
    }
    fn finish_transfer(&self, transfer: Transfer) {
        self.order(|order| order.finish_transfer(transfer.0));
    }
    fn workspace(&self) -> Bytes {
        if self.gpu { cuda::WORKSPACE } else { Bytes(0) }
    }
    fn logits_chunk(&self) -> Bytes {
        if self.gpu { cuda::LOGITS_CHUNK } else { LOGITS_CHUNK }
    }
    fn most_samples(&self, heads: usize, seq: usize) -> usize {
        if self.gpu { cuda::most_samples(heads, seq) } else { usize::MAX }
    }
    fn has_contents(&self) -> bool {
        false
    }
    fn enter(&self, section: Section) {
        self.section.set(section);
    }
    fn sync(&self) -> anyhow::Result<()> {
        self.order(Order::sync);
        Ok(())
    }
    fn upload(&self, _: &[u8], to: Tensor) {
        self.order(|order| order.upload(to));
    }
    fn download(&self, from: Tensor, to: &mut [u8]) {
        self.order(|order| order.download(from));
        to.fill(0);
    }
    fn download_async(&self, from: Tensor) {
        self.order(|order| order.download_async(from));
    }
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Moment> {
        self.order(Order::finish_download);
        to.fill(0);
        Ok(Moment::now())
    }
    fn enqueue(&self, op: &Op) {
        self.order(|order| order.op(op, self.is_host));
        let work = op.cost();
        if work.calls > 0.0 {
            self.note(op.name(), work);
        }
    }
}
