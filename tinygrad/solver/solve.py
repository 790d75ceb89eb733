"""The fixed point: steps over all ops until nothing changes, by rounds of users' priorities and by levels of ops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from tinygrad.device import spec_of
from tinygrad.helpers import Remade, prod
from tinygrad.solver.axes import Axes, coexist, common, number_of_parts
from tinygrad.solver.problem import Direction, Edge, Hint, Problem, Rule
from tinygrad.solver.step import Change, Mode, is_pass_through, step

ALL_ROUNDS = 1 << 30
Taking = tuple[bool, Direction]  # how an op takes part at a level: through which factors, in which directions
T = TypeVar("T")
AtRest = list[Mode | None]  # of each edge, the mode in which it changes nothing, as its values are now


@dataclass(frozen=True, slots=True)
class Policy:
  """`strategy`: "cost", "aggressive" or "basic"; `rounds`: by the users' priorities; `levels`: by kinds of ops;
  `atomic`: axes are not split into sub-axes, and cut nothing unevenly that was not cut so before."""

  strategy: str = "cost"
  rounds: bool = True
  levels: bool = True
  atomic: bool = False


DEFAULT = Policy()


class Disagreement(Remade, ValueError):
  """What is said of the values of one group, by their numbers, cannot hold of all of them."""

  def __init__(self, rule: str, values: Sequence[int]) -> None:
    super().__init__(rule)
    self.values = values


@dataclass(slots=True, eq=False)
class Told:
  """By way of which edge (None: a result of the program) which value has told another how to cut a dim, and what had
  told that one (None: its hint)."""

  edge: int | None
  giver: int
  before: Told | None


@dataclass(slots=True)
class Solution:
  """Of each value of a problem: what was decided, and for each dim that another value told, by whom."""

  hints: list[Hint | None]
  told: list[dict[int, Told]] = field(default_factory=list)


def solve(problem: Problem, policy: Policy = DEFAULT, told: Mapping[int, dict[int, Told]] | None = None) -> Solution:
  """Cuts every value as its hints and those of the values around it say. Where two claims are equal the order of the
  edges decides. `told`: of values whose hints were found before, by whom.

  Raises: Disagreement where values of one group have hints that disagree, or differ in their number of dims.
  """
  return Solver(problem, policy, told or {}).run()


class Part(NamedTuple):
  """An edge, with the slots of its values (-1: one that takes no part), and what these weigh. `kind`: a number for all
  with this rule and these weights; `now`: picks the hints of the slots, and that of -1, of all there are."""

  rule: Rule
  values: Sequence[int | None]
  slots: Sequence[int]
  weighs: tuple[float, ...]
  kind: int
  now: Callable[[Sequence[int]], tuple[int, ...]]


class KnownChange(NamedTuple):
  """What a step changes: which tensor, the number of its hint then, and for each dim that changed the tensor that told
  it, and which dim of that is cut so."""

  tensor: int
  hint: int
  givers: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Levels:
  """`ways` in which ops take part, and for each level that of each op, by its number there."""

  ways: list[Taking]
  each: list[list[int]]


class Solver:
  """What is known while a problem is solved. Values of one group share a slot. Equal hints have one number, equal modes
  are one object, and so are equal edges of one kind: a step is known by these, and equal layers are decided once."""

  def __init__(self, problem: Problem, policy: Policy, told: Mapping[int, dict[int, Told]]) -> None:
    self.problem, self.policy = problem, policy
    self.one: dict[Any, Any] = {}  # the one object of each mode, rule and list of weights
    self.kinds: dict[tuple[int, int], int] = {}  # of parts, by the ids of these
    self.steps: dict[tuple[int, int, tuple[int, ...]], list[KnownChange]] = {}
    self.slot = slots(problem)
    self.said: list[Hint] = []  # by their numbers
    self.numbers: dict[Hint, int] = {}
    self.told: dict[int, dict[int, Told]] = {self.slot[v]: dict(dims) for v, dims in told.items()}
    given = hints_by_slot(problem, self.slot)
    self.spoken = set(given)  # slots of which something is said
    anything: dict[int, int] = {}  # by the number of dims
    self.hints: list[int] = []  # of each slot the number of its hint; last that of no value
    for v, shape in enumerate(problem.shapes):
      if v in given:
        self.hints.append(self.numbered(given[v]))
        continue
      if (hint_number := anything.get(len(shape))) is None:
        hint_number = anything[len(shape)] = self.numbered(Hint.anything(len(shape)))
      self.hints.append(hint_number)
    self.hints.append(-1)
    self.readers: dict[int, list[int]] = {}  # of each slot, the edges that it is part of
    self.parts = [self.part(edge.rule, edge.values) for edge in problem.edges]
    for e, part in enumerate(self.parts):
      for of in part.slots:
        if of >= 0:
          self.readers.setdefault(of, []).append(e)
    self.at_rest = AtRest()

  def numbered(self, hint: Hint) -> int:
    """The number of all hints that are equal to this one."""
    if (found := self.numbers.get(hint)) is None:
      found = self.numbers[hint] = len(self.said)
      self.said.append(hint)
    return found

  def same(self, x: T) -> T:
    """The one object that is equal to `x`."""
    found: T = self.one.setdefault(x, x)
    return found

  def part(self, rule: Rule, values: Sequence[int | None]) -> Part:
    weighs = self.same(tuple([0.0 if v is None else self.problem.weights[v] for v in values]))
    slots = [-1 if v is None else self.slot[v] for v in values]
    kind = self.kinds.setdefault((id(rule), id(weighs)), len(self.kinds))
    return Part(rule, values, slots, weighs, kind, itemgetter(*slots, -1))

  def run(self) -> Solution:
    by_level = levels(self.problem) if self.policy.levels else one_level(self.problem)
    said = [self.said[n] for n in set(self.hints[:-1])]
    rounds = sorted({p for h in said for p in h.priorities}) if self.policy.rounds else [ALL_ROUNDS]
    for number in rounds or [0]:
      self.round(number, by_level)
    hints = [self.said[self.hints[s]] if s in self.spoken else None for s in self.slot]
    return Solution(hints, [self.told.get(s, {}) for s in self.slot])

  def round(self, number: int, by_level: Levels) -> None:
    """Where there is memory to place, a round is made for that alone, and again for the rest, with the memory as it was
    found: so a second propagation will find it, and what is computed from it must not move then."""
    memory = {s for v in self.problem.memory if any(self.said[self.hints[s := self.slot[v]]].opened)}
    found = dict[int, int]()
    if memory:
      hints, told, spoken = list(self.hints), {s: dict(dims) for s, dims in self.told.items()}, set(self.spoken)
      self.all_levels(number, by_level)
      found = {s: self.hints[s] for s in memory}
      for s, n in found.items():
        hints[s] = self.numbered(replace(self.said[n], opened=(False,) * len(self.said[n].dims)))
      self.hints = hints
      self.told = told | {s: self.told[s] for s in memory if s in self.told}
      self.spoken = spoken | memory
    self.all_levels(number, by_level)
    for s, n in found.items():
      self.hints[s] = n  # a later round may cut it further

  def all_levels(self, number: int, by_level: Levels) -> None:
    self.at_rest = AtRest([None] * len(self.problem.edges))
    modes = [None if how[1] is Direction.NONE else self.mode(number, *how) for how in by_level.ways]
    for admitted in by_level.each:
      self.exchange_results(number)
      self.settle([modes[way] for way in admitted])
      self.exchange_results(number)

  def mode(self, number: int, through: bool, direction: Direction) -> Mode:
    key = (number, through, direction)
    if (found := self.one.get(key)) is None:
      found = self.one[key] = Mode(number, through, direction, self.policy.strategy, self.policy.atomic)
    mode: Mode = found
    return mode

  def settle(self, modes: AtRest) -> None:
    """All ops in turn, then a work list, first in, first out: what touches a value that has changed is looked at again.
    `modes`: None for an op that takes no part."""
    waiting, queued, swept = deque[int](), set[int](), -1
    at_rest, parts, readers = self.at_rest, self.parts, self.readers
    while waiting or swept + 1 < len(modes):
      if swept + 1 < len(modes):
        e = swept = swept + 1
      else:
        e = waiting.popleft()
        queued.discard(e)
      mode = modes[e]
      if mode is None or at_rest[e] is mode:
        continue
      at_rest[e] = mode
      for s in self.apply(parts[e], mode, e):
        for other in readers[s]:
          if other <= swept and other not in queued and modes[other] is not None:
            queued.add(other)
            waiting.append(other)

  def exchange_results(self, number: int) -> None:
    """What the program returns, and how that is wanted, tell each other."""
    mode = self.mode(number, False, Direction.BOTH)
    for value, result in self.problem.results:
      shape = self.problem.shapes[value]
      dims = tuple((i,) for i in range(len(shape)))
      rule = self.same(Rule((dims, dims), shape, 1, elementwise=True))
      self.apply(self.part(rule, (value, result)), mode, None)

  def apply(self, part: Part, mode: Mode, e: int | None) -> Sequence[int]:
    """Makes a step; the slots that it has changed."""
    hints, slots = self.hints, part.slots
    before = part.now(hints)
    key = part.kind, id(mode), before
    if (changes := self.steps.get(key)) is None:
      said = [None if n < 0 else self.said[n] for n in before[:-1]]
      found = step(part.rule, said, part.weighs, mode, self.problem.mesh)
      changes = self.steps[key] = [self.known(c, said) for c in found]
    if not changes:
      return ()
    out = list[int]()
    for tensor, hint, givers in changes:
      s = slots[tensor]
      if hints[s] != before[tensor]:
        continue  # a value that stands twice in an op, or another one of its group, has been told already
      hints[s] = hint
      self.spoken.add(s)
      for dim, i, over in givers:
        if (w := part.values[i]) is not None:
          before_that = self.told.get(self.slot[w])
          told = None if before_that is None else before_that.get(over)
          self.told.setdefault(s, {})[dim] = Told(e, w, told)
      out.append(s)
      for other in self.readers.get(s, ()):
        self.at_rest[other] = None
    return out

  def known(self, c: Change, before: Sequence[Hint | None]) -> KnownChange:
    """A change, as it is kept for all steps that are equal."""
    givers = [(d, i, dim_over(h, c.hint.dims[d])) for d, i in c.told if (h := before[i]) is not None]
    return KnownChange(c.tensor, self.numbered(c.hint), givers)


def dim_over(hint: Hint, axes: Axes) -> int:
  """The first dim that is cut over some of these axes; -1 if none is."""
  if axes in hint.dims:
    return hint.dims.index(axes)
  return next((i for i, ds in enumerate(hint.dims) if any(not coexist(d, e) for d in ds for e in axes)), -1)


def slots(problem: Problem) -> list[int]:
  """Of each value the first one of its group.

  Raises: Disagreement if values of a group differ in their number of dims.
  """
  first = list(range(len(problem.shapes)))

  def find(v: int) -> int:
    while first[v] != v:
      first[v] = v = first[first[v]]
    return v

  for group in problem.groups:
    for v in group[1:]:
      if len(problem.shapes[v]) != len(problem.shapes[group[0]]):
        shapes = f"{list(problem.shapes[group[0]])} and {list(problem.shapes[v])}"
        raise Disagreement(f"values of one group differ in their number of dims: {shapes}", group)
      a, b = find(group[0]), find(v)
      first[max(a, b)] = min(a, b)
  return [find(v) for v in first]


def hints_by_slot(problem: Problem, slot: Sequence[int]) -> dict[int, Hint]:
  """What is said of each slot, by all values that share it. Raises: Disagreement."""
  given: dict[int, Hint] = {}
  for s, hint in zip(slot, problem.hints):
    if hint is None:
      continue
    if (said := given.get(s)) is None:
      given[s] = hint
      continue
    if (joint := said_by_both(said, hint)) is None:
      one, two = (spec_of(problem.mesh, h.dims) for h in (said, hint))
      members = [v for v, of in enumerate(slot) if of == s]
      raise Disagreement(f"values of one group have hints that disagree: {one} and {two}", members)
    given[s] = joint
  return given


def levels(problem: Problem) -> Levels:
  """How each op takes part at each level (only through factors that pass, the directions): cuts go first where they
  cost nothing.

  0: elementwise ops, and those of one source, these from the larger value to the smaller one; forward only where the
  op alone reads the source. 1: the same, but for that. 2: all ops, through factors that pass. 3: all.
  """
  readers, shapes = edges_that_use(problem), problem.shapes
  numbers, out = dict[Taking, int](), Levels([], [[], [], [], []])
  known: dict[tuple[object, ...], list[int]] = {}  # of equal ops on values of equal shapes
  for edge in problem.edges:
    alone = all(v is None or len(readers.get(v, ())) <= 1 for v in edge.values[: edge.rule.sources])
    key = (id(edge.rule), alone, *[None if v is None else shapes[v] for v in edge.values])
    if (found := known.get(key)) is None:
      found = known[key] = [numbers.setdefault(way, len(numbers)) for way in ways_of(edge, problem, alone)]
    for level, way in zip(out.each, found):
      level.append(way)
  out.ways.extend(numbers)
  return out


def ways_of(edge: Edge, problem: Problem, alone: bool) -> list[Taking]:
  """How an op takes part at each level; `alone`: whether nothing else reads its sources."""
  rule, allowed = edge.rule, edge.rule.direction
  early = cheap_direction(edge, problem) & allowed
  some_cost = not all(is_pass_through(f, rule) for f in range(len(rule.sizes)) if f not in rule.blocked)
  through = not rule.elementwise and some_cost
  first = early if alone else early & Direction.BACKWARD
  return [(through, first), (through, early), (some_cost, allowed), (False, allowed)]


def one_level(problem: Problem) -> Levels:
  """All ops at once, through all factors."""
  numbers = dict[Taking, int]()
  each = [numbers.setdefault((False, edge.rule.direction), len(numbers)) for edge in problem.edges]
  return Levels(list(numbers), [each])


def edges_that_use(problem: Problem) -> dict[int, set[int]]:
  """Which edges read each value (-1: a result of the program). One of one source that gives its elements on to nobody
  does not count: a hint on a value is no use of it, so that what was decided can be said."""
  readers: dict[int, set[int]] = {v: {-1} for v, _ in problem.results}
  for e, edge in reversed(list(enumerate(problem.edges))):  # readers before what they read
    if edge.rule.elementwise and edge.rule.sources == 1 and edge.values[-1] not in readers:
      continue
    for v in edge.values[: edge.rule.sources]:
      if v is not None:
        readers.setdefault(v, set()).add(e)
  return readers


def cheap_direction(edge: Edge, problem: Problem) -> Direction:
  """In which directions an op takes part before the others: elementwise ops, and those of one source and result."""
  if edge.rule.elementwise:
    return Direction.BOTH
  cut = [i for i, lists in enumerate(edge.rule.tensors) if lists and edge.values[i] is not None]
  if len(cut) != 2 or not cut[0] < edge.rule.sources <= cut[1]:
    return Direction.NONE
  source, result = (prod(problem.shapes[v]) for i in cut if (v := edge.values[i]) is not None)
  return Direction.BOTH if source == result else Direction.FORWARD if source > result else Direction.BACKWARD


def said_by_both(a: Hint, b: Hint) -> Hint | None:
  """What two hints of one value say together; None if they disagree, of how a dim is cut or of what an axis is for. The
  round of a dim is that of who cuts it."""
  dims, priorities = list[Axes](), list[int]()
  for x, y, x_open, y_open, *rounds in zip(a.dims, b.dims, a.opened, b.opened, a.priorities, b.priorities):
    longer, shorter = (x, y) if number_of_parts(x) >= number_of_parts(y) else (y, x)
    if common(x, y) != shorter or not (x_open or x == longer) or not (y_open or y == longer):
      return None
    dims.append(longer)
    priorities.append(min((p for p, said in zip(rounds, (x, y)) if said), default=min(rounds)))
  opened = tuple(p and q for p, q in zip(a.opened, b.opened))
  replicated = tuple(dict.fromkeys(a.replicated + b.replicated))
  unreduced = tuple(dict.fromkeys(a.unreduced + b.unreduced))
  cut = [d for axes in dims for d in axes]
  if not all(coexist(d, e) for i, d in enumerate(cut) for e in (*cut[:i], *replicated, *unreduced)):
    return None
  return Hint(tuple(dims), opened, tuple(priorities), replicated, unreduced)
