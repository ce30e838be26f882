//! Host helpers: tensors from numbers, numbers from tensors, and what is to be equal to what.

use crate::softgpu;
use gptrain::base::{DType, rng};
use gptrain::device::{Arena, Backend, Dropout, Op, Tensor};
use half::{bf16, f16};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A tensor and the numbers in it, as rounded to its dtype.
#[derive(Clone)]
pub struct Known {
    pub on: Tensor,
    pub x: Vec<f64>,
}

/// An output: its name, dtype and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub name: String,
    pub dtype: DType,
    pub bytes: Vec<u8>,
}

impl Seen {
    pub fn numbers(&self) -> Vec<f64> {
        match self.dtype {
            DType::F32 => self
                .bytes
                .chunks_exact(4)
                .map(|b| f32_of(b) as f64)
                .collect(),
            DType::BF16 => self
                .bytes
                .chunks_exact(2)
                .map(|b| bf16_of(b).to_f64())
                .collect(),
            DType::F16 => self
                .bytes
                .chunks_exact(2)
                .map(|b| f16_of(b).to_f64())
                .collect(),
            DType::U8 => self.bytes.iter().map(|byte| f64::from(*byte)).collect(),
            other => panic!("numbers of {other}"),
        }
    }
}

/// More than a warp's widest store.
const CANARY: [u8; 512] = [0xa5; 512];

/// A backend under test, and what its ops gave.
pub struct Bench<'a> {
    pub backend: &'a dyn Backend,
    /// Dtype of activations, weights and gradients in flight.
    pub dtype: DType,
    /// Whether to compare with definitions, or only to keep what ops give.
    compare: bool,
    /// Whether an epilogue gives the same bits as the op that repeats it.
    exact: bool,
    arena: Arena,
    /// Behind each tensor: bytes that no op may change.
    canaries: RefCell<Vec<Tensor>>,
    streams: Cell<u64>,
    /// Kinds of the ops that ran.
    kinds: RefCell<BTreeSet<&'static str>>,
    seen: RefCell<Vec<Seen>>,
    wrong: RefCell<Vec<String>>,
}

impl<'a> Bench<'a> {
    pub fn new(backend: &'a dyn Backend, dtype: DType, compare: bool) -> Bench<'a> {
        let arena = Arena::new(backend, 64 << 20).expect("64 MiB");
        Bench {
            backend,
            dtype,
            compare,
            exact: true,
            arena,
            canaries: RefCell::default(),
            streams: Cell::new(0),
            kinds: RefCell::default(),
            seen: RefCell::default(),
            wrong: RefCell::default(),
        }
    }

    pub fn run<'b>(&self, op: impl Into<Op<'b>>) {
        let op = op.into();
        self.kinds.borrow_mut().insert(op.kind());
        self.backend.run(op);
    }

