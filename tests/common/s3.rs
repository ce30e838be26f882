//! Third-party S3 server (moto, from PyPI; `make s3-server`), and a proxy in front of it that simulates
//! faults of networks and stores.

use super::binary::until;
use gptrain::checkpoint::place::Settings;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bucket that is there.
pub const BUCKET: &str = "gptrain";

pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    /// None where there is no server to start, which a line says. Where `GPTRAIN_TEST_S3` is set, as it
    /// is in CI, there must be one.
    pub fn start() -> Option<Server> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".toolchain/s3.venv/bin/moto_server");
        let program = if own.exists() { own } else { "moto_server".into() };
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let started = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(fs::File::create(&said).unwrap())
            .stderr(fs::File::options().append(true).open(&said).unwrap())
            .spawn();
        let Ok(child) = started else {
            assert!(std::env::var_os("GPTRAIN_TEST_S3").is_none(), "no S3 server");
            eprintln!("not tested: there is no S3 server (`make s3-server`)");
            return None;
        };
        let mut server = Server { child, port: 0 };
        let port = || {
            let text = fs::read_to_string(&said).unwrap();
            let after = text.split_once("Running on http://127.0.0.1:")?.1;
            after.lines().next()?.trim().parse().ok()
        };
        until("the S3 server listens", || port().is_some());
        server.port = port().unwrap();
        assert_eq!(server.ask("PUT", BUCKET, b"").0, 200);
        Some(server)
    }

    /// A request without a signature, which this server does not ask for: status and body.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!(
            "{method} /{path} HTTP/1.1\r\nHost: localhost\r\nx-amz-acl: public-read-write\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let head = head_bytes(&answer).unwrap();
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer[head..].to_vec())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Environment of a user of the server, or of a proxy, at a port.
pub fn settings(port: u16) -> Settings {
    let all = [
        ("AWS_ACCESS_KEY_ID", "an-id".to_string()),
        ("AWS_SECRET_ACCESS_KEY", "a-secret-word".to_string()),
        ("AWS_REGION", "us-east-1".to_string()),
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
    ];
    all.into_iter()
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

/// Handling of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The connection is cut before the store has heard of it.
    Refused,
    /// The store answers 500.
    Fails,
    /// The store does it, and the connection is cut before its answer.
    Unanswered,
    /// Half of the answer comes.
    Half,
    /// The store gets another byte.
    WrongQuestion,
    /// Another byte comes back.
    WrongAnswer,
    /// The ETag is another.
    WrongTag,
    /// The store answers that it holds it, and keeps nothing.
    Forgotten,
}

impl Fault {
    /// Whether what is read may be another thing, so that it is refused at once.
    pub fn damages(self) -> bool {
        matches!(self, Fault::WrongQuestion | Fault::WrongAnswer | Fault::WrongTag)
    }
}

pub const FAULTS: [Fault; 7] = [
    Fault::Refused,
    Fault::Fails,
    Fault::Unanswered,
    Fault::Half,
    Fault::WrongQuestion,
    Fault::WrongAnswer,
    Fault::WrongTag,
];

/// Decides by the number of a request, from 0, and its first line.
type Decide = dyn Fn(usize, &str) -> Fault + Send + Sync;

/// Passes requests on to a server, one of each connection.
pub struct Proxy {
    pub port: u16,
    asked: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn before(
        server: &Server,
        decide: impl Fn(usize, &str) -> Fault + Send + Sync + 'static,
    ) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
        let (number, decide, behind): (_, Arc<Decide>, _) =
            (asked.clone(), Arc::new(decide), server.port);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (number, decide) = (number.clone(), decide.clone());
                // Who goes away in the middle of a request is what is tested.
                std::thread::spawn(move || drop(pass(stream, behind, &number, &*decide)));
            }
        });
        Proxy { port, asked }
    }

    /// Requests so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn pass(
    mut from: TcpStream,
    to: u16,
    number: &AtomicUsize,
    decide: &Decide,
) -> std::io::Result<()> {
    let mut question = Vec::new();
    let head = loop {
        if read_more(&mut from, &mut question)? == 0 {
            return Ok(()); // a connection that was not used
        }
        if let Some(head) = head_bytes(&question) {
            break head;
        }
    };
    let text = String::from_utf8_lossy(&question[..head]).into_owned();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    while question.len() < head + length.unwrap_or(0) && read_more(&mut from, &mut question)? > 0 {}
    let line = text.lines().next().unwrap_or_default();
    let fault = decide(number.fetch_add(1, Ordering::SeqCst), line);
    match fault {
        Fault::Refused => return Ok(()),
        Fault::Fails => {
            let body = "<Error><Code>InternalError</Code><Message>We failed.</Message></Error>";
            let head = "HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length:";
            return from.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes());
        }
        Fault::WrongQuestion if question.len() > head => {
            let middle = head + (question.len() - head) / 2;
            question[middle] ^= 1;
        }
        _ => {}
    }
    let mut server = TcpStream::connect(("127.0.0.1", to))?;
    server.write_all(&closing(&question))?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let head = head_bytes(&answer).unwrap_or(answer.len());
    match fault {
        Fault::Unanswered => return Ok(()),
        Fault::Half => answer.truncate(answer.len() / 2),
        Fault::WrongAnswer if answer.len() > head => {
            let middle = head + (answer.len() - head) / 2;
            answer[middle] ^= 1;
            return answered(from, &answer);
        }
        Fault::WrongTag => {
            let lower = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
            if let Some(at) = lower.find("etag: \"") {
                answer[at + 7] = if answer[at + 7] == b'0' { b'1' } else { b'0' };
            }
        }
        Fault::Forgotten => {
            let path = line.split([' ', '?']).nth(1).unwrap_or_default();
            let mut server = TcpStream::connect(("127.0.0.1", to))?;
            let head = "Host: localhost\r\nConnection: close\r\n\r\n";
            server.write_all(format!("DELETE {path} HTTP/1.1\r\n{head}").as_bytes())?;
            server.read_to_end(&mut Vec::new())?;
        }
        _ => {}
    }
    answered(from, &answer)
}

fn answered(mut from: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    from.write_all(&closing(answer))?;
    from.shutdown(Shutdown::Write)
}

fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut buffer = [0; 1 << 16];
    let read = stream.read(&mut buffer)?;
    bytes.extend_from_slice(&buffer[..read]);
    Ok(read)
}

/// Bytes of a message before its body, once they are all there.
fn head_bytes(message: &[u8]) -> Option<usize> {
    message
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .map(|at| at + 4)
}

/// A message after which the connection is closed.
fn closing(message: &[u8]) -> Vec<u8> {
    let first = message
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    [&message[..first], b"Connection: close\r\n", &message[first..]].concat()
}
