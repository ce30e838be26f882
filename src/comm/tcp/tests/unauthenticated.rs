//! Peers without the job's key at a rank's port: none is accepted, and none disturbs the ranks.

use super::{free_address, joins, joins_within, run};
use crate::tcp::handshake::{AuthError, Handshakes, Key, accept, accept_all, authenticate};
use crate::tcp::{connect, control, frames};
use crate::tests::exercise::check_ops;
use base::testing::{at_any_load, until};
use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Connects as soon as the address listens.
fn connect_soon(address: &str) -> TcpStream {
    let found = OnceCell::new();
    until(&format!("{address} listens"), || {
        connect(address).is_ok_and(|stream| found.set(stream).is_ok())
    });
    found.into_inner().expect("it listens")
}

/// Sends noise, an endless handshake, silence, and a guessed key.
fn send_garbage(address: &str) -> Vec<TcpStream> {
    let mut noise = connect_soon(address);
    let _ = noise.write_all(&[0x5a; 10_000]);
    let mut endless = connect_soon(address);
    let _ = endless.write_all(&[0xff; 34]);
    let mut http = connect_soon(address);
    let _ = http.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    let guess =
        authenticate(&mut connect_soon(address), &Key::new(b"guess", "test 1"), "join", b"{}");
    assert!(matches!(guess, Err(AuthError::WrongKey)), "{guess:?}");
    drop(connect_soon(address));
    let silent = (0..20).map(|_| connect_soon(address));
    silent.chain([noise, endless, http]).collect()
}

#[test]
fn unauthenticated_peers_do_not_disturb_the_ranks() {
    let joins = joins(3);
    let address = joins[0].address.clone();
    let ends = std::thread::scope(|scope| {
        let first = scope.spawn(|| send_garbage(&address));
        let ends = run(joins, |world| {
            check_ops(&world, &[7]);
            if world.rank() == 1 {
                send_garbage(&address);
            }
            check_ops(&world, &[7]);
        });
        first.join().unwrap();
        ends
    });
    assert_eq!(ends, vec![Ok(()); 3]);
}

/// Silent connections, however many, do not delay a rank.
#[test]
fn silent_peers_make_way_for_a_rank() {
    let key = Key::new(b"secret", "job");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let theirs = key.clone();
    let all = Arc::new(Handshakes::default());
    let (joined, arrived) = std::sync::mpsc::channel();
    let handshakes = all.clone();
    std::thread::spawn(move || {
        accept_all(
            &server,
            &theirs,
            "join",
            2,
            &handshakes,
            || false,
            move |body, _| drop(joined.send(body)),
        );
    });
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(&*address).unwrap()).collect();
    let mut rank = connect(&*address).unwrap();
    authenticate(&mut rank, &key, "join", b"rank 1").unwrap();
    assert_eq!(arrived.recv().unwrap(), b"rank 1");
    // The first connections were closed before their five seconds ended.
    silent[0].read_to_end(&mut Vec::new()).ok();
    assert!(all.unauthenticated_connections() > 0);
}

#[test]
fn another_program_is_told_from_another_job() {
    at_any_load(Duration::from_millis(300), another_program_is_told);
}

fn another_program_is_told(limit: Duration) {
    let join = joins_within(limit, 2).remove(1);
    let listener = TcpListener::bind(&join.address).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&[b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n".as_slice(); 3].concat());
        }
    });
    let line = run(vec![join], |_| ())[0].clone().unwrap_err();
    assert!(line.contains("another program answers: it sends \"SSH-2.0-OpenSSH_\""), "{line}");
}

/// A recorded handshake that is sent again is rejected.
#[test]
fn a_replayed_handshake_is_rejected() {
    let key = Key::new(b"secret", "job");
    let server = TcpListener::bind(free_address()).unwrap();
    let address = server.local_addr().unwrap();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = between.local_addr().unwrap();
    let heard = std::thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let (one, _) = server.accept().unwrap();
            let first = accept(&one, &key, "join").map_err(|why| why.to_string());
            let (two, _) = server.accept().unwrap();
            (first, accept(&two, &key, "join"))
        });
        let client =
            scope.spawn(|| authenticate(&mut connect(meeting).unwrap(), &key, "join", b"me"));
        let recorded = relay(between.accept().unwrap().0, TcpStream::connect(address).unwrap());
        assert!(client.join().unwrap().is_ok(), "the client is authenticated through the relay");
        let mut again = TcpStream::connect(address).unwrap();
        again.write_all(&recorded).unwrap();
        listening.join().unwrap()
    });
    assert_eq!(heard.0, Ok(b"me".to_vec()));
    assert!(matches!(heard.1, Err(AuthError::WrongKey)), "{:?}", heard.1);
}

/// Relays a handshake. Returns the client's bytes.
fn relay(mut client: TcpStream, mut server: TcpStream) -> Vec<u8> {
    let pass = |from: &mut TcpStream, to: &mut TcpStream, length: usize| {
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes).unwrap();
        to.write_all(&bytes).unwrap();
        bytes
    };
    pass(&mut server, &mut client, 48);
    let said = pass(&mut client, &mut server, 32 + 2 + 2 + 32);
    pass(&mut server, &mut client, 32);
    said
}

#[test]
fn a_slow_peer_is_dropped_before_it_is_through() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let key = Key::new(b"secret", "job");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut slow = TcpStream::connect(address).unwrap();
            // This handshake would take half a minute, and then fail with a wrong key.
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let (stream, _) = server.accept().unwrap();
        assert!(matches!(accept(&stream, &key, "join"), Err(AuthError::Io(_))));
    });
}

/// Impossible lengths are rejected before memory is allocated.
#[test]
fn damaged_frames_and_messages_are_rejected() {
    let send = |bytes: Vec<u8>| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        to.write_all(&bytes).unwrap();
        listener.accept().unwrap().0
    };
    assert!(control::read(&mut send(vec![0xff; 100])).is_err());
    assert!(control::read(&mut send(b"\x05\0\0\0hello".to_vec())).is_err());
    let header = |at: usize, value: u8| {
        let mut header = vec![0; 40];
        header[at] = value;
        header
    };
    let read = |bytes| frames::read(&mut send(bytes), &Default::default());
    for damaged in [header(31, 1), header(27, 1), header(32, 9), header(33, 9), vec![0; 39]] {
        assert!(read(damaged.clone()).is_err(), "{damaged:?}");
    }
    assert!(read(header(0, 0)).unwrap().is_some(), "an empty frame is valid");
    assert!(read(header(32, 255)).unwrap().is_none(), "a goodbye");
}
