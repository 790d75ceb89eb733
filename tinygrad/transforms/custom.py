"""Custom ops as graphs: what a user's function makes of holes, on whole shapes or on a device's parts, and its
derivative, which is a custom op again."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import device_set
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import PROCESS
from tinygrad.ops import Trait, having
from tinygrad.transforms.factor_rule import FactorRule
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.uop import CustomOp, Factors, Ops, SourceKernel, UOp, holes_like, render_shape
from tinygrad.uop.node import HALVES
from tinygrad.uop.rewrite import rewrite

Nodes = tuple[UOp, ...]
MEMORY = having(Trait.MEMORY)
OUTSIDE = MEMORY | having(Trait.EFFECT)


@dataclass(frozen=True, slots=True)
class RuledOp(CustomOp):
  """One result of a function of graphs with a sharding rule. `by`: what its result is partial by where a reduced factor
  is cut; None: such factors are not cut. `own`: its gradients, of the result's and of the sources; None: what follows
  from its graph. `wide`: the type in which partial results are carried. `kernels`: what runs in place of fn, by kind of
  backend."""

  name: str
  fn: Callable[[Nodes], UOp]
  rule: FactorRule
  result: int
  by: Ops | None
  own: Callable[[UOp, Nodes], Sequence[UOp | None]] | None = None
  wide: DType | None = None
  kernels: tuple[tuple[str, str], ...] = ()

  def __repr__(self) -> str:
    return f"{self.name}({self.rule.text})"

  def trace(self, holes: Nodes, shape: tuple[Any, ...] | None) -> UOp:
    if shape is None:
      return traced(self, holes)
    try:
      made = traced(self, holes)
    except Exception as e:
      what = f"lets factors be cut, and {self.name} fails on a device's part ({type(e).__name__}: {e})"
      self.rule.wrong(what, "take sizes from the operands' shapes, or write !k for a factor that may not be cut", holes)
    if made.shape != shape:
      sides = f"{render_shape(shape)}, and {self.name} makes {render_shape(made.shape)}"
      fix = "let fn take sizes from its operands, or write !k for a factor that may not be cut"
      self.rule.wrong(f"says that a device's part of the result is {sides}", fix, holes)
    return made

  def graph(self, src: Sequence[UOp], shape: tuple[Any, ...] | None = None) -> UOp:
    """The user's kernel on memory of its own, where there is one for every kind of device; else what fn makes."""
    kinds = {d.partition(":")[0] for s in src if s.device is not None for d in device_set(s.device)}
    dims = tuple(n for u in (self.trace(holes_like(src), shape), *src) for n in u.shape)
    if not kinds or not kinds <= dict(self.kernels).keys() or 0 in dims or not all(isinstance(n, int) for n in dims):
      return CustomOp.graph(self, src, shape)
    made = dataclasses.replace(self, wide=None).trace(holes_like(src), shape)
    dense = [s if s.op in MEMORY else UOp.new(Ops.CONTIGUOUS, s.dtype, (s,), "operand") for s in src]
    call = UOp.new(Ops.CALL, made.dtype, tuple(dense), SourceKernel(self.name, self.kernels, dims, made))
    return call if self.wide is None else call.cast(self.wide)

  def factors(self, u: UOp) -> Factors:
    used = operands_used(self, holes_like(u.src))
    return self.rule.on(u.src, {self.result: u.shape}).factors(self.result, used, self.by is not None)

  def gradient(self, g: UOp, u: UOp) -> Sequence[UOp | None]:
    if self.own is not None:
      return self.own(g, u.src)
    holes = holes_like((g, *u.src))
    found = compute_gradient(self.fn(holes[1:]).cast(u.dtype), holes[0], holes[1:])
    parts: list[UOp | None] = []
    for i, hole in enumerate(holes[1:]):
      rule = self.rule.turned(self.result, i, self.by is Ops.ADD)
      op = RuledOp(f"{self.name}'s gradient", Derivative(self.fn, i), rule, 0, Ops.ADD)
      parts.append(build_custom(op, (g, *u.src)) if hole in found else None)
    return parts


@dataclass(frozen=True, slots=True)
class Derivative:
  """Of the gradient of `of` and its sources: the gradient by source `i`."""

  of: Callable[[Nodes], UOp]
  i: int

  def __call__(self, nodes: Nodes) -> UOp:
    g, *src = nodes
    return compute_gradient(self.of(tuple(src)).cast(g.dtype), g, [src[self.i]])[src[self.i]]


@PROCESS.cached
def traced(op: RuledOp, holes: Nodes) -> UOp:
  """What the op makes of holes, in ops that every stage knows."""
  made = op.fn(holes)
  for u in made.toposort():
    if u.op in OUTSIDE:
      what = f"is of what its operands decide, and {op.name} reads or writes memory beside them"
      op.rule.wrong(what, "pass it as an operand (with its dims in the rule)", holes)
  rules = {
    Ops.CUSTOM: lambda u: u.arg[1].graph(u.src),
    Ops.CONST: plain_constant,
    Ops.DETACH: first_source,
    Ops.MOVE: first_source,
    Ops.CONSTRAIN: first_source,
  }
  made = rewrite(made, rules)
  if op.wide is None:
    return made
  summed = made.src[0] if made.op is Ops.CAST and made.src[0].dtype is op.wide else made  # before it was rounded
  return summed.cast(op.wide)


@PROCESS.cached
def operands_used(op: RuledOp, holes: Nodes) -> frozenset[int]:
  """The numbers of the operands on which the result depends."""
  return frozenset(u.arg[0] for u in traced(op, holes).toposort() if u.op is Ops.HOLE)


def first_source(u: UOp) -> UOp:
  return u.src[0]


def plain_constant(u: UOp) -> UOp | None:
  """Without what makes it a tensor of its own."""
  return UOp.const(u.dtype, u.arg) if u.src else None


def build_custom(op: RuledOp, src: Nodes) -> UOp:
  """The node of the op on its sources. What it is not made of has no say in where it runs: zeros, which live anywhere,
  stand for it. Partial sums of halves are carried in a wider type, so that sharding loses neither range nor
  precision."""
  holes = holes_like(src)
  dtype, used = op.trace(holes, None).dtype, operands_used(op, holes)
  src = tuple([s if i in used else UOp.const(s.dtype, 0).broadcast_to(s.shape) for i, s in enumerate(src)])
  wide = dtypes.reduce_float
  if dtype in HALVES and (op.by is Ops.ADD or op.by is Ops.MUL) and op.rule.contracted(op.result):
    return UOp.build(Ops.CUSTOM, wide, src, (op.by, dataclasses.replace(op, wide=wide))).cast(dtype)
  return UOp.build(Ops.CUSTOM, dtype, src, (op.by or Ops.ADD, op))
