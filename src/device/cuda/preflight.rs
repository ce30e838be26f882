//! Opens the libraries and the GPU. The error names what is missing, with a remedy.

use super::attention::{self, Hopper};
use super::device::{Device, SmMargin};
use super::driver;
use super::graph::GRAPHS;
use super::launch::{ADA, AMPERE, Kernels, VOLTA};
use super::library::{Library, call};
use super::lt;
use crate::Identity;
use base::{DType, Problems};
use cudarc::cublaslt::sys;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Variable with folders of libraries, separated by colons.
pub const FOLDER: &str = "GPTRAIN_CUDA_LIBRARIES";

/// Variable with a folder of kernels that replace those of the binary.
pub const KERNELS: &str = "GPTRAIN_CUDA_KERNELS";

/// Variable; at 0 no algorithm is timed, and the first that cuBLASLt proposes is used.
const AUTOTUNE: &str = "GPTRAIN_AUTOTUNE";

/// Variable with the folder for chosen algorithms. Default: gptrain/ in XDG_CACHE_HOME or in .cache of
/// the home folder.
const CACHE: &str = "GPTRAIN_CACHE";

/// Variable with the number of SMs that matrix products leave to NCCL while it sums.
pub const SM_MARGIN: &str = "GPTRAIN_SM_MARGIN";

/// Variable; at 1 all collectives run on the stream of the ops, one after the other.
pub const SERIAL: &str = "GPTRAIN_NCCL_SERIAL";

/// Variable; at 1 forward's fp8 products sum with the tensor cores' own precision, 14 bits on Hopper,
/// as in Transformer Engine.
pub const FAST_FP8: &str = "GPTRAIN_FP8_FAST";

/// Place of the problems of opening a GPU.
const PLACE: &str = "train.device: cuda";

/// Bytes from which NCCL uses its algorithms for large operations.
const CONNECT: usize = 32 << 20;

/// Options of `Cuda::open`.
#[derive(Clone)]
pub struct Options {
    /// Index of the GPU among those that the driver shows.
    pub ordinal: usize,
    /// Folders in which libraries are searched first.
    pub folders: Vec<PathBuf>,
    pub kernels: Option<Kernels>,
    /// Value of `KERNELS`: the folder of kernels to use instead of those in the binary.
    pub kernels_folder: Option<PathBuf>,
    /// Folder for the algorithms of matrix products, once timed. None: nothing is timed.
    pub tuned: Option<PathBuf>,
    /// Value of `GRAPHS`: 0, 1 (as without it), or all.
    pub graphs: Option<String>,
    /// Value of `SM_MARGIN`.
    pub sm_margin: Option<String>,
    /// Value of `FAST_FP8`.
    pub fast_fp8: Option<String>,
    /// Value of `SERIAL`.
    pub serial: Option<String>,
    /// Kernels for GPUs before Ampere, if the binary was built with them.
    pub volta: Option<Kernels>,
    /// Dtype of weights and activations. An error if the GPU lacks it.
    pub dtype: DType,
    /// Whether products round f32 operands to TF32. An error if the GPU cannot.
    pub tf32: bool,
    /// Whether products are in fp8. An error if the GPU cannot.
    pub fp8: bool,
    /// Value of `attention::CHOICE`.
    pub attention: Option<String>,
    /// Bytes of the largest operations with which NCCL gets its buffers, at most `cuda::SCRATCH`.
    pub connect: usize,
    /// Whether threads sleep while they wait for the GPU, instead of polling on their cores.
    pub blocking: bool,
    /// CPU threads, for ops on tensors in host memory. Default: all.
    pub threads: Option<usize>,
}

impl Options {
    /// Options from the environment's variables, with the kernels of this binary.
    pub fn from_environment(ordinal: usize) -> Options {
        let folders = std::env::var_os(FOLDER).unwrap_or_default();
        let text = |name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let attention = std::env::var(attention::CHOICE).ok();
        Options {
            ordinal,
            folders: std::env::split_paths(&folders)
                .filter(|f| !f.as_os_str().is_empty())
                .collect(),
            kernels: Kernels::embedded(),
            kernels_folder: std::env::var_os(KERNELS)
                .filter(|f| !f.is_empty())
                .map(PathBuf::from),
            tuned: cache(),
            graphs: text(GRAPHS),
            sm_margin: text(SM_MARGIN),
            fast_fp8: text(FAST_FP8),
            serial: text(SERIAL),
            volta: Kernels::volta(),
            dtype: DType::F32,
            tf32: false,
            fp8: false,
            attention,
            connect: CONNECT,
            blocking: false,
            threads: None,
        }
    }
}

