//! Leftovers of killed commands: the next command that writes the same output finds them, removes them
//! and names them in a line. A lock shows whether their process lives.

use crate::common::binary::{Done, Lab, run_args, until};
use crate::random::furnished;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

fn gptrain(lab: &Lab, line: &str) -> Done {
    lab.gptrain(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn a_folder_that_a_killed_command_left_is_removed_named_or_put_back() {
    let lab = furnished(40, 20, 2);
    for (line, name) in [
        ("export runs/a --hf out", "out"),
        ("import --hf hf --output out.1", "out.1"),
        ("convert hf out.3 --to hf", "out.3"),
        ("average runs/a/checkpoints/step-00000002 runs/a --output out.2", "out.2"),
    ] {
        let left = lab.path(&format!(".{name}.tmp-0123456789ab"));
        fs::create_dir_all(left.join("inner")).unwrap();
        fs::write(left.join("inner/half"), [0; 5000]).unwrap();
        // It is being written: by this process.
        let held = File::open(&left).unwrap();
        held.lock().unwrap();
        gptrain(&lab, line).expect(2, &["another process is writing it", name]);
        drop(held);
        let done = gptrain(&lab, line);
        done.expect(0, &["removed ", "tmp-0123456789ab (4.9 KiB), left by a killed command"]);
        assert!(!left.exists() && lab.path(name).is_dir());
        // A folder that was moved away and not replaced.
        let away = lab.path(&format!(".{name}.tmp-old-0123456789ab"));
        fs::rename(lab.path(name), &away).unwrap();
        gptrain(&lab, line).expect(2, &["put back", name, "choose another"]);
        assert!(!away.exists() && lab.path(name).is_dir());
        // The user's own.
        for own in [format!(".{name}.tmp-mine"), format!(".{name}x.tmp-0123456789ab")] {
            fs::create_dir(lab.path(&own)).unwrap();
            gptrain(&lab, &format!("{line} --overwrite")).expect(0, &[]);
            assert!(lab.path(&own).exists());
        }
    }
}

#[test]
fn files_that_a_killed_build_left_are_removed_and_named() {
    let lab = furnished(40, 20, 2);
    fs::write(lab.path("out.bin.partial"), [0; 5000]).unwrap();
    fs::create_dir(lab.path("out.unshuffled")).unwrap();
    fs::write(lab.path("out.unshuffled/dataset.bin.partial"), [0; 3000]).unwrap();
    let done = gptrain(&lab, "data build text.txt -t bytes -o out");
    let named = ["removed out.bin.partial (4.9 KiB), left by", "out.unshuffled (2.9 KiB), left by"];
    done.expect(0, &named);
    assert!(!lab.path("out.unshuffled").exists() && !lab.path("out.bin.partial").exists());
    // A killed command was replacing it: the new index had no name yet.
    for ending in ["bin", "tokenizer", "idx"] {
        let place = lab.path(&format!("out.{ending}"));
        fs::rename(&place, lab.path(&format!("out.{ending}.old.partial"))).unwrap();
        fs::write(place, "new").unwrap();
    }
    fs::rename(lab.path("out.idx"), lab.path("out.idx.partial")).unwrap();
    let done = gptrain(&lab, "data build text.txt -t bytes -o out");
    done.expect(2, &["put back", "out.idx", "out.bin exists"]);
    gptrain(&lab, "data check out").well();
}

#[test]
fn a_fetched_checkpoint_is_removed_by_a_signal_and_by_the_next_command() {
    let lab = Lab::new();
    let also = format!("checkpoint.also=file://{}", lab.path("mirror").display());
    Done::of(
        lab.command(&run_args(&["train.steps=2", &also]))
            .output()
            .unwrap(),
    )
    .well();
    fs::create_dir(lab.path("tmp")).unwrap();
    let url = format!("file://{}", lab.path("mirror").display());
    let inspect = || {
        let mut command = lab.command(&["inspect-ckpt", &url]);
        command.env("TMPDIR", lab.path("tmp"));
        command
    };
    let left = lab.path("tmp/gptrain-inspect-1-0");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("half"), [0; 5000]).unwrap();
    let held = File::open(&left).unwrap();
    held.lock().unwrap();
    Done::of(inspect().output().unwrap()).well();
    assert!(left.exists(), "it was removed although its process lives");
    drop(held);
    let done = Done::of(inspect().output().unwrap());
    done.expect(0, &["removed ", "gptrain-inspect-1-0 (4.9 KiB), left by a killed command"]);
    assert_eq!(fs::read_dir(lab.path("tmp")).unwrap().count(), 0);

    // A store that never answers.
    let shard = lab.path("mirror/step-00000002/master-00000.safetensors");
    fs::rename(&shard, lab.path("whole")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&shard)
            .status()
            .unwrap()
            .success()
    );
    let child = inspect().spawn().unwrap();
    until("it fetches", || fs::read_dir(lab.path("tmp")).unwrap().count() == 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert!(done.code.is_none() && done.err.contains("nothing of the output"), "{}", done.err);
    assert_eq!(fs::read_dir(lab.path("tmp")).unwrap().count(), 0);
}

/// A link of the name of a leftover is not followed.
#[test]
fn links_are_no_leftovers() {
    let lab = furnished(40, 20, 2);
    fs::create_dir(lab.path("precious")).unwrap();
    fs::write(lab.path("precious/file"), "precious").unwrap();
    symlink(lab.path("precious"), lab.path(".out.tmp-0123456789ab")).unwrap();
    gptrain(&lab, "export runs/a --hf out").well();
    assert!(lab.path("precious/file").exists());
}
