//! Plans of products: descriptors and an algorithm, made once and kept.

use super::cache::AlgorithmCache;
use crate::cuda::Cuda;
use crate::cuda::device::Device;
use crate::cuda::elementwise::add_parts;
use crate::cuda::library::call;
use crate::cuda::lt::{self, Algorithm, Api};
use crate::{Out, Tensor};
use base::DType;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtHandle_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatrixLayout_t, cudaDataType_t,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;

/// Key of a plan. Prints as the name under which its algorithm is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub transpose: [bool; 2],
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Dtypes of A and B, and of C.
    pub dtypes: [DType; 2],
    pub epilogue: lt::Epilogue,
    /// Kind of operands in 8-bit floats, whose dtype is that of codes.
    pub fp8: Option<lt::Fp8Kind>,
    /// Whether operands in f32 are rounded to TF32.
    pub tf32: bool,
    /// Whether C accumulates.
    pub add: bool,
    /// SMs of the product; None: all.
    pub sms: Option<u32>,
    /// Bytes that the addresses of A, B, C, bias and auxiliary matrix are multiples of.
    pub alignments: [usize; 5],
}

/// Operands of one product, in the library's order.
#[derive(Clone, Copy)]
pub struct Operands {
    pub a: Tensor,
    pub b: Tensor,
    pub c: Out,
    /// Bias, or the tensor for its gradient.
    pub bias: Option<Tensor>,
    pub aux: Option<Tensor>,
    /// Destination to which that gradient is then added, because the library overwrites.
    pub db: Option<Out>,
    /// Kind of A and B in 8-bit floats, and their scales.
    pub fp8: Option<(lt::Fp8Kind, [Tensor; 2])>,
}

/// Scratch of products, followed by that of products that are then added, and by that of gradients of
/// biases.
#[derive(Clone, Copy)]
pub struct Workspace {
    address: usize,
    pub bytes: usize,
}

/// Bytes for a product that is then added, and for the gradient of a bias.
const PRODUCT: usize = 15 << 20;
const SUMS: usize = 1 << 20;

impl Workspace {
    pub fn new(address: usize, bytes: usize) -> Workspace {
        Workspace { address, bytes: bytes - PRODUCT - SUMS }
    }

    /// Scratch for the gradient of a bias, f32 [1, n]; None if it is too small.
    pub fn sums(&self, n: usize) -> Option<Tensor> {
        let sums = Tensor::at(self.address + self.bytes + PRODUCT, 1, n, DType::F32);
        (sums.bytes() <= SUMS).then_some(sums)
    }

    /// Scratch for some rows of a product, f32 [rows, n]: a multiple of 16 that fits, or `rows` if that
    /// is less.
    pub fn product(&self, rows: usize, n: usize) -> Tensor {
        let most = PRODUCT / (n * size_of::<f32>()) / 16 * 16;
        assert!(most > 0, "a product of {n} columns");
        Tensor::at(self.address + self.bytes, rows.min(most), n, DType::F32)
    }
}

#[derive(Clone, Copy)]
pub struct Plan {
    pub descriptor: cublasLtMatmulDesc_t,
    /// A, B and C.
    pub layouts: [cublasLtMatrixLayout_t; 3],
    /// None if the epilogue is computed by separate kernels.
    algorithm: Option<Algorithm>,
}

/// The library's handle and the plans so far.
pub struct Products {
    pub(super) api: Api,
    pub(super) handle: cublasLtHandle_t,
    pub(super) workspace: Workspace,
    /// Whether products of f32 may round their operands to TF32.
    pub(super) tf32: bool,
    /// None if the first proposal is used and nothing is timed.
    pub(super) algorithms: Option<AlgorithmCache>,
    /// Products timed so far.
    pub(super) timed: Cell<usize>,
    plans: RefCell<HashMap<Shape, Plan>>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self
            .transpose
            .map(|transpose| if transpose { "T" } else { "N" });
        let [operands, result] = self.dtypes;
        let Shape { m, n, k, epilogue, .. } = self;
        let rounded = if self.tf32 { " tf32" } else { "" };
        let onto = if self.add { "+=" } else { "=" };
        write!(f, "{a}{b} {m}x{n}x{k} {result} {onto} {operands}{rounded} {epilogue:?}")?;
        self.fp8.iter().try_for_each(|kind| write!(f, "{kind}"))?;
        self.sms
            .iter()
            .try_for_each(|sms| write!(f, " on {sms} SMs"))?;
        self.alignments
            .iter()
            .try_for_each(|bytes| write!(f, " {bytes}"))
    }
}

impl Operands {
    /// Outputs that accumulate, which can be computed only once.
    pub fn accumulated_outputs(&self) -> impl Iterator<Item = Tensor> {
        let outs = [Some(self.c), self.db].into_iter().flatten();
        outs.filter(|out| out.add).map(|out| out.to)
    }

