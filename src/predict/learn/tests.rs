//! Learning from a few runs whose true constants are known.

use super::{
    Belief, Features, HalvingCounts, Kernel, Neighbours, Runs, Shared, UnseenDeviation, fit,
};

const KERNEL: Kernel = Kernel {
    program: Shared { whole: 0.1, part: 0.0 },
    machine: Shared { whole: 0.0, part: 0.0 },
    cluster: Shared { whole: 0.0, part: 0.3 },
    parts: &[1.0, 1.0],
    near: (0.05, 0.5),
    wide: (0.0, 1.0),
    other_program: 0.0,
    other_machine: 0.0,
    period: 0.0,
    single: 1.0,
    others: 0.5,
    halving: HalvingCounts { runs: 2.0, machines: 2.0 },
};

fn point(machine: &'static str, x: f64, launches: f64) -> Features {
    let coordinates = vec![x];
    let parts = vec![1.0 - launches, launches];
    let period = String::new();
    let program = "nemo";
    let own = false;
    let scatter = 0.01;
    let unseen = UnseenDeviation::default();
    let site = machine;
    let unfused = false;
    Features { program, machine, site, unfused, period, parts, coordinates, own, scatter, unseen }
}

#[test]
fn near_runs_teach_and_far_ones_do_not() {
    let kernel = Kernel { cluster: Shared { whole: 0.0, part: 0.0 }, ..KERNEL };
    let kernel = Kernel { program: Shared { whole: 0.0, part: 0.0 }, ..kernel };
    let points = [0.0, 0.1, 3.0].map(|x| point("a", x, 0.0)).to_vec();
    let all = Neighbours::new(kernel, points, &[0.05, 0.05, -0.05]);
    let (near, sure) = all.predict_at(&point("a", 0.05, 0.0));
    let (far, unsure) = all.predict_at(&point("a", 20.0, 0.0));
    assert!((near - 0.05).abs() < 0.01 && sure < 0.04, "{near} ± {sure}");
    // Student's t of 4 degrees of freedom and three runs.
    assert!(far.abs() < 1e-9 && (unsure - 1.895 * 0.051).abs() < 1e-3, "{far} ± {unsure}");
}

/// Runs that are half launches are late by a fifth. Then one that is all launches is late by two fifths,
/// and one without them is not: three runs identify the part. On another machine the program is late by
/// its common deviation, with a wide bar.
#[test]
fn a_part_that_runs_late_tells_of_runs_with_more_of_it() {
    let points = vec![point("a", 0.0, 0.5), point("a", 3.0, 0.0), point("a", 6.0, 0.25)];
    let all = Neighbours::new(KERNEL, points, &[0.2, 0.0, 0.1]);
    let (none, _) = all.predict_at(&point("a", 20.0, 0.0));
    let (whole, sure) = all.predict_at(&point("a", 20.0, 1.0));
    let (other, unsure) = all.predict_at(&point("b", 20.0, 1.0));
    assert!(none.abs() < 0.03 && (0.25..0.45).contains(&whole), "{none} and {whole}");
    assert!(other.abs() < 0.1 && unsure > 0.3 && unsure > 2.0 * sure, "{other} ± {unsure}, {sure}");
}

/// The user's runs are slower by half: so are the user's other runs at any distance; not others' runs.
#[test]
fn own_runs_tell_most_of_ones_own() {
    let own = |x: f64| Features { own: true, ..point("a", x, 0.0) };
    let points = vec![own(0.0), own(3.0), own(6.0), point("a", 0.0, 0.0)];
    let all = Neighbours::new(KERNEL, points, &[0.4, 0.41, 0.39, 0.0]);
    let (mine, _) = all.predict_at(&own(20.0));
    let (theirs, _) = all.predict_at(&point("a", 20.0, 0.0));
    assert!((mine - 0.4).abs() < 0.05 && theirs < 0.15, "{mine} and {theirs}");
}

/// The bar of a program without measurements is wide. It becomes narrower with runs of it, on another
/// machine or here, and less so if these runs were surprising.
#[test]
fn the_bar_of_a_new_program_is_wide_until_runs_of_it_are_seen() {
    let unseen =
        UnseenDeviation { program: 0.4, site: 0.4, pipeline: 0.3, ..UnseenDeviation::default() };
    let unseen = |machine, x| Features { unseen, ..point(machine, x, 0.0) };
    let asked = unseen("a", 20.0);
    let bar = |machine: &'static str, residuals: &[f64]| {
        let points = (0..residuals.len())
            .map(|i| unseen(machine, 0.02 * i as f64))
            .collect();
        Neighbours::new(KERNEL, points, residuals)
            .predict_at(&asked)
            .1
    };
    let unseen = bar("a", &[]);
    let elsewhere = bar("b", &[0.0; 5]);
    let here = bar("a", &[0.0; 5]);
    assert!((1.2..1.4).contains(&unseen), "{unseen}");
    assert!(here < 0.75 * elsewhere && elsewhere < 0.8 * unseen, "{here}, {elsewhere}, {unseen}");
    let surprising = bar("a", &[0.5, -0.5, 0.5, -0.5, 0.5]);
    assert!(surprising > here + 0.3, "{surprising} and {here}");
}

