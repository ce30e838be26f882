//! NVIDIA GPUs: matrix products by cuBLASLt, everything else by `kernels/`.
//!
//! Driver and cuBLASLt are opened at run time, so the same binary starts on machines without them.
//! All ops go to one stream, in order; the host waits only in `sync` and `download`. The first thing
//! that goes wrong is kept and surfaces at `sync`; nothing is asked of the device afterwards.

mod attention;
mod cross_entropy;
pub(crate) mod driver;
mod elementwise;
mod embed;
mod gelu;
mod gemm;
mod hopper;
mod launch;
mod layernorm;
pub(crate) mod library;
mod lt;
mod memory;
mod optimizer;
mod preflight;

pub use preflight::{FOLDER, Kernels, Options, is_there};

use super::{AdamW, Attend, Backend, Dropout, Epilogue, Gelu, Gemm, Out, OutOfMemory, Tensor};
use crate::base::Problems;
use launch::Grid;
use std::sync::Arc;

/// Scratch of cuBLASLt and of sums in parts: what NVIDIA recommends for Hopper, twice.
const WORKSPACE: usize = 64 << 20;

/// One GPU.
pub struct Cuda {
    device: Arc<driver::Device>,
    functions: launch::Functions,
    memory: memory::Memory,
    products: gemm::Products,
    /// Where attention is to use what only Hopper has.
    hopper: Option<hopper::Hopper>,
    description: String,
}

// SAFETY: the handles may be used from any thread that binds the context first, as `Device::call`
// does, and one thread has them at a time since `Cuda` is not `Sync`.
unsafe impl Send for Cuda {}

impl Cuda {
    /// Opens a GPU, or says what is missing.
    pub fn open(options: &Options) -> Result<Cuda, Problems> {
        let preflight::Opened { device, lt, kernels, hopper, description } =
            preflight::open(options)?;
        let refuse = |why: String, remedy: &str| Problems::one("train.device: cuda", why, remedy);
        let functions = launch::Functions::load(&device, &kernels)
            .map_err(|why| refuse(why, "update the NVIDIA driver"))?;
        let memory = memory::Memory::new(&device, WORKSPACE)
            .map_err(|why| refuse(why.to_string(), "see in nvidia-smi who holds the memory"))?;
        let products = gemm::Products::new(lt, &device, WORKSPACE)
            .map_err(|why| refuse(why, "see in nvidia-smi that the GPU is free"))?;
        let device = Arc::new(device);
        let cuda = Cuda { device, functions, memory, products, hopper, description };
        match cuda.device.failure() {
            Some(why) => Err(refuse(why, "see what nvidia-smi says")),
            None => Ok(cuda),
        }
    }

    /// GPU, driver and library, for a person.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// For groups of ranks, whose collectives are in order with the ops.
    pub(crate) fn device(&self) -> &Arc<driver::Device> {
        &self.device
    }

    fn launch<A: Copy>(&self, kernel: &'static str, grid: Grid, arguments: A) {
        self.functions.launch(&self.device, kernel, grid, arguments);
    }

    /// Scratch until the op's last kernel.
    fn scratch(&self, bytes: usize) -> usize {
        assert!(bytes <= WORKSPACE, "an op wants {bytes} bytes of scratch");
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

    fn sync(&self) -> anyhow::Result<()> {
        let stream = self.device.stream;
        self.device.call("waiting", |api| unsafe { (api.cuStreamSynchronize)(stream) });
        match self.device.failure() {
            Some(why) => anyhow::bail!("the GPU failed: {why}"),
            None => Ok(()),
        }
    }

    fn upload(&self, from: &[u8], to: Tensor) {
        self.memory.upload(&self.device, from, to);
    }

    fn download(&self, from: Tensor, to: &mut [u8]) {
        self.memory.download(&self.device, from, to);
    }

    fn zero(&self, x: Tensor) {
        self.memory.clear(&self.device, x.addr(), x.bytes());
    }

    fn copy(&self, x: Tensor, y: Out) {
        elementwise::copy(self, x, y);
    }

    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
        gemm::gemm(self, kind, a, b, c, then);
    }

    fn embed(&self, ids: Tensor, table: Tensor, first: usize, y: Out) {
        embed::forward(self, ids, table, first, y);
    }

    fn embed_backward(&self, dy: Tensor, ids: Tensor, first: usize, dtable: Out) {
        embed::backward(self, dy, ids, first, dtable);
    }

    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out) {
        elementwise::dropout(self, x, drop, y);
    }

    fn residual(&self, x: Tensor, branch: Tensor, bias: Tensor, drop: &Dropout, y: Out) {
        elementwise::residual(self, x, branch, bias, drop, y);
    }

    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Out) {
        elementwise::residual_backward(self, dy, drop, dbranch, dbias);
    }

    fn bias_backward(&self, dy: Tensor, db: Out) {
        elementwise::bias_backward(self, dy, db);
    }

    fn gelu(&self, x: Tensor, gelu: Gelu, y: Out) {
        gelu::gelu(self, x, gelu, y);
    }

    fn layernorm(&self, x: Tensor, scale: Tensor, shift: Tensor, eps: f32, y: Out, stats: Out) {
        layernorm::forward(self, x, scale, shift, eps, y, stats);
    }

    fn layernorm_backward(
        &self,
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        scale: Tensor,
        dx: Out,
        dscale: Out,
        dshift: Out,
    ) {
        layernorm::backward(self, [dy, x, stats, scale], dx, dscale, dshift);
    }

    fn attention(&self, qkv: Tensor, how: &Attend, y: Out, lse: Out) {
        attention::forward(self, qkv, how, y, lse);
    }

    fn attention_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        y: Tensor,
        lse: Tensor,
        how: &Attend,
        dqkv: Out,
    ) {
        attention::backward(self, [dy, qkv, y, lse], how, dqkv);
    }

    fn cross_entropy_stats(
        &self,
        logits: Tensor,
        targets: Tensor,
        first: usize,
        vocab: usize,
        stats: Out,
    ) {
        cross_entropy::stats(self, logits, targets, first, vocab, stats);
    }

    fn cross_entropy(
        &self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        first: usize,
        vocab: usize,
        losses: Out,
        dlogits: Option<Out>,
    ) {
        let inputs = cross_entropy::Inputs { logits, targets, weights, stats, first, vocab };
        cross_entropy::losses(self, &inputs, losses, dlogits);
    }

    fn sum(&self, x: Tensor, y: Out) {
        optimizer::sum(self, x, y);
    }

    fn square_sums(&self, xs: &[Tensor], out: Out) {
        optimizer::square_sums(self, xs, out);
    }

    fn clip(&self, sums: Tensor, max_norm: f32, out: Out) {
        optimizer::clip(self, sums, max_norm, out);
    }

    fn adamw(
        &self,
        rule: &AdamW,
        factor: Tensor,
        grad: Tensor,
        master: Tensor,
        m: Tensor,
        v: Tensor,
        live: Tensor,
    ) {
        optimizer::adamw(self, rule, factor, grad, [master, m, v], live);
    }
}
