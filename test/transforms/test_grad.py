"""`grad` and its family: against `Tensor.gradient`, finite differences in float64, and each other."""

from dataclasses import dataclass

import numpy as np
import pytest

from tinygrad import (
  Tensor,
  TinyJit,
  checkpoint,
  cond,
  custom_jvp,
  custom_op,
  custom_vjp,
  function,
  grad,
  hessian,
  hvp,
  jacfwd,
  jacrev,
  jvp,
  linearize,
  nn,
  scan,
  stop_gradient,
  value_and_grad,
  vjp,
  vmap,
  while_loop,
)

rng = np.random.default_rng(0)


def double(*shape):
  return Tensor(rng.normal(size=shape), dtype="float64")


def close(got, want, tol=1e-6):
  got, want = (x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (got, want))
  assert got.shape == want.shape
  np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def f(x):
  return (x.sin() * x.exp() + x.cumsum(0)).square().sum()


def differences(fun, x, step=1e-5):
  """The derivative of a number by each element of a float64 Tensor."""
  base, out = x.numpy(), np.zeros(x.shape)
  for at in np.ndindex(*x.shape):
    e = np.zeros(x.shape)
    e[at] = step
    out[at] = (fun(Tensor(base + e)).item() - fun(Tensor(base - e)).item()) / (2 * step)
  return out


# ---------------------------------------------------------------- reverse


def test_a_gradient_is_the_derivative():
  x = double(3, 2)
  close(grad(f)(x), differences(f, x), 1e-5)
  value, g = value_and_grad(f)(x)
  close(value, f(x))
  close(g, f(x).gradient(x)[0])


def test_to_the_third_order():
  x = Tensor(1.3, dtype="float64")
  first = grad(lambda t: t**5)
  close(first(x), 5 * 1.3**4)
  close(grad(first)(x), 20 * 1.3**3)
  close(grad(grad(first))(x), 60 * 1.3**2)


def test_a_derivative_inside_knows_its_own_argument():
  x = Tensor(2.0, dtype="float64")
  inner = lambda t: grad(lambda y: t * y)(t)  # noqa: E731 (d(t·y)/dy at y = t: t)
  close(inner(x), 2.0)
  close(grad(inner)(x), 1.0)  # not 2, as if y and t were one
  close(grad(lambda t: t * grad(lambda y: t * y * y)(Tensor(3.0, dtype="float64")))(x), 2 * 2.0 * 6)


def test_one_tensor_as_two_arguments_has_two_derivatives():
  x = double(3)
  gx, gy = grad(lambda a, b: (a * b.square()).sum(), argnums=(0, 1))(x, x)
  close(gx, x.square())
  close(gy, 2 * x.square())
  close(grad(lambda a, b: (a * b.square()).sum(), argnums=-1)(x, x), 2 * x.square())


@dataclass(frozen=True)
class Point:
  x: Tensor
  y: Tensor
  name: str = "p"


class Model:
  def __init__(self):
    self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
    self.second.weight = self.first.weight
    self.steps = Tensor([3])
    self.size = 4

  def __call__(self, x):
    return self.second(self.first(x).tanh())


def test_structures():
  given = {"a": [double(2), (double(3), 5)], "p": Point(double(2), double(2))}
  found = grad(lambda d: (d["a"][0] * d["p"].x).sum() + (d["a"][1][0] * d["a"][1][1]).sum())(given)
  close(found["a"][0], given["p"].x)
  close(found["a"][1][0], [5.0] * 3)
  assert found["a"][1][1] == 5 and found["p"].name == "p" and isinstance(found["p"], Point)
  close(found["p"].y, np.zeros(2))


def test_modules():
  model, x = Model(), Tensor.rand(2, 4)
  value, g = value_and_grad(lambda m, t: m(t).square().sum())(model, x)
  want = model(x).square().sum().gradient(model.first.weight, model.first.bias)
  close(g.first.weight, want[0])
  assert g.second.weight is g.first.weight or (g.second.weight.numpy() == g.first.weight.numpy()).all()
  close(g.first.bias, want[1])
  assert g.steps is None and g.size == 4 and model.steps.tolist() == [3]
  assert isinstance(g, Model) and g is not model


