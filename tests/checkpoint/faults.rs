//! Saves that fail: at every system call, with an error or with the machine's death. Whatever
//! happens, the newest checkpoint that has a name is whole.

use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use gptrain::checkpoint::disk::{Call, Disk, Fault};
use gptrain::checkpoint::place::Place;
use gptrain::checkpoint::{Keep, clean, latest, save, write_hint};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const KEEP: Keep = Keep { last: Some(2), every: None, weights_every: None, read: None };

/// Calls of the writer for one save.
fn save_all(disk: &Arc<Disk>, folder: &Path, what: &Saved) -> anyhow::Result<()> {
    save(disk, folder, &what.shares(), &what.state)?;
    write_hint(disk, folder, what.state.progress.step)?;
    Place::on(disk.clone(), folder).prune(KEEP)
}

/// A folder with checkpoints of these steps.
fn with(steps: &[u64]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::default());
    steps
        .iter()
        .for_each(|step| save_all(&disk, folder.path(), &Saved::tiny(*step)).unwrap());
    folder
}

/// All calls of a save of step 5 into a folder like this.
fn calls(steps: &[u64]) -> Vec<Call> {
    let folder = with(steps);
    let disk = Arc::new(Disk::failing(Fault::None));
    save_all(&disk, folder.path(), &Saved::tiny(5)).unwrap();
    disk.calls()
}

#[test]
fn files_are_synced_before_the_folder_gets_its_name_and_that_before_anything_is_removed() {
    let calls = calls(&[2, 3, 4]);
    let at = |what: &dyn Fn(&Call) -> bool| calls.iter().position(what).unwrap();
    let named = |path: &PathBuf, end: &str| path.to_string_lossy().ends_with(end);
    let publish = at(&|call| matches!(call, Call::Rename(_, to) if named(to, "step-00000005")));
    let mut created = BTreeSet::new();
    for call in &calls[..publish] {
        match call {
            Call::Create(path) => drop(created.insert(path.clone())),
            Call::Write(path) => assert!(created.contains(path)),
            Call::Sync(path) => drop(created.remove(path)),
            _ => {}
        }
    }
    assert!(created.is_empty(), "named before it was synced: {created:?}");
    let Call::Rename(fresh, _) = &calls[publish] else { unreachable!() };
    assert_eq!(calls[publish - 1], Call::Sync(fresh.clone()));
    let Call::Sync(parent) = &calls[publish + 1] else { panic!("{:?}", calls[publish + 1]) };
    assert_eq!(Some(parent.as_path()), fresh.parent());
    let removed = at(&|call| matches!(call, Call::Remove(_)));
    assert!(publish + 1 < removed, "an old checkpoint is removed after the new one is safe");
}

/// Death between each pair of calls; what was not synced by then is lost.
fn crash_everywhere(steps: &[u64]) {
    let count = calls(steps).len();
    assert!(count > 15, "{count} calls");
    let (mut old, mut new) = (0, 0);
    for at in 0..=count {
        let folder = with(steps);
        let folder = folder.path();
        let before = latest(folder).unwrap().unwrap();
        let old_bits = Saved::read(&before.folder);
        let disk = Arc::new(Disk::failing(Fault::Crash { at }));
        // Step 5 again, with other values than an existing step 5.
        let mut fresh = Saved::tiny(5);
        fresh.tensor("matrix").kept[0][3] = 77.0;
        assert_eq!(save_all(&disk, folder, &fresh).is_ok(), at == count, "call {at}");
        let calls = disk.calls();
        let done = &calls[..at.min(calls.len())];
        for call in done {
            if let Call::Create(path) = call
                && !done.contains(&Call::Sync(path.clone()))
                && path.exists()
            {
                fs::write(path, "").unwrap();
            }
        }
        let found = latest(folder).unwrap().unwrap();
        if fresh.is_in(&found.folder) {
            new += 1;
        } else {
            assert!(old_bits.is_in(&found.folder), "death before call {at}: {:?}", calls.last());
            old += 1;
        }
        // The next start cleans up, and the next save succeeds.
        clean(&Disk::default(), folder).unwrap();
        save_all(&Arc::default(), folder, &Saved::tiny(6)).unwrap();
        assert!(Saved::tiny(6).is_in(&latest(folder).unwrap().unwrap().folder));
        let left = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert_eq!(left.count(), 3, "two checkpoints and the hint");
    }
    assert!(old > 10 && new > 5, "{old} times the old one, {new} times the new one");
}

