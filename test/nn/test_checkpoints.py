"""Checkpoints in one process: what is read is what was saved, on any mesh; what is not whole is not seen."""

import errno
import json
import os

import numpy as np
import pytest

from tinygrad import Mesh, P, Tensor, nn
from tinygrad.dtype import dtypes
from tinygrad.nn.checkpoints import Checkpoints, write_arrays
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.state import StateError, safe_load

TWO = ("CPU:0", "CPU:1")
MESH = Mesh(("CPU:0", "CPU:1", "CPU:2", "CPU:3", "CPU:4", "CPU:5"), (2, 3), ("a", "b"))


def state():
  array = np.arange(35, dtype=np.float32).reshape(5, 7)
  return {
    "cut": Tensor(array).shard(MESH, P("a", "b")),
    "half": Tensor(array[:, :3]).bfloat16().shard(TWO, axis=0),
    "whole": Tensor([1, 2, 3]).shard(TWO),
    "one": Tensor(2.5),
  }


@pytest.mark.parametrize(
  "spec",
  [
    P(None, "b"),
    P(
      ("a", "b"),
    ),
    P(),
  ],
)
def test_what_is_read_is_what_was_saved_on_any_mesh(tmp_path, spec):
  given = state()
  writer = Checkpoints(tmp_path)
  writer.save(3, given, {"epoch": 1})
  writer.wait()
  other = Mesh(tuple(f"CPU:{i}" for i in range(6)), (3, 2), ("a", "b"))
  there = {
    "cut": Tensor.zeros(5, 7).contiguous().shard(other, spec),
    "half": Tensor.zeros(5, 3, dtype=dtypes.bfloat16),
    "whole": Tensor.zeros(3, dtype=dtypes.int).contiguous(),
    "one": Tensor(0.0),
  }
  placed = {name: t.device for name, t in there.items()}
  assert Checkpoints(tmp_path).load(there) == (3, {"epoch": 1})
  for name, t in there.items():
    assert t.numpy().tolist() == given[name].numpy().tolist() and t.device == placed[name]


def test_each_box_is_written_once_as_safetensors(tmp_path):
  saved = Checkpoints(tmp_path)
  saved.save(1, state())
  saved.wait()
  index = json.loads((tmp_path / "1" / "index.json").read_text())
  boxes = [part["box"] for part in index["tensors"]["cut"]["parts"]]
  assert sorted(boxes) == sorted([a, b] for a in ([0, 3], [3, 5]) for b in ([0, 3], [3, 6], [6, 7]))
  assert len(index["tensors"]["whole"]["parts"]) == 1
  arrays = safe_load(tmp_path / "1" / "00000.safetensors")
  assert arrays["cut[3:5, 6:7]"].tolist() == [[27.0], [34.0]] and arrays["half[0:3, 0:3]"].dtype is dtypes.bfloat16


def test_the_last_ones_are_kept_and_what_is_not_whole_is_not_seen(tmp_path):
  saved = Checkpoints(tmp_path, keep=2)
  for step in (1, 2, 5):
    saved.save(step, {"x": Tensor([float(step)])})
  saved.wait()
  (tmp_path / ".9").mkdir()  # of a run that has died
  (tmp_path / "8").mkdir()
  assert saved.steps() == [2, 5] == Checkpoints(tmp_path).steps() and not (tmp_path / ".9").exists()
  x = Tensor([0.0])
  assert saved.load({"x": x})[0] == 5 and x.item() == 5.0
  assert saved.load({"x": x}, step=2)[0] == 2 and x.item() == 2.0
  saved.save(5, {"x": Tensor([7.0])})  # again
  assert saved.load({"x": x})[0] == 5 and x.item() == 7.0
  assert Checkpoints(tmp_path / "empty").load({"x": x}) is None


def test_random_numbers_go_on_where_they_were(tmp_path):
  Tensor.manual_seed(11)
  Tensor.rand(3).realize()
  saved = Checkpoints(tmp_path)
  saved.save(1, {"x": Tensor([1.0])})
  want = Tensor.rand(3).tolist()
  Tensor.manual_seed(0)
  saved.load({"x": Tensor([1.0])})
  assert Tensor.rand(3).tolist() == want != Tensor.rand(3).tolist()


def test_a_full_disk_is_told_and_leaves_the_one_before(tmp_path, monkeypatch):
  saved = Checkpoints(tmp_path)
  saved.save(1, {"x": Tensor([1.0])})
  saved.wait()

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as m:
    m.setattr(os, "fsync", full)
    saved.save(2, {"x": Tensor([2.0])})
    with pytest.raises(OSError, match="No space left on device"):
      saved.wait()
  assert saved.steps() == [1]
  x = Tensor([0.0])
  assert saved.load({"x": x})[0] == 1 and x.item() == 1.0
  saved.save(3, {"x": Tensor([3.0])})
  saved.wait()
  assert saved.steps() == [1, 3]


def test_mistakes(tmp_path):
  with pytest.raises(ValueError, match="keep=0 would keep none"):
    Checkpoints(tmp_path, keep=0)
  saved = Checkpoints(tmp_path)
  saved.save(1, {"x": Tensor([1.0])})
  saved.wait()
  x = Tensor([[0.0]])
  with pytest.raises(StateError, match="there is no tensor 'y'"):
    saved.load({"y": x})
  with pytest.raises(StateError, match=r"tensor 'x' is float32\[1\] there and float32\[1, 1\] here"):
    saved.load({"x": x})
  with pytest.raises(CheckpointError, match=r"holds no step 7, but \[1\]"):
    saved.load({"x": Tensor([1.0])}, step=7)


def test_arrays_are_written_whole(tmp_path):
  write_arrays(tmp_path / "x.safetensors", {"a": np.zeros((0, 3), np.float32), "b": np.array(7, np.int64)})
  assert {k: v.tolist() for k, v in safe_load(tmp_path / "x.safetensors").items()} == {"a": [], "b": 7}


def test_a_model_and_its_optimizer(tmp_path):
  layer = nn.Linear(3, 2)
  adam = nn.optim.Adam(nn.state.get_parameters(layer))
  both = {**nn.state.get_state_dict(layer), **nn.state.get_state_dict(adam, "adam.")}
  saved = Checkpoints(tmp_path)
  saved.save(1, both)
  want = layer.weight.numpy()
  layer.weight.assign(layer.weight * 0).realize()
  saved.load(both)
  assert (layer.weight.numpy() == want).all()
