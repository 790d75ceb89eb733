"""Nodes as text: integer expressions and shapes, values as errors name them, graphs, linear code."""

from collections.abc import Sequence

from tinygrad.device import Sharding, show_placement
from tinygrad.uop.cards import CARDS
from tinygrad.uop.dims import sint
from tinygrad.uop.node import Hooks, UOp, mesh_of
from tinygrad.uop.op import Ops


def render_sint(u: sint) -> str:
  """An integer expression as text, by the cards of its ops."""
  if isinstance(u, int):
    return str(u)
  match u.op:
    case Ops.CONST:
      return str(u.arg)
    case Ops.VARIABLE:
      return str(u.arg[0])
    case Ops.BIND:
      return f"{u.src[0].arg[0]}={u.src[1].arg}"
    case Ops.RANGE:
      return f"r{u.arg[0]}"
  form = CARDS[u.op].render or f"{u.op.name.lower()}({', '.join('{}' for _ in u.src)})"
  return form.format(*map(render_sint, u.src))


def render_shape(shape: Sequence[sint]) -> str:
  return f"[{', '.join(render_sint(n) for n in shape)}]"


def describe(u: UOp) -> str:
  """`float32[8, 16] on CPU:0-3, dim 0 over "d"`, for error messages."""
  return f"{u.dtype.name}{render_shape(u.shape)} on {show_placement(u.device, mesh_of(u))}"


def print_graph(root: UOp) -> str:
  """One line a node, sources first; shapes and placements where there are any."""
  order = root.toposort()
  number = {u: i for i, u in enumerate(order)}
  lines = []
  for u in order:
    src = ", ".join(f"%{number[s]}" for s in u.src)
    what = f"  {u.dtype.name}{render_shape(u.shape)}" if u.op is not Ops.SINK else ""
    where = f"  {show_placement(u.device)}" if isinstance(u.device, Sharding) else ""
    arg = "" if u.arg is None else f" {u.arg!r}"
    lines.append(f"%{number[u]:<4} {u.op.name:10s} ({src}){arg}{what}{where}")
  return "\n".join(lines)


def print_linear(linear: Sequence[UOp]) -> str:
  """One line an op, indented by loop, with the numbers of its sources."""
  number, depth, lines = dict[UOp, int](), 0, list[str]()
  for i, u in enumerate(linear):
    depth -= u.op is Ops.ENDRANGE
    src = ", ".join(str(s.arg) if s.op is Ops.CONST else f"%{number.get(s, -1)}" for s in u.src)
    lines.append(f"{i:4d} {'  ' * depth}{u.op.name} {u.dtype!r} ({src}) {'' if u.arg is None else u.arg}")
    number[u] = i
    depth += u.op is Ops.RANGE
  return "\n".join(lines)


Hooks.render, Hooks.describe = render_sint, describe