#[test]
fn death_between_any_two_calls_leaves_the_old_or_the_new() {
    crash_everywhere(&[3, 4]);
}

#[test]
fn death_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new() {
    crash_everywhere(&[4, 5]);
}

#[test]
fn an_error_of_any_call_is_told_and_older_checkpoints_stay() {
    for (errno, words) in [
        (Errno::IO, "Input/output error"),
        (Errno::NOSPC, "No space left on device"),
        (Errno::DQUOT, "Disk quota exceeded"),
        (Errno::ROFS, "Read-only file system"),
    ] {
        let count = calls(&[3, 4]).len();
        for at in 0..count {
            let folder = with(&[3, 4]);
            let folder = folder.path();
            let disk = Arc::new(Disk::failing(Fault::Error { at, errno: errno.raw_os_error() }));
            let error = save_all(&disk, folder, &Saved::tiny(5)).expect_err("it failed");
            let (told, call) = (format!("{error:#}"), disk.calls()[at].clone());
            assert!(told.contains(words), "{call:?}: {told}");
            let path = match &call {
                Call::MakeFolder(path) | Call::Create(path) | Call::Write(path) => path,
                Call::Sync(path) | Call::Rename(path, _) | Call::Remove(path) => path,
            };
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(told.contains(&name), "{call:?}: {name} is not in: {told}");
            let found = latest(folder).unwrap().unwrap();
            assert!(Saved::tiny(found.step).is_in(&found.folder), "{call:?}");
            let half_done = fs::read_dir(folder)
                .unwrap()
                .map(|e| e.unwrap().file_name());
            let mut names = half_done.map(|name| name.into_string().unwrap());
            let removing = matches!(call, Call::Remove(_));
            if found.step == 4 {
                assert!(
                    names.all(|name| !name.starts_with("step-00000005") || removing),
                    "{call:?}"
                );
                assert!(told.contains("step 5 was not saved"), "{told}");
            }
        }
    }
}

#[test]
fn signals_and_short_writes_change_nothing() {
    let count = calls(&[3, 4]).len();
    let interrupted = (0..count).map(|at| Fault::Error { at, errno: Errno::INTR.raw_os_error() });
    for fault in interrupted.chain([Fault::Short]) {
        let folder = with(&[3, 4]);
        let disk = Arc::new(Disk::failing(fault));
        save_all(&disk, folder.path(), &Saved::tiny(5)).unwrap();
        assert!(Saved::tiny(5).is_in(&latest(folder.path()).unwrap().unwrap().folder), "{fault:?}");
        assert!(disk.calls().len() > count, "{fault:?}: one call again, or in parts");
    }
}

#[test]
fn a_folder_without_room_is_refused_before_anything_is_written() {
    let saved = Saved::tiny(1);
    let mut shares = saved.shares();
    shares[1].slice.size = [1, 1 << 50]; // the check comes before the values are looked at
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::failing(Fault::None));
    let error = save(&disk, folder.path(), &shares, &saved.state).unwrap_err();
    assert!(format!("{error:#}").contains("no space left"), "{error:#}");
    assert_eq!(disk.calls(), []);
}

