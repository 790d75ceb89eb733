"""Kernels of several stores that share rows, on a grid: a group of threads has a few rows, and shares out each store in
turn: rows among `threads`; what is within a row, columns or the steps of a reduction, among `lanes`. Memory that is a
row's own (a PARAM whose slot is below 0) is the group's local memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tinygrad.codegen.analysis.accesses import rereads
from tinygrad.codegen.heuristics.cores import on_core
from tinygrad.codegen.primitives.bind import bind
from tinygrad.codegen.primitives.rebind import Rebinding, Version
from tinygrad.codegen.primitives.split import at, split_loop
from tinygrad.codegen.primitives.stage import LINE, scratch
from tinygrad.codegen.row_blocks import Ranges, bytes_of_row, indices, is_given, shared_reads
from tinygrad.device import Target
from tinygrad.device.cores import HIDDEN, REGISTERS, Core
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, ceildiv, power_of_two, round_up
from tinygrad.numerics.idle_blocks import RowBlock, blocks_of_rows, edges_apart
from tinygrad.numerics.own_memory import WORD, is_own, with_accesses
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import affine, index
from tinygrad.uop.indexing import gated
from tinygrad.uop.loops import LoopIds, extent, iterations, reductions, shared_rows

PAD = 16  # bytes
LANE = 32  # bytes that each stores of a row, at least, where there are lanes enough
SQUARE, MOST_COPIES = 16, 4  # threads, and rows of each
WARP = 32  # threads
BESIDE, THREAD = 24, 255  # registers of a thread beside what it holds of rows, and at most
Grid = dict[str, UOp]  # the numbers of groups, threads and lanes


class Team(NamedTuple):
  """Of a group: `threads`, `lanes` of each, `rows`, and where their memory begins: beyond all, if it is registers."""

  rows: int = 1
  threads: int = 1
  lanes: int = 1
  memory: int = 0


def have_nests(stores: Sequence[UOp]) -> bool:
  """Whether stores have loops of their own, or memory of a row between them; else they are one nest."""
  loops = {tuple(r for r in s.src[2:] if r.arg[1] is AxisKind.LOOP) for s in stores}
  return len(loops) > 1 or not all(s.src[0].src[0].arg.given for s in stores)


def in_groups(
  stores: Sequence[UOp], limits: Sequence[UOp], target: Target, ids: LoopIds, held: bool
) -> tuple[UOp, Grid, UOp | None]:
  """The kernel of a group, its grid, and the loop over the rows that it has, if there are several."""
  rows = shared_rows(stores)
  team = team_for(stores, rows, target, held)
  (block,), parts = split_loop(rows[-1], team.rows, None, ids, "clamp")
  outer, row = parts["o"], parts["i"]
  # what is beyond the last row has memory of its own to write to, as it is read; but no other
  shorter = {rows[-1]: [replace(block, guard=None)]}
  here = RowBlock(rows[-1], at(index(0), (outer, team.rows)), team.rows)
  if team.memory:
    stores = [*edges_apart(stores, limits, here, ids)]
  for r, begin, count in blocks_of_rows(limits, here):
    shorter[r] = [Version(at(begin, (new := ids.loop(count, r.arg[1]), 1)), (new,))]
  stores = Rebinding(UOp.sink(*in_local_memory(stores, row, team, ids)), shorter).kernel.src
  if (exists := block.guard) is not None:
    places = [gated(s.src[0], exists) if is_given(s.src[0].src[0]) else s.src[0] for s in stores]
    stores = tuple(s.replace(src=(where, *s.src[1:])) for s, where in zip(stores, places))
  grid = Grid()
  if blocks := tuple(r for r in (*rows[:-1], outer) if r is not None):
    grid["groups"] = ids.loop(index(iterations(blocks)), AxisKind.GLOBAL)
  for name, n in (("lanes", team.lanes), ("threads", team.threads)):
    if n > 1:
      grid[name] = ids.loop(index(n), AxisKind.LOCAL)
  return Rebinding(UOp.sink(*stores), bind(blocks, grid["groups"]) if blocks else {}).kernel, grid, row


def team_for(stores: Sequence[UOp], rows: Ranges, target: Target, held: bool) -> Team:
  """The team of a group: lanes as a row has work for, and rows as there are then threads for."""
  if NOOPT:
    return Team()
  most = power_of_two(min(extent(rows[-1]), max(iterations(rows) * target.group // target.busy, 1)))
  if common := in_common([(s,) for s in stores]):
    return team_of_blocks(stores, rows, common, target, held, most)
  own = [[r for r in s.src[2:] if r not in rows] for s in stores]
  if any(r.arg[1] is AxisKind.REDUCE for loops in own for r in loops):  # steps, each of what is stored side by side
    kept = [loops for s, loops in zip(stores, own) if s.src[0].src[0].arg.given]
    width = max(iterations(r for r in loops if r.arg[1] is AxisKind.LOOP) for loops in kept)
    return Team(1, 1, min(max(power_of_two(width // MOST_COPIES), 2 * SQUARE), target.group))
  steps = max(map(iterations, (*own, *(f.src[1:] for f in reductions(stores)))))
  nbytes = max(iterations(loops) * s.src[0].dtype.itemsize * is_given(s.src[0].src[0]) for s, loops in zip(stores, own))
  # they tell one another what they have, so there are no more than store enough each, or make all threads run at once
  enough = max(power_of_two(nbytes // LANE), power_of_two(target.busy // iterations(rows)), SQUARE)
  lanes = min(power_of_two(steps // 2), enough, target.group)
  return Team(threads := min(target.group // lanes, most), threads, lanes)


def team_of_blocks(
  stores: Sequence[UOp], rows: Ranges, common: set[UOp], target: Target, held: bool, most: int
) -> Team:
  """Where elements come block by block, in the loops `common`: a square of threads with a few rows each, as far as
  local memory goes. Where cores multiply, warps with rows as their lanes hold what a core gives; and where these are
  `held` in registers, two such teams side by side, which read one copy, if as many teams run at once so."""
  fit = min(power_of_two(extent(rows[-1])), SQUARE * MOST_COPIES)
  cores = (c for f in reductions(stores) for c, _, _ in on_core(f, target) if not c.late)
  core = next((c for c in cores if extent(rows[-1]) >= c.m), None)
  if core is None or not held:
    memory = sum(p.arg.size * p.dtype.itemsize for p in {s.src[0].src[0] for s in stores} if not p.arg.given)
    fit = min(power_of_two(target.scratch // 2 // memory), fit)
  if core is None:
    # what they read may be the same for all rows of a group
    shared = any(rows[-1] in x for s in stores for x in shared_reads(s, rows))
    many = team_rows(iterations(rows), fit, target) if shared else min(most, fit)
    return Team(many, min(many, SQUARE), SQUARE)
  many = max(fit, core.m)  # fewer would only have what a group copies copied for each
  if held and 2 * many <= most and are_pairs(stores, rows, common, core, many, target):
    many *= 2
  (down, _, _), (across, _, _) = core.d.lanes
  return Team(many, many // core.m * down, across, target.scratch * held)


def team_rows(rows: int, most: int, target: Target) -> int:
  """How many rows a square of threads has, with which the multiprocessor that has the most groups is done first: more
  of them read less often what all rows need, fewer leave more groups, whose warps hide each other's latency."""

  def cycles(mine: int) -> float:
    groups, threads = ceildiv(rows, mine), SQUARE * min(mine, SQUARE)
    waits = max(HIDDEN * WARP * target.units / (groups * threads), 1)
    reads = SQUARE / max(mine, SQUARE) + 1 / MOST_COPIES  # for each product
    return float(ceildiv(groups, target.units) * mine * (1 + reads) * waits)

  return min((most >> n for n in range(most.bit_length())), key=cycles)