    /// Kinds of the ops that ran.
    pub fn kinds(&self) -> BTreeSet<&'static str> {
        self.kinds.take()
    }

    /// A tensor, and a canary right behind it.
    fn place(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let bytes = rows * cols * dtype.size();
        let all = self.arena.matrix(1, bytes + CANARY.len(), DType::U8);
        let canary = all.span(bytes, CANARY.len());
        self.backend.upload(&CANARY, canary);
        self.canaries.borrow_mut().push(canary);
        Tensor::at(all.addr(), rows, cols, dtype)
    }

    /// Error if an op wrote beyond a tensor.
    fn overrun(&self) -> Option<String> {
        let canaries = self.canaries.borrow();
        let at = canaries
            .iter()
            .position(|canary| self.bytes(*canary) != CANARY)?;
        Some(format!("an op wrote behind the tensor that was made as number {at}"))
    }

    /// For a backend whose epilogues see what is rounded afterwards.
    pub fn with_fused_epilogues(self) -> Bench<'a> {
        Bench { exact: false, ..self }
    }

    pub fn wrong(&self) -> Vec<String> {
        self.wrong
            .take()
            .into_iter()
            .chain(self.overrun())
            .collect()
    }

    /// Every output, in order.
    pub fn seen(&self) -> Vec<Seen> {
        assert_eq!(self.overrun(), None);
        self.seen.take()
    }

    pub fn known(&self, rows: usize, cols: usize, dtype: DType, x: &[f64]) -> Known {
        let on = self.place(rows, cols, dtype);
        let (bytes, x) = rounded(dtype, x);
        self.backend.upload(&bytes, on);
        Known { on, x }
    }

    /// Standard normals in f32, other ones at each call.
    pub fn normal_f32(&self, rows: usize, cols: usize) -> Known {
        self.streams.set(self.streams.get() + 1);
        let mut x = vec![0.0; rows * cols];
        rng::normals(self.streams.get(), 0, &mut x);
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        self.known(rows, cols, DType::F32, &x)
    }

    /// Standard normals in the dtype of activations.
    pub fn normal(&self, rows: usize, cols: usize) -> Known {
        let exact = self.normal_f32(rows, cols).x;
        self.known(rows, cols, self.dtype, &exact)
    }

    /// A copy in other memory.
    pub fn again(&self, x: &Known) -> Known {
        self.known(x.on.rows, x.on.cols, x.on.dtype, &x.x)
    }

    /// A tensor to be overwritten; holds NaN, which is what it must not hold afterwards.
    pub fn blank(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.known(rows, cols, dtype, &vec![f64::NAN; rows * cols])
            .on
    }

    pub fn integers(&self, rows: usize, cols: usize, x: &[i32]) -> Tensor {
        let on = self.place(rows, cols, DType::I32);
        self.backend.upload(bytemuck::cast_slice(x), on);
        on
    }

    pub fn longs(&self, x: &[i64]) -> Tensor {
        let on = self.place(1, x.len(), DType::I64);
        self.backend.upload(bytemuck::cast_slice(x), on);
        on
    }

    pub fn dropout(&self, rate: f32, first_sample: i64, seq: usize, first_row: usize) -> Dropout {
        let first_sample = self.longs(&[first_sample]);
        Dropout { rate, key: rng::key(7, "bench"), first_sample, seq, first_row }
    }

    pub fn bytes(&self, x: Tensor) -> Vec<u8> {
        let mut bytes = vec![0; x.bytes()];
        self.backend.download(x, &mut bytes);
        bytes
    }

    pub fn numbers(&self, x: Tensor) -> Vec<f64> {
        Seen { name: String::new(), dtype: x.dtype, bytes: self.bytes(x) }.numbers()
    }

    /// Holds an output to its definition. Tolerances, relative to the largest number wanted: in f32
    /// 4e-6, sums of a thousand terms rounded once each; in bf16 2^-8 and in f16 2^-10, a few
    /// roundings, and twice that where an epilogue may be an op of its own that rounds once more.
    pub fn expect(&self, name: &str, got: Tensor, want: impl FnOnce() -> Vec<f64>) {
        self.expect_within(self.tolerance(got.dtype), name, got, want);
    }

    /// Holds an output to its definition, to the bit.
    pub fn exactly(&self, name: &str, got: Tensor, want: impl FnOnce() -> Vec<f64>) {
        self.expect_within(0.0, name, got, want);
    }

    fn tolerance(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F32 => 4e-6,
            DType::F16 if self.exact => 1.0 / 1024.0,
            DType::F16 => 1.0 / 512.0,
            _ if self.exact => 1.0 / 256.0,
            _ => 1.0 / 128.0,
        }
    }

    /// Holds an activation that a product's epilogue may compute to its definition. In f32 a GPU's own
    /// may take the hardware's tanh, right to 2^-11: 1e-3.
    pub fn expect_activation(&self, name: &str, got: Tensor, want: impl FnOnce() -> Vec<f64>) {
        self.expect_within(self.activation_tolerance(got.dtype), name, got, want);
    }

    fn activation_tolerance(&self, dtype: DType) -> f64 {
        let hardware = !self.exact && softgpu::is_real();
        if dtype == DType::F32 && hardware { 1e-3 } else { self.tolerance(dtype) }
    }

    pub fn expect_within(
        &self,
        tolerance: f64,
        name: &str,
        got: Tensor,
        want: impl FnOnce() -> Vec<f64>,
    ) {
        let seen = Seen { name: name.into(), dtype: got.dtype, bytes: self.bytes(got) };
        self.seen.borrow_mut().push(seen);
        if self.compare {
            self.close(tolerance, name, &self.numbers(got), &want());
        }
    }

    fn close(&self, tolerance: f64, name: &str, got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len(), "{name}: the definition has another size");
        let finite = want.iter().filter(|x| x.is_finite());
        let largest = finite.fold(0.0, |a: f64, b| a.max(b.abs()));
        let off = |(got, want): (&f64, &f64)| match want.is_finite() {
            true => (got - want).abs(),
            false if got == want || (got.is_nan() && want.is_nan()) => 0.0,
            false => f64::NAN,
        };
        for (i, pair) in got.iter().zip(want).enumerate() {
            // Written so that NaN is wrong.
            if !matches!(off(pair), error if error <= tolerance * largest) {
                let what = format!("{name}[{i}] = {} for {}", pair.0, pair.1);
                self.wrong
                    .borrow_mut()
                    .push(format!("{what} (largest {largest})"));
                return;
            }
        }
    }

    /// Holds an output to what it rebuilds: its bits where the backend promises them.
    pub fn rebuilt(&self, name: &str, first: Tensor, again: Tensor) {
        if self.exact {
            self.same(name, first, again)
        } else {
            let (first, again, dtype) = (self.numbers(first), self.numbers(again), first.dtype);
            self.close(self.activation_tolerance(dtype), name, &again, &first);
        }
    }

    /// Holds two outputs to the same bits.
    pub fn same(&self, name: &str, a: Tensor, b: Tensor) {
        if self.bytes(a) != self.bytes(b) {
            self.wrong.borrow_mut().push(format!("{name}: other bits"));
        }
    }
}

/// Bytes of numbers in a dtype, and the numbers these bytes are.
fn rounded(dtype: DType, x: &[f64]) -> (Vec<u8>, Vec<f64>) {
    match dtype {
        DType::F32 => {
            let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let bytes = bytemuck::cast_slice(&x).to_vec();
            (bytes, x.into_iter().map(f64::from).collect())
        }
        DType::BF16 => {
            let x: Vec<bf16> = x.iter().map(|x| bf16::from_f64(*x)).collect();
            let bytes = bytemuck::cast_slice(&x).to_vec();
            (bytes, x.into_iter().map(f64::from).collect())
        }
        DType::F16 => {
            let x: Vec<f16> = x.iter().map(|x| f16::from_f64(*x)).collect();
            let bytes = bytemuck::cast_slice(&x).to_vec();
            (bytes, x.into_iter().map(f64::from).collect())
        }
        DType::U8 => (x.iter().map(|x| *x as u8).collect(), x.to_vec()),
        other => panic!("numbers in {other}"),
    }
}

fn f32_of(b: &[u8]) -> f32 {
    f32::from_ne_bytes([b[0], b[1], b[2], b[3]])
}

fn f16_of(b: &[u8]) -> f16 {
    f16::from_ne_bytes([b[0], b[1]])
}

fn bf16_of(b: &[u8]) -> bf16 {
    bf16::from_ne_bytes([b[0], b[1]])
}
