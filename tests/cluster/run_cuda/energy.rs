//! Energy of the stand-in's GPUs, which use 250.5 W: by their counter, and by their power without one.

use super::run_on;
use crate::common::binary::Lab;
use crate::common::softgpu;
use std::time::Instant;

const WATTS: f64 = 250.5;

/// kWh of the GPUs and of the processors, and kg of CO₂, in a line of metrics.
fn energy(line: &serde_json::Value) -> [Option<f64>; 3] {
    ["gpu_kwh", "cpu_kwh", "co2_kg"].map(|key| line[key].as_f64())
}

#[test]
fn energy_is_counted_at_log_lines_and_over_a_resume() {
    for faults in ["", "uncounted"] {
        let lab = Lab::new();
        let begun = Instant::now();
        let run = |steps: &str| {
            let sets = [steps, "log.folder=a", "log.interval=2", "checkpoint.interval=4"];
            let sets = [&sets[..], &["plan.carbon=57", "train.eval_interval=0"]].concat();
            let done = run_on(&lab, &softgpu::folder(), ("SOFTGPU_FAULTS", faults), &sets);
            done.well();
            assert!(done.out.contains("energy is measured: 1 GPU"), "{}", done.out);
            assert!(done.out.contains(" | GPU energy (kWh): 0."), "{}", done.out);
        };
        run("train.steps=4");
        let status = std::fs::read(lab.path("a/status.json")).unwrap();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        let spent = energy(&status)[0].unwrap();
        run("train.steps=8");
        let most = begun.elapsed().as_secs_f64() * WATTS / 3.6e6;
        let lines = lab.metrics("a");
        assert_eq!(lines.len(), 8);
        // At the first step of a process, and at log lines.
        let read: Vec<u64> = lines
            .iter()
            .filter(|line| energy(line)[0].is_some())
            .map(|line| line["step"].as_u64().unwrap())
            .collect();
        assert_eq!(read, [1, 2, 4, 5, 6, 8], "{faults}");
        let kwh: Vec<f64> = lines.iter().filter_map(|line| energy(line)[0]).collect();
        assert!(kwh.is_sorted() && kwh[0] > 0.0, "{kwh:?}");
        assert!(kwh[2] <= spent && spent <= kwh[3], "the resume continues from {spent}: {kwh:?}");
        assert!(kwh[5] <= most, "{WATTS} W for the whole test are {most}: {kwh:?}");
        for line in &lines {
            let [gpu, cpu, co2] = energy(line);
            let Some(gpu) = gpu else { continue };
            // The machine of the test may count its processors' energy.
            let all = gpu + cpu.unwrap_or(0.0);
            assert_eq!(co2, Some(all * 57.0 / 1e3));
        }
        let shown = lab.gptrain(&["status", "a"]).out;
        assert!(shown.contains(", GPUs ") && shown.contains(" kWh"), "{shown}");
    }
}
