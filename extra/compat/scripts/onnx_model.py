"""An ONNX model (convolution, pooling, batch norm, softmax over a Gemm), written as onnx.proto defines it, and run."""

import pathlib
import struct
import tempfile

import numpy as np
from common import digits, report

from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner


def varint(n):
  out = b""
  while n > 127:
    out, n = out + bytes([n & 127 | 128]), n >> 7
  return out + bytes([n])


def field(number, value):
  """One field of a message: an int, a float, text, or bytes (a message too)."""
  if isinstance(value, int):
    return varint(number << 3) + varint(value)
  if isinstance(value, float):
    return varint(number << 3 | 5) + struct.pack("<f", value)
  data = value.encode() if isinstance(value, str) else value
  return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name, value):
  kind, number = {float: (1, 2), int: (2, 3), list: (7, 8)}[type(value)]
  values = value if isinstance(value, list) else [value]
  return field(1, name) + b"".join(field(number, v) for v in values) + field(20, kind)


def node(op, inputs, output, **attributes):
  out = b"".join(field(1, i) for i in inputs) + field(2, output) + field(3, f"node_{output}") + field(4, op)
  return field(1, out + b"".join(field(5, attribute(k, v)) for k, v in attributes.items()))


def weight(name, array):
  dims = b"".join(field(1, n) for n in array.shape)
  return field(5, dims + field(2, 1) + field(8, name) + field(9, array.astype("<f4").tobytes()))


def value(number, name, *shape):
  dims = b"".join(field(1, field(1, n)) for n in shape)
  return field(number, field(1, name) + field(2, field(1, field(1, 1) + field(2, dims))))


def model(rng):
  def normal(*shape):
    return rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))

  graph = (
    node("Conv", ["x", "cw", "cb"], "c", pads=[1, 1, 1, 1], strides=[1, 1], kernel_shape=[3, 3])
    + node("BatchNormalization", ["c", "one", "zero", "mean", "var"], "b", epsilon=1e-5)
    + node("Relu", ["b"], "r")
    + node("MaxPool", ["r"], "p", kernel_shape=[2, 2], strides=[2, 2])
    + node("Flatten", ["p"], "f", axis=1)
    + node("Gemm", ["f", "w", "wb"], "g", transB=1, alpha=0.5)
    + node("Softmax", ["g"], "y", axis=1)
    + field(2, "digits")
    + weight("cw", normal(8, 1, 3, 3))
    + weight("cb", normal(8))
    + weight("one", 1 + normal(8) / 8)
    + weight("zero", normal(8))
    + weight("mean", normal(8))
    + weight("var", 1 + normal(8) ** 2)
    + weight("w", normal(10, 128) * 4)
    + weight("wb", normal(10))
    + value(11, "x", 4, 1, 8, 8)
    + value(12, "y", 4, 10)
  )
  return field(1, 8) + field(2, "compat") + field(7, graph) + field(8, field(1, "") + field(2, 17))


def main():
  images = digits()[0][:4]
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.onnx"
    path.write_bytes(model(np.random.default_rng(18)))
    runner = OnnxRunner(path)
    y = runner({"x": Tensor(images)})["y"].numpy()
  report(y=y, sums=y.sum(1))


if __name__ == "__main__":
  main()
