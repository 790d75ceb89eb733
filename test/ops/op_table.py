"""Every public method of Tensor that computes something: how it is called here and in PyTorch, and on what.

A row is run on all its shapes in its first dtype (with gradients, and on views that are not contiguous), and on its
last shapes in the other dtypes and on special values. PyTorch says what comes out; where it is not installed, its
answers of test/data/op_table.npz do (`python test/ops/op_table.py` writes them).
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad import Tensor
from tinygrad.uop import Ops

try:
  import torch
  import torch.nn.functional as F
except ImportError:
  torch = F = None

GOLDEN = pathlib.Path(__file__).parents[1] / "data/op_table.npz"
FLOATS = ("float32", "float16", "bfloat16", "float64")
INTS = ("int32", "int8", "uint8", "int16", "int64")
ANY = ("float32", "int32", "bool", "float16", "uint8", "int64")
TINY, LEAST, GREATEST = float(np.finfo(np.float32).tiny), 1e-45, float(np.finfo(np.float32).max)
SPECIAL = np.array(
  [
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    LEAST,
    -3 * LEAST,
    TINY,
    GREATEST,
    -GREATEST,
    90.0,
    -110.0,
    3e4,
  ],
  np.float32,
)
UNARY = [((),), ((1,),), ((0, 3),), ((2, 1, 5),)]
BINARY = [((3,), (3,)), ((), (2,)), ((0, 3), (1, 3)), ((2, 1, 3), (5, 1))]
ROWS_OF = [((5,),), ((3, 1),), ((2, 3, 5),)]
MATRIX = [((3, 5),)]


@dataclass(frozen=True, slots=True)
class Row:
  """`inputs`: for each case a shape (random values) or an array (given as it is, never differentiated) an operand.
  `wide`: PyTorch's int64 is int32 (uint32) here, as in numpy's and the peer's counting types. `special`: also on
  SPECIAL, or on pairs of them. `within`: the range of random floats, `whole`: they are
  whole numbers, so that there are zeros, kinks and ties. `tol`: tolerances are multiplied by it."""

  name: str
  ours: Callable[..., Any]
  theirs: Callable[..., Any]
  inputs: Sequence[Sequence[Any]]
  dtypes: tuple[str, ...] = FLOATS
  grad: bool = True
  special: bool = False
  wide: bool = False
  whole: bool = False
  within: tuple[float, float] = (-2.0, 2.0)
  tol: float = 1.0


ROWS: list[Row] = []


def row(
  name: str,
  inputs: Sequence[Sequence[Any]],
  ours: Callable[..., Any] | None = None,
  theirs: Callable[..., Any] | None = None,
  dtypes: tuple[str, ...] = FLOATS,
  **settings: Any,
) -> None:
  """A row; without `ours` the method itself is called, without `theirs` PyTorch's tensors take the same call."""
  call = ours or (lambda *xs: getattr(xs[0], name)(*xs[1:]))
  settings.setdefault("grad", dtypes[0].startswith("float"))
  ROWS.append(Row(name, call, theirs or call, inputs, dtypes, **settings))


# ---------------------------------------------------------------- creation

FLOAT = ("float32",)
for _args in ((5,), (1, 5), (5, 1), (1, 10, 3), (5, -5, -2), (0, 1, 0.3), (1.0, 4), (0,), (2, 2.5)):
  if _args[0] <= _args[1] if len(_args) == 2 else True:
    row(
      "arange", [()], lambda a=_args: Tensor.arange(*a), lambda a=_args: torch.arange(*a), FLOAT, grad=False, wide=True
    )
row("arange", [()], lambda: Tensor.arange(5, 1), lambda: torch.zeros(0, dtype=torch.int32), FLOAT, grad=False)
row(
  "arange",
  [()],
  lambda: Tensor.arange(2**40, 2**40 + 3, dtype="int64"),
  lambda: torch.arange(2**40, 2**40 + 3),
  FLOAT,
  grad=False,
)
for _args in ((0, 1, 5), (3, 5, 1), (5, -5, 4), (0, 1, 0)):
  row("linspace", [()], lambda a=_args: Tensor.linspace(*a), lambda a=_args: torch.linspace(*a), FLOAT, grad=False)
row("eye", [()], lambda: Tensor.eye(2, 3), lambda: torch.eye(2, 3), FLOAT, grad=False)
row("eye", [()], lambda: Tensor.eye(3, dtype="int32"), lambda: torch.eye(3, dtype=torch.int32), FLOAT, grad=False)
row("zeros", [()], lambda: Tensor.zeros(2, 0), lambda: torch.zeros(2, 0), FLOAT, grad=False)
row(
  "ones",
  [()],
  lambda: Tensor.ones((2, 3), dtype="bfloat16"),
  lambda: torch.ones((2, 3), dtype=torch.bfloat16),
  FLOAT,
  grad=False,
)
for _value in (7, True, -0.5, math.inf):
  row(
    "full",
    [()],
    lambda v=_value: Tensor.full((2, 2), v),
    lambda v=_value: torch.full((2, 2), v),
    FLOAT,
    grad=False,
    wide=True,
  )
row("const", [()], lambda: Tensor.const(-3.5), lambda: torch.tensor(-3.5), FLOAT, grad=False)
row("const", [()], lambda: Tensor.const(-3.5, "int32"), lambda: torch.tensor(-3, dtype=torch.int32), FLOAT, grad=False)

# ---------------------------------------------------------------- elementwise, one operand

for _name in ("exp", "exp2", "sin", "cos", "tanh", "erf", "sigmoid", "square", "relu", "neg"):
  row(_name, UNARY, special=True)
for _name in ("floor", "ceil", "round", "trunc"):
  row(_name, UNARY, special=True)
row("sign", UNARY, None, lambda x: torch.where(x.isnan(), x, torch.sign(x)), special=True)  # nan of nan, as in numpy
for _name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"):
  row(_name, UNARY, special=True, within=(0.1, 3.0))
for _name in ("asin", "acos", "atanh"):
  row(_name, UNARY, special=True, within=(-0.9, 0.9), tol=2)
for _name in ("tan", "atan", "sinh", "cosh", "asinh"):
  row(_name, UNARY, special=True, within=(-1.2, 1.2), tol=2)
for _name in (
  "sin",
  "cos",
  "tan",
  "asin",
  "acos",
  "atan",
  "sinh",
  "cosh",
  "tanh",
  "asinh",
  "atanh",
  "erf",
  "exp",
  "sigmoid",
  "silu",
  "elu",
  "celu",
  "mish",
  "softplus",
  "logsigmoid",
  "abs",
  "relu",
  "square",
  "selu",
  "softsign",
  "hardswish",
  "leaky_relu",
):
  row(
    _name,
    [((3,),)],
    None,
    lambda x, n=_name: getattr(torch, n, None)(x) if hasattr(torch, n) else getattr(F, n)(x),
    FLOAT,
    within=(0.0, 1e-30),
    tol=2,
  )
row("acosh", UNARY, special=True, within=(1.1, 3.0), tol=2)
row("abs", UNARY, special=True)
for _name in ("relu6", "silu", "mish", "softsign", "logsigmoid", "hardswish", "hardsigmoid"):
  row(_name, UNARY, None, lambda x, n=_name: getattr(F, n)(x), special=True, tol=2)
