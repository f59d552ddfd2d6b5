//! The group: values of the host go over the network or, where they are many, over NCCL; values on the GPU over NCCL.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::comm::Comm;
use super::engine::{Engine, mesh};
use super::staged::Route;
use crate::dist::buffer::Buffer;
use crate::dist::device::DeviceGroup;
use crate::dist::error::DistError;
use crate::dist::group::{Call, Channel, ProcessGroup, Work};
use crate::dist::handle::{Handle, Output, Promise, lock};
use crate::dist::log::Entry;
use crate::pulse::Pulse;

/// Thread blocks of communicators for small collectives: they leave the GPU to the network's kernels.
pub(super) const FEW: i32 = 4;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    runs: bool,
    closed: bool,
}

/// Jobs of a channel, in order.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    called: Condvar,
}

impl Queue {
    fn push(&self, job: Job) {
        lock(&self.jobs).waiting.push_back(job);
        self.called.notify_all();
    }

    fn serve(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            jobs.runs = false;
            while jobs.waiting.is_empty() && !jobs.closed {
                jobs = self
                    .called
                    .wait(jobs)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let Some(job) = jobs.waiting.pop_front() else {
                return;
            };
            jobs.runs = true;
            drop(jobs);
            job();
        }
    }

    fn is_idle(&self) -> bool {
        let jobs = lock(&self.jobs);
        jobs.waiting.is_empty() && !jobs.runs
    }

    fn close(&self) {
        lock(&self.jobs).closed = true;
        self.called.notify_all();
    }
}

/// What all groups of a process share.
pub(super) struct Core {
    pub(super) engine: Arc<Engine>,
    /// For device collectives: bulk, latency.
    pub(super) comms: [Arc<Comm>; 2],
    /// Held while a device collective is numbered and handed over.
    pub(super) turns: [Mutex<()>; 2],
    queues: [Arc<Queue>; 2],
    threads: Vec<JoinHandle<()>>,
    host_bytes: usize,
    connect: Duration,
}

impl Core {
    pub(super) fn start(
        engine: Arc<Engine>,
        comms: [Arc<Comm>; 2],
        host_bytes: usize,
        connect: Duration,
    ) -> Result<Self, DistError> {
        let mut core = Core {
            engine: engine.clone(),
            comms,
            turns: Default::default(),
            queues: Default::default(),
            threads: vec![],
            host_bytes,
            connect,
        };
        let mut start = |name: String, work: Box<dyn FnOnce() + Send>| -> Result<(), DistError> {
            let thread = std::thread::Builder::new().name(name).spawn(work);
            let thread =
                thread.map_err(|e| DistError::system("start a thread for collectives", e))?;
            core.threads.push(thread);
            Ok(())
        };
        start("dist-nccl".into(), Box::new(move || engine.watch()))?;
        for channel in Channel::ALL {
            let queue = core.queues[channel as usize].clone();
            start(
                format!("dist-nccl-{channel}"),
                Box::new(move || queue.serve()),
            )?;
        }
        Ok(core)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let shared = self.engine.world().shared().clone();
        if !self.queues.iter().all(|q| q.is_idle()) {
            shared.fail(DistError::Closed);
        }
        for queue in &self.queues {
            queue.close();
        }
        self.engine.close();
        for thread in self.threads.drain(..) {
            // It has no panic to tell of: a job's panic is caught.
            let _ = thread.join();
        }
        if shared.failure().is_some() {
            self.engine.abort_all();
        }
    }
}

/// Some of the ranks.
pub(super) struct NcclGroup {
    pub(super) core: Arc<Core>,
    /// The same ranks over the network.
    group: Arc<dyn ProcessGroup>,
    whole: bool,
    /// For values of the host, made when they are needed first: bulk, latency.
    comms: [Arc<OnceLock<Arc<Comm>>>; 2],
}

impl NcclGroup {
    pub(super) fn new(core: Arc<Core>, group: Arc<dyn ProcessGroup>, whole: bool) -> Self {
        NcclGroup {
            core,
            group,
            whole,
            comms: Default::default(),
        }
    }

