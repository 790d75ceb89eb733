"""Kernels that share rows run as one: same values, fewer kernels, and memory that grows with the length of a sequence
and not with its square. Each law is shown to fail where what it rests on is taken away."""

from dataclasses import replace

import numpy as np
import pytest

from tinygrad import Device, Mesh, P, Tensor, dtypes, nn, vmap
from tinygrad.codegen import row_blocks as blocks
from tinygrad.codegen import share
from tinygrad.codegen.expressions import Values
from tinygrad.dtype import to_numpy_dtype
from tinygrad.engine import compile as engine
from tinygrad.helpers import PROCESS, Context
from tinygrad.numerics import parts
from tinygrad.numerics.dots import use_dots
from tinygrad.schedule import row_groups, row_memory, tile_and_fuse
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.loops import LoopIds
from tinygrad.uop.rewrite import substitute_free

rng = np.random.default_rng(0)


def data(*shape):
  return Tensor(rng.standard_normal(shape, dtype=np.float32)).realize()


def both(f):
  """What `f` gives with the kernels apart, and together; `f` makes its tensors anew."""
  out = []
  for setting in (0, 1):
    with Context(TILE_AND_FUSE=setting):
      values = f()
      Tensor.realize(*values)
      out.append([v.numpy() for v in values])
  return out


def same(f, atol=2e-6):
  apart, together = both(f)
  for x, y in zip(apart, together, strict=True):
    np.testing.assert_allclose(y, x, rtol=1e-5, atol=atol)


def kernels(f):
  """How many kernels f takes, and how many bytes of intermediate memory."""
  plans = []
  make = engine.make_plan
  with pytest.MonkeyPatch.context() as m, PROCESS.anew():
    m.setattr(engine, "make_plan", lambda *a: plans.append(make(*a)) or plans[-1])
    with Context(TILE_AND_FUSE=1):
      Tensor.realize(*f())
  return sum(len(p.items) for p in plans), sum(t.nbytes for p in plans for t in p.temps)


def attention(q, k, v, w=None, causal=False, swap=False):
  """The result, and the gradients of its product with w. `swap`: heads stand inside of tokens, as projections give
  them."""
  for t in (q, k, v):
    t.requires_grad, t.grad = True, None
  heads = [t.transpose(1, 2) if swap else t for t in (q, k, v)]
  out = heads[0].scaled_dot_product_attention(*heads[1:], is_causal=causal)
  if w is None:
    return [out]
  out = out.contiguous().flip(-2).contiguous()  # the gradient waits for the whole result, as it does in a model
  (out * w).sum().backward()
  return [out, q.grad, k.grad, v.grad]


