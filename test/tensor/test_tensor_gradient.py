"""Differentiation as users see it: `gradient`, `backward`, `.grad`; an op's own derivative is tested beside it."""

import math

import numpy as np
import pytest
from tensor_oracle import close, normal

from tinygrad import Sharding, Tensor, jvp
from tinygrad.ops.elementwise import guards_product
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.uop import Ops

D2 = ("CPU:0", "CPU:1")


def test_a_chain_of_ops():
  x, w = normal(1, (4, 3)), normal(2, (3, 2))
  tx, tw = Tensor(x), Tensor(w)
  gx, gw = (tx @ tw).square().sum().gradient(tx, tw)
  close(gx, 2 * x @ w @ w.T)
  close(gw, 2 * x.T @ x @ w)


def test_backward_fills_every_float_tensor_but_those_that_refuse():
  x, y, z, n = Tensor([1.0, 2.0]), Tensor([3.0, 4.0]), Tensor([5.0, 6.0], requires_grad=False), Tensor([1, 2])
  h = x * y
  (h * z * n).sum().backward()
  close(x.grad, [15.0, 48.0])
  close(y.grad, [5.0, 24.0])
  close(h.grad, [5.0, 12.0])
  assert z.grad is None and n.grad is None


def test_where_some_ask_for_a_gradient_only_they_get_one():
  x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0], requires_grad=True)
  h = x * w
  h.sum().backward()
  close(w.grad, [1.0, 2.0])
  assert x.grad is None and h.grad is None


def test_gradients_add_up():
  x = Tensor([1.0, 2.0])
  (x * 2).sum().backward()
  (x * x).sum().backward()
  close(x.grad, [4.0, 6.0])
  (x + x * x).sum().gradient(x)
  close(x.grad, [4.0, 6.0])  # gradient() touches nothing


def test_a_given_gradient():
  x = Tensor([1.0, 2.0])
  (x * x).backward(Tensor([10.0, 1.0]))
  close(x.grad, [20.0, 4.0])
  (g,) = (x * x).gradient(x, gradient=Tensor([1.0, 2.0]))
  close(g, [2.0, 8.0])


def test_second_derivatives():
  x = Tensor([2.0, 3.0])
  (g,) = (x * x * x).sum().gradient(x)
  (h,) = g.sum().gradient(x)
  close(h, [12.0, 18.0])


def test_what_is_detached_twice_is_no_variable_of_what_was_detached_once():
  """Mutant: a detached value, detached, is itself."""
  once = Tensor([1.0, 2.0, 3.0]).detach()
  (g,) = (once * once.detach() * 2).sum().gradient(once)
  close(g, [2.0, 4.0, 6.0])
  with Tensor.no_grad():
    still = once.reshape(3)
  (g,) = (once * still).sum().gradient(once)
  close(g, [1.0, 2.0, 3.0])


def test_what_was_assigned_and_is_realised_is_not_the_value_that_it_came_from():
  """Mutant: a tensor without memory takes on the node of what is assigned to it."""
  x = Tensor([1.0, 2.0, 3.0]) * 2
  y, z = x.contiguous(), Tensor.zeros(3)
  z.assign(x).realize()
  (g,) = (y * y).sum().gradient(x)
  close(g, [4.0, 8.0, 12.0])
  close(z, [2.0, 4.0, 6.0])


def test_detach_stops():
  x = Tensor([1.0, 2.0])
  (g,) = (x * x.detach()).sum().gradient(x)
  close(g, [1.0, 2.0])


def test_nothing_flows_through_what_is_computed_without_gradients():
  x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
  with Tensor.no_grad():
    scale = w * 2
  (g,) = (x * scale).sum().gradient(x)
  close(g, [6.0, 8.0])
  with pytest.raises(RuntimeError, match="does not depend"):
    (x * scale).sum().gradient(w)


