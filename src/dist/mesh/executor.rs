//! Runs the collectives of one channel, one after the other.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

use super::link::{Link, LinkError};
use super::shared::{Control, Gone, Shared};
use super::wire::{Advance, Fault, Heads, Step, Wire};
use crate::dist::error::{Collective, DistError};
use crate::dist::handle::{Output, Promise, lock};
use crate::dist::log::Ticket;

/// How long a rank tries again before it waits in the system. Compute threads share the cores.
const SPIN: Duration = Duration::from_micros(20);
/// How long it then goes on trying, giving its core to whoever wants it: being woken up takes longer than most waits for
/// statistics of a batch norm.
const YIELD: Duration = Duration::from_micros(400);
/// Longest wait before the state of the group is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Shortest such wait: past the deadline, while a rank still beats.
const GLANCE: Duration = Duration::from_millis(1);
/// How long a rank waits for another one's account of an error, and for values that are under way from one that is
/// gone.
const PATIENCE: Duration = Duration::from_millis(300);

/// A collective that was called.
pub(crate) struct Job {
    pub(crate) collective: Collective,
    pub(crate) members: Arc<Vec<usize>>,
    pub(crate) me: usize,
    pub(crate) heads: Heads,
    pub(crate) advance: Box<dyn Advance + Send>,
    pub(crate) deadline: Duration,
    pub(crate) promise: Arc<Promise>,
    pub(crate) ticket: Ticket,
}

/// The links of a channel; whoever has it runs collectives.
pub(crate) struct Executor {
    pub(crate) links: Vec<Option<Box<dyn Link>>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<dyn Control>,
    /// Of this process, in the world.
    pub(crate) rank: usize,
}

impl Executor {
    /// Runs a collective and keeps its promise.
    pub(crate) fn run(&mut self, mut job: Job) -> Result<Output, DistError> {
        let shared = self.shared.clone();
        shared.log.began(job.ticket);
        let result = match shared.failure() {
            Some(failure) => Err(failure),
            None => self.drive(&mut job).map_err(|error| {
                let (error, first) = shared.fail(error);
                if first {
                    self.control.abort(&error.to_string());
                }
                error
            }),
        };
        shared
            .log
            .ended(job.ticket, result.as_ref().err().map(ToString::to_string));
        result.map(|()| job.advance.finish())
    }