def block_bytes(fresh, nbytes):
  """Lets the rows of a block touch so many bytes."""
  fresh.setattr(blocks, "BLOCK_PARTS", Device["CPU"].target.cache // nbytes)


@pytest.mark.parametrize("nbytes", [1, 1 << 12, 1 << 18])
@pytest.mark.parametrize("shape", [(16, 8), (33, 77), (5, 13, 3), (64, 1), (1, 64)])
def test_normalisations(fresh, shape, nbytes):
  block_bytes(fresh, nbytes)
  x = data(*shape)
  same(lambda: [x.softmax()])
  same(lambda: [x.log_softmax(), x.layernorm()])
  same(lambda: [(x.softmax() * x).sum(-1), x.max(-1, keepdim=True) - x, x.softmax(0)])


@pytest.mark.parametrize(
  "nbytes, T, D, causal",
  [(1, 32, 16, False), (1, 129, 8, True), (1 << 14, 50, 16, True), (1 << 14, 17, 64, False), (1 << 18, 129, 8, False)],
)
def test_attention_forward_and_backward(fresh, T, D, causal, nbytes):
  block_bytes(fresh, nbytes)
  fresh.setattr(tile_and_fuse, "RECOMPUTE", 1 << 10)
  q, k, v, w = (data(2, 3, T, D) for _ in range(4))
  same(lambda: attention(q, k, v, w, causal))
  q, k, v = (data(2, T, 3, D) for _ in range(3))
  same(lambda: attention(q, k, v, w, causal, swap=True))


def moments(rows, terms, columns):
  """Of the gradient of weights, as an optimizer keeps them."""
  g, x, m, v = data(terms, rows), data(terms, columns), data(rows, columns), data(rows, columns)

  def f():
    gradient = g.T @ x
    return [m * 0.9 + gradient * 0.1, v * 0.9 + gradient * gradient * 0.1]

  return f


@pytest.mark.parametrize("rows, terms, columns", [(32, 16, 48), (33, 5, 17)])
def test_a_product_of_which_each_result_is_a_row_is_a_kernel_of_its_own(fresh, rows, terms, columns):
  """Little of its matrices would be used often within a block. What both moments make of it is one kernel. (Mutant:
  nobody asks.)"""
  f = moments(rows, terms, columns)
  same(f)
  assert kernels(f)[0] == 2
  fresh.setattr(row_groups, "multiplies_rows", lambda *_: False)
  assert kernels(f)[0] == 1
  same(f)


def test_attention_agrees_with_numpy():
  q, k, v = (data(2, 40, 8) for _ in range(3))
  scores = q.numpy().astype(np.float64) @ k.numpy().transpose(0, 2, 1) / np.sqrt(8)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  want = weights / weights.sum(-1, keepdims=True) @ v.numpy()
  with Context(TILE_AND_FUSE=1):
    np.testing.assert_allclose(q.scaled_dot_product_attention(k, v).numpy(), want, atol=1e-6)


def test_attention_is_one_kernel_and_its_memory_linear(fresh):
  fresh.setattr(tile_and_fuse, "RECOMPUTE", 1 << 16)

  def of(T, train):
    q, k, v, w = (data(4, T, 16) for _ in range(4))
    return kernels(lambda: attention(q, k, v, w if train else None))

  assert of(64, False) == (1, 0)
  (_, small), (_, large) = of(64, True), of(256, True)
  assert large <= 4 * small + 4096, "4 times the length takes 4 times the memory"
  fresh.setattr(tile_and_fuse, "RECOMPUTE", 1 << 60)
  assert of(256, True)[1] > 4 * 256 * 256 * 4, "without computing anew the weights are stored"


def test_long_attention_of_wide_heads_keeps_no_scores(fresh):
  """Whose products take so long that it is no faster for being one kernel. (Mutant: nothing is large.)"""

  def of(T):
    q, k, v = (Tensor.empty(2, T, 80, dtype="bfloat16") for _ in range(3))
    return kernels(lambda: [q.scaled_dot_product_attention(k, v)])

  fresh.setattr(row_groups, "MOST_KEPT", 1 << 20)
  assert of(800) == (1, 0)
  assert of(500)[0] > 1, "it is not large"
  fresh.setattr(row_groups, "is_large", lambda *_: False)
  assert of(800)[1] >= 2 * 800 * 800 * 2


def test_an_optimizer_is_one_kernel_a_parameter(fresh):
  def step():
    weights = [Tensor(x.numpy(), requires_grad=True).realize() for x in inputs]
    optimizer = nn.optim.AdamW(weights, lr=0.1)
    with Tensor.train():
      for _ in range(2):
        optimizer.zero_grad()
        sum((x * x).sum() for x in weights).backward()
        optimizer.step()
    return weights

  inputs = [data(31, 5), data(64)]
  same(step)
  w = Tensor(rng.standard_normal((100, 100)), requires_grad=True).realize()
  w.grad = data(100, 100)
  with Tensor.train():
    optimizer = nn.optim.AdamW([w], lr=0.1)
    optimizer.step()
    assert kernels(lambda: optimizer.schedule_step())[0] <= 5  # two for each power of beta, and one for the weights


def test_small_matmuls_in_a_row_are_one_kernel():
  x, w = data(16, 16), data(16, 16)

  def chain():
    y = x
    for _ in range(6):
      y = (y @ w).contiguous()
    return [y]

  same(chain)
  assert kernels(chain)[0] == 1


def test_large_products_that_share_a_matrix_stay_apart(monkeypatch):
  """The matrix is not a row's own: each block of rows would read it again, and keep a product's registers less busy."""
  x, w, v = data(3, 64, 256), data(256, 256), data(256, 256)

  def recurrent():
    h = x[0]
    for i in range(3):
      h = (x[i] @ w + h @ v).tanh()
    return [h]

  same(recurrent, atol=1e-4)
  assert kernels(recurrent)[0] == 6
  monkeypatch.setattr(row_groups, "bytes_saved", lambda a, b, rows: sum(x.nbytes for x in a.accesses))
  assert kernels(recurrent)[0] < 6


def test_reductions_across_rows_stay_apart():
  x = data(40, 24)
  same(lambda: [x - x.mean(0), (x.exp() / x.exp().sum(0)).contiguous(), x.exp().contiguous().sum(0) + x.sum(1).sum()])


def test_assigns_in_place():
  def f():
    x = Tensor(start).realize()
    x.assign(x * 2 + x.sum(1, keepdim=True))
    y = (x + 1).contiguous()
    x.assign(x - y.max(1, keepdim=True))
    return [x, y]

  start = rng.standard_normal((12, 30), dtype=np.float32)
  same(f)


def test_half_precision_and_gathered_rows():
  x = Tensor(rng.standard_normal((20, 48)).astype(np.float16)).realize()
  table, ids = data(50, 48), Tensor(rng.integers(0, 50, 20).astype(np.int32)).realize()
  same(lambda: [x.softmax(), x.layernorm()], atol=2e-3)
  same(lambda: [table[ids].layernorm().softmax(), table[ids.sort()[0]].softmax()])
  same(lambda: [x.cast(dtypes.bfloat16).softmax().float()], atol=2e-2)


def put_where(m, per_row, columns):
  """Elements put at places of their rows, the last of several staying, and by numpy, one after the other."""
  x, at = rng.standard_normal((m, columns), dtype=np.float32), rng.integers(-columns, columns, (m, per_row))
  values, want = rng.standard_normal((m, per_row), dtype=np.float32), x.copy()
  for i, j in np.ndindex(at.shape):
    want[i, at[i, j]] = values[i, j]
  tensors = [Tensor(y).realize() for y in (x, at, values)]
  return lambda: [tensors[0].scatter(1, *tensors[1:])], want


@pytest.mark.parametrize("mutant", [False, True])
def test_places_are_computed_from_what_is_a_rows_own(fresh, mutant):
  """Rows of weights, each in the order of its elements: where the sorted ones are found lies in the row's memory, as
  they do. (Mutant: accesses are moved, but for those in the places of others, which then read what nobody has
  written.)"""
  if mutant:
    fresh.setattr(row_memory, "with_accesses", substitute_free)
  x = data(15, 6)
  got = vmap(lambda row: row[row.argsort(0)])(x.softmax(1)).numpy()
  assert np.allclose(got, np.sort(x.softmax(1).numpy(), 1), rtol=1e-5, atol=1e-6) is not mutant


def test_what_is_put_in_a_row_is_there_when_it_is_read(fresh):
  """A step is counted for each update, not for each update and place: that would be too much work to share rows."""
  make, want = put_where(64, 700, 1000)
  np.testing.assert_array_equal(make()[0].numpy(), want)
  assert kernels(make) == (1, 0)
  dense = row_groups.work
  fresh.setattr(row_groups, "work", lambda store, by_index=False: dense(store))
  assert kernels(make)[0] == 2


def test_rows_that_are_put_into_stay_in_the_cache():
  """Not all rows are one block: only places within a row are, since each block of these goes through all updates."""
  rows, columns = 4000, 4096
  row, place, update = loop(rows, 0), loop(columns, 1), loop(300, 2, AxisKind.REDUCE)
  mine, none, index = own_memory(-1, 1), UOp.const(dtypes.index, 0), own_memory(1, rows * 300, dtypes.int32)
  goes = of(Ops.CAST, loaded(index, row * 300 + update), dtype=dtypes.index)
  value = of(Ops.ONE_HOT, goes, place, loaded(own_memory(2, 300), update), arg=Ops.MAX)
  most = put(mine, none, UOp.new(Ops.FOLD, dtypes.float32, (value, update), Ops.MAX), row, place)
  read = put(own_memory(0, rows * columns), row * columns + place, loaded(mine, none), row, place)
  target = Device["CPU"].target
  kernel = blocks.block_rows(UOp.sink(most, read), target)
  (held,) = {u.arg[2] for u in kernel.toposort() if u.op is Ops.SCRATCH}
  assert 4 * columns <= held <= target.cache and held % (4 * columns) == 0


def test_rows_of_a_device(fresh):
  block_bytes(fresh, 1 << 10)
  x = data(24, 40)
  same(lambda: [x.shard(("CPU:0", "CPU:1"), axis=a).softmax().layernorm() for a in (0, 1, None)])


def test_values_written_by_a_block_are_read_anew(fresh):
  """Mutant: what has been read from memory stays known after it has been written."""
  block_bytes(fresh, 1)
  x = data(32, 64)

  def f():
    y = x.clone().realize()
    y.assign(y + 1)
    return [(y * 2).contiguous(), y]

  same(f)
  fresh.setattr(Values, "forget_memory", lambda self, written: None)
  PROCESS.forget()
  apart, together = both(f)
  assert any(np.abs(x - y).max() > 0.5 for x, y in zip(apart, together))


def test_sums_over_rows_are_read_where_they_stand(fresh):
  """Mutant: reads of memory that other blocks write are moved out of the loop over blocks."""
  block_bytes(fresh, 1)
  # where there is something to move depends on how wide vectors are
  shapes = (3, 257, 64), (2, 65, 33), (3, 100, 20)
  inputs = [[data(*shape) for _ in range(4)] for shape in shapes]

  def f():
    return [t for given in inputs for t in attention(*given)]

  same(f, atol=1e-5)

  class Nothing(set):
    def __contains__(self, x):
      return False

  fresh.setattr(Values, "written", property(lambda self: Nothing(), lambda self, value: None), raising=False)
  PROCESS.forget()
  apart, together = both(f)
  assert max(np.abs(x - y).max() for x, y in zip(apart, together)) > 1e-2


def test_only_rows_that_keep_apart_are_joined(fresh):
  """Mutant: an access passes for one of its own row wherever it steps from row to row."""
  block_bytes(fresh, 1)
  x = data(32, 24)

  def f():  # a row and the next
    y = (x.exp() + x.sum(1, keepdim=True)).contiguous()
    return [(y.pad(((0, 1), (0, 0)))[1:] + y).contiguous(), y]

  same(f)
  fresh.setattr(row_groups, "is_row_index", lambda *a: True)
  PROCESS.forget()
  apart, together = both(f)
  assert not np.abs(apart[0] - together[0]).max() <= 0.1  # or not a number: what nothing has written yet


def test_what_a_condition_keeps_in_its_row_is_its_rows(fresh):
  """A running reduction of rows whose length no block divides reads beside blocks, but only under a condition that it
  is of the row: all of its levels are one kernel. Mutant: conditions are not looked at."""
  x = data(32, 1000)
  same(lambda: [x.cumsum(1), x.cumprod(1).contiguous(), x.flip(1).cummax(1)[0]], atol=1e-4)
  assert kernels(lambda: [x.cumsum(1)])[0] == kernels(lambda: [x.flip(1).cumprod(1)])[0] == 1
  found = row_groups.accesses
  fresh.setattr(row_groups, "accesses", lambda stores: tuple(replace(a, negative=()) for a in found(stores)))
  assert kernels(lambda: [x.cumsum(1)])[0] > 2


BEYOND = [(0, 24, True), (0, 25, False), (0, 26, False), (3, 27, True), (2, 27, False), (3, 28, False)]


@pytest.mark.parametrize(("start", "end", "one"), BEYOND)
def test_a_condition_that_reaches_into_another_row_keeps_nothing(start, end, one):
  """Rows of 24 elements are written; of row r the elements k - 3 (or k) are read where start <= k < end."""
  r, i, k = (loop(n, number) for number, n in enumerate((16, 24, 32)))
  x, y, z = (own_memory(slot, 16 * 32) for slot in range(3))
  below = UOp.new(Ops.CMPLT, dtypes.bool, (k, UOp.const(dtypes.index, end)))
  above = UOp.new(Ops.CMPLT, dtypes.bool, (k * -1, UOp.const(dtypes.index, 1 - start)))
  shift = 3 if start else 0
  there = UOp.new(Ops.AND, dtypes.bool, (below, above))
  read = UOp.new(Ops.INDEX, dtypes.float32, (y, r * 24 + k + -shift, there))
  value = UOp.new(Ops.LOAD, dtypes.float32, (read, UOp.const(dtypes.float32, 0)))
  first = UOp.new(Ops.STORE, dtypes.void, (at(y, r * 24 + i), loaded(x, r * 24 + i), r, i))
  second = UOp.new(Ops.STORE, dtypes.void, (at(z, r * 32 + k), value, r, k))
  ids = LoopIds()
  groups = [row_groups.single(UOp.sink(s), (0, 1, 2), ids) for s in (first, second)]
  joined = row_groups.joined_groups(*groups, ids, Device["CPU"].target)
  assert (joined is not None and len(joined.rows) == 1) == one


def own_memory(slot, size=8, dtype=dtypes.float32):
  return UOp.new(Ops.PARAM, dtype, (), ParamArg(slot, size))


def at(memory, offset):
  return UOp.new(Ops.INDEX, memory.dtype, (memory, offset))


def loaded(memory, offset):
  return UOp.new(Ops.LOAD, memory.dtype, (at(memory, offset),))


def loop(n, number, kind=AxisKind.LOOP):
  return UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, n),), (number, kind))