def test_reading_a_loss_does_not_forget_how_it_was_made():
  x = Tensor([1.0, 2.0])
  loss = (x * x).sum()
  assert loss.item() == 5.0
  loss.backward()
  close(x.grad, [2.0, 4.0])


def test_only_paths_to_targets_are_differentiated():
  x, y = Tensor([2.0]), Tensor([3.0])
  found = compute_gradient((x * y.exp()).sum().uop, Tensor(1.0).uop, [x.uop])
  assert list(found) == [x.uop]
  assert all(u.op.name != "CMPLT" for u in found[x.uop].toposort())


@pytest.mark.parametrize("axis", (None, 0, 1))
@pytest.mark.parametrize(
  ("made", "read"),
  (
    (lambda x: x.reshape(6, 4), lambda y: y.reshape(24)),
    (lambda x: x.reshape(6, 4), lambda y: y.reshape(4, 6)),
    (lambda x: x.reshape(24), lambda y: y.reshape(2, 12).reshape(4, 6)),
    (lambda x: x.permute(1, 0), lambda y: y.permute(1, 0)),
    (lambda x: x.reshape(2, 2, 6).permute(1, 2, 0), lambda y: y.permute(1, 2, 0)),
    (lambda x: x.reshape(4, 1, 6).expand(4, 2, 6), lambda y: y.reshape(1, 4, 2, 6).expand(3, 4, 2, 6)[0]),
    (lambda x: x.reshape(4, 6, 1).expand(4, 6, 2), lambda y: y.expand(4, 6, 2).permute(0, 2, 1)),
    (lambda x: x[1:], lambda y: y[1:].pad(((1, 0), (0, 0))) + y[:1].pad(((0, y.shape[0] - 1), (0, 0)))),
    (lambda x: x.flip(0), lambda y: y.flip(0)),
    (lambda x: x @ x.transpose(0, 1), lambda y: y.reshape(16)),
  ),
)
def test_a_rearranged_value_gets_the_gradient_of_all_its_readers(made, read, axis):
  """Also of those that rearrange it further, though that is done in one go."""
  x = Tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
  y = made(x if axis is None else x.shard(("CPU:0", "CPU:1"), axis))
  for loss in (y.sum() + (read(y) * 2).sum(), (read(y) * 3).sum()):
    np.testing.assert_array_equal(loss.gradient(y)[0].numpy(), np.full(y.shape, 3))


def test_equal_elements_share_the_gradient_of_max():
  x = Tensor([[1.0, 3.0, 3.0]])
  (g,) = x.max().gradient(x)
  close(g, [[0.0, 0.5, 0.5]])


def test_through_casts():
  x = Tensor([1.0, 2.0])
  (g,) = (x.half() * 3).float().sum().gradient(x)
  assert g.dtype is x.dtype
  close(g, [3.0, 3.0])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_gradient_is_where_its_tensor_is(axis):
  x, w = normal(1, (4, 6)), normal(2, (6, 5))
  tx, tw = Tensor(x).shard(D2, 0), Tensor(w).shard(D2, axis)
  tx.realize(tw)
  loss = (tx @ tw).square().mean()
  gw, gx = loss.gradient(tw, tx)
  assert gw.device is Sharding(D2, axis) and gx.device is Sharding(D2, 0)
  close(gw, 2 * x.T @ (x @ w) / 20)
  close(gx, 2 * (x @ w) @ w.T / 20)


def test_the_gradient_of_a_shard_goes_to_its_source():
  x = Tensor([1.0, 2.0, 3.0]).realize()
  (x.shard(D2, 0) * Tensor([1.0, 2.0, 3.0]).shard(D2, 0)).sum().backward()
  assert x.grad.device == "CPU"
  close(x.grad, [1.0, 2.0, 3.0])


def test_the_gradient_of_a_sum_of_a_cut_tensor_is_cut():
  x = Tensor.ones(4, 2).shard(D2, 0).realize()
  x.sum().backward()
  assert x.grad.device is Sharding(D2, 0)
  close(x.grad, np.ones((4, 2), np.float32))


