"""Which values of the local graph get a buffer.

One walk from the roots down. Every value carries its *uses*: in which kernel, through which chain of movements, and
how: several times an element (MANY: through an EXPAND), inside a reduction's loop (INNER), under a condition (GATED).
A value with one plain use is fused. Otherwise it is stored, unless computing it anew reads no more bytes than reading
it back, and costs little else. A reduction is never computed twice, nor is a value that is compared with what is chosen
from it (its maximum): two kernels may round it differently."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tinygrad.device import Target, device_set
from tinygrad.dtype import DType
from tinygrad.helpers import prod
from tinygrad.numerics.dots import adds_few_words
from tinygrad.numerics.products import grows, is_product
from tinygrad.ops import Trait, having
from tinygrad.schedule.homes import CONTENT, IN_MEMORY, LEAVES, MEMORY, TRANSPARENT, elements, nbytes, peel
from tinygrad.uop import CARDS, GroupOp, Ops, UOp, upper
from tinygrad.uop.selection import compared

MANY, INNER, GATED = 1, 2, 4
REDUCES = having(Trait.REDUCES)
CONVERTS = having(Trait.CONVERTS)
GATED_OPS = having(Trait.GATED)
MOVES = having(Trait.VIEW) | GATED_OPS
ORDERING = having(Trait.VIEW, Trait.ONTO)
REORDERING = having(Trait.VIEW, Trait.ONTO, Trait.ONE_TO_ONE)
INSTRUCTIONS_A_BYTE = 8  # that a vector processor runs while a byte comes from memory
CHEAP_OPS = 4  # operations an element that may be repeated wherever it is read
CHEAP_MASK_OPS = 24  # the same for what reads no memory at all
MANY_READS = 12  # with more distinct inputs a value is stored rather than counted
MANY_WAYS = 32  # in which one kernel may read a value: its expression holds it, and what is below it, as often
DEEP = 4096  # instructions in a row that no memory parts: compilers take longer than in proportion over more
GATED_READS = 64  # reads of an element, each under a condition, for which the padded value is stored

Nodes = Collection[UOp]
Use = tuple[UOp, int, int]  # kernel, chain of movements (interned), flags


class Cost(NamedTuple):
  """What computing a value takes: the buffers it reads, operations an element, what the slow ones among them add, and
  whether it holds a reduction, a lookup, or a value whose bits are `compared`."""

  reads: frozenset[UOp] = frozenset()
  ops: int = 0
  slow: int = 0
  reduces: bool = False
  gathers: bool = False
  compared: bool = False


NOTHING = Cost()


def steps(u: UOp) -> int:
  """Of a reduction; of a SCATTER as if each row looked at every update."""
  return elements(u.src[0]) if u.op is Ops.REDUCE else elements(u.src[1]) * upper(u.arg[1])


def beneath(u: UOp, ops: Collection[Ops]) -> UOp:
  """What lies below these."""
  return next(v for v in u.down() if v.op not in ops)


def narrowest(u: UOp) -> UOp:
  """What to store for `u` to be read back: what was converted to a type of more bytes is converted again."""
  narrow = beneath(u.src[0], REORDERING) if u.op is Ops.CAST else u
  return u if narrow.op in MOVES or narrow.dtype.itemsize >= u.dtype.itemsize else narrowest(narrow)


def is_second(u: UOp, uses: Collection[Use], first: dict[UOp, UOp]) -> bool:
  """Whether the one kernel that uses a sum of products, or a SCATTER, or what these are converted to, computes another
  one already, the `first` of it: a target's registers and caches are laid out for one. Two SCATTERs add in one way."""
  summed = beneath(u, CONVERTS)
  if len(uses) != 1 or not (summed.op is Ops.SCATTER or (summed.op is Ops.REDUCE and is_product(summed.src[0]))):
    return False
  found = first.setdefault(next(iter(uses))[0], summed)
  return found is not summed and (found.op is Ops.REDUCE or summed.op is Ops.REDUCE)


def adds_many(u: UOp, target: Target) -> bool:
  """Whether a SCATTER adds more than a few updates up in more than a few rows: not one to each, as of a loss."""
  _, rows, batch = u.arg
  return min(upper(rows), prod(u.src[0].max_shape[batch:])) > target.few_rows


def deep(nodes: Sequence[UOp]) -> set[UOp]:
  """Where long computations are cut: elementwise values whose longest way from memory, or from a cut, is over DEEP."""
  ways, cut = dict[UOp, int](), set[UOp]()
  for u in nodes:
    way = max((ways[s] for s in computed_from(u)), default=0) + CARDS[u.op].cost
    if way > DEEP and u.op in GroupOp.Elementwise:
      cut.add(u)
    ways[u] = 0 if u.op in IN_MEMORY or u.op is Ops.CONTIGUOUS or u.op in CONTENT or u in cut else way
  return cut


