//! Batch norms whose numbers go over ranks together.
//!
//! Norms of branches that run side by side (the levels and branches of heads) depend on nothing of each other, so one
//! exchange does for the statistics of all of them, and one for the sums of their gradients. All are measured before the first
//! of them is normalised, and in the backward pass the sums of all are there before the first input's gradient. A norm alone
//! is a group of one.

use super::cpu::lanes::Lanes;
use super::cpu::norm::{self, GradientSums, Moments, Statistic};
use super::ranks::Synced;
#[cfg(feature = "gpu")]
use burn_cubecl::tensor::CubeTensor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Batch norms side by side that take statistics of the batch.
#[derive(Debug)]
pub struct NormGroup {
    /// The ranks whose batch it is; the name is that of the exchange.
    synced: Option<Synced>,
    /// Of each norm.
    channels: Vec<usize>,
    /// Whether the backward pass came to each norm.
    reached: Vec<AtomicBool>,
    statistics: Exchange<Moments>,
    gradients: Exchange<GradientSums>,
}

impl NormGroup {
    /// Of norms with these channels; over ranks where `synced` is given, whose name then stands for all of them.
    pub fn new(synced: Option<Synced>, channels: Vec<usize>) -> Self {
        Self {
            synced,
            reached: channels.iter().map(|_| AtomicBool::new(false)).collect(),
            statistics: Exchange::new(channels.len()),
            gradients: Exchange::new(channels.len()),
            channels,
        }
    }

    /// Number of norms.
    pub(super) fn size(&self) -> usize {
        self.channels.len()
    }

    /// Whether other ranks have a part in it.
    #[cfg(feature = "gpu")]
    pub(super) fn is_synced(&self) -> bool {
        self.synced.is_some()
    }
}

/// One norm of a group.
#[derive(Debug, Clone)]
pub struct Member {
    pub group: Arc<NormGroup>,
    pub index: usize,
}

/// What the norms of a group give, and what comes of it.
#[derive(Debug)]
struct Exchange<T> {
    /// The parts of own lanes that each norm gave; none of one that the pass did not come to.
    own: Mutex<Vec<Vec<T>>>,
    /// Of all lanes, for each norm.
    all: OnceLock<Vec<T>>,
    /// On a device: float32 `[own lanes, 2 channels]`, all norms side by side.
    #[cfg(feature = "gpu")]
    own_rows: OnceLock<CubeTensor>,
    /// The same of the lanes of all ranks.
    #[cfg(feature = "gpu")]
    all_rows: OnceLock<CubeTensor>,
}

impl<T> Exchange<T> {
    fn new(norms: usize) -> Self {
        Self {
            own: Mutex::new((0..norms).map(|_| vec![]).collect()),
            all: OnceLock::new(),
            #[cfg(feature = "gpu")]
            own_rows: OnceLock::new(),
            #[cfg(feature = "gpu")]
            all_rows: OnceLock::new(),
        }
    }
}

impl Member {
    pub(super) fn statistics(&self) -> Part<'_, Moments> {
        Part {
            exchange: &self.group.statistics,
            group: &self.group,
            index: self.index,
        }
    }
    /// Those of norms that the backward pass does not come to are left out, or are of no meaning.
    pub(super) fn gradient_sums(&self) -> Part<'_, GradientSums> {
        Part {
            exchange: &self.group.gradients,
            group: &self.group,
            index: self.index,
        }
    }
    /// The backward pass came to this norm.
    pub(super) fn set_reached(&self) {
        self.group.reached[self.index].store(true, Ordering::Relaxed);
    }
    pub(super) fn is_reached(&self) -> bool {
        self.group.reached[self.index].load(Ordering::Relaxed)
    }
}

/// What a norm has to do with an exchange of its group.
pub(super) struct Part<'a, T> {
    exchange: &'a Exchange<T>,
    group: &'a NormGroup,
    index: usize,
}

impl<T: Statistic> Part<'_, T> {
    /// Leaves what each own lane has.
    pub fn leave(&self, lanes: Vec<T>) {
        let own = self.exchange.own.lock();
        let mut own = own.unwrap_or_else(PoisonError::into_inner);
        own[self.index] = lanes;
    }

    /// That of all lanes of all ranks, which meet here; all norms of the group have left theirs before.
    pub fn merged(&self, lanes: &Lanes) -> T {
        let channels = &self.group.channels;
        let all = self.exchange.all.get_or_init(|| {
            let own = self.exchange.own.lock();
            let parts = std::mem::take(&mut *own.unwrap_or_else(PoisonError::into_inner));
            norm::merged(parts, lanes, self.group.synced.as_ref(), channels)
        });
        all[self.index].clone()
    }
}

/// A norm's columns of a table of its group on a device: two values of each channel.
#[cfg(feature = "gpu")]
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// float32 `[lanes, columns of all norms]`
    pub table: CubeTensor,
    /// The norm's first column.
    pub at: usize,
}

#[cfg(feature = "gpu")]
impl<T: Statistic> Part<'_, T> {
    fn columns(&self, table: CubeTensor) -> Rows {
        let before = &self.group.channels[..self.index];
        Rows {
            table,
            at: 2 * before.iter().sum::<usize>(),
        }
    }

    /// Where the values of own lanes go; `make` gives the table, of so many columns.
    pub fn own_rows(&self, make: impl FnOnce(usize) -> CubeTensor) -> Rows {
        let columns = 2 * self.group.channels.iter().sum::<usize>();
        let table = self.exchange.own_rows.get_or_init(|| make(columns));
        self.columns(table.clone())
    }

    /// Those of the lanes of all ranks, which meet here; of own lanes where there are no other ranks, or where the exchange
    /// failed: that is told elsewhere, and what is computed then is not used.
    pub fn all_rows(&self) -> Rows {
        let all = self.exchange.all_rows.get_or_init(|| {
            let own = self.exchange.own_rows.get();
            let own = own.expect("the norms of a group leave their values before");
            let over = |s: &Synced| s.ranks.gather_device(&s.name, T::WHAT, own.clone());
            let all = self.group.synced.as_ref().and_then(over);
            all.unwrap_or_else(|| own.clone())
        });
        self.columns(all.clone())
    }
}