def put(memory, offset, value, *loops):
  return UOp.new(Ops.STORE, dtypes.void, (at(memory, offset), value, *loops))


def of(op, *src, dtype=dtypes.float32, arg=None):
  return UOp.new(op, dtype, src, arg)


def softmax_of_a_row(between=()):
  """exp(x) summed, and exp(x) by the sum; with stores `between`."""
  r, i, k = loop(64, 0), loop(8, 1), loop(8, 2, AxisKind.REDUCE)
  x, total, out = own_memory(-1), own_memory(-2, 1), own_memory(0, 512)
  zero = UOp.const(dtypes.index, 0)
  sums = put(total, zero, of(Ops.FOLD, of(Ops.EXP, loaded(x, k)), k, arg=Ops.ADD), r)
  last = put(out, r * 8 + i, of(Ops.MUL, of(Ops.EXP, loaded(x, i)), loaded(total, zero)), r, i)
  return (sums, *between, last), r, x


def functions(stores):
  return sum(u.op is Ops.EXP for u in UOp.sink(*stores).toposort())


def test_slow_functions_of_the_same_elements_are_computed_once(fresh):
  stores, r, x = softmax_of_a_row()
  once = row_memory.eliminate_common_functions(stores, (r,), 2)
  assert (functions(stores), functions(once), len(once)) == (2, 1, 3)
  assert once[0].src[0].src[0].arg == ParamArg(-3, 8) and once[0].src[2] is r and once[0].src[3].arg[1] is AxisKind.LOOP
  i = loop(8, 7)
  changed, r, x = softmax_of_a_row([put(x, i, UOp.const(dtypes.float32, 1.0), r, i)])
  assert row_memory.eliminate_common_functions(changed, (r,), 2) is changed  # x is another when it is read again
  for nbytes in (1, 1 << 18):
    block_bytes(fresh, nbytes)
    d = data(33, 50)
    same(lambda d=d: [(d.exp().sum(1, keepdim=True) + d.exp()).contiguous(), (d.sin() * d.softmax()).softmax()])

  def in_place():
    y = d.clone().realize()
    first = y.exp().sum(1, keepdim=True).contiguous()
    y.assign(y + 1)
    return [(y.exp() * first).contiguous(), y]

  same(in_place)


