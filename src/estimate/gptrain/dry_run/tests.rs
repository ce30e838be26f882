//! Counts of the dry run, among stages.

use super::*;
use crate::gptrain::prices;
use crate::gptrain::stage_times::{OVERLAPPED, SUMS, StageTimes};
use grids::{GRIDS, MANIFEST};

#[path = "../../../../tests/common/grids.rs"]
mod grids;

fn planned(sets: &[&str]) -> Manifest {
    manifest::for_test(MANIFEST, sets)
}

/// The short cut of a search: one stage of each kind.
#[test]
fn stages_that_are_alike_have_the_same_work_and_no_more_memory() {
    let split = "topology={pipeline: 4, layer_split: [1, 2, 2, 3]}";
    let pipelines = [&["topology.pipeline=8"][..], &["topology.pipeline=4"], &[split]];
    for sets in pipelines.into_iter().chain(GRIDS) {
        let m = planned(sets);
        let all = stages(&m);
        let (at, most) = peak(&all);
        let limits = |device| MemoryLimits { device, host: Bytes(0), per_node: 1 };
        assert!(fits(&m, limits(most)) && !fits(&m, limits(Bytes(most.0 - 1))), "{sets:?}");
        let quick = stages_within(&m, limits(most)).expect("it fits");
        assert_eq!(peak(&quick), (at, most), "{sets:?}");
        for (stage, (quick, exact)) in quick.iter().zip(&all).enumerate() {
            let work = count_work(&m, stage);
            assert_eq!(quick.work.micro.ops, work.micro.ops, "stage {stage} of {sets:?}");
            assert_eq!(quick.work.step.messages, work.step.messages, "stage {stage} of {sets:?}");
            assert!(
                quick.memory_plan.total().0 >= exact.memory_plan.total().0,
                "stage {stage} of {sets:?}"
            );
        }
    }
}

/// Twelve bytes of each parameter that a replica owns move to the host, whose pass reads and writes
/// thirty; the device's own work is less by that of the update.
#[test]
fn what_lies_on_the_host_is_billed_there() {
    let wide = ["model.hidden=128", "model.vocab=128", "topology={data: 2, zero: 1}"];
    let of = |more: &[&str]| planned(&[&wide[..], &["precision=bf16"], more].concat());
    let device = stages(&of(&[]));
    let host = stages(&of(&["topology.offload=optimizer"]));
    let row = |rows: &[(&str, Bytes)]| rows.iter().find(|row| row.0 == "optimizer").unwrap().1;
    let before = &device[0].memory_plan;
    let after = &host[0].memory_plan;
    assert_eq!((row(&before.rows), row(&after.rows)), (row(&after.host), Bytes(0)));
    assert_eq!(Bytes(before.total().0 - after.total().0), row(&after.host));
    let before = &device[0].work.step;
    let after = &host[0].work.step;
    assert_eq!(after.host["adamw"].bytes, before.ops["adamw"].bytes);
    assert!(before.host.is_empty() && !after.ops.contains_key("adamw"));
    let owned = after.host["adamw"].bytes / 30.0;
    let copied = |name: &str| after.host[name].bytes / owned;
    let gradients = copied("to the host");
    let weights = copied("to the device");
    assert!((4.0..4.1).contains(&gradients) && (2.0..2.05).contains(&weights), "and padding");
    let hw = crate::hardware::find("a100-80g", "").unwrap();
    let setup = Setup::new(&of(&[]), crate::setup::Program::Gptrain, hw);
    let seconds = host_seconds(&after.host, &setup);
    let pass = 2.0 * 30.0 * owned / (410e9 * crate::hardware::HOST_SHARE);
    assert!((1.0 - 1e-9..1.1).contains(&(seconds / pass)), "{seconds} s, not {pass}");
    let least = host_peak(&host);
    let most = peak(&host).1;
    let m = of(&["topology.offload=optimizer"]);
    assert!(fits(&m, MemoryLimits { device: most, host: least, per_node: 1 }));
    assert!(!fits(&m, MemoryLimits { device: most, host: Bytes(least.0 - 1), per_node: 1 }));
}