FLAT = {
  "sign": lambda x: x.sign(),
  "pow(0)": lambda x: x.pow(0),
  "pow(0.0)": lambda x: x**0.0,
  "the sign of copysign": lambda x: Tensor([1.0, 2.0, 3.0]).copysign(x),
  "floor": lambda x: x.floor(),
  "ceil": lambda x: x.ceil(),
  "round": lambda x: x.round(),
  "trunc": lambda x: x.trunc(),
  "floor division": lambda x: x // 2,
  "a comparison": lambda x: (x > 0).where(1.0, 2.0),
  "a comparison of branches": lambda x: (x > 0).where(Tensor([1.0, 2.0, 3.0]), 0.0),
  "a cast to integers and back": lambda x: x.int().float(),
  "bits": lambda x: x.bitcast("int32").float(),
  "isnan": lambda x: x.isnan().float(),
  "argmax": lambda x: x.argmax().float(),
  "the order of a sort": lambda x: x.sort()[1].float(),
  "an index": lambda x: Tensor([1.0, 2.0, 3.0])[x.abs().int()],
  "times 0": lambda x: x * 0,
  "a number of elements that are not 0": lambda x: x.ne(0).sum().float(),
}


@pytest.mark.parametrize("f", FLAT.values(), ids=FLAT)
@pytest.mark.parametrize("axis", [None, 0])
def test_what_is_reached_with_derivative_0_has_zeros(f, axis):
  x = Tensor([1.5, -2.5, 0.0])
  x = x.realize() if axis is None else x.shard(D2, axis).realize()
  (g,) = f(x).sum().gradient(x)
  assert g.dtype is x.dtype and g.device == x.device
  close(g, np.zeros(3))
  f(x).sum().backward()
  close(x.grad, np.zeros(3))


def test_dropping_everything_has_derivative_0():
  x = Tensor([1.0, float("inf")])
  with Tensor.train():
    y = x.dropout(1.0)
  close(y, [0.0, 0.0])
  close(y.sum().gradient(x)[0], [0.0, 0.0])


def test_zeros_do_not_hide_what_flows_elsewhere():
  x, y = Tensor([1.5, -2.5]), Tensor([3.0, 4.0])
  gx, gy = (x.sign() * y + x.floor()).sum().gradient(x, y)
  close(gx, [0.0, 0.0])
  close(gy, [1.0, -1.0])
  (gx,) = (x.sign() * x).sum().gradient(x)
  close(gx, [1.0, -1.0])


NOT_REACHED = {
  "another tensor": lambda x: Tensor([1.0]),
  "of its shape only": lambda x: x.ones_like() + x.full_like(2) + x.shape[0],
  "detached": lambda x: x.detach() * 2,
  "the sign of what is detached": lambda x: x.detach().sign(),
}


@pytest.mark.parametrize("f", NOT_REACHED.values(), ids=NOT_REACHED)
def test_what_is_not_reached_raises(f):
  x, y = Tensor([1.0, 2.0]), Tensor([3.0])
  with pytest.raises(RuntimeError, match="does not depend on target 1"):
    (f(x) + y.exp()).sum().gradient(y, x)


