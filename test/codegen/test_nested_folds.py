"""A short reduction inside another: the loops that codegen opens must not be taken for the kernel's own ranges."""

import numpy as np
from codegen_kernels import dot, fold, load, loop, reduce, run, sink, store

from tinygrad.codegen import lower_kernel
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop import Ops, ParamArg, UOp


def test_a_new_loop_is_none_of_the_kernels_own():
  """Two reductions one after the other, over 2 x 2 devices: every peer is read once. With numbers that the kernel
  uses, the loop over one digit was the other digit's range, and only peers 0 and 3 were read."""
  i, outer, inner = loop(8, 0), reduce(2, 1), reduce(2, 2)
  table = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(1, 8, True))
  peer = UOp.new(Ops.PEER, dtypes.float32, (table, dot((outer, 2), (inner, 1))))
  x = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (peer, i)),))
  value = fold(Ops.ADD, fold(Ops.ADD, x, inner), outer)
  with Context(NOOPT=1):
    linear = lower_kernel(sink(store(i, value, i, size=8)), Target("CPU"))
  peers = [u for u in linear if u.op is Ops.PEER]
  assert len(peers) == 2 and all(any(s.op is Ops.RANGE for s in u.src[1].toposort()) for u in peers)


def test_a_sum_of_sums_keeps_its_order():
  """As sums by levels are written: (x0 + x1) + (x2 + x3), which is not x0 + x1 + x2 + x3."""
  n, pairs = 8, 2
  x = np.repeat(np.array([-(2.0**24), 0, 2.0**24, 1], np.float32)[:, None], n, 1)
  i, outer, inner = loop(n, 0), reduce(pairs, 1), reduce(2, 2)
  value = fold(Ops.ADD, fold(Ops.ADD, load(1, x, dot((outer, 2 * n), (inner, n), (i, 1))), inner), outer)
  assert run(sink(store(i, value, i, size=n)), [x]).tolist() == [0.0] * n
