//! `gptrain run` on the software stand-in for a GPU: trains as the CPU does, resumes bit for bit,
//! and reports missing parts; on several, as threads and as processes; and their failures.

mod energy;
mod failures;
mod faults;
mod local;
mod nccl;
mod ranks;

pub use ranks::on_stand_in as on_stand_ins;

use crate::common::binary::{Done, Lab, run_args};
use crate::common::softgpu;
use gptrain::device::cuda::{FOLDER, GRAPHS, KERNELS, Kernels};
use std::path::{Path, PathBuf};

/// The variables with which `gptrain` runs on the stand-in.
pub fn variables() -> [(&'static str, PathBuf); 2] {
    [FOLDER, KERNELS].map(|variable| (variable, softgpu::folder()))
}

/// `run` with train.device cuda, with libraries from `folder` and other variables.
fn run_on(lab: &Lab, folder: &Path, variable: (&str, &str), sets: &[&str]) -> Done {
    let sets = [&["train.device=cuda"], sets].concat();
    let variable = (variable.0, Path::new(variable.1));
    lab.run_with(&[(FOLDER, folder), (KERNELS, &softgpu::folder()), variable], &sets)
}

/// `gptrain ARGS` on the stand-in.
fn on_stand_in(lab: &Lab, args: &[&str]) -> Done {
    let mut command = lab.command(args);
    Done::of(command.envs(variables()).output().unwrap())
}

/// `run` on the stand-in.
fn run(lab: &Lab, sets: &[&str]) -> Done {
    run_on(lab, &softgpu::folder(), ("SOFTGPU_SEED", "1"), sets)
}

#[test]
fn a_gpu_trains_as_the_cpu_does_and_repeats_itself_bit_for_bit() {
    let lab = Lab::new();
    // One head of 32: bf16 goes through tensor cores.
    let model = ["model.dropout=0.1", "model.heads=1", "checkpoint.interval=4"];
    for (precision, on_cpu, tolerance) in [
        ("f32", "f32", 2e-5),
        ("tf32", "f32", 2e-3),
        ("bf16", "bf16", 1e-2),
        ("fp16", "fp16", 2e-3),
    ] {
        let precise = format!("precision={precision}");
        let scaled: &[&str] = if precision == "fp16" { &["loss_scale=1024"] } else { &[] };
        let model = [&model[..], scaled].concat();
        let set = [&model[..], &[&precise]].concat();
        let done = run(&lab, &[&set[..], &["log.folder=gpu"]].concat());
        done.expect(0, &[]);
        assert!(done.out.contains("device: software stand-in (no GPU)"), "{}", done.out);
        assert!(done.out.contains("algorithms timed once and kept in"), "{}", done.out);
        let precise = format!("precision={on_cpu}");
        lab.run(&[&model[..], &[&precise, "log.folder=cpu"]].concat())
            .expect(0, &[]);
        let (gpu, cpu) = (lab.metrics("gpu"), lab.metrics("cpu"));
        let health = ["gpu_mhz", "gpu_watts", "gpu_celsius"].map(|key| gpu[11][key].as_f64());
        assert_eq!(health, [Some(1410.0), Some(250.5), Some(61.0)]);
        assert!(cpu[11].get("gpu_mhz").is_none());
        let memory = ["device_process", "device_driver"].map(|key| gpu[11][key].as_u64());
        assert_eq!(memory, [Some(3 << 30), Some(600 << 20)]);
        assert!(gpu[11]["device_reserved"].as_u64() >= gpu[11]["device_in_use"].as_u64());
        assert_eq!((gpu.len(), cpu.len()), (12, 12));
        for (gpu, cpu) in gpu.iter().zip(&cpu) {
            for key in ["lm_loss", "grad_norm"] {
                let (x, y) = (gpu[key].as_f64().unwrap(), cpu[key].as_f64().unwrap());
                assert!((x / y - 1.0).abs() < tolerance, "{precision} {key}: {x} for {y}");
            }
        }
        // A step again, from a checkpoint: the recorded loss, to the last bit.
        let replay = ["inspect-ckpt", "gpu/checkpoints/step-00000004", "--replay", "1"];
        let again = on_stand_in(&lab, &replay);
        again.expect(0, &["as recorded, to the last bit"]);
        for run in ["gpu", "cpu"] {
            std::fs::remove_dir_all(lab.path(run)).unwrap();
        }
    }
}

#[test]
fn a_gpu_without_graphs_gives_the_same_bits_and_says_so() {
    let lab = Lab::new();
    let with = |variable, value, folder: &str| {
        let set = [format!("log.folder={folder}"), "model.dropout=0.1".into()];
        let done =
            run_on(&lab, &softgpu::folder(), (variable, value), &set.each_ref().map(|s| &**s));
        (done, folder.to_string())
    };
    let losses = |(done, folder): &(Done, String)| {
        done.expect(0, &[]);
        lab.losses(folder)
    };
    let heart = with(GRAPHS, "1", "heart");
    let off = with(GRAPHS, "0", "off");
    let missing = with("SOFTGPU_GRAPHS", "0", "missing");
    assert_eq!(losses(&off), losses(&heart));
    assert_eq!(losses(&missing), losses(&heart));
    let note = "the GPU continues without CUDA graphs: capturing: CUDA_ERROR_NOT_SUPPORTED";
    let noted = [&heart, &off, &missing].map(|(done, _)| done.out.matches(note).count());
    assert_eq!(noted, [0, 0, 1], "{}", missing.0.out);
    with(GRAPHS, "no", "no")
        .0
        .expect(2, &["GPTRAIN_CUDA_GRAPHS is \"no\"", "0, 1 or all"]);
}

/// `run` on the stand-in with the kernels of that folder, or of the binary.
fn on_kernels(lab: &Lab, folder: Option<&Path>) -> Done {
    let mut command = lab.command(&run_args(&["train.device=cuda"]));
    command.envs(variables()).env_remove(KERNELS);
    Done::of(
        command
            .envs(folder.map(|folder| (KERNELS, folder)))
            .output()
            .unwrap(),
    )
}

#[test]
fn what_a_gpu_lacks_is_said_in_one_line() {
    let lab = Lab::new();
    let folder = softgpu::folder();
    let with = |variable, value| run_on(&lab, &folder, (variable, value), &[]);
    with("SOFTGPU_DRIVER", "12080").expect(2, &["driver is for CUDA 12.8", "update the driver"]);
    with("SOFTGPU_DEVICES", "0").expect(2, &["the machine has 0", "CUDA_VISIBLE_DEVICES"]);
    let empty = tempfile::tempdir().unwrap();
    let lacks = on_kernels(&lab, Some(empty.path()));
    lacks.expect(2, &["GPTRAIN_CUDA_KERNELS=", "release", "`kernels/build.sh FOLDER`"]);
    if Kernels::embedded().is_none() {
        on_kernels(&lab, None).expect(2, &["built without CUDA kernels", "`make build`"]);
    }
    let old = ["capability 7.0", "without kernels for sm_70", "make SM70=1 build"];
    if Kernels::volta().is_none() {
        with("SOFTGPU_CAPABILITY", "70").expect(2, &old);
    }
    with("SOFTGPU_CAPABILITY", "61").expect(2, &["capability 6.1; kernels need 8.0"]);
    // A head of 192 columns takes more shared memory than a block has on such a GPU.
    let wide = ["model.hidden=192", "model.heads=1", "train.steps=1"];
    let small = run_on(&lab, &folder, ("SOFTGPU_CAPABILITY", "86"), &wide);
    small.expect(1, &["attention", "of shared memory in a block, of which this GPU has 101376"]);
    with("SOFTGPU_MEMORY", "1000000").expect(2, &["64.0 MiB asked for", "976.6 KiB available"]);

    let half = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("libcuda.so.1"), half.path().join("libcuda.so.1")).unwrap();
    // Nor does this machine's Python have them.
    let only = |folder: &Path| {
        let empty = Path::new("");
        let none = [("PATH", empty), ("VIRTUAL_ENV", empty), ("CONDA_PREFIX", empty)];
        let kernels = softgpu::folder();
        let variables = [(FOLDER, folder), (KERNELS, &*kernels)];
        lab.run_with(&[&variables, &none[..]].concat(), &["train.device=cuda"])
    };
    let lacks = only(half.path());
    lacks.expect(2, &["cuBLASLt is missing", "libcublasLt.so.13", FOLDER]);
    let lacks = only(empty.path());
    lacks.expect(2, &["there is no NVIDIA driver", "libcuda.so.1", FOLDER]);
}

