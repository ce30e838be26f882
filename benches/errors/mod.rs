//! Attention, epilogues of products, activations and norms of a model at full size. The results go
//! to files; `benches/torch_errors.py` repeats the ops in f64 and in bf16 by PyTorch on the same
//! numbers, and prints the largest relative error of both. The op tests check small shapes; this
//! also covers the kernels, grids and algorithms of large ones.

use crate::Shape;
use crate::products::{drawn, fill};
use gptrain::base::{DType, Heads};
use gptrain::device::{
    Arena, Attend, Backend, Dropout, Epilogue, Gelu, Gemm, Norm, Tensor, Visible, op,
};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const EPS: f32 = 1e-5;

/// Op with its tensors, as PyTorch repeats it.
struct Case<'a> {
    be: &'a dyn Backend,
    arena: &'a Arena,
    folder: &'a Path,
    name: &'static str,
    inputs: Map<String, Value>,
    outputs: Vec<(&'static str, Tensor)>,
}

/// Prints a table of largest errors. Ends the process with exit code 1 if one exceeds its bound.
pub fn compare(be: &dyn Backend, name: &str, shape: &Shape) {
    let python = env::var("PYTHON").unwrap_or("python3".into());
    let script = env::var("TORCH_ERRORS").unwrap_or("benches/torch_errors.py".into());
    let run = |words: &[&str]| Command::new(&python).arg(&script).args(words).output();
    match run(&[]) {
        Ok(done) if done.status.success() => (),
        Ok(done) => return print!("{}", String::from_utf8_lossy(&done.stdout)),
        Err(why) => return println!("no PyTorch to compare errors with: {python}: {why}"),
    }
    let folder = env::temp_dir().join(format!("gptrain-errors-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for results");
    let (n, h, f) = (shape.samples * shape.seq, shape.hidden, shape.ffn);
    // As much as any case needs.
    let room = 2 * n * (6 * f + 4 * shape.heads.qkv_width() + 4 * h) + 8 * f * h + (4 << 20);
    let memory = Arena::new(be, room).expect("memory");
    let cases = if shape.gated {
        vec![attention, swiglu, residual_norm, norm_backward]
    } else {
        vec![attention, bias, bias_gelu, gelu_backward, weights, residual_norm, norm_backward]
    };
    let cases = cases.into_iter().map(|ops: fn(&mut Case, &Shape)| {
        memory.temporary(|arena| {
            let (inputs, outputs) = (Map::new(), Vec::new());
            let mut case = Case { be, arena, folder: &folder, name: "", inputs, outputs };
            ops(&mut case, shape);
            case.finish()
        })
    });
    let Shape { heads: Heads { query, kv, dim }, seq, .. } = *shape;
    let sizes = json!({"query": query, "kv": kv, "dim": dim, "seq": seq, "eps": EPS});
    let all = json!({"sizes": sizes, "cases": cases.collect::<Vec<_>>()});
    fs::write(folder.join("cases.json"), all.to_string()).expect("the list of cases");
    let done = run(&[folder.to_str().expect("a folder in UTF-8")]);
    fs::remove_dir_all(&folder).expect("results are removed");
    let done = done.expect("PyTorch, which was there");
    print!("{}", String::from_utf8_lossy(&done.stdout));
    if !done.status.success() {
        eprint!("{}", String::from_utf8_lossy(&done.stderr));
        println!("{name}: an error exceeds its bound, or PyTorch failed");
        std::process::exit(1);
    }
}

impl Case<'_> {
    /// bf16 normals that repeat with a period, which the file has once.
    fn input(&mut self, name: &'static str, rows: usize, cols: usize, deviation: f32) -> Tensor {
        let values = drawn(self.inputs.len() as u64 + 1, deviation);
        fs::write(self.file(name), bytemuck::cast_slice(&values)).expect("numbers of an input");
        self.inputs.insert(name.into(), json!([rows, cols]));
        let x = self.arena.matrix(rows, cols, DType::BF16);
        fill(self.be, &values, x);
        x
    }

    fn output(&mut self, name: &'static str, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let x = self.arena.matrix(rows, cols, dtype);
        self.be.run(op::Zero { x: x.set() });
        self.outputs.push((name, x));
        x
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}-{name}", self.name))
    }

    /// Writes the outputs, and describes the case.
    fn finish(self) -> Value {
        for (name, x) in &self.outputs {
            let mut bytes = vec![0; x.bytes()];
            self.be.download(*x, &mut bytes);
            fs::write(self.file(name), bytes).expect("numbers of an output");
        }
        self.be.sync().unwrap_or_else(|why| panic!("{why:#}"));
        let output =
            |(name, x): &(&str, Tensor)| json!([name, x.rows, x.cols, x.dtype.to_string()]);
        let outputs: Vec<Value> = self.outputs.iter().map(output).collect();
        json!({"name": self.name, "inputs": self.inputs, "outputs": outputs})
    }

    fn no_dropout(&self) -> Dropout {
        let first_sample = self.arena.matrix(1, 1, DType::I64);
        Dropout { rate: 0.0, key: 1, first_sample, seq: 1, first_row: 0 }
    }

    /// Scale of ones and more, and a shift for a layer norm.
    fn norm(&mut self, h: usize, rms: bool) -> Norm {
        let scale = self.input("scale", 1, h, 1.0);
        if rms {
            Norm::Rms { scale, eps: EPS }
        } else {
            Norm::Layer { scale, shift: self.input("shift", 1, h, 1.0), eps: EPS }
        }
    }
}

