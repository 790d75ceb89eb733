"""Gradients of a tensor, and what decides whether there are any."""

from __future__ import annotations

from typing import Any, Self

from tinygrad.dtype import dtypes
from tinygrad.engine.errors import JitError
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import Context, Holder, dedup
from tinygrad.mixin.base import mismatch
from tinygrad.mixin.nn import NN
from tinygrad.transforms.ended import check_not_ended
from tinygrad.transforms.gradient import compute_gradient, occurrences
from tinygrad.transforms.step_gradients import UNKEPT, step_calls
from tinygrad.uop import Ops, UOp


class Differentiation(NN):
  """`grad` is what `backward` has left."""

  __slots__ = ("_grad", "_holder")
  _holder: Holder  # its place in the program
  _grad: Self | None

  @property
  def grad(self) -> Self | None:
    """What `backward` has added up; None before, and after `zero_grad` of an optimizer. It can be set.
    JitError after a captured step that has used it and not kept it.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([3.0])
      >>> loss = x.square().sum().backward()
      >>> x.grad.tolist()
      [6.0]
    """
    if self._grad is UNKEPT:
      fix = "return the parameter's `.grad` from the function as well, or forget it (`zero_grad`)"
      raise JitError(f"grad: the captured step has used this gradient for its update, and not stored it\n  fix: {fix}")
    for call in step_calls:
      call.reads(self)
    return self._grad

  @grad.setter
  def grad(self, x: Self | None) -> None:
    for call in step_calls:
      call.set[self._holder] = None
    self._grad = x

  @property
  def _stored_grad(self) -> Self | None:
    """What a copy of this tensor has as its gradient."""
    return None if self._grad is UNKEPT else self.grad

  @property
  def is_param(self) -> bool:
    """Whether `backward` may fill `.grad` here.

    Examples:
      >>> Tensor([1.0]).is_param, Tensor([1.0], requires_grad=False).is_param
      (True, False)
    """
    return self.requires_grad is not False

  def is_param_(self, is_param: bool = True) -> Self:
    """`requires_grad_`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0]).is_param_(False).is_param
      False
    """
    return self.requires_grad_(is_param)

  @staticmethod
  def train(mode: bool = True) -> Context:
    """`with Tensor.train(): ...` — dropout drops and batch norm updates its statistics.

    A decorator as well: `@Tensor.train()`. Raises TypeError for a function, which is `@Tensor.train` without its call.

    Examples:
      >>> with Tensor.train():
      ...   y = Tensor.ones(1000).dropout(0.5)
      >>> y.max().item()
      2.0
    """
    if callable(mode):
      raise TypeError("Tensor.train takes a bool, got a function\n  fix: @Tensor.train()")
    return Context(TRAINING=int(mode))

  @staticmethod
  def test(mode: bool = True) -> Context:
    """`with Tensor.test(): ...` — the opposite of `train`.

    Examples:
      >>> with Tensor.test():
      ...   y = Tensor.ones(4).dropout(0.5)
      >>> y.tolist()
      [1.0, 1.0, 1.0, 1.0]
    """
    return Context(TRAINING=int(not mode))

  @staticmethod
  def no_grad() -> Context:
    """`with Tensor.no_grad(): ...` — no gradient flows through what is computed inside.

    Examples:
      >>> x = Tensor([1.0])
      >>> with Tensor.no_grad():
      ...   y = x * 2
      >>> y.requires_grad
    """
    return Context(NO_GRAD=1)

  def _seed_gradient(self, gradient: Self | None, name: str) -> UOp:
    if not dtypes.is_float(self.dtype):
      mismatch(name, "only floats have gradients", [self.uop], "cast to a float before computing the loss", TypeError)
    given: Any = gradient
    if given is not None and not isinstance(given, Differentiation):
      rule = f"the gradient argument is a tensor, not {type(given).__name__}"
      mismatch(name, rule, [self.uop], f"give Tensor(gradient) of shape {self.shape}", TypeError)
    if gradient is None:
      if self.shape != ():
        fix = "reduce it first, e.g. loss.sum() or loss.mean()"
        mismatch(name, "without a gradient argument it needs a scalar", [self.uop], fix)
      return UOp.const(self.dtype, 1.0)
    if gradient.shape != self.shape:
      rule = "the gradient must have the tensor's shape"
      mismatch(name, rule, (self.uop, gradient.uop), "expand or reshape the gradient")
    return gradient.cast(self.dtype).uop

  def gradient(self, *targets: Self, gradient: Self | None = None) -> list[Self]:
    """The derivative of this scalar (or of the sum of it times `gradient`) by each target, at the target's placement.

    Zeros where it depends on a target only by what is constant almost everywhere: comparisons, signs, rounding.
    Raises ValueError if this is no scalar and no `gradient` is given, TypeError for targets and gradients that are no
    tensors, RuntimeError for a target it does not depend on, or only by what was written to memory, and for one with
    requires_grad that it depends on by way of a tensor that was realized, or by what it was before a write.
    Shape: `(..), (*target), … -> (*target), …`.

    Examples:
      >>> x = Tensor([1.0, 2.0])
      >>> (x**3).sum().gradient(x)[0].tolist()
      [3.0, 12.0]
    """
    if not_tensors := [t for t in targets if not isinstance(t, Differentiation)]:
      rule = f"the targets are tensors, not {type(not_tensors[0]).__name__}"
      mismatch("gradient", rule, [self.uop], "give them one by one: loss.gradient(*parameters)", TypeError)
    seed, wanted = self._seed_gradient(gradient, "gradient"), [t.uop for t in targets]
    check_not_ended("gradient", self.uop, targets, wanted)
    found = compute_gradient(self.uop, seed, wanted)
    for i, t in enumerate(targets):
      if t.uop not in found:
        if not t.is_floating_point():
          fix = "cast it to a float, and compute the value from that"
          mismatch("gradient", f"target {i} is no float", (self.uop, t.uop), fix, RuntimeError)
        rule, fix = "", "compute the value from this very tensor, and realise it only after differentiating"
        if any(u.op is Ops.AFTER and t.uop in u.toposort() for u in self.uop.toposort()):
          rule = " but by what was written to memory (assign, x[..] = value), through which no gradient flows"
          fix = "write to a tensor without realize or empty, which is a value; or use cat, stack, where"
        mismatch("gradient", f"the value does not depend on target {i}{rule}", (self.uop, t.uop), fix, RuntimeError)
    return [self._wrap(found[t.uop]) for t in targets]

  def backward(self, gradient: Self | None = None) -> Self:
    """Adds the derivative of this scalar to `.grad` of the float tensors that it depends on, in its memory if it has
    some.

    Of those with requires_grad=True (an optimizer sets it on its parameters); if there are none, of all but those
    with False. Raises ValueError if this is no scalar and no `gradient` is given, RuntimeError if it depends on no
    such tensor, or by integers and bools alone (accuracy by argmax is no loss), or on one with requires_grad=True
    by way of a tensor that was realized since, or by what that was before a write.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([3.0])
      >>> loss = (x * x).sum().backward()
      >>> x.grad.tolist()
      [6.0]
    """
    seed = self._seed_gradient(gradient, "backward")
    live = [t for t in program_order.live() if t.is_param and t.is_floating_point()]
    graph = occurrences(self.uop.toposort(), [t.uop for t in live])
    reached = [t for t in live if t.uop in graph]
    chosen = [t for t in reached if t.requires_grad] or reached
    # a value that is memory because what it reads was written to is no leaf: nobody has realized it
    leaves = [t.uop for t in chosen if t.requires_grad and (t.follows or t.uop.op is not Ops.BUFFER)]
    check_not_ended("backward", self.uop, None, [u for leaf in leaves for u in graph[leaf]])
    found = compute_gradient(self.uop, seed, dedup(t.uop for t in chosen))
    if not any(t.uop in found and t.uop is not self.uop for t in chosen):
      fix = "call backward on the loss itself, before it is realised, and check requires_grad"
      mismatch("backward", "the tensor depends on no tensor that takes a gradient", [self.uop], fix, RuntimeError)
    if all(g.base.op is Ops.CONST for g in found.values()):  # perhaps zeros, as through argmax
      through = set(self.uop.toposort(lambda u: dtypes.is_float(u.dtype)))
      if not any(t.uop in through for t in chosen):
        rule = "the tensor depends on what takes a gradient by integers and bools alone, so all gradients would be 0"
        fix = "call it on a loss of the floats before argmax, comparisons and casts, e.g. x.cross_entropy(Y)"
        mismatch("backward", rule, [self.uop], fix, RuntimeError)
    for t in chosen:
      if (g := found.get(t.uop)) is not None:
        t._add_gradient(self._wrap(g))
    return self

  def _add_gradient(self, g: Self) -> None:
    """Into the memory of `.grad`, if it has some; either way as an assignment, which a captured step does each time."""
    if self.grad is not None and self.grad.follows:
      self.grad.assign(self.grad.add(g).cast(self.grad.dtype))
      return
    self.grad = g if self.grad is None else self.grad.add(g)
    program_order.reenter(self.grad, assigned=True)