def test_memory_of_a_row_is_taken_over_by_what_follows_element_by_element(fresh):
  r, j = loop(64, 0), loop(8, 1)
  x, y = own_memory(-1), own_memory(-2)
  one = UOp.const(dtypes.float32, 1.0)
  second, flipped = put(y, j, of(Ops.ADD, loaded(x, j), one), r, j), put(y, j, loaded(x, 7 - j), r, j)
  here, across = (list(blocks.indices([s])) for s in (second, flipped))
  assert blocks.reuses_memory(second.src[0], here, (), x)
  assert not blocks.reuses_memory(second.src[0], here, (x,), x)  # it is read again
  assert not blocks.reuses_memory(flipped.src[0], across, (), x)
  assert not blocks.reuses_memory(second.src[0], here, (), own_memory(-1, 16))
  q, k, v, w = (data(2, 40, 16) for _ in range(4))
  fresh.setattr(blocks, "reuses_memory", lambda *a: True)  # a mutant
  apart, together = both(lambda: attention(q, k, v, w))
  assert max(np.abs(x - y).max() for x, y in zip(apart, together)) > 1e-2


FRONTS = {
  "as it is": lambda x: x,
  "relu": lambda x: x.relu(),
  "affine": lambda x: x * 2 + 1,
  "of two": lambda x: (x + x.flip(0)) * 0.5,
  "slow": lambda x: x.sigmoid(),
  "moved": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}
