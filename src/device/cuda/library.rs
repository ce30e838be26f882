//! Shared libraries opened at run time, and the tables of their functions that gptrain calls.
//!
//! Types, constants and signatures are those of cudarc's `sys` modules, made from NVIDIA's headers.
//! Loading is not: a table is loaded whole, so that a function that is missing is an error at the
//! start that names it and not a panic at its first call; libraries are found where the user says
//! and under the names that their packages have (`libnccl.so.2`); and results are integers, since a
//! code that an enum of cudarc does not list must not become that enum.

use cudarc::{cublaslt, driver, nccl};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// Open library. It is never closed.
pub struct Library {
    handle: *mut c_void,
    /// Name or path by which it was found.
    pub name: String,
}

impl Library {
    /// Opens the first of `names` that is found in `folders`, by the loader, or in the Python packages of
    /// this environment (`wheels`).
    pub fn open(folders: &[PathBuf], names: &[&str]) -> Result<Library, String> {
        let inside = |folder: &PathBuf| names.iter().map(|name| folder.join(name)).collect();
        let first: Vec<PathBuf> = folders.iter().flat_map::<Vec<PathBuf>, _>(inside).collect();
        let mut packages = wheels(&python_prefixes());
        packages.push(PathBuf::from(TOOLKIT));
        let last = packages.iter().flat_map::<Vec<PathBuf>, _>(inside);
        let known = names.iter().map(PathBuf::from);
        let mut why = Vec::new();
        for path in first
            .into_iter()
            .chain(known)
            .chain(last.filter(|path| path.exists()))
        {
            let name = path.display().to_string();
            let path = CString::new(name.as_str()).expect("a path without NUL");
            // SAFETY: the path ends with a NUL. The library's start-up code runs: it is the user's or
            // the system's choice.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name });
            }
            // SAFETY: dlerror returns null, or a string that is valid until the next call of dl functions
            // on this thread: it is copied before.
            let text = unsafe {
                let text = libc::dlerror();
                (!text.is_null()).then(|| CStr::from_ptr(text))
            };
            why.push(text.map_or(name, |text| text.to_string_lossy().into_owned()));
        }
        Err(why.join("; "))
    }

    /// Function of the library, if it exists.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let name = CString::new(name).expect("a name without NUL");
        // SAFETY: the handle is open (it is never closed), and the name ends with a NUL. Null is None; any
        // other address is that of a function, as callers ask for functions only.
        unsafe {
            let found = libc::dlsym(self.handle, name.as_ptr());
            std::mem::transmute::<*mut c_void, Option<Symbol>>(found)
        }
    }
}

/// Libraries of CUDA's toolkit in images whose loader does not search there.
const TOOLKIT: &str = "/usr/local/cuda/lib64";

/// Folders of Python environments: the active ones, and those in `PATH`.
fn python_prefixes() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(std::env::var_os);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    let above = on_path.filter_map(|bin| bin.parent().map(Path::to_path_buf));
    // `pip install --user`.
    let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let all = active.map(PathBuf::from).chain(above).chain(own);
    all.filter(|prefix| prefix.is_absolute()).collect()
}

/// Folders of NVIDIA's libraries in the packages of Python environments, as `pip install torch` creates
/// them: `lib/python3.N/site-packages/nvidia/PACKAGE/lib`, sorted by name in each environment. They may
/// also be in `lib64` or, if root has installed them, in `local/lib`.
fn wheels(prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for prefix in prefixes {
        for folder in ["lib", "lib64", "local/lib"] {
            for python in list_sorted(&prefix.join(folder)) {
                let name = python.file_name().unwrap_or_default();
                if !name.to_string_lossy().starts_with("python3") {
                    continue;
                }
                for packages in ["site-packages", "dist-packages"] {
                    let nvidia = list_sorted(&python.join(packages).join("nvidia"));
                    found.extend(nvidia.iter().map(|package| package.join("lib")));
                }
            }
        }
    }
    found.retain(|folder| folder.is_dir());
    found
}

/// Paths in a folder, sorted; none if it cannot be read.
fn list_sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Address of a function, whose type only its header declares.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Symbol(unsafe extern "C" fn());