    fn drive(&mut self, job: &mut Job) -> Result<(), DistError> {
        // Or when values last moved, once all had arrived.
        let mut begin = Instant::now();
        let mut moved = false;
        let members = job.members.clone();
        let mut idle: Option<Instant> = None;
        let mut armed = false;
        let mut flushed = false;
        loop {
            // Before the step: what a rank that is gone sent before must have been seen.
            let gone = (idle.is_some()).then(|| self.gone(&members)).flatten();
            let mut wire = Wire {
                links: &mut self.links,
                members: &members,
            };
            let mut step = if flushed {
                Ok(Step::Done)
            } else {
                job.advance.step(&mut wire, &mut job.heads)
            };
            if step == Ok(Step::Done) {
                flushed = true;
            }
            if step.is_ok() {
                for rank in (0..members.len()).filter(|&r| r != job.me) {
                    match wire.flush(rank) {
                        Ok(true) => {}
                        Ok(false) if step == Ok(Step::Done) => step = Ok(Step::Blocked),
                        Ok(false) => {}
                        // Whoever has all it needs may have left.
                        Err(_) if flushed => {}
                        Err(fault) => step = Err(fault),
                    }
                }
            }
            match step {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::Progress) => {
                    idle = None;
                    armed = false;
                    moved = true;
                    continue;
                }
                Ok(Step::Blocked) => {}
                Err(fault) => {
                    if matches!(fault, Fault::Mismatch(..)) {
                        let end = Instant::now() + PATIENCE;
                        while !job.heads.told(&mut wire) && Instant::now() < end {
                            std::thread::yield_now();
                        }
                    }
                    return Err(self.explain(job, fault));
                }
            }
            if let Some(failure) = self.shared.failure() {
                return Err(failure);
            }
            if let Some((rank, reason)) = gone {
                return Err(self.explain(job, Fault::Link(rank, LinkError::Closed(reason))));
            }
            let now = Instant::now();
            if std::mem::take(&mut moved) && job.heads.absent().is_empty() {
                begin = now;
            }
            let waited = now.duration_since(begin);
            if waited >= job.deadline
                && let Some(error) = self.late(job, now)
            {
                return Err(error);
            }
            let since = *idle.get_or_insert(now);
            if now.duration_since(since) < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if now.duration_since(since) < YIELD {
                std::thread::yield_now();
                continue;
            }
            if !armed {
                for &m in members.iter() {
                    if let Some(link) = &mut self.links[m] {
                        link.arm();
                    }
                }
                armed = true;
                continue;
            }
            self.wait(
                &members,
                job.deadline.saturating_sub(waited).clamp(GLANCE, LOOK),
            )?;
            armed = false;
        }
    }

    /// Waits until a link may go on.
    fn wait(&mut self, members: &[usize], at_most: Duration) -> Result<(), DistError> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(members.len());
        let mut nap = false;
        for &m in members {
            if let Some(link) = &self.links[m]
                && link.blocked()
            {
                match link.poll_fd() {
                    Some(fd) => fds.push(fd),
                    None => nap = true,
                }
            }
        }
        if nap || fds.is_empty() {
            std::thread::sleep(Duration::from_micros(20).min(at_most));
            return Ok(());
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: at_most.as_nanos() as i64,
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(DistError::system("wait for other ranks", e)),
        }
        drop(fds);
        for &m in members {
            if let Some(link) = &mut self.links[m] {
                link.woken();
            }
        }
        Ok(())
    }

    /// A rank that is gone and from which, or to which, something is outstanding.
    fn gone(&self, members: &[usize]) -> Option<(usize, String)> {
        members.iter().find_map(|&m| {
            let link = self.links[m].as_ref()?;
            if !link.blocked() {
                return None;
            }
            match self.shared.gone(m)? {
                (Gone::Lost(reason), since) if since > PATIENCE => Some((m, reason)),
                (Gone::Left, since) if since > PATIENCE => Some((m, "it left".into())),
                _ => None,
            }
        })
    }

    fn explain(&self, job: &Job, fault: Fault) -> DistError {
        let collective = Box::new(job.collective.clone());
        match fault {
            Fault::Mismatch(other, header) => DistError::Mismatch {
                rank: self.rank,
                here: collective,
                other,
                there: header.describe(),
            },
            Fault::Link(rank, LinkError::Corrupt(reason)) => DistError::Protocol {
                rank,
                collective,
                reason,
            },
            Fault::Link(rank, LinkError::Closed(reason)) => {
                // A rank that leaves because of an error says so first.
                if let Some(failure) = self.shared.failure_soon(rank, PATIENCE) {
                    return failure;
                }
                match self.shared.gone(rank) {
                    Some((Gone::Left, _)) => DistError::PeerLeft { rank, collective },
                    Some((Gone::Lost(reason), _)) => DistError::PeerLost {
                        rank,
                        collective,
                        reason,
                    },
                    None => DistError::PeerLost {
                        rank,
                        collective,
                        reason,
                    },
                }
            }
        }
    }

    /// Past the deadline: the error, unless all that are waited for have beaten since.
    fn late(&self, job: &Job, now: Instant) -> Option<DistError> {
        let world = |ranks: Vec<usize>| -> Vec<usize> {
            ranks.into_iter().map(|r| job.members[r]).collect()
        };
        let slow = (0..job.members.len())
            .filter(|&r| {
                self.links[job.members[r]]
                    .as_ref()
                    .is_some_and(|l| l.blocked())
            })
            .collect();
        let (mut absent, mut slow) = (world(job.heads.absent()), world(slow));
        if self.control.carries_beats() {
            let suspects = match absent.is_empty() {
                true => &mut slow,
                false => &mut absent,
            };
            let any = !suspects.is_empty();
            suspects.retain(|&rank| {
                now.saturating_duration_since(self.shared.last_beat(rank)) >= job.deadline
            });
            if any && suspects.is_empty() {
                return None;
            }
        }
        let named = if absent.is_empty() { &slow } else { &absent };
        Some(DistError::Deadline {
            collective: Box::new(job.collective.clone()),
            after: job.deadline,
            whereabouts: named
                .iter()
                .filter_map(|&r| self.shared.whereabouts(r))
                .collect(),
            absent,
            slow,
        })
    }
}