LINKS = {
  "batch norm": lambda x, axes: nn.BatchNorm(x.shape[1], affine=False)(x) if x.ndim > 1 else x,
  "layer norm": lambda x, axes: x.layernorm(),
  "softmax": lambda x, axes: x.softmax(axes[0]),
  "centred": lambda x, axes: x - x.mean(axes, keepdim=True),
  "of the largest": lambda x, axes: x / (1 + x.abs().max(axes, keepdim=True)),
  "scaled": lambda x, axes: x * (x.square().mean(axes, keepdim=True) + 1).rsqrt(),
  "summed": lambda x, axes: x.sum(axes, keepdim=True) + x.mean(),
}


def normalised(seed):
  """(how it is made of an array, the array): a front that is not realized, and normalisations and reductions behind."""
  random = np.random.default_rng(seed)
  shape = tuple(random.choice([2, 3, 4, 8, 16], random.integers(2, 5)).tolist())
  front, links = random.choice([*FRONTS]), list[tuple[str, tuple[int, ...]]]()
  for _ in range(random.integers(1, 4)):
    axes = random.choice(len(shape), random.integers(1, len(shape) + 1), replace=False)
    links.append((random.choice([*LINKS]), tuple(sorted(axes.tolist()))))
  kept = int(random.integers(0, len(links) + 1))

  def f(x):
    """What is read on the way is wanted too, as a layer's statistics and a backward pass want it."""
    outs = [FRONTS[front](x)]
    for name, axes in links:
      outs.append(LINKS[name](outs[-1], axes))
    return [*outs[:kept], outs[-1]]

  return f, random.standard_normal(shape, dtype=np.float32)