row("swish", UNARY, None, lambda x: F.silu(x), special=True)
row("quick_gelu", UNARY, None, lambda x: x * torch.sigmoid(1.702 * x), special=True)
row("gelu", UNARY, None, lambda x: F.gelu(x, approximate="tanh"), special=True, tol=2)
row("gelu", UNARY, lambda x: x.gelu("none"), lambda x: F.gelu(x), tol=2)  # PyTorch's vector code gives nan of inf
row("leaky_relu", UNARY, None, lambda x: F.leaky_relu(x), special=True)
row("hardtanh", UNARY, lambda x: x.hardtanh(-0.5, 1), lambda x: F.hardtanh(x, -0.5, 1), special=True)
row("elu", UNARY, lambda x: x.elu(1.5), lambda x: F.elu(x, 1.5), special=True)
row("celu", UNARY, lambda x: x.celu(2.0), lambda x: F.celu(x, 2.0), special=True)
row("selu", UNARY, None, lambda x: F.selu(x), special=True, tol=2)
row("softplus", UNARY, lambda x: x.softplus(2.0), lambda x: F.softplus(x, 2.0, 1e9), tol=2)
row("clamp", UNARY, lambda x: x.clamp(-0.5, 0.7), dtypes=("float32", "float64"), special=True)
row("clamp", UNARY, lambda x: x.clamp(max_=1), lambda x: x.clamp(max=1), ("int32", "uint8", "float32"))
row("clip", UNARY, lambda x: x.clip(-0.5, 0.7), special=True)
row("isnan", UNARY, grad=False, special=True)
row("isfinite", UNARY, grad=False, special=True)
row("isinf", UNARY, grad=False, special=True)
row("isinf", UNARY, lambda x: x.isinf(True, False), lambda x: x.isposinf(), grad=False, special=True)
row("logical_not", UNARY, dtypes=ANY, grad=False, special=True)
row("bitwise_not", UNARY, dtypes=("int32", "bool", "uint8", "int64"))
row("__invert__", UNARY, lambda x: ~x, dtypes=("int32", "bool", "uint8"))
row("__neg__", UNARY, lambda x: -x, dtypes=("float32", "int32", "uint8"))
row("neg", UNARY, dtypes=INTS)
row("abs", UNARY, dtypes=INTS)
row("sign", UNARY, dtypes=INTS)
row("square", UNARY, dtypes=INTS)
row("exp", UNARY, dtypes=("int32", "bool", "uint8"))
row("sqrt", UNARY, dtypes=("int32", "uint8", "bool"))
row("sin", UNARY, dtypes=("int32", "bool"))
row("sigmoid", UNARY, dtypes=("int32", "bool"))
row("reciprocal", UNARY, dtypes=("int32",))
row("floor", UNARY, dtypes=("int32",))
row("zeros_like", UNARY, None, lambda x: torch.zeros_like(x), ANY, grad=False)
row("ones_like", UNARY, None, lambda x: torch.ones_like(x), ANY, grad=False)
row("full_like", UNARY, lambda x: x.full_like(3), lambda x: torch.full_like(x, 3), ANY, grad=False)
row("detach", UNARY, grad=False)
row("contiguous", UNARY)
row("contiguous_backward", UNARY, None, lambda x: x * 1)
row("clone", UNARY)
for _name in ("bool", "half", "bfloat16", "float", "double", "short", "int", "long"):
  row(_name, UNARY, grad=_name in ("half", "bfloat16", "float", "double"), within=(-100.0, 100.0))
row("cast", UNARY, lambda x: x.cast("uint8"), lambda x: x.to(torch.uint8), ("int32", "int8", "bool", "int64"))
row("cast", UNARY, lambda x: x.cast("float32"), lambda x: x.float(), ("int32", "int64", "bool", "uint8"))
row(
  "bitcast", UNARY, lambda x: x.bitcast("int32"), lambda x: x.view(torch.int32), ("float32",), grad=False, special=True
)
row(
  "bitcast",
  MATRIX,
  lambda x: x.bitcast("uint8"),
  lambda x: x.contiguous().view(torch.uint8),
  ("float32", "float64", "int32"),
  grad=False,
)
row(
  "is_floating_point",
  UNARY,
  lambda x: x.cast("int32") * x.is_floating_point(),
  lambda x: x.int() * x.is_floating_point(),
  ("float32", "int32"),
  grad=False,
)

# ---------------------------------------------------------------- elementwise, several operands

NUMBERS = ("float32", "int32", "float16", "bfloat16", "float64", "uint8", "int64", "int8")
for _name in ("add", "sub", "mul", "maximum", "minimum"):
  row(_name, BINARY, dtypes=NUMBERS, special=True)
for _name in ("add", "mul"):
  row(_name, BINARY, dtypes=("bool",))
row("maximum", BINARY, dtypes=("bool",))
row("div", BINARY, None, None, FLOATS, special=True, tol=2)
row("div", BINARY, dtypes=("int32", "uint8", "bool"), within=(1, 9))
for _mode in ("trunc", "floor"):
  row("div", BINARY, lambda x, y, m=_mode: x.div(y, rounding_mode=m), None, ("float32", "float64"), grad=False)
  row(
    "div", [((3,), np.array([-3, 2, 5], np.int32))], lambda x, y, m=_mode: x.div(y, rounding_mode=m), None, ("int32",)
  )
row(
  "mod",
  BINARY,
  lambda x, y: x.mod(y),
  lambda x, y: torch.remainder(x, y),
  ("float32", "float64"),
  special=False,
  within=(0.5, 5),
)
row("mod", [((5,), np.array([-3, 2, 5, -1, 3], np.int32))], None, lambda x, y: torch.remainder(x, y), ("int32",))
row("fmod", BINARY, dtypes=("float32", "float64"), within=(0.5, 5))
row("fmod", [((5,), np.array([-3, 2, 5, -1, 3], np.int32))], dtypes=("int32",))
row("pow", BINARY, within=(0.5, 2.0), tol=4)
row("pow", BINARY, dtypes=("float32",), special=True, within=(0.5, 2.0), grad=False, tol=4)
for _exponent in (0, 1, 2, 3, -1, 0.5, -0.5, 1.7, 7):
  row(
    "pow", UNARY, lambda x, e=_exponent: x.pow(e), None, ("float32", "float64"), special=True, within=(0.5, 2.0), tol=4
  )
row("pow", UNARY, lambda x: x.pow(3), dtypes=INTS)
row("__rpow__", UNARY, lambda x: 2**x, dtypes=("float32",), tol=4)
row(
  "copysign",
  BINARY,
  lambda x, y: x.copysign((y == y).where(y, 1)),
  lambda x, y: x.copysign(torch.where(y == y, y, 1)),
  special=True,
)
row("logaddexp", BINARY, dtypes=("float32", "float64"), special=True, tol=2)
row("lerp", [((3,), (3,)), ((2, 3), (2, 1))], lambda x, y: x.lerp(y, 0.3))
row("lerp", [((3,), (3,), (3,))], dtypes=("float32",))
for _name, _op in {
  "__lt__": "lt",
  "__gt__": "gt",
  "__le__": "le",
  "__ge__": "ge",
  "__eq__": "eq",
  "__ne__": "ne",
}.items():
  row(_name, BINARY, lambda x, y, n=_name: getattr(x, n)(y), dtypes=NUMBERS, grad=False, special=True)
  row(_op, BINARY, dtypes=("float32", "bool"), grad=False)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
  row(_name, BINARY, dtypes=("int32", "bool", "uint8", "int64"))
