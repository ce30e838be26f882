//! Faults that are planted in the kernels' text: each must be seen, as a fault or by wrong numbers.

use crate::attention::{Case, Kind, Part, Tensors, errors};
use crate::machine::Order;
use crate::modules::Modules;

/// The text with occurrence `number` of a pattern replaced; the same text without it.
fn replaced(text: &str, pattern: &str, number: usize, by: &str) -> String {
    match text.match_indices(pattern).nth(number) {
        Some((at, _)) => format!("{}{by}{}", &text[..at], &text[at + pattern.len()..]),
        None => text.to_string(),
    }
}

/// The text with the statement of an occurrence of a pattern replaced.
fn without(text: &str, pattern: &str, number: usize) -> String {
    let Some((at, _)) = text.match_indices(pattern).nth(number) else { return text.to_string() };
    let end = at + text[at..].find(';').expect("an end");
    format!("{}membar.cta{}", &text[..at], &text[end..])
}

fn last(text: &str, pattern: &str) -> usize {
    text.matches(pattern).count().saturating_sub(1)
}

/// All `mov.u32 %r…, OLD` with a new number.
fn constant(text: &str, old: &str, new: &str, most: usize) -> String {
    let mut left = most;
    let line = |line: &str| {
        let moves =
            line.trim_start().starts_with("mov.u32") && line.ends_with(&format!(", {old};"));
        if !moves || left == 0 {
            return line.to_string();
        }
        left -= 1;
        line.replace(&format!(", {old};"), &format!(", {new};"))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The second and third coordinate of a copy of a box exchanged.
fn exchanged(text: &str, number: usize) -> String {
    let Some((start, _)) = text.match_indices("complete_tx::bytes").nth(number) else {
        return text.to_string();
    };
    let open = start + text[start..].find('{').expect("coordinates") + 1;
    let close = open + text[open..].find('}').expect("coordinates");
    let mut names: Vec<&str> = text[open..close].split(',').collect();
    names.swap(1, 2);
    format!("{}{}{}", &text[..open], names.join(","), &text[close..])
}

/// All copies by `cp.async` with that many bytes more in their destination (0) or source (1).
fn moved(text: &str, operand: usize, bytes: &str) -> String {
    let line = |line: &str| {
        let ends: Vec<usize> = line.match_indices(']').map(|(at, _)| at).collect();
        if line.contains("cp.async.cg") {
            format!("{}+{bytes}{}", &line[..ends[operand]], &line[ends[operand]..])
        } else {
            line.to_string()
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

struct Fault {
    what: &'static str,
    kernel: (&'static str, &'static str),
    part: Part,
    plant: fn(&str) -> String,
}

const ORDERS: [Order; 2] = [Order::Lowest, Order::Random(1)];
const FORWARD: (&str, &str) = ("attention_hopper.90a", "attention_wgmma_128");
const MMA: (&str, &str) = ("attention_mma.80", "attention_mma_64_bf16");

fn faults() -> Vec<Fault> {
    let forward = |what, kernel, plant| Fault { what, kernel, part: Part::Forward, plant };
    vec![
        forward("one group more is left pending", FORWARD, |text| {
            let wait = "wgmma.wait_group.sync.aligned ";
            replaced(text, &format!("{wait}1"), 0, &format!("{wait}2"))
        }),
        forward("the last wait for products is missing", FORWARD, |text| {
            let wait = "wgmma.wait_group";
            without(text, wait, last(text, wait))
        }),
        forward("coordinates of a box are exchanged", FORWARD, |text| exchanged(text, 3)),
        forward("half the bytes are expected", FORWARD, |text| constant(text, "32768", "16384", 1)),
        forward("an operand is not transposed", FORWARD, |text| {
            replaced(text, ", 1, 1, 1, 1;", 0, ", 1, 1, 1, 0;")
        }),
        forward("a barrier waits for twice the threads", FORWARD, |text| {
            constant(text, "128", "256", usize::MAX)
        }),
        Fault {
            what: "a stage is never free again",
            kernel: ("attention_hopper_backward.90a", "attention_kv_wgmma_128"),
            part: Part::Keys,
            plant: |text| without(text, "mbarrier.arrive.shared::cta.b64 _", 0),
        },
        forward("one group of copies more is left pending", MMA, |text| {
            replaced(text, "cp.async.wait_group 0", 0, "cp.async.wait_group 1")
        }),
        forward("matrices are not transposed", MMA, |text| {
            replaced(text, "x4.trans.shared", 0, "x4.shared")
        }),
        forward("a barrier of the block is missing", MMA, |text| without(text, "bar.sync", 2)),
        forward("copies read beyond their tensor", MMA, |text| moved(text, 1, "1048576")),
        forward("copies are not aligned", MMA, |text| moved(text, 0, "8")),
    ]
}

#[test]
fn planted_faults_are_seen() {
    let Some(modules) = Modules::compiled() else { return };
    let by_wgmma = Case::new(Kind::Wgmma, 128, [1, 300, 2, 1]);
    let by_mma = Case::new(Kind::Mma, 64, [1, 150, 1, 1]);
    let [of_wgmma, of_mma] = [&by_wgmma, &by_mma].map(Tensors::new);
    let right = |modules: &Modules, fault: &Fault, order: Order| {
        let (case, of) = match fault.kernel {
            MMA => (&by_mma, &of_mma),
            _ => (&by_wgmma, &of_wgmma),
        };
        let case = &Case { order, ..case.clone() };
        let errors = errors(modules, case, of, fault.part);
        (
            matches!(&errors, Ok(all) if all.iter().all(|error| *error < case.bound_of_error())),
            errors,
        )
    };
    for fault in faults() {
        let (file, name) = fault.kernel;
        let planted = modules.changed(file, name, fault.plant);
        let seen = ORDERS.iter().any(|order| {
            let (is_right, errors) = right(&planted, &fault, *order);
            println!("{}, {order:?}: {errors:?}", fault.what);
            !is_right
        });
        assert!(seen, "{} in {name}: not seen", fault.what);
    }
    // Without a fault the same cases are right.
    for part in [Part::Forward, Part::Keys] {
        for kernel in [FORWARD, MMA] {
            let none = Fault { what: "nothing", kernel, part, plant: str::to_string };
            let all_right = ORDERS.iter().all(|order| right(&modules, &none, *order).0);
            assert!(all_right, "{part:?} of {kernel:?} is wrong without a fault");
        }
    }
}
