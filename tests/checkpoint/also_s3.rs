//! Copies of checkpoints in S3, on a third-party server: `tests/common/s3.rs`.

use super::also::steps;
use crate::common::binary::{Done, Lab, run_args};
use crate::common::s3::{BUCKET, FAULTS, Fault, Proxy, Server, settings};
use crate::common::saved::Saved;
use gptrain::checkpoint::place::{CopyResult, Place, SentFiles};
use gptrain::checkpoint::{Index, Keep};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

fn place(port: u16, prefix: &str) -> Place {
    Place::with(&format!("s3://{BUCKET}/{prefix}"), &settings(port)).unwrap()
}

fn copy(place: &Place, from: &Path) -> anyhow::Result<CopyResult> {
    place.claim("a run")?;
    place.copy(from, &SentFiles::default(), &|| true)
}

/// A checkpoint on this machine, and a server.
struct Bench {
    folder: tempfile::TempDir,
    what: Saved,
    from: PathBuf,
    server: Server,
}

impl Bench {
    fn new(what: Saved) -> Option<Bench> {
        let server = Server::start()?;
        let folder = tempfile::tempdir().unwrap();
        let from = what.write(&folder.path().join("from"));
        Some(Bench { folder, what, from, server })
    }

    /// Whether every checkpoint listed as complete can be fetched and equals the original.
    fn whole_is_right(&self, prefix: &str) -> bool {
        let direct = place(self.server.port, prefix);
        let to = self.folder.path().join(prefix);
        let whole = direct.steps().unwrap() == [5];
        if whole {
            assert!(self.what.is_in(&direct.fetch(&to).unwrap().folder), "{prefix}");
        }
        whole
    }

    /// Copies by way of a proxy, then, if that failed, without it: never is something else whole.
    /// Whether the first way succeeded.
    fn survives(&self, prefix: &str, proxy: &Proxy) -> bool {
        let once = copy(&place(proxy.port, prefix), &self.from);
        let whole = self.whole_is_right(prefix);
        assert!(whole || once.is_err(), "{prefix}: {once:?}");
        copy(&place(self.server.port, prefix), &self.from).unwrap();
        assert!(self.whole_is_right(prefix), "{prefix}");
        once.is_ok()
    }
}

/// Each request fails once, by kinds of failure in turn; and all from one on.
#[test]
fn whatever_fails_between_no_bad_copy_is_whole() {
    let Some(bench) = Bench::new(Saved::tiny(5)) else { return };
    let clean = Proxy::before(&bench.server, |_, _| Fault::None);
    assert!(bench.survives("clean", &clean));
    let requests = clean.asked();
    assert!(requests > 10, "{requests} requests");
    let single = (0..requests).flat_map(|at| {
        let kinds = FAULTS.iter().cycle().skip(3 * at).take(3);
        kinds.map(move |kind| (at, at + 1, *kind))
    });
    let outages = [0, requests / 2, requests - 1].map(|at| (at, usize::MAX, Fault::Fails));
    let cases: Mutex<Vec<_>> = Mutex::new(single.chain(outages).collect());
    let well = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let next = || cases.lock().unwrap().pop();
                while let Some((at, end, kind)) = next() {
                    let proxy = Proxy::before(&bench.server, move |number, _| {
                        if (at..end).contains(&number) { kind } else { Fault::None }
                    });
                    let ok = bench.survives(&format!("{at}-{}-{kind:?}", end.min(99)), &proxy);
                    assert!(proxy.asked() > at);
                    assert!(end > at + 1 || ok || kind.damages(), "{at} {kind:?}");
                    *well.lock().unwrap() += usize::from(ok);
                }
            });
        }
    });
    let (all, well) = (3 * requests, *well.lock().unwrap());
    assert!(well > all / 2 && well < all + 3, "{well} of {all} succeeded at once");
}

/// A store that answers each file with 200 and the right ETag, and has nothing afterwards.
#[test]
fn a_store_that_keeps_nothing_is_not_believed() {
    let Some(bench) = Bench::new(Saved::tiny(5)) else { return };
    let proxy = Proxy::before(&bench.server, |_, line| {
        if line.contains(".safetensors") && line.starts_with("PUT") {
            Fault::Forgotten
        } else {
            Fault::None
        }
    });
    let error = copy(&place(proxy.port, "a"), &bench.from)
        .unwrap_err()
        .to_string();
    assert!(error.contains("bytes were sent, and the store lists nothing"), "{error}");
    assert!(!bench.whole_is_right("a"), "no index is written");
    copy(&place(bench.server.port, "a"), &bench.from).unwrap();
    assert!(bench.whole_is_right("a"));
}

