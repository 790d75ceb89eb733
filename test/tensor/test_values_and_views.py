"""Which methods give a view of memory and which a value (docs/assignment.md), for every public method, on operands for
which there is nothing to compute: dims of 1, the own type, no padding."""

import inspect
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, dtypes
from tinygrad.helpers import PROCESS, Context
from tinygrad.mixin.base import Base
from tinygrad.schedule import schedule
from tinygrad.uop import Ops

# what shows the memory: later writes are seen
VIEWS = {
  "T", "chunk", "constrain", "detach", "expand", "flatten", "flip", "meshgrid", "permute", "rearrange", "reshape",
  "shrink", "shrink_to", "split", "squeeze", "transpose", "unflatten", "unfold", "unsqueeze", "view",
}  # fmt: skip
# what gives the tensor itself if it is as asked
ITSELF = {"cast", "float", "to", "realize", "requires_grad_", "is_param_", "ufix", "int", "sequential"}
ONE, TWO = (lambda: Tensor.ones(1, 1)), (lambda: Tensor.ones(1, 1, dtype="int32"))
# arguments with which there is as little to do as can be; (dtype, arguments)
ARGUMENTS: dict[str, Any] = {
  "add": (0,), "alu": None, "bitcast": ("float32",), "cast": ("float32",), "chunk": (1,), "copysign": (1.0,),
  "div": (1,), "dot": lambda: (ONE(),), "expand": (1, 1), "flip": (0,), "fmod": (100.0,), "interpolate": ((1,),),
  "gather": lambda: (0, TWO() * 0), "lerp": lambda: (ONE(), 0.0), "linear": lambda: (ONE(),),
  "masked_fill": lambda: (Tensor([[False]]), 0.0), "masked_select": lambda: (Tensor([[True]]),),
  "matmul": lambda: (ONE(),), "maximum": (-9.0,), "minimum": (99.0,), "mod": (100.0,), "mul": (1,),
  "pad": (((0, 0), (0, 0)),), "pad_to": (1, 1), "permute": (0, 1), "pow": (1,), "rearrange": ("a b -> a b",),
  "repeat": (1, 1), "repeat_interleave": (1, 0), "reshape": (1, 1), "roll": (0, 0),
  "scatter": lambda: (0, TWO() * 0 - 5, ONE()), "scatter_reduce": lambda: (0, TWO() * 0 - 5, ONE(), "sum"),
  "shrink": (((0, 1), (0, 1)),), "shrink_to": (1, 1), "split": (1,), "sub": (0,), "sequential": ([],), "to": ("CPU",),
  "topk": (1,), "unflatten": (1, (1, 1)), "unfold": (1, 1, 1), "unsqueeze": (0,), "view": (1, 1), "ufix": None,
  "allclose": (1.0,), "binary_crossentropy": lambda: (ONE(),), "binary_crossentropy_logits": lambda: (ONE(),),
  "clamp": (-9.0, 9.0), "clip": (-9.0, 9.0), "const_like": (1.0,),
  "cross_entropy": lambda: (ONE(),), "eq": (1.0,), "full_like": (1.0,), "ge": (1.0,),
  "gt": (1.0,), "isclose": lambda: (ONE(),), "le": (1.0,), "logaddexp": (-99.0,), "lt": (1.0,), "ne": (1.0,),
  "sparse_categorical_crossentropy": lambda: (Tensor([0]),), "nll_loss": lambda: (Tensor([0]),),
  "scaled_dot_product_attention": lambda: (ONE(), ONE()),
}  # fmt: skip
# of integers
INTEGERS: dict[str, Any] = {
  "bitwise_and": (-1,), "bitwise_or": (0,), "bitwise_xor": (0,), "lshift": (0,), "rshift": (0,), "one_hot": (2,),
  "bitwise_not": (), "ceil": (), "floor": (), "round": (), "trunc": (), "abs": (), "int": (), "cast": ("int32",),
  "logical_not": (), "threefry": lambda: (Tensor([[1]], dtype="uint64"),),
}  # fmt: skip
IMAGES: dict[str, Any] = {
  "avg_pool2d": ((1, 1),), "max_pool2d": ((1, 1),), "interpolate": ((1, 1),),
  "conv2d": lambda: (Tensor.ones(1, 1, 1, 1),), "conv_transpose2d": lambda: (Tensor.ones(1, 1, 1, 1),),
  "batchnorm": lambda: (None, None, Tensor.zeros(1), Tensor.ones(1)),
}  # fmt: skip
NO_RESULT = {"backward", "gradient", "data", "item", "numpy", "tolist", "numel", "max_numel", "nbytes", "numpy_shape",
             "element_size", "size", "is_floating_point"}  # fmt: skip
