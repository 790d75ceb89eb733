"""How many kernels known graphs take, which values are stored, and that none of this depends on the number of
devices.
"""

from dataclasses import replace

import numpy as np
import pytest
from steps import TooManySteps, growth

from extra.gpu_model import GPUS, target_of
from tinygrad import Tensor, codegen, dtypes, nn
from tinygrad.codegen import lower_kernel
from tinygrad.device import Mesh, P, cores
from tinygrad.engine.compile import _plans, plan_of
from tinygrad.engine.realize import realize
from tinygrad.helpers import PROCESS, Context, GlobalCounters
from tinygrad.numerics import dots
from tinygrad.schedule import fuse, items
from tinygrad.schedule.items import Temp, plan_memory
from tinygrad.schedule.schedule import ANY_TARGET, create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import CARDS, Ops, UOp


def empty(*shape, dtype=dtypes.float32):
  return Tensor(UOp.buffer(shape, dtype, "NULL"))


def kernels(*tensors):
  """The kernels that computing the tensors takes."""
  GlobalCounters.reset()
  realize(*(t.uop for t in tensors))
  return GlobalCounters.kernel_count


def asts(t):
  sink = UOp.sink(UOp.buffer(t.shape, t.dtype, "NULL").assign(t.uop))
  return [i.kernel for i in create_schedule(localize(sink)).items]


def test_matmul_bias_relu_is_one_kernel():
  assert kernels((empty(8, 16) @ empty(16, 4) + empty(4)).relu()) == 1


def test_softmax_and_layernorm_take_three():
  assert kernels(empty(8, 16).softmax(axis=-1)) == 3
  assert kernels(empty(8, 16).log_softmax(axis=-1)) == 3
  assert kernels(empty(8, 16).layernorm()) == 3
  assert kernels(nn.RMSNorm(16)(empty(8, 16))) <= 3


def test_elementwise_chain_movement_and_sum_are_one():
  x, y = empty(8, 16), empty(16, 8)
  assert kernels(((x * 2 + y.T).exp().flip(0).reshape(4, 32) - 1).sum(1)) == 1
  assert kernels(Tensor.cat(x, x + 1, dim=1).pad(((1, 1), (0, 0))).sum()) == 1


def test_a_long_computation_is_cut_into_kernels_that_are_compiled_in_proportion():
  """Compilers take more than linear time over straight code: 1600 steps as one kernel took LLVM two minutes."""

  def steps(n, x):
    for _ in range(n):
      x = (x * 0.999 + 0.001).tanh() + x * 0.01
    return x

  short, long = asts(steps(50, empty(3))), asts(steps(1000, empty(3)))
  assert len(short) == 1 and len(long) > 5
  costs = [max(longest_way(kernel).values()) for kernel in long]
  assert max(costs) <= fuse.DEEP + CARDS[Ops.TANH].cost and len(set(long)) < len(
    long
  )  # and equal parts are compiled once
  x = np.full(3, 0.5, np.float32)
  w = Tensor(x, requires_grad=True)
  made, want, slope = steps(150, w), x.astype(np.float64), np.ones(3)
  for _ in range(150):
    tanh = np.tanh(want * 0.999 + 0.001)
    want, slope = tanh + want * 0.01, slope * ((1 - tanh**2) * 0.999 + 0.01)
  (gradient,) = made.sum().gradient(w)
  np.testing.assert_allclose(made.numpy(), want, rtol=1e-4)
  np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-3)


def longest_way(kernel):
  """By value of a kernel: the instructions of the longest way to it."""
  ways = {}
  for u in kernel.toposort():
    index = u.op in (Ops.INDEX, Ops.RANGE) or u.dtype is dtypes.index
    ways[u] = 0 if index else max((ways[s] for s in u.src), default=0) + CARDS[u.op].cost
  return ways


def test_mlp_stores_the_activation_not_the_product():
  x, w1, w2 = empty(32, 64), empty(64, 128), empty(128, 16)
  ks = asts((x @ w1).relu() @ w2)
  assert len(ks) == 2
  first, second = ks
  assert any(u.op is Ops.MAX for u in first.toposort()) and not any(u.op is Ops.MAX for u in second.toposort())


def sums_of_products(ast):
  return sum(u.op is Ops.FOLD for u in ast.toposort())


