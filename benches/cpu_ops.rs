//! Time of each op of one training step on the CPU, on one thread and on all.
//!
//! `cargo bench --bench cpu_ops -- [gpt2|tiny] [f32|bf16] [part of an op's name]`. The best of many
//! runs is given, since other programs only make a run longer; the last line adds up a step.

use gptrain::base::{DType, rng};
use gptrain::device::cpu::Cpu;
use gptrain::device::{
    AdamW, Arena, Attend, Backend, Dropout, Epilogue, Gelu, Gemm, Norm, Tensor, Visible,
};
use std::time::{Duration, Instant};

/// A model and a micro-batch.
struct Shape {
    layers: usize,
    hidden: usize,
    heads: usize,
    vocab: usize,
    seq: usize,
    samples: usize,
    dtype: DType,
}

/// An op with its operands.
struct Row<'a> {
    name: String,
    /// How often a training step does this.
    times: usize,
    work: Work,
    run: Box<dyn Fn() + 'a>,
}

enum Work {
    /// Floating-point operations.
    Flops(f64),
    /// Bytes read and written, each once.
    Bytes(f64),
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let (mut shape, mut part) = (gpt2(), String::new());
    for word in &words {
        match word.as_str() {
            "gpt2" => shape = Shape { dtype: shape.dtype, ..gpt2() },
            "tiny" => shape = Shape { dtype: shape.dtype, ..tiny() },
            "f32" => shape.dtype = DType::F32,
            "bf16" => shape.dtype = DType::BF16,
            word => part = word.into(),
        }
    }
    let all = Cpu::new(None).threads();
    println!("{:<34} {:>5}  {:>9} {:>11}  {:>9} {:>11}", "op", "times", "1 thread", "", "all", "");
    let [alone, together] = [1, all].map(|threads| {
        let cpu = Cpu::new(Some(threads));
        rows(&cpu, &shape, &part, |row| {
            let best = best(&row.run);
            (row.name.clone(), row.times, best, rate(&row.work, best))
        })
    });
    let mut step = [0.0; 2];
    for ((name, times, one, one_rate), (_, _, many, many_rate)) in alone.iter().zip(&together) {
        let (one, many) = (one.as_secs_f64() * 1e3, many.as_secs_f64() * 1e3);
        step[0] += one * *times as f64;
        step[1] += many * *times as f64;
        println!("{name:<34} {times:>5}  {one:>6.2} ms {one_rate}  {many:>6.2} ms {many_rate}");
    }
    let tokens = (shape.samples * shape.seq) as f64;
    let [one, many] = step.map(|ms| (ms / 1e3, tokens / ms * 1e3));
    println!("a step: {:.2} s, {:.0} tokens/s on 1 thread", one.0, one.1);
    println!("a step: {:.2} s, {:.0} tokens/s on {all} threads", many.0, many.1);
}

fn gpt2() -> Shape {
    let (layers, hidden, heads, vocab) = (12, 768, 12, 50304);
    Shape { layers, hidden, heads, vocab, seq: 256, samples: 4, dtype: DType::F32 }
}

fn tiny() -> Shape {
    let (layers, hidden, heads, vocab) = (6, 384, 6, 256);
    Shape { layers, hidden, heads, vocab, seq: 256, samples: 8, dtype: DType::F32 }
}

/// The shortest of at least three runs and at most half a second of them.
fn best(run: &dyn Fn()) -> Duration {
    run();
    let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
    while runs < 3 || (start.elapsed() < Duration::from_millis(500) && runs < 1000) {
        let begin = Instant::now();
        run();
        best = best.min(begin.elapsed());
        runs += 1;
    }
    best
}

fn rate(work: &Work, time: Duration) -> String {
    match work {
        Work::Flops(flops) => format!("{:>5.0} GFLOP/s", flops / time.as_secs_f64() / 1e9),
        Work::Bytes(bytes) => format!("{:>8.1} GB/s", bytes / time.as_secs_f64() / 1e9),
    }
}

/// Tensors of a step, each a view of the same few regions.
struct Tensors<'a> {
    cpu: &'a Cpu,
    arena: Arena,
    dtype: DType,
}

impl Tensors<'_> {
    /// Normals of deviation 0.02.
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
            self.cpu.upload(&bytes[..part.bytes()], part);
        }
        to
    }
}

