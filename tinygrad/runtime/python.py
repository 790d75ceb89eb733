"""The reference: the localized graph, evaluated in numpy for every device through the ops' cards. A second opinion,
and fast for small programs.

No schedule, no kernels: so it shares nothing with the compiled path but the graph. Local values have their valid
lengths only; fresh memory is poisoned, and replicas that should be equal are compared bit for bit.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tinygrad.device import Backend, Capabilities, Computes, Placement, Sharding, SubAxis, device_set
from tinygrad.device.sub_axes import branches
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy, prod
from tinygrad.ops import Trait, having
from tinygrad.ops.elementwise import MIRROR
from tinygrad.ops.reduce import REDUCE_OPS
from tinygrad.runtime.npy import HostBackend
from tinygrad.uop import DEVICE_NUM, Ops, UOp, evaluate, map_arg, simplify, sint, substitute

Array = Any  # numpy.ndarray, which this module does not import before its first use
MEMORY = having(Trait.MEMORY)
POISON = 0xFF  # nan in every float type, -1 or the greatest value in integers


class PythonBackend(HostBackend):
  """`PYTHON:i`: host memory, programs interpreted."""

  capabilities = Capabilities(computes=Computes.INTERPRETED, arrays=True)

  def alloc(self, nbytes: int) -> Any:
    return numpy.full(nbytes, POISON, numpy.uint8)


open_device: type[Backend] = PythonBackend


# a node as its card's `evaluate` sees it: symbolic dims in `arg` have become numbers
Resolved = namedtuple("Resolved", "op dtype src arg shape")


class Interpreter:
  """`values[u][d]`: the local value of u on device d; `memory(buffer)[d]`: the array (upper bounds) of a buffer's
  part.
  """

  def __init__(self, memory: Callable[[UOp], Sequence[Array]], variables: Mapping[str, int]) -> None:
    self.memory, self.variables = memory, variables
    self.values: dict[UOp, list[Array]] = {}
    self.resolved: dict[tuple[UOp, int], int] = {}
    self.devices: dict[UOp, int] = {}

  def run(self, sink: UOp, read: Mapping[UOp, int] | None = None) -> None:
    """Evaluates `sink` and then performs its ASSIGNs: every plain reader of a buffer has seen its old content.

    A constant is on no device: it is evaluated on as many as read it, by the graph or, says `read`, from `values`.
    """
    nodes = [u for u in sink.toposort() if u.op is not Ops.SINK]
    for u in nodes:
      where = u.arg.device if u.op is Ops.BUFFER else u.arg.result if u.op is Ops.COLLECTIVE else None
      src = u.src[:1] if u.op is Ops.WAIT else u.src  # what it waits for may be elsewhere
      self.devices[u] = len(device_set(where)) if where else max((self.devices[s] for s in src), default=0)
    wanted = dict(read or {})
    for u in reversed(nodes):
      here = self.devices[u] = self.devices[u] or wanted.get(u, 1)
      placements = u.arg.placements if u.op is Ops.COLLECTIVE else ()
      reads = [len(device_set(p)) for p in placements] or [here] * len(u.src)
      for s, n in zip(u.src, reads, strict=True):
        wanted[s] = max(wanted.get(s, 1), n)
    for u in nodes:
      each = range(self.devices[u])
      self.values[u] = self.collective(u) if u.op is Ops.COLLECTIVE else [self.local(u, d) for d in each]
    for u in nodes:
      for d, x in enumerate(self.values[u] if u.op is Ops.ASSIGN else ()):
        put_at(self.memory(root_buffer(u.src[0]))[d], self.positions(u.src[0], d), x)

  # ---- integers

  def number(self, x: sint, d: int) -> int:
    """A dim on device d."""
    if isinstance(x, int):
      return x
    if (x, d) not in self.resolved:
      numbers = {**self.variables, DEVICE_NUM: d}
      value = simplify(substitute(x, {v: UOp.const(dtypes.index, numbers[v.arg[0]]) for v in x.variables()}))
      assert value.op is Ops.CONST, f"unbound variables in {x!r}"
      self.resolved[x, d] = value.arg
    return self.resolved[x, d]

  def shape(self, u: UOp, d: int) -> tuple[int, ...]:
    return tuple(self.number(n, d) for n in u.shape)

  # ---- values

  def local(self, u: UOp, d: int) -> Array:
    """The value of `u` on device d."""
    match u.op:
      case Ops.VARIABLE:
        return numpy.full((), self.number(u, d), to_numpy_dtype(u.dtype))
      case Ops.BUFFER:
        return self.memory(u)[d].copy()
      case Ops.SHARD:
        return numpy.array(self.memory(u.src[0])[d][tuple(map(slice, self.shape(u, d)))])  # an array, of 0-d ones too
      case Ops.AFTER:
        return self.after(u, d)
      case Ops.WAIT:
        return self.values[u.src[0]][d]
    return self.evaluate(u, [self.values[s][d] for s in u.src], d)

  def evaluate(self, u: UOp, xs: list[Array], d: int, dtype: DType | None = None) -> Array:
    """By the card of `u`, in another dtype if one is given."""
    shape, dtype = self.shape(u, d), dtype or u.dtype
    node = Resolved(u.op, dtype, u.src, map_arg(u.arg, lambda x: self.number(x, d)), shape)
    with numpy.errstate(all="ignore"):
      out = numpy.asarray(evaluate(node, xs, shape), to_numpy_dtype(dtype))
    assert out.shape == shape, f"{u.op} gives {out.shape}, its shape is {shape}"
    return out

  def after(self, u: UOp, d: int) -> Array:
    """The content of the buffer with the effects' writes in it."""
    content = self.values[u.src[0]][d].copy()
    for effect in u.src[1:]:
      for e in effect.toposort():
        if e.op is Ops.ASSIGN and root_buffer(e.src[0]) is root_buffer(u):
          put_at(content, self.positions(e.src[0], d, content.shape), self.values[e.src[1]][d])
    return content

  def positions(self, view: UOp, d: int, shape: tuple[int, ...] | None = None) -> Array:
    """For every element of a view, its flat position in the buffer's part of `shape` (default: as it is laid out)."""
    chain = []
    while view.op not in MEMORY and view.op is not Ops.AFTER:
      chain.append(view)
      view = view.src[0]
    whole = self.memory(root_buffer(view))[d].shape if shape is None else shape
    at = numpy.arange(prod(whole), dtype=numpy.int64).reshape(whole)[tuple(map(slice, self.shape(view, d)))]
    for u in reversed(chain):
      at = self.evaluate(u, [at], d, dtypes.int64)
    return at

  # ---- communication

  def collective(self, u: UOp) -> list[Array]:
    """The global value from the sources' blocks, through the template, cut for each device of the result."""
    c = u.arg
    whole: dict[UOp, Array] = {}
    for x in c.template.toposort():
      if x.op is Ops.HOLE:
        i = x.arg[0]
        blocks = self.values[u.src[i]][: len(device_set(c.placements[i]))]
        whole[x] = assemble(blocks, c.placements[i], x.max_shape, self.shape(x, 0))
      else:
        whole[x] = self.evaluate(x, [whole[s] for s in x.src], 0)
    return [part(whole[c.template], c.result, d, c.template.max_shape) for d in range(self.devices[u])]


