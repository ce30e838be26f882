//! Kernels by name, and the shapes of grids.

use super::device::Device;
use super::library::call;
use crate::Tensor;
use anyhow::{Context, Result, ensure};
use base::DType;
use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUmodule};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::fs;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Compute capabilities, times ten: the minimum of the kernels that are always compiled, and that of
/// the optional ones.
pub const AMPERE: i32 = 80;
pub const VOLTA: i32 = 70;
/// Minimum for fp8 products.
pub const ADA: i32 = 89;

/// Compiled kernels.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Version of the compiler, as the driver counts: 13000 is 13.0.
    pub release: i32,
    /// Name and image of each file of `kernels/`.
    pub images: &'static [(&'static str, &'static [u8])],
}

impl Kernels {
    /// Kernels in this binary, if it was built with a compiler for them.
    pub fn embedded() -> Option<Kernels> {
        EMBEDDED
    }

    /// Kernels for GPUs before Ampere, if this binary was built with them.
    pub fn volta() -> Option<Kernels> {
        EMBEDDED_VOLTA
    }

    /// Kernels that `kernels/build.sh FOLDER` wrote: files `NAME.fatbin`, and `release`, the compiler's
    /// version. They remain in memory until the process ends.
    pub fn from_folder(folder: &Path) -> Result<Kernels> {
        let read = |file: &Path| fs::read(file).with_context(|| file.display().to_string());
        let release = String::from_utf8(read(&folder.join("release"))?)?;
        let parts = release.trim().split_once('.');
        let release = parts
            .and_then(|(major, minor)| {
                Some(major.parse::<i32>().ok()? * 1000 + minor.parse::<i32>().ok()? * 10)
            })
            .with_context(|| format!("no version: {release:?}"))?;
        let entries: Result<Vec<_>, _> = fs::read_dir(folder)?.collect();
        let mut files: Vec<PathBuf> = entries?.iter().map(fs::DirEntry::path).collect();
        files.retain(|file| file.extension().is_some_and(|kind| kind == "fatbin"));
        files.sort();
        ensure!(!files.is_empty(), "no .fatbin is there");
        let images: Result<Vec<_>> = files
            .iter()
            .map(|file| -> Result<(&'static str, &'static [u8])> {
                let name = file
                    .file_stem()
                    .context("a file has a name")?
                    .to_string_lossy();
                Ok((name.into_owned().leak(), read(file)?.leak()))
            })
            .collect();
        Ok(Kernels { release, images: images?.leak() })
    }
}

/// Description of this binary's kernels, if it has any: `CUDA 13.0, for sm_80, sm_90a, sm_100`.
pub fn kernels() -> Option<String> {
    let Kernels { release, .. } = Kernels::embedded()?;
    let volta = if Kernels::volta().is_some() { "sm_70, " } else { "" };
    let major = release / 1000;
    let minor = release % 1000 / 10;
    // As kernels/build.sh has them.
    Some(format!("CUDA {major}.{minor}, for {volta}sm_80, sm_90a, sm_100 and as PTX"))
}

/// Dynamic shared memory that a block may use without setting a larger limit.
const SHARED_AT_ONCE: usize = 48 << 10;

/// Threads of a block of elementwise kernels.
pub(super) const THREADS: usize = 256;

/// Name of a kernel for one dtype, or for two.
macro_rules! typed {
    ($name:literal $($more:literal)*, $dtype:expr) => {
        match $dtype {
            base::DType::F32 => concat!($name, $($more,)* "_f32"),
            base::DType::BF16 => concat!($name, $($more,)* "_bf16"),
            base::DType::F16 => concat!($name, $($more,)* "_f16"),
            other => panic!("{} of {other}", $name),
        }
    };
    ($name:literal, $dtype:expr, $second:expr) => {
        match $dtype {
            base::DType::F32 => typed!($name "_f32", $second),
            base::DType::BF16 => typed!($name "_bf16", $second),
            base::DType::F16 => typed!($name "_f16", $second),
            other => panic!("{} of {other}", $name),
        }
    };
}
pub(super) use typed;

/// Blocks, and threads of a block.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [usize; 3],
    pub threads: [usize; 2],
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

