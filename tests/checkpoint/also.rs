//! Copies of checkpoints in a second folder: complete or absent, and a run resumes from them. For S3
//! see `also_s3`.

use crate::common::binary::{Lab, run_args, until};
use crate::common::saved::Saved;
use gptrain::checkpoint::disk::{Call, Disk, Fault};
use gptrain::checkpoint::place::{Place, SentFiles};
use gptrain::checkpoint::{Keep, published};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::sync::Arc;

pub fn steps(folder: &Path) -> Vec<u64> {
    published(folder)
        .unwrap()
        .iter()
        .map(|found| found.step)
        .collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_run_is_copied_and_another_folder_goes_on_from_the_copy() {
    let lab = Lab::new();
    let place = lab.path("archive/a");
    let url = format!("file://{}", place.display());
    let also = format!("checkpoint.also={url}");
    let first =
        lab.run(&["checkpoint.interval=2", "checkpoint.keep_last=2", "train.steps=8", &also]);
    first.well();
    assert!(
        first
            .out
            .contains(&format!("copied step-00000008 to {url}, ")),
        "{}",
        first.out
    );
    assert_eq!(steps(&place).last(), Some(&8));
    assert!(names(&place).iter().all(|name| !name.contains(".tmp-")), "{:?}", names(&place));
    lab.gptrain(&["inspect-ckpt", place.to_str().unwrap(), "--deep"])
        .well();
    let status = lab.gptrain(&["status", "runs/a"]);
    assert!(status.out.contains("copied step-00000008 to file://"), "{}", status.out);

    // Fetched for the moment, the newest or one by its name, as --resume-from reads them.
    let there = lab.path("temporary");
    fs::create_dir(&there).unwrap();
    let inspect = |args: &[&str]| {
        let args = [&["inspect-ckpt"], args].concat();
        lab.gptrain_with(&[("TMPDIR", &there)], &args)
    };
    let read = inspect(&[&url, "--deep"]);
    assert!(read.expect(0, &[]).out.contains("step-00000008"), "{}", read.out);
    let named = format!("{url}/step-00000008");
    inspect(&["runs/a/checkpoints/step-00000008", "--diff", &named]).expect(0, &[]);
    let older = "runs/a/checkpoints/step-00000006";
    inspect(&[older, "--diff", &url]).expect(1, &["the two are different"]);
    inspect(&["s3://A_b/c"]).expect(2, &["is not a bucket"]);
    inspect(&["file:///nowhere/a"]).expect(2, &["contains no complete checkpoint"]);
    assert!(names(&there).is_empty(), "{:?}", names(&there));

    let resume = |from: &str, to: &str| {
        let to = format!("log.folder={to}");
        lab.gptrain(&["run", "run.yaml", "--set", &to, "--resume-from", from])
    };
    let resumed = resume(&url, "runs/b");
    resumed.well();
    assert!(resumed.out.contains("fetched step-00000008 from file://"), "{}", resumed.out);
    let whole = Lab::new();
    whole.run(&["train.steps=8"]).well();
    whole.run(&[]).well();
    assert_eq!(lab.losses("runs/b"), whole.losses("runs/a")[8..]);

    let mut shard = fs::read(place.join("step-00000008/master-00000.safetensors")).unwrap();
    let last = shard.len() - 1;
    shard[last] ^= 1;
    fs::write(place.join("step-00000008/master-00000.safetensors"), shard).unwrap();
    resume(&url, "runs/c").expect(1, &["step-00000008/master-00000.safetensors: bytes", "damaged"]);
    fs::remove_file(place.join("step-00000008/index.json")).unwrap();
    let named = format!("{url}/step-00000008");
    resume(&named, "runs/c").expect(2, &["contains no complete step-00000008"]);
    resume("file:///nowhere/a", "runs/c").expect(2, &["contains no complete checkpoint"]);
    resume("ftp://host/a", "runs/c").expect(2, &["is not a location of checkpoints"]);
    resume("s3://A_b/c", "runs/c")
        .expect(2, &["s3://A_b/c", "is not a bucket: 3 to 63 lower-case"]);
    assert!(steps(&lab.path("runs/c/checkpoints")).is_empty());
}

/// A fetch sets aside a different checkpoint of the same name, and does not read an equal one
/// again.
#[test]
fn a_fetched_checkpoint_takes_the_place_of_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let what = Saved::tiny(5);
    let (from, to) = (what.write(&folder.path().join("from")), folder.path().join("to"));
    let place = Place::on(Disk::default(), &folder.path().join("place"));
    place.copy(&from, &SentFiles::default(), &|| true).unwrap();
    let fetched = place.fetch(&to).unwrap();
    assert!(what.is_in(&fetched.folder) && fetched.bytes.is_some() && fetched.set_aside.is_none());
    let again = place.fetch(&to).unwrap();
    assert!(again.bytes.is_none() && again.set_aside.is_none());
    let shard = fetched.folder.join("second_moment-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[5000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    // A damaged checkpoint is not copied: the existing copy remains.
    let other = Place::on(Disk::default(), &folder.path().join("other"));
    let error = other
        .copy(&fetched.folder, &SentFiles::default(), &|| true)
        .unwrap_err();
    assert!(format!("{error:#}").contains("second_moment-00000.safetensors: bytes"), "{error:#}");
    assert!(other.steps().unwrap().is_empty());
    let healed = place.fetch(&to).unwrap();
    assert!(what.is_in(&healed.folder) && healed.bytes.is_some());
    assert!(
        to.join(healed.set_aside.unwrap())
            .join("index.json")
            .exists()
    );
    assert_eq!(steps(&to), [5]);
}

#[test]
fn copies_are_kept_as_checkpoints_are_and_the_next_start_copies_what_is_missing() {
    let lab = Lab::new();
    let place = lab.path("archive");
    let also = format!("checkpoint.also=file://{}", place.display());
    lab.run(&["checkpoint.interval=2"]).well();
    let keep = ["checkpoint.keep_last=1", "checkpoint.keep_every=6"];
    lab.run(&["train.steps=14", &also, keep[0], keep[1]]).well();
    assert_eq!(steps(&lab.path("runs/a/checkpoints")), [6, 12, 14]);
    assert!([&[12, 14][..], &[14]].contains(&&*steps(&place)), "{:?}", steps(&place));
    // Copies of another run are never replaced: a new run does not start.
    let other = lab.run(&["log.folder=runs/b", "train.seed=4", &also]);
    other.expect(2, &["checkpoint.also", "the copies of another run"]);
    // Back to an older step: what came after it is set aside there too.
    let back = ["--set", &also, "--set", "train.steps=8", "--resume-from", "step-00000006"];
    let back = lab.gptrain(&[&["run", "run.yaml"][..], &back].concat());
    back.well();
    assert!(back.out.contains("step-00000014 is set aside"), "{}", back.out);
    assert_eq!(steps(&place).last(), Some(&8), "{}", back.out);
}

/// A running run retries, until its end and then until Ctrl-C, and reports the missing copies.
#[test]
fn a_place_that_is_away_when_a_run_goes_on_is_tried_again() {
    let lab = Lab::new();
    lab.run(&["train.steps=6"]).well();
    fs::write(lab.path("mount"), "not a folder").unwrap();
    let place = lab.path("mount/a");
    let also = format!("checkpoint.also=file://{}", place.display());
    let said = || fs::read_to_string(lab.path("said")).unwrap();
    let start = |steps: &str| {
        let mut command = lab.command(&run_args(&[steps, &also]));
        let child = command
            .stdout(fs::File::create(lab.path("said")).unwrap())
            .spawn()
            .unwrap();
        until("it waits for the copy", || said().contains("waiting up to 10 m 00 s for the copy"));
        child
    };
    let mut away = start("train.steps=8");
    assert!(said().contains("note: checkpoints are not copied: "), "{}", said());
    kill_process(Pid::from_child(&away), Signal::INT).unwrap();
    assert_eq!(away.wait().unwrap().code(), Some(0));
    let missing =
        "does not have the last checkpoint (its newest: none); the next start of the run copies it";
    assert!(said().contains(missing), "{}", said());
    let mut back = start("train.steps=10");
    fs::remove_file(lab.path("mount")).unwrap();
    assert_eq!(back.wait().unwrap().code(), Some(0));
    assert!(said().contains("takes copies again"), "{}", said());
    assert!(said().contains("copied step-00000010") && !said().contains(missing), "{}", said());
    assert_eq!(steps(&place), [10]);
}

/// A copy whose second part is damaged.
#[test]
fn a_fetch_that_fails_midway_leaves_no_folder() {
    let lab = Lab::new();
    let place = format!("file://{}", lab.path("archive").display());
    lab.run(&[&format!("checkpoint.also={place}")]).well();
    let file = lab.path("archive/step-00000012/master-00000.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let args = run_args(&["log.folder=runs/b"]);
    let fetch = lab.gptrain(&[&args[..], &["--resume-from", &place]].concat());
    fetch.expect(1, &["master-00000.safetensors", "their digest is not the one saved"]);
    assert!(!lab.path("runs/b").exists());
}

#[test]
fn a_run_that_was_killed_before_its_first_checkpoint_is_not_another() {
    let lab = Lab::new();
    let also = format!("checkpoint.also=file://{}", lab.path("archive").display());
    let mut child = lab.start(&["train.steps=100000", "checkpoint.interval=100000", &also]);
    lab.wait_for_steps("runs/a", 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lab.path("archive/run").exists() && !lab.path("runs/a/last-checkpoint").exists());
    lab.run(&[&also]).well();
    lab.run(&["log.folder=runs/b", &also])
        .expect(2, &["the copies of another run"]);
}

#[test]
fn a_place_that_is_none_is_refused_before_the_run() {
    let lab = Lab::new();
    fs::write(lab.path("file"), "").unwrap();
    let below_a_file = format!("file://{}", lab.path("file/a").display());
    for (also, says) in [
        ("ftp://host/a", "not a location of checkpoints"),
        ("/mnt/archive", "not a location of checkpoints"),
        ("file://archive", "not an absolute path"),
        ("s3://A_b/c", "not a bucket"),
        ("s3:///a", "not a bucket"),
        (&below_a_file, "cannot be written"),
    ] {
        let set = format!("checkpoint.also={also}");
        lab.run(&[&set])
            .expect(2, &["checkpoint.also", says, "file:///"]);
        if says != "cannot be written" {
            lab.gptrain(&["manifest", "check", "run.yaml", "--set", &set])
                .expect(2, &[says]);
        }
        assert!(lab.metrics("runs/a").is_empty());
    }
}

/// Each call fails once, or the disk holds something else than it was given: nothing but a whole copy
/// has the name, and the next try ends it.
#[test]
fn a_copy_in_a_folder_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let what = Saved::tiny(5);
    let from = what.write(&folder.path().join("from"));
    let copy = |disk: Arc<Disk>, to: &Path| {
        let place = Place::on(disk, to);
        place
            .claim("a run")
            .and_then(|()| place.copy(&from, &SentFiles::default(), &|| true))
    };
    let all = Arc::new(Disk::failing(Fault::None));
    copy(all.clone(), &folder.path().join("all")).unwrap();
    // Files are copied side by side: which call has a number differs, not how many there are.
    for at in 0..all.calls().len() {
        let errno = Errno::IO.raw_os_error();
        for fault in [Fault::Error { at, errno }, Fault::Crash { at }, Fault::Wrong { at }] {
            let to = folder.path().join(format!("{at}-{fault:?}"));
            let disk = Arc::new(Disk::failing(fault));
            let once = copy(disk.clone(), &to);
            let call = &disk.calls()[at];
            let is_told = !matches!(fault, Fault::Wrong { .. });
            assert!(once.is_err() || !is_told, "{call:?} {fault:?}");
            let there = steps(&to) == [5];
            assert!(there || once.is_err(), "{call:?} {fault:?}");
            assert!(!there || what.is_in(&to.join("step-00000005")), "{call:?} {fault:?}");
            copy(Arc::default(), &to).unwrap();
            assert!(what.is_in(&to.join("step-00000005")), "{call:?} {fault:?}");
            let mut left = names(&to);
            left.sort();
            assert_eq!(left, ["run", "step-00000005"], "{call:?} {fault:?}");
        }
    }
}

/// Complete files are kept; a cancelled copy stops; steps are pruned as in a run's folder.
#[test]
fn an_interrupted_copy_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (Saved::tiny(5).write(&folder.path().join("from")), folder.path().join("to"));
    let shards = |disk: &Disk| {
        let calls = disk.calls();
        let of_shard =
            |call: &&Call| matches!(call, Call::Create(path) if path.extension().is_some());
        calls.iter().filter(of_shard).count()
    };
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let once = || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
    let stopped = Place::on(Disk::default(), &to).copy(&from, &SentFiles::default(), &once);
    assert!(stopped.unwrap_err().to_string().contains("interrupted"));
    let disk = Arc::new(Disk::failing(Fault::None));
    let place = Place::on(disk.clone(), &to);
    assert!(
        place
            .copy(&from, &SentFiles::default(), &|| true)
            .unwrap()
            .bytes
            .is_some()
    );
    assert_eq!(shards(&disk), 3, "two shards and the index; one was there");
    assert!(
        place
            .copy(&from, &SentFiles::default(), &|| true)
            .unwrap()
            .bytes
            .is_none()
    );
    for step in [6, 8, 9] {
        let from = Saved::tiny(step).write(&folder.path().join("from"));
        place.copy(&from, &SentFiles::default(), &|| true).unwrap();
    }
    place
        .prune(Keep { last: Some(1), every: Some(4), ..Keep::default() })
        .unwrap();
    assert_eq!((place.steps().unwrap(), steps(&to)), (vec![8, 9], vec![8, 9]));
    assert_eq!(place.go_back(8).unwrap(), [9]);
    assert_eq!((place.steps().unwrap(), steps(&to)), (vec![8], vec![8]));
}
