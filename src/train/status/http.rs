//! Page for Prometheus: `GET /metrics`, in its text format, version 0.0.4. Every request receives this
//! page. A connection without a request delays no other.

use super::state::Status;
use anyhow::{Context, Result};
use base::unix_time;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Poll interval of the connections.
const POLL: Duration = Duration::from_millis(50);

/// Maximum number of connections without a request; beyond it, the oldest is closed.
const SILENT: usize = 64;

pub struct Page {
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Starts to listen.
    pub fn open(host: &str, port: u16, status: Arc<Mutex<Status>>) -> Result<Page> {
        let failed = || format!("log.metrics_port: cannot listen on {host}:{port}");
        let listener = TcpListener::bind((host, port)).with_context(failed)?;
        listener.set_nonblocking(true)?;
        let closed = Arc::<AtomicBool>::default();
        let ends = closed.clone();
        let serve = move || {
            let mut silent = VecDeque::new();
            while !ends.load(Ordering::Relaxed) {
                while let Ok((stream, _)) = listener.accept() {
                    if stream.set_nonblocking(true).is_ok() {
                        silent.push_back((stream, Instant::now()));
                    }
                    if silent.len() > SILENT {
                        silent.retain_mut(|(stream, _)| !has_asked(stream, &status));
                        silent.drain(..silent.len().saturating_sub(SILENT));
                    }
                }
                silent.retain_mut(|(stream, since)| {
                    !has_asked(stream, &status) && since.elapsed() < PATIENCE
                });
                std::thread::sleep(POLL);
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

/// Whether a connection has sent a request, which is answered, or has closed.
fn has_asked(stream: &mut TcpStream, status: &Mutex<Status>) -> bool {
    match stream.read(&mut [0; 4096]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Ok(bytes) if bytes > 0 => {
            answer(stream, status).ok(); // a page fits the buffers of any connection
            true
        }
        _ => true,
    }
}

fn answer(stream: &mut TcpStream, status: &Mutex<Status>) -> std::io::Result<()> {
    let now = Status { updated: unix_time().as_secs_f64(), ..status.lock().clone() };
    let page = page(&now);
    let text = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    );
    stream.write_all(text.as_bytes())
}

/// Text of all metrics, with their descriptions.
fn page(status: &Status) -> String {
    let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
    #[rustfmt::skip]
    let rows = [
        ("step", "counter", "Optimizer steps taken", status.step as f64),
        ("steps", "gauge", "Optimizer steps of the whole run", status.total_steps as f64),
        ("tokens", "counter", "Tokens consumed", status.tokens as f64),
        ("lm_loss", "gauge", "Loss of the last step, in nats", known(status.lm_loss)),
        ("grad_norm", "gauge", "Gradient norm of the last step", known(status.grad_norm)),
        ("learning_rate", "gauge", "Learning rate of the last step", status.lr),
        ("tokens_per_second", "gauge", "Of the last step", status.tokens_per_s),
        ("seconds_left", "gauge", "Expected to the end of the run", known(status.left_s)),
        ("goodput_ratio", "gauge", "Share of running time in steps that count", status.goodput()),
        ("skipped_steps", "counter", "Steps without an update", status.skipped_steps as f64),
        ("warnings", "gauge", "Warnings kept", status.warnings.len() as f64),
    ];
    let mut text = String::new();
    let run = status.name.replace('\\', "\\\\").replace('"', "\\\"");
    for (name, kind, help, value) in rows {
        let value = if value.is_nan() { "NaN".to_string() } else { value.to_string() };
        let _ = writeln!(
            text,
            "# HELP gptrain_{name} {help}\n# TYPE gptrain_{name} {kind}\n\
             gptrain_{name}{{run=\"{run}\"}} {value}"
        );
    }
    text
}