def test_aux_and_values_read_inside():
  x, seen = double(3), []
  (value, aux), g = value_and_grad(lambda t: (seen.append(t.sum().item()) or f(t), {"n": t * 2}), has_aux=True)(x)
  close(value, f(x))
  close(aux["n"], x * 2)
  g, aux = grad(lambda t: (f(t), t + 1), has_aux=True)(x)
  close(g, f(x).gradient(x)[0])
  close(aux, x + 1)
  assert seen == [pytest.approx(x.sum().item())]


def test_what_passes_no_gradient():
  x = double(3)
  close(grad(lambda t: (stop_gradient({"a": t})["a"] * t).sum())(x), x)
  close(grad(lambda t: (t > 0).where(1.0, 2.0).sum() + 0 * t.sum())(x), np.zeros(3))


@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp"])
def test_state_of_a_module_is_updated_once_a_call(transform):
  """As by the function itself; in the order of calls."""
  x, plain, norm = Tensor([[1.0, 2.0], [3.0, 7.0]]), nn.BatchNorm(2), nn.BatchNorm(2)
  with Tensor.train():
    for k in range(2):
      loss = lambda m, k=k: m(x * (k + 1.0)).square().sum()  # noqa: E731
      loss(plain)
      if transform == "grad":
        value_and_grad(loss)(norm)
      elif transform == "vjp":
        vjp(loss, norm)
      else:
        jvp(loss, (norm,), (nn.BatchNorm(2),))
  for name in ("running_mean", "running_var", "num_batches_tracked"):
    assert getattr(norm, name).tolist() == getattr(plain, name).tolist() != getattr(nn.BatchNorm(2), name).tolist()


def test_what_the_function_assigns_to_its_argument_stays_inside():
  x = double(3).realize()
  before = x.numpy()
  close(grad(lambda t: t.assign(t * 2).square().sum())(x), 8 * x)
  close(jvp(lambda t: t.assign(t * 2).square(), (x,), (x,))[1], 8 * x * x)
  close(x, before)


def test_with_cotangents():
  x, w = double(2, 3), double(3, 4)
  out, pullback = vjp(lambda a, b: {"y": a @ b, "n": a.sum()}, x, w)
  g = double(2, 4)
  gx, gw = pullback({"y": g, "n": Tensor(2.0, dtype="float64")})
  close(gx, g.numpy() @ w.numpy().T + 2)
  close(gw, x.numpy().T @ g.numpy())
  close(out["y"], x @ w)
  out, pullback, aux = vjp(lambda a: (a * 2, a + 1), x, has_aux=True)
  close(aux, x + 1)
  close(pullback(x)[0], x * 2)


# ---------------------------------------------------------------- forward, and Jacobians


def test_forward_and_reverse_are_transposes():
  x, v = double(3, 2), double(3, 2)
  h = lambda t: t.sin() @ t.exp().T  # noqa: E731
  out, t = jvp(h, (x,), (v,))
  g = double(3, 3)
  close((t * g).sum(), (vjp(h, x)[1](g)[0] * v).sum())
  close(out, h(x))
  y, push = linearize(h, x)
  close(push(v), t)
  close(push(v * 2), t * 2)


def test_jacobians():
  x = double(3)
  h = lambda t: (t.reshape(3, 1) * t.exp()).sin()[:2]  # noqa: E731
  rows, columns = jacrev(h)(x), jacfwd(h)(x)
  assert rows.shape == (2, 3, 3)
  close(rows, columns)
  for at in [(0, 0), (1, 2)]:
    close(rows[at], differences(lambda t, at=at: h(t)[at], x), 1e-5)
  both = jacfwd(lambda a, b: {"y": a * b.sum()}, argnums=(0, 1))(x, double(2))
  close(both["y"][1], np.tile(x.numpy()[:, None], 2))
  close(hessian(f)(x), jacrev(grad(f))(x))
  close(hvp(f, (x,), (x,)), hessian(f)(x) @ x)


