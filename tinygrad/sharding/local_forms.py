"""How a node is made at a placement, on local shapes: the same op on parts of its sources, a slice, or a COLLECTIVE.

An even cut has an integer length, an uneven one an expression of `_device_num`. Every move becomes a COLLECTIVE, and so
does every index map along a cut dim."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement, Sharding
from tinygrad.device.sub_axes import SubAxes
from tinygrad.helpers import PROCESS
from tinygrad.ops import Trait, having
from tinygrad.sharding.factors import collect, legal, project
from tinygrad.sharding.index_maps import is_cut, is_remap, template_of, touched
from tinygrad.sharding.local_values import apply_step, communicate, cut_out, scalar, shifted, unreduce
from tinygrad.sharding.moves import Step, ints, plan
from tinygrad.sharding.outcomes import CACHED
from tinygrad.sharding.partial import partials_of
from tinygrad.uop import Factors, GroupOp, Ops, UOp, factor_rule, lengths, sint, start

Demand = tuple[UOp, Placement | None]
Rule = tuple[list[Demand], Callable[[list[UOp]], UOp]]  # what a local form is made of, and how
MADE_ANEW = having(Trait.MEMORY) | (having(Trait.IDENTITY) - GroupOp.KeepsPlacement)  # no `Local`s


@dataclass(frozen=True, slots=True)
class Local:
  """The local form that is the op itself: on its sources at `places` (None: as they are), with `arg` if that is not
  None. `shape`: if all of it is known."""

  places: tuple[Placement | None, ...] | None
  arg: Any
  shape: tuple[int, ...] | None


_locals: dict[tuple[Any, ...], Local] = PROCESS.table()  # the same ones come again in every layer


class LocalForms:
  """The local forms of the nodes of one graph, given in order."""

  def __init__(self, order: Sequence[UOp]) -> None:
    self.order = order
    self.made: dict[UOp, tuple[UOp, Step | None]] = {}  # COLLECTIVE -> the node and its plan's step that it is for

  @functools.cached_property
  def readers(self) -> Counter[UOp]:
    """How many nodes have each as a source."""
    return Counter(s for v in self.order for s in dict.fromkeys(v.src))

  def of(self, u: UOp, p: Placement | None) -> Rule | Local:
    """How to make u at p, which is u's own placement, or a cut of a value that has none or is held more widely."""
    if u.op in MADE_ANEW or u.op is Ops.SINK:
      return self.find(u, p)
    if u.op in GroupOp.Elementwise:
      for s in u.src:
        if s.device is not p:
          break
      else:
        return _alike(p, u.shape)
    arg = None if u.op is Ops.CONTIGUOUS else u.arg
    key = (u.op, arg, p, u.shape, *[x for s in u.src for x in (s.shape, s.device)])
    found: Rule | Local | None = _locals.get(key)
    if found is None:
      found = self.find(u, p)
      if isinstance(found, Local):
        if len(_locals) > CACHED:
          _locals.clear()
        _locals[key] = found
    return found

  def find(self, u: UOp, p: Placement | None) -> Rule | Local:
    own = [(s, s.device) for s in u.src]
    if u.op is Ops.SINK or ((u.op is Ops.AFTER or u.op is Ops.WAIT) and u.device == p):
      return own, lambda xs: u.replace(src=tuple(xs))
    assert p is not None
    if u.op is Ops.BUFFER and u.device == p:
      return [], lambda _: UOp.new(Ops.SHARD, u.dtype, (u,), lengths(p, u.shape)) if isinstance(p, Sharding) else u
    if u.device != p:
      assert isinstance(p, Sharding)
      return slice_rule(u, p)
    if u.op is Ops.ASSIGN:
      return local(u, p, (p, p))
    if u.op is Ops.DETACH:
      return own, lambda xs: xs[0]
    if u.op is Ops.MOVE or is_remap(u):
      return self.move_rule(u, p)
    if not isinstance(p, Sharding):
      return local(u, p, [there for _, there in own])
    f = factor_rule(u)
    cuts: dict[int, SubAxes] = {}
    for s, lists in zip(u.src, f.src):
      if isinstance(s.device, Sharding):
        cuts.update(collect(lists, f, [s.device.cut(i) for i in range(len(lists))]))
    return op_rule(u, p, f, legal(cuts, f))

  def move_rule(self, u: UOp, p: Placement) -> Rule:
    """A move, or an index map along a cut dim: COLLECTIVEs, and slices where no byte has to travel."""
    x = u.src[0]
    if u.op is Ops.MOVE and x.device is None:
      if isinstance(p, Sharding) and p.partial:
        return [(x, p.reduced)], lambda xs: unreduce(xs[0], p.reduced, p)
      return [(x, p)], lambda xs: xs[0]
    template, holes = template_of(u, self.readers)
    if template.op is not Ops.HOLE:
      needs, places = [(h, h.device) for h in holes], tuple(h.device for h in holes if h.device is not None)
      return needs, lambda xs: self.note(communicate("remap", xs, template, places, p), u, None)
    x = holes[0]
    here = x.device
    assert here is not None
    steps = plan(ints(x.shape), x.dtype.itemsize, here, p)
    if steps and steps[0].kind == "slice":
      here, steps = steps[0].b, steps[1:]

    # of a number the plan may cut the one element, on its way to one device
    as_dim = not x.shape and any(isinstance(step.b, Sharding) and step.b.dims for step in steps)
    shape = (1,) if as_dim else x.shape

    def form(xs: list[UOp]) -> UOp:
      v = xs[0].reshape(shape) if as_dim else xs[0]
      for step in steps:
        v = self.note(apply_step(v, step, shape), u, step)
      return v.reshape(x.shape) if as_dim else v

    return [(x, here)], form

  def note(self, v: UOp, u: UOp, step: Step | None) -> UOp:
    """`v`, a step of the local form of `u`; remembers what its COLLECTIVE is there for."""
    made = v if v.op is Ops.COLLECTIVE or not v.src else v.src[0]  # a constant moves for nothing
    if made.op is Ops.COLLECTIVE:
      self.made.setdefault(made, (u, step))
    return v


