"""What kernels take on a GPU that is not there: `python -m extra.roofline --arch sm_90a`.

Each kernel of some workloads is compiled by NVRTC, and a static model says how long it runs: the longest of what memory
takes for its bytes (each buffer once), the cores or the arithmetic units for its operations, and the schedulers for the
instructions of its inner loop, over the part of the last wave that is idle and the part of the latency that too few
warps leave open. Figures of the devices are their makers' (A100 SXM, H100 SXM, B200: data sheets; mma.sync reaches what
the sheets say on sm_80 and, by the estimate of this model, 0.62 of it where there are wider instructions).
It is a model: none of it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygrad import Tensor, codegen, dtypes
from tinygrad.debug.estimate import estimate
from tinygrad.device import Device, DeviceError, Launch, Target
from tinygrad.helpers import PROCESS, Context, ceildiv, prod
from tinygrad.renderer import cstyle
from tinygrad.runtime import cuda
from tinygrad.uop import Ops, UOp

WARPS = 64  # of a multiprocessor
REGISTERS = 65536
HIDDEN = 12  # warps with which loads and products hide each other's latency
ISSUE = 4  # instructions a cycle of a multiprocessor


@dataclass(frozen=True, slots=True)
class Gpu:
  """`half`, `tf32`, `single`: floating-point operations a second; `reach`: the part of them that mma.sync has."""

  capability: tuple[int, int]
  units: int
  shared: int
  clock: float
  bandwidth: float
  half: float
  tf32: float
  single: float
  reach: float


GPUS = {
  "sm_80": Gpu((8, 0), 108, 163 << 10, 1.41e9, 2.039e12, 312e12, 156e12, 19.5e12, 1.0),
  "sm_90a": Gpu((9, 0), 132, 227 << 10, 1.83e9, 3.35e12, 989e12, 495e12, 67e12, 0.62),
  "sm_100a": Gpu((10, 0), 148, 227 << 10, 1.85e9, 8.0e12, 2250e12, 1120e12, 75e12, 0.4),
}


@dataclass(frozen=True, slots=True)
class Code:
  """Registers of a thread; the instructions of the loop with the most work in it, or of the kernel; floating-point
  operations of one pass of a warp through them."""

  registers: int
  instructions: int
  operations: int
  loop: bool


@dataclass(frozen=True, slots=True)
class Verdict:
  """Of one kernel: seconds on the roofline, and those that the model says."""

  name: str
  nbytes: int
  flops: int
  instructions: int
  registers: int
  groups: int  # on a multiprocessor at once
  warps: int
  waves: float
  roof: float
  seconds: float
  bound: str

  @property
  def share(self) -> float:
    return self.roof / self.seconds


def nvdisasm() -> str:
  """Raises: DeviceError where it is not installed."""
  paths = [p for folder in sys.path for p in Path(folder).glob("nvidia/*/bin/nvdisasm")]
  if found := [*map(str, paths), *filter(None, [shutil.which("nvdisasm")])]:
    return found[0]
  raise DeviceError("there is no nvdisasm, which reads machine code\n  fix: pip install nvidia-cuda-nvdisasm")


PRODUCT = {
  "HGMMA.64x256x": 131072,
  "HGMMA.64x128x": 65536,
  "HGMMA.64x64x": 32768,
  "HMMA.16816": 4096,
  "HMMA.1688": 2048,
  "FFMA": 64,
  "FADD": 32,
  "FMUL": 32,
}  # operations of a warp


def read_code(text: str) -> Code:
  """Of what nvdisasm prints: loops end in a branch to a label above."""
  lines, labels = list[str](), dict[str, int]()
  bodies = list[tuple[int, int]]()
  for line in text.splitlines():
    if label := re.match(r"^(\.L_x_\d+):", line):
      labels[label[1]] = len(lines)
    elif found := re.match(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)(.*)", line):
      lines.append(found[1])
      target = re.search(r"\((\.L_x_\d+)\)", found[2])
      if found[1].startswith("BRA") and target and target[1] in labels:
        bodies.append((labels[target[1]], len(lines)))
  registers = re.search(r"EIATTR_REGCOUNT.*?\.word\s+index.*?\.word\s+0x([0-9a-f]+)", text, re.S)

  def work(body: tuple[int, int]) -> int:
    return sum(next((n for p, n in PRODUCT.items() if x.startswith(p)), 0) for x in lines[body[0] : body[1]])

  bodies = [b for b in bodies if b[1] - b[0] > 2] or [(0, sum(x != "NOP" for x in lines))]
  best = max(bodies, key=lambda b: (work(b), b[1] - b[0]))
  return Code(int(registers[1], 16) if registers else 0, best[1] - best[0], work(best), best[0] > 0)


def target_of(gpu: Gpu) -> Target:
  return cuda.target_of(gpu.capability, gpu.units, gpu.shared)


def compiled(linear: list[UOp], arch: str) -> tuple[Code, Launch, int]:
  """(its code, launch, bytes of local memory)"""
  rendered = cstyle.render(linear, "k", cstyle.CUDA)
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "k.cubin")
    path.write_bytes(cuda.compile_source(rendered.source, "k", arch))
    run = subprocess.run([nvdisasm(), path], capture_output=True, text=True, check=True)
  static = re.search(r"scratch\[(\d+)\]", rendered.source)
  return read_code(run.stdout), rendered.launch, rendered.launch.local or (int(static[1]) * 16 if static else 0)


def judge(name: str, ast: UOp, arch: str) -> Verdict:
  gpu, cost = GPUS[arch], estimate(ast)
  linear = codegen.lower_kernel(ast, target_of(gpu))
  cores = {u.arg for u in linear if u.op is Ops.MMA}
  kinds = {core.operand.itemsize for core in cores}
  code, launch, local = compiled(linear, arch)
  threads, groups = prod(launch.threads), prod(launch.groups)
  warps = ceildiv(threads, 32)
  fits = [WARPS // warps, 32, REGISTERS // max(ceildiv(code.registers, 8) * 8 * 32 * warps, 1)]
  here = max(min(*fits, gpu.shared // local if local else 32), 1)
  peak = gpu.half if 2 in kinds else gpu.tf32 if kinds else gpu.single
  reach = gpu.reach if kinds and not any(core.late for core in cores) else 1.0
  per_warp = cost.ops / (groups * warps)
  passes = per_warp / code.operations if code.loop and code.operations else 1
  times = {
    "memory": cost.nbytes / gpu.bandwidth,
    "arithmetic": cost.ops / (peak * reach),
    "issue": passes * code.instructions * groups * warps / (gpu.units * ISSUE * gpu.clock),
  }
  bound = max(times, key=lambda k: times[k])
  waves = groups / (here * gpu.units)
  idle = ceildiv(groups, here * gpu.units) / waves if bound != "memory" else 1.0
  active = min(groups / gpu.units, here) * warps  # on a multiprocessor
  slower = max(idle, HIDDEN / active) if waves < 1 else idle * max(HIDDEN / active, 1)
  roof = max(cost.nbytes / gpu.bandwidth, cost.ops / peak)
  found = code.instructions, code.registers, here, warps, waves
  return Verdict(name, cost.nbytes, cost.ops, *found, roof, times[bound] * max(slower, 1), bound)


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
  return Tensor.empty(*shape, device="NULL", dtype=dtype).realize()


def attention(kind: Any) -> Tensor:
  q, k, v = (empty(8, 16, 4096, 64, dtype=kind) for _ in range(3))
  return q.scaled_dot_product_attention(k, v)


def workloads() -> Iterator[tuple[str, Callable[[], Tensor]]]:
  big, n = (8192, 8192), 4096
  yield "add", lambda: empty(*big) + empty(*big)
  yield "exp", lambda: empty(*big).exp()
  yield "gelu bf16", lambda: empty(*big, dtype=dtypes.bfloat16).gelu()
  yield "sum of rows", lambda: empty(*big).sum(1)
  yield "sum of rows bf16", lambda: empty(*big, dtype=dtypes.bfloat16).sum(1)
  yield "sum of columns", lambda: empty(*big).sum(0)
  yield "softmax", lambda: empty(*big).softmax()
  yield "layernorm", lambda: empty(*big).layernorm()
  for kind in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
    yield f"matmul {kind.name}", lambda kind=kind: empty(n, n, dtype=kind) @ empty(n, n, dtype=kind)
    yield f"matmul {kind.name} NT", lambda kind=kind: empty(n, n, dtype=kind) @ empty(n, n, dtype=kind).T
  yield "matmul bf16 8192", lambda: empty(*big, dtype=dtypes.bfloat16) @ empty(*big, dtype=dtypes.bfloat16)
  yield "attention float32", lambda: attention(dtypes.float32)
  yield "attention bf16", lambda: attention(dtypes.bfloat16)
  yield "matvec bf16", lambda: empty(*big, dtype=dtypes.bfloat16) @ empty(8192, dtype=dtypes.bfloat16)


def kernels_of(work: Callable[[], Tensor]) -> list[UOp]:
  """The kernels by which a GPU of this kind computes it."""
  found, lower = list[UOp](), codegen.lower_kernel

  def noted(ast: UOp, *more: Any) -> list[UOp]:
    found.append(ast)
    return lower(ast, *more)

  codegen.lower_kernel = noted
  try:
    work().realize()
  finally:
    codegen.lower_kernel = lower
  return found


@contextlib.contextmanager
def as_null(gpu: Gpu, compiles: str = "") -> Iterator[None]:
  """The simulated device is like this one, and nothing has been planned for it. What runs on it is compiled for the
  architecture `compiles`, into the cache where a process on that device finds it."""
  device: Any = Device["NULL"]
  device.target = target_of(gpu)
  device.render = lambda linear, name: cstyle.render(linear, name, cstyle.CUDA)
  if compiles:
    device.compile = lambda rendered, name: cuda.compile_source(rendered.source, name, compiles)
  try:
    with PROCESS.anew():
      yield
  finally:
    for name in {"target", "render", "compile"} & vars(device).keys():
      delattr(device, name)


def report(arch: str, tf32: bool) -> None:
  columns = f"{'MB':>8s} {'GFLOP':>8s} {'inner':>6s} {'regs':>5s} {'groups':>7s} {'waves':>7s} {'bound':>11s}"
  print(f"{'kernel':24s} {columns} share")
  with Context(ALLOW_TF32=int(tf32)), as_null(GPUS[arch]):
    for name, work in workloads():
      for i, ast in enumerate(found := kernels_of(work)):
        v = judge(name + (f" {i + 1}/{len(found)}" if len(found) > 1 else ""), ast, arch)
        print(
          f"{v.name:24s} {v.nbytes / 1e6:8.1f} {v.flops / 1e9:8.2f} {v.instructions:6d} {v.registers:5d}"
          f" {v.groups:3d}x{v.warps:<3d} {v.waves:7.1f} {v.bound:>11s} {v.share:.2f}"
        )


def main(arguments: Sequence[str]) -> None:
  parser = argparse.ArgumentParser(
    prog="python -m extra.roofline", description="what kernels take on a GPU, by a model"
  )
  parser.add_argument("--arch", choices=[*GPUS], default="sm_90a")
  parser.add_argument("--tf32", action="store_true", help="float32 on matrix cores")
  options = parser.parse_args(arguments)
  report(options.arch, options.tf32)
