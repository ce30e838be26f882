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

use super::{
    AdamW, Attend, Backend, Coded, Dropout, Epilogue, Gelu, Gemm, Logits, Meter, Norm, OpTimes,
    Out, OutOfMemory, QueryKey, Scaler, Scaling, Section, StepLimits, Tensor, Transfer, ZLoss,
};
use crate::Home;
use base::{Bytes, Problems};
use memory::Regions;
use rayon::ThreadPool;
use scratch::Workspace;
use std::time::Instant;

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
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = threads.unwrap_or_else(all).max(1);
        let start = || {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            builder.thread_name(|i| format!("cpu-{i}")).build()
        };
        let pool = (threads > 1).then(start).transpose().map_err(|error| {
            let what = format!("{threads} threads cannot be started: {error}");
            let remedy = "lower train.threads, start fewer ranks here, or raise ulimit -u, -v";
            Problems::one("this machine", what, remedy)
        })?;
        Ok(Cpu::with(threads, pool))
    }

    fn with(threads: usize, pool: Option<ThreadPool>) -> Cpu {
        let (workspace, sums) = (Workspace::default(), Workspace::default());
        let (regions, downloads) = (Regions::default(), memory::Downloads::default());
        let meter = Meter::default();
        Cpu { threads, pool, regions, workspace, sums, downloads, meter }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// `Backend::digests` of one tensor.
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
        self.regions.reserve(bytes, Home::Device)
    }

    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.regions.reserve(bytes, Home::Host)
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

    fn time_ops(&self, _: bool) -> bool {
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

    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Instant> {
        Ok(self.downloads.finish_download(to))
    }

    fn zero(&self, x: Tensor) {
        let _timer = self.meter.start("zero");
        elementwise::zero(self, x);
    }

    fn copy(&self, x: Tensor, y: Out) {
        let _timer = self.meter.start("copy");
        elementwise::copy(self, x, y);
    }

    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
        let _timer = self.meter.start("gemm");
        gemm::gemm(self, kind, a, b, c, then);
    }

    fn embed(&self, ids: Tensor, table: Tensor, first: usize, y: Out) {
        let _timer = self.meter.start("embed");
        embed::forward(self, ids, table, first, y);
    }

    fn embed_backward(&self, dy: Tensor, ids: Tensor, first: usize, dtable: Out) {
        let _timer = self.meter.start("embed backward");
        embed::backward(self, dy, ids, first, dtable);
    }

    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out) {
        let _timer = self.meter.start("dropout");
        elementwise::dropout(self, x, drop, y);
    }

    fn residual(&self, x: Tensor, branch: Tensor, bias: Option<Tensor>, drop: &Dropout, y: Out) {
        let _timer = self.meter.start("residual");
        elementwise::residual(self, x, branch, bias, drop, y);
    }

    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Option<Out>) {
        let _timer = self.meter.start("residual backward");
        elementwise::residual_backward(self, dy, drop, dbranch, dbias);
    }

    fn gelu(&self, x: Tensor, gelu: Gelu, y: Out) {
        let _timer = self.meter.start("gelu");
        elementwise::gelu(self, x, gelu, y);
    }

    fn swiglu(&self, x: Tensor, y: Out) {
        let _timer = self.meter.start("swiglu");
        elementwise::swiglu(self, x, y);
    }

    fn swiglu_backward(&self, dy: Tensor, x: Tensor, dx: Out) {
        let _timer = self.meter.start("swiglu backward");
        elementwise::swiglu_backward(self, dy, x, dx);
    }

    fn layernorm(&self, x: Tensor, norm: &Norm, y: Out, stats: Out) {
        let _timer = self.meter.start("layernorm");
        layernorm::forward(self, x, norm, y, stats);
    }

    fn layernorm_backward(
        &self,
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        scale: Tensor,
        dx: Out,
        dscale: Out,
        dshift: Option<Out>,
    ) {
        let _timer = self.meter.start("layernorm backward");
        layernorm::backward(self, [dy, x, stats, scale], dx, dscale, dshift);
    }

    fn residual_norm(
        &self,
        x: Tensor,
        branch: Tensor,
        bias: Option<Tensor>,
        drop: &Dropout,
        y: Out,
        norm: &Norm,
        h: Out,
        stats: Out,
    ) {
        let _timer = self.meter.start("residual and layernorm");
        elementwise::residual(self, x, branch, bias, drop, y);
        layernorm::forward(self, y.to, norm, h, stats);
    }

    fn norm_residual_backward(
        &self,
        norm: [Tensor; 4],
        [dx, dscale]: [Out; 2],
        dshift: Option<Out>,
        drop: &Dropout,
        dbranch: Out,
        dbias: Option<Out>,
    ) {
        let _timer = self.meter.start("layernorm and residual backward");
        layernorm::backward(self, norm, dx, dscale, dshift);
        elementwise::residual_backward(self, dx.to, drop, dbranch, dbias);
    }

    fn query_key(&self, qkv: Tensor, how: &QueryKey, y: Out) {
        let _timer = self.meter.start("queries and keys");
        query_key::forward(self, qkv, how, y);
    }

    fn query_key_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        how: &QueryKey,
        dx: Out,
        dscales: Option<[Out; 2]>,
    ) {
        let _timer = self.meter.start("queries and keys backward");
        query_key::backward(self, dy, qkv, how, dx, dscales);
    }

    fn attention(&self, qkv: Tensor, how: &Attend, y: Out, lse: Out) {
        let _timer = self.meter.start("attention");
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
        let _timer = self.meter.start("attention backward");
        attention::backward(self, [dy, qkv, y, lse], how, dqkv);
    }

    fn cross_entropy_stats(&self, logits: &Logits, targets: Tensor, stats: Out) {
        let _timer = self.meter.start("cross entropy");
        cross_entropy::stats(self, logits, targets, stats);
    }

    fn cross_entropy(
        &self,
        logits: &Logits,
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        losses: Out,
        z: Option<ZLoss>,
        dlogits: Option<(Tensor, Out)>,
    ) {
        let _timer = self.meter.start("cross entropy");
        let inputs = cross_entropy::Inputs { logits: *logits, targets, weights, stats };
        cross_entropy::losses(self, &inputs, losses, z, dlogits);
    }

    fn sum(&self, x: Tensor, y: Out) {
        let _timer = self.meter.start("sum");
        optimizer::sum(self, x, y);
    }

    fn axpy(&self, a: f32, factor: Tensor, x: Tensor, y: Out) {
        let _timer = self.meter.start("axpy");
        low_rank::axpy(self, a, factor, x, y);
    }

    fn orthogonalize(&self, xs: &[Tensor]) {
        let _timer = self.meter.start("orthogonalize");
        low_rank::orthogonalize(self, xs);
    }

    fn square_sums(&self, xs: &[Tensor], out: Out) {
        let _timer = self.meter.start("square sums");
        optimizer::square_sums(self, xs, out);
    }

    fn digests(&self, xs: &[Tensor], out: Out) {
        let _timer = self.meter.start("digests");
        optimizer::digests(self, xs, out);
    }

    fn clip(&self, sums: Tensor, scale: Tensor, max_norm: f32, out: Out) {
        optimizer::clip(sums, scale, max_norm, out);
    }

    fn loss_scale_step(&self, scaling: &Scaling, scaler: Scaler, factor: Tensor, status: Tensor) {
        optimizer::loss_scale_step(scaling, scaler, factor, status);
    }

    fn skip_above(
        &self,
        limits: StepLimits,
        measured: [Tensor; 2],
        scaler: Scaler,
        factor: Tensor,
        status: Tensor,
    ) {
        optimizer::skip_above(limits, measured, scaler, factor, status);
    }

    fn adam_scalars(&self, rule: &AdamW, updates: Tensor, out: Out) {
        optimizer::adam_scalars(rule, updates, out);
    }

    fn adamw(
        &self,
        rule: &AdamW,
        scalars: Tensor,
        grad: Tensor,
        master: Tensor,
        m: Tensor,
        v: Tensor,
        live: Tensor,
    ) {
        let _timer = self.meter.start("adamw");
        optimizer::adamw(self, rule, scalars, grad, [master, m, v], live);
    }

    fn adam8bit(
        &self,
        rule: &AdamW,
        scalars: Tensor,
        grad: Tensor,
        master: Tensor,
        moments: [Coded; 2],
        live: Tensor,
    ) {
        let _timer = self.meter.start("adam8bit");
        adam8bit::adam8bit(self, rule, scalars, grad, master, moments, live);
    }
}
