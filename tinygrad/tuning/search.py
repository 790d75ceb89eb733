"""`BEAM=n`: the plan of a kernel is searched for on the device, in steps of one change, from the heuristic's.

A change is plain data, by what it is of: `copies0` (of the first parallel range), `vector` (which parallel range gives
the lanes; -1: none), `order` (of the parallel ranges), `accumulators` (of the main reduction), `stage0` (whether its
first operand is staged), `block` (its iterations in a block; 0: no blocks); on a grid `threads0` (of a group, along the
first parallel range), `copies0` (elements of a thread), `lanes` (threads that share a reduction), `staged` (whether
groups copy operands). All else follows as by the heuristic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tinygrad.codegen import lower_kernel, signature
from tinygrad.codegen.analysis.accesses import lanes_for, operands_of
from tinygrad.codegen.heuristics.cores import plan_product
from tinygrad.codegen.heuristics.cpu import Stages, Tile, carry_out, complete, plan_nest, sums_fit
from tinygrad.codegen.heuristics.gpu import (
  PLAIN,
  Primitives,
  Stagings,
  grid_of,
  plan_grid,
  schedule_gpu,
  staged,
)
from tinygrad.codegen.nests import NestSchedule
from tinygrad.codegen.primitives import IllegalStep
from tinygrad.device import Backend, Buffer, Device, Rendered, Target
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import BEAM, BEAM_SECONDS, NOOPT, Context, ceildiv, json, numpy, processor_model, prod, tqdm
from tinygrad.runtime import diskcache
from tinygrad.uop import DEVICE_NUM, Ops, UOp, print_graph
from tinygrad.uop.loops import extent

COPIES = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST_BLOCK = 16  # iterations
GAIN = 0.98  # of the time: what takes more has not proved faster
RUNS = 6  # hand-overs of a candidate
LEAST, MOST = 0.03, 0.5  # seconds of them: time for the threads to find their cores, and what may be too many
LASTS = 2e-4  # seconds of a hand-over, at least
SLOW = 3  # times the best: such a candidate is not timed on
PATTERN = 65521  # random numbers that fill a buffer, over and over
clock = time.perf_counter

Changes = dict[str, Any]
Cost = Callable[["Planner"], float]  # lowers a kernel with a planner, and gives its seconds


def next_copies(now: int, most: float) -> list[int]:
  """The numbers of copies beside this one, up to `most`."""
  return [c for c in [c for c in COPIES if c < now][-1:] + [c for c in COPIES if c > now][:1] if c <= most]


class Nest:
  """A nest that is planned: by the heuristic, and with changes. `sizes`, those of its parallel ranges and of how
  many its main reduction is, tells it from others; where that runs in blocks, a block has the sizes of the whole."""

  def __init__(self, nest: NestSchedule) -> None:
    self.nest, self.target, self.plan = nest, nest.room.target, plan_nest(nest)
    self.stages, self.operands, self.may_block = Stages(nest), list[UOp](), False
    self.a, self.main = self.stages.a, self.stages.a.main
    self.over = () if self.main is None else self.main.over
    self.sizes = (*map(extent, self.a.parallel), -len(self.over))
    if self.main is not None and self.stages.at_top(self.main):
      self.operands = [x for x in operands_of(self.a, self.main) if self.stages.packable(self.main, x)]
      self.may_block = not nest.blocked and sums_fit(self.main, self.stages)

  def settings(self) -> dict[str, tuple[Any, list[Any]]]:
    """The plan: what it has of each kind of change, and what is next to that."""
    ranges, plan, n = self.a.parallel, self.plan, len(self.a.parallel)
    tiles, order = [plan.tiles.get(r, Tile()) for r in ranges], [ranges.index(r) for r in plan.order]
    v = next((i for i, t in enumerate(tiles) if t.lanes > 1), -1)
    swapped = [[*order[:i], order[i + 1], order[i], *order[i + 2 :]] for i in range(n - 1)]
    found: dict[str, Any] = {"order": (order, swapped), "vector": (v, [i for i in range(-1, n) if i != v])}
    copies = {f"copies{i}": t.copies for i, t in enumerate(tiles)}
    if self.over:
      copies["accumulators"] = plan.folds[self.over][1].copies
    room = 2 * self.target.vector_registers / prod(copies.values())
    for what, now in copies.items():
      found[what] = now, next_copies(now, max(now * room, now))
    for i, x in enumerate(self.operands):
      found[f"stage{i}"] = (staged := any(p.operand is x for p in plan.panels)), [not staged]
    if self.may_block:
      whole = extent(self.over[0])
      now = plan.block or whole
      lengths = [x for x in (ceildiv(now, 2), 2 * now) if x >= LEAST_BLOCK]
      found["block"] = now % max(whole, 1), [x if x < whole else 0 for x in lengths]
    return found

  def change(self, changes: Changes) -> None:
    def want() -> Changes:
      return {what: changes.get(what, now) for what, (now, _) in self.settings().items()}

    ranges, most, new = self.a.parallel, self.stages.most, want()
    v = [*ranges, None][new["vector"]]
    tiles = {r: Tile(new[f"copies{i}"], lanes_for(r, most) if r is v else 1) for i, r in enumerate(ranges)}
    tiles |= {r: t for r, t in self.plan.tiles.items() if r in self.over}
    self.plan = complete(self.nest, self.stages, v, tiles)
    new = want()
    self.plan = plan = replace(self.plan, order=tuple(ranges[i] for i in new["order"]))
    if self.main is not None:
      order, tile = plan.folds[self.over]
      folds = {**plan.folds, self.over: (order, Tile(new["accumulators"], tile.lanes))}
      copied = [x for i, x in enumerate(self.operands) if new[f"stage{i}"]]
      panels = self.stages.panels(self.main, copied, plan.order, tiles)
      self.plan = replace(plan, folds=folds, panels=panels, block=new.get("block", 0))

  def carry_out(self) -> None:
    carry_out(self.nest, self.plan)


class GridNest:
  """The same of a kernel whose stores a grid of threads shares out."""

  def __init__(self, nest: NestSchedule) -> None:
    self.nest, self.plan = nest, plan_grid(nest)
    self.a, self.main = nest.a, nest.a.main
    self.sizes = (*map(extent, nest.parallel), 0 if self.main is None else -len(self.main.over))

  def settings(self) -> dict[str, tuple[Any, list[Any]]]:
    plan, found = self.plan, dict[str, Any]()
    most = self.nest.room.target.group // (plan.threads * plan.lanes)
    room = 2 * self.nest.room.target.vector_registers / prod(plan.copies.values())
    for i, (r, n) in enumerate(plan.shared):
      found[f"threads{i}"] = n, [x for x in (n // 2, 2 * n) if 1 <= x <= n * most and x < 2 * extent(r)]
      now = plan.copies[r]
      found[f"copies{i}"] = now, next_copies(now, min(max(now * room, now), extent(r)))
    if self.main is not None:
      n, length = plan.lanes, extent(self.main.over[-1])
      found["lanes"] = n, [x for x in (n // 2, 2 * n) if 1 <= x <= n * most and x < 2 * length]
      found["staged"] = bool(plan.stagings), [not plan.stagings]
    return found

  def change(self, changes: Changes) -> None:
    new = {what: changes.get(what, now) for what, (now, _) in self.settings().items()}
    ranges = [r for r, _ in self.plan.shared]
    threads, copies = ({r: new[f"{of}{i}"] for i, r in enumerate(ranges)} for of in ("threads", "copies"))
    panels = self.panels(threads, copies) if new.get("staged") else {}
    self.plan = grid_of(self.nest, threads, copies, new.get("lanes", 1), panels)

  def panels(self, threads: dict[UOp, int], copies: dict[UOp, int]) -> Stagings:
    room = min(self.nest.room.target.scratch, PLAIN)
    return staged(self.nest, self.a.folds, threads, copies, room)

  def carry_out(self) -> None:
    Primitives(self.nest, self.plan).make()


def varied(nest: NestSchedule) -> Nest | GridNest | None:
  """None for what goes the heuristic's way: of a grid what threads copy, one nest of several, products on cores."""
  if not nest.room.target.threads:
    return Nest(nest)
  if nest.fill is not None or nest.grid:
    return None
  nest.analyse()
  return GridNest(nest) if plan_product(nest) is None else None


