//! Time of each op of one training step: on the CPU with one thread and with all, or on a GPU.
//!
//! `cargo bench --bench ops -- [cpu|cuda] [tiny|gpt2|1.5b|7b|llama] [f32|bf16] [part of an op's name]`.
//! Prints the best of many runs, because other programs only lengthen a run, and its share of a
//! step's time; the last line is the sum of a step. On the CPU products also have a percentage of
//! the peak of its registers, measured in the same run. Ops that move bytes have a percentage of
//! the device's own copy, and updates also nanoseconds per weight. On a GPU attention is compared
//! with PyTorch's flash attention in the same run. `cuda products` compares the blocks' products at
//! full size with f64, and with PyTorch's times; `errors` compares attention, epilogues and norms at
//! full size with f64, and with PyTorch's errors; `norms` times norms of wide rows. On the CPU AdamW (the host's rule under
//! `topology.offload`) is compared with PyTorch's fused one, and adam8bit with bitsandbytes'
//! (`PYTHON` with torch, and with bitsandbytes).

mod errors;
mod products;

use gptrain::base::{DType, Heads, rng};
use gptrain::device::cpu::{self, Cpu};
use gptrain::device::cuda::{self, Cuda};
use gptrain::device::{
    AdamW, AdamWUpdate, Arena, Attend, Backend, Coded, Dropout, Epilogue, Gelu, Gemm, InPlace,
    Logits, LossLogits, Norm, Out, Tensor, Visible, op,
};
use std::process::Command;
use std::time::{Duration, Instant};

/// Model and micro-batch.
struct Shape {
    layers: usize,
    hidden: usize,
    heads: Heads,
    ffn: usize,
    /// Whether the feed-forward layer is SwiGLU and norms are RMS norms, as in Llama.
    gated: bool,
    vocab: usize,
    seq: usize,
    samples: usize,
    dtype: DType,
    /// Bytes for the operands of a family of ops.
    room: usize,
}

/// Op with its operands.
struct Row<'a> {
    name: String,
    /// Executions per training step.
    times: usize,
    work: Work,
    run: Box<dyn Fn() + 'a>,
}

#[derive(Clone, Copy)]
enum Work {
    /// Floating-point operations.
    Flops(f64),
    /// Bytes read and written, each once.
    Bytes(f64),
    /// Bytes of an optimizer's update, and its number of weights.
    Update(f64, usize),
}

/// Measured device.
struct Device {
    name: String,
    be: Box<dyn Backend>,
    /// Number of threads of the CPU.
    threads: Option<usize>,
}

fn main() {
    gptrain::device::cuda::set_environment(); // before any thread
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let (mut on_gpu, mut shape, mut dtype, mut part) = (false, "gpt2", DType::F32, "");
    for word in &words {
        match word.as_str() {
            "cpu" => on_gpu = false,
            "cuda" => on_gpu = true,
            "trial" | "trial-llama" | "tiny" | "gpt2" | "1.5b" | "7b" | "llama" => shape = word,
            "f32" => dtype = DType::F32,
            "bf16" => dtype = DType::BF16,
            word => part = word,
        }
    }
    let (name, shape) = (shape, Shape { dtype, ..named(shape, on_gpu) });
    let devices = if on_gpu { gpu() } else { cpus() };
    if part == "errors" {
        return errors::compare(&*devices[devices.len() - 1].be, name, &shape);
    }
    if on_gpu && part == "products" {
        let be = &*devices[0].be;
        let time = |call: &dyn Fn()| best(be, call);
        return products::compare(be, shape.samples * shape.seq, shape.hidden, time);
    }
    let measure = |device: &Device| Column::measure(&*device.be, device.threads, &shape, part);
    let columns: Vec<Column> = devices.iter().map(measure).collect();
    print(&devices, &columns);
    let tokens = (shape.samples * shape.seq) as f64;
    for (Device { name, .. }, column) in devices.iter().zip(&columns) {
        let step = column.step();
        println!("a step: {:.2} ms, {:.0} tokens/s on {name}", 1e3 * step, tokens / step);
    }
    if on_gpu && "attention".contains(part) {
        flash_attention(&shape);
    }
    if !on_gpu && "adamw adam8bit".contains(part) {
        fused_adamw(&shape);
    }
}

