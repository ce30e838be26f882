//! Matrix products by cuBLASLt, with their epilogues.
//!
//! The library thinks in columns: C = A·B in rows is Cᵀ = Bᵀ·Aᵀ in its columns, so our B is its A. A
//! plan (descriptors and algorithm) is made once for each kind, shape, dtype, epilogue and
//! alignment, and kept. Epilogues that the library cannot do (exact GELU; rows that are not a
//! multiple of 16 bytes; what its heuristic knows no algorithm for) are kernels of their own.

use super::Cuda;
use super::driver::{Device, Handle};
use super::launch::{Grid, typed, vector, wide};
use super::lt::{self, Algorithm, Api, Heuristic};
use crate::base::DType;
use crate::device::{Epilogue, Gelu, Gemm, Out, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    turn: [bool; 2],
    m: usize,
    n: usize,
    k: usize,
    /// Of A and B, and of C.
    dtypes: [DType; 2],
    epilogue: lt::Epilogue,
    /// Bytes that the addresses of A, B and C are multiples of, in the library's order.
    alignments: [usize; 3],
}

#[derive(Clone, Copy)]
struct Plan {
    descriptor: Handle,
    /// A, B and C.
    layouts: [Handle; 3],
    algorithm: Algorithm,
}

/// The library's handle and the plans so far.
pub struct Products {
    api: Api,
    handle: Handle,
    workspace_bytes: usize,
    /// None where the library has no algorithm.
    plans: RefCell<HashMap<Shape, Option<Plan>>>,
}

/// Operands of one product, in the library's order.
struct Operands {
    a: Tensor,
    b: Tensor,
    c: Out,
    bias: Option<Tensor>,
    aux: Option<Tensor>,
}

impl Products {
    pub fn new(api: Api, device: &Device, workspace_bytes: usize) -> Result<Products, String> {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a live variable.
        let code = device.try_call(|_| unsafe { (api.cublasLtCreate)(&mut handle) });
        if code != 0 {
            return Err(format!("cuBLASLt does not start: status {code}"));
        }
        Ok(Products { api, handle, workspace_bytes, plans: RefCell::default() })
    }

    /// Whether the library can do it; then it does.
    fn run(&self, device: &Device, workspace: usize, shape: Shape, on: &Operands) -> bool {
        let mut plans = self.plans.borrow_mut();
        let plan = *plans.entry(shape).or_insert_with(|| self.plan(device, &shape));
        let Some(plan) = plan else { return false };
        let set = |key, value: u64| self.describe(device, plan.descriptor, key, &value);
        if let Some(bias) = on.bias {
            set(lt::BIAS_POINTER, bias.addr() as u64);
        }
        if let Some(aux) = on.aux {
            set(lt::AUX_POINTER, aux.addr() as u64);
            set(lt::AUX_LD, shape.n as u64);
        }
        let (alpha, beta) = (1.0f32, if on.c.add { 1.0f32 } else { 0.0 });
        let [a, b, c] = [on.a, on.b, on.c.to].map(|x| x.addr() as u64);
        let [la, lb, lc] = plan.layouts;
        device.count_kernel();
        self.call(device, "a matrix product", |api| unsafe {
            (api.cublasLtMatmul)(
                self.handle,
                plan.descriptor,
                &alpha,
                a,
                la,
                b,
                lb,
                &beta,
                c,
                lc,
                c,
                lc,
                &plan.algorithm,
                workspace as u64,
                self.workspace_bytes,
                device.stream,
            )
        });
        true
    }

