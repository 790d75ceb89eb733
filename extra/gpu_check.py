"""`python -m extra.gpu_check`: the ten minutes that tell most about a GPU.

Each section is a process of its own, which prints a line of JSON for each result at once; what does not fit into the
time is stopped, and said to be. At the end there is one table.

  --device CUDA      the kind of device (CL runs wherever Intel's driver or PoCL does)
  --section NAME     one of them, or several: products rows attention gradients models copies tests formats laws
  --quick            small sizes and few tests: whether the command works, not how fast the device is
  --torch PYTHON     an interpreter that has PyTorch with CUDA, whose times stand beside (default: this one)
  --compile-only     compiles all kernels for --arch into CACHEDIR, and judges them by a model; needs no GPU

Results are compared with float64 at the sizes that are timed, in memory that held NaN before, three times over, with
the same bits each time. Times are of replays of captured steps. The exit status is 0 if every result is right, every
test passed and every figure reached its aim (with --quick: without the figures).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from extra import gpu_model
from extra.gpu_work import Work, all_work
from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.device import Device, DeviceError

ROOT = Path(__file__).parents[1]
LIMIT = 540  # seconds for all of it
WORST = 10  # kernels that --compile-only shows
Row = dict[str, Any]  # what, figure, and where there are: aim, ok
TORCH = """
import json, sys, time, torch
torch.backends.cuda.matmul.allow_tf32 = False
def seconds(step):
  rounds, repeat = [], 1
  while len(rounds) < 7:
    torch.cuda.synchronize(); start = time.perf_counter()
    for _ in range(repeat): step()
    torch.cuda.synchronize(); rounds.append((time.perf_counter() - start) / repeat)
    if len(rounds) == 1 and rounds[0] * repeat < 0.02 and repeat < 1000: repeat, rounds = repeat * 4, []
  return sorted(rounds)[3]
for line in sys.stdin:
  work = json.loads(line)
  kind = getattr(torch, work["kind"])
  t = [torch.randn(s, device="cuda", dtype=kind) for s in work["shapes"]]
  names = {"torch": torch, "t": t, "kind": kind, **dict(zip("abc", t * 3))}
  try:
    exec(work["before"] + "\\nstep = lambda: " + work["step"], names)
    for _ in range(3): names["step"]()
    print(seconds(names["step"]), flush=True)
  except Exception as e:
    print(e, file=sys.stderr); print(0, flush=True)
