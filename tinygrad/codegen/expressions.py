"""Values of a kernel in linear code: each once, in the outermost loop in which it is known; what they depend on,
addresses, loads and stores.

The scalar expressions are not copied for the elements of a tile: a value is emitted under an environment that gives
each UPCAST range a number, and the memo is keyed by the part of the environment the value depends on. Values that
depend on the VECTOR range are vectors (`dtype.vec(lanes)`); scalars are broadcast by VECTORIZE where they meet one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tinygrad.dtype import DType, dtypes
from tinygrad.numerics.dots import put_together
from tinygrad.numerics.floor_division import DIVIDES, floor_divided
from tinygrad.numerics.lanes import backwards, columns, strided, transposed
from tinygrad.numerics.own_memory import is_own
from tinygrad.ops.elementwise import OF_BOOLS
from tinygrad.uop import RANGES_FROM, AxisKind, GroupOp, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import LoopIds, extent
from tinygrad.uop.rewrite import substitute_free

Env = dict[UOp, int]
Key = UOp | tuple[UOp, tuple[int, ...]]  # a value, and of what it depends on the numbers in its environment
VECTOR = 16  # bytes of neighbours that are loaded or stored at once, where there are no other vectors
# lanes from which, and step up to which, a strided load is contiguous loads and shuffles
MIN_SHUFFLED, MAX_SHUFFLED = 4, 4


@dataclass(slots=True, eq=False)
class LoopScope:
  """An open loop (or the kernel) and the code emitted into it so far; `bit`: of the kernel's loop that it is of."""

  depth: int
  bit: int = 0
  out: list[UOp] = field(default_factory=list)
  open: bool = True
  done: bool = False  # closed, and not only for what belongs outside of it


def usual_sources(u: UOp) -> tuple[UOp, ...]:
  """What is always computed for `u`: of a WHERE with an arg all but what it unlikely chooses."""
  return u.src if u.op is not Ops.WHERE or u.arg is None else u.src[::2]


