"""One sum over two devices, printed after every stage: what docs/architecture.md shows.

usage: python examples/stages.py
"""

from tinygrad import Context, Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Target
from tinygrad.engine.canonical import canonical
from tinygrad.schedule.schedule import Transfer, create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp, print_graph


def stages() -> str:
  """The text."""
  x = Tensor.empty(4, 6).shard(("CPU:0", "CPU:1"), axis=1).realize()
  y = (x * 2).sum(axis=1)  # over the cut dim: a partial sum

  target = UOp.buffer(y.shape, y.dtype, y.device)
  sink, _, _ = canonical(UOp.sink(target.assign(y.uop)))
  out = [
    "# 1. the graph, in the global view: the sum is over all 6 columns, its result is partial, and a move reduces it",
    print_graph(sink),
  ]

  local = localize(sink)
  out += [
    "# 2. localized, the one program that every device runs: 3 columns each, then an all-reduce",
    print_graph(local),
  ]

  schedule = create_schedule(local)
  for i, item in enumerate(schedule.items):
    assert not isinstance(item.kernel, Transfer)
    out += [f"# 3. kernel {i} on {', '.join(item.devices)}", print_graph(item.kernel)]

  first = schedule.items[0].kernel
  with Context(NOOPT=1):  # as plain loops
    linear = lower_kernel(first, Target("CPU"))
  out += [
    "# 4. kernel 0, linear (NOOPT=1: without tiles and vectors)",
    "\n".join(f"{u.op.name:10s} {u.dtype.name if u.dtype.count == 1 else u.dtype}" for u in linear),
  ]
  return "\n".join(out)


if __name__ == "__main__":
  print(stages())