"""


def seconds_of(jit: Callable[..., Tensor], args: list[Tensor], device: str) -> float:
  """Seconds of one replay of a captured step: the median of several rounds, each of about 20 ms or more."""
  backend, rounds, repeat = Device[device], list[float](), 1
  while len(rounds) < 7:
    backend.synchronize()
    start = time.perf_counter()
    for _ in range(repeat):
      jit(*args)
    backend.synchronize()
    rounds.append((time.perf_counter() - start) / repeat)
    if len(rounds) == 1 and rounds[0] * repeat < 0.02 and repeat < 1000:
      repeat, rounds = repeat * 4, []
  return statistics.median(rounds)


def run(work: Work, device: str, python: str, copied: float) -> Row:
  """One workload: right, the same three times over, and how fast."""
  args, arrays = work.inputs(device, np.random.default_rng(0))
  jit = TinyJit(lambda *args: work.step(*args).realize())
  want, found = work.want(*arrays), list[np.ndarray]()
  for _ in range(3):
    out = jit(*args).cast(dtypes.float32).numpy()
    found.append(out)
    Tensor.full(out.shape, float("nan"), device=device).contiguous().realize()  # what is freed holds NaN
  got = found[0][: work.rows] if work.rows else found[0]
  error = float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))
  right, same = error <= work.tolerance, all(np.array_equal(found[0], x) for x in found)
  seconds = seconds_of(jit, args, device)
  rates = f"{work.flops / seconds / 1e12:.3f} TFLOP/s, {work.nbytes / seconds / 1e9:.1f} GB/s"
  row: Row = {"what": work.name, "error": error, "seconds": seconds, "figure": f"{seconds * 1e3:.3f} ms, {rates}"}
  if not right or not same:
    return row | {"ok": False, "figure": f"off by {error:.1e} of the largest" if not right else "not the same bits"}
  if theirs := torch_seconds(work, python):
    row |= {"figure": f"{row['figure']}, {theirs / seconds:.2f} of PyTorch", "torch": theirs / seconds}
  if copied:
    share = work.nbytes / seconds / copied
    row |= {"figure": f"{row['figure']}, {share:.2f} of the copy", "aim": 0.9, "reached": share >= 0.9}
  return row | {"ok": True}


@functools.cache
def torch_process(python: str) -> subprocess.Popen[str]:
  """Which times steps in PyTorch, a line of JSON each; it ends with this process."""
  return subprocess.Popen([python, "-c", TORCH], stdin=-1, stdout=-1, stderr=-3, text=True)


def torch_seconds(work: Work, python: str) -> float:
  """0 where there is no PyTorch with CUDA, or the workload is not written for it."""
  if not work.torch:
    return 0.0
  peer = torch_process(python)
  assert peer.stdin and peer.stdout
  asked = {"kind": work.dtype.name, "shapes": work.shapes, "step": work.torch, "before": work.before}
  try:
    print(json.dumps(asked), file=peer.stdin, flush=True)
    return float(peer.stdout.readline() or 0)
  except BrokenPipeError:  # it has no PyTorch, and has ended
    return 0.0


def timed(section: str, given: Any) -> Iterator[Row]:
  copied = 0.0
  for work in all_work(given.quick)[section]:
    copies = work.name.startswith("copy")
    row = run(work, given.device, given.torch, 0.0 if copies else copied)
    if copies:
      copied = work.nbytes / row["seconds"]
    yield row


def host_copies(given: Any) -> Iterator[Row]:
  """Through the staging memory, there and back."""
  nbytes = (8 if given.quick else 512) << 20
  host, back, backend = np.arange(nbytes, dtype=np.uint8), np.empty(nbytes, np.uint8), Device[given.device]
  memory = backend.alloc(nbytes)
  for name, copy in (
    ("host to device", lambda: backend.copyin(memory, memoryview(host))),
    ("device to host", lambda: backend.copyout(memoryview(back), memory)),
  ):
    rounds = []
    for _ in range(5):
      backend.synchronize()
      start = time.perf_counter()
      copy()
      backend.synchronize()
      rounds.append(time.perf_counter() - start)
    rate = nbytes / statistics.median(rounds) / 1e9
    yield {"what": f"{name}, {nbytes >> 20} MiB", "figure": f"{rate:.1f} GB/s", "ok": True}
  backend.free(memory, nbytes)
  yield {"what": "what comes back", "figure": "compared", "ok": np.array_equal(host, back)}


def tests(path: str, few: str, environment: dict[str, str], given: Any) -> Iterator[Row]:
  """A run of pytest."""
  command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path, "-k", few]
  command += ["-n", str(min(os.cpu_count() or 1, 8))]
  done = subprocess.run(
    command,
    cwd=ROOT,
    env={**os.environ, "DEV": given.device, **environment},
    text=True,
    capture_output=True,
    check=False,
  )
  found = re.findall(
    r"^(?:=+ )?(\d+ (?:passed|failed|error|skipped|deselected|warning).*?)(?: =+)?$", done.stdout, re.M
  )
  if done.returncode:
    print(done.stdout[-4000:], file=sys.stderr)
  yield {"what": path, "figure": found[-1] if found else "no summary", "ok": done.returncode == 0}


def op_table(given: Any) -> Iterator[Row]:
  return tests("test/ops/test_op_table.py", "softmax" if given.quick else "", {}, given)


def formats(given: Any) -> Iterator[Row]:
  """Products with quantised weights, whose sums are exact."""
  return tests("test/nn/test_block_formats.py", "rounded_products_are and Q4_1" if given.quick else "", {}, given)


def laws(given: Any) -> Iterator[Row]:
  """On nine devices, as the laws' largest meshes have."""
  several = {f"{kind}_VIRTUAL": "9" for kind in ("CUDA", "METAL", "CL")}
  return tests("test/laws/test_laws.py", "compiled and 20" if given.quick else "compiled", several, given)


SECTIONS: dict[str, Callable[[Any], Iterator[Row]]] = {
  "copies": host_copies,
  **{s: functools.partial(timed, s) for s in ("products", "rows", "attention", "gradients", "models")},
  "tests": op_table,
  "formats": formats,
  "laws": laws,
}


