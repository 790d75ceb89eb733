"""`shard_map` against a simulation that keeps one numpy array for each device: values, gradients, what travels."""

import itertools

import numpy as np
import pytest

from tinygrad import (
  Mesh,
  P,
  Tensor,
  TinyJit,
  all_gather,
  all_to_all,
  axis_index,
  axis_size,
  checkpoint,
  cond,
  custom_jvp,
  custom_vjp,
  dtypes,
  grad,
  hvp,
  jvp,
  pmax,
  pmean,
  pmin,
  ppermute,
  psum,
  psum_scatter,
  scan,
  shard_map,
  vjp,
  vmap,
  while_loop,
)
from tinygrad.debug.report import report
from tinygrad.device import ShardError
from tinygrad.sharding import explain
from tinygrad.uop import UOp

MESH = Mesh(tuple(f"CPU:{i}" for i in range(6)), (3, 2), ("dp", "tp"))
DEVICES = list(itertools.product(range(3), range(2)))
rng = np.random.default_rng(0)


# ---------------------------------------------------------------- the simulation


def group(d, axis):
  """The devices that differ from d along an axis alone, in its order."""
  i = MESH.names.index(axis)
  return [tuple(j if k == i else c for k, c in enumerate(d)) for j in range(MESH.shape[i])]


def rank(d, axis):
  return d[MESH.names.index(axis)]


def blocks(x, spec):
  """Each device's block of an array."""
  out = {}
  for d in DEVICES:
    cut = x
    for dim, entry in enumerate(spec):
      for name in (entry,) if isinstance(entry, str) else entry or ():
        cut = np.split(cut, axis_size_of(name), dim)[rank(d, name)]
    out[d] = cut
  return out


def axis_size_of(name):
  return MESH.shape[MESH.names.index(name)]


def whole(parts, spec):
  """The array whose blocks these are; equal ones where the spec does not cut."""
  out = dict(parts)
  for dim, entry in reversed(list(enumerate(spec))):
    for name in reversed((entry,) if isinstance(entry, str) else entry or ()):
      out = {d: np.concatenate([out[e] for e in group(d, name)], dim) for d in DEVICES}
  for d in DEVICES:
    np.testing.assert_allclose(out[d], out[DEVICES[0]], rtol=1e-6)
  return out[DEVICES[0]]


def collective(f):
  """A collective of arrays: f(the arrays of the group, the device's number in it)."""
  return lambda parts, axis: {d: f([parts[e] for e in group(d, axis)], rank(d, axis)) for d in DEVICES}


def exchanged(arrays, j, split, concat, tiled):
  if tiled:
    return np.concatenate([np.split(a, len(arrays), split)[j] for a in arrays], concat)
  return np.stack([np.take(a, j, split) for a in arrays], concat)


RING = {"dp": [(0, 1), (1, 2), (2, 0)], "tp": [(0, 1), (1, 0)]}
SOME = {"dp": [(2, 0), (0, 1)], "tp": [(1, 0)]}


def sent(perm, axis):
  return lambda arrays, j: next((arrays[s] for s, t in perm[axis] if t == j), np.zeros_like(arrays[0]))