def test_of_numbers_by_numbers():
  f = lambda x: x**3  # noqa: E731
  for jacobian in (jacrev, jacfwd):
    assert jacobian(f)(Tensor(2.0)).shape == () and jacobian(f)(Tensor(2.0)).item() == 12
  assert hessian(f)(Tensor(2.0)).item() == 12


def test_jacobians_by_what_is_no_float():
  given = {"x": double(3), "i": Tensor([2, 0])}
  for jacobian in (jacrev, jacfwd):
    found = jacobian(lambda t: t["x"][t["i"]] * 2)(given)
    close(found["x"], 2 * np.eye(3)[[2, 0]])
    assert found["i"] is None


def test_compositions():
  x, w = double(4, 3), double(3, 3)
  loss = lambda row: ((row @ w).tanh() * row).sum()  # noqa: E731
  each = np.stack([grad(loss)(x[i]).numpy() for i in range(4)])
  close(vmap(grad(loss))(x), each)
  close(grad(lambda t: vmap(loss)(t).sum())(x), each)
  jitted = TinyJit(vmap(grad(loss)))
  for _ in range(3):
    close(jitted(x.realize()), each)
  close(grad(lambda t: TinyJit(lambda u: vmap(loss)(u).sum())(t))(x), each)
  close(vmap(lambda row: jvp(loss, (row,), (row,))[1])(x), (each * x.numpy()).sum(1))
  close(jvp(vmap(loss), (x,), (x,))[1], (each * x.numpy()).sum(1))
  zero = Tensor.zeros(3, dtype="float64")
  total = lambda v: scan(lambda c, row: (c + grad(loss)(row) @ v, None), zero, x)[0].sum()  # noqa: E731
  close(grad(total)(w), differences(total, w), 1e-4)
  close(jvp(total, (w,), (w,))[1], (differences(total, w) * w.numpy()).sum(), 1e-4)


def test_on_several_devices():
  x, v = double(4, 3), double(4, 3)
  sharded, direction = x.shard(("CPU:0", "CPU:1"), 0), v.shard(("CPU:0", "CPU:1"), 0)
  g = grad(f)(sharded)
  assert g.device == sharded.device
  close(g, grad(f)(x))
  close(jvp(f, (sharded,), (direction,))[1], jvp(f, (x,), (v,))[1])


# ---------------------------------------------------------------- rules of one's own


def clipped():
  @custom_vjp
  def clip(x, most):
    return x

  clip.defvjp(lambda x, most: (x, {"most": most}), lambda kept, g: (g.clip(-kept["most"], kept["most"]), None))
  return clip


def test_a_reverse_rule():
  x, most = double(4), Tensor(0.5, dtype="float64")
  clip = clipped()
  g = grad(lambda t, m: (clip(t, m).square() * 3).sum(), argnums=(0, 1))(x, most)
  close(g[0], np.clip(6 * x.numpy(), -0.5, 0.5))
  close(g[1], 0.0)
  close(grad(lambda m: grad(lambda t: (clip(t, m) * 3).sum())(x).sum())(most), 4.0)  # the residual has a derivative
  each = vmap(grad(lambda t: (clip(t, most).square() * 3).sum()))(x.reshape(2, 2))
  close(each, np.clip(6 * x.numpy(), -0.5, 0.5).reshape(2, 2))
  around = grad(lambda t: vmap(lambda e: clip(e, most).square() * 3)(t).sum())(x)
  close(around, np.clip(6 * x.numpy(), -0.5, 0.5))
  shared = grad(lambda m: vmap(lambda e: grad(lambda t: (clip(t, m) * 3).sum())(e))(x).sum())(most)
  close(shared, 4.0)
  with pytest.raises(TypeError, match="says nothing of tangents(?s:.*)custom_jvp"):
    jvp(lambda t: clip(t, most), (x,), (x,))


