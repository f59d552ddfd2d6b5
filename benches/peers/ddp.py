#!/usr/bin/env python3
"""The rows of `yolo-train bench --scaling` for PyTorch: its DDP over gloo on the incumbent's network, beside independent runs.

    python benches/peers/ddp.py [--model yolo26n] [--imgsz 640] [--images 8] [--ranks 2] [--threads 1] [--steps 3] [--rounds 3]

Needs torch and ultralytics, used through their public interfaces. Every rank keeps its batches in memory; the ways of training
take turns, round by round, and ratios are those of one round. PyTorch's SyncBatchNorm refuses tensors on the CPU, so there is
no row with it.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--model", default="yolo26n")
p.add_argument("--imgsz", type=int, default=640)
p.add_argument("--images", type=int, default=8, help="of a rank")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--steps", type=int, default=3)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
p.add_argument("--port", type=int, help=argparse.SUPPRESS)
a = p.parse_args()

if a.rank is None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--port", str(port)]
    ranks = [subprocess.Popen([*words, "--rank", str(r)]) for r in range(a.ranks)]
    sys.exit(max(r.wait() for r in ranks))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from ultralytics import YOLO  # noqa: E402
from ultralytics.cfg import get_cfg  # noqa: E402

torch.set_num_threads(a.threads)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
dist.init_process_group("gloo", rank=a.rank, world_size=a.ranks)
g = torch.Generator().manual_seed(a.rank)


def batch():
    n = 9 * a.images
    centre, side = torch.rand(n, 2, generator=g) * 0.6 + 0.2, torch.rand(n, 2, generator=g) * 0.3 + 0.05
    return {
        "img": torch.rand(a.images, 3, a.imgsz, a.imgsz, generator=g),
        "batch_idx": torch.arange(a.images).repeat_interleave(9).float(),
        "cls": torch.randint(0, 80, (n, 1), generator=g).float(),
        "bboxes": torch.cat([centre, side], 1),
    }


batches = [batch() for _ in range(3)]


def net():
    torch.manual_seed(0)
    m = YOLO(f"{a.model}.yaml").model
    m.args = get_cfg()
    for v in m.parameters():
        v.requires_grad_(v.dtype.is_floating_point)
    return m.train()


def way(name):
    m = net()
    if name == "ddp, overlap":
        m = DDP(m, find_unused_parameters=True)
    elif name == "ddp, one bucket":
        m = DDP(m, find_unused_parameters=True, bucket_cap_mb=4096)
    return m, torch.optim.SGD([v for v in m.parameters() if v.requires_grad], lr=1e-4, momentum=0.9, nesterov=True)


def step(m, optimizer, b):
    loss, _ = m(b)
    loss.sum().backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 10.0)
    optimizer.step()
    optimizer.zero_grad()


NAMES = ["independent", "ddp, overlap", "ddp, one bucket"]
nets = {name: way(name) for name in NAMES}
rates = {name: [] for name in NAMES}
for turn in range(a.rounds + 1):
    for name in NAMES:
        dist.barrier()
        start = time.perf_counter()
        for i in range(a.steps):
            step(*nets[name], batches[i % 3])
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        every = [torch.zeros_like(took) for _ in range(a.ranks)]
        dist.all_gather(every, took)
        times = [t.item() for t in every]
        images = a.images * a.steps
        rate = sum(images / t for t in times) if name == "independent" else a.ranks * images / max(times)
        if turn:
            rates[name].append(rate)
if a.rank == 0:
    rows = []
    for name in NAMES:
        ratios = [r / i for r, i in zip(rates[name], rates["independent"])]
        rows.append({"way": name, "images_per_s": statistics.median(rates[name]), "of_independent": statistics.median(ratios),
                     "least": min(ratios), "greatest": max(ratios)})
        print(f"{name:18} {rows[-1]['images_per_s']:7.2f} images/s  {rows[-1]['of_independent']:.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f}) of independent runs", flush=True)
    print(json.dumps({"torch": torch.__version__, "model": a.model, "imgsz": a.imgsz, "images": a.images, "ranks": a.ranks, "threads": a.threads, "rows": rows}))
dist.destroy_process_group()
