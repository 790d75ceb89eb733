"""Realisation, assignment and what shares memory."""

import numpy as np
import pytest
from tensor_oracle import close

from tinygrad import GlobalCounters, Sharding, Tensor, TinyJit, dtypes

D2 = ("CPU:0", "CPU:1")


def memory(*data: float) -> Tensor:
  return Tensor(list(data)).clone().realize()


def kernels(f) -> int:
  GlobalCounters.reset()
  f()
  return GlobalCounters.kernel_count


def test_realize_gives_a_buffer_once():
  x = (Tensor([1.0, 2.0]) + 1).realize()
  assert x.uop.op.name == "BUFFER"
  assert kernels(x.realize) == 0
  close(x, [2.0, 3.0])


def test_what_others_wait_for_is_not_computed_again():
  x = memory(1.0, 2.0)
  h = x * 3
  y, z = h + 1, h.sum()
  h.realize()
  assert kernels(y.realize) == 1
  assert h.uop in y.uop.toposort() or y.uop.op.name == "BUFFER"
  assert h.uop in z.uop.toposort()
  close(y, [4.0, 7.0])


def test_realize_several():
  x, y = Tensor([1.0]) + 1, Tensor([2.0]) + 2
  x.realize(y)
  assert x.uop.op.name == y.uop.op.name == "BUFFER"
  a, b = Tensor([1.0]) + 1, Tensor([2.0]) + 2
  Tensor.realize(a, b)
  close(b, [4.0])


def test_only_tensors_are_realized():
  x = Tensor([1.0])
  with pytest.raises(TypeError, match=r"argument 1 is None(.|\n)*in test_tensor_memory(.|\n)*\n  fix: .*requires_grad"):
    Tensor.realize(x, x.grad)
  with pytest.raises(TypeError, match="argument 0 is None"):
    Tensor.realize(x.grad)


def test_assign_keeps_the_memory():
  x = memory(1.0, 2.0)
  buffer = x.uop
  assert x.assign(Tensor([5.0, 6.0])) is x
  assert x.realize().uop is buffer
  close(x, [5.0, 6.0])


def test_assigns_follow_each_other():
  x = memory(1.0, 2.0)
  x.assign(x + 1)
  x.assign(x * 10)
  y = x + 0.5
  x += 1
  close(y, [20.5, 30.5])
  close(x, [21.0, 31.0])
  close(x, [21.0, 31.0])  # reading does not write again


def test_what_was_computed_before_an_assign_keeps_the_old_value():
  x = memory(1.0, 2.0)
  y = x * 10
  x += 1
  z = x * 100
  x += 1
  x.realize()
  close(y, [10.0, 20.0])
  close(z, [200.0, 300.0])
  close(x, [3.0, 4.0])


def test_an_assign_that_waits_reads_the_old_value():
  x, y, z = memory(1.0), memory(0.0), memory(0.0)
  y.assign(x * 10)
  z.assign(y + 1)
  x += 1
  assert x.item() == 2.0
  assert y.item() == 10.0
  y += 1
  assert y.item() == 11.0
  assert z.item() == 11.0


def test_effects_happen_once_whoever_asks_for_them():
  x = memory(1.0)
  x += 1
  y = x * 2
  assert y.item() == 4.0
  assert x.item() == 2.0
  x.realize()
  assert x.item() == 2.0


