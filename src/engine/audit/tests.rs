use super::*;
use crate::comm::{World, threads};
use crate::device::cpu::Cpu;
use crate::manifest::{self, Manifest};
use crate::model::Place as Where;

fn manifest(sets: &[&str]) -> Manifest {
    let text = "
model: {layers: 4, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 16}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = manifest::parse(text, "test", std::path::Path::new("."), &sets);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest
}

/// Every rank's audit, after `harm` was done to each rank's engine.
fn audit(sets: &[&str], harm: impl Fn(usize, &Engine) + Sync) -> Vec<Result<(), Drifted>> {
    let manifest = manifest(sets);
    let run = |world: World| {
        let (rank, cpu) = (world.rank(), Cpu::new(Some(1)));
        let groups = Groups::new(&world, &manifest.topology);
        let engine = Engine::new(&cpu, groups, &manifest, true).unwrap();
        engine.init();
        assert_eq!(engine.audit(), Ok(()), "fresh");
        harm(rank, &engine);
        engine.audit()
    };
    std::thread::scope(|scope| {
        let worlds = threads::world(manifest.topology.ranks()).into_iter();
        let ranks: Vec<_> = worlds.map(|world| scope.spawn(|| run(world))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

/// Flips the lowest bit of one element.
fn flip(engine: &Engine, x: Tensor, element: usize) {
    let one = x.span(element, 1);
    let mut bytes = vec![0; one.bytes()];
    engine.be.download(one, &mut bytes);
    bytes[0] ^= 1;
    engine.be.upload(&bytes, one);
}

/// Where a weight's own part lies among what `tensor` gives of its bucket.
fn find(engine: &Engine, name: &str) -> (usize, usize) {
    let slot = engine.layout.slots().find(|slot| slot.name == name).expect(name);
    (slot.bucket, slot.offset - engine.layout.buckets[slot.bucket].range.start)
}

fn flip_live(engine: &Engine, name: &str) {
    let (bucket, offset) = find(engine, name);
    flip(engine, engine.zero.whole_weights(bucket).unwrap(), offset);
}

/// Every rank fails, and all that saw it give the same words.
fn only(results: Vec<Result<(), Drifted>>) -> String {
    let all: Vec<Drifted> = results.into_iter().map(Result::unwrap_err).collect();
    let lines = all.iter().filter(|d| !d.found.is_empty()).map(|d| d.to_string());
    let mut lines: Vec<String> = lines.collect();
    lines.dedup();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[test]
fn a_flipped_bit_in_a_replica_is_named() {
    let sets = ["topology.data=3", "batch.global=18"];
    let harm = |rank, engine: &Engine| {
        if rank == 2 {
            flip_live(engine, "block.3.attn.qkv.weight");
        }
    };
    let line = "block.3.attn.qkv.weight on rank 2 (TP0 PP0 DP2) is not the same as on rank \
                0 (TP0 PP0 DP0), 1 (TP0 PP0 DP1)";
    assert_eq!(only(audit(&sets, harm)), line);
    let sets = [&sets[..], &["topology.zero=1", "precision=bf16"]].concat();
    assert_eq!(only(audit(&sets, harm)), line);
}

#[test]
fn a_flipped_bit_in_what_the_optimizer_keeps_is_named() {
    let harm = |rank, engine: &Engine| {
        if rank == 1 {
            let (bucket, offset) = find(engine, "embed.position");
            flip(engine, engine.optimizer.owned(bucket)[2], offset + 5);
        }
    };
    let found = only(audit(&["topology.data=2"], harm));
    assert!(found.starts_with("embed.position (second moment) on rank 1 (TP0 PP0 DP1)"), "{found}");
}

#[test]
fn a_flipped_bit_in_what_tensor_parallelism_repeats_is_named() {
    let sets = ["topology.tensor=2", "topology.pipeline=2", "topology.schedule=interleaved"];
    let harm = |rank, engine: &Engine| {
        if rank == 3 {
            flip_live(engine, "block.1.mlp.fc2.bias");
        }
    };
    let results = audit(&sets, harm);
    assert!(results[0].as_ref().unwrap_err().found.is_empty(), "the other stage saw nothing");
    let line = "block.1.mlp.fc2.bias on rank 3 (TP1 PP1 DP0) is not the same as on rank 2 (TP0 \
                PP1 DP0)";
    assert_eq!(only(results), line);
    // What is split is different on purpose.
    let split = |rank, engine: &Engine| {
        if rank == 3 {
            flip_live(engine, "block.1.mlp.fc1.weight");
        }
    };
    assert!(audit(&sets, split).iter().all(Result::is_ok));
}

#[test]
fn a_flipped_bit_in_a_tied_embedding_is_named() {
    let sets = ["topology.pipeline=4", "topology.data=2", "topology.zero=1"];
    let harm = |rank, engine: &Engine| {
        // Both replicas of the last stage, alike: only the first stage can tell.
        if rank >= 6 {
            assert!(engine.layout.bucket(Where::TiedCopy).is_some());
            flip_live(engine, "embed.token");
        }
    };
    let results = audit(&sets, harm);
    let lines: Vec<String> = results.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    let drift = "embed.token on rank 6 (TP0 PP3 DP0) is not the same as on rank 0 (TP0 PP0 DP0)";
    assert_eq!((lines[0].as_str(), lines[6].as_str()), (drift, drift));
    assert_eq!(lines[3], "weights that must be equal differ on other ranks");
}

#[test]
fn the_shares_of_zero_3_are_compared_where_they_repeat() {
    let sets = ["topology.tensor=2", "topology.data=2", "topology.zero=3"];
    let harm = |rank, engine: &Engine| {
        if rank == 1 {
            let (bucket, offset) = find(engine, "block.2.ln1.scale");
            let own = engine.zero.own(bucket);
            let first = own.start - engine.layout.buckets[bucket].range.start;
            assert!((first..first + own.len()).contains(&offset), "the first replica has it");
            flip(engine, engine.zero.own_weights(bucket), offset - first);
        }
    };
    let found = only(audit(&sets, harm));
    assert!(found.starts_with("block.2.ln1.scale on rank 1 (TP1 PP0 DP0)"), "{found}");
}