/// The stand-in as an L40 has one scale for a matrix, where the CPU has one for each row.
#[test]
fn eight_bit_floats_need_a_gpu_that_has_them() {
    let lab = Lab::new();
    let with = |capability, folder: &str| {
        let folder = format!("log.folder={folder}");
        let sets = ["precision=fp8", "model.heads=1", "train.steps=8", &folder];
        run_on(&lab, &softgpu::folder(), ("SOFTGPU_CAPABILITY", capability), &sets)
    };
    let lacks = ["compute capability 8.6: no 8-bit floats, which need 8.9", "--set precision=bf16"];
    let refused = with("86", "refused");
    refused.expect(2, &lacks);
    assert_eq!(refused.err.matches("8-bit floats").count(), 1, "{}", refused.err);
    with("89", "tensors").expect(0, &[]);
    with("90", "rows").expect(0, &[]);
    let losses = ["tensors", "rows"].map(|folder| {
        let steps = lab.metrics(folder);
        steps
            .iter()
            .map(|step| step["lm_loss"].as_f64().unwrap())
            .collect::<Vec<f64>>()
    });
    assert_ne!(losses[0], losses[1]);
    assert_eq!(losses.each_ref().map(Vec::len), [8, 8]);
    for (tensors, rows) in losses[0].iter().zip(&losses[1]) {
        assert!((tensors / rows - 1.0).abs() < 2e-2, "{tensors} for {rows}");
    }
}

