//! Every op of a backend has a case.

use crate::source::{code, files, words};
use std::fs;

/// Memory and transfers, which have tests of their own.
const NOT_OPS: [&str; 4] = ["shared_memory", "workspace", "download_async", "finish_download"];

#[test]
fn every_op_of_a_backend_has_a_case() {
    let backend = code(&fs::read_to_string("src/device/backend.rs").unwrap());
    let (_, methods) = backend.split_once("pub trait Backend").expect("the trait");
    let methods = methods.split("\n}").next().unwrap();
    let called: String = files("tests/ops", "rs").iter().map(|(_, text)| code(text)).collect();
    let methods = methods.split("\n    fn ").skip(1).map(|rest| words(rest).next().unwrap());
    let ops: Vec<&str> = methods.filter(|name| !NOT_OPS.contains(name)).collect();
    assert!(ops.len() > 20, "{ops:?}");
    let absent: Vec<&&str> =
        ops.iter().filter(|name| !called.contains(&format!(".{name}("))).collect();
    assert!(absent.is_empty(), "no case in tests/ops calls {absent:?}");
}
