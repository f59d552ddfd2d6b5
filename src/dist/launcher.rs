//! Processes that another program started as ranks: what torchrun, srun and mpirun say in the environment.

use super::error::DistError;
use super::master::Master;

/// The program that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or a script that sets the same variables.
    Torchrun,
    Mpirun,
    Srun,
}

impl Launcher {
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Torchrun => "torchrun",
            Launcher::Mpirun => "mpirun",
            Launcher::Srun => "srun",
        }
    }
}

/// This process, as its launcher numbers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    pub by: Launcher,
    pub rank: usize,
    pub size: usize,
    /// Its number on this machine.
    pub local_rank: usize,
    /// Whether all ranks are on this machine.
    pub one_machine: bool,
    /// Where rank 0 listens, if the environment says so.
    pub master: Option<Master>,
    /// The launcher's name of the run: tells runs on one machine apart, and is no secret.
    pub run: String,
}

/// Names of the variables of a launcher.
struct Names {
    by: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    run: &'static [&'static str],
}

/// In order: torchrun may run under srun, mpirun in an allocation of SLURM.
const LAUNCHERS: [Names; 3] = [
    Names {
        by: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        run: &["TORCHELASTIC_RUN_ID"],
    },
    Names {
        by: Launcher::Mpirun,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        run: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Names {
        by: Launcher::Srun,
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        run: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// The job script itself and the shell of `salloc` have the variables of a task, too, but are no step.
const STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];

impl Launched {
    /// `None` where no launcher started this process.
    ///
    /// # Errors
    /// [`DistError::Environment`]: a variable is missing or makes no sense.
    pub fn read() -> Result<Option<Self>, DistError> {
        Launched::from(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    fn from(get: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>, DistError> {
        for names in &LAUNCHERS {
            let whole = get(names.rank).is_some() && get(names.size).is_some();
            let step = || STEP.iter().any(|name| get(name).is_some());
            if !whole || names.by == Launcher::Srun && !step() {
                continue;
            }
            let launched = names.read(&get)?;
            // also a shell that srun has started, in which --device says how many ranks there are
            if launched.by == Launcher::Srun && launched.size == 1 {
                continue;
            }
            return Ok(Some(launched));
        }
        Ok(None)
    }
}

impl Names {
    fn read(&self, get: &impl Fn(&'static str) -> Option<String>) -> Result<Launched, DistError> {
        let wrong = |name, reason| DistError::Environment { name, reason };
        let number = |name: &'static str| -> Result<Option<usize>, DistError> {
            let parsed = |value: String| {
                let number = value.trim().parse();
                number.map_err(|_| wrong(name, format!("{value:?} is no number")))
            };
            get(name).map(parsed).transpose()
        };
        let need = |name: &'static str| {
            number(name)?.ok_or_else(|| {
                wrong(
                    name,
                    format!("is missing, though {} and {} are set", self.rank, self.size),
                )
            })
        };
        // a step may be smaller than its job
        let size = match self.by {
            Launcher::Srun => number("SLURM_STEP_NUM_TASKS")?,
            _ => None,
        };
        let (rank, size) = (need(self.rank)?, size.map_or_else(|| need(self.size), Ok)?);
        let local_rank = need(self.local_rank)?;
        if rank >= size {
            return Err(wrong(
                self.rank,
                format!("there is no rank {rank} among {size}"),
            ));
        }
        let host = get("MASTER_ADDR");
        let port = match get("MASTER_PORT") {
            Some(text) => {
                let port: u16 = text
                    .trim()
                    .parse()
                    .map_err(|_| wrong("MASTER_PORT", format!("{text:?} is no port")))?;
                // torchrun's own store listens on the port itself
                let agent = get("TORCHELASTIC_USE_AGENT_STORE");
                let taken = agent.is_some_and(|a| a.eq_ignore_ascii_case("true") || a == "1");
                let next = if taken {
                    port.checked_add(1)
                } else {
                    Some(port)
                };
                Some(next.ok_or_else(|| {
                    wrong(
                        "MASTER_PORT",
                        format!("{port} is taken by torchrun, and no port follows it"),
                    )
                })?)
            }
            None => None,
        };
        let one_machine = match self.by {
            Launcher::Torchrun => number("LOCAL_WORLD_SIZE")? == Some(size),
            Launcher::Mpirun => number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(size),
            Launcher::Srun => {
                let nodes = [
                    "SLURM_STEP_NUM_NODES",
                    "SLURM_NNODES",
                    "SLURM_JOB_NUM_NODES",
                ];
                let nodes = nodes.into_iter().find(|name| get(name).is_some());
                nodes.map(number).transpose()?.flatten() == Some(1)
            }
        } || size == 1;
        let parts: Vec<String> = self.run.iter().filter_map(|name| get(name)).collect();
        let run = format!("{} {}", self.by.name(), parts.join("."));
        let master = match (host, port) {
            (Some(host), Some(port)) => Some(Master { host, port }),
            (Some(host), None) => Some(Master {
                host,
                port: Master::port_of(&run),
            }),
            (None, Some(port)) if one_machine => Some(Master {
                port,
                ..Master::loopback(&run)
            }),
            (None, _) if one_machine => Some(Master::loopback(&run)),
            (None, _) => None,
        };
        Ok(Launched {
            by: self.by,
            rank,
            size,
            local_rank,
            one_machine,
            master,
            run,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &str) -> Result<Option<Launched>, DistError> {
        Launched::from(|name| {
            pairs.split_whitespace().find_map(|pair| {
                let (n, value) = pair.split_once('=').unwrap();
                (n == name).then(|| value.to_owned())
            })
        })
    }

    fn master(host: &str, port: u16) -> Option<Master> {
        let host = host.into();
        Some(Master { host, port })
    }

    #[test]
    fn a_process_of_a_shell_or_of_a_job_script_is_no_rank() {
        for pairs in [
            "",
            "RANK=3",
            "WORLD_SIZE=2 LOCAL_RANK=0",
            "MASTER_ADDR=a MASTER_PORT=1",
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=7",
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_ID=0",
        ] {
            assert_eq!(read(pairs), Ok(None), "{pairs}");
        }
    }

    #[test]
    fn torchrun_keeps_its_port_for_its_own_store() {
        let torchrun = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x \
                        MASTER_ADDR=node1 MASTER_PORT=29500";
        let found = read(torchrun).unwrap().unwrap();
        assert_eq!(
            (found.by, found.rank, found.size),
            (Launcher::Torchrun, 3, 4)
        );
        assert_eq!((found.local_rank, found.one_machine), (1, false));
        assert_eq!(found.master, master("node1", 29500));
        for (agent, port) in [("True", 29501), ("False", 29500)] {
            let found = read(&format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE={agent}"));
            assert_eq!(found.unwrap().unwrap().master, master("node1", port));
        }
        let last = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=65535 \
                    TORCHELASTIC_USE_AGENT_STORE=True";
        assert!(read(last).is_err());
    }

    #[test]
    fn mpirun_and_srun_on_one_machine_meet_on_loopback_at_a_port_of_the_run() {
        let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                      OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=77";
        let srun = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_JOB_ID=7 \
                    SLURM_STEP_ID=0";
        for (pairs, by, another) in [
            (mpirun, Launcher::Mpirun, mpirun.replace("=77", "=78")),
            (srun, Launcher::Srun, srun.replace("=7 ", "=8 ")),
        ] {
            let found = read(pairs).unwrap().unwrap();
            assert_eq!((found.by, found.rank, found.local_rank), (by, 1, 1));
            assert!(found.one_machine);
            let at = found.master.clone().unwrap();
            assert!(at.host == "127.0.0.1" && at.port >= 20_000);
            assert_eq!(read(pairs).unwrap().unwrap(), found);
            assert_ne!(read(&another).unwrap().unwrap().master, found.master);
            let told = read(&format!("{pairs} MASTER_ADDR=node1 MASTER_PORT=5000"));
            assert_eq!(told.unwrap().unwrap().master, master("node1", 5000));
        }
    }

    #[test]
    fn on_several_machines_the_job_script_says_where_rank_0_is() {
        for pairs in [
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
             OMPI_COMM_WORLD_LOCAL_SIZE=1",
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_STEP_ID=0",
        ] {
            let found = read(pairs).unwrap().unwrap();
            assert_eq!((found.one_machine, found.master), (false, None), "{pairs}");
        }
    }

    #[test]
    fn a_step_of_a_job_has_its_own_size_and_torchrun_within_it_its_own_ranks() {
        let step = "SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=1 \
                    SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=1";
        let found = read(step).unwrap().unwrap();
        assert_eq!((found.rank, found.size, found.one_machine), (1, 2, true));
        let inner = format!("{step} RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=1");
        let found = read(&inner).unwrap().unwrap();
        assert_eq!(
            (found.by, found.rank, found.size),
            (Launcher::Torchrun, 5, 6)
        );
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (pairs, wrong) in [
            ("RANK=0 WORLD_SIZE=2", "LOCAL_RANK"),
            ("RANK=2 WORLD_SIZE=2 LOCAL_RANK=0", "RANK"),
            ("RANK=x WORLD_SIZE=2 LOCAL_RANK=0", "RANK"),
            ("RANK=0 WORLD_SIZE=-1 LOCAL_RANK=0", "WORLD_SIZE"),
            (
                "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=70000",
                "MASTER_PORT",
            ),
        ] {
            let error = read(pairs).unwrap_err();
            let named = matches!(error, DistError::Environment { name, .. } if name == wrong);
            assert!(named, "{pairs}: {error}");
        }
    }
}