SOON = ((share, "WORTHWHILE", 0), (share, "LEAST", 1), (share, "REPEATED", 8), (parts, "LARGE", 16), (parts, "PART", 2))


@pytest.mark.parametrize("part", range(4))
def test_chains_of_normalisations(fresh, part):
  """Small ones, which are shared out and cut in parts as large ones are: a thread may have a single row."""
  for module, name, value in SOON:
    fresh.setattr(module, name, value)
  for seed in range(8 * part, 8 * part + 8):
    f, x = normalised(seed)

    def run(together, threads, f=f, x=x):
      with Context(TILE_AND_FUSE=together, CPU_THREADS=threads), Tensor.train():
        values = f(Tensor(x).realize())
        Tensor.realize(*values)
        return [v.numpy() for v in values]

    want = run(0, 1)
    for threads in (2, 3, 8):
      for y, z in zip(run(1, threads), want, strict=True):
        np.testing.assert_allclose(y, z, rtol=2e-5, atol=2e-5, err_msg=f"seed {seed}, {threads} threads")


REDUCED = {
  "cumsum": lambda x: x.cumsum(0),
  "cummax": lambda x: x.cummax(0)[0],
  "sort": lambda x: x.sort(0)[0],
  "matmul": lambda x: x @ x.transpose(),
}
WANTED = {
  "cumsum": lambda x: x.cumsum(0),
  "cummax": lambda x: np.maximum.accumulate(x),
  "sort": lambda x: np.sort(x, 0),
  "matmul": lambda x: x @ x.T,
}


