//! Shared libraries opened at run time, and the tables of what is called in them.
//!
//! A table is loaded whole: a function that is missing is an error at start that names it, never a
//! surprise in the middle of a run.

use std::ffi::{CStr, CString, c_void};
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
            // SAFETY: a valid string. The library's own start-up code is trusted as the user's choice.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name });
            }
            // SAFETY: dlerror returns a string or null, valid until the next call on this thread.
            let text = unsafe { libc::dlerror() };
            // SAFETY: as above.
            let said = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            why.push(said.map_or(name, |said| said.to_string_lossy().into_owned()));
        }
        Err(why.join("; "))
    }

    /// Address of a function.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).expect("a name without NUL");
        // SAFETY: the handle is open, the name a valid string.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// A struct of function pointers, named as the library's functions.
macro_rules! table {
    ($(#[$doc:meta])* pub struct $table:ident { $(fn $name:ident($($type:ty),*) -> $out:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table { $(pub $name: unsafe extern "C" fn($($type),*) -> $out,)* }

        impl $table {
            /// All functions, or the names of those that are missing.
            #[allow(non_snake_case)]
            pub fn load(
                from: &$crate::device::cuda::library::Library,
            ) -> Result<$table, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    let $name = from.symbol(stringify!($name));
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok($table { $(
                    // SAFETY: a function of the library, of the type its header declares.
                    $name: unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            unsafe extern "C" fn($($type),*) -> $out,
                        >($name.expect("none is missing"))
                    },
                )* })
            }
        }
    };
}
pub(crate) use table;
