"""Memory that a process gives out of its arena."""

import os
import threading

import pytest

from tinygrad.distributed import arena as arena_module
from tinygrad.distributed.arena import Arena

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")


def test_no_two_threads_get_the_same_memory(monkeypatch):
  """As a thread that reads data beside the one that computes: one takes while the other has just found room."""
  arena, round_up, got, threads = Arena.new(), arena_module.round_up, [], []

  def meanwhile(n, unit):
    rounded = round_up(n, unit)
    if n == arena.free[0][0] and not threads:
      threads.append(threading.Thread(target=lambda: got.append(arena.take(4096))))
      threads[0].start()
      threads[0].join(0.5)
    return rounded

  monkeypatch.setattr(arena_module, "round_up", meanwhile)
  mine = arena.take(4096)
  threads[0].join(60)
  (its,) = got
  assert abs(mine.address - its.address) >= 4096
  assert sum(n for _, n in arena.free) == arena.size - arena_module.CONTROL - 8192