@pytest.mark.parametrize("nbytes", [1, 1 << 18])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.fp8e5m2, dtypes.float32, dtypes.int8])
def test_reductions_over_rows_in_every_width(fresh, dtype, nbytes):
  """What a kernel of rows reduces over them is the same in types that no processor computes in."""
  block_bytes(fresh, nbytes)
  for shape in ((2, 8), (5, 7)):
    x = np.random.default_rng(0).integers(-3, 1, shape)
    t = Tensor(x.tolist(), dtype=dtype).realize()
    for name, made in REDUCED.items():
      for end, axis in ((end, axis) for end in ("max", "min") for axis in (0, 1)):
        want = getattr(WANTED[name](x), end)(axis).astype(to_numpy_dtype(dtype))  # rounding keeps the order
        got = getattr(made(t), end)(axis).realize().numpy()
        np.testing.assert_array_equal(got.astype(want.dtype), want, f"{name} {end} {shape} {axis}")


def test_rows_of_a_part_that_may_be_empty():
  """Dims of at most one element on a device are loops of their own in each kernel, and no rows."""
  x = np.random.default_rng(0).integers(-9, 9, (1, 7, 16))
  for axis in (0, 1, 2):
    t = Tensor(x.tolist(), dtype=dtypes.float64).shard(("CPU:0", "CPU:1"), axis=axis).realize()
    np.testing.assert_array_equal(t.sum(1, keepdim=True).sort(2)[0].numpy(), np.sort(x.sum(1, keepdims=True), 2))


def test_a_narrow_sum_is_not_kept_in_parts(fresh):
  """A register of float32 holds what memory of half would round, block of rows by block."""
  block_bytes(fresh, 1)
  x = Tensor(np.full((2, 2, 64), 0.1, np.float16)).realize()

  def of(reduction):
    y = (x.permute(0, 2, 1) + 1).contiguous()
    return [Tensor(y.uop.r(reduction, (1,))), y]

  assert kernels(lambda: of(Ops.MAX))[0] < kernels(lambda: of(Ops.ADD))[0]
  Tensor.realize(*(got := of(Ops.ADD)))
  total, y = (t.numpy() for t in got)
  np.testing.assert_array_equal(total, y.astype(np.float64).sum(1, keepdims=True).astype(np.float16))


def test_a_sum_of_bytes_over_rows_stays_a_sum():
  """Products of bytes are words for an instruction that adds four: not where the sum is one of parts, over rows."""
  target = replace(Device["CPU"].target, features=("avx512vnni",))
  r, i, j, k = loop(64, 0), loop(32, 1), loop(32, 2), loop(32, 3)
  x, y = own_memory(1, 64 * 32, dtypes.int8), own_memory(2, 64 * 32, dtypes.int8)
  wide = [UOp.new(Ops.CAST, dtypes.int32, (loaded(*at),)) for at in ((x, r * 32 + i), (y, r * 32 + j))]
  product = of(Ops.FOLD, of(Ops.MUL, *wide, dtype=dtypes.int32), r, dtype=dtypes.int32, arg=Ops.ADD)
  total = put(own_memory(0, 1024, dtypes.int32), i * 32 + j, product, i, j)
  assert use_dots(UOp.sink(total), target) is not UOp.sink(total)
  copy = put(own_memory(3, 64 * 32 * 32, dtypes.int8), (r * 32 + i) * 32 + k, loaded(x, r * 32 + i), i, k, r)
  both = UOp.sink(copy, total)
  assert use_dots(both, target) is both