fn cpus() -> Vec<Device> {
    let all = Cpu::new(None).threads();
    let cpu = |name: &str, threads| {
        let be = Box::new(Cpu::new(Some(threads)));
        Device { name: name.into(), be, threads: Some(threads) }
    };
    vec![cpu("1 thread", 1), cpu(&format!("{all} threads"), all)]
}

fn gpu() -> Vec<Device> {
    let cuda =
        Cuda::open(&cuda::Options::from_environment(0)).unwrap_or_else(|why| panic!("{why}"));
    println!("{}", cuda.description());
    vec![Device { name: "the GPU".into(), be: Box::new(cuda), threads: None }]
}

/// Results of one device.
struct Column {
    ceiling: Ceiling,
    rows: Vec<Timed>,
}

/// Upper bounds for ops.
struct Ceiling {
    /// FLOP/s of the CPU's registers, all threads together.
    flops: Option<f64>,
    /// Bytes per second of its copy, read and written.
    copy: f64,
}

struct Timed {
    name: String,
    times: usize,
    work: Work,
    /// Seconds.
    best: f64,
}

impl Column {
    fn measure(be: &dyn Backend, threads: Option<usize>, shape: &Shape, part: &str) -> Column {
        let rows = rows(be, shape, part, |row| Timed {
            name: row.name.clone(),
            times: row.times,
            work: row.work,
            best: best(be, &row.run),
        });
        let arena = Arena::new(be, 1 << 30).expect("1 GiB");
        let [x, y] = [0, 1].map(|_| arena.matrix(1, 100 << 20, DType::F32));
        let copy = 2.0 * x.bytes() as f64 / best(be, &|| be.run(op::Copy { x, y: y.set() }));
        let flops = threads.map(|threads| peak_of(threads, shape.dtype));
        Column { ceiling: Ceiling { flops, copy }, rows }
    }

    /// Seconds per step.
    fn step(&self) -> f64 {
        self.rows
            .iter()
            .map(|row| row.best * row.times as f64)
            .sum()
    }
}

/// Total peak of the registers of that many concurrent threads.
fn peak_of(threads: usize, dtype: DType) -> f64 {
    std::thread::scope(|scope| {
        let one = || scope.spawn(|| cpu::peak(dtype == DType::BF16));
        let all: Vec<_> = (0..threads).map(|_| one()).collect();
        all.into_iter()
            .map(|one| one.join().expect("a thread that computes"))
            .sum()
    })
}

fn print(devices: &[Device], columns: &[Column]) {
    print!("{:<40} {:>5}", "op", "times");
    for (Device { name, .. }, column) in devices.iter().zip(columns) {
        let Ceiling { flops, copy } = column.ceiling;
        let flops = flops.map_or(String::new(), |f| format!(", {:.0} GFLOP/s", f / 1e9));
        print!("  {:>42}", format!("{name}: copy {:.1} GB/s{flops}", copy / 1e9));
    }
    println!();
    for (i, row) in columns[0].rows.iter().enumerate() {
        print!("{:<40} {:>5}", row.name, row.times);
        for column in columns {
            let best = column.rows[i].best;
            let share = 100.0 * best * row.times as f64 / column.step();
            print!(
                "  {:>9.3} ms {share:>4.1} % {}",
                1e3 * best,
                rate(row.work, best, &column.ceiling)
            );
        }
        println!();
    }
}

fn rate(work: Work, seconds: f64, ceiling: &Ceiling) -> String {
    let copy = ceiling.copy;
    match work {
        Work::Flops(flops) => {
            let rate = flops / seconds;
            let part = ceiling
                .flops
                .map_or(String::new(), |peak| format!("{:>3.0} %", 100.0 * rate / peak));
            format!("{:>8.0} GFLOP/s {part:5}", rate / 1e9)
        }
        Work::Bytes(bytes) => {
            let rate = bytes / seconds;
            format!("{:>8.1} GB/s {:>3.0} %   ", rate / 1e9, 100.0 * rate / copy)
        }
        Work::Update(bytes, weights) => {
            let (rate, each) = (bytes / seconds, 1e9 * seconds / weights as f64);
            format!("{:>8.1} GB/s {:>3.0} % {each:.2} ns", rate / 1e9, 100.0 * rate / copy)
        }
    }
}

