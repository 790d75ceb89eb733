"""Placements, and what is computed again, so that the plan of a graph fits the memory of its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tinygrad.device import refuse
from tinygrad.helpers import size_to_str
from tinygrad.solver.auto.automatic import Automatic, answered
from tinygrad.solver.auto.exact import each_alone, in_whole_numbers
from tinygrad.solver.auto.least import solved
from tinygrad.solver.auto.linear import CLOSE
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.program import Chosen
from tinygrad.solver.auto.recompute import Dropping
from tinygrad.solver.auto.search import Search, Selection
from tinygrad.uop import UOp

FAR = 0.05  # above the bound: so far, other placements are looked at too
MUCH = 1.5  # times the memory: where the fastest placement takes more, it is not built
SPARE = 0.01  # of the memory: where a plan leaves more, less is dropped
MOST_PLANS = 8  # of what is looked at; else drafts are compared by lifetimes
MOST_MOVED = 10_000  # variables of a program in which what is moved counts: whole placements have to be searched for
MOST_WHOLE = 20_000  # variables of a program in which each value is decided for itself, in whole numbers
TRIES = 3  # to find the limit of the model under which a draft fits

Roots = Sequence[UOp]


@dataclass(frozen=True, slots=True)
class Draft:
  """Placements, as they are built, and which of their values are dropped: the `seconds` of both, the most bytes that
  are `alive` at once, and the `rest` that a plan holds besides, as far as that is known."""

  found: Automatic
  dropping: Dropping
  rest: float
  dropped: frozenset[UOp]
  seconds: float
  alive: float

  @staticmethod
  def of(found: Automatic, dropping: Dropping, rest: float, dropped: Collection[UOp] = ()) -> Draft:
    seconds = found.chosen.seconds + dropping.seconds(dropped)
    return Draft(found, dropping, rest, frozenset(dropped), seconds, dropping.modelled(dropped))

  @property
  def expected(self) -> float:
    """The bytes of its plan."""
    return self.rest + self.alive

  @property
  def gap(self) -> float:
    """To what no choice is below, as far as that was known for its placements."""
    return (self.seconds - self.found.chosen.bound) / self.seconds if self.seconds > 0 else 0.0

  def same(self, other: Draft) -> bool:
    return self.dropping is other.dropping and self.dropped == other.dropped

  def within(self, memory: float) -> Draft:
    """The same where so much is dropped that it is expected to fit, if it can be."""
    dropped = self.dropping.chosen(memory - self.rest, self.dropping.modelled)
    return Draft.of(self.found, self.dropping, self.rest, dropped)


class Fitting:
  """The fastest of a search's choices whose plan holds at most `memory` bytes on each device: by placements alone, or
  by values that are computed again, where that takes less time. Drafts are compared by the lifetimes of their values,
  and planned, the fastest first, until one fits. `build`: the graph of a choice; `plan`: the bytes of its plan."""

  def __init__(
    self,
    search: Search,
    build: Callable[[Automatic], Roots],
    plan: Callable[[Roots], float],
    machine: Machine,
    memory: float,
  ) -> None:
    self.search, self.build, self.plan, self.machine, self.memory = search, build, plan, machine, memory
    self.smallest = math.inf  # of all plans
    self.left = memory  # of the memory, for what the program counts, or by a plan that leaves more
    self.least = 0.0  # seconds that no choice is below in whole numbers, as far as that is known
    self.drafts: list[Draft] = []

  def fitted(self) -> Automatic:
    """Raises: ShardError where nothing fits."""
    free = self.free() if self.search.most_held() <= self.memory * MUCH else None
    if free is not None and free.expected <= self.memory:
      return self.answer(free)
    found = self.by_trades(free)
    if found is None or self.answer(found).gap > FAR:
      free = free or self.free()
      found = self.by_limits(found or self.made_to_fit(free), free.found.memory)
    if found is None:
      return self.by_leaves() or self.by_plans()
    return self.answer(self.in_whole_numbers(found))

  def in_whole_numbers(self, found: Draft) -> Draft:
    """The faster one of a draft and of what is best in whole numbers, which raises the bound; where the bound is not
    close, of a small program. What is planned may show that plans leave more of the memory: then once more."""
    model = self.search.model
    if self.answer(found).gap <= CLOSE or model.program.columns() > MOST_WHOLE:
      return found
    classes, left = each_alone(model), 0.0
    p = replace(model.program_of(classes), memory=self.memory)
    trades = self.search.trades(classes, p)
    for _ in range(TRIES):
      if left == self.left or self.answer(found).gap <= CLOSE:
        break
      left, best = self.left, solved(in_whole_numbers(trades, self.left))
      if best.seconds == math.inf:
        break
      cuts = best.cuts[: len(p.values)]
      draft = self.draft(Selection(classes, p, Chosen(cuts, p.total(cuts), best.bound)))
      known = self.made_to_fit(self.planned(draft))
      found = min(found, known or found, key=lambda draft: draft.seconds)
      self.least = best.bound if left == self.left else 0.0
    return found

  def free(self) -> Draft:
    """The fastest placement, planned."""
    known = self.planned(self.draft(self.search.within(None)))
    self.drafts = [known, *[draft for draft in self.drafts if draft.dropping is not known.dropping]]
    return known

  def by_trades(self, free: Draft | None) -> Draft | None:
    """The fastest placements and values to be computed again for what plans leave of the memory."""

    def drafts(limit: float) -> list[Draft]:
      made = list[Draft]()
      for choice in self.search.trading(limit):
        before = len(self.drafts)
        draft = self.draft(choice)
        if len(self.drafts) > before:
          made.append(draft.within(self.memory))
          if made[-1].expected <= self.memory and made[-1].gap <= CLOSE:
            break
      return made

    def lower(draft: Draft) -> list[Draft]:
      return drafts(self.counted(draft) - (draft.expected - self.memory))

    return self.fastest(drafts(self.memory if free is None else self.counted(free)), lower)

  def by_limits(self, best: Draft | None, high: float) -> Draft | None:
    """The fastest of `best` and of what fits under limits of the model: lower and lower ones than `high`, what the
    fastest holds, then by halves between what fits and what does not, until that is close to the bound. In a small
    program what is moved to be read later counts there, too. Each is planned, and what has to be is dropped of it: a
    plan may hold more than the model counts, or less."""
    model = self.search.model
    search = Search(model.with_moved()) if model.program.columns() <= MOST_MOVED else self.search
    least, low, tried = search.least_held(), 0.0, set[Dropping]()
    step = (least / high) ** (1 / MOST_PLANS)
    for _ in range(MOST_PLANS + TRIES):
      limit = (low + high) / 2 if low else max(high * step, least)
      if high - limit < SPARE * limit or (best is not None and self.answer(best).gap <= FAR):
        break
      draft = self.draft(search.within(limit))
      if best is not None and draft.found.chosen.seconds >= best.seconds:
        if not low:
          break
        low = limit
      elif draft.dropping in tried or not (known := self.made_to_fit(self.planned(draft))):
        high = limit
      else:
        best, low = min(known, best or known, key=lambda draft: draft.seconds), limit
      tried.add(draft.dropping)
    return best

  def made_to_fit(self, known: Draft) -> Draft | None:
    """A draft that has been planned with as little dropped as it fits with; None where that does not help."""
    for _ in range(TRIES):
      if known.expected <= self.memory:
        return known
      less = known.within(self.memory)
      if less.expected > self.memory or less.same(known):
        break
      known = self.planned(less)
    return None

  def fastest(self, waiting: list[Draft], lower: Callable[[Draft], list[Draft]]) -> Draft | None:
    """Plans drafts, the fastest first, until one fits. Of one that does not more is dropped; `lower`: others in its
    stead, where that is not close to the bound. Of one that fits with much to spare less is dropped, as long as that
    fits."""
    best: Draft | None = None
    tried = list[Draft]()
    for _ in range(MOST_PLANS):
      draft = min(waiting, key=lambda draft: (draft.expected > self.memory, draft.seconds), default=None)
      if draft is None or (best is not None and draft.seconds >= best.seconds):
        break
      tried.append(draft)
      known = self.planned(draft)
      if known.expected > self.memory:
        less = known.within(self.memory - (known.expected - self.memory) / 10)
        waiting += [less] if less.expected <= self.memory and less.gap <= CLOSE else [less, *lower(known)]
      elif known.expected < self.memory * (1 - SPARE):
        best, waiting = known, [known.within(self.memory)]
      else:
        return known
      waiting = [draft for draft in waiting if not any(draft.same(other) for other in tried)]
    return best

  def counted(self, draft: Draft) -> float:
    """What the plan of a draft leaves of the memory for what the program counts."""
    found = draft.found
    held = self.search.trades(found.classes, found.program).point(found.chosen.cuts, 0.0)[1]
    return self.memory - (draft.rest + draft.dropping.most - held)

  def draft(self, choice: Selection) -> Draft:
    """A choice as a draft: a new one, or that of the same placements."""
    found = answered(self.search.model, choice)
    hints = found.answer.solution.hints
    if (known := next((d for d in self.drafts if d.found.answer.solution.hints == hints), None)) is not None:
      return known
    dropping = Dropping(self.build(found), self.machine, self.plan)
    rest = dropping.leaves + (self.drafts[0].rest - self.drafts[0].dropping.leaves if self.drafts else 0.0)
    self.drafts.append(Draft.of(found, dropping, rest))
    return self.drafts[-1]

  def planned(self, draft: Draft) -> Draft:
    """The same where its plan tells the rest."""
    nbytes = draft.dropping.nbytes(draft.dropped)
    self.smallest = min(self.smallest, nbytes)
    known = replace(draft, rest=nbytes - draft.alive)
    self.left = max(self.left, self.counted(known))
    return known

  def by_leaves(self) -> Automatic | None:
    """The smallest of the drafts with inputs and weights held in more parts. Half of what is too much at a time: their
    gradients may follow, which the model need not count. None where that does not fit either."""
    draft = min((self.planned(draft) for draft in self.drafts), key=lambda draft: draft.expected)
    choice = Selection(draft.found.classes, draft.found.program, draft.found.chosen)
    nbytes, limit = draft.expected, draft.found.memory
    for _ in range(TRIES):
      limit -= (nbytes - self.memory) / 2
      cut = self.search.with_leaves_cut(choice, limit)
      if cut is None:
        break
      known = self.planned(self.draft(cut))
      if known.expected <= self.memory:
        return self.answer(known)
      nbytes, limit = known.expected, known.found.memory
    return None

  def by_plans(self) -> Automatic:
    """What is dropped is chosen by plans, where lifetimes do not lead to what fits."""
    for draft in sorted(self.drafts, key=lambda draft: draft.found.chosen.seconds):
      dropped = draft.dropping.chosen(self.memory, draft.dropping.nbytes)
      known = self.planned(Draft.of(draft.found, draft.dropping, draft.rest, dropped))
      if known.expected <= self.memory:
        return self.answer(known)
    said = f"auto: nothing fits in {size_to_str(self.memory)} on each device, values computed again included"
    refuse(said, f"memory={math.ceil(self.smallest)}  # the least that was found; or more devices")

  def answer(self, draft: Draft) -> Automatic:
    """The gap is counted from what no choice is below in the memory, were there the most that any plan leaves."""
    found, dropped = draft.found, draft.dropped
    bound = found.chosen.bound
    if self.search.traded is not None:
      bound = min(draft.seconds, max(self.least, self.search.traded.bound(self.left)))
    again = draft.dropping.recomputation(dropped) if dropped else None
    return replace(found, chosen=replace(found.chosen, bound=bound), nbytes=draft.expected, again=again)