row("lshift", [((5,), np.array([0, 1, 3, 7, 2], np.int32))], None, lambda x, y: x << y, ("int32",))
row("rshift", [((5,), np.array([0, 1, 3, 7, 2], np.int32))], None, lambda x, y: x >> y, ("int32",))
row("where", [((3,), (2, 1))], lambda x, y: (x > 0).where(x, y), lambda x, y: torch.where(x > 0, x, y), ANY[:2])
row("where", UNARY, lambda x: (x > 0).where(x, 1.5), lambda x: torch.where(x > 0, x, 1.5), ("float32", "float16"))
row("masked_fill", UNARY, lambda x: x.masked_fill(x > 0, 3), dtypes=("float32", "int32"))
row("isclose", BINARY, lambda x, y: x.isclose(y, 0.3), dtypes=("float32",), grad=False, special=True)
row("isclose", BINARY, lambda x, y: x.isclose(y, equal_nan=True), dtypes=("float32",), grad=False, special=True)
row(
  "allclose",
  [((3,), (3,))],
  lambda x, y: x.allclose(y, 2.0, 2.0),
  lambda x, y: torch.tensor(torch.allclose(x, y, 2.0, 2.0)),
  ("float32",),
  grad=False,
)
row("usum", BINARY, lambda x, y: x.usum(y, x), lambda x, y: x + y + x)
row("uprod", BINARY, lambda x, y: x.uprod(y, x), lambda x, y: x * y * x)
row("alu", [((3,), (3,))], lambda x, y: x.alu(Ops.MUL, y), lambda x, y: x * y, ("float32", "int32"))
row("ufix", UNARY, lambda x: x + x.ufix(2), lambda x: x + 2, ("float32", "int32"))
row("const_like", UNARY, lambda x: x + x.const_like(2), lambda x: x + 2, ("float32", "int32"))
OPERATORS: dict[str, Callable[..., Any]] = {
  "__add__": lambda x: x + 2,
  "__radd__": lambda x: 2 + x,
  "__sub__": lambda x: x - 2,
  "__rsub__": lambda x: 2 - x,
  "__mul__": lambda x: x * 3,
  "__rmul__": lambda x: 3 * x,
  "__truediv__": lambda x: x / 4,
  "__pow__": lambda x: x**2,
  "__mod__": lambda x: x % 3,
  "__floordiv__": lambda x: x // 2,
}
for _name, _f in OPERATORS.items():
  row(_name, UNARY, _f, dtypes=("float32", "int32", "float16", "int64"), grad=_name != "__floordiv__")