/// The real binary with failing system calls. Without permission to trace processes, only the sweep
/// above runs.
#[test]
fn errors_of_the_kernel_end_the_run_and_leave_the_last_checkpoint() {
    let lab = Lab::new();
    lab.run(&["train.steps=5"]).expect(0, &[]);
    let kept = lab.path("runs/a/checkpoints/step-00000005");
    let before = Saved::read(&kept);
    // Each thread counts its own calls: the second fsync of the writer is the folder's.
    let cases = [
        ("fsync:error=EIO:when=2", Err("Input/output error")),
        ("pwrite64:error=EIO:when=1", Err("Input/output error")),
        ("pwrite64:error=EDQUOT:when=1", Err("Disk quota exceeded")),
        ("fallocate:error=ENOSPC:when=1", Err("No space left on device")),
        ("fallocate:error=EOPNOTSUPP", Ok(())),
        ("pwrite64:error=EINTR:when=1+2", Ok(())),
    ];
    for (inject, expected) in cases {
        let name = inject.split(':').next().unwrap();
        let done = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")])
            .args(["-e", &format!("inject={inject}"), env!("CARGO_BIN_EXE_gptrain")])
            .args(["run", "run.yaml", "--set", "train.steps=6"])
            .args(["--set", "checkpoint.wait_for_storage_s=0"])
            .current_dir(lab.path(""))
            .output();
        let Ok(done) = done else {
            println!("nothing to trace with");
            return;
        };
        let done = Done::of(done);
        if done.err.contains("ptrace") {
            println!("tracing is not allowed here");
            return;
        }
        let made = lab.path("runs/a/checkpoints/step-00000006");
        match expected {
            Err(words) => {
                done.expect(1, &[words, "checkpoint of step 6 was not saved", "step-00000006"]);
                assert!(!made.exists(), "{inject}");
            }
            Ok(()) => {
                done.expect(0, &[]);
                let sound = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
                sound.expect(0, &[]);
                assert!(sound.out.contains("step-00000006"), "{}", sound.out);
                fs::remove_dir_all(made).unwrap();
            }
        }
        assert!(before.is_in(&kept), "{inject}");
    }
}

/// The same where nothing can be written any more.
#[test]
fn a_folder_that_became_read_only_is_named() {
    let lab = Lab::new();
    lab.run(&["train.steps=5"]).expect(0, &[]);
    let script = "mount --bind runs/a/checkpoints runs/a/checkpoints || exit 9; \
         mount -o remount,bind,ro runs/a/checkpoints || exit 9; \
         exec $0 run run.yaml --set train.steps=6";
    let done = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_gptrain")])
        .current_dir(lab.path(""))
        .output();
    let done = Done::of(done.unwrap());
    if !done.err.contains("gptrain") && done.code != Some(1) {
        println!("no mount namespaces here: {}", done.err);
        return;
    }
    done.expect(1, &["Read-only file system", "runs/a/checkpoints", "was not saved"]);
    assert!(lab.path("runs/a/checkpoints/step-00000005").exists());
    lab.run(&["train.steps=6"]).expect(0, &[]);
}

/// The real binary on a full file system, in its own mount namespace. Without permission for a
/// namespace, only the sweep above runs.
#[test]
fn a_full_disk_ends_the_run_and_leaves_the_last_checkpoint() {
    let may = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .status();
    if !may.is_ok_and(|status| status.success()) {
        println!("no mount namespaces here");
        return;
    }
    let lab = Lab::new();
    fs::create_dir(lab.path("full")).unwrap();
    let (mut told_early, mut intact) = (0, 0);
    // A checkpoint takes 380 KiB: sizes at which the second does not fit, by much and by little.
    for size in [500, 700, 740, 760, 780] {
        let script = format!(
            "mount -t tmpfs -o size={size}k none full || exit 9; \
             $0 run run.yaml --set log.folder=full/a --set checkpoint.interval=2 \
             --set checkpoint.wait_for_storage_s=0; echo code $?; \
             $0 inspect-ckpt full/a --deep; echo code $?; ls full/a/checkpoints"
        );
        let done = Command::new("unshare")
            .args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_gptrain")])
            .current_dir(lab.path(""))
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let codes: Vec<&str> = out
            .lines()
            .filter_map(|line| line.strip_prefix("code "))
            .collect();
        assert_eq!(codes, ["1", "0"], "{size}k\n{out}\n{err}");
        let told = ["no space left", "No space left on device"];
        assert!(told.iter().any(|told| err.contains(told)), "{err}");
        assert!(err.contains("was not saved; those in full/a/checkpoints are unchanged"), "{err}");
        told_early += usize::from(err.contains("a checkpoint needs"));
        intact += usize::from(out.contains("sound: every digest verified"));
        assert!(!out.contains(".tmp-"), "{out}");
    }
    assert_eq!(intact, 5);
    assert!(told_early < 5, "some failed while writing, not before");
}
