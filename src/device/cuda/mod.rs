//! NVIDIA GPUs: matrix products by cuBLASLt, everything else by `kernels/`.
//!
//! Driver and cuBLASLt are opened at run time, so the same binary starts on machines without them.
//! All ops go to one stream, in order; the host waits only in `sync` and `download`. Work that
//! repeats becomes a graph (`graph`). The first failure is kept and surfaces at `sync`; nothing is
//! enqueued afterwards.

mod about;
mod adafactor;
mod adam8bit;
mod args;
mod attention;
mod cross_entropy;
pub mod device;
pub mod driver;
mod elementwise;
mod embed;
mod events;
mod fp8;
mod gelu;
mod gemm;
mod graph;
mod launch;
mod launches;
mod layernorm;
pub mod library;
mod low_rank;
mod lt;
mod memory;
mod muon;
mod numa;
pub mod nvml;
pub mod observer;
mod optimizer;
mod preflight;
mod profile;
mod query_key;
mod timeline;

pub use attention::{LargestLaunch, largest_launches, most_samples};
pub use device::Launched;
pub use graph::GRAPHS;
pub use launch::{Kernels, kernels};
pub use preflight::{
    FOLDER, KERNELS, LAUNCH_ORDER, Options, SERIAL, device_count, parse_flag, set_environment,
};
pub use profile::Profiled;

use super::op::{self, run_op};
use super::{
    Backend, Dead, Fp8Scaling, Graph, Identity, MemoryKind, Op, OpTimes, OutOfMemory, Section,
    Tensor, Timeline, Transfer,
};
use crate::cpu::Cpu;
use base::{Bytes, DType, Moment, Problems};
use launch::Grid;
use std::cell::OnceCell;
use std::sync::Arc;

/// Bytes of a GPU's memory that the backend takes for itself: scratch and staging buffers.
pub const WORKSPACE: Bytes = Bytes((SCRATCH + memory::DEVICE_STAGING) as u64);
/// Bytes of logits at once. Each chunk of rows reads and writes the f32 gradient of the whole table
/// (GPT-2: 309 MB), so few large chunks are better. Equal on every GPU, so that plans are equal.
pub const LOGITS_CHUNK: Bytes = Bytes(512 << 20);
/// Bytes of scratch for cuBLASLt and for sums in parts: twice NVIDIA's recommendation for Hopper.
const SCRATCH: usize = 64 << 20;

/// One GPU.
pub struct Cuda {
    device: Arc<device::Device>,
    functions: launch::Functions,
    memory: memory::Memory,
    products: gemm::Products,
    /// Compute capability times ten.
    capability: i32,
    /// None if attention does not use instructions that only Hopper has.
    hopper: Option<attention::Hopper>,
    description: String,
    identity: Identity,
    /// Backend of the host; made on first use of a tensor there.
    host: OnceCell<Cpu>,
    threads: Option<usize>,
}

// SAFETY: the handles may be used from any thread that binds the context first, as `Device::call`
// does; one thread has them at a time, as `Cuda` is not `Sync`. The page-locked buffers are its own.
unsafe impl Send for Cuda {}

impl Cuda {
    /// Opens a GPU; the error names what is missing.
    pub fn open(options: &Options) -> Result<Cuda, Problems> {
        let opened = preflight::open(options)?;
        let preflight::Opened { device, identity, lt, kernels, capability, .. } = opened;
        let preflight::Opened { hopper, machine, lt_name, .. } = opened;
        // Before threads are started and memory is locked.
        let near = numa::bind(&identity.bus)
            .map(|near| format!("; {near}"))
            .unwrap_or_default();
        let refuse = |why: String, remedy: &str| Problems::one("train.device: cuda", why, remedy);
        let functions = launch::Functions::load(&device, &kernels)
            .map_err(|why| refuse(why, "update the NVIDIA driver"))?;
        let memory = memory::Memory::new(&device, SCRATCH)
            .map_err(|why| refuse(why.to_string(), "see in nvidia-smi who holds the memory"))?;
        let folder = options.tuned.as_deref();
        let room = gemm::Workspace::new(memory.workspace, SCRATCH);
        let made_on = format!("{machine}, {} bytes of workspace", room.bytes);
        let choices = folder.and_then(|folder| gemm::AlgorithmCache::open(folder, made_on));
        let how = match (&choices, folder) {
            (Some(choices), _) => format!("algorithms timed once and kept in {choices}"),
            (None, Some(folder)) => {
                format!("algorithms as it proposes them: none can be kept in {}", folder.display())
            }
            (None, None) => "algorithms as it proposes them".to_string(),
        };
        let by = hopper.as_ref().map_or("", |hopper| hopper.description());
        let waits = if device.waits_block() { "; threads sleep while they wait" } else { "" };
        let description = format!("{machine} ({lt_name}; {how}{by}{near}{waits})");
        let products = gemm::Products::new(lt, &device, room, choices, options.tf32)
            .map_err(|why| refuse(why, "see in nvidia-smi that the GPU is free"))?;
        let device = Arc::new(device);
        let host = OnceCell::new();
        let threads = options.threads;
        let cuda = Cuda {
            device,
            functions,
            memory,
            products,
            capability,
            hopper,
            description,
            identity,
            host,
            threads,
        };
        match cuda.device.failure() {
            Some(why) => Err(refuse(why, "see what nvidia-smi says")),
            None => Ok(cuda),
        }
    }

