"""The operators of the ONNX standard (https://onnx.ai/onnx/operators) that it does not define by others.

A function whose name is capitalised is the operator of that name. Its parameters are the inputs, in the standard's
order, and the attributes, by their names; what was an attribute in an old opset and is an input now has one parameter
for both. An input in HOST arrives as a flat list of Python numbers; `opset`, `outputs` (their number) and `kind` (the
first input's numpy dtype) are filled in. It returns one value or a tuple of them: a Tensor, an array where it is known,
a list (a sequence) or None. `scope` is where a node with graphs among its attributes stands: the runner, the values
that it sees, and its opsets.

An attribute that a function does not take is at the standard's default.

`OPS` may be added to: "Name", or "domain:Name" for a domain of one's own. `extra/onnx_more.py` in the repository adds
recurrent layers, conditions, loops, sequences, quantisation, scatter, resampling, transposed convolutions and others;
and the rarer attributes of those here: training BatchNormalization, ….
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, ClassVar

from tinygrad.dtype import DType, dtypes, from_numpy_dtype
from tinygrad.helpers import LazyModule, numpy, prod
from tinygrad.mixin.base import DeviceLike
from tinygrad.tensor import Tensor

HOST = set(
  "shape axes starts ends steps pads repeats split k sizes scales roi depth output_shape sequence_lens ratio "
  "training_mode condition start limit delta".split()
)
LARGEST = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}  # finite; what casts saturate at
onnx: Any = LazyModule("onnx")


class OnnxError(ValueError):
  """A model that cannot be run, or inputs that do not fit it: names the node or the input, and a fix."""


@dataclass(slots=True, eq=False)
class Known:
  """A value that is known on the host: its numbers, and its Tensor once one was asked for."""

  value: Any
  there: Tensor | None = None
  SMALL: ClassVar[int] = 1 << 12  # elements of a value that is computed in numpy if it can be

  @property
  def small(self) -> bool:
    return bool(self.value.size <= self.SMALL)

  def on(self, device: DeviceLike | None) -> Tensor:
    if self.there is None:
      self.there = Tensor(self.value)
      if self.value.ndim:  # a scalar is a constant of the graph
        self.there = self.there.to(device).realize()
    return self.there


def on_host(x: Any) -> Any:
  """The numbers of a value, as a flat list."""
  array = x.value if isinstance(x, Known) else x.numpy() if isinstance(x, Tensor) else None
  return x if array is None else array.reshape(-1).tolist()


@cache
def onnx_dtype(number: int) -> DType | None:
  """Of a number of TensorProto.DataType; None where there is no such type here."""
  try:
    return from_numpy_dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
  except (TypeError, KeyError):
    return None


def unsupported(what: str) -> OnnxError:
  fix = "import extra.onnx_more, export the model without it, or add a function for it to tinygrad.nn.onnx_ops.OPS"
  return OnnxError(f"the operator {what} is not supported\n  fix: {fix}")


def to_dtype(number: int) -> DType:
  if (dtype := onnx_dtype(number)) is None:
    raise OnnxError(f"the type {onnx.TensorProto.DataType.Name(number)} is not supported\n  fix: export another type")
  return dtype


def _one(x: Any) -> Any:
  """A number, from an input or an attribute."""
  return x[0] if isinstance(x, list) else x


def _along(x: Tensor, axis: int, index: Any) -> Tensor:
  return x[(*(slice(None),) * (axis % x.ndim), index)]


# ---------------------------------------------------------------- elementwise


def Clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
  low, high = (v.cast(x.dtype) if isinstance(v, Tensor) else v for v in (min, max))
  y = x if low is None else x.maximum(low)
  return y if high is None else y.minimum(high)


def _cast(x: Tensor, dtype: DType, saturate: int) -> Tensor:
  if not saturate or (most := LARGEST.get(dtype)) is None:
    return x.cast(dtype)
  return x.isnan().where(x, x.clamp(-most, most)).cast(dtype)


def Dropout(x: Tensor, ratio: Any = 0.5, training_mode: Any = False, seed: int = 0) -> tuple[Tensor, Tensor]:
  p = _one(ratio) if _one(training_mode) else 0
  keep = Tensor.rand(*x.shape, device=x.device).ge(p) if p else Tensor.ones(x.shape, dtype=dtypes.bool)
  return (keep.where(x.div(1 - p), 0).cast(x.dtype) if p else x), keep


# ---------------------------------------------------------------- constants, shapes


def Constant(**value: Any) -> Any:
  ((name, x),) = value.items()
  if "string" in name or name == "sparse_value":
    raise OnnxError(f"a Constant with {name} is not supported")
  return numpy.asarray(x, {"value": None}.get(name, numpy.float32 if "float" in name else numpy.int64))


def ConstantOfShape(shape: list[int], value: Any = None) -> Any:
  fill = numpy.zeros(1, numpy.float32) if value is None else value
  return Tensor.full(tuple(shape), fill.item(), from_numpy_dtype(fill.dtype))


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


# ---------------------------------------------------------------- indexing


def TopK(x: Tensor, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
  values, places = x.topk(_one(k), axis, bool(largest))
  return values, places.cast(dtypes.int64)


# ---------------------------------------------------------------- reductions


def _reduce(f: Any, x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
  y: Tensor = f(x, tuple(axes) if axes else () if noop_with_empty_axes else None, bool(keepdims))
  return y.cast(x.dtype)


def _search(f: Any, x: Tensor, axis: int = 0, keepdims: int = 1) -> Any:
  return f(x, axis, bool(keepdims)).cast(dtypes.int64)


def _soft(f: Any, x: Tensor, axis: int | None = None, opset: int = 13) -> Any:
  if opset >= 13:
    return f(x, -1 if axis is None else axis)
  n = 1 if axis is None else axis % x.ndim  # all dims from the axis on are one
  return f(x.reshape(prod(x.shape[:n]), prod(x.shape[n:])), -1).reshape(x.shape)


# ---------------------------------------------------------------- matrices, normalisation


def Gemm(
  a: Tensor, b: Tensor, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
  y = (a.transpose() if transA else a).matmul(b.transpose() if transB else b).mul(alpha)
  return (y if c is None else y.add(c.mul(beta))).cast(a.dtype)


def BatchNormalization(
  x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5, momentum: float = 0.9,
  is_test: int = 1,
) -> Tensor:  # fmt: skip
  return x.batchnorm(scale, bias, mean, var.add(epsilon).rsqrt()).cast(x.dtype)


def InstanceNormalization(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
  y = x.reshape(*x.shape[:2], -1).layernorm(eps=epsilon).reshape(x.shape)
  return y.mul(scale._lined(1, x.ndim)).add(bias._lined(1, x.ndim))


# ---------------------------------------------------------------- convolution and pooling


def _window(
  x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", dilations: Any = None, pads: Any = None, strides: Any = None
) -> tuple[Any, Any, Any, Any]:
  """(kernel, strides, dilations, padding as this library has it: before and after, the last dim first)."""
  kernel, rank = tuple(kernel_shape), len(kernel_shape)
  strides, dilations = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
  pads = pads if pads and auto_pad == "NOTSET" else [0] * 2 * rank
  both = [(pads[i], pads[i + rank]) for i in range(rank)]
  if auto_pad.startswith("SAME"):
    fit = zip(x.shape[2:], kernel, strides, dilations)
    total = [max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n) for n, k, s, d in fit]
    both = [_halves(t, auto_pad) for t in total]
  return kernel, strides, dilations, tuple(p for pair in reversed(both) for p in pair)


def _halves(n: int, auto_pad: str) -> tuple[int, int]:
  return (n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2)


def Conv(x: Tensor, w: Tensor, b: Any = None, group: int = 1, kernel_shape: Any = None, **window: Any) -> Tensor:
  _, *rest = _window(x, w.shape[2:], **window)
  return x.conv2d(w, b, group, *rest)


def MaxPool(
  x: Tensor, ceil_mode: int = 0, auto_pad: str = "NOTSET", dilations: Any = None, kernel_shape: Any = None,
  pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
  window = _window(x, kernel_shape, auto_pad, dilations, pads, strides)
  y, places = x.max_pool2d(*window, ceil_mode=bool(ceil_mode), return_indices=True)
  planes = Tensor.arange(prod(x.shape[:2])).reshape((*x.shape[:2], *(1,) * (x.ndim - 2)))
  return y, planes.mul(prod(x.shape[2:])).add(places).cast(dtypes.int64)


def AveragePool(x: Tensor, ceil_mode: int = 0, count_include_pad: int = 0, **window: Any) -> Tensor:
  return x.avg_pool2d(*_window(x, **window), ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad))


# ---------------------------------------------------------------- the table

# operators that are methods, whose names are their own in lower case unless given
METHODS = (
  "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log MatMul Mish Mul Neg Reciprocal Relu "
  "Round Sigmoid Sign Sin Sinh Softsign Sqrt Sub Sum:usum Tan Tanh Where Equal:eq Greater:gt GreaterOrEqual:ge Less:lt "
  "LessOrEqual:le And:bitwise_and Or:bitwise_or Xor:bitwise_xor Not:logical_not BitwiseAnd:bitwise_and "
  "BitwiseOr:bitwise_or BitwiseXor:bitwise_xor BitwiseNot:bitwise_not"
)
OPS: dict[str, Callable[..., Any]] = {
  **{name: f for name, f in list(globals().items()) if name[0].isupper() and type(f) is type(_one)},
  **{name: getattr(Tensor, own or name.lower()) for name, _, own in (m.partition(":") for m in METHODS.split())},
  "Div": lambda x, y: x.div(y) if x.is_floating_point() else x.div(y, rounding_mode="trunc"),
  "Mod": lambda x, y, fmod=0: x.fmod(y) if fmod else x.mod(y),
  "Identity": lambda x: x, "Cast": lambda x, to, saturate=1: _cast(x, to_dtype(to), saturate),
  "Pow": lambda x, y: x.pow(y).cast(x.dtype), "Mean": lambda *args: args[0].usum(*args[1:]).div(len(args)),
  "IsInf": lambda x, detect_negative=1, detect_positive=1: x.isinf(bool(detect_positive), bool(detect_negative)),
  "Max": lambda *args: reduce(Tensor.maximum, args), "Min": lambda *args: reduce(Tensor.minimum, args),
  "Einsum": lambda *args, equation: Tensor.einsum(equation, *args), "Tile": lambda x, repeats: x.repeat(*repeats),
  "Shape": lambda x, start=0, end=None: numpy.array(x.shape[start:end], numpy.int64),
  "Range": lambda start, limit, delta, kind: numpy.arange(_one(start), _one(limit), _one(delta)).astype(kind),
  "Flatten": lambda x, axis=1: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),
  "Transpose": lambda x, perm=None: x.permute(tuple(reversed(range(x.ndim))) if perm is None else tuple(perm)),
  "Size": lambda x: numpy.array(x.numel(), numpy.int64), "Concat": lambda *args, axis: args[0].cat(*args[1:], dim=axis),
  "Split": lambda x, split=None, axis=0, num_outputs=0, outputs=1: tuple(
    x.split(split or math.ceil(x.shape[axis] / (num_outputs or outputs)), axis)
  ),
  "Trilu": lambda x, k=0, upper=1: x.triu(_one(k)) if upper else x.tril(_one(k)),
  "Expand": lambda x, shape: x.expand(numpy.broadcast_shapes(x.shape, tuple(shape))),
  "Gather": lambda x, indices, axis=0: _along(x, axis, indices),
  "GatherElements": lambda x, i, axis=0: x.gather(axis, i.lt(0).where(i.add(x.shape[axis]), i)),
  "ReduceSum": partial(_reduce, Tensor.sum), "ReduceMean": partial(_reduce, Tensor.mean),
  "ReduceMax": partial(_reduce, Tensor.max), "ReduceMin": partial(_reduce, Tensor.min),
  "ReduceProd": partial(_reduce, Tensor.prod),
  "ArgMax": partial(_search, Tensor.argmax), "ArgMin": partial(_search, Tensor.argmin),
  "CumSum": lambda x, k: x.cumsum(int(_one(k))).cast(x.dtype), "NonZero": lambda x: x.nonzero().T.cast(dtypes.int64),
  "Softmax": partial(_soft, Tensor.softmax), "LogSoftmax": partial(_soft, Tensor.log_softmax),
  "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), True),
  "GlobalMaxPool": lambda x: x.max(tuple(range(2, x.ndim)), True),
}  # fmt: skip
