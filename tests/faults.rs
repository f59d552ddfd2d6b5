//! Ranks that fail in every way at every place: the run ends within its bound, says which rank it was, and leaves nothing
//! behind.
#![cfg(target_os = "linux")]

#[path = "support/program.rs"]
mod program;
#[path = "support/squares.rs"]
mod squares;

use assert_cmd::cargo::cargo_bin;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// From the start of a run to its end, far more than any takes: starting, a few steps, the deadline (3 s), and the time that
/// the first process gives the others.
const BOUND: Duration = Duration::from_secs(45);
/// Runs at a time.
const PARALLEL: usize = 5;

/// A fault, and what must be said of it.
#[derive(Debug, Clone, Copy)]
struct Case {
    ranks: usize,
    rank: usize,
    place: &'static str,
    kind: &'static str,
}

const PLACES: [&str; 6] = [
    "scan",
    "forward",
    "all-reduce",
    "optimizer",
    "checkpoint",
    "validation",
];
const KINDS: [&str; 5] = ["kill", "panic", "hang", "stop", "error"];

impl Case {
    fn name(&self) -> String {
        format!(
            "{}-ranks-{}-{}-{}",
            self.ranks, self.rank, self.place, self.kind
        )
    }

    /// Where the rank was, in the program's own words.
    fn whereabouts(&self) -> &'static str {
        match self.place {
            "scan" => "scanning labels",
            "forward" => "forward",
            "all-reduce" => "loss and backward",
            "optimizer" => "optimizer",
            "checkpoint" => "checkpoint",
            _ => "validating",
        }
    }

    /// What the first process has to say.
    fn expected(&self) -> String {
        let r = self.rank;
        match self.kind {
            "kill" => format!("rank {r}: its process was killed (signal: 9 (SIGKILL))"),
            "panic" => format!(
                "rank {r}: panicked: a fault (panic) was injected at {}",
                self.place
            ),
            "error" => format!("a fault was injected on rank {r} at step "),
            "stop" => format!("rank {r} was at {:?}", self.whereabouts()),
            _ => format!("rank {r} is at {:?}", self.whereabouts()),
        }
    }
}

fn command(folder: &Path, case: &Case) -> Command {
    let mut c = Command::new(cargo_bin!("yolo-train"));
    c.current_dir(folder).args(program::QUICK);
    c.args(["--epochs", "2", "--timeout", "3"]);
    c.args(["--device", &format!("cpu:{}", case.ranks)]);
    c.args(["--name", &case.name()]);
    let Case {
        rank, place, kind, ..
    } = case;
    c.env(
        "YOLO_TRAIN_FAULT",
        format!(
            "rank:{rank},step:{},place:{place},kind:{kind}",
            u8::from(*place != "scan")
        ),
    );
    c.stdin(Stdio::null()).stdout(Stdio::null());
    c
}

fn start(folder: &Path, case: &Case) -> Child {
    let log = folder.join(format!("{}.log", case.name()));
    let stderr = fs::File::create(log).unwrap();
    command(folder, case).stderr(stderr).spawn().unwrap()
}

/// Processes of the run that still are there.
fn left(case: &Case) -> Vec<String> {
    let name = case.name();
    let mut found = vec![];
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words.split(|b| *b == 0).any(|w| w == name.as_bytes()) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

/// What is wrong with the end of this run.
fn run(folder: &Path, case: &Case) -> Result<(), String> {
    let began = Instant::now();
    let mut first = start(folder, case);
    let status = loop {
        if let Some(status) = first.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > BOUND {
            for id in left(case) {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
            first.wait().unwrap();
            return Err(format!("not over after {BOUND:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read_to_string(folder.join(format!("{}.log", case.name()))).unwrap();
    if status.code() != Some(1) {
        return Err(format!("it ended with {status}: {said}"));
    }
    let remaining = left(case);
    if !remaining.is_empty() {
        return Err(format!("processes {remaining:?} are left: {said}"));
    }
    let expected = case.expected();
    if !said.contains("yolo-train: error: rank ") || !said.contains(&expected) {
        return Err(format!("{expected:?} is not said: {said}"));
    }
    // the others leave what they did last
    let run = folder.join("runs/detect").join(case.name());
    let late = ["hang", "stop"].contains(&case.kind);
    if late && case.place != "scan" {
        for rank in (0..case.ranks).filter(|&r| r != case.rank) {
            let path = run.join(format!("collectives-rank-{rank}.txt"));
            let text = fs::read_to_string(&path).map_err(|e| format!("{path:?}: {e}; {said}"))?;
            if !text.contains("failed: ") || !text.contains(", step 1: collective ") {
                return Err(format!("{path:?}: {text}"));
            }
        }
    }
    println!("{}: {:.1} s", case.name(), began.elapsed().as_secs_f64());
    Ok(())
}

fn all(cases: Vec<Case>) {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let (queue, wrong) = (Mutex::new(cases), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let Some(case) = queue.lock().unwrap().pop() else {
                        return;
                    };
                    if let Err(e) = run(t.path(), &case) {
                        wrong.lock().unwrap().push(format!("{case:?}: {e}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_fault_ends_the_run_of_two_ranks_with_the_name_of_the_rank() {
    let mut cases: Vec<Case> = PLACES
        .into_iter()
        .flat_map(|place| {
            KINDS.into_iter().map(move |kind| Case {
                ranks: 2,
                rank: 1,
                place,
                kind,
            })
        })
        .collect();
    // the one that writes
    for (place, kind) in [
        ("checkpoint", "hang"),
        ("validation", "error"),
        ("forward", "panic"),
    ] {
        cases.push(Case {
            ranks: 2,
            rank: 0,
            place,
            kind,
        });
    }
    all(cases);
}

#[test]
fn faults_end_the_run_of_four_ranks() {
    let picked = [
        (2, "scan", "hang"),
        (3, "forward", "stop"),
        (1, "all-reduce", "kill"),
        (2, "optimizer", "panic"),
        (0, "checkpoint", "stop"),
        (3, "validation", "error"),
    ];
    all(picked
        .into_iter()
        .map(|(rank, place, kind)| Case {
            ranks: 4,
            rank,
            place,
            kind,
        })
        .collect());
}

#[test]
fn a_rank_that_hangs_ends_itself_where_nobody_watches_over_it() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let case = Case {
        ranks: 2,
        rank: 1,
        place: "forward",
        kind: "hang",
    };
    let log = |rank: usize| t.path().join(format!("rank-{rank}.log"));
    let (store, mut workers) = yolo_train::dist::launch::start(2, |rank| {
        let mut c = command(t.path(), &case);
        c.stderr(fs::File::create(log(rank)).unwrap());
        c
    })
    .unwrap();
    let ended = workers.wait(BOUND).unwrap();
    let said: Vec<String> = (0..2)
        .map(|rank| fs::read_to_string(log(rank)).unwrap())
        .collect();
    assert_eq!(ended.len(), 2, "{said:?}");
    assert!(ended.iter().all(|(_, s)| s.code() == Some(1)), "{said:?}");
    // ranks tell the process that looks after them, which is none here but holds the store
    let told = store.values("error/0").pop().expect("rank 0 tells").1;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("rank 1 is at \\\"forward\\\""), "{told}");
    assert!(
        said[1].contains("this one is at \"forward\" of step 1 for ")
            && said[1].contains("it ends itself"),
        "{}",
        said[1]
    );
}
