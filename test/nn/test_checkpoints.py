"""Checkpoints in one process: what is read is what was saved, on any mesh; what is not whole is not seen."""

import errno
import json
import os
import re
from pathlib import Path

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


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_that_has_gone_back_keeps_what_it_saves(tmp_path, keep):
  """There are checkpoints of later steps."""
  x, saved = Tensor([0.0]), Checkpoints(tmp_path, keep=3)
  for step in (10, 20, 30):
    saved.save(step, {"x": Tensor([float(step)])})
  saved.wait()
  saved = Checkpoints(tmp_path, keep=keep)
  assert saved.load({"x": x}, step=10)[0] == 10
  for step, kept in ((11, {1: [11], 2: [11, 30]}), (12, {1: [12], 2: [12, 30]}), (31, {1: [31], 2: [30, 31]})):
    saved.save(step, {"x": Tensor([float(step)])})
    saved.wait()
    assert saved.steps() == kept[keep]


def test_all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
  """Else a machine that stops just then leaves one that is not whole, and has removed the one before."""
  synced, replace = set(), os.replace

  def named(source, target):
    if (files := Path(target)).name.isdecimal():
      missing = [p.name for p in [Path(source), *Path(source).iterdir()] if p.stat().st_ino not in synced]
      assert not missing, missing
      synced.add(files.name)
    replace(source, target)

  monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))
  monkeypatch.setattr(os, "replace", named)
  saved = Checkpoints(tmp_path)
  saved.save(1, {"x": Tensor([1.0])})
  saved.wait()
  assert "1" in synced and tmp_path.stat().st_ino in synced


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


def test_only_what_checkpoints_have_left_is_removed(tmp_path):
  """A project's own hidden files lie in the same folder."""
  mine = {".git/HEAD", ".venv.old/x", ".9.bak/x", "2.x/index.json"}
  for name in mine:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("mine")
  (tmp_path / ".a.b").write_text("mine")
  for name in (".3", ".4.old", ".5.failed"):
    (tmp_path / name).mkdir()
  saved = Checkpoints(tmp_path, keep=1)
  for step in (1, 2):
    saved.save(step, {"x": Tensor([1.0])})
  saved.wait()
  assert {p.name for p in tmp_path.iterdir()} == {".git", ".venv.old", ".9.bak", "2.x", ".a.b", "2"}
  assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a_run_that_ends_between_two_renamings_loses_nothing(tmp_path):
  saved = Checkpoints(tmp_path)
  saved.save(4, {"x": Tensor([1.0])})
  saved.wait()
  (tmp_path / "4").rename(tmp_path / ".4.before")
  (tmp_path / ".4").mkdir()
  assert Checkpoints(tmp_path).steps() == [4] and {p.name for p in tmp_path.iterdir()} == {"4"}


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
  saved = Checkpoints(tmp_path)
  monkeypatch.setattr(os, "fsync", lambda _: os.write(-1, b""))
  saved.save(2, {"x": Tensor([2.0])})
  with pytest.raises(OSError, match="Bad file descriptor"):
    saved.wait()
  assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved_is_told_where_it_is_saved(tmp_path):
  saved = Checkpoints(tmp_path)
  x = {"x": Tensor([2.0])}
  for step in (-1, "last", 1.5):
    with pytest.raises(ValueError, match=re.escape(f"step={step!r} is no number from 0 on\n  fix: ")):
      saved.save(step, x)
  with pytest.raises(TypeError, match="not JSON serializable"):
    saved.save(1, x, {"more": {1, 2}})
  assert list(tmp_path.iterdir()) == []


def damaged_indexes(good):
  """(what errors say, the index) of one that is damaged in each of its fields."""
  yield "Expecting value", good[:60]
  yield "can't decode", good.replace(b"F32", b"F\xff2")
  yield "there is no 'box'", good.replace(b'"box"', b'"bix"')
  yield "is of the type 'F31'", good.replace(b"F32", b"F31")
  yield r"the boxes of 'x' are not its \[3\] elements", good.replace(b"[[0, 3]]", b"[[0, 2]]")
  yield r"the boxes of 'x' are not its \[4\] elements", good.replace(b'"shape": [3]', b'"shape": [4]')
  yield "lies in another folder", good.replace(b'"00000.', b'"../00000.')
  yield "it is of step 2", good.replace(b'"step": 1', b'"step": 2')
  yield r"00000\.safetensors: holds no 'x\[0:2\]' of float32\[3\]", good.replace(b"x[0:3]", b"x[0:2]")
  yield "holds no 'x.0:3.' of int32", good.replace(b"F32", b"I32")
  yield "is no index", good.replace(b'"tensors": {', b'"tensors": 7, "x": {')
  yield "is no index", b"[]"


def test_a_damaged_checkpoint_is_a_typed_error_and_changes_nothing(tmp_path):
  saved = Checkpoints(tmp_path)
  saved.save(1, {"first": Tensor([5]), "x": Tensor([1.0, 2.0, 3.0])})
  saved.wait()
  index = tmp_path / "1" / "index.json"
  good = index.read_bytes()
  for said, bad in damaged_indexes(good):
    assert bad != good
    index.write_bytes(bad)
    first, x = Tensor([0]), Tensor([0.0] * 3)
    x = x.cast("int32") if "int32" in said else Tensor([0.0] * 4) if "[4" in said else x
    with pytest.raises(CheckpointError, match=f"{said}(.|\n)*fix: "):
      saved.load({"first": first, "x": x})
    assert first.item() == 0
  index.write_bytes(good)
  file = tmp_path / "1" / "00000.safetensors"
  file.write_bytes(file.read_bytes()[:-1])
  with pytest.raises(CheckpointError, match="00000.safetensors: header: .*"):
    saved.load({"first": first})
  file.unlink()
  with pytest.raises(FileNotFoundError, match=r"00000\.safetensors"):
    saved.load({"first": first})
