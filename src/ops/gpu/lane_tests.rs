//! Lanes and ranks: where gradients go on a device, and that their bits do not depend on who computes them.

use super::testing::{SameBits, device};
use super::tests::{drawn, host, leaf, vector};
use crate::ops::cpu::lanes::{LaneSums, Lanes};
use crate::ops::ranks::{DeviceSlot, GradientSink, Param, Ranks, Slot, Synced};
use crate::ops::{self, Activation, ConvNorm, Norm};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_cubecl::Cube;
use burn_cubecl::tensor::CubeTensor;
use std::sync::{Arc, Mutex};

/// Memory of a device for gamma, beta and weights.
#[derive(Debug)]
struct Memory {
    flat: CubeTensor,
    places: [usize; 3],
    add: bool,
    written: Mutex<Vec<usize>>,
}

impl GradientSink for Memory {
    fn write(&self, _: usize, _: &mut dyn FnMut(LaneSums<'_>)) {
        unreachable!("that is for the CPU")
    }
    fn device(&self, id: usize) -> Option<DeviceSlot> {
        Some(DeviceSlot {
            flat: self.flat.clone(),
            offset: self.places[id],
            add: self.add,
        })
    }
    fn written(&self, id: usize) {
        self.written.lock().unwrap().push(id);
    }
}

/// Rows of gradients of the lanes of rank `rank` of `size`, which holds its part of `n` images.
fn lane_gradients(
    device: &Device,
    n: usize,
    rank: usize,
    size: usize,
    [k, ci, co]: [usize; 3],
    groups: usize,
    add: bool,
) -> Vec<Vec<f32>> {
    let lanes = Lanes::of_rank(4, rank, size, n);
    let images = lanes.images().unwrap();
    let places = [1, co + 2, 2 * co + 5];
    let len = places[2] + k * k * ci / groups * co;
    let start = vec![0.5f32; lanes.own().len() * len];
    let own = lanes.own().len();
    let flat: Tensor<2> =
        Tensor::<1>::from_data(start.as_slice(), (device, DType::F32)).reshape([own, len]);
    let memory = Arc::new(Memory {
        flat: flat.clone().try_into_primitive::<Cube>().unwrap(),
        places,
        add,
        written: Mutex::default(),
    });
    let (h, w) = (9, 8);
    let all = drawn("pixels", n * h * w * ci);
    let part = all[images.start * h * w * ci..images.end * h * w * ci].to_vec();
    let data = TensorData::new(part, [images.len(), h, w, ci]);
    let autodiff = device.clone().autodiff();
    let x = Tensor::<4>::from_data(data, (&autodiff, DType::F32)).require_grad();
    let slot = |id| {
        let sink: Arc<dyn GradientSink> = memory.clone();
        Some(Slot { sink, id })
    };
    let parameter = |name, id| Param {
        tensor: Tensor::<1>::from_data(drawn(name, co).as_slice(), (&autodiff, DType::F32))
            .require_grad(),
        slot: slot(id),
    };
    let p = ConvNorm {
        weight: Param {
            tensor: leaf("w", [k, k, ci / groups, co], device),
            slot: slot(2),
        },
        gamma: parameter("gamma", 0),
        beta: parameter("beta", 1),
        stride: 1,
        groups,
        norm: Norm::Fixed((vec![0.1; co], vec![0.3; co]).into()),
        running: None,
        act: Activation::Silu,
        lanes,
    };
    let (y, _) = ops::conv_norm_act(x, p);
    y.sum().backward();
    let mut written = memory.written.lock().unwrap().clone();
    written.sort_unstable();
    assert_eq!(written, [0, 1, 2], "each parameter once");
    let values = host(flat);
    values.chunks_exact(len).map(<[f32]>::to_vec).collect()
}

#[test]
fn gradients_of_a_lane_have_the_same_bits_on_any_number_of_ranks() {
    let Some(device) = device() else { return };
    let _fixed = SameBits::new();
    for (sizes, groups) in [
        ([1, 8, 6], 1),
        ([3, 5, 7], 1),
        ([3, 8, 8], 8),
        ([3, 96, 130], 1),
    ] {
        for n in [3, 6] {
            let whole = lane_gradients(&device, n, 0, 1, sizes, groups, true);
            assert_eq!(whole.len(), 4);
            for size in [2, 4] {
                let mut parts = vec![];
                for rank in 0..size {
                    parts.extend(lane_gradients(&device, n, rank, size, sizes, groups, true));
                }
                let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
                    rows.concat().into_iter().map(f32::to_bits).collect()
                };
                assert!(
                    bits(&whole) == bits(&parts),
                    "{sizes:?}, {n} images, {size} ranks"
                );
            }
            // what lies between the parameters is left alone, an empty lane adds nothing
            assert_eq!(whole[0][0], 0.5);
            if n == 3 {
                assert!(whole[0].iter().all(|&v| v == 0.5));
            }
            let fresh = lane_gradients(&device, n, 0, 1, sizes, groups, false);
            for (a, b) in whole.iter().flatten().zip(fresh.iter().flatten()) {
                assert!((a - b - 0.5).abs() < 1e-3 * b.abs().max(1.0) || a == b);
            }
        }
    }
}

