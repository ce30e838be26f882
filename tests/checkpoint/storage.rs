//! Storage that is full or away for a while: the run waits for it, and ends as an undisturbed one.

use crate::common::binary::{Lab, has_ended, until};
use crate::common::saved::Saved;
use gptrain::checkpoint::disk::{Disk, Fault};
use gptrain::checkpoint::{Keep, index_text, latest, publish_index, temporary_folder};
use gptrain::launch::storage::Storage;
use gptrain::train::saving::retry;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

const KEEP: Keep = Keep { last: Some(2), every: None, weights_every: None, read: None };

/// A run's folder with checkpoints of steps 3 and 4 (or 4 and 5).
fn run(steps: [u64; 2]) -> (tempfile::TempDir, Arc<Storage>) {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::new(folder.path(), Duration::from_secs(3600));
    for step in steps {
        save(&Arc::default(), &storage, folder.path(), &Saved::tiny(step)).unwrap();
    }
    (folder, storage)
}

/// A save as a run's threads make it.
fn save(disk: &Arc<Disk>, storage: &Storage, run: &Path, what: &Saved) -> anyhow::Result<()> {
    let (step, shares) = (what.state.progress.step, what.shares());
    let fresh = temporary_folder(&run.join("checkpoints"), step);
    retry::begin(disk, storage, &fresh, step, 1)?;
    let part = retry::write_part(disk, storage, &fresh, 0, &shares, &what.state)?;
    retry::publish(disk, storage, &fresh, vec![part], &what.state, KEEP).map(drop)
}

/// Every call of a save fails once, by each kind of error: the checkpoint is whole, and nothing else
/// is left. Also where it takes the place of another of its step.
#[test]
fn an_error_that_passes_at_any_call_leaves_a_whole_checkpoint() {
    for steps in [[3, 4], [4, 5]] {
        let (folder, storage) = run(steps);
        let all = Arc::new(Disk::failing(Fault::None));
        save(&all, &storage, folder.path(), &Saved::tiny(5)).unwrap();
        let count = all.calls().len();
        assert!(count > 15, "{count} calls");
        for (at, errno) in (0..count).zip([Errno::NOSPC, Errno::STALE, Errno::IO].iter().cycle()) {
            let (folder, storage) = run(steps);
            let mut what = Saved::tiny(5);
            what.tensor("matrix").kept[0][3] = 77.0;
            let disk = Arc::new(Disk::failing(Fault::Error { at, errno: errno.raw_os_error() }));
            save(&disk, &storage, folder.path(), &what).unwrap();
            let call = &disk.calls()[at];
            let checkpoints = folder.path().join("checkpoints");
            let found = latest(&checkpoints).unwrap().unwrap();
            assert!(found.step == 5 && what.is_in(&found.folder), "{call:?}");
            let names = fs::read_dir(&checkpoints)
                .unwrap()
                .map(|e| e.unwrap().file_name());
            let names: Vec<_> = names.collect();
            assert_eq!(names.len(), 3, "{call:?}: two checkpoints and the hint: {names:?}");
        }
    }
}

/// Publishing again what is published changes nothing.
#[test]
fn a_checkpoint_is_published_once() {
    let (folder, storage) = run([3, 4]);
    let (what, disk) = (Saved::tiny(5), Arc::new(Disk::default()));
    let fresh = temporary_folder(&folder.path().join("checkpoints"), 5);
    retry::begin(&disk, &storage, &fresh, 5, 1).unwrap();
    let shares = what.shares();
    let part = retry::write_part(&disk, &storage, &fresh, 0, &shares, &what.state).unwrap();
    let index = index_text(vec![part], &what.state).unwrap();
    let publish = |again| publish_index(&disk, &fresh, &index, 5, again).unwrap();
    assert_eq!(publish(false), publish(true));
    assert!(what.is_in(&publish(true)));
}