class Planner:
  """The heuristic of `lower_kernel`, with `changes` in the nests of these sizes. It keeps the nests."""

  def __init__(self, target: Target, changes: Changes, sizes: tuple[int, ...] = ()) -> None:
    self.target, self.changes, self.sizes = target, changes, sizes
    self.nests: list[Nest | GridNest] = []

  def __call__(self, nest: NestSchedule) -> None:
    if (planned := varied(nest)) is None:
      return schedule_gpu(nest)
    self.nests.append(planned)
    if self.changes and planned.sizes == self.sizes:
      planned.change(self.changes)
    planned.carry_out()

  def with_changes(self, changes: Changes) -> Planner:
    """For the nests of the same sizes as that with the most work, of those that this one has planned."""
    most = max(self.nests, key=lambda n: sum(i.work * (len(i.accesses) + i.operations) for i in n.a.items))
    return Planner(self.target, changes, self.sizes or most.sizes)

  def variations(self) -> Iterator[Changes]:
    """All that are one change away from what was lowered."""
    sizes = self.with_changes({}).sizes
    for what, (_, others) in next(n for n in self.nests if n.sizes == sizes).settings().items():
      yield from ({**self.changes, what: other} for other in others)


def search(start: Planner, cost: Cost, width: int, seconds: float, clock: Callable[[], float]) -> Iterator[Planner]:
  """Gives the best planner so far after each that was timed; in the end the best, or `start` if that is as fast.

  Each step takes the changes of the `width` fastest; there is another while they get faster and time is left.
  """
  until, fastest = clock() + seconds, [(cost(start), start)]
  known, before = [start.changes], math.inf
  while fastest[0][0] < GAIN * before:
    before = fastest[0][0]
    for changes in [c for _, planner in fastest for c in planner.variations()]:
      if clock() >= until:
        break
      if changes not in known:
        known.append(changes)
        planner = start.with_changes(changes)
        fastest.append((cost(planner), planner))
        yield min(fastest, key=lambda f: f[0])[1]
    fastest = sorted(fastest, key=lambda f: f[0])[:width]
  best = fastest[0][1]
  yield start if best is start or cost(best) > GAIN * cost(start) else best


