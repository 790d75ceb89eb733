"""Runs a program's placed build through `localize` and the interpreter, and compares with the same program on one
device.

Padding is poisoned, replicas are compared bit for bit by the interpreter, and values are integers, so equality is
exact.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from methods import Row
from programs import MAGNITUDE, VARIABLE, Program, Value, make, random_states, same, tolerance_of

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, Placement, Sharding, device_set
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import realize
from tinygrad.mixin.arrays import to_numpy
from tinygrad.ops import placement as _cards  # noqa: F401 (registers the cards)
from tinygrad.runtime.cpu import CPU, Call, Memory
from tinygrad.runtime.python import Interpreter, assemble
from tinygrad.sharding.localize import localize
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.uop import Ops, UOp, buffer_of
from tinygrad.uop.rewrite import substitute

AROUND, NOWHERE = 32, 3  # words on either side of a table, and what is in them
Runner = Callable[[Program, Sequence[UOp]], list[np.ndarray]]


def poison(dtype: Any) -> Any:
  return np.nan if dtype.kind in "fV" else True if dtype.kind == "b" else np.iinfo(dtype).max - 1


def parts(value: np.ndarray, placement: Sharding, seed: int) -> dict[tuple[int, ...], np.ndarray]:
  """For each coordinate on the partial sub-axes a value, such that their reduction is `value`."""
  rng = np.random.default_rng(seed)
  sub_axes = [g for o in placement.partial for g in o.sub_axes]
  all_of = list(itertools.product(*(range(g.size) for g in sub_axes)))
  if not placement.partial:
    return {(): value}
  out: dict[tuple[int, ...], np.ndarray] = {}
  owner = rng.integers(0, len(all_of), value.shape)  # the coordinate that holds the factor, the maximum, …
  rest = value.copy()
  for i, at in enumerate(all_of):
    less = rng.integers(0, 3, value.shape).astype(value.dtype)
    match placement.partial[0].op:
      case Ops.ADD:
        mine = rest if i == len(all_of) - 1 else less
        rest = rest - less
      case Ops.MUL:
        mine = np.where(owner == i, value, np.ones_like(value))
      case Ops.MAX:
        mine = np.where((owner == i) | (value < less), value, value - less)
      case Ops.MIN:
        mine = np.where(owner == i, value, value + less)
    out[at] = mine.astype(value.dtype)
  return out


def blocks(value: np.ndarray, placement: Placement, seed: int = 0) -> list[np.ndarray]:
  """Each device's part of a value as it lies in memory: blocks of full size, what lies behind the valid part
  poisoned."""
  if isinstance(placement, str):
    return [value.copy()]
  out = []
  partial = parts(value, placement, seed)
  for d in range(len(placement)):
    mine = partial[coordinates(placement, d)]
    block = np.full(placement.local_shape(value.shape), poison(value.dtype), value.dtype)
    box = placement.box(d, value.shape)
    block[tuple(slice(0, hi - lo) for lo, hi in box)] = mine[tuple(slice(lo, hi) for lo, hi in box)]
    out.append(block)
  return out


def coordinates(p: Sharding, d: int) -> tuple[int, ...]:
  """Device d's coordinates on the sub-axes over which it is partial."""
  return tuple(d // g.stride % g.size for o in p.partial for g in o.sub_axes)


def reduced(placement: Placement | None) -> Placement | None:
  return placement.reduced if isinstance(placement, Sharding) else placement


def without_numbers(roots: Sequence[UOp]) -> list[UOp]:
  """The roots with constants that are no tensors of their own, as a realize has them."""
  numbered = {u: u.replace(src=()) for u in UOp.sink(*roots).toposort() if u.op is Ops.CONST and u.src}
  return [substitute(u, numbered) for u in roots] if numbered else list(roots)


def interpret(p: Program, roots: Sequence[UOp]) -> list[np.ndarray]:
  """The roots' global values by the interpreter of the localized program."""
  roots = without_numbers(roots)
  memory = {u: blocks(value, u.arg.device, p.seed) for u, value in p.content.items()}
  local = localize(UOp.sink(*roots))
  machine = Interpreter(lambda buffer: memory[buffer], {"v": p.variable})
  machine.run(local, dict.fromkeys(local.src, len(device_set(Sharding(p.mesh)))))
  out = []
  for root, s in zip(roots, local.src):
    assert not isinstance(s.device, Sharding) or not s.device.partial, f"{root} is still partial"
    where = reduced(root.device)
    values = machine.values[s]
    out.append(
      values[0] if where is None else assemble(values[: len(device_set(where))], where, root.max_shape, root.max_shape)
    )
  return out


def scalar(v: UOp) -> UOp:
  """A weighted sum of v's elements: weights differ, so that permuted elements are noticed."""
  flat = v.reshape((v.size,))
  weights = UOp.iota(v.size, dtypes.int32).cast(v.dtype) * -1.0 + 3.0
  return (flat * weights).r(Ops.ADD, (0,)).reshape(())


def too_large(p: Program, roots: Sequence[UOp]) -> bool:
  """Whether some reference value is beyond what its float type adds exactly."""
  drawn: set[UOp] = set()  # bits on their way to random numbers: the same in every build
  for root in roots:
    p.value(root)
    for u in root.toposort():
      if u in random_states or u.op in (Ops.CONST, Ops.IOTA) or (u.src and all(s in drawn for s in u.src)):
        drawn.add(u)
      elif u.dtype in MAGNITUDE and u.op not in (Ops.BUFFER,):
        value = p.memo[u]
        if p.methods:  # an infinity may be meant: the start of a maximum, what a mask leaves out
          value = value[~np.isinf(value)]
        if not np.isfinite(value).all() or np.abs(value).max(initial=0) * max(value.size, 1) > MAGNITUDE[u.dtype] * 8:
          return True
  return False


def pairs(p: Program) -> list[Value]:
  """What is compared: the roots, or for programs that are differentiated the gradients of a loss too."""
  if not p.backward:
    return p.roots
  targets = [v for v in p.leaves if dtypes.is_float(v.dtype)]
  out = list(p.roots)
  losses = scalar(p.roots[0].placed), scalar(p.roots[0].plain)
  placed, plain = (
    compute_gradient(loss, loss.const_like(1.0), [of(t) for t in targets])
    for loss, of in zip(losses, (lambda t: t.placed, lambda t: t.plain))
  )
  for t in targets:
    assert (t.placed in placed) == (t.plain in plain)
    if t.placed in placed:
      assert reduced(placed[t.placed].device) in (None, reduced(t.placed.device)), (
        "a gradient is handed out at its tensor's placement"
      )
      exact = p.exact_gradient and p.roots[0].exact
      out.append(Value(placed[t.placed], plain[t.plain], f"gradient of {t.text}", exact))
  return out


def fill(p: Program) -> None:
  """Writes the contents of a program to memory, poisoned behind valid parts."""
  for u, value in p.content.items():
    buffer = buffer_of(u)
    for device, handle, block in zip(
      buffer.devices, buffer.allocate().handles, blocks(value, u.arg.device, p.seed), strict=True
    ):
      Device[device].copyin(handle, memoryview(np.ascontiguousarray(block).reshape(-1).view(np.uint8)))


def between_nowhere(self: CPU, call: Call, slot: int, memory: Sequence[Memory]) -> Memory:
  """A table of peers with addresses around it where nothing is: who reads what no device has, ends the process."""
  table = (ctypes.c_uint64 * (len(memory) + 2 * AROUND))(*[NOWHERE] * (len(memory) + 2 * AROUND))
  mine = (ctypes.c_uint64 * len(memory)).from_buffer(table, AROUND * ctypes.sizeof(ctypes.c_uint64))
  mine[:] = [m.address for m in memory]
  return Memory(ctypes.addressof(mine), ctypes.sizeof(mine), mine)


def compiled(p: Program, roots: Sequence[UOp]) -> list[np.ndarray]:
  """The roots' global values by schedule, codegen and the backend of the program's devices."""
  fill(p)
  bound = {VARIABLE: VARIABLE.bind(p.variable)}
  # a root that is a buffer may be assigned to by another
  copies = [UOp.new(Ops.CONTIGUOUS, u.dtype, (u.move(reduced(u.device), pinned=False),)) for u in roots]
  with mock.patch.object(CPU, "table", between_nowhere):
    return [to_numpy(u) for u in realize(*[substitute(u, bound) for u in copies])]


def check_captured(seed: int, kind: str) -> bool:
  """The part of a program that goes through transforms, captured: on other values in each call it equals its loops on
  these; False where there is no such part, or values are too large to tell."""
  p = make(seed, 9, kind)
  if p.through is None:
    return False
  through, operands = p.through
  replayed, bound = TinyJit(through.transform), {VARIABLE: VARIABLE.bind(p.variable)}
  for k in range(1, 5):  # the first runs it, the second captures it
    want = through.loop(*(Tensor._wrap(v.plain) + k for v in operands)).uop
    if too_large(p, [want]):
      return False
    fill(p)
    got = replayed(*(Tensor._wrap(substitute(v.placed, bound)) + k for v in operands)).numpy()
    exact = all(v.exact for v in operands)
    assert same(got, p.value(want), exact, tolerance_of(want)), (
      f"call {k} of {through.text}: captured\n{got}\nlooped\n{p.value(want)}\n{p.listing()}"
    )
  assert replayed.captured is not None
  return True


def check(
  seed: int,
  run: Runner = interpret,
  steps: int = 9,
  kind: str = "NULL",
  methods: bool = False,
  row: Row | None = None,
) -> bool:
  """Sharded equals unsharded for the program of a seed; False if its values are too large to tell.

  Raises: AssertionError with the program's listing where they differ.
  """
  p = make(seed, steps, kind, methods, row)
  try:
    wanted = pairs(p)
    if too_large(p, [v.plain for v in wanted]):
      return False
  except AssertionError as e:
    raise AssertionError(f"{e}\n{p.listing()}") from e
  try:
    got = run(p, [v.placed for v in wanted])
  except (AssertionError, ValueError, TypeError, IndexError) as e:  # the local program must also be well formed
    raise AssertionError(f"{type(e).__name__}: {e}\n{p.listing()}") from e
  for v, value in zip(wanted, got, strict=True):
    want = p.value(v.plain)
    assert same(value, want, v.exact, tolerance_of(v.plain)), (
      f"{v.text} on {v.placed.device}: sharded\n{value}\nunsharded\n{want}\n{p.listing()}"
    )
  return True
