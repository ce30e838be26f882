//! The page that Prometheus reads: `GET /metrics`, in its text format, version 0.0.4. One request at
//! a time; whatever is asked for, this is the answer.

use super::state::Status;
use anyhow::Result;
use base::{Problems, unix_time};
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long one who asks may take.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Page {
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Listens from now on; the user's mistake if nobody can, there.
    pub fn open(host: &str, port: u16, status: Arc<Mutex<Status>>) -> Result<Page> {
        let listener = TcpListener::bind((host, port)).map_err(|error| {
            let what = format!("cannot listen on {host}:{port}: {error}");
            Problems::one("log.metrics_port", what, "take another port, or none")
        })?;
        listener.set_nonblocking(true)?;
        let closed = Arc::<AtomicBool>::default();
        let ends = closed.clone();
        let serve = move || {
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    // Who asks and goes away is no matter.
                    Ok((stream, _)) => drop(answer(stream, &status)),
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = base::threads::spawn("metrics", serve)?;
        Ok(Page { closed, thread: Some(thread) })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn answer(mut stream: TcpStream, status: &Mutex<Status>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let _ = stream.read(&mut [0; 4096])?; // the request, which does not matter
    let now = Status { updated: unix_time().as_secs_f64(), ..status.lock().clone() };
    let page = page(&now);
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    )
}

/// Every number, with what it is.
fn page(status: &Status) -> String {
    let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let rows = [
        ("step", "Optimizer steps taken", status.step as f64),
        ("steps", "Optimizer steps of the whole run", status.total_steps as f64),
        ("tokens", "Tokens consumed", status.tokens as f64),
        ("lm_loss", "Loss of the last step, in nats", known(status.lm_loss)),
        ("grad_norm", "Gradient norm of the last step", known(status.grad_norm)),
        ("learning_rate", "Learning rate of the last step", status.lr),
        ("tokens_per_second", "Of the last step", status.tokens_per_s),
        ("seconds_left", "Expected to the end of the run", known(status.left_s)),
        ("goodput_ratio", "Time in steps that count, of all", status.goodput()),
        ("skipped_steps", "Steps that updated nothing", status.skipped_steps as f64),
        ("warnings", "Warnings kept", status.warnings.len() as f64),
    ];
    let mut text = String::new();
    let run = status.name.replace('\\', "\\\\").replace('"', "\\\"");
    for (name, help, value) in rows {
        let value = if value.is_nan() { "NaN".to_string() } else { value.to_string() };
        let _ = writeln!(
            text,
            "# HELP gptrain_{name} {help}\n# TYPE gptrain_{name} gauge\n\
             gptrain_{name}{{run=\"{run}\"}} {value}"
        );
    }
    text
}
