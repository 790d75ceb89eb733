"""More operators of the ONNX standard: recurrent layers, conditions, loops and sequences, quantisation, scattering,
resampling, transposed convolutions, transforms; some of ONNX Runtime's own; and MaxPool, CumSum, … with attributes that
exporters seldom write.

Importing this module adds them to those that `tinygrad.nn.onnx.OnnxRunner` knows. They are written as
`tinygrad.nn.onnx_ops` says, and any other can be added so.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tinygrad import Tensor, dtypes
from tinygrad.nn import onnx_ops
from tinygrad.nn.onnx import Values
from tinygrad.nn.onnx import _array as onnx_array
from tinygrad.nn.onnx_ops import (
  HOST,
  OPS,
  Conv,
  Known,
  OnnxError,
  _along,
  _cast,
  _halves,
  _one,
  _reduce,
  _soft,
  _window,
  on_host,
  to_dtype,
)


def _like(t: Tensor, x: Tensor, axis: int = 1) -> Tensor:
  """A vector, shaped to go along an axis of x."""
  return t._lined(axis % x.ndim, x.ndim)


def _beside(value: Any, x: Tensor) -> Tensor:
  """An array where x is."""
  return Tensor(value, device=x.device if isinstance(x.device, str) else None)


def DFT(
  x: Tensor,
  dft_length: Any = None,
  axes: Any = None,
  axis: int = 1,
  inverse: int = 0,
  onesided: int = 0,
  opset: int = 20,
) -> Tensor:
  """Of real (.., 1) or complex (.., 2) numbers along an axis, as a product with the matrix of the transform."""
  axis = (axis if opset < 20 else -2 if axes is None else _one(axes)) % x.ndim
  real, imaginary = x[..., 0].double().transpose(axis, -1), x[..., -1].double().transpose(axis, -1)
  if onesided and inverse:  # the other half is the conjugate
    m = int(_one(dft_length)) if dft_length else 2 * (real.shape[-1] - 1)
    tail = m - real.shape[-1]
    real, imaginary = (t.cat(t[..., 1 : tail + 1].flip(-1).mul(s), dim=-1) for t, s in ((real, 1), (imaginary, -1)))
  n = int(_one(dft_length)) if dft_length else real.shape[-1]
  size = [(0, 0)] * (real.ndim - 1) + [(0, n - real.shape[-1])]
  rows = n // 2 + 1 if onesided and not inverse else n
  angle = 2 * math.pi / n * numpy.outer(numpy.arange(n), numpy.arange(rows)) * (1 if inverse else -1)
  scale = 1 / n if inverse else 1.0
  c, s = (_beside(f(angle) * scale, x) for f in (numpy.cos, numpy.sin))
  real, imaginary = real.pad(size), imaginary.pad(size) if x.shape[-1] == 2 else real.pad(size).zeros_like()
  out = [real.matmul(c).sub(imaginary.matmul(s)), real.matmul(s).add(imaginary.matmul(c))]
  parts = [t.transpose(axis, -1).cast(x.dtype) for t in (out[:1] if onesided and inverse else out)]
  return parts[0].stack(*parts[1:], dim=-1)


def BitShift(x: Tensor, y: Tensor, direction: str) -> Tensor:
  return x.lshift(y) if direction == "LEFT" else x.rshift(y)


def EyeLike(x: Tensor, dtype: int | None = None, k: int = 0) -> Tensor:
  hit = Tensor.arange(x.shape[0]).add(k).unsqueeze(1).eq(Tensor.arange(x.shape[1]))
  return hit.cast(x.dtype if dtype is None else to_dtype(dtype))


def GatherND(x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
  rest = (1,) * (indices.ndim - 1)
  batch = [Tensor.arange(x.shape[i]).reshape((*rest[:i], -1, *rest[i + 1 :])) for i in range(batch_dims)]
  return x[(*batch, *(indices[..., i] for i in range(indices.shape[-1])))]


def ScatterElements(x: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none") -> Tensor:
  kinds: dict[str, Any] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
  if reduction == "none":
    return x.scatter(axis, indices, updates)
  return x.scatter_reduce(axis, indices, updates, kinds[reduction])


def ScatterND(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
  lengths, width = x.shape[: indices.shape[-1]], math.prod(x.shape[indices.shape[-1] :])
  place = Tensor.zeros(1, dtype=dtypes.int64)
  for i, n in enumerate(lengths):
    row = indices[..., i]
    place = place.mul(n).add(row.lt(0).where(row.add(n), row))
  index = place.reshape(-1, 1).expand(-1, width)
  flat = x.reshape(math.prod(lengths), width)
  return ScatterElements(flat, index, updates.reshape(-1, width), 0, reduction).reshape(x.shape)


def OneHot(indices: Tensor, depth: Any, values: Tensor, axis: int = -1) -> Tensor:
  i, n = indices.long(), int(_one(depth))
  i = i.lt(0).where(i.add(n), i).unsqueeze(axis)
  return i.eq(_like(Tensor.arange(n), i, axis)).where(values[1], values[0])


def LpNormalization(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
  size = x.abs().pow(p).sum(axis, keepdim=True).pow(1 / p)
  return size.eq(0).where(0, x.div(size)).cast(x.dtype)


def _hardmax(x: Tensor, axis: int) -> Tensor:
  return x.argmax(axis, True).eq(_like(Tensor.arange(x.shape[axis]), x, axis)).cast(x.dtype)


def Det(x: Tensor) -> Any:
  return numpy.linalg.det(x.numpy())


def Unique(x: Tensor, axis: int | None = None, sorted: int = 1, kind: Any = None) -> Any:
  values, first, inverse, counts = numpy.unique(x.numpy(), True, True, True, axis=axis)
  if not sorted:
    order = numpy.argsort(first)
    values, first, counts = numpy.take(values, order, axis or 0), first[order], counts[order]
    inverse = numpy.argsort(order)[inverse]
  return values.astype(kind), *(a.reshape(-1).astype(numpy.int64) for a in (first, inverse, counts))


def ReverseSequence(x: Tensor, sequence_lens: list[int], batch_axis: int = 1, time_axis: int = 0) -> Tensor:
  steps, lengths = numpy.arange(x.shape[time_axis])[:, None], numpy.array(sequence_lens)[None]
  places = numpy.where(steps < lengths, lengths - 1 - steps, steps).astype(numpy.int32)
  index = _beside(places if time_axis < batch_axis else places.T.copy(), x)
  return x.gather(time_axis, index.reshape((*index.shape, *(1,) * (x.ndim - 2))).expand(x.shape))


def TensorScatter(x: Tensor, update: Tensor, write: Any = None, axis: int = -2, mode: str = "linear") -> Tensor:
  """Rows written into a cache, for each of the batch from its own position on."""
  start = Tensor.zeros(x.shape[0], dtype=dtypes.int64) if write is None else write
  at = start.unsqueeze(1).add(Tensor.arange(update.shape[axis])).mod(x.shape[axis])
  along = tuple(n if i in (0, axis % x.ndim) else 1 for i, n in enumerate(update.shape))
  return x.scatter(axis, at.reshape(along).expand(update.shape), update)


def MaxUnpool(x: Tensor, places: Tensor, output_shape: Any = None, **window: Any) -> Tensor:
  kernel, strides, _, pads = _window(x, **window)
  around = [pads[i] + pads[i + 1] for i in range(0, len(pads), 2)][::-1]
  inner = [(n - 1) * s + k - p for n, s, k, p in zip(x.shape[2:], strides, kernel, around)]
  shape = (*x.shape[:2], *inner)
  y = Tensor.zeros(math.prod(shape), dtype=x.dtype).scatter(0, places.flatten(), x.flatten()).reshape(shape)
  return y if output_shape is None else y.pad_to(tuple(output_shape))


def LpPool(x: Tensor, ceil_mode: int = 0, p: int = 2, **window: Any) -> Tensor:
  windows = x.abs().pow(p)._windows(*_window(x, **window), bool(ceil_mode), 0, 0)
  return windows.sum(tuple(range(x.ndim, windows.ndim))).pow(1 / p)


def Col2Im(x: Tensor, image_shape: list[int], block_shape: list[int], **window: Any) -> Tensor:
  """The adjoint of taking windows: a transposed convolution with one output an element of the window."""
  size, rank = math.prod(block_shape), len(block_shape)
  kernel, strides, dilations, _ = _window(x, block_shape, **window)
  pads = window.get("pads") or [0] * 2 * rank
  span = [n + pads[i] + pads[i + rank] for i, n in enumerate(image_shape)]
  positions = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(span, dilations, kernel, strides)]
  groups = x.shape[1] // size
  weight = Tensor.eye(size, dtype=x.dtype).reshape((size, 1, *kernel)).repeat(groups, *(1,) * (rank + 1))
  y = x.reshape((x.shape[0], groups * size, *positions)).conv_transpose2d(weight, None, groups, strides, dilations)
  cut = [(-pads[i], n - pads[i + rank] - m) for i, (n, m) in enumerate(zip(span, y.shape[2:]))]
  return y.pad([None, None, *cut])


def GridSample(
  x: Tensor, grid: Tensor, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
  lengths, flat = x.shape[2:], x.flatten(2)
  points = grid.reshape(grid.shape[0], 1, -1, len(lengths)).float()
  taps: list[list[tuple[Tensor, Tensor]]] = []  # for each dim the (place, weight) of its neighbours
  for d, n in enumerate(lengths):
    at = points[..., len(lengths) - 1 - d].add(1).mul(((n - 1) if align_corners else n) / 2)
    at = at if align_corners else at.sub(0.5)
    if mode == "nearest":
      taps.append([(at.round(), at.ones_like())])
      continue
    low = at.floor()
    t = at.sub(low)
    near = [(k, t.sub(k).abs()) for k in ((0, 1) if mode.endswith("linear") else (-1, 0, 1, 2))]
    taps.append([(low.add(k), s.sub(1, reverse=True) if len(near) == 2 else _keys(s)) for k, s in near])
  total = x.zeros_like()[..., :0].sum()
  for combination in itertools.product(*taps):
    index, weight = Tensor.zeros(1, dtype=dtypes.int32), Tensor.ones(1)
    for n, (place, w) in zip(lengths, combination):
      if padding_mode == "reflection":  # at the centres of the first and last element, or at their outer edges
        first, span = (0.0, n - 1) if align_corners else (-0.5, n)
        turn = place.sub(first).abs().mod(2 * max(1, span))
        place = turn.minimum(turn.sub(2 * max(1, span), reverse=True)).add(first)
      elif padding_mode == "zeros":
        w = place.ge(0).bitwise_and(place.lt(n)).where(w, 0)
      index, weight = index.mul(n).add(place.clamp(0, n - 1).int()), weight.mul(w)
    total = total.add(flat.gather(2, index.expand(*x.shape[:2], index.shape[-1])).mul(weight))
  return total.cast(x.dtype).reshape((*x.shape[:2], *grid.shape[1:-1]))


def _keys(t: Tensor, a: float = -0.75) -> Tensor:
  """`_cubic`, of a Tensor of distances less than 2."""
  near, far = t.mul(a + 2).sub(a + 3).mul(t).mul(t).add(1), t.sub(5).mul(t).add(8).mul(t).sub(4).mul(a)
  return t.le(1).where(near, far)


def NonMaxSuppression(
  boxes: Tensor,
  scores: Tensor,
  max_boxes: Any = 0,
  max_overlap: Any = 0.0,
  least: Any = None,
  center_point_box: int = 0,
) -> Any:
  """Read to the host: how many boxes are selected depends on their numbers."""
  b, s = boxes.numpy(), scores.numpy()
  half = b[..., 2:] / 2
  corners = (b[..., :2] - half, b[..., :2] + half) if center_point_box else (b[..., :2], b[..., 2:])
  low, high = numpy.minimum(*corners), numpy.maximum(*corners)
  area, chosen = (high - low).prod(-1), list[tuple[int, int, int]]()
  for n, c in itertools.product(*map(range, s.shape[:2])):
    kept = list[int]()
    for i in numpy.argsort(-s[n, c], kind="stable"):
      if len(kept) < _one(max_boxes) and (least is None or s[n, c, i] > _one(least)):
        sides = (numpy.minimum(high[n, i], high[n, kept]) - numpy.maximum(low[n, i], low[n, kept])).clip(0)
        both = sides.prod(-1)
        if not (both > _one(max_overlap or 0.0) * (area[n, i] + area[n, kept] - both)).any():
          kept.append(int(i))
    chosen += [(n, c, i) for i in kept]
  return numpy.array(chosen, numpy.int64).reshape(-1, 3)


# ---------------------------------------------------------------- quantisation, operators of ONNX Runtime


def _blocks(t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
  """Scales or zero points, shaped like x: one for all, one an index of `axis`, or one a block along it."""
  if t.ndim <= 1:
    return t.reshape(()) if t.numel() == 1 else _like(t, x, axis)
  return t.repeat_interleave(block, axis).shrink([(0, n) for n in x.shape])


def QuantizeLinear(
  x: Tensor, scale: Tensor, zero: Any = None, axis: int = 1, saturate: int = 1, block_size: int = 0,
  output_dtype: int = 0, precision: int = 0,
) -> Tensor:  # fmt: skip
  dtype = zero.dtype if zero is not None else to_dtype(output_dtype) if output_dtype else dtypes.uint8
  y = x.float().div(_blocks(scale, x, axis, block_size).float())
  if dtypes.is_float(dtype):
    return _cast(y, dtype, saturate)
  y = y.round() if zero is None else y.round().add(_blocks(zero, x, axis, block_size).float())
  return y.clamp(dtypes.min(dtype), dtypes.max(dtype)).cast(dtype)


def DequantizeLinear(
  x: Tensor, scale: Tensor, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
  y = x.float() if zero is None else x.float().sub(_blocks(zero, x, axis, block_size).float())
  y = y.mul(_blocks(scale, x, axis, block_size).float())
  return y.cast(to_dtype(output_dtype) if output_dtype else scale.dtype)


def MatMulInteger(a: Tensor, b: Tensor, a_zero: Any = None, b_zero: Any = None) -> Tensor:
  rows = a_zero.unsqueeze(-1) if a_zero is not None and a_zero.ndim else a_zero
  return a.int().sub(0 if rows is None else rows.int()).matmul(b.int().sub(0 if b_zero is None else b_zero.int()))


def ConvInteger(x: Tensor, w: Tensor, x_zero: Any = None, w_zero: Any = None, **conv: Any) -> Tensor:
  columns = _like(w_zero, w, 0) if w_zero is not None and w_zero.ndim else w_zero
  centred = w.int().sub(0 if columns is None else columns.int())
  return Conv(x.int().sub(0 if x_zero is None else x_zero.int()), centred, **conv)


def QLinearMatMul(
  a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
  y = MatMulInteger(a, b, a_zero, b_zero).float().mul(a_scale.float()).mul(b_scale.float())
  return QuantizeLinear(y, scale, zero)


def QLinearConv(
  x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, scale: Tensor, zero: Tensor,
  bias: Any = None, **conv: Any,
) -> Tensor:  # fmt: skip
  y = ConvInteger(x, w, x_zero, w_zero, **conv)
  y = y if bias is None else y.add(_like(bias, y))
  return QuantizeLinear(y.float().mul(x_scale).mul(_like(w_scale, y) if w_scale.ndim else w_scale), scale, zero)


def _skip_layer_norm(
  x: Tensor, skip: Tensor, gamma: Tensor, beta: Any = None, bias: Any = None, epsilon: float = 1e-12
) -> Any:
  total = x.add(skip) if bias is None else x.add(skip).add(bias)
  y = total.layernorm(-1, epsilon).mul(gamma)
  return y if beta is None else y.add(beta), None, None, total


# ---------------------------------------------------------------- recurrent


def _recurrent(
  step: Callable[..., tuple[Tensor, ...]], default: list[str], x: Tensor, w: Tensor, r: Tensor, b: Any, lengths: Any,
  states: list[Any], direction: str = "forward", hidden_size: int = 0, layout: int = 0, activations: Any = None,
  activation_alpha: Any = None, activation_beta: Any = None, clip: float = 0.0, **more: Any,
) -> Any:  # fmt: skip
  """(every output, the last of each state) of `step(gates of x, recurrent weights, their bias, states, f, …)`."""
  x, states = (x.transpose(0, 1), [s if s is None else s.transpose(0, 1) for s in states]) if layout else (x, states)
  steps, batch, hidden = x.shape[0], x.shape[1], r.shape[-1]
  names, outs, ends = activations or default * w.shape[0], [], []
  for d in range(w.shape[0]):
    mine = names[d * len(default) : (d + 1) * len(default)]
    if unknown := [n for n in mine if n not in ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")]:
      raise OnnxError(f"the activation {unknown[0]} is not supported")
    f = [functools.partial(_activate, n.lower(), clip) for n in mine]
    wide = b[d] if b is not None else Tensor.zeros(2 * w.shape[1], dtype=x.dtype)
    gates = x.matmul(w[d].transpose()).add(wide[: w.shape[1]])
    now = tuple(Tensor.zeros(batch, hidden, dtype=x.dtype) if s is None else s[d] for s in states)
    seen: list[Any] = [None] * steps
    backward = direction == "reverse" or d == 1
    for t in reversed(range(steps)) if backward else range(steps):
      new = step(
        gates[t], r[d].transpose(), wide[w.shape[1] :], now, f, {k: v if v is None else v[d] for k, v in more.items()}
      )
      seen[t] = new[0]
      if lengths is not None:  # a sequence that is over, or has not begun, keeps its state
        valid = _beside([[n > t] for n in lengths], x)
        new, seen[t] = tuple(valid.where(a, c) for a, c in zip(new, now)), valid.where(new[0], 0)
      now = new
    outs.append(seen[0].stack(*seen[1:]))
    ends.append(now)
  y = outs[0].stack(*outs[1:], dim=2 if layout else 1)
  last = [e[0].stack(*e[1:], dim=1 if layout else 0) for e in zip(*ends)]
  return (y.transpose(0, 1) if layout else y, *last)


def _activate(name: str, clip: float, x: Tensor) -> Tensor:
  y: Tensor = getattr(x.clamp(-clip, clip) if clip else x, name)()
  return y


def RNN(
  x: Tensor, w: Tensor, r: Tensor, b: Any = None, sequence_lens: Any = None, h: Any = None, **attributes: Any
) -> Any:
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    return (f[0](g.add(state[0].matmul(r)).add(b)),)

  return _recurrent(step, ["Tanh"], x, w, r, b, sequence_lens, [h], **attributes)


def GRU(
  x: Tensor, w: Tensor, r: Tensor, b: Any = None, sequence_lens: Any = None, h: Any = None,
  linear_before_reset: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    (h,), n = state, state[0].shape[-1]
    update, reset = f[0](g[:, : 2 * n].add(h.matmul(r[:, : 2 * n])).add(b[: 2 * n])).chunk(2, 1)
    inner = r[:, 2 * n :]
    candidate = (
      reset.mul(h.matmul(inner).add(b[2 * n :])) if linear_before_reset else reset.mul(h).matmul(inner).add(b[2 * n :])
    )
    return (update.mul(h).add(update.sub(1, reverse=True).mul(f[1](g[:, 2 * n :].add(candidate)))),)

  return _recurrent(step, ["Sigmoid", "Tanh"], x, w, r, b, sequence_lens, [h], **attributes)


def LSTM(
  x: Tensor, w: Tensor, r: Tensor, b: Any = None, sequence_lens: Any = None, h: Any = None, c: Any = None,
  peepholes: Any = None, input_forget: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
  def step(g: Tensor, r: Tensor, b: Tensor, state: Any, f: Any, more: Any) -> Any:
    h, c = state
    i, o, forget, cell = g.add(h.matmul(r)).add(b).chunk(4, 1)
    pi, po, pf = more["peepholes"].chunk(3) if more["peepholes"] is not None else (0, 0, 0)
    i = f[0](i.add(c.mul(pi)))
    forget = i.sub(1, reverse=True) if input_forget else f[0](forget.add(c.mul(pf)))
    c = forget.mul(c).add(i.mul(f[1](cell)))
    return f[0](o.add(c.mul(po))).mul(f[2](c)), c

  default = ["Sigmoid", "Tanh", "Tanh"]
  return _recurrent(step, default, x, w, r, b, sequence_lens, [h, c], peepholes=peepholes, **attributes)


# ---------------------------------------------------------------- sequences and control flow


@dataclass(frozen=True, slots=True)
class Scope:
  """Where a node stands: what an operator with a graph among its attributes needs."""

  runner: Any
  values: Values
  opset: dict[str, int]

  def run(self, graph: Any, *inputs: Any) -> list[Any]:
    """The graph's outputs; it sees the values around it."""
    values: Values = ChainMap({}, self.values)
    values.update((t.name, Known(onnx_array(t))) for t in graph.initializer)
    values.update((i.name, x) for i, x in zip(graph.input, inputs, strict=True))
    self.runner._run(graph.node, values, self.opset)
    return [values[o.name] for o in graph.output]

  def apply(self, op: str, *inputs: Any, **attributes: Any) -> Any:
    """The one output of an operator."""
    return self.runner._apply(OPS[op], list(inputs), attributes, 1 << 30, 1)[0]


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
  return tuple(scope.run(then_branch if _one(on_host(condition)) else else_branch))


