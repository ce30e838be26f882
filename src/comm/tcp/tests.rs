//! TCP ranks as threads of the test: bit-identical to `threads`, and only valid peers are accepted.

mod unauthenticated;

use super::super::tests::exercise::check_ops;
use super::*;
use crate::{Message, catch};
use base::DType;
use base::testing::at_any_load;
use device::Tensor;

pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Start of the message about ranks that did not join.
const MISSING: &str = "did not connect to the rendezvous at";

/// Longer than any operation of these tests on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// Parameters of ranks with a start timeout of `limit`.
fn joins_within(limit: Duration, world: usize) -> Vec<Join> {
    let mut joins = joins(world);
    joins.iter_mut().for_each(|join| join.start_timeout = limit);
    joins
}

pub fn joins(world: usize) -> Vec<Join> {
    let address = free_address();
    (0..world)
        .map(|rank| Join {
            rank,
            world,
            node: format!("n{rank}"),
            address: address.clone(),
            job: "test 1".into(),
            secret: b"secret".to_vec(),
            binary: 1,
            manifest: 2,
            start_timeout: LONG,
            watchdog: Watchdog::new(LONG),
            send_limit: None,
        })
        .collect()
}

/// Runs each rank on its own thread. Returns their results.
fn run(joins: Vec<Join>, rank: impl Fn(World) + Sync) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = joins
            .into_iter()
            .map(|join| {
                scope.spawn(move || {
                    let world = super::join(&join).map_err(|failed| failed.line)?;
                    catch(move || rank(world)).map_err(|failed| failed.line)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn every_op_gives_the_same_bits_as_among_threads() {
    for size in [1, 2, 3, 4] {
        let ends = run(joins(size), |world| check_ops(&world, &[1, 7, 1001]));
        assert_eq!(ends, vec![Ok(()); size]);
    }
}

#[test]
fn ranks_meet_at_an_ipv6_address_and_at_a_name() {
    let Ok(free) = TcpListener::bind("[::1]:0") else {
        return; // this machine has no IPv6
    };
    let port = free.local_addr().unwrap().port();
    drop(free);
    for address in [format!("[::1]:{port}"), format!("localhost:{port}")] {
        let mut joins = joins(3);
        joins
            .iter_mut()
            .for_each(|join| join.address = address.clone());
        assert_eq!(run(joins, |world| check_ops(&world, &[7])), vec![Ok(()); 3], "{address}");
    }
}

/// Two messages of a quarter of a second each; the other rank is not limited.
#[test]
fn a_rank_with_a_send_limit_sends_slowly() {
    let mut joins = joins(2);
    joins[1].send_limit = Some(4e6);
    let ends = run(joins, |world| {
        let group = world.group("pair", &[0, 1]);
        let peer = 1 - world.rank();
        let mut words = vec![0u64; 2 * 125_000];
        let at = words.as_mut_ptr() as usize;
        let [out, into] =
            [0, 1].map(|half| Tensor::at(at + half * 1_000_000, 1, 125_000, DType::I64));
        let start = std::time::Instant::now();
        for _ in 0..2 {
            group.exchange(&[
                Message::Send { to: peer, x: out },
                Message::Recv { from: peer, x: into },
            ]);
        }
        assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    });
    assert_eq!(ends, vec![Ok(()); 2]);
}

#[test]
fn a_missing_rank_is_named() {
    at_any_load(Duration::from_millis(500), |limit| {
        let mut joins = joins_within(limit, 4);
        let address = joins[0].address.clone();
        joins.remove(2);
        let seconds = limit.as_secs_f64();
        let line = format!("rank 2 {MISSING} {address} within {seconds:.0} s; 3 of 4 ranks did");
        assert_eq!(run(joins, |_| ()), vec![Err(line); 3]);
    });
}

#[test]
fn a_second_process_with_one_rank_is_rejected() {
    at_any_load(Duration::from_millis(700), |limit| {
        let mut joins = joins_within(limit, 3);
        joins[2].rank = 1;
        let ends = run(joins, |_| ());
        let lines: Vec<&str> = ends
            .iter()
            .map(|end| end.as_ref().unwrap_err().as_str())
            .collect();
        assert!(lines[0].starts_with("rank 2 did not connect"), "{lines:?}");
        assert!(lines[0].ends_with("2 of 3 ranks did; rank 1 connected twice"), "{lines:?}");
        let rejected = "rank 1 has already connected: two processes have this rank";
        assert!(lines[1..].contains(&rejected) && lines[1..].contains(&lines[0]), "{lines:?}");
    });
}

#[test]
fn a_rank_that_differs_is_named() {
    type Change = fn(&mut Join);
    let cases: [(Change, &str); 3] = [
        (|join| join.binary = 7, "runs another program than the other 3: 0000000000000007, not "),
        (|join| join.manifest = 7, "has another manifest than the other 3: 0000000000000007, not "),
        (|join| join.world = 7, "has another number of ranks than the other 3: "),
    ];
    for (change, what) in cases {
        let mut joins = joins(4);
        change(&mut joins[3]);
        for end in run(joins, |_| ()) {
            let line = end.unwrap_err();
            assert!(line.starts_with(&format!("rank 3 (node n3) {what}")), "{line}");
        }
    }
}

#[test]
fn another_job_and_another_secret_are_rejected() {
    at_any_load(Duration::from_millis(700), others_are_rejected);
}

fn others_are_rejected(limit: Duration) {
    let mut joins = joins_within(limit, 4);
    joins[2].job = "test 2".into();
    joins[3].secret = b"guess".to_vec();
    let address = joins[0].address.clone();
    let seconds = limit.as_secs_f64();
    let ends = run(joins, |_| ());
    let line = format!("ranks 2, 3 {MISSING} {address} within {seconds:.0} s; 2 of 4 ranks did");
    for end in &ends[..2] {
        let (missing, unauthenticated) = end.as_ref().unwrap_err().split_at(line.len());
        assert_eq!(missing, line);
        assert!(unauthenticated.ends_with(" failed the authentication"), "{unauthenticated}");
    }
    for (rank, end) in ends.iter().enumerate().skip(2) {
        let why = "the peer is a rank of another job, or has another secret";
        let what = format!(
            "rank {rank} (node n{rank}) did not connect to rank 0 at {address} within {seconds:.0} s: {why}"
        );
        assert_eq!(end.as_ref().unwrap_err(), &what);
    }
}

#[test]
fn the_secret_is_made_once_and_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let made: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| secret(folder.path(), "slurm 7.0").unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(made.iter().all(|one| *one == made[0] && one.len() == 32));
    assert_ne!(secret(folder.path(), "slurm 8.0").unwrap(), made[0]);
    let files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
