"""From the global view to the one program that every device runs.

A value is asked for at a placement: its own, or (constants, and slices of what is replicated) one that needs no
communication. Shapes become
local: an even cut has an integer length, an uneven one an expression of `_device_num`. Every move becomes a COLLECTIVE,
and so does every
index map along a cut dim: PAD, SHRINK, FLIP, CAT, WINDOW and SPREAD in a row are one template and travel once.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement, Sharding, same_devices
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import SPEC, span
from tinygrad.sharding.costs import deliver
from tinygrad.sharding.factors import collect, legal, project
from tinygrad.sharding.moves import Step, SubAxes, atoms, boundaries, ints, plan
from tinygrad.sharding.partial import partials_of
from tinygrad.sharding.place import placed

# isort: off
from tinygrad.uop import CARDS, Collective, Factors, GroupOp, Ops, UOp, check_graph, device_number, factor_rule, lengths
from tinygrad.uop import simplify_sint, sint, smin, start, substitute
# isort: on

Demand = tuple[UOp, Placement | None]
Rule = tuple[list[Demand], Callable[[list[UOp]], UOp]]  # what a local form is made of, and how
WRITES = frozenset((Ops.ASSIGN,))  # hot: a member of an enum takes longer to look up than to find here
MOVES = frozenset((Ops.MOVE,))
UNLIKE = frozenset((Ops.SINK, Ops.AFTER, Ops.BUFFER, Ops.DETACH, Ops.MOVE, Ops.IOTA, Ops.GATHER))  # not `Local`s
CACHED = 100_000  # entries of the table of local forms
VIEWS = frozenset((Ops.SHRINK, Ops.FLIP, Ops.RESHAPE, Ops.PERMUTE))  # no two of their elements are one of the source's
SLICED_BELOW = frozenset((Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE))  # a slice of these is the op on less


def localize(sink: UOp) -> UOp:
  """The local view of a placed graph (docs/architecture.md, 3): no MOVE is left, buffers are behind SHARD."""
  check_graph(sink, "tensor")
  with span("place"):
    sink = placed(sink)
  view = lower_to_local(complete(sink))
  check_graph(view, "local")
  return view


def complete(sink: UOp) -> UOp:
  """A placed graph with every move at its place: as it is localized."""
  return whole_assigns(copies_from_host(sink))


def lower_to_local(sink: UOp) -> UOp:
  """A complete graph in the local view."""
  return Localizer(sink.toposort()).run()


def copies_from_host(sink: UOp) -> UOp:
  """MOVE(MOVE(host data)) -> MOVE(host data): each device reads its own slice, and nobody holds the whole. The graph
  has both moves, for the gradient of what is in between."""
  mapping: dict[UOp, UOp] = {}
  for u in sink.toposort():
    if u.op in MOVES and u.src[0].op in MOVES:
      host = mapping.get(u.src[0], u.src[0]).src[0]
      if host.op is Ops.BUFFER and host.device == "NPY":
        mapping[u] = u.replace(src=(host,))
  return substitute(sink, mapping) if mapping else sink


# ---------------------------------------------------------------- what a device holds


def is_cut(p: Placement | None) -> bool:
  return isinstance(p, Sharding) and bool(p.dims)


def scalar(value: sint, dtype: DType, shape: Sequence[sint]) -> UOp:
  """An index expression as a value of `dtype` and `shape`."""
  at = UOp.const(dtype, value) if isinstance(value, int) else UOp.new(Ops.CAST, dtype, (value,))
  return at.broadcast_to(shape)


def shifted(index: UOp, offset: sint) -> UOp:
  """index - offset in a signed type: rows before the device's own get a negative index, which reads and adds
  nothing."""
  wide = index.dtype.itemsize > 4 or index.dtype is dtypes.uint32
  signed = index.cast(dtypes.int64 if wide else dtypes.int32)
  return UOp.new(Ops.SUB, signed.dtype, (signed, scalar(offset, signed.dtype, signed.shape)))


def cut_out(x: UOp, shape: Sequence[sint], a: Placement | None, b: Sharding) -> UOp:
  """This device's part at `b` of x, the local form at the coarser `a` of a value of global `shape`."""
  pairs: list[tuple[sint, sint]] = []
  sizes = lengths(b, shape)
  for i, n in enumerate(shape):
    if not b.cut(i) or (isinstance(a, Sharding) and a.cut(i) == b.cut(i)):
      pairs.append((0, x.shape[i]))
      continue
    size = sizes[i]
    lo = simplify_sint(start(b, i, n) - start(a, i, n))
    if not isinstance(size, int):
      lo = smin(lo, simplify_sint(x.shape[i] - size))  # an empty block must not start behind the end
    pairs.append((lo, simplify_sint(lo + size)))
  return UOp.new(Ops.SHRINK, x.dtype, (x,), tuple(pairs))


