//! What the threads of a rank know of the group's state: the first error, and which ranks are gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::dist::error::DistError;
use crate::dist::handle::lock;
use crate::dist::log::Log;
use crate::pulse::Pulse;

/// Signs of life come more often than this.
const SILENCE: Duration = Duration::from_millis(1500);

/// For a rank to notice that the run of the others is over; a process that looks after it ends it before.
const LINGER: Duration = Duration::from_secs(20);

/// How another rank ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Gone {
    /// It closed its group.
    Left,
    /// It ended without a word.
    Lost(String),
}

/// Tells the other ranks.
pub(crate) trait Control: Send + Sync {
    /// That this rank met an error.
    fn abort(&self, reason: &str);
    /// That this rank leaves; returns when the message is out.
    fn leave(&self);
    /// Whether ranks hear of each other's beats.
    fn carries_beats(&self) -> bool {
        false
    }
    /// After the links are closed.
    fn finish(&self) {}
}

/// Something of an engine that is built over this one, which goes with every sign of life.
pub(crate) trait Signed: Send + Sync + std::fmt::Debug {
    fn tell(&self) -> Vec<u8>;
    /// What `rank` told last.
    fn hear(&self, rank: usize, bytes: &[u8]);
}

/// What a rank tells the others of its work, with every sign of life.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sign {
    pub(crate) beats: u64,
    pub(crate) step: u64,
    /// How long ago the last beat was.
    pub(crate) age: Duration,
    /// Where the last beat was.
    pub(crate) place: String,
    /// Its newest collective.
    pub(crate) collective: String,
    /// Of an engine that is built over this one; mostly nothing.
    pub(crate) more: Vec<u8>,
}

