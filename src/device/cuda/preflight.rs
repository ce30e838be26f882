//! From a machine to an open GPU, or to the one line that says what is missing and what to do.

use super::driver::{self, Device};
use super::hopper::{self, Hopper};
use super::library::Library;
use super::lt;
use crate::base::Problems;
use std::path::PathBuf;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The variable that names a folder of libraries.
pub const FOLDER: &str = "GPTRAIN_CUDA_LIBRARIES";

/// The oldest compute capability that the kernels are compiled for, times ten.
const OLDEST: i32 = 80;

/// Compiled kernels.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Version of the compiler, as the driver counts: 13000 is 13.0.
    pub release: i32,
    /// Name and fatbin of each file of `kernels/`.
    pub images: &'static [(&'static str, &'static [u8])],
}

impl Kernels {
    /// Those in this binary, if it was built with a compiler for them.
    pub fn embedded() -> Option<Kernels> {
        (!IMAGES.is_empty()).then_some(Kernels { release: RELEASE, images: IMAGES })
    }
}

/// Which GPU to open, and with what.
#[derive(Clone)]
pub struct Options {
    /// Number of the GPU among those the driver shows.
    pub ordinal: usize,
    /// Where libraries are looked for first.
    pub folder: Option<PathBuf>,
    pub kernels: Option<Kernels>,
    /// The instructions of attention's products: mma, or wgmma.
    pub attention: Option<String>,
}

impl Options {
    /// A GPU of this machine, libraries as the environment has them, kernels of this binary.
    pub fn of_machine(ordinal: usize) -> Options {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        let attention = std::env::var(hopper::CHOICE).ok();
        Options { ordinal, folder, kernels: Kernels::embedded(), attention }
    }
}

/// Everything a backend needs from outside.
pub struct Opened {
    pub device: Device,
    pub lt: lt::Api,
    pub kernels: Kernels,
    pub hopper: Option<Hopper>,
    /// GPU, driver and library, for a person.
    pub description: String,
}

/// Whether the driver shows a GPU, a real one. Where it does but something else is missing, `open`
/// is to say so: training on the CPU by accident is worse than an error.
pub fn is_there(options: &Options) -> bool {
    let Ok(library) = Library::open(options.folder.as_deref(), &["libcuda.so.1"]) else {
        return false;
    };
    let stand_in = library.symbol("softgpu_push").is_some();
    let Ok(api) = driver::Api::load(&library) else { return false };
    let mut count = 0;
    // SAFETY: the pointer is to a live variable.
    let shown = unsafe { (api.cuInit)(0) == 0 && (api.cuDeviceGetCount)(&mut count) == 0 };
    shown && count > 0 && !stand_in
}

/// Opens the libraries and the GPU.
pub fn open(options: &Options) -> Result<Opened, Problems> {
    let kernels = options.kernels.ok_or_else(|| {
        refuse(
            "this gptrain was built without CUDA kernels: there was no nvcc",
            "`make` gets the compiler and builds them; or set CUDA_HOME, and build again",
        )
    })?;
    let (device, version) = open_driver(options, &kernels)?;
    let (lt, library) = open_lt(options)?;
    let what = |why: String| refuse(why, "see that nvidia-smi shows the GPU, and that it is free");
    let (name, capability) = device.describe().map_err(what)?;
    if capability < OLDEST {
        return Err(refuse(
            format!("{name} has compute capability {}; kernels need 8.0", point(capability)),
            "use an A100 or newer, or train on the CPU",
        ));
    }
    let hopper = Hopper::chosen(options.attention.as_deref(), &device, capability)?;
    // SAFETY: takes nothing, returns a number.
    let lt_version = unsafe { (lt.cublasLtGetVersion)() };
    let description = format!(
        "{name} (compute capability {}), driver for CUDA {}.{}, cuBLASLt {}.{}.{} ({library}){}",
        point(capability),
        version / 1000,
        version % 1000 / 10,
        lt_version / 10_000,
        lt_version % 10_000 / 100,
        lt_version % 100,
        if hopper.is_some() { ", attention by wgmma" } else { "" },
    );
    Ok(Opened { device, lt, kernels, hopper, description })
}

/// The device and the CUDA version of its driver.
fn open_driver(options: &Options, kernels: &Kernels) -> Result<(Device, i32), Problems> {
    let library = Library::open(options.folder.as_deref(), &["libcuda.so.1"]).map_err(|why| {
        refuse(
            format!("there is no NVIDIA driver: {why}"),
            &format!("install it, or set {FOLDER} to the folder of libcuda.so.1"),
        )
    })?;
    let missing = |names: Vec<&str>| {
        let what = format!("{} lacks {}", library.name, names.join(", "));
        refuse(what, "update the NVIDIA driver: 525 or newer")
    };
    let api = driver::Api::load(&library).map_err(missing)?;
    let mut version = 0;
    // SAFETY: the pointer is to a live variable.
    let code = unsafe {
        match (api.cuInit)(0) {
            0 => (api.cuDriverGetVersion)(&mut version),
            code => code,
        }
    };
    if code != 0 {
        let what = format!("the NVIDIA driver does not start: {}", driver::explain(&api, code));
        return Err(refuse(what, "see what nvidia-smi says"));
    }
    let needed = kernels.release / 1000 * 1000;
    if version < needed {
        return Err(refuse(
            format!(
                "the NVIDIA driver is for CUDA {}.{}, the kernels were compiled by CUDA {}",
                version / 1000,
                version % 1000 / 10,
                kernels.release / 1000
            ),
            "update the driver, or build with CUDA_HOME set to that version",
        ));
    }
    let device = Device::open(&library, api, options.ordinal)
        .map_err(|why| refuse(why, "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES"))?;
    Ok((device, version))
}

/// cuBLASLt and the name it was found by.
fn open_lt(options: &Options) -> Result<(lt::Api, String), Problems> {
    let names = ["libcublasLt.so.13", "libcublasLt.so.12"];
    let library = Library::open(options.folder.as_deref(), &names).map_err(|why| {
        refuse(
            format!("cuBLASLt is missing: {why}"),
            &format!("pip install nvidia-cublas, and set {FOLDER} to its folder of libraries"),
        )
    })?;
    let missing = |names: Vec<&str>| {
        let what = format!("{} lacks {}", library.name, names.join(", "));
        refuse(what, "update cuBLAS: 12.0 or newer")
    };
    Ok((lt::Api::load(&library).map_err(missing)?, library.name))
}

fn point(capability: i32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

fn refuse(what: impl Into<String>, remedy: &str) -> Problems {
    Problems::one("train.device: cuda", what, remedy)
}
