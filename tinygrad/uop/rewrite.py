"""The rewrite engine: named rules indexed by op, applied bottom-up to a fixed point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tinygrad.uop.ops import Ops, UOp, knows, map_arg

Rule = Callable[[UOp, Any], UOp | None]


class Rules:
  """`Rules((Ops.ADD, fold_zero), ((Ops.IDIV, Ops.MOD), fold_by_one))`. A rule is `rule(u, ctx) -> UOp | None`; None:
  it does not apply.
  """

  __slots__ = ("by_op",)

  def __init__(self, *rules: tuple[Ops | Iterable[Ops], Rule]) -> None:
    self.by_op: dict[Ops, list[Rule]] = {}
    for ops, rule in rules:
      for op in (ops,) if isinstance(ops, Ops) else ops:
        self.by_op.setdefault(op, []).append(rule)

  def __add__(self, other: Rules) -> Rules:
    both = Rules()
    for rules in (self, other):
      for op, named in rules.by_op.items():
        both.by_op.setdefault(op, []).extend(named)
    return both

  def apply(self, u: UOp, ctx: Any = None) -> UOp | None:
    """What the first rule that applies makes of u, or None."""
    for rule in self.by_op.get(u.op, ()):
      if (v := rule(u, ctx)) is not None and v is not u:
        return v
    return None


def rewrite(root: UOp, rules: Rules, ctx: Any = None, memo: dict[UOp, UOp] | None = None) -> UOp:
  """`root` with `rules` applied to every node, sources first, until none applies. `memo` may be shared by several
  roots.
  """
  done: dict[UOp, UOp] = {} if memo is None else memo
  stack: list[tuple[UOp, UOp, bool]] = [(root, root, False)]  # (node asked for, node it became, sources done)
  while stack:
    asked, u, ready = stack.pop()
    if not ready:
      if u in done:
        done[asked] = done[u]
        continue
      stack.append((asked, u, True))
      stack.extend((s, s, False) for s in u.src if s not in done)
      continue
    src = tuple(done[s] for s in u.src)
    v = u if src == u.src else u.replace(src=src)
    w = rules.apply(v, ctx)
    if w is None:
      done[asked] = done[u] = done[v] = v
    else:
      stack.append((asked, w, False))
      # `asked` is popped again with the new node; when that is done, asked maps to it
  return done[root]


def substitute(root: UOp, mapping: Mapping[UOp, UOp], memo: dict[UOp, UOp] | None = None) -> UOp:
  """`root` with nodes replaced, those inside args (symbolic dims) included. Replacements are not searched again.
  Where one is of the same op, shape and placement, those of the nodes above it are carried over."""
  done: dict[UOp, UOp] = dict(mapping) if memo is None else memo
  if memo is not None:
    done.update(mapping)

  def inside(u: UOp) -> UOp:
    return u if u not in done and not u.src and u.arg.__class__ is not tuple else substitute(u, mapping, done)

  alike: set[UOp] = set()  # nodes that became one of the same shape and placement
  for u in root.toposort(lambda u: u not in done):
    src = tuple([done[s] for s in u.src])
    arg = u.arg if u.arg is None or u.op in _PLAIN_ARGS else map_arg(u.arg, inside)
    if src == u.src and arg is u.arg:
      done[u] = u
      continue
    done[u] = v = UOp.new(u.op, u.dtype, src, arg)
    if v.origin is None:
      v.origin = u.origin
    if arg is u.arg and knows(u, "device") and knows(u, "shape"):
      for s, t in zip(u.src, src):
        if s not in alike and s is not t and (s.op is not t.op or s.device != t.device or s.shape != t.shape):
          break
        alike.add(s)
      else:
        v.device, v.shape = u.device, u.shape
        alike.add(u)
  return done[root]


_PLAIN_ARGS = frozenset(
  (Ops.CONST, Ops.VARIABLE, Ops.BUFFER, Ops.REDUCE, Ops.PERMUTE, Ops.FLIP, Ops.MOVE, Ops.PARAM, Ops.RANGE, Ops.FOLD)
)
