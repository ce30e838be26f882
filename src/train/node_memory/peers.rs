//! Files of checkpoints in memory, between nodes: a rank puts the files of its part into the folder of
//! its neighbour, and reads bytes of files that another node has.
//!
//! ```text
//! client → server   length 4, request (JSON)
//! server → client   length 4, error (text; empty if the request can be served)
//! Put: client → server   the bytes;   server → client   length 4, error
//! Get: server → client   the bytes
//! ```

use anyhow::{Context, Result, bail, ensure};
use checkpoint::RemoteShards;
use checkpoint::disk::Disk;
use comm::Streams;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum bytes of a request or an error.
const LONGEST: usize = 64 << 10;

/// Bytes that are received at a time.
const BUFFER: usize = 4 << 20;

/// Request for a file of a step.
#[derive(Serialize, Deserialize)]
struct Request {
    step: u64,
    file: String,
    bytes: u64,
    what: What,
}

#[derive(Serialize, Deserialize)]
enum What {
    /// Creates or replaces the file.
    Put,
    /// Reads from this byte on.
    Get { at: u64 },
}

/// Serves the files in a folder to the other ranks.
pub fn serve(streams: &Streams, folder: PathBuf) {
    // A stream ends when the rank at its other end does.
    streams.accept(move |mut stream| while serve_request(&mut stream, &folder).is_ok() {});
}

fn serve_request(stream: &mut TcpStream, folder: &Path) -> Result<()> {
    let request: Request = serde_json::from_slice(&receive(stream)?)?;
    let name = Path::new(&request.file).file_name();
    ensure!(name.is_some_and(|name| *name == *request.file), "{:?} is not a name", request.file);
    let folder = folder.join(checkpoint::name(request.step));
    let path = folder.join(&request.file);
    match request.what {
        What::Put => {
            let disk = Disk::default();
            let temporary = path.with_extension("tmp");
            let created = fs::create_dir_all(&folder)
                .map_err(anyhow::Error::from)
                .and_then(|()| {
                    let _ = fs::remove_file(&temporary); // of a stream that broke
                    let file = disk.create(&temporary)?;
                    disk.allocate(&temporary, &file, request.bytes)?;
                    Ok(file)
                });
            let file = answer(stream, created)?;
            let stored = store(stream, &file, request.bytes)
                .with_context(|| format!("cannot write {}", temporary.display()))
                .and_then(|()| disk.rename(&temporary, &path));
            answer(stream, stored)
        }
        What::Get { at } => {
            let read = || -> Result<Vec<u8>> {
                let mut bytes = vec![0; request.bytes as usize];
                let file = File::open(&path).with_context(|| path.display().to_string())?;
                file.read_exact_at(&mut bytes, at)
                    .with_context(|| path.display().to_string())?;
                Ok(bytes)
            };
            let bytes = answer(stream, read())?;
            Ok(stream.write_all(&bytes)?)
        }
    }
}

/// Writes the next `bytes` bytes of a stream to a file.
fn store(stream: &mut TcpStream, file: &File, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; BUFFER.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let part = &mut buffer[..BUFFER.min((bytes - done) as usize)];
        stream.read_exact(part)?;
        file.write_all_at(part, done)?;
        done += part.len() as u64;
    }
    Ok(())
}

/// Sends whether something succeeded. Returns its result.
fn answer<T>(stream: &mut TcpStream, result: Result<T>) -> Result<T> {
    let error = result
        .as_ref()
        .err()
        .map_or(String::new(), |error| format!("{error:#}"));
    send(stream, error.as_bytes())?;
    result
}

fn send(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    let text = &text[..text.len().min(LONGEST)];
    stream.write_all(&[&(text.len() as u32).to_le_bytes(), text].concat())
}

fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    ensure!(length <= LONGEST, "a message of {length} bytes");
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(text)
}

/// Fails with the error that the other end reports, if it does.
fn check_answer(stream: &mut TcpStream) -> Result<()> {
    let error = receive(stream)?;
    if error.is_empty() { Ok(()) } else { bail!("{}", String::from_utf8_lossy(&error)) }
}

