//! Embeds the compiled kernels into the binary, or records that there are none.
//!
//! `kernels/build.sh` compiles them if there is an nvcc, with SM70=1 also for the V100. It never
//! installs a compiler when called from here. GPU=0 disables the kernels.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;
use std::{env, fs};

/// Folder in which `kernels/build.sh --install` puts a compiler.
const TOOLCHAIN: &str = ".toolchain";
/// Exit codes of the script without an nvcc, and without a compiler for sm_70.
const NO_COMPILER: i32 = 3;
const NO_OLD_COMPILER: i32 = 4;

fn main() {
    env::set_current_dir("../..").expect("the project's folder exists");
    // A missing folder would count as changed at every build, a folder younger than the start of
    // this script at the next build.
    if fs::create_dir(TOOLCHAIN).is_ok() {
        let made = fs::File::open(TOOLCHAIN);
        made.and_then(|made| made.set_modified(UNIX_EPOCH))
            .expect("the folder is ours");
    }
    for watched in ["kernels", TOOLCHAIN] {
        println!("cargo:rerun-if-changed=../../{watched}");
    }
    for variable in ["GPU", "NVCC", "CUDA_HOME", "PATH", "SM70"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let folder = Path::new("target/kernels");
    let compiled = env::var_os("GPU").is_none_or(|gpu| gpu != "0") && compile(folder);
    let volta = compiled && env::var_os("SM70").is_some_and(|set| set == "1");
    let sets = [
        set("EMBEDDED", compiled.then_some((folder, "fatbin")), &out),
        set("EMBEDDED_VOLTA", volta.then_some((&*folder.join("sm_70"), "cubin")), &out),
    ];
    fs::write(out.join("kernels.rs"), sets.concat()).expect("the build folder can be written");
}

/// Compiles the kernels. Returns false if there is no nvcc.
fn compile(to: &Path) -> bool {
    let done = Command::new("sh")
        .arg("kernels/build.sh")
        .arg(to)
        .output()
        .expect("sh runs");
    match done.status.code() {
        Some(0) => true,
        Some(NO_COMPILER) => {
            println!("cargo:warning=no nvcc: built without CUDA kernels (`make build` gets one)");
            false
        }
        Some(NO_OLD_COMPILER) => panic!("SM70=1 and no CUDA 12 compiler: `make SM70=1` gets one"),
        _ => panic!("the kernels do not compile:\n{}", String::from_utf8_lossy(&done.stderr)),
    }
}

/// Constant of the generated table: the images of a folder, each a name and bytes, and the version
/// of their compiler.
fn set(constant: &str, images: Option<(&Path, &str)>, out: &Path) -> String {
    let Some((folder, kind)) = images else {
        return format!("const {constant}: Option<Kernels> = None;\n");
    };
    let mut sources: Vec<PathBuf> = fs::read_dir("kernels")
        .expect("kernels/ exists")
        .map(|entry| entry.expect("kernels/ can be read").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "cu"))
        .collect();
    sources.sort();
    let image = |source: &PathBuf| {
        folder
            .join(source.file_stem().unwrap())
            .with_extension(kind)
    };
    // Some kernels exist for some GPUs only.
    let images = sources.iter().map(image).filter(|image| image.exists());
    let rows: Vec<String> = images.map(|image| embed(&image, out)).collect();
    let release = release(folder);
    let rows = rows.join(", ");
    format!(
        "const {constant}: Option<Kernels> = \
         Some(Kernels {{ release: {release}, images: &[{rows}] }});\n"
    )
}

/// Row of the table: a name, and the bytes of a copy of the image.
fn embed(image: &Path, out: &Path) -> String {
    let copy = out.join(image.file_name().expect("a file"));
    fs::copy(image, &copy).expect("the build folder can be written");
    let name = image.file_stem().expect("a file").display();
    format!("({:?}, include_bytes!({:?}))", name.to_string(), copy)
}

/// Version of the compiler, in the numbering of the driver.
fn release(folder: &Path) -> i32 {
    let text = fs::read_to_string(folder.join("release")).expect("build.sh writes it");
    let (major, minor) = text.trim().split_once('.').expect("major.minor");
    major.parse::<i32>().unwrap() * 1000 + minor.parse::<i32>().unwrap() * 10
}
