//! The engine over NCCL, between processes whose GPUs and library `tests/fake-cuda` makes up: what collectives give, and what
//! happens when ranks die, hang, leave or disagree. Each ends in bounded time, with the right words, and leaves nothing.
#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "support/collectives.rs"]
mod collectives;
#[path = "support/fake.rs"]
mod fake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use fake::Machine;
use yolo_train::dist::device::{After, DeviceBuffer, DeviceGroup, DeviceType};
use yolo_train::dist::nccl::{self, NcclOptions};
use yolo_train::dist::testing::{processes, worker};
use yolo_train::dist::{Call, DistError, ProcessGroup, ReduceOp, State};

/// Far more than anything takes here.
const SOON: Duration = Duration::from_secs(30);

#[track_caller]
fn says(text: &str, all: &[&str]) {
    for part in all {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

/// How a rank ended, and what it wrote.
type Ended = (Option<i32>, String);

/// A rank of a test below: connected over the network, then over NCCL.
fn rank(host_bytes: usize) -> Option<impl FnOnce() -> Result<Arc<dyn ProcessGroup>, DistError>> {
    let deadline = std::env::var("TEST_DEADLINE_MS").map_or(20_000, |ms| ms.parse().unwrap());
    let deadline = Duration::from_millis(deadline);
    let (_store, group) = worker(|o| o.deadline = deadline).unwrap()?;
    let options = NcclOptions {
        host_bytes,
        connect: deadline,
        ..NcclOptions::new(group.rank() as u32)
    };
    Some(move || nccl::join(group, &options))
}

/// Runs the test `name` on ranks; gives what they wrote, and how they ended, by rank.
#[track_caller]
fn ranks(machine: &Machine, name: &str, size: usize, variables: &[(&str, &str)]) -> Vec<Ended> {
    let begin = Instant::now();
    let (_server, mut workers) = processes(name, size, |rank, command| {
        machine.apply(command);
        let file = std::fs::File::create(machine.path(&format!("rank-{rank}"))).unwrap();
        command
            .env("FAKE_CUDA_DEVICES", size.to_string())
            .envs(variables.iter().copied())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
    })
    .unwrap();
    let mut ended = workers.wait(SOON).unwrap();
    assert_eq!(
        ended.len(),
        size,
        "a rank hangs after {:?}",
        begin.elapsed()
    );
    ended.sort_by_key(|(rank, _)| *rank);
    ended
        .into_iter()
        .map(|(rank, status)| {
            let said = std::fs::read_to_string(machine.path(&format!("rank-{rank}"))).unwrap();
            (status.code(), said)
        })
        .collect()
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn worker_runs_the_suite() {
    let Some(join) = rank(0) else { return };
    let group = join().unwrap();
    assert_eq!(group.engine(), "nccl");
    for seed in 0..2 {
        collectives::run(&*group, seed, 25);
    }
    collectives::messages(&*group, 1);
    collectives::subgroups(&*group, 2);
}

#[test]
fn every_collective_on_values_of_the_host_gives_what_the_oracle_says() {
    for size in [2, 3, 4] {
        let machine = Machine::whole();
        for (rank, (code, said)) in ranks(&machine, "worker_runs_the_suite", size, &[])
            .into_iter()
            .enumerate()
        {
            assert_eq!(code, Some(0), "rank {rank} of {size}: {said}");
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    }
}

/// Values on the GPU of this process, and where they are.
fn on_gpu(values: &[f32]) -> (u64, DeviceBuffer) {
    // SAFETY: memory of as many bytes, which is never freed.
    let (address, buffer) = unsafe {
        let address = result::malloc_sync(size_of_val(values)).unwrap();
        result::memcpy_htod_sync(address, values).unwrap();
        let buffer = DeviceBuffer::new(
            address,
            values.len(),
            DeviceType::F32,
            After::Everything,
            Box::new(()),
        );
        (address, buffer)
    };
    (address, buffer)
}

fn from_gpu(address: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    // SAFETY: `len` values lie there.
    unsafe { result::memcpy_dtoh_sync(&mut values, address) }.unwrap();
    values
}

fn device(group: &dyn ProcessGroup) -> &dyn DeviceGroup {
    group
        .device()
        .expect("the whole group has a GPU for each rank")
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn worker_moves_values_on_gpus() {
    let Some(join) = rank(usize::MAX) else { return };
    let group = join().unwrap();
    let (rank, size) = (group.rank(), group.size());
    let gpus = device(&*group);
    let n = 1000;
    // several under way on both channels; the host waits for none of them before the end
    let mut sums = vec![];
    for i in 0..20 {
        let (address, buffer) = on_gpu(&vec![(rank + i) as f32; n]);
        let call = match i % 3 {
            0 => Call::latency(format!("norm {i}")),
            _ => Call::bulk(format!("bucket {i}")),
        };
        let handle = gpus.all_reduce(call, ReduceOp::Sum, buffer);
        handle.join_stream().unwrap();
        sums.push((i, address, handle));
    }
    for (i, address, handle) in sums {
        assert!(handle.wait(None).unwrap());
        let expected: usize = (0..size).map(|r| r + i).sum();
        assert_eq!(from_gpu(address, n), vec![expected as f32; n], "sum {i}");
    }
    let (_, from) = on_gpu(&vec![rank as f32; n]);
    let (address, to) = on_gpu(&vec![-1.0; size * n]);
    assert!(
        gpus.all_gather(Call::bulk("parts"), from, to)
            .wait(None)
            .unwrap()
    );
    let all = from_gpu(address, size * n);
    assert!((0..size).all(|r| all[r * n..][..n].iter().all(|v| *v == r as f32)));

    let (address, buffer) = on_gpu(&vec![rank as f32; n]);
    assert!(
        gpus.broadcast(Call::bulk("weights"), size - 1, buffer)
            .wait(None)
            .unwrap()
    );
    assert_eq!(from_gpu(address, n), vec![(size - 1) as f32; n]);

    let out: Vec<f32> = (0..size * n).map(|i| (rank * 10 + i / n) as f32).collect();
    let (_, from) = on_gpu(&out);
    let (address, to) = on_gpu(&vec![-1.0; size * n]);
    assert!(
        gpus.all_to_all(Call::bulk("lanes"), from, to)
            .wait(None)
            .unwrap()
    );
    let got = from_gpu(address, size * n);
    assert!((0..size * n).all(|i| got[i] == (i / n * 10 + rank) as f32));

    let log = group.log();
    let entry = log
        .iter()
        .find(|e| e.collective.name == "bucket 1")
        .unwrap();
    assert_eq!(entry.state, State::Done, "{entry}");
    assert_eq!(
        entry.collective.what,
        format!("all_reduce sum of f32 x {n} on GPUs")
    );
}

#[test]
fn values_on_gpus_are_moved_without_the_host() {
    for size in [2, 3] {
        let machine = Machine::whole();
        for (rank, (code, said)) in ranks(&machine, "worker_moves_values_on_gpus", size, &[])
            .into_iter()
            .enumerate()
        {
            assert_eq!(code, Some(0), "rank {rank} of {size}: {said}");
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    }
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn worker_moves_tensors() {
    use burn::tensor::{Device, Tensor};
    let Some(join) = rank(usize::MAX) else { return };
    let group = join().unwrap();
    let (rank, gpus) = (group.rank(), device(&*group));
    let on = Device::cuda(rank);
    let tensor = |value: f32, n: usize| Tensor::<1>::from_data(&vec![value; n][..], &on);
    let bucket = tensor(rank as f32 + 1.0, 100_000);
    let reduce = |call: Call, tensor: &Tensor<1>| {
        let values = nccl::tensor::values(tensor).unwrap();
        gpus.all_reduce(call, ReduceOp::Sum, values)
    };
    let start = || reduce(Call::bulk("bucket"), &bucket);
    // rank 1 gives its gradients only when the small sums are there: these must not wait for those
    let early = (rank == 0).then(start);
    for i in 0..5 {
        let norm = tensor(i as f32 + rank as f32, 64);
        reduce(Call::latency(format!("norm {i}")), &norm)
            .join_stream()
            .unwrap();
        let sum = norm.into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(sum, [2.0 * i as f32 + 1.0; 64], "norm {i}");
    }
    let bulk = early.unwrap_or_else(start);
    bulk.join_stream().unwrap();
    let sum = bucket.clone().into_data().try_to_vec::<f32>().unwrap();
    assert_eq!(sum, vec![3.0; 100_000]);
    let on_cpu = Tensor::<1>::from_data(&[1.0][..], &Device::flex());
    assert!(nccl::tensor::values(&on_cpu).is_err());
}

#[test]
fn tensors_are_summed_where_they_lie_and_small_sums_pass_large_ones() {
    // by events of the context, or without them
    for driver in ["13000", "12040"] {
        let machine = Machine::whole();
        let variables = [("FAKE_CUDA_DRIVER", driver)];
        for (rank, (code, said)) in ranks(&machine, "worker_moves_tensors", 2, &variables)
            .into_iter()
            .enumerate()
        {
            assert_eq!(code, Some(0), "rank {rank}, driver {driver}: {said}");
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    }
}

// Failures.

/// What a rank does: it calls five collectives and ends as `TEST_ROLE` says.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn worker_fails() {
    let Some(join) = rank(usize::MAX) else { return };
    let role = std::env::var("TEST_ROLE").unwrap_or_default();
    let end = || -> Result<(), DistError> {
        let group = join()?;
        let first = group.rank() == 1;
        let gpus = device(&*group);
        for step in 0..5 {
            group.pulse().set_step(step);
            group.beat("backward");
            if first && step == 2 {
                match &role[..] {
                    "die" => std::process::exit(9),
                    "hang" => std::thread::sleep(SOON),
                    "leave" => return Ok(()),
                    "beat" => {
                        for _ in 0..40 {
                            group.beat("validating");
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                    _ => {}
                }
            }
            let len = if role == "count" && first && step == 2 {
                7
            } else {
                100
            };
            let name = if role == "name" && first && step == 2 {
                "other"
            } else {
                "bucket"
            };
            let (_, buffer) = on_gpu(&vec![1.0; len]);
            let handle =
                gpus.all_reduce(Call::bulk(format!("{name} {step}")), ReduceOp::Sum, buffer);
            handle.join_stream()?;
            handle.wait(None)?;
        }
        if role == "name" {
            // nothing on the GPU goes wrong: the ledgers tell
            std::thread::sleep(Duration::from_secs(3));
            let (_, buffer) = on_gpu(&[1.0; 100]);
            gpus.all_reduce(Call::bulk("last"), ReduceOp::Sum, buffer)
                .wait(None)?;
        }
        Ok(())
    };
    match end() {
        Ok(()) => println!("ended well"),
        Err(error) => {
            println!("error: {error}");
            std::process::exit(3);
        }
    }
}

/// How the ranks of a failing run ended, within bounded time; nothing may be left of them.
#[track_caller]
fn failing(role: &str, fail: &str, size: usize, deadline_ms: &str) -> Vec<Ended> {
    let machine = Machine::whole();
    let variables = [
        ("TEST_ROLE", role),
        ("FAKE_NCCL_FAIL", fail),
        ("TEST_DEADLINE_MS", deadline_ms),
    ];
    let begin = Instant::now();
    let ended = ranks(&machine, "worker_fails", size, &variables);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(machine.left(), Vec::<String>::new());
    for (rank, (code, said)) in ended.iter().enumerate() {
        eprintln!(
            "{role:?} {fail:?} rank {rank} {code:?}: {}",
            said.lines()
                .rfind(|l| l.contains("err") || l.contains("well"))
                .unwrap_or("-")
        );
    }
    ended
}

#[test]
fn ranks_that_come_and_go_together_fail_nowhere() {
    for (code, said) in failing("", "", 3, "20000") {
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn a_rank_that_dies_is_named_with_the_collective() {
    // NCCL notices, or only the connection does
    for fail in ["", "silent"] {
        let ended = failing("die", fail, 3, "20000");
        assert_eq!(ended[1].0, Some(9));
        for rank in [0, 2] {
            assert_eq!(ended[rank].0, Some(3));
            says(&ended[rank].1, &["rank 1", "bucket 2"]);
        }
        assert!(ended.iter().any(|(_, said)| said.contains("lost rank 1 in collective \"bucket 2\" (number 2 of the bulk channel, all_reduce sum of f32 x 100 on GPUs, 400 bytes): its process ended")));
    }
}

#[test]
fn a_rank_that_dies_inside_a_collective_is_named() {
    let ended = failing("", "exit@1#2", 2, "20000");
    assert_eq!(ended[1].0, Some(9));
    says(&ended[0].1, &["lost rank 1 in collective \"bucket 2\""]);
}

#[test]
fn a_rank_that_hangs_is_named_at_the_deadline_with_its_last_place() {
    let ended = failing_but("hang", 1, "1500");
    says(
        &ended[0].1,
        &[
            "bucket 2",
            "is not done after 1.5 s: rank 1 did not arrive; rank 1 is at \"backward\" of step 2",
        ],
    );
}

/// As [`failing`], for a rank that hangs longer than the test lasts.
#[track_caller]
fn failing_but(role: &str, hanging: usize, deadline_ms: &str) -> Vec<Ended> {
    let machine = Machine::whole();
    let variables = [("TEST_ROLE", role), ("TEST_DEADLINE_MS", deadline_ms)];
    let (_server, mut workers) = processes("worker_fails", 2, |rank, command| {
        machine.apply(command);
        let file = std::fs::File::create(machine.path(&format!("rank-{rank}"))).unwrap();
        command
            .envs(variables)
            .stdout(file.try_clone().unwrap())
            .stderr(file);
    })
    .unwrap();
    let begin = Instant::now();
    let mut ended = vec![];
    while ended.is_empty() && begin.elapsed() < SOON {
        ended.extend(workers.ended().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    workers.kill_all();
    assert_eq!(ended.len(), 1, "one rank ends by itself");
    assert_ne!(ended[0].0, hanging);
    let said = std::fs::read_to_string(machine.path(&format!("rank-{}", ended[0].0))).unwrap();
    vec![(ended[0].1.code(), said)]
}

#[test]
fn a_rank_that_beats_is_waited_for() {
    for (code, said) in failing("beat", "", 2, "1500") {
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn a_gpu_that_hangs_ends_at_the_deadline() {
    for (code, said) in failing("", "hang@1#2", 2, "1500") {
        assert_eq!(code, Some(3), "{said}");
        says(
            &said,
            &["bucket 2", "not done after 1.5 s", "all ranks arrived"],
        );
    }
}

#[test]
fn a_rank_that_leaves_too_early_is_named() {
    let ended = failing("leave", "", 2, "20000");
    assert_eq!(ended[1].0, Some(0));
    says(
        &ended[0].1,
        &["rank 1 left the group before collective \"bucket 2\""],
    );
}

#[test]
fn an_asynchronous_error_ends_all_ranks() {
    let ended = failing("", "async@1#2", 2, "20000");
    says(
        &ended[1].1,
        &["bucket 2", "over NCCL", "unhandled system error"],
    );
    says(
        &ended[0].1,
        &["rank 1 ended the group", "unhandled system error"],
    );
}

#[test]
fn a_collective_that_nccl_refuses_ends_all_ranks() {
    let ended = failing("", "enqueue@0#2", 2, "20000");
    says(&ended[0].1, &["bucket 2", "invalid usage"]);
    says(&ended[1].1, &["rank 0 ended the group", "invalid usage"]);
}

#[test]
fn counts_that_differ_are_found_and_both_are_named() {
    let ended = failing("count", "", 2, "20000");
    let all: String = ended.iter().map(|(_, said)| &said[..]).collect();
    says(
        &all,
        &[
            "ranks do not agree",
            "all_reduce sum of f32 x 100 on GPUs",
            "all_reduce sum of f32 x 7 on GPUs",
            "bucket 2",
        ],
    );
    assert!(ended.iter().all(|(code, _)| *code == Some(3)));
}

#[test]
fn names_that_differ_are_found_though_nothing_hangs() {
    let ended = failing("name", "", 2, "20000");
    let all: String = ended.iter().map(|(_, said)| &said[..]).collect();
    says(&all, &["ranks do not agree", "bucket 2", "other 2"]);
}

#[test]
fn ranks_that_cannot_be_connected_say_why() {
    for (fail, failed, parts) in [
        ("id", 0, "make a unique id of NCCL"),
        (
            "init@1",
            1,
            "connect 2 ranks over NCCL: unhandled system error",
        ),
    ] {
        let ended = failing("", fail, 2, "20000");
        says(&ended[failed].1, &[parts]);
        says(
            &ended[1 - failed].1,
            &[&format!("rank {failed} ended the group"), parts],
        );
    }
    let ended = failing("", "init-hang@1", 2, "1500");
    assert!(
        ended
            .iter()
            .all(|(code, said)| *code == Some(3) && said.contains("NCCL"))
    );
    let all: String = ended.iter().map(|(_, said)| &said[..]).collect();
    says(&all, &["not done after 1.5 s", "NCCL_SOCKET_IFNAME"]);
}

#[test]
fn one_gpu_is_not_for_two_ranks() {
    let machine = Machine::whole();
    let one = [("CUDA_VISIBLE_DEVICES", "0"), ("TEST_SAME", "1")];
    for (code, said) in ranks(&machine, "worker_shares_a_gpu", 2, &one) {
        assert_eq!(code, Some(0), "{said}");
    }
    let shared = [
        &one[..],
        &[("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("TEST_SAME", "")],
    ]
    .concat();
    for (code, said) in ranks(&machine, "worker_shares_a_gpu", 2, &shared) {
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn worker_shares_a_gpu() {
    let Some((_store, group)) = worker(|_| {}).unwrap() else {
        return;
    };
    let joined = nccl::join(group, &NcclOptions::new(0));
    match std::env::var("TEST_SAME").as_deref() {
        Ok("1") => says(
            &joined.err().unwrap().to_string(),
            &["ranks 0 and 1 have the same GPU"],
        ),
        _ => assert_eq!(joined.unwrap().size(), 2),
    }
}

#[test]
fn an_old_nccl_is_refused() {
    let machine = Machine::whole();
    for (_, said) in ranks(
        &machine,
        "worker_fails",
        2,
        &[("FAKE_NCCL_VERSION", "21403")],
    ) {
        says(&said, &["NCCL 2.14.3", "2.18.0 is needed"]);
    }
}