/// Best time of our forward and backward, and that of PyTorch's flash attention.
fn flash_attention(shape: &Shape) {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = std::env::var("TORCH_ATTENTION").unwrap_or("benches/torch_attention.py".into());
    let Heads { query, kv, dim } = shape.heads;
    let sizes = [shape.samples, query, kv, shape.seq, dim];
    let sizes = sizes.map(|size| size.to_string());
    match Command::new(python).arg(script).args(sizes).output() {
        Ok(done) if done.status.success() => print!("{}", String::from_utf8_lossy(&done.stdout)),
        _ => println!("no PyTorch with flash attention to compare with"),
    }
}

/// Time of PyTorch's fused update of as many weights, in f32 (its only dtype); and of
/// bitsandbytes'.
fn fused_adamw(shape: &Shape) {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let threads = Cpu::new(None).threads();
    for threads in [1, threads] {
        let sizes = [updated(shape), threads].map(|size| size.to_string());
        match Command::new(&python)
            .arg("benches/torch_adamw.py")
            .args(sizes)
            .output()
        {
            Ok(done) if done.status.success() => {
                print!("{}", String::from_utf8_lossy(&done.stdout));
            }
            _ => return println!("no PyTorch to compare AdamW with"),
        }
    }
}

/// Weights in the row of an update: a tenth of the model's, ten times.
fn updated(shape: &Shape) -> usize {
    let attention = shape.heads.qkv_width() + shape.heads.query_width();
    let block = shape.hidden * (attention + (2 + shape.gated as usize) * shape.ffn);
    let weights = shape.vocab * shape.hidden + shape.layers * block;
    weights / 640 * 64
}

/// Model by name, with a micro-batch that fits the device.
fn named(name: &str, on_gpu: bool) -> Shape {
    let shape = |layers, hidden, heads: usize, vocab, seq, samples| {
        let (dtype, room) = (DType::F32, if seq < 1024 { 2 << 30 } else { 24 << 30 });
        let heads = Heads { query: heads, kv: heads, dim: hidden / heads };
        let (ffn, gated) = (4 * hidden, false);
        Shape { layers, hidden, heads, ffn, gated, vocab, seq, samples, dtype, room }
    };
    let llama = |kv, ffn, shape: Shape| {
        let heads = Heads { kv, ..shape.heads };
        Shape { heads, ffn, gated: true, ..shape }
    };
    match (name, on_gpu) {
        // For the software stand-in.
        ("trial", _) => shape(2, 64, 2, 256, 32, 2),
        ("trial-llama", _) => llama(2, 320, shape(2, 256, 4, 256, 32, 2)),
        ("tiny", _) => shape(6, 384, 6, 256, 256, 8),
        ("1.5b", _) => shape(48, 1600, 25, 50304, 1024, 16),
        ("7b", _) => shape(32, 4096, 32, 50304, 4096, 1),
        ("llama", _) => llama(8, 8192, shape(28, 3072, 24, 128_256, 4096, 1)),
        (_, true) => shape(12, 768, 12, 50304, 1024, 32),
        (_, false) => shape(12, 768, 12, 50304, 256, 4),
    }
}

/// Seconds of the shortest of at least three runs, and at most half a second of runs. A run has so
/// many calls that waiting for the device is negligible.
fn best(be: &dyn Backend, call: &dyn Fn()) -> f64 {
    let run = |calls: u32| {
        let begin = Instant::now();
        (0..calls).for_each(|_| call());
        be.sync().unwrap_or_else(|why| panic!("{why:#}"));
        begin.elapsed()
    };
    run(1);
    let long = Duration::from_millis(5);
    let calls = (long.as_nanos() / run(1).as_nanos().max(1)).clamp(1, 1000) as u32;
    let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
    while runs < 3 || start.elapsed() < Duration::from_millis(500) {
        best = best.min(run(calls));
        runs += 1;
    }
    best.as_secs_f64() / calls as f64
}

/// Tensors of a step, as views of the same few regions.
struct Tensors<'a> {
    be: &'a dyn Backend,
    arena: Arena,
    dtype: DType,
}