    /// Whether values go over the GPU: every rank comes to the same.
    fn goes_over_gpu(&self, work: &Work) -> bool {
        let least = self.core.host_bytes;
        match work {
            Work::Send(..) | Work::Recv(..) => false,
            Work::AllReduce(_, b)
            | Work::ReduceScatter(_, b, _)
            | Work::AllGather(b)
            | Work::Broadcast(_, b) => b.bytes().len() >= least,
            Work::AllReduceTree(p) => Buffer::zeros(p.dtype, 1).bytes().len() * p.len >= least,
            // each rank knows its own length alone
            Work::AllGatherVariable(_) | Work::AllToAll(_) | Work::Barrier => least == 0,
        }
    }

    /// The job that does `work`, which ends by keeping `promise`.
    fn job(&self, call: Call, work: Work, promise: Arc<Promise>) -> Job {
        let over_gpu = self.goes_over_gpu(&work);
        let (engine, group) = (self.core.engine.clone(), self.group.clone());
        let comm = self.comms[call.channel as usize].clone();
        let connect = self.core.connect;
        Box::new(move || {
            let work = || match over_gpu {
                false => group.run(call, work),
                true => {
                    let comm = communicator(&engine, &group, &comm, call.channel, connect)?;
                    let route = Route {
                        engine: &engine,
                        group: &group,
                        comm: &comm,
                        stream: 2 + call.channel as usize,
                    };
                    route.run(&call, work)
                }
            };
            // A panic here would be a defect; nobody is to wait for ever because of it.
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                let error = DistError::system("run a collective", "the program panicked");
                Err(engine.fail(error))
            });
            promise.fill(result);
        })
    }
}

/// The communicator of a group for values of the host; the first call makes it, on all ranks.
fn communicator(
    engine: &Engine,
    group: &Arc<dyn ProcessGroup>,
    place: &OnceLock<Arc<Comm>>,
    channel: Channel,
    connect: Duration,
) -> Result<Arc<Comm>, DistError> {
    if let Some(comm) = place.get() {
        return Ok(comm.clone());
    }
    let call = Call {
        channel,
        ..Call::latency("NCCL's unique id")
    };
    let [id] = super::unique_ids(engine.api, group, call)?;
    let ranks = mesh(group).expect("`join` has made sure of it");
    let comm = engine.connect(ranks, Some(FEW), connect, id)?;
    Ok(place.get_or_init(|| comm).clone())
}

impl ProcessGroup for NcclGroup {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn engine(&self) -> &'static str {
        "nccl"
    }

    fn sharing(&self) -> usize {
        self.group.sharing()
    }

    fn start(&self, call: Call, work: Work) -> Handle<Output> {
        let promise = Arc::new(Promise::default());
        let queue = &self.core.queues[call.channel as usize];
        queue.push(self.job(call, work, promise.clone()));
        Handle::new(promise)
    }

    fn split(
        &self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, DistError> {
        // after all that was called before on this channel
        let (done, wait) = std::sync::mpsc::channel();
        let group = self.group.clone();
        self.core.queues[Channel::Latency as usize].push(Box::new(move || {
            // Nobody may be waiting any more.
            let _ = done.send(group.split(colour, key));
        }));
        let part = wait.recv().map_err(|_| DistError::Closed)??;
        let core = &self.core;
        let wrap =
            |part| Arc::new(NcclGroup::new(core.clone(), part, false)) as Arc<dyn ProcessGroup>;
        Ok(part.map(wrap))
    }

    fn log(&self) -> Vec<Entry> {
        self.group.log()
    }

    fn abort(&self, reason: &str) {
        // the watching thread ends what is under way on the GPU
        self.group.abort(reason);
    }

    fn set_deadline(&self, deadline: Duration) {
        self.group.set_deadline(deadline);
    }

    fn exit_when_stuck(&self) {
        self.group.exit_when_stuck();
    }

    fn pulse(&self) -> Pulse {
        self.group.pulse()
    }

    fn carries_beats(&self) -> bool {
        self.group.carries_beats()
    }

    fn device(&self) -> Option<&dyn DeviceGroup> {
        self.whole.then_some(self as &dyn DeviceGroup)
    }
}
