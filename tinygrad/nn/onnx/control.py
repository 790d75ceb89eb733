"""Conditions and loops, whose bodies are graphs among a node's attributes; sequences and optionals."""

import functools
import itertools
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.nn.onnx.values import OPS, Known, OnnxError, Values, array_of, on_host, one, tensor_dtype
from tinygrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Scope:
  """Where a node stands: what an operator with a graph among its attributes needs."""

  runner: Any
  values: Values
  opset: dict[str, int]

  def run(self, graph: Any, *inputs: Any) -> list[Any]:
    """The graph's outputs; it sees the values around it."""
    values: Values = ChainMap({}, self.values)
    values.update((t.name, Known(array_of(t))) for t in graph.initializer)
    values.update((i.name, x) for i, x in zip(graph.input, inputs, strict=True))
    self.runner._run(graph.node, values, self.opset)
    return [values[o.name] for o in graph.output]

  def apply(self, op: str, *inputs: Any, **attributes: Any) -> Any:
    """The one output of an operator."""
    return self.runner._apply(OPS[op], list(inputs), attributes, 1 << 30, 1)[0]

  def stacked(self, found: list[Any], declared: Any, axis: int) -> Any:
    """What the iterations gave, along a new axis. Of none it is empty and as the body declares it, where a dim whose
    length is not told is 0."""
    if found:
      return self.apply("ConcatFromSequence", found, axis=axis, new_axis=1)
    kind = declared.type.tensor_type
    if not kind.elem_type or not kind.HasField("shape"):
      problem = f"no iteration gives {declared.name!r}, and the body does not declare its type and shape"
      raise OnnxError(f"{problem}\n  fix: export the model with them, e.g. by onnx.shape_inference")
    dims = [d.dim_value for d in kind.shape.dim]
    dims.insert(axis % (len(dims) + 1), 0)
    return Known(numpy.zeros(dims, to_numpy_dtype(tensor_dtype(kind.elem_type))))


def SplitToSequence(x: Tensor, split: Any = None, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
  parts = x.split(1 if split is None else split if len(split) > 1 else split[0], axis)
  return [p if keepdims or split is not None else p.squeeze(axis) for p in parts]


def _scoped(f: Callable[..., Any]) -> Callable[..., Any]:
  """An operator whose first argument is the `Scope` of its node."""

  @functools.wraps(f)
  def call(scope: Any, *inputs: Any, **attributes: Any) -> Any:
    return f(Scope(*scope), *inputs, **attributes)

  return call


@_scoped
def If(scope: Any, condition: Any, then_branch: Any, else_branch: Any) -> Any:
  return tuple(scope.run(then_branch if one(on_host(condition)) else else_branch))


@_scoped
def Loop(scope: Any, trips: Any = None, condition: Any = None, *state: Any, body: Any) -> Any:
  n, most, go = len(state), one(on_host(trips)), condition is None or one(on_host(condition))
  seen: list[Any] = [[] for _ in body.output[1 + n :]]
  for i in itertools.count() if most is None else range(most):
    if not go:
      break
    out = scope.run(body, Known(numpy.array(i)), Known(numpy.array(True)), *state)
    go, state = one(on_host(out[0])), out[1 : 1 + n]
    for found, y in zip(seen, out[1 + n :]):
      found.append(y)
  return *state, *(scope.stacked(found, y, 0) for found, y in zip(seen, body.output[1 + n :]))


@_scoped
def Scan(
  scope: Any,
  *inputs: Any,
  body: Any,
  num_scan_inputs: int,
  scan_input_axes: Any = None,
  scan_input_directions: Any = None,
  scan_output_axes: Any = None,
  scan_output_directions: Any = None,
) -> Any:
  n = len(inputs) - num_scan_inputs
  state, scanned = inputs[:n], inputs[n:]
  axes, back = scan_input_axes or [0] * num_scan_inputs, scan_input_directions or [0] * num_scan_inputs
  seen: list[Any] = [[] for _ in body.output[n:]]
  into, forth = scan_output_axes or [0] * len(seen), scan_output_directions or [0] * len(seen)
  trips = (scanned[0].value if isinstance(scanned[0], Known) else scanned[0]).shape[axes[0]]
  for i in range(trips):
    at = [Known(numpy.array(trips - 1 - i if b else i)) for b in back]
    out = scope.run(body, *state, *(scope.apply("Gather", x, k, axis=a) for x, k, a in zip(scanned, at, axes)))
    state = out[:n]
    for found, y, b in zip(seen, out[n:], forth):
      found.insert(0 if b else i, y)
  return *state, *(scope.stacked(found, y, a) for found, y, a in zip(seen, body.output[n:], into))


@_scoped
def SequenceMap(scope: Any, x: list[Any], *more: Any, body: Any) -> Any:
  rows = ([x[i], *(m[i] if isinstance(m, list) else m for m in more)] for i in range(len(x)))
  return tuple(map(list, zip(*(scope.run(body, *row) for row in rows))))


OPS |= {f.__name__: f for f in (SplitToSequence, If, Loop, Scan, SequenceMap)} | {
  "SequenceEmpty": lambda dtype=1: [],
  "SequenceConstruct": lambda *args: list(args),
  "SequenceAt": lambda x, position: x[one(position)],
  "SequenceInsert": lambda x, y, at=None: [*x, y] if at is None else [*x[: one(at)], y, *x[one(at) :]],
  "SequenceErase": lambda x, position=-1: [y for i, y in enumerate(x) if i != one(position) % len(x)],
  "SequenceLength": lambda x: numpy.int64(len(x)),
  "ConcatFromSequence": lambda x, axis, new_axis=0: (Tensor.stack if new_axis else Tensor.cat)(*x, dim=axis),
  "Optional": lambda x=None, type=None: x,
  "OptionalGetElement": lambda x: x,
  "OptionalHasElement": lambda x=None: numpy.bool_(x is not None),
}