def are_pairs(stores: Sequence[UOp], rows: Ranges, common: set[UOp], core: Core, many: int, target: Target) -> bool:
  """Whether a multiprocessor has as many teams of `many` rows at once if two are a group: as it has registers for what
  a loop in common touches of rows, and room for two blocks each of what comes with that loop."""
  threads, teams, copies = many // core.m * core.lanes, REGISTERS, REGISTERS
  for r in common:
    accesses = [*indices([s for s in stores if r in s.src[2:]])]
    held = sum(bytes_of_row((u for u in accesses if common.isdisjoint(u.loops)), rows).values())
    blocks = (u for u in accesses if r in u.loops and rows[-1] not in u.loops and is_given(u.src[0]))
    nbytes = sum(2 * iterations(u.loops - {r, *rows}) * u.dtype.itemsize for u in blocks)
    teams = min(teams, REGISTERS // (threads * min(held * core.m // (core.lanes * WORD) + BESIDE, THREAD)))
    copies = min(copies, target.scratch // max(nbytes, 1))
  return 2 * threads <= target.group and 2 * min(teams // 2, copies) >= min(teams, copies)


def in_common(nests: Sequence[Sequence[UOp]], kinds: Container[AxisKind] = (AxisKind.REDUCE,)) -> set[UOp]:
  """The loops that several nests run in; of those that keep their order: what comes block by block."""
  users = Counter(r for nest in nests for r in nest[0].src[2:] if r.arg[1] in kinds)
  return {r for r, n in users.items() if n > 1}


def in_local_memory(stores: Sequence[UOp], row: UOp | None, team: Team, ids: LoopIds) -> list[UOp]:
  """The stores, with memory of rows, of which `row` says which of the group's it is, in local memory."""
  memory, moved, steps, taken = dict[UOp, UOp](), dict[UOp, UOp](), dict[UOp, int](), team.memory
  for u in indices(stores):
    p = u.src[0]
    if p.op is Ops.PARAM and not p.arg.given:
      if p not in memory:
        # rows of vectors are longer by one, so that threads with one row each meet in fewer banks of the memory
        steps[p] = p.arg.size + PAD // p.dtype.itemsize * (p.arg.size * p.dtype.itemsize % LINE == 0)
        nbytes = round_up(team.rows * steps[p] * p.dtype.itemsize, LINE)
        memory[p], taken = scratch(p.dtype, taken, ids, nbytes), taken + nbytes
      at = affine(u.src[1], {})
      at = at if row is None else at.plus(affine(row, {}), steps[p])
      moved[u] = u.replace(src=(memory[p], at.uop(), *u.src[2:]))
  return [with_accesses(s, moved) for s in stores]


def with_barriers(nests: Sequence[Sequence[UOp]], grid: Grid) -> Iterator[UOp]:
  """The stores of nests, and where one touches what threads have written or read in those before it, a barrier; in a
  loop that nests share, also where the next iteration begins, if threads have anything to tell one another."""
  written, touched, around, common = set[UOp](), set[UOp](), Ranges(), in_common(nests)
  below = [UOp.sink(*nest).toposort() for nest in nests]
  meet = not all(map(is_own, rereads([s for nest in nests for s in nest])))
  for nest, some in zip(nests, below):
    here = {u.src[0] for u in some if u.op is Ops.INDEX and not is_own(u.src[0])}
    mine, before = here & {s.src[0].src[0] for s in nest}, around
    around = tuple(r for r in nest[0].src[2:] if r in common)
    if (around != before and meet) or not written.isdisjoint(here) or not touched.isdisjoint(mine):
      yield UOp.new(Ops.BARRIER, dtypes.void, (*grid.values(), *before), "memory")
      written, touched = set(), set()
    written, touched = written | mine, touched | here
    yield from nest
