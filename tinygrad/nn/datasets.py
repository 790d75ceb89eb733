"""Data sets that come with another package, so that nothing is downloaded."""

from __future__ import annotations

import importlib
from typing import Any

from tinygrad.helpers import numpy
from tinygrad.tensor import Tensor


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
  """scikit-learn's handwritten digits: (train images (1437, 1, 8, 8) in 0..1, labels int32, test images (360, 1, 8, 8),
  labels).

  Every fifth picture is kept for the test. ModuleNotFoundError without scikit-learn (`pip install scikit-learn`).
  """
  data: Any = importlib.import_module("sklearn.datasets").load_digits()
  images = (data.images / 16).astype(numpy.float32).reshape(-1, 1, 8, 8)
  labels = data.target.astype(numpy.int32)
  test = numpy.arange(len(labels)) % 5 == 0
  return Tensor(images[~test]), Tensor(labels[~test]), Tensor(images[test]), Tensor(labels[test])
