"""One stored value of the local graph -> the AST of one kernel, by way of its graph over numbered memory.

The result's index becomes ranges; every op below it turns the index of its result into the indices of its sources
("pull"), until loads are reached. Movement is index arithmetic, REDUCE becomes a FOLD over new ranges, PAD and CAT
become selects whose loads carry the condition."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from tinygrad.device import Sharding
from tinygrad.dtype import DType, dtypes
from tinygrad.ops.reduce import identity_element, nothing
from tinygrad.schedule.homes import TRANSPARENT, Home, peel
from tinygrad.schedule.items import ScheduleItem
from tinygrad.schedule.loops import tidy
from tinygrad.uop import CARDS, AxisKind, Element, GroupOp, Ops, ParamArg, UOp, check_graph, simplify, substitute
from tinygrad.uop.dims import is_int, sint, upper
from tinygrad.uop.indexing import Index, at_least, below, both, is_false
from tinygrad.uop.local import element_of, lengths, start
from tinygrad.uop.loops import LoopIds
from tinygrad.uop.node import HALVES
from tinygrad.uop.node import sint_to_uop as number
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

Key = tuple[UOp, Index, UOp | None]  # a value, where in it, and under which condition (None: always)
Step = Generator[Key, UOp, UOp]  # what a value is made of: it asks for others by their keys


class Pull:
  def __init__(self) -> None:
    self.ids = LoopIds()
    self.memo: dict[Key, UOp] = {}
    # loops of reductions, by lengths and the index around them
    self.ranges: dict[tuple[tuple[sint, ...], Index], tuple[UOp, ...]] = {}

  def new_range(self, end: sint, kind: AxisKind) -> UOp:
    """A loop variable over [0, end); a loop of one step is the constant 0."""
    return number(0) if is_int(end, 1) else self.ids.loop(number(end), kind)

  def value(self, u: UOp, idx: Index, valid: UOp | None = None) -> UOp:
    """The scalar expression of `u[idx]`; an explicit stack, since chains of ops may be longer than Python's."""
    stack: list[tuple[Key, Step]] = [((u, idx, valid), self.step(u, idx, valid))]
    found: UOp | None = None  # what the step on top has asked for
    while stack:
      key, step = stack[-1]
      try:
        need = next(step) if found is None else step.send(found)
      except StopIteration as end:
        found = self.memo[key] = end.value
        stack.pop()
      else:
        if (found := self.memo.get(need)) is None:
          stack.append((need, self.step(*need)))
    return self.memo[u, idx, valid]

  def step(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    """`u[idx]`, of the values that it asks for."""
    op = u.op
    if (home := home_of(u)) is not None:
      return _load(param(home, u.dtype), home.place(idx), valid)
    if op in GroupOp.Elementwise:
      xs = []
      for s in u.src:
        xs.append((yield s, idx if s.shape else (), valid))
      return UOp.new(op, u.dtype, tuple(xs), u.arg)
    if op in TRANSPARENT:  # within the template of a COLLECTIVE
      return (yield u.src[0], idx, valid)
    if (index_map := CARDS[op].index_map) is not None:
      return (yield from self.step_movement(u, index_map(u, idx), valid))
    if op in STEPS:
      return (yield from STEPS[op](self, u, idx, valid))
    match op:
      case Ops.CONST | Ops.VARIABLE:
        return u
      case Ops.IOTA:
        return converted(idx[0], u.dtype)
      case Ops.HOLE:
        return self.load_hole(u, idx, valid)
    raise NotImplementedError(f"lower: no index rule for {u.op} of shape {u.shape}")

  def step_movement(self, u: UOp, at: Element, valid: UOp | None) -> Step:
    """The source's value where there is one, else the fill; a select, so that what is not there is never read."""
    inner, gate, fill = at
    if gate is None:
      return (yield u.src[0], inner, valid)
    other = UOp.const(u.dtype, fill)
    if is_false(gate) or 0 in u.src[0].max_shape:
      return other
    return _select(gate, (yield u.src[0], inner, both(valid, gate)), other)

  def step_cat(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    axis: int = u.arg
    parts = list[tuple[UOp, UOp]]()  # below which index, what
    start: sint = 0
    for s in u.src:
      end = below(idx[axis], start + s.shape[axis])
      gate = both(at_least(idx[axis], start), end)
      if not is_false(gate):
        inner = number(0) if is_int(s.shape[axis], 1) else simplify(idx[axis] - start)
        at = (*idx[:axis], inner, *idx[axis + 1 :])
        parts.append((end, (yield s, at, both(valid, gate))))
      start = start + s.shape[axis]
    result = parts[-1][1]
    for end, x in reversed(parts[:-1]):
      result = choice(end, x, result)
    return result

  def step_gather(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    """The row is loaded first: it is part of the index into the table. Outside of the table the value is 0."""
    table, rows = u.src
    rank, batch = len(rows.shape), u.arg
    row = converted((yield rows, idx[:rank], valid), dtypes.index)
    gate = both(at_least(row, 0), below(row, table.shape[batch]))
    at = Element((*idx[:batch], row, *idx[rank:]), gate)
    return (yield from self.step_movement(u, at, valid))

  def step_reduce(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    (op, axes), x = u.arg, u.src[0]
    if any(upper(x.shape[a]) == 0 for a in axes):
      return UOp.const(u.dtype, identity_element(op, u.dtype))
    loops = self.reduce_ranges(tuple(x.shape[a] for a in axes), tuple(i for k, i in enumerate(idx) if k not in axes))
    at = list(idx)
    for a, r in zip(axes, loops):
      at[a] = r
    return fold_over(op, (yield x, tuple(at), valid), loops)

  def step_scatter(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    """A reduction over all updates, of which a row gets those whose index it is: codegen takes a step for each, or has
    each row look at all."""
    (op, _, batch), (index, updates) = u.arg, u.src
    if any(upper(m) == 0 for m in index.shape[batch:]):
      return UOp.const(u.dtype, nothing(op, u.dtype))
    loops = self.reduce_ranges(index.shape[batch:], idx)
    at = (*idx[:batch], *loops)
    row = converted((yield index, at, valid), dtypes.index)
    x = yield updates, (*at, *idx[batch + 1 :]), valid
    return fold_over(op, UOp.new(Ops.ONE_HOT, u.dtype, (row, idx[batch], x), op), loops)

  def reduce_ranges(self, lengths: tuple[sint, ...], outer: Index) -> tuple[UOp, ...]:
    """The loops of a reduction; those side by side share them."""
    if (loops := self.ranges.get((lengths, outer))) is None:
      loops = self.ranges[lengths, outer] = tuple(self.new_range(n, AxisKind.REDUCE) for n in lengths)
    return loops

  def step_collective(self, u: UOp, idx: Index, valid: UOp | None) -> Step:
    """The local element `idx` of the result: its global index, through the template, whose HOLEs then tell of which
    collective they are."""
    c = u.arg
    template = rebuild(c.template, lambda x, src: on_sources(x, (u,) if x.op is Ops.HOLE else src))
    whole = tuple(simplify(start(c.result, d, n) + i) for d, (i, n) in enumerate(zip(idx, template.shape)))
    return (yield template, whole, valid)

  def load_hole(self, u: UOp, idx: Index, valid: UOp | None) -> UOp:
    """The element of a collective's source at a global index: from whoever owns it; owed sums are folded over the
    devices that hold parts, a loop within the other."""
    c = u.src[0].arg
    source, placement = u.src[0].src[u.arg[0]], c.placements[u.arg[0]]
    home = home_of(peel(source))
    assert home is not None and isinstance(placement, Sharding)  # between device sets there are Transfers
    owner, inner, sizes, folds = element_of(placement, c.result, u.arg[1], idx, self.new_range)
    table = param(home, source.dtype, peers=True)
    place = replace(home, shape=sizes).place(inner)
    x = _load(UOp.new(Ops.PEER, source.dtype, (table, owner)), place, valid)
    for op, loops in folds.items():
      # a sum over devices is carried in float32: range and precision of halves do not depend on how many there are
      value = converted(x, dtypes.float32) if op is Ops.ADD and x.dtype in HALVES else x
      for r in loops:
        value = UOp.new(Ops.FOLD, value.dtype, (value, r), op)
      x = converted(value, x.dtype)
    return x


STEPS = {Ops.CAT: Pull.step_cat, Ops.GATHER: Pull.step_gather, Ops.REDUCE: Pull.step_reduce}
STEPS |= {Ops.SCATTER: Pull.step_scatter, Ops.COLLECTIVE: Pull.step_collective}


def fold_over(op: Ops, x: UOp, loops: tuple[UOp, ...]) -> UOp:
  """The reduction over those of the loops that have several steps."""
  ranges = tuple(r for r in loops if r.op is Ops.RANGE)
  return UOp.new(Ops.FOLD, x.dtype, (x, *ranges), op) if ranges else x


def choice(gate: UOp, x: UOp, y: UOp) -> UOp:
  return UOp.new(Ops.WHERE, x.dtype, (gate, x, y))


def converted(x: UOp, dtype: DType) -> UOp:
  if x.dtype is dtype:
    return x
  return UOp.const(dtype, x.arg) if x.op is Ops.CONST else UOp.new(Ops.CAST, dtype, (x,))


def _load(pointer: UOp, offset: UOp, valid: UOp | None) -> UOp:
  gate, other = ((), ()) if valid is None else ((valid,), (UOp.const(pointer.dtype, 0),))
  return UOp.new(Ops.LOAD, pointer.dtype, (UOp.new(Ops.INDEX, pointer.dtype, (pointer, offset, *gate)), *other))


def _select(gate: UOp, x: UOp, other: UOp) -> UOp:
  """`gate ? x : other`; for a load under just this condition `other` is the load's alternative."""
  alone = x.op is Ops.LOAD and x.src[0].src[2:] == (gate,)
  return UOp.new(Ops.LOAD, x.dtype, (x.src[0], other)) if alone else choice(gate, x, other)


def structural_key(value: UOp, target: Home | UOp, homes: Mapping[UOp, Home]) -> tuple[UOp, list[int]]:
  """What decides about the kernel that stores `value`, whichever slots it reads and writes: the graphs of where it goes
  and of itself, over memory that is numbered. And these slots, in the order of their numbers."""
  slots, made = dict[int, int](), dict[UOp, UOp]()

  def memory(u: UOp, home: Home) -> UOp:
    number = slots.setdefault(home.slot, len(slots))
    return UOp.new(Ops.HOLE, u.dtype, (), (number, u.shape, replace(home, slot=number)))

  def is_stored(u: UOp) -> bool:
    return u in homes and (u is not value or not isinstance(target, Home))

  def cut(u: UOp) -> UOp | None:
    v = next(v for v in u.down() if v.op not in TRANSPARENT or is_stored(v))
    if is_stored(v):
      return memory(v, homes[v])
    waits = u.op in TRANSPARENT and len(u.src) > 1  # for what is no part of the value
    return rebuild(v, make, made, cut) if waits else None

  def make(u: UOp, src: Sources) -> UOp:
    return src[0] if u.op in TRANSPARENT else on_sources(u, src)

  out = memory(value, target) if isinstance(target, Home) else rebuild(target, make, made, cut)
  return UOp.sink(out, rebuild(value, make, made, cut)), list(slots)


def home_of(u: UOp) -> Home | None:
  """Where numbered memory lies, in whose slot's place is its number."""
  home: Home | None = u.arg[2] if u.op is Ops.HOLE and len(u.arg) > 2 else None
  return home


def param(home: Home, dtype: DType, peers: bool = False) -> UOp:
  return UOp.new(Ops.PARAM, dtype, (), ParamArg(home.slot, home.size, peers))


def lower(key: UOp) -> ScheduleItem:
  """The kernel of a `structural_key`, on no devices yet. It stores a value in a whole buffer laid out as it is, or in a
  view (movement over such memory); a SINK of one STORE. Its slots are numbers; the first is the one written."""
  (target, value), pull = key.src, Pull()
  shape = value.shape
  if (home := home_of(target)) is not None:
    value = peel(value)  # the same flat order; loops over the dims below need no division
    # the shape of a COLLECTIVE is that of whole blocks; of an uneven one only the valid part is computed
    shape = lengths(value.arg.result, value.arg.template.shape) if value.op is Ops.COLLECTIVE else value.shape
    target = target.replace(arg=(*target.arg[:2], replace(home, shape=value.max_shape)))
  ranges = tuple(pull.new_range(n, AxisKind.LOOP) for n in shape)
  place, x = pull.value(target, ranges).src[0], pull.value(value, ranges)
  src = (place, x, *(r for r in ranges if r.op is Ops.RANGE))
  return as_item(UOp.sink(UOp.new(Ops.STORE, dtypes.void, src)))


def as_item(kernel: UOp) -> ScheduleItem:
  """A kernel in its normal form, on no devices yet: with its PARAMs in order, those that are written first, and the
  slots that they have stood for. Memory of a row's own keeps its number."""
  ast = tidy(kernel)
  written = {s.src[0].src[0].arg.slot for s in ast.src if s.src[0].src[0].arg.given}
  params = [u for u in ast.toposort() if u.op is Ops.PARAM and u.arg.given]
  params.sort(key=lambda p: p.arg.peers or p.arg.slot not in written)
  places = list(dict.fromkeys((p.arg.slot, p.arg.peers) for p in params))  # own memory, or the table of the peers'
  numbers = {p: places.index((p.arg.slot, p.arg.peers)) for p in params}
  ast = substitute(ast, {p: p.replace(arg=replace(p.arg, slot=n)) for p, n in numbers.items()})
  check_graph(ast, "kernel")
  names, peers = tuple(v.arg[0] for v in ast.variables()), any(p.arg.peers for p in params)
  return ScheduleItem(ast, tuple(slot for slot, _ in places), (), names, peers, writes=len(written))