fn cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = |name| set(name).map(PathBuf::from);
    let place = || {
        folder(CACHE)
            .or_else(|| folder("XDG_CACHE_HOME").map(|caches| caches.join("gptrain")))
            .or_else(|| folder("HOME").map(|home| home.join(".cache/gptrain")))
    };
    if set(AUTOTUNE).is_some_and(|value| value == "0") { None } else { place() }
}

/// Opened libraries and GPU.
pub struct Opened {
    pub device: Device,
    pub identity: Identity,
    pub lt: lt::Api,
    pub kernels: Kernels,
    pub hopper: Option<Hopper>,
    /// Compute capability, times ten.
    pub capability: i32,
    /// GPU, and versions of the driver and cuBLASLt.
    pub machine: String,
    /// Name or path by which cuBLASLt was found.
    pub lt_name: String,
}

/// Variables of CUDA and NCCL that gptrain sets unless the user has: as many hardware queues as a rank
/// has streams (8 by default), and launches of several communicators in the host's order (NCCL 2.26;
/// off by default). The libraries read them when they start.
const ENVIRONMENT: [(&str, &str); 2] = [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), (LAUNCH_ORDER, "1")];

/// Variable; at 1 NCCL launches communicators in the order of the host's calls.
pub const LAUNCH_ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT";