impl Tensors<'_> {
    /// i32 [n, 1]: tokens of a vocabulary.
    fn ids(&self, n: usize, vocab: usize) -> Tensor {
        let ids: Vec<i32> = (0..n as u64)
            .map(|i| rng::below(2, i, vocab as u64) as i32)
            .collect();
        let x = self.arena.matrix(n, 1, DType::I32);
        self.be.upload(bytemuck::cast_slice(&ids), x);
        x
    }

    /// Normals with a standard deviation of 0.02.
    fn matrix(&self, rows: usize, cols: usize) -> Tensor {
        self.matrix_of(rows, cols, self.dtype)
    }

    fn matrix_of(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let mut some = vec![0.0f32; 4096];
        rng::normals(1, 0, &mut some);
        some.iter_mut().for_each(|x| *x *= 0.02);
        let bits: Vec<u16> = some.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        let bytes: &[u8] = match dtype {
            DType::BF16 => bytemuck::cast_slice(&bits),
            _ => bytemuck::cast_slice(&some),
        };
        let to = self.arena.matrix(rows, cols, dtype);
        for at in (0..to.numel()).step_by(some.len()) {
            let part = to.span(at, some.len().min(to.numel() - at));
            self.be.upload(&bytes[..part.bytes()], part);
        }
        to
    }
}

/// Runs `with` on each row of the table whose name contains `part`.
fn rows<R>(be: &dyn Backend, shape: &Shape, part: &str, with: impl Fn(&Row) -> R) -> Vec<R> {
    let all: &[for<'a> fn(&Tensors<'a>, &Shape) -> Vec<Row<'a>>] =
        &[of_blocks, head, between, attention, update];
    let families = if part == "norms" { &[wide_norms as _] } else { all };
    let mut results = Vec::new();
    // All families share the memory, because a device frees none before it is closed.
    let memory = Arena::new(be, shape.room)
        .expect("memory")
        .matrix(1, shape.room, DType::U8);
    for family in families {
        let arena = Arena::over(memory);
        let tensors = Tensors { be, arena, dtype: shape.dtype };
        for row in family(&tensors, shape) {
            if part == "norms" || row.name.contains(part) {
                results.push(with(&row));
            }
        }
    }
    results
}

fn product<'a>(
    t: &Tensors<'a>,
    what: &str,
    times: usize,
    kind: Gemm,
    [m, n, k]: [usize; 3],
    then: Option<fn(Tensor, Tensor) -> Epilogue>,
) -> Row<'a> {
    let a = if kind == Gemm::TN { t.matrix(k, m) } else { t.matrix(m, k) };
    let b = if kind == Gemm::NT { t.matrix(n, k) } else { t.matrix(k, n) };
    let c = if kind == Gemm::TN { t.matrix_of(m, n, DType::F32) } else { t.matrix(m, n) };
    // A bias has the width of the output, which is the number of rows of a weight's gradient.
    let bias = if kind == Gemm::TN { t.matrix_of(1, m, DType::F32) } else { t.matrix(1, n) };
    let then = then.map_or(Epilogue::Nothing, |then| then(bias, t.matrix(m, n)));
    let out = if kind == Gemm::TN { c.add() } else { c.set() };
    let be = t.be;
    let fused = match then {
        Epilogue::Nothing | Epilogue::Bias(_) => "",
        Epilogue::BiasGelu { .. } => "+gelu",
        Epilogue::GeluBackward { .. } => "+gelu'",
        Epilogue::BiasBackward(_) => "+db",
    };
    Row {
        name: format!("{what}{fused} {kind:?} {m}x{n}x{k}"),
        times,
        work: Work::Flops(2.0 * (m * n * k) as f64),
        run: Box::new(move || be.run(op::Gemm { kind, a, b, c: out, then })),
    }
}

