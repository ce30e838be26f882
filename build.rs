//! Puts the compiled kernels into the binary, or says that there are none.
//!
//! `kernels/build.sh` compiles them where there is an nvcc; it never installs one from here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the script says without an nvcc.
const NO_COMPILER: i32 = 3;

fn main() {
    for seen in ["kernels", ".toolchain/cuda/nvidia"] {
        println!("cargo:rerun-if-changed={seen}");
    }
    for variable in ["NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let images = compile(Path::new("target/kernels"));
    let rows: Vec<String> = images.iter().map(|image| embed(image, &out)).collect();
    let release = if rows.is_empty() { 0 } else { release() };
    let table = format!(
        "const RELEASE: i32 = {release};\n\
         const IMAGES: &[(&str, &[u8])] = &[{}];\n",
        rows.join(", ")
    );
    fs::write(out.join("kernels.rs"), table).expect("the build folder can be written");
}

/// The fatbins, of which there are none without an nvcc.
fn compile(to: &Path) -> Vec<PathBuf> {
    let done = Command::new("sh").arg("kernels/build.sh").arg(to).output().expect("sh runs");
    match done.status.code() {
        Some(0) => {}
        Some(NO_COMPILER) => {
            println!("cargo:warning=no nvcc: built without CUDA kernels (`make` gets one)");
            return Vec::new();
        }
        _ => panic!("the kernels do not compile:\n{}", String::from_utf8_lossy(&done.stderr)),
    }
    let mut sources: Vec<PathBuf> = fs::read_dir("kernels")
        .expect("kernels/ is there")
        .map(|entry| entry.expect("kernels/ can be read").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "cu"))
        .collect();
    sources.sort();
    let image = |source: &PathBuf| to.join(source.file_stem().unwrap()).with_extension("fatbin");
    sources.iter().map(image).collect()
}

/// A row of the table: a name and the bytes of a copy of the image.
fn embed(image: &Path, out: &Path) -> String {
    let copy = out.join(image.file_name().expect("a file"));
    fs::copy(image, &copy).expect("the build folder can be written");
    let name = image.file_stem().expect("a file").display();
    format!("({:?}, include_bytes!({:?}))", name.to_string(), copy)
}

/// Version of the compiler as the driver counts.
fn release() -> i32 {
    let text = fs::read_to_string("target/kernels/release").expect("build.sh writes it");
    let (major, minor) = text.trim().split_once('.').expect("major.minor");
    major.parse::<i32>().unwrap() * 1000 + minor.parse::<i32>().unwrap() * 10
}