    /// Dtype of C for which the library fuses epilogues.
    pub fn result(&self) -> DType {
        if self.fp8.is_some() { DType::BF16 } else { self.a.dtype }
    }

    /// Key of the plan for these operands.
    pub fn shape(
        &self,
        cuda: &Cuda,
        transpose: [bool; 2],
        [m, n, k]: [usize; 3],
        epilogue: lt::Epilogue,
    ) -> Shape {
        let tensors = [Some(self.a), Some(self.b), Some(self.c.to), self.bias, self.aux];
        let alignments = tensors.map(|x| x.map_or(0, |x| 1 << x.addr().trailing_zeros().min(8)));
        let dtypes = [self.a.dtype, self.c.to.dtype];
        let tf32 = cuda.products.tf32 && self.a.dtype == DType::F32;
        let fp8 = self.fp8.map(|(kind, _)| kind);
        let add = self.c.add;
        let sms = cuda.device.sm_margin.product_sms();
        Shape { transpose, m, n, k, dtypes, epilogue, fp8, tf32, add, sms, alignments }
    }
}

impl Products {
    pub fn new(
        api: Api,
        device: &Device,
        workspace: Workspace,
        algorithms: Option<AlgorithmCache>,
        tf32: bool,
    ) -> Result<Products, String> {
        let mut handle = null_mut();
        // SAFETY: the context is bound; the handle is written to the live variable.
        let code = device.try_call(|_| unsafe { call!(api, cublasLtCreate(&mut handle)) });
        if code != 0 {
            return Err(format!("cuBLASLt does not start: status {code}"));
        }
        let plans = RefCell::default();
        let timed = Cell::new(0);
        Ok(Products { api, handle, workspace, tf32, algorithms, timed, plans })
    }

    /// Choices stored on disk; None if none are.
    pub fn cache(&self) -> Option<&AlgorithmCache> {
        self.algorithms.as_ref()
    }

    pub fn timed(&self) -> usize {
        self.timed.get()
    }

    /// C (+)= A·B with its epilogue by the library. Runs `unfused`, which does the same in several
    /// steps, if the library has no algorithm, or is slower.
    pub fn run(&self, cuda: &Cuda, shape: Shape, on: &Operands, unfused: Option<&dyn Fn()>) {
        let known = self.plans.borrow().get(&shape).copied();
        let plan = known.unwrap_or_else(|| self.plan(cuda, shape, on, unfused));
        match (plan.algorithm, unfused) {
            (Some(algorithm), _) => {
                let status = self.multiply(cuda, &plan, &algorithm, on);
                if let (1.., Some(unfused)) = (status, unfused) {
                    // The heuristic proposes algorithms without the value of beta. The library answers
                    // NOT_SUPPORTED or INVALID_VALUE, by the setting that it cannot combine.
                    self.plans
                        .borrow_mut()
                        .insert(shape, Plan { algorithm: None, ..plan });
                    return unfused();
                }
                self.expect(&cuda.device, "a matrix product", status);
                let flops = 2.0 * shape.m as f64 * shape.n as f64 * shape.k as f64;
                cuda.device
                    .note_launch(|| format!("product {shape}"), flops);
            }
            (None, Some(unfused)) => unfused(),
            (None, None) => {
                let remedy = if shape.fp8.is_some() { ": set precision to bf16" } else { "" };
                cuda.device
                    .fail(format!("cuBLASLt has no algorithm for {shape}{remedy}"));
            }
        }
    }