    fn launch<A: Copy>(&self, kernel: &'static str, grid: Grid, arguments: A) {
        self.functions.launch(&self.device, kernel, grid, arguments);
    }

    fn most_threads(&self, kernel: &'static str) -> usize {
        self.functions.most_threads(&self.device, kernel)
    }

    fn has_room(&self, kernel: &'static str, shared: usize) -> bool {
        self.functions.has_room(&self.device, kernel, shared)
    }

    fn cpu(&self) -> &Cpu {
        self.host.get_or_init(|| Cpu::new(self.threads))
    }

    /// Fails with the device's first failure, if it has one.
    fn check_alive(&self) -> anyhow::Result<()> {
        match self.device.failure() {
            Some(why) => Err(Dead { device: self.identity.to_string(), why }.into()),
            None => Ok(()),
        }
    }

    /// Bytes of a tensor in device memory. Waits for them.
    fn contents(&self, x: Tensor) -> Vec<u8> {
        let mut bytes = vec![0; x.bytes()];
        self.memory.download(&self.device, x, &mut bytes);
        bytes
    }

    /// Address of scratch, valid until the op's last kernel.
    fn scratch(&self, bytes: usize) -> usize {
        assert!(bytes <= SCRATCH, "an op wants {bytes} bytes of scratch");
        self.memory.workspace
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let _ = self.sync();
        self.products.close(&self.device);
        self.memory.free(&self.device);
        self.functions.unload(&self.device);
    }
}

impl Backend for Cuda {
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.memory.reserve(&self.device, bytes)
    }

    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        let memory = MemoryKind::Host;
        let asked = Bytes(bytes as u64);
        let host = self.host();
        let address = self.memory.reserve_host(&self.device, bytes);
        let available = host.shared_memory();
        let address = address.ok_or(OutOfMemory { memory, asked, available })?;
        let x = Tensor::at(address, 1, bytes, DType::U8).in_memory(memory);
        host.run(op::Zero { x: x.set() });
        Ok(address)
    }

    fn reserved(&self) -> Bytes {
        self.memory.reserved()
    }

    fn host(&self) -> &dyn Backend {
        self.cpu()
    }

    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        self.memory.transfer(&self.device, from, to)
    }

    fn join_transfer(&self, transfer: Transfer) {
        self.memory.join_transfer(&self.device, transfer);
    }

    fn finish_transfer(&self, transfer: Transfer) {
        self.memory.finish_transfer(&self.device, transfer);
    }

    fn workspace(&self) -> Bytes {
        WORKSPACE
    }

    fn logits_chunk(&self) -> Bytes {
        LOGITS_CHUNK
    }

    fn most_samples(&self, heads: usize, seq: usize) -> usize {
        most_samples(heads, seq)
    }

    fn enter(&self, section: Section) {
        self.device.launches.enter(section);
    }

    fn time_ops(&self) -> bool {
        self.begin_profile();
        true
    }

    fn take_times(&self) -> OpTimes {
        self.op_times()
    }

    fn sync(&self) -> anyhow::Result<()> {
        self.device.wait_stream(self.device.stream);
        self.check_alive()
    }

    fn upload(&self, from: &[u8], to: Tensor) {
        match to.memory() {
            MemoryKind::Device => self.memory.upload(&self.device, from, to),
            MemoryKind::Host => self.host().upload(from, to),
        }
    }

    fn upload_async(&self, from: &[u8], to: Tensor) {
        self.memory.upload_async(&self.device, from, to);
    }

    fn graph(&self, groups: usize) -> Box<dyn Graph> {
        Box::new(graph::CudaGraph::new(&self.device, groups))
    }

    fn timeline(&self) -> Option<Arc<dyn Timeline>> {
        Some(Arc::new(timeline::EventTimeline::start(&self.device)))
    }

    fn download(&self, from: Tensor, to: &mut [u8]) {
        match from.memory() {
            MemoryKind::Device => self.memory.download(&self.device, from, to),
            MemoryKind::Host => self.host().download(from, to),
        }
    }

    fn download_async(&self, from: Tensor) {
        self.memory.download_async(&self.device, from);
    }

    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Moment> {
        self.memory.finish_download(&self.device, to);
        self.check_alive().map(|()| Moment::now())
    }

    fn fp8_scaling(&self) -> Fp8Scaling {
        fp8::scaling(self)
    }

    fn enqueue(&self, op: &Op) {
        run_op!(self, op)
    }
}
