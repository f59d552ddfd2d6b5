#!/usr/bin/env python3
"""Training steps of YOLO26 in plain PyTorch: the same network, loss, optimizer and average as ours, to measure beside it.

    python benches/peers/torch_net.py --model yolo26n --imgsz 640 --batch 16 --amp bf16 [--compile] [--device cuda]
    python benches/peers/torch_net.py --check FOLDER    raw outputs, loss and gradients against shared/golden/yolo26n_nc80

Needs torch (2.11 or later) and numpy. A step is: pixels (uint8) to the network's input, forward, loss of both heads with
task-aligned assignment, backward, clipping to a norm of 10, SGD with Nesterov momentum, average of the weights. Activations
are channels last; with --amp bf16 forward runs under autocast and the loss in float32, as is usual. Prints one line of JSON.

The network is written from published facts: parameter names are those of published checkpoints.
"""

import argparse
import json
import math
import os
import statistics
import struct
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PARAMETERS = {"yolo26n": 2_572_280, "yolo26s": 10_009_784}
WIDTH = {"yolo26n": 0.25, "yolo26s": 0.5}
STRIDES = [8, 16, 32]
GAINS = {"box": 7.5, "cls": 0.5, "dist": 1.5}
EPS = 1e-7


class Conv(nn.Module):
    """Convolution without bias, batch norm, SiLU."""

    def __init__(self, ci, co, k=1, s=1, g=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(ci, co, k, s, k // 2, groups=g, bias=False)
        self.bn = nn.BatchNorm2d(co, eps=1e-3, momentum=0.03)
        self.act = act

    def forward(self, x):
        x = self.bn(self.conv(x))
        return F.silu(x) if self.act else x


class Bottleneck(nn.Module):
    def __init__(self, c, e):
        super().__init__()
        self.cv1 = Conv(c, int(c * e), 3)
        self.cv2 = Conv(int(c * e), c, 3)

    def forward(self, x):
        return x + self.cv2(self.cv1(x))


class C3k(nn.Module):
    """Cross-stage block of two bottlenecks."""

    def __init__(self, c):
        super().__init__()
        h = c // 2
        self.cv1, self.cv2, self.cv3 = Conv(c, h), Conv(c, h), Conv(2 * h, c)
        self.m = nn.Sequential(Bottleneck(h, 1.0), Bottleneck(h, 1.0))

    def forward(self, x):
        return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], 1))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = max(c // 64, 1)
        self.head = c // self.heads
        self.key = self.head // 2
        self.qkv = Conv(c, c + 2 * self.key * self.heads, act=False)
        self.proj = Conv(c, c, act=False)
        self.pe = Conv(c, c, 3, g=c, act=False)

    def forward(self, x):
        n, c, h, w = x.shape
        qkv = self.qkv(x).view(n, self.heads, 2 * self.key + self.head, h * w)
        q, k, v = qkv.split([self.key, self.key, self.head], 2)
        attended = (q.transpose(2, 3) @ k * self.key**-0.5).softmax(-1)
        out = (v @ attended.transpose(2, 3)).reshape(n, c, h, w)
        return self.proj(out + self.pe(v.reshape(n, c, h, w)))


class PSABlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn = Attention(c)
        self.ffn = nn.Sequential(Conv(c, 2 * c), Conv(2 * c, c, act=False))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ffn(x)


class C3k2(nn.Module):
    """Cross-stage block whose inner outputs are all concatenated."""

    def __init__(self, ci, co, n, c3k=False, e=0.5, attention=False):
        super().__init__()
        h = int(co * e)
        self.cv1, self.cv2 = Conv(ci, 2 * h), Conv((2 + n) * h, co)
        if attention:
            inner = [nn.Sequential(Bottleneck(h, 0.5), PSABlock(h)) for _ in range(n)]
        else:
            inner = [C3k(h) if c3k else Bottleneck(h, 0.5) for _ in range(n)]
        self.m = nn.ModuleList(inner)

    def forward(self, x):
        parts = list(self.cv1(x).chunk(2, 1))
        for m in self.m:
            parts.append(m(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class SPPF(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c // 2, act=False), Conv(2 * c, c)

    def forward(self, x):
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return x + self.cv2(torch.cat(parts, 1))


class C2PSA(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c), Conv(c, c)
        self.m = nn.Sequential(*[PSABlock(c // 2) for _ in range(n)])

    def forward(self, x):
        a, b = self.cv1(x).chunk(2, 1)
        return self.cv2(torch.cat([a, self.m(b)], 1))


class Detect(nn.Module):
    """Two heads of a box and a class branch per level; the second sees detached features."""

    def __init__(self, channels, classes):
        super().__init__()
        c2, c3 = max(16, channels[0] // 4, 4), max(channels[0], min(classes, 100))

        def boxes():
            return nn.ModuleList(
                nn.Sequential(Conv(c, c2, 3), Conv(c2, c2, 3), nn.Conv2d(c2, 4, 1)) for c in channels
            )

        def scores():
            return nn.ModuleList(
                nn.Sequential(
                    nn.Sequential(Conv(c, c, 3, g=c), Conv(c, c3)),
                    nn.Sequential(Conv(c3, c3, 3, g=c3), Conv(c3, c3)),
                    nn.Conv2d(c3, classes, 1),
                )
                for c in channels
            )

        self.cv2, self.cv3, self.one2one_cv2, self.one2one_cv3 = boxes(), scores(), boxes(), scores()
        for s, many, one in zip(STRIDES, self.cv3, self.one2one_cv3):
            for branch in (many, one):
                nn.init.constant_(branch[-1].bias, math.log(5 / classes / (640 / s) ** 2))
        for branch in [*self.cv2, *self.one2one_cv2]:
            nn.init.constant_(branch[-1].bias, 2.0)

    def forward(self, features):
        def run(branches, x):
            return torch.cat([b(f).flatten(2) for b, f in zip(branches, x)], 2).transpose(1, 2)

        detached = [f.detach() for f in features]
        many = run(self.cv2, features), run(self.cv3, features)
        one = run(self.one2one_cv2, detached), run(self.one2one_cv3, detached)
        return many, one


class Yolo26(nn.Module):
    def __init__(self, width, classes=80):
        super().__init__()
        c = [math.ceil(v * width / 8) * 8 for v in (64, 128, 256, 512, 1024)]
        up = nn.Upsample(scale_factor=2)
        self.model = nn.ModuleList(
            [
                Conv(3, c[0], 3, 2),
                Conv(c[0], c[1], 3, 2),
                C3k2(c[1], c[2], 1, e=0.25),
                Conv(c[2], c[2], 3, 2),
                C3k2(c[2], c[3], 1, e=0.25),
                Conv(c[3], c[3], 3, 2),
                C3k2(c[3], c[3], 1, c3k=True),
                Conv(c[3], c[4], 3, 2),
                C3k2(c[4], c[4], 1, c3k=True),
                SPPF(c[4]),
                C2PSA(c[4], 1),
                up,
                nn.Identity(),
                C3k2(c[4] + c[3], c[3], 1, c3k=True),
                up,
                nn.Identity(),
                C3k2(c[3] + c[3], c[2], 1, c3k=True),
                Conv(c[2], c[2], 3, 2),
                nn.Identity(),
                C3k2(c[2] + c[3], c[3], 1, c3k=True),
                Conv(c[3], c[3], 3, 2),
                nn.Identity(),
                C3k2(c[3] + c[4], c[4], 1, attention=True),
                Detect([c[2], c[3], c[4]], classes),
            ]
        )

    def forward(self, x):
        m, seen = self.model, {}
        for i in range(11):
            seen[i] = x = m[i](x)
        seen[13] = x = m[13](torch.cat([m[11](x), seen[6]], 1))
        p3 = m[16](torch.cat([m[14](x), seen[4]], 1))
        p4 = m[19](torch.cat([m[17](p3), seen[13]], 1))
        p5 = m[22](torch.cat([m[20](p4), seen[10]], 1))
        return m[23]([p3, p4, p5])


def anchors(size, device):
    """Centres in pixels `[a, 2]` and strides `[a, 1]`."""
    xy, stride = [], []
    for s in STRIDES:
        v = (torch.arange(size // s, device=device) + 0.5) * s
        y, x = torch.meshgrid(v, v, indexing="ij")
        xy.append(torch.stack([x.flatten(), y.flatten()], 1))
        stride.append(torch.full((len(xy[-1]), 1), float(s), device=device))
    return torch.cat(xy), torch.cat(stride)


def ciou(p, t):
    """Complete IoU of boxes `[..., 4]`; the weight of the aspect term has no gradient."""
    pw, ph = p[..., 2] - p[..., 0], p[..., 3] - p[..., 1] + EPS
    tw, th = t[..., 2] - t[..., 0], t[..., 3] - t[..., 1] + EPS
    shared = (torch.minimum(p[..., 2:], t[..., 2:]) - torch.maximum(p[..., :2], t[..., :2])).clamp(min=0)
    inter = shared.prod(-1)
    iou = inter / (pw * ph + tw * th - inter + EPS)
    hull = torch.maximum(p[..., 2:], t[..., 2:]) - torch.minimum(p[..., :2], t[..., :2])
    c2 = hull.square().sum(-1) + EPS
    rho2 = (t[..., :2] + t[..., 2:] - p[..., :2] - p[..., 2:]).square().sum(-1) / 4
    v = 4 / math.pi**2 * (torch.atan(tw / th) - torch.atan(pw / ph)).square()
    with torch.no_grad():
        alpha = v / (v - iou + (1 + EPS))
    return iou - (rho2 / c2 + v * alpha)


@torch.no_grad()
def assign(scores, boxes, xy, truth, cls, valid, first, last):
    """Task-aligned assignment: `[n, a]` object of each anchor, `[n, a]` soft target (0 where there is none)."""
    centre, half = (truth[..., :2] + truth[..., 2:]) / 2, (truth[..., 2:] - truth[..., :2]) / 2
    half = torch.where(half * 2 < 16, torch.full_like(half, 8.0), half)
    low, high = (centre - half).unsqueeze(2), (centre + half).unsqueeze(2)
    inside = torch.minimum(xy - low, high - xy).amin(-1) > 1e-9
    inside &= valid.unsqueeze(-1)
    overlap = ciou(boxes.unsqueeze(1), truth.unsqueeze(2)).clamp(min=0) * inside
    of_class = scores.gather(2, cls.unsqueeze(1).expand(-1, scores.shape[1], -1)).transpose(1, 2)
    metric = of_class.sqrt() * overlap.pow(6)
    best, index = metric.topk(first, -1)
    chosen = torch.zeros_like(metric).scatter_(-1, index, (best > 0).to(metric.dtype))
    # an anchor claimed by several objects stays with the one it overlaps most
    owner = (overlap * chosen + chosen).argmax(1)
    chosen *= torch.zeros_like(chosen).scatter_(1, owner.unsqueeze(1), 1.0)
    if last < first:
        best, index = (metric * chosen).topk(last, -1)
        chosen *= torch.zeros_like(chosen).scatter_(-1, index, (best > 0).to(metric.dtype))
    metric, overlap = metric * chosen, overlap * chosen
    target = metric * overlap.amax(-1, True) / (metric.amax(-1, True) + 1e-9)
    return owner, target.amax(1)


def head_loss(raw, logits, xy, stride, size, truth, cls, valid, first, last):
    """Gained numerators (box, class, distance) of a head, and the sum of its targets."""
    if raw.dtype != torch.float64:
        raw, logits = raw.float(), logits.float()
    boxes = torch.cat([xy / stride - raw[..., :2], xy / stride + raw[..., 2:]], -1)
    owner, weight = assign(logits.detach().sigmoid(), (boxes * stride).detach(), xy, truth, cls, valid, first, last)
    target = torch.zeros_like(logits)
    target.scatter_(2, cls.gather(1, owner).unsqueeze(-1), weight.unsqueeze(-1))
    box = truth.gather(1, owner.unsqueeze(-1).expand(-1, -1, 4)) / stride
    # a box of its own where there is no object: nothing there counts, and nothing may be infinite
    box = torch.where(weight.unsqueeze(-1) > 0, box, boxes.detach())
    sides = torch.cat([xy / stride - box[..., :2], box[..., 2:] - xy / stride], -1)
    classes = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    loss = ((1 - ciou(boxes, box)) * weight).sum()
    distance = (((raw - sides).abs() * stride / size).mean(-1) * weight).sum()
    return torch.stack([GAINS["box"] * loss, GAINS["cls"] * classes, GAINS["dist"] * distance]), weight.sum()


def total_loss(outputs, xy, stride, size, truths, weights=(0.8, 0.2)):
    """Components of both heads, each divided by its sum of targets, weighted and times the number of images."""
    total = 0
    for (raw, logits), (first, last), weight in zip(outputs, ((10, 10), (7, 1)), weights):
        parts, n = head_loss(raw, logits, xy, stride, size, *truths, first, last)
        total = total + weight * parts / n.clamp(min=1)
    return total * outputs[0][0].shape[0]


def some_truths(n, objects, size, device):
    """The same number of random objects in each image: corners, classes, which of them count."""
    g = torch.Generator().manual_seed(1)
    centre = torch.rand(n, objects, 2, generator=g) * 0.6 + 0.2
    half = (torch.rand(n, objects, 2, generator=g) * 0.3 + 0.05) / 2
    corners = torch.cat([centre - half, centre + half], -1) * size
    classes = torch.randint(0, 80, (n, objects), generator=g)
    return [t.to(device) for t in (corners, classes, torch.ones(n, objects, dtype=torch.bool))]


def optimizer_of(net):
    """SGD as the trainer has it: decay on weights of convolutions only."""
    decayed = [p for p in net.parameters() if p.dim() == 4]
    others = [p for p in net.parameters() if p.dim() < 4]
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    fused = others[0].is_cuda
    return torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, fused=fused or None)


def measure(a):
    device = torch.device(a.device)
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.backends.cudnn.benchmark = True
    if a.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    net = Yolo26(WIDTH[a.model]).to(device, memory_format=torch.channels_last).train()
    count = check_count(net, a.model)
    params = list(net.parameters())
    average = [p.detach().clone() for p in params]
    optimizer = optimizer_of(net)
    xy, stride = anchors(a.imgsz, device)
    truths = some_truths(a.batch, a.objects, a.imgsz, device)
    pixels = torch.randint(0, 256, (a.batch, 3, a.imgsz, a.imgsz), dtype=torch.uint8)
    pixels = pixels.to(device).to(memory_format=torch.channels_last)
    forward = torch.compile(net) if a.compile else net
    loss_of = torch.compile(total_loss) if a.compile else total_loss

    def step():
        x = pixels.to(torch.float32) / 255
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=a.amp == "bf16"):
            out = forward(x)
        loss = loss_of(out, xy, stride, float(a.imgsz), truths).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 10.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(average, [p.detach() for p in params], 1e-4)
        return loss

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    start = time.perf_counter()
    for _ in range(a.warmup):
        loss = step()
    wait()
    first = time.perf_counter() - start
    times = []
    # each time is that of a few steps which the host may run ahead in, as in training
    for _ in range(a.rounds):
        start = time.perf_counter()
        for _ in range(a.steps):
            loss = step()
        wait()
        times.append((time.perf_counter() - start) * 1e3 / a.steps)
    if not math.isfinite(loss.item()):
        sys.exit("torch_net.py: the loss is not finite")
    ms = statistics.median(times)
    result = {
        "model": a.model,
        "parameters": count,
        "imgsz": a.imgsz,
        "batch": a.batch,
        "amp": a.amp,
        "tf32": a.tf32,
        "compile": a.compile,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "images_per_s": a.batch / ms * 1e3,
        "ms_per_step": ms,
        "spread": {"median": ms, "min": min(times), "max": max(times)},
        "warmup_s": first,
        "loss": loss.item(),
    }
    if device.type == "cuda":
        result["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))


def check_count(net, model):
    count = sum(p.numel() for p in net.parameters())
    if count != PARAMETERS[model]:
        sys.exit(f"torch_net.py: {model} has {count} parameters, {PARAMETERS[model]} are right")
    return count


TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8}


def safetensors(path):
    """Arrays of a safetensors file by name."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    arrays = {}
    for name, h in header.items():
        if name == "__metadata__":
            continue
        a, b = h["data_offsets"]
        arrays[name] = torch.from_numpy(np.frombuffer(data[a:b], TYPES[h["dtype"]]).reshape(h["shape"]).copy())
    return arrays


def load(net, path):
    """Weights of a checkpoint by the names of published ones."""
    arrays = {k: v for k, v in safetensors(path).items() if k.startswith("model.")}
    missing, unexpected = net.load_state_dict(arrays, strict=False)
    missing = [m for m in missing if not m.endswith("num_batches_tracked")]
    if missing or unexpected:
        sys.exit(f"torch_net.py: {path} lacks {missing[:3]} and has {unexpected[:3]} besides")


def check(a):
    """Outputs, loss and gradients against stored ones, in float64."""
    net = Yolo26(WIDTH[a.model])
    check_count(net, a.model)
    load(net, a.weights or os.path.join(a.check, "weights.safetensors"))
    net = net.double().train()
    batch = safetensors(os.path.join(a.check, "batch.safetensors"))
    wanted = safetensors(os.path.join(a.check, "train_outputs.safetensors"))
    image = batch["img_u8"].double() / 255
    n, size = image.shape[0], image.shape[2]
    out = net(image)
    worst = 0.0
    for head, (boxes, scores) in zip(("one2many", "one2one"), out):
        for name, got in (("boxes", boxes), ("scores", scores)):
            worst = max(worst, (got.transpose(1, 2) - wanted[f"{head}.{name}"]).abs().max().item())
    report = {"worst_output": worst}
    fine = worst < 1e-3
    meta = os.path.join(a.check, "meta.json")
    if os.path.exists(meta) and not a.weights:
        with open(meta) as f:
            meta = json.load(f)
        index = batch["batch_idx"].long()
        most = int(index.bincount(minlength=n).max())
        truth, cls = torch.zeros(n, most, 4, dtype=torch.float64), torch.zeros(n, most, dtype=torch.long)
        valid = torch.zeros(n, most, dtype=torch.bool)
        for i in range(n):
            b = batch["bboxes_xywh_normalised"][index == i].double() * size
            truth[i, : len(b)] = torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], 1)
            cls[i, : len(b)] = batch["cls"][index == i].flatten().long()
            valid[i, : len(b)] = True
        xy, stride = (t.double() for t in anchors(size, "cpu"))
        loss = total_loss(out, xy, stride, float(size), (truth, cls, valid))
        report["worst_loss"] = max(abs(g / w - 1) for g, w in zip(loss.tolist(), meta["loss_times_batch"]))
        loss.sum().backward()
        norms = {k: p.grad.norm().item() for k, p in net.named_parameters()}
        scale = max(meta["grad_norm"].values())
        report["worst_gradient_norm"] = max(abs(norms[k] - w) / scale for k, w in meta["grad_norm"].items() if k in norms)
        fine = fine and report["worst_loss"] < 1e-5 and report["worst_gradient_norm"] < 1e-5
    report["ok"] = fine
    print(json.dumps(report))
    sys.exit(0 if fine else 1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="yolo26n", choices=sorted(PARAMETERS))
    p.add_argument("--imgsz", type=int, default=640)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--objects", type=int, default=8, help="of an image")
    p.add_argument("--amp", default="off", choices=["off", "bf16"])
    p.add_argument("--tf32", action="store_true", help="TF32 products where numbers are float32")
    p.add_argument("--compile", action="store_true", help="torch.compile of network and loss")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--threads", type=int, default=0, help="of the CPU; 0 is PyTorch's choice")
    p.add_argument("--warmup", type=int, default=10, help="steps that are not counted")
    p.add_argument("--steps", type=int, default=10, help="of a measurement")
    p.add_argument("--rounds", type=int, default=5, help="measurements")
    p.add_argument("--check", metavar="FOLDER", help="compare with the arrays in FOLDER instead")
    p.add_argument("--weights", help="with --check: other weights than the folder's")
    a = p.parse_args()
    if a.imgsz % 32:
        p.error(f"--imgsz {a.imgsz}: give a multiple of 32")
    check(a) if a.check else measure(a)


if __name__ == "__main__":
    main()