fn of_blocks<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l) = (shape.samples * shape.seq, shape.hidden, shape.layers);
    let (q, qkv, f) = (shape.heads.query_width(), shape.heads.qkv_width(), shape.ffn);
    // Two products side by side, and an op of its own after them.
    let up = if shape.gated { 2 * f } else { f };
    let fused = |then: fn(Tensor, Tensor) -> Epilogue| (!shape.gated).then_some(then);
    let bias = fused(|bias, _| Epilogue::Bias(bias));
    let gelu = fused(|bias, pre| Epilogue::BiasGelu { bias: Some(bias), pre, gelu: Gelu::Tanh });
    let gelu_backward = fused(|_, pre| Epilogue::GeluBackward { pre, gelu: Gelu::Tanh });
    let sums = fused(|bias, _| Epilogue::BiasBackward(bias.add()));
    vec![
        product(t, "qkv", l, Gemm::NT, [n, qkv, h], bias),
        product(t, "qkv dx", l, Gemm::NN, [n, h, qkv], None),
        product(t, "qkv dw", l, Gemm::TN, [qkv, h, n], sums),
        product(t, "out", l, Gemm::NT, [n, h, q], None),
        product(t, "out dx", l, Gemm::NN, [n, q, h], None),
        product(t, "out dw", l, Gemm::TN, [h, q, n], None),
        product(t, "up", l, Gemm::NT, [n, up, h], gelu),
        product(t, "up dx", l, Gemm::NN, [n, h, up], None),
        product(t, "up dw", l, Gemm::TN, [up, h, n], sums),
        product(t, "down", l, Gemm::NT, [n, h, f], None),
        product(t, "down dx", l, Gemm::NN, [n, f, h], gelu_backward),
        product(t, "down dw", l, Gemm::TN, [h, f, n], None),
    ]
}

fn head<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (all, h, v, be) = (shape.samples * shape.seq, shape.hidden, shape.vocab, t.be);
    // As many tokens at a time as in the model.
    let fit = be.logits_chunk().0 as usize / (v * t.dtype.size());
    let n = fit.next_multiple_of(64).min(all);
    let times = all.div_ceil(n);
    let logits = t.matrix(n, v);
    let bytes = logits.bytes() as f64;
    let targets = t.ids(n, v);
    let weights = t.matrix_of(n, 1, DType::F32);
    let stats = t.matrix_of(n, 3, DType::F32);
    let losses = t.matrix_of(n, 1, DType::F32);
    let scale = t.matrix_of(1, 1, DType::F32);
    let logits = Logits { x: logits, first: 0, vocab: v, cap: None };
    let loss = move || {
        be.run(op::CrossEntropyUnsplit::new(op::CrossEntropy {
            targets,
            weights,
            stats,
            losses: losses.set(),
            z: None,
            logits: LossLogits { logits, scale: Some(scale) },
        }));
    };
    vec![
        product(t, "head", times, Gemm::NT, [n, v, h], None),
        product(t, "head dx", times, Gemm::NN, [n, h, v], None),
        product(t, "head dw", times, Gemm::TN, [v, h, n], None),
        row(format!("cross_entropy {n}x{v}"), times, 2.0 * bytes, loss),
    ]
}

fn row<'a>(name: String, times: usize, bytes: f64, run: impl Fn() + 'a) -> Row<'a> {
    Row { name, times, work: Work::Bytes(bytes), run: Box::new(run) }
}

fn no_dropout(t: &Tensors, seq: usize) -> Dropout {
    let first_sample = t.arena.matrix(1, 1, DType::I64);
    t.be.run(op::Zero { x: first_sample.set() });
    Dropout { rate: 0.0, key: 1, first_sample, seq, first_row: 0 }
}

