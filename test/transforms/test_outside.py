"""What functions that transforms call may write to: what is theirs."""

import numpy as np
import pytest

from tinygrad import Mesh, P, Tensor, cond, custom_jvp, custom_vjp, grad, scan, vmap, while_loop
from tinygrad.transforms.shard_map import shard_map

X = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
KINDS = {
  "without memory": lambda: Tensor(np.ones(2, np.float32)),
  "with memory": lambda: Tensor.ones(2).contiguous().realize(),
}
WRITES = {
  "vmap": lambda m: vmap(lambda v: m.assign(m + v))(X),
  "scan": lambda m: scan(lambda c, v: (c + v, m.assign(m + 1)), Tensor([0.0, 0.0]), X),
  "while_loop": lambda m: while_loop(lambda c: (c < 3).all(), lambda c: (m.assign(m + 1), c + 1)[1], Tensor([0.0])),
  "vmap in scan": lambda m: scan(
    lambda c, v: (c + vmap(lambda e: (m.assign(m + 1), e)[1])(v).sum(), None), Tensor(0.0), X
  ),
  "cond": lambda m: cond(Tensor(False), lambda: m.assign(m + 1), lambda: m * 5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRITES)
def test_what_is_outside_is_not_written_and_stays_whole(name, kind):
  m = KINDS[kind]()
  with pytest.raises(RuntimeError, match=r"assign: the target is memory outside .*\n.*\n.*\n  fix: return the value"):
    WRITES[name](m)
  assert m.tolist() == [1.0, 1.0]


def test_what_shard_map_gives_of_a_part_is_not_kept_outside():
  m, mesh = Tensor(np.ones(2, np.float32)), Mesh(("CPU:0", "CPU:1"), (2,), ("d",))
  with pytest.raises(RuntimeError, match="assign: the target is memory outside"):
    shard_map(lambda v: m.assign(m + v.reshape(2)), mesh=mesh, in_specs=P("d"), out_specs=P("d"))(X)
  assert m.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_for_every_element_is_written_once(kind):
  m = KINDS[kind]()
  assert vmap(lambda v: (m.assign(m + 1), v)[1])(X).tolist() == X.tolist()
  assert m.tolist() == [2.0, 2.0]


def own(v):
  """Memory of a call's own, with and without a value."""
  total, memory = Tensor.zeros(2), Tensor.empty(2)
  total += v
  memory.assign(Tensor([1.0, 2.0]))
  return total.assign(total * 2) + memory


def test_what_is_a_functions_own_is_written():
  assert vmap(own)(X).tolist() == [[3.0, 6.0], [7.0, 10.0]]
  assert scan(lambda c, v: (c + own(v), None), Tensor([0.0, 0.0]), X)[0].tolist() == [10.0, 16.0]
  assert vmap(lambda v: v.assign(v + 1))(X).tolist() == [[2.0, 3.0], [4.0, 5.0]]
  last, kept = scan(lambda c, v: (c.assign(c + v), v.assign(v * 2)), Tensor([0.0, 0.0]), X)
  assert (last.tolist(), kept.tolist()) == ([4.0, 6.0], [[2.0, 4.0], [6.0, 8.0]])


def test_the_branches_of_cond_have_arguments_of_their_own():
  ways = [cond(Tensor(p), lambda y: y.assign(y + 1), lambda y: y * 5, Tensor([1.0, 2.0])) for p in (True, False)]
  assert tuple(y.tolist() for y in ways) == ([2.0, 3.0], [5.0, 10.0])


@pytest.mark.parametrize(
  "yes, no", [(lambda: 1, lambda: 2), (lambda: None, lambda: X), (lambda: (X, 1), lambda: (X, 2)), (lambda: 1,) * 2]
)
def test_cond_chooses_among_tensors_alone(yes, no):
  with pytest.raises(ValueError, match=r"cond: .*\n  fix: return the same structure of Tensors"):
    cond(Tensor(False), yes, no)


def test_cond_takes_functions_and_scan_a_number_of_steps():
  with pytest.raises(TypeError, match=r"cond: <Tensor .*> is no function of the operands\n  fix: "):
    cond(Tensor(True), X, lambda: X)
  with pytest.raises(ValueError, match=r"scan: -1 is no number of steps\n  fix: length=n"):
    scan(lambda c, _: (c, c), Tensor(0.0), length=-1)


@pytest.mark.parametrize(
  "argnums, kind, rule",
  [((0, 0), ValueError, "names an argument twice"), ("x", TypeError, "are no numbers of arguments")],
)
def test_arguments_are_named_once_by_number(argnums, kind, rule):
  with pytest.raises(kind, match=rf"grad: argnums=.* {rule}\n  fix: "):
    grad(lambda a: a.sum(), argnums)(X)


@pytest.mark.parametrize("tangent", [lambda t: t.sum(), lambda t: t.cast("int32")], ids=["shape", "dtype"])
def test_a_tangent_is_like_its_result(tangent):
  f = custom_jvp(lambda v: v.sin())
  f.defjvp(lambda primals, tangents: (f(*primals), tangent(tangents[0])))
  with pytest.raises(ValueError, match=r"custom_jvp: the rule's tangent is .* of a result float32\[2, 2\]"):
    grad(lambda a: f(a).sum())(X)


def test_a_derivative_is_a_tensor():
  f = custom_vjp(lambda v: v.sin())
  f.defvjp(lambda v: (v.sin(), None), lambda kept, g: (1.0,))
  with pytest.raises(TypeError, match=r"custom_vjp: bwd gives 1.0 as a derivative\n  fix: a Tensor like"):
    grad(lambda a: f(a).sum())(X)


def test_a_derivative_has_the_shape_of_its_argument():
  """The error was that of a function with `grad_fxn`, and counted residuals among the arguments."""
  f = custom_vjp(lambda v, b: v * b)
  f.defvjp(lambda v, b: (v * b, (v, b)), lambda kept, g: (g * kept[1], g * kept[0]))
  rule = r"custom_vjp: bwd gives float32\[2, 2\].* as the derivative by float32\[2\].*\n  fix: give it the argument's"
  with pytest.raises(ValueError, match=rule):
    grad(lambda b: f(X, b).sum())(X[0])
  f.defvjp(lambda v, b: (v * b, (v, b)), lambda kept, g: (g * kept[1], (g * kept[0]).sum(0)))
  assert grad(lambda b: f(X, b).sum())(X[0]).tolist() == X.sum(0).tolist()
