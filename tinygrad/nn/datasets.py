"""Data sets: downloaded once (`fetch`), or read from a folder."""

import os
import struct
from pathlib import Path

from tinygrad.helpers import LazyModule, fetch, getenv, numpy, prod
from tinygrad.mixin.base import DeviceLike
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.state import tar_extract
from tinygrad.tensor import Tensor

gzip, zlib = LazyModule("gzip"), LazyModule("zlib")
MOST = 1 << 26  # bytes of a file of MNIST, and more
MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
Split = tuple[Tensor, Tensor, Tensor, Tensor]
Folder = str | os.PathLike[str] | None


def _find(url: str, name: str, folder: Folder) -> Path:
  """The file of a data set: in `folder`, in `$DATASETS/name`, or downloaded."""
  file, sets = url.rpartition("/")[2], getenv("DATASETS", "")
  if not folder and not sets:
    try:
      return fetch(url, name=file, subdir=name)
    except ConnectionError as e:
      raise ConnectionError(f"{e}\n  or: put {file} into a folder F/{name}, and set DATASETS=F") from e
  if not (path := Path(folder or Path(sets) / name) / file).is_file():
    raise FileNotFoundError(f"{path} is not there\n  fix: download it from {url}")
  return path


def mnist(device: DeviceLike | None = None, fashion: bool = False, folder: Folder = None) -> Split:
  """Handwritten digits, or pieces of clothing: (train images uint8 (60000, 1, 28, 28), labels uint8 (60000,), test
  images (10000, 1, 28, 28), labels).

  `folder`: where the four .gz files are; else `$DATASETS/mnist` (`fashion-mnist`), if that is set; else downloaded.
  Raises: ConnectionError offline; CheckpointError for a file that is not as it should be.
  """

  def read(file: str, *shape: int) -> Tensor:
    path = _find((FASHION if fashion else MNIST) + file, "fashion-mnist" if fashion else "mnist", folder)
    try:
      with gzip.open(path) as f:
        data = f.read(MOST)
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
      raise CheckpointError(str(path), f"is no whole .gz file: {e}", "remove it, and try again") from e
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)  # the IDX format: bytes, rank, lengths
    if data[: len(head)] != head or len(data) != len(head) + prod(shape):
      raise CheckpointError(str(path), f"holds no {list(shape)} bytes in the IDX format", "remove it, and try again")
    return Tensor(numpy.frombuffer(data, numpy.uint8, offset=len(head)).reshape(shape)).to(device)

  train, labels = read("train-images-idx3-ubyte.gz", 60000, 28, 28), read("train-labels-idx1-ubyte.gz", 60000)
  test, answers = read("t10k-images-idx3-ubyte.gz", 10000, 28, 28), read("t10k-labels-idx1-ubyte.gz", 10000)
  return train.unsqueeze(1), labels, test.unsqueeze(1), answers


def cifar(device: DeviceLike | None = None, folder: Folder = None) -> Split:
  """CIFAR-10: (train images uint8 (50000, 3, 32, 32), labels uint8 (50000,), test images (10000, 3, 32, 32), labels).

  `folder`: where cifar-10-binary.tar.gz is; else `$DATASETS/cifar`, if that is set; else downloaded.
  Raises: ConnectionError offline; CheckpointError for a file that is not as it should be.
  """
  path = _find(CIFAR, "cifar", folder)
  files = tar_extract(path)
  parts = [f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
  if any(name not in files or files[name].shape != (10000 * 3073,) for name in parts):
    raise CheckpointError(str(path), "does not hold 6 files of 10000 labelled images", "remove it, and try again")
  rows = numpy.concatenate([files[name].numpy().reshape(10000, 3073) for name in parts])  # a label, 3 planes of 32x32
  images, labels = rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
  train, test = slice(0, 50000), slice(50000, None)
  a, b, c, d = (Tensor(x).to(device) for x in (images[train], labels[train], images[test], labels[test]))
  return a, b, c, d
