"""The fixed point: steps over all ops until nothing changes, by rounds of users' priorities and by levels of ops."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinygrad.helpers import prod
from tinygrad.solver.axes import common, number_of_parts
from tinygrad.solver.problem import Direction, Edge, Hint, Problem, Rule
from tinygrad.solver.step import Change, Mode, step

LEVELS = 4  # of ops, see `admitted`
ALL_ROUNDS = 1 << 30


@dataclass(frozen=True, slots=True)
class Policy:
  """`strategy`: "cost", "aggressive" or "basic"; `rounds`: by the users' priorities; `levels`: by kinds of ops;
  `atomic`: axes are not split into sub-axes."""

  strategy: str = "cost"
  rounds: bool = True
  levels: bool = True
  atomic: bool = False


DEFAULT = Policy()


@dataclass(slots=True)
class Solution:
  """Of each value of a problem: what was decided; and for each dim that another value told, the edge (None: a result of
  the program) and that value."""

  hints: list[Hint | None]
  told: list[dict[int, tuple[int | None, int]]] = field(default_factory=list)


def solve(problem: Problem, policy: Policy = DEFAULT) -> Solution:
  """Cuts every value as its hints and those of the values around it say. Where two claims are equal the order of the
  edges decides.

  Raises: ValueError where values of one group have hints that disagree.
  """
  return Solver(problem, policy).run()


class Solver:
  def __init__(self, problem: Problem, policy: Policy) -> None:
    self.problem, self.policy = problem, policy
    self.slot = list(range(len(problem.shapes)))  # of each value: values of one group share one
    for group in problem.groups:
      first = min(self.slot[v] for v in group)
      merged = {self.slot[v] for v in group}
      self.slot = [first if s in merged else s for s in self.slot]
    self.hints: dict[int, Hint] = {}
    self.silent = set(range(len(problem.shapes)))  # values of which nobody has said anything
    for v, hint in enumerate(problem.hints):
      s = self.slot[v]
      if hint is not None:
        self.hints[s] = hint if s not in self.hints else joint_hint(self.hints[s], hint)
        self.silent.discard(s)
    for v, shape in enumerate(problem.shapes):
      self.hints.setdefault(self.slot[v], Hint.anything(len(shape)))
    self.readers: dict[int, list[int]] = {}  # of each slot, the edges that it is part of
    users: dict[int, set[int]] = {}
    for e, edge in enumerate(problem.edges):
      for i, value in enumerate(edge.values):
        if value is not None:
          self.readers.setdefault(self.slot[value], []).append(e)
          if i < edge.rule.sources:
            users.setdefault(value, set()).add(e)
    for value, _ in problem.results:
      users.setdefault(value, set()).add(-1)
    self.several = {v for v, edges in users.items() if len(edges) > 1}
    self.told: dict[int, dict[int, tuple[int | None, int]]] = {}
    self.memo: dict[tuple[object, ...], list[Change]] = {}

  def run(self) -> Solution:
    rounds = sorted({p for h in self.hints.values() for p in h.priorities}) if self.policy.rounds else [ALL_ROUNDS]
    for number in rounds or [0]:
      for level in range(LEVELS) if self.policy.levels else [LEVELS - 1]:
        self.exchange_results(number)
        self.settle(number, level)
        self.exchange_results(number)
    hints = [None if self.slot[v] in self.silent else self.hints[self.slot[v]] for v in range(len(self.slot))]
    return Solution(hints, [self.told.get(s, {}) for s in self.slot])

  def settle(self, number: int, level: int) -> None:
    """A work list, first in, first out: what touches a value that has changed is looked at again."""
    found = {e: self.mode(edge, number, level) for e, edge in enumerate(self.problem.edges)}
    modes = {e: mode for e, mode in found.items() if mode is not None}
    waiting, queued = deque(modes), set(modes)
    while waiting:
      e = waiting.popleft()
      queued.discard(e)
      edge = self.problem.edges[e]
      for s in self.apply(edge.rule, edge.values, modes[e], e):
        for other in self.readers[s]:
          if other in modes and other not in queued:
            queued.add(other)
            waiting.append(other)

  def exchange_results(self, number: int) -> None:
    """What the program returns, and how that is wanted, tell each other."""
    mode = Mode(number, False, Direction.BOTH, self.policy.strategy, self.policy.atomic)
    for value, result in self.problem.results:
      shape = self.problem.shapes[value]
      dims = tuple((i,) for i in range(len(shape)))
      self.apply(Rule((dims, dims), shape, 1, elementwise=True), (value, result), mode, None)

  def apply(self, rule: Rule, values: Sequence[int | None], mode: Mode, e: int | None) -> list[int]:
    """Makes a step; the slots that it has changed."""
    hints = tuple(None if v is None else self.hints[self.slot[v]] for v in values)
    weights = tuple(0.0 if v is None else self.problem.weights[v] for v in values)
    key = (rule, hints, weights, mode)
    if (changes := self.memo.get(key)) is None:
      changes = self.memo[key] = step(rule, hints, weights, mode, self.problem.mesh)
    out = []
    for c in changes:
      v = values[c.tensor]
      assert v is not None
      s = self.slot[v]
      if self.hints[s] is not hints[c.tensor] and self.hints[s] != hints[c.tensor]:
        continue  # a value that stands twice in an op, or another one of its group, has been told already
      self.hints[s] = c.hint
      self.silent.discard(s)
      self.told.setdefault(s, {}).update({d: (e, w) for d, i in c.told if (w := values[i]) is not None})
      out.append(s)
    return out

  def mode(self, edge: Edge, number: int, level: int) -> Mode | None:
    through, direction = admitted(edge, level, self.several, self.problem)
    direction &= edge.rule.direction
    if direction is Direction.NONE:
      return None
    return Mode(number, through, direction, self.policy.strategy, self.policy.atomic)


def admitted(edge: Edge, level: int, several: set[int], problem: Problem) -> tuple[bool, Direction]:
  """(only through factors that pass, the directions) in which an op takes part at a level: cuts go first where they
  cost nothing.

  0: elementwise ops, and those of one source, these from the larger value to the smaller one; forward only where the
  op alone reads the source. 1: the same, but for that. 2: all ops, through factors that pass. 3: all.
  """
  if level >= 2:
    return level == 2, Direction.BOTH
  rule, values = edge.rule, edge.values
  direction = Direction.BOTH
  if not rule.elementwise:
    cut = [i for i, lists in enumerate(rule.tensors) if lists and values[i] is not None]
    if len(cut) != 2 or not cut[0] < rule.sources <= cut[1]:
      return True, Direction.NONE
    source, result = (prod(problem.shapes[v]) for i in cut if (v := values[i]) is not None)
    if source != result:
      direction = Direction.FORWARD if source > result else Direction.BACKWARD
  if level == 0 and any(v in several for v in values[: rule.sources]):
    direction &= Direction.BACKWARD
  return not rule.elementwise, direction


def joint_hint(a: Hint, b: Hint) -> Hint:
  """What two hints of one group say. Raises: ValueError if they disagree."""
  dims = []
  for x, y, closed in zip(a.dims, b.dims, ((not p, not q) for p, q in zip(a.opened, b.opened))):
    longer = max(x, y, key=number_of_parts)
    if common(x, y) != min(x, y, key=number_of_parts) or (closed[0] and longer != x) or (closed[1] and longer != y):
      raise ValueError(f"values of one group have hints that disagree: {a.dims} and {b.dims}")
    dims.append(longer)
  opened = tuple(p and q for p, q in zip(a.opened, b.opened))
  priorities = tuple(map(min, a.priorities, b.priorities))
  return Hint(tuple(dims), opened, priorities, a.replicated or b.replicated, a.unreduced or b.unreduced)