def joins_its_reader(u: UOp, uses: set[Use]) -> bool:
  """A communication that one kernel reads, each element once: that kernel may load from the peers itself."""
  if u.op is not Ops.COLLECTIVE or u.arg.template.op is not Ops.HOLE or {flags for _, _, flags in uses} != {0}:
    return False
  return len(uses) == 1 and device_set(u.arg.placements[0]) == device_set(u.arg.result)


def costs(nodes: Sequence[UOp], stored: Nodes, readers: Mapping[UOp, int], bits: Nodes) -> dict[UOp, Cost]:
  """The cost of computing each value, given that those of `stored` below it are read back; `bits`: what is compared."""
  made: dict[UOp, Cost] = {}  # of computing the value
  read: dict[UOp, Cost] = {}  # of what reads it: a load if it is stored
  for u in nodes:
    if u.op is Ops.ASSIGN or u.op is Ops.SINK:
      continue
    parts = [read[s] for s in computed_from(u) if s in read]
    if u.op is Ops.CONST or (u.op in GroupOp.Elementwise and all(p is NOTHING for p in parts)):
      made[u] = NOTHING  # folded before it runs
    elif u.op in CONTENT or u.op in IN_MEMORY:
      made[u] = load(u)
    elif len(parts) == 1 and (u.op in MOVES or u.op in CONVERTS or u.op is Ops.CONTIGUOUS):
      x = u.src[0]  # an expensive value is stored below an EXPAND, so above it only the load counts
      made[u] = load(narrowest(x)) if grows(u) and not cheap(x, parts[0]) else parts[0]
      if u.op in GATED_OPS and parts[0] is not NOTHING:
        made[u] = made[u]._replace(ops=made[u].ops + 1)  # a select
    else:
      adds_words = adds_few_words(u)
      made[u] = Cost(
        frozenset().union(*(p.reads for p in parts)),
        sum(p.ops for p in parts) + (u.op in GroupOp.Elementwise and u.op not in CONVERTS) + 3 * adds_words,
        sum(p.slow for p in parts) + CARDS[u.op].cost // INSTRUCTIONS_A_BYTE,
        (u.op in REDUCES and not adds_words) or any(p.reduces for p in parts),
        u.op is Ops.GATHER or any(p.gathers for p in parts),
        any(p.compared for p in parts),
      )
    if u in bits:
      made[u] = made[u]._replace(compared=True)
    shared = (made[u].reduces or u in bits) and readers.get(u, 0) > 1  # most likely stored for its several consumers
    read[u] = load(u if u in stored else narrowest(u)) if shared or u in stored else made[u]
  return made


def load(u: UOp) -> Cost:
  return Cost(frozenset((u,)))


def read_bytes(u: UOp, cost: Cost) -> int:
  """Bytes that computing `u` once reads."""
  return sum(min(elements(x), elements(u)) * x.dtype.itemsize for x in cost.reads)


def cheap(u: UOp, cost: Cost) -> bool:
  """May be computed wherever it is read: loads, movement, casts and little arithmetic that read no more than the
  stored value would."""
  if cost.reduces or cost.gathers or cost.slow or cost.compared:
    return False
  if not cost.reads:
    return cost.ops <= CHEAP_MASK_OPS
  return cost.ops <= CHEAP_OPS and len(cost.reads) <= MANY_READS and read_bytes(u, cost) <= nbytes(u)


