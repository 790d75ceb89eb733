"""`with mesh:`"""

import threading

import pytest

from tinygrad import Mesh
from tinygrad.device import ambient_mesh

D4 = tuple(f"CPU:{i}" for i in range(4))
LINE, GRID = Mesh(D4, ("d",)), Mesh(D4, (2, 2), ("dp", "tp"))


def test_the_inner_one_counts():
  assert ambient_mesh() is None
  with LINE as line:
    assert line is LINE is ambient_mesh()
    with GRID, LINE, GRID:
      assert ambient_mesh() is GRID
      with GRID:
        assert ambient_mesh() is GRID
      assert ambient_mesh() is GRID
    assert ambient_mesh() is LINE
  assert ambient_mesh() is None


def test_an_error_leaves_it():
  with LINE:
    with pytest.raises(ZeroDivisionError), GRID:
      _ = 1 / 0
    assert ambient_mesh() is LINE
  assert ambient_mesh() is None


def test_each_thread_has_its_own():
  seen = []
  entered, left = threading.Event(), threading.Event()

  def other():
    seen.append(ambient_mesh())
    with GRID:
      entered.set()
      left.wait(10)
      seen.append(ambient_mesh())

  with LINE:
    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10) and ambient_mesh() is LINE
  left.set()
  thread.join()
  assert seen == [None, GRID] and ambient_mesh() is None


def test_blocks_that_end_out_of_order():
  def block(mesh):
    with mesh:
      yield

  outer, inner = block(GRID), block(LINE)
  next(outer), next(inner)
  outer.close()
  assert ambient_mesh() is LINE
  inner.close()
  assert ambient_mesh() is None