@_scoped
def Loop(scope: Any, trips: Any = None, condition: Any = None, *state: Any, body: Any) -> Any:
  n, most, go = len(state), _one(on_host(trips)), condition is None or _one(on_host(condition))
  seen: list[Any] = [[] for _ in body.output[1 + n :]]
  for i in itertools.count() if most is None else range(most):
    if not go:
      break
    out = scope.run(body, Known(numpy.array(i)), Known(numpy.array(True)), *state)
    go, state = _one(on_host(out[0])), out[1 : 1 + n]
    for found, y in zip(seen, out[1 + n :]):
      found.append(y)
  return *state, *(scope.apply("ConcatFromSequence", found, axis=0, new_axis=1) for found in seen)


@_scoped
def Scan(
  scope: Any, *inputs: Any, body: Any, num_scan_inputs: int, scan_input_axes: Any = None,
  scan_input_directions: Any = None, scan_output_axes: Any = None, scan_output_directions: Any = None,
) -> Any:  # fmt: skip
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
  return *state, *(scope.apply("ConcatFromSequence", found, axis=a, new_axis=1) for found, a in zip(seen, into))


@_scoped
def SequenceMap(scope: Any, x: list[Any], *more: Any, body: Any) -> Any:
  rows = ([x[i], *(m[i] if isinstance(m, list) else m for m in more)] for i in range(len(x)))
  return tuple(map(list, zip(*(scope.run(body, *row) for row in rows))))


