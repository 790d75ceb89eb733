"""What the operators share: their table, values that are known on the host, types, and small steps."""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from tinygrad.dtype import DType, dtypes, from_numpy_dtype
from tinygrad.helpers import LazyModule
from tinygrad.mixin.base import DeviceLike
from tinygrad.tensor import Tensor

HOST = set(
  "shape axes starts ends steps pads repeats split k sizes scales roi depth output_shape sequence_lens ratio "
  "training_mode condition start limit delta dft_length image_shape block_shape max_boxes max_overlap least position "
  "at".split()
)  # inputs that arrive as flat lists of numbers
LARGEST = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}  # finite; what casts saturate at
OPS: dict[str, Callable[..., Any]] = {}  # by "Name", or "domain:Name" for a domain of one's own
Values = MutableMapping[str, Any]
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
  fix = "export the model without it, or add a function for it to tinygrad.nn.onnx.OPS"
  return OnnxError(f"the operator {what} is not supported\n  fix: {fix}")


def tensor_dtype(number: int) -> DType:
  if (dtype := onnx_dtype(number)) is None:
    raise OnnxError(f"the type {onnx.TensorProto.DataType.Name(number)} is not supported\n  fix: export another type")
  return dtype


def array_of(tensor: Any) -> Any:
  """The numpy array of a TensorProto. OnnxError for a type that no tensor here has."""
  if onnx_dtype(tensor.data_type) is None:
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    raise OnnxError(f"the constant {tensor.name!r} is of type {name}, which no tensor here has")
  return onnx.numpy_helper.to_array(tensor)


def one(x: Any) -> Any:
  """A number, from an input or an attribute."""
  return x[0] if isinstance(x, list) else x


def along(x: Tensor, axis: int, index: Any) -> Tensor:
  return x[(*(slice(None),) * (axis % x.ndim), index)]


def lined(t: Tensor, x: Tensor, axis: int = 1) -> Tensor:
  """A vector, shaped to go along an axis of x."""
  return t._lined(axis % x.ndim, x.ndim)


def array_beside(value: Any, x: Tensor) -> Tensor:
  """An array where x is."""
  return Tensor(value, device=x.device if isinstance(x.device, str) else None)


def saturating_cast(x: Tensor, dtype: DType, saturate: int) -> Tensor:
  if not saturate or (most := LARGEST.get(dtype)) is None:
    return x.cast(dtype)
  return x.isnan().where(x, x.clamp(-most, most)).cast(dtype)
