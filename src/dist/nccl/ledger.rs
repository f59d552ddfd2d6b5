//! Whether ranks call the same collectives on their GPUs, found out while these run: each rank sends with its signs of life
//! how many it has called on each channel, and a digest of all of them. Where two digests of one number differ, the ranks
//! send their last collectives too, and the first that differs is named. Nothing of it is waited for.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::dist::error::Collective;
use crate::dist::group::Channel;
use crate::dist::handle::lock;
use crate::dist::mesh::shared::Signed;

/// Collectives of a channel that are remembered.
const REMEMBERED: usize = 512;
/// Most bytes of the last collectives in a sign of life.
const TOLD: usize = 12 << 10;
/// For the other rank to say which collectives it has called.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq)]
struct Called {
    collective: Collective,
    /// Of this one and all before it.
    digest: u64,
}

#[derive(Debug, Default)]
struct Book {
    count: u64,
    digest: u64,
    last: VecDeque<Called>,
}

impl Book {
    /// The digest after the first `count`; none where that is forgotten.
    fn after(&self, count: u64) -> Option<u64> {
        self.find(count.checked_sub(1)?).map(|c| c.digest)
    }

    fn find(&self, number: u64) -> Option<&Called> {
        let first = self.count - self.last.len() as u64;
        self.last
            .get(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}

/// What is known of another rank.
#[derive(Debug, Clone, Default)]
struct Other {
    /// Count and digest of each channel.
    heard: [(u64, u64); 2],
    differs: Option<Instant>,
}

/// Two ranks that called different collectives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    pub(super) other: usize,
    pub(super) here: Collective,
    pub(super) there: String,
}

/// The collectives of this rank, and what the others tell of theirs.
#[derive(Debug)]
pub(super) struct Ledger {
    books: [Mutex<Book>; 2],
    others: Vec<Mutex<Other>>,
    /// Two ranks differ: signs of life carry the last collectives.
    tells: AtomicBool,
    found: Mutex<Option<Difference>>,
}

fn mix(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest ^ 0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Ledger {
    pub(super) fn new(size: usize) -> Self {
        Ledger {
            books: Default::default(),
            others: (0..size).map(|_| Mutex::default()).collect(),
            tells: AtomicBool::new(false),
            found: Mutex::new(None),
        }
    }

    /// Numbers a collective and enters it.
    pub(super) fn enter(
        &self,
        name: &str,
        what: String,
        bytes: usize,
        channel: Channel,
    ) -> Collective {
        let mut book = lock(&self.books[channel as usize]);
        let collective = Collective {
            sequence: book.count,
            name: name.into(),
            what,
            bytes,
            channel,
        };
        let digest = mix(book.digest, collective.name.as_bytes());
        let digest = mix(mix(digest, b"\0"), collective.what.as_bytes());
        (book.count, book.digest) = (book.count + 1, digest);
        if book.last.len() == REMEMBERED {
            book.last.pop_front();
        }
        book.last.push_back(Called {
            collective: collective.clone(),
            digest,
        });
        collective
    }

    /// Other ranks that have not called the collective of this number, as far as they have told.
    pub(super) fn absent(&self, channel: Channel, number: u64, me: usize) -> Vec<usize> {
        let has_not = |rank: &usize| {
            *rank != me && lock(&self.others[*rank]).heard[channel as usize].0 <= number
        };
        (0..self.others.len()).filter(has_not).collect()
    }

    /// A difference between this rank and another one, once it is known what differs.
    pub(super) fn difference(&self) -> Option<Difference> {
        if let Some(found) = &*lock(&self.found) {
            return Some(found.clone());
        }
        for (rank, other) in self.others.iter().enumerate() {
            let mut other = lock(other);
            for channel in Channel::ALL {
                let (count, digest) = other.heard[channel as usize];
                let book = lock(&self.books[channel as usize]);
                if book.after(count).is_some_and(|own| own != digest) {
                    self.tells.store(true, Ordering::Release);
                    let since = *other.differs.get_or_insert_with(Instant::now);
                    // it does not say: it may have been forgotten what the first one was
                    if since.elapsed() > PATIENCE
                        && let Some(called) = book.find(count - 1)
                    {
                        return Some(Difference {
                            other: rank,
                            here: called.collective.clone(),
                            there: "another collective, or an earlier one was another".into(),
                        });
                    }
                }
            }
        }
        None
    }

    /// Compares the last collectives of another rank with this one's.
    fn compare(&self, rank: usize, channel: Channel, theirs: &[(u64, u64, String)]) {
        let book = lock(&self.books[channel as usize]);
        for (number, digest, there) in theirs {
            if let Some(own) = book.find(*number)
                && own.digest != *digest
            {
                lock(&self.found).get_or_insert(Difference {
                    other: rank,
                    here: own.collective.clone(),
                    there: there.clone(),
                });
                return;
            }
        }
    }
}

impl Signed for Ledger {
    /// Count and digest of each channel; where ranks differ, the last collectives: channel, number, digest, text.
    fn tell(&self) -> Vec<u8> {
        let mut bytes = vec![];
        for book in &self.books {
            let book = lock(book);
            bytes.extend(book.count.to_le_bytes());
            bytes.extend(book.digest.to_le_bytes());
        }
        if self.tells.load(Ordering::Acquire) {
            for channel in Channel::ALL {
                let book = lock(&self.books[channel as usize]);
                let mut entries = vec![];
                let mut room = TOLD / 2;
                for called in book.last.iter().rev() {
                    let c = &called.collective;
                    let text = format!(
                        "collective {:?} (number {}, {})",
                        c.name, c.sequence, c.what
                    );
                    let text = text.as_bytes();
                    let text = &text[..text.len().min(200)];
                    let mut entry = vec![channel as u8];
                    entry.extend(c.sequence.to_le_bytes());
                    entry.extend(called.digest.to_le_bytes());
                    entry.push(text.len() as u8);
                    entry.extend(text);
                    match room.checked_sub(entry.len()) {
                        Some(left) => room = left,
                        None => break,
                    }
                    entries.push(entry);
                }
                // the oldest first
                bytes.extend(entries.into_iter().rev().flatten());
            }
        }
        bytes
    }

    fn hear(&self, rank: usize, bytes: &[u8]) {
        let Some(other) = self.others.get(rank) else {
            return;
        };
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let read = || Some([(word(0)?, word(8)?), (word(16)?, word(24)?)]);
        let Some(heard) = read() else {
            return;
        };
        lock(other).heard = heard;
        let mut theirs: [Vec<(u64, u64, String)>; 2] = Default::default();
        let mut at = 32;
        while let (Some(&channel), Some(number), Some(digest), Some(&len)) = (
            bytes.get(at),
            word(at + 1),
            word(at + 9),
            bytes.get(at + 17),
        ) {
            let Some(text) = bytes.get(at + 18..at + 18 + usize::from(len)) else {
                break;
            };
            let text = String::from_utf8_lossy(text).into_owned();
            if let Some(list) = theirs.get_mut(usize::from(channel)) {
                list.push((number, digest, text));
            }
            at += 18 + usize::from(len);
        }
        for channel in Channel::ALL {
            self.compare(rank, channel, &theirs[channel as usize]);
        }
        // a rank that hears what another one has called says what it has called itself
        if bytes.len() > 32 {
            self.tells.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(ledger: &Ledger, name: &str, what: &str, channel: Channel) {
        let _ = ledger.enter(name, what.into(), 8, channel);
    }

    fn exchange(a: &Ledger, b: &Ledger) {
        let (from_a, from_b) = (a.tell(), b.tell());
        b.hear(0, &from_a);
        a.hear(1, &from_b);
    }

    #[test]
    fn ranks_that_call_the_same_never_differ_however_far_apart_they_are() {
        let (a, b) = (Ledger::new(2), Ledger::new(2));
        for i in 0..1000 {
            enter(&a, &format!("bucket {i}"), "all_reduce", Channel::Bulk);
            if i % 7 == 0 {
                exchange(&a, &b);
            }
            assert_eq!(a.difference(), None);
        }
        for i in 0..1000 {
            enter(&b, &format!("bucket {i}"), "all_reduce", Channel::Bulk);
            exchange(&a, &b);
            assert_eq!((a.difference(), b.difference()), (None, None));
        }
        assert_eq!(a.absent(Channel::Bulk, 999, 0), Vec::<usize>::new());
        assert_eq!(a.absent(Channel::Latency, 0, 0), [1]);
    }

    #[test]
    fn the_first_collective_that_differs_is_named_on_both_sides() {
        let (a, b) = (Ledger::new(2), Ledger::new(2));
        for i in 0..40 {
            let len = if i == 20 { 80 } else { 100 };
            enter(
                &a,
                &format!("norm {i}"),
                "all_reduce sum of f32 x 100",
                Channel::Latency,
            );
            enter(
                &b,
                &format!("norm {i}"),
                &format!("all_reduce sum of f32 x {len}"),
                Channel::Latency,
            );
        }
        exchange(&a, &b);
        assert_eq!(a.difference(), None, "it is not yet known what differs");
        let _ = b.difference();
        exchange(&a, &b);
        let found = a.difference().unwrap();
        assert_eq!((found.other, found.here.name.as_str()), (1, "norm 20"));
        assert_eq!(
            found.there,
            "collective \"norm 20\" (number 20, all_reduce sum of f32 x 80)"
        );
        let found = b.difference().unwrap();
        assert_eq!((found.other, found.here.sequence), (0, 20));
    }

    #[test]
    fn bytes_that_are_none_change_nothing() {
        let a = Ledger::new(2);
        enter(&a, "x", "y", Channel::Bulk);
        for len in 0..32 {
            a.hear(1, &vec![7; len]);
            a.hear(9, &[7; 40]);
        }
        assert_eq!(a.difference(), None);
    }
}
