//! Algorithm selection of the CUDA backend: on the stand-in, whose proposals take made-up times.
//! The best one is neither the first nor the one that claims to be.

use crate::bench::{Bench, Seen};
use crate::{product, softgpu};
use gptrain::base::DType;
use gptrain::device::Gemm;
use gptrain::device::cuda::{Cuda, Options};
use std::fs;
use std::path::{Path, PathBuf};

/// An empty folder of this test's own.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("tuning")
        .join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// The products of a few shapes, all right, by a backend that keeps its choices there; and how many
/// it timed.
fn products(tuned: Option<&Path>) -> (Vec<Seen>, usize) {
    products_of(&open(tuned))
}

pub fn open(tuned: Option<&Path>) -> Cuda {
    open_beside(tuned, None)
}

fn open_beside(tuned: Option<&Path>, sm_margin: Option<&str>) -> Cuda {
    let (tuned, sm_margin) = (tuned.map(Path::to_path_buf), sm_margin.map(str::to_string));
    let options = Options { tuned, sm_margin, ..softgpu::options() };
    Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"))
}

fn products_of(cuda: &Cuda) -> (Vec<Seen>, usize) {
    let bench = Bench::new(cuda, DType::BF16, true).with_fused_epilogues();
    for (kind, m, n, k) in [(Gemm::NT, 9, 16, 70), (Gemm::TN, 16, 8, 65)] {
        product::gemm(&bench, kind, m, n, k);
    }
    let wrong = bench.wrong();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    (bench.seen(), cuda.timed())
}

pub fn the_file(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut texts = files.filter(|file| file.extension().is_some_and(|ending| ending == "txt"));
    texts.next().expect("choices are kept")
}

/// Numbers of the algorithms in a file (the stand-in's fifth word), or "apart".
fn chosen(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(the_file(folder)).unwrap();
    let choices = text.lines().filter_map(|line| line.rsplit_once(": "));
    let number = |way: &str| match way.split_once(' ').unwrap().0 {
        "apart" => "apart".to_string(),
        algorithm => algorithm[64..80].trim_start_matches('0').to_string(),
    };
    choices.map(|(_, way)| number(way)).collect()
}

#[test]
fn the_fastest_valid_algorithm_is_chosen_once() {
    let folder = folder("once");
    let (first, timed) = products(Some(&folder));
    let chosen = chosen(&folder);
    assert_eq!(chosen.len(), timed);
    // Algorithm 20 is the fastest that is sound, and beyond the first 16 proposals; but not with
    // the sums of BiasBackward.
    let count = |way: &str| chosen.iter().filter(|one| *one == way).count();
    assert!(count("14") >= 8 && count("apart") == 2, "{chosen:?}");
    assert_eq!(count("14") + count("apart"), timed);
    let (again, timed) = products(Some(&folder));
    assert_eq!(timed, 0, "what is kept is not timed again");
    assert!(first == again, "what is kept gives the same bits");
    let (untuned, timed) = products(None);
    assert_eq!(timed, 0);
    assert!(first != untuned, "the first proposal sums in another order");
}

#[test]
fn what_is_kept_decides() {
    let folder = folder("decides");
    let (untuned, _) = products(None);
    let (tuned, all) = products(Some(&folder));
    let text = fs::read_to_string(the_file(&folder)).unwrap();
    let with = |text: &[u8]| {
        fs::write(the_file(&folder), text).unwrap();
        products(Some(&folder))
    };
    // A file of another day, on which the first proposal was the fastest.
    assert!(with(with_algorithm(&text, 0).as_bytes()) == (untuned, 0), "the file is not used");
    // One that fails its check, one that adds up in place, one that does not exist.
    for number in [2, 5, 77] {
        let seen = with(with_algorithm(&text, number).as_bytes());
        assert!(seen == (tuned.clone(), all), "algorithm {number}");
    }
    let changed = text
        .replacen("= bf16", "= bf17", 1)
        .replacen(&format!("{:016x}", 20), "0", 1);
    let cases = [
        ("changed", changed.as_bytes()),
        ("half", &text.as_bytes()[..300]),
        ("no text", b"\xff\n "),
    ];
    for (what, damaged) in cases {
        let (seen, timed) = with(damaged);
        assert!(timed > 0 && seen == tuned, "{what}");
        assert_eq!(fs::read_to_string(the_file(&folder)).unwrap(), text, "{what}: mended");
    }
}