/// Runs `with` on each row of the table whose name has `part` in it.
fn rows<R>(cpu: &Cpu, shape: &Shape, part: &str, with: impl Fn(&Row) -> R) -> Vec<R> {
    let families = [products, head, between, attention, update];
    let mut results = Vec::new();
    for family in families {
        let arena = Arena::new(cpu, 2 << 30).expect("2 GiB");
        let tensors = Tensors { cpu, arena, dtype: shape.dtype };
        for row in family(&tensors, shape) {
            if row.name.contains(part) {
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
    let then = then.map_or(Epilogue::Nothing, |then| then(t.matrix(1, n), t.matrix(m, n)));
    let out = if kind == Gemm::TN { c.add() } else { c.set() };
    let cpu = t.cpu;
    Row {
        name: format!("{what} {kind:?} {m}x{n}x{k}"),
        times,
        work: Work::Flops(2.0 * (m * n * k) as f64),
        run: Box::new(move || cpu.gemm(kind, a, b, out, then)),
    }
}

fn products<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l) = (shape.samples * shape.seq, shape.hidden, shape.layers);
    let bias: fn(Tensor, Tensor) -> Epilogue = |bias, _| Epilogue::Bias(bias);
    let up: fn(Tensor, Tensor) -> Epilogue =
        |bias, pre| Epilogue::BiasGelu { bias, pre, gelu: Gelu::Tanh };
    let down: fn(Tensor, Tensor) -> Epilogue =
        |_, pre| Epilogue::GeluBackward { pre, gelu: Gelu::Tanh };
    vec![
        product(t, "qkv", l, Gemm::NT, [n, 3 * h, h], Some(bias)),
        product(t, "qkv dx", l, Gemm::NN, [n, h, 3 * h], None),
        product(t, "qkv dw", l, Gemm::TN, [3 * h, h, n], None),
        product(t, "out", l, Gemm::NT, [n, h, h], None),
        product(t, "out dx", l, Gemm::NN, [n, h, h], None),
        product(t, "out dw", l, Gemm::TN, [h, h, n], None),
        product(t, "up+gelu", l, Gemm::NT, [n, 4 * h, h], Some(up)),
        product(t, "up dx", l, Gemm::NN, [n, h, 4 * h], None),
        product(t, "up dw", l, Gemm::TN, [4 * h, h, n], None),
        product(t, "down", l, Gemm::NT, [n, h, 4 * h], None),
        product(t, "down dx+gelu'", l, Gemm::NN, [n, 4 * h, h], Some(down)),
        product(t, "down dw", l, Gemm::TN, [h, 4 * h, n], None),
    ]
}

fn head<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, v, cpu) = (shape.samples * shape.seq, shape.hidden, shape.vocab, t.cpu);
    let logits = t.matrix(n, v);
    let bytes = logits.bytes() as f64;
    let targets = t.arena.matrix(n, 1, DType::I32);
    let weights = t.matrix_of(n, 1, DType::F32);
    let stats = t.matrix_of(n, 3, DType::F32);
    let losses = t.matrix_of(n, 1, DType::F32);
    let statistics = move || cpu.cross_entropy_stats(logits, targets, 0, v, stats.set());
    statistics();
    let loss = move || {
        let to = Some(logits.set());
        cpu.cross_entropy(logits, targets, weights, stats, 0, v, losses.set(), to);
    };
    vec![
        product(t, "head", 1, Gemm::NT, [n, v, h], None),
        product(t, "head dx", 1, Gemm::NN, [n, h, v], None),
        product(t, "head dw", 1, Gemm::TN, [v, h, n], None),
        row(format!("cross_entropy_stats {n}x{v}"), 1, bytes, statistics),
        row(format!("cross_entropy {n}x{v}"), 1, 2.0 * bytes, loss),
    ]
}

fn row<'a>(name: String, times: usize, bytes: f64, run: impl Fn() + 'a) -> Row<'a> {
    Row { name, times, work: Work::Bytes(bytes), run: Box::new(run) }
}

fn no_dropout(t: &Tensors, seq: usize) -> Dropout {
    let first_sample = t.arena.matrix(1, 1, DType::I64);
    Dropout { rate: 0.0, key: 1, first_sample, seq, first_row: 0 }
}

