"""Moves between placements: which bytes travel, and in which steps.

Bytes are what each device receives, the largest over the devices, as a ring or a direct exchange needs them: all-reduce
2(n-1)/n of the local block, reduce-scatter (n-1)/n of it. A change of cuts (all-gather, all-to-all, permute) is one
exchange (`_exchange`), in which a device receives the part of its new block that it does not hold yet, for an even
all-gather (n-1)/n of the result: no sequence of steps moves less. What refines a cut in place, or cuts what is
replicated, is sliced before and costs nothing."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Partial, Placement, Sharding, SubAxis, device_set, reduced_placement, same_devices
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, overlap, size_of
from tinygrad.helpers import PROCESS, numpy, partition, prod


@dataclass(frozen=True, slots=True)
class Step:
  """One move of a plan, from placement `a` to `b`.

  `kind`: slice, unreduce, all_reduce, reduce_scatter, all_gather, all_to_all, permute, copy. `sub_axes`: those over
  which devices exchange. `payload` in bytes: the operand's block, of an all-gather and a copy the result's. `nbytes`:
  received per device."""

  kind: str
  a: Placement
  b: Placement
  sub_axes: SubAxes
  payload: float
  nbytes: float


@PROCESS.cached
def ints(shape: Sequence[Any]) -> tuple[int, ...]:
  """The shape with symbolic dims at their upper bounds."""
  for n in shape:
    if type(n) is not int:
      return tuple(n if isinstance(n, int) else n.vmax for n in shape)
  return tuple(shape)


def wire(shape: Sequence[Any], itemsize: int, a: Placement, b: Placement) -> float:
  """Bytes each device of `b` receives when a value of global `shape` moves from `a` to `b` (the largest over the
  devices)."""
  return 0.0 if a == b else _wire(ints(shape), itemsize, a, b)


@PROCESS.cached
def _wire(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> float:
  return sum(step.nbytes for step in plan(shape, itemsize, a, b))


def nests(n: int, outer: int, inner: int) -> bool:
  """Whether each block of n cut into `inner` flat blocks lies within its block of the cut into `outer` (inner a
  multiple of outer)."""
  return outer == 1 or -(-n // outer) == inner // outer * -(-n // inner)


@PROCESS.cached
def plan(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> tuple[Step, ...]:
  """The steps from `a` to `b` in which the fewest bytes travel; none where they are the same.

  What `a` is partial over and `b` is not is reduced first: reduce-scattered onto sub-axes that `b` cuts, the rest
  all-reduced. Then come at most a slice, one exchange, and a step that makes it partial over what `b` is. A number
  moves as a dim of one element."""
  if a == b:
    return ()
  shape = shape or (1,)
  if isinstance(a, str) or isinstance(b, str) or not same_devices(a, b):
    return _between_sets(shape, itemsize, a, b)
  ways = []
  for reduced in _reductions(shape, itemsize, a, b):
    middle = reduced[-1].b if reduced else a
    assert isinstance(middle, Sharding)
    ways.append((*reduced, *_recut(shape, itemsize, middle, b)))
  return min(ways, key=lambda steps: sum(s.nbytes for s in steps))


def _recut(shape: tuple[int, ...], itemsize: int, a: Sharding, b: Sharding) -> list[Step]:
  """From the cuts of `a` to those of `b`, which is partial over all that `a` is: a slice, an exchange, an unreduce, as
  needed."""
  steps: list[Step] = []
  sliced = _sliced(shape, a, b)
  if sliced != a:
    steps.append(Step("slice", a, sliced, (), 0.0, 0.0))
  if sliced.dims != b.dims:
    clash = any(overlap(d, e) for o in a.partial for d in o.sub_axes for dim in b.dims for e in dim)
    target = Sharding.of(a.mesh, b.dims, () if clash else a.partial)
    steps.append(_exchange(shape, itemsize, sliced, target))
    sliced = target
  if sliced != b:
    steps.append(Step("unreduce", sliced, b, (), 0.0, 0.0))
  return steps


def _refined(shape: tuple[int, ...], a: Sharding, b: Sharding) -> tuple[list[SubAxes], list[SubAxes]] | None:
  """The sub-axes of every dim of both, cut at common boundaries; None where there are none."""
  chain = boundaries(len(a), [a.used, b.used])
  at_a = [atoms(a.cut(i), chain) for i in range(len(shape))]
  at_b = [atoms(b.cut(i), chain) for i in range(len(shape))]
  return None if None in at_a or None in at_b else ([x or () for x in at_a], [x or () for x in at_b])


def _sliced(shape: tuple[int, ...], a: Sharding, b: Sharding) -> Sharding:
  """`a` with its cuts refined in place towards `b` by sub-axes that nothing in `a` uses."""
  refined = _refined(shape, a, b)
  if refined is None:
    return a
  chain = boundaries(len(a), [a.used, b.used])
  used = {d for x in (*refined[0], *(atoms(o.sub_axes, chain) or o.sub_axes for o in a.partial)) for d in x}
  dims = [(*have, *_more(n, have, to, lambda d: d not in used)) for n, have, to in zip(shape, *refined)]
  return Sharding.of(a.mesh, dims, a.partial)  # type: ignore[no-any-return]


def _between_sets(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> tuple[Step, ...]:
  """Each device of `b` receives what of its block it does not hold; on the same devices in another order this has the
  name of an exchange. A reduction to one device is a reduce-scatter whose blocks it then collects, along any dim whose
  blocks nest so: what an all-reduce sends besides, to devices that do not want it, stays away."""
  if isinstance(a, Sharding) and a.partial:
    ways = [(*plan(shape, itemsize, a, p), *_between_sets(shape, itemsize, p, b)) for p in _paid(shape, a, b)]
    return min(ways, key=lambda steps: sum(s.nbytes for s in steps))
  steps: list[Step] = []
  to = reduced_placement(b)
  here, there = device_set(a), device_set(to)
  received = block = prod(shape if isinstance(to, str) else to.local_shape(shape))
  if set(there) <= set(here):
    received, _ = _received(shape, a, to, numpy.array([here.index(name) for name in there]))
  kind, payload = "copy", block
  sub_axes: SubAxes = ()
  if isinstance(a, Sharding) and isinstance(to, Sharding) and set(here) == set(there):
    kind, sub_axes = _kind(a, to), (SubAxis(len(there), 1),)
    payload = block if kind == "all_gather" else prod(a.local_shape(shape))
  steps.append(Step(kind, a, to, sub_axes, float(payload * itemsize), float(received * itemsize)))
  if to != b:
    steps.append(Step("unreduce", to, b, (), 0.0, 0.0))
  return tuple(steps)


def _paid(shape: tuple[int, ...], a: Sharding, b: Placement) -> list[Sharding]:
  """Placements in which `a` has been reduced: on its way to one device cut by what it was partial over, along each dim
  that this divides evenly, or else whose blocks nest so; replicated if there is none."""
  if not isinstance(b, str) or len(a.partial) > 1:
    return [a.reduced]
  (partial,) = [o.sub_axes for o in a.partial]
  cuts = [(i, n, size_of(a.cut(i)), size_of((*a.cut(i), *partial))) for i, n in enumerate(shape)]
  even = [i for i, n, _, parts in cuts if n % parts == 0]
  onto = even or [i for i, n, here, parts in cuts if nests(n, here, parts)]
  scattered = [tuple((*a.cut(j), *(partial if i == j else ())) for j in range(len(shape))) for i in onto]
  return [Sharding.of(a.mesh, dims) for dims in scattered] or [a.reduced]


def _reductions(shape: tuple[int, ...], itemsize: int, a: Sharding, b: Sharding) -> Iterator[list[Step]]:
  """Ways to reduce what `a` is partial over and `b` is not: reduce-scatters onto sub-axes that `b` cuts (in place where
  that nests, else along any dim, to be exchanged later), and an all-reduce of the rest."""
  kept, paid = partition(a.partial, lambda o: o in b.partial)
  if not paid:
    yield []
    return
  refined, partial = _refined(shape, a, b), atoms(paid[0].sub_axes, boundaries(len(a), [a.used, b.used]))
  if refined is None or partial is None or len(paid) > 1:
    yield _pay(shape, itemsize, a, [()] * len(shape), (), kept, paid)
    return
  steps: list[Step] = []
  if (here := _sliced(shape, a, b)) != a:
    steps.append(Step("slice", a, here, (), 0.0, 0.0))
    refined = _refined(shape, here, b)
    assert refined is not None
  at_a, at_b = refined
  onto = [_more(n, have, target, partial.__contains__) for n, have, target in zip(shape, at_a, at_b)]
  placed = {d for new in onto for d in new}
  yield steps + _pay(shape, itemsize, here, onto, partial, kept, paid)
  if elsewhere := tuple(d for d in partial if d not in placed and any(d in target for target in at_b)):
    for i, n in enumerate(shape):
      parts = size_of(at_a[i]) * size_of(onto[i])
      if nests(n, parts, parts * size_of(elsewhere)):
        further = [(*new, *elsewhere) if j == i else new for j, new in enumerate(onto)]
        yield steps + _pay(shape, itemsize, here, further, partial, kept, paid)


def _pay(
  shape: tuple[int, ...],
  itemsize: int,
  a: Sharding,
  onto: Sequence[SubAxes],
  partial: SubAxes,
  kept: Sequence[Partial],
  paid: Sequence[Partial],
) -> list[Step]:
  """A reduce-scatter of the sub-axes `onto` each dim, and an all-reduce of what is then still partial."""
  steps: list[Step] = []
  here = a
  if scattered := tuple(sorted((d for new in onto for d in new), key=lambda d: -d.stride)):
    rest = tuple(d for d in partial if d not in scattered)
    paid = [Partial(rest, paid[0].op, paid[0].disjoint)] if rest else []
    here = Sharding.of(a.mesh, [(*a.cut(i), *new) for i, new in enumerate(onto)], [*kept, *paid])
    n, block = size_of(scattered), float(prod(a.local_shape(shape)) * itemsize)
    steps.append(Step("reduce_scatter", a, here, scattered, block, block * (n - 1) / n))
  if paid:
    there = Sharding.of(a.mesh, here.dims, kept)
    sub_axes = tuple(d for o in paid for d in o.sub_axes)
    n, block = size_of(sub_axes), float(prod(here.local_shape(shape)) * itemsize)
    steps.append(Step("all_reduce", here, there, sub_axes, block, 2 * block * (n - 1) / n))
  return steps


def _more(n: int, have: SubAxes, target: SubAxes, usable: Callable[[SubAxis], bool]) -> SubAxes:
  """The sub-axes by which the cut `have` of a dim of n can be refined in place on its way to `target`: blocks must nest
  in those before, and the target's in them."""
  if target[: len(have)] != have:
    return ()
  new = tuple(itertools.takewhile(usable, target[len(have) :]))
  parts = size_of((*have, *new))
  return new if nests(n, size_of(have), parts) and nests(n, parts, size_of(target)) else ()


