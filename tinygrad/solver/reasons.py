"""Why a value is where it is: which hint says so, on which of the user's lines, and by way of which ops."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.device import Cut, PlacedLine, hint_of, show_placement
from tinygrad.helpers import source_line
from tinygrad.solver.axes import Axes
from tinygrad.solver.graph import Answer
from tinygrad.solver.handed import is_decided_anew
from tinygrad.solver.solve import Solution, Told
from tinygrad.uop import Ops, UOp, render_shape

SHOWN = 4  # ops of a way, at either end


@dataclass(frozen=True, slots=True)
class Reason:
  """Of one dim of a value: the node whose hint or placement has decided it (None: nothing has, it is not cut), and the
  ops between, from the value on."""

  dim: int
  source: UOp | None
  via: tuple[UOp, ...]

  @property
  def line(self) -> str:
    """`file.py:12: x = x.constrain(P("dp"))`, the user's line; "" where there is none."""
    return _said(self.source)[1] if self.source is not None else ""

  def __str__(self) -> str:
    said = _said(self.source) if self.source is not None else ("", "")
    return _sentence(self.dim, *said, [op_word(u) for u in self.via])


def op_word(u: UOp) -> str:
  return "contraction" if is_contraction(u) else u.op.name.lower()


def is_contraction(u: UOp) -> bool:
  return u.op is Ops.REDUCE and next((x for x in u.src[0].down() if x.op is not Ops.CAST), u).op is Ops.MUL


def reasons(answer: Answer, u: UOp) -> list[Reason]:
  """For each cut dim of a value of the graph that was asked about. Of what a hint speaks that is met without it, the
  hint."""
  if u in answer.met:
    return [Reason(dim, u, ()) for dim, axes in enumerate(answer.met[u]) if axes]
  v = answer.asked.number.get(u)
  hint = None if v is None else answer.solution.hints[v]
  if v is None or hint is None:
    return []
  return [_reason(answer, v, dim) for dim, axes in enumerate(hint.dims) if axes]


def _reason(answer: Answer, v: int, dim: int) -> Reason:
  asked = answer.asked
  giver, via = _way(answer.solution, v, dim)
  source = asked.nodes[giver] if asked.problem.hints[giver] is not None else None
  return Reason(dim, source, tuple(asked.ops[e] for e in via))


def _way(solution: Solution, v: int, dim: int) -> tuple[int, list[int]]:
  """Back from a value to the one that told it, and so on to one that nobody told: that one, and the edges between."""
  via: list[int] = []
  told = solution.told[v].get(dim)
  while told is not None:
    if told.edge is not None:
      via.append(told.edge)
    v, told = told.giver, told.before
  return v, via


def _said(source: UOp) -> tuple[str, str]:
  """What the user said of a value, and the line."""
  said = str(source.arg) if source.op is Ops.CONSTRAIN else "the user placed it"
  return said, source_line(*source.origin) if source.origin else ""


def _sentence(dim: int, said: str, line: str, names: Sequence[str], n: int | None = None) -> str:
  """`n`: how many ops there are, if of a longer way the first and the last ones are given."""
  if not said:
    return f"dim {dim}: nothing cuts it"
  n = len(names) if n is None else n
  if n > 2 * SHOWN:
    names = [*names[:SHOWN], f"… {n - 2 * SHOWN} more …", *names[-SHOWN:]]
  way = f" by way of {', '.join(names)}" if names else ""
  return f"dim {dim}: {said}{f' in {line}' if line else ''}{way}"


@dataclass(frozen=True, slots=True)
class WhyCut:
  """What an answer says of why values are where they are, as long as somebody asks. It holds no node, and so no memory.
  `names`: of each edge's op; `said`: of the values that somebody spoke of, what, and the line; `agreed`: of those of
  which a hint speaks that is met without it, how they are cut, and what was said."""

  solution: Solution
  names: list[str]
  said: dict[int, tuple[str, str]]
  agreed: dict[int, tuple[tuple[Axes, ...], tuple[str, str]]]
  ways: dict[Told, tuple[int, int, tuple[str, ...]]] = field(default_factory=dict)  # what `way` has found

  def cuts(self, v: int) -> list[Cut]:
    """Of each dim of a value that is cut because somebody said so, by what, and why."""
    if v in self.agreed:
      dims, said = self.agreed[v]
      return [(dim, axes, _sentence(dim, *said, ())) for dim, axes in enumerate(dims) if axes]
    hint, found = self.solution.hints[v], list[Cut]()
    for dim, axes in enumerate(hint.dims) if hint is not None else ():
      giver, n, names = self.way(v, dim) if axes else (v, 0, ())
      if axes and giver in self.said:
        found.append((dim, axes, _sentence(dim, *self.said[giver], names, n)))
    return found

  def way(self, v: int, dim: int) -> tuple[int, int, tuple[str, ...]]:
    """As `_way`, over all values linear in their number: the value that told, how many ops there are between, and the
    names of the first and the last of them."""
    steps: list[Told] = []
    told = self.solution.told[v].get(dim)
    while told is not None and told not in self.ways:
      steps.append(told)
      v, told = told.giver, told.before
    giver, n, names = (v, 0, ()) if told is None else self.ways[told]
    for at in reversed(steps):
      if at.edge is not None:
        n, names = n + 1, (self.names[at.edge], *names)
        names = names if n <= 2 * SHOWN else (*names[:SHOWN], *names[-SHOWN:])
      self.ways[at] = giver, n, names
    return giver, n, names


def note_reasons(answer: Answer, made: Mapping[UOp, UOp]) -> None:
  """Notes at the line of each node that was made for an answer why it is there: `explain` and `visualize` tell it."""
  asked = answer.asked
  said = {v: _said(u) for v, u in enumerate(asked.nodes) if asked.problem.hints[v] is not None}
  agreed = {v: (dims, _said(u)) for u, dims in answer.met.items() if (v := asked.number.get(u)) is not None}
  why_cut = WhyCut(answer.solution, [op_word(u) for u in asked.ops], said, agreed)
  for u, x in made.items():
    if x is u and isinstance(u.origin, PlacedLine) and u.origin.cuts is not list:
      continue  # it has been placed before, by what was said then
    line = u.origin if u.op is Ops.BUFFER and u.origin is not None else x.stamp().origin
    if (v := asked.number.get(u)) is not None and line is not None:
      is_told = v in agreed and bool(u.src) and not is_decided_anew(u)
      hint = str(u.arg) if u.op is Ops.CONSTRAIN else agreed[v][1][0] if is_told else hint_of(line)
      x.origin = PlacedLine.of(line, hint, functools.partial(why_cut.cuts, v))


def table(answer: Answer) -> str:
  """What was placed, a line each, and why, a line for each cut dim: inputs, weights and what hints speak of."""
  lines = []
  for u in (*answer.asked.leaves, *(u for u in answer.asked.order if u.op is Ops.CONSTRAIN)):
    what = f"{u.dtype.name}{render_shape(u.shape)}" + (f" {source_line(*u.origin)}" if u.origin else "")
    if u in answer.asked.number:
      place = show_placement(answer[u])
    else:
      place = f"{show_placement(u.device)}, where the user has put it: a hint on this mesh is nothing to it"
    lines.append(f"{what}\n    at {place}")
    lines += [f"    {reason}" for reason in reasons(answer, u)]
  return "\n".join(lines)