fn between<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l, cpu) = (shape.samples * shape.seq, shape.hidden, shape.layers, t.cpu);
    let drop = no_dropout(t, shape.seq);
    let some = Dropout { rate: 0.1, ..drop };
    let (x, y, z) = (t.matrix(n, h), t.matrix(n, h), t.matrix(n, h));
    let (scale, shift) = (t.matrix(1, h), t.matrix(1, h));
    let norm = Norm { scale, shift, eps: 1e-5 };
    let [dscale, dshift] = [0, 1].map(|_| t.matrix_of(1, h, DType::F32));
    let stats = t.matrix_of(n, 2, DType::F32);
    let wide = t.matrix(n, 4 * h);
    let ids = t.arena.matrix(n, 1, DType::I32);
    let (table, dtable) = (t.matrix(shape.vocab, h), t.matrix_of(shape.vocab, h, DType::F32));
    let b = x.bytes() as f64;
    let size = format!("{n}x{h}");
    vec![
        row(format!("layernorm {size}"), 2 * l + 1, 2.0 * b, move || {
            cpu.layernorm(x, &norm, y.set(), stats.set())
        }),
        row(format!("layernorm_backward += {size}"), 2 * l + 1, 4.0 * b, move || {
            cpu.layernorm_backward(y, x, stats, scale, z.add(), dscale.add(), dshift.add())
        }),
        row(format!("residual {size}"), 2 * l, 3.0 * b, move || {
            cpu.residual(x, y, scale, &drop, z.set())
        }),
        row(format!("residual, dropout {size}"), 0, 3.0 * b, move || {
            cpu.residual(x, y, scale, &some, z.set())
        }),
        row(format!("residual_backward in place {size}"), 2 * l, b, move || {
            cpu.residual_backward(y, &drop, y.set(), dshift.add())
        }),
        row(format!("gelu {n}x{}", 4 * h), 0, 8.0 * b, move || {
            cpu.gelu(wide, Gelu::Tanh, wide.set())
        }),
        row(format!("embed {size}"), 2, 2.0 * b, move || cpu.embed(ids, table, 0, y.set())),
        row(format!("embed_backward {size}"), 2, 3.0 * b, move || {
            cpu.embed_backward(y, ids, 0, dtable.add())
        }),
    ]
}

fn attention<'a>(t: &Tensors<'a>, shape: &Shape) -> Vec<Row<'a>> {
    let (n, h, l, cpu) = (shape.samples * shape.seq, shape.hidden, shape.layers, t.cpu);
    let (qkv, dqkv) = (t.matrix(n, 3 * h), t.matrix(n, 3 * h));
    let (y, dy) = (t.matrix(n, h), t.matrix(n, h));
    let lse = t.matrix_of(n, shape.heads, DType::F32);
    let how = Attend {
        heads: shape.heads,
        first_head: 0,
        seq: shape.seq,
        visible: Visible::Causal,
        slopes: None,
        dropout: no_dropout(t, shape.seq),
    };
    cpu.attention(qkv, &how, y.set(), lse.set());
    // Causal: half of the keys. Two products forward, five backward.
    let flops = 2.0 * (n * shape.seq * h) as f64;
    let work = |products: f64| Work::Flops(products * flops / 2.0);
    let name = format!("{}x{}x{}", shape.samples, shape.seq, h);
    let forward = move || cpu.attention(qkv, &how, y.set(), lse.set());
    let backward = move || cpu.attention_backward(dy, qkv, y, lse, &how, dqkv.set());
    let some = Attend { dropout: Dropout { rate: 0.1, ..how.dropout }, ..how };
    let dropped = move || cpu.attention(qkv, &some, y.set(), lse.set());
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
    let (h, cpu) = (shape.hidden, t.cpu);
    let weights = shape.vocab * h + shape.layers * 12 * h * h;
    // A tenth of the weights, ten times.
    let len = weights / 10;
    let [grad, master, m, v] = [0; 4].map(|_| t.matrix_of(1, len, DType::F32));
    let live = if shape.dtype == DType::F32 { master } else { t.matrix(1, len) };
    let factor = t.matrix_of(1, 1, DType::F32);
    let sums = t.matrix_of(1, 1, DType::F32);
    let (lr, beta1, beta2, eps) = (1e-4, 0.9, 0.95, 1e-8);
    let rule = AdamW { lr, beta1, beta2, eps, weight_decay: 0.1, step: 3 };
    let b = grad.bytes() as f64;
    vec![
        row(format!("zero {len}"), 10, b, move || cpu.zero(grad)),
        row(format!("square_sums {len}"), 10, b, move || cpu.square_sums(&[grad], sums.set())),
        row(format!("adamw {len}"), 10, 7.0 * b, move || {
            cpu.adamw(&rule, factor, grad, master, m, v, live)
        }),
    ]
}