def _random(sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
  def draw(like: Any = None, shape: Any = None, dtype: int = 0, seed: float = 0, **scale: Any) -> Tensor:
    kind = to_dtype(dtype or 1) if dtype or like is None else like.dtype
    return sample(*(like.shape if shape is None else shape), dtype=dtypes.float32, **scale).cast(kind)

  return draw


def BatchNormalization(
  x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
  epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, is_test: int = 1,
) -> Any:  # fmt: skip
  if is_test and not training_mode:
    return onnx_ops.BatchNormalization(x, scale, bias, mean, var, epsilon)
  axes = tuple(i for i in range(x.ndim) if i != 1)
  now, spread = x.mean(axes), x.var(axes, correction=0)
  y = x.batchnorm(scale, bias, now, spread.add(epsilon).rsqrt()).cast(x.dtype)
  return y, *(old.mul(momentum).add(new.mul(1 - momentum)).cast(old.dtype) for old, new in ((mean, now), (var, spread)))


def LRN(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
  around = x.square().pad([((size - 1) // 2, size // 2) if i == 1 else None for i in range(x.ndim)]).unfold(1, size, 1)
  return x.div(around.sum(-1).mul(alpha / size).add(bias).pow(beta))


def _search(f: Any, x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
  place: Tensor = f(x.flip(axis) if select_last_index else x, axis, bool(keepdims)).cast(dtypes.int64)
  return place.sub(x.shape[axis] - 1, reverse=True) if select_last_index else place


def _running(f: Any, start: int, x: Tensor, k: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
  axis = int(_one(k)) % x.ndim
  y: Tensor = f(x.flip(axis) if reverse else x, axis).cast(x.dtype)
  if exclusive:
    y = y.pad([(1, -1) if i == axis else None for i in range(x.ndim)], value=start)
  return y.flip(axis) if reverse else y


def ConvTranspose(
  x: Tensor, w: Tensor, b: Any = None, group: int = 1, kernel_shape: Any = None, output_padding: Any = None,
  output_shape: Any = None, auto_pad: str = "NOTSET", pads: Any = None, **window: Any,
) -> Tensor:  # fmt: skip
  if not output_shape and not auto_pad.startswith("SAME"):
    _, strides, dilations, padding = _window(x, w.shape[2:], pads=pads, **window)
    return x.conv_transpose2d(w, b, group, strides, dilations, padding, output_padding or 0)
  kernel, strides, dilations, _ = _window(x, w.shape[2:], **window)
  y = x.conv_transpose2d(w, None, group, strides, dilations, 0, output_padding or 0)
  wanted = output_shape[-len(kernel) :] if output_shape else [n * s for n, s in zip(x.shape[2:], strides)]
  both = [_halves(n - m, auto_pad) for n, m in zip(y.shape[2:], wanted)]
  y = y.pad([None, None, *((-before, -after) for before, after in both)])
  return y if b is None else y.add(_like(b, y))


def MaxPool(x: Tensor, ceil_mode: int = 0, storage_order: int = 0, **window: Any) -> Any:
  y, places = onnx_ops.MaxPool(x, ceil_mode, **window)
  if storage_order:  # the place counted with the first dim of the plane fastest
    h, w = x.shape[2:]
    plane, at = places.div(h * w, rounding_mode="floor"), places.mod(h * w)
    places = plane.mul(h * w).add(at.mod(w).mul(h)).add(at.div(w, rounding_mode="floor"))
  return y, places


def _cubic(t: Any, a: float) -> Any:
  """The piecewise cubic of Keys (1981) at a distance t."""
  near, far = ((a + 2) * t - (a + 3)) * t * t + 1, a * (((t - 5) * t + 8) * t - 4)
  return (t <= 1) * near + ((t > 1) & (t < 2)) * far


def _positions(n: int, m: int, scale: float, mode: str, roi: Sequence[float]) -> Any:
  """Where in n elements each of m lies."""
  i = numpy.arange(m)
  if mode == "align_corners":
    return i * (n - 1) / (n * scale - 1) if m > 1 else i * 0.0
  if mode == "asymmetric":
    return i / scale
  if mode == "tf_crop_and_resize":
    first, last = roi[0] * (n - 1), roi[1] * (n - 1)
    return first + i * (last - first) / (m - 1) if m > 1 else (i + 0.5) * (first + last)
  if mode == "pytorch_half_pixel" and m == 1:
    return i * 0.0
  middle = n / 2 * (1 - m / (scale * n)) if mode == "half_pixel_symmetric" else 0.0
  return middle + (i + 0.5) / scale - 0.5


def _weights(at: Any, n: int, scale: float, cubic: float | None, outside: bool) -> Any:
  """(len(at), n): how much of each element goes into each result; `scale` < 1 widens the window. Elements beyond the
  ends are those at the ends, or (`outside` False) none."""
  reach = math.ceil(2 / scale) + 1
  places = numpy.arange(-reach, n + reach)
  t = numpy.abs(at[:, None] - places) * scale
  w = numpy.maximum(0, 1 - t) if cubic is None else _cubic(t, cubic)
  w = w if outside else w * ((places >= 0) & (places < n))
  w = w / w.sum(1, keepdims=True)
  folded = numpy.zeros((n, len(at)))
  numpy.add.at(folded, places.clip(0, n - 1), w.T)
  return folded.T.astype(numpy.float32)


def Resize(
  x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, antialias: int = 0, axes: Any = None,
  coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75, exclude_outside: int = 0,
  extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
  nearest_mode: str = "round_prefer_floor", opset: int = 11,
) -> Tensor:  # fmt: skip
  if opset < 11:  # (x, scales)
    scales, coordinate_transformation_mode, nearest_mode = scales or roi, "asymmetric", "floor"
  dims = [a % x.ndim for a in axes] if axes else list(range(x.ndim))
  lengths = [x.numpy_shape()[d] for d in dims]
  if sizes:
    scales = [m / n for m, n in zip(sizes, lengths)]
    if keep_aspect_ratio_policy != "stretch":
      scales = [(min if keep_aspect_ratio_policy == "not_larger" else max)(scales)] * len(dims)
      sizes = [math.floor(n * s + 0.5) for n, s in zip(lengths, scales)]
  beyond, y = numpy.zeros(()), x
  for i, (d, n, s) in enumerate(zip(dims, lengths, scales)):
    m = sizes[i] if sizes else math.floor(n * s)
    area = (roi[i], roi[i + len(dims)]) if roi and coordinate_transformation_mode.startswith("tf") else (0.0, 1.0)
    at = _positions(n, m, s, coordinate_transformation_mode, area)
    beyond = beyond[..., None] | ((at < 0) | (at > n - 1)) if i else (at < 0) | (at > n - 1)
    if m == n and numpy.array_equal(at, numpy.arange(n)):
      continue
    if mode == "nearest":
      low, high = numpy.floor(at), numpy.ceil(at)
      rounded = {"floor": low, "ceil": high, "round_prefer_floor": numpy.ceil(at - 0.5)}
      places = rounded.get(nearest_mode, numpy.floor(at + 0.5)).clip(0, n - 1)
      y = _along(y, d, _beside(places.astype(numpy.int32), x))
    else:
      cubic = cubic_coeff_a if mode == "cubic" else None
      w = _weights(at, n, min(1, s) if antialias else 1, cubic, not exclude_outside)
      y = y.float().transpose(d, -1).matmul(_beside(w.T.copy(), x)).transpose(d, -1)
  if coordinate_transformation_mode.startswith("tf") and beyond.any():
    y = _beside(beyond, x).where(extrapolation_value, y)
  return (y if mode == "nearest" or dtypes.is_float(x.dtype) else y.round()).cast(x.dtype)


HOST.update("dft_length image_shape block_shape max_boxes max_overlap least position at".split())
OPERATORS: dict[str, Callable[..., Any]] = {
  f.__name__: f
  for f in (
    BitShift, EyeLike, LpNormalization, QuantizeLinear, DequantizeLinear, MatMulInteger, ConvInteger, QLinearMatMul,
    QLinearConv, DFT, Det, Unique, ReverseSequence, TensorScatter, MaxUnpool, LpPool, Col2Im, GridSample,
    NonMaxSuppression, RNN, GRU, LSTM, SplitToSequence, Loop, Scan, SequenceMap, BatchNormalization, LRN,
    ConvTranspose, MaxPool, Resize, GatherND, ScatterElements, ScatterND, OneHot, If,
  )
} | {
  "Compress": lambda x, condition, axis=None: _along(
    x.flatten() if axis is None else x, axis or 0, _beside(numpy.flatnonzero(condition), x)
  ),
  "com.microsoft:BiasGelu": lambda x, bias: x.add(bias).gelu("none"),
  "com.microsoft:FastGelu": lambda x, bias=None: (x if bias is None else x.add(bias)).gelu("tanh"),
  "com.microsoft:SkipLayerNormalization": _skip_layer_norm,
  "ReduceLogSumExp": functools.partial(_reduce, lambda x, axis, keep: x.double().logsumexp(axis, keep)),
  "ReduceLogSum": functools.partial(_reduce, lambda x, axis, keep: x.double().sum(axis, keep).log()),
  "ReduceL1": functools.partial(_reduce, lambda x, axis, keep: x.abs().sum(axis, keep)),
  "ReduceL2": functools.partial(_reduce, lambda x, axis, keep: x.double().square().sum(axis, keep).sqrt()),
  "ReduceSumSquare": functools.partial(_reduce, lambda x, axis, keep: x.square().sum(axis, keep)),
  "Scatter": ScatterElements,
  "Hardmax": functools.partial(_soft, _hardmax),
  "BitCast": lambda x, to: x.bitcast(to_dtype(to)),
  "Upsample": lambda x, scales, mode="nearest": Resize(x, None, scales, mode=mode, opset=9),
  "ArgMax": functools.partial(_search, Tensor.argmax), "ArgMin": functools.partial(_search, Tensor.argmin),
  "CumSum": functools.partial(_running, Tensor.cumsum, 0),
  "CumProd": functools.partial(_running, Tensor.cumprod, 1),
  "RandomUniform": _random(Tensor.uniform), "RandomUniformLike": _random(Tensor.uniform),
  "RandomNormal": _random(Tensor.normal), "RandomNormalLike": _random(Tensor.normal),
  "SequenceEmpty": lambda dtype=1: [],
  "SequenceConstruct": lambda *args: list(args),
  "SequenceAt": lambda x, position: x[_one(position)],
  "SequenceInsert": lambda x, y, at=None: [*x, y] if at is None else [*x[: _one(at)], y, *x[_one(at) :]],
  "SequenceErase": lambda x, position=-1: [y for i, y in enumerate(x) if i != _one(position) % len(x)],
  "SequenceLength": lambda x: numpy.int64(len(x)),
  "ConcatFromSequence": lambda x, axis, new_axis=0: (Tensor.stack if new_axis else Tensor.cat)(*x, dim=axis),
  "Optional": lambda x=None, type=None: x,
  "OptionalGetElement": lambda x: x,
  "OptionalHasElement": lambda x=None: numpy.bool_(x is not None),
  "ArrayFeatureExtractor": lambda x, places: x[..., places.flatten()],
  "Binarizer": lambda x, threshold=0.0: x.gt(threshold).cast(x.dtype),
}  # fmt: skip
OPS.update(OPERATORS)
