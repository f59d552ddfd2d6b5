//! The engine over NCCL, for ranks that have an NVIDIA GPU each (feature `cuda`).
//!
//! The ranks are connected over the network first ([`crate::dist::tcp`]); that stays the control plane: it
//! carries beats, errors, agreement and small values. [`join`] adds communicators of NCCL, two for collectives on values
//! that lie on the GPU ([`super::device::DeviceGroup`], one for each channel, so that small collectives do not queue behind gradients), and
//! others for large values of the host when those come first.
//!
//! Nothing of NCCL blocks: communicators are made so, calls are polled, and a thread watches what is under way. A rank that
//! dies is noticed by its connection, one that hangs by its deadline, one that calls something else by its ledger; each ends in an error
//! that names rank and collective, on all ranks, after the communicators were aborted (kernels that wait for other ranks never
//! end by themselves).
//!
//! Order of reading: `engine.rs`, `comm.rs`, `collectives.rs`, `ledger.rs`, `staged.rs`.

mod api;
mod collectives;
mod comm;
mod engine;
mod gather;
mod gpu;
mod group;
mod ledger;
mod staged;
pub mod tensor;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use self::api::Api;
use self::engine::{Engine, mesh};
use self::gpu::Gpu;
use self::group::{Core, FEW, NcclGroup};
use self::ledger::Ledger;
use super::buffer::Buffer;
use super::error::{DistError, list};
use super::group::{Call, ProcessGroup, Work};
use super::handle::Output;
use crate::gpu::cuda::load::nccl_text;

pub use self::gather::gather_rows;
pub use self::tree::all_reduce_tree;

/// From this version on two ranks may have one GPU, where [`SHARED`] is set.
const SHARING: i32 = 23_000;
const SHARED: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// How a rank joins the others over NCCL.
#[derive(Debug, Clone, PartialEq)]
pub struct NcclOptions {
    /// Number of the GPU.
    pub device: u32,
    /// Values of the host go over the GPU where a rank has at least so many bytes of them, over the network otherwise.
    pub host_bytes: usize,
    /// For communicators to come up.
    pub connect: Duration,
}

impl NcclOptions {
    /// Values of the host go over the GPU from 1 MiB on.
    #[must_use]
    pub fn new(device: u32) -> Self {
        NcclOptions {
            device,
            host_bytes: 1 << 20,
            connect: Duration::from_secs(120),
        }
    }
}

/// Connects the ranks of `world`, which are connected over the network, over NCCL too. All of them call it.
///
/// # Errors
/// [`DistError::System`]: no GPU, no NCCL or an old one, two ranks with one GPU, or NCCL's own error; what happened to
/// other ranks meanwhile.
pub fn join(
    world: Arc<dyn ProcessGroup>,
    options: &NcclOptions,
) -> Result<Arc<dyn ProcessGroup>, DistError> {
    let Some(ranks) = mesh(&world) else {
        return Err(DistError::System {
            what: "connect ranks over NCCL".into(),
            reason: format!(
                "they are not connected over the network (engine {})",
                world.engine()
            ),
        });
    };
    // whatever fails here, the others are waiting
    let told = |error: DistError| ranks.fail(error);
    let api = Api::load().map_err(told)?;
    let gpu = Gpu::open(options.device).map_err(told)?;
    compare(&world, api, &gpu)?;
    let ledger = Arc::new(Ledger::new(world.size()));
    ranks.shared().sign(ledger.clone());
    let engine = Engine::new(api, gpu, world.clone(), ledger).map_err(told)?;
    let [bulk, latency] = unique_ids(api, &world, Call::latency("NCCL's unique ids"))?;
    let bulk = engine.connect(ranks, None, options.connect, bulk)?;
    let latency = engine.connect(ranks, Some(FEW), options.connect, latency)?;
    let core = Core::start(
        Arc::new(engine),
        [bulk, latency],
        options.host_bytes,
        options.connect,
    )
    .map_err(told)?;
    Ok(Arc::new(NcclGroup::new(Arc::new(core), world, true)))
}

/// Names under which the ranks of a group meet: the first one makes them for all.
fn unique_ids<const N: usize>(
    api: &Api,
    group: &Arc<dyn ProcessGroup>,
    call: Call,
) -> Result<[[u8; 128]; N], DistError> {
    let mut ids = [[0; 128]; N];
    if group.rank() == 0 {
        for id in &mut ids {
            let made = api.unique_id();
            *id = made.map_err(|error| match mesh(group) {
                Some(ranks) => ranks.fail(error),
                None => error,
            })?;
        }
    }
    let own = Buffer::U8(ids.concat());
    let Output::One(Buffer::U8(bytes)) = group.run(call, Work::Broadcast(0, own))? else {
        unreachable!("a broadcast gives what it was given");
    };
    for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(128)) {
        id.copy_from_slice(bytes);
    }
    Ok(ids)
}

/// All ranks have one version of NCCL, and GPUs of their own.
fn compare(world: &Arc<dyn ProcessGroup>, api: &Api, gpu: &Gpu) -> Result<(), DistError> {
    let shares = std::env::var(SHARED).is_ok_and(|v| v == "1") && api.version >= SHARING;
    let mut own = gpu.uuid.to_vec();
    own.extend(api.version.to_le_bytes());
    let work = Work::AllGather(Buffer::U8(own.clone()));
    let Output::Many(all) = world.run(Call::latency("GPUs of the ranks"), work)? else {
        unreachable!("an all-gather gives many");
    };
    let cannot = |reason: String| DistError::System {
        what: "connect ranks over NCCL".into(),
        reason,
    };
    for (rank, other) in all.iter().enumerate() {
        let (uuid, version) = other.bytes().split_at(16);
        let version = version
            .try_into()
            .map(i32::from_le_bytes)
            .unwrap_or_default();
        if version != api.version {
            return Err(cannot(format!(
                "rank {rank} has NCCL {}, rank {} {}: install one version on all machines",
                nccl_text(version),
                world.rank(),
                nccl_text(api.version)
            )));
        }
        let same: Vec<usize> = (0..all.len())
            .filter(|&r| &all[r].bytes()[..16] == uuid)
            .collect();
        if same.len() > 1 && !shares {
            return Err(cannot(format!(
                "{} have the same GPU: name another one for each with --device (NCCL from 2.30 on lets them share one where {SHARED}=1 is set)",
                list(&same)
            )));
        }
    }
    Ok(())
}
