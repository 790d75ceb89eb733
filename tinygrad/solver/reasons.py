"""Why a value is where it is: which hint says so, on which of the user's lines, and by way of which ops."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad.device import Placement, show_placement
from tinygrad.helpers import source_line
from tinygrad.solver.axes import coexist
from tinygrad.solver.graph import Answer
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
    return source_line(*self.source.origin) if self.source is not None and self.source.origin else ""

  def __str__(self) -> str:
    if self.source is None:
      return f"dim {self.dim}: nothing cuts it"
    said = str(self.source.arg) if self.source.op is Ops.CONSTRAIN else "the user placed it"
    names = ["contraction" if is_contraction(u) else u.op.name.lower() for u in self.via]
    if len(names) > 2 * SHOWN:
      names[SHOWN:-SHOWN] = [f"… {len(names) - 2 * SHOWN} more …"]
    way = f" by way of {', '.join(names)}" if names else ""
    return f"dim {self.dim}: {said}{f' in {self.line}' if self.line else ''}{way}"


def is_contraction(u: UOp) -> bool:
  return u.op is Ops.REDUCE and next((x for x in u.src[0].down() if x.op is not Ops.CAST), u).op is Ops.MUL


def reasons(answer: Answer, u: UOp) -> list[Reason]:
  """For each cut dim of a value of the graph that was asked about."""
  v = answer.asked.number.get(u)
  hint = None if v is None else answer.solution.hints[v]
  if v is None or hint is None:
    return []
  return [_reason(answer, v, dim) for dim, axes in enumerate(hint.dims) if axes]


def _reason(answer: Answer, v: int, dim: int) -> Reason:
  """Back from a value to the one that told it, and so on to one that nobody told."""
  asked, solution = answer.asked, answer.solution
  via: list[UOp] = []
  seen: set[tuple[int, int]] = set()
  first = dim
  while (v, dim) not in seen:
    seen.add((v, dim))
    hint, told = solution.hints[v], solution.told[v].get(dim)
    if told is None or hint is None:
      break
    edge, giver = told
    there = solution.hints[giver]
    axes = hint.dims[dim]
    dims = () if there is None else there.dims
    found = [i for i, ds in enumerate(dims) if any(not coexist(d, e) for d in ds for e in axes)]
    if not found:
      break
    if edge is not None:
      via.append(asked.ops[edge])
    v, dim = giver, found[0]
  source = asked.nodes[v] if asked.problem.hints[v] is not None else None
  return Reason(first, source, tuple(via))


def table(answer: Answer) -> str:
  """What was placed, a line each, and why, a line for each cut dim: inputs, weights and what hints speak of."""
  lines = []
  for u in (*answer.asked.leaves, *(u for u in answer.asked.order if u.op is Ops.CONSTRAIN)):
    what = f"{u.dtype.name}{render_shape(u.shape)}" + (f" {source_line(*u.origin)}" if u.origin else "")
    place: Placement | None = answer[u]
    lines.append(f"{what}\n    at {show_placement(place)}")
    lines += [f"    {reason}" for reason in reasons(answer, u)]
  return "\n".join(lines)
