"""Kernels of the op table, forward and backward: each is rendered for NVIDIA's architectures and fits a launch, every
second one compiles; no GPU is needed. Kernels are compiled many at once, which costs a fifth of one by one."""

import importlib.util
import re
from collections.abc import Iterator

import pytest
from op_table import ROWS, cases
from test_op_table import ours

from tinygrad.codegen import lower_kernel
from tinygrad.device import DeviceError
from tinygrad.engine.canonical import canonical
from tinygrad.engine.realize import _prepare
from tinygrad.renderer import cstyle, dialects
from tinygrad.runtime import cuda
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("nvidia") is None:
  pytest.skip("compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC", allow_module_level=True)

PARTS = 20  # of the rows, every 20th from one on
AT_ONCE = 64
OTHERS = {"sm_80": 0, "sm_100a": 4}  # every 8th kernel, from one on, is compiled for these too
GRID = (2**31 - 1, 65535, 65535)
BLOCK = (1024, 1024, 64)


def kernels(part: int) -> Iterator[tuple[str, UOp]]:
  """(row, kernel) of a part of the rows, each kernel once; nothing is computed."""
  seen: set[UOp] = set()
  for number, r in list(enumerate(ROWS))[part::PARTS]:
    tensors = [t for case in cases(number, r) for found in ours(case) for t in found]
    effects: list[UOp] = []
    for t in tensors:
      _prepare(t.uop, effects)
    effects += [u for u in UOp.sink(*(t.uop for t in tensors)).toposort() if u.op is Ops.ASSIGN]
    if effects:
      for item in create_schedule(localize(canonical(UOp.sink(*dict.fromkeys(effects)))[0]), True, cuda.TARGET).items:
        if isinstance(item.kernel, UOp) and item.kernel not in seen:
          seen.add(item.kernel)
          yield r.name, item.kernel


def compile_all(sources: list[tuple[str, str]], arch: str) -> None:
  """Compiles (row, source)s together, each kernel under a name of its own; where that fails, says which."""
  prelude = dialects.CUDA.prelude
  bodies = [re.sub(r"\bkernel_\(", f"kernel_{i}(", s.replace(prelude, "")) for i, (_, s) in enumerate(sources)]
  try:
    code = cuda.compile_source(prelude + "\n".join(bodies), "kernels", arch)
    assert code[:4] == b"\x7fELF" and all(f"kernel_{i}".encode() in code for i in range(len(bodies)))
  except DeviceError:
    for row, source in sources:
      try:
        cuda.compile_source(source, "kernel_", arch)
      except DeviceError as e:
        pytest.fail(f"row {row}: {e}\n{source}")
    raise


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_of_the_op_table_compile(part):
  sources = []
  for row, ast in kernels(part):
    rendered = cstyle.render(lower_kernel(ast, cuda.TARGET), "kernel_", dialects.CUDA)
    groups, threads = rendered.launch.groups, rendered.launch.threads
    assert all(1 <= n <= most for n, most in zip((*groups, *threads), GRID + BLOCK)), (row, groups, threads)
    assert threads[0] * threads[1] * threads[2] <= 1024, (row, threads)
    sources.append((row, rendered.source))
  assert len(sources) > 100
  mine = sources[part % 2 :: 2]
  for i in range(0, len(mine), AT_ONCE):
    compile_all(mine[i : i + AT_ONCE], "sm_90a")
  for arch, first in OTHERS.items():
    compile_all(sources[first::8], arch)