fn attention(case: &mut Case, shape: &Shape) {
    case.name = "attention";
    let (n, heads) = (shape.samples * shape.seq, shape.heads);
    let qkv = case.input("qkv", n, heads.qkv_width(), 1.0);
    let dy = case.input("dy", n, heads.query_width(), 1.0);
    let y = case.output("y", n, heads.query_width(), DType::BF16);
    let dqkv = case.output("dqkv", n, heads.qkv_width(), DType::BF16);
    let lse = case.arena.matrix(n, heads.query, DType::F32);
    let attend = Attend {
        heads,
        first_head: 0,
        scale: 1.0 / (heads.dim as f32).sqrt(),
        seq: shape.seq,
        visible: Visible::Causal,
        window: None,
        slopes: None,
        dropout: case.no_dropout(),
    };
    case.be
        .run(op::Attention { qkv, attend, y: y.set(), lse: lse.set() });
    case.be
        .run(op::AttentionBackward { dy, qkv, y, lse, attend, dqkv: dqkv.set() });
}

/// Input [N, H], and weights that keep the deviation of 1.
fn of_product(case: &mut Case, shape: &Shape, out: usize) -> [Tensor; 3] {
    let (n, h) = (shape.samples * shape.seq, shape.hidden);
    let x = case.input("x", n, h, 1.0);
    let w = case.input("w", out, h, 1.0 / (h as f32).sqrt());
    [x, w, case.input("bias", 1, out, 1.0)]
}

fn bias(case: &mut Case, shape: &Shape) {
    case.name = "bias";
    let [a, b, bias] = of_product(case, shape, shape.heads.qkv_width());
    let c = case.output("y", a.rows, b.rows, DType::BF16).set();
    case.be
        .run(op::Gemm { kind: Gemm::NT, a, b, c, then: Epilogue::Bias(bias) });
}

fn bias_gelu(case: &mut Case, shape: &Shape) {
    case.name = "bias_gelu";
    let [a, b, bias] = of_product(case, shape, shape.ffn);
    let pre = case.output("pre", a.rows, b.rows, DType::BF16);
    let c = case.output("y", a.rows, b.rows, DType::BF16).set();
    let then = Epilogue::BiasGelu { bias: Some(bias), pre, gelu: Gelu::Tanh };
    case.be.run(op::Gemm { kind: Gemm::NT, a, b, c, then });
}

