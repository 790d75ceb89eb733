"""Tensors from local shards and back, and sharded state in files: values, and bytes on the way."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad import Context, Device, Mesh, P, ShardError, Sharding, Tensor, dtypes
from tinygrad.engine import run
from tinygrad.helpers import GlobalCounters, tqdm
from tinygrad.nn.state import load_state_dict, safe_load, safe_save

D4 = tuple(f"CPU:{i}" for i in range(1, 5))
MESH = Mesh(D4, (2, 2), ("x", "y"))
PLACEMENTS = [
  Sharding(D4, 0),
  Sharding(D4, 1),
  Sharding(D4),
  Sharding(MESH, P("x", "y")),
  Sharding(MESH, P("y", None)),
  Sharding(MESH, P(None, ("y", "x"))),
]


def normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def cut(a: np.ndarray, where: Any) -> list[np.ndarray]:
  return [a[tuple(slice(lo, hi) for lo, hi in where.box(d, a.shape))] for d in range(len(where))]


# ---------------------------------------------------------------- from_shards


@pytest.mark.parametrize("where", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(8, 12), (5, 7), (2, 9)])  # even, uneven, and with empty blocks
def test_from_shards_is_the_inverse_of_shards(where, shape):
  a = np.rint(normal(0, *shape) * 8)  # so that sums are exact in any order
  x = Tensor.from_shards(cut(a, where), where)
  assert x.shape == shape and x.device is where
  np.testing.assert_array_equal(x.numpy(), a)
  np.testing.assert_array_equal((x * 2 + 1).sum(axis=0).numpy(), (a * 2 + 1).sum(0, dtype=np.float32))
  for part, want in zip(Tensor.from_shards(x.shards, where).shards, cut(a, where), strict=True):
    np.testing.assert_array_equal(part.numpy(), want)


def test_replicas_are_given_once_or_for_each_device():
  where, a = Sharding(MESH, P("y", None)), normal(1, 4, 3)
  parts = cut(a, where)
  np.testing.assert_array_equal(parts[0], parts[2])
  for given in (parts, parts[:2]):
    x = Tensor.from_shards(given, where)
    for got, want in zip(x.shards, parts, strict=True):
      np.testing.assert_array_equal(got.numpy(), want)


def test_a_part_on_its_device_is_not_copied():
  parts = [Tensor(normal(i, 1024, 8)).to(d).realize() for i, d in enumerate(D4)]
  want = np.concatenate([p.numpy() for p in parts])
  before, copied = GlobalCounters.mem_used, GlobalCounters.kernel_count
  x = Tensor.from_shards(parts, Sharding(D4, 0))
  assert GlobalCounters.mem_used == before and GlobalCounters.kernel_count == copied
  np.testing.assert_array_equal(x.numpy(), want)
  elsewhere = Tensor.from_shards(parts[::-1], Sharding(D4, 0))  # the order of the parts counts, not where they are
  np.testing.assert_array_equal(elsewhere.numpy(), want.reshape(4, 1024, 8)[::-1].reshape(4096, 8))


def test_the_memory_is_the_new_tensors():
  """Neither a write to the whole nor one to a part is seen in the other, though they share memory."""
  parts = [Tensor([1.0, 2.0]).to(d).realize() for d in D4[:2]]
  alias = parts[0].reshape(1, 2)
  x = Tensor.from_shards(parts, Sharding(D4[:2], 0))
  waiting = x * 10
  parts[0] += 5
  np.testing.assert_array_equal(parts[0].numpy(), [6, 7])
  np.testing.assert_array_equal(x.numpy(), [1, 2, 1, 2])
  x += 100
  np.testing.assert_array_equal(x.numpy(), [101, 102, 101, 102])
  np.testing.assert_array_equal(alias.numpy(), [[1, 2]])
  np.testing.assert_array_equal(parts[1].numpy(), [1, 2])
  np.testing.assert_array_equal(waiting.numpy(), [10, 20, 10, 20])


def test_the_memory_outlives_the_parts():
  x = Tensor.from_shards(
    [Tensor.full((64,), float(i), device=d).contiguous() for i, d in enumerate(D4)], Sharding(D4, 0)
  )
  other = [Tensor.full((64,), 9.0, device=d).contiguous().realize() for d in D4]  # would take memory that is free
  np.testing.assert_array_equal(x.numpy(), np.repeat(np.arange(4, dtype=np.float32), 64))
  del other


def test_a_tensor_from_shards_trains():
  a = normal(2, 6, 4)
  with Tensor.no_grad():
    w = Tensor.from_shards(cut(a, Sharding(D4[:2], 0)), Sharding(D4[:2], 0))
  w.requires_grad_()
  (w * w).sum().backward()
  np.testing.assert_allclose(w.grad.numpy(), 2 * a)
  assert w.grad.device is w.device


def test_simulated_devices():
  where = Sharding(("NULL:1", "NULL:2"), 0)
  x = Tensor.from_shards([np.ones((2, 3), np.float32)] * 2, where)
  assert x.shape == (4, 3) and x.device is where
  np.testing.assert_array_equal(x.numpy(), np.zeros((4, 3)))


@pytest.mark.parametrize(
  ("shapes", "where", "match"),
  [
    ([(2, 3)] * 3, Sharding(D4, 0), r"needs 4 \(one for each device\) parts, got 3"),
    ([(2, 3)] * 3, Sharding(MESH, P("x")), r"needs 4 \(one for each device\) or 2 \(one for each block\) parts"),
    ([(2, 3), (3, 3)], Sharding(D4[:2], 0), r"part 0 has shape \[2, 3\], and on CPU:1-2, dim 0(.|\n)*holds \[3, 3\]"),
    ([(2, 3), (2, 4)], Sharding(D4[:2], 0), r"part 1 has shape \[2, 4\](.|\n)*fix: cut every dim into blocks"),
    ([(2, 3), (2,)], Sharding(D4[:2], 0), "give parts of equal rank"),
    ([(2,), (2,)], Sharding(D4[:2], 1), "cuts dim 1, but"),
    ([(2,), (2,)], "CPU", "CPU is one device, and 2 parts are given"),
    ([], Sharding(D4[:2], 0), "give parts of equal rank"),
  ],
)
def test_shapes_that_are_no_blocks(shapes, where, match):
  with pytest.raises(ShardError, match=match):
    Tensor.from_shards([np.zeros(s, np.float32) for s in shapes], where)


def test_parts_of_several_dtypes():
  with pytest.raises(TypeError, match=r"one dtype, not float32, int32(.|\n)*part.cast\(dtypes.float32\)"):
    Tensor.from_shards([Tensor([1.0]), Tensor([1])], Sharding(D4[:2], 0))


def test_a_partial_placement():
  unreduced = Tensor(normal(0, 4)).shard(D4[:2], 0)
  with Context(DEFER=1):
    partial = unreduced.sum().uop.device
  assert partial.partial
  with pytest.raises(ShardError, match="partial by add(.|\n)*placement.reduced"):
    Tensor.from_shards([np.zeros((), np.float32)] * 2, partial)


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("where", PLACEMENTS, ids=str)
def test_sharded_tensors_are_written_as_they_are(where, tmp_path: Path):
  a, b, c = normal(0, 5, 7), normal(1, 3, 4, 6), np.arange(7, dtype=np.int8)
  saved = {
    "a": Tensor(a).shard(where),
    "b": Tensor(b).shard(where).realize(),
    "half": Tensor(a).shard(where).cast(dtypes.bfloat16),
    "scalar": Tensor(2.5),
    "empty": Tensor(np.zeros((0, 3), np.float32)),
    "cat": Tensor.cat(Tensor(a).shard(where), Tensor(a * 2).shard(where).realize(), dim=0),
    "c": Tensor(c),
  }
  safe_save(saved, tmp_path / "m.safetensors")
  got = {k: v.numpy() for k, v in safe_load(tmp_path / "m.safetensors").items()}
  np.testing.assert_array_equal(got["a"], a)
  np.testing.assert_array_equal(got["b"], b)
  np.testing.assert_array_equal(got["half"], saved["half"].numpy())
  np.testing.assert_array_equal(got["cat"], np.concatenate([a, a * 2]))
  np.testing.assert_array_equal(got["c"], c)
  assert got["scalar"] == 2.5 and got["empty"].shape == (0, 3)


def test_saving_and_loading_holds_no_tensor_whole(tmp_path: Path):
  """Bytes on the devices, and on the host (numpy reports its arrays to tracemalloc; the file is mapped)."""
  n = 1 << 20
  x = Tensor(normal(0, 1024, n // 1024)).shard(D4, axis=1).realize()
  want, used = x.numpy(), {d: Device.mem_used(d) for d in ("CPU", *D4)}
  list(tqdm(()))  # imports what draws progress bars, which is no tensor's memory
  GlobalCounters.reset()
  tracemalloc.start()
  safe_save({"x": x}, tmp_path / "m.safetensors")
  _, saving = tracemalloc.get_traced_memory()
  assert saving < 1 << 19, "the tensor has 4 MiB"
  assert {d: Device.mem_peak(d) for d in used} == used

  net = {"x": Tensor.zeros(1024, n // 1024).shard(D4, axis=0)}
  tracemalloc.reset_peak()
  load_state_dict(net, safe_load(tmp_path / "m.safetensors"))
  _, loading = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert loading < 1 << 19
  assert Device.mem_peak("CPU") == used["CPU"]
  for d in D4:
    assert Device.mem_peak(d) == used[d] + n, "a quarter of 4n bytes"
  np.testing.assert_array_equal(net["x"].numpy(), want)


def test_each_device_reads_its_slice_of_the_file(tmp_path: Path, monkeypatch):
  safe_save({"x": Tensor(normal(0, 8, 6))}, tmp_path / "m.safetensors")
  taken = []
  copy = run.copy

  def counted(transfer, source, target):
    taken.append((transfer.source, transfer.result, target.nbytes_per_device))
    copy(transfer, source, target)

  monkeypatch.setattr(run, "copy", counted)
  net = {"x": Tensor.zeros(8, 6).shard(D4, axis=0)}
  load_state_dict(net, safe_load(tmp_path / "m.safetensors"))
  assert taken == [("NPY", net["x"].device, 2 * 6 * 4)]