def three_products(apart):
  """Sums of three products of matrices: each summed, or (as the gradient of what three products read) added before."""
  xs, ws = [empty(32, 64) for _ in range(3)], [empty(64, 48) for _ in range(3)]
  if apart:
    return xs[0] @ ws[0] + xs[1] @ ws[1] + xs[2] @ ws[2]
  products = [x.reshape(32, 1, 64) * w.T.reshape(1, 48, 64) for x, w in zip(xs, ws)]
  return (products[0] + products[1] + products[2]).sum(2)


@pytest.mark.parametrize("apart", [True, False])
def test_a_kernel_computes_one_product_of_matrices(monkeypatch, apart):
  assert [sums_of_products(ast) for ast in asts(three_products(apart))] == [1, 1, 1]
  monkeypatch.setattr(fuse, "is_second", lambda u, uses, first: False)
  assert [sums_of_products(ast) for ast in asts(three_products(apart))] == [3]


def gradient_of_tied_table(kind):
  """Of a table of which tokens are rows, and by which what is made of these is multiplied."""
  table, tokens = empty(2048, 64, dtype=kind), empty(1024, dtype=dtypes.int32)
  loss = (table[tokens].silu() @ table.T).float().sparse_categorical_crossentropy(tokens)
  return loss.gradient(table)[0]


def adds_by_index(kind, target):
  """Of each kernel of that gradient which adds by index: its sums of products, and what it stores."""
  t = gradient_of_tied_table(kind)
  sink = UOp.sink(UOp.buffer(t.shape, t.dtype, "NULL").assign(t.uop))
  for ast in (i.kernel for i in create_schedule(localize(sink), True, target).items):
    folds = [u for u in ast.toposort() if u.op is Ops.FOLD]
    if any(u.src[0].op is Ops.ONE_HOT for u in folds):
      yield sum(u.src[0].op is Ops.MUL for u in folds), [s.src[1].op for s in ast.src]


@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("grid", [False, True])
def test_a_product_and_a_sum_by_index_are_a_kernel_each(kind, grid, monkeypatch):
  """A product has its tiles and cores. On a grid rows are added in memory of their own type, though what is asked for
  is narrower, for else each row would look at every update."""
  target = target_of(GPUS["sm_90a"]) if grid else ANY_TARGET
  ((count, stores),) = adds_by_index(kind, target)
  assert count == 0 and (stores == [Ops.FOLD] or not grid)
  if grid:
    monkeypatch.setattr(fuse, "adds_many", lambda u, target: False)
    assert [*adds_by_index(kind, target)] != [(0, [Ops.FOLD])]
  monkeypatch.setattr(fuse, "is_second", lambda u, uses, first: False)
  assert any(count for count, _ in adds_by_index(kind, target))


@pytest.mark.parametrize("grid", [False, True])
def test_an_assignment_that_is_made_again_happens_again(grid):
  """Its kernel is that of the first one: as one with that it would be one store."""
  x = empty(960)
  for _ in range(3):
    x.assign(x * 0.5 + 1)
  sink = UOp.sink(*[u for u in x.uop.toposort() if u.op is Ops.ASSIGN])
  target = target_of(GPUS["sm_90a"]) if grid else ANY_TARGET
  items = create_schedule(localize(sink), True, target).items
  assert [len(i.kernel.src) for i in items] == [1] * 3 and len({i.kernel for i in items}) == 1


def test_a_loss_is_the_kernel_of_its_exponentials():
  """Its gradient is added by index, too: one number to each row."""
  logits, labels = empty(4096, 8192), empty(4096, dtype=dtypes.int32)
  grad = logits.sparse_categorical_crossentropy(labels).gradient(logits)[0]
  sink = UOp.sink(UOp.buffer(grad.shape, grad.dtype, "NULL").assign(grad.uop))
  schedule = create_schedule(localize(sink), True, target_of(GPUS["sm_90a"]))
  assert sum(any(u.op is Ops.EXP for u in i.kernel.toposort()) for i in schedule.items) == 1
  assert not any(t.nbytes >= grad.nbytes() for t in schedule.temps)


def test_the_gradient_of_what_several_products_read_is_made_of_one_each():
  x, ws = empty(32, 64), [empty(64, 48) for _ in range(3)]
  loss = sum(((x @ w).exp().sum() for w in ws), empty(1).sum())
  (g,) = loss.gradient(x)
  assert max(map(sums_of_products, asts(g))) == 1


