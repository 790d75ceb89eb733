"""Tensors in files: mapped, read by the slice, written by assignment."""

import os

import numpy as np
import pytest

from tinygrad import Device, DeviceError, Tensor, dtypes

WORDS = np.arange(24, dtype=np.float32)


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "words.bin"
  path.write_bytes(WORDS.tobytes())
  return path


def test_a_path_is_the_bytes_of_its_file(file):
  x = Tensor(file)
  assert (x.device, x.shape, x.dtype) == (f"DISK:{file}", (96,), dtypes.uint8)
  assert x[4:8].tolist() == list(WORDS[1:2].tobytes())
  np.testing.assert_array_equal(Tensor(file, dtype="float32").numpy(), WORDS)
  on_cpu = Tensor(file, device="CPU", dtype=dtypes.float32)
  assert on_cpu.device == "CPU" and (on_cpu + 1).sum().item() == WORDS.sum() + 24


def test_views_and_bitcasts_stay_in_the_file_until_they_move(file):
  x = Tensor(file)
  y = x[8:72].bitcast(dtypes.float32).reshape(4, 4)
  want = WORDS[2:18].reshape(4, 4)
  assert y.device == f"DISK:{file}"
  for view, same in (
    (y, want),
    (y.T, want.T),
    (y.flip(0)[1:, ::2], want[::-1][1:, ::2]),
    (y[2:3].expand(3, 4), want[[2] * 3]),
  ):
    np.testing.assert_array_equal(view.numpy(), same)
    np.testing.assert_array_equal((view.to("CPU") * 2).numpy(), same * 2)
    np.testing.assert_array_equal(view.shard(("CPU:0", "CPU:1"), axis=0).numpy(), same)
  assert y.bitcast(dtypes.uint8).shape == (4, 16) and y.bitcast("float16").shape == (4, 8)
  np.testing.assert_array_equal(y.bitcast(dtypes.int32).numpy(), want.view(np.int32))


def test_only_what_is_used_is_read(tmp_path):
  path = tmp_path / "huge"
  with open(path, "wb") as f:
    f.truncate(1 << 42)  # 4 TiB of holes: no machine could read them all
    f.seek(1 << 41)
    f.write(b"here")
  x = Tensor(path)
  assert x.shape == (1 << 42,)
  assert bytes(x[1 << 41 : (1 << 41) + 4].to("CPU").tolist()) == b"here"


def test_assignment_writes_the_file(tmp_path):
  path = tmp_path / "made.bin"
  x = Tensor.empty(2, 4, dtype=dtypes.float32, device=f"DISK:{path}")
  x.assign(Tensor.arange(8).reshape(2, 4).float() * 2).realize()
  want = np.arange(8, dtype=np.float32).reshape(2, 4) * 2
  np.testing.assert_array_equal(np.fromfile(path, np.float32).reshape(2, 4), want)
  x[1, 1:3].assign(Tensor([-1.0, -2.0]))
  x[0] = 7.0
  want[1, 1:3], want[0] = [-1, -2], 7
  np.testing.assert_array_equal(np.fromfile(path, np.float32).reshape(2, 4), want)
  np.testing.assert_array_equal(x.numpy(), want)


def test_moving_to_a_file_writes_it(tmp_path):
  path = tmp_path / "moved.bin"
  source = Tensor(WORDS).shard(("CPU:0", "CPU:1"), axis=0)
  moved = (source + 1).to(f"DISK:{path}")
  assert moved.device == f"DISK:{path}"
  np.testing.assert_array_equal(np.fromfile(path, np.float32), WORDS + 1)
  Tensor([1.0, 2.0]).bfloat16().to(f"DISK:{path}.half")
  assert Tensor(type(path)(f"{path}.half"), dtype="bfloat16").tolist() == [1.0, 2.0]


def test_nothing_is_computed_in_a_file(file):
  x = Tensor(file, dtype="float32")
  with pytest.raises(DeviceError, match=r"add of float32\[24\]: nothing is computed on DISK:.*\n  fix: move the value"):
    (x + 1).numpy()
  with pytest.raises(DeviceError, match="nothing is computed"):
    (x + 1).to("CPU")
  np.testing.assert_array_equal(np.fromfile(file, np.float32), WORDS)


def test_mistakes(file, tmp_path):
  with pytest.raises(FileNotFoundError):
    Tensor(tmp_path / "missing")
  (tmp_path / "odd").write_bytes(b"12345")
  with pytest.raises(ValueError, match="has 5 bytes, which are no whole number of float32"):
    Tensor(tmp_path / "odd", dtype="float32")
  with pytest.raises(ValueError, match="does not divide into elements of 4 bytes"):
    Tensor(file)[:6].bitcast("float32")
  with pytest.raises(DeviceError, match="bitcast of a strided view"):
    Tensor(file, dtype="float32").reshape(4, 6).T.bitcast("int32")
  with pytest.raises(DeviceError, match="assign to a rearranged view"):
    Tensor(file, dtype="float32").reshape(4, 6).T.reshape(24).assign(Tensor.zeros(24))
  with pytest.raises(DeviceError, match="a file is named DISK:/its/path"):
    Tensor.empty(3, device="DISK").numpy()
  if os.geteuid():  # root may write every file
    file.chmod(0o444)
    with pytest.raises(DeviceError, match="cannot be written"):
      Tensor(file).assign(Tensor.zeros(96, dtype="uint8"))


def test_an_empty_file(tmp_path):
  (tmp_path / "empty").touch()
  assert Tensor(tmp_path / "empty").numpy().shape == (0,)


def test_names():
  assert Device.canonicalize("disk:/Some/Path") == "DISK:/Some/Path"