row("__rtruediv__", UNARY, lambda x: 3 / x, dtypes=("float32", "float16"), within=(0.5, 2.0))
row("__rfloordiv__", UNARY, lambda x: 7 // x, dtypes=("float32",), within=(0.5, 2.0), grad=False)
row("__rmod__", UNARY, lambda x: 7 % x, dtypes=("float32",), within=(0.5, 2.0), grad=False)
BITS: dict[str, Callable[..., Any]] = {
  "__and__": lambda x: x & 5,
  "__rand__": lambda x: 5 & x,
  "__or__": lambda x: x | 5,
  "__ror__": lambda x: 5 | x,
  "__xor__": lambda x: x ^ 5,
  "__rxor__": lambda x: 5 ^ x,
  "__lshift__": lambda x: x << 2,
  "__rshift__": lambda x: x >> 1,
}
for _name, _f in BITS.items():
  row(_name, UNARY, _f, dtypes=INTS)
row("__rlshift__", [(np.array([0, 3], np.int32),)], lambda x: 5 << x, dtypes=("int32",))
row("__rrshift__", [(np.array([0, 3], np.int32),)], lambda x: -50 >> x, dtypes=("int32",))


def _in_place(operator: str) -> Callable[..., Any]:
  def call(x: Any, y: Any) -> Any:
    z = x.clone()
    return getattr(z, operator)(y) if operator != "__imatmul__" or hasattr(z, "uop") else z @ y

  return call


for _name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"):
  row(_name, [((2, 3), (1, 3))], _in_place(_name), dtypes=("float32",), within=(0.5, 2.0), tol=4)
row("__ifloordiv__", [((2, 3), (1, 3))], _in_place("__ifloordiv__"), dtypes=("float32",), within=(0.5, 2.0), grad=False)
row("__imatmul__", [((3, 3), (3, 3))], _in_place("__imatmul__"), dtypes=("float32",))
for _name in ("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"):
  row(_name, [((2, 3), np.array([[1, 2, 3]], np.int32))], _in_place(_name), dtypes=("int32",))

# ---------------------------------------------------------------- reductions and what is made of them

AXES: list[Any] = [None, 0, -1]
for _name in ("sum", "prod", "mean"):
  for _axis in AXES:
    row(
      _name,
      ROWS_OF,
      lambda x, n=_name, a=_axis: getattr(x, n)() if a is None else getattr(x, n)(a),
      None,
      FLOATS,
      special=True,
      tol=2,
    )
  row(_name, MATRIX, lambda x, n=_name: getattr(x, n)(1, keepdim=True), dtypes=("float32",))
  row(_name, [((0, 3),)], lambda x, n=_name: getattr(x, n)(0), dtypes=("float32",))
for _name in ("sum", "prod"):
  row(_name, ROWS_OF, lambda x, n=_name: getattr(x, n)(-1), None, (*INTS, "bool"), wide=True)
row("sum", [((2, 3, 4),)], lambda x: x.sum((0, 2)), dtypes=("float32",))
row("sum", MATRIX, lambda x: x.sum(0, dtype="float64"), lambda x: x.sum(0, dtype=torch.float64), ("float32", "int32"))
for _axis in (0, -1):
  row("max", ROWS_OF, lambda x, a=_axis: x.max(a), lambda x, a=_axis: x.amax(a), (*FLOATS, *INTS, "bool"), special=True)
  row("min", ROWS_OF, lambda x, a=_axis: x.min(a), lambda x, a=_axis: x.amin(a), (*FLOATS, *INTS, "bool"), special=True)
row("max", ROWS_OF, lambda x: x.max(), lambda x: x.amax(), ANY)
row(
  "min",
  [((2, 3, 4),)],
  lambda x: x.min((0, 2), keepdim=True),
  lambda x: x.amin((0, 2), keepdim=True),
  ("float32", "int32"),
)
row("any", ROWS_OF, lambda x: x.any(-1), None, ("float32", "int32", "bool"), grad=False)
row("all", ROWS_OF, lambda x: x.all(0), None, ("float32", "int32", "bool"), grad=False)
row("all", [((0, 3),)], lambda x: x.all(0), None, ("float32",), grad=False)
for _name in ("argmax", "argmin"):
  row(_name, ROWS_OF, None, None, ("float32", "int32", "uint8", "float16"), grad=False, special=True, wide=True)
  row(
    _name,
    ROWS_OF,
    lambda x, n=_name: getattr(x, n)(-1, keepdim=True),
    None,
    ("float32", "int32"),
    grad=False,
    wide=True,
  )
for _name in ("var", "std"):
  row(_name, [((5,),), ((2, 3, 5),)], lambda x, n=_name: getattr(x, n)(), None, FLOATS, special=False, tol=2)
  row(_name, [((2, 3, 5),)], lambda x, n=_name: getattr(x, n)(-1, keepdim=True), dtypes=("float32",))
  row(_name, [((3, 5),)], lambda x, n=_name: getattr(x, n)(0, correction=0), dtypes=("float32",))
  row(_name, [((1,),)], None, None, ("float32",), grad=False)
  row(
    f"{_name}_mean",
    MATRIX,
    lambda x, n=_name: getattr(x, f"{n}_mean")(1),
    lambda x, n=_name: getattr(torch, f"{n}_mean")(x, 1),
    ("float32", "float64"),
  )
row("normalize", [((3, 5),)], None, lambda x: F.normalize(x), ("float32", "float64"))
row("normalize", [((3, 5),)], lambda x: x.normalize(1.0, 0), lambda x: F.normalize(x, 1.0, 0), ("float32",))
row("normalize", [((3, 5),)], lambda x: x.normalize(3.0, 0), lambda x: F.normalize(x, 3.0, 0), ("float32",))
row("softmax", ROWS_OF, lambda x: x.softmax(), lambda x: x.softmax(-1), special=True, tol=2)
row("softmax", ROWS_OF, lambda x: x.softmax(0), dtypes=("float32",))
row("softmax", MATRIX, lambda x: x.softmax(0, "float64"), lambda x: x.softmax(0, torch.float64), ("float32", "float16"))
row("log_softmax", ROWS_OF, lambda x: x.log_softmax(), lambda x: x.log_softmax(-1), special=True, tol=2)
row("softmin", ROWS_OF, lambda x: x.softmin(), lambda x: F.softmin(x, -1), tol=2)
row("logsumexp", ROWS_OF, lambda x: x.logsumexp(-1), special=True, tol=2)
row("logsumexp", MATRIX, lambda x: x.logsumexp(), lambda x: x.logsumexp((0, 1)), ("float32",))
row("cumsum", ROWS_OF, lambda x: x.cumsum(0), None, ("float32", "float16", "float64"), special=True, tol=2)
row("cumsum", [((3, 600),)], lambda x: x.cumsum(1), None, ("float32",), tol=10)
row("cumsum", ROWS_OF, lambda x: x.cumsum(-1), None, ("int32", "bool", "uint8", "int64"), wide=True)
row("cumprod", ROWS_OF, lambda x: x.cumprod(0), None, ("float32", "float64"), tol=2)
row("cumprod", ROWS_OF, lambda x: x.cumprod(-1), None, ("int32", "int64"), wide=True)
row("cummax", ROWS_OF, lambda x: x.cummax(0), None, ("float32", "int32", "uint8"), wide=True, special=True)
row("cummin", ROWS_OF, lambda x: x.cummin(-1), None, ("float32", "int32", "uint8"), wide=True, special=True)
row("logcumsumexp", ROWS_OF, lambda x: x.logcumsumexp(0), None, ("float32", "float64"), special=True, tol=2)
row(
  "layernorm", ROWS_OF[:1] + ROWS_OF[2:], None, lambda x: F.layer_norm(x, x.shape[-1:]), ("float32", "float64"), tol=2
)
row(
  "layernorm",
  [((2, 3, 5),)],
  lambda x: x.layernorm((1, 2), 1e-3),
  lambda x: F.layer_norm(x, x.shape[1:], eps=1e-3),
  ("float32",),
  tol=2,
)

# ---------------------------------------------------------------- gradients at kinks, ties and zeros

WIDE = [((7, 9),)]
for _name in (
  "relu",
  "abs",
  "leaky_relu",
  "relu6",
  "hardtanh",
  "hardswish",
  "hardsigmoid",
  "elu",
  "celu",
  "sign",
  "square",
):
  row(
    _name,
    WIDE,
    None,
    lambda x, n=_name: getattr(torch, n, None)(x) if hasattr(torch, n) else getattr(F, n)(x),
    FLOAT,
    whole=True,
    within=(-4.0, 7.0),
  )
row("clamp", WIDE, lambda x: x.clamp(-1, 2), None, FLOAT, whole=True, within=(-4.0, 4.0))
for _name in ("maximum", "minimum"):
  row(_name, [((7, 9), (9,))], None, None, FLOAT, whole=True)
for _axis in (0, -1):
  row("prod", WIDE, lambda x, a=_axis: x.prod(a), None, FLOAT, whole=True)
  row("max", WIDE, lambda x, a=_axis: x.max(a), lambda x, a=_axis: x.amax(a), FLOAT, whole=True)
  row("min", WIDE, lambda x, a=_axis: x.min(a), lambda x, a=_axis: x.amin(a), FLOAT, whole=True)
  row(
    "sort",
    WIDE,
    lambda x, a=_axis: x.sort(a)[0],
    lambda x, a=_axis: torch.sort(x, dim=a, stable=True)[0],
    FLOAT,
    whole=True,
  )
row("cumprod", WIDE, lambda x: x.cumprod(0), None, FLOAT, whole=True)
row("cummax", WIDE, lambda x: x.cummax(0), None, FLOAT, whole=True, wide=True)
row(
  "max_pool2d",
  [((1, 1, 6, 6),)],
  lambda x: x.max_pool2d(2),
  lambda x: F.max_pool2d(x, 2),
  FLOAT,
  whole=True,
  grad=False,
)
row("pow", WIDE, lambda x: x.pow(2), None, FLOAT, whole=True)
row("pow", WIDE, lambda x: x.pow(0), None, FLOAT, whole=True)
row("pow", [((7, 9), (9,))], None, None, FLOAT, whole=True, within=(0.0, 3.0))
row("softmax", WIDE, lambda x: x.softmax(-1), None, FLOAT, whole=True)
row("logsumexp", WIDE, lambda x: x.logsumexp(-1), None, FLOAT, whole=True)
row("logaddexp", [((7, 9), (9,))], None, None, FLOAT, whole=True)
row("where", WIDE, lambda x: (x > 0).where(x, x * 2), lambda x: torch.where(x > 0, x, x * 2), FLOAT, whole=True)

# ---------------------------------------------------------------- movement

SHAPED = [((2, 3, 4),), ((1, 0, 2),), ((3, 1, 5),)]
MOVES: dict[str, Callable[..., Any]] = {
  "flatten": lambda x: x.flatten(1),
  "permute": lambda x: x.permute(2, 0, 1),
  "transpose": lambda x: x.transpose(0, 2),
  "squeeze": lambda x: x.squeeze(),
  "unsqueeze": lambda x: x.unsqueeze(-1),
  "view": lambda x: x.contiguous().view(-1),
  "unfold": lambda x: x.unfold(2, 2, 1),
  "diagonal": lambda x: x.diagonal(1, 0, 2),
  "triu": lambda x: x.triu(1),
  "tril": lambda x: x.tril(-1),
  "roll": lambda x: x.roll((1, -2), (0, 2)),
  "repeat": lambda x: x.repeat(2, 1, 1, 3),
  "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
  "unflatten": lambda x: x.unflatten(0, (1, -1)),
  "reshape": lambda x: x.reshape(-1, x.shape[0], x.shape[2]) if x.shape[1] else x,
  "split": lambda x: x.split(2, 2),
  "chunk": lambda x: x.chunk(2, 2),
  "__getitem__": lambda x: x[:, None, ..., -2:],
}
for _name, _f in MOVES.items():
  row(_name, SHAPED, _f, dtypes=("float32", "int8", "bool", "float16", "int64"))
row("flip", SHAPED, lambda x: x.flip((0, -1)), dtypes=("float32", "bool"))
row("expand", [((2, 1, 3),), ((3,),), ((),)], lambda x: x.expand(2, 4, 3), dtypes=("float32", "bool"))
row("squeeze", SHAPED, lambda x: x.squeeze(1), dtypes=("float32",))
row("roll", SHAPED, lambda x: x.roll(3), dtypes=("float32",))
row("split", [((5, 2),)], lambda x: x.split([1, 4], 0), dtypes=("float32",))
row("repeat_interleave", SHAPED, lambda x: x.repeat_interleave(2), dtypes=("float32",))
row("diag", [((4,),), ((1,),)], dtypes=("float32", "int32"))
row("T", MATRIX, lambda x: x.T, dtypes=("float32",))
row("shrink", SHAPED, lambda x: x.shrink(((0, 1), None, (1, 2))), lambda x: x[0:1, :, 1:2], ("float32", "bool"))
row("shrink_to", SHAPED, lambda x: x.shrink_to(1, None, 2), lambda x: x[0:1, :, :2], ("float32",))
row(
  "pad_to",
  SHAPED,
  lambda x: x.pad_to(5, None, 6),
  lambda x: F.pad(x, (0, 6 - x.shape[2], 0, 0, 0, 5 - x.shape[0])),
  ("float32",),
)
row("pad", SHAPED, lambda x: x.pad((1, 2, 0, 1)), lambda x: F.pad(x, (1, 2, 0, 1)), ("float32", "int32"))
row("pad", SHAPED, lambda x: x.pad((1, -1), value=2), lambda x: F.pad(x, (1, -1), value=2), ("float32",))
row(
  "pad",
  SHAPED,
  lambda x: x.pad((None, (0, 0), (1, 2)), value=math.inf),
  lambda x: F.pad(x, (1, 2), value=math.inf),
  ("float32",),
)
for _mode in ("reflect", "replicate", "circular"):
  row(
    "pad",
    [((1, 2, 5),), ((1, 2, 3),)],
    lambda x, m=_mode: x.pad((1, 2), mode=m),
    lambda x, m=_mode: F.pad(x, (1, 2), mode=m),
    ("float32",),
  )
for _mode in ("reflect", "replicate", "circular"):
  row(
    "pad",
    [((1, 2, 5),)],
    lambda x, m=_mode: x.pad((-1, 2), mode=m),
    lambda x, m=_mode: F.pad(x, (-1, 2), mode=m),
    FLOAT,
  )
row(
  "cat",
  [((2, 3), (2, 1)), ((2, 0), (2, 3))],
  lambda x, y: x.cat(y, dim=-1),
  lambda x, y: torch.cat((x, y), -1),
  ("float32", "int32", "bool"),
)
row(
  "stack",
  [((2, 3), (2, 3)), ((), ())],
  lambda x, y: x.stack(y, dim=-1),
  lambda x, y: torch.stack((x, y), -1),
  ("float32", "int32"),
)
row("meshgrid", [((3,), (2,)), ((), (2,))], None, lambda x, y: torch.meshgrid(x, y, indexing="ij"), ("float32",))
row(
  "meshgrid",
  [((3,), (2,))],
  lambda x, y: x.meshgrid(y, indexing="xy"),
  lambda x, y: torch.meshgrid(x, y, indexing="xy"),
  ("float32",),
)
row(
  "rearrange",
  [((2, 6, 3),)],
  lambda x: x.rearrange("b (h w) c -> (b w) c h", h=2),
  lambda x: x.reshape(2, 2, 3, 3).permute(0, 2, 3, 1).reshape(6, 3, 2),
  ("float32",),
)
row(
  "sequential", MATRIX, lambda x: x.sequential([lambda v: v + 1, lambda v: v * 2]), lambda x: (x + 1) * 2, ("float32",)
)

# ---------------------------------------------------------------- indexing

I = np.array([[0, 2, -1], [1, 1, 0]], np.int64)
J = np.array([1, -2, 0], np.int64)
MASK = np.array([[True, False, True], [False, False, True], [True, True, False], [False, False, False]])
INDICES: dict[str, Callable[..., Any]] = {
  "int": lambda x, i, j, m: x[-1],
  "slice": lambda x, i, j, m: x[1:-1, ::2],
  "none": lambda x, i, j, m: x[None, ..., 0],
  "tensor": lambda x, i, j, m: x[i],
  "two": lambda x, i, j, m: x[i, j],
  "apart": lambda x, i, j, m: x[i, :, j],
  "middle": lambda x, i, j, m: x[:, j],
  "with int": lambda x, i, j, m: x[1, :, j],
  "last": lambda x, i, j, m: x[..., j],
  "new": lambda x, i, j, m: x[None, i, None],
  "list": lambda x, i, j, m: x[[0, 1, 1]],
  "mask": lambda x, i, j, m: x[m],
  "mask of a dim": lambda x, i, j, m: x[:, m[0]],
  "mask and int": lambda x, i, j, m: x[m, 1],
  "mask and tensor": lambda x, i, j, m: x[m[:, 0], :, j[:2]],
  "int apart": lambda x, i, j, m: x[0, :, j],
}
for _f in INDICES.values():
  row("__getitem__", [((4, 3, 3), I, J, MASK)], _f, dtypes=("float32", "int32", "bool"))
row(
  "__getitem__",
  [((4, 3),)],
  lambda x: x[::-2, 1:],
  lambda x: x[1:].flip(0)[::2, 1:] if x.shape[0] == 4 else None,
  ("float32",),
)


def _assigned(put: Callable[..., Any]) -> Callable[..., Any]:
  def call(x: Any, v: Any, i: Any, j: Any, m: Any) -> Any:
    z = x.clone()
    put(z, v, i, j, m)
    return z

  return call


def _set(key: Callable[..., Any], value: Callable[..., Any]) -> Callable[..., Any]:
  return _assigned(lambda z, v, i, j, m: z.__setitem__(key(i, j, m), value(v)))


PUTS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
  (lambda i, j, m: 1, lambda v: v),
  (lambda i, j, m: (slice(1, 3), slice(None)), lambda v: v),
  (lambda i, j, m: (Ellipsis, slice(None, None, 2)), lambda v: v[:, :2]),
  (lambda i, j, m: (i[:1, :2], j[:2]), lambda v: v[0]),
  (lambda i, j, m: m, lambda v: 7),
  (lambda i, j, m: m, lambda v: v[0]),
  (lambda i, j, m: (slice(None), 0, j), lambda v: v[0]),
  (lambda i, j, m: (None, slice(None), 1), lambda v: v[:1]),
]
for _key, _value in PUTS:
  row("__setitem__", [((4, 3, 3), (3, 3), I, J, MASK)], _set(_key, _value), dtypes=("float32", "int32"), grad=False)
