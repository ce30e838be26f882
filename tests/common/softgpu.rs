//! The software stand-in for a GPU, compiled when a test first asks for it.

use gptrain::base::DType;
use gptrain::device::cuda::Options;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The folder of its libraries.
pub fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("softgpu");
            let build = Command::new("sh")
                .arg("tests/softgpu/build.sh")
                .arg(&folder)
                .output();
            let build = build.expect("sh runs");
            let said = String::from_utf8_lossy(&build.stderr);
            assert!(build.status.success(), "the stand-in does not compile:\n{said}");
            folder
        })
        .clone()
}

/// The GPU to test on: of the machine if `GPTRAIN_TEST_GPU` is set, else the stand-in.
pub fn gpu(ordinal: usize) -> Options {
    if is_real() { Options::from_environment(ordinal) } else { Options { ordinal, ..options() } }
}

/// Whether tests are to run on a GPU of the machine.
pub fn is_real() -> bool {
    std::env::var_os("GPTRAIN_TEST_GPU").is_some()
}

/// Options with which `Cuda::open` opens the stand-in. It runs its own kernels: the files in its folder are
/// placeholders.
pub fn options() -> Options {
    Options {
        ordinal: 0,
        folders: vec![folder()],
        kernels: None,
        kernels_folder: Some(folder()),
        volta: None,
        dtype: DType::F32,
        tf32: false,
        fp8: false,
        tuned: None,
        graphs: None,
        sm_margin: None,
        fast_fp8: None,
        serial: None,
        attention: None,
        connect: 1 << 20, // a stand-in is slow
        blocking: false,
        threads: Some(1),
    }
}