impl Sign {
    const NUMBERS: usize = 3;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let numbers = [self.beats, self.step, self.age.as_millis() as u64];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend_from_slice(self.place.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.collective.as_bytes());
        if !self.more.is_empty() {
            bytes.push(0);
            bytes.extend_from_slice(&self.more);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, words) = bytes.split_at_checked(8 * Sign::NUMBERS)?;
        let number = |i: usize| {
            let bytes = numbers[8 * i..8 * i + 8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        let mut words = words.splitn(3, |&byte| byte == 0);
        let mut text = || Some(String::from_utf8_lossy(words.next()?).into_owned());
        Some(Sign {
            beats: number(0),
            step: number(1),
            age: Duration::from_millis(number(2)),
            place: text()?,
            collective: text()?,
            more: words.next().unwrap_or_default().into(),
        })
    }
}

/// What this rank knows of another one's work.
#[derive(Debug)]
struct Sight {
    sign: Sign,
    /// When its last beat was, by this rank's clock.
    beat: Instant,
    /// When its last sign of life came.
    heard: Instant,
}

impl Default for Sight {
    fn default() -> Self {
        let now = Instant::now();
        Sight {
            sign: Sign::default(),
            beat: now,
            heard: now,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    /// Of this rank.
    pub(crate) pulse: Pulse,
    /// Of collectives that have none of their own, in nanoseconds.
    deadline: AtomicU64,
    /// Ends the process where the group has failed and it does not notice.
    exits: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<DistError>>,
    /// What is known of each world rank's work.
    sights: Vec<Mutex<Sight>>,
    /// Of each world rank.
    gone: Vec<Mutex<Option<(Gone, Instant)>>>,
    /// Ranks with this one's processor cores.
    sharing: usize,
    signed: OnceLock<Arc<dyn Signed>>,
}

impl Shared {
    pub(crate) fn new(size: usize) -> Self {
        Shared {
            log: Log::default(),
            pulse: Pulse::new(),
            deadline: AtomicU64::new(0),
            exits: AtomicBool::new(false),
            sights: (0..size).map(|_| Mutex::default()).collect(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            gone: (0..size).map(|_| Mutex::new(None)).collect(),
            sharing: size,
            signed: OnceLock::new(),
        }
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    pub(crate) fn exit_when_stuck(&self) {
        self.exits.store(true, Ordering::Relaxed);
    }

    /// How this rank hangs, `trouble` after the run of the others was over; `None` while it beats, or may yet notice.
    pub(crate) fn stuck(&self, trouble: Duration) -> Option<String> {
        if !self.exits.load(Ordering::Relaxed) || trouble < LINGER {
            return None;
        }
        let last = self.pulse.last();
        (last.age >= self.deadline().max(LINGER)).then(|| {
            format!(
                "the other ranks have ended, but this one is at {:?} of step {} for {:.0} s",
                last.place,
                last.step,
                last.age.as_secs_f64()
            )
        })
    }

    /// Whether a rank is gone without a word.
    pub(crate) fn any_lost(&self) -> bool {
        self.gone
            .iter()
            .any(|g| matches!(&*lock(g), Some((Gone::Lost(_), _))))
    }

    /// What this rank tells of itself.
    pub(crate) fn own_sign(&self) -> Sign {
        let last = self.pulse.last();
        Sign {
            beats: last.count,
            step: last.step,
            age: last.age,
            place: last.place.into(),
            collective: self.log.last().unwrap_or_default(),
            more: self.signed.get().map(|s| s.tell()).unwrap_or_default(),
        }
    }

    /// From now on signs of life carry what this tells; the first one counts.
    #[cfg(feature = "cuda")]
    pub(crate) fn sign(&self, signed: Arc<dyn Signed>) {
        let _ = self.signed.set(signed);
    }

    pub(crate) fn heard(&self, rank: usize, sign: Sign) {
        if let Some(signed) = self.signed.get() {
            signed.hear(rank, &sign.more);
        }
        let mut sight = lock(&self.sights[rank]);
        let now = Instant::now();
        if sign.beats > sight.sign.beats {
            // Not before the one that is known: messages may be late.
            let beat = now.checked_sub(sign.age).unwrap_or(now);
            sight.beat = beat.max(sight.beat);
        }
        sight.heard = now;
        sight.sign = sign;
    }

    /// When a rank's last beat was.
    pub(crate) fn last_beat(&self, rank: usize) -> Instant {
        lock(&self.sights[rank]).beat
    }

    /// Where a rank is, for people; `None` where it never said.
    pub(crate) fn whereabouts(&self, rank: usize) -> Option<String> {
        let sight = lock(&self.sights[rank]);
        let Sign {
            step,
            place,
            collective,
            ..
        } = &sight.sign;
        if place.is_empty() {
            return None;
        }
        let since = sight.beat.elapsed().as_secs_f64();
        let last = match collective.is_empty() {
            true => String::new(),
            false => format!(", its last collective {collective}"),
        };
        let silent = sight.heard.elapsed();
        Some(if silent > SILENCE {
            format!(
                "rank {rank} was at {place:?} of step {step}{last}, and gives no sign of life for {:.1} s (stopped, swapping, or cut off)",
                silent.as_secs_f64()
            )
        } else {
            format!("rank {rank} is at {place:?} of step {step} for {since:.1} s{last}")
        })
    }

    pub(crate) fn with_sharing(mut self, ranks: usize) -> Self {
        self.sharing = ranks;
        self
    }

    pub(crate) fn sharing(&self) -> usize {
        self.sharing
    }

    /// The first error, cheap while there is none.
    pub(crate) fn failure(&self) -> Option<DistError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.failure).clone()
    }

    /// Keeps the first error; gives it, and whether it is this one.
    pub(crate) fn fail(&self, error: DistError) -> (DistError, bool) {
        let mut failure = lock(&self.failure);
        let first = failure.is_none();
        let kept = failure.get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        (kept, first)
    }

    /// The first error; for a while waits for it, or for an account of how `rank` ended (which comes after the error
    /// that made it end).
    pub(crate) fn failure_soon(&self, rank: usize, patience: Duration) -> Option<DistError> {
        let end = Instant::now() + patience;
        loop {
            // In this order: the control thread learns of the error first.
            let gone = self.gone(rank).is_some();
            let failure = self.failure();
            if failure.is_some() || gone || Instant::now() >= end {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn set_gone(&self, rank: usize, gone: Gone) {
        lock(&self.gone[rank]).get_or_insert((gone, Instant::now()));
    }

    /// How and since when a rank is gone.
    pub(crate) fn gone(&self, rank: usize) -> Option<(Gone, Duration)> {
        lock(&self.gone[rank])
            .as_ref()
            .map(|(gone, at)| (gone.clone(), at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(beats: u64, place: &str) -> Sign {
        Sign {
            beats,
            step: 3,
            place: place.into(),
            collective: "\"losses\" (number 4, latency), done".into(),
            ..Sign::default()
        }
    }

    #[test]
    fn signs_go_over_and_bytes_that_are_none_are_refused() {
        let whole = Sign {
            age: Duration::from_millis(1234),
            ..sign(7, "scanning labels")
        };
        assert_eq!(Sign::decode(&whole.encode()), Some(whole.clone()));
        let more = Sign {
            more: vec![1, 0, 0, 2],
            ..whole.clone()
        };
        assert_eq!(Sign::decode(&more.encode()), Some(more));
        for len in 0..25 {
            assert_eq!(Sign::decode(&whole.encode()[..len]), None, "{len}");
        }
    }

    #[test]
    fn only_new_beats_count_and_the_place_is_told() {
        let shared = Shared::new(2);
        assert_eq!(shared.whereabouts(1), None);
        shared.heard(1, sign(1, "forward"));
        let first = shared.last_beat(1);
        std::thread::sleep(Duration::from_millis(5));
        shared.heard(1, sign(1, "forward"));
        assert_eq!(shared.last_beat(1), first, "a sign of life is no beat");
        shared.heard(1, sign(2, "optimizer"));
        assert!(shared.last_beat(1) > first);
        let text = shared.whereabouts(1).unwrap();
        assert!(
            text.starts_with("rank 1 is at \"optimizer\" of step 3 for 0.0 s"),
            "{text}"
        );
        assert!(text.contains("losses") && !text.contains("no sign of life"));
    }

    #[test]
    fn a_rank_is_stuck_only_where_it_may_exit_and_no_longer_beats() {
        let shared = Shared::new(2);
        shared.pulse.beat("forward");
        let long = Duration::from_secs(1000);
        assert_eq!(shared.stuck(long), None, "nobody wants it");
        shared.exit_when_stuck();
        assert_eq!(shared.stuck(long), None, "it has just beaten");
        assert_eq!(shared.stuck(Duration::ZERO), None, "it may yet notice");
        assert!(!shared.any_lost());
        shared.set_gone(1, Gone::Left);
        assert!(!shared.any_lost());
        let shared = Shared::new(2);
        shared.set_gone(1, Gone::Lost("its process ended".into()));
        assert!(shared.any_lost());
    }
}
