//! Any bytes as a file of torch.save, and as a bare pickle: refused, or every value of it can be
//! walked and every tensor asked for.
#![no_main]

use gptrain::exchange::torch::{Node, TorchFile, Value, pickled};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/gptrain-fuzz-{}.pt", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tree) = pickled(bytes, "bytes") {
        walk(None, &tree.root(), &mut 10_000);
    }
    fs::write(&*FILE, bytes).expect("memory");
    if let Ok(file) = TorchFile::open(&FILE) {
        walk(Some(&file), &file.root(), &mut 10_000);
    }
});

/// Visits at most `left` values: shared ones count each time.
fn walk(file: Option<&TorchFile>, value: &Value, left: &mut usize) {
    let Some(fewer) = left.checked_sub(1) else { return };
    *left = fewer;
    if let (Some(file), Node::Tensor(tensor)) = (file, value.node()) {
        let _ = file.floats(tensor, 0..tensor.numel());
    }
    value.items().unwrap_or_default().iter().for_each(|item| walk(file, item, left));
    for (key, value) in value.pairs().unwrap_or_default() {
        walk(file, &key, left);
        walk(file, &value, left);
    }
}