def test_a_place_in_a_row_of_a_device_counts_back_from_the_devices_number():
  """A batch that is cut over two axes, of which a third is between: the part of a row's memory that a device reads
  depends on its number by a term that is below zero."""
  mesh = Mesh([f"CPU:{i}" for i in range(8)], (2, 2, 2), ("data", "fsdp", "model"))
  weights, y = data(16, 64), Tensor(np.random.default_rng(0).integers(0, 16, (8, 16)))
  table, output = (Tensor(weights.numpy()).shard(mesh, at).realize() for at in (P("fsdp"), P("model", "fsdp")))
  ids = y.shard(mesh, P(("data", "fsdp"))).realize()
  plain = (weights[y[:, :-1]] @ weights.T).sparse_categorical_crossentropy(y[:, 1:])
  loss = (table[ids[:, :-1]] @ output.T).sparse_categorical_crossentropy(ids[:, 1:])
  loss.realize(*loss.gradient(table))
  assert abs(loss.item() - plain.item()) < 1e-4, "1.77 where it was 2.79"


def scheduled(*values):
  """The kernels that compute values in new memory, and where their memory is."""
  sink = UOp.sink(*(UOp.buffer(t.shape, t.dtype, "CPU").assign(t.uop) for t in values))
  return [(i.kernel, i.slots, i.writes) for i in create_schedule(localize(sink), True, Device["CPU"].target).items]


def layers(n, width):
  """Normalisations between products, n times over, with a residual: as in a model."""
  x = y = Tensor.empty(24, width)
  for _ in range(n):
    w, v = Tensor.empty(width, width), Tensor.empty(width, width)
    y = y + (y.layernorm() @ w).gelu() @ v + y.softmax()
  return y, y.sum(0), x + 1


def differences():
  """Of softmaxes and other values, either way round."""
  rows = [(Tensor.empty(24, 512).softmax().contiguous(), Tensor.empty(24, 512)) for _ in range(2)]
  return rows[0][0] - rows[0][1], rows[1][1] - rows[1][0], rows[0][0] * 2, rows[1][0] * 2


def test_equal_layers_are_joined_once(fresh):
  """The fourth and later ones take no work, however they lie in memory."""
  made, counts, join = [], [], tile_and_fuse.joined_groups
  fresh.setattr(tile_and_fuse, "joined_groups", lambda *a: made.append(a) or join(*a))
  for n in 4, 12:
    made.clear()
    scheduled(*layers(n, 512))
    counts.append(len(made))
  assert counts[0] == counts[1] > 10


@pytest.mark.parametrize("graph", [lambda: layers(5, 48), lambda: layers(5, 512), differences])
def test_what_is_joined_once_is_what_would_be_joined_each_time(fresh, graph):
  values = graph()
  once = scheduled(*values)
  fresh.setattr(tile_and_fuse.Joins, "known", lambda self, make, *key: make(*key))
  assert scheduled(*values) == once


def test_whose_memory_is_whose_counts(fresh):
  values, known = differences(), tile_and_fuse.Joins.known
  once = scheduled(*values)

  def whichever(self, make, *key):
    if (make, *key[:2]) not in self.made:
      self.made[make, *key[:2]] = known(self, make, *key)
    return self.made[make, *key[:2]]

  fresh.setattr(tile_and_fuse.Joins, "known", whichever)
  assert scheduled(*values) != once


def test_what_a_variable_adds_is_no_step_within_a_row():
  """Where in memory a part begins is the same for all of a row: its rows lie as they do in memory of their own."""
  r = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 1 << 17),), (0, AxisKind.LOOP))

  def beside(at):
    out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 24)) for slot in range(2))
    value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, at)),))
    store = UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, dtypes.float32, (out, r)), value, r))
    return row_groups.rows_beside_each_other(row_groups.single(UOp.sink(store), (0, 1), LoopIds(store)))

  assert beside(r) == beside(r + UOp.variable("part", 0, 63) * (1 << 17)) == 1
