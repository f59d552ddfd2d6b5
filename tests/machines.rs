//! Runs on two machines, which are two network namespaces of this one with a cable between them. Where the system
//! refuses these (it takes root and iproute2), the tests say so in a line and pass.
#![cfg(target_os = "linux")]

#[path = "support/ranks.rs"]
mod ranks;
#[path = "support/squares.rs"]
mod squares;

use ranks::{SMALL, ended, err, errors, mark, none_left, weights};
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(200);

fn ip(words: &str) -> Result<(), String> {
    tool("ip", words)
}

fn tool(name: &str, words: &str) -> Result<(), String> {
    let output = Command::new(name).args(words.split_whitespace()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name} {words}: {}", err(&output).trim())),
        Err(e) => Err(format!("{name}: {e}")),
    }
}

/// Two namespaces; the first has the address 10.83.0.1, the second 10.83.0.2. They go with this.
struct Machines {
    names: [String; 2],
}

impl Machines {
    /// `None`, after a line, where that is refused.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!(
            "{}x{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let machines = Machines {
            names: [0, 1].map(|n| format!("yolo-{tag}-{n}")),
        };
        let set_up = || -> Result<(), String> {
            let [a, b] = &machines.names;
            ip(&format!("netns add {a}"))?;
            ip(&format!("netns add {b}"))?;
            ip(&format!(
                "-n {a} link add cable type veth peer name cable netns {b}"
            ))?;
            for (name, address) in [(a, "10.83.0.1/24"), (b, "10.83.0.2/24")] {
                ip(&format!("-n {name} addr add {address} dev cable"))?;
                ip(&format!("-n {name} link set lo up"))?;
                ip(&format!("-n {name} link set cable up"))?;
            }
            Ok(())
        };
        match set_up() {
            Ok(()) => Some(machines),
            Err(reason) => {
                eprintln!("skipped, no network namespaces here: {reason}");
                None
            }
        }
    }

    fn spawn(&self, folder: &Path, mark: &str, node: usize, more: &[&str]) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[node]]);
        command.arg(assert_cmd::cargo::cargo_bin!("yolo-train"));
        let number = node.to_string();
        let place = [
            "--nnodes",
            "2",
            "--node-rank",
            &number,
            "--master",
            "10.83.0.1:29500",
        ];
        ranks::prepare(&mut command, mark, &[SMALL, &place[..], more].concat());
        command.env("YOLO_TRAIN_TOKEN", "0123456789abcdef");
        // namespaces of the network do not keep these apart: they would share memory
        command.env("YOLO_TRAIN_TRANSPORT", "sockets");
        command.current_dir(folder).spawn().unwrap()
    }

    fn cable(&self, state: &str) {
        ip(&format!("-n {} link set cable {state}", self.names[1])).unwrap();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs on one rank of one machine: what the others must end with.
fn one(folder: &Path, more: &[&str]) -> Vec<u8> {
    let words = [SMALL, more, &["--name", "one"]].concat();
    let mut command = ranks::program("", &words);
    let output = command.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    weights(folder, "one")
}

/// Waits until an epoch is done.
fn under_way(folder: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    let results = folder.join("runs/detect/two/results.csv");
    while !std::fs::read_to_string(&results).is_ok_and(|t| t.lines().count() > 1) {
        assert!(Instant::now() < end, "no epoch is done");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Two nodes with two and one rank, `meanwhile` once they train; gives how they ended.
fn two(
    machines: &Machines,
    folders: [&Path; 2],
    more: &[&str],
    meanwhile: impl FnOnce(),
) -> [Output; 2] {
    let mark = mark();
    let more = [more, &["--name", "two"]].concat();
    let first = [&more[..], &["--device", "cpu,cpu"]].concat();
    let first = machines.spawn(folders[0], &mark, 0, &first);
    let second = machines.spawn(folders[1], &mark, 1, &more);
    under_way(folders[0]);
    meanwhile();
    let both = [first, second].map(|child| ended(child, LIMIT));
    assert!(none_left(&mark));
    both
}

fn workplaces() -> [tempfile::TempDir; 2] {
    [(); 2].map(|()| {
        let t = tempfile::tempdir().unwrap();
        squares::data_set(t.path());
        t
    })
}

fn assert_good(both: &[Output; 2]) {
    for output in both {
        assert!(output.status.success(), "{}", err(output));
    }
    assert!(both[1].stdout.is_empty());
    assert_eq!(err(&both[1]), "");
}

#[test]
fn two_machines_end_with_the_bytes_of_one_and_the_first_has_the_files() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let [a, b] = workplaces();
    // three ranks: as many lanes
    let more = ["--epochs", "2", "--lanes", "3"];
    let both = two(&machines, [a.path(), b.path()], &more, || {});
    assert_good(&both);
    assert!(weights(a.path(), "two") == one(a.path(), &more));
    // what a rank says of its state is where the rank is; results are on the first machine
    let there = b.path().join("runs/detect/two");
    for name in ["weights", "checkpoints", "results.csv", "args.yaml"] {
        assert!(!there.join(name).exists(), "{name}");
    }
}

#[test]
fn a_link_that_is_cut_for_three_seconds_changes_nothing() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let [a, b] = workplaces();
    let more = ["--epochs", "6", "--lanes", "3"];
    let both = two(&machines, [a.path(), b.path()], &more, || {
        machines.cable("down");
        std::thread::sleep(Duration::from_secs(3));
        machines.cable("up");
    });
    assert_good(&both);
    assert!(weights(a.path(), "two") == one(a.path(), &more));
}

#[test]
fn a_link_that_is_cut_for_good_ends_both_machines_with_the_number_of_a_rank_there() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let [a, b] = workplaces();
    let more = ["--epochs", "1000", "--timeout", "4"];
    let both = two(&machines, [a.path(), b.path()], &more, || {
        machines.cable("down")
    });
    for (output, there) in both
        .iter()
        .zip([&["rank 2"][..], &["rank 0", "rank 1", "ranks 0 and 1"]])
    {
        assert_eq!(output.status.code(), Some(1), "{}", err(output));
        let errors = errors(output);
        assert_eq!(errors.len(), 1, "{}", err(output));
        // after the number of the rank that speaks
        let text = errors[0].split_once(": rank ").unwrap().1;
        let named = there.iter().any(|name| text[1..].contains(name));
        assert!(named, "{errors:?}");
    }
}

#[test]
fn a_slow_link_makes_a_run_slow_and_changes_nothing_else() {
    let Some(machines) = Machines::new() else {
        return;
    };
    for name in &machines.names {
        let words = format!(
            "-n {name} qdisc add dev cable root tbf rate 200mbit burst 64kbit latency 100ms"
        );
        if let Err(reason) = tool("tc", &words) {
            eprintln!("skipped, no slow links here: {reason}");
            return;
        }
    }
    let [a, b] = workplaces();
    let more = ["--epochs", "2", "--lanes", "3"];
    let both = two(&machines, [a.path(), b.path()], &more, || {});
    assert_good(&both);
    assert!(weights(a.path(), "two") == one(a.path(), &more));
}
