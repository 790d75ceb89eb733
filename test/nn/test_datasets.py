"""Data sets from files in their formats; no test downloads anything."""

import gzip
import io
import struct
import tarfile

import numpy as np
import pytest

from tinygrad import dtypes
from tinygrad.nn import datasets
from tinygrad.nn.files import CheckpointError


def numbers(*shape):
  return (np.arange(np.prod(shape), dtype=np.int64) * 7 % 251).astype(np.uint8).reshape(shape)


PARTS = {
  "train-images-idx3-ubyte.gz": numbers(60000, 28, 28),
  "train-labels-idx1-ubyte.gz": numbers(60000) % 10,
  "t10k-images-idx3-ubyte.gz": numbers(10000, 28, 28) // 2,
  "t10k-labels-idx1-ubyte.gz": numbers(10000) % 9,
}


def write_mnist(folder):
  folder.mkdir(exist_ok=True)
  for name, x in PARTS.items():
    head = struct.pack(f">I{x.ndim}I", 0x800 + x.ndim, *x.shape)
    (folder / name).write_bytes(gzip.compress(head + x.tobytes(), 1))


def test_mnist(tmp_path, monkeypatch):
  write_mnist(tmp_path / "fashion-mnist")
  monkeypatch.setattr(datasets, "getenv", lambda key, default: str(tmp_path) if key == "DATASETS" else default)
  for got in (datasets.mnist(folder=tmp_path / "fashion-mnist"), datasets.mnist(device="CPU:1", fashion=True)):
    assert [t.shape for t in got] == [(60000, 1, 28, 28), (60000,), (10000, 1, 28, 28), (10000,)]
    assert all(t.dtype is dtypes.uint8 for t in got)
    for t, want in zip(got, PARTS.values()):
      np.testing.assert_array_equal(t.numpy().reshape(want.shape), want)
  assert got[0].device == "CPU:1"
  name = "t10k-labels-idx1-ubyte.gz"
  (tmp_path / "fashion-mnist" / name).write_bytes(gzip.compress(struct.pack(">II", 0x801, 9999) + bytes(9999)))
  with pytest.raises(CheckpointError, match=rf"{name}: holds no \[10000\] bytes in the IDX format\n  fix: remove it"):
    datasets.mnist(fashion=True)
  packed = gzip.compress(bytes(9999))
  for bad in (b"none", packed[:-9], packed[:-8] + bytes(8), packed[:12] + b"\xff\xff" + packed[14:]):
    (tmp_path / "fashion-mnist" / name).write_bytes(bad)
    with pytest.raises(CheckpointError, match=rf"{name}: is no whole .gz file: .*\n  fix: remove it"):
      datasets.mnist(fashion=True)
  with pytest.raises(FileNotFoundError, match="train-images.* is not there\n  fix: download it from https://"):
    datasets.mnist()


def test_cifar(tmp_path):
  batches = {f"data_batch_{i}": numbers(10000, 3073) // (i + 1) for i in range(1, 6)} | {
    "test_batch": numbers(10000, 3073)
  }
  with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as tar:
    for name, x in batches.items():
      info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
      info.size = x.size
      tar.addfile(info, io.BytesIO(x.tobytes()))
  train, labels, test, answers = datasets.cifar(folder=tmp_path)
  want = np.concatenate(list(batches.values())[:5])
  np.testing.assert_array_equal(train.numpy(), want[:, 1:].reshape(50000, 3, 32, 32))
  np.testing.assert_array_equal(labels.numpy(), want[:, 0])
  np.testing.assert_array_equal(test.numpy(), batches["test_batch"][:, 1:].reshape(10000, 3, 32, 32))
  np.testing.assert_array_equal(answers.numpy(), batches["test_batch"][:, 0])
  with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz"):
    pass
  with pytest.raises(CheckpointError, match="does not hold 6 files of 10000 labelled"):
    datasets.cifar(folder=tmp_path)


def test_offline_says_where_to_put_the_files(monkeypatch):
  def offline(url, **kwargs):
    raise ConnectionError(f"fetch {url}: offline")

  monkeypatch.setattr(datasets, "fetch", offline)
  with pytest.raises(ConnectionError, match="put train-images-idx3-ubyte.gz into a folder F/mnist, and set DATASETS=F"):
    datasets.mnist()
  with pytest.raises(ConnectionError, match="cifar-10-binary.tar.gz into a folder F/cifar"):
    datasets.cifar()