def op_rule(u: UOp, p: Sharding, f: Factors, cuts: dict[int, SubAxes]) -> Rule | Local:
  """The same op on local shapes, the factors cut by `cuts`; sources without a device are made where they are needed."""
  places: list[Placement] = [Sharding.of(p.mesh, project(x, cuts), partials_of(s)) for s, x in zip(u.src, f.src)]
  needs: list[Demand] = list(zip(u.src, places))
  shape = lengths(p, u.shape)
  match u.op:
    case Ops.IOTA:
      at = scalar(start(p, 0, u.shape[0]), u.dtype, shape)
      return needs, lambda _: UOp.new(Ops.ADD, u.dtype, (UOp.iota(shape[0], u.dtype), at))
    case Ops.GATHER if isinstance(table := places[0], Sharding) and table.cut(u.arg):
      first = start(table, u.arg, u.src[0].shape[u.arg])
      return needs, lambda xs: u.replace(src=(xs[0], shifted(xs[1], first)))
    case Ops.CUSTOM:
      return needs, lambda xs: u.arg[1].graph(xs, shape)
    case Ops.RESHAPE | Ops.EXPAND:
      return local(u, p, places, shape)
    case Ops.SHRINK:
      return local(u, p, places, tuple((0, shape[i]) if p.cut(i) else pair for i, pair in enumerate(u.arg)))
  return local(u, p, places)


def slice_rule(u: UOp, p: Sharding) -> Rule | Local:
  """u cut finer than it is: the same op on less of its sources where that is all it takes, else a slice of u."""
  d = u.device
  if u.op is Ops.SCATTER and all(s.device is not None for s in u.src):
    (op, n, batch), size = u.arg, lengths(p, u.shape)[u.arg[2]]
    if isinstance(d, Sharding) and all(p.cut(i) == d.cut(i) for i in range(u.ndim) if i != batch):
      # only the updates count that go to this device's rows
      arg, first = (op, size, batch), start(p, batch, n)
      return [(s, s.device) for s in u.src], lambda xs: u.replace(src=(shifted(xs[0], first), xs[1]), arg=arg)
  if d is None or u.op in GroupOp.Rearranging:  # a slice of these is the op on less
    if u.op is Ops.IOTA:
      return op_rule(u, p, Factors((), ((0,),), (0,)), {})
    f = factor_rule(u)
    cuts = legal(collect(f.out, f, [p.cut(i) for i in range(u.ndim)]), f)
    stuck = any(p.cut(i) for i in touched(u, f)) or any(cuts.get(factor) for factor in f.contracted)
    if p.with_dims(project(f.out, cuts)) is p and not stuck:
      return op_rule(u, p, f, cuts)
  return [(u, d)], lambda xs: cut_out(xs[0], u.shape, d, p)


def local(u: UOp, p: Placement, places: Sequence[Placement | None], arg: Any = None) -> Local:
  """`u` at p from its sources at `places`."""
  moved = tuple(None if as_it_is(s, there) else there for s, there in zip(u.src, places))
  return Local(moved if any(moved) else None, arg, _alike(p, u.shape).shape)


@PROCESS.cached
def _alike(p: Placement, shape: tuple[sint, ...]) -> Local:
  """An elementwise op on sources that are all at p."""
  local_shape = lengths(p, shape)
  return Local(None, None, local_shape if all(isinstance(n, int) for n in local_shape) else None)


def as_it_is(u: UOp, p: Placement | None) -> bool:
  """Whether u at p is u where it is: constants are wherever no dim of them is cut."""
  return not is_cut(p) if u.device is None else u.device == p