WRITE = {"assign", "replace", "to_", "shard_"}
DRAWN = {"rand_like", "randn_like", "empty_like", "multinomial"}
OTHER = {
  "where": "its condition is bool", "max_unpool2d": "needs what max_pool2d returns", "newton_schulz": "needs matrices",
  "keccak": "of bytes", "hash": "of bytes", "shard": "makes a copy on each device", "shard_like": "as to",
  "diag": "of a vector", "nonzero": "reads at once", "alu": "of UOps", "ufix": "makes an operand of a number",
  "svd": "of no less than 2 dims, of which it computes", "batchnorm": "see IMAGES", "conv2d": "see IMAGES",
  "conv_transpose2d": "see IMAGES", "avg_pool2d": "see IMAGES", "max_pool2d": "see IMAGES", "threefry": "see INTEGERS",
  "interpolate": "see IMAGES", "logical_not": "see INTEGERS", "masked_select": "reads at once",
}  # fmt: skip


def methods() -> list[str]:
  kinds = (classmethod, staticmethod)
  names = [n for n in dir(Tensor) if not n.startswith("_") and callable(getattr(Tensor, n))]
  return [n for n in names if not isinstance(inspect.getattr_static(Tensor, n), kinds)]


def tensors(result: Any) -> list[Tensor]:
  return [t for x in result for t in tensors(x)] if isinstance(result, (list, tuple)) else [result]


def called(name: str, x: Tensor, given: Any) -> list[Tensor]:
  args = given() if callable(given) else given
  return tensors(getattr(x, name)(*args))


FLOATS = [n for n in methods() if n not in {*NO_RESULT, *WRITE, *DRAWN, *OTHER, *INTEGERS} or n in ("abs", "cast")]
CASES = [
  *((n, "float32", (1, 1), ARGUMENTS.get(n, ())) for n in FLOATS),
  *((n, "int32", (1, 1), given) for n, given in INTEGERS.items()),
  *((n, "float32", (1, 1, 1, 1), given) for n, given in IMAGES.items()),
]  # fmt: skip