    /// Descriptors, and the algorithm that the library's heuristic puts first: the same in every run
    /// on the same GPU with the same library, so that a run can be repeated bit for bit.
    fn plan(&self, device: &Device, s: &Shape) -> Option<Plan> {
        let mut descriptor = null_mut();
        self.call(device, "describing a product", |api| unsafe {
            (api.cublasLtMatmulDescCreate)(&mut descriptor, lt::COMPUTE_F32, 0)
        });
        let [turn_a, turn_b] = s.turn.map(c_int::from);
        self.describe(device, descriptor, lt::TRANS_A, &turn_a);
        self.describe(device, descriptor, lt::TRANS_B, &turn_b);
        self.describe(device, descriptor, lt::EPILOGUE, &(s.epilogue as c_int));
        let layout = |dtype, rows: usize, cols: usize| {
            let mut layout = null_mut();
            let (rows, cols, kind) = (rows as u64, cols as u64, lt::data_type(dtype));
            self.call(device, "describing a matrix", |api| unsafe {
                (api.cublasLtMatrixLayoutCreate)(&mut layout, kind, rows, cols, rows as i64)
            });
            layout
        };
        let [operands, result] = s.dtypes;
        let layouts = [
            if s.turn[0] { layout(operands, s.k, s.n) } else { layout(operands, s.n, s.k) },
            if s.turn[1] { layout(operands, s.m, s.k) } else { layout(operands, s.k, s.m) },
            layout(result, s.n, s.m),
        ];
        let algorithm = self.choose(device, s, descriptor, layouts)?;
        Some(Plan { descriptor, layouts, algorithm })
    }

    fn choose(
        &self,
        device: &Device,
        s: &Shape,
        descriptor: Handle,
        l: [Handle; 3],
    ) -> Option<Algorithm> {
        let mut preference = null_mut();
        self.call(device, "choosing an algorithm", |api| unsafe {
            (api.cublasLtMatmulPreferenceCreate)(&mut preference)
        });
        let prefer = |key, value: *const c_void, bytes| {
            self.call(device, "choosing an algorithm", |api| unsafe {
                (api.cublasLtMatmulPreferenceSetAttribute)(preference, key, value, bytes)
            })
        };
        prefer(lt::MAX_WORKSPACE, (&raw const self.workspace_bytes).cast(), size_of::<usize>());
        let [a, b, c] = s.alignments;
        for (i, bytes) in [a, b, c, c].into_iter().enumerate() {
            let bytes = bytes as u32;
            prefer(lt::ALIGNMENT_A + i as c_int, (&raw const bytes).cast(), size_of::<u32>());
        }
        let (mut found, mut count) = (Heuristic::default(), 0);
        // A status of its own means that there is none.
        device.try_call(|_| unsafe {
            let [a, b, c] = l;
            (self.api.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                descriptor,
                a,
                b,
                c,
                c,
                preference,
                1,
                &mut found,
                &mut count,
            )
        });
        self.call(device, "choosing an algorithm", |api| unsafe {
            (api.cublasLtMatmulPreferenceDestroy)(preference)
        });
        (count > 0 && found.status == 0).then_some(found.algorithm)
    }

    fn describe<T>(&self, device: &Device, descriptor: Handle, key: c_int, value: &T) {
        self.call(device, "describing a product", |api| unsafe {
            let (value, bytes) = ((value as *const T).cast(), size_of::<T>());
            (api.cublasLtMatmulDescSetAttribute)(descriptor, key, value, bytes)
        });
    }

    fn call(&self, device: &Device, doing: &str, with: impl FnOnce(&Api) -> lt::Status) {
        let mut status = 0;
        device.call(doing, |_| {
            status = with(&self.api);
            0
        });
        if status != 0 {
            device.fail(format!("{doing}: cuBLASLt status {status}"));
        }
    }

    pub fn close(&self, device: &Device) {
        // SAFETY (here and below): each handle was made by the library and is used no more.
        for plan in self.plans.borrow().values().flatten() {
            device.try_call(|_| unsafe { (self.api.cublasLtMatmulDescDestroy)(plan.descriptor) });
            for layout in plan.layouts {
                device.try_call(|_| unsafe { (self.api.cublasLtMatrixLayoutDestroy)(layout) });
            }
        }
        device.try_call(|_| unsafe { (self.api.cublasLtDestroy)(self.handle) });
    }
}