impl Symbol {
    /// # Safety
    /// `F` is a pointer to a function of the type that the header declares.
    pub unsafe fn cast<F: Copy>(self) -> F {
        assert_eq!(size_of::<F>(), size_of::<Symbol>(), "a pointer to a function");
        // SAFETY: `F` is as large as the address (above), and a pointer to this function's type, as the
        // caller promises.
        unsafe { std::mem::transmute_copy(&self.0) }
    }
}

/// Type by which the result of a C function is read: valid for every value that a library returns.
pub trait Returned {
    type Plain;
}

macro_rules! returned {
    ($($type:ty = $plain:ty,)*) => { $(impl Returned for $type { type Plain = $plain; })* };
}
returned! {
    driver::sys::CUresult = c_int,
    cublaslt::sys::cublasStatus_t = c_int,
    nccl::sys::ncclResult_t = c_int,
    *const c_char = *const c_char,
    usize = usize,
}

/// Function as cudarc declares it, which gives `call!` its signature.
pub trait Declared {
    type Function;
    /// # Safety
    /// The symbol is the function that is declared.
    unsafe fn at(self, symbol: Symbol) -> Self::Function;
}

macro_rules! declared {
    ($($type:ident)*) => {
        impl<R: Returned, $($type),*> Declared for unsafe fn($($type),*) -> R {
            type Function = unsafe extern "C" fn($($type),*) -> R::Plain;

            unsafe fn at(self, symbol: Symbol) -> Self::Function {
                // SAFETY: the symbol is the declared function, as the caller promises. The type differs
                // in the result alone: C returns an enum as it returns an int.
                unsafe { symbol.cast::<Self::Function>() }
            }
        }
        declared!(@fewer $($type)*);
    };
    (@fewer $type:ident $($fewer:ident)*) => { declared!($($fewer)*); };
    (@fewer) => {};
}
declared!(A B C D E F G H I J K L M N O P);

/// Calls a function of a table, with the signature that `sys`, a module of cudarc in scope,
/// declares.
#[macro_export]
macro_rules! call {
    ($api:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::library::call!($api.$name => $name($($argument),*))
    };
    ($symbol:expr => $name:ident($($argument:expr),* $(,)?)) => {{
        let declared: unsafe fn($($crate::cuda::library::any_type!($argument)),*) -> _ =
            sys::$name;
        $crate::cuda::library::Declared::at(declared, $symbol)($($argument),*)
    }};
}
pub use call;

#[macro_export]
macro_rules! any_type {
    ($argument:expr) => {
        _
    };
}
pub use any_type;

/// Defines a struct of symbols with the names of the library's functions.
#[macro_export]
macro_rules! table {
    ($(#[$doc:meta])* pub struct $table:ident { $($name:ident)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table { $(pub $name: $crate::cuda::library::Symbol,)* }

        impl $table {
            /// Looks up all functions. The error names the library and the missing ones.
            #[allow(non_snake_case)]
            pub fn load(library: &$crate::cuda::library::Library) -> Result<$table, String> {
                let mut missing = Vec::new();
                $(let $name = library.symbol(stringify!($name));
                if $name.is_none() {
                    missing.push(stringify!($name));
                })*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok($table { $($name),* }),
                    _ => Err(format!("{} lacks {}", library.name, missing.join(", "))),
                }
            }
        }
    };
}
pub use table;

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages of two environments, in the order of the environments; no other folder.
    #[test]
    fn libraries_of_python_packages_are_found() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let nccl = make("b/lib/python3.12/site-packages/nvidia/nccl/lib");
        let cublas = make("b/lib/python3.12/site-packages/nvidia/cu13/lib");
        let system = make("a/lib/python3.11/dist-packages/nvidia/cublas/lib");
        make("a/lib/python3.11/dist-packages/nvidia/headers/include");
        let local = make("a/local/lib/python3.12/dist-packages/nvidia/nccl/lib");
        make("a/lib/perl5/site-packages/nvidia/nccl/lib");
        let prefixes = ["b", "a", "absent"].map(|name| root.path().join(name));
        assert_eq!(wheels(&prefixes), [cublas, nccl, system, local]);
    }
}
