"""The rewrite engine: named rules by op, applied bottom-up to a fixed point; and substitution."""

from collections.abc import Callable, Mapping
from typing import Any

from tinygrad.uop.node import UOp, knows, map_arg
from tinygrad.uop.op import GroupOp, Ops

Rebuild = Callable[[UOp, tuple[UOp, ...], Any], UOp]


def rewrite(root: UOp, rules: Mapping[Ops, Callable[[UOp], UOp | None]], memo: dict[UOp, UOp] | None = None) -> UOp:
  """`root` with the rule of its op (None: it does not apply) on every node, sources first, until none applies."""
  done: dict[UOp, UOp] = {} if memo is None else memo
  for u in root.toposort(lambda u: u not in done):
    src = tuple([done[s] for s in u.src])
    v = u if src == u.src else u.replace(src=src)
    made = rules[v.op](v) if v.op in rules else None
    done[u] = done[v] = v if made is None else rewrite(made, rules, done)
  return done[root]


def substitute(
  root: UOp, mapping: Mapping[UOp, UOp], memo: dict[UOp, UOp] | None = None, rebuild: Rebuild | None = None
) -> UOp:
  """`root` with nodes replaced, those inside args (symbolic dims) included. Replacements are not searched again.
  Where one is of the same op, shape and placement, those of the nodes above it are carried over. `rebuild` makes the
  nodes of which a source now has another placement, and comparisons."""
  done: dict[UOp, UOp] = dict(mapping) if memo is None else memo
  if memo is not None:
    done.update(mapping)

  def inside(u: UOp) -> UOp:
    return u if u not in done and not u.src and u.arg.__class__ is not tuple else substitute(u, mapping, done, rebuild)

  alike: set[UOp] = set()  # nodes that became one of the same shape and placement
  for u in root.toposort(lambda u: u not in done):
    src = tuple([done[s] for s in u.src])
    arg = u.arg if u.arg is None or u.op in _PLAIN_ARGS else map_arg(u.arg, inside)
    if src == u.src and arg is u.arg:
      done[u] = u
      continue
    if rebuild is not None and (
      u.op in GroupOp.Comparison or any(s is not t and s.device != t.device for s, t in zip(u.src, src))
    ):
      v = rebuild(u, src, arg)
    else:
      v = UOp.new(u.op, u.dtype, src, arg)
    done[u] = v
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