def test_products_with_a_vector_share_a_kernel():
  """Each weight is used once: nothing is laid out for it."""
  x, w, y, v = empty(1, 64), empty(64, 48), empty(1, 32), empty(32, 48)
  assert kernels(x @ w + y @ v) == 1


def test_activation_that_is_slow_to_compute_is_not_repeated_in_a_matmul():
  ks = asts(empty(32, 64).exp() @ empty(64, 16))
  assert len(ks) == 2 and not any(u.op is Ops.EXP for u in ks[1].toposort())


def test_attention_is_five_kernels():
  q, k, v = (empty(2, 4, 16, 8) for _ in range(3))
  # scores, their maximum, the sum of exp, the quotient, the product with v
  assert kernels(q.scaled_dot_product_attention(k, v, is_causal=True)) <= 5


def test_conv_reads_its_input_through_the_windows():
  assert kernels(nn_conv(empty(2, 3, 10, 10)).relu()) == 1
  assert kernels(nn_conv(nn_conv(empty(2, 3, 10, 10)).relu(), 4).relu().max_pool2d()) == 3


def nn_conv(x, channels=3):
  return x.conv2d(empty(4, channels, 3, 3), empty(4), padding=1)


def test_quantised_weights_are_read_as_they_are():
  """cast(int8) * scale is computed where it is read: no kernel writes the weight in floats."""
  q, scale, x = empty(64, 4, 32, dtype=dtypes.int8), empty(64, 4, 1, dtype=dtypes.float16), empty(1, 128)
  w = (q.cast(dtypes.float32) * scale.cast(dtypes.float32)).reshape(64, 128)
  (k,) = asts(x @ w.T)
  assert {u.dtype for u in k.toposort() if u.op is Ops.PARAM} == {dtypes.float32, dtypes.int8, dtypes.float16}
  (k,) = asts(w[Tensor(UOp.buffer((3,), dtypes.int32, "NULL"))])
  assert dtypes.int8 in {u.dtype for u in k.toposort() if u.op is Ops.PARAM}


def test_masks_are_never_stored():
  x = empty(8, 16, 16)
  mask = Tensor.ones(16, 16).tril() != 0
  assert kernels(mask.where(x, 0.0) + mask.where(x * x, 1.0), mask.where(x, 2.0).sum(axis=1)) == 2


def test_a_reduction_with_two_consumers_is_computed_once():
  x = empty(16, 32)
  s = x.sum(axis=1)
  assert kernels(s * 2, s + empty(16)) == 3


def test_equal_layers_share_their_kernels():
  x = empty(4, 16)
  for _ in range(5):
    x = (x @ empty(16, 16)).relu() + x
  ks = asts(x)
  assert len(ks) == 5 and len(set(ks)) == 1


def test_equal_graphs_share_a_plan_whatever_their_buffers(fresh):
  sinks = []
  for _ in range(2):
    x = empty(7, 13)
    sinks.append(UOp.sink(UOp.buffer((7,), dtypes.float32, "NULL").assign((x * 3).sum(axis=1).uop)))
  plans = [plan_of(s)[0] for s in sinks]
  assert plans[0] is plans[1] and len(_plans) == 1