def recompute(u: UOp, cost: Cost, uses: int) -> bool:
  """`uses` times computing `u` against computing it once, a store and `uses` loads, in bytes (an operation counts a
  quarter of a byte)."""
  if cost.reduces or cost.compared or len(cost.reads) > MANY_READS:
    return False
  again = uses * read_bytes(u, cost) + (uses - 1) * elements(u) * (cost.ops // 4 + cost.slow)
  return again <= read_bytes(u, cost) + (2 + uses) * nbytes(u)


def choose(sink: UOp, target: Target, rows: bool = False) -> list[UOp]:
  """The values under `sink` that get a buffer, sources first. Kernels begin at them and at the ASSIGNs. What the
  target's cores multiply lies in memory; so does, unless kernels of loops share `rows`, what is added up in many."""
  nodes = sink.toposort()
  apart = {u for u in nodes if u.op is Ops.SCATTER and adds_many(u, target) and (target.threads or not rows)}
  apart |= deep(nodes)
  narrow = {core.operand for core in target.cores if core.operand.itemsize < core.result.itemsize}
  bits = compared(nodes)
  if (stored := _walk(nodes, apart, bits, apart, narrow)) != apart:
    stored = _walk(nodes, stored, bits, apart, narrow)  # it knows what the first one stored
  return [u for u in nodes if u in stored]


def computed_from(u: UOp) -> Sequence[UOp]:
  """Its sources, but for what it only waits for."""
  return u.src[:1] if u.op is Ops.WAIT else u.src


def _walk(nodes: Sequence[UOp], before: Nodes, bits: Nodes, apart: Nodes, narrow: Collection[DType]) -> set[UOp]:
  readers = Counter(s for u in nodes for s in computed_from(u))
  cost = costs(nodes, before, readers, bits)
  uses = defaultdict[UOp, set[Use]](set)
  chains: dict[tuple[object, ...], int] = {}
  loops = [0]  # by chain: iterations of the last reduction that it goes through
  stored, first = set(apart), dict[UOp, UOp]()

  for u in reversed(nodes):
    op = u.op
    if op is Ops.SINK or op in LEAVES:  # of an AFTER the effects are kernels of their own
      continue
    if op is Ops.ASSIGN:
      uses[u.src[1]].add((u, 0, 0))
      continue
    if op in IN_MEMORY or op is Ops.CONTIGUOUS:  # unless it `joins_its_reader`
      if not joins_its_reader(u, uses[u]):
        stored.add(u)
      if op is Ops.CONTIGUOUS:
        uses[u.src[0]].add((u, 0, 0))
      else:
        stored |= {beneath(s, (Ops.WAIT,)) for s in u.src if peel(beneath(s, TRANSPARENT)).op not in MEMORY}
      continue
    here = uses[u]
    may_store = u not in stored and op not in MOVES
    if may_store and (is_second(u, here, first) or _wants_buffer(u, here, cost, readers, narrow)):
      stored.add(kept := narrowest(u))
      if kept is not u:
        continue
    if op is Ops.SHRINK and any(f & MANY for _, _, f in here) and readers[u.src[0]] == 1 and not cheap(u, cost[u]):
      stored.add(u)  # only this part of the source is needed: store just that
    many = len(here) > MANY_WAYS < max(Counter(kernel for kernel, _, _ in here).values())  # ways to use it, in a kernel
    crowded = many and (op not in MOVES or op in GATED_OPS)
    if crowded or (op is Ops.PAD and any(loops[chain] >= GATED_READS * elements(u) for _, chain, _ in here)):
      stored.add(u)
    if u in stored:
      here = {(u, 0, 0)}
    elif op not in MOVES and any(f & MANY for _, _, f in here):
      # cheap as a whole: what is below it is computed with it, down to what it was counted to read from memory
      stored.update(x for y in cost[u].reads if (x := beneath(y, ORDERING)).op not in LEAVES)
      continue
    for n, s in enumerate(computed_from(u)):
      uses[s] |= _below(u, n, here, chains, loops)
  return stored


def serves_only(u: UOp, inputs: Nodes, readers: Mapping[UOp, int]) -> list[UOp]:
  """Those of `inputs`, which `u` is computed from, that nothing else reads, neither they nor a value in between."""
  inside: dict[UOp, int] = {u: readers.get(u, 0)}  # how many readers each value has below u
  for x in reversed(u.toposort(lambda x: x not in inputs)):
    for s in x.src if x is u or inside.get(x) == readers.get(x) else ():
      inside[s] = inside.get(s, 0) + 1
  return [x for x in inputs if inside.get(x) == readers.get(x)]


def _wants_buffer(
  u: UOp, uses: set[Use], cost: Mapping[UOp, Cost], readers: Mapping[UOp, int], narrow: Collection[DType]
) -> bool:
  c, kept = cost[u], narrowest(u)
  if c.ops and kept is not u and kept.dtype in narrow and any(f & MANY and f & INNER for _, _, f in uses):
    return True
  if c.reduces:
    return len(uses) > 1 or any(f for _, _, f in uses)
  if any(f & MANY for _, _, f in uses):
    # better the result of what follows a reduction than the reduction, which would be stored for this value alone
    return not cheap(u, c) or any(x in cost and cost[x].reduces for x in serves_only(u, c.reads, readers))
  return len(uses) > 1 and not cheap(u, c) and not recompute(u, c, len(uses))


def _below(u: UOp, n: int, uses: set[Use], chains: dict[tuple[object, ...], int], loops: list[int]) -> set[Use]:
  """The uses of source n of `u`, for the uses of `u`. Reductions of one kernel that stand alike go through one loop."""
  op, flag = u.op, 0
  if op is Ops.REDUCE:
    flag = INNER
  elif op is Ops.SCATTER:  # each row may look at every update
    flag = MANY | INNER
  elif op is Ops.GATHER:
    flag = 0 if n == 1 and elements(u) == elements(u.src[1]) else MANY | GATED
  elif op not in MOVES:
    return uses
  elif grows(u):
    flag = MANY
  elif op in GATED_OPS:
    flag = GATED
  out: set[Use] = set()
  for kernel, chain, f in uses:
    inner = steps(u) if op in REDUCES else loops[chain]
    number = chains.setdefault((chain, op, u.arg, n, inner), len(loops))
    if number == len(loops):
      loops.append(inner)
    out.add((kernel, number, f | flag))
  return out