def unreduce(x: UOp, a: Sharding, b: Sharding) -> UOp:
  """x, partial over what `a` is, as a value that is partial over what `b` is: of a sum or a product the first
  coordinate keeps it and the others hold the identity; of max and min all keep it."""
  chain = boundaries(len(b), [a.used, b.used])
  for partial in b.partial:
    if partial.op not in (Ops.ADD, Ops.MUL):
      continue
    had = {d for o in a.partial if o.op is partial.op for d in atoms(o.sub_axes, chain) or o.sub_axes}
    identity = 1 if partial.op is Ops.MUL else -0.0 if dtypes.is_float(x.dtype) else 0
    rest = UOp.const(x.dtype, identity).broadcast_to(x.shape)
    for d in atoms(partial.sub_axes, chain) or partial.sub_axes:
      if d not in had:
        at = scalar(simplify_sint(device_number(b) // d.stride % d.size), dtypes.int32, x.shape)
        first = UOp.new(Ops.CMPEQ, dtypes.bool, (at, at.const_like(0)))
        x = UOp.new(Ops.WHERE, x.dtype, (first, x, rest))
  return x


# ---------------------------------------------------------------- the pass


@dataclass(frozen=True, slots=True)
class Local:
  """The local form that is the op itself: on its sources at `places` (None: as they are), with `arg` if that is not
  None. `shape`: if all of it is known."""

  places: tuple[Placement | None, ...] | None
  arg: Any
  shape: tuple[int, ...] | None


_locals: dict[tuple[Any, ...], Local] = {}  # the same ones come again in every layer


def local(u: UOp, p: Placement, places: Sequence[Placement | None], arg: Any = None) -> Local:
  """`u` at p from its sources at `places`."""
  moved = tuple(None if as_it_is(s, there) else there for s, there in zip(u.src, places))
  return Local(moved if any(moved) else None, arg, _alike(p, u.shape).shape)


@functools.lru_cache(CACHED)
def _alike(p: Placement, shape: tuple[sint, ...]) -> Local:
  """An elementwise op on sources that are all at p."""
  local_shape = lengths(p, shape)
  return Local(None, None, local_shape if all(isinstance(n, int) for n in local_shape) else None)


def as_it_is(u: UOp, p: Placement | None) -> bool:
  """Whether u at p is u where it is: constants are wherever no dim of them is cut."""
  return not is_cut(p) if u.device is None else u.device == p


class Localizer:
  """One pass over a graph in order. From the sink down it finds at which placements each value is asked for; then the
  local forms are built from the leaves up."""

  def __init__(self, order: Sequence[UOp]) -> None:
    order[-1].shape, order[-1].device  # those of all nodes are there now
    self.order = order
    self.wanted = {order[-1]}  # values as they are
    self.cut: dict[UOp, dict[Placement, None]] = {}  # values cut finer than they are
    self.done: dict[UOp | Demand, UOp] = {}  # local forms of both
    self.made: dict[UOp, tuple[UOp, Step | None]] = {}  # COLLECTIVE -> the node and its plan's step that it is for

  @functools.cached_property
  def readers(self) -> Counter[UOp]:
    """How many nodes have each as a source."""
    return Counter(s for v in self.order for s in dict.fromkeys(v.src))

  def run(self) -> UOp:
    """The local form of the sink. No recursion: graphs may be deeper than the stack."""
    sink, wanted, done = self.order[-1], self.wanted, self.done
    forms: list[tuple[UOp, Placement | None, Rule | Local]] = []  # each before its sources; None: as it is
    checked = SPEC.value >= 2
    for u in reversed(self.order):
      for p in self.cut.get(u, ()):
        rule = self.rule(u, p)
        forms.append((u, p, rule))
        self.ask(u, rule)
      if u not in wanted:
        continue
      if u.device is None and u is not sink:
        done[u] = u
        continue
      rule = self.rule(u, u.device)
      forms.append((u, None, rule))
      if isinstance(rule, Local) and rule.places is None:
        wanted.update(u.src)
      else:
        self.ask(u, rule)
    for u, place_, rule in reversed(forms):
      if isinstance(rule, Local):
        if rule.places is None:
          src = tuple([done[s] for s in u.src])
        else:
          src = tuple([done[s if there is None else (s, there)] for s, there in zip(u.src, rule.places)])
        v = UOp.new(u.op, u.dtype, src, u.arg if rule.arg is None else rule.arg)
        if rule.shape is not None:
          assert not checked or v.shape == rule.shape, f"{v!r} is not of the shape {rule.shape}"
          v.shape = rule.shape
      else:
        v = rule[1]([done[s if as_it_is(s, there) else (s, there)] for s, there in rule[0]])
      if v.origin is None:
        v.origin = u.origin
      done[u if place_ is None else (u, place_)] = v
    return done[sink]

  def ask(self, u: UOp, rule: Rule | Local) -> None:
    """Notes what the local form of u is made of."""
    if isinstance(rule, Local):
      demands: Iterable[Demand] = zip(u.src, rule.places or (None,) * len(u.src))
    else:
      demands = [(s, None if as_it_is(s, there) else there) for s, there in rule[0]]
    for s, p in demands:
      if p is None:
        self.wanted.add(s)
      else:
        self.cut.setdefault(s, {})[p] = None

  def rule(self, u: UOp, p: Placement | None) -> Rule | Local:
    """How to make u at p, which is u's own placement, or a cut of a value that has none or is held more widely."""
    if u.op in UNLIKE:
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
    if u.op is Ops.SINK or (u.op is Ops.AFTER and u.device == p):
      return own, lambda xs: u.replace(src=tuple(xs))
    assert p is not None
    if u.op is Ops.BUFFER and u.device == p:
      return [], lambda _: UOp.new(Ops.SHARD, u.dtype, (u,), lengths(p, u.shape)) if isinstance(p, Sharding) else u
    if u.device != p:
      assert isinstance(p, Sharding)
      return self.slice_rule(u, p)
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
    return self.op_rule(u, p, f, legal(cuts, f))

  def op_rule(self, u: UOp, p: Sharding, f: Factors, cuts: dict[int, SubAxes]) -> Rule | Local:
    """The same op on local shapes, the factors cut by `cuts`; sources without a device are made where they are
    needed."""
    places: list[Placement] = [Sharding.of(p.mesh, project(x, cuts), partials_of(s)) for s, x in zip(u.src, f.src)]
    needs: list[Demand] = list(zip(u.src, places))
    shape = lengths(p, u.shape)
    match u.op:
      case Ops.IOTA:
        at = scalar(start(p, 0, u.shape[0]), u.dtype, shape)
        return needs, lambda _: UOp.new(Ops.ADD, u.dtype, (UOp.iota(shape[0], u.dtype), at))
      case Ops.GATHER if isinstance(table := places[0], Sharding) and table.cut(0):
        first = start(table, 0, u.src[0].shape[0])
        return needs, lambda xs: u.replace(src=(xs[0], shifted(xs[1], first)))
      case Ops.RESHAPE | Ops.EXPAND:
        return local(u, p, places, shape)
      case Ops.SHRINK:
        return local(u, p, places, tuple((0, shape[i]) if p.cut(i) else pair for i, pair in enumerate(u.arg)))
    return local(u, p, places)

  def slice_rule(self, u: UOp, p: Sharding) -> Rule | Local:
    """u cut finer than it is: the same op on less of its sources where that is all it takes, else a slice of u."""
    d = u.device
    if d is None or u.op in SLICED_BELOW:
      if u.op is Ops.IOTA:
        return self.op_rule(u, p, Factors((), ((0,),), (0,)), {})
      f = factor_rule(u)
      cuts = legal(collect(f.out, f, [p.cut(i) for i in range(u.ndim)]), f)
      stuck = any(p.cut(i) for i in touched(u, f)) or any(cuts.get(factor) for factor in f.contracted)
      if p.with_dims(project(f.out, cuts)) is p and not stuck:
        return self.op_rule(u, p, f, cuts)
    return [(u, d)], lambda xs: cut_out(xs[0], u.shape, d, p)

  # ---- communication

  def move_rule(self, u: UOp, p: Placement) -> Rule:
    """A move, or an index map along a cut dim: COLLECTIVEs, and slices where no byte has to travel."""
    x = u.src[0]
    if u.op is Ops.MOVE and x.device is None:
      if isinstance(p, Sharding) and p.partial:
        return [(x, p.reduced)], lambda xs: unreduce(xs[0], p.reduced, p)
      return [(x, p)], lambda xs: xs[0]
    template, holes = self.template(u)
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

  def template(self, u: UOp) -> tuple[UOp, list[UOp]]:
    """u as an expression over HOLEs, and the values that fill them: the index maps, and the implied moves between them,
    in a row below u."""
    holes: list[UOp] = []

    def hole(s: UOp) -> UOp:
      holes.append(s)
      return UOp.new(Ops.HOLE, s.dtype, (), (len(holes) - 1, s.shape))

    def fill(s: UOp) -> UOp:
      if s.device is None:
        return s
      if self.readers[s] == 1:
        if s.op is Ops.MOVE and not s.arg.pinned and moves_freely(s):
          return fill(s.src[0])
        if s.op in GroupOp.Movement and self.leads_to_remap(s):
          return s.replace(src=tuple(fill(x) for x in s.src))
      return hole(s)

    if u.op is not Ops.MOVE:
      return u.replace(src=tuple(fill(s) for s in u.src)), holes
    return (fill if moves_freely(u) else hole)(u.src[0]), holes

  def leads_to_remap(self, u: UOp) -> bool:
    """Whether u is a row of movement ops with an index map along a cut dim in it."""

    def passed(v: UOp) -> bool:
      return v.op in GroupOp.Movement or (v.op is Ops.MOVE and not v.arg.pinned and moves_freely(v))

    return any(map(is_remap, itertools.takewhile(passed, u.down())))


def is_remap(u: UOp) -> bool:
  """Whether u maps indices along a dim that is cut."""
  if u.op not in GroupOp.Remapping:
    return False
  dims = touched(u, factor_rule(u))
  return any(isinstance(v.device, Sharding) and v.device.cut(i) for v in (u, *u.src) for i in dims)


def moves_freely(u: UOp) -> bool:
  """Whether a MOVE stays on one device set and reduces nothing, so that it may be part of an index map."""
  x = u.src[0]
  if x.device is None or u.device is None or partials_of(x) or partials_of(u):
    return False
  return same_devices(x.device, u.device)


def touched(u: UOp, f: Factors) -> set[int]:
  """The result dims along which u's index map is not the identity, or depends on the index along a dim that must then
  be whole."""
  return {*f.remapped, *((u.arg[1],) if u.op in (Ops.WINDOW, Ops.SPREAD) else ())}


def apply_step(x: UOp, step: Step, shape: tuple[sint, ...]) -> UOp:
  """One step of a plan on the local form of a value of global `shape`."""
  if step.kind == "slice":
    assert isinstance(step.b, Sharding)
    return cut_out(x, shape, step.a, step.b)
  if step.kind == "unreduce":
    assert isinstance(step.a, Sharding) and isinstance(step.b, Sharding)
    return unreduce(x, step.a, step.b)
  return communicate(step.kind, [x], UOp.new(Ops.HOLE, x.dtype, (), (0, shape)), (step.a,), step.b)


def communicate(kind: str, xs: Sequence[UOp], template: UOp, places: tuple[Placement, ...], p: Placement) -> UOp:
  """A COLLECTIVE; its blocks have their full size, so an uneven one is shrunk to its valid length."""
  u = UOp.new(Ops.COLLECTIVE, template.dtype, tuple(xs), Collective(kind, template, places, p))
  valid = lengths(p, template.shape)
  return u if valid == u.shape else UOp.new(Ops.SHRINK, u.dtype, (u,), tuple((0, n) for n in valid))


# ---------------------------------------------------------------- writes into a part of a cut dim


def whole_assigns(sink: UOp) -> UOp:
  """ASSIGN into a view that cuts a part out of a cut dim -> ASSIGN of the whole buffer: the value inside the view, the
  old content outside."""
  mapping, done = dict[UOp, UOp](), dict[UOp, UOp]()
  for u in sink.toposort():
    if u.op not in WRITES or not is_cut(u.src[0].device):
      continue
    views = [*itertools.takewhile(lambda v: v.op in GroupOp.Movement, u.src[0].down())]
    if not any(map(is_remap, views)):
      continue
    value, base = substitute(u.src[1], mapping, done), substitute(views[-1].src[0], mapping, done)
    assert base.device is not None
    mapping[u] = UOp.new(Ops.ASSIGN, u.dtype, (base, deliver(overlaid(views, value, base), base.device)))
  return substitute(sink, mapping, done) if mapping else sink


def overlaid(views: Sequence[UOp], value: UOp, base: UOp) -> UOp:
  """The content of `base` once `value` is written into a view of it, which `views` lead to, the outermost first."""
  mask = UOp.const(dtypes.bool, True).broadcast_to(value.shape)
  for v in views:
    value, mask = unview(v, value), unview(v, mask)
  return mask.where(value, base)


def unview(v: UOp, x: UOp) -> UOp:
  """x, the content of the view v, in the coordinates of v's source; zero (False) outside: v's adjoint, as its card has
  it."""
  rule = CARDS[v.op].gradient
  assert rule is not None and v.op in VIEWS, f"assign into a view made by {v.op.name}"
  (inside,) = rule(x, v)
  assert inside is not None
  return inside
