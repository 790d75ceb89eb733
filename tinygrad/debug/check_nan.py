"""`CHECK_NAN=1`: every kernel's float results are looked at as soon as it has run."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tinygrad.device import Device
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy, source_line, user_line
from tinygrad.schedule.items import Lines
from tinygrad.schedule.schedule import computed
from tinygrad.uop import DEVICE_NUM, Ops, UOp, evaluate, substitute

SHOWN = 8


class NonFiniteError(ArithmeticError):
  """A kernel wrote NaN or infinity: names the op, the device, and the user's line."""


def written(ast: UOp, variables: Mapping[str, int]) -> Any:
  """The flat indices that a kernel writes: its store's index for every combination of the ranges (padding of an uneven
  part, which holds anything, is not among them).
  """
  bound = {u: UOp.const(u.dtype, variables[u.arg[0]]) for u in ast.variables()}
  target, _, *ranges = substitute(ast, bound).src[0].src
  sizes = [r.src[0].vmax for r in ranges]
  values: dict[UOp, Any] = dict(zip(ranges, numpy.ix_(*map(numpy.arange, sizes))))
  for u in UOp.sink(*target.src[1:]).toposort():
    if u.op is not Ops.RANGE and u.op is not Ops.SINK:
      values[u] = evaluate(u, [values[s] for s in u.src], ())
  index, *valid = (numpy.broadcast_to(values[u], sizes) for u in target.src[1:])
  return index[valid[0]] if valid else index


def check_kernel(name: str, ast: UOp, computes: Lines, device: str, handle: Any, variables: Mapping[str, int]) -> None:
  """Raises NonFiniteError if what the kernel wrote to `handle` holds NaN or infinity. The device must be idle."""
  param = ast.src[0] if ast.op is Ops.CALL else ast.src[0].src[0].src[0]
  if not dtypes.is_float(param.dtype):
    return
  memory = numpy.empty(param.arg.size, to_numpy_dtype(param.dtype))
  Device[device].copyout(memoryview(memory.view(numpy.uint8)), handle)
  values = memory if ast.op is Ops.CALL else memory[written(ast, variables)]
  if (bad := ~numpy.isfinite(values)).any():
    fail(values[bad], values.size, f"kernel {name}", computes, device)


def check_stretch(calls: Sequence[tuple[Any, int, Any]]) -> None:
  """The same for what is left of the results of calls (engine/run.py: Stretch.bound) on devices that are idle."""
  last = {id(w.memory[0]): w for w, _, _ in calls}
  for w, d in [(w, d) for w, d, _ in calls if last[id(w.memory[0])] is w]:
    where = w.item.devices[d], w.memory[0].handle(d), {**w.variables, DEVICE_NUM: d}
    check_kernel(w.name, w.item.kernel, w.item.computes, *where)


def check_values(value: UOp, values: Mapping[UOp, Sequence[Any]], devices: Sequence[str]) -> None:
  """The same for a stored value of an interpreted graph. All values below it are at hand, so the error names the op
  that made the first NaN or infinity of finite operands.
  """
  if not dtypes.is_float(value.dtype):
    return
  for d, (array, device) in enumerate(zip(values[value], devices)):

    def finite(u: UOp, d: int = d) -> bool:
      mine = values.get(u)
      return not mine or not dtypes.is_float(u.dtype) or bool(numpy.isfinite(mine[min(d, len(mine) - 1)]).all())

    if not finite(value):
      first = next((u for u in value.toposort() if u.src and not finite(u) and all(map(finite, u.src))), value)
      bad = array[~numpy.isfinite(array)]
      fail(bad, array.size, "interpreted", computed(first, set(first.src)), device)


def fail(bad: Any, size: int, where: str, computes: Lines, device: str) -> NoReturn:
  lines = [f"{op} at {source_line(*origin) if origin else 'an unknown line'}" for op, origin in computes]
  listed = "".join(f"\n    {line}" for line in lines[:SHOWN])
  more = f"\n    and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
  kind = "NaN" if numpy.isnan(bad).any() else "infinite"
  raise NonFiniteError(
    f"{computes[0][0] if computes else 'a kernel'}: {bad.size} of {size} elements are {kind}, on {device} ({where})"
    f"{listed}{more}\n    realized at {user_line()}\n"
    "  fix: keep the operands in range (clip, or add an eps); with INTERPRET=1 too, the very op is named"
  )