/// Gradients of blocks on the host take as much there as they did on the device, but for three
/// buffers. A micro-batch sends them there and back; the update does not.
#[test]
fn gradients_on_the_host_are_billed_there() {
    let wide = ["model.hidden=128", "model.vocab=128", "model.layers=8", "precision=bf16"];
    let of = |offload: &str| {
        let offload = format!("topology.offload={{what: optimizer, {offload}}}");
        planned(&[&wide[..], &[&offload]].concat())
    };
    let [device, host] = ["gradients: device", "gradients: host"].map(|set| stages(&of(set)));
    let row = |rows: &[(&str, Bytes)]| {
        rows.iter()
            .find(|row| row.0 == "gradients")
            .map_or(0, |row| row.1.0)
    };
    let before = &device[0].memory_plan;
    let after = &host[0].memory_plan;
    let block = row(&after.host) / 8;
    assert!(block > 0 && row(&before.host) == 0);
    assert_eq!(row(&before.rows) - row(&after.rows), 5 * block);
    let copied = |stage: &Stage, name: &str| {
        [&stage.work.micro, &stage.work.step]
            .map(|work| work.host.get(name).map_or(0.0, |w| w.bytes))
    };
    for name in ["to the host", "to the device"] {
        let [there, here] = [&host[0], &device[0]].map(|stage| copied(stage, name));
        assert_eq!(there[0] - here[0], row(&after.host) as f64, "{name}, a micro-batch");
    }
    // In a step of one micro-batch they go once, and none comes back.
    let total = |stage: &Stage, name: &str| copied(stage, name).iter().sum::<f64>();
    assert_eq!(total(&host[0], "to the host"), total(&device[0], "to the host"));
    assert_eq!(total(&host[0], "to the device"), total(&device[0], "to the device"));
    // Left open, they go where there is room.
    let open = of("gradients: auto");
    let limits = |device: Bytes| MemoryLimits { device, host: Bytes(u64::MAX), per_node: 1 };
    let most = peak(&device).1;
    assert_eq!(stages_within(&open, limits(most)).unwrap()[0].memory_plan, *before);
    let less = stages_within(&open, limits(Bytes(most.0 - 1))).unwrap();
    assert_eq!(less[0].memory_plan, *after);
    assert!(!fits(&open, limits(Bytes(peak(&host).1.0 - 1))));
}

/// A step takes at least its ops, and at least its messages. Messages between stages overlap only with
/// `topology.overlap_p2p`; a processor computes and sends with the same cores, so nothing overlaps there.
#[test]
fn no_more_is_overlapped_than_there_is_beside_it() {
    for sets in GRIDS {
        let m = planned(sets);
        let stages = stages(&m);
        let t = &m.topology;
        let of = |hardware: &str| {
            let hw = crate::hardware::find(hardware, "").unwrap();
            let s = Setup::new(&m, crate::setup::Program::Gptrain, hw);
            StageTimes::new(&stages, &s).parts(s.micros())
        };
        let sum = |parts: &[(&str, f64)], names: &[&str]| {
            let named = parts.iter().filter(|(name, _)| names.contains(name));
            named.fold(0.0, |sum, (_, seconds)| sum + seconds)
        };
        let gpus = of("h100-80g");
        let overlapped = -sum(&gpus, &[OVERLAPPED]);
        let begins = t.tensor > 1 || t.data > 1 || t.overlap_p2p;
        assert_eq!(overlapped > 0.0, begins, "{overlapped} s of {sets:?}");
        let update = "once a step: optimizer";
        let ops =
            sum(&gpus, &["matrix products", "attention", "element-wise", "head and loss", update]);
        let messages = sum(&gpus, &["tensor parallel", "pipeline sends", "data parallel", SUMS]);
        assert!(overlapped <= ops.min(messages) * (1.0 + 1e-9), "{gpus:?} of {sets:?}");
        assert_eq!(sum(&of("cpu"), &[OVERLAPPED]), 0.0, "{sets:?}");
    }
}