def test_arguments_that_take_no_derivative():
  power = custom_vjp(lambda n, x: x**n, nondiff_argnums=(0,))
  power.defvjp(lambda n, x: (x**n, x), lambda n, x, g: (g * x * 100,))
  x = double(3)
  close(grad(lambda t: power(3, t).sum())(x), 100 * x)


def test_fwd_may_call_the_function():
  """As JAX's documentation writes it; what it keeps of the function has the function's own derivative."""
  square = custom_vjp(lambda n, x: n * x * x, nondiff_argnums=(0,))

  def forward(n, x):
    y = square(n, x)
    return y, (x, y)

  square.defvjp(forward, lambda n, kept, g: (g * (3 * n * kept[0] + kept[1]),))
  x = double(3)
  f = lambda t: square(2, t).sum()  # noqa: E731
  slope = 6 * x + 2 * x * x  # 3nx + nx²
  close(f(x), (2 * x * x).sum())
  close(grad(f)(x), slope)
  close(grad(lambda t: grad(f)(t).sum())(x), 6 + slope)
  close(grad(lambda t: grad(lambda s: grad(f)(s).sum())(t).sum())(x), 6 + slope)
  close(vmap(grad(lambda t: square(2, t)))(x), slope)


def test_a_rule_for_tangents_serves_both_ways():
  @custom_jvp
  def safe(x, y):
    return x * y

  safe.defjvp(lambda primals, tangents: (safe(*primals), 7 * tangents[0] * primals[1] + 2 * tangents[1]))
  x, y, v = double(3), double(3), double(3)
  close(jvp(safe, (x, y), (v, v))[1], 7 * v * y + 2 * v)
  gx, gy = grad(lambda a, b: (safe(a, b) * v).sum(), (0, 1))(x, y)
  close(gx, 7 * v * y)
  close(gy, 2 * v)
  close(vmap(grad(lambda a, b: safe(a, b) * 1), 0)(x, y), 7 * y)
  each = vmap(lambda a: jvp(lambda b: safe(b, y), (a,), (a,))[1])(x)
  close(each, 7 * np.outer(x.numpy(), y.numpy()))
  close(jvp(lambda t: vmap(lambda a: safe(a, y))(t), (x,), (v,))[1], 7 * v.numpy()[:, None] * y.numpy())


def test_with_custom_ops_and_functions():
  x = Tensor(rng.normal(size=(4, 3)).astype(np.float32))
  op = custom_op(lambda a: a.sin() * a, rule="m k -> m k")
  plain = lambda t: t.sin() * t  # noqa: E731
  close(jvp(op, (x,), (x,))[1], jvp(plain, (x,), (x,))[1], 1e-5)
  close(vmap(grad(lambda r: op(r.reshape(1, 3)).sum()))(x), grad(lambda t: plain(t).sum())(x), 1e-5)
  tripled = function(lambda t: t * 2, grad_fxn=lambda g, t: g * 3)
  close(vmap(grad(lambda r: tripled(r).sum()))(x), np.full((4, 3), 3.0))
  with pytest.raises(TypeError, match="says nothing of tangents"):
    jvp(tripled, (x,), (x,))