fn between<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l, be) = (shape.samples * shape.seq, shape.hidden, shape.layers, t.be);
    let drop = no_dropout(t, shape.seq);
    let some = Dropout { rate: 0.1, ..drop };
    let [x, y, z] = [0; 3].map(|_| t.matrix(n, h));
    let (bias, dbias) = (t.matrix(1, h), t.matrix_of(1, h, DType::F32));
    let wide = t.matrix(n, 4 * h);
    let ids = t.ids(n, shape.vocab);
    let (table, dtable) = (t.matrix(shape.vocab, h), t.matrix_of(shape.vocab, h, DType::F32));
    let b = x.bytes() as f64;
    let size = format!("{n}x{h}");
    let mut rows = norms(t, [n, h], shape.gated, [l + 1, l + 1, l, l]);
    rows.extend([
        row(format!("residual {size}"), l, 3.0 * b, move || {
            be.run(op::Residual { x, branch: y, bias: Some(bias), drop, y: z.set() })
        }),
        row(format!("residual, dropout {size}"), 0, 3.0 * b, move || {
            be.run(op::Residual { x, branch: y, bias: Some(bias), drop: some, y: z.set() })
        }),
        row(format!("residual_backward in place {size}"), l, b, move || {
            be.run(op::ResidualBackward {
                dy: y,
                drop,
                dbranch: drop.output(y, y),
                dbias: Some(dbias.add()),
            })
        }),
        row(format!("gelu {n}x{}", 4 * h), 0, 8.0 * b, move || {
            be.run(op::Gelu { x: wide, gelu: Gelu::Tanh, y: wide.set() })
        }),
        row(format!("embed {size}"), 2, 2.0 * b, move || {
            be.run(op::Embed { ids, table, first: 0, y: y.set() })
        }),
        row(format!("embed_backward {size}"), 2, 3.0 * b, move || {
            be.run(op::EmbedBackward { dy: y, ids, first: 0, dtable: dtable.add() })
        }),
    ]);
    if shape.gated {
        let f = shape.ffn;
        let [pair, dpair, half] = [2 * f, 2 * f, f].map(|cols| t.matrix(n, cols));
        let bytes = half.bytes() as f64;
        rows.push(row(format!("swiglu {n}x{f}"), l, 3.0 * bytes, move || {
            be.run(op::Swiglu { x: pair, y: half.set() })
        }));
        rows.push(row(format!("swiglu_backward {n}x{f}"), l, 5.0 * bytes, move || {
            be.run(op::SwigluBackward { dy: half, x: pair, dx: dpair.set() })
        }));
    }
    rows
}

/// Norms of rows as wide as BLOOM 176B's and Llama 3 405B's, of either kind.
fn wide_norms<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let n = shape.samples * shape.seq;
    let kinds = [14_336, 16_384]
        .into_iter()
        .flat_map(|h| [(h, false), (h, true)]);
    kinds
        .flat_map(|(h, rms)| norms(t, [n, h], rms, [1; 4]))
        .collect()
}

/// Norm forward and backward of `[n, h]`, each alone and with the residual sum. RMS norms have
/// neither shift nor bias.
fn norms<'a>(t: &Tensors<'a>, [n, h]: [usize; 2], rms: bool, times: [usize; 4]) -> Vec<Row<'a>> {
    let be = t.be;
    let drop = no_dropout(t, 1);
    let [x, y, z, other] = [0; 4].map(|_| t.matrix(n, h));
    let (scale, shift) = (t.matrix(1, h), t.matrix(1, h));
    let eps = 1e-5;
    let norm = if rms { Norm::Rms { scale, eps } } else { Norm::Layer { scale, shift, eps } };
    let [dscale, dshift, dbias] = [0; 3].map(|_| t.matrix_of(1, h, DType::F32).add());
    let with_bias = |x: Out| (!rms).then_some(x);
    let (bias, dshift, dbias) = ((!rms).then_some(shift), with_bias(dshift), with_bias(dbias));
    let stats = t.matrix_of(n, 2, DType::F32);
    be.run(op::LayerNorm { x, norm, y: y.set(), stats: stats.set() });
    let b = x.bytes() as f64;
    let kind = if rms { "rms_norm" } else { "layernorm" };
    let fused = if rms { "rms_" } else { "" };
    vec![
        row(format!("{kind} {n}x{h}"), times[0], 2.0 * b, move || {
            be.run(op::LayerNorm { x, norm, y: y.set(), stats: stats.set() })
        }),
        row(format!("{kind}_backward += {n}x{h}"), times[1], 4.0 * b, move || {
            let dx = z.add();
            be.run(op::LayerNormBackward { dy: y, x, stats, scale, dx, dscale, dshift })
        }),
        row(format!("residual_{fused}norm {n}x{h}"), times[2], 4.0 * b, move || {
            let residual = op::Residual { x, branch: y, bias, drop, y: z.set() };
            let norm = op::LayerNorm { x: z, norm, y: other.set(), stats: stats.set() };
            be.run(op::ResidualNorm { residual, norm })
        }),
        row(format!("{fused}norm_residual_backward += {n}x{h}"), times[3], 4.0 * b, move || {
            let dx = z.add();
            let norm = op::LayerNormBackward { dy: y, x, stats, scale, dx, dscale, dshift };
            let dbranch = drop.output(z, z);
            let residual = op::ResidualBackward { dy: z, drop, dbranch, dbias };
            be.run(op::NormResidualBackward { norm, residual })
        }),
    ]
}

