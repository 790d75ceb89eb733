"""Elementwise operators, shapes, indices, scattering, reductions, scans and random numbers."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from tinygrad.dtype import dtypes, from_numpy_dtype
from tinygrad.helpers import numpy, prod
from tinygrad.nn.onnx.values import OPS, OnnxError, along, array_beside, lined, one, saturating_cast, tensor_dtype
from tinygrad.tensor import Tensor

# ---------------------------------------------------------------- elementwise


def Clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
  low, high = (v.cast(x.dtype) if isinstance(v, Tensor) else v for v in (min, max))
  y = x if low is None else x.maximum(low)
  return y if high is None else y.minimum(high)


def Dropout(x: Tensor, ratio: Any = 0.5, training_mode: Any = False, seed: int = 0) -> tuple[Tensor, Tensor]:
  p = one(ratio) if one(training_mode) else 0
  keep = Tensor.rand(*x.shape, device=x.device).ge(p) if p else Tensor.ones(x.shape, dtype=dtypes.bool)
  return (keep.where(x.div(1 - p), 0).cast(x.dtype) if p else x), keep


def BitShift(x: Tensor, y: Tensor, direction: str) -> Tensor:
  return x.lshift(y) if direction == "LEFT" else x.rshift(y)


# ---------------------------------------------------------------- constants, shapes


def Constant(**value: Any) -> Any:
  ((name, x),) = value.items()
  if "string" in name or name == "sparse_value":
    raise OnnxError(f"a Constant with {name} is not supported")
  return numpy.asarray(x, {"value": None}.get(name, numpy.float32 if "float" in name else numpy.int64))


def ConstantOfShape(shape: list[int], value: Any = None) -> Any:
  fill = numpy.zeros(1, numpy.float32) if value is None else value
  return Tensor.full(tuple(shape), fill.item(), from_numpy_dtype(fill.dtype))


def EyeLike(x: Tensor, dtype: int | None = None, k: int = 0) -> Tensor:
  hit = Tensor.arange(x.shape[0]).add(k).unsqueeze(1).eq(Tensor.arange(x.shape[1]))
  return hit.cast(x.dtype if dtype is None else tensor_dtype(dtype))


def Reshape(x: Tensor, shape: list[int], allowzero: int = 0) -> Tensor:
  return x.reshape(tuple(x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)))


def Squeeze(x: Tensor, axes: list[int] | None = None) -> Tensor:
  drop = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else [a % x.ndim for a in axes]
  return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in drop))


def Unsqueeze(x: Tensor, axes: list[int]) -> Tensor:
  for a in sorted(a % (x.ndim + len(axes)) for a in axes):
    x = x.unsqueeze(a)
  return x


def Slice(x: Tensor, starts: list[int], ends: list[int], axes: Any = None, steps: Any = None) -> Tensor:
  index = [slice(None)] * x.ndim
  for i, a in enumerate(range(len(starts)) if axes is None else axes):
    index[a] = slice(starts[i], ends[i], 1 if steps is None else steps[i])
  return x[tuple(index)]


def Pad(x: Tensor, pads: list[int], value: Any = None, axes: Any = None, mode: str = "constant") -> Tensor:
  pairs, n = [(0, 0)] * x.ndim, len(pads) // 2
  for i, a in enumerate(range(n) if axes is None else axes):
    pairs[a] = pads[i], pads[i + n]
  y = x.pad(pairs, {"edge": "replicate", "wrap": "circular"}.get(mode, mode))
  if value is None or mode != "constant":
    return y
  inside = Tensor.ones(x.shape, dtype=dtypes.bool).pad(pairs)
  return inside.where(y, value.reshape(()) if isinstance(value, Tensor) else value).cast(x.dtype)


# ---------------------------------------------------------------- indexing, scattering


def TopK(x: Tensor, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
  values, places = x.topk(one(k), axis, bool(largest))
  return values, places.cast(dtypes.int64)


def OneHot(indices: Tensor, depth: Any, values: Tensor, axis: int = -1) -> Tensor:
  i, n = indices.long(), int(one(depth))
  i = i.lt(0).where(i.add(n), i).unsqueeze(axis)
  return i.eq(lined(Tensor.arange(n), i, axis)).where(values[1], values[0])


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
  lengths, width = x.shape[: indices.shape[-1]], prod(x.shape[indices.shape[-1] :])
  place = Tensor.zeros(1, dtype=dtypes.int64)
  for i, n in enumerate(lengths):
    row = indices[..., i]
    place = place.mul(n).add(row.lt(0).where(row.add(n), row))
  index = place.reshape(-1, 1).expand(-1, width)
  flat = x.reshape(prod(lengths), width)
  return ScatterElements(flat, index, updates.reshape(-1, width), 0, reduction).reshape(x.shape)


def TensorScatter(x: Tensor, update: Tensor, write: Any = None, axis: int = -2, mode: str = "linear") -> Tensor:
  """Rows written into a cache, for each of the batch from its own position on."""
  start = Tensor.zeros(x.shape[0], dtype=dtypes.int64) if write is None else write
  at = start.unsqueeze(1).add(Tensor.arange(update.shape[axis])).mod(x.shape[axis])
  along = tuple(n if i in (0, axis % x.ndim) else 1 for i, n in enumerate(update.shape))
  return x.scatter(axis, at.reshape(along).expand(update.shape), update)


def ReverseSequence(x: Tensor, sequence_lens: list[int], batch_axis: int = 1, time_axis: int = 0) -> Tensor:
  steps, lengths = numpy.arange(x.shape[time_axis])[:, None], numpy.array(sequence_lens)[None]
  places = numpy.where(steps < lengths, lengths - 1 - steps, steps).astype(numpy.int32)
  index = array_beside(places if time_axis < batch_axis else places.T.copy(), x)
  return x.gather(time_axis, index.reshape((*index.shape, *(1,) * (x.ndim - 2))).expand(x.shape))


def Unique(x: Tensor, axis: int | None = None, sorted: int = 1, kind: Any = None) -> Any:
  values, first, inverse, counts = numpy.unique(x.numpy(), True, True, True, axis=axis)
  if not sorted:
    order = numpy.argsort(first)
    values, first, counts = numpy.take(values, order, axis or 0), first[order], counts[order]
    inverse = numpy.argsort(order)[inverse]
  return values.astype(kind), *(a.reshape(-1).astype(numpy.int64) for a in (first, inverse, counts))


# ---------------------------------------------------------------- reductions, scans, transforms


def _reduce(f: Any, x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
  y: Tensor = f(x, tuple(axes) if axes else () if noop_with_empty_axes else None, bool(keepdims))
  return y.cast(x.dtype)


def _search(f: Any, x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
  place: Tensor = f(x.flip(axis) if select_last_index else x, axis, bool(keepdims)).cast(dtypes.int64)
  return place.sub(x.shape[axis] - 1, reverse=True) if select_last_index else place


def _running(f: Any, start: int, x: Tensor, k: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
  axis = int(one(k)) % x.ndim
  y: Tensor = f(x.flip(axis) if reverse else x, axis).cast(x.dtype)
  if exclusive:
    y = y.pad([(1, -1) if i == axis else None for i in range(x.ndim)], value=start)
  return y.flip(axis) if reverse else y


def _soft(f: Any, x: Tensor, axis: int | None = None, opset: int = 13) -> Any:
  if opset >= 13:
    return f(x, -1 if axis is None else axis)
  n = 1 if axis is None else axis % x.ndim  # all dims from the axis on are one
  return f(x.reshape(prod(x.shape[:n]), prod(x.shape[n:])), -1).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
  return x.argmax(axis, True).eq(lined(Tensor.arange(x.shape[axis]), x, axis)).cast(x.dtype)


def LpNormalization(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
  size = x.abs().pow(p).sum(axis, keepdim=True).pow(1 / p)
  return size.eq(0).where(0, x.div(size)).cast(x.dtype)


def Det(x: Tensor) -> Any:
  return numpy.linalg.det(x.numpy())


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
  axis = (axis if opset < 20 else -2 if axes is None else one(axes)) % x.ndim
  real, imaginary = x[..., 0].double().transpose(axis, -1), x[..., -1].double().transpose(axis, -1)
  if onesided and inverse:  # the other half is the conjugate
    m = int(one(dft_length)) if dft_length else 2 * (real.shape[-1] - 1)
    tail = m - real.shape[-1]
    real, imaginary = (t.cat(t[..., 1 : tail + 1].flip(-1).mul(s), dim=-1) for t, s in ((real, 1), (imaginary, -1)))
  n = int(one(dft_length)) if dft_length else real.shape[-1]
  size = [(0, 0)] * (real.ndim - 1) + [(0, n - real.shape[-1])]
  rows = n // 2 + 1 if onesided and not inverse else n
  angle = 2 * math.pi / n * numpy.outer(numpy.arange(n), numpy.arange(rows)) * (1 if inverse else -1)
  scale = 1 / n if inverse else 1.0
  c, s = (array_beside(f(angle) * scale, x) for f in (numpy.cos, numpy.sin))
  real, imaginary = real.pad(size), imaginary.pad(size) if x.shape[-1] == 2 else real.pad(size).zeros_like()
  out = [real.matmul(c).sub(imaginary.matmul(s)), real.matmul(s).add(imaginary.matmul(c))]
  parts = [t.transpose(axis, -1).cast(x.dtype) for t in (out[:1] if onesided and inverse else out)]
  return parts[0].stack(*parts[1:], dim=-1)


def _random(sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
  def draw(like: Any = None, shape: Any = None, dtype: int = 0, seed: float = 0, **scale: Any) -> Tensor:
    kind = tensor_dtype(dtype or 1) if dtype or like is None else like.dtype
    return sample(*(like.shape if shape is None else shape), dtype=dtypes.float32, **scale).cast(kind)

  return draw


# ---------------------------------------------------------------- the table

# operators that are methods, whose names are their own in lower case unless given
METHODS = (
  "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log MatMul Mish Mul Neg Reciprocal Relu "
  "Round Sigmoid Sign Sin Sinh Softsign Sqrt Sub Sum:usum Tan Tanh Where Equal:eq Greater:gt GreaterOrEqual:ge Less:lt "
  "LessOrEqual:le And:bitwise_and Or:bitwise_or Xor:bitwise_xor Not:logical_not BitwiseAnd:bitwise_and "
  "BitwiseOr:bitwise_or BitwiseXor:bitwise_xor BitwiseNot:bitwise_not"
)
FUNCTIONS: tuple[Callable[..., Any], ...] = (
  Clip, Dropout, BitShift, Constant, ConstantOfShape, EyeLike, Reshape, Squeeze, Unsqueeze, Slice, Pad, TopK, OneHot,
  GatherND, ScatterElements, ScatterND, TensorScatter, ReverseSequence, Unique, LpNormalization, Det, DFT,
)  # fmt: skip
OPS |= {
  **{f.__name__: f for f in FUNCTIONS},
  **{name: getattr(Tensor, own or name.lower()) for name, _, own in (m.partition(":") for m in METHODS.split())},
  "Div": lambda x, y: x.div(y) if x.is_floating_point() else x.div(y, rounding_mode="trunc"),
  "Mod": lambda x, y, fmod=0: x.fmod(y) if fmod else x.mod(y),
  "Identity": lambda x: x, "Cast": lambda x, to, saturate=1: saturating_cast(x, tensor_dtype(to), saturate),
  "Celu": lambda x, alpha=1.0: x.celu(alpha),
  "Pow": lambda x, y: x.pow(y).cast(x.dtype), "Mean": lambda *args: args[0].usum(*args[1:]).div(len(args)),
  "IsInf": lambda x, detect_negative=1, detect_positive=1: x.isinf(bool(detect_positive), bool(detect_negative)),
  "Max": lambda *args: reduce(Tensor.maximum, args), "Min": lambda *args: reduce(Tensor.minimum, args),
  "Einsum": lambda *args, equation: Tensor.einsum(equation, *args), "Tile": lambda x, repeats: x.repeat(*repeats),
  "Shape": lambda x, start=0, end=None: numpy.array(x.shape[start:end], numpy.int64),
  "Range": lambda start, limit, delta, kind: numpy.arange(one(start), one(limit), one(delta)).astype(kind),
  "Flatten": lambda x, axis=1: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),
  "Transpose": lambda x, perm=None: x.permute(tuple(reversed(range(x.ndim))) if perm is None else tuple(perm)),
  "Size": lambda x: numpy.array(x.numel(), numpy.int64), "Concat": lambda *args, axis: args[0].cat(*args[1:], dim=axis),
  "Split": lambda x, split=None, axis=0, num_outputs=0, outputs=1: tuple(
    x.split(split or math.ceil(x.shape[axis] / (num_outputs or outputs)), axis)
  ),
  "Trilu": lambda x, k=0, upper=1: x.triu(one(k)) if upper else x.tril(one(k)),
  "Expand": lambda x, shape: x.expand(numpy.broadcast_shapes(x.shape, tuple(shape))),
  "Gather": lambda x, indices, axis=0: along(x, axis, indices),
  "GatherElements": lambda x, i, axis=0: x.gather(axis, i),
  "ReduceSum": partial(_reduce, Tensor.sum), "ReduceMean": partial(_reduce, Tensor.mean),
  "ReduceMax": partial(_reduce, Tensor.max), "ReduceMin": partial(_reduce, Tensor.min),
  "ReduceProd": partial(_reduce, Tensor.prod),
  "NonZero": lambda x: x.nonzero().T.cast(dtypes.int64),
  "Softmax": partial(_soft, Tensor.softmax), "LogSoftmax": partial(_soft, Tensor.log_softmax),
  "Compress": lambda x, condition, axis=None: along(
    x.flatten() if axis is None else x, axis or 0, array_beside(numpy.flatnonzero(condition), x)
  ),
  "ReduceLogSumExp": partial(_reduce, lambda x, axis, keep: x.double().logsumexp(axis, keep)),
  "ReduceLogSum": partial(_reduce, lambda x, axis, keep: x.double().sum(axis, keep).log()),
  "ReduceL1": partial(_reduce, lambda x, axis, keep: x.abs().sum(axis, keep)),
  "ReduceL2": partial(_reduce, lambda x, axis, keep: x.double().square().sum(axis, keep).sqrt()),
  "ReduceSumSquare": partial(_reduce, lambda x, axis, keep: x.square().sum(axis, keep)),
  "Scatter": ScatterElements,
  "Hardmax": partial(_soft, _hardmax),
  "BitCast": lambda x, to: x.bitcast(tensor_dtype(to)),
  "ArgMax": partial(_search, Tensor.argmax), "ArgMin": partial(_search, Tensor.argmin),
  "CumSum": partial(_running, Tensor.cumsum, 0),
  "CumProd": partial(_running, Tensor.cumprod, 1),
  "RandomUniform": _random(Tensor.uniform), "RandomUniformLike": _random(Tensor.uniform),
  "RandomNormal": _random(Tensor.normal), "RandomNormalLike": _random(Tensor.normal),
  "ArrayFeatureExtractor": lambda x, places: x[..., places.flatten()],
  "Binarizer": lambda x, threshold=0.0: x.gt(threshold).cast(x.dtype),
}  # fmt: skip