    fn plan(&self, cuda: &Cuda, s: Shape, on: &Operands, unfused: Option<&dyn Fn()>) -> Plan {
        let device = &cuda.device;
        // f32 arithmetic on operands of any dtype, or on f32 operands rounded to TF32.
        let compute = if s.tf32 {
            Compute::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            Compute::CUBLAS_COMPUTE_32F
        };
        let mut descriptor = null_mut();
        // SAFETY: the handle is written to the live variable.
        self.call(device, "describing a product", |api| unsafe {
            let scale = cudaDataType_t::CUDA_R_32F;
            call!(api, cublasLtMatmulDescCreate(&mut descriptor, compute, scale))
        });
        let [trans_a, trans_b] = s.transpose.map(i32::from);
        let set = |key, value: i32| self.set_attribute(device, descriptor, key, &value);
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, trans_a);
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, trans_b);
        set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, s.epilogue.attribute() as i32);
        if let Some(sms) = s.sms {
            set(Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms as i32);
        }
        if let Some(kind) = s.fp8 {
            self.describe_fp8(device, descriptor, kind);
        }
        let layout = |kind, rows: usize, cols: usize| {
            let mut layout = null_mut();
            let rows = rows as u64;
            let cols = cols as u64;
            // SAFETY: the handle is written to the live variable.
            self.call(device, "describing a matrix", |api| unsafe {
                let stride = rows as i64;
                call!(api, cublasLtMatrixLayoutCreate(&mut layout, kind, rows, cols, stride))
            });
            layout
        };
        let [of_a, of_b] = match s.fp8 {
            Some(kind) => kind.formats.map(lt::fp8_type),
            None => [lt::data_type(s.dtypes[0]); 2],
        };
        let layouts = [
            if s.transpose[0] { layout(of_a, s.k, s.n) } else { layout(of_a, s.n, s.k) },
            if s.transpose[1] { layout(of_b, s.m, s.k) } else { layout(of_b, s.k, s.m) },
            layout(lt::data_type(s.dtypes[1]), s.n, s.m),
        ];
        let mut plan = Plan { descriptor, layouts, algorithm: None };
        // The heuristic reads the alignment of pointers.
        self.set_pointers(device, &plan, on);
        plan.algorithm = self.choose(cuda, &plan, &s, on, unfused);
        self.plans.borrow_mut().insert(s, plan);
        plan
    }

    /// Enqueues the product and returns the library's status.
    pub(super) fn multiply(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        algorithm: &Algorithm,
        on: &Operands,
    ) -> lt::Status {
        let device = &cuda.device;
        self.set_pointers(device, plan, on);
        let alpha = 1.0f32;
        let beta = if on.c.add { 1.0f32 } else { 0.0 };
        let [a, b, c] = [on.a, on.b, on.c.to].map(|x| x.addr() as *mut c_void);
        let [la, lb, lc] = plan.layouts;
        device.count_kernel();
        // SAFETY: the handles are the library's, kept until `close`. A, B, C, bias and auxiliary matrix
        // are tensors of the shapes that the plan's layouts say (`shape`), and the scratch is the
        // workspace's; all are device memory of the backend. alpha and beta are read before the call
        // returns (CUBLASLT_POINTER_MODE_HOST).
        let status = self.try_call(device, |api| unsafe {
            call!(
                api,
                cublasLtMatmul(
                    self.handle,
                    plan.descriptor,
                    (&raw const alpha).cast(),
                    a,
                    la,
                    b,
                    lb,
                    (&raw const beta).cast(),
                    c,
                    lc,
                    c,
                    lc,
                    algorithm,
                    self.workspace.address as *mut c_void,
                    self.workspace.bytes,
                    device.stream.cast(),
                )
            )
        });
        if let (Some(sums), Some(db), 0) = (on.bias, on.db, status) {
            add_parts(cuda, sums.addr(), 0, 1, [Some(db)]);
        }
        status
    }

    /// Sets the descriptor's addresses of scales, bias and auxiliary matrix.
    fn set_pointers(&self, device: &Device, plan: &Plan, on: &Operands) {
        let set = |key, value: u64| self.set_attribute(device, plan.descriptor, key, &value);
        if let Some((_, scales)) = on.fp8 {
            self.set_scales(device, plan.descriptor, scales);
        }
        if let Some(bias) = on.bias {
            set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.addr() as u64);
        }
        if let Some(aux) = on.aux {
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.addr() as u64);
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux.cols as u64);
        }
    }

    pub(super) fn set_attribute<T>(
        &self,
        device: &Device,
        descriptor: cublasLtMatmulDesc_t,
        key: Attribute,
        value: &T,
    ) {
        // SAFETY: the descriptor is the library's, which copies `size_of::<T>()` bytes of the value, and
        // refuses a key whose value has another size.
        self.call(device, "describing a product", |api| unsafe {
            let value = (value as *const T).cast();
            let bytes = size_of::<T>();
            call!(api, cublasLtMatmulDescSetAttribute(descriptor, key, value, bytes))
        });
    }

    /// Calls the library, unless the device has failed; a status other than 0 is a failure.
    pub(super) fn call(&self, device: &Device, doing: &str, with: impl FnOnce(&Api) -> lt::Status) {
        let status = self.try_call(device, with);
        self.expect(device, doing, status);
    }

    /// As `call`, for a caller that handles the status.
    pub(super) fn try_call(
        &self,
        device: &Device,
        with: impl FnOnce(&Api) -> lt::Status,
    ) -> lt::Status {
        let mut status = 0;
        device.call("cuBLASLt", |_| {
            status = with(&self.api);
            0
        });
        status
    }

    fn expect(&self, device: &Device, doing: &str, status: lt::Status) {
        if status != 0 {
            device.fail(format!("{doing}: cuBLASLt status {status}"));
        }
    }

    pub fn close(&self, device: &Device) {
        for plan in self.plans.borrow().values() {
            // SAFETY: the descriptor is the library's, and used no more.
            device.try_call(|_| unsafe {
                call!(self.api, cublasLtMatmulDescDestroy(plan.descriptor))
            });
            for layout in plan.layouts {
                // SAFETY: the layout is the library's, and used no more.
                device
                    .try_call(|_| unsafe { call!(self.api, cublasLtMatrixLayoutDestroy(layout)) });
            }
        }
        // SAFETY: the handle is the library's, and used no more.
        device.try_call(|_| unsafe { call!(self.api, cublasLtDestroy(self.handle)) });
    }
}