def root_buffer(view: UOp) -> UOp:
  return next(u for u in view.down() if u.op is Ops.BUFFER)


def put_at(content: Array, positions: Array, value: Array) -> None:
  """In place; `content` is contiguous."""
  content.reshape(-1)[positions.reshape(-1)] = numpy.broadcast_to(value, positions.shape).reshape(-1)


def box(p: Placement, d: int, upper: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
  """The global indices that device d holds: blocks by the upper bounds, cut off at the actual length."""
  return tuple(map(slice, shape)) if isinstance(p, str) else tuple(slice(*ends) for ends in p.box(d, shape, upper))


def coordinate(d: int, sub_axes: Iterable[SubAxis]) -> int:
  """The number of the device that is where d is on these sub-axes, and the first on all others."""
  return sum(d // g.stride % g.size * g.stride for g in sub_axes)


def assemble(blocks: Sequence[Array], p: Placement, upper: Sequence[int], shape: tuple[int, ...]) -> Array:
  """The global value; asserts that replicas hold the same bits and that nothing is missing. Partial values are reduced,
  halves in float32.
  """
  if isinstance(p, str):
    return blocks[0]
  dtype, summed = blocks[0].dtype, [g for o in p.partial for g in o.sub_axes]
  partial: dict[int, tuple[Array, Array]] = {}
  for d, block in enumerate(blocks):
    at = box(p, d, upper, shape)
    value, known = partial.setdefault(coordinate(d, summed), (numpy.zeros(shape, dtype), numpy.zeros(shape, bool)))
    assert value[at].shape == block.shape, f"device {d} holds {block.shape} of {shape} in {p}: not {value[at].shape}"
    same = value[at].tobytes() == block.tobytes() if known[at].all() else not known[at].any()
    assert same, f"replicas of {shape} in {p} differ on device {d}"
    value[at], known[at] = block, True
  assert all(known.all() for _, known in partial.values()), f"a part of {shape} in {p} is on no device"
  wide = numpy.float32 if dtype.itemsize == 2 and dtype.kind not in "iub" else dtype
  values = {k: v.astype(wide) for k, (v, _) in sorted(partial.items())}
  for op in dict.fromkeys(o.op for o in reversed(p.partial)):
    fold = getattr(numpy, REDUCE_OPS[op])
    for branch in branches([g for o in p.partial if o.op is op for g in o.sub_axes]):
      folded: dict[int, Array] = {}
      for number, value in values.items():
        first = number - coordinate(number, (branch,))
        folded[first] = fold(folded[first], value) if first in folded else value
      values = folded
  return values[0].astype(dtype)


def part(value: Array, p: Placement, d: int, upper: Sequence[int]) -> Array:
  """What device d holds of a global value. Of a partial value, the first coordinate holds it and the others the
  identity.
  """
  block = value[box(p, d, upper, value.shape)].copy()
  if isinstance(p, Sharding):
    for o in p.partial:
      if any(d // g.stride % g.size for g in o.sub_axes) and o.op not in MIRROR:
        block[...] = 1 if o.op is Ops.MUL else 0 if block.dtype.kind in "iub" else -0.0
  return block