def _held(p: Placement, i: int, n: int, devices: Any) -> tuple[Any, Any]:
  """The bounds of the indices of dim i (of length n) that these device numbers hold: arrays, or ints if uncut."""
  if isinstance(p, str) or p.parts(i) == 1:
    return 0, n
  block = -(-n // p.parts(i))
  lo = numpy.minimum(n, p.block(i, devices) * block)
  return lo, numpy.minimum(n, lo + block)


def _received(shape: tuple[int, ...], a: Placement, b: Placement, numbers: Any) -> tuple[int, bool]:
  """Elements of its block at `b` that a device does not hold at `a`, where device i of `b` has the number numbers[i]
  (the most over the devices); and whether each new block lies within the old one in every dim."""
  new, both, nested = 1, 1, True
  for i, n in enumerate(shape):
    (lo, hi), (lo2, hi2) = _held(b, i, n, numpy.arange(len(numbers))), _held(a, i, n, numbers)
    new = new * (hi - lo)
    both = both * numpy.maximum(0, numpy.minimum(hi, hi2) - numpy.maximum(lo, lo2))
    nested = nested and bool(numpy.all((lo == hi) | ((lo2 <= lo) & (hi <= hi2))))
  return int(numpy.max(new - both)), nested


def _exchange(shape: tuple[int, ...], itemsize: int, a: Sharding, b: Sharding) -> Step:
  """A change of cuts: each device receives what of its new block it does not hold yet."""
  worst, nested = _received(shape, a, b, numpy.arange(len(a)))
  # not nested: a dim of the old block is empty where the new one's is not. That is no slice, though nothing travels
  if worst == 0 and nested:
    return Step("slice", a, b, (), 0.0, 0.0)
  kind = _kind(a, b)
  payload = prod((b if kind == "all_gather" else a).local_shape(shape))
  return Step(kind, a, b, _changed(shape, a, b), float(payload * itemsize), float(worst * itemsize))


def _kind(a: Sharding, b: Sharding) -> str:
  """The name of an exchange: all_gather where blocks grow, permute where they keep their shape, else all_to_all."""
  if prod(b.parts_) < prod(a.parts_):
    return "all_gather"
  return "permute" if a.parts_ == b.parts_ else "all_to_all"


def _changed(shape: tuple[int, ...], a: Sharding, b: Sharding) -> SubAxes:
  """The sub-axes that do not cut the same place in both, major to minor: those over which devices exchange."""
  refined = _refined(shape, a, b)
  if refined is None:
    return (SubAxis(len(a), 1),)
  changed: set[SubAxis] = set()
  for x, y in zip(*refined):
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(x, y)))
    changed |= {*x[same:], *y[same:]}
  return tuple(sorted(changed, key=lambda d: -d.stride))