/// Sets the variables that CUDA and NCCL read when they start. Does nothing if this process has several
/// threads, which may read them meanwhile.
pub fn set_environment() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(2, Iterator::count);
    for (name, value) in ENVIRONMENT {
        if threads == 1 && std::env::var_os(name).is_none() {
            // SAFETY: this is the process's only thread (above), so no other reads the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Number of GPUs that the driver shows; 0 without a driver. If it shows one but something else is
/// missing, `open` fails: training on the CPU by accident is worse than an error.
pub fn device_count(options: &Options) -> usize {
    let library = Library::open(&options.folders, &["libcuda.so.1"]);
    let api = library
        .ok()
        .and_then(|library| driver::Api::load(&library).ok());
    api.map_or(0, |api| driver::device_count(&api))
}

/// Kernels of the options' folder, or else of the binary.
fn kernels(options: &Options) -> Result<Kernels, Problems> {
    if let Some(folder) = &options.kernels_folder {
        let remedy = "write them with `kernels/build.sh FOLDER`, or unset the variable";
        let why = |why| format!("{KERNELS}={}: {why:#}", folder.display());
        return Kernels::from_folder(folder).map_err(|error| refuse(why(error), remedy));
    }
    options.kernels.ok_or_else(|| {
        refuse(
            "this gptrain was built without CUDA kernels",
            "`make build` gets the compiler and builds them; or set CUDA_HOME, and build again",
        )
    })
}

/// Opens the libraries and the GPU.
pub fn open(options: &Options) -> Result<Opened, Problems> {
    let kernels = kernels(options)?;
    let graphs = graphs(options)?;
    let (mut device, version) = open_driver(options)?;
    device.graphs.store(graphs.is_some(), Relaxed);
    device.graph_groups = graphs.unwrap_or(0);
    let what = |why: String| refuse(why, "see that nvidia-smi shows the GPU, and that it is free");
    device.fast_fp8 = parse_flag(PLACE, FAST_FP8, options.fast_fp8.as_deref())?;
    device.sm_margin = sm_margin(options, device.multiprocessors().map_err(&what)?)?;
    let identity = device.identity().map_err(&what)?;
    let name = &identity.name;
    let capability = device.capability().map_err(what)?;
    let kernels = kernels_for(options, kernels, name, capability)?;
    new_enough(version, &kernels)?;
    let timed = options.tuned.is_some();
    let hopper = Hopper::select(options.attention.as_deref(), timed, &device, capability)?;
    let (lt, lt_name) = open_lt(options, capability, version)?;
    // SAFETY: takes nothing and returns a number.
    let lt_version = unsafe { call!(lt, cublasLtGetVersion()) };
    let machine = format!(
        "{name} (compute capability {}), driver for CUDA {}.{}, cuBLASLt {}.{}.{}",
        point(capability),
        version / 1000,
        version % 1000 / 10,
        lt_version / 10_000,
        lt_version % 10_000 / 100,
        lt_version % 100,
    );
    Ok(Opened { device, identity, lt, kernels, capability, hopper, machine, lt_name })
}

/// Maximum number of groups whose collectives a graph contains; None without graphs.
fn graphs(options: &Options) -> Result<Option<usize>, Problems> {
    match options.graphs.as_deref() {
        None | Some("1") => Ok(Some(1)),
        Some("all") => Ok(Some(usize::MAX)),
        Some("0") => Ok(None),
        Some(other) => {
            Err(refuse(format!("{GRAPHS} is {other:?}"), "set it to 0, 1 or all, or not at all"))
        }
    }
}

/// Value of a variable that is 0 or 1; false if it is not set. `place` is that of a mistake.
pub fn parse_flag(place: &str, variable: &str, value: Option<&str>) -> Result<bool, Problems> {
    match value {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Problems::one(
            place,
            format!("{variable} is {other:?}"),
            "set it to 0 or 1, or not at all",
        )),
    }
}

/// Margin of a GPU with `sms` SMs.
fn sm_margin(options: &Options, sms: u32) -> Result<SmMargin, Problems> {
    let Some(text) = options.sm_margin.as_deref() else { return Ok(SmMargin::default()) };
    match text.parse() {
        Ok(margin) if margin < sms => Ok(SmMargin::new(margin, sms)),
        _ => Err(refuse(
            format!("{SM_MARGIN} is {text:?}, and the GPU has {sms} SMs"),
            "set it to the number that NCCL's kernels take (NCCL_MAX_CTAS), or not at all",
        )),
    }
}

/// Kernels for this GPU. Fails if it lacks a number format of the run.
fn kernels_for(
    options: &Options,
    kernels: Kernels,
    name: &str,
    capability: i32,
) -> Result<Kernels, Problems> {
    let name = format!("{name} has compute capability {}", point(capability));
    let lacks = |what, remedy| Problems::one("precision", format!("{name}: no {what}"), remedy);
    if options.fp8 && capability < ADA {
        return Err(lacks("8-bit floats, which need 8.9", "--set precision=bf16"));
    }
    if capability >= AMPERE {
        return Ok(kernels);
    }
    match (options.dtype, options.volta) {
        _ if capability < VOLTA => Err(refuse(
            format!("{name}; kernels need 8.0, or 7.0 as an option"),
            "use a V100, an A100 or newer, or train on the CPU",
        )),
        (_, None) => Err(refuse(
            format!("{name}, and this gptrain was built without kernels for sm_70"),
            "build it with `make SM70=1 build`",
        )),
        (DType::BF16, _) => Err(lacks("bf16", "--set precision=fp16")),
        _ if options.tf32 => Err(lacks("TF32", "--set precision=f32")),
        (_, Some(volta)) => Ok(volta),
    }
}

/// Fails if the driver is older than the compiler of the kernels.
fn new_enough(version: i32, kernels: &Kernels) -> Result<(), Problems> {
    if version >= kernels.release / 1000 * 1000 {
        return Ok(());
    }
    Err(refuse(
        format!(
            "the NVIDIA driver is for CUDA {}.{}, the kernels were compiled by CUDA {}",
            version / 1000,
            version % 1000 / 10,
            kernels.release / 1000
        ),
        "update the driver, or build with CUDA_HOME set to that version",
    ))
}

/// Opens the device; returns also the CUDA version of its driver.
fn open_driver(options: &Options) -> Result<(Device, i32), Problems> {
    let library = Library::open(&options.folders, &["libcuda.so.1"]).map_err(|why| {
        refuse(
            format!("there is no NVIDIA driver: {why}"),
            &format!("install it, or add the folder of libcuda.so.1 to {FOLDER}"),
        )
    })?;
    let api = driver::Api::load(&library).map_err(|what| {
        refuse(what, "update the NVIDIA driver: 580 or newer, for kernels of CUDA 12 550")
    })?;
    let version = driver::version(&api).map_err(|why| {
        refuse(format!("the NVIDIA driver does not start: {why}"), "see what nvidia-smi says")
    })?;
    let device = Device::open(&library, api, options.ordinal, options.blocking)
        .map_err(|why| refuse(why, "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES"))?;
    Ok((device, version))
}

/// Opens cuBLASLt; returns also the name by which it was found. The library of CUDA 13 supports neither
/// GPUs before Turing nor drivers of CUDA 12.
fn open_lt(options: &Options, capability: i32, driver: i32) -> Result<(lt::Api, String), Problems> {
    let (names, wheel): (&[&str], _) = match capability {
        AMPERE.. if driver >= 13_000 => {
            (&["libcublasLt.so.13", "libcublasLt.so.12"], "nvidia-cublas")
        }
        _ => (&["libcublasLt.so.12"], "nvidia-cublas-cu12"),
    };
    let library = Library::open(&options.folders, names).map_err(|why| {
        refuse(
            format!("cuBLASLt is missing: {why}"),
            &format!("pip install {wheel}, or add its folder of libraries to {FOLDER}"),
        )
    })?;
    let api = lt::Api::load(&library);
    Ok((api.map_err(|what| refuse(what, "update cuBLAS: 12.0 or newer"))?, library.name))
}

fn point(capability: i32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

fn refuse(what: impl Into<String>, remedy: &str) -> Problems {
    Problems::one(PLACE, what, remedy)
}
