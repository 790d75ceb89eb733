"""Modules of torch.nn that are something else here: what an AttributeError says of them computes."""

import pytest

from tinygrad import Tensor, nn
from tinygrad.nn.foreign_layers import FOREIGN_LAYERS

c, d, k, p = 3, 4, 2, 0.5
NAMES = {
  "nn": nn,
  "Tensor": Tensor,
  "c": c,
  "d": d,
  "k": k,
  "p": p,
  "layer": nn.Linear(4, 4),
  "devices": ("CPU:0", "CPU:1"),
}


@pytest.mark.parametrize("name", FOREIGN_LAYERS)
def test_the_code_that_an_error_gives_computes(name):
  x, y = Tensor.rand(2, c, 4, 4), Tensor.rand(2, c, 4, 4)
  known = NAMES | {"x": x, "y": y, "logits": Tensor.rand(2, 3), "labels": Tensor([0, 2])}
  got = eval(FOREIGN_LAYERS[name], known)
  if name.endswith("Loss"):
    assert got.shape == () and got.item() > 0
  elif isinstance(got, Tensor):
    assert got.numpy().size > 0
  else:
    assert callable(got) or isinstance(got, list)
  with pytest.raises(AttributeError) as e:
    getattr(nn, name)
  assert str(e.value) == f"module 'tinygrad.nn' has no attribute '{name}'\n  fix: {FOREIGN_LAYERS[name]}"


def test_other_names_have_no_fix():
  with pytest.raises(AttributeError, match=r"^module 'tinygrad.nn' has no attribute 'Nope'$"):
    getattr(nn, "Nope")  # noqa: B009
  assert not hasattr(nn, "Nope") and hasattr(nn, "Linear") and hasattr(nn, "utils")