impl Grid {
    /// Grid of a kernel that loops over the elements of x and of tensors like it, and whether it
    /// moves 16 bytes at a time.
    pub fn elements(x: Tensor, others: impl IntoIterator<Item = Tensor>) -> (Grid, bool) {
        let vector = vector(x.numel(), x.dtype, once(x).chain(others));
        (Grid::pieces(x.numel(), if vector { elements_per_move(x.dtype) } else { 1 }), vector)
    }

    /// Grid of a kernel that loops over elements, `wide` at a time.
    pub fn pieces(numel: usize, wide: usize) -> Grid {
        Grid::line(numel.div_ceil(THREADS * wide).clamp(1, 8192), THREADS)
    }

    /// Grid of a kernel that loops over the rows of x and of tensors as wide, and whether it moves
    /// 16 bytes at a time.
    pub fn rows(x: Tensor, others: impl IntoIterator<Item = Tensor>) -> (Grid, bool) {
        let vector = vector(x.cols, x.dtype, once(x).chain(others));
        (
            Grid::row_pieces(x.rows, x.cols, if vector { elements_per_move(x.dtype) } else { 1 }),
            vector,
        )
    }

    /// Grid of a kernel that loops over rows, `wide` columns at a time.
    pub fn row_pieces(rows: usize, cols: usize, wide: usize) -> Grid {
        let pieces = cols.div_ceil(wide);
        let x = pieces.next_multiple_of(32).min(THREADS);
        let y = THREADS / x;
        let blocks = [pieces.div_ceil(x), rows.div_ceil(y).clamp(1, 65_535), 1];
        Grid { blocks, threads: [x, y], shared: 0 }
    }

    pub fn line(blocks: usize, threads: usize) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1], shared: 0 }
    }

    pub fn with_shared(self, shared: usize) -> Grid {
        Grid { shared, ..self }
    }
}

/// Elements that a thread moves at a time if rows allow it: 16 bytes.
pub fn elements_per_move(dtype: DType) -> usize {
    16 / dtype.size()
}

/// Whether rows of `cols` elements of these tensors can be moved 16 bytes at a time.
pub fn vector(cols: usize, dtype: DType, tensors: impl IntoIterator<Item = Tensor>) -> bool {
    let mut tensors = tensors.into_iter();
    cols.is_multiple_of(elements_per_move(dtype)) && tensors.all(|x| x.addr().is_multiple_of(16))
}

/// Loaded modules, and the functions used so far.
pub struct Functions {
    modules: Vec<CUmodule>,
    functions: RefCell<HashMap<&'static str, Function>>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: CUfunction,
    /// Bytes of its argument; None if the driver does not report it.
    bytes: Option<usize>,
    /// Maximum threads of a block: `__launch_bounds__`, or fewer if its registers do not suffice.
    threads: usize,
    /// Shared memory that it declares itself.
    fixed: usize,
    /// Dynamic shared memory allowed so far.
    shared: usize,
}

impl Functions {
    pub fn load(device: &Device, kernels: &Kernels) -> Result<Functions, String> {
        let mut functions = Functions { modules: Vec::new(), functions: RefCell::default() };
        for (name, image) in kernels.images {
            // The driver reads words.
            let mut words = vec![0u64; image.len().div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..image.len()].copy_from_slice(image);
            let mut module = null_mut();
            // SAFETY: the words hold an image as the compiler wrote it, whose header gives its length: the
            // build embeds it, or the user names the folder (`KERNELS`). The driver copies it; the handle
            // is written to the live variable.
            let code = device.try_call(|api| unsafe {
                call!(api, cuModuleLoadData(&mut module, words.as_ptr().cast()))
            });
            if code != 0 {
                return Err(format!("the kernels of {name} do not load: {}", device.error(code)));
            }
            functions.modules.push(module);
        }
        Ok(functions)
    }

    pub fn unload(&self, device: &Device) {
        for module in &self.modules {
            // SAFETY: `load` had it from the driver; no kernel of it is launched any more.
            device.try_call(|api| unsafe { call!(api, cuModuleUnload(*module)) });
        }
    }