row(
  "gather",
  [((3, 4), np.array([[0, 2, 1], [2, 2, 0]], np.int64))],
  lambda x, i: x.gather(0, i),
  dtypes=("float32", "int8", "bool"),
)
row(
  "gather", [((3, 4), np.array([[0, 3], [1, 1], [2, 0]], np.int64))], lambda x, i: x.gather(-1, i), dtypes=("float32",)
)
S = np.array([[0, 2, 0], [1, 1, 3]], np.int64)
T = np.array([[0, 2, 1], [1, 3, 3]], np.int64)
row(
  "scatter",
  [((4, 3), (2, 3), np.array([[0, 2, 3], [1, 1, 0]], np.int64))],
  lambda x, s, i: x.scatter(0, i, s),
  dtypes=("float32", "int32"),
)
row("scatter", [((4, 3), S)], lambda x, i: x.scatter(0, i, 2), dtypes=("float32", "int32"))
for _how in ("add", "multiply"):
  row(
    "scatter",
    [((4, 3), (2, 3), S)],
    lambda x, s, i, h=_how: x.scatter(0, i, s, reduce=h),
    dtypes=("float32", "int32"),
    grad=False,
  )
for _how in ("sum", "prod", "mean", "amax", "amin"):
  for _own in (True, False):
    row(
      "scatter_reduce",
      [((4, 3), (2, 3), S)],
      lambda x, s, i, h=_how, o=_own: x.scatter_reduce(0, i, s, h, include_self=o),
      None,
      ("float32", "int32"),
      grad=_how in ("sum", "mean"),
    )