#[test]
fn attention_by_wgmma_is_refused_where_it_cannot_be() {
    let lab = Lab::new();
    let folder = softgpu::folder();
    let with = |attention, capability| {
        let variables = [
            (FOLDER, folder.as_path()),
            (KERNELS, folder.as_path()),
            ("GPTRAIN_ATTENTION", Path::new(attention)),
            ("SOFTGPU_CAPABILITY", Path::new(capability)),
        ];
        lab.run_with(&variables, &["train.device=cuda", "train.steps=1"])
    };
    with("wgmma", "80").expect(2, &["GPTRAIN_ATTENTION", "compute capability 9.0"]);
    with("wgmma", "100").expect(2, &["GPTRAIN_ATTENTION", "compute capability 9.0"]);
    with("tensor", "90").expect(2, &["GPTRAIN_ATTENTION", "it is tensor", "mma, wgmma or"]);
    let done = with("wgmma", "90");
    done.expect(0, &[]);
    assert!(done.out.contains("attention by wgmma"), "{}", done.out);
}

/// Every pass has a span on the GPU's own clock, one after the other, with graphs too.
#[test]
fn a_trace_shows_when_the_gpu_executed_each_pass() {
    let lab = Lab::new();
    let trace = ["--trace", "trace.json", "--trace-steps", "2..4"];
    let args = [&run_args(&["train.device=cuda", "train.steps=4"])[..], &trace].concat();
    on_stand_in(&lab, &args).expect(0, &[]);
    let text = std::fs::read_to_string(lab.path("trace.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let gpu = events
        .iter()
        .find(|event| event["args"]["name"] == "GPU")
        .expect("a track");
    let spans = |on_gpu: bool, name: &str| -> Vec<(f64, f64)> {
        let of = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["name"] == name);
        let of = of.filter(|event| (event["tid"] == gpu["tid"]) == on_gpu);
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        of.map(|event| (number(&event["ts"]), number(&event["dur"])))
            .collect()
    };
    for name in ["forward", "backward", "optimizer"] {
        let executed = spans(true, name);
        assert_eq!(executed.len(), spans(false, name).len(), "{name}");
        assert!(executed.len() >= 3 && executed.is_sorted(), "{name}: {executed:?}");
        assert!(executed.iter().all(|(_, duration)| *duration > 0.0), "{name}: {executed:?}");
    }
}

#[test]
fn an_automatic_device_is_the_gpu_that_the_driver_shows() {
    let lab = Lab::new();
    let done = on_stand_in(&lab, &run_args(&["train.device=auto", "train.steps=1"]));
    done.expect(0, &[]);
    assert!(done.out.contains("device: software stand-in"), "{}", done.out);
    let folder = softgpu::folder();
    let hidden = [(FOLDER, folder.as_path()), ("SOFTGPU_DEVICES", Path::new("0"))];
    let sets = ["train.device=auto", "precision=tf32", "log.folder=other"];
    let refused = lab.run_with(&hidden, &sets);
    refused.expect(2, &["the device is the CPU", "--set precision=f32"]);
}