/// Ranks of one process that bring their values together in turn.
#[derive(Debug)]
struct Together {
    /// The rows of all ranks, where they are known already.
    known: Option<Vec<Vec<f64>>>,
    seen: Mutex<Vec<Vec<f64>>>,
}

impl Ranks for Together {
    fn size(&self) -> usize {
        2
    }
    fn gather(&self, _: &str, _: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>> {
        let mut seen = self.seen.lock().unwrap();
        let call = seen.len();
        seen.push(own);
        // forward and backward exchange once each
        self.known
            .as_ref()
            .map(|k| k[2 * call..2 * call + 2].to_vec())
    }
}

#[test]
fn statistics_over_ranks_are_those_of_one_rank_that_holds_all_images() {
    let Some(device) = device() else { return };
    let _fixed = SameBits::new();
    let (n, c) = (5, 6);
    let run = |rank: usize, size: usize, ranks: Option<Arc<Together>>| {
        let lanes = Lanes::of_rank(4, rank, size, n);
        let images = lanes.images().unwrap();
        let each = 7 * 5 * c;
        let part = |name: &str| {
            let all = drawn(name, n * each)[images.start * each..images.end * each].to_vec();
            TensorData::new(all, [images.len(), 7, 5, c])
        };
        let on = (&device.clone().autodiff(), DType::F32);
        let x = Tensor::<4>::from_data(part("x"), on).require_grad();
        let t = |name| vector(&leaf(name, [1, 1, 1, c], &device));
        let norm = match ranks {
            Some(ranks) => Norm::Synced(Synced {
                ranks,
                name: "norm".into(),
            }),
            None => Norm::Batch,
        };
        let act = Activation::Silu;
        let (y, _) = ops::norm_act(x.clone(), t("gamma"), t("beta"), norm, act, &lanes);
        let weights = Tensor::<4>::from_data(part("weights"), on);
        let grads = (y.clone() * weights).sum().backward();
        (host(y), host(x.grad(&grads).unwrap()))
    };
    let together = |known| {
        Arc::new(Together {
            known,
            seen: Mutex::default(),
        })
    };
    let whole = run(0, 1, None);
    // what each rank gives: its forward pass does not depend on the others', its backward pass on their forward pass
    let mut known: Vec<Vec<f64>> = vec![vec![]; 4];
    for call in 0..2 {
        for rank in 0..2 {
            let mut filled = known.clone();
            let unknown = filled.iter_mut().filter(|v| v.is_empty());
            unknown.for_each(|v| *v = vec![0.0; 4 * c]);
            let with = together(Some(filled));
            run(rank, 2, Some(with.clone()));
            known[2 * call + rank] = with.seen.lock().unwrap()[call].clone();
        }
    }
    let parts = [0, 1].map(|rank| run(rank, 2, Some(together(Some(known.clone())))));
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let joined = |i: usize| {
        let of = |(y, dx): &(Vec<f32>, Vec<f32>)| bits([y, dx][i]);
        [of(&parts[0]), of(&parts[1])].concat()
    };
    assert!(bits(&whole.0) == joined(0), "activations");
    assert!(bits(&whole.1) == joined(1), "gradients");
}

#[cfg(feature = "cuda")]
#[test]
fn gradients_in_the_order_of_a_library_come_back_in_ours() {
    use super::conv::Sizes;
    use super::launch::Cut;
    use super::library::{filters, put_filters};
    use super::sums::Target;
    let Some(device) = device() else { return };
    let (k, ci, co, n) = (3, 5, 7, 3);
    // lane 0 of 4 has no image
    let lanes = Lanes::whole(4);
    let len = k * k * ci * co;
    let values = drawn("gradients", 4 * len);
    let on = (&device, DType::F32);
    let cube = |t: Tensor<2>| t.try_into_primitive::<Cube>().unwrap();
    let ours = Tensor::<1>::from_data(values.as_slice(), on).reshape([4 * k * k, ci, co]);
    // a lane at a time as weights, in the library's order
    let mut parts = vec![];
    for lane in 0..4 {
        let one = values[lane * len..(lane + 1) * len].to_vec();
        let w = Tensor::<4>::from_data(TensorData::new(one, [k, k, ci, co]), on);
        let w = filters(&w.try_into_primitive::<Cube>().unwrap());
        parts.extend(host(Tensor::<4>::from_primitive::<Cube>(w)));
    }
    let parts = Tensor::<1>::from_data(parts.as_slice(), on).reshape([4, len]);
    let s = Sizes {
        n,
        h: 9,
        w: 9,
        ci,
        co,
        k,
        stride: 1,
        groups: 1,
    };
    let cut = Cut::new(&lanes, n);
    let shape = [k, k, ci, co].into();
    let parts = cube(parts);
    let rows = put_filters(&parts, &s, cut, false, &Target::Lanes, &shape, DType::F32);
    let rows = host(Tensor::<2>::from_primitive::<Cube>(rows));
    assert!(rows[..len].iter().all(|&v| v == 0.0), "an empty lane");
    assert_eq!(rows[len..], host(ours)[len..]);
    let sum = put_filters(&parts, &s, cut, false, &Target::Tensor, &shape, DType::F32);
    let sum = host(Tensor::<4>::from_primitive::<Cube>(sum));
    for (i, v) in sum.iter().enumerate() {
        let want: f32 = (1..4).map(|l| values[l * len + i]).sum();
        assert!((v - want).abs() < 1e-6);
    }
}