row("masked_select", [((4, 3), MASK)], dtypes=("float32", "int32", "bool"))
row("masked_select", [((3,), MASK)], dtypes=("float32",))
row("nonzero", [((4, 3),), ((5,),)], dtypes=("int32", "bool", "float32"), wide=True, grad=False)
row(
  "one_hot",
  [(np.array([[0, 2], [1, 0]], np.int64),)],
  lambda x: x.one_hot(4),
  lambda x: F.one_hot(x, 4),
  ("int64",),
  wide=True,
)
for _down in (False, True):
  row(
    "sort",
    ROWS_OF,
    lambda x, d=_down: x.sort(-1, d),
    lambda x, d=_down: x.sort(-1, d, stable=True) if False else torch.sort(x, dim=-1, descending=d, stable=True),
    ("float32", "int32", "uint8", "float16"),
    wide=True,
    special=True,
  )
row("sort", ROWS_OF, lambda x: x.sort(0), lambda x: torch.sort(x, dim=0, stable=True), ("float32",), wide=True)
row("argsort", ROWS_OF, None, lambda x: torch.argsort(x, stable=True), ("float32", "int32"), wide=True, grad=False)
row("topk", [((5,),), ((2, 3, 5),)], lambda x: x.topk(3), None, ("float32", "float64"), wide=True)
row("topk", [((5, 2),)], lambda x: x.topk(2, 0, largest=False), None, ("float32",), wide=True)

# ---------------------------------------------------------------- products, convolution, pooling

DOTS = [
  ((5,), (5,)),
  ((3, 5), (5,)),
  ((5,), (5, 2)),
  ((3, 5), (5, 2)),
  ((2, 1, 3, 4), (3, 4, 1)),
  ((0, 3), (3, 2)),
  ((2, 0), (0, 3)),
  ((2, 3, 4), (2, 4, 3)),
]
for _name, _f in {
  "dot": lambda x, y: x.dot(y),
  "matmul": lambda x, y: x.matmul(y),
  "__matmul__": lambda x, y: x @ y,
}.items():
  row(
    _name,
    DOTS if _name == "matmul" else DOTS[3:4],
    _f,
    lambda x, y: torch.matmul(x, y),
    (*FLOATS, "int32", "uint8"),
    tol=3,
  )
row("__rmatmul__", DOTS[3:4], lambda x, y: y.__rmatmul__(x), lambda x, y: x @ y, ("float32",))
row("matmul", [((5, 2), (3, 5))], lambda x, y: x.matmul(y, reverse=True), lambda x, y: y @ x, ("float32",))
row("linear", [((2, 3), (3, 4), (4,))], None, lambda x, w, b: x @ w + b, ("float32", "float16"), tol=3)
row("linear", [((2, 3), (3,))], None, lambda x, w: x * w, ("float32",))
EINSUMS: dict[str, tuple[Any, ...]] = {
  "ij,jk->ik": ((2, 3), (3, 4)), "ij,kj->": ((2, 3), (4, 3)), "ij,jk": ((2, 3), (3, 4)),
  "ii->i": ((3, 3),), "ii": ((3, 3),), "...i,ij->...j": ((2, 5, 3), (3, 4)),
  "ii,ij->j": ((3, 3), (3, 2)), "ij->ji": ((2, 3),), "i,j->ij": ((2,), (3,)),
  "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)), "ij,ij,ij->j": ((2, 3), (2, 3), (2, 3)),
  "bhqd,bhkd->bhqk": ((1, 2, 3, 2), (1, 2, 4, 2)), "...ij,...jk->...ik": ((2, 2, 3), (3, 2)),
}  # fmt: skip
for _formula, _shapes in EINSUMS.items():
  row(
    "einsum",
    [_shapes],
    lambda *xs, f=_formula: Tensor.einsum(f, *xs),
    lambda *xs, f=_formula: torch.einsum(f, *xs),
    ("float32", "float64"),
    tol=3,
  )
CONVOLUTIONS: list[tuple[Any, dict[str, Any]]] = [
  (((2, 4, 7), (3, 4, 3), (3,)), {}),
  (((1, 2, 6, 5), (4, 2, 3, 2), (4,)), {"stride": 2, "padding": 1}),
  (((2, 4, 6, 5), (6, 2, 2, 3), (6,)), {"groups": 2, "dilation": 2, "padding": (2, 1)}),
  (((1, 3, 4, 4), (3, 1, 3, 3), (3,)), {"groups": 3, "stride": (1, 2)}),
  (((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), (2,)), {"padding": 1}),
  (((1, 1, 1, 1), (1, 1, 1, 1), (1,)), {}),
  (((0, 2, 4, 4), (3, 2, 2, 2), (3,)), {}),
]
for _shapes, _k in CONVOLUTIONS:
  row(
    "conv2d",
    [_shapes],
    lambda x, w, b, k=_k: x.conv2d(w, b, **k),
    lambda x, w, b, k=_k: getattr(F, f"conv{x.ndim - 2}d")(x, w, b, **k),
    ("float32", "float64"),
    tol=4,
  )
TRANSPOSED: list[tuple[Any, dict[str, Any]]] = [
  (((2, 4, 5), (4, 3, 3), (3,)), {}),
  (((1, 2, 3, 4), (2, 3, 3, 2), (3,)), {"stride": 2, "padding": 1, "output_padding": 1}),
  (((1, 4, 3, 3), (4, 2, 2, 3), (4,)), {"groups": 2, "dilation": 2, "stride": (2, 1), "padding": (0, 1)}),
  (((1, 2, 2, 2, 3), (2, 1, 2, 2, 2), (1,)), {"stride": 2}),
]
for _shapes, _k in TRANSPOSED:
  row(
    "conv_transpose2d",
    [_shapes],
    lambda x, w, b, k=_k: x.conv_transpose2d(w, b, **k),
    lambda x, w, b, k=_k: getattr(F, f"conv_transpose{x.ndim - 2}d")(x, w, b, **k),
    ("float32", "float64"),
    tol=4,
  )
POOLS: list[dict[str, Any]] = [
  {"kernel_size": 2},
  {"kernel_size": (3, 2), "stride": 1},
  {"kernel_size": 3, "stride": 2, "padding": 1},
  {"kernel_size": 3, "stride": 2, "ceil_mode": True},
  {"kernel_size": (2, 3), "stride": 2, "padding": 1, "ceil_mode": True},
]
for _k in POOLS:
  row(
    "avg_pool2d",
    [((1, 2, 7, 6),), ((2, 5, 6),)],
    lambda x, k=_k: x.avg_pool2d(**k),
    lambda x, k=_k: F.avg_pool2d(x, **k),
    ("float32", "float64"),
  )
  row(
    "avg_pool2d",
    [((1, 2, 7, 6),)],
    lambda x, k=_k: x.avg_pool2d(count_include_pad=False, **k),
    lambda x, k=_k: F.avg_pool2d(x, count_include_pad=False, **k),
    ("float32",),
  )
  for _d in (1, 2) if _k["kernel_size"] == 2 else (1,):
    row(
      "max_pool2d",
      [((1, 2, 7, 6),)],
      lambda x, k=_k, d=_d: x.max_pool2d(dilation=d, **k),
      lambda x, k=_k, d=_d: F.max_pool2d(x, dilation=d, **k),
      ("float32", "float64"),
    )
    row(
      "max_pool2d",
      [((1, 2, 7, 6),)],
      lambda x, k=_k, d=_d: x.max_pool2d(dilation=d, return_indices=True, **k),
      lambda x, k=_k, d=_d: F.max_pool2d(x, dilation=d, return_indices=True, **k),
      ("float32",),
      wide=True,
    )