def test_views_see_an_assignment_and_can_be_assigned():
  x = Tensor(np.zeros((2, 3), np.float32)).clone().realize()
  row, flat = x[1], x.reshape(6)
  row.assign(Tensor([1.0, 2.0, 3.0]))
  close(x, [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
  close(flat, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0])
  x.assign(Tensor(7.0))
  close(row, [7.0, 7.0, 7.0])
  x[:, 1].assign(0)
  close(flat, [7.0, 0.0, 7.0, 7.0, 0.0, 7.0])
  x.T[2].assign(Tensor([8.0, 9.0]))
  close(x, [[7.0, 0.0, 8.0], [7.0, 0.0, 9.0]])


def test_a_detached_tensor_shares_its_memory():
  x = memory(1.0, 2.0)
  x.detach().assign(Tensor([3.0, 4.0]))
  close(x, [3.0, 4.0])
  with Tensor.no_grad():
    x[0].assign(Tensor(5.0))
    x -= 1
  close(x, [4.0, 3.0])


def test_assign_that_reads_what_it_overwrites():
  x = memory(1.0, 2.0, 3.0, 4.0)
  x.assign(x.flip(0))
  close(x, [4.0, 3.0, 2.0, 1.0])
  x[0:3] = x[1:4]
  close(x, [3.0, 2.0, 1.0, 1.0])


def test_assign_without_memory_replaces_the_value():
  x = Tensor.zeros(3)
  x.assign(Tensor([1.0, 2.0, 3.0]))
  close(x, [1.0, 2.0, 3.0])
  y = Tensor([1.0, 2.0]) + 1
  y += 1
  close(y, [3.0, 4.0])


OPERATORS = {
  "+": lambda x: x.__iadd__(2), "-": lambda x: x.__isub__(2), "*": lambda x: x.__imul__(2),
  "//": lambda x: x.__ifloordiv__(2),
  "**": lambda x: x.__ipow__(2), "&": lambda x: x.__iand__(2), "|": lambda x: x.__ior__(2),
  "^": lambda x: x.__ixor__(2),
  "<<": lambda x: x.__ilshift__(2), ">>": lambda x: x.__irshift__(2),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_in_place(name):
  want = np.array([3, 4, 7])
  x = Tensor(want).clone().realize()
  OPERATORS[name](want)
  assert OPERATORS[name](x) is x
  close(x, eval(f"np.array([3, 4, 7]) {name} 2"))


def test_division_and_matmul_in_place():
  x = memory(2.0, 4.0)
  x /= 2
  close(x, [1.0, 2.0])
  m = Tensor([[1.0, 2.0], [3.0, 4.0]]).clone().realize()
  m @= Tensor([[0.0, 1.0], [1.0, 0.0]])
  close(m, [[2.0, 1.0], [4.0, 3.0]])


@pytest.mark.parametrize("axis", [None, 0])
def test_assign_to_sharded_memory(axis):
  x = Tensor([1.0, 2.0, 3.0]).shard(D2, axis).realize()
  x.assign(Tensor([4.0, 5.0, 6.0]))
  assert x.device is Sharding(D2, axis)
  close(x, [4.0, 5.0, 6.0])
  x += 1
  close(x, [5.0, 6.0, 7.0])


def test_clone_is_memory_of_its_own():
  x = memory(1.0, 2.0)
  y = x.clone().realize()
  y += 1
  close(x, [1.0, 2.0])
  close(y, [2.0, 3.0])
  assert x.clone("CPU:1").device == "CPU:1"


def test_replace_and_detach():
  x = memory(1.0, 2.0)
  x.replace(Tensor([3.0, 4.0]))
  close(x, [3.0, 4.0])
  close(x.detach(), [3.0, 4.0])


def test_a_captured_step_updates_memory():
  total = memory(0.0)

  @TinyJit
  def step(x: Tensor) -> Tensor:
    total.assign(total + x.sum())
    return total.realize()

  for i in range(5):
    step(Tensor([float(i), 1.0]).realize())
  assert total.item() == 15.0


def test_training_mode():
  assert Tensor.training is False
  with Tensor.train():
    assert Tensor.training is True
    with Tensor.test():
      assert Tensor.training is False
  assert Tensor.training is False
  Tensor.training = True
  assert Tensor.training is True
  Tensor.training = False


ERRORS = [
  (lambda x: x.assign(Tensor([1.0, 2.0, 3.0])), ValueError, "must broadcast to the target"),
  (lambda x: x.assign(Tensor([1, 2])), TypeError, r"dtypes must be equal(.|\n)*x.cast\(dtypes.float32\)"),
  (lambda x: x.expand(3, 2).assign(Tensor([1.0, 2.0])), ValueError, "several elements of the target share memory"),
  (lambda x: x.unfold(0, 1, 1).expand(2, 2).assign(1.0), ValueError, "several elements of the target share memory"),
  (lambda x: x.replace(Tensor([1.0])), ValueError, "shapes must be equal"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(memory(1.0, 2.0))


HELPERS = {"half": dtypes.float16, "float": dtypes.float32, "double": dtypes.float64, "bfloat16": dtypes.bfloat16}
HELPERS |= {"short": dtypes.int16, "int": dtypes.int32, "long": dtypes.int64, "bool": dtypes.bool}


@pytest.mark.parametrize("name", HELPERS)
def test_dtype_helpers(name):
  assert getattr(Tensor([1]), name)().dtype is HELPERS[name]


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("at", [np.s_[1:1], np.s_[:, 2:2], np.s_[2:2, 3:3], np.s_[4:, ::2]], ids=str)
def test_an_empty_part_is_written_like_any_other(axis, at):
  x = Tensor.arange(20).reshape(4, 5).shard(D2, axis).realize()
  x[at] += 2
  part = x[at]
  part.assign(part * 3 + 1)
  assert part.numpy().size == 0
  np.testing.assert_array_equal(x.numpy(), np.arange(20).reshape(4, 5))