def measuring(ast: UOp, backend: Backend, threads: int) -> Cost:
  """Times a kernel by different plans, on memory of its own that holds small whole numbers: most sums of them are exact
  in any order. The cost is infinite where another plan has led to the same code.

  Raises: RuntimeError if what is computed differs from the first plan's; MemoryError.
  """
  params, nodes = [u for u in signature(ast) if u.op is Ops.PARAM], ast.toposort()
  devices = 1 + max((u.src[1].vmax for u in nodes if u.op is Ops.PEER), default=0)
  variables = [v.vmin if v.arg[0] == DEVICE_NUM else v.vmax for v in ast.variables()]
  written = sorted({s for u in ast.src if (s := u.src[0].src[0].arg.slot) >= 0})
  tolerance = max((0.5 ** dtypes.finfo(u.dtype)[1] for u in nodes if dtypes.is_float(u.dtype)), default=0.0) ** (2 / 3)
  handles, numbers, random = list[Any](), list[Any](), numpy.random.default_rng(0)
  buffers = [Buffer(backend.name, (p.arg.size,), p.dtype) for p in params]
  for p, b in zip(params, buffers, strict=True):
    drawn = random.integers(-3 if dtypes.is_float(p.dtype) else 0, 4, PATTERN).astype(to_numpy_dtype(p.dtype))
    numbers.append(numpy.resize(drawn, p.arg.size))
    handles.append([b.handle()] * devices if p.arg.peers else b.handle())
    backend.copyin(b.handle(), memoryview(numbers[-1].view(numpy.uint8)))
  best, codes, want = math.inf, dict[Rendered, Planner](), list[Any]()

  def run(calls: list[Any]) -> float:
    batch, start = backend.batch(calls), time.perf_counter()
    backend.submit_all([backend], [batch])
    backend.synchronize()
    return (time.perf_counter() - start) / len(calls)

  def cost(planner: Planner) -> float:
    nonlocal best
    rendered = candidate(ast, backend, threads, planner)
    if rendered is None or codes.setdefault(rendered, planner) is not planner:
      return math.inf
    call = backend.bind(backend.compile(rendered, "candidate"), handles, variables)
    for slot in written:
      backend.copyin(buffers[slot].handle(), memoryview(numbers[slot].view(numpy.uint8)))
    times, got = [run([call])], [numpy.empty_like(numbers[slot]) for slot in written]
    for slot, array in zip(written, got, strict=True):
      backend.copyout(memoryview(array.view(numpy.uint8)), buffers[slot].handle())
    want.extend(got[len(want) :])
    if not all(close(x, y, tolerance) for x, y in zip(got, want)):
      fix = f"fix: BEAM=0, and report this:\n{print_graph(ast)}"
      raise RuntimeError(f"BEAM: another plan, {planner.changes}, gives other results\n  {fix}")
    repeat = max(int(LASTS / times[0]), 1)
    while min(times) < SLOW * best and sum(times) * repeat < (MOST if len(times) < RUNS else LEAST):
      times.append(run([call] * repeat))
    best = min(best, *times)
    return min(times)

  return cost