/// A channel: jobs in order, and the executor.
pub(crate) struct Lane {
    pub(crate) queue: Mutex<VecDeque<Job>>,
    pub(crate) called: Condvar,
    pub(crate) executor: Mutex<Executor>,
    pub(crate) closing: AtomicBool,
}

impl Lane {
    pub(crate) fn new(executor: Executor) -> Self {
        Lane {
            queue: Mutex::default(),
            called: Condvar::new(),
            executor: Mutex::new(executor),
            closing: AtomicBool::new(false),
        }
    }

    /// The progress thread.
    pub(crate) fn serve(&self) {
        loop {
            let mut queue = lock(&self.queue);
            while queue.is_empty() && !self.closing.load(Ordering::Acquire) {
                queue = self
                    .called
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if queue.is_empty() {
                return;
            }
            drop(queue);
            // First the executor, then the job: whoever runs one takes the oldest.
            let mut executor = lock(&self.executor);
            let Some(job) = lock(&self.queue).pop_front() else {
                continue;
            };
            let promise = job.promise.clone();
            let shared = executor.shared.clone();
            let control = executor.control.clone();
            // A panic here would be a defect; nobody is to wait for ever because of it.
            let result =
                catch_unwind(AssertUnwindSafe(|| executor.run(job))).unwrap_or_else(|_| {
                    let error = DistError::system("run a collective", "the program panicked");
                    let (error, first) = shared.fail(error);
                    if first {
                        control.abort(&error.to_string());
                    }
                    Err(error)
                });
            drop(executor);
            promise.fill(result);
        }
    }

    pub(crate) fn close(&self) {
        // Under the queue's lock, so that the progress thread cannot miss it between its look and its wait.
        let _queue = lock(&self.queue);
        self.closing.store(true, Ordering::Release);
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::buffer::{Buffer, ReduceOp};
    use crate::dist::group::Call;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;

    #[test]
    fn a_rank_that_beats_is_waited_for() {
        let sums = threads(2, Transport::Auto, |group| {
            group.set_deadline(Duration::from_millis(1000));
            if group.rank() == 1 {
                let end = Instant::now() + Duration::from_millis(2200);
                while Instant::now() < end {
                    group.beat("scanning labels");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            let one = Buffer::F32(vec![1.0]);
            group
                .all_reduce(Call::latency("labels"), ReduceOp::Sum, one)
                .wait()
        });
        assert_eq!(sums, vec![Ok(Buffer::F32(vec![2.0])); 2]);
    }

    #[test]
    fn a_rank_that_beats_no_longer_is_late_and_its_last_place_is_named() {
        let errors = threads(3, Transport::Auto, |group| {
            group.set_deadline(Duration::from_millis(800));
            if group.rank() == 1 {
                group.pulse().set_step(5);
                for _ in 0..10 {
                    group.beat("scanning labels");
                    std::thread::sleep(Duration::from_millis(50));
                }
                std::thread::sleep(Duration::from_millis(2000));
            }
            let one = Buffer::F32(vec![1.0]);
            group
                .all_reduce(Call::latency("labels"), ReduceOp::Sum, one)
                .wait()
                .unwrap_err()
                .to_string()
        });
        for error in &errors {
            assert!(
                error.contains("rank 1 did not arrive")
                    && error.contains("rank 1 is at \"scanning labels\" of step 5 for "),
                "{errors:?}"
            );
        }
    }
}
