//! Commands on several ranks: processes that the first one starts with its own command line, on one machine or on
//! several, or that a launcher starts.
#![cfg(target_os = "linux")]

#[path = "support/ranks.rs"]
mod ranks;
#[path = "support/squares.rs"]
mod squares;

use ranks::{
    SMALL, alive, ended, err, errors, free_port, mark, none_left, program, signal, text, weights,
};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(100);

fn run(words: &[&str]) -> Output {
    let child = program("", words).spawn().unwrap();
    ended(child, LIMIT)
}

fn workplace() -> TempDir {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    t
}

fn train(folder: &Path, mark: &str, more: &[&str]) -> Command {
    let mut command = program(mark, &[SMALL, more].concat());
    command.current_dir(folder);
    command
}

#[test]
fn collectives_are_timed_between_the_ranks_of_the_device() {
    let sizes = "--comm=1024,262144";
    let output = run(&["bench", sizes, "--device", "cpu,cpu,cpu", "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["ranks"], &found["engine"]),
        (&3.into(), &"tcp".into())
    );
    let rows = found["rows"].as_array().unwrap();
    let named: Vec<_> = rows
        .iter()
        .map(|r| {
            (
                r["collective"].as_str().unwrap(),
                r["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [
            ("all_reduce", 1024),
            ("all_reduce", 262_144),
            ("all_reduce_tree", 1024),
            ("all_reduce_tree", 262_144)
        ]
    );
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(0.0 < of("best_ms") && of("best_ms") <= of("median_ms"));
        let rate = of("bytes") / of("median_ms") / 1e6;
        assert!((of("gb_per_s") / rate - 1.0).abs() < 1e-9);
    }
}

#[test]
fn one_rank_prints_the_table() {
    let output = run(&["bench", "--comm=4096", "--device=cpu:2"]);
    let (out, err) = (text(&output.stdout), err(&output));
    assert!(output.status.success(), "{err}");
    assert_eq!(err, "");
    assert_eq!(out.matches("all_reduce_tree").count(), 1, "{out}");
    assert_eq!(
        out.lines().nth(1).map(|l| l.starts_with("4 KiB ")),
        Some(true),
        "{out}"
    );
}

#[test]
fn collectives_of_one_rank_are_refused_with_what_to_give() {
    for (device, words) in [
        ("auto", &["bench", "--comm"][..]),
        ("cpu", &["bench", "--comm", "--device", "cpu"]),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            err(&output),
            format!(
                "yolo-train: error: device {device} stands for one rank, but bench --comm needs several: \
                 give --device cpu,cpu (or cpu:N)\n"
            )
        );
    }
    let output = run(&["bench", "--comm", "ten", "--device", "cpu,cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("given ten, allowed is sizes in bytes"));
}

#[test]
fn what_does_not_go_together_is_said_in_one_line() {
    for (words, expected) in [
        ("--nnodes 2", "--nnodes 2 needs --node-rank"),
        (
            "--nnodes 2 --node-rank 0",
            "--nnodes 2 needs --master ADDR:PORT",
        ),
        (
            "--nnodes 2 --node-rank 2 --master a:1",
            "there is no node 2 among 2: --node-rank goes from 0 to 1",
        ),
        (
            "--node-rank 1",
            "--node-rank is for runs on several machines: give --nnodes, or start the ranks with torchrun, srun or mpirun",
        ),
        (
            "--master a:1",
            "--master is for runs on several machines: give --nnodes, or start the ranks with torchrun, srun or mpirun",
        ),
        (
            "--nnodes 2 --node-rank 1 --master node1",
            "bad value for --master: \"node1\"; it takes an address of the first machine and a port, as 10.0.0.1:29500, \
             node1:29500 or [fd00::1]:29500",
        ),
        (
            "--nnodes 2 --node-rank 1 --master 127.0.0.1:1",
            "node 1 needs the token of the run, which node 0 prints: export YOLO_TRAIN_TOKEN=… or give --token-file",
        ),
    ] {
        let words: Vec<&str> = ["bench", "--comm"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        let output = run(&words);
        assert_eq!(err(&output), format!("yolo-train: error: {expected}\n"));
        assert_eq!(output.status.code(), Some(2));
    }
}

/// The process of a rank with this mark, once it is there.
fn rank_of(mark: &str, rank: usize) -> u32 {
    let rank = format!("YOLO_TRAIN_RANK={rank}");
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        for id in alive(mark) {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            if environment.split(|b| *b == 0).any(|v| v == rank.as_bytes()) {
                return id;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no such rank");
}

/// Waits until a run has written a first result.
fn under_way(folder: &Path) {
    let end = Instant::now() + LIMIT;
    while !folder.join("runs/detect/train/results.csv").exists() {
        assert!(Instant::now() < end, "no epoch is done");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Words of a bench that takes longer than the test.
fn long() -> String {
    format!("--comm={}", vec!["1048576"; 1000].join(","))
}

fn long_bench(mark: &str, more: &[&str]) -> Child {
    let sizes = long();
    let words = [&["bench", &sizes, "--device", "cpu,cpu"], more].concat();
    program(mark, &words).spawn().unwrap()
}

// One that fails.

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    let mark = mark();
    let parent = long_bench(&mark, &[]);
    signal(rank_of(&mark, 1), "KILL");
    let output = ended(parent, LIMIT);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        err(&output),
        "yolo-train: error: rank 1: its process was killed (signal: 9 (SIGKILL)); where nobody did that, memory may \
         have run out (see dmesg)\n"
    );
    assert!(none_left(&mark));
}

#[test]
fn a_rank_that_hangs_is_named_and_ended_with_the_others() {
    let mark = mark();
    let parent = long_bench(&mark, &["--timeout", "2"]);
    let (first, second) = (rank_of(&mark, 0), rank_of(&mark, 1));
    // both have joined when the work has begun
    let busy = |id| std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let threads = |id| {
        busy(id)
            .lines()
            .find_map(|l| l.strip_prefix("Threads:\t")?.parse().ok())
    };
    while [first, second]
        .map(threads)
        .iter()
        .any(|n| n.unwrap_or(0) < 3)
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    signal(second, "STOP");
    let output = ended(parent, LIMIT);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("yolo-train: error: rank 0: ") && errors[0].contains("rank 1"),
        "{errors:?}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(none_left(&mark));
}

#[test]
fn what_one_rank_cannot_read_is_said_once_with_its_number() {
    let t = workplace();
    let image = t.path().join("images/005.png");
    let whole = std::fs::read(&image).unwrap();
    std::fs::write(&image, &whole[..whole.len() / 2]).unwrap();
    let mark = mark();
    let child = train(t.path(), &mark, &["--device", "cpu,cpu", "--epochs", "2"]);
    let output = ended({ child }.spawn().unwrap(), LIMIT);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", err(&output));
    let line = errors[0].strip_prefix("yolo-train: error: rank ").unwrap();
    assert!(
        line.contains("005.png") && !line.contains("failed (batch)"),
        "{line}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(none_left(&mark));
}

#[test]
fn what_all_ranks_refuse_is_said_once() {
    let t = workplace();
    for (more, expected, code) in [
        (
            &["--batch", "1"][..],
            "--batch 1 is less than an image for each of 2 ranks",
            1,
        ),
        (&["--data", "no.yaml"], "no.yaml", 1),
        (&["--lr0", "-1"], "bad value for --lr0", 2),
    ] {
        let words = [&["--device", "cpu,cpu"], more].concat();
        let output = ended(train(t.path(), "", &words).spawn().unwrap(), LIMIT);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{}", err(&output));
        assert!(errors[0].contains(expected), "{errors:?}");
        assert_eq!(output.status.code(), Some(code));
    }
}

// Signals.

#[test]
fn a_signal_to_the_first_process_ends_all_ranks() {
    for name in ["INT", "TERM", "HUP"] {
        let mark = mark();
        let parent = long_bench(&mark, &[]);
        rank_of(&mark, 0);
        rank_of(&mark, 1);
        signal(parent.id(), name);
        let output = ended(parent, LIMIT);
        assert_eq!(output.status.code(), Some(130), "{name}: {}", err(&output));
        assert_eq!(err(&output), "");
        assert!(none_left(&mark), "{name}");
    }
}

#[test]
fn a_run_that_ignores_the_closed_terminal_goes_on() {
    let mark = mark();
    let mut shell = Command::new("sh");
    let program = assert_cmd::cargo::cargo_bin!("yolo-train");
    let line = format!(
        "trap '' HUP; exec {} bench {} --device cpu,cpu",
        program.display(),
        long()
    );
    ranks::prepare(&mut shell, &mark, &["-c", &line]);
    let parent = shell.spawn().unwrap();
    let rank = rank_of(&mark, 1);
    for id in [parent.id(), rank] {
        signal(id, "HUP");
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(alive(&mark).len(), 3);
    signal(parent.id(), "TERM");
    assert_eq!(ended(parent, LIMIT).status.code(), Some(130));
    assert!(none_left(&mark));
}

#[test]
fn training_that_is_interrupted_leaves_a_checkpoint_to_go_on_from() {
    let t = workplace();
    let mark = mark();
    let words = ["--device", "cpu,cpu", "--epochs", "1000"];
    let parent = train(t.path(), &mark, &words).spawn().unwrap();
    under_way(t.path());
    signal(parent.id(), "HUP");
    let output = ended(parent, LIMIT);
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    assert!(err(&output).contains("the run can go on: yolo-train --resume"));
    assert!(none_left(&mark));
}

#[test]
fn ranks_do_not_outlive_the_first_process() {
    // at any moment of their start, too
    for ms in [0, 2, 5, 10, 30, 60, 100, 300] {
        let mark = mark();
        let mut parent = long_bench(&mark, &[]);
        if ms > 0 {
            rank_of(&mark, 0);
            std::thread::sleep(Duration::from_millis(ms));
        }
        signal(parent.id(), "KILL");
        parent.wait().unwrap();
        assert!(none_left(&mark), "{ms} ms");
    }
}

#[test]
fn a_rank_that_hangs_does_not_outlive_the_first_process() {
    let mark = mark();
    let mut parent = long_bench(&mark, &[]);
    rank_of(&mark, 0);
    let rank = rank_of(&mark, 1);
    std::thread::sleep(Duration::from_millis(300));
    signal(rank, "STOP");
    signal(parent.id(), "KILL");
    parent.wait().unwrap();
    assert!(none_left(&mark));
}

#[test]
fn a_second_signal_ends_all_at_once() {
    let mark = mark();
    let parent = long_bench(&mark, &[]);
    rank_of(&mark, 0);
    let rank = rank_of(&mark, 1);
    std::thread::sleep(Duration::from_millis(300));
    // it cannot end in an orderly way
    signal(rank, "STOP");
    signal(parent.id(), "INT");
    std::thread::sleep(Duration::from_millis(300));
    signal(parent.id(), "INT");
    assert_eq!(ended(parent, LIMIT).status.code(), Some(130));
    assert!(none_left(&mark));
}

// Several machines, here on one.

const TOKEN: &str = "YOLO_TRAIN_TOKEN";
const SECRET: &str = "0123456789abcdef";

fn node(mark: &str, node: usize, master: &str, words: &[&str]) -> Command {
    let number = node.to_string();
    let place = ["--nnodes", "2", "--node-rank", &number, "--master", master];
    let mut command = program(mark, &[words, &place[..]].concat());
    command.env(TOKEN, SECRET);
    command
}

fn master() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn machines_with_different_numbers_of_devices_are_one_run() {
    let master = master();
    let words = ["bench", "--comm=1024", "--json", "--ports", "29700-29789"];
    let first = node(
        "",
        0,
        &master,
        &[&words[..], &["--device", "cpu,cpu"]].concat(),
    );
    let first = { first }.spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let words = [&words[..], &["--token-file", path.to_str().unwrap()]].concat();
    let mut second = node("", 1, &master, &words);
    let second = second.env_remove(TOKEN).spawn().unwrap();
    let [first, second] = [first, second].map(|child| ended(child, LIMIT));
    assert!(
        first.status.success() && second.status.success(),
        "{}",
        err(&first)
    );
    let found: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(found["ranks"], 3);
    assert_eq!(
        (err(&first), text(&second.stdout), err(&second)),
        Default::default()
    );
}

#[test]
fn the_first_machine_prints_the_token_with_the_line_for_the_others() {
    let master = master();
    let words = [
        "bench",
        "--comm=1024",
        "--nnodes=2",
        "--node_rank=0",
        "--master",
        &master,
    ];
    let mut first = program("", &words).spawn().unwrap();
    let mut line = vec![];
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        first
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        line.push(byte[0]);
    }
    let line = text(&line);
    let line = line.trim().strip_prefix("on the other machine: ").unwrap();
    let mut shell = Command::new("sh");
    let program = assert_cmd::cargo::cargo_bin!("yolo-train");
    let line = line.replace(" yolo-train ", &format!(" {} ", program.display()));
    ranks::prepare(&mut shell, "", &["-c", &line]);
    let second = ended(shell.spawn().unwrap(), LIMIT);
    assert!(second.status.success(), "{line}: {}", err(&second));
    assert!(ended(first, LIMIT).status.success());
}

#[test]
fn scans_and_garbage_at_the_store_disturb_nobody() {
    let master = master();
    let first = node("", 0, &master, &["bench", "--comm=1024"])
        .spawn()
        .unwrap();
    let mut open = vec![];
    let end = Instant::now() + Duration::from_secs(20);
    while open.len() < 60 && Instant::now() < end {
        let Ok(mut stream) = TcpStream::connect(&master) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let number = open.len();
        let bytes: Vec<u8> = match number % 6 {
            0 => vec![],
            1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            2 => vec![0xff; 4096],
            3 => (0..2000_u32)
                .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
                .collect(),
            // a length that never comes
            4 => vec![200, 0, 0, 0, 1],
            _ => vec![0; 3],
        };
        // it may be turned away already
        let _ = stream.write_all(&bytes);
        if number % 2 == 0 {
            open.push(Some(stream));
        } else {
            open.push(None);
        }
    }
    assert_eq!(open.len(), 60);
    let second = node("", 1, &master, &["bench", "--comm=1024"])
        .spawn()
        .unwrap();
    for child in [first, second] {
        let output = ended(child, LIMIT);
        assert!(output.status.success(), "{}", err(&output));
    }
}

#[test]
fn a_machine_that_does_not_come_is_named() {
    let master = master();
    let words = ["bench", "--comm=1024", "--join-timeout", "1"];
    let output = ended(node("", 0, &master, &words).spawn().unwrap(), LIMIT);
    assert_eq!(
        err(&output),
        format!(
            "yolo-train: error: node 1 did not come to {master} within 1 s (1 of 2 came); start yolo-train with \
             --node-rank there, or look at its output\n"
        )
    );
    assert_eq!(output.status.code(), Some(1));
    let output = ended(node("", 1, &master, &words).spawn().unwrap(), LIMIT);
    assert!(err(&output).contains(&master), "{}", err(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn machines_that_are_numbered_wrongly_say_so_and_may_come_again() {
    let master = master();
    let spawn = |count, number| {
        let place = [
            "--nnodes",
            count,
            "--node-rank",
            number,
            "--master",
            &master,
        ];
        let mut command = program("", &[&["bench", "--comm=1024"], &place[..]].concat());
        command.env(TOKEN, SECRET).spawn().unwrap()
    };
    let first = spawn("3", "0");
    let wrong = ended(spawn("2", "1"), LIMIT);
    assert_eq!(
        err(&wrong),
        "yolo-train: error: node 1 has --nnodes 2, node 0 has --nnodes 3; all machines take the same\n"
    );
    let twice = spawn("3", "1");
    std::thread::sleep(Duration::from_millis(500));
    let second = spawn("3", "1");
    std::thread::sleep(Duration::from_millis(500));
    let third = spawn("3", "2");
    let twice = ended(twice, LIMIT);
    assert_eq!(
        err(&twice),
        "yolo-train: error: another process is node 1 of this run already; every machine has a --node-rank of its own\n"
    );
    assert_eq!(twice.status.code(), Some(1));
    for child in [first, second, third] {
        let output = ended(child, LIMIT);
        assert!(output.status.success(), "{}", err(&output));
    }
}

#[test]
fn who_does_not_know_the_token_is_not_let_in() {
    let master = master();
    let words = ["bench", "--comm=1024", "--join-timeout", "3"];
    let first = node("", 0, &master, &words).spawn().unwrap();
    let mut second = node("", 1, &master, &words);
    let second = ended(second.env(TOKEN, "another-token").spawn().unwrap(), LIMIT);
    assert!(
        err(&second).contains("the token is not the one of this run"),
        "{}",
        err(&second)
    );
    assert_eq!(errors(&second).len(), 1);
    let first = ended(first, LIMIT);
    assert!(
        err(&first).contains("node 1 did not come"),
        "{}",
        err(&first)
    );
}

#[test]
fn machines_that_are_about_to_do_different_things_say_so_on_both() {
    let t = workplace();
    let master = master();
    let spawn = |number: usize, more: &[&str]| {
        let mut command = node("", number, &master, &[SMALL, more].concat());
        command.current_dir(t.path()).spawn().unwrap()
    };
    let both = [spawn(0, &["--lr0", "0.01"]), spawn(1, &["--lr0", "0.02"])];
    let both = both.map(|child| ended(child, LIMIT));
    for output in &both {
        let errors = errors(output);
        assert_eq!(errors.len(), 1, "{}", err(output));
        assert!(
            errors[0].contains("0.02") && errors[0].contains("0.01"),
            "{errors:?}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
    let text = |output| errors(output)[0].split_once(": rank ").unwrap().1[3..].to_owned();
    assert_eq!(text(&both[0]), text(&both[1]));
}

#[test]
fn what_a_rank_of_another_machine_cannot_read_is_said_on_both() {
    let (t, other) = (workplace(), workplace());
    for number in 0..12 {
        let image = other.path().join(format!("images/{number:03}.png"));
        let whole = std::fs::read(&image).unwrap();
        std::fs::write(&image, &whole[..whole.len() / 2]).unwrap();
    }
    let master = master();
    let spawn = |number: usize, folder: &TempDir| {
        let mut command = node("", number, &master, SMALL);
        command.current_dir(folder.path()).spawn().unwrap()
    };
    let both = [spawn(0, &t), spawn(1, &other)].map(|child| ended(child, LIMIT));
    for output in &both {
        let errors = errors(output);
        assert_eq!(errors.len(), 1, "{}", err(output));
        assert!(
            errors[0].starts_with("yolo-train: error: rank 1: ") && errors[0].contains(".png"),
            "{errors:?}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn ctrl_c_on_one_machine_ends_all_in_an_orderly_way() {
    let t = workplace();
    let (master, mark) = (master(), mark());
    let spawn = |number: usize| {
        let words = [SMALL, &["--epochs", "1000", "--device", "cpu,cpu"]].concat();
        let mut command = node(&mark, number, &master, &words);
        command.current_dir(t.path()).spawn().unwrap()
    };
    let (first, second) = (spawn(0), spawn(1));
    under_way(t.path());
    signal(second.id(), "INT");
    for child in [first, second] {
        let output = ended(child, LIMIT);
        assert_eq!(output.status.code(), Some(130), "{}", err(&output));
        assert!(errors(&output).is_empty());
    }
    assert!(none_left(&mark));
}

// Launchers, by their variables.

fn launched(variables: &str, words: &[&str]) -> Command {
    let mut command = program("", words);
    for pair in variables.split_whitespace() {
        let (name, value) = pair.split_once('=').unwrap();
        command.env(name, value);
    }
    command
}

/// Variables of a launcher for a rank of two on this machine.
fn launchers(port: u16) -> [(&'static str, String); 3] {
    let agent = port - 1;
    [
        (
            "torchrun",
            format!(
                "RANK=# LOCAL_RANK=# WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT={agent} \
                 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=x SLURM_PROCID=7 SLURM_NTASKS=9 SLURM_STEP_ID=0"
            ),
        ),
        (
            "srun",
            format!(
                "SLURM_PROCID=# SLURM_LOCALID=# SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_STEP_ID=0 SLURM_JOB_ID={port}"
            ),
        ),
        (
            "mpirun",
            format!(
                "OMPI_COMM_WORLD_RANK=# OMPI_COMM_WORLD_LOCAL_RANK=# OMPI_COMM_WORLD_SIZE=2 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE={port}"
            ),
        ),
    ]
}

#[test]
fn ranks_of_torchrun_srun_and_mpirun_train_as_one_process_does() {
    let t = workplace();
    let one = train(t.path(), "", &["--epochs", "1", "--name", "one"])
        .output()
        .unwrap();
    assert!(one.status.success(), "{}", err(&one));
    for (name, variables) in launchers(free_port()) {
        let spawn = |rank: usize| {
            let variables = variables.replace('#', &rank.to_string());
            let words = [SMALL, &["--epochs", "1", "--name", name]].concat();
            let mut command = launched(&variables, &words);
            // the second is earlier
            std::thread::sleep(Duration::from_millis(300 * (1 - rank as u64)));
            command.current_dir(t.path()).spawn().unwrap()
        };
        let (second, first) = (spawn(1), spawn(0));
        let [first, second] = [first, second].map(|child| ended(child, LIMIT));
        assert!(first.status.success(), "{name}: {}", err(&first));
        assert!(second.status.success(), "{name}: {}", err(&second));
        assert!(err(&first).contains("2 ranks (tcp)"), "{}", err(&first));
        assert_eq!(
            (text(&second.stdout), err(&second)),
            Default::default(),
            "{name}"
        );
        assert!(
            weights(t.path(), name) == weights(t.path(), "one"),
            "{name}"
        );
    }
    let runs = std::fs::read_dir(t.path().join("runs/detect")).unwrap();
    assert_eq!(runs.count(), 4, "a folder for each run, not for each rank");
}

fn torchrun(rank: usize, port: u16) -> String {
    let (_, variables) = &launchers(port)[0];
    variables.replace('#', &rank.to_string())
}

#[test]
fn ranks_of_a_launcher_say_once_what_failed() {
    let t = workplace();
    let port = free_port();
    let words = [SMALL, &["--batch", "1"]].concat();
    let both = [0, 1].map(|rank| {
        let mut command = launched(&torchrun(rank, port), &words);
        command.current_dir(t.path()).spawn().unwrap()
    });
    let both = both.map(|child| ended(child, LIMIT));
    let said: Vec<String> = both.iter().flat_map(errors).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("--batch 1 is less than"), "{said:?}");
    assert!(both.iter().all(|o| o.status.code() == Some(1)));
}

#[test]
fn a_rank_of_a_launcher_that_is_killed_is_named_by_another() {
    let port = free_port();
    let [first, second] = [0, 1].map(|rank| {
        let mut command = launched(&torchrun(rank, port), &["bench", &long()]);
        command.spawn().unwrap()
    });
    std::thread::sleep(Duration::from_secs(2));
    signal(second.id(), "KILL");
    let output = ended(first, LIMIT);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", err(&output));
    assert!(errors[0].contains("lost rank 1"), "{errors:?}");
    ended(second, LIMIT);
}

#[test]
fn ranks_of_a_launcher_that_do_not_come_are_named() {
    let words = ["bench", "--comm=1024", "--join-timeout", "1"];
    let first = launched(&torchrun(0, free_port()), &words).spawn().unwrap();
    let output = ended(first, LIMIT);
    assert!(
        err(&output).contains("rank 1 did not come"),
        "{}",
        err(&output)
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn ranks_of_a_launcher_with_different_tokens_do_not_meet() {
    let port = free_port();
    let words = ["bench", "--comm=1024", "--join-timeout", "3"];
    let [first, second] = [0, 1].map(|rank| {
        let mut command = launched(&torchrun(rank, port), &words);
        command.env(TOKEN, format!("token-of-{rank}"));
        command.spawn().unwrap()
    });
    let second = ended(second, LIMIT);
    assert!(err(&second).contains("the token is not the one of this run"));
    assert!(err(&ended(first, LIMIT)).contains("rank 1 did not come"));
}

#[test]
fn without_a_token_ranks_meet_on_loopback_only() {
    // TEST-NET-1 of RFC 5737: nobody is there
    let variables = "RANK=# LOCAL_RANK=# WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500";
    let words = ["bench", "--comm=1024", "--join-timeout", "1"];
    let of = |rank: usize| {
        let variables = variables.replace('#', &rank.to_string());
        ended(launched(&variables, &words).spawn().unwrap(), LIMIT)
    };
    let first = of(0);
    let line = err(&first);
    assert!(
        line.starts_with(
            "yolo-train: error: ranks that meet at 192.0.2.1:29500 need a token, the same for all of them; \
             set it where torchrun is started: export YOLO_TRAIN_TOKEN="
        ) && line.lines().count() == 1,
        "{line}"
    );
    assert_eq!(first.status.code(), Some(2));
    let second = of(1);
    assert_eq!(
        (err(&second), second.status.code()),
        (String::new(), Some(2))
    );
}

#[test]
fn a_rank_of_a_launcher_takes_a_device_and_starts_no_others() {
    let variables = "RANK=# LOCAL_RANK=# WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500";
    let words = ["bench", "--comm=1024", "--device", "cpu,cpu"];
    let alone = ended(
        launched(&variables.replace('#', "0"), &words)
            .spawn()
            .unwrap(),
        LIMIT,
    );
    assert!(
        err(&alone).contains("bench --comm needs several"),
        "{}",
        err(&alone)
    );
    let variables = "RANK=0 LOCAL_RANK=2 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500";
    let output = ended(launched(variables, &words).spawn().unwrap(), LIMIT);
    assert_eq!(
        err(&output),
        "yolo-train: error: --device cpu,cpu stands for 2 devices, but torchrun has started rank 0 as number 2 (from 0) \
         of this machine: name a device for each\n"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn ranks_of_several_machines_need_to_be_told_where_they_meet() {
    let variables = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
                     OMPI_COMM_WORLD_LOCAL_SIZE=1";
    let output = ended(
        launched(variables, &["bench", "--comm"]).spawn().unwrap(),
        LIMIT,
    );
    assert!(
        err(&output).contains("ranks of mpirun on several machines need to know where rank 0 is"),
        "{}",
        err(&output)
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn ports_that_are_too_few_are_named() {
    let port = free_port().to_string();
    let words = [
        "bench",
        "--comm=1024",
        "--device",
        "cpu,cpu",
        "--ports",
        &port,
    ];
    let output = run(&words);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", err(&output));
    assert!(
        errors[0].contains(&format!("at any port from {port} to {port}")),
        "{errors:?}"
    );
}
