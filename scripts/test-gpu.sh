#!/usr/bin/env bash
# What can be tested of GPUs without one: kernels and training on any Vulkan (Debian's mesa-vulkan-drivers is one in
# software), and everything around CUDA and NCCL over fake drivers.  Usage: scripts/test-gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export YOLO_TRAIN_REQUIRE_WGPU=1
# kernels run on the device: our own crate is built faster so
build=(--release --features cuda,wgpu --config 'profile.release.package.yolo-train.opt-level=1')
cargo test "${build[@]}" --lib -- gpu device
cargo test "${build[@]}" --test cli --test fake_cuda --test fake_nccl
# the programs that these have built: a build of their own would build every dependency again
program=$PWD/target/release/yolo-train
tests=$(cargo test "${build[@]}" --lib --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"name":"yolo_train".*"test":true}.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
check=$PWD/scripts/gpu-check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# With both features, and less optimised, some 66 MiB; with one of them it has to stay under 64.  A sudden rise means that
# something calls the tensor library's own convolutions or products for GPUs (src/ops/reference.rs).
strip -o stripped "$program"
size=$(stat -c %s stripped)
if [ "$size" -gt $((72 << 20)) ]; then
  echo "the program has $size bytes without symbols"
  exit 1
fi

"$program" --data shapes.yaml --device wgpu:0 --epochs 1 --imgsz 64 --batch 4 --fraction 0.05 --threads 2
test -s runs/detect/train/weights/best.safetensors
"$program" --resume runs/detect/train --epochs 2 --device wgpu:0
grep -q '^ *2,' runs/detect/train/results.csv
# built for GPUs, without the reference, it trains and validates on CPUs
"$program" --data shapes.yaml --device cpu --epochs 1 --imgsz 64 --batch 4 --fraction 0.05 --name cpu
test -s runs/detect/cpu/weights/best.safetensors
QUICK=1 GPU=wgpu:0 PROGRAM=$program TESTS=$tests "$check" ranks speed timeline