@pytest.mark.parametrize(
  "call, error, says",
  [
    (lambda x: grad(lambda t: t * 2)(x), ValueError, r"returns float64\[3\](?s:.*)jacrev"),
    (lambda x: grad(lambda t: 3)(x), ValueError, "returns 3"),
    (lambda x: grad(lambda t: t.sum().int())(x), TypeError, "only floats"),
    (lambda x: grad(lambda t: t.sum())(x.int()), TypeError, "argument 0 is int32(?s:.*)fix: (?s:.*)argnums"),
    (
      lambda x: jvp(lambda t, i: t[i], (x, x.int()), (x, None)),
      TypeError,
      r"argument 1 is int32(?s:.*)lambda x: f\(x, i",
    ),
    (lambda x: grad(lambda t: t.sum())(3.0), TypeError, r"Tensor\(3.0\)"),
    (lambda x: grad(lambda t: t.sum(), 1)(x), ValueError, "names argument 1 of 1"),
    (lambda x: grad(lambda t: t.sum(), has_aux=True)(x), ValueError, r"return \(result, aux\)"),
    (lambda x: vjp(lambda t: t * 2, x)[1](x[:2]), ValueError, "no cotangent"),
    (lambda x: jvp(lambda t: t * 2, (x,), (x[:2],)), ValueError, "no tangent"),
    (lambda x: jvp(lambda t: t * 2, (x,), (x, x)), ValueError, "2 tangents for 1"),
    (lambda x: custom_vjp(lambda t: t)(x), TypeError, "defvjp"),
    (lambda x: custom_jvp(lambda t: t)(x), TypeError, "defjvp"),
  ],
)
def test_what_is_refused(call, error, says):
  with pytest.raises(error, match=says):
    call(double(3))


def test_one_tensor_may_be_two_arguments():
  x = double(2)
  for jacobian in (jacfwd, jacrev):
    by_a, by_b = jacobian(lambda a, b: a * 2 + b * 3, (0, 1))(x, x)
    close(by_a, 2 * np.eye(2))
    close(by_b, 3 * np.eye(2))


def test_a_tangent_is_found_by_its_key_whatever_the_order_of_keys():
  @custom_jvp
  def both(x):
    return {"a": x, "b": x * 2}

  both.defjvp(lambda primals, tangents: (both(*primals), {"b": tangents[0] * 7, "a": tangents[0] * 5}))
  found = jvp(both, (double(2),), (Tensor.ones(2, dtype="float64"),))[1]
  close(found["a"], [5, 5])
  close(found["b"], [7, 7])
  close(grad(lambda x: both(x)["a"].sum())(double(2)), [5, 5])


def rule_of(tangent):
  """A function of one argument with that derivative in its direction t."""
  f = custom_jvp(lambda x: x * 2)
  f.defjvp(lambda primals, tangents: (f(*primals), tangent(primals[0], tangents[0])))
  return f


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "reciprocal", "softmax", "sigmoid"])
def test_a_rule_for_tangents_may_be_a_derivative(name, looped):
  """Of which a card leaves out what is 0 times infinity: that is linear nevertheless, in steps of a loop too."""
  f = getattr(Tensor, name)
  if looped:  # the second carry is 0 at first, and so is its tangent
    one, steps = f, lambda x: scan(lambda c, _: ((c[0] + 0.5, c[0]), one(c[1] + x)), (x, x * 0), length=2)
    f = lambda x: steps(x)[1].sum(0) + steps(x)[0][1]  # noqa: E731
  own = custom_jvp(f)
  own.defjvp(lambda primals, tangents: jvp(f, primals, tangents))
  x, g = Tensor([0.5, 1.0, 3.0]), Tensor([1.0, 0.0, -2.0])
  for derivative in (
    lambda f: vjp(f, x)[1](g)[0],
    lambda f: grad(lambda x: vjp(f, x)[1](g)[0].sum())(x),
    lambda f: vmap(lambda y: jvp(grad(lambda z: f(z).square().sum()), (y,), (g,))[1])(x.stack(x * 2)),
  ):
    np.testing.assert_allclose(derivative(own).numpy(), derivative(f).numpy(), rtol=1e-5, atol=1e-6)
  ends = grad(lambda x: (x > 0).where(own(x), 0.0).sum())(Tensor([0.0, 1.0]))
  assert np.isfinite(ends.numpy()).all() or name == "reciprocal"  # whose value is not finite either


