//! Attempts to make `gptrain data` hang, lose data or end without a message.

use crate::common::binary::{Done, Lab, until, within};
use gptrain::data::indexed::{TokenType, Writer};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

/// `gptrain ARGUMENTS`, to its end.
fn gptrain(lab: &Lab, arguments: &str) -> Done {
    lab.gptrain(&arguments.split_whitespace().collect::<Vec<_>>())
}

/// A pipe that has a name.
fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Ends it by a signal, and asserts that it goes by that signal and leaves nothing.
fn dies(lab: &Lab, child: Child, signal: Signal) {
    until("the output has begun", || lab.path("x.bin.partial").exists());
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{said}");
    assert!(said.contains("interrupted; nothing of the output is kept"), "{said}");
    assert!(!lab.path("x.bin.partial").exists() && !lab.path("x.bin").exists());
}

#[test]
fn a_build_that_waits_for_its_input_ends_when_it_is_told() {
    let lab = Lab::new();
    for signal in [Signal::INT, Signal::TERM] {
        let arguments = "data build - --format lines --tokenizer bytes -o x";
        let mut command = lab.command(&arguments.split_whitespace().collect::<Vec<_>>());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let held = child.stdin.take(); // open, and nothing comes
        dies(&lab, child, signal);
        drop(held);
    }
    // A pipe without a writer: opening it waits.
    fifo(&lab.path("pipe.txt"));
    let child = lab
        .command(&["data", "build", "pipe.txt", "-t", "bytes", "-o", "x"])
        .spawn();
    dies(&lab, child.unwrap(), Signal::TERM);
}

#[test]
fn a_file_is_read_once_whatever_leads_to_it() {
    let lab = Lab::new();
    let folder = lab.path("in");
    fs::create_dir_all(folder.join("sub")).unwrap();
    fs::write(folder.join("a.txt"), "once").unwrap();
    fs::hard_link(folder.join("a.txt"), folder.join("b.txt")).unwrap();
    symlink(".", folder.join("loop")).unwrap();
    symlink("..", folder.join("sub/up")).unwrap();
    fifo(&lab.path("in/pipe.txt"));
    let built = gptrain(&lab, "data build in in/a.txt -t bytes -o x");
    let says = [
        "in/b.txt is the same as in/a.txt: read once",
        "in/loop leads back to in: not followed",
        "and 2 more like these",
    ];
    built.expect(0, &says);
    assert!(built.out.contains("x: 1 document, 4 tokens"), "{}", built.out);
    gptrain(&lab, "data build in/pipe.txt/ -t bytes -o y").expect(1, &["Not a directory"]);
    fs::remove_file(folder.join("a.txt")).unwrap();
    fs::remove_file(folder.join("b.txt")).unwrap();
    let nothing = gptrain(&lab, "data build in -t bytes -o y");
    nothing.expect(2, &["nothing is left to read", "in/pipe.txt is not a file: left out"]);
}

#[test]
fn outputs_are_neither_overwritten_nor_half_written_nor_hidden() {
    let lab = Lab::new();
    fs::write(lab.path("t.txt"), "some text, some text").unwrap();
    fs::create_dir(lab.path("folder")).unwrap();
    for output in ["folder/", "folder/x/"] {
        for command in ["data build t.txt -t bytes", "data train-tokenizer t.txt --vocab 260"] {
            let done = gptrain(&lab, &format!("{command} -o {output}"));
            done.expect(2, &[&format!("{output}: names a folder")]);
        }
    }
    assert_eq!(fs::read_dir(lab.path("folder")).unwrap().count(), 0);

    fs::write(lab.path("tok.json"), "of worth").unwrap();
    let train = "data train-tokenizer t.txt --vocab 260 -o tok.json";
    gptrain(&lab, train).expect(2, &["tok.json exists", "choose another output"]);
    let shell = "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"";
    let sets: Vec<&str> = train.split_whitespace().chain(["--overwrite"]).collect();
    let full = within(&["sh", "-c", shell], &lab.command(&sets))
        .output()
        .unwrap();
    Done::of(full).expect(1, &["cannot write tok.json", "File too large"]);
    assert_eq!(fs::read(lab.path("tok.json")).unwrap(), b"of worth");
    assert!(!lab.path("tok.json.partial").exists());
    gptrain(&lab, &format!("{train} --overwrite")).well();
    assert!(
        fs::read_to_string(lab.path("tok.json"))
            .unwrap()
            .contains("\"merges\"")
    );

    // A link at the partial file's name is not written through.
    symlink(lab.path("t.txt"), lab.path("x.bin.partial")).unwrap();
    gptrain(&lab, "data build t.txt -t bytes -o x").expect(1, &["x.bin.partial"]);
    assert_eq!(fs::read(lab.path("t.txt")).unwrap(), b"some text, some text");
}

