"""Run ONNX models: `OnnxRunner("model.onnx")({"input": x})`.

The operators of the standard (https://onnx.ai/onnx/operators) that it does not define by others, and some of ONNX
Runtime's own, are in `OPS`, a module a theme. A function whose name is capitalised is the operator of that name. Its
parameters are the inputs, in the standard's order, and the attributes, by their names; what was an attribute in an old
opset and is an input now has one parameter for both. An input in `values.HOST` arrives as a flat list of Python
numbers; `opset`, `outputs` (their number) and `kind` (the first input's numpy dtype) are filled in. It returns one
value or a tuple of them: a Tensor, an array where it is known, a list (a sequence) or None. `scope` is where a node
with graphs among its attributes stands: the runner, the values that it sees, and its opsets. An attribute that a
function does not take is at the standard's default.

`OPS` may be added to: `OPS["Name"]`, or `OPS["domain:Name"]` for a domain of one's own.
"""

from tinygrad.nn.onnx import control, images, layers, operators, quantized, windows  # each adds its own to OPS
from tinygrad.nn.onnx.runner import OnnxRunner, OnnxValue
from tinygrad.nn.onnx.values import OPS, OnnxError

__all__ = [
  "OPS", "OnnxError", "OnnxRunner", "OnnxValue", "control", "images", "layers", "operators", "quantized", "windows",
]  # fmt: skip
