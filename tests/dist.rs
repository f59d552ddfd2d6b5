//! The process group: the same collectives over every engine, and what happens when ranks fail.

#[path = "support/collectives.rs"]
mod collectives;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use yolo_train::dist::store::{StoreClient, StoreServer};
use yolo_train::dist::tcp::{TcpOptions, Transport, join};
use yolo_train::dist::testing::{groups, local, processes, threads, worker};
use yolo_train::dist::tree::lanes_of;
use yolo_train::dist::{
    Buffer, Call, DType, DistError, Partials, REMEMBERED, ReduceOp, State, handshake,
};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Sockets];
/// Far more than anything takes here, less than the deadlines of collectives that must not be waited for.
const SOON: Duration = Duration::from_secs(10);

fn ones(len: usize) -> Buffer {
    Buffer::F32(vec![1.0; len])
}

// The same suite over every engine.

#[test]
fn every_collective_gives_what_the_oracle_says_on_1_to_5_ranks() {
    for transport in TRANSPORTS {
        for size in 1..=5 {
            threads(size, transport, |group| {
                for seed in 0..2 {
                    collectives::run(group, seed * 100 + size as u64, 25);
                }
                collectives::messages(group, 3);
            });
        }
    }
}

#[test]
fn subgroups_work_like_groups() {
    for transport in TRANSPORTS {
        for size in [2, 5] {
            threads(size, transport, |group| collectives::subgroups(group, 9));
        }
    }
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn worker_runs_the_suite() {
    let Some((_store, group)) = worker(|_| {}).unwrap() else {
        return;
    };
    for seed in 0..3 {
        collectives::run(&*group, seed, 25);
    }
    collectives::messages(&*group, 1);
    collectives::subgroups(&*group, 2);
}

#[test]
fn every_collective_gives_what_the_oracle_says_over_processes() {
    for transport in ["auto", "sockets"] {
        for size in [2, 3] {
            let (_server, mut workers) = processes("worker_runs_the_suite", size, |_, command| {
                command.env(Transport::VARIABLE, transport);
            })
            .unwrap();
            let ended = workers.wait(Duration::from_secs(60)).unwrap();
            assert_eq!(ended.len(), size, "a rank hangs");
            for (rank, status) in ended {
                assert!(status.success(), "rank {rank}, {transport}: {status}");
            }
        }
    }
}

#[test]
fn a_sum_over_lanes_has_the_same_bits_on_1_2_3_and_4_ranks() {
    let len = 200_003;
    let lanes: Vec<Buffer> = (0..4)
        .map(|l| collectives::values(DType::F32, len, l))
        .collect();
    let sum = |size: usize, transport: Transport| {
        threads(size, transport, |group| {
            let own = lanes[lanes_of(group.rank(), size, 4)].to_vec();
            let partials = Partials::by_lane(4, DType::F32, len, own.into_iter().map(Some));
            group
                .all_reduce_tree(Call::bulk("gradients"), partials)
                .wait()
                .unwrap()
        })
    };
    let one = sum(1, Transport::Auto).remove(0);
    let parts: Vec<_> = lanes.iter().cloned().map(Some).collect();
    let expected = collectives::oracle(&parts, DType::F32, len, ReduceOp::Sum);
    assert_eq!(one.bytes(), expected.bytes());
    for transport in TRANSPORTS {
        for size in 2..=4 {
            for (rank, other) in sum(size, transport).iter().enumerate() {
                assert!(other.bytes() == one.bytes(), "rank {rank} of {size}");
            }
        }
    }
}

// Asynchrony.

#[test]
fn a_small_collective_passes_a_large_one_that_waits() {
    threads(2, Transport::Auto, |group| {
        let large = (group.rank() == 0)
            .then(|| group.all_reduce(Call::bulk("bucket"), ReduceOp::Sum, ones(3_000_000)));
        let small = group
            .all_reduce(Call::latency("statistics"), ReduceOp::Sum, ones(3))
            .wait()
            .unwrap();
        assert_eq!(small, Buffer::F32(vec![2.0; 3]));
        let large = match large {
            Some(handle) => {
                assert!(!handle.is_done());
                assert!(!handle.wait_deadline(Instant::now() + Duration::from_millis(20)));
                group.barrier(Call::latency("go")).wait().unwrap();
                assert!(handle.wait_deadline(Instant::now() + SOON));
                assert!(handle.is_done());
                handle
            }
            None => {
                group.barrier(Call::latency("go")).wait().unwrap();
                group.all_reduce(Call::bulk("bucket"), ReduceOp::Sum, ones(3_000_000))
            }
        };
        assert_eq!(large.wait().unwrap(), Buffer::F32(vec![2.0; 3_000_000]));
    });
}

#[test]
fn a_collective_whose_handle_is_dropped_goes_on() {
    threads(2, Transport::Auto, |group| {
        drop(group.all_reduce(Call::bulk("dropped"), ReduceOp::Sum, ones(100_000)));
        let next = group.all_reduce(Call::bulk("next"), ReduceOp::Sum, ones(1));
        assert_eq!(next.wait().unwrap(), Buffer::F32(vec![2.0]));
    });
}

#[test]
fn the_last_hundred_collectives_are_in_the_log() {
    for size in [1, 2] {
        threads(size, Transport::Auto, |group| {
            for i in 0..REMEMBERED + 7 {
                let call = Call::latency(format!("number {i}"));
                group
                    .all_reduce(call, ReduceOp::Max, Buffer::I64(vec![1, 2]))
                    .wait()
                    .unwrap();
            }
            let log = group.log();
            assert_eq!(log.len(), REMEMBERED);
            for (i, entry) in log.iter().enumerate() {
                assert_eq!(entry.collective.name, format!("number {}", i + 7));
                assert_eq!(entry.collective.sequence, i as u64 + 7);
                assert_eq!(entry.collective.what, "all_reduce max of i64 x 2");
                assert_eq!(entry.state, State::Done);
                assert!(entry.began.unwrap() <= entry.ended.unwrap());
            }
        });
    }
}

// Faults.

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn worker_reduces_until_an_error() {
    let Some((store, group)) = worker(|o| o.deadline = Duration::from_secs(60)).unwrap() else {
        return;
    };
    let mut buffer = ones(4_000_000);
    for i in 0.. {
        match group
            .all_reduce(Call::bulk(format!("step {i}")), ReduceOp::Max, buffer)
            .wait()
        {
            Ok(result) => buffer = result,
            Err(error) => {
                let key = format!("error/{}", group.rank());
                store.set(&key, error.to_string().as_bytes()).unwrap();
                return;
            }
        }
        if i == 3 {
            store.add("ready", 1).unwrap();
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_an_all_reduce_is_named_by_the_others() {
    for transport in ["auto", "sockets"] {
        let size = 3;
        let (server, mut workers) =
            processes("worker_reduces_until_an_error", size, |_, command| {
                command.env(Transport::VARIABLE, transport);
            })
            .unwrap();
        let store =
            StoreClient::connect(&server.address().to_string(), server.token(), SOON).unwrap();
        let begin = Instant::now();
        while store.add("ready", 0).unwrap() < size as i64 {
            assert!(begin.elapsed() < 2 * SOON, "the ranks do not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        workers.kill(1).unwrap();
        let killed = Instant::now();
        for rank in [0, 2] {
            let error = store
                .wait(&format!("error/{rank}"), SOON)
                .unwrap()
                .expect("an error, not a hang");
            let error = String::from_utf8(error).unwrap();
            assert!(error.contains("lost rank 1"), "rank {rank}: {error}");
            assert!(error.contains("step "), "rank {rank}: {error}");
        }
        println!("{transport}: errors {:?} after the kill", killed.elapsed());
    }
}

#[test]
fn a_rank_that_never_arrives_is_named_after_the_deadline() {
    for transport in TRANSPORTS {
        let errors = threads(3, transport, |group| {
            if group.rank() == 2 {
                std::thread::sleep(Duration::from_millis(600));
            }
            let call = Call::bulk("bucket 7").within(Duration::from_millis(200));
            group
                .all_reduce(call, ReduceOp::Sum, ones(1000))
                .wait()
                .unwrap_err()
        });
        let named = |e: &DistError| {
            matches!(e, DistError::Deadline { absent, collective, .. }
                if *absent == [2] && collective.name == "bucket 7" && collective.bytes == 4000)
        };
        // One of the two sees it first and tells the others.
        assert!(errors[..2].iter().any(named), "{errors:?}");
        for error in &errors {
            assert!(
                error.to_string().contains("rank 2 did not arrive"),
                "{error}"
            );
        }
    }
}

#[test]
fn different_collectives_are_an_error_on_every_rank() {
    let usual = || ("loss", ReduceOp::Sum, ones(1000));
    let others = [
        ("normaliser", ReduceOp::Sum, ones(1000)),
        ("loss", ReduceOp::Max, ones(1000)),
        ("loss", ReduceOp::Sum, ones(1001)),
        ("loss", ReduceOp::Sum, Buffer::F64(vec![1.0; 1000])),
        ("loss", ReduceOp::Sum, ones(400_000)),
    ];
    for (name, op, buffer) in others {
        for transport in TRANSPORTS {
            let errors = threads(3, transport, |group| {
                let (name, op, buffer) = if group.rank() == 1 {
                    (name, op, buffer.clone())
                } else {
                    usual()
                };
                group
                    .all_reduce(Call::latency(name), op, buffer)
                    .wait()
                    .unwrap_err()
            });
            for (rank, error) in errors.iter().enumerate() {
                let text = error.to_string();
                assert!(text.contains("do not agree"), "rank {rank}: {text}");
                assert!(text.contains("loss") && text.contains(name), "{text}");
            }
        }
    }
}

#[test]
fn different_kinds_of_collectives_are_an_error_on_every_rank() {
    let errors = threads(2, Transport::Auto, |group| match group.rank() {
        0 => group.barrier(Call::bulk("x")).wait().unwrap_err(),
        _ => group
            .recv(Call::bulk("x"), 0, DType::F32)
            .wait()
            .map(|_| ())
            .unwrap_err(),
    });
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains("barrier") && text.contains("send/recv"),
            "{text}"
        );
    }
}

#[test]
fn arguments_without_sense_are_an_error_everywhere_and_not_a_hang() {
    let errors = threads(2, Transport::Auto, |group| {
        let parts = if group.rank() == 0 { 2 } else { 3 };
        let partials = Partials::by_lane(4, DType::F32, 10, (0..parts).map(|_| Some(ones(10))));
        group
            .all_reduce_tree(Call::latency("sums"), partials)
            .wait()
            .unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("3 parts"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    for transport in TRANSPORTS {
        let mut groups = groups(2, |o| o.transport = transport).unwrap();
        let (one, zero) = (groups.pop().unwrap(), groups.pop().unwrap());
        let leaving = std::thread::spawn(move || drop(one));
        let error = zero
            .all_reduce(Call::bulk("late"), ReduceOp::Sum, ones(10))
            .wait()
            .unwrap_err();
        assert!(
            matches!(error, DistError::PeerLeft { rank: 1, .. }),
            "{error}"
        );
        leaving.join().unwrap();
    }
}

#[test]
fn an_abort_ends_what_the_others_wait_for() {
    let errors = threads(3, Transport::Auto, |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(50));
            group.abort("the disk is full");
        }
        group.barrier(Call::bulk("end")).wait().unwrap_err()
    });
    for error in errors {
        assert_eq!(
            error.to_string(),
            "rank 1 ended the group: the disk is full"
        );
    }
}

// Rendezvous.

#[test]
fn ranks_that_do_not_come_are_listed() {
    let server = StoreServer::bind(local(), 0, "t").unwrap();
    let address = server.address().to_string();
    let errors: Vec<DistError> = std::thread::scope(|scope| {
        let come = [0, 2].map(|rank| {
            let address = &address;
            scope.spawn(move || {
                let store = StoreClient::connect(address, "t", SOON).unwrap();
                let mut options = TcpOptions::new(rank, 4, "t");
                options.rendezvous = Duration::from_millis(300);
                join(&store, &options).err().unwrap()
            })
        });
        come.into_iter().map(|c| c.join().unwrap()).collect()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("ranks 1 and 3 did not come"), "{text}");
        assert!(text.contains("2 of 4"), "{text}");
    }
}

#[test]
fn another_token_is_refused() {
    let server = StoreServer::bind(local(), 0, "the right one").unwrap();
    let address = server.address().to_string();
    let error = StoreClient::connect(&address, "the wrong one", SOON)
        .err()
        .unwrap();
    assert!(error.to_string().contains("YOLO_TRAIN_TOKEN"), "{error}");
    let store = StoreClient::connect(&address, "the right one", SOON).unwrap();
    store.set("key", b"value").unwrap();
    assert_eq!(store.get("key").unwrap().unwrap(), b"value");
}

#[test]
fn a_store_keeps_counts_and_waits() {
    let server = StoreServer::bind(local(), 0, "t").unwrap();
    let address = server.address().to_string();
    let store = StoreClient::connect(&address, "t", SOON).unwrap();
    assert_eq!(store.get("absent").unwrap(), None);
    assert_eq!(
        store.wait("absent", Duration::from_millis(30)).unwrap(),
        None
    );
    assert_eq!(store.add("count", 3).unwrap(), 3);
    assert_eq!(store.add("count", -1).unwrap(), 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = StoreClient::connect(&address, "t", SOON).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            other.set("late", b"here").unwrap();
        });
        assert_eq!(store.wait("late", SOON).unwrap().unwrap(), b"here");
    });
    assert_eq!(store.keys("c").unwrap(), ["count"]);
    store.set("text", b"no number").unwrap();
    assert!(store.add("text", 1).is_err());
    assert_eq!(store.add("count", 0).unwrap(), 2, "the connection lives on");
}

/// What may come to an open port.
fn garbage(address: &str) -> Vec<TcpStream> {
    let mut kept = Vec::new();
    let pieces: [&[u8]; 6] = [
        b"",
        b"\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0; 4096],
        b"\x10\x00\x00\x00\x0c\x00\x00\x00yolo-train",
    ];
    for piece in pieces {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may already have been closed at the other side.
        let _ = stream.write_all(piece);
        kept.push(stream);
        drop(TcpStream::connect(address).unwrap());
    }
    kept
}

#[test]
fn garbage_on_the_ports_disturbs_nobody() {
    let server = StoreServer::bind(local(), 0, "t").unwrap();
    let address = server.address().to_string();
    let held = garbage(&address);
    let sums: Vec<Buffer> = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let address = &address;
            scope.spawn(move || {
                let store = StoreClient::connect(address, "t", SOON).unwrap();
                let mut held = Vec::new();
                if rank == 1 {
                    // Rank 0 listens already and waits for this one.
                    let port = store.wait("ranks/address/0", SOON).unwrap().unwrap();
                    held = garbage(std::str::from_utf8(&port).unwrap());
                }
                let mut options = TcpOptions::new(rank, 2, "t");
                options.rendezvous = SOON;
                let group = join(&store, &options).unwrap();
                drop(held);
                group
                    .all_reduce(Call::bulk("sum"), ReduceOp::Sum, ones(2))
                    .wait()
                    .unwrap()
            })
        });
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert_eq!(sums, vec![Buffer::F32(vec![2.0; 2]); 2]);
    // Whoever is no rank gets nothing but a closed connection.
    for mut stream in held.into_iter().skip(2).take(2) {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
}

#[test]
fn ranks_that_are_not_the_same_are_told_apart_before_they_start() {
    let results = threads(3, Transport::Auto, |group| {
        let isa = if group.rank() == 2 { "avx2" } else { "avx512" };
        let fields = [("version", "0.1.0".to_owned()), ("isa", isa.to_owned())];
        handshake(group, &fields)
    });
    for result in results {
        assert_eq!(
            result.unwrap_err().to_string(),
            "rank 2 differs from rank 0 in isa: \"avx2\" there, \"avx512\" on rank 0"
        );
    }
    let results = threads(3, Transport::Auto, |group| {
        handshake(group, &[("version", "0.1.0".to_owned())])
    });
    assert!(results.iter().all(Result::is_ok));
}