/// Output of a run up to a line that contains `word`.
fn read_to(lines: &mut impl Iterator<Item = std::io::Result<String>>, word: &str) -> Vec<String> {
    let mut read = Vec::new();
    for line in lines {
        read.push(line.unwrap());
        if read.last().is_some_and(|line| line.contains(word)) {
            return read;
        }
    }
    panic!("{word:?} is not in:\n{}", read.join("\n"));
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The folder is not there any more (a file server starts again) while ranks save; then it is back.
#[test]
fn a_folder_that_goes_away_and_comes_back_costs_nothing() {
    let sets = ["train.steps=300", "checkpoint.interval=3", "log.tensorboard=true"];
    let ranks = "topology.data=2";
    let whole = Lab::new();
    whole.run(&[sets[0], sets[1], sets[2], ranks]).well();
    let lab = Lab::new();
    let mut child = lab.start(&[sets[0], sets[1], sets[2], ranks]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    read_to(&mut lines, "iteration        4/");
    signal(&child, Signal::STOP);
    let (folder, away) = (lab.path("runs/a"), lab.path("runs/away"));
    fs::rename(&folder, &away).unwrap();
    signal(&child, Signal::CONT);
    let told = read_to(&mut lines, "cannot be written");
    assert!(!has_ended(&child));
    assert!(told.last().unwrap().contains("No such file or directory"), "{told:?}");
    assert!(!folder.exists(), "a missing folder is not created again");
    fs::rename(&away, &folder).unwrap();
    let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
    until("the run ends", || has_ended(&child));
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{err}");
    assert_eq!(
        rest.iter()
            .filter(|line| line.contains("can be written again"))
            .count(),
        1
    );
    assert_eq!(
        rest.iter()
            .filter(|line| line.contains("cannot be written"))
            .count(),
        0
    );
    assert_eq!(lab.losses("runs/a"), whole.losses("runs/a"));
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]).well();
    let saved = fs::read_dir(folder.join("checkpoints")).unwrap();
    let names = saved.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // A checkpoint in progress when the folder vanished remains as `.tmp-` until the run's next start.
    let whole = names.filter(|name| name.starts_with("step-") && !name.contains(".tmp-"));
    assert_eq!(whole.count(), 300 / 3, "all of them");
}

/// Output of a script in its own mount namespace; `$0` is gptrain. None if the system permits none:
/// the script writes the file `said` once it has one.
fn in_namespace(lab: &Lab, script: &str) -> Option<String> {
    let done = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_gptrain")])
        .current_dir(lab.path(""))
        .output()
        .unwrap();
    if !lab.path("said").exists() {
        println!("no mount namespaces here: {}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A file system that is full for a while, in a mount namespace of its own: no line of metrics is
/// lost. Where the system gives none, the sweep above and `/dev/full` (train::report) stand alone.
#[test]
fn a_disk_that_is_full_for_a_while_costs_nothing() {
    let lab = Lab::new();
    fs::create_dir(lab.path("full")).unwrap();
    let script = "mount -t tmpfs -o size=2m none full || exit 9; \
         ($0 run run.yaml --set train.steps=400 --set checkpoint.keep_last=1 --set log.folder=full/a; \
         echo code $? > ended) > said 2>&1 & \
         until test -s full/a/metrics.jsonl || test -f ended; do sleep 0.01; done; \
         head -c 4m /dev/zero > full/filler; \
         until grep -q 'cannot be written' said || test -f ended; do sleep 0.1; done; rm full/filler; \
         wait; cp full/a/metrics.jsonl .; cat said ended";
    let Some(out) = in_namespace(&lab, script) else { return };
    assert!(out.contains("code 0") && out.contains("cannot be written"), "{out}");
    let whole = Lab::new();
    whole.run(&["train.steps=400"]).well();
    assert_eq!(lab.losses(""), whole.losses("runs/a"), "{out}");
}

/// The supervisor of a rank that dies while the disk is full also waits for it, and restarts the rank.
#[test]
fn a_disk_that_is_full_when_ranks_begin_anew_is_waited_for() {
    let lab = Lab::new();
    fs::create_dir(lab.path("full")).unwrap();
    let script = "mount -t tmpfs -o size=2m none full || exit 9; \
         $0 run run.yaml --set train.steps=400 --set checkpoint.keep_last=1 --set log.folder=full/a \
         --set restart.max=2 > said 2>&1 & run=$!; \
         until test -s full/a/metrics.jsonl || test ! -d /proc/$run; do sleep 0.01; done; \
         head -c 4m /dev/zero > full/filler; \
         kill -9 $(cat /proc/$run/task/*/children); \
         until grep -q 'cannot be written.*restarts' said || test ! -d /proc/$run; do sleep 0.1; done; \
         rm full/filler; \
         wait $run; echo code $? > ended; cp full/a/metrics.jsonl .; cat said ended";
    let Some(out) = in_namespace(&lab, script) else { return };
    assert!(out.contains("code 0") && out.contains("restart 1 (1 of 2)"), "{out}");
    let whole = Lab::new();
    whole.run(&["train.steps=400"]).well();
    assert_eq!(lab.losses(""), whole.losses("runs/a"), "{out}");
}
