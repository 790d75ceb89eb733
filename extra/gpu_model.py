"""What kernels take on a GPU that is not there: `python -m extra.roofline --arch sm_90a`.

Each kernel of some workloads is compiled by NVRTC, and a static model says how long it runs: the longest of what memory
takes for the bytes that its code loads and stores (`traffic`), the cores or the arithmetic units for its operations,
the schedulers for the instructions of its inner loop, and local memory for what these read and write of it; times what
the multiprocessor with the most groups has of them, of what all have on average, and the part of the latency that too
few warps leave open; and what groups wait at barriers, and those of a cluster at theirs. Its share of the roofline is
of what each buffer would take once. Figures of the devices are their makers' (A100 SXM, H100 SXM, B200: data sheets;
mma.sync reaches what the sheets say on sm_80 and, by the estimate of this model, 0.62 of it where there are wider
instructions).
It is a model: none of it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinygrad import Tensor, Variable, codegen, dtypes
from tinygrad.debug.estimate import estimate
from tinygrad.device import Device, DeviceError, Launch, Target
from tinygrad.helpers import PROCESS, Context, ceildiv, prod
from tinygrad.nn.block_formats import FORMATS
from tinygrad.renderer import cstyle, dialects
from tinygrad.runtime import cuda
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import affine

REGISTERS = 65536
HIDDEN = 12  # warps with which loads and products hide each other's latency
ISSUE = 4  # instructions a cycle of a multiprocessor
NEAR = 2.5  # times the bandwidth of memory: that of the second cache
BANKS = 128  # bytes of local memory a cycle
BARRIER, FAR = 30, 600  # cycles: threads meet, memory answers
# groups of a cluster meet: to the next multiprocessor and back, each way what Luo et al., Benchmarking and Dissecting
# the Nvidia Hopper GPU Architecture via Microbenchmarking (2024), have measured of a read there
TOGETHER = 2 * 180
LOCAL = ("LDS", "STS", "SHFL", "LDGSTS")
WIDTHS = {".128": 16, ".64": 8, "88.4": 16, "88.2": 8}  # bytes of a lane; else 4
SECTOR, SHORT = 32, 0.75  # bytes that are read at least; the share of the bandwidth that pieces of so many reach


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
  near: int  # bytes of the second cache
  warps: int = 64  # of a multiprocessor, at most


GPUS = {
  "sm_80": Gpu((8, 0), 108, 163 << 10, 1.41e9, 2.039e12, 312e12, 156e12, 19.5e12, 1.0, 40 << 20),
  "sm_89": Gpu((8, 9), 128, 99 << 10, 2.52e9, 1.008e12, 165e12, 82.6e12, 82.6e12, 1.0, 72 << 20, 48),  # RTX 4090
  "sm_90a": Gpu((9, 0), 132, 227 << 10, 1.83e9, 3.35e12, 989e12, 495e12, 67e12, 0.62, 50 << 20),
  "sm_100a": Gpu((10, 0), 148, 227 << 10, 1.85e9, 8.0e12, 2250e12, 1120e12, 75e12, 0.4, 126 << 20),
}


@dataclass(frozen=True, slots=True)
class Code:
  """Registers of a thread; the instructions of the loop with the most work in it, or of the kernel; floating-point
  operations of one pass of a warp through them."""

  registers: int
  instructions: int
  operations: int
  loop: bool
  shared: int  # bytes of local memory that they read and write
  stalls: int  # cycles in which a group waits between barriers: for one another, and for memory that is not read ahead
  together: int = 0  # and, once in all, for the others of its cluster
  inner: tuple[Code, ...] = ()  # of the innermost loops in it

  def with_turns(self, products: int) -> Code:
    """One pass, in which each of the innermost loops runs as often as so many multiply-adds of a thread take."""
    turns = [(max(products * PRODUCT["FFMA"] / x.operations - 1, 0), x) for x in self.inner if x.operations]

    def whole(field: str) -> int:
      return int(getattr(self, field) + sum(more * getattr(x, field) for more, x in turns))

    names = "instructions", "operations", "shared", "stalls"
    return replace(self, **{name: whole(name) for name in names})


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
  waits: str = ""  # what the compiler says of products that do not follow one another at once

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
  "HGMMA.64x32x": 16384,
  "HMMA.16816": 4096,
  "HMMA.1688": 2048,
  "FFMA": 64,
  "FADD": 32,
  "FMUL": 32,
}  # operations of a warp


def tiles(name: str) -> int:
  """Bytes of local memory that a product reads for each of its four warps: B, and A."""
  found = re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", name)
  m, n, k = map(int, found.groups()) if found else (0, 0, 0)
  return 2 * k * (n + m * name.endswith(".SS")) // 4


def loops_of(text: str, seldom: bool) -> tuple[list[str], list[tuple[int, int]]]:
  """The instructions that nvdisasm prints, and where loops begin and end: in a branch to a label above. What a branch
  within one passes over has no names if it is `seldom` run."""
  lines, labels = list[str](), dict[str, int]()
  bodies, ahead = list[tuple[int, int]](), dict[str, int]()
  for line in text.splitlines():
    if label := re.match(r"^(\.L_x_\d+):", line):
      labels[label[1]] = len(lines)
      if seldom and (begin := ahead.get(label[1])) is not None and all(start < begin for start, _ in bodies):
        lines[begin:] = [""] * (len(lines) - begin)
    elif found := re.match(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.x]*)(.*)", line):
      # what no lane does takes its turn and nothing else; a product on tiles says whether A is one, too
      name = "NOP" if "@!PT" in line else found[1] + ".SS" * bool(re.match(r"\s+R\d+, gdesc", found[2]))
      lines.append(name)
      target = re.search(r"\((\.L_x_\d+)\)", found[2])
      if found[1].startswith("BRA") and target and target[1] in labels:
        bodies.append((labels[target[1]], len(lines)))
      elif found[1].startswith("BRA") and target:
        ahead[target[1]] = len(lines)
  return lines, bodies


def read_code(text: str, seldom: bool = False) -> Code:
  """Of what nvdisasm prints."""
  lines, bodies = loops_of(text, seldom)

  def local(names: list[str]) -> int:
    """A shuffle goes the same way. Of what is read in vectors lanes are taken to have much in common."""
    wide = (
      next((n for part, n in WIDTHS.items() if part in x and x[:4] != "LDS."), 4) for x in names if x.startswith(LOCAL)
    )
    return 32 * sum(wide) + sum(map(tiles, names))

  def stalls(names: list[str]) -> int:
    """Each barrier's, and a load's of what a group copies before it goes on, between two of them, turn after turn."""
    first, *between = " ".join(["", *names]).split(" BAR.")
    between[-1:] = [x + first for x in between[-1:]]
    return BARRIER * len(between) + FAR * sum("LDG.E" in x for x in between)

  registers = re.search(r"EIATTR_REGCOUNT.*?\.word\s+index.*?\.word\s+0x([0-9a-f]+)", text, re.S)

  def work(body: tuple[int, int]) -> int:
    return sum(next((n for p, n in PRODUCT.items() if x.startswith(p)), 0) for x in lines[body[0] : body[1]])

  bodies = [b for b in bodies if b[1] - b[0] > 2] or [(0, sum(x != "NOP" for x in lines))]
  best = max(bodies, key=lambda b: (work(b), b[1] - b[0]))
  count = int(registers[1], 16) if registers else 0

  def code(names: list[str]) -> Code:
    operations = sum(next((n for p, n in PRODUCT.items() if x.startswith(p)), 0) for x in names)
    waiting = stalls(names) if best[0] > 0 else 0
    return Code(count, sum(map(bool, names)), operations, best[0] > 0, local(names), waiting)

  within = [b for b in bodies if best[0] <= b[0] and b[1] <= best[1] and b != best]
  innermost = [b for b in within if not any(b[0] <= x[0] and x[1] <= b[1] for x in within if x != b)]
  inner = tuple(code(lines[slice(*b)]) for b in innermost)
  return replace(code(lines[slice(*best)]), together=TOGETHER * lines.count("UCGABAR_WAIT"), inner=inner)


def target_of(gpu: Gpu) -> Target:
  return cuda.target_of(gpu.capability, gpu.units, gpu.shared)


def waits(said: str) -> str:
  """What the compiler says of products that wait for one another, or for what they were not told to: its messages about
  wgmma, C7510 and those that follow."""
  return "; ".join(dict.fromkeys(re.findall(r"\((C75\d\d)\)", said)))


def compiled(linear: list[UOp], arch: str) -> tuple[Code, Launch, int, str]:
  """(its code, launch, bytes of local memory, what products wait for)"""
  seldom = any(u.op is Ops.RANGE and u.src[0].op is not Ops.CONST and u.src[0].vmax == 1 for u in linear)
  rendered = cstyle.render(linear, "k", dialects.CUDA)
  binary, said = cuda.compiled_anew(rendered.source, "k", arch)
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "k.cubin")
    path.write_bytes(binary)
    run = subprocess.run([nvdisasm(), path], capture_output=True, text=True, check=True)
  static = re.search(r"scratch\[(\d+)\]", rendered.source)
  local = rendered.launch.local or (int(static[1]) * 16 if static else 0)
  return read_code(run.stdout, seldom), rendered.launch, local, waits(said)


@dataclass(slots=True)
class Sweep:
  """What a kernel reads, or writes, of one memory in one of its loops: bytes, and those of a piece without a gap."""

  size: int
  nbytes: float = 0.0
  piece: float = float("inf")


def sweeps(linear: Sequence[UOp]) -> dict[tuple[UOp, bool, UOp | None], Sweep]:
  """By memory, whether it is written, and the outermost loop of a thread around it, in the order in which they come.
  Threads that read the same at once read it once, and so does a loop that reads the same again. What is copied ahead of
  a loop, of a pipeline's first stages, is of that loop's sweep."""
  found, opened, ahead = dict[tuple[UOp, bool, UOp | None], Sweep](), list[UOp](), set[UOp]()
  # what threads side by side access, in vectors of so many: where the first one's begin
  firsts = dict[tuple[tuple[UOp, bool, UOp | None], frozenset[tuple[UOp, int]], UOp, int], set[int]]()
  for u in linear:
    if u.op is Ops.RANGE:
      opened.append(u)
    elif u.op is Ops.ENDRANGE:
      opened.pop()
    elif u.op in (Ops.LOAD, Ops.STORE, Ops.COPY) and u.src[0].op is Ops.INDEX:
      where = u.src[1] if u.op is Ops.COPY else u.src[0]
      memory, n = where.src[0], where.dtype.count
      if memory.op is not Ops.PARAM:
        continue
      own = [r for r in opened if r.arg[1] not in cstyle.THREADS]
      key = memory, u.op is Ops.STORE, own[0] if own else None
      sweep = found.setdefault(key, Sweep(nbytes_of(memory)))
      if u.op is Ops.COPY and not own:
        ahead.add(memory)
      elif u.op is Ops.COPY and memory in ahead:
        ahead.remove(memory)
        sweep.nbytes += found.pop((memory, False, None)).nbytes
      below = where.src[1].toposort()
      each = n * memory.dtype.itemsize
      sweep.nbytes += each * prod(r.src[0].vmax for r in opened if r in below or r.arg[1] in cstyle.GROUPS)
      at = affine(where.src[1], {})
      beside = next((r for r in opened if r.arg[1] is AxisKind.LOCAL and r in below), None)
      if beside is None:
        sweep.piece = min(sweep.piece, each)
      elif beside in at.terms:  # else threads are shared out in another way: nobody knows
        firsts.setdefault((key, frozenset(at.terms.items()), beside, n), set()).add(at.const)
  for (key, terms, beside, n), places in firsts.items():
    step, itemsize = dict(terms)[beside], key[0].dtype.itemsize
    whole = n <= step <= n * len({x % step for x in places})  # a thread's neighbours, one after the other, are near
    if (sweep := found.get(key)) is not None:
      sweep.piece = min(sweep.piece, itemsize * (step * beside.src[0].vmax if whole else n))
  return found


def nbytes_of(memory: UOp) -> int:
  return int(memory.arg.size * memory.dtype.itemsize)


def traffic(linear: Sequence[UOp], groups: int, at_once: int, near: int) -> tuple[float, float]:
  """(bytes of memory, of which in short pieces count for more; bytes that pass the second cache). The first sweep over
  a memory reads it once: what groups have in common of it, operands of products, is taken to be near. A later sweep
  finds near what the groups that run at once have touched before, if that fits, but for parts that none has read; else
  it reads all of it again."""
  far, passing, before = 0.0, 0.0, dict[UOp, float]()
  for (memory, written, _), s in sweeps(linear).items():
    nbytes = min(s.nbytes, s.size)
    kept = memory in before and not written and s.nbytes / groups * min(groups, at_once) <= near
    fresh = min(nbytes, s.size - min(before.get(memory, 0.0), s.size)) if kept else nbytes
    far += fresh / (SHORT if s.piece <= SECTOR else 1.0)
    passing += nbytes * max(SECTOR / s.piece, 1.0) / (SHORT if s.piece <= SECTOR else 1.0)
    before[memory] = before.get(memory, 0.0) + nbytes
  return far, passing


def products_of_a_loop(linear: Sequence[UOp]) -> int:
  """Of the innermost loops with products of float32 in the outermost loop that has the most, the fewest that one takes
  in a turn of that, or in all if it is that loop; 0: none."""
  opened = list[list[int]]()  # of each loop: whether it is innermost, its turns, its products so far
  found, most = list[int](), [0]
  for u in linear:
    if u.op is Ops.RANGE and u.arg[1] not in cstyle.THREADS:
      for outer in opened:
        outer[0] = 0
      opened.append([1, int(u.src[0].vmax), 0])
    elif u.op is Ops.ENDRANGE and u.src[0].arg[1] not in cstyle.THREADS:
      innermost, turns, products = opened.pop()
      if innermost and products:
        found.append(products * turns * prod(n for _, n, _ in opened[1:]))
      if not opened:
        most, found = max(most, found, key=sum), []
    elif u.op is Ops.MUL and u.dtype.scalar() is dtypes.float32 and opened:
      opened[-1][2] += u.dtype.count
  return min(most)


def judge(name: str, ast: UOp, arch: str) -> Verdict:
  gpu, cost = GPUS[arch], estimate(ast)
  linear = codegen.lower_kernel(ast, target_of(gpu))
  cores = {u.arg for u in linear if u.op is Ops.MMA}
  kinds = {core.operand.itemsize for core in cores}
  code, launch, local, said = compiled(linear, arch)
  code = code.with_turns(products_of_a_loop(linear))
  threads, groups = prod(launch.threads), prod(launch.groups)
  warps = ceildiv(threads, 32)
  fits = [gpu.warps // warps, 32, REGISTERS // max(ceildiv(code.registers, 8) * 8 * 32 * warps, 1)]
  here = max(min(*fits, gpu.shared // local if local else 32), 1)
  peak = gpu.half if 2 in kinds else gpu.tf32 if kinds else gpu.single
  reach = gpu.reach if kinds and not any(core.late for core in cores) else 1.0
  per_warp = cost.ops / (groups * warps)
  far, passing = traffic(linear, groups, here * gpu.units, gpu.near)
  passes = per_warp / code.operations if code.loop and code.operations else 1
  times = {
    "memory": max(far / gpu.bandwidth, passing / (NEAR * gpu.bandwidth)),
    "arithmetic": cost.ops / (peak * reach),
    "issue": passes * code.instructions * groups * warps / (gpu.units * ISSUE * gpu.clock),
    "local memory": passes * code.shared / BANKS * groups * warps / (gpu.units * gpu.clock),
  }
  bound = max(times, key=lambda k: times[k])
  waves = groups / (here * gpu.units)
  idle = ceildiv(groups, gpu.units) * gpu.units / groups if bound != "memory" else 1.0
  active = min(groups / gpu.units, here) * warps  # on a multiprocessor
  slower = max(idle, HIDDEN / active) if waves < 1 else idle * max(HIDDEN / active, 1)
  roof = max(cost.nbytes / gpu.bandwidth, cost.ops / peak)
  found = code.instructions, code.registers, here, warps, waves
  # groups beside each other go on while one waits
  waiting = (passes * code.stalls + code.together) * groups / (gpu.units * here * gpu.clock)
  return Verdict(name, cost.nbytes, cost.ops, *found, roof, times[bound] * max(slower, 1) + waiting, bound, said)


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
  return Tensor.empty(*shape, device="NULL", dtype=dtype).realize()


def attention(kind: Any, width: int = 64) -> Tensor:
  q, k, v = (empty(8, 16, 4096, width, dtype=kind) for _ in range(3))
  return q.scaled_dot_product_attention(k, v)


def trained(length: int, width: int) -> tuple[Tensor, ...]:
  """Attention and its gradients."""
  q, k, v, g = (empty(8, 16, length, width, dtype=dtypes.bfloat16) for _ in range(4))
  out = q.scaled_dot_product_attention(k, v)
  return out, *out.gradient(q, k, v, gradient=g)


def decode(kind: Any, most: int = 4096) -> Tensor:
  """Attention of one token, wherever it is, to those before it: as at the last position."""
  p = Variable("at", 0, most - 1).bind(most - 1)
  k, v = (empty(16, most, 128, dtype=kind)[:, : p + 1].unsqueeze(0) for _ in range(2))
  return empty(1, 16, 1, 128, dtype=kind).scaled_dot_product_attention(k, v)


def convolved(kind: Any) -> tuple[Tensor, ...]:
  """A convolution and its gradients."""
  x, w, g = (empty(*shape, dtype=kind) for shape in ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56)))
  out = x.conv2d(w, padding=1)
  return out, *out.gradient(x, w, gradient=g)


def few_results() -> Iterator[tuple[str, Callable[[], Tensor]]]:
  """Products with few rows, or few results of many terms, and sums to few columns."""
  half, n = dtypes.bfloat16, 4096
  for rows, kind in ((4, dtypes.float32), (16, half), (64, half), (256, half)):
    x = functools.partial(empty, rows, n, dtype=kind)
    yield f"{rows} rows {kind.name}", lambda x=x, kind=kind: x() @ empty(n, n, dtype=kind).T
  tokens = functools.partial(empty, 8192, 768, dtype=half)
  yield "weights' gradient", lambda: tokens().T @ tokens()
  yield "sum to 64 columns", lambda: empty(1 << 20, 64).sum(0)
  for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K"):
    weights = functools.partial(empty, n, n // FORMATS[name].weights, FORMATS[name].nbytes, dtype=dtypes.uint8)
    yield f"{name} by a vector", lambda weights=weights, kind=FORMATS[name]: kind.tensor(weights()) @ empty(n)


def workloads() -> Iterator[tuple[str, Callable[[], Tensor | tuple[Tensor, ...]]]]:
  big, n = (8192, 8192), 4096
  yield "add", lambda: empty(*big) + empty(*big)
  yield "exp", lambda: empty(*big).exp()
  yield "gelu bf16", lambda: empty(*big, dtype=dtypes.bfloat16).gelu()
  yield "sum of rows", lambda: empty(*big).sum(1)
  yield "sum of rows bf16", lambda: empty(*big, dtype=dtypes.bfloat16).sum(1)
  for kind in (dtypes.float32, dtypes.bfloat16):
    yield f"sum of columns {kind.name}", lambda kind=kind: empty(*big, dtype=kind).sum(0)
    yield f"argmax {kind.name}", lambda kind=kind: empty(*big, dtype=kind).argmax(1)
    yield f"softmax {kind.name}", lambda kind=kind: empty(*big, dtype=kind).softmax()
    yield f"log softmax {kind.name}", lambda kind=kind: empty(*big, dtype=kind).log_softmax()
    yield f"layernorm {kind.name}", lambda kind=kind: empty(*big, dtype=kind).layernorm()
  rows = functools.partial(empty, 2048, 1 << 17)
  yield "softmax of long rows", lambda: rows().softmax()
  yield "log softmax of long rows", lambda: rows().log_softmax()
  yield "layernorm of long rows", lambda: rows().layernorm()
  yield "argmax of long rows", lambda: rows().argmax(1)
  yield "std of long rows", lambda: rows().std(1)
  yield "softmax of 129 rows", lambda: empty(129, 1 << 17).softmax()
  yield "softmax of 100004", lambda: empty(2048, 100004).softmax()
  for kind in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
    yield f"matmul {kind.name}", lambda kind=kind: empty(n, n, dtype=kind) @ empty(n, n, dtype=kind)
    yield f"matmul {kind.name} NT", lambda kind=kind: empty(n, n, dtype=kind) @ empty(n, n, dtype=kind).T
  for side in (2048, 4032, 8192):
    square = functools.partial(empty, side, side, dtype=dtypes.bfloat16)
    yield f"matmul bf16 {side}", lambda square=square: square() @ square()
  yield "attention float32", lambda: attention(dtypes.float32)
  yield "attention bf16", lambda: attention(dtypes.bfloat16)
  for length, width in ((4096, 64), (4095, 64), (4096, 128), (4096, 256)):
    yield f"trained {length}x{width}", lambda length=length, width=width: trained(length, width)
  yield "decode float32", lambda: decode(dtypes.float32)
  yield "decode bf16", lambda: decode(dtypes.bfloat16)
  yield "transposed", lambda: empty(*big).T.contiguous()
  yield "short rows", lambda: empty(1 << 17, 49).sum(1)
  yield from few_results()
  yield "convolution bf16", lambda: convolved(dtypes.bfloat16)
  yield "convolution float32", lambda: convolved(dtypes.float32)
  for size in (1000, 1536):  # as blocks of 128 x 128 too few for all multiprocessors, or for a second turn
    yield f"matmul float32 {size}", lambda m=size: empty(m, m) @ empty(m, m)
  yield "16 matmuls float32 256", lambda: empty(16, 256, 256) @ empty(16, 256, 256)
  yield "matvec bf16", lambda: empty(*big, dtype=dtypes.bfloat16) @ empty(8192, dtype=dtypes.bfloat16)


def kernels_of(work: Callable[[], Tensor | tuple[Tensor, ...]]) -> list[UOp]:
  """The kernels by which a GPU of this kind computes it."""
  found, lower = list[UOp](), codegen.lower_kernel

  def noted(ast: UOp, *more: Any) -> list[UOp]:
    found.append(ast)
    return lower(ast, *more)

  codegen.lower_kernel = noted
  try:
    Tensor.realize(*(made if isinstance(made := work(), tuple) else (made,)))
  finally:
    codegen.lower_kernel = lower
  return found


@contextlib.contextmanager
def as_null(gpu: Gpu, compiles: str = "") -> Iterator[None]:
  """The simulated device is like this one, and nothing has been planned for it. What runs on it is compiled for the
  architecture `compiles`, into the cache where a process on that device finds it."""
  device: Any = Device["NULL"]
  device.target = target_of(gpu)
  device.render = lambda linear, name: cstyle.render(linear, name, dialects.CUDA)
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
          f" {v.groups:3d}x{v.warps:<3d} {v.waves:7.1f} {v.bound:>11s} {v.share:.2f} {v.waits}".rstrip()
        )


def main(arguments: Sequence[str]) -> None:
  parser = argparse.ArgumentParser(
    prog="python -m extra.roofline", description="what kernels take on a GPU, by a model"
  )
  parser.add_argument("--arch", choices=[*GPUS], default="sm_90a")
  parser.add_argument("--tf32", action="store_true", help="float32 on matrix cores")
  options = parser.parse_args(arguments)
  report(options.arch, options.tf32)