/// A server that takes connections and never answers.
#[test]
fn a_fetch_from_a_silent_server_ends_by_a_signal_and_leaves_nothing() {
    let lab = Lab::new();
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let fetch = ["run", "run.yaml", "--resume-from", "s3://bucket/a"];
    for signal in [Signal::INT, Signal::TERM] {
        let child = lab.command(&fetch).envs(settings(port)).spawn().unwrap();
        let held = silent.accept().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let done = Done::of(child.wait_with_output().unwrap());
        done.expect(1, &["stopped while s3://bucket/a was fetched; nothing of it is kept"]);
        assert!(!lab.path("runs").exists());
        drop(held);
    }
}

/// The same of a fetch: it gives what was copied, or nothing.
#[test]
fn a_fetch_gives_what_was_copied_or_nothing() {
    let Some(bench) = Bench::new(Saved::tiny(5)) else { return };
    copy(&place(bench.server.port, "a"), &bench.from).unwrap();
    let fetch = |proxy: &Proxy, name: String| {
        let to = bench.folder.path().join(name);
        let fetched = place(proxy.port, "a").fetch(&to);
        assert_eq!(steps(&to).len(), usize::from(fetched.is_ok()));
        assert!(steps(&to).is_empty() || bench.what.is_in(&to.join("step-00000005")));
        assert_eq!(std::fs::read_dir(&to).map_or(0, |entries| entries.count()), steps(&to).len());
        fetched
    };
    let clean = Proxy::before(&bench.server, |_, _| Fault::None);
    fetch(&clean, "clean".into()).unwrap();
    for at in 0..clean.asked() {
        for kind in [Fault::Half, Fault::WrongAnswer, Fault::Fails] {
            let proxy = Proxy::before(
                &bench.server,
                move |number, _| {
                    if number == at { kind } else { Fault::None }
                },
            );
            let fetched = fetch(&proxy, format!("{at}-{kind:?}"));
            assert!(fetched.is_ok() || kind.damages(), "{at} {kind:?}: {fetched:?}");
        }
    }
    // A damaged object is not repaired: the error names the file.
    let file = format!("{BUCKET}/a/step-00000005/first_moment-00000.safetensors");
    let mut shard = std::fs::read(bench.from.join("first_moment-00000.safetensors")).unwrap();
    shard[5000] ^= 1;
    assert_eq!(bench.server.ask("PUT", &file, &shard).0, 200);
    let error = format!("{:#}", fetch(&clean, "damaged".into()).unwrap_err());
    assert!(error.contains(&format!("s3://{file}: bytes ")), "{error}");
    // The next start copies it again, once its index is removed.
    assert_eq!(
        bench
            .server
            .ask("DELETE", &format!("{BUCKET}/a/step-00000005/index.json"), b"")
            .0,
        204
    );
    let error = fetch(&clean, "none".into()).unwrap_err().to_string();
    assert!(error.contains("contains no complete checkpoint"), "{error}");
    copy(&place(bench.server.port, "a"), &bench.from).unwrap();
    fetch(&clean, "mended".into()).unwrap();
}

/// A file of more than one part, whose parts fail; then copies are pruned and set aside.
#[test]
fn a_file_of_several_parts_is_whole_or_sent_again() {
    let mut what = Saved::tiny(5);
    let wide = what.tensor("wide");
    wide.shape = vec![3, 750_000];
    wide.kept = [0, 1, 2].map(|kept| (0..3 * 750_000).map(|i| (i % 1009 + kept) as f32).collect());
    let Some(bench) = Bench::new(what) else { return };
    let cases = [
        ("PUT", "partNumber=1&", Fault::WrongQuestion),
        ("PUT", "partNumber=2&", Fault::WrongTag),
        ("PUT", "partNumber=2&", Fault::Unanswered),
        ("POST", "?uploadId=", Fault::Fails),
        ("POST", "?uploads", Fault::Refused),
        ("GET", "master-", Fault::WrongAnswer),
    ];
    for (number, (method, word, kind)) in cases.into_iter().enumerate() {
        let met = std::sync::Arc::new(Mutex::new(false));
        let seen = met.clone();
        let proxy = Proxy::before(&bench.server, move |_, line| {
            let is_it = line.starts_with(method) && line.contains(word);
            let first = is_it && !std::mem::replace(&mut *seen.lock().unwrap(), true);
            if first { kind } else { Fault::None }
        });
        let direct = place(proxy.port, &format!("{number}"));
        // Parts make it an upload of several; only what a store cannot prove is read again.
        let once = copy(&direct, &bench.from);
        assert!(*met.lock().unwrap() || method == "GET", "{method} {word}");
        assert!(bench.whole_is_right(&format!("{number}")) || once.is_err(), "{once:?}");
        copy(&direct, &bench.from).unwrap();
        assert!(bench.whole_is_right(&format!("{number}")));
    }
    let proxy = Proxy::before(&bench.server, |_, _| Fault::None);
    let direct = place(proxy.port, "0");
    let from = Saved::tiny(6).write(&bench.folder.path().join("from"));
    copy(&direct, &from).unwrap();
    let weights = Keep { last: Some(1), weights_every: Some(5), ..Keep::default() };
    direct.prune(weights).unwrap();
    // The files of a step with only weights are not listed again: one list of steps, two indices.
    let asked = proxy.asked();
    direct.prune(weights).unwrap();
    assert_eq!(proxy.asked() - asked, 3);
    assert_eq!(direct.steps().unwrap(), [5, 6]);
    let fetched = place(bench.server.port, "0/step-00000005")
        .fetch(&bench.folder.path().join("weights"))
        .unwrap();
    assert!(Index::read(&fetched.folder).unwrap().weights_only);
    direct
        .prune(Keep { last: Some(1), ..Keep::default() })
        .unwrap();
    assert_eq!(direct.steps().unwrap(), [6]);
    let left = |step: u64| {
        let query = format!("{BUCKET}?prefix=0/step-0000000{step}");
        let (status, listed) = bench.server.ask("GET", &query, b"");
        assert_eq!(status, 200);
        String::from_utf8_lossy(&listed).matches("<Key>").count()
    };
    assert_eq!((left(5), left(6)), (0, 4));
    assert_eq!(direct.go_back(5).unwrap(), [6]);
    assert!(direct.steps().unwrap().is_empty());
}

