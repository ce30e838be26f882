//! Counting device without memory or arithmetic: it records the bytes that an engine reserves, and
//! the FLOPs and memory traffic of each op. The planner runs the trainer's own step on it.

use super::{
    Backend, COPIES, Home, LOGITS_CHUNK, Op, OutOfMemory, Section, Tally, Tensor, Transfer, Work,
    cuda,
};
use base::Bytes;
use std::cell::{Cell, OnceCell, RefCell};
use std::time::Instant;

/// Counting device; see the module.
#[derive(Default)]
pub struct Dry {
    gpu: bool,
    reserved: Cell<usize>,
    section: Cell<Section>,
    tally: RefCell<Tally>,
    host: OnceCell<Box<Dry>>,
}

/// First address; no tensor has address 0.
const BASE: usize = 256;

impl Dry {
    /// Counts like a GPU; the default counts like a CPU.
    pub fn gpu() -> Dry {
        Dry { gpu: true, ..Dry::default() }
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
        self.host.get_or_init(Box::default)
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
    fn beside(&self, work: &mut (dyn FnMut(&dyn Backend) + Send), meanwhile: &mut dyn FnMut()) {
        meanwhile();
        work(self.host_device());
    }
    /// Counted as work of the host, because the device computes meanwhile.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        let [to_host, to_device] = COPIES;
        let name = if to.home() == Home::Host { to_host } else { to_device };
        self.host_device().note(name, Work::op(0).moving([from]));
        Transfer(0)
    }
    fn join_transfer(&self, _: Transfer) {}
    fn finish_transfer(&self, _: Transfer) {}
    fn workspace(&self) -> Bytes {
        if self.gpu { cuda::WORKSPACE } else { Bytes(0) }
    }
    fn logits_chunk(&self) -> Bytes {
        if self.gpu { cuda::LOGITS_CHUNK } else { LOGITS_CHUNK }
    }
    fn has_contents(&self) -> bool {
        false
    }
    fn enter(&self, section: Section) {
        self.section.set(section);
    }
    fn sync(&self) -> anyhow::Result<()> {
        Ok(())
    }
    fn upload(&self, _: &[u8], _: Tensor) {}
    fn download(&self, _: Tensor, to: &mut [u8]) {
        to.fill(0);
    }
    fn download_async(&self, _: Tensor) {}
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Instant> {
        to.fill(0);
        Ok(Instant::now())
    }
    fn enqueue(&self, op: &Op) {
        let work = op.cost();
        if work.calls > 0.0 {
            self.note(op.name(), work);
        }
    }
}