LOOPED = {  # what a step keeps for its tangent is computed of no tangent, though the loop has them
  "max": lambda x: scan(lambda c, _: (c * 0.5, c.max()), x[0], length=2)[1],
  "prod": lambda x: scan(lambda c, y: (c * 0.5, (c * y).prod()), x[0], x)[1],
  "scan": lambda x: scan(lambda c, y: (c * 0.5, scan(lambda d, z: (d + z.sqrt(), d.sin()), c.sum(), y)), x[0], x)[1][1],
}


@pytest.mark.parametrize("name", LOOPED)
def test_a_rule_for_tangents_may_be_that_of_a_loop(name):
  f, x = LOOPED[name], double(2, 3).square() + 0.1
  own = custom_jvp(f)
  own.defjvp(lambda primals, tangents: jvp(f, primals, tangents))
  for derivative in (lambda f: grad(lambda x: f(x).sin().sum()), lambda f: hvp_of(lambda x: f(x).sin().sum())):
    close(derivative(own)(x), derivative(f)(x))


def hvp_of(f):
  return lambda x: grad(lambda y: (grad(f)(y) * x).sum())(x)


@pytest.mark.parametrize(
  "tangent",
  [
    lambda x, t: t * t,
    lambda x, t: t.relu() * x,
    lambda x, t: (x * t).exp(),
    lambda x, t: scan(lambda c, _: (c * t, None), x, length=2)[0],
    lambda x, t: scan(lambda c, _: ((c[0] * x, c[1] + c[0] * c[0]), None), (t, x), length=2)[0][1],
  ],
)
def test_a_rule_for_tangents_that_is_not_linear_has_no_gradient(tangent):
  x = double(2)
  close(jvp(rule_of(tangent), (x,), (x,))[1], tangent(x, x))
  with pytest.raises(ValueError, match="custom_jvp: the rule's tangent is not linear(?s:.*)custom_vjp"):
    grad(lambda t: rule_of(tangent)(t).sum())(x)


def test_one_that_is_linear_has_whatever_it_is_made_of():
  x, w = double(3), double(3, 3)
  linear = {
    "product": lambda x, t: t @ w,
    "choice": lambda x, t: (x > 0).where(t, t / (1 + x * x)),
    "parts": lambda x, t: Tensor.cat(t[1:], t[:1]).cumsum(0) - t.sum(),
    "loop": lambda x, t: scan(lambda c, k: (c * k + t, c), t, x)[0],
    "condition": lambda x, t: cond(x.sum() > 0, lambda a: a * 2, lambda a: a * x, t),
  }
  for name, tangent in linear.items():
    want = grad(lambda t, tangent=tangent: (tangent(x, t) * w[0]).sum())(x)
    got = grad(lambda t, tangent=tangent: (rule_of(tangent)(t) * w[0]).sum())(x)
    assert np.allclose(got.numpy(), want.numpy()), name


NOT_CALLED = {
  "grad": grad, "value_and_grad": value_and_grad, "jacrev": jacrev, "jacfwd": jacfwd, "hessian": hessian,
  "checkpoint": checkpoint, "vmap": vmap, "custom_vjp": custom_vjp, "custom_jvp": custom_jvp,
  "vjp": lambda f: vjp(f, double(2)), "linearize": lambda f: linearize(f, double(2)),
  "jvp": lambda f: jvp(f, (double(2),), (double(2),)), "hvp": lambda f: hvp(f, (double(2),), (double(2),)),
  "scan": lambda f: scan(f, double(2), length=2), "defjvp": lambda f: custom_jvp(abs).defjvp(f),
  "fwd": lambda f: custom_vjp(abs).defvjp(f, abs), "bwd": lambda f: custom_vjp(abs).defvjp(abs, f),
  "condition": lambda f: while_loop(f, abs, double(2)), "step": lambda f: while_loop(abs, f, double(2)),
  "policy": lambda f: checkpoint(abs, f),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_CALLED)