pub(super) fn gemm(cuda: &Cuda, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
    let (m, k) = if kind == Gemm::TN { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let (n, depth) = if kind == Gemm::NT { (b.rows, b.cols) } else { (b.cols, b.rows) };
    assert_eq!(k, depth, "depth of A and B in {kind:?}: {a:?}, {b:?}");
    assert_eq!((c.to.rows, c.to.cols), (m, n), "{kind:?} of {a:?} and {b:?} into {:?}", c.to);
    assert_eq!(a.dtype, b.dtype, "dtypes of A and B");
    assert!(c.to.dtype == a.dtype || c.to.dtype == DType::F32, "dtype of C");
    let plain = matches!(then, Epilogue::Nothing);
    assert!(!c.add || plain, "accumulation has no epilogue");
    // What the library asks of epilogues: columns in eights, addresses in sixteens.
    let fits = |x: Tensor| x.addr().is_multiple_of(16) && x.dtype == c.to.dtype;
    let fused = n.is_multiple_of(8) && fits(c.to) && c.to.dtype == a.dtype;
    let multiply = |c, epilogue, bias, aux| {
        let turn = [kind == Gemm::NT, kind == Gemm::TN];
        multiply(cuda, turn, [m, n, k], epilogue, &Operands { a: b, b: a, c, bias, aux })
    };
    let plainly = |c: Out| {
        if !multiply(c, lt::Epilogue::Nothing, None, None) {
            cuda.device.fail(format!("cuBLASLt has no algorithm for {kind:?} of {a:?} and {b:?}"));
        }
    };
    match then {
        Epilogue::Nothing => plainly(c),
        Epilogue::Bias(bias) => {
            let fused = fused && fits(bias);
            if !(fused && multiply(c, lt::Epilogue::Bias, Some(bias), None)) {
                bias_rows(cuda, bias, c.to);
                plainly(c.to.add());
            }
        }
        Epilogue::BiasGelu { bias, pre, gelu } => {
            let fused = fused && gelu == Gelu::Tanh && fits(bias) && fits(pre);
            if !(fused && multiply(c, lt::Epilogue::GeluAuxBias, Some(bias), Some(pre))) {
                self::gemm(cuda, kind, a, b, pre.set(), Epilogue::Bias(bias));
                super::gelu::gelu(cuda, pre, gelu, c);
            }
        }
        Epilogue::GeluBackward { pre, gelu } => {
            let fused = fused && gelu == Gelu::Tanh && fits(pre);
            if !(fused && multiply(c, lt::Epilogue::GeluBackward, None, Some(pre))) {
                plainly(c);
                super::gelu::backward(cuda, pre, gelu, c.to);
            }
        }
    }
}

fn multiply(
    cuda: &Cuda,
    turn: [bool; 2],
    [m, n, k]: [usize; 3],
    epilogue: lt::Epilogue,
    on: &Operands,
) -> bool {
    let alignments = [on.a, on.b, on.c.to].map(|x| 1 << x.addr().trailing_zeros().min(8));
    let dtypes = [on.a.dtype, on.c.to.dtype];
    let shape = Shape { turn, m, n, k, dtypes, epilogue, alignments };
    cuda.products.run(&cuda.device, cuda.memory.workspace, shape, on)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct BiasRows {
    bias: u64,
    x: u64,
    rows: u64,
    cols: u32,
    vector: u32,
}

/// x = bias in every row.
fn bias_rows(cuda: &Cuda, bias: Tensor, x: Tensor) {
    assert_eq!((bias.numel(), bias.dtype), (x.cols, x.dtype), "bias");
    let vector = vector(x.cols, x.dtype, &[bias.addr(), x.addr()]);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = BiasRows {
        bias: bias.addr() as u64,
        x: x.addr() as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        vector: vector.into(),
    };
    cuda.launch(typed!("bias_rows", x.dtype), grid, arguments);
}
