//! One GPU, whoever makes it: the only file above a vendor's folder that names its types. Today
//! there is one vendor.

use super::cuda::nvml::NvmlMonitor;
use super::cuda::{self, Cuda, Options};
use super::{Backend, Identity, Monitor};
use base::{Bytes, DType, Problems};

/// GPU that a rank asks for, and its use.
#[derive(Clone, Copy, Debug)]
pub struct GpuRequest {
    /// Index among the GPUs that the driver shows.
    pub ordinal: usize,
    /// Dtype of weights and activations. An error if the GPU lacks it.
    pub dtype: DType,
    /// Whether products round f32 operands to TF32. An error if the GPU cannot.
    pub tf32: bool,
    /// Whether products are in fp8. An error if the GPU cannot.
    pub fp8: bool,
    /// Upper bound of the bytes of a collective.
    pub largest_collective: usize,
    /// Whether threads sleep while they wait for the GPU, instead of polling on their cores.
    pub blocking: bool,
    /// CPU threads, for ops on tensors in host memory. Default: all.
    pub threads: Option<usize>,
}

/// Opened GPU.
pub struct Gpu {
    cuda: Box<Cuda>,
    options: Options,
}

impl Gpu {
    /// Number of GPUs that the driver shows; 0 without a driver.
    pub fn count() -> usize {
        cuda::device_count(&Options::from_environment(0))
    }

    /// Description of this binary's kernels: `CUDA 13.0, for sm_80, sm_90a, sm_100 and as PTX`.
    pub fn kernels() -> Option<String> {
        cuda::kernels()
    }

    /// Sets the variables that the vendor's libraries read when they start. Called before any thread
    /// starts.
    pub fn set_environment() {
        cuda::set_environment();
    }

    /// Part of a GPU's memory that ranks leave free, for what the driver and NCCL allocate after the
    /// start: kernels, graphs, stacks, buffers of algorithms. 1 GiB, or less of a small GPU.
    pub fn headroom(total: Bytes) -> Bytes {
        Bytes((total.0 / 64).min(1 << 30))
    }

    /// Opens a GPU; the error names what is missing.
    pub fn open(request: GpuRequest) -> Result<Gpu, Problems> {
        let GpuRequest { ordinal, dtype, tf32, fp8, largest_collective, blocking, threads } =
            request;
        let options = Options::from_environment(ordinal);
        let connect = options.connect.min(largest_collective);
        let options = Options { dtype, tf32, fp8, threads, connect, blocking, ..options };
        Ok(Gpu { cuda: Box::new(Cuda::open(&options)?), options })
    }

    pub fn backend(&self) -> &dyn Backend {
        &*self.cuda
    }

    /// Description of GPU, driver and libraries, for messages.
    pub fn description(&self) -> &str {
        self.cuda.description()
    }

    pub fn identity(&self) -> &Identity {
        self.cuda.identity()
    }

    /// Free and total memory.
    pub fn memory(&self) -> (Bytes, Bytes) {
        self.cuda.free_memory()
    }

    /// Monitor of clock, power, temperature and faults; None without the vendor's library.
    pub fn monitor(&self) -> Option<Box<dyn Monitor>> {
        let monitor = NvmlMonitor::open(&self.options.folders, &self.identity().uuid)?;
        Some(Box::new(monitor))
    }

    /// The vendor's GPU and its options, for groups of ranks.
    pub fn cuda(&self) -> (&Cuda, &Options) {
        (&self.cuda, &self.options)
    }
}
