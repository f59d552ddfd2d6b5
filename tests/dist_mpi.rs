//! The suite of the process group over MPI. Built with feature `mpi`; each test is its own job, for example
//!
//! ```sh
//! cargo test --release --features mpi --test dist_mpi --no-run
//! mpirun --allow-run-as-root --oversubscribe -n 4 target/release/deps/dist_mpi-… --exact --ignored --test-threads=1 \
//!     every_collective_gives_what_the_oracle_says
//! ```
//!
//! or `scripts/test-mpi.sh`.
#![cfg(feature = "mpi")]

#[path = "support/collectives.rs"]
mod collectives;

use std::time::Duration;

use yolo_train::dist::{Buffer, Call, DistError, ProcessGroup, ReduceOp, handshake, mpi};

fn join() -> std::sync::Arc<dyn ProcessGroup> {
    mpi::join(Duration::from_secs(20)).unwrap()
}

#[test]
#[ignore = "run under mpirun"]
fn every_collective_gives_what_the_oracle_says() {
    let group = join();
    assert_eq!(group.engine(), "mpi");
    for seed in 0..4 {
        collectives::run(&*group, seed, 25);
    }
    collectives::messages(&*group, 1);
    if group.size() > 1 {
        collectives::subgroups(&*group, 2);
    }
    handshake(&*group, &[("version", "0.1.0".to_owned())]).unwrap();
}

#[test]
#[ignore = "run under mpirun"]
fn different_collectives_are_an_error_on_every_rank() {
    let group = join();
    let name = if group.rank() == 1 { "other" } else { "loss" };
    let error = group
        .all_reduce(
            Call::latency(name),
            ReduceOp::Sum,
            Buffer::F32(vec![1.0; 8]),
        )
        .wait()
        .unwrap_err();
    assert!(matches!(error, DistError::Mismatch { .. }), "{error}");
    println!("rank {}: {error}", group.rank());
}

#[test]
#[ignore = "run under mpirun"]
fn a_panic_ends_the_job() {
    let group = join();
    if group.rank() == 1 {
        panic!("rank 1 panics");
    }
    let result = group
        .all_reduce(
            Call::latency("never").within(Duration::from_secs(60)),
            ReduceOp::Sum,
            Buffer::F32(vec![1.0; 8]),
        )
        .wait();
    panic!("the job goes on: {result:?}");
}