row("max_pool2d", [((1, 2, 7),)], lambda x: x.max_pool2d((3,), 2), lambda x: F.max_pool1d(x, 3, 2), ("float32",))
row("max_pool2d", [((1, 2, 4, 4, 5),)], lambda x: x.max_pool2d((2, 2, 2)), lambda x: F.max_pool3d(x, 2), ("float32",))
row("avg_pool2d", [((1, 2, 4, 4, 5),)], lambda x: x.avg_pool2d((2, 2, 2)), lambda x: F.avg_pool3d(x, 2), ("float32",))


def _unpool(x: Any, pool: Callable[..., Any], unpool: Callable[..., Any]) -> Any:
  return unpool(*pool(x))


row(
  "max_unpool2d",
  [((1, 2, 6, 4),)],
  lambda x: _unpool(x, lambda x: x.max_pool2d(2, return_indices=True), lambda v, i: v.max_unpool2d(i, 2)),
  lambda x: _unpool(x, lambda x: F.max_pool2d(x, 2, return_indices=True), lambda v, i: F.max_unpool2d(v, i, 2)),
  ("float32",),
)
row(
  "max_unpool2d",
  [((1, 2, 7, 5),)],
  lambda x: _unpool(
    x, lambda x: x.max_pool2d(2, return_indices=True), lambda v, i: v.max_unpool2d(i, 2, output_size=(1, 2, 7, 5))
  ),
  lambda x: _unpool(
    x, lambda x: F.max_pool2d(x, 2, return_indices=True), lambda v, i: F.max_unpool2d(v, i, 2, output_size=(1, 2, 7, 5))
  ),
  ("float32",),
)
for _size in ((7,), (2,), (1,)):
  row(
    "interpolate",
    [((1, 2, 5),)],
    lambda x, s=_size: x.interpolate(s),
    lambda x, s=_size: F.interpolate(x, s, mode="linear"),
    ("float32",),
  )
  row(
    "interpolate",
    [((1, 2, 5),)],
    lambda x, s=_size: x.interpolate(s, align_corners=True),
    lambda x, s=_size: F.interpolate(x, s, mode="linear", align_corners=True),
    ("float32",),
  )
  for _mode in ("nearest", "nearest-exact"):
    row(
      "interpolate",
      [((1, 2, 5),)],
      lambda x, s=_size, m=_mode: x.interpolate(s, m),
      lambda x, s=_size, m=_mode: F.interpolate(x, s, mode=m),
      ("float32", "uint8"),
    )
row(
  "interpolate",
  [((1, 2, 3, 5),)],
  lambda x: x.interpolate((5, 4)),
  lambda x: F.interpolate(x, (5, 4), mode="bilinear"),
  ("float32", "float64"),
)
row(
  "interpolate",
  [((1, 1, 3, 2, 5),)],
  lambda x: x.interpolate((2, 3, 4)),
  lambda x: F.interpolate(x, (2, 3, 4), mode="trilinear"),
  ("float32",),
)
row(
  "qr",
  [((4, 3),), ((3, 4),), ((2, 3, 3),), ((1, 1),)],
  None,
  lambda x: torch.linalg.qr(x, mode="complete"),
  ("float32", "float64"),
  grad=False,
  tol=10,
)
row("qr", [((2, 3, 3),)], None, lambda x: torch.linalg.qr(x), ("float64",), tol=10)
for _shape, _grad in (((4, 3), False), ((2, 5), False), ((2, 3, 2), True)):
  row(
    "svd",
    [(_shape,)],
    lambda x: x.svd()[1],
    lambda x: torch.linalg.svdvals(x),
    ("float64", "float32"),
    grad=_grad,
    tol=10,
  )

# ---------------------------------------------------------------- networks