/// A program that one site measured has a wide bar elsewhere, wider with more sums over nodes; a second
/// site halves the doubt, and one own run ends it.
#[test]
fn a_program_of_one_site_is_doubtful_elsewhere() {
    let unseen = UnseenDeviation { elsewhere: 0.5, network: 0.7, ..UnseenDeviation::default() };
    let at = |site, x| Features { site, unseen, ..point("a", x, 0.0) };
    let asked = Features { own: true, ..at("here", 20.0) };
    let learn = |points: Vec<Features>| {
        let residuals = vec![0.0; points.len()];
        let all = Neighbours::new(KERNEL, points, &residuals);
        (all.only_site(&asked), all.predict_at(&asked).1)
    };
    let there = || {
        (0..4)
            .map(|i| at("there", f64::from(i)))
            .collect::<Vec<_>>()
    };
    let (site, wide) = learn(there());
    assert_eq!(site, Some("there"));
    assert!((1.4..2.0).contains(&wide), "{wide}");
    let (_, two) = learn([there(), vec![at("a third", 9.0)]].concat());
    assert!(two < wide - 0.7, "{two} of {wide}");
    let more = [Features { own: true, ..at("here", 9.0) }, at("here", 9.0)];
    for one_more in more {
        let (site, narrow) = learn([there(), vec![one_more]].concat());
        assert!(site.is_none() && narrow < two - 0.1, "{narrow} of {two}");
    }
}

fn line(seconds: [f64; 6]) -> impl Fn(&[f64]) -> Vec<f64> {
    move |k: &[f64]| {
        seconds
            .iter()
            .enumerate()
            .map(|(i, s)| (s / (k[0] * (i % 3 + 1) as f64)).ln())
            .collect()
    }
}

#[test]
fn one_run_that_went_wrong_hardly_pulls() {
    let residuals = line([2.02, 3.98, 6.1, 1.98, 3.95, 12.0]);
    let points: Vec<Features> = (0..6).map(|i| point("a", 100.0 * i as f64, 0.0)).collect();
    let kernel = Kernel { near: (0.0, 1.0), ..KERNEL };
    let belief = Belief { log: 3f64.ln(), spread: 10.0 };
    let runs = Runs { residuals: &residuals, kernel: &kernel, points: &points };
    let found = fit(&[belief], &[3.0], &runs, 1e-5);
    assert!((found[0] - 2.0).abs() < 0.03, "{found:?}");
}

/// One machine takes twice the others' time: that is its own, and hardly bends the constant.
#[test]
fn a_machine_apart_does_not_bend_the_constants() {
    let residuals = line([1.0, 2.0, 3.0, 2.0, 4.0, 6.0]);
    let machine = |i: usize| ["a", "b", "c", "d", "d", "d"][i];
    let points: Vec<Features> = (0..6)
        .map(|i| point(machine(i), 100.0 * i as f64, 0.0))
        .collect();
    let belief = Belief { log: 0.0, spread: 10.0 };
    let runs = Runs { residuals: &residuals, kernel: &KERNEL, points: &points };
    let found = fit(&[belief], &[1.0], &runs, 1e-5);
    assert!((1.0..1.25).contains(&found[0]), "{found:?}");
}

#[test]
fn it_comes_to_rest_at_one_place() {
    let residuals = line([2.1, 3.9, 6.3, 1.9, 4.2, 12.0]);
    let points: Vec<Features> = (0..6).map(|i| point("a", 100.0 * i as f64, 0.0)).collect();
    let belief = Belief { log: 0.0, spread: 1.0 };
    let runs = Runs { residuals: &residuals, kernel: &KERNEL, points: &points };
    let ends = [0.3, 1.0, 30.0].map(|start| fit(&[belief], &[start], &runs, 1e-5)[0]);
    let again = fit(&[belief], &[ends[0]], &runs, 1e-5)[0];
    assert!(ends.iter().all(|end| (end / again).ln().abs() < 1e-3), "{ends:?} and {again}");
}