def candidate(ast: UOp, backend: Backend, threads: int, planner: Planner) -> Rendered | None:
  """The kernel by a planner; None for changes with which it cannot be made."""
  try:
    return backend.render(lower_kernel(ast, backend.target, threads, planner), "candidate")
  except IllegalStep:
    if planner.changes:
      return None
    raise


def close(x: Any, y: Any, tolerance: float) -> bool:
  """Whether arrays are equal but for rounding, relative to y and to its mean."""
  x, y = x.astype(numpy.float64), y.astype(numpy.float64)
  scale = numpy.abs(y).sum(where=numpy.isfinite(y)) / max(y.size, 1)
  return bool(numpy.isclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True).all())


def planner(ast: UOp, backend: Backend, threads: int, name: str) -> Planner | None:
  """The planner for a kernel, found by a search in this process or an earlier one; None where nothing is searched. Of
  several processes the first one searches, on a device of its own, for all."""
  if NOOPT or backend.capabilities.simulated:
    return None
  start, world = Planner(backend.target, {}), Device.world
  with Context(DEBUG=0, PROFILE=0, VIZ=0):
    rendered = backend.render(lower_kernel(ast, backend.target, threads, start), "candidate")
    if not start.nests:
      return None
    if world is None:
      return start.with_changes(best_changes(ast, backend, threads, name, start, rendered))
    own = Device[Device.local(backend.kind)[0]]
    known = ast, own, threads, name, start, rendered
    found = world.of_first(f"BEAM of {name}", lambda: json.dumps(best_changes(*known)))
  return start.with_changes(json.loads(found))


def best_changes(ast: UOp, backend: Backend, threads: int, name: str, start: Planner, rendered: Rendered) -> Changes:
  """What a search changes. It is kept on disk by the code that the heuristic leads to; when Ctrl-C ends the search, if
  it is better than that."""
  found = Changes()
  settings = backend.target, processor_model(), BEAM.value, BEAM_SECONDS.value
  key = diskcache.key_of("plan", rendered.source, str(rendered.launch), *map(str, settings))
  if (kept := diskcache.get(key)) is not None:
    known: Changes = json.loads(kept)
    return known
  look = "BEAM {desc} {bar} {n:.0f}/{total:.0f} s"
  try:
    with tqdm(desc=name, total=BEAM_SECONDS.value, leave=False, bar_format=look) as bar:
      cost, began = measuring(ast, backend, threads), clock()
      for best in search(start, cost, BEAM.value, BEAM_SECONDS.value, clock):
        found = best.changes
        bar.update(min(clock() - began, bar.total) - bar.n)
  except KeyboardInterrupt:
    if found:
      diskcache.put(key, json.dumps(found).encode())
    raise
  diskcache.put(key, json.dumps(found).encode())
  return found