fn gelu_backward(case: &mut Case, shape: &Shape) {
    case.name = "gelu_backward";
    let (n, h, f) = (shape.samples * shape.seq, shape.hidden, shape.ffn);
    let a = case.input("dy", n, h, 1.0);
    let b = case.input("w", h, f, 1.0 / (h as f32).sqrt());
    let pre = case.input("pre", n, f, 1.0);
    let c = case.output("dx", n, f, DType::BF16).set();
    let then = Epilogue::GeluBackward { pre, gelu: Gelu::Tanh };
    case.be.run(op::Gemm { kind: Gemm::NN, a, b, c, then });
}

fn weights(case: &mut Case, shape: &Shape) {
    case.name = "weights";
    let (n, h, f) = (shape.samples * shape.seq, shape.hidden, shape.ffn);
    let (a, b) = (case.input("dy", n, f, 1.0), case.input("x", n, h, 1.0));
    let c = case.output("dw", f, h, DType::F32).add();
    let then = Epilogue::BiasBackward(case.output("db", 1, f, DType::F32).add());
    case.be.run(op::Gemm { kind: Gemm::TN, a, b, c, then });
}

fn swiglu(case: &mut Case, shape: &Shape) {
    case.name = "swiglu";
    let (n, f) = (shape.samples * shape.seq, shape.ffn);
    let (x, dy) = (case.input("x", n, 2 * f, 1.0), case.input("dy", n, f, 1.0));
    let y = case.output("y", n, f, DType::BF16).set();
    let dx = case.output("dx", n, 2 * f, DType::BF16).set();
    case.be.run(op::Swiglu { x, y });
    case.be.run(op::SwigluBackward { dy, x, dx });
}

fn residual_norm(case: &mut Case, shape: &Shape) {
    case.name = "residual_norm";
    let (n, h) = (shape.samples * shape.seq, shape.hidden);
    let (x, branch) = (case.input("x", n, h, 1.0), case.input("branch", n, h, 1.0));
    let bias = (!shape.gated).then(|| case.input("bias", 1, h, 1.0));
    let norm = case.norm(h, shape.gated);
    let [y, normed] = ["y", "h"].map(|name| case.output(name, n, h, DType::BF16).set());
    let stats = case.arena.matrix(n, 2, DType::F32).set();
    let drop = case.no_dropout();
    let residual = op::Residual { x, branch, bias, drop, y };
    let norm = op::LayerNorm { x: y.to, norm, y: normed, stats };
    case.be.run(op::ResidualNorm { residual, norm });
}

fn norm_backward(case: &mut Case, shape: &Shape) {
    case.name = "norm_backward";
    let (n, h) = (shape.samples * shape.seq, shape.hidden);
    let (x, dy) = (case.input("x", n, h, 1.0), case.input("dy", n, h, 1.0));
    // The gradient that arrives past the block, to which that of the norm is added.
    let dx = case.input("dresidual", n, h, 1.0);
    case.outputs.push(("dx", dx));
    let norm = case.norm(h, shape.gated);
    let (scale, shift, _) = norm.parts();
    let stats = case.arena.matrix(n, 2, DType::F32);
    let y = case.arena.matrix(n, h, DType::BF16).set();
    case.be
        .run(op::LayerNorm { x, norm, y, stats: stats.set() });
    let dscale = case.output("dscale", 1, h, DType::F32).add();
    let dshift = shift.map(|_| case.output("dshift", 1, h, DType::F32).add());
    let dbias = (!shape.gated).then(|| case.output("dbias", 1, h, DType::F32).add());
    let residual = op::ResidualBackward { dy: dx, drop: case.no_dropout(), dbranch: None, dbias };
    let dx = dx.add();
    let norm = op::LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift };
    case.be.run(op::NormResidualBackward { norm, residual });
}
