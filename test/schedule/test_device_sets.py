"""Kernels of several device sets in one schedule: each works on the memory of its own devices, for nothing but
transfers says in which order two sets work."""

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.device import Sharding
from tinygrad.schedule.device_sets import DeviceSets

D2, D3 = ("CPU:0", "CPU:1"), ("CPU:2", "CPU:3", "CPU:4")


def stored_and_read_elsewhere():
  """What is made of constants alone, as one device stores it, in what another two compute."""
  halves = Tensor.zeros(2, 3) * 0.5
  there = Tensor.ones(2, 3).shard(D2, 0).contiguous() + (halves + 1).exp().sum()
  return [halves, there], [np.zeros((2, 3)), np.full((2, 3), 1 + 6 * np.e)]


def read_by_three_sets():
  total = (Tensor.arange(6).float() * 0.5).contiguous().sum()
  parts = [Tensor.ones(6).shard(d, 0).contiguous() + total for d in (D2, D3)]
  return [total, *parts], [np.array(7.5), np.full(6, 8.5), np.full(6, 8.5)]


def moved_and_read():
  """A constant that one set computes and another collects, in parts."""
  x = (Tensor.arange(10).float() + 1).contiguous()
  there = Tensor.full((10,), 2.0, device=Sharding(D3, 0)) * 3
  return [x, there.to("CPU:0"), there + x], [np.arange(10) + 1, np.full(10, 6.0), np.arange(10) + 7]


CASES = (stored_and_read_elsewhere, read_by_three_sets, moved_and_read)


def check(case):
  values, want = case()
  Tensor.realize(*values)
  for v, w in zip(values, want, strict=True):
    np.testing.assert_allclose(v.numpy(), w, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_what_lives_anywhere_is_stored_by_each_set_that_reads_it(fresh, case):
  check(case)


@pytest.mark.parametrize("case", CASES[:2])
def test_a_kernel_with_memory_of_other_devices_is_refused(fresh, case):
  """As it was: by its first reader's devices alone."""
  fresh.setattr(DeviceSets, "shared", lambda self, stored: set())
  with pytest.raises(AssertionError, match="other devices"):
    check(case)