/// A sound file in which that algorithm is chosen for every product.
fn with_algorithm(text: &str, number: u64) -> String {
    let machine = text
        .lines()
        .next()
        .unwrap()
        .split_once("timed on ")
        .unwrap()
        .1;
    let some = text
        .lines()
        .find_map(|line| line.split_once(": ").filter(|way| way.1.len() > 128));
    let words = some.expect("a product by an algorithm").1;
    let line = |line: &str| {
        let product = line.split_once(": ").unwrap().0;
        let choice = format!("{product}: {}{number:016x}{}", &words[..64], &words[80..128]);
        let seal = xxhash_rust::xxh3::xxh3_64(format!("{machine}\n{choice}").as_bytes());
        format!("{choice} {seal:016x}\n")
    };
    text.lines().skip(1).map(line).collect()
}

#[test]
fn what_another_rank_has_chosen_meanwhile_counts() {
    let (here, there) = (folder("here"), folder("there"));
    let untuned = products(None).0;
    products(Some(&there));
    let text = fs::read_to_string(the_file(&there)).unwrap();
    let cuda = open(Some(&here));
    let theirs = here.join(the_file(&there).file_name().unwrap());
    fs::write(theirs, with_algorithm(&text, 0)).unwrap();
    let (seen, timed) = products_of(&cuda);
    assert!(seen == untuned, "the first is timed, but all are done as the file says by then");
    assert_eq!(timed, 1);
}

#[test]
fn ranks_that_tune_at_once_agree() {
    let folder = folder("ranks");
    let ranks: Vec<Vec<Seen>> = std::thread::scope(|threads| {
        let rank = |_| threads.spawn(|| products(Some(&folder)).0);
        let ranks: Vec<_> = (0..3).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(ranks.iter().all(|seen| *seen == ranks[0]));
    let left = fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 2, "the choices and their lock");
}

#[test]
fn where_nothing_can_be_kept_nothing_is_timed() {
    let file = folder("file");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "not a folder").unwrap();
    let (untuned, _) = products(None);
    let (seen, timed) = products(Some(&file));
    assert_eq!(timed, 0);
    assert!(seen == untuned);
    fs::remove_file(file).unwrap();
}

/// The stand-in has four SMs, and sums in another order on fewer.
#[test]
fn products_leave_sms_to_the_sums_that_run_beside_them() {
    let cuda = open_beside(None, Some("1"));
    let margin = &cuda.device().sm_margin;
    let (alone, _) = products_of(&cuda);
    assert!(alone == products(None).0, "nothing runs beside them");
    margin.begin_sum();
    margin.begin_sum();
    let (beside, _) = products_of(&cuda);
    margin.end_sum();
    assert!(products_of(&cuda).0 == beside && beside != alone, "one sum is left");
    margin.end_sum();
    assert!(products_of(&cuda).0 == alone, "none is left");

    let folder = folder("margin");
    let cuda = open_beside(Some(&folder), Some("1"));
    let (_, all) = products_of(&cuda);
    cuda.device().sm_margin.begin_sum();
    assert_eq!(products_of(&cuda).1, 2 * all, "other SMs are timed apart");
    let text = fs::read_to_string(the_file(&folder)).unwrap();
    assert_eq!(text.matches(" on 3 SMs").count(), all, "{text}");
}

#[test]
fn a_margin_leaves_some_sms() {
    for wrong in ["4", "-1", "all", ""] {
        let options = Options { sm_margin: Some(wrong.to_string()), ..softgpu::options() };
        let refused = Cuda::open(&options).err().expect("a refusal").to_string();
        let says = format!("GPTRAIN_SM_MARGIN is {wrong:?}, and the GPU has 4 SMs");
        assert!(refused.contains(&says) && refused.contains("NCCL_MAX_CTAS"), "{refused}");
    }
}
