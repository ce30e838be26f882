//! Offload is a place: states on the host change no bit of any loss, norm or gradient, on any grid.

use crate::common;
use crate::grids::{GLOBAL, train};
use crate::grids_cuda::{How, outcomes};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, MASTER, MODEL};

const OFFLOAD: &str = "topology.offload=optimizer";
const FULL: &str = "topology.offload=full";

/// Gradients are clipped; a step has one micro-batch of each replica and stage, or several.
fn same(sets: &[&str]) {
    for precision in ["precision=f32", "precision=bf16"] {
        let sets = [&[precision, "model.dropout=0.1"], sets].concat();
        let device = train(&sets, &GLOBAL);
        for offload in [OFFLOAD, FULL] {
            let host = train(&[&sets[..], &[offload]].concat(), &GLOBAL);
            assert!(device == host, "{offload} {sets:?}");
        }
    }
}

const HOST_GRADS: &str = "topology.offload={what: optimizer, gradients: host}";
const ALL: &str = "topology.offload={what: full, gradients: host}";

/// Gradients lie on the host too, summed up over micro-batches where they would be without.
fn same_with_gradients(sets: &[&str]) {
    for precision in ["precision=f32", "precision=bf16"] {
        let sets = [&[precision, "model.dropout=0.1"], sets].concat();
        let device = train(&sets, &GLOBAL);
        for offload in [HOST_GRADS, ALL] {
            let host = train(&[&sets[..], &[offload]].concat(), &GLOBAL);
            assert!(device == host, "{offload} {sets:?}");
        }
    }
}

#[test]
fn gradients_of_blocks() {
    same_with_gradients(&[]);
    same_with_gradients(&["batch.micro=8", "model.layers=7"]);
    same_with_gradients(&["batch.micro=1", "model.layers=1", "model.tied_head=false"]);
    for zero in ["topology.zero=0", "topology.zero=1", "topology.zero=2", "topology.zero=3"] {
        same_with_gradients(&["topology.data=2", zero]);
        same_with_gradients(&["topology.data=2", zero, "batch.micro=4"]);
    }
}

#[test]
fn gradients_in_tensor_and_pipeline_parallel_ranks() {
    same_with_gradients(&["topology.tensor=2", "topology.sequence_parallel=true"]);
    same_with_gradients(&["topology.pipeline=2"]);
    same_with_gradients(&["topology.pipeline=2", "topology.schedule=interleaved"]);
    let all = ["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"];
    same_with_gradients(&[&all[..], &["topology.sequence_parallel=true"]].concat());
    let scattered = ["topology.pipeline=2", "topology.data=2", "topology.zero=2"];
    same_with_gradients(&scattered);
    same_with_gradients(&[&scattered[..], &["topology.schedule=interleaved"]].concat());
    let gpipe = ["model.layers=5", "topology.layer_split=[3, 2]", "topology.schedule=gpipe"];
    same_with_gradients(&[&scattered[..], &gpipe].concat());
    let shards = ["topology.tensor=2", "topology.data=2", "topology.zero=3"];
    same_with_gradients(&[&shards[..], &["topology.sequence_parallel=true"]].concat());
}

/// Adafactor's master weights are copied to the device in pieces.
#[test]
fn adafactor() {
    let relative = "optimizer.adafactor={relative_step: true, clip: 0.3}";
    let constant = ["lr.decay=constant", relative];
    let grids: [&[&str]; 7] = [
        &[],
        &["topology.data=2"],
        &["topology.data=2", "topology.zero=1", "batch.micro=4"],
        &["topology.data=2", "topology.zero=3"],
        &["topology.tensor=2", "topology.sequence_parallel=true"],
        &["topology.pipeline=2", "topology.data=2", "topology.zero=1"],
        &["topology.pipeline=2", "topology.data=2", "topology.zero=2"],
    ];
    for grid in grids {
        same(&[&["optimizer.adafactor={clip: 0.3}"], grid].concat());
        same(&[&constant[..], grid].concat());
    }
}

