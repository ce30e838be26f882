//! Every op of a backend has a case.

use crate::source::{code, files, words};

/// Memory, transfers and timers, which have tests of their own.
const NOT_OPS: [&str; 9] = [
    "shared_memory",
    "workspace",
    "logits_chunk",
    "has_contents",
    "download_async",
    "finish_download",
    "enter",
    "time_ops",
    "take_times",
];

/// The bodies of `Backend` and of the traits of ops that it is made of.
fn ops(text: &str) -> Vec<String> {
    let is_ops = |text: &&str| {
        let name = words(text).next().unwrap_or_default();
        name == "Backend" || name.ends_with("Ops")
    };
    let text = code(text);
    let traits = text.split("pub trait ").skip(1).filter(is_ops);
    traits.map(|text| text.split("\n}").next().unwrap().to_string()).collect()
}

#[test]
fn every_op_of_a_backend_has_a_case() {
    let traits: Vec<String> =
        files("src/device", "rs").iter().flat_map(|(_, text)| ops(text)).collect();
    assert!(traits.len() > 1, "Backend, and the optimizers' ops");
    let called: String = files("tests/ops", "rs").iter().map(|(_, text)| code(text)).collect();
    let methods = traits.iter().flat_map(|text| text.split("\n    fn ").skip(1));
    let methods = methods.map(|rest| words(rest).next().unwrap());
    let ops: Vec<&str> = methods.filter(|name| !NOT_OPS.contains(name)).collect();
    assert!(ops.len() > 20, "{ops:?}");
    let absent: Vec<&&str> =
        ops.iter().filter(|name| !called.contains(&format!(".{name}("))).collect();
    assert!(absent.is_empty(), "no case in tests/ops calls {absent:?}");
}
