"""Draws the pictures of the concepts, each by the code that its page shows: `python docs/pictures.py` writes them to
docs/pictures, or to a folder that is given. test/test_docs_pages.py holds the committed ones equal to these."""

import sys
from collections.abc import Callable
from pathlib import Path

from tinygrad import OPEN, Mesh, P, Tensor, propagate, psum, shard_map
from tinygrad.drawing.drawing import Drawing
from tinygrad.sharding import visualize

PICTURES: dict[str, Callable[[], Drawing]] = {}


def picture(function: Callable[[], Drawing]) -> Callable[[], Drawing]:
  PICTURES[function.__name__] = function
  return function


def grid() -> Mesh:
  return Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))


def row(n: int = 4) -> Mesh:
  return Mesh([f"CPU:{i}" for i in range(n)], names=("d",))


def memory(*shape: int) -> Tensor:
  """Memory of that shape; nothing is computed for a picture."""
  return Tensor.empty(*shape)


@picture
def placement_both() -> Drawing:
  return visualize(memory(6, 8).shard(grid(), P("data", "model")))


@picture
def placement_data() -> Drawing:
  return visualize(memory(6, 8).shard(grid(), P("data")))


@picture
def placement_uneven() -> Drawing:
  return visualize(memory(6, 8).shard(grid(), P(("data", "model"))))


@picture
def partial_sum() -> Drawing:
  x, w, v = memory(2, 4).shard(row(2), P(None, "d")), memory(4, 3).shard(row(2), P("d")), memory(4, 3)
  x, w, v = (t.realize() for t in (x, w, v.shard(row(2), P("d"))))
  return visualize(x @ w + x @ v, graph=True)


@picture
def partial_relu() -> Drawing:
  x, w = memory(2, 4).shard(row(2), P(None, "d")).realize(), memory(4, 3).shard(row(2), P("d")).realize()
  return visualize((x @ w).relu(), graph=True)


@picture
def moves_all_to_all() -> Drawing:
  rows = memory(16, 16).shard(row(), P("d")).realize()
  return visualize(rows.shard(row(), P(None, "d")) * 2, graph=True)


@picture
def moves_chosen() -> Drawing:
  columns, small = memory(16, 16).shard(row(), P(None, "d")).realize(), memory(16, 1).shard(row(), P("d")).realize()
  return visualize(columns * small, graph=True)


@picture
def solver_hints() -> Drawing:
  x, up, down = (memory(*shape).realize() for shape in ((8, 16), (16, 32), (32, 16)))
  h = (x.constrain(P("data", OPEN)) @ up).relu().constrain(P(OPEN, "model"))
  y = h @ down
  propagate(y, mesh=grid())
  return visualize(y, graph=True)


@picture
def transforms_shard_map() -> Drawing:
  mesh = Mesh(("CPU:0", "CPU:1"), names=("dp",))
  w, xs = memory(4, 2).shard(mesh).realize(), memory(6, 4).shard(mesh, P("dp")).realize()
  total = shard_map(lambda w, part: psum(((part @ w).tanh() ** 2).sum(), "dp"), mesh, (P(), P("dp")), P())
  return visualize(total(w, xs), graph=True)


def main() -> None:
  folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
  folder.mkdir(exist_ok=True)
  for name, draw in PICTURES.items():
    draw().save(folder / f"{name}.svg")


if __name__ == "__main__":
  main()
