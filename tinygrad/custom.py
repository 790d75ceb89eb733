"""Ops that users define, with a sharding rule: functions over Tensors that run on each device's part of their operands
(docs/custom_ops.md)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Device, Sharding, refuse
from tinygrad.helpers import Context
from tinygrad.helpers.settings import ContextVar
from tinygrad.tensor import Tensor
from tinygrad.transforms.custom import Nodes, RuledOp, build_custom
from tinygrad.transforms.factor_rule import FactorRule, factor_rule_from
from tinygrad.uop import Ops, UOp, describe, holes_like, lengths, render_shape

AN_OP = "custom_op(lambda x: x.exp(), rule='n -> n')"
REDUCTIONS = {"sum": Ops.ADD, "max": Ops.MAX, "min": Ops.MIN, "prod": Ops.MUL, None: None}


@dataclass(frozen=True, slots=True)
class TensorFunction:
  """One result of a function over Tensors, as one over graphs, under the settings of the call."""

  fn: Callable[..., Any]
  result: int
  settings: tuple[tuple[str, Any], ...]

  def __call__(self, nodes: Nodes) -> UOp:
    return self.results(nodes)[self.result]

  def results(self, nodes: Nodes) -> list[UOp]:
    """Of all that the function returns. TypeError for what are no Tensors."""
    with Context(**{**dict(self.settings), "NO_GRAD": 0}):
      made = self.fn(*map(Tensor._wrap, nodes))
    results = made if isinstance(made, tuple) else (made,)
    for x in results:
      if not isinstance(x, Tensor):
        rule = f"custom op: {name_of(self.fn)} returns {x!r} of type {type(x).__name__}"
        refuse(rule, "return a Tensor, or a tuple of Tensors for several results", error=TypeError)
    return [x.uop for x in results]


@dataclass(frozen=True, slots=True)
class TensorGradient:
  """The user's gradients of one of `n` results, as graphs: the gradients of the others are 0, for gradients are linear
  in them."""

  gradient: Callable[..., Any]
  of: TensorFunction
  n: int

  def __call__(self, g: UOp, src: Nodes) -> list[UOp | None]:
    given = [Tensor._wrap(g)]
    if self.n > 1:
      shapes = [(u.shape, u.dtype) for u in self.of.results(holes_like(src))]
      given = [given[0] if k == self.of.result else Tensor.zeros(*s, dtype=d) for k, (s, d) in enumerate(shapes)]
    made = self.gradient(*given, *map(Tensor._wrap, src))
    parts = made if isinstance(made, (list, tuple)) else (made,)
    for p in parts:
      if p is not None and not isinstance(p, Tensor):
        rule = f"custom op: the gradient function {name_of(self.gradient)} gives {p!r} of type {type(p).__name__}"
        refuse(rule, "return a gradient of each operand's shape, or None", *map(describe, src))
    if len(parts) != len(src) or any(p is not None and p.shape != s.shape for p, s in zip(parts, src)):
      got = ", ".join("None" if p is None else render_shape(p.shape) for p in parts)
      rule = f"custom op: the gradient function {name_of(self.gradient)} gives {got}"
      refuse(rule, "return a gradient of each operand's shape, or None", *map(describe, src))
    return [None if p is None else p.cast(s.dtype).uop for p, s in zip(parts, src)]


class CustomFunction:
  """A custom op: call it on Tensors."""

  def __init__(
    self,
    fn: Callable[..., Any],
    rule: FactorRule,
    by: Ops | None,
    gradient: Callable[..., Any] | None,
    kernels: tuple[tuple[str, str], ...] = (),
  ) -> None:
    self.fn, self.rule, self.by, self.gradient, self.kernels = fn, rule, by, gradient, kernels
    functools.update_wrapper(self, fn, updated=())

  def __repr__(self) -> str:
    return f"custom_op({name_of(self.fn)}, rule={self.rule.text!r})"

  def on(self, operands: Sequence[Any]) -> tuple[Nodes, tuple[tuple[str, Any], ...]]:
    """(the operands' nodes, the settings that fn reads). Raises: ShardError and TypeError where operands, what fn
    returns and the rule disagree."""
    for i, x in enumerate(operands):
      if not isinstance(x, Tensor):
        rule = f"custom op: operand {i} of {name_of(self.fn)} is {x!r} of type {type(x).__name__}"
        refuse(rule, "pass Tensors; put numbers into fn, e.g. with functools.partial", error=TypeError)
    src = tuple(x.uop for x in operands)
    settings = tuple((k, v.value) for k, v in sorted(ContextVar.all.items()) if v.shapes == "graph")
    n = len(self.rule.results)
    self.rule.on(src, {})  # before fn sees them
    shapes = [u.shape for u in TensorFunction(self.fn, 0, settings).results(holes_like(src))]
    if len(shapes) != n:
      self.rule.wrong(f"says {n} results, and {name_of(self.fn)} returns {len(shapes)}", "give each a part", src)
    self.rule.on(src, dict(enumerate(shapes)))
    return src, settings

  def __call__(self, *operands: Any) -> Any:
    (src, settings), n, made = self.on(operands), len(self.rule.results), []
    for k in range(n):
      fn = TensorFunction(self.fn, k, settings)
      own = None if self.gradient is None else TensorGradient(self.gradient, fn, n)
      u = build_custom(RuledOp(name_of(self.fn), fn, self.rule, k, self.by, own, kernels=self.kernels), src)
      check_parts(u)
      made.append(Tensor._wrap(u))
    return made[0] if n == 1 else tuple(made)


def custom_op(
  fn: Callable[..., Any] | None = None,
  *,
  rule: str,
  partial: str | None = "sum",
  gradient: Callable[..., Any] | None = None,
  kernel: Mapping[str, str] | None = None,
  **sizes: int,
) -> Any:
  """An op of Tensors that is computed by `fn`, on cut operands on each device's part, by a rule:

      matmul = custom_op(lambda x, w: x @ w, rule="b m k, b k n -> b m n")

  `rule`: for each operand and result (commas), of which factors its dims (spaces) are made. A factor that is cut is cut
  wherever it is named; one that the result does not have is reduced: where it is cut, the result is partial by
  `partial`: "sum", "max", "min" or "prod" (None: it is not cut). `...`: leading dims that operands share by position.
  `(h d)`: a dim of several factors, major to minor, the sizes that shapes do not tell by keyword (`h=8`). `!k`: a
  factor that may not be cut; its dims are gathered first. `1`: a dim of length one. Parts are equal: a factor that its
  axes do not divide is gathered. A factor that only a result has is not cut.

  `fn`: a function of Tensors that returns one, or a tuple of them for several results. It is traced once for each tuple
  of shapes: of the whole operands, and of the parts. It reads no other memory, and takes sizes from its operands.
  `gradient`: of the gradient of each result and the operands, a gradient for each operand (None: there is none), all of
  them whole; without it, the gradient of what fn computes, which runs on parts by the rule turned around.
  `check_rule` compares parts with the whole.
  `kernel`: by kind of backend a source that runs in place of fn: for CPU a C function of fn's name, which returns void.
  Its arguments are pointers to the result and to each operand, a device's parts, contiguous and row-major (float* for
  float32, …), which do not overlap, and then as int64_t the dims of the result and of each operand, in order. One
  thread of the device runs it. All other kinds run fn, and gradients are fn's, or `gradient`'s.
  Raises: ShardError where rule, shapes and fn disagree; TypeError for what are no Tensors; DeviceError for a kernel
  that does not compile, when it is run.
  """
  if fn is None:
    return lambda fn: custom_op(fn, rule=rule, partial=partial, gradient=gradient, kernel=kernel, **sizes)
  if partial not in tuple(REDUCTIONS):  # it may have no hash
    known = ", ".join(map(repr, REDUCTIONS))
    refuse(f"custom op: there is no partial={partial!r} in the rule {rule!r}", f"one of {known}")
  for what, f in (("fn", fn), ("gradient", gradient or fn)):
    if not callable(f):
      refuse(f"custom op: {what}={f!r} is no function of Tensors", AN_OP, error=TypeError)
  read = factor_rule_from(rule, sizes)
  operands = [f"operand {i}" for i in range(len(read.sources))]
  check_arguments("fn", fn, rule, operands)
  if gradient is not None:
    results = [f"gradient of result {k}" for k in range(len(read.results))]
    check_arguments("gradient", gradient, rule, results + operands)
  return CustomFunction(fn, read, REDUCTIONS[partial], gradient, kernels_of(kernel or {}, name_of(fn), read))


def check_arguments(what: str, f: Callable[..., Any], rule: str, given: Sequence[str]) -> None:
  """Raises: ShardError for a function that cannot be called with what it will be given."""
  try:
    signature = inspect.signature(f)
  except ValueError:
    return  # written in C
  try:
    signature.bind(*given)
  except TypeError as e:
    said = f"custom op: {what} {name_of(f)} cannot be called with {', '.join(given)}: {e} (the rule is {rule!r})"
    refuse(said, f"{what} of {len(given)} arguments, or a rule of other operands and results")


def kernels_of(given: Any, name: str, rule: FactorRule) -> tuple[tuple[str, str], ...]:
  """(kind of backend, source) of each kernel. Raises: ShardError, DeviceError for what is no kernel."""
  if not isinstance(given, Mapping):
    fix = f"kernel={{'CPU': 'void {name}(float *out, const float *x, …) {{…}}'}}"
    refuse(f"custom op: kernel={given!r} does not say for which kind of backend", fix)
  for kind, source in given.items():
    check_source(kind, source, name, rule)
  return tuple(sorted(given.items()))


def check_source(kind: Any, source: Any, name: str, rule: FactorRule) -> None:
  """Raises: ShardError, DeviceError for what is no kernel of one result."""
  Device.capabilities(kind)
  if len(rule.results) > 1:
    fix = "leave kernel out, or make an op of each result"
    refuse(f"custom op: a kernel has one result, and the rule {rule.text!r} {len(rule.results)}", fix)
  if not isinstance(source, str) or not re.search(rf"\b{re.escape(name)}\s*\(", source):
    fix = f"kernel={{{kind!r}: 'void {name}(float *out, const float *x, …) {{…}}'}} for def {name}(x)"
    refuse(f"custom op: the source of the kernel for {kind} has no function {name}, as fn is called", fix)


def name_of(fn: Any) -> str:
  return str(getattr(fn, "__name__", type(fn).__name__))


def check_parts(u: UOp) -> None:
  """Traces a node on the parts of its sources, so that what does not fit raises at the user's line."""
  u = next(v for v in u.down() if v.op is Ops.CUSTOM)
  if not isinstance(here := u.device, Sharding):
    return
  if any(s.device is None for s in u.src):
    return  # these are cut as the others ask
  parts = [UOp.new(Ops.HOLE, s.dtype, (), (i, lengths(s.device, s.shape))) for i, s in enumerate(u.src)]
  u.arg[1].trace(tuple(parts), lengths(here, u.shape))