/// Gradients stay where they fit: a cap on the device's memory sends them to the host, by itself.
#[test]
fn gradients_leave_where_they_do_not_fit() {
    let sets = ["precision=bf16", "model.layers=12", "model.hidden=64", "model.seq_len=24"];
    let cpu = Cpu::new(Some(1));
    let plan = |more: &[&str]| {
        let m = common::manifest(&[&sets[..], more].concat());
        Engine::new(&cpu, Groups::solo(), &m, true).map(|engine| engine.memory_plan().clone())
    };
    let (stay, leave) = (plan(&[OFFLOAD]).unwrap(), plan(&[HOST_GRADS]).unwrap());
    assert!(leave.total() < stay.total() && leave.host_total() > stay.host_total());
    let cap = |most: u64| format!("train.device_memory={most}B");
    assert_eq!(plan(&[OFFLOAD, &cap(stay.total().0)]).unwrap(), stay);
    assert_eq!(plan(&[OFFLOAD, &cap(stay.total().0 - 1)]).unwrap(), leave);
    assert!(plan(&[OFFLOAD, &cap(leave.total().0 - 1)]).is_err());
    let device = "topology.offload={what: optimizer, gradients: device}";
    assert!(plan(&[device, &cap(stay.total().0 - 1)]).is_err());
    let whole = train(&sets, &GLOBAL);
    let capped = cap(leave.total().0);
    assert!(whole == train(&[&sets[..], &[OFFLOAD, &capped]].concat(), &GLOBAL));
}

#[test]
fn one_rank() {
    same(&[]);
    same(&["batch.micro=8", "model.position=alibi", "model.tied_head=false"]);
    same(&["model.layers=3", "model.embedding_layernorm=true", "topology.recompute=full"]);
}

#[test]
fn replicas_and_shards() {
    for zero in ["topology.zero=0", "topology.zero=1", "topology.zero=2", "topology.zero=3"] {
        same(&["topology.data=2", zero]);
        same(&["topology.data=2", zero, "batch.micro=4"]);
    }
}

#[test]
fn tensor_and_pipeline_parallel_ranks() {
    same(&["topology.tensor=2", "topology.sequence_parallel=true"]);
    same(&["topology.pipeline=2"]);
    same(&["topology.pipeline=2", "topology.schedule=interleaved"]);
    same(&["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"]);
    let scattered = ["topology.pipeline=2", "topology.data=2", "topology.zero=2"];
    same(&scattered);
    same(&[&scattered[..], &["topology.schedule=interleaved", "batch.micro=1"]].concat());
}

/// Two steps overflow: they change no state on the host either.
#[test]
fn skipped_steps() {
    let scale = "loss_scale={initial: 16777216, hysteresis: 1, window: 3}";
    for grid in [&[][..], &["topology.data=2", "topology.zero=1"], &["topology.tensor=2"]] {
        let sets = [&["precision=fp16", scale], grid].concat();
        let device = train(&sets, &GLOBAL);
        for offload in [OFFLOAD, FULL] {
            let host = train(&[&sets[..], &[offload]].concat(), &GLOBAL);
            assert!(device == host, "{offload} {grid:?}");
        }
    }
}

/// The kernel and the host's processor round alike, in every step of an update; Adafactor's is the
/// device's.
#[test]
fn gpus() {
    let zero_3: &[&str] = &["topology.data=2", "topology.zero=3"];
    let tensor: &[&str] = &["topology.tensor=2", "topology.sequence_parallel=true"];
    let adafactor = ["precision=bf16", "optimizer.adafactor={scale_parameter: true}"];
    let grids: [(&[&str], &[&str]); 7] = [
        (zero_3, &adafactor),
        (tensor, &adafactor),
        (zero_3, &["precision=f32"]),
        (zero_3, &["precision=fp16", "loss_scale=1024"]),
        (tensor, &["precision=bf16"]),
        (&["topology.data=2", "topology.zero=1"], &["precision=bf16"]),
        (&["topology.pipeline=2"], &["precision=bf16"]),
    ];
    for (grid, precision) in grids {
        let small = ["model.dropout=0.1", "batch.micro=2", "batch.global=8"];
        let sets = [&small[..], precision, grid].concat();
        let on = |sets: &[&str]| outcomes(&common::manifest(sets), How::Nccl);
        let device = on(&sets);
        let gradients = precision != adafactor;
        for offload in [OFFLOAD, FULL, HOST_GRADS]
            .into_iter()
            .take(2 + usize::from(gradients))
        {
            let host = on(&[&sets[..], &[offload]].concat());
            assert_eq!(device, host, "{offload} {precision:?} {grid:?}");
        }
    }
}

