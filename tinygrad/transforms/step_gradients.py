"""Gradients of captured functions. `.grad` is an attribute, which no replay of a step sets by itself: what a function
reads there before it sets it is an argument of the function, and what it leaves there a result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from sys import getrefcount
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import Holder, ThreadList, walk
from tinygrad.uop import Ops

Owner = Holder | int  # whose gradient: a tensor's from outside, or the argument's of that number
UNKEPT: Any = object()
"""What `.grad` is after the replay of a step that has used the gradient and not stored it."""


def owned(owner: Owner, given: Sequence[Any]) -> Any:
  """The tensor whose gradient is meant; None if there is none now."""
  if isinstance(owner, int):
    return t if owner < len(given) and is_tensor(t := given[owner]) else None
  return owner()


def holders(found: dict[Owner, Any]) -> list[int]:
  """How many references there are to each value."""
  return [getrefcount(x) for x in found.values()]


ALONE = holders({0: object()})[0]


class StepGradients:
  """Of one captured function: whose gradients it reads before it sets them, as far as its calls have shown."""

  def __init__(self) -> None:
    self.read: dict[Owner, None] = {}

  def arguments(self, given: Sequence[Any]) -> list[Any]:
    """What these are now, beside the arguments that are `given`."""
    tensors = [owned(owner, given) for owner in self.read]
    return [None if t is None else t.grad for t in tensors]

  @contextlib.contextmanager
  def call(self, given: Sequence[Any], began: int) -> Iterator[StepCall]:
    """Within, the function runs."""
    call = StepCall(self, given, began)
    with step_calls.holding(call):
      yield call


class StepCall:
  """A call that runs the function, which begins at change number `began`: which gradients it reads before it sets them,
  and what those were; which it sets; and gradients that an optimizer has used."""

  def __init__(self, function: StepGradients, given: Sequence[Any], began: int) -> None:
    self.function, self.given, self.began = function, given, began
    self.read: dict[Holder, Any] = {}
    self.set: dict[Holder, None] = {}
    self.used: dict[Holder, None] = {}

  def reads(self, t: Any) -> None:
    if t._holder not in self.set:
      self.read.setdefault(t._holder, t._grad)

  def owner(self, h: Holder) -> Owner | None:
    """None for a tensor that has gone, or that the call has made."""
    if (t := h()) is None or h.born > self.began:
      return None
    return next((i for i, x in enumerate(self.given) if x is t), h)

  def learn(self) -> list[Any]:
    """Notes whose gradients the function reads; of those that were not known the gradients that it has found."""
    found = {owner: grad for h, grad in self.read.items() if (owner := self.owner(h)) is not None}
    new = {owner: grad for owner, grad in found.items() if owner not in self.function.read}
    self.function.read.update(dict.fromkeys(new))
    return list(new.values())

  def left(self, result: Any) -> Left:
    """What the function, which has returned `result`, leaves."""
    left, returned = Left(), list[Any]()
    walk(result, returned.append)
    for h in self.set:
      if (owner := self.owner(h)) is not None:
        grad = owned(owner, self.given)._grad
        if grad is None or any(grad is x for x in (*self.given, *returned)):
          left.results[owner] = grad
        elif grad._holder in self.used and h not in self.read and grad.uop.op is not Ops.BUFFER:
          left.used.append(owner)
        else:
          left.memory[owner] = grad
    return left


class Left:
  """What a step leaves in `.grad`: what it also returns or was given, or None (`results`); what it writes where it lies
  (`memory`); of `used` nothing, for an optimizer has used the gradient, and nobody asks for it."""

  def __init__(self) -> None:
    self.results, self.memory, self.used = dict[Owner, Any](), dict[Owner, Any](), list[Owner]()

  def __bool__(self) -> bool:
    return bool(self.results or self.memory or self.used)

  def beside(self, result: Any) -> Any:
    """The results of a step: its own, and the gradients among `results`."""
    return (result, [*self.results.values()]) if self.results else result

  def free(self, given: Sequence[Any]) -> None:
    """Before a replay: who holds a gradient of the last one gets a copy."""
    for owner, count in zip([*self.memory], holders(self.memory), strict=True):
      t, grad = owned(owner, given), self.memory[owner]
      if count > ALONE + (t is not None and t._grad is grad):
        self.memory[owner] = type(grad)(grad.uop)
        grad.replace(grad.clone()).realize()

  def leave(self, results: Any, given: Sequence[Any]) -> Any:
    """After it: sets gradients, and returns the other results."""
    for owner, grad in self.memory.items():
      if (t := owned(owner, given)) is not None and t._grad is not grad:
        t.grad = grad
    for owner in self.used:
      if (t := owned(owner, given)) is not None and t._grad is not UNKEPT:
        t.grad = UNKEPT
    if not self.results:
      return results
    own, gradients = results
    for owner, grad in zip(self.results, gradients, strict=True):
      if (t := owned(owner, given)) is not None:
        t.grad = grad
    return own


step_calls: ThreadList[StepCall] = ThreadList()
"""Of captured functions that run, the innermost's last."""


def note_used(gradient: Any) -> None:
  """An update is made of it: where that is captured, the gradient need not be stored."""
  if not gradient.follows:
    program_order.reenter(gradient)
    for call in step_calls:
      call.used[gradient._holder] = None


program_order.step_gradients = StepGradients