def in_processes(given: Any) -> list[Row]:
  """Each section in one; what it prints is passed on at once."""
  rows, until = list[Row](), time.monotonic() + LIMIT
  options = ["--device", given.device, "--torch", given.torch, *["--quick"] * given.quick]
  for section in given.section or SECTIONS:
    command = [sys.executable, "-m", "extra.gpu_check", "--here", "--section", section, *options]
    left = max(until - time.monotonic(), 1)
    try:
      with subprocess.Popen(
        ["timeout", str(int(left)), *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
      ) as child:
        for line in child.stdout or ():
          print(line, end="", flush=True)
          rows.append({"section": section, **json.loads(line)})
    finally:
      child.kill()
    if child.returncode:
      why = "stopped: the time is over" if child.returncode == 124 else f"ended with {child.returncode}"
      rows.append({"section": section, "what": "the section", "figure": why, "ok": False})
      print(json.dumps(rows[-1]), flush=True)
  return rows


def show(rows: list[Row]) -> None:
  print()
  for r in rows:
    verdict = "FAILED" if not r["ok"] else "" if r.get("reached", True) else f"BELOW {r['aim']}"
    print(f"{r.get('section', ''):10s} {r['what']:36s} {r['figure']}  {verdict}".rstrip())


def compile_only(given: Any) -> int:
  """Kernels of all sections, into the cache in which a process on that GPU looks; the worst by the model's share."""
  verdicts = list[gpu_model.Verdict]()
  gpu = gpu_model.GPUS[given.arch]
  with gpu_model.as_null(gpu, given.arch):
    for section in given.section or all_work(given.quick):
      for work in all_work(given.quick)[section]:
        args = [gpu_model.empty(*s, dtype=work.kind_of(i)) for i, s in enumerate(work.shapes)]
        first = len(verdicts)
        for ast in gpu_model.kernels_of(lambda work=work, args=args: work.step(*args)):
          verdicts.append(v := gpu_model.judge(work.name, ast, given.arch))
          row = {"what": v.name, "registers": v.registers, "share": round(v.share, 2), "bound": v.bound}
          print(json.dumps(row | ({"waits": v.waits} if v.waits else {})), flush=True)
        if ms := 1e3 * sum(v.seconds for v in verdicts[first:]):  # else its kernels are those of one before
          print(json.dumps({"what": work.name, "kernels": len(verdicts) - first, "ms": round(ms, 4)}), flush=True)
  print()
  for v in sorted(verdicts, key=lambda v: v.share)[:WORST]:
    print(f"{v.name:36s} {v.registers:4d} registers, {v.groups}x{v.warps} warps  {v.bound:>10s} {v.share:.2f}")
  return 0


def main(args: list[str] | None = None) -> int:
  head, _, rest = (__doc__ or "\n\n").partition("\n\n")
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser("python -m extra.gpu_check", description=head, epilog=rest, formatter_class=raw)
  parser.add_argument("--device", default="CUDA")
  parser.add_argument("--section", nargs="*", choices=[*SECTIONS])
  parser.add_argument("--quick", action="store_true")
  parser.add_argument("--torch", default=sys.executable)
  parser.add_argument("--compile-only", action="store_true")
  parser.add_argument("--arch", choices=[*gpu_model.GPUS], default="sm_90a")
  parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # a section's own process
  given: Any = parser.parse_args(args)
  if shutil.which(given.torch) is None:
    parser.error(f"there is no interpreter {given.torch!r}; fix: --torch /path/to/python")
  try:
    if given.compile_only:
      return compile_only(given)
    backend = Device[given.device]
  except DeviceError as e:
    print(f"{e}\n  or: `python -m extra.gpu_check --device CL --quick` shows what it does", file=sys.stderr)
    return 2
  if given.here:
    for row in SECTIONS[given.section[0]](given):
      print(json.dumps(row), flush=True)
    return 0
  print(f"{given.device}: {backend.description}", file=sys.stderr)
  show(rows := in_processes(given))
  return int(any(not r["ok"] or not (given.quick or r.get("reached", True)) for r in rows))


if __name__ == "__main__":
  sys.exit(main())