def step(n):
  """A data- and tensor-parallel training step on a mesh of n devices; (UOps, items, counters) of it."""
  mesh = Mesh(tuple(f"NULL:{i}" for i in range(n)), (n // 2, 2), ("dp", "tp"))
  x = empty(512, 32).shard(mesh, P("dp", None))
  w1, w2 = empty(32, 64).shard(mesh, P(None, "tp")), empty(64, 32).shard(mesh, P("tp", None))
  Tensor.realize(x, w1, w2)
  loss = ((x @ w1).relu() @ w2).square().mean()
  roots = [loss, *(w - 0.1 * g for w, g in zip((w1, w2), loss.gradient(w1, w2)))]
  sink = UOp.sink(*(UOp.buffer(t.shape, t.dtype, t.device).assign(t.uop) for t in roots))
  local = localize(sink)
  schedule = create_schedule(local)
  return (
    len(local.toposort()),
    len(schedule.items),
    len({i.kernel for i in schedule.items}),
    sum(i.peers for i in schedule.items),
  )


def test_a_step_costs_the_same_on_512_devices_as_on_4():
  few, many = step(4), step(512)
  assert few == many
  assert few[3] > 0  # it does communicate


def test_memory_is_reused_and_never_shared_by_values_that_are_needed_together():
  temps = {i: Temp("CPU", n) for i, n in enumerate((100, 200, 100, 50, 300))}
  uses = [(0,), (1, 0), (2, 1), (3, 2), (4, 3)]
  at, pool = plan_memory(uses, temps)
  for slots in uses:
    assert len({at[s] for s in slots}) == len(slots)
  assert all(pool[at[i]].nbytes >= t.nbytes for i, t in temps.items())
  assert sum(t.nbytes for t in pool) == 512  # of 64 each: 5, 2, 1; in two memories it would be 5 and 4


@pytest.mark.parametrize("small", [True, False])
def test_devices_meet_once_for_each_sum(small: bool, monkeypatch):
  """What is read by peers is not written again before they meet for the next sum; they would meet twice for that."""
  monkeypatch.setattr(items, "SMALL", items.SMALL if small else 0)
  two = ("NULL:0", "NULL:1")
  x = Tensor.empty(4, 8).shard(two)
  for w in (Tensor.empty(8, 8).shard(two, axis=0) for _ in range(3)):
    x = (x @ w).relu()
  found = create_schedule(localize(UOp.sink(x.contiguous().uop)), ANY_TARGET).items
  read, again = set[int](), 0
  for i in found:
    if read.intersection(i.slots[: i.writes]):
      read, again = set(), again + 1
    if i.peers:
      read = set(i.slots[i.writes :])
  assert sum(i.peers for i in found) == 3 and again == (0 if small else 2)


@pytest.mark.parametrize("seed", range(20))
def test_memory_plan_against_intervals(seed):
  rng = np.random.default_rng(seed)
  temps = {i: Temp(("CPU", "CPU:1")[rng.integers(2)], int(rng.integers(1, 500))) for i in range(12)}
  uses = [tuple(rng.choice(12, rng.integers(1, 4), replace=False).tolist()) for _ in range(25)]
  at, pool = plan_memory(uses, temps)
  alive = {s: [i for i, u in enumerate(uses) if s in u] for s in at}
  for a in at:
    assert pool[at[a]].device == temps[a].device and pool[at[a]].nbytes >= temps[a].nbytes
    for b in at:
      if a < b and at[a] == at[b]:
        assert alive[a][-1] < alive[b][0] or alive[b][-1] < alive[a][0]


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_that_of_a_plain_search(seed):
  """Large ones first, each in the last memory made in which no other lives at its times."""
  rng = np.random.default_rng(seed)
  temps = {i: Temp(("CPU", "CPU:1")[rng.integers(2)], int(rng.integers(1, 9)) * 64) for i in range(40)}
  uses = [tuple(rng.choice(40, rng.integers(1, 4), replace=False).tolist()) for _ in range(int(rng.integers(30, 70)))]
  times = {s: [i for i, u in enumerate(uses) if s in u] for u in uses for s in u}
  memories: list[list[int]] = []
  for s in sorted(times, key=lambda s: (-temps[s].nbytes, times[s][0])):

    def is_free(m, s=s):
      return temps[m[0]].device == temps[s].device and all(
        times[o][-1] < times[s][0] or times[o][0] > times[s][-1] for o in m
      )

    free = [m for m in memories if is_free(m)]
    free[-1].append(s) if free else memories.append([s])
  at, pool = plan_memory(uses, temps)
  assert at == {s: i for i, m in enumerate(memories) for s in m}
  assert pool == [temps[m[0]] for m in memories]


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_little_more_than_what_is_alive_at_once(seed):
  """(First fit in order, each memory as large as what it ever holds, takes up to three times as much here.)"""
  rng = np.random.default_rng(seed)
  lives = [(a, a + int(rng.integers(1, 40)), int(2 ** rng.integers(6, 20))) for a in rng.integers(0, 300, 150).tolist()]
  temps = {i: Temp("CPU", nbytes) for i, (_, _, nbytes) in enumerate(lives)}
  uses = [tuple(i for i, (a, b, _) in enumerate(lives) if t in (a, b)) for t in range(340)]
  alive = max(sum(nbytes for a, b, nbytes in lives if a <= t <= b) for t in range(340))
  assert sum(t.nbytes for t in plan_memory(uses, temps)[1]) <= 1.35 * alive


def test_a_deep_chain_needs_no_deep_stack():
  x = empty(8)
  for i in range(3000):
    x = x + 1 if i % 2 else x * 2
  assert kernels(x) == 1


def test_linear_layers_train_in_few_kernels():
  layer = nn.Linear(16, 4)
  for p in nn.state.get_parameters(layer):
    p.replace(empty(*p.shape))
  loss = layer(empty(8, 16)).square().mean()
  # y; its mean square; the gradients of weight and bias
  assert kernels(loss, *loss.gradient(layer.weight, layer.bias)) <= 4


def test_a_scalar_reduction_read_everywhere_is_computed_once():
  """1/sum(mask) inside a matrix: no kernel may hold the sum in its loop over the elements."""
  x, mask = empty(32, 16), empty(32) != 0
  ks = asts(((x / mask.sum()) * 2 + 1).exp())
  folds = [u for u in ks[-1].toposort() if u.op is Ops.FOLD]
  assert len(ks) == 2 and not folds


def test_relu_and_its_mask_read_the_stored_product():
  """Backward needs x > 0 as well: x is stored, relu(x) and the mask are computed where they are read."""
  x, w1, w2 = empty(32, 64), empty(64, 128), empty(128, 16)
  loss = ((x @ w1).relu() @ w2).square().sum()
  # x@w1; relu(x@w1)@w2; the loss; the gradients of both products
  assert kernels(loss, *loss.gradient(w1, w2)) <= 6


WEIGHTS = {
  "a product": (lambda: [Tensor.rand(64, 32), Tensor.rand(32, 48)], lambda a, b: a @ b),
  "a sum": (lambda: [Tensor.rand(64, 32)], lambda a: a.sum(1)),
  "a mean": (lambda: [Tensor.randn(200, 300)], lambda a: a.mean()),
  "a normalisation": (lambda: [Tensor.rand(64, 32)], lambda a: a.softmax() + a.layernorm()),
  "a convolution": (
    lambda: [Tensor.rand(2, 3, 16, 16), Tensor.rand(8, 3, 3, 3)],
    lambda x, w: x.conv2d(w),
  ),
  "a lookup": (lambda: [Tensor.rand(50, 16)], lambda w: w[Tensor([1, 2, 3, 1] * 8)]),
  "an outer product": (lambda: [Tensor.rand(64), Tensor.rand(48)], lambda a, b: a.reshape(64, 1) * b),
  "a power": (lambda: [Tensor.rand(20, 30), Tensor.rand(30)], lambda a, b: a.pow(b).sum()),
}


@pytest.fixture
def turns(fresh):
  """How many exclusive ors, of which generators of random bits are made, the compiled code of a computation does."""
  found = []

  def lowered(*arguments):
    linear, times, loops, total = lower_kernel(*arguments), 1, [], 0
    for u in linear:
      if u.op is Ops.RANGE:
        loops.append(times)
        times *= int(u.src[0].vmax)
      elif u.op is Ops.ENDRANGE:
        times = loops.pop()
      elif u.op is Ops.XOR:
        total += times * u.dtype.count
    found.append(total)
    return linear

  def count(f):
    PROCESS.forget()
    found.clear()
    with Context(CPU_THREADS=1):
      Tensor.realize(*f())
    return sum(found)

  fresh.setattr(codegen, "lower_kernel", lowered)
  return count


@pytest.mark.parametrize("name", WEIGHTS)
def test_random_numbers_are_drawn_once_however_often_they_are_read(turns, name):
  """Fresh weights are no realized ones: what a generator does for an element is not done wherever that is read."""
  draw, f = WEIGHTS[name]
  apart, together = turns(draw), turns(lambda: [f(*draw())])
  assert apart >= 10 * sum(x.numel() for x in draw()) and together <= 1.3 * apart


def test_what_draws_numbers_wherever_they_are_read_is_noticed(turns, monkeypatch):
  """A mutant: everything may be computed wherever it is read. (A product's operands are staged then, and drawn once for
  a block.)"""
  monkeypatch.setattr(fuse, "cheap", lambda u, cost: True)
  killed = set()
  for name in WEIGHTS:
    try:
      test_random_numbers_are_drawn_once_however_often_they_are_read(turns, name)
    except AssertionError:
      killed.add(name)
  assert killed >= {"an outer product", "a convolution"}, killed


def halves_turned(x, n):
  """Each step reads the one before in two ways, and a join of parts is never an operation of its own."""
  for _ in range(n):
    x = x[:32].cat(x[32:].flip(0)).flip(0)
  return x


def test_what_one_kernel_would_read_in_many_ways_is_stored(monkeypatch):
  """Through n joins there are 2^n ways to what is below them."""

  def schedule(n):
    asts(halves_turned(empty(64), n))

  assert growth(schedule, 12) < 1.2
  value = np.arange(64, dtype=np.float32)
  np.testing.assert_array_equal(halves_turned(Tensor(value), 12).numpy(), np.arange(64)[halves_of_numpy(12)])
  monkeypatch.setattr(fuse, "MANY_WAYS", 1 << 60)
  with pytest.raises(TooManySteps):
    growth(schedule, 12, limit=2_000_000)


def halves_of_numpy(n):
  x = np.arange(64)
  for _ in range(n):
    x = np.concatenate([x[:32], x[32:][::-1]])[::-1]
  return x


def stored_of(tensors, target=ANY_TARGET):
  """The values of more than one dim that get memory."""
  sink = UOp.sink(*(UOp.buffer(t.shape, t.dtype, "NULL").assign(t.uop) for t in tensors))
  return [u for u in fuse.choose(localize(sink), target) if sum(n > 1 for n in u.shape) > 1]


def narrow_step(kind):
  """A loss and its gradients: of every product in it the factors are of a narrow type, and what it comes back as."""
  x, w1, w2 = empty(32, 64, dtype=kind), empty(64, 48, dtype=kind), empty(48, 16, dtype=kind)
  loss = ((x @ w1).gelu() @ w2).cast(dtypes.float32).square().mean()
  return loss, *loss.gradient(w1, w2)


@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float16])
def test_what_was_converted_to_a_wider_type_is_stored_before(monkeypatch, kind):
  assert {u.dtype for u in stored_of(narrow_step(kind))} == {kind}
  monkeypatch.setattr(fuse, "narrowest", lambda u: u)
  assert dtypes.float32 in {u.dtype for u in stored_of(narrow_step(kind))}