@pytest.mark.parametrize("name, dtype, shape, given", CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_value_stays_and_a_view_follows(name, dtype, shape, given):
  with Context(INTERPRET=1):
    x = Tensor.full(shape, 7, dtype=dtype).contiguous().realize()
    before = [t.numpy() for t in called(name, x, given)]
    results = called(name, x, given)
    follows = name in VIEWS
    for t in results:
      assert isinstance(t, Tensor), f"{name} belongs to NO_RESULT"
      assert (t is x) == (name in ITSELF), f"{name} gives the tensor itself"
      assert t is x or t.follows == follows
    x.assign(Tensor.full(shape, 3, dtype=dtype))
    for t, old in zip(results, before):
      want = old if t is not x and not follows else np.full(old.shape, 3, old.dtype)
      np.testing.assert_array_equal(t.numpy(), want)


@pytest.mark.parametrize("name, dtype, shape, given", CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_write_to_a_value_is_not_seen_elsewhere(name, dtype, shape, given):
  if name in VIEWS or name in ITSELF:
    return
  with Context(INTERPRET=1):
    x = Tensor.full(shape, 7, dtype=dtype).contiguous().realize()
    for t in called(name, x, given):
      t.assign(t.zeros_like())
      t.realize()
      t += 1 if t.dtype is not dtypes.bool else True
    np.testing.assert_array_equal(x.numpy(), np.full(shape, 7, x.numpy().dtype))


def test_every_method_has_a_place():
  """A new method is tried with no arguments, and has to be entered above if it needs some."""
  known = {*ARGUMENTS, *INTEGERS, *IMAGES, *NO_RESULT, *WRITE, *DRAWN, *OTHER}
  empty = inspect.Parameter.empty
  for name in methods():
    params = list(inspect.signature(getattr(Tensor, name)).parameters.values())[1:]
    needed = [p for p in params if p.default is empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    assert not needed or name in known, f"Tensor.{name} is in none of the tables above"


def test_the_table_finds_a_method_that_shows_memory(monkeypatch):
  monkeypatch.setattr(Base, "_new", Base._seen)
  with pytest.raises(AssertionError):
    test_a_value_stays_and_a_view_follows("sum", "float32", (1, 1), ())


READ_ELSEWHERE = {  # view of memory: of a Tensor, and numpy's
  "flip": (lambda x: x.flip(0), lambda x: x[::-1]),
  "permute": (lambda x: x.permute(1, 0), lambda x: x.T),
  "shrink": (lambda x: x[1:], lambda x: x[1:]),
  "flip of a part": (lambda x: x[:2].flip(1), lambda x: x[:2, ::-1]),
}


def written_while_others_wait(view):
  """A view that is written to while a value on other devices waits to read it: both, and the memory."""
  memory = Tensor(np.arange(6, dtype=np.float32).reshape(3, 2)).realize()
  t = view(memory)
  y = Tensor.ones(2, t.shape[0]).shard(("CPU:1", "CPU:2"), 0) @ t
  t.assign(t - 1)
  return t.numpy(), y.numpy(), memory.numpy()


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_a_view_is_written_to_in_memory_whoever_else_reads_it(name, fresh):
  """What is copied to other devices gets a buffer; that is not what is written to."""
  ours, numpys = READ_ELSEWHERE[name]
  memory = np.arange(6, dtype=np.float32).reshape(3, 2)
  t = numpys(memory)
  y = np.ones((2, len(t))) @ t
  t -= 1
  for got, want in zip(written_while_others_wait(ours), (t, y, memory), strict=True):
    np.testing.assert_array_equal(got, want)
  if name == "permute":  # the copy is of what is below it
    return
  fresh.delitem(schedule.STEPS, Ops.ASSIGN)
  PROCESS.forget()
  assert not np.array_equal(written_while_others_wait(ours)[2], memory)


REARRANGED = {
  "flip": (lambda x: x.flip(0), lambda a: a[::-1]),
  "flip of the last dim": (lambda x: x.flip(1), lambda a: a[:, ::-1]),
  "T": (lambda x: x.T, lambda a: a.T),
  "flip of T": (lambda x: x.T.flip(0), lambda a: a.T[::-1]),
}


@pytest.mark.parametrize("axis", ["one device", None, 0, 1])
@pytest.mark.parametrize("name", REARRANGED)
def test_a_tensor_is_written_to_a_view_of_itself(name, axis):
  """Every element is read before it is overwritten, also where the value is the memory itself and nothing is computed;
  what else reads the old content has it."""
  view, by_numpy = REARRANGED[name]

  a = np.arange(16, dtype=np.float32).reshape(4, 4)
  x = Tensor(a) if axis == "one device" else Tensor(a).shard(("CPU:1", "CPU:2"), axis)
  before = x.realize() * 1
  view(x).assign(x)
  x[0] += 5
  view(x)[1:].assign(x[1:])
  want = a.copy()
  by_numpy(want)[:] = a
  want[0] += 5
  by_numpy(want)[1:] = want[1:].copy()
  np.testing.assert_array_equal(x.numpy(), want)
  np.testing.assert_array_equal(before.numpy(), a)


def test_a_captured_step_writes_a_tensor_to_a_view_of_itself():
  a = np.arange(16, dtype=np.float32).reshape(4, 4)
  x = Tensor(a).realize()

  @TinyJit
  def turned():
    x.T.assign(x).realize()
    return (x * 2).realize()

  for call in range(4):
    np.testing.assert_array_equal(turned().numpy(), (a * 2).T if call % 2 == 0 else a * 2)
