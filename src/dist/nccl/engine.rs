//! Collectives that are under way on the GPU, and the thread that watches them: it notices what is done, what does not come
//! to an end and why, and ends everything then.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::api::Api;
use super::comm::{CallError, Comm};
use super::gpu::{Event, Gpu, Stream};
use super::ledger::Ledger;
use crate::dist::error::{Collective, DistError};
use crate::dist::group::{Channel, ProcessGroup};
use crate::dist::handle::lock;
use crate::dist::log::Ticket;
use crate::dist::mesh::MeshGroup;
use crate::dist::mesh::shared::Gone;

/// Between looks at collectives that are under way.
const LOOK: Duration = Duration::from_micros(100);
/// Between looks where none is.
const IDLE: Duration = Duration::from_millis(100);
/// For another rank's account of an error, and for what is under way from a rank that is gone.
const PATIENCE: Duration = Duration::from_millis(400);
/// A rank that left in an orderly way may still be finishing its part.
const LEAVING: Duration = Duration::from_secs(2);
/// How long a waiting host tries again before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(200);
/// For collectives to end when the group is closed.
const LAST: Duration = Duration::from_secs(5);

/// What identifies a collective, and how long it may take.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) collective: Collective,
    pub(super) ticket: Ticket,
    /// World ranks that take part.
    pub(super) members: Arc<Vec<usize>>,
    /// Whether it is in the ledger, under its number.
    pub(super) entered: bool,
    pub(super) deadline: Duration,
}

#[derive(Default)]
struct Progress {
    /// When all earlier ones of its stream were over.
    begun: Option<Instant>,
    end: Option<Result<(), DistError>>,
    /// Memory that the GPU uses.
    keep: Option<Box<dyn Any + Send>>,
}

/// A collective that the GPU has been given.
pub(super) struct Flight {
    task: Task,
    comm: Arc<Comm>,
    /// Those of one stream come one after the other.
    stream: usize,
    done: Event,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Flight {
    /// Lets what is handed to the GPU from now on come after it; waits on the host where the driver cannot.
    pub(super) fn join(&self) -> Result<(), DistError> {
        if let Some(end) = &lock(&self.progress).end {
            return end.clone();
        }
        if self.done.before_everything()? {
            return Ok(());
        }
        self.wait(None).map(|_| ())
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.progress).end.is_some()
    }

