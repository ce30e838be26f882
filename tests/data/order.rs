//! Orders of samples: kept on disk, and as large as they may be.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gptrain::base::Problems;
use gptrain::data::Indexed;
use gptrain::data::order::{Array, Cache, Cut, Order, OrderSpec};
use gptrain::manifest::DataRule;

fn dataset(name: &str) -> Indexed {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/megatron");
    Indexed::open(&fixtures.join("datasets").join(name)).unwrap()
}

/// A cache of this test's own that keeps even the smallest order.
fn cache(name: &str) -> Cache {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("order-{name}"));
    std::fs::remove_dir_all(&folder).ok();
    Cache { folder, from_bytes: 0 }
}

fn spec(samples: u64) -> OrderSpec {
    let rule = DataRule::MegatronCore;
    OrderSpec { rule, seq_len: 16, samples: Some(samples), seed: 1234, cut: Cut::default() }
}

type Lists = (Vec<u32>, Vec<[u32; 2]>, Vec<u32>);

fn lists(order: &Order) -> Lists {
    let Order { sequences, starts, shuffle, .. } = order;
    (sequences.to_vec().unwrap(), starts.to_vec().unwrap(), shuffle.to_vec().unwrap())
}

fn cached(cache: &Cache, spec: &OrderSpec, dataset: &Indexed) -> Order {
    let order = cache
        .order(spec, dataset, 0..dataset.sequences(), "test")
        .unwrap();
    assert!(matches!(order.shuffle, Array::Mapped { .. }), "it is in memory");
    order
}

fn built(spec: &OrderSpec, dataset: &Indexed) -> Lists {
    lists(&Order::build(spec, dataset.lengths(), 0..dataset.sequences(), "test").unwrap())
}

/// The orders in a cache, and nothing else but locks.
fn orders(cache: &Cache) -> Vec<PathBuf> {
    let files = std::fs::read_dir(&cache.folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let lock = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "lock");
    let mut files: Vec<PathBuf> = files.filter(|path| !lock(path)).collect();
    assert!(files.iter().all(|path| path.extension().is_none()), "{files:?}");
    files.sort();
    files
}

#[test]
fn a_cached_order_is_the_built_one() {
    let (cache, dataset) = (cache("same"), dataset("u16_a"));
    for samples in [78, 215, 372] {
        let spec = spec(samples);
        assert_eq!(lists(&cached(&cache, &spec, &dataset)), built(&spec, &dataset));
        let file = orders(&cache).pop().unwrap();
        let before = std::fs::metadata(&file).unwrap().modified().unwrap();
        assert_eq!(lists(&cached(&cache, &spec, &dataset)), built(&spec, &dataset));
        assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), before, "built again");
    }
    // 215 and 372 samples both take two epochs, but the last is shuffled apart for 215.
    assert_eq!(orders(&cache).len(), 3);
}

#[test]
fn everything_that_decides_an_order_tells_it_apart() {
    let cache = cache("apart");
    let (one, other) = (dataset("u16_a"), dataset("u16_b"));
    let first = spec(215);
    let wishes = [
        first.clone(),
        OrderSpec { rule: DataRule::MegatronDeepSpeed, ..first.clone() },
        OrderSpec { seq_len: 17, ..first.clone() },
        OrderSpec { seed: 1235, ..first.clone() },
        OrderSpec { samples: Some(600), ..first.clone() },
        OrderSpec { samples: None, ..first.clone() },
        OrderSpec { cut: Cut { extra_token: false, ..Cut::default() }, ..first.clone() },
        OrderSpec { cut: Cut { drop_partial: false, ..Cut::default() }, ..first.clone() },
    ];
    for spec in &wishes {
        assert_eq!(lists(&cached(&cache, spec, &one)), built(spec, &one));
    }
    assert_eq!(orders(&cache).len(), wishes.len());
    cached(&cache, &first, &other);
    assert_eq!(orders(&cache).len(), wishes.len() + 1, "another dataset");
    cache.order(&first, &one, 0..30, "test").unwrap();
    assert_eq!(orders(&cache).len(), wishes.len() + 2, "another part of the dataset");
}

