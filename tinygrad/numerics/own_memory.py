"""Memory of a group in which no thread reads what another has written, as memory of each thread: registers. What lies
in it as lanes hold fragments of a core's result goes on, from register to register, into a product of which the
operand is held alike."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence

from tinygrad.dtype import dtypes
from tinygrad.helpers import round_up
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import extent
from tinygrad.uop.node import HALVES
from tinygrad.uop.rewrite import substitute_free

MOST = 176  # registers of a thread for it
WORD = 4  # bytes
Numbers = dict[UOp, list[int]]  # of something in each thread
KNOWN = {Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.IDIV: operator.floordiv, Ops.MOD: operator.mod}


def is_own(memory: UOp) -> bool:
  """Whether it is a thread's: where a group's would begin, it has how long it is below 0."""
  return memory.op is Ops.SCRATCH and memory.arg[0] < 0


def with_accesses(root: UOp, moved: Mapping[UOp, UOp]) -> UOp:
  """What is computed, with accesses elsewhere: those, too, by which others find their places."""
  while (new := substitute_free(root, moved)) is not root:
    root = new
  return root


def as_own_memory(nests: Sequence[Sequence[UOp]], threads: Sequence[UOp]) -> list[list[UOp]]:
  """Nests of a group of these `threads`, loops of the grid."""
  every = list(itertools.product(*(range(extent(r)) for r in threads)))
  numbers = {r: [x[i] for x in every] for i, r in enumerate(threads)}
  found: dict[UOp, list[UOp]] = {s.src[0].src[0]: [] for nest in nests for s in nest}
  nodes = UOp.sink(*itertools.chain.from_iterable(nests)).toposort()
  for u in nodes:
    if u.op is Ops.INDEX and u.src[0].op is Ops.SCRATCH and u.src[0] in found:
      found[u.src[0]].append(u)
    elif u.op is Ops.LOAD and u.src[1:]:  # where its condition does not hold it is something else
      found.pop(u.src[0].src[0], None)
  moved, room, widened = dict[UOp, UOp](), MOST * WORD, read_as_floats(nodes)
  for memory, places in sorted((x for x in found.items() if x[1]), key=lambda x: int(x[0].arg[2])):
    if (own := own_places(places, numbers, len(every))) is not None:
      nbytes = round_up(own[1] * memory.dtype.itemsize, WORD)
      if nbytes <= room:
        casts = widened.get(memory, ())
        room, kind = room - nbytes, dtypes.float32 if casts else memory.dtype
        nbytes = round_up(own[1] * kind.itemsize, WORD)
        new = memory.replace(dtype=kind, arg=(-nbytes, memory.arg[1], nbytes))
        moved |= {u: u.replace(dtype=kind, src=(new, at)) for u, at in zip(places, own[0])}
        moved |= {u: UOp.new(Ops.LOAD, kind, (moved[u.src[0].src[0]],)) for u in casts}
  return [[as_stored(with_accesses(s, moved)) for s in nest] for nest in nests]


def read_as_floats(nodes: Sequence[UOp]) -> dict[UOp, list[UOp]]:
  """Memory of halves that are widened wherever they are read, and there. One takes a register in either case, so that
  holds what it has been rounded to as float32."""
  read, other = dict[UOp, list[UOp]](), set[UOp]()
  for u in nodes:
    for s in (s for s in u.src if s.op is Ops.LOAD):
      if u.op is Ops.CAST and u.dtype is dtypes.float32 and s.dtype in HALVES:
        read.setdefault(s.src[0].src[0], []).append(u)
      else:
        other.add(s.src[0].src[0])
  return {memory: casts for memory, casts in read.items() if memory not in other}


def as_stored(s: UOp) -> UOp:
  """The store of a value as its memory has it."""
  kind = s.src[0].dtype
  return s if s.src[1].dtype is kind else s.replace(src=(s.src[0], UOp.new(Ops.CAST, kind, s.src[1:2]), *s.src[2:]))


def own_places(places: Sequence[UOp], numbers: Numbers, count: int) -> tuple[list[UOp], int] | None:
  """(Of places in memory the numbers of a thread's registers, how many there are); None where some of the `count`
  threads share one."""
  alone = [UOp.new(Ops.CMPEQ, dtypes.bool, (r, index(0))) for r in numbers]  # one thread writes what all of them know
  starts, rests, known = set[tuple[int, ...]](), list[Affine](), dict(numbers)
  for u in places:
    forms = affine(u.src[1], {}).terms, Affine(affine(u.src[1], {}).const)
    mine = [0] * count
    for atom, c in forms[0].items():
      if atom.op is Ops.RANGE and atom.arg[1] is AxisKind.UPCAST:
        forms = forms[0], forms[1].plus(Affine(0, {atom: c}))
      elif (values := in_threads(atom, known, count)) is None:
        return None
      else:
        mine = [x + c * y for x, y in zip(mine, values)]
    if any(x not in alone for x in u.src[2:]):
      return None
    starts.add(tuple(mine))
    rests.append(forms[1])
  distances = sorted({n for x in rests for n in all_values(x)})
  reached = {start + n for start in set().union(*starts) for n in distances}
  if len(starts) > 1 or len(reached) < len(set(*starts)) * len(distances):
    return None
  rank = {n: i for i, n in enumerate(distances)}
  out = list[UOp]()
  for x in rests:
    first = rank[x.const]
    by = Affine(first, {r: rank[x.const + c] - first for r, c in x.terms.items()})
    if [rank[n] for n in all_values(x)] != all_values(by):
      return None
    out.append(by.uop())
  return out, len(distances)


def all_values(x: Affine) -> list[int]:
  """In all iterations of its loops, the last the fastest."""
  steps = ([c * i for i in range(extent(r))] for r, c in x.terms.items())
  return [x.const + sum(some) for some in itertools.product(*steps)]


def in_threads(u: UOp, known: Numbers, count: int) -> list[int] | None:
  """An index in each thread, if it is one of threads alone."""
  for v in u.toposort(lambda v: v not in known):
    if v.op is Ops.CONST:
      known[v] = [v.arg] * count
    elif v.op not in KNOWN:
      return None
    else:
      known[v] = list(map(KNOWN[v.op], *(known[s] for s in v.src)))
  return known[u]
