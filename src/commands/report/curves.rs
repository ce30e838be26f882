//! Charts of a run's record: their curves, smoothing and thinning.

use base::svg::{COLOURS, Chart, Curve, Scale, Stroke};
use train::report::metrics::{EvalRow, Metrics, TaskRow};
use train::report::numbers::StepRow;

/// Maximum number of points on a chart, which is a thousand pixels wide.
const MOST_POINTS: usize = 1200;

/// Loss chart: every step, the moving average, and each validation set.
pub fn loss(metrics: &Metrics, title: &str, scale: Scale) -> Chart {
    let raw = points(metrics, |row| row.lm_loss);
    let window = smoothing_window(raw.len());
    let mut curves = vec![Curve {
        name: "training loss".into(),
        stroke: Stroke::Faint,
        colour: 0,
        points: thin(&raw),
    }];
    if window > 1 {
        curves.push(Curve {
            name: format!("smoothed over {window} steps"),
            stroke: Stroke::Line,
            colour: 0,
            points: thin(&smooth(&raw, window)),
        });
    } else {
        curves[0].stroke = Stroke::Line;
    }
    for (i, set) in valid_sets(metrics).iter().enumerate() {
        curves.push(Curve {
            name: format!("validation: {set}"),
            stroke: Stroke::Dots,
            colour: 1 + i % (COLOURS - 1), // 0 is the training loss
            points: valid_losses(metrics, set, XAxis::Step),
        });
    }
    chart(metrics, title, 960.0, 460.0, scale, curves)
}

/// Loss chart without the first tenth of the run. None for a run that is too short.
pub fn late_loss(metrics: &Metrics, scale: Scale) -> Option<Chart> {
    let chart = without_first_tenth(loss(metrics, "", scale), metrics)?;
    Some(Chart { height: 240.0, legend: false, ..chart })
}

/// A small chart over steps without the first tenth of a run, whose steep fall would flatten the rest.
/// None for a run that is too short.
pub fn without_first_tenth(mut chart: Chart, metrics: &Metrics) -> Option<Chart> {
    if metrics.steps.len() < 30 {
        return None;
    }
    let start = metrics.steps.first()?.step as f64;
    let end = metrics.steps.last()?.step as f64;
    let first = (start + (end - start) * 0.1).ceil();
    for curve in &mut chart.curves {
        curve.points.retain(|(step, _)| *step >= first);
    }
    Some(Chart { width: 560.0, height: 260.0, first, ..chart })
}

/// Quantity of a horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XAxis {
    Step,
    Tokens,
}

impl XAxis {
    pub fn value(self, row: &StepRow) -> f64 {
        match self {
            XAxis::Step => row.step as f64,
            XAxis::Tokens => row.tokens as f64,
        }
    }
}

/// Quantity of several runs, smoothed, one colour each. A loss chart (`wide`) also has the runs' names,
/// and the first validation set as dots.
pub fn overlay(
    runs: &[(&str, &Metrics)],
    axis: XAxis,
    scale: Scale,
    wide: bool,
    value: impl Fn(&StepRow) -> f64,
) -> Chart {
    let mut curves = Vec::new();
    for (run, (label, metrics)) in runs.iter().enumerate() {
        let raw: Vec<_> = metrics
            .steps
            .iter()
            .map(|row| (axis.value(row), value(row)))
            .collect();
        let line = thin(&smooth(&raw, smoothing_window(raw.len())));
        let colour = run % COLOURS;
        curves.push(Curve { name: label.to_string(), stroke: Stroke::Line, colour, points: line });
        if let Some(set) = valid_sets(metrics).first().filter(|_| wide) {
            let points = valid_losses(metrics, set, axis);
            curves.push(Curve { name: String::new(), stroke: Stroke::Dots, colour, points });
        }
    }
    let names = match axis {
        XAxis::Step => ["step", ""],
        XAxis::Tokens => ["tokens", ""],
    };
    let (width, height) = if wide { (960.0, 460.0) } else { (560.0, 260.0) };
    let title = String::new();
    let second = Vec::new();
    let first = 0.0;
    let log = false;
    let legend = true;
    Chart { title, width, height, names, first, log, scale, legend, curves, second }
}

/// Losses on a validation set over steps or tokens.
pub fn valid_losses(metrics: &Metrics, set: &str, axis: XAxis) -> Vec<(f64, f64)> {
    let sample = |row: &StepRow| row.tokens as f64 / row.consumed_samples as f64;
    let tokens = metrics.steps.last().map_or(f64::NAN, sample);
    let rows = metrics.evals.iter().filter(|row| row.eval == set);
    let place = |row: &EvalRow| match axis {
        XAxis::Step => row.step as f64,
        XAxis::Tokens => (row.consumed_samples as f64 * tokens).round(),
    };
    rows.map(|row| (place(row), row.lm_loss)).collect()
}

/// Quantity of every step, with a moving average if it is noisy.
pub fn small(
    metrics: &Metrics,
    stroke: Stroke,
    scale: Scale,
    value: impl Fn(&StepRow) -> f64,
) -> Chart {
    let raw = points(metrics, value);
    let window = smoothing_window(raw.len());
    let curve = |stroke, points| Curve { name: String::new(), stroke, colour: 0, points };
    let curves = match stroke {
        Stroke::Faint if window > 1 => {
            vec![curve(Stroke::Faint, thin(&raw)), curve(Stroke::Line, thin(&smooth(&raw, window)))]
        }
        Stroke::Faint => vec![curve(Stroke::Line, raw)],
        // Thinning keeps a staircase's extremes but may move its edges by a pixel.
        stroke => vec![curve(stroke, thin(&raw))],
    };
    chart(metrics, "", 560.0, 240.0, scale, curves)
}

