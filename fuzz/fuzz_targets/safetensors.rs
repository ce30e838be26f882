//! Any bytes as a .safetensors file: refused, or every tensor of it can be read.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use gptrain::checkpoint::safetensors::Reader;
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    PathBuf::from(format!("/dev/shm/gptrain-fuzz-{}.safetensors", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    fs::write(&*FILE, bytes).expect("memory");
    let Ok(reader) = Reader::open(&FILE) else { return };
    for name in reader.entries.keys() {
        let _ = reader.floats(name);
    }
});
