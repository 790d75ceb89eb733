"""One way to rewrite: `rebuild` goes bottom-up over a graph, and makes each node anew once. On it stand the rewrite by
named rules to a fixed point, and substitution: everywhere, or where a node is free.

Each is linear in nodes, whatever the number of paths, and takes graphs that are deeper than Python's stack."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinygrad.uop.node import UOp, knows, map_arg
from tinygrad.uop.op import GroupOp, Ops

Sources = tuple[UOp, ...]
Make = Callable[[UOp, Sources], UOp]
Anew = Callable[[UOp, Sources, Any], UOp]  # of a node, what its sources became, and its arg
Rules = Mapping[Ops, Callable[[UOp], UOp | None]]


def rebuild(
  root: UOp,
  make: Make,
  memo: dict[UOp, UOp] | None = None,
  cut: Callable[[UOp], UOp | None] | None = None,
  order: Sequence[UOp] | None = None,
) -> UOp:
  """What `root` becomes where each node becomes `make(node, what its sources became)`, sources first.

  `memo`: what nodes became, for several roots; those in it are not looked below. `cut`: what a node becomes that is not
  to be looked below either, or None to go on. `order`: all nodes, sources first, where that matters to `make`."""
  done: dict[UOp, UOp] = {} if memo is None else memo

  def passes(u: UOp) -> bool:
    assert cut is not None
    if (v := cut(u)) is not None:
      done[u] = v
    return v is None

  for u in order or root.toposort(None if cut is None else passes, done):
    if u not in done:
      done[u] = make(u, tuple([done[s] for s in u.src]))
  return done[root]


def on_sources(u: UOp, src: Sources) -> UOp:
  """`u` over other sources; itself where they are its own."""
  if src == u.src:
    return u
  v = UOp.new(u.op, u.dtype, src, u.arg)
  if v.origin is None:
    v.origin = u.origin
  return v


def rewrite(root: UOp, rules: Rules, memo: dict[UOp, UOp] | None = None) -> UOp:
  """`root` with the rule of its op (None: it does not apply) on every node, sources first, until none applies."""
  done: dict[UOp, UOp] = {} if memo is None else memo

  def make(u: UOp, src: Sources) -> UOp:
    v = on_sources(u, src)
    made = rules[v.op](v) if v.op in rules else None
    done[v] = v if made is None else rewrite(made, rules, done)
    return done[v]

  return rebuild(root, make, done)


def substitute(
  root: UOp,
  mapping: Mapping[UOp, UOp],
  memo: dict[UOp, UOp] | None = None,
  anew: Anew | None = None,
  rules: Mapping[Ops, Anew] = {},
) -> UOp:
  """`root` with nodes replaced, those inside args (symbolic dims) included. Replacements are not searched again.
  Where one is of the same op, shape and placement, those of the nodes above it are carried over. `anew` makes the
  nodes of which a source now has another placement, and comparisons; `rules`, by op, all nodes outside args."""
  done: dict[UOp, UOp] = {} if memo is None else memo
  done.update(mapping)
  alike: set[UOp] = set()  # nodes that became one of the same shape and placement

  def inside(u: UOp) -> UOp:
    return u if u not in done and not u.src and u.arg.__class__ is not tuple else substitute(u, mapping, done, anew)

  def make(u: UOp, src: Sources) -> UOp:
    arg = u.arg if u.arg is None or u.op in _PLAIN_ARGS else map_arg(u.arg, inside)
    if u.op in rules:
      v = rules[u.op](u, src, arg)
    elif src == u.src and arg is u.arg:
      return u
    elif anew is not None and (
      u.op in GroupOp.Comparison or any(s is not t and s.device != t.device for s, t in zip(u.src, src))
    ):
      v = anew(u, src, arg)
    else:
      v = UOp.new(u.op, u.dtype, src, arg)
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
    return v

  return rebuild(root, make, done)


_PLAIN_ARGS = frozenset(
  (Ops.CONST, Ops.VARIABLE, Ops.BUFFER, Ops.REDUCE, Ops.PERMUTE, Ops.FLIP, Ops.MOVE, Ops.PARAM, Ops.RANGE, Ops.FOLD)
)


def substitute_free(root: UOp, mapping: Mapping[UOp, UOp], stays: Callable[[UOp], bool] | None = None) -> UOp:
  """`root`, an expression of a kernel, with nodes replaced where they are free: a FOLD binds its own ranges, which stay
  in it. `stays`: whether nothing in a node is replaced, where that is known without a look below it."""
  return _substitute_free(root, mapping, stays, {}) if mapping else root


def _substitute_free(
  root: UOp,
  mapping: Mapping[UOp, UOp],
  stays: Callable[[UOp], bool] | None,
  memos: dict[frozenset[UOp], dict[UOp, UOp]],
) -> UOp:
  """`memos`: what has been made already, by what is replaced in it."""

  def cut(u: UOp) -> UOp | None:
    if stays is not None and stays(u):
      return u
    if u.op is Ops.FOLD and any(r in mapping for r in u.src[1:]):
      free = {k: x for k, x in mapping.items() if k not in u.src[1:]}
      return _substitute_free(u, free, stays, memos)
    return None

  return rebuild(root, on_sources, memos.setdefault(frozenset(mapping), dict(mapping)), cut)