fn attention<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l, be) = (shape.samples * shape.seq, shape.hidden, shape.layers, t.be);
    let heads = shape.heads;
    let (qkv, dqkv) = (t.matrix(n, heads.qkv_width()), t.matrix(n, heads.qkv_width()));
    let (y, dy) = (t.matrix(n, h), t.matrix(n, h));
    let lse = t.matrix_of(n, heads.query, DType::F32);
    let attend = Attend {
        heads,
        first_head: 0,
        scale: 1.0 / (heads.dim as f32).sqrt(),
        seq: shape.seq,
        visible: Visible::Causal,
        window: None,
        slopes: None,
        dropout: no_dropout(t, shape.seq),
    };
    be.run(op::Attention { qkv, attend, y: y.set(), lse: lse.set() });
    // Causal: half of the keys. Two products forward, five backward.
    let flops = 2.0 * (n * shape.seq * h) as f64;
    let work = |products: f64| Work::Flops(products * flops / 2.0);
    let name = format!("{}x{}x{}", shape.samples, shape.seq, h);
    let forward = move || be.run(op::Attention { qkv, attend, y: y.set(), lse: lse.set() });
    let backward =
        move || be.run(op::AttentionBackward { dy, qkv, y, lse, attend, dqkv: dqkv.set() });
    let some = Attend { dropout: Dropout { rate: 0.1, ..attend.dropout }, ..attend };
    let dropped = move || be.run(op::Attention { qkv, attend: some, y: y.set(), lse: lse.set() });
    let make = |name: String, times, products, run: Box<dyn Fn() + 'a>| Row {
        name,
        times,
        work: work(products),
        run,
    };
    vec![
        make(format!("attention {name}"), l, 2.0, Box::new(forward)),
        make(format!("attention_backward {name}"), l, 5.0, Box::new(backward)),
        make(format!("attention, dropout {name}"), 0, 2.0, Box::new(dropped)),
    ]
}

fn update<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (len, be) = (updated(shape), t.be);
    let [grad, master, m, v] = [0; 4].map(|_| t.matrix_of(1, len, DType::F32));
    let live = if shape.dtype == DType::F32 { master } else { t.matrix(1, len) };
    let moments = [0; 2].map(|_| Coded {
        codes: t.matrix_of(1, len, DType::U8),
        scales: t.matrix_of(1, len / 64, DType::F32),
    });
    let scalars = t.matrix_of(1, 3, DType::F32);
    let sums = t.matrix_of(1, 1, DType::F32);
    let (lr, beta1, beta2, eps) = (1e-4, 0.9, 0.95, 1e-8);
    let rule = AdamW { lr, beta1, beta2, eps, weight_decay: 0.1, lr_scale: 1.0 };
    let weight = live.set_unless(master);
    let master = InPlace(master);
    let update = AdamWUpdate { rule, grad, master, m: InPlace(m), v: InPlace(v), weight };
    let [m, v] = moments.map(InPlace);
    let coded = op::Adam8bit { rule, scalars, grad, master, m, v, weight };
    let b = grad.bytes() as f64;
    let written = weight.map_or(0.0, |out| out.to.bytes() as f64);
    let one = |name: &str, times, each: f64, run: Box<dyn Fn() + 'a>| {
        let work = Work::Update(each * len as f64 + written, len);
        Row { name: format!("{name} {len}"), times, work, run }
    };
    vec![
        row(format!("zero {len}"), 10, b, move || be.run(op::Zero { x: grad.set() })),
        row(format!("square_sums {len}"), 10, b, move || {
            be.run(op::SquareSums { xs: &[grad], y: sums.set() })
        }),
        one("adamw", 10, 28.0, Box::new(move || be.run(op::AdamW { scalars, updates: &[update] }))),
        one("adam8bit", 0, 16.25, Box::new(move || be.run(coded))),
    ]
}