/// Names of the validation sets, in the order first evaluated.
pub fn valid_sets(metrics: &Metrics) -> Vec<&str> {
    distinct(metrics.evals.iter().map(|row| row.eval.as_str()))
}

/// Names of the tasks, in the order first evaluated.
pub fn task_names(metrics: &Metrics) -> Vec<&str> {
    distinct(metrics.tasks.iter().map(|row| row.task.as_str()))
}

fn distinct<'m>(names: impl Iterator<Item = &'m str>) -> Vec<&'m str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// Accuracy on each task, normalised by length; None without tasks.
pub fn tasks(metrics: &Metrics) -> Option<Chart> {
    let names = task_names(metrics);
    let curves: Vec<Curve> = names
        .iter()
        .enumerate()
        .map(|(i, name)| Curve {
            name: name.to_string(),
            stroke: Stroke::Dots,
            colour: i % COLOURS,
            points: task_rows(metrics, name)
                .filter_map(|row| Some((row.step as f64, row.accuracy.acc_norm?)))
                .collect(),
        })
        .collect();
    (!names.is_empty()).then(|| chart(metrics, "", 560.0, 240.0, Scale::FromZero, curves))
}

pub fn task_rows<'m>(metrics: &'m Metrics, task: &str) -> impl Iterator<Item = &'m TaskRow> {
    metrics.tasks.iter().filter(move |row| row.task == task)
}

/// Whether a quantity has more than one value.
pub fn varies(metrics: &Metrics, value: impl Fn(&StepRow) -> f64) -> bool {
    let mut values = metrics
        .steps
        .iter()
        .map(value)
        .filter(|value| value.is_finite());
    let first = values.next();
    values.any(|value| Some(value) != first)
}

/// Scale: logarithmic if the values are positive and span more than a factor of 30, else linear.
pub fn fitting_scale(metrics: &Metrics, value: impl Fn(&StepRow) -> f64) -> Scale {
    let values = || metrics.steps.iter().map(&value).filter(|v| v.is_finite());
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max);
    if low > 0.0 && high > 30.0 * low { Scale::Log } else { Scale::FromZero }
}

fn chart(
    metrics: &Metrics,
    title: &str,
    width: f64,
    height: f64,
    scale: Scale,
    curves: Vec<Curve>,
) -> Chart {
    let tokens = points(metrics, |row| row.tokens as f64);
    let every = tokens.len().div_ceil(MOST_POINTS).max(1);
    let mut known: Vec<_> = tokens.iter().copied().step_by(every).collect();
    known.extend(tokens.last());
    let title = title.into();
    let names = ["step", "tokens"];
    let first = 0.0;
    let log = false;
    let legend = true;
    Chart { title, width, height, names, first, log, scale, legend, curves, second: known }
}

fn points(metrics: &Metrics, value: impl Fn(&StepRow) -> f64) -> Vec<(f64, f64)> {
    metrics
        .steps
        .iter()
        .map(|row| (row.step as f64, value(row)))
        .collect()
}

/// Width of the moving average in steps: 2 % of the run, odd; 1 for a short run.
fn smoothing_window(steps: usize) -> usize {
    if steps < 30 { 1 } else { (steps / 50).max(5) | 1 }
}

/// Weighted mean of the `window` values around each point, a mean of means. Ignores non-finite values.
pub fn smooth(points: &[(f64, f64)], window: usize) -> Vec<(f64, f64)> {
    mean_around(&mean_around(points, window / 4), window.div_ceil(4))
}

/// Mean of each value and up to `reach` values on either side, the same number on both, so that the
/// steep start of a run is not shifted.
fn mean_around(points: &[(f64, f64)], reach: usize) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0)];
    for (_, y) in points {
        let (sum, count) = sums[sums.len() - 1];
        sums.push(if y.is_finite() { (sum + y, count + 1.0) } else { (sum, count) });
    }
    (0..points.len())
        .map(|i| {
            let left = reach.min(i);
            let right = left.min(points.len() - 1 - i);
            let after = sums[i + right + 1];
            let before = sums[i - left];
            (points[i].0, (after.0 - before.0) / (after.1 - before.1))
        })
        .collect()
}

/// Lowest and highest of each group of neighbours, so that a spike remains visible, and both ends.
pub fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let mut kept = vec![points[0]];
    for bucket in points[1..points.len() - 1].chunks(points.len().div_ceil(MOST_POINTS / 2)) {
        let order = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = bucket.iter().min_by(order);
        let high = bucket.iter().max_by(order);
        let (Some(low), Some(high)) = (low, high) else { continue };
        kept.push(if low.0 < high.0 { *low } else { *high });
        if low.0 != high.0 {
            kept.push(if low.0 < high.0 { *high } else { *low });
        }
    }
    kept.push(points[points.len() - 1]);
    kept
}

#[cfg(test)]
mod tests {
    use super::{smooth, thin};

    #[test]
    fn smoothing_keeps_the_start_and_thinning_the_spikes() {
        let noisy: Vec<_> = (0..10_000).map(|i| (i as f64, (i % 2) as f64)).collect();
        let smooth = smooth(&noisy, 101);
        assert_eq!((smooth.len(), smooth[0]), (10_000, (0.0, 0.0)));
        assert!(smooth[200..].iter().all(|(_, y)| (y - 0.5).abs() < 0.02));

        let mut spike: Vec<_> = (0..10_000).map(|i| (i as f64, 1.0)).collect();
        spike[7777].1 = 50.0;
        let thin = thin(&spike);
        assert!(thin.len() <= 1202 && thin.contains(&(7777.0, 50.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0), "ascending");
        assert_eq!((thin[0].0, thin[thin.len() - 1].0), (0.0, 9999.0));
    }
}