/// Rank of another node that keeps copies of this rank's parts.
pub struct Neighbour {
    streams: Streams,
    rank: usize,
    stream: Option<TcpStream>,
}

impl Neighbour {
    pub fn new(streams: Streams, rank: usize) -> Neighbour {
        Neighbour { streams, rank, stream: None }
    }

    /// Name in messages: "rank 5".
    pub fn describe(&self) -> String {
        format!("rank {}", self.rank)
    }

    /// Sends files of a step, in this order.
    pub fn put(&mut self, step: u64, files: &[PathBuf]) -> Result<()> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.streams.open(self.rank)?,
        };
        for path in files {
            let mut file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let request = Request { step, file: name, bytes, what: What::Put };
            send(&mut stream, &serde_json::to_vec(&request)?)?;
            check_answer(&mut stream)?;
            let sent = io::copy(&mut file, &mut stream)?;
            ensure!(sent == bytes, "{} has changed", path.display());
            check_answer(&mut stream)?;
        }
        self.stream = Some(stream);
        Ok(())
    }
}

/// Shards of a step that other nodes have.
pub struct PeerShards {
    pub streams: Streams,
    pub step: u64,
    /// Rank that serves each file.
    pub ranks: BTreeMap<String, usize>,
    /// Streams that are not in use.
    pub idle: Mutex<Vec<(usize, TcpStream)>>,
}

impl PeerShards {
    fn take_stream(&self, rank: usize) -> io::Result<TcpStream> {
        let mut idle = self.idle.lock();
        match idle.iter().position(|(of, _)| *of == rank) {
            Some(at) => Ok(idle.swap_remove(at).1),
            None => {
                drop(idle);
                self.streams.open(rank)
            }
        }
    }

    fn get(&self, stream: &mut TcpStream, file: &str, at: u64, to: &mut [u8]) -> Result<()> {
        let (step, file, bytes) = (self.step, file.to_string(), to.len() as u64);
        let request = Request { step, file, bytes, what: What::Get { at } };
        send(stream, &serde_json::to_vec(&request)?)?;
        check_answer(stream)?;
        Ok(stream.read_exact(to)?)
    }
}

impl RemoteShards for PeerShards {
    fn has(&self, file: &str) -> bool {
        self.ranks.contains_key(file)
    }

    fn read(&self, file: &str, at: u64, to: &mut [u8]) -> io::Result<()> {
        let rank = self.ranks[file];
        let mut stream = self.take_stream(rank)?;
        self.get(&mut stream, file, at, to)
            .map_err(|error| io::Error::other(format!("rank {rank}: {error:#}")))?;
        self.idle.lock().push((rank, stream));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A stream whose other end serves a folder.
    fn connected(folder: &Path) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = folder.to_path_buf();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while serve_request(&mut stream, &folder).is_ok() {}
        });
        TcpStream::connect(address).unwrap()
    }

    fn request(stream: &mut TcpStream, file: &str, bytes: u64, what: What) -> Result<()> {
        let request = Request { step: 3, file: file.into(), bytes, what };
        send(stream, &serde_json::to_vec(&request)?)?;
        check_answer(stream)
    }

    #[test]
    fn files_are_put_read_back_and_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = connected(folder.path());
        for text in ["longer than the next", "short"] {
            request(&mut stream, "a.safetensors", text.len() as u64, What::Put).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            check_answer(&mut stream).unwrap();
        }
        let stored = folder.path().join("step-00000003/a.safetensors");
        assert_eq!(fs::read_to_string(&stored).unwrap(), "short");
        request(&mut stream, "a.safetensors", 3, What::Get { at: 2 }).unwrap();
        let mut read = [0; 3];
        stream.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"ort");
        let error = request(&mut stream, "a.safetensors", 4, What::Get { at: 2 }).unwrap_err();
        assert!(error.to_string().contains("a.safetensors"), "{error}");
        // The stream has ended, as it does for a name that leaves the folder.
        let mut stream = connected(folder.path());
        assert!(request(&mut stream, "../a", 1, What::Put).is_err());
        assert!(!folder.path().join("a").exists());
    }
}
