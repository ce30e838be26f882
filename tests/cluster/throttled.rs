//! PowerSGD between ranks over TCP whose adapter is slow: how many bytes wait for it. (How much shorter
//! a step gets is in benches/LOG.md.)

use crate::common;
use gptrain::comm::tcp::{self, Join};
use gptrain::comm::{GRAD_SUM, Traffic, Watchdog, World};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::model::{Inputs, Module, Param};
use std::net::TcpListener;
use std::time::Duration;

/// Bytes per second that a rank sends.
const LIMIT: f64 = 4e6;
const RANK: usize = 4;

/// Two replicas, joined over TCP.
fn worlds() -> Vec<Join> {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let join = |rank| Join {
        rank,
        world: 2,
        node: format!("n{rank}"),
        address: address.to_string(),
        job: format!("throttled {}", std::process::id()),
        secret: b"of this test".to_vec(),
        binary: 1,
        manifest: 2,
        start_timeout: Duration::from_secs(60),
        watchdog: Watchdog::new(Duration::from_secs(120)),
        send_limit: Some(LIMIT),
    };
    (0..2).map(join).collect()
}

/// Two steps of a replica; the bytes of the second, by group, and those that a plain exchange and
/// PowerSGD's formulas have for it.
struct Sent {
    outcomes: Vec<Outcome>,
    bytes: u64,
    plain: usize,
    factors: usize,
}

fn replica(world: World, sets: &[&str]) -> Sent {
    let small = ["model.hidden=64", "model.layers=2", "batch.micro=1", "batch.global=2"];
    let m = common::manifest(&[&small[..], &["topology.data=2"], sets].concat());
    let cpu = Cpu::new(Some(1));
    let engine = Engine::new(&cpu, Groups::new(&world, &m.topology), &m, true).unwrap();
    engine.init();
    let data = |traffic: Traffic| -> u64 {
        let of_group = traffic
            .into_iter()
            .filter(|((group, _), _)| &**group == GRAD_SUM);
        of_group.map(|(_, bytes)| bytes).sum()
    };
    let (mut outcomes, mut totals) = (Vec::new(), Vec::new());
    for step in 0..2 {
        let sample = 2 * step + world.rank() as u64;
        let mut load = |inputs: &Inputs| {
            let tokens = common::tokens(1, 24, 128, sample);
            inputs.upload(&cpu, &Batch::causal(&tokens, 1, sample, 1.0 / 48.0));
            Ok(())
        };
        outcomes.push(engine.step(&mut load, 1, 1e-3).unwrap());
        totals.push(data(world.traffic()));
    }
    let params: Vec<&Param> = engine.params().collect();
    let is_matrix = |param: &&&Param| param.rows > 1 && param.spec.module == Module::Block;
    let matrices: Vec<_> = params.iter().filter(is_matrix).collect();
    let whole = |param: &&Param| 4 * param.numel();
    let plain = params.iter().map(whole).sum::<usize>();
    let of_matrices = matrices.iter().map(|param| whole(param)).sum::<usize>();
    let factors = matrices
        .iter()
        .map(|param| 4 * RANK * (param.rows + param.cols))
        .sum::<usize>();
    let factors = plain - of_matrices + factors;
    Sent { outcomes, bytes: totals[1] - totals[0], plain, factors }
}

fn run(sets: &[&str]) -> Vec<Sent> {
    std::thread::scope(|scope| {
        let ranks = worlds().into_iter();
        let rank = |join: Join| scope.spawn(move || replica(tcp::join(&join).unwrap(), sets));
        let ranks: Vec<_> = ranks.map(rank).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a replica"))
            .collect()
    })
}

/// Each of two ranks sends as much as is summed. There is padding between parameters.
#[test]
fn factors_are_sent_in_the_place_of_gradients() {
    let powersgd = format!("topology.compression={{powersgd: {{rank: {RANK}, start_step: 0}}}}");
    let (plain, factors) = (run(&[]), run(&[powersgd.as_str()]));
    for (plain, factors) in plain.iter().zip(&factors) {
        let within = |bytes: u64, expected: usize| {
            let (low, high) = (expected as u64, expected as u64 + expected as u64 / 20);
            assert!((low..=high).contains(&bytes), "{bytes} bytes sent, not {low} to {high}");
        };
        within(plain.bytes, plain.plain);
        within(factors.bytes, factors.factors);
        assert!(3 * factors.bytes < plain.bytes, "{} of {}", factors.bytes, plain.bytes);
        assert_eq!(plain.outcomes[0].loss, factors.outcomes[0].loss);
        assert_ne!(plain.outcomes[0].grad_norm, factors.outcomes[0].grad_norm);
    }
}