# name: (ours, the simulation of one device, what explain calls what travels)
CASES = {
  "psum": (psum, lambda a: lambda xs, j: sum(xs), {"all_reduce"}),
  "pmean": (pmean, lambda a: lambda xs, j: sum(xs) / len(xs), {"all_reduce"}),
  "pmax": (pmax, lambda a: lambda xs, j: np.max(xs, 0), {"all_reduce"}),
  "pmin": (pmin, lambda a: lambda xs, j: np.min(xs, 0), {"all_reduce"}),
  "all_gather": (lambda x, a: all_gather(x, a, 1), lambda a: lambda xs, j: np.stack(xs, 1), {"all_gather"}),
  "all_gather tiled": (
    lambda x, a: all_gather(x, a, 1, tiled=True), lambda a: lambda xs, j: np.concatenate(xs, 1), {"all_gather"}),
  "psum_scatter": (
    lambda x, a: psum_scatter(x[:, : axis_size(a)], a, 1),
    lambda a: lambda xs, j: sum(xs)[:, j], {"reduce_scatter"}),
  "psum_scatter tiled": (
    lambda x, a: psum_scatter(x, a, 1, tiled=True),
    lambda a: lambda xs, j: np.split(sum(xs), len(xs), 1)[j], {"reduce_scatter"}),
  "all_to_all": (
    lambda x, a: all_to_all(x[:, : axis_size(a)], a, 1, 0),
    lambda a: lambda xs, j: exchanged(xs, j, 1, 0, False), {"all_to_all"}),
  "all_to_all tiled": (
    lambda x, a: all_to_all(x, a, 1, 0, tiled=True), lambda a: lambda xs, j: exchanged(xs, j, 1, 0, True),
    {"all_to_all"}),
  "all_to_all tiled in one dim": (
    lambda x, a: all_to_all(x, a, 1, 1, tiled=True), lambda a: lambda xs, j: exchanged(xs, j, 1, 1, True),
    {"all_to_all"}),
  "ppermute ring": (lambda x, a: ppermute(x, a, RING[a]), lambda a: sent(RING, a), {"permute"}),
  "ppermute some": (lambda x, a: ppermute(x, a, SOME[a]), lambda a: sent(SOME, a), {"permute"}),
  "axis_index": (lambda x, a: x + axis_index(a), lambda a: lambda xs, j: xs[j] + j, set()),
  "axis_size": (lambda x, a: x + axis_size(a), lambda a: lambda xs, j: xs[j] + len(xs), set()),
}  # fmt: skip
SAME = {"psum", "pmean", "pmax", "pmin", "all_gather", "all_gather tiled"}  # on all devices along the axis


def lay(x):
  """A result of any shape, to be put beside those of others along the last dim."""
  return x.reshape(1, -1, 1)


def kinds(*ts):
  return {row.kind for row in report(UOp.sink(*[t.uop for t in ts])).rows if row.kind != "copy"}


@pytest.mark.parametrize("axis", ["dp", "tp"])
@pytest.mark.parametrize("name", CASES)
def test_a_collective_is_what_each_device_would_do(name, axis):
  ours, simulated, travels = CASES[name]
  x = rng.normal(size=(6, 12, 2)).astype(np.float32)
  spec = P(("dp", "tp"))
  other = "tp" if axis == "dp" else "dp"
  out = P(None, None, other) if name in SAME else P(None, None, ("dp", "tp"))
  y = shard_map(lambda a: lay(ours(a, axis)), MESH, spec, out)(Tensor(x).shard(MESH, spec))
  parts = collective(simulated(axis))(blocks(x, spec), axis)
  np.testing.assert_allclose(y.numpy(), whole({d: lay(p) for d, p in parts.items()}, out), rtol=1e-5)
  assert kinds(y) == travels, explain(y)
  assert y.device.spec == out