class Values:
  """Emits values into the open loops. `fold` emits a reduction for all elements of its tile, `fill` what an AFTER waits
  for: both are the linearizer's. `scalars`: there are no vectors but of neighbours in memory, for loads and stores."""

  def __init__(
    self, ids: LoopIds, fold: Callable[[UOp, Env], None], fill: Callable[[UOp], None], scalars: bool = False
  ) -> None:
    self.fold, self.fill, self.scalars = fold, fill, scalars
    # least: a loop of at most one iteration, in which what belongs beside it is emitted
    self.root = self.least = LoopScope(0)
    self.stack = [self.root]
    self.ids = ids
    self.home: dict[UOp, LoopScope] = {}  # where an emitted value was emitted
    self.memo: dict[Key, tuple[UOp, LoopScope]] = {}  # (node, its environment) -> emitted value
    self.bits: dict[UOp, int] = {}  # by range, or FOLD
    self.fold_bits = 0
    self.deps_memo: dict[UOp, int] = {}
    self.read_memo: dict[UOp, frozenset[UOp]] = {}
    self.affine_memo: dict[UOp, Affine] = {}
    self.iteration = dict[UOp, Affine]()  # open loops of the kernel -> the iteration's number, of emitted counters
    self.unrolled: list[UOp] = []  # UPCAST ranges, in the order in which the elements of a tile follow one another
    self.unrolled_bits = 0
    self.vectors: list[UOp] = []  # VECTOR ranges
    self.order_memo: dict[UOp, list[UOp]] = {}
    self.written: set[UOp] = set()  # parameters that another nest of the kernel may have written

  # ---- what a value depends on

  def bit(self, r: UOp) -> int:
    return self.bits.setdefault(r, 1 << len(self.bits))

  def deps(self, u: UOp) -> int:
    """The free ranges of `u`, and the FOLDs that it is made of, itself included, as bits."""
    memo = self.deps_memo
    if (found := memo.get(u)) is not None:
      return found
    for v in u.toposort(lambda v: v not in memo):
      d = self.bit(v) if v.op is Ops.RANGE else 0
      for s in v.src:
        d |= memo[s]
      for r in v.src[RANGES_FROM[v.op] :] if v.op in RANGES_FROM else ():
        d &= ~self.bit(r)
      if v.op is Ops.FOLD:
        d |= self.bit(v)
        self.fold_bits |= self.bit(v)
      memo[v] = d
    return memo[u]

  def loops(self, u: UOp) -> int:
    """The free ranges alone."""
    return self.deps(u) & ~self.fold_bits

  def ups(self, deps: int) -> list[UOp]:
    return [r for r in self.unrolled if self.bits[r] & deps] if deps & self.unrolled_bits else []

  def value_order(self, root: UOp, env: Env | None = None) -> list[UOp]:
    """The data values below `root`, sources first; index expressions and what is inside FOLDs is emitted on demand.
    With `env`, of a choice that it decides the chosen one's, and without what is known already: that is known for
    other elements of the tile, too, when their turn comes."""
    found = self.order_memo.get(root)
    if found and not (env and any(u.op is Ops.WHERE and self.deps(u.src[0]) & self.unrolled_bits for u in found)):
      return found
    out: list[UOp] = []
    seen = set[UOp]()
    stack = [(root, False)]
    while stack:
      u, done = stack.pop()
      if done:
        out.append(u)
      elif u not in seen:
        seen.add(u)
        if env is None or u is root or self.emitted(u, env) is None:
          stack.append((u, True))
          src = u.src[1:] if u.op is Ops.LOAD else () if u.op is Ops.FOLD else self.chosen(u, env)
          stack += [(s, False) for s in reversed(src) if s.dtype is not dtypes.index and s.op is not Ops.CONST]
    if env is not None:
      self.order_memo[root] = out
    return out

  def chosen(self, u: UOp, env: Env | None) -> tuple[UOp, ...]:
    """The sources of `u`; of a WHERE whose condition `env` decides, the one that it gives."""
    if u.op is not Ops.WHERE or not env or not self.deps(u.src[0]) & self.unrolled_bits:
      return usual_sources(u)
    condition = self.value(u.src[0], env)
    return usual_sources(u) if condition.op is not Ops.CONST else (u.src[1 if condition.arg else 2],)

  # ---- emitting nodes

  def scope_of(self, values: Sequence[UOp]) -> LoopScope:
    """The innermost of the scopes in which `values` were emitted."""
    best = self.root
    for v in values:
      if (s := self.home.get(v)) is not None and s.depth > best.depth:
        best = s
    # what belongs further out stays there: emitted once more, it would stand before what is emitted here
    return self.least if self.least.open and self.least.depth == best.depth + 1 else best

  def node(
    self, op: Ops, dtype: DType, src: tuple[UOp, ...], arg: object = None, scope: LoopScope | None = None
  ) -> UOp:
    """A value that depends on its sources only: emitted once, beside the innermost of them."""
    u = UOp.new(op, dtype, src, arg)
    if (home := self.home.get(u)) is not None and home.open:
      return u
    home = scope or self.scope_of(src)
    home.out.append(u)
    self.home[u] = home
    return u

  def put(self, op: Ops, dtype: DType, src: tuple[UOp, ...], arg: object = None) -> UOp:
    """An effect, or what depends on one: emitted here and now."""
    u = UOp.new(op, dtype, src, arg)
    self.stack[-1].out.append(u)
    self.home[u] = self.stack[-1]
    return u

  def read(self, place: UOp) -> UOp:
    """What a register, or memory, holds now."""
    return self.put(Ops.LOAD, place.dtype, (place,))

  def write(self, place: UOp, value: UOp) -> None:
    self.put(Ops.STORE, dtypes.void, (place, value))

  def forget_memory(self, written: set[UOp]) -> None:
    """What was read from this memory may have been written since: nothing of it is known any more."""
    self.home = {u: s for u, s in self.home.items() if not s.done}
    read: set[UOp] = set()
    for u in self.home:  # sources first
      if (u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].src[0] in written) or not read.isdisjoint(u.src):
        read.add(u)
    for u in read & self.home.keys():
      del self.home[u]
    known = ((key, hit) for key, hit in self.memo.items() if not hit[1].done)
    self.memo = {k: hit for k, hit in known if self.reads(k if isinstance(k, UOp) else k[0]).isdisjoint(written)}
    self.order_memo.clear()

  def reads(self, root: UOp) -> frozenset[UOp]:
    """The memory that a value is computed from."""
    memo = self.read_memo
    for u in () if root in memo else root.toposort(lambda u: u not in memo):
      found = frozenset[UOp]().union(*(memo[s] for s in u.src))
      memo[u] = found | {u.src[0]} if u.op is Ops.INDEX else found
    return memo[root]

  def broadcast(self, u: UOp, lanes: int) -> UOp:
    """A scalar as a vector of equal lanes."""
    if u.dtype.count == lanes:
      return u
    assert u.dtype.count == 1, (u.dtype, lanes)
    return self.node(Ops.VECTORIZE, u.dtype.vec(lanes), (u,))

  def value(self, root: UOp, env: Env) -> UOp:
    if (known := self.emitted(root, env)) is not None:
      return known
    for u in self.value_order(root, env)[:-1]:
      self.emit(u, env)
    return self.emit(root, env)

  def key_of(self, u: UOp, env: Env) -> Key:
    """The node and the part of the environment that it depends on."""
    ups = self.ups(self.deps(u))
    return (u, tuple([env[r] for r in ups])) if ups else u

  def emitted(self, u: UOp, env: Env) -> UOp | None:
    """The emitted value of `u`, if it is known here."""
    hit = self.memo.get(self.key_of(u, env))
    return hit[0] if hit is not None and hit[1].open else None

  def emit(self, u: UOp, env: Env) -> UOp:
    """The emitted value of `u`, whose data sources have been emitted (else by recursion)."""
    if u.op is Ops.CONST:
      return u
    if (known := self.emitted(u, env)) is not None:
      return known
    key = self.key_of(u, env)
    if u.op is Ops.FOLD:
      self.fold(u, env)
      return self.memo[key][0]
    if u.op is Ops.LOAD:
      out = self.load(u, env)
    elif u.dtype is dtypes.index:
      out = self.integer(u, env)
    elif u.op in GroupOp.Comparison and u.src[0].dtype is dtypes.index:
      out = self.compare(u, env)
    elif u.op is Ops.WHERE and u.arg is not None:
      out = self.unlikely(u, env)
    else:
      src = [self.emit(s, env) for s in self.chosen(u, env)]
      out = src[0] if u.op is Ops.WHERE and len(src) == 1 else self.apply(u, src)
    home, decided = self.home.get(out, self.root), self.stack[self.level_of(self.deps(u))]
    self.memo[key] = out, home if home.depth >= decided.depth else decided  # a constant, too, may be these iterations'
    return out

  def apply(self, u: UOp, src: list[UOp]) -> UOp:
    """`u`'s op on emitted sources."""
    if u.dtype is dtypes.bool and (folded := _fold_bool(u.op, src)) is not None:
      return folded
    if u.op is Ops.WHERE and src[0].op is Ops.CONST:
      return src[1] if src[0].arg else src[2]
    lanes = max((s.dtype.count for s in src), default=1)
    if lanes > 1:
      src = [self.broadcast(s, lanes) for s in src]
    return floor_divided(self, u, *src) if u.op in DIVIDES else self.node(u.op, u.dtype.vec(lanes), tuple(src), u.arg)

  def unlikely(self, u: UOp, env: Env) -> UOp:
    """A WHERE whose condition hardly ever holds: what it then chooses is computed in a loop of one iteration, or of
    none where it holds in no lane."""
    condition, usual = (self.emit(s, env) for s in usual_sources(u))
    # what is a constant for these elements may have sources that are none, and need their loops
    with self.outside(max(self.scope_of((condition, usual)).depth, self.level_of(self.deps(u)))):
      acc = self.put(Ops.ACC, usual.dtype, (), self.ids.next())
      self.write(acc, usual)
      some = condition if condition.dtype.count == 1 else self.node(Ops.FOLD, dtypes.bool, (condition,), Ops.MAX)
      times = self.node(Ops.CAST, dtypes.index, (some,))
      self.memo[times] = times, self.home[times]
      with self.loop(times, AxisKind.LOOP):
        self.write(acc, self.apply(u, [condition, self.value(u.src[1], env), usual]))
      return self.read(acc)

  # ---- integers and addresses

  def form(self, u: UOp) -> Affine:
    return affine(u, self.affine_memo)

  def resolve(self, a: Affine, env: Env) -> Affine:
    """`a` with the unrolled ranges in `env` as numbers, which may make divisions affine: (2·r + 1) // 2 is r."""
    out = Affine(a.const)
    for atom, c in a.terms.items():
      known: Affine | None = None
      if atom.op is Ops.RANGE:
        known = Affine(env[atom]) if atom in env else self.iteration.get(atom)
      elif atom.op in DIVIDES and (numbers := {r: index(env[r]) for r in self.ups(self.deps(atom)) if r in env}):
        known = self.resolve(self.form(substitute_free(atom, numbers)), env)
      out = out.plus(Affine(0, {atom: 1}) if known is None else known, c)
    return out

  def parts(self, a: Affine, env: Env) -> tuple[UOp, int]:
    """(value on lane 0, step per lane) of an affine form; where lanes differ otherwise, (vector, 0). Outer loops' terms
    are summed first, so that they are computed outside of the inner loops."""
    const, step = a.const, 0
    scalars: list[tuple[int, UOp, int]] = []
    vectors: list[tuple[UOp, int]] = []
    for atom, c in a.terms.items():
      if atom.op is Ops.RANGE and atom.arg[1] is AxisKind.VECTOR:
        step += c
        continue
      v = self.atom(atom, env)
      if v.op is Ops.CONST:
        const += c * v.arg
      elif v.dtype.count > 1:
        vectors.append((v, c))
      else:
        scalars.append((self.scope_of((v,)).depth, v, c))
    base: UOp | None = None
    for _, v, c in sorted(scalars, key=lambda t: t[0]):
      term = v if c == 1 else self.node(Ops.MUL, dtypes.index, (v, index(c)))
      base = term if base is None else self.node(Ops.ADD, dtypes.index, (base, term))
    if base is None or const:
      base = index(const) if base is None else self.node(Ops.ADD, dtypes.index, (base, index(const)))
    if not vectors:
      return base, step
    lanes = vectors[0][0].dtype.count
    vec = dtypes.index.vec(lanes)
    out = self.broadcast(base, lanes)
    for v, c in vectors:
      term = v if c == 1 else self.node(Ops.MUL, vec, (v, self.broadcast(index(c), lanes)))
      out = self.node(Ops.ADD, vec, (out, term))
    return self.as_vector(out, step, lanes), 0

  def as_vector(self, base: UOp, step: int, lanes: int) -> UOp:
    """The vector base, base + step, base + 2·step, …"""
    out = self.broadcast(base, lanes)
    if step == 0:
      return out
    steps = self.node(Ops.VECTORIZE, out.dtype, tuple(index(i * step) for i in range(lanes)))
    return self.node(Ops.ADD, out.dtype, (out, steps))

  def lanes_of(self, u: UOp) -> int:
    """The number of lanes of a value that depends on a VECTOR range; else 1."""
    deps = self.deps(u)
    return next((extent(r) for r in self.vectors if self.bit(r) & deps), 1)

  def integer(self, u: UOp, env: Env) -> UOp:
    base, step = self.parts(self.resolve(self.form(u), env), env)
    return self.as_vector(base, step, self.lanes_of(u)) if step else base

  def atom(self, u: UOp, env: Env) -> UOp:
    """An integer expression that is no sum: a loop's counter, a variable, a division, a number that is converted."""
    if u.op is Ops.RANGE and u.vmax == 0:  # nobody opens it
      return index(0)
    if u.op is Ops.RANGE:
      assert u in self.home and self.home[u].open, f"range {u.arg} is used outside of its loop"
      return u
    return self.apply(u, [self.emit(s, env) for s in u.src])

  def compare(self, u: UOp, env: Env) -> UOp:
    """A comparison of indices, decided by bounds where possible."""
    difference = self.form(u.src[0]).plus(self.form(u.src[1]), -1)
    difference = self.resolve(difference, env)
    lo, hi = difference.bounds()
    yes, no = (hi < 0, lo >= 0) if u.op is Ops.CMPLT else (lo == hi == 0, lo > 0 or hi < 0)
    if yes or no:
      return UOp.const(dtypes.bool, no if u.op is Ops.CMPNE else yes)
    base, step = self.parts(difference.scaled(-1), env) if self.lanes_of(u) > 1 else (u, 0)
    short = max(-lo, hi, hi - lo) <= dtypes.max(dtypes.int32)
    if step and short and base.dtype.count == 1:  # in fewer registers than indices
      limit = UOp.const(dtypes.int32, base.arg) if base.op is Ops.CONST else self.node(Ops.CAST, dtypes.int32, (base,))
      numbers = tuple(UOp.const(dtypes.int32, -i * step) for i in range(self.lanes_of(u)))
      return self.apply(u, [self.node(Ops.VECTORIZE, dtypes.int32.vec(len(numbers)), numbers), limit])
    return self.apply(u, [self.emit(s, env) for s in u.src])

  def address(self, access: UOp, env: Env) -> tuple[UOp, UOp, int, UOp | None, bool]:
    """(memory, offset on lane 0 or vector of offsets, step per lane, mask, whether it is sure to be in bounds) of an
    INDEX."""
    param, offset = access.src[0], access.src[1]
    if param.op is Ops.AFTER:
      self.fill(param)
      param = param.src[0]
    size = param.arg.size if param.op is Ops.PARAM else param.src[0].arg.size if param.op is Ops.PEER else 1 << 62
    a = self.resolve(self.form(offset), env)
    lo, hi = a.bounds()
    mask = self.value(access.src[2], env) if len(access.src) > 2 else None
    if mask is not None and mask.op is Ops.CONST and mask.arg:
      mask = None
    base, step = self.parts(a, env)
    safe = mask is not None or (lo >= 0 and hi < size)
    if param.op is Ops.PEER:
      number = self.emit(param.src[1], env)
      safe &= number.op is Ops.CONST  # there may be no such device where a loop around it has no iteration
      table = self.node(Ops.PARAM, param.src[0].dtype, (), param.src[0].arg)
      memory = self.node(Ops.PEER, param.dtype.vec(number.dtype.count), (table, number))
    else:
      memory = self.node(param.op, param.dtype, (), param.arg)
    return memory, base, step, mask, safe

  def place(self, dtype: DType, lanes: int, memory: UOp, base: UOp, step: int, mask: UOp | None) -> UOp:
    """The INDEX of `lanes` elements."""
    if lanes > 1 and (step != 1 or memory.dtype.count > 1):
      base = self.as_vector(base, step, lanes)
    src = (memory, base) if mask is None else (memory, base, self.broadcast(mask, lanes))
    return self.node(Ops.INDEX, dtype.vec(lanes), src)

  def load(self, u: UOp, env: Env) -> UOp:
    if u.dtype is not u.src[0].src[0].dtype:
      return self.load_words(u, env)
    together, nth = self.vector_of(u.src[0], env, u.src[1:])
    memory, base, step, mask, safe = self.address(u.src[0], together[0])
    if mask is not None and mask.op is Ops.CONST:  # never
      return self.emit(u.src[1], env) if len(u.src) > 1 else UOp.const(u.dtype, 0)
    counts = [v.dtype.count for v in (memory, base, mask) if v is not None]
    lanes = max(*counts, 1 if step == 0 else self.lanes_of(u.src[0].src[1]))
    other = self.emit(u.src[1], together[0]) if len(u.src) > 1 and mask is not None else None
    # memory that is filled anew in every iteration of outer loops: reads of it stay where they are
    here = self.stack[-1] if not safe or memory.op is Ops.SCRATCH or memory in self.written else None

    def read(base: UOp, step: int, count: int = lanes) -> UOp:
      where = self.place(u.dtype, count, memory, base, step, mask)
      src = (where,) if other is None else (where, self.broadcast(other, count))
      return self.node(Ops.LOAD, where.dtype, src, None, here)

    if (n := len(together)) > 1:
      return self.node(Ops.EXTRACT, u.dtype, (read(base, 1, n),), (nth,))
    if step == 0 and mask is not None and max(counts[:2]) == 1 < lanes:  # what any of them reads is what all share
      some = self.place(u.dtype, 1, memory, base, 0, self.node(Ops.FOLD, dtypes.bool, (mask,), Ops.OR))
      values = self.node(Ops.LOAD, u.dtype, (some,), None, here), UOp.const(u.dtype, 0) if other is None else other
      return self.node(Ops.WHERE, u.dtype.vec(lanes), (mask, *(self.broadcast(x, lanes) for x in values)))
    shuffled = lanes >= MIN_SHUFFLED and max(counts[:2]) == 1
    if shuffled and step == -1 and mask is not None and mask.dtype.count == lanes:  # from its end, too
      mask, other, counts = backwards(self, mask), other if other is None else backwards(self, other), counts[:2]
    if shuffled and max(counts) == 1 and (step == -1 or 1 < step <= MAX_SHUFFLED):
      return strided(self, lambda shift: read(self.moved(base, shift), 1), step, lanes)
    copies = self.transposable(u.src[0], lanes, step) if max(counts) == 1 and mask is None and safe else None
    if copies is None:
      return read(base, step)
    base, n = self.moved(base, -env[copies]), extent(copies)
    rows = [read(self.moved(base, lane * step), 1, n) for lane in range(lanes)]
    for i, x in enumerate(columns(self, rows, n)):
      self.memo[self.key_of(u, {**env, copies: i})] = x, self.home[x]
    return self.memo[self.key_of(u, env)][0]

  def load_words(self, u: UOp, env: Env) -> UOp:
    """Neighbours in memory as one number, where lanes are neighbours too, or share it; else put together."""
    memory, base, step, _, _ = self.address(u.src[0], env)
    kind, n = memory.dtype.scalar(), u.dtype.itemsize // memory.dtype.itemsize
    if base.dtype.count > 1 or step not in (0, n) or memory.dtype.count > 1 or len(u.src[0].src) > 2:
      return self.value(put_together(u), env)
    lanes, here = self.lanes_of(u.src[0].src[1]) if step else 1, self.stack[-1] if memory in self.written else None
    where = self.place(kind, n * lanes, memory, base, 1, None)
    return self.node(Ops.BITCAST, u.dtype.vec(lanes), (self.node(Ops.LOAD, where.dtype, (where,), None, here),))

  def transposable(self, access: UOp, lanes: int, step: int) -> UOp | None:
    """The range of several copies, at most as many as lanes, along which memory is contiguous where the lanes are not.
    No copy may have a condition, or memory, of its own."""
    terms, pointer = self.form(access.src[1]).terms, self.deps(access.src[0])
    alike = self.ups(self.deps(access.src[1]) & ~pointer)
    found = (r for r in alike if terms.get(r) == 1 and 1 < r.src[0].arg <= min(lanes, abs(step)))
    return next(found, None) if lanes > 1 and len(access.src) == 2 else None

  def moved(self, offset: UOp, by: int) -> UOp:
    """An emitted offset, so many elements further."""
    return self.parts(self.form(offset).plus(Affine(by)), {})[0]

  def store(self, u: UOp, env: Env) -> None:
    together, nth = self.vector_of(u.src[0], env)
    if nth + 1 < len(together):  # a vector is stored with its last element
      return
    values = tuple([self.value(u.src[1], e) for e in together])
    memory, base, step, mask, _ = self.address(u.src[0], together[0])
    if mask is not None and mask.op is Ops.CONST:
      return
    counts = [v.dtype.count for v in (*values, memory, base, mask) if v is not None]
    lanes = len(values) if len(values) > 1 else max(*counts, 1 if step == 0 else self.lanes_of(u.src[0].src[1]))
    if step == -1 and lanes >= MIN_SHUFFLED and base.dtype.count == memory.dtype.count == 1:  # from its end
      values, mask = tuple([backwards(self, x) for x in values]), mask if mask is None else backwards(self, mask)
      base, step = self.moved(base, 1 - lanes), 1
    whole = mask is None and base.dtype.count == memory.dtype.count == 1
    if (copies := self.transposable(u.src[0], lanes, step) if whole else None) is None:
      where = self.place(values[0].dtype.scalar(), lanes, memory, base, step if len(values) == 1 else 1, mask)
      value = self.broadcast(*values, lanes) if len(values) == 1 else self.node(Ops.VECTORIZE, where.dtype, values)
      self.write(where, value)
    elif env[copies] == 0:
      self.store_transposed(u, env, copies, memory, base, step, lanes)

  def store_transposed(self, u: UOp, env: Env, copies: UOp, memory: UOp, base: UOp, step: int, lanes: int) -> None:
    """The store of all `copies`, which are neighbours in memory: a row of them for each lane."""
    n = extent(copies)
    side = 1 << (n - 1).bit_length()
    rows = [self.broadcast(self.value(u.src[1], {**env, copies: min(i, n - 1)}), lanes) for i in range(side)]
    for i, x in enumerate(transposed(self, rows)):
      for first in range(0, lanes, side):
        row = self.node(Ops.EXTRACT, x.dtype.scalar().vec(n), (x, x), tuple(range(first, first + n)))
        where = self.place(x.dtype.scalar(), n, memory, self.moved(base, (first + i) * step), 1, None)
        self.write(where, row)

  # ---- vectors of neighbours in memory

  def vector_of(self, where: UOp, env: Env, other: Sequence[UOp] = ()) -> tuple[list[Env], int]:
    """(the environments of the elements of an aligned vector that may be accessed at once, under one condition for all
    of it, in the order of memory; which of them this is)"""
    form = self.form(where.src[1])
    for lane in self.ups(self.deps(where.src[1])) if self.scalars and not is_own(where.src[0]) else ():
      count, bit = extent(lane), self.bits[lane]
      n = min(count, VECTOR // where.dtype.itemsize)
      apart = any(self.deps(x) & bit for x in (where.src[0], *where.src[2:], *other))
      if lane not in env or n < 2 or count % n or apart:
        continue
      step = form.terms.get(lane, 0)
      if abs(step) != 1 or any(x is not lane and self.deps(x) & bit for x in form.terms):
        continue
      rest = self.resolve(Affine(form.const, {x: c for x, c in form.terms.items() if x is not lane}), env)
      order = range(n)[::step]
      if (rest.const + step * order[0]) % n == 0 and all(c % n == 0 for c in rest.terms.values()):
        first, nth = divmod(env[lane], n)
        return [{**env, lane: first * n + i} for i in order], order.index(nth)
    return [env], 0

  # ---- scopes

  @contextlib.contextmanager
  def loop(self, count: UOp, kind: AxisKind, bit: int = 0) -> Iterator[UOp]:
    """Opens a loop and gives its counter; nothing is opened where there is one iteration."""
    end = self.emit(count, {})
    if end.op is Ops.CONST and end.arg == 1:
      yield index(0)
      return
    counter = self.ids.loop(end, kind)
    scope = LoopScope(self.stack[-1].depth + 1, bit, [counter])
    self.home[counter] = scope
    self.stack.append(scope)
    around, self.least = self.least, scope if end.vmax == 1 else self.least
    yield counter
    self.least = around
    self.stack.pop()
    scope.open, scope.done = False, True
    self.stack[-1].out.extend([*scope.out, UOp.new(Ops.ENDRANGE, dtypes.void, (counter,))])

  @contextlib.contextmanager
  def iterations(self, r: UOp) -> Iterator[UOp]:
    """Opens a loop of the kernel."""
    with self.loop(r.src[0], r.arg[1], self.bit(r)) as counter:
      self.iteration[r] = self.form(counter)
      yield counter
      del self.iteration[r]

  def level_of(self, deps: int) -> int:
    """The depth of the outermost scope in which what depends on these loops is known."""
    return next((i for i in reversed(range(len(self.stack))) if self.stack[i].bit & deps), 0)

  @contextlib.contextmanager
  def outside(self, level: int) -> Iterator[None]:
    """Emits into the open scope of this depth, as if those inside of it were not yet open."""
    inner, self.stack = self.stack[level + 1 :], self.stack[: level + 1]
    for s in inner:
      s.open = False
    yield
    for s in inner:
      s.open = True
    self.stack += inner


def _fold_bool(op: Ops, src: list[UOp]) -> UOp | None:
  """and, or, not of constants."""
  if op is Ops.NOT and src[0].op is Ops.CONST:
    return UOp.const(dtypes.bool, not src[0].arg)
  if (op := OF_BOOLS.get(op, op)) is Ops.AND or op is Ops.OR:
    for x, y in (src, src[::-1]):
      if x.op is Ops.CONST:
        return (y if x.arg else x) if op is Ops.AND else (x if x.arg else y)
  return None
