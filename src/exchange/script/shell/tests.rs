//! Scripts whose commands follow from their text.

use super::{Command, Shell};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn shell(text: &str) -> Shell {
    let set = BTreeMap::from([("SLURM_NNODES".to_string(), "6".to_string())]);
    let mut shell = Shell::new("train.sh".into(), PathBuf::from("/nowhere"), set);
    shell
        .read(text)
        .unwrap_or_else(|problems| panic!("{text}: {problems}"));
    shell
}

/// Words of the last command.
fn last(text: &str) -> Vec<String> {
    shell(text)
        .commands
        .pop()
        .map_or(Vec::new(), |command| command.words)
}

#[test]
fn words_are_those_of_bash() {
    for (text, wanted) in [
        ("A=\" --x 1 \\\n --y $B\"\nB=2\nrun $A $B", "run|--x|1|--y|${B}|2"),
        ("A='1 2'\nrun \"$A\" $A '$A' \"\\$A\" a\\ b", "run|1 2|1|2|$A|$A|a b"),
        ("A=(a 'b c' # one\n  d)\nA+=(e)\nrun \"${A[@]}\" ${#A[@]}", "run|a|b c|d|e|4"),
        ("A=(a 'b c')\nrun ${A[@]} x${A}", "run|a|b|c|xa"),
        ("N=$SLURM_NNODES G=4\nrun $((N * G / 8)) $(( $N*${G} ))", "run|3|24"),
        ("run ${1:-small} ${NONE-} ${SLURM_NNODES:-8} ${X:=3} $X ${X:+y}", "run|small|6|3|3|y"),
        (
            "run `pwd`/a.py $(perl -e \"print 2*3.5\") `bc <<< \"scale=3; 1/10\"`",
            "run|./a.py|7|0.1",
        ),
        (
            "run $(echo \"1024*2\" | bc) $(expr 2 + 3) $(python -c 'print(int(7/2))')",
            "run|2048|5|3",
        ),
        (
            "run $(scontrol show hostnames $L | head -n 1):6000 $MISSING/a",
            "run|$(scontrol):6000|${MISSING}/a",
        ),
        ("run `bc <<< \"scale=3; $1/10\"`", "run|${1}"),
        ("N=4\nrun $((N * MISSING / $N))", "run|$((4*MISSING/4))"),
        ("run a; # b\nA=1 run2 \"\" $A", "run2||1"),
    ] {
        let wanted: Vec<&str> = wanted.split('|').collect();
        assert_eq!(last(text), wanted, "{text}");
    }
}

#[test]
fn the_branch_that_the_variables_choose_is_followed() {
    let script = |size: &str| {
        format!(
            "SIZE={size}\nif [[ $SIZE == small ]]; then\n  L=2\nelif [ \"$SIZE\" = \"big\" ] || false\n\
             then L=4; else\n L=9\nfi\ncase $SIZE in\n s*|t) H=8;;\n *) H=16 ;;\nesac\n\
             if [ -z \"$EXTRA\" ]; then E=none; fi\nif [ $L -gt 3 ]; then F=--deep; else F=--flat; fi\n\
             for i in 1 2; do S=\"$S$i\"; done\nargs() {{ run $1 $L $H $E $F ${{S}} ; }}\nargs x"
        )
    };
    let words = |size| last(&script(size)).join(" ");
    assert_eq!(words("small"), "run x 2 8 none --flat ${S}12");
    assert_eq!(words("big"), "run x 4 16 none --deep ${S}12");
    assert_eq!(words("other"), "run x 9 16 none --deep ${S}12");
}

#[test]
fn here_documents_are_files() {
    let found = shell(
        "S=1\nconf=\"./ds.$SLURM_JOBID.json\"\ncat <<EOT > $conf\n{\"stage\": $S, \"a\": \"b\"}\nEOT\n\
         cat > raw.json <<'E'\n{$S}\nE\necho '{}' > e.json\ncat <<E | tee t.json\nx\nE\n",
    );
    let files: Vec<(&str, &str)> = found
        .files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    assert_eq!(
        files,
        [
            ("./ds.${SLURM_JOBID}.json", "{\"stage\": 1, \"a\": \"b\"}\n"),
            ("e.json", "{}\n"),
            ("raw.json", "{$S}\n"),
            ("t.json", "x\n"),
        ]
    );
}

/// The text of `bash -c` is read with the variables of the script, and the launcher's words come first.
#[test]
fn bash_in_a_command_is_followed() {
    let text = "export CMD=\"a.py --m 'x|y' --l 2\"\nexport L=\"torchrun --nnodes 2\"\nclear; \
                srun --wait=60 bash -c \"$L --node_rank \\$SLURM_PROCID $CMD\" 2>&1 | tee -a log\n\
                srun bash -c '$L $CMD'";
    let found = shell(text).commands;
    let words = |i: usize| found[i].words.join(" ");
    assert_eq!(words(0), "clear");
    assert_eq!(
        words(1),
        "srun --wait=60 torchrun --nnodes 2 --node_rank ${SLURM_PROCID} a.py --m x|y --l 2"
    );
    assert_eq!(words(2), "srun torchrun --nnodes 2 a.py --m 'x|y' --l 2");
    assert_eq!(found[1].line, 3);
}

#[test]
fn mistakes_and_what_is_not_followed_name_their_line() {
    let problem = |text: &str| {
        let mut shell = Shell::new("t.sh".into(), PathBuf::from("/nowhere"), BTreeMap::new());
        shell.read(text).unwrap_err().to_string()
    };
    for (text, said) in [
        ("a\nif [ 1 = 1 ]; then b\n", "t.sh:2: if has no fi"),
        ("a\n\ndone\n", "t.sh:3: done has no beginning"),
        ("a 'b", "t.sh:1: a ' is not closed"),
        ("f() { f; }\nf", "commands are 32 deep in each other"),
        (
            "A=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nfor i in 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6; do \
          A=$A$A; done",
            "A has over 1048576 bytes",
        ),
        ("eval \"a 'b\"", "t.sh:1: a ' is not closed"),
    ] {
        let found = problem(text);
        assert!(found.contains(said), "{text}: {found}");
    }
    let notes =
        shell("source env.sh\nif nvidia-smi; then a; fi\nwhile read l; do b; done\nc").notes;
    assert_eq!(
        notes,
        [
            "line 1: env.sh is not here: its variables have no values",
            "line 2: a condition that is not known here is taken as false",
            "line 3: a loop is not followed",
        ]
    );
    let command = Command { line: 1, words: vec!["a".into(), "b".into()] };
    assert_eq!(shell("a b").commands, [command]);
}
