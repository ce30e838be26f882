//! CPU backend: the reference for all other backends, and usable for training itself.
//!
//! Ops are synchronous. The shape alone, never the number of threads, determines how work is split
//! into tasks. Results of tasks are added in the order of the tasks. Results are therefore
//! bit-identical for any number of threads. Arithmetic is f32 on blocks of at most 512 elements,
//! which `memory` loads and stores, converting bf16 and f16. Sums over a whole tensor are f64.

mod adafactor;
mod adam8bit;
mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embed;
mod fp8;
mod gelu;
mod gemm;
mod instructions;
mod kernel;
mod layernorm;
mod low_rank;
mod math;
mod memory;
mod muon;
mod normals;
mod optimizer;
mod parallel;
pub mod processor;
mod query_key;
mod scratch;
#[cfg(test)]
mod tests;

pub use instructions::{CHOICE, Instructions};
pub use kernel::peak;
pub use normals::normals;

use super::op::run_op;
use super::{Backend, Meter, Op, OpTimes, OutOfMemory, Section, Tensor, Transfer};
use crate::MemoryKind;
use base::{Bytes, Moment, Problems};
use memory::Regions;
use rayon::ThreadPool;
use scratch::Workspace;

/// CPU with its own threads and memory. Several may exist in one process, as ranks on threads.
pub struct Cpu {
    threads: usize,
    /// None with one thread: tasks then run on the caller's thread.
    pool: Option<ThreadPool>,
    regions: Regions,
    workspace: Workspace,
    /// Sums of products too deep to be summed at once, while `workspace` holds their operands.
    sums: Workspace,
    downloads: memory::Downloads,
    meter: Meter,
}

impl Cpu {
    /// Creates a backend with `threads` threads, or as many as this process may use. Falls back to
    /// one thread if they cannot be started; results are bit-identical.
    pub fn new(threads: Option<usize>) -> Cpu {
        Cpu::open(threads).unwrap_or_else(|_| Cpu::with(1, None))
    }

    /// Like `new`, but fails if the threads cannot be started.
    pub fn open(threads: Option<usize>) -> Result<Cpu, Problems> {
        Instructions::check()?;
        let threads = threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
            .max(1);
        let pool = (threads > 1)
            .then(|| {
                let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
                builder.thread_name(|i| format!("cpu-{i}")).build()
            })
            .transpose()
            .map_err(|error| {
                Problems::one(
                    "this machine",
                    format!("{threads} threads cannot be started: {error}"),
                    "lower train.threads, start fewer ranks here, or raise ulimit -u, -v",
                )
            })?;
        Ok(Cpu::with(threads, pool))
    }

    fn with(threads: usize, pool: Option<ThreadPool>) -> Cpu {
        let workspace = Workspace::default();
        let sums = Workspace::default();
        let regions = Regions::default();
        let downloads = memory::Downloads::default();
        let meter = Meter::default();
        Cpu { threads, pool, regions, workspace, sums, downloads, meter }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// `op::Digests` of one tensor.
    pub fn digest(&self, x: Tensor) -> u64 {
        optimizer::digest(self, x)
    }

    /// Bytes of scratch that the ops hold. Grows on first use of a larger shape and remains. Ops
    /// allocate nothing else, except for the few bytes in which rayon queues a task.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes() + self.sums.bytes()
    }
}

impl Backend for Cpu {
    fn shared_memory(&self) -> Option<Bytes> {
        base::memory::available()
    }

    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.regions.reserve(bytes, MemoryKind::Device)
    }

    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.regions.reserve(bytes, MemoryKind::Host)
    }

    fn reserved(&self) -> Bytes {
        self.regions.reserved()
    }

    fn host(&self) -> &dyn Backend {
        self
    }

    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        memory::copy_bytes(self, from, to);
        Transfer(0)
    }

    fn join_transfer(&self, _: Transfer) {}

    fn finish_transfer(&self, _: Transfer) {}

    fn enter(&self, section: Section) {
        self.meter.enter(section);
    }

    fn time_ops(&self) -> bool {
        self.meter.turn_on();
        true
    }

    fn take_times(&self) -> OpTimes {
        self.meter.take()
    }

    fn sync(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn upload(&self, from: &[u8], to: Tensor) {
        memory::upload_in_pieces(self, from, to);
    }

    fn download(&self, from: Tensor, to: &mut [u8]) {
        memory::download(from, to);
    }

    fn download_async(&self, from: Tensor) {
        self.downloads.download_async(from);
    }

    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Moment> {
        Ok(self.downloads.finish_download(to))
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn enqueue(&self, op: &Op) {
        let _timer = self.meter.start(op.name());
        run_op!(self, op)
    }
}
