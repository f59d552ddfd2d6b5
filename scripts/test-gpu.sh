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
# the program that the tests have built: a build of its own would build every dependency again
program=$PWD/target/release/yolo-train

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$program" --data shapes.yaml --device wgpu:0 --epochs 1 --imgsz 64 --batch 4 --fraction 0.05 --threads 2
test -s runs/detect/train/weights/best.safetensors
"$program" --resume runs/detect/train --epochs 2 --device wgpu:0
grep -q '^ *2,' runs/detect/train/results.csv