Q: list[tuple[Any, dict[str, Any]]] = [
  (((2, 3, 4), (2, 5, 4), (2, 5, 6)), {}),
  (((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"is_causal": True}),
  (((1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"enable_gqa": True}),
]
for _shapes, _k in Q:
  row(
    "scaled_dot_product_attention",
    [_shapes],
    lambda q, k, v, o=_k: q.scaled_dot_product_attention(k, v, **o),
    lambda q, k, v, o=_k: F.scaled_dot_product_attention(q, k, v, **o),
    ("float32", "float64"),
    tol=3,
  )
ATTEND = np.array([[True, False, True], [True, True, False], [False, True, False]])
row(
  "scaled_dot_product_attention",
  [((2, 3, 4), (2, 3, 4), (2, 3, 4), ATTEND)],
  lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
  lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
  ("float32",),
  tol=3,
)
row(
  "scaled_dot_product_attention",
  [((2, 3, 4), (2, 3, 4), (2, 3, 4), (3, 3))],
  lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
  lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
  ("float32",),
  tol=3,
)
for _how in ("mean", "sum", "none"):
  row(
    "binary_crossentropy",
    [((3, 2), (3, 2))],
    lambda x, y, h=_how: x.binary_crossentropy(y, h),
    lambda x, y, h=_how: F.binary_cross_entropy(x, y, reduction=h),
    ("float32",),
    within=(0.1, 0.9),
  )
  row(
    "binary_crossentropy_logits",
    [((3, 2), (3, 2))],
    lambda x, y, h=_how: x.binary_crossentropy_logits(y, h),
    lambda x, y, h=_how: F.binary_cross_entropy_with_logits(x, y, reduction=h),
    ("float32",),
  )
  Y = np.array([1, 0, 3], np.int64)
  row(
    "cross_entropy",
    [((3, 4), Y)],
    lambda x, y, h=_how: x.cross_entropy(y, h, 0.1),
    lambda x, y, h=_how: F.cross_entropy(x, y, reduction=h, label_smoothing=0.1),
    ("float32", "float64"),
  )
  row(
    "nll_loss",
    [((3, 4), Y, (4,))],
    lambda x, y, w, h=_how: x.nll_loss(y, w, 0, h),
    lambda x, y, w, h=_how: F.nll_loss(x, y, w.detach(), ignore_index=0, reduction=h),
    ("float32",),
    grad=False,
  )
  row(
    "sparse_categorical_crossentropy",
    [((3, 4), Y)],
    lambda x, y, h=_how: x.sparse_categorical_crossentropy(y, 0, 0.0, h),
    lambda x, y, h=_how: F.cross_entropy(x, y, ignore_index=0, reduction=h),
    ("float32",),
  )
row(
  "binary_crossentropy_logits",
  [((3, 2), (3, 2))],
  lambda x, y: x.binary_crossentropy_logits(y, pos_weight=x.const_like(2.0)),
  lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.full_like(x, 2.0)),
  ("float32",),
)
row(
  "cross_entropy",
  [((2, 4, 3), np.array([[1, 0, 3], [2, 2, 0]], np.int64))],
  None,
  lambda x, y: F.cross_entropy(x, y),
  ("float32",),
)
row("cross_entropy", [((3, 4), (3, 4))], None, lambda x, y: F.cross_entropy(x, y), ("float32",))
row("nll_loss", [((3, 4), Y)], None, lambda x, y: F.nll_loss(x, y), ("float32", "float64"))
row(
  "batchnorm",
  [((2, 3, 4), (3,), (3,), (3,), (3,))],
  None,
  lambda x, w, b, m, i: (x - m[:, None]) * w[:, None] * i[:, None] + b[:, None],
  ("float32",),
)
row(
  "newton_schulz",
  [((3, 5),), ((5, 3),)],
  lambda x: x.newton_schulz(1, (2.0, -1.5, 0.5)),
  lambda x: _newton_schulz(x),
  ("float32",),
  tol=4,
)


def _newton_schulz(x: Any) -> Any:
  g = x / (x.square().sum((-2, -1), keepdim=True).sqrt() + 1e-7)
  gram = (g.mT @ g) if x.shape[-2] > x.shape[-1] else (g @ g.mT)
  p = 2.0 * torch.eye(gram.shape[-1]) - 1.5 * gram + 0.5 * gram @ gram
  return g @ p if x.shape[-2] > x.shape[-1] else p @ g


# ---------------------------------------------------------------- cases


@dataclass(frozen=True, slots=True)
class Case:
  """One call: `arrays` in numpy (bfloat16 as float32); `view`: the operands are non-contiguous views."""

  row: Row
  key: str
  dtype: str
  arrays: tuple[np.ndarray, ...]
  given: tuple[bool, ...]  # operands that keep their own dtype
  view: bool = False
  grad: bool = False


def random(shape: Sequence[int], dtype: str, rng: np.random.Generator, within: tuple[float, float]) -> np.ndarray:
  if dtype == "bool":
    return rng.integers(0, 2, shape).astype(bool)
  if dtype.startswith(("int", "uint")):
    return (
      rng.integers(max(0, int(within[0])) if dtype[0] == "u" else -4, 5, shape).astype(dtype)
      if within[0] < 1
      else rng.integers(1, 9, shape).astype(dtype)
    )
  out = rng.uniform(*within, shape)
  return out.astype(np.float32 if dtype == "bfloat16" else dtype)


def cases(number: int, r: Row) -> Iterator[Case]:
  def case(i: int, dtype: str, **kw: Any) -> Case:
    rng = np.random.default_rng((number, i))
    given = tuple(isinstance(x, np.ndarray) for x in r.inputs[i])
    arrays = tuple(x if isinstance(x, np.ndarray) else random(x, dtype, rng, r.within) for x in r.inputs[i])
    if r.whole:
      arrays = tuple(x if g else x.round() for x, g in zip(arrays, given))
    return Case(r, f"{number} {r.name} {i} {dtype}" + " view" * bool(kw.get("view")), dtype, arrays, given, **kw)

  last = len(r.inputs) - 1
  for i in range(len(r.inputs)):
    yield case(i, r.dtypes[0], grad=r.grad)
  if any(not isinstance(x, np.ndarray) and len(x) > 1 for x in r.inputs[last]):
    yield case(last, r.dtypes[0], view=True, grad=r.grad)
  for dtype in r.dtypes[1:]:
    yield case(last, dtype)
  if r.special:
    operands = (
      [np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))] if len(r.inputs[0]) == 2 else [SPECIAL]
    )
    if r.inputs is ROWS_OF:  # every pair as a row: what reductions and scans make of them
      operands = [np.stack([np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))], -1)]
    for dtype in (d for d in r.dtypes if d in ("float32", "float16", "bfloat16")):
      with np.errstate(over="ignore"):
        arrays = tuple(x.astype(np.float16) if dtype == "float16" else x for x in operands)
      yield Case(r, f"{number} {r.name} special {dtype}", dtype, arrays, (False,) * len(arrays))
  elif r.dtypes[0] in INTS and not any(isinstance(x, np.ndarray) for x in r.inputs[last]) and r.inputs is UNARY:
    for dtype in (d for d in r.dtypes if d in INTS):
      info = np.iinfo(dtype)
      yield Case(
        r,
        f"{number} {r.name} edges {dtype}",
        dtype,
        (np.array([info.min, info.max, 0, 1, info.max - 1], dtype),),
        (False,),
      )


def weights(shape: Sequence[int]) -> np.ndarray:
  """The cotangent that results are differentiated with."""
  n = int(np.prod(shape))
  return (np.arange(n) % 7 * 0.25 - 0.625).reshape(shape).astype(np.float32)


def laid_out(x: np.ndarray) -> tuple[np.ndarray, Callable[[Any], Any]]:
  """(an array, how to get x from a tensor of it by views): turned around, every second element, transposed."""
  wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
  wide[..., 1::2] = x
  order = tuple(reversed(range(x.ndim)))
  return np.ascontiguousarray(wide.transpose(order)), lambda t: t.permute(order)[..., 1::2]


def as_arrays(out: Any) -> list[Any]:
  return list(out) if isinstance(out, (tuple, list)) else [out]


def torch_answers(case: Case) -> list[np.ndarray]:
  """What PyTorch gives: results, then gradients by the operands; bfloat16 as float32."""

  def make(x: np.ndarray, given: bool) -> Any:
    base, look = laid_out(x) if case.view and not given and x.ndim > 1 else (x, lambda t: t)
    t = torch.from_numpy(base.copy())
    t = t if given or case.dtype != "bfloat16" else t.bfloat16()
    leaf = t.requires_grad_(case.grad and not given)
    return leaf, look(leaf)

  made = [make(x, g) for x, g in zip(case.arrays, case.given)]
  outs = as_arrays(case.row.theirs(*(v for _, v in made)))
  answers = [o.detach().float() if o.dtype is torch.bfloat16 else o.detach() for o in outs]
  if case.grad:
    loss = sum(
      (o * torch.from_numpy(weights(o.shape))).sum() for o in outs if o.dtype.is_floating_point and o.requires_grad
    )
    leaves = [leaf for (leaf, _), g in zip(made, case.given) if not g]
    if isinstance(loss, torch.Tensor):
      found = torch.autograd.grad(loss, leaves, allow_unused=True)
      answers += [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves)]
  return [a.resolve_neg().numpy() for a in answers]


def names(case: Case) -> list[str]:
  """The types of PyTorch's results."""
  xs = [torch.from_numpy(x.copy()) for x in case.arrays]
  xs = [x if g or case.dtype != "bfloat16" else x.bfloat16() for x, g in zip(xs, case.given)]
  return [str(o.dtype).removeprefix("torch.") for o in as_arrays(case.row.theirs(*xs))]


def write() -> None:
  """Puts PyTorch's answers to every case into test/data/op_table.npz: all bytes in a row, and what lies where."""
  index, parts = [], []
  for number, r in enumerate(ROWS):
    for case in cases(number, r):
      answers = torch_answers(case)
      index.append([case.key, names(case), [[str(a.dtype), a.shape] for a in answers]])
      parts += [a.tobytes() for a in answers]
  data = np.frombuffer(b"".join(parts), np.uint8)
  np.savez_compressed(GOLDEN, index=np.array(json.dumps(index)), data=data)


def golden() -> dict[str, tuple[list[str], list[np.ndarray]]]:
  """For each case the types of PyTorch's results, and its answers."""
  with np.load(GOLDEN) as file:
    index, data = json.loads(str(file["index"])), file["data"].tobytes()
  out, at = {}, 0
  for key, kinds, shapes in index:
    answers = []
    for dtype, shape in shapes:
      n = int(np.prod(shape))
      answers.append(np.frombuffer(data, dtype, n, at).reshape(shape))
      at += n * np.dtype(dtype).itemsize
    out[key] = kinds, answers
  return out


if __name__ == "__main__":
  write()
