//! Copies within a device, within the host, and between the two.

use super::bench_rank::BenchRank;
use super::scratch::{Scratch, Timing, fill, time_batches};
use base::{DType, threads};
use device::op;
use std::time::Instant;

/// Rates in GB/s. A copy reads and writes each byte, and both count. A transfer counts once.
pub struct CopySpeed {
    pub device: f64,
    pub host: f64,
    pub upload: Option<f64>,
    pub download: Option<f64>,
}

/// Bytes of a GPU's tensors, and of all copies of a node's ranks together: larger than caches.
const DEVICE: usize = 256 << 20;
const HOST: usize = 256 << 20;

/// Bytes of the first try, which determines how much fits into the time.
const TRIED: usize = 1 << 20;

pub fn measure(bench: &BenchRank, scratch: &Scratch) -> anyhow::Result<CopySpeed> {
    let seconds = bench.allow(0.6, 0.15);
    let gpu = bench.device.gpu().is_some();
    let host_bytes = HOST / 2 / bench.per_node();
    let most = if gpu { DEVICE } else { host_bytes }.min(scratch.half());
    let tried = TRIED.min(most);
    let took = within_device(bench, scratch, tried, 0.0)?.mean;
    let sizes = std::iter::successors(Some(most), |bytes| Some(bytes / 2));
    let bytes = sizes
        .take_while(|bytes| *bytes > tried)
        .find(|bytes| took * *bytes as f64 / tried as f64 <= seconds / 4.0)
        .unwrap_or(tried);
    let took = within_device(bench, scratch, bytes, seconds)?.best;
    let device = 2.0 * bytes as f64 / took / 1e9;
    let host = within_host(host_bytes, seconds, share(bench))?;
    let transfers = gpu.then(|| transfers(bench, scratch, host_bytes.min(bytes), seconds));
    let (upload, download) = transfers.transpose()?.unzip();
    Ok(CopySpeed { device, host, upload, download })
}

/// Copies one device tensor to another.
fn within_device(
    bench: &BenchRank,
    scratch: &Scratch,
    bytes: usize,
    seconds: f64,
) -> anyhow::Result<Timing> {
    let be = bench.backend();
    scratch.with(|arena| {
        let [x, y] = [0; 2].map(|_| arena.matrix(1, bytes / 4, DType::F32));
        [x, y].into_iter().for_each(|x| fill(be, x));
        time_batches(be, seconds, || be.run(op::Copy { x, y: y.set() }))
    })
}

/// This rank's share of its node's processors.
fn share(bench: &BenchRank) -> usize {
    let all = std::thread::available_parallelism().map_or(1, |count| count.get());
    (all / bench.per_node()).max(1)
}

/// Copies one allocation to another with `count` threads.
fn within_host(bytes: usize, seconds: f64, count: usize) -> anyhow::Result<f64> {
    let from = vec![1u8; bytes];
    let mut to = vec![2u8; bytes];
    let part = bytes.div_ceil(count);
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while best == f64::INFINITY || start.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                threads::spawn_scoped(scope, "copy", || {
                    to.copy_from_slice(std::hint::black_box(from))
                })?;
            }
            anyhow::Ok(())
        })?;
        std::hint::black_box(&mut to);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(2.0 * bytes as f64 / best / 1e9)
}

/// Copies to the device and back, with the calls that training uses.
fn transfers(
    bench: &BenchRank,
    scratch: &Scratch,
    bytes: usize,
    seconds: f64,
) -> anyhow::Result<(f64, f64)> {
    let be = bench.backend();
    let host = std::cell::RefCell::new(vec![1u8; bytes]);
    scratch.with(|arena| {
        let x = arena.matrix(1, bytes / 4, DType::F32);
        let up = time_batches(be, seconds, || be.upload(&host.borrow(), x))?.best;
        let down = time_batches(be, seconds, || be.download(x, &mut host.borrow_mut()))?.best;
        Ok((bytes as f64 / up / 1e9, bytes as f64 / down / 1e9))
    })
}
