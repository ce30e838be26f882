//! Matrix products of a transformer block in the manifest's shapes, and a large cube.

use super::bench_rank::BenchRank;
use super::scratch::{ProductBytes, Scratch, Timing, fill, time_batches};
use anyhow::Result;
use base::DType;
use device::{Gemm, op};
use engine::model_dtype;
use estimate::measured::Product;
use manifest::Manifest;
use model::{ParamSpec, table};

/// Edge of the cube, if time and memory permit.
const CUBE: usize = 8192;

/// Rows of the first try, which determines how many rows fit into the time.
const TRIED_ROWS: usize = 64;

/// C [m, n] = A [m, k] · Bᵀ, B [n, k].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
}

/// Names of a block's products, in the order of the parameter table.
const NAMES: [&str; 4] = ["qkv", "projection", "ffn up", "ffn down"];

/// Products of a block's forward on one rank: rows of a micro-batch, shares of the weights.
fn block_shapes(m: &Manifest) -> [(&'static str, Shape); 4] {
    let rows = m.batch.micro * m.model.seq_len;
    let shape = |spec: &ParamSpec| {
        let [n, k] = spec.share(m.topology.tensor);
        Shape { m: rows, n, k }
    };
    let matrices: Vec<ParamSpec> = table(&m.model)
        .into_iter()
        .filter(ParamSpec::is_block_matrix)
        .collect();
    assert_eq!(matrices.len(), NAMES.len(), "matrices of a block");
    std::array::from_fn(|i| (NAMES[i], shape(&matrices[i])))
}

impl Shape {
    fn flops(self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes of A, B and C with the gaps between them.
    fn bytes(self, dtype: DType) -> usize {
        (self.m * self.k + self.n * self.k + self.m * self.n) * dtype.size() + 3 * 256
    }

    fn rows(self, m: usize) -> Shape {
        Shape { m, ..self }
    }
}

/// Memory of the products.
pub fn bytes(m: &Manifest) -> ProductBytes {
    let dtype = model_dtype(m.precision);
    let largest = |rows: usize| {
        let shapes = block_shapes(m).map(|(_, shape)| shape.rows(shape.m.min(rows)).bytes(dtype));
        shapes.into_iter().max().expect("four shapes")
    };
    let cube = Shape { m: CUBE, n: CUBE, k: CUBE }.bytes(dtype);
    ProductBytes { least: largest(TRIED_ROWS), most: largest(usize::MAX).max(cube) }
}

/// Measures the four products, and the cube. A collective: all ranks measure the same shapes.
pub fn measure(bench: &BenchRank, scratch: &Scratch) -> Result<(Vec<Product>, Product)> {
    let shapes = block_shapes(bench.m);
    let seconds = bench.allow(2.0, 0.3);
    // The clocks of a GPU settle after about a second of work.
    let warm_up = if bench.device.gpu().is_some() { bench.allow(1.0, 0.3) } else { 0.0 };
    let tried = shapes[0].1.rows(shapes[0].1.m.min(TRIED_ROWS));
    multiply(bench, scratch, tried, warm_up)?;
    let rows = rows(bench, scratch, &shapes.map(|(_, shape)| shape), seconds / 4.0)?;
    let mut products = Vec::new();
    let mut flops = 0.0;
    let mut spent = 0.0;
    for (name, shape) in shapes {
        let shape = shape.rows(rows);
        let took = multiply(bench, scratch, shape, seconds)?;
        (flops, spent) = (flops + shape.flops(), spent + took.mean);
        products.push(product(name, shape, took.best));
    }
    let slowest = bench
        .rank
        .all_gather(&(flops / spent))?
        .into_iter()
        .fold(f64::INFINITY, f64::min);
    let seconds = bench.allow(4.0, 0.6);
    let edge = cube_edge(slowest, seconds / 4.0, scratch.bytes, model_dtype(bench.m.precision));
    let cube = Shape { m: edge, n: edge, k: edge };
    Ok((products, product("cube", cube, multiply(bench, scratch, cube, seconds)?.best)))
}

/// Measures the four products once more and keeps the better figures.
pub fn measure_again(bench: &BenchRank, scratch: &Scratch, products: &mut [Product]) -> Result<()> {
    for one in products {
        let shape = Shape { m: one.m, n: one.n, k: one.k };
        let took = multiply(bench, scratch, shape, bench.allow(1.0, 0.15))?;
        one.tflops = one.tflops.max(shape.flops() / took.best / 1e12);
    }
    Ok(())
}

fn product(name: &str, shape: Shape, seconds: f64) -> Product {
    let Shape { m, n, k } = shape;
    Product { name: name.into(), m, n, k, tflops: shape.flops() / seconds / 1e12 }
}

/// Times products of a shape for `seconds`.
fn multiply(bench: &BenchRank, scratch: &Scratch, shape: Shape, seconds: f64) -> Result<Timing> {
    let be = bench.backend();
    let dtype = model_dtype(bench.m.precision);
    scratch.with(|arena| {
        let [a, b, c] = [(shape.m, shape.k), (shape.n, shape.k), (shape.m, shape.n)]
            .map(|(rows, cols)| arena.matrix(rows, cols, dtype));
        [a, b].into_iter().for_each(|x| fill(be, x));
        time_batches(be, seconds, || be.run(op::Gemm::plain(Gemm::NT, a, b, c.set())))
    })
}

/// Rows of the micro-batch, or a half, a quarter … of them, such that memory suffices and no
/// product takes longer than `limit` seconds on the slowest rank.
fn rows(bench: &BenchRank, scratch: &Scratch, shapes: &[Shape], limit: f64) -> Result<usize> {
    let all = shapes[0].m;
    let tried = all.min(TRIED_ROWS);
    let mut longest: f64 = 0.0;
    for shape in shapes {
        longest = longest.max(multiply(bench, scratch, shape.rows(tried), 0.0)?.mean);
    }
    let slowest = bench
        .rank
        .all_gather(&longest)?
        .into_iter()
        .fold(0.0, f64::max);
    let dtype = model_dtype(bench.m.precision);
    let fits = |rows: usize| {
        let bytes = shapes
            .iter()
            .map(|shape| shape.rows(rows).bytes(dtype))
            .max();
        slowest * rows as f64 / tried as f64 <= limit && bytes <= Some(scratch.bytes)
    };
    let fewer = std::iter::successors(Some(all), |rows| Some(rows / 2));
    Ok(fewer
        .take_while(|rows| *rows > tried)
        .find(|rows| fits(*rows))
        .unwrap_or(tried))
}

/// Largest edge of a cube that a rank multiplies at `rate` FLOP/s in `limit` seconds, in `room`
/// bytes.
fn cube_edge(rate: f64, limit: f64, room: usize, dtype: DType) -> usize {
    let fits = |edge: usize| {
        let cube = Shape { m: edge, n: edge, k: edge };
        cube.flops() / rate <= limit && cube.bytes(dtype) <= room
    };
    let edges = std::iter::successors(Some(CUBE), |edge| Some(edge / 2));
    edges
        .take_while(|edge| *edge > 256)
        .find(|edge| fits(*edge))
        .unwrap_or(256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use manifest::{self, Ffn, Model};

    #[test]
    fn shapes_are_those_of_a_ranks_share() {
        let text = "
model: {layers: 2, hidden: 64, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 3, global: 6}
lr: {peak: 1e-3}
train: {samples: 800}
topology: {tensor: 2}
";
        let m = manifest::parse(text, "test", std::path::Path::new("."), &[])
            .unwrap()
            .manifest;
        let shapes = block_shapes(&m).map(|(_, Shape { m, n, k })| (m, n, k));
        assert_eq!(shapes, [(24, 96, 64), (24, 64, 32), (24, 128, 64), (24, 64, 128)]);
        let gated = Manifest { model: Model { ffn: Ffn::Swiglu, ..m.model.clone() }, ..m.clone() };
        assert_eq!(block_shapes(&gated)[2].1, Shape { m: 24, n: 256, k: 64 }, "gate and up");
        assert_eq!(product("qkv", block_shapes(&m)[0].1, 1e-6).tflops, 2.0 * 24.0 * 96.0 * 64e-6);
    }

    #[test]
    fn the_cube_is_as_large_as_time_and_memory_allow() {
        // 8192³ is 1.1 TFLOP, and 3 × 128 MiB in bf16.
        assert_eq!(cube_edge(1.2e12, 1.0, 1 << 30, DType::BF16), 8192);
        assert_eq!(cube_edge(1e12, 1.0, 1 << 30, DType::BF16), 4096);
        assert_eq!(cube_edge(1.2e12, 1.0, 300 << 20, DType::BF16), 4096);
        assert_eq!(cube_edge(1e3, 1.0, 1 << 30, DType::BF16), 256);
    }
}