@pytest.mark.parametrize("axis", ["dp", "tp"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_pass_through_collectives(name, axis):
  """Of a sum over all devices of weights times the results, against finite differences."""
  ours, simulated, _ = CASES[name]
  x = rng.normal(size=(6, 6, 1))
  spec = P(("dp", "tp"))

  def of_device(number, size):
    return np.cos(np.arange(size) + 7 * number)

  def loss(array):
    parts = collective(simulated(axis))(blocks(array, spec), axis)
    return sum((p.ravel() * of_device(d[0] * 2 + d[1], p.size)).sum() for d, p in parts.items())

  def part(a):
    y = ours(a, axis).flatten()
    number = axis_index("dp") * 2 + axis_index("tp")
    return psum((y * (Tensor.arange(y.shape[0]) + 7 * number).cast("float64").cos()).sum(), ("dp", "tp"))

  t = Tensor(x, dtype="float64").shard(MESH, spec)
  value = shard_map(part, MESH, spec, P())(t)
  np.testing.assert_allclose(value.item(), loss(x), rtol=1e-9)
  found = value.gradient(t)[0].numpy()
  for at in [(0, 0, 0), (3, 2, 0), (5, 5, 0)]:
    step = np.zeros_like(x)
    step[at] = 1e-5
    np.testing.assert_allclose(found[at], (loss(x + step) - loss(x - step)) / 2e-5, rtol=1e-5, atol=1e-7)


def test_a_gradient_inside_is_of_the_sum_of_all_losses():
  x, spec = rng.normal(size=(6, 2)).astype(np.float32), P(("dp", "tp"))

  def part(a):
    loss = (psum(a, "dp") * (axis_index("dp") + 1)).square().sum()
    return loss.gradient(a)[0]

  got = shard_map(part, MESH, spec, spec)(Tensor(x).shard(MESH, spec)).numpy()
  sums = x.reshape(3, 2, 2).sum(0)
  np.testing.assert_allclose(got, np.tile(sums * 2 * (1 + 4 + 9), (3, 1, 1)).reshape(6, 2), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_inside(name):
  """The gradient of the sum of all devices' losses, times a direction, of which each device has its part; in three
  ways, against the same taken around."""
  ours, spec = CASES[name][0], P(("dp", "tp"))
  x, v = (Tensor(rng.normal(size=(6, 6, 1))).shard(MESH, spec) for _ in range(2))

  def loss(a):
    return (ours(a.sin(), "tp") ** 3).sum() * a.sum()

  total = lambda t: shard_map(lambda a: loss(a).reshape(1), MESH, spec, spec)(t).sum()  # noqa: E731
  want = hvp(total, (x,), (v,)).numpy()
  ways = (
    lambda a, t: grad(lambda b: (grad(loss)(b) * t).sum())(a),
    lambda a, t: jvp(grad(loss), (a,), (t,))[1],
    lambda a, t: grad(lambda b: jvp(loss, (b,), (t,))[1])(a),
  )
  for way in ways:
    np.testing.assert_allclose(shard_map(way, MESH, (spec, spec), spec)(x, v).numpy(), want, rtol=1e-9, atol=1e-9)


def own_reverse(f):
  own = custom_vjp(f)
  own.defvjp(lambda *xs: (f(*xs), xs), lambda xs, g: vjp(f, *xs)[1](g))
  return own


def own_forward(f):
  own = custom_jvp(f)
  own.defjvp(lambda xs, ts: jvp(f, xs, ts))
  return own


OWN = {
  "checkpoint": checkpoint,
  "cond": lambda f: lambda x: cond(psum(x.sum(), "d") < 1e9, f, lambda t: f(t) * 0, x),
  "custom_vjp": own_reverse,
  "custom_jvp": own_forward,
  "checkpoint in checkpoint": lambda f: checkpoint(checkpoint(f)),
}


@pytest.mark.parametrize("way", ["devices", "elements"])
@pytest.mark.parametrize("name", OWN)
def test_a_sum_over_devices_in_a_function_with_a_gradient_of_its_own(name, way):
  """It is the same on all; the rule finds the axis, reads what is on one device, and its gradients are those of what
  is written without it."""
  mesh, w = Mesh(("CPU:0", "CPU:1"), names=("d",)), Tensor(rng.normal(size=(3, 3)))
  x = Tensor(rng.normal(size=(4, 3)))
  plain = lambda x: (x @ w).tanh().sum(0)  # noqa: E731
  total = OWN[name](lambda x: psum(plain(x), "d"))

  def over(f, same):
    if way == "devices":
      return shard_map(f, mesh, P("d"), P() if same else P("d"))
    return lambda x: vmap(f, 0, None if same else 0, axis_name="d")(x.reshape(2, 2, 3)).reshape(
      *(() if same else (4,)), 3
    )

  pairs = (
    (over(total, True), plain),
    (over(lambda x: total(x) * x, False), lambda x: plain(x) * x),
    (over(grad(lambda x: (total(x) * x).sum()), False), grad(lambda x: (plain(x) * x).sum())),
  )
  for f, g in pairs:
    np.testing.assert_allclose(f(x).numpy(), g(x).numpy(), rtol=1e-9)
    found, want = (grad(lambda x, h=h: (h(x) ** 2).sum())(x).numpy() for h in (f, g))
    np.testing.assert_allclose(found, want, rtol=1e-9)
    if name != "custom_vjp":
      np.testing.assert_allclose(jvp(f, (x,), (x,))[1].numpy(), jvp(g, (x,), (x,))[1].numpy(), rtol=1e-9)


LOOPED = lambda x: scan(lambda c, y: (c + psum(x * y, "d"), None), x * 0, x.sum(1))[0]  # noqa: E731


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("no", [lambda x: psum(x * x, "d"), LOOPED], ids=["sum", "in a loop"])
def test_devices_may_choose_otherwise(no, around):
  """Who reads a sum over devices has chosen that it is read, whatever those chose that have given to it."""
  mesh, x = Mesh(("CPU:0", "CPU:1"), names=("d",)), Tensor(rng.normal(size=(4, 3)))
  x = x - x.reshape(2, 6).mean(1).reshape(2, 1, 1).expand(2, 2, 3).reshape(4, 3) + Tensor([[1.0], [1], [-1], [-1]])
  f = lambda x: cond(x.sum() > 0, lambda t: t * 3, no, x)  # noqa: E731
  loss = lambda x: (f(x) ** 3).sum()  # noqa: E731
  over = lambda f: shard_map(f, mesh, P("d"), P("d"))  # noqa: E731
  if around:
    found = grad(lambda x: (over(f)(x) ** 3).sum())(x).numpy()
  else:
    found = over(grad(loss))(x).numpy()
  first, second = x[:2].detach(), x[2:].detach()

  def total(a, b):
    looped = sum(a * a.sum(1)[i] + b * b.sum(1)[i] for i in range(2))
    chosen = looped if no is LOOPED else a * a + b * b
    return ((a * 3) ** 3).sum() + (chosen**3).sum()

  np.testing.assert_allclose(found, np.concatenate([g.numpy() for g in grad(total, (0, 1))(first, second)]), rtol=1e-9)


def test_the_way_that_no_device_has_chosen_does_not_show():
  mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
  f = lambda x: cond(psum(x, "d").sum() < 0, lambda t: psum(t.sqrt(), "d"), lambda t: t * 2, x)  # noqa: E731
  found = grad(lambda x: shard_map(f, mesh, P("d"), P("d"))(x).sum())(Tensor([0.0, 1.0]))
  assert found.tolist() == [2, 2]


@pytest.mark.parametrize("spec", [None, P(), P("d")])
def test_what_the_function_reads_may_be_on_the_devices_or_on_one(spec):
  """Gradients by it, and loops that carry it, place nothing by themselves."""
  mesh, x, start = Mesh(("CPU:0", "CPU:1"), names=("d",)), Tensor(rng.normal(size=4)), rng.normal(size=6)
  w = Tensor(start) if spec is None else Tensor(start).shard(mesh, spec)
  over = lambda f: shard_map(f, mesh, P("d"), P("d"))  # noqa: E731
  sums = x.numpy().reshape(2, 2).sum(1)
  again = lambda w: (over(checkpoint(lambda a: w * a.sum()))(x) ** 2).sum()  # noqa: E731
  np.testing.assert_allclose(grad(again)(w).numpy(), 2 * start * (sums**2).sum(), rtol=1e-9)
  found = over(lambda a: scan(lambda c, k: (c * 0.5 + a[k], None), w, Tensor([1, 0, 1]))[0])(x).numpy()
  want = [((start * 0.5 + b) * 0.5 + a) * 0.5 + b for a, b in x.numpy().reshape(2, 2)]
  np.testing.assert_allclose(found, np.concatenate(want), rtol=1e-9)


def test_only_collectives_move():
  x, w = Tensor.rand(6, 8).shard(MESH, P("dp", "tp")), Tensor.rand(8, 4).shard(MESH, P("tp"))
  y = shard_map(lambda a, b: (a @ b).relu().softmax().sort()[0], MESH, (P("dp", "tp"), P("tp")), P("dp", "tp"))(x, w)
  assert kinds(y) == set()
  z = shard_map(lambda a, b: psum(a @ b, "tp").relu(), MESH, (P("dp", "tp"), P("tp")), P("dp"))(x, w)
  rows = [r for r in report(UOp.sink(z.uop)).rows if r.kind != "copy"]
  assert [(r.kind, r.axes, r.payload) for r in rows] == [("all_reduce", ("tp",), 2 * 4 * 4)]
  np.testing.assert_allclose(z.numpy(), np.maximum(x.numpy() @ w.numpy(), 0), rtol=1e-5)
  gx, gw = z.square().sum().gradient(x, w)
  assert gx.device == x.device and gw.device == w.device
  plain = (Tensor(x.numpy()), Tensor(w.numpy()))
  for g, want in zip((gx, gw), (plain[0] @ plain[1]).relu().square().sum().gradient(*plain)):
    np.testing.assert_allclose(g.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_arguments_are_brought_to_their_specs():
  x = rng.normal(size=(6, 4)).astype(np.float32)
  for given in (Tensor(x), Tensor(x).shard(MESH, P(None, "tp")), Tensor(x).shard(("CPU:0", "CPU:1"), 0)):
    y = shard_map(lambda a: a * 2 + a.sum(), MESH, P("dp", "tp"), P("dp", "tp"))(given)
    want = whole({d: b * 2 + b.sum() for d, b in blocks(x, P("dp", "tp")).items()}, P("dp", "tp"))
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5)


def test_structures():
  spec = {"w": P("tp"), "b": [P(), P("dp")]}
  given = {"w": Tensor.rand(4, 2), "b": [Tensor.rand(3), Tensor.rand(6)]}
  specs = {"y": P("tp"), "z": (P(), P("dp"))}
  out = shard_map(lambda d: {"y": d["w"] * 2, "z": (d["b"][0], d["b"][1] + 1)}, MESH, (spec,), specs)(given)
  np.testing.assert_allclose(out["y"].numpy(), given["w"].numpy() * 2)
  np.testing.assert_allclose(out["z"][1].numpy(), given["b"][1].numpy() + 1)
  assert out["z"][0].device.spec == P()


def test_inside_a_map_and_a_map_inside():
  x = rng.normal(size=(4, 6, 2)).astype(np.float32)
  f = shard_map(lambda a: a * 2 + psum(a, "dp"), MESH, P("dp", "tp"), P("dp", "tp"))
  want = np.stack([f(Tensor(e)).numpy() for e in x])
  np.testing.assert_allclose(vmap(f)(Tensor(x)).numpy(), want, rtol=1e-5)
  inner = shard_map(vmap(lambda a: a * 2 + psum(a, "dp")), MESH, P(None, "dp", "tp"), P(None, "dp", "tp"))
  np.testing.assert_allclose(inner(Tensor(x)).numpy(), want, rtol=1e-5)
  gathered = shard_map(vmap(lambda a: all_gather(a, "dp", 1, tiled=True)), MESH, P(None, "dp"), P())(Tensor(x))
  np.testing.assert_allclose(gathered.numpy(), np.concatenate(np.split(x, 3, 1), 2))


def test_over_the_axis_of_a_map():
  x = rng.normal(size=(4, 3)).astype(np.float32)
  np.testing.assert_allclose(
    vmap(lambda a: a - pmean(a, "i"), axis_name="i")(Tensor(x)).numpy(), x - x.mean(0), atol=1e-6
  )
  np.testing.assert_array_equal(vmap(lambda a: psum(a, "i"), 0, None, "i")(Tensor(x)).numpy(), x.sum(0))
  rolled = vmap(lambda a: ppermute(a, "i", [(j, (j + 1) % 4) for j in range(4)]), axis_name="i")(Tensor(x))
  np.testing.assert_array_equal(rolled.numpy(), np.roll(x, 1, 0))
  both = vmap(vmap(lambda a: psum(a, ("i", "j")), 0, None, "j"), 0, None, "i")(Tensor(x))
  np.testing.assert_allclose(both.numpy(), x.sum(), rtol=1e-5)


def test_of_truths_it_is_counted_how_many_hold():
  some = Tensor([[True, True, False], [True, False, False]])
  found = vmap(lambda a: (psum(a, "i"), pmean(a, "i"), pmax(a, "i"), psum_scatter(a[:2], "i")), axis_name="i")(some)
  assert [y.tolist()[0] for y in found[:3]] == [[2, 1, 0], [1, 0.5, 0], [True, True, False]]
  assert found[3].tolist() == [2, 1] and found[0].dtype == found[3].dtype == dtypes.int32


def test_random_numbers_differ_between_devices():
  y = shard_map(lambda a: a * 0 + Tensor.rand(1), MESH, P(("dp", "tp")), P(("dp", "tp")))(Tensor.zeros(6))
  assert len(set(y.tolist())) == 6


def test_in_a_captured_step():
  step = TinyJit(shard_map(lambda a: psum(a.square(), ("dp", "tp")), MESH, P(("dp", "tp")), P()))
  for _ in range(4):
    x = rng.normal(size=6).astype(np.float32)
    placed = Tensor(x).shard(MESH, P(("dp", "tp"))).realize()
    np.testing.assert_allclose(step(placed).numpy(), [np.square(x).sum()], rtol=1e-5)


@pytest.mark.parametrize(
  "call, error, says",
  [
    (lambda x: shard_map(lambda a: a, MESH, P("dp"), P())(x), ValueError, "differs along 'dp'(?s:.*)psum"),
    (lambda x: shard_map(lambda a: a, MESH, P("dp"), P("dp"))(x[:5]), ValueError, "5 is no multiple of 3(?s:.*)pad"),
    (lambda x: shard_map(lambda a: psum(a, "pp"), MESH, P("dp"), P())(x), NameError, "'pp'(?s:.*)'dp', 'tp'"),
    (lambda x: psum(x, "dp"), NameError, "those around are: none"),
    (lambda x: shard_map(lambda a: a, MESH, P("pp"), P())(x), ShardError, "pp"),
    (lambda x: shard_map(lambda a: a, MESH, P("dp", None, None), P())(x), ValueError, "3 dims"),
    (lambda x: shard_map(lambda a: a.shard(MESH, P("tp")), MESH, P("dp"), P("dp"))(x), ShardError, "places"),
    (lambda x: shard_map(lambda a: psum_scatter(a, "dp"), MESH, P(), P("dp"))(x), ValueError, "tiled=True"),
    (lambda x: shard_map(lambda a: ppermute(a, "dp", [(0, 1), (2, 1)]), MESH, P("dp"), P("dp"))(x), ValueError, "ring"),
    (lambda x: vmap(lambda a: all_gather(a, "i", 2), axis_name="i")(x), IndexError, r"dim 2 out of range \[-2, 1\]"),
    (
      lambda x: vmap(lambda a: all_gather(a, "i", 1, True), axis_name="i")(x),
      IndexError,
      r"dim 1 out of range \[-1, 0",
    ),
    (lambda x: vmap(lambda a: psum_scatter(a, "i", 1), axis_name="i")(x), IndexError, "dim 1 out of range"),
    (lambda x: vmap(lambda a: all_to_all(a, "i", 0, 7), axis_name="i")(x[:2]), IndexError, "dim 7 out of range"),
    (lambda x: vmap(lambda a: psum_scatter(a.sum(), "i"), axis_name="i")(x), ValueError, "has no dim(?s:.*)reshape"),
  ],
)
def test_what_is_refused(call, error, says):
  with pytest.raises(error, match=says):
    call(Tensor.rand(6, 4))


SAYS = {
  "psum_scatter": (lambda x: psum_scatter(x, "d", tiled=True), lambda x: [x[:2] * 2, x[2:] * 2]),
  "all_to_all": (lambda x: all_to_all(x, "d", 0, 0, tiled=True), lambda x: [np.tile(x[:2], 2), np.tile(x[2:], 2)]),
  "ppermute": (lambda x: ppermute(x, "d", [(0, 1)]), lambda x: [x * 0, x]),
  "all_gather": (lambda x: all_gather(x, "d", tiled=True), lambda x: [np.tile(x, 2)] * 2),
}


@pytest.mark.parametrize("way", ["vmap", "shard_map"])
@pytest.mark.parametrize("name", SAYS)
def test_a_loop_of_what_is_the_same_for_all_may_leave_what_differs(name, way):
  """Its carry and elements come from outside, so that only what is said in its body tells the lanes apart."""
  f, means = SAYS[name]
  start, elements = rng.normal(size=()), rng.normal(size=(3, 4))
  first, xs = Tensor(start).realize(), Tensor(elements).realize()

  def step(c, x):
    y = f(x)
    return c + y.sum(), y * c

  def run(z):
    last, each = scan(step, first, xs)
    return last + each + z * 0

  if way == "vmap":
    found = vmap(run, axis_name="d")
  else:
    mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
    found = shard_map(lambda z: run(z[0])[None], mesh, (P("d"),), P("d"))
  want = []
  for lane in range(2):
    c, each = start, []
    for x in elements:
      y = means(x)[lane]
      each.append(y * c)
      c = c + y.sum()
    want.append(c + np.stack(each))
  np.testing.assert_allclose(found(Tensor(np.zeros(2))).numpy(), want)


def test_a_while_loop_of_what_is_the_same_for_all_may_leave_what_differs():
  turned = lambda c: (c[0] + 1, ppermute(c[1], "d", [(0, 1), (1, 0)]) * 2 + axis_index("d"))  # noqa: E731
  f = lambda x: while_loop(lambda c: c[0] < 2, turned, (Tensor(0), Tensor([1.0, 2.0])))[1] + x * 0  # noqa: E731
  # 1, 2 -> on the first 2, 4, on the second 3, 5 -> 6, 10 and 5, 9
  assert vmap(f, axis_name="d")(Tensor([0.0, 0.0])).tolist() == [[6, 10], [5, 9]]
