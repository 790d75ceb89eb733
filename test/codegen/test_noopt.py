"""NOOPT=1: the plain loops of a kernel give what its tiles and vectors give."""

import numpy as np

from tinygrad import Context, Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp


def test_plain_loops_have_no_vectors():
  n = UOp.const(dtypes.index, 64)
  r = UOp.new(Ops.RANGE, dtypes.index, (n,), (0, AxisKind.LOOP))
  out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(i, 64)) for i in range(2))
  load = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, r)),))
  ast = UOp.sink(UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, dtypes.float32, (out, r)), load, r)))
  widest = lambda: max(u.dtype.count for u in lower_kernel(ast, Target("CPU", 64, 32, 1 << 20)))  # noqa: E731
  assert widest() > 1
  with Context(NOOPT=1):
    assert widest() == 1


def test_the_values_are_the_same():
  a, b = (np.arange(n, dtype=np.float32).reshape(s) for n, s in ((35, (7, 5)), (55, (5, 11))))
  with Context(NOOPT=1):
    assert (Tensor(a) @ Tensor(b)).numpy().tolist() == (a @ b).tolist()