    /// Enqueues a kernel on the compute stream. `arguments` is its struct in `args`.
    pub fn launch<A: Copy>(&self, device: &Device, name: &'static str, grid: Grid, arguments: A) {
        if device.failed() {
            return;
        }
        let function = self.function(device, name, grid.shared);
        let bytes = size_of::<A>();
        assert!(function.bytes.is_none_or(|own| own == bytes), "{name} takes other arguments");
        let mut arguments = arguments;
        let mut list = [&mut arguments as *mut A as *mut c_void];
        let [gx, gy, gz] = grid.blocks.map(|n| n as u32);
        let [bx, by] = grid.threads.map(|n| n as u32);
        if bx * by > function.threads as u32 {
            let most = function.threads;
            return device
                .fail(format!("{name} is bound to {most} threads a block, not {bx} × {by}"));
        }
        let stream = device.stream;
        let shared = grid.shared as u32;
        device.count_kernel();
        // SAFETY: the kernel takes one struct of as many bytes (above, where the driver reports it):
        // `args` has it as the kernel's source does, and the driver copies it before it returns. Its
        // addresses are tensors, whose sizes the ops check.
        device.call(name, |api| unsafe {
            let list = list.as_mut_ptr();
            let f = function.handle;
            let none = null_mut();
            call!(api, cuLaunchKernel(f, gx, gy, gz, bx, by, 1, shared, stream, list, none))
        });
        device.note_launch(|| name.to_string(), 0.0);
    }

    /// Kernel whose blocks may use `shared` bytes of dynamic shared memory.
    fn function(&self, device: &Device, name: &'static str, shared: usize) -> Function {
        let function = self.look_up(device, name);
        let all = function.fixed + shared;
        if all > device.shared_memory.max(SHARED_AT_ONCE) {
            device.fail(format!(
                "{name} needs {all} bytes of shared memory in a block, of which this GPU has {}: \
                 rows or heads are too wide for it",
                device.shared_memory
            ));
        } else if shared > function.shared {
            // SAFETY: the function's module is loaded; the value is a number.
            device.call(name, |api| unsafe {
                let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                call!(api, cuFuncSetAttribute(function.handle, most, shared as c_int))
            });
            let raised = Function { shared, ..function };
            self.functions.borrow_mut().insert(name, raised);
        }
        function
    }

    /// Maximum threads of a kernel's block.
    pub fn most_threads(&self, device: &Device, name: &'static str) -> usize {
        self.look_up(device, name).threads
    }

    /// Whether a block of a kernel may use `shared` bytes of dynamic shared memory.
    pub fn has_room(&self, device: &Device, name: &'static str, shared: usize) -> bool {
        self.look_up(device, name).fixed + shared <= device.shared_memory.max(SHARED_AT_ONCE)
    }

    fn look_up(&self, device: &Device, name: &'static str) -> Function {
        *self
            .functions
            .borrow_mut()
            .entry(name)
            .or_insert_with(|| self.find(device, name))
    }

    fn find(&self, device: &Device, name: &'static str) -> Function {
        let symbol = CString::new(name).expect("a name without NUL");
        for module in &self.modules {
            let mut handle = null_mut();
            // SAFETY: the module is loaded; the name ends with a NUL; the handle is written to the live
            // variable.
            let code = device.try_call(|api| unsafe {
                call!(api, cuModuleGetFunction(&mut handle, *module, symbol.as_ptr()))
            });
            if code == 0 {
                let bytes = argument_bytes(device, handle);
                let limit = |what| attribute(device, handle, what);
                let threads = limit(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
                let fixed = limit(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
                return Function { handle, bytes, threads, fixed, shared: SHARED_AT_ONCE - fixed };
            }
        }
        panic!("no kernel is called {name}");
    }
}

/// Attribute of a kernel, from the driver.
fn attribute(device: &Device, handle: CUfunction, what: Attribute) -> usize {
    let mut value: c_int = 0;
    // SAFETY: the function's module is loaded; an int is written to the live variable.
    let code =
        device.try_call(|api| unsafe { call!(api, cuFuncGetAttribute(&mut value, what, handle)) });
    if code != 0 {
        device
            .fail(format!("the driver does not report a kernel's limits: {}", device.error(code)));
    }
    value as usize
}

/// Bytes of a kernel's only argument.
fn argument_bytes(device: &Device, handle: CUfunction) -> Option<usize> {
    let mut offset = 0;
    let mut bytes = 0;
    let info = device.param_info?;
    // SAFETY: the function's module is loaded; two sizes are written to the live variables.
    let code = unsafe { call!(info => cuFuncGetParamInfo(handle, 0, &mut offset, &mut bytes)) };
    (code == 0).then_some(bytes)
}
