"""Movement methods against numpy, with their gradients."""

import numpy as np
import pytest
from tensor_oracle import check, close, normal

from tinygrad import Tensor

X = (2, 3, 4)
CASES = {
  "reshape": (lambda x: x.reshape(4, 6), lambda x: x.reshape(4, 6), X),
  "reshape -1": (lambda x: x.reshape((-1, 8)), lambda x: x.reshape(-1, 8), X),
  "reshape None": (lambda x: x.reshape(None, 12), lambda x: x.reshape(2, 12), X),
  "reshape to scalar": (lambda x: x.reshape(()), lambda x: x.reshape(()), (1, 1)),
  "view": (lambda x: x.view(24), lambda x: x.reshape(24), X),
  "flatten": (lambda x: x.flatten(1), lambda x: x.reshape(2, 12), X),
  "flatten scalar": (lambda x: x.flatten(), lambda x: x.reshape(1), ()),
  "unflatten": (lambda x: x.unflatten(-1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2), X),
  "squeeze": (lambda x: x.squeeze(), lambda x: x.squeeze(), (1, 3, 1)),
  "squeeze dim": (lambda x: x.squeeze(0), lambda x: x.squeeze(0), (1, 3, 1)),
  "squeeze other": (lambda x: x.squeeze(1), lambda x: x, (1, 3, 1)),
  "unsqueeze": (lambda x: x.unsqueeze(-1), lambda x: x[..., None], X),
  "expand": (lambda x: x.expand(5, 2, -1), lambda x: np.broadcast_to(x, (5, 2, 3)), (2, 3)),
  "expand 1": (lambda x: x.expand(2, 3), lambda x: np.broadcast_to(x, (2, 3)), (2, 1)),
  "permute": (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1), X),
  "permute negative": (lambda x: x.permute((-1, 0, 1)), lambda x: x.transpose(2, 0, 1), X),
  "transpose": (lambda x: x.transpose(0, 2), lambda x: x.swapaxes(0, 2), X),
  "T": (lambda x: x.T, lambda x: x.T, (2, 3)),
  "flip": (lambda x: x.flip(0, -1), lambda x: np.flip(x, (0, 2)), X),
  "shrink": (lambda x: x.shrink(((0, 1), None, (1, 3))), lambda x: x[:1, :, 1:3], X),
  "shrink to nothing": (lambda x: x.shrink(((1, 1), None)), lambda x: x[1:1], (2, 3)),
  "shrink_to": (lambda x: x.shrink_to(1, None, 2), lambda x: x[:1, :, :2], X),
  "pad pairs": (lambda x: x.pad(((1, 2), None)), lambda x: np.pad(x, ((1, 2), (0, 0))), (2, 3)),
  "pad flat": (lambda x: x.pad((1, 2, 0, 1), value=3.0),
               lambda x: np.pad(x, ((0, 1), (1, 2)), constant_values=3.0), (2, 3)),
  "pad negative": (lambda x: x.pad((-1, 2)), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2))), (2, 3)),
  "pad reflect": (lambda x: x.pad((2, 1), mode="reflect"), lambda x: np.pad(x, ((0, 0), (2, 1)), "reflect"), (2, 3)),
  "pad replicate": (lambda x: x.pad((2, 1, 1, 0), mode="replicate"),
                    lambda x: np.pad(x, ((1, 0), (2, 1)), "edge"), (2, 3)),
  "pad circular": (lambda x: x.pad((2, 1), mode="circular"), lambda x: np.pad(x, ((0, 0), (2, 1)), "wrap"), (2, 3)),
  "pad_to": (lambda x: x.pad_to(None, 5), lambda x: np.pad(x, ((0, 0), (0, 2))), (2, 3)),
  "repeat": (lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)), (2, 3)),
  "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), lambda x: np.repeat(x, 2, 1), (2, 3)),
  "repeat_interleave flat": (lambda x: x.repeat_interleave(3), lambda x: np.repeat(x, 3), (2, 3)),
  "roll": (lambda x: x.roll(2, 1), lambda x: np.roll(x, 2, 1), (2, 3)),
  "roll two": (lambda x: x.roll((1, -4), (0, 1)), lambda x: np.roll(x, (1, -4), (0, 1)), (2, 3)),
  "roll flat": (lambda x: x.roll(-1), lambda x: np.roll(x, -1), (2, 3)),
  "unfold": (lambda x: x.unfold(1, 2, 2), lambda x: np.stack([x[:, 0:2], x[:, 2:4]], 1), (2, 5)),
  "diagonal": (lambda x: x.diagonal(1, 0, 2), lambda x: np.diagonal(x, 1, 0, 2), X),
  "diagonal below": (lambda x: x.diagonal(-1), lambda x: np.diagonal(x, -1), (4, 3)),
  "diagonal outside": (lambda x: x.diagonal(5), lambda x: np.diagonal(x, 5), (4, 3)),
  "diag": (lambda x: x.diag(), lambda x: np.diag(x), (3,)),
  "triu": (lambda x: x.triu(1), lambda x: np.triu(x, 1), (2, 3, 4)),
  "tril": (lambda x: x.tril(-1), lambda x: np.tril(x, -1), (3, 4)),
  "rearrange": (lambda x: x.rearrange("a (b c) d -> (d a) c b", c=3),
                lambda x: x.reshape(2, 1, 3, 4).transpose(3, 0, 2, 1).reshape(8, 3, 1), X),
  "rearrange dots": (lambda x: x.rearrange("a ... -> ... a"), lambda x: x.transpose(1, 2, 0), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_movement(name):
  f, g, shape = CASES[name]
  check(f, g, normal(3, shape))


EMPTY = {
  "permute": lambda x: x.transpose(0, 1), "reshape": lambda x: x.reshape(3, 0), "flip": lambda x: x.flip(0),
  "repeat": lambda x: x.repeat(2, 1),
  "pad": lambda x: x.pad(((1, 0), (0, 0))), "roll": lambda x: x.roll(1, 1), "cat": lambda x: x.cat(x, dim=1),
  "stack": lambda x: x.stack(x),
}  # fmt: skip
NUMPY_EMPTY = {
  "permute": lambda x: x.T, "reshape": lambda x: x.reshape(3, 0), "flip": lambda x: x[::-1],
  "repeat": lambda x: np.tile(x, (2, 1)),
  "pad": lambda x: np.pad(x, ((1, 0), (0, 0))), "roll": lambda x: np.roll(x, 1, 1),
  "cat": lambda x: np.concatenate([x, x], 1),
  "stack": lambda x: np.stack([x, x]),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_movement_of_nothing(name):
  close(EMPTY[name](Tensor.zeros(0, 3)), NUMPY_EMPTY[name](np.zeros((0, 3), np.float32)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack(dim):
  a, b = normal(1, (2, 3)), normal(2, (2, 3))
  check(lambda x, y: x.cat(y, x, dim=dim), lambda x, y: np.concatenate([x, y, x], dim), a, b)
  check(lambda x, y: x.stack(y, dim=dim), lambda x, y: np.stack([x, y], dim), a, b)


def test_cat_of_unequal_lengths_and_types():
  got = Tensor([1, 2]).cat(Tensor([0.5]), Tensor([], dtype="float32"))
  close(got, np.array([1, 2, 0.5], np.float32))


def test_stack_takes_a_list():
  close(Tensor.stack([Tensor([1.0]), Tensor([2.0])]), [[1.0], [2.0]])


def test_split_and_chunk():
  x = normal(1, (7, 2)).astype(np.float32)
  for got, want in zip(Tensor(x).split(3), (x[:3], x[3:6], x[6:]), strict=True):
    close(got, want)
  for got, want in zip(Tensor(x).split([2, 5]), (x[:2], x[2:]), strict=True):
    close(got, want)
  for got, want in zip(Tensor(x).chunk(3), (x[:3], x[3:6], x[6:]), strict=True):
    close(got, want)


def test_a_movement_that_changes_nothing_builds_nothing():
  x = Tensor.empty(2, 3)
  for y in (
    x.reshape(2, 3),
    x.permute(0, 1),
    x.expand(2, 3),
    x.pad((0, 0)),
    x.shrink(((0, 2), None)),
    x.float(),
    x.contiguous(),
  ):
    assert y.uop is x.uop


ERRORS = [
  (lambda x: x.reshape(4), ValueError, "number of elements must be the same"),
  (lambda x: x.reshape(-1, -1), ValueError, "only one dim"),
  (lambda x: x.reshape(-1, 4), ValueError, "number of elements must be the same"),
  (lambda x: x.expand(2, 4), ValueError, "a dim must be 1, or stay as it is"),
  (lambda x: x.expand(3), ValueError, "cannot expand"),
  (lambda x: x.permute(0, 0), ValueError, "each of the 2 dims"),
  (lambda x: x.permute(0, 2), IndexError, "dim 2 out of range"),
  (lambda x: x.flip(0, 0), ValueError, "names a dim twice"),
  (lambda x: x.shrink(((0, 3), None)), ValueError, r"not inside \[0, 2\]"),
  (lambda x: x.shrink(((0, 1),)), ValueError, "1 ranges for the 2 dims"),
  (lambda x: x.pad((1, 1, 1)), ValueError, "flat form needs 2 amounts a dim"),
  (lambda x: x.pad(((1, 1),)), ValueError, "1 pairs for the 2 dims"),
  (lambda x: x.pad((3, 0), mode="reflect"), ValueError, "can add at most 2"),
  (lambda x: x.pad((1, 0), mode="mirror"), ValueError, "unknown mode 'mirror'"),
  (lambda x: x.cat(Tensor.zeros(2, 3, 1)), ValueError, "all dims but 0 must be equal"),
  (lambda x: x.stack(Tensor.zeros(3, 2)), ValueError, "all shapes must be equal"),
  (lambda x: x.repeat(2), ValueError, "1 counts for the 2 dims"),
  (lambda x: x.split([1, 2]), ValueError, "sum to 3"),
  (lambda x: x.chunk(0), ValueError, "must be positive"),
  (lambda x: x.roll((1, 1), 0), ValueError, "2 shifts for 1 dims"),
  (lambda x: x.roll((1, 1)), ValueError, "need dims"),
  (lambda x: x.unfold(0, 3, 1), ValueError, "do not fit dim 0"),
  (lambda x: x.diagonal(0, 1, 1), ValueError, "both 1"),
  (lambda x: x.diag(), ValueError, "needs a vector"),
  (lambda x: x.transpose(0, 2), IndexError, "dim 2 out of range"),
  (lambda x: x.unsqueeze(4), IndexError, "dim 4 out of range"),
  (lambda x: x.rearrange("a -> a"), ValueError, "names 1 dims"),
  (lambda x: x.rearrange("a b -> a"), ValueError, "must be the same"),
  (lambda x: x.rearrange("(a c) b -> a b c"), ValueError, "are not known"),
  (lambda x: x.rearrange("((a) b -> a b"), ValueError, "unbalanced"),
]  # fmt: skip


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(Tensor.zeros(2, 3))


@pytest.mark.parametrize(
  "shapes,dim",
  [
    (((2, 3), (2, 4)), 0),
    (((2, 3), (3, 3)), 1),
    (((2, 3), (2, 3, 1)), 0),
    (((), (2,)), 0),
    (((), ()), 0),
    (((2, 3), (2, 3), (2, 2)), -2),
    (((0,), (2, 3)), 0),
  ],
)
def test_only_what_fits_is_joined(shapes, dim):
  with pytest.raises(ValueError, match=r"cat: (.|\n)*operand 1: (.|\n)*fix: "):
    Tensor.cat(*(Tensor.ones(*s) for s in shapes), dim=dim)
  with pytest.raises(ValueError):
    np.concatenate([np.ones(s) for s in shapes], dim)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((2, 3), (3,)), ((), (1,)), ((2, 1), (2, 3)), ((2,), (2,), (0,))])
def test_only_equal_shapes_are_stacked(shapes):
  with pytest.raises(ValueError, match=r"stack: all shapes must be equal(.|\n)*fix: "):
    Tensor.stack(*(Tensor.ones(*s) for s in shapes))
  with pytest.raises(ValueError):
    np.stack([np.ones(s) for s in shapes])


def test_squeeze_of_several_dims_and_of_a_scalar():
  x = Tensor.zeros(1, 2, 1)
  assert [x.squeeze(d).shape for d in ((0, -1), (0, 1), [2], (), 1)] == [(2,), (2, 1), (1, 2), (1, 2, 1), (1, 2, 1)]
  assert Tensor(1.0).squeeze(0).shape == Tensor(1.0).transpose(0, -1).shape == ()


def test_what_has_no_dims_or_one_is_taken_as_numpy_takes_it():
  x = Tensor(-3.5)
  assert (x.T.shape, x.T.item(), x.flip(0).item(), x.flip(-1).item()) == ((), -3.5, -3.5, -3.5)
  assert Tensor([1, 2]).T.tolist() == [1, 2]
  values, places = x.topk(1)
  assert (values.shape, values.item(), places.shape, places.item()) == ((), -3.5, (), 0)
  assert abs(x).item() == 3.5 and abs(Tensor([-1, 2])).tolist() == [1, 2]
