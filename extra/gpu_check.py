"""`python -m extra.gpu_check`: the op table, the sharding laws and benchmarks on a GPU, in one command of under ten
minutes that ends with one table.

  --device CUDA   the kind of device (CL runs anywhere that PoCL or Intel's driver does)
  --quick         a few tests and small sizes: whether the command works, not how fast the device is
  --torch PYTHON  an interpreter that has PyTorch, for the comparison of matmuls (default: this one)

Shares are of the bandwidth at which a kernel of the same run copies memory. The exit status is 0 if every test passed
and every figure reached its aim (with --quick: if every test passed).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, DeviceError

ROOT = Path(__file__).parents[1]
LIMIT = 540  # seconds for all of it; what does not fit is stopped, and said to be
Row = tuple[str, str, str, str]  # what, figure, aim, verdict
TORCH = """
import time, torch
torch.backends.cuda.matmul.allow_tf32 = False
x, y = (torch.rand({n}, {n}, device="cuda") for _ in range(2))
times = []
for i in range(12):
  torch.cuda.synchronize(); start = time.perf_counter()
  for _ in range(5): x @ y
  torch.cuda.synchronize(); times.append((time.perf_counter() - start) / 5)
print(sorted(times[2:])[5])
"""


def tests(name: str, paths: list[str], environment: dict[str, str], seconds: float, more: list[str]) -> Row:
  """A run of pytest, which counts as failed if it does not end in time."""
  command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, *paths]
  start = time.perf_counter()
  with subprocess.Popen(
    command, cwd=ROOT, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
  ) as run:
    try:
      out, _ = run.communicate(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
      run.kill()
      out, _ = run.communicate()
      return name, f"stopped after {seconds:.0f} s", "all pass", "FAILED"
  found = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|error|skipped|deselected|warning).*?)(?: =+)?$", out, re.M)
  if run.returncode:
    print(out[-4000:])
  verdict = "ok" if run.returncode == 0 else "FAILED"
  return name, f"{found[-1] if found else 'no summary'}, {time.perf_counter() - start:.0f} s", "all pass", verdict


def seconds_of(step: Callable[..., Tensor], *args: Tensor, repeat: int) -> float:
  """Seconds of one replay of a captured step: the median of several rounds."""
  jit, device = TinyJit(step), Device[str(args[0].device)]
  for _ in range(4):
    jit(*args)
  rounds = []
  for _ in range(7):
    device.synchronize()
    start = time.perf_counter()
    for _ in range(repeat):
      jit(*args)
    device.synchronize()
    rounds.append((time.perf_counter() - start) / repeat)
  return statistics.median(rounds)


def bandwidths(device: str, rows: int, columns: int, repeat: int) -> list[Row]:
  """Kernels that should move memory as fast as a copy does: (bytes that have to move) / time, as a share of it."""
  n = rows * columns
  x, y = (Tensor.rand(rows, columns, device=device).realize() for _ in range(2))
  workloads: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "copy": (lambda x: x.clone().realize(), (x,), 2 * n),
    "elementwise x*2+y": (lambda x, y: (x * 2 + y).realize(), (x, y), 3 * n),
    "softmax of rows": (lambda x: x.softmax(-1).realize(), (x,), 2 * n),
    "layernorm of rows": (lambda x: x.layernorm().realize(), (x,), 2 * n),
    "sum of all": (lambda x: x.sum().realize(), (x,), n),
    "sum of rows": (lambda x: x.sum(1).realize(), (x,), n + rows),
    "sum of columns": (lambda x: x.sum(0).realize(), (x,), n + columns),
    "max of rows": (lambda x: x.max(1).realize(), (x,), n + rows),
  }
  out: list[Row] = []
  copied = 0.0
  for name, (step, args, floats) in workloads.items():
    rate = 4 * floats / seconds_of(step, *args, repeat=repeat) / 1e9
    copied = copied or rate
    share = rate / copied
    name = f"{name}, float32[{rows}, {columns}]"
    if name.startswith("copy"):
      out.append((name, f"{rate:.1f} GB/s", "", ""))
    else:
      out.append((name, f"{rate:.1f} GB/s, {share:.2f} of the copy", "0.80", "ok" if share >= 0.8 else "BELOW"))
  return out


def host_copies(device: str, nbytes: int) -> list[Row]:
  """Through the staging memory, there and back."""
  host, back = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
  backend = Device[device]
  memory = backend.alloc(nbytes)
  out: list[Row] = []
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
    out.append((f"{name}, {nbytes >> 20} MiB", f"{nbytes / statistics.median(rounds) / 1e9:.1f} GB/s", "", ""))
  backend.free(memory, nbytes)
  if not np.array_equal(host, back):
    out.append(("host copies", "what comes back differs", "equal", "FAILED"))
  return out


def matmul(device: str, n: int, repeat: int, python: str) -> Row:
  x, y = (Tensor.rand(n, n, device=device).realize() for _ in range(2))
  ours = seconds_of(lambda x, y: (x @ y).realize(), x, y, repeat=repeat)
  figure = f"{2 * n**3 / ours / 1e12:.3f} TFLOP/s"
  name = f"matmul float32 {n}"
  theirs = subprocess.run([python, "-c", TORCH.format(n=n)], capture_output=True, text=True, check=False)
  if theirs.returncode:
    why = (theirs.stderr.strip().splitlines() or ["it failed"])[-1]
    return name, f"{figure}; no PyTorch to compare with ({why})", "0.50", ""
  share = float(theirs.stdout) / ours
  return name, f"{figure}, {share:.2f} of PyTorch's", "0.50", "ok" if share >= 0.5 else "BELOW"


def several(kind: str) -> dict[str, str]:
  """The environment in which there are the nine devices that the laws' largest meshes have."""
  return {"DEV": kind, "CUDA_VIRTUAL": "9", "METAL_VIRTUAL": "9", "CL_VIRTUAL": "9"}