/// Rings of replicas over nodes reach `ring_share` of the adapters, and less over more than eight nodes; each
/// gather of ZeRO 3 waits for a hop to every other replica, which messages within a node do not.
#[test]
fn rings_over_nodes_have_their_share_and_their_hops() {
    let hw = crate::hardware::find("h100-80g", "").unwrap();
    let seconds = |sets: &[&str], ring_share: f64| {
        let m = planned(sets);
        let hw = Hardware { ring_share, ..hw.clone() }.leak();
        let s = Setup::new(&m, crate::setup::Program::Gptrain, hw);
        let messages = &stages(&m)[0].work.micro.messages;
        (Prices::new(&s).messages(messages), prices::replica_link(&s).gb_s)
    };
    let zero3 = |data: usize| {
        let sets = [format!("topology.data={data}"), "topology.zero=3".into()];
        let global = format!("batch.global={}", 2 * data);
        let samples = "train.samples=1000000".to_string();
        let sets = [&sets[0], &sets[1], &global, &samples].map(String::as_str);
        [1.0, 0.35, 0.1].map(|share| seconds(&sets, share))
    };
    let node = zero3(8);
    assert!(node.iter().all(|(_, gb_s)| *gb_s == node[0].1), "one node: {node:?}");
    let [full, third, tenth] = zero3(16);
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, not {b}");
    close(full.1, 0.7 * hw.network_gb_s);
    close(third.1, 0.35 * hw.network_gb_s);
    close(tenth.1, 0.1 * hw.network_gb_s);
    assert!(full.0 < third.0 && third.0 < tenth.0);
    close(zero3(128)[0].1 / full.1, crate::rings::contention(16));
    // The model is small, so that hops are all of its gathers' time: 8 times the ranks, 8 times the time.
    let times = zero3(1024)[0].0 / zero3(128)[0].0;
    assert!((7.0..9.0).contains(&times), "{times} times the time");
}

/// Devices of several nodes that fast links join exchange as those of one node; rings beyond them use the
/// adapters of all their nodes, which groups side by side share.
#[test]
fn fast_links_may_join_several_nodes() {
    let hw = crate::hardware::find("gb300-288g", "").unwrap();
    assert_eq!((hw.per_node, hw.link_domain), (4, 72));
    let link = |link_domain, network_gb_s, [tensor, data]: [usize; 2]| {
        let hw = Hardware { link_domain, network_gb_s, ..hw.clone() }.leak();
        let s = Setup::new(&planned(&[]), crate::setup::Program::Gptrain, hw)
            .with_topology(|t| (t.tensor, t.data) = (tensor, data));
        prices::replica_link(&s).gb_s / 0.7
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a}, not {b}");
    let network = hw.network_gb_s;
    for grid in [[1, 4], [1, 16], [1, 72], [4, 18]] {
        close(link(72, network, grid), hw.bus_gb_s);
    }
    close(link(0, network, [1, 16]), network);
    // 18 nodes' adapters for a ring, or for the rings of four tensor ranks; a node's alone for one.
    close(link(72, 20.0, [1, 144]), 18.0 * 20.0);
    close(link(72, 20.0, [4, 36]), 18.0 * 20.0 / 4.0);
    close(link(0, 20.0, [4, 2]), 20.0 / 4.0);
}

/// Asynchronous messages save the hidden time minus the part that appears again while the pipeline fills,
/// as the difference of orders with and without them in `plan::timeline`.
#[test]
fn begun_messages_are_credited_as_the_timeline_has_them() {
    let interleaved = ["topology.pipeline=4", "topology.schedule=interleaved"];
    let begun = ["model.layers=8", "topology.overlap_p2p=true"];
    let m = planned(&[interleaved, begun].concat());
    let stages = stages(&m);
    let hw = crate::hardware::find("h100-80g", "").unwrap();
    let s = Setup::new(&m, crate::setup::Program::Gptrain, hw);
    let times = StageTimes::new(&stages, &s);
    let parts = times.parts(s.micros());
    let part = |of: &str| parts.iter().find(|(name, _)| *name == of).unwrap().1;
    let each = times.micro_seconds();
    let slowest = each.iter().copied().fold(0.0, f64::max);
    let filling = part("pipeline bubble") - (each.iter().sum::<f64>() - slowest) / 2.0;
    // 8 virtual stages: 7 messages there and 7 back. Of each, both ranks count the bytes, and the
    // sender the latency; stage 1 sends two of a micro-batch's activations.
    let sent = stages[1].work.micro.messages[&(comm::FORWARD_MESSAGES, Op::Send)];
    let link = prices::link(&s, &[0, 1, 2, 3]);
    let latency = sent.calls / 2.0 * link.latency_us * 1e-6;
    let bytes = sent.bytes / 2.0;
    let expected = 14.0 * (latency / 2.0 + bytes / (link.gb_s * 1e9)) * hw.slowdown;
    assert!((filling / expected - 1.0).abs() < 0.01, "{filling} s, not {expected}");
}