/// The plan's device and host memory match the homes of the states.
#[test]
fn states_leave_the_device() {
    let cpu = Cpu::new(Some(1));
    let bytes = |sets: &[&str]| {
        let engine = Engine::new(&cpu, Groups::solo(), &common::manifest(sets), true).unwrap();
        let plan = engine.memory_plan();
        let of = |rows: &[(&str, gptrain::base::Bytes)], name| {
            rows.iter()
                .find(|row| row.0 == name)
                .map_or(0, |row| row.1.0)
        };
        let on_host = |name| {
            let mut states = engine.store().states().iter();
            states.all(|kept| kept.get(name).memory() == gptrain::device::MemoryKind::Host)
        };
        let home = (on_host(MASTER), on_host(MODEL));
        (of(&plan.rows, "optimizer"), of(&plan.host, "optimizer"), home, plan.to_string())
    };
    let (device, host, home, _) = bytes(&["precision=bf16"]);
    assert!(device > 0 && host == 0 && home == (false, false));
    let (left, moved, home, plan) = bytes(&["precision=bf16", OFFLOAD]);
    assert_eq!((left, moved, home), (0, device, (true, false)), "{plan}");
    assert!(plan.contains("; on the host optimizer "), "{plan}");
    let (_, moved, home, plan) = bytes(&["precision=bf16", FULL, "model.tied_head=false"]);
    assert_eq!((moved > 0, home), (true, (true, true)), "{plan}");
    assert!(plan.contains("; on the host weights "), "{plan}");
    let (_, states, home, plan) = bytes(&["precision=f32", FULL, "model.tied_head=false"]);
    assert!(states < moved && home == (true, true), "weights are master weights: {plan}");
}

/// A model whose weights do not fit trains, with the losses that it has where they do.
#[test]
fn a_model_that_is_refused_trains_with_its_weights_on_the_host() {
    let model = ["precision=bf16", "model.layers=12", "model.hidden=64", "model.seq_len=24"];
    let cpu = Cpu::new(Some(1));
    let plan = |more: &[&str]| {
        let m = common::manifest(&[&model[..], more].concat());
        Engine::new(&cpu, Groups::solo(), &m, true).map(|engine| engine.memory_plan().clone())
    };
    let weights = plan(&[])
        .unwrap()
        .rows
        .iter()
        .find(|row| row.0 == "weights")
        .unwrap()
        .1
        .0;
    // Gradients stay on the device.
    let [optimizer, full] = ["optimizer", "full"]
        .map(|what| format!("topology.offload={{what: {what}, gradients: device}}"));
    let least = plan(&[&optimizer]).unwrap().total().0 - weights / 2;
    let cap = format!("train.device_memory={least}B");
    assert!(plan(&[&cap]).is_err() && plan(&[&optimizer, &cap]).is_err(), "refused");
    let whole = train(&model, &GLOBAL);
    assert!(whole == train(&[&model[..], &[&full, &cap]].concat(), &GLOBAL));
}

/// A cap on the device's memory is kept, and what it refuses fits once the states are elsewhere.
#[test]
fn a_cap_refuses_and_offload_fits() {
    let cpu = Cpu::new(Some(1));
    let reserve = |sets: &[&str]| {
        let engine = Engine::new(&cpu, Groups::solo(), &common::manifest(sets), true);
        engine
            .map(|engine| engine.memory_plan().total())
            .map_err(|error| error.to_string())
    };
    let whole = reserve(&["precision=bf16"]).unwrap();
    let less = format!("train.device_memory={}B", whole.0 - 1);
    let refused = reserve(&["precision=bf16", &less]).unwrap_err();
    assert_eq!(refused, format!("out of memory: {whole} asked for, {whole} available"));
    assert!(reserve(&["precision=bf16", &less, OFFLOAD]).unwrap() < whole);
    assert!(reserve(&["precision=bf16", &format!("train.device_memory={}B", whole.0)]).is_ok());
}