def show(rows: list[Row]) -> None:
  widths = [max(len(r[i]) for r in rows) for i in range(4)]
  for r in rows:
    print("  ".join(cell.ljust(w) for cell, w in zip(r, widths)).rstrip())


def main(args: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
  parser.add_argument("--device", default="CUDA")
  parser.add_argument("--quick", action="store_true")
  parser.add_argument("--torch", default=sys.executable)
  given: Any = parser.parse_args(args)
  start = time.perf_counter()
  try:
    backend = Device[given.device]
  except DeviceError as e:
    print(
      f"no device {given.device} works here: {e}\n  `python -m extra.gpu_check --device CL --quick` shows what it does"
    )
    return 2
  print(f"{given.device}: {backend.description}")
  rows: list[Row] = [("what", "here", "aim", "")]
  size = (256, 1024, 2) if given.quick else (16384, 4096, 20)
  rows += host_copies(given.device, (8 if given.quick else 512) << 20)
  rows += bandwidths(given.device, *size)
  rows.append(matmul(given.device, 256 if given.quick else 4096, size[2], given.torch))
  workers = ["-n", str(min(os.cpu_count() or 1, 8))]
  few = ["-k", "softmax"] if given.quick else []
  one = {"DEV": given.device}
  left = LIMIT - (time.perf_counter() - start)
  rows.append(tests("op table, one device", ["test/ops/test_op_table.py"], one, left / 2, workers + few))
  few = ["-k", "compiled and 20" if given.quick else "compiled"]
  left = LIMIT - (time.perf_counter() - start)
  rows.append(
    tests("sharding laws, nine devices", ["test/laws/test_laws.py"], several(given.device), left, workers + few)
  )
  rows.append(("all", f"{time.perf_counter() - start:.0f} s", "600 s", ""))
  show(rows)
  return int(any(r[3] == "FAILED" or (r[3] == "BELOW" and not given.quick) for r in rows))


if __name__ == "__main__":
  sys.exit(main())