@pytest.mark.parametrize("kind,out", [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")])
def test_the_gradient_of_a_wider_product_is_rounded_to_its_factors_type(kind, out):
  """As torch.mm(out_dtype=) does: products of the backward pass have factors of one type."""
  rng = np.random.default_rng(0)
  x, w = (Tensor(rng.normal(size=s).astype(np.float32)).cast(kind).realize() for s in ((8, 16), (16, 4)))
  fine = Tensor(rng.normal(size=(8, 4))).cast(out).realize()
  rounded = fine.cast(kind).cast(out)
  assert (fine != rounded).all().item()
  y = x.matmul(w, dtype=out)
  dx, dw = y.gradient(x, w, gradient=fine)
  wide_x, wide_w = x.cast(out), w.cast(out)
  assert (dx == rounded.matmul(wide_w.T).cast(kind)).all().item()
  assert (dw == wide_x.T.matmul(rounded).cast(kind)).all().item()
  # of squares, whose factors are no outer product, it is as it comes
  (g,) = wide_x.square().sum(1).gradient(x, gradient=fine[:, 0])
  assert (g == (2 * wide_x * fine[:, :1]).cast(kind)).all().item()


ERRORS = [
  (
    lambda x: (x * 2).backward(),
    ValueError,
    r"backward: without a gradient argument it needs a scalar(.|\n)*loss.sum\(\)",
  ),
  (lambda x: x.gradient(x), ValueError, "needs a scalar"),
  (lambda x: x.sum().gradient(Tensor([1.0])), RuntimeError, "does not depend on target 0"),
  (lambda x: (n := Tensor([1, 2])).mul(x).sum().gradient(n), RuntimeError, "target 0 is no float"),
  (lambda x: x.sum().gradient(x, gradient=Tensor([1.0, 2.0])), ValueError, "must have the tensor's shape"),
  (lambda x: (x > 0).sum().backward(), TypeError, "only floats have gradients"),
  (lambda x: (x * 2).sum().detach().backward(), RuntimeError, "depends on no tensor that takes a gradient"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(Tensor([1.0, 2.0]))


def test_requires_grad_says_who_takes_a_gradient():
  x, y = Tensor([2.0]), Tensor([3.0]).requires_grad_(False)
  (x * y).sum().backward()
  assert x.grad.tolist() == [3.0] and y.grad is None
  z = Tensor([4.0]).requires_grad_()
  (x * z).sum().backward()
  assert z.grad.tolist() == [2.0] and x.grad.tolist() == [3.0]  # asked for by name, the others are left out


WRITES = [
  ("assign", lambda z, v: z.assign(v.expand(3))),
  ("slice", lambda z, v: z.__setitem__(slice(1, 2), v)),
  ("step", lambda z, v: z.__setitem__(slice(None, None, 2), v)),
  ("rows", lambda z, v: z.__setitem__(Tensor([1]), v)),
]


@pytest.mark.parametrize("write", [w[1] for w in WRITES], ids=[w[0] for w in WRITES])
def test_no_gradient_flows_through_a_write_to_memory(write):
  """It would be 0 where another library has one: so it is an error, realised or not. Values can be written to."""
  for realised in (False, True):
    v, z = Tensor([7.0]), Tensor.zeros(3).contiguous().realize()
    write(z, v)
    z = z.realize() if realised else z
    with pytest.raises(RuntimeError, match=r"depend on target 0(.|\n)*fix: "):
      (z * z).sum().gradient(v)
  v, z = Tensor([7.0]), Tensor.zeros(3).contiguous().realize()
  write(z, v)
  with pytest.raises(RuntimeError, match=r"written to memory(.|\n)*fix: .*without realize"):
    (z * z).sum().gradient(v)
  u = Tensor([2.0], requires_grad=True)
  v.requires_grad = True
  (z * z * u).sum().backward()
  assert v.grad is None and u.grad.item() == (z * z).sum().item()
  z = Tensor.zeros(3).contiguous()
  write(z, v)
  np.testing.assert_array_equal((z * z).sum().gradient(v)[0].numpy(), [14.0 * np.count_nonzero(z.numpy())])


def behind(realized, loss):
  """What is said where `loss` reads what was realized."""
  with pytest.raises(RuntimeError) as e:
    loss(realized)
  return str(e.value)


@pytest.mark.parametrize("device", ["CPU", D2])
def test_what_lies_behind_a_realized_tensor_is_told_and_not_left_without_a_gradient(device):
  x, w, v = (Tensor([1.0, 2.0, 3.0 + i]).to(device).realize() for i in range(3))
  w.requires_grad_(), v.requires_grad_()
  y = (x * w).realize()
  said = behind(y, lambda y: (y * v).sum().backward())
  assert "backward: a gradient flows through no realized tensor" in said
  assert "test_tensor_gradient.py" in said and "y = (x * w).realize()" in said
  assert "requires_grad: float32[3]" in said and "y.detach()" not in said and "detach()" in said
  assert w.grad is None and v.grad is None  # nothing half done
  assert "gradient: " in behind(y, lambda y: (y * w).sum().gradient(w))  # the part by y would be missing
  z = (y + 1).realize()  # behind two
  assert "backward: " in behind(z, lambda z: (z * v).sum().backward())
  # the fixes that are told
  (y.detach() * v).sum().backward()
  close(v.grad, y.numpy())
  assert w.grad is None
  h = x * w
  h.numpy()
  (h * v).sum().backward()
  close(w.grad, (x * v).numpy())


def test_what_memory_was_made_of_before_it_was_written_is_told_too():
  x, w = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize().requires_grad_()
  y = x * w
  x.assign([0.0, 0.0]).realize()  # y was computed before
  assert "backward: " in behind(y, lambda y: y.sum().backward())


def test_a_realized_tensor_is_an_end_where_nothing_is_lost():
  x, w = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
  early = (x * w).realize()  # before anybody asked for a gradient
  w.requires_grad_()
  with Tensor.no_grad():
    constant = (x * w).realize()
  detached, kind, target = (x * w.detach()).realize(), (x * w > 1).float().realize(), (w * 0.5).realize()
  target.requires_grad_()  # a parameter of its own
  compared = ((x * w).realize() > 1).float()  # no gradient flows to what is compared
  ((early + constant + detached + kind + compared) * w).sum().backward()
  close(w.grad, [3.0 * 3 + 2, 8.0 * 3 + 2])
  target.square().sum().backward()
  close(target.grad, [3.0, 4.0])
  lazy = Tensor.ones(2).mul(2).requires_grad_()  # realized itself
  (lazy.realize() * x).sum().backward()
  close(lazy.grad, [1.0, 2.0])
  gone = (Tensor([1.0, 1.0], requires_grad=True) * 2).realize()  # nobody waits for its gradient
  (gone * w).sum().backward()


def test_an_extremum_that_is_nan_hands_its_gradient_to_the_nans():
  """As PyTorch 2.13 has it for `max()` and `max_pool2d`; it was 0 for all. The expected values are its own."""
  nan, two = float("nan"), ("CPU:0", "CPU:1")
  programs = [
    (lambda x: x.max(), [1.0, nan, 3.0, nan], [0, 0.5, 0, 0.5]),
    (lambda x: x.min(), [1.0, nan, 3.0, 0.5], [0, 1, 0, 0]),
    (lambda x: x.shard(two, 0).max(), [1.0, nan, 3.0, nan], [0, 0.5, 0, 0.5]),
    (lambda x: x.reshape(1, 1, 1, 4).max_pool2d((1, 2)), [1.0, nan, 3.0, 4.0], [0, 1, 0, 1]),
    (lambda x: x.reshape(1, 1, 1, 4).max_pool2d((1, 2), 1), [1.0, nan, 3.0, 4.0], [0, 2, 0, 1]),
    (lambda x: Tensor.zeros(2).scatter_reduce(0, Tensor([0, 0, 1, 1]), x, "amax", include_self=False),
      [1.0, nan, 3.0, 4.0], [0, 1, 0, 1]),
  ]  # fmt: skip
  for f, values, want in programs:
    x = Tensor(values)
    assert f(x).sum().gradient(x)[0].tolist() == want


def test_products_have_second_derivatives():
  """They were nan: 0 * inf, of the infinity that is not there. The sum of d2(p**2)/dxi dxj over j, by hand."""
  a = np.array([0.5, -1.25, 2.0], np.float32)
  x = Tensor(a)
  first = (x.prod() ** 2).gradient(x)[0]
  p2 = float(a.prod()) ** 2
  want = [sum((2 if i == j else 4) * p2 / (a[i] * a[j]) for j in range(3)) for i in range(3)]
  close(first.sum().gradient(x)[0], want)
  pair = Tensor([3.0, 5.0])  # x0 + x0 x1 has (1 + x1, x0), and the sum of that (1, 1)
  close(pair.cumprod(0).sum().gradient(pair)[0].sum().gradient(pair)[0], [1.0, 1.0])
  rows = Tensor([[3.0, 5.0], [2.0, 7.0]])
  scattered = Tensor.ones(2).scatter_reduce(0, Tensor([0, 0, 1, 1]), rows.reshape(4), "prod")
  close(scattered.sum().gradient(rows)[0].sum().gradient(rows)[0], np.ones((2, 2)))


@pytest.mark.parametrize("values", ([0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [-2.0, 0.0, 5.0, 7.0], [0.0, 0.0, 0.0]))
def test_products_have_second_derivatives_by_what_is_0(values):
  """d2(prod)/dxi dxj is the product of all but these two; by the 0 among the others it was 0."""
  x, n = Tensor(values), len(values)
  first = x.prod().gradient(x)[0]
  want = [
    [0 if i == j else math.prod(values[k] for k in range(n) if k not in (i, j)) for j in range(n)] for i in range(n)
  ]
  assert [first[i].gradient(x)[0].tolist() for i in range(n)] == want
  assert first.tolist() == [math.prod(values[:i] + values[i + 1 :]) for i in range(n)]


WRITES = {
  "assign": lambda x: x.assign(Tensor([5.0, 6.0])),
  "add": lambda x: x.__iadd__(1),
  "setitem": lambda x: x.__setitem__(0, 9),
  "view": lambda x: x.detach()[:1].assign(Tensor([9.0])),
}


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_no_gradient_to_what_a_tensor_was_before_a_write_is_an_error(write, memory):
  """PyTorch refuses it as well; x.grad stayed None where there was another tensor, w, that had a gradient."""
  if write == "view" and not memory:
    return
  x, w = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
  x = x.realize() if memory else x
  y, constant = (x * w).sum(), (x.detach() * w).sum()
  WRITES[write](x)
  said = r"(?s){}: the value was computed from a tensor with requires_grad before .*fix: .*before the write"
  with pytest.raises(RuntimeError, match=said.format("backward")):
    y.backward()
  with pytest.raises(RuntimeError, match=said.format("gradient")):
    y.gradient(x)
  assert x.grad is None and w.grad is None
  assert y.gradient(w)[0].tolist() == [1.0, 2.0]  # what was not written to has its gradient
  constant.backward()
  assert x.grad is None and w.grad.tolist() == [1.0, 2.0]
  now = x.tolist()
  (x * w.detach() + x * x).sum().backward()  # of what it is now
  assert x.grad.tolist() == [3 + 2 * now[0], 4 + 2 * now[1]]
  x.assign(x.detach() * 2).realize()
  x.grad = None
  (x * w).sum().backward()
  assert x.grad.tolist() == [3.0, 4.0]


def test_what_was_realized_of_a_tensor_before_a_write_is_told_of():
  x, w = Tensor([1.0, 2.0], requires_grad=True).realize(), Tensor([3.0, 4.0], requires_grad=True)
  y = x * x
  x += 1
  x.realize()  # and y with it, for it reads what is overwritten
  with pytest.raises(RuntimeError, match="(?s)no realized tensor.*requires_grad: .*fix: "):
    (y * w).sum().backward()


def test_a_gradient_flows_through_what_a_computed_tensor_was_before_a_write():
  x = Tensor([1.0, 2.0], requires_grad=True)
  copy = x.clone()  # requires_grad, too
  y = copy * 2
  copy[0] = 6
  (y * y).sum().backward()
  assert x.grad.tolist() == [8.0, 16.0]


def test_a_copy_that_a_write_has_computed_does_not_keep_the_gradient_of_its_source_in_silence():
  x, scale = Tensor([9.0, 4.0], requires_grad=True), Tensor([5.0, 7.0]).realize()
  copy = x.clone()  # requires_grad, too
  copy *= scale
  scale.assign([1.0, 1.0]).realize()  # and the copy with it, for it reads what is overwritten
  with pytest.raises(RuntimeError, match="(?s)backward: .*no realized tensor.*requires_grad: .*fix: "):
    (copy * copy).sum().backward()
  leaf = x.clone().realize()  # by the user's word
  (leaf * leaf).sum().backward()
  assert leaf.grad.tolist() == [18.0, 8.0] and x.grad is None


SECOND = {  # at 0, by hand
  "x exp(x)": (lambda x: x * x.exp(), 2.0),
  "x / (1 + x)": (lambda x: x / (1 + x), -2.0),
  "x log(1 + x)": (lambda x: x * (1 + x).log(), 2.0),
  "x sqrt(1 + x)": (lambda x: x * (1 + x).sqrt(), 1.0),
  "x pow(1 + x, 3/2)": (lambda x: x * (1 + x).pow(1.5), 3.0),
  "silu": (lambda x: x.silu(), 0.5),
  "softplus": (lambda x: x.softplus(), 0.25),
  "logsigmoid": (lambda x: x.logsigmoid(), -0.25),
  "logaddexp": (lambda x: x.logaddexp(3 * x), 1.0),
  "asinh": (lambda x: x.asinh(), 0.0),
  "cross entropy": (lambda x: x.binary_crossentropy_logits(x * 0 + 0.3, "none"), 0.25),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_at_0(name):
  """A derivative that is 0 there was no longer one of anything: that of x * exp(x) had half its own."""
  f, want = SECOND[name]
  x = Tensor([0.0, 0.0], dtype="float64")
  g = lambda v: f(v).sum().gradient(v)[0]  # noqa: E731
  assert g(x).sum().gradient(x)[0].numpy() == pytest.approx([want, want], abs=1e-12)
  assert jvp(lambda v: jvp(f, (v,), (x + 1,))[1], (x,), (x + 1,))[1].numpy() == pytest.approx([want, want], abs=1e-12)


def is_guarded(f, x):
  """Whether a gradient of 0 is masked beside an infinite derivative."""
  nodes = f(x).gradient(x, gradient=Tensor.ones(*f(x).shape))[0].uop.toposort()
  return any(u.op is Ops.WHERE and guards_product(u) for u in nodes)


def test_what_is_at_most_1_needs_no_guard_in_its_gradient():
  """exp(x) is finite where the largest of a row has been taken off x, and there alone."""
  x = Tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0], [400.0, 200.0, 0.0]])
  top = x.detach().max(-1, keepdim=True)
  for f in (lambda x: (x - top).exp(), lambda x: (x - x.max(0, keepdim=True)).exp()):
    assert not is_guarded(f, x)
  for f in (
    lambda x: x.exp(),
    lambda x: x.max(-1).exp(),
    lambda x: (x * 2 - top).exp(),
    lambda x: (x - top.T).exp(),
    lambda x: (x - x.min(-1, keepdim=True)).exp(),
    lambda x: (x - top.isinf().where(0, top)).exp(),  # inf is left
    lambda x: (x - top.eq(3.0).where(0, top)).exp(),
  ):
    assert is_guarded(f, x)
  # beside it, what is not chosen adds nothing, whatever it is
  y = (x > 100).where(0, (x - top.T).exp())
  assert np.isfinite(y.gradient(x, gradient=Tensor.ones(3, 3))[0].numpy()).all()
