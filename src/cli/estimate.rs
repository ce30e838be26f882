//! `gptrain estimate`
use crate::estimate::*;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    selftest: bool,
}

pub fn run(_: Args) -> anyhow::Result<()> {
    let rows = rows::read(rows::SHIPPED, "shipped").unwrap();
    let t = std::time::Instant::now();
    let ship = predict::Predictor::shipped();
    println!("fit {:?} {:?} {:?}", t.elapsed(), ship.constants, ship.learned);
    let hw = |name: &'static str| {
        move |r: &rows::Row| r.setup.as_ref().is_ok_and(|s| s.hardware.name.starts_with(name))
    };
    for (name, s) in [
        ("prior", score::all(&predict::Predictor::prior(), &rows)),
        ("fit", score::all(ship, &rows)),
        ("left out", score::left_out(&rows)),
    ] {
        println!("{name}");
        let three = |r: &rows::Row| hw("a100")(r) && !r.setup.as_ref().unwrap().framework.eager();
        println!("3d {:.4?}", score::time_errors(&s, &three));
        println!("3d printed {:.4?}", score::time_errors(&s, &|r| three(r) && r.seconds_printed));
        println!("a100 {:.4?}", score::time_errors(&s, &hw("a100")));
        println!("v100 {:.4?}", score::time_errors(&s, &hw("v100")));
        println!("eager {:.4?}", score::time_errors(&s, &|r| hw("a100")(r) && !three(r)));
        println!("mem {:.4?}", score::memory_errors(&s, &hw("a100")));
        println!("mem v100{:.4?}", score::memory_errors(&s, &hw("v100")));
        println!("fits {:?}", score::fits(&s, &|_| true));
        for s in &s {
            if let (Some(f), Some(p)) = (s.row.fits, &s.prediction) {
                if f != p.fits {
                    println!(
                        "  {} fits {f} predicted {:.1} of {:.1}",
                        s.row.id,
                        p.memory.needed(),
                        p.memory.capacity
                    );
                }
            }
        }
        if name == "left out" {
            for s in &s {
                if let (Some((_, t)), Some(p)) = (s.row.timing(), &s.prediction) {
                    let e = p.seconds / t - 1.0;
                    if e.abs() > 0.06 {
                        println!(
                            "  {} {:+.3} bar {:.3} {:?}",
                            s.row.id,
                            e,
                            p.seconds_error,
                            p.time.parts.iter().map(|x| format!("{:.2}", x.1)).collect::<Vec<_>>()
                        );
                    }
                }
            }
        }
    }
    Ok(())
}
