"""A short reduction inside another: the loops that codegen opens must not be taken for the kernel's own ranges."""

import numpy as np
from codegen_kernels import dot, fold, load, loop, reduce, run, sink, store

from tinygrad import Tensor, custom_op
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


def test_a_reduction_whose_rest_depends_on_other_copies_is_not_continued():
  """Gradients of two results of one function are added: of the reductions that share a loop the rest of one knew no
  number of a copy that the other has. (It was a KeyError.)"""

  def both(x, y):  # [c, b], [a, b, d, c]
    o = x.T.reshape(1, x.shape[1], x.shape[0], 1) + y.permute(0, 1, 3, 2)
    return o.max((1, 3)).T, o.permute(0, 2, 1, 3)

  op = custom_op(both, rule="c b, a b d c -> c a, a c b d", partial="max")
  rng = np.random.default_rng(0)
  x, y = (
    Tensor(rng.permutation(n).reshape(shape).astype(np.float32)) for n, shape in ((16, (2, 8)), (256, (8, 8, 2, 2)))
  )
  first, second = op(x, y)
  found = (first.sum() + (second * 2).sum()).gradient(x)[0].numpy()
  of_max = np.zeros((2, 8), np.float32)
  o = x.numpy().T[None, :, :, None] + y.numpy().transpose(0, 1, 3, 2)
  for a in range(8):
    for c in range(2):
      ties = o[a, :, c] == o[a, :, c].max()
      of_max[c] += ties.sum(1) / ties.sum()
  np.testing.assert_allclose(found, of_max + 2 * 16, rtol=1e-6)