def test_what_is_no_function_is_refused_where_it_is_given(name):
  said = {"value_and_grad": "grad", "defjvp": "custom_jvp", "fwd": "custom_vjp: fwd", "bwd": "custom_vjp: bwd"}
  said |= {"condition": "while_loop: the condition", "step": "while_loop: the step", "policy": "checkpoint: the policy"}
  with pytest.raises(TypeError, match=rf"^{said.get(name, name)}.* is 3, which cannot be called\n  fix: give"):
    NOT_CALLED[name](3)


X, V = Tensor([1.0, 2.0]), {"a": Tensor([1.0, 2.0]), "b": Tensor([3.0, 4.0])}
TWO = lambda v: {"a": v["a"] * 2, "b": v["b"] * 3}  # noqa: E731


def returns(result):
  f = custom_vjp(lambda x: x * 2)
  f.defvjp(lambda x: (result(f(x)), None), lambda kept, g: (g,))
  return lambda: f(X)


def derivative(g):
  f = custom_vjp(TWO)
  f.defvjp(lambda v: (TWO(v), None), lambda kept, gs: (g,))
  return lambda: grad(lambda v: f(v)["a"].sum())(V)


def tangent(t):
  f = custom_jvp(TWO)
  f.defjvp(lambda primals, tangents: (f(*primals), t))
  return lambda: jvp(f, (V,), (V,))


def half(t):
  return t.cast("float16")


