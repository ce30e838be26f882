//! The system's allocator. Where it has no memory, the process ends by a message with a remedy, not
//! by Rust's abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;

/// For `#[global_allocator]`.
pub struct ReportingAllocator;

// SAFETY: memory is the system allocator's, by calls with the same arguments. In place of a null the
// process ends, without unwinding and without allocating (`refused`).
unsafe impl GlobalAlloc for ReportingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size above 0, as `System` asks for.
        or_message(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        or_message(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has `memory` with this layout from here, that is from `System`; `size` is
        // above 0 and does not overflow when rounded up to the alignment.
        or_message(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller has `memory` with this layout from here, that is from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn or_message(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        abort_refused(bytes);
    }
    memory
}

const REMEDY: &str = "lower batch.micro or the number of threads, or raise the limit (ulimit -v, the \
                      job's memory)";

/// Ends the process without allocating: the system has refused `bytes` of memory.
#[cold]
pub(crate) fn abort_refused(bytes: usize) -> ! {
    let mut buffer = [0; 512];
    let mut rest = &mut buffer[..];
    // A number is formatted without allocating, and the buffer is large enough.
    let _ =
        writeln!(rest, "gptrain: out of memory: the system refused {bytes} bytes\n    → {REMEDY}");
    let len = 512 - rest.len();
    // SAFETY: the buffer has `len` bytes to read. If the write fails, the exit code remains.
    unsafe { libc::write(libc::STDERR_FILENO, buffer.as_ptr().cast(), len) };
    // SAFETY: takes a number and does not return; no destructor or exit handler runs.
    unsafe { libc::_exit(1) }
}
