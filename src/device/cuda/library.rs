//! Shared libraries opened at run time, and the tables of what is called in them.
//!
//! Types, constants and signatures are those of cudarc's `sys` modules, made from NVIDIA's headers.
//! Loading is not: a table is loaded whole, so that a function that is missing is an error at the
//! start that names it and not a panic at its first call; libraries are found where the user says
//! and under the names that their packages have (`libnccl.so.2`); and results are integers, since a
//! code that an enum of cudarc does not list must not become that enum.

use cudarc::{cublaslt, driver, nccl};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

/// An open library; it stays open to the end of the process.
pub struct Library {
    handle: *mut c_void,
    /// How it was found.
    pub name: String,
}

impl Library {
    /// The first of `names` that opens, in `folder` if there is one, then where the loader looks.
    pub fn open(folder: Option<&Path>, names: &[&str]) -> Result<Library, String> {
        let inside = folder.into_iter().flat_map(|folder| {
            names.iter().map(move |name| folder.join(name).display().to_string())
        });
        let mut why = Vec::new();
        for name in inside.chain(names.iter().map(|name| name.to_string())) {
            let path = CString::new(name.as_str()).expect("a path without NUL");
            // SAFETY: a valid string. The library's own start-up code is trusted as the user's
            // choice.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name });
            }
            // SAFETY: dlerror returns a string or null, valid until the next call on this thread.
            let text = unsafe { libc::dlerror() };
            // SAFETY: as above.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            why.push(text.map_or(name, |text| text.to_string_lossy().into_owned()));
        }
        Err(why.join("; "))
    }

    /// A function of the library, if it has that one.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let name = CString::new(name).expect("a name without NUL");
        // SAFETY: the handle is open, the name a valid string.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        // SAFETY: a null pointer is None, any other the address of a function.
        unsafe { std::mem::transmute::<*mut c_void, Option<Symbol>>(found) }
    }
}

/// Address of a function, of a type that only its header knows.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Symbol(unsafe extern "C" fn());

impl Symbol {
    /// # Safety
    /// `F` is a pointer to a function of the type that the header declares.
    pub unsafe fn of_type<F: Copy>(self) -> F {
        assert_eq!(size_of::<F>(), size_of::<Symbol>(), "a pointer to a function");
        // SAFETY: the caller's promise.
        unsafe { std::mem::transmute_copy(&self.0) }
    }
}

/// A result of a C function as it can be read whatever the library returns.
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

/// A function as cudarc declares it; `call!` takes its signature from there.
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
                // SAFETY: the caller's promise; an enum of C is passed as an int is.
                unsafe { symbol.of_type::<Self::Function>() }
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

/// A struct of symbols, named as the library's functions.
#[macro_export]
macro_rules! table {
    ($(#[$doc:meta])* pub struct $table:ident { $($name:ident)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table { $(pub $name: $crate::cuda::library::Symbol,)* }

        impl $table {
            /// All functions, or the names of those that are missing.
            #[allow(non_snake_case)]
            pub fn load(
                from: &$crate::cuda::library::Library,
            ) -> Result<$table, Vec<&'static str>> {
                let names = [$(stringify!($name)),*];
                let symbols = names.map(|name| from.symbol(name));
                let lacks = |at: &usize| symbols[*at].is_none();
                let missing: Vec<_> =
                    (0..names.len()).filter(lacks).map(|at| names[at]).collect();
                let [$($name),*] = symbols;
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok($table { $($name),* }),
                    _ => Err(missing),
                }
            }
        }
    };
}
pub use table;
