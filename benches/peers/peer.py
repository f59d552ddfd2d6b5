"""One training run of the peer through its documented Python interface: times steps with its callbacks, prints JSON.

Usage: python peer.py MODEL IMGSZ BATCH THREADS STEPS DATA_YAML [best]

With `best`: channels last, and bfloat16 autocast on the CPU around training.
"""

import json
import resource
import sys
import time

START = time.time()
model, imgsz, batch, threads, steps, data = sys.argv[1:7]
best = sys.argv[7:] == ["best"]
imgsz, batch, threads, steps = int(imgsz), int(batch), int(threads), int(steps)

import torch  # noqa: E402
from ultralytics import YOLO  # noqa: E402

torch.set_num_threads(threads)
ends = []


def after_batch(trainer):
    torch.set_num_threads(threads)
    ends.append(time.time())
    # two steps that are not counted
    if len(ends) == steps + 3:
        seconds = sorted(b - a for a, b in zip(ends[2:], ends[3:]))
        median = seconds[len(seconds) // 2]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            "RESULT "
            + json.dumps(
                {
                    "images_per_s": batch / median,
                    "step_ms": {"median": median * 1e3, "min": seconds[0] * 1e3},
                    "first_step_s": ends[0] - START,
                    "peak_memory_bytes": memory,
                }
            ),
            flush=True,
        )
        import os

        os._exit(0)


net = YOLO(f"{model}.yaml")
net.add_callback("on_train_batch_end", after_batch)


def use_best(trainer):
    """Its own options for both are for CUDA alone, so this is done with PyTorch's means."""
    m = trainer.model
    m.to(memory_format=torch.channels_last)
    forward = m.forward

    def in_bfloat16(*args, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args, **kwargs)

    m.forward = in_bfloat16


if best:
    net.add_callback("on_train_start", use_best)
net.train(
    data=data,
    imgsz=imgsz,
    batch=batch,
    device="cpu",
    workers=threads,
    epochs=1000,
    close_mosaic=0,
    val=False,
    plots=False,
    save=False,
    amp=False,
    pretrained=False,
    nbs=batch,
    warmup_epochs=0,
    project="peer-runs",
)