    /// Waits for its end, at most until `deadline`; the watching thread sees to it that it comes.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<bool, DistError> {
        let began = Instant::now();
        while began.elapsed() < SPIN {
            if let Some(end) = &lock(&self.progress).end {
                return end.clone().map(|()| true);
            }
            // quicker than the watching thread, which looks less often
            if self.done.has_passed()? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        let mut progress = lock(&self.progress);
        loop {
            if let Some(end) = &progress.end {
                return end.clone().map(|()| true);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            progress = self
                .changed
                .wait_timeout(progress, left.unwrap_or(IDLE).min(IDLE))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// What it kept, after a good end.
    pub(super) fn kept(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.progress).keep.take()
    }

    fn finish(&self, end: Result<(), DistError>) {
        let mut progress = lock(&self.progress);
        if progress.end.is_none() {
            progress.end = Some(end);
        }
        self.changed.notify_all();
    }
}

/// The GPU of this rank, with what is under way on it.
pub(super) struct Engine {
    pub(super) api: &'static Api,
    pub(super) gpu: Arc<Gpu>,
    /// Of device collectives: bulk, latency; of values of the host: bulk, latency.
    pub(super) streams: [Arc<Stream>; 4],
    /// All ranks over the network.
    world: Arc<dyn ProcessGroup>,
    pub(super) ledger: Arc<Ledger>,
    comms: Mutex<Vec<Weak<Comm>>>,
    flights: Mutex<Vec<Arc<Flight>>>,
    /// A flight came, or the group is closed.
    called: Condvar,
    closing: AtomicBool,
}

/// The control plane behind a group.
pub(super) fn mesh(group: &Arc<dyn ProcessGroup>) -> Option<&MeshGroup> {
    let any: &dyn Any = &**group;
    any.downcast_ref()
}

impl Engine {
    pub(super) fn new(
        api: &'static Api,
        gpu: Arc<Gpu>,
        world: Arc<dyn ProcessGroup>,
        ledger: Arc<Ledger>,
    ) -> Result<Self, DistError> {
        let stream = || Stream::new(&gpu).map(Arc::new);
        Ok(Engine {
            streams: [stream()?, stream()?, stream()?, stream()?],
            api,
            gpu,
            world,
            ledger,
            comms: Mutex::default(),
            flights: Mutex::default(),
            called: Condvar::new(),
            closing: AtomicBool::new(false),
        })
    }

    pub(super) fn world(&self) -> &MeshGroup {
        mesh(&self.world).expect("`join` has made sure of it")
    }

    /// The error that ended the group.
    pub(super) fn failure(&self) -> Option<DistError> {
        self.world().shared().failure()
    }

    /// Brings up a communicator with the ranks of `group`, which are there already.
    pub(super) fn connect(
        &self,
        group: &MeshGroup,
        max_ctas: Option<i32>,
        deadline: Duration,
        id: [u8; 128],
    ) -> Result<Arc<Comm>, DistError> {
        self.gpu.enter()?;
        let members = group.members();
        let trouble = || self.failure().or_else(|| self.gone(members, None));
        let place = (group.rank(), group.size());
        let comm = Comm::join(self.api, id, place, max_ctas, deadline, &trouble);
        let comm = comm
            .map_err(|error| self.world().fail(error))
            .map(Arc::new)?;
        lock(&self.comms).push(Arc::downgrade(&comm));
        Ok(comm)
    }

    /// Hands a collective to the GPU: `enqueue` calls NCCL with the communicator and the stream.
    pub(super) fn launch(
        &self,
        task: Task,
        comm: &Arc<Comm>,
        stream: usize,
        keep: Box<dyn Any + Send>,
        enqueue: impl FnOnce(&Api, *mut std::ffi::c_void, *mut std::ffi::c_void) -> i32,
    ) -> Result<Arc<Flight>, DistError> {
        let log = &self.world().shared().log;
        log.began(task.ticket);
        let begun = Instant::now();
        let fail = |error: DistError| {
            let error = self.fail(error);
            log.ended(task.ticket, Some(error.to_string()));
            error
        };
        if let Some(error) = self.failure() {
            log.ended(task.ticket, Some(error.to_string()));
            return Err(error);
        }
        self.gpu.enter()?;
        let on = self.streams[stream].clone();
        let raw = on.raw();
        let called = comm.call(&|| self.judge(&task, begun), |api, comm| {
            enqueue(api, comm, raw)
        });
        if let Err(error) = called {
            // the GPU may have been given a part of it
            std::mem::forget(keep);
            return Err(fail(match error {
                CallError::Group(error) => error,
                CallError::Nccl(text) => self.explain(&task, text),
            }));
        }
        let done = match on.mark() {
            Ok(done) => done,
            Err(error) => {
                std::mem::forget(keep);
                return Err(fail(error));
            }
        };
        let flight = Arc::new(Flight {
            task,
            comm: comm.clone(),
            stream,
            done,
            progress: Mutex::new(Progress {
                keep: Some(keep),
                ..Progress::default()
            }),
            changed: Condvar::new(),
        });
        lock(&self.flights).push(flight.clone());
        self.called.notify_all();
        Ok(flight)
    }

    /// Whether something is under way on a stream.
    pub(super) fn is_busy(&self, stream: usize) -> bool {
        lock(&self.flights).iter().any(|f| f.stream == stream)
    }

    /// The watching thread.
    pub(super) fn watch(&self) {
        loop {
            let mut flights = lock(&self.flights);
            if flights.is_empty() {
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                flights = self
                    .called
                    .wait_timeout(flights, IDLE)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            let under_way = flights.clone();
            drop(flights);
            if let Some(error) = self.look(&under_way) {
                self.fail(error);
                // what was called meanwhile is on its way to the same error
                lock(&self.flights).retain(|f| !f.is_over());
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
            }
            std::thread::sleep(if under_way.is_empty() {
                Duration::ZERO
            } else {
                LOOK
            });
        }
    }

    /// One look: takes away what is done; an error where something cannot come to an end.
    fn look(&self, under_way: &[Arc<Flight>]) -> Option<DistError> {
        let mut waits = [false; 4];
        let mut heads: Vec<&Arc<Flight>> = vec![];
        let mut done = false;
        for flight in under_way {
            if waits[flight.stream] {
                continue;
            }
            match flight.done.has_passed() {
                Ok(true) => {
                    done = true;
                    self.world().shared().log.ended(flight.task.ticket, None);
                    flight.finish(Ok(()));
                }
                Ok(false) => {
                    waits[flight.stream] = true;
                    heads.push(flight);
                }
                Err(error) => return Some(error),
            }
        }
        if done {
            let mut flights = lock(&self.flights);
            flights.retain(|f| !f.is_over());
        }
        if let Some(error) = self.failure() {
            return (!heads.is_empty()).then_some(error);
        }
        if let Some(found) = self.ledger.difference() {
            return Some(DistError::Mismatch {
                rank: self.world().rank(),
                here: Box::new(found.here),
                other: found.other,
                there: found.there,
            });
        }
        heads.iter().find_map(|flight| {
            let begun = *lock(&flight.progress)
                .begun
                .get_or_insert_with(Instant::now);
            if let Err(text) = flight.comm.state() {
                return Some(self.explain(&flight.task, text));
            }
            self.judge(&flight.task, begun)
        })
    }

    /// Why a collective cannot come to an end, if it cannot.
    fn judge(&self, task: &Task, begun: Instant) -> Option<DistError> {
        self.failure()
            .or_else(|| self.gone(&task.members, Some(&task.collective)))
            .or_else(|| self.late(task, begun))
    }

    /// A rank of `members` that is gone.
    fn gone(&self, members: &[usize], collective: Option<&Collective>) -> Option<DistError> {
        let shared = self.world().shared();
        let coming_up = || Collective {
            sequence: 0,
            name: "connect over NCCL".into(),
            what: "not a collective yet".into(),
            bytes: 0,
            channel: Channel::Bulk,
        };
        members.iter().find_map(|&rank| {
            let collective = || Box::new(collective.cloned().unwrap_or_else(coming_up));
            match shared.gone(rank)? {
                (Gone::Lost(reason), since) if since > PATIENCE => Some(DistError::PeerLost {
                    rank,
                    collective: collective(),
                    reason,
                }),
                (Gone::Left, since) if since > LEAVING => Some(DistError::PeerLeft {
                    rank,
                    collective: collective(),
                }),
                _ => None,
            }
        })
    }

    /// Past the deadline: the error, unless all that are waited for have beaten since.
    fn late(&self, task: &Task, begun: Instant) -> Option<DistError> {
        let now = Instant::now();
        if now.saturating_duration_since(begun) < task.deadline {
            return None;
        }
        let (world, collective) = (self.world(), &task.collective);
        let (shared, me) = (world.shared(), world.rank());
        let mut absent = match task.entered {
            true => self
                .ledger
                .absent(collective.channel, collective.sequence, me),
            // all of them have announced it
            false => vec![],
        };
        absent.retain(|rank| task.members.contains(rank));
        let mut slow: Vec<usize> = task.members.iter().copied().filter(|&r| r != me).collect();
        if world.carries_beats() {
            let suspects = match absent.is_empty() {
                true => &mut slow,
                false => &mut absent,
            };
            suspects.retain(|&rank| {
                now.saturating_duration_since(shared.last_beat(rank)) >= task.deadline
            });
            if suspects.is_empty() {
                return None;
            }
        }
        if !absent.is_empty() {
            slow.clear();
        }
        let named = if absent.is_empty() { &slow } else { &absent };
        Some(DistError::Deadline {
            collective: Box::new(collective.clone()),
            after: task.deadline,
            whereabouts: named
                .iter()
                .filter_map(|&r| shared.whereabouts(r))
                .collect(),
            absent,
            slow,
        })
    }

    /// NCCL met an error: mostly because a rank is gone, of which its connection tells more.
    fn explain(&self, task: &Task, text: String) -> DistError {
        let end = Instant::now() + 2 * PATIENCE;
        while Instant::now() < end {
            let known = self
                .failure()
                .or_else(|| self.gone(&task.members, Some(&task.collective)));
            if let Some(error) = known {
                return error;
            }
            std::thread::sleep(LOOK);
        }
        DistError::System {
            what: format!("do {} over NCCL", task.collective),
            reason: text,
        }
    }

    /// Ends everything on all ranks; gives the error that came first.
    pub(super) fn fail(&self, error: DistError) -> DistError {
        let error = self.world().fail(error);
        let flights = lock(&self.flights).clone();
        let log = &self.world().shared().log;
        for flight in &flights {
            if !flight.is_over() {
                log.ended(flight.task.ticket, Some(error.to_string()));
            }
            flight.finish(Err(error.clone()));
        }
        self.abort_all();
        for flight in flights {
            // nobody knows when the GPU lets go of it
            std::mem::forget(flight.kept());
        }
        error
    }

    pub(super) fn abort_all(&self) {
        let comms: Vec<Arc<Comm>> = lock(&self.comms).iter().filter_map(Weak::upgrade).collect();
        std::thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(|| comm.abort());
            }
        });
    }

    /// No more collectives come; those that are under way get some time. Afterwards the watching thread ends.
    pub(super) fn close(&self) {
        let end = Instant::now() + LAST;
        while !lock(&self.flights).is_empty() && self.failure().is_none() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        if !lock(&self.flights).is_empty() && self.failure().is_none() {
            self.fail(DistError::Closed);
        }
        self.closing.store(true, Ordering::Release);
        lock(&self.flights).retain(|f| !f.is_over());
        self.called.notify_all();
    }
}