/// A run whose store fails for a while says so once and ends as any other; its copy is whole, and
/// another folder resumes from it, bit for bit. No message contains a secret.
#[test]
fn a_run_is_copied_to_s3_and_goes_on_from_there() {
    let Some(server) = Server::start() else { return };
    let proxy =
        Proxy::before(
            &server,
            |number, _| {
                if (20..45).contains(&number) { Fault::Fails } else { Fault::None }
            },
        );
    let lab = Lab::new();
    let with = |port: u16, args: &[&str]| {
        let mut command = lab.command(args);
        command.envs(settings(port)).env("GPTRAIN_LOG", "debug");
        let done = Done::of(command.output().unwrap());
        assert!(!(done.out.clone() + &done.err).contains("a-secret"), "{} {}", done.out, done.err);
        done
    };
    let also = format!("checkpoint.also=s3://{BUCKET}/runs/a");
    let sets = [&also, "checkpoint.interval=2", "checkpoint.keep_last=2", "train.steps=8"];
    let first = with(proxy.port, &run_args(&sets));
    first.well();
    assert_eq!(first.out.matches("checkpoints are not copied").count(), 1, "{}", first.out);
    assert!(!first.out.contains("Encountered"), "the library speaks: {}", first.out);
    assert!(first.out.contains("takes copies again"), "{}", first.out);
    assert!(first.out.contains("copied step-00000008 to s3://"), "{}", first.out);
    let status = lab.gptrain(&["status", "runs/a"]);
    assert!(status.out.contains("copied step-00000008 to s3://"), "{}", status.out);
    let steps = place(server.port, "runs/a").steps().unwrap();
    assert!(steps.ends_with(&[8]) && steps.len() <= 2, "{steps:?}");

    let url = format!("s3://{BUCKET}/runs/a");
    let from = ["run", "run.yaml", "--set", "log.folder=runs/b", "--resume-from", &url];
    let resumed = with(server.port, &[&from[..], &["--set", "topology.data=2"]].concat());
    resumed.well();
    assert!(resumed.out.contains("fetched step-00000008 from s3://"), "{}", resumed.out);
    let whole = Lab::new();
    whole.run(&["train.steps=8"]).well();
    whole.run(&["topology.data=2"]).well();
    assert_eq!(lab.losses("runs/b"), whole.losses("runs/a")[8..]);
}

/// One clear error before the first step, if a bucket does not exist or is not writable.
#[test]
fn a_bucket_that_cannot_be_used_is_one_error_before_the_run() {
    let Some(server) = Server::start() else { return };
    let denied = Proxy::before(&server, |_, _| Fault::None);
    let lab = Lab::new();
    let run = |also: &str, unset: &[&str]| {
        let also = format!("checkpoint.also={also}");
        let mut command = lab.command(&run_args(&[&also]));
        command.envs(settings(denied.port));
        // Where no machine of Amazon's answers for credentials.
        command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
        for name in unset {
            command.env_remove(name);
        }
        Done::of(command.output().unwrap())
    };
    run("s3://no-such-bucket/a", &[]).expect(2, &["checkpoint.also", "NoSuchBucket", "AWS_"]);
    run("s3://gptrain/a", &["AWS_SECRET_ACCESS_KEY"])
        .expect(2, &["s3://gptrain/a", "AWS_SECRET_ACCESS_KEY"]);
    run("s3://gptrain/a", &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
        .expect(2, &["checkpoint.also", "no credentials (AWS_ACCESS_KEY_ID)"]);
    assert!(lab.metrics("runs/a").is_empty());
}