#[test]
fn a_line_that_is_too_long_can_be_left_out() {
    let lab = Lab::new();
    let text = [&b"one\n"[..], &vec![b'a'; 258 << 20], b"\ntwo\n"].concat();
    fs::write(lab.path("long.txt"), text).unwrap();
    let command = "data build long.txt --format lines -t bytes -o x";
    gptrain(&lab, command).expect(2, &["long.txt:2: a line of more than 256.0 MiB"]);
    let done = gptrain(&lab, &format!("{command} --skip-invalid"));
    done.well();
    assert!(done.out.contains("x: 2 documents, 6 tokens"), "{}", done.out);
    assert!(done.out.contains("1 line could not be read"), "{}", done.out);
}

#[test]
fn a_long_run_of_one_letter_is_learned_in_its_length() {
    let lab = Lab::new();
    // Quadratic work would be 10^12 moves of an id: the test's own time limit is the assertion.
    fs::write(lab.path("a.txt"), "a".repeat(4_000_000)).unwrap();
    let done = gptrain(&lab, "data train-tokenizer a.txt --vocab 277 -o tok.json");
    done.well();
    assert!(done.out.contains("277 ids learned"), "{}", done.out);
}

#[test]
fn a_datasets_text_cannot_drive_the_terminal() {
    let lab = Lab::new();
    fs::write(lab.path("t.txt"), "red \x1b[31m and title \x1b]0;owned\x07 end").unwrap();
    gptrain(&lab, "data build t.txt -t bytes -o x").well();
    let shown = [
        gptrain(&lab, "data inspect x -t bytes"),
        gptrain(&lab, "data samples x -t bytes --seq-len 30 --split 1,0,0"),
    ];
    for done in shown {
        done.well();
        assert!(done.out.contains("red \\u{1b}[31m and title"), "{}", done.out);
        assert!(!done.out.contains('\x1b'), "{}", done.out);
    }
    let done = lab.gptrain(&["manifest", "check", "run.yaml", "--set", "a\x1b[31mb=1"]);
    assert!(
        done.expect(2, &["a\\u{1b}[31mb"])
            .err
            .find('\x1b')
            .is_none(),
        "{}",
        done.err
    );
    let deep = format!("{}=1", ["a"; 60_000].join("."));
    lab.gptrain(&["manifest", "check", "run.yaml", "--set", &deep])
        .expect(2, &["is not a key"]);
}

#[test]
fn what_cannot_be_is_said_and_not_panicked_over() {
    let lab = Lab::new();
    fs::write(lab.path("t.txt"), "text").unwrap();
    let threads = "data build t.txt -t bytes -o x --threads 5000";
    gptrain(&lab, threads).expect(2, &["--threads", "from 1 to 1024"]);

    let most = ["data", "samples", "--seq-len", "16"]
        .into_iter()
        .chain(vec!["corpus"; 32_767]);
    let done = lab.gptrain(&most.collect::<Vec<_>>());
    done.expect(2, &["32767 datasets; a mixture has at most 32766"]);

    let mut small = Writer::create(&lab.path("small"), TokenType::U16).unwrap();
    small.sequence(&[1, 2, 3]).unwrap();
    small.end_document();
    small.finish().unwrap();
    let done = gptrain(&lab, "data samples small --split 1,0,0 --seq-len 8");
    done.expect(2, &["has fewer than 9 tokens: not one sample", "--samples N repeats it"]);
    gptrain(&lab, "data samples small --split 1,0,0 --seq-len 8 --samples 2").well();

    let mut wide = Writer::create(&lab.path("wide"), TokenType::I64).unwrap();
    wide.sequence(&[7; 40]).unwrap();
    wide.end_document();
    wide.finish().unwrap();
    let path = lab.path("wide.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] = 1; // byte 4 of an id: 2^32 more
    fs::write(&path, bytes).unwrap();
    let done = gptrain(&lab, "data samples wide --split 1,0,0 --seq-len 8");
    done.expect(2, &["holds a token id beyond 31 bits", "build it again"]);
}