def test_what_cores_multiply_lies_in_memory():
  """They fetch it while they multiply, which they do not with what is computed on the way."""

  def stored(kind, cores):
    x, w = empty(64, 32, dtype=kind), empty(32, 48, dtype=kind)
    return stored_of([(x * 2 + 1) @ w], replace(ANY_TARGET, cores=cores))

  for kind in dtypes.bfloat16, dtypes.float16, dtypes.float32:
    assert stored(kind, ()) == stored(kind, (cores.TF32,)) == []
  (factor,) = stored(dtypes.bfloat16, (cores.BF16,))
  assert factor.op is Ops.ADD and factor.dtype is dtypes.bfloat16
  assert stored(dtypes.float16, (cores.BF16,)) == stored(dtypes.float32, (cores.BF16, cores.F16)) == []


@pytest.mark.parametrize(("words", "count"), [(8, 1), (16, 2)])
def test_sums_of_few_words_of_bytes_stay_in_the_kernel_that_adds_them_up(monkeypatch, words, count):
  """They are registers; sums of more words have a loop of their own, and so have all, were they counted as sums."""
  w, x = empty(64, 6, words, 1, 4, dtype=dtypes.uint8), empty(6, words, 16, 4, dtype=dtypes.int8)
  scales = empty(64, 6, 1)

  def product():
    sums = (w.cast(dtypes.int32) * x.cast(dtypes.int32)).sum(-1).sum(2)
    return (sums.float() * scales).sum(1)

  assert len(asts(product())) == count
  monkeypatch.setattr(dots, "FEW_WORDS", 0)
  assert len(asts(product())) == 2


@pytest.mark.parametrize("place", ["CPU", ("CPU:0", "CPU:1")])
def test_what_has_no_elements_takes_no_kernels(place):
  """Nor does what it is computed from, of which a grid made a kernel that stores nothing."""
  x = Tensor(np.ones((2, 3), np.float32)).to("CPU") if place == "CPU" else Tensor(np.ones((2, 3))).shard(place, 0)
  x.realize()
  some = [(x * 2 + 1)[:0], ((x * 3).cumsum(0) * 2)[:0], (x.sum(0) * x)[:, 3:], (x @ x.transpose())[2:]]
  assert kernels(*(y.contiguous() for y in some)) == 0
  assert kernels(x.sum(0)) > 0