#[test]
fn a_damaged_or_foreign_file_is_built_again() {
    let (cache, dataset) = (cache("damaged"), dataset("u16_a"));
    let spec = spec(78);
    let want = lists(&cached(&cache, &spec, &dataset));
    let path = orders(&cache).pop().unwrap();
    let good = std::fs::read(&path).unwrap();
    let other = cached(&cache, &OrderSpec { seed: 7, ..spec.clone() }, &dataset);
    let foreign = orders(&cache)
        .into_iter()
        .find(|file| *file != path)
        .unwrap();
    let foreign = std::fs::read(foreign).unwrap();
    assert!(foreign.len() == good.len() && lists(&other) != want);
    let mut bad = vec![
        vec![],
        good[..good.len() / 2].to_vec(),
        good[..good.len() - 1].to_vec(),
        [&good[..], b"x"].concat(),
        vec![0; good.len()],
        foreign,
    ];
    for at in [0, 8, 90, 96, good.len() / 2, good.len() - 9, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        bad.push(flipped);
    }
    for bytes in bad {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(lists(&cached(&cache, &spec, &dataset)), want);
        assert!(std::fs::read(&path).unwrap() == good, "the file was not replaced");
    }
    // The remains of a killed process are not an order, and are overwritten.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(path.with_extension("partial"), vec![7; good.len() * 2]).unwrap();
    assert_eq!(lists(&cached(&cache, &spec, &dataset)), want);
    assert!(orders(&cache).contains(&path));
}

#[test]
fn a_cache_that_shrinks_while_it_is_read_is_an_error_not_a_crash() {
    let (cache, dataset) = (cache("shrinks"), dataset("u16_a"));
    let order = cached(&cache, &OrderSpec { seq_len: 1, ..spec(3000) }, &dataset);
    let path = orders(&cache).pop().unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let read = |k| {
        let mut pieces = order.slices(k, dataset.lengths())?;
        while pieces.next()?.is_some() {}
        anyhow::Ok(())
    };
    let error = (0..order.samples())
        .find_map(|k| read(k).err())
        .expect("a read of what is gone");
    assert!(
        error
            .to_string()
            .contains("changed while it was being read"),
        "{error}"
    );
}

#[test]
fn a_cache_that_cannot_be_written_names_the_setting() {
    let (mut cache, dataset) = (cache("refused"), dataset("u16_a"));
    let refused = |cache: &Cache| {
        let error = cache
            .order(&spec(78), &dataset, 0..dataset.sequences(), "test")
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("cannot keep the order of") && error.contains("data.cache"));
        error
    };
    cached(&cache, &spec(78), &dataset);
    let path = orders(&cache).pop().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", path.with_extension("partial")).unwrap();
    let error = refused(&cache);
    assert!(error.contains("No space left on device"), "{error}");
    assert!(orders(&cache).is_empty(), "something half-written remains");
    cache.folder = cache
        .folder
        .join(path.with_extension("lock").file_name().unwrap());
    assert!(refused(&cache).contains("File exists"), "the folder is a file");
}

#[test]
fn processes_that_want_one_order_at_once_all_get_it() {
    let cache = cache("processes");
    let samples = |cache: &Path| -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
        command.args(["data", "samples", "--seq-len", "16", "--json", "--samples", "5000"]);
        let prefix = dataset("i32_big").prefix().to_path_buf();
        command
            .args(["--range", "0..49", "--cache"])
            .args([cache, &prefix]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<Child> = (0..4).map(|_| samples(&cache.folder)).collect();
    let said: Vec<_> = all
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    for output in &said {
        assert!(output.status.success() && output.stdout == said[0].stdout);
        assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 50);
    }
    assert_eq!(orders(&cache).len(), 1);
}

#[test]
fn an_order_too_large_is_refused_before_it_is_built() {
    let refused = |lengths: &[u32], spec: &OrderSpec| {
        let error = Order::build(spec, lengths, 0..lengths.len(), "corpus")
            .err()
            .unwrap();
        error.downcast::<Problems>().unwrap().to_string()
    };
    let one = |samples| OrderSpec { seq_len: 1, ..spec(samples) };
    // 2,048 sequences of 2^31 - 1 tokens: 2^42 samples of one token.
    let error = refused(&[i32::MAX as u32; 2048], &one(1));
    assert!(error.contains("corpus: 2048 sequences") && error.contains("4398046509055 samples"));
    assert!(error.contains("below 2^32 - 2 of each") && error.contains("cut the dataset"));
    // 5 tokens, read often enough for 2^33 samples.
    let error = refused(&[5], &one(1 << 33));
    assert!(error.contains("of which 1717986919 in 1717986919 epochs"), "{error}");
    // The first number of samples for which numpy shuffles with 64-bit numbers, by Megatron's rule.
    let error = refused(&[i32::MAX as u32, i32::MAX as u32, 1], &one(1));
    assert!(error.contains("give 4294967294 samples"), "{error}");
    // As many samples as a u64 counts, of as many tokens as it counts.
    refused(&[u32::MAX; 4096], &OrderSpec { seq_len: 1 << 24, ..spec(u64::MAX) });
}
