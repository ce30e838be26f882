//! Products of a model's blocks at full size: time, and a corner of the result compared with f64,
//! next to PyTorch's time. The op tests check small products; this also covers kernels that the
//! library uses only for large ones.

use gptrain::base::{DType, rng};
use gptrain::device::{Arena, Backend, Gemm, Tensor, op};
use half::bf16;
use std::process::Command;

/// Rows and columns of the compared corner.
const SIDE: usize = 16;
/// Numbers of a matrix before they repeat: a prime, so that rows differ.
const PERIOD: usize = 65_521;
/// Tolerance: twice the rounding error of bf16.
const TOLERANCE: f64 = 1.0 / 128.0;

/// Products for hidden width h and n tokens: of forward, for inputs and for weights.
fn sizes(n: usize, h: usize) -> Vec<(Gemm, [usize; 3])> {
    let matrices = [[3 * h, h], [h, h], [4 * h, h], [h, 4 * h]];
    let of = |[out, into]: [usize; 2]| {
        [(Gemm::NT, [n, out, into]), (Gemm::NN, [n, into, out]), (Gemm::TN, [out, into, n])]
    };
    matrices.into_iter().flat_map(of).collect()
}

/// Prints our times, measured by `time`, then PyTorch's. Panics if a corner is wrong.
pub fn compare(be: &dyn Backend, n: usize, h: usize, time: impl Fn(&dyn Fn()) -> f64) {
    let largest = sizes(n, h)
        .into_iter()
        .map(|(_, [m, n, k])| 2 * (m * k + k * n) + 4 * m * n);
    let memory = Arena::new(be, largest.max().unwrap_or(0) + (1 << 20)).expect("memory");
    for (kind, size) in sizes(n, h) {
        memory.temporary(|arena| one(be, arena, kind, size, &time));
    }
    let words = sizes(n, h)
        .into_iter()
        .map(|(kind, [m, n, k])| format!("{kind:?}x{m}x{n}x{k}"));
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = std::env::var("TORCH_PRODUCTS").unwrap_or("benches/torch_products.py".into());
    match Command::new(python).arg(script).args(words).output() {
        Ok(done) if done.status.success() => print!("{}", String::from_utf8_lossy(&done.stdout)),
        _ => println!("no PyTorch with a GPU to compare products with"),
    }
}

fn one(
    be: &dyn Backend,
    arena: &Arena,
    kind: Gemm,
    [m, n, k]: [usize; 3],
    time: impl Fn(&dyn Fn()) -> f64,
) {
    let [a, b] = [
        (1, if kind == Gemm::TN { [k, m] } else { [m, k] }),
        (2, if kind == Gemm::NT { [n, k] } else { [k, n] }),
    ]
    .map(|(stream, [rows, cols])| (drawn(stream, 1.0), arena.matrix(rows, cols, DType::BF16)));
    [&a, &b]
        .into_iter()
        .for_each(|(values, x)| fill(be, values, *x));
    let c = arena.matrix(m, n, if kind == Gemm::TN { DType::F32 } else { DType::BF16 });
    let seconds = time(&|| be.run(op::Gemm::plain(kind, a.1, b.1, c.set())));
    let at = |(values, x): &(Vec<bf16>, Tensor), row: usize, col: usize| {
        values[(row * x.cols + col) % PERIOD].to_f64()
    };
    let (mut off, mut size) = (0.0, 0.0);
    for i in 0..SIDE.min(m) {
        let row = numbers(be, c.row_range(i, 1).span(0, SIDE.min(n)));
        for (j, got) in row.into_iter().enumerate() {
            let of_a = |l| if kind == Gemm::TN { at(&a, l, i) } else { at(&a, i, l) };
            let of_b = |l| if kind == Gemm::NT { at(&b, j, l) } else { at(&b, l, j) };
            let right: f64 = (0..k).map(|l| of_a(l) * of_b(l)).sum();
            off += (got - right).powi(2);
            size += right * right;
        }
    }
    let (what, rate) = (format!("{kind:?} {m}x{n}x{k}"), 2.0 * (m * n * k) as f64 / seconds / 1e9);
    let off = (off / size).sqrt();
    println!("{what:<46}  {:>9.3} ms {rate:>8.0} GFLOP/s  off {off:.1e}", 1e3 * seconds);
    assert!(off < TOLERANCE, "{what} is wrong by {off:.1e} of it");
}

/// Normals before they repeat, with that standard deviation.
pub fn drawn(stream: u64, deviation: f32) -> Vec<bf16> {
    let mut values = vec![0.0f32; PERIOD];
    rng::normals(stream, 0, &mut values);
    values
        .into_iter()
        .map(|x| bf16::from_f32(deviation * x))
        .collect()
}

/// Uploads the numbers repeatedly until the tensor is full.
pub fn fill(be: &dyn Backend, values: &[bf16], x: Tensor) {
    for at in (0..x.numel()).step_by(PERIOD) {
        let part = x.span(at, PERIOD.min(x.numel() - at));
        be.upload(bytemuck::cast_slice(&values[..part.numel()]), part);
    }
}

fn numbers(be: &dyn Backend, x: Tensor) -> Vec<f64> {
    let mut bytes = vec![0u8; x.bytes()];
    be.download(x, &mut bytes);
    let of = |each: &[u8]| match x.dtype {
        DType::F32 => f64::from(f32::from_le_bytes([each[0], each[1], each[2], each[3]])),
        _ => bf16::from_le_bytes([each[0], each[1]]).to_f64(),
    };
    bytes.chunks(x.dtype.size()).map(of).collect()
}
