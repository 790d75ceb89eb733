"""`INTERPRET=1`, and devices that compute in numpy: the localized graph by the cards of its ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinygrad.device import Buffer, Device, device_set, reduced_placement
from tinygrad.helpers import CHECK_NAN, GlobalCounters, LazyModule, numpy
from tinygrad.runtime.transfer import addressed, as_bytes, at_rest, host_array
from tinygrad.uop import Ops, UOp

if TYPE_CHECKING:
  from tinygrad.debug import check_nan
  from tinygrad.runtime import python
else:
  check_nan, python = map(LazyModule, ("tinygrad.debug.check_nan", "tinygrad.runtime.python"))


def interpret(local: UOp, memory: Sequence[Buffer], variables: dict[str, int]) -> None:
  """A localized graph in numpy, over the memory of its BUFFERs, in order, where the host can address that."""
  order = [u for u in local.toposort() if u.op is Ops.BUFFER]
  if all(Device[d].capabilities.simulated for b in memory for d in b.devices):  # they compute nothing
    GlobalCounters.kernel_count += 1
    return
  with at_rest(*memory):
    arrays = {u: [host_array(b, i) for i in range(len(b.devices))] for u, b in zip(order, memory)}
    for of, b in zip(arrays.values(), memory):  # what is written to simulated or other processes' memory is dropped
      of[:] = [a if a.flags.writeable and Device.here(d) else numpy.array(a) for a, d in zip(of, b.devices)]
  machine = python.Interpreter(arrays.__getitem__, variables)
  machine.run(local)
  for u, b in zip(order, memory):
    for i, array in enumerate(arrays[u]):
      if Device.here(b.devices[i]) and addressed(b, i) is None:  # computed on a copy
        Device[b.devices[i]].copyin(b.handle(i), as_bytes(array))
  if CHECK_NAN:
    for u in local.toposort():
      if u.op is Ops.ASSIGN:
        check_nan.check_values(u.src[1], machine.values, device_set(reduced_placement(u.src[0].device)))
  GlobalCounters.kernel_count += 1