STRUCTURES = {
  "a missing cotangent": (lambda: vjp(TWO, V)[1]({"a": X}), "vjp: the cotangents are structured.*no b in"),
  "a cotangent more": (lambda: vjp(TWO, V)[1](V | {"c": X}), "vjp: the cotangents are structured.*in other places"),
  "its type": (lambda: vjp(TWO, V)[1](V | {"a": half(X)}), r"^vjp: float16\[2\].* no cotangent of float32.*"),
  "a missing tangent": (lambda: jvp(TWO, (V,), ({"a": X},)), "^jvp: the tangents are structured.*no b in"),
  "a tangent more": (lambda: jvp(TWO, (V,), (V | {"c": X},)), "^jvp: the tangents are structured.*in other places"),
  "a tangent's type": (lambda: linearize(TWO, V)[1](V | {"a": half(X)}), r"^linearize: float16\[2\].* no tangent of"),
  "hvp's": (lambda: hvp(lambda x: (x**3).sum(), (X,), (X[:1],)), r"^hvp: float32\[1\].* no tangent of float32\[2\]"),
  "hvp's number": (lambda: hvp(lambda x: (x**3).sum(), (X,), (X, X)), "^hvp: 2 tangents for 1 primals"),
  "cond": (lambda: cond(X.sum() > 0, lambda: V, lambda: {"a": X}), "^cond: the functions return diff.*no b in"),
  "cond, more": (lambda: cond(X.sum() > 0, lambda: V, lambda: V | {"c": X}), "^cond: the functions.*in other places"),
  "scan": (lambda: scan(lambda c, x: ({"a": c["a"]}, x), V, X), "^scan: the carry is structured.*no b in"),
  "scan, more": (lambda: scan(lambda c, x: (c | {"c": x}, x), V, X), "^scan: the carry is structured.*in other places"),
  "while_loop": (lambda: while_loop(lambda c: X.sum() > 9, lambda c: {"a": X}, V), "^while_loop: the carry .*no b in"),
  "custom_jvp": (tangent({"a": X}), "^custom_jvp: the rule's tangent is structured.*no b in"),
  "custom_jvp, more": (tangent(V | {"c": X}), "^custom_jvp: the rule's tangent is structured.*in other places"),
  "custom_jvp, number": (tangent({"a": X, "b": 3}), "^custom_jvp: the rule's tangent is 3 of a result"),
  "custom_vjp": (derivative({"a": X}), "^custom_vjp: bwd gives a derivative that is structured.*no b in"),
  "custom_vjp, more": (derivative(V | {"c": X}), "^custom_vjp: bwd gives a derivative that .*in other places"),
  "fwd": (returns(lambda y: {"a": y, "b": y}), "^custom_vjp: fwd gives {.* as the result, and the function float32"),
  "fwd, less": (returns(lambda y: None), "^custom_vjp: fwd gives None as the result, and the function float32"),
  "fwd, type": (returns(half), r"^custom_vjp: fwd gives float16\[2\].* as the result, and the function float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_what_is_structured_in_another_way_is_told_by_the_transforms_name(name):
  call, says = STRUCTURES[name]
  with pytest.raises(ValueError, match=rf"(?s){says}.*\n  fix: "):
    call()


def test_what_holds_itself_has_no_end():
  x, d = [X], {"a": X}
  x.append(x)
  d["d"] = (d, X)
  first = lambda t: next(iter(t.values() if isinstance(t, dict) else t)).sum()  # noqa: E731
  for given in (x, d):
    for call in (grad(first), vmap(first), checkpoint(first), jacfwd(first), lambda t: vjp(first, t)):
      with pytest.raises(
        ValueError, match=f"a {type(given).__name__} among the arguments .* holds itself(?s:.*)  fix: "
      ):
        call(given)


def test_a_part_may_know_what_it_is_a_part_of():
  class Part:
    def __init__(self, parts):
      self.weight, self.parts = Tensor([2.0, 3.0]), parts

  parts = []
  parts.append(Part(parts))
  close(grad(lambda ps: (ps[0].weight ** 2).sum())(parts)[0].weight, [4, 6])


def largest_of(scale):
  """Two results; the derivative is the larger of the two cotangents, which is not linear in them."""
  f = custom_vjp(lambda x, y: (x * y, x + y))
  f.defvjp(lambda x, y: ((x * y, x + y), None), lambda kept, gs: (gs[0].maximum(gs[1]) * scale, gs[0] - gs[1]))
  return f


def test_a_rule_has_the_cotangents_of_all_results_together():
  f, x, y = largest_of(2), double(3), double(3)
  loss = lambda x, y: (lambda r: (r[0] * 3 + r[1] * 5).sum())(f(x, y))  # noqa: E731
  gx, gy = grad(loss, (0, 1))(x, y)
  close(gx, [10.0] * 3)
  close(gy, [-2.0] * 3)
  close(grad(lambda x: f(x, y)[1].sum())(x), [2.0] * 3)
  close(grad(lambda x: (f(x, y)[0] * -1).sum())(x), [0.0] * 3)
  one = Tensor(1.0, dtype="float64")
  close(vmap(grad(loss), (0, None))(x, one), [10.0] * 3)
  close(grad(lambda t: vmap(loss, (0, None))(y, t).sum(), 0)(one), -6.0)
  close(grad(lambda t: scan(lambda c, k: (c + loss(k, one), None), one, t)[0])(x), [10.0] * 3)
  both = lambda h: grad(lambda x: (lambda r: (r[0] * 3 + r[1] * 5).sum())(h(x)))(x)  # noqa: E731
  close(both(checkpoint(lambda x: f(x, y))), [10.0] * 3)
  for sign in (1, -1):
    chosen = lambda x, sign=sign: cond(sign > x.sum() * 0, lambda t: f(t, y), lambda t: largest_of(7)(t, y), x)  # noqa: E731
    close(both(chosen), [10.0 if sign > 0 else 35.0] * 3)


def test_grad_fxn_has_the_gradients_of_all_results_together():
  calls = []

  def backward(a, b, x):
    calls.append(1)
    return a.maximum(b)

  both = function(lambda x: (x * 2, x * 3), grad_fxn=backward)
  x = Tensor([1.0, 2.0])
  a, b = both(x)
  close((a * 3 + b * 5).sum().gradient(x)[0], [5.0, 5.0])
  assert len(calls) == 1
