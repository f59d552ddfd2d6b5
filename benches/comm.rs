//! Latency and bandwidth of collectives between processes of this machine:
//! `cargo bench --bench comm -- [ranks] [auto|sockets] [bytes,bytes,...]`.

use std::process::Command;
use std::time::Duration;

use yolo_train::dist::DistError;
use yolo_train::dist::bench::{Measured, SIZES, measure};
use yolo_train::dist::launch::{Environment, Workers};
use yolo_train::dist::store::{StoreClient, StoreServer, random_token};
use yolo_train::dist::tcp::{TcpOptions, Transport, join};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let sizes = match arguments.get(2) {
        Some(list) => list
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<usize>, _>>()?,
        None => SIZES.to_vec(),
    };
    if let Some(environment) = Environment::read()? {
        return Ok(rank(&environment, &sizes)?);
    }
    let size: usize = arguments.first().map_or(Ok(2), |a| a.parse())?;
    let token = random_token()?;
    let server = StoreServer::bind([127, 0, 0, 1], 0, &token)?;
    let mut workers = Workers::new();
    for rank in 0..size {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&arguments);
        if let Some(transport) = arguments.get(1) {
            command.env(Transport::VARIABLE, transport);
        }
        let environment = Environment {
            rank,
            size,
            store: server.address().to_string(),
            token: token.clone(),
        };
        workers.spawn(command, &environment)?;
    }
    for (rank, status) in workers.wait(Duration::from_secs(600))? {
        if !status.success() {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}

fn rank(environment: &Environment, sizes: &[usize]) -> Result<(), DistError> {
    let mut options = TcpOptions::new(environment.rank, environment.size, &environment.token[..]);
    options.transport = Transport::from_environment()?;
    let store = StoreClient::connect(
        &environment.store,
        &environment.token,
        Duration::from_secs(20),
    )?;
    let group = join(&store, &options)?;
    for measured in [Measured::AllReduce, Measured::AllReduceTree] {
        for row in measure(&*group, measured, sizes)? {
            if group.rank() == 0 {
                println!(
                    "{:<14} {:>9} B  best {:>8.3} ms  median {:>8.3} ms  {:>6.2} GB/s",
                    format!("{measured:?}"),
                    row.bytes,
                    row.best * 1e3,
                    row.median * 1e3,
                    row.gigabytes_per_second(),
                );
            }
        }
    }
    Ok(())
}
