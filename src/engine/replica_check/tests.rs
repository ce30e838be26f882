use super::*;
use crate::{Engine, SECOND};
use comm::{World, threads};
use device::cpu::Cpu;
use manifest::{self, Manifest};
use model::Module;

fn manifest(sets: &[&str]) -> Manifest {
    let text = "
model: {layers: 4, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 16}
lr: {peak: 1e-3}
train: {samples: 800}
";
    manifest::for_test(text, sets)
}

/// Result of every rank's check, after `harm` ran on its engine.
fn check_all(
    sets: &[&str],
    harm: impl Fn(usize, &Engine) + Sync,
) -> Vec<Result<(), ReplicasDiverged>> {
    let manifest = manifest(sets);
    let run = |world: World| {
        let rank = world.rank();
        let cpu = Cpu::new(Some(1));
        let groups = Groups::new(&world, &manifest.topology);
        let engine = Engine::new(&cpu, groups, &manifest, true).unwrap();
        engine.init();
        assert_eq!(engine.check_replicas(), Ok(()), "fresh");
        harm(rank, &engine);
        engine.check_replicas()
    };
    std::thread::scope(|scope| {
        let worlds = threads::world(manifest.topology.ranks()).into_iter();
        let ranks: Vec<_> = worlds.map(|world| scope.spawn(|| run(world))).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    })
}

/// Flips the lowest bit of one element.
fn flip(engine: &Engine, x: Tensor, element: usize) {
    let one = x.span(element, 1);
    let mut bytes = vec![0; one.bytes()];
    engine.backend().download(one, &mut bytes);
    bytes[0] ^= 1;
    engine.backend().upload(&bytes, one);
}

/// Whole model weight of a parameter.
fn whole(engine: &Engine, name: &str) -> Tensor {
    let mut all = engine.store().whole_weights().into_iter();
    all.find(|(param, _)| param.name == name).expect(name).1
}

/// States of a parameter on this rank.
fn find_states<'e>(engine: &'e Engine, name: &str) -> &'e ParamStates {
    let mut all = engine.store().states().iter();
    all.find(|p| p.param.name == name).expect(name)
}

fn flip_model(engine: &Engine, name: &str) {
    flip(engine, whole(engine, name), 0);
}

/// Asserts that every rank fails, and that all ranks with findings report the same message.
fn only(results: Vec<Result<(), ReplicasDiverged>>) -> String {
    let all: Vec<ReplicasDiverged> = results.into_iter().map(Result::unwrap_err).collect();
    let mut lines: Vec<String> = all
        .iter()
        .filter(|d| !d.found.is_empty())
        .map(|d| d.to_string())
        .collect();
    lines.dedup();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[test]
fn a_flipped_bit_in_a_replica_is_named() {
    let sets = ["topology.data=3", "batch.global=18"];
    let harm = |rank, engine: &Engine| {
        if rank == 2 {
            flip_model(engine, "block.3.attn.qkv.weight");
        }
    };
    let line = "block.3.attn.qkv.weight on rank 2 (TP0 PP0 DP2) is not the same as on rank \
                0 (TP0 PP0 DP0), 1 (TP0 PP0 DP1)";
    assert_eq!(only(check_all(&sets, harm)), line);
    let sets = [&sets[..], &["topology.zero=1", "precision=bf16"]].concat();
    assert_eq!(only(check_all(&sets, harm)), line);
}

#[test]
fn a_flipped_bit_in_what_the_optimizer_keeps_is_named() {
    let found = only(check_all(&["topology.data=2"], |rank, engine: &Engine| {
        if rank == 1 {
            flip(engine, find_states(engine, "embed.position").get(SECOND), 5);
        }
    }));
    assert!(found.starts_with("embed.position (second moment) on rank 1 (TP0 PP0 DP1)"), "{found}");
}

#[test]
fn a_flipped_bit_in_what_tensor_parallelism_repeats_is_named() {
    let sets = ["topology.tensor=2", "topology.pipeline=2", "topology.schedule=interleaved"];
    let results = check_all(&sets, |rank, engine: &Engine| {
        if rank == 3 {
            flip_model(engine, "block.1.mlp.fc2.bias");
        }
    });
    assert!(results[0].as_ref().unwrap_err().found.is_empty(), "the other stage saw nothing");
    let line = "block.1.mlp.fc2.bias on rank 3 (TP1 PP1 DP0) is not the same as on rank 2 (TP0 \
                PP1 DP0)";
    assert_eq!(only(results), line);
    // Split weights differ on purpose.
    let split = |rank, engine: &Engine| {
        if rank == 3 {
            flip_model(engine, "block.1.mlp.fc1.weight");
        }
    };
    assert!(check_all(&sets, split).iter().all(Result::is_ok));
}

#[test]
fn a_flipped_bit_in_a_tied_embedding_is_named() {
    let sets = ["topology.pipeline=4", "topology.data=2", "topology.zero=1"];
    let results = check_all(&sets, |rank, engine: &Engine| {
        // Both replicas of the last stage change alike: only the first stage can detect it.
        if rank >= 6 {
            assert!(engine.store().layout.bucket(Module::TiedCopy).is_some());
            flip_model(engine, "embed.token");
        }
    });
    let lines: Vec<String> = results
        .into_iter()
        .map(|r| r.unwrap_err().to_string())
        .collect();
    let line = "embed.token on rank 6 (TP0 PP3 DP0) is not the same as on rank 0 (TP0 PP0 DP0)";
    assert_eq!((lines[0].as_str(), lines[6].as_str()), (line, line));
    assert_eq!(lines[3], "weights that must be equal differ on other ranks");
}

#[test]
fn a_flipped_bit_in_a_copy_of_a_shard_is_named() {
    let sets = ["topology.data=4", "topology.shard=2", "topology.zero=3"];
    let found = only(check_all(&sets, |rank, engine: &Engine| {
        if rank == 2 {
            let copied = engine.store().copied_weights();
            let mut copied = copied.iter();
            let found = copied.find(|(param, _)| param.name.starts_with("block.1."));
            let (param, at) = found.expect("a part of the block");
            assert_eq!(param.name, "block.1.ln1.scale", "the first shard has it");
            flip(engine, *at, 0);
        }
    }));
    let line = "block.1.ln1.scale on rank 2 (TP0 PP0 DP2) is not the same as on rank 0";
    assert!(found.starts_with(line), "{found}");
}

#[test]
fn a_flipped_bit_in_a_copy_of_a_moment_is_named() {
    let sets = ["topology.data=4", "topology.shard=2", "topology.zero=2", "topology.states=shard"];
    let found = only(check_all(&sets, |rank, engine: &Engine| {
        if rank == 3 {
            let states = find_states(engine, "block.2.mlp.fc2.weight");
            flip(engine, states.get("second_moment"), 0);
        }
    }));
    let line = "block.2.mlp.fc2.weight (second moment) on rank 3 (TP0 PP0 DP3) is not the same as on \
                rank 1";
    assert!(found.starts_with(line), "{found}");
}

#[test]
fn the_shares_of_zero_3_are_compared_where_they_repeat() {
    let sets = ["topology.tensor=2", "topology.data=2", "topology.zero=3"];
    let found = only(check_all(&sets, |rank, engine: &Engine| {
        if rank == 1 {
            let states = find_states(engine, "block.2.ln1.scale");
            assert_eq!(states.part.start, 0, "the first replica has it");
            flip(engine, states.get(MODEL), 0);
        }
    }));
    assert!(found.starts_with("block.2.ln1.scale on rank 1 (TP1 PP0 DP0)"), "{found}");
}
