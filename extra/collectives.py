"""Bytes on the wire of the programs of collectives.json, ours against XLA's and against what is enough.

    python -m extra.collectives [FILE.json]

Each program is a function over Tensor, Mesh and P in float32; `explain` counts what realizing its results would move,
per device. Nothing is computed; `contiguous` asks for a copy where a realize would leave a view. XLA's figures were
measured with JAX (see the file's "origin"). The exit status is 1 if a program moves more than XLA's, or if fewer than
10 of those where XLA moves more than enough get by with enough; or if a layer of a transformer that is placed by three
hints moves more than the same layer placed by hand (hint_recipes.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from extra.hint_recipes import CASES, trained
from tinygrad import Mesh, P, Sharding, Tensor, dtypes
from tinygrad.debug.report import Report
from tinygrad.sharding import explain

DATA = Path(__file__).parents[1] / "test" / "data" / "collectives.json"
LINE = Mesh([f"NULL:{i}" for i in range(8)], (8,), ("x",))
GRID = Mesh([f"NULL:{i}" for i in range(8)], (2, 4), ("dp", "tp"))
ENOUGH = 10  # of the programs where XLA moves more than enough, so many must get by with enough


def leaf(*shape: int, cut: tuple[Any, ...] = (), mesh: Mesh = LINE) -> Tensor:
  return Tensor.empty(*shape, device=Sharding(mesh, P(*cut)))


def mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
  return (x @ w1).relu() @ w2


def sgd(loss: Tensor, *weights: Tensor) -> list[Tensor]:
  """The weights after a step."""
  return [w - 0.1 * g for w, g in zip(weights, loss.gradient(*weights))]


def mlp_forward() -> list[Tensor]:
  return [mlp(leaf(64, 256), leaf(256, 1024, cut=(None, "x")), leaf(1024, 256, cut=("x",)))]


def mlp_gradients() -> list[Tensor]:
  w1, w2 = leaf(256, 1024, cut=(None, "x")), leaf(1024, 256, cut=("x",))
  y = mlp(leaf(64, 256), w1, w2)
  return [y, *y.square().mean().gradient(w1, w2)]


def data_parallel() -> list[Tensor]:
  w1, w2 = leaf(256, 1024), leaf(1024, 256)
  loss = mlp(leaf(512, 256, cut=("x",)), w1, w2).square().mean()
  return [loss, *loss.gradient(w1, w2)]


def attention() -> list[Tensor]:
  x = leaf(4, 64, 256)
  q, k, v = (
    (x @ leaf(256, 8, 32, cut=(None, "x")).reshape(256, 256)).reshape(4, 64, 8, 32).transpose(1, 2) for _ in range(3)
  )
  heads = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(4, 64, 256)
  return [heads @ leaf(8, 32, 256, cut=("x",)).reshape(256, 256)]


def product() -> Tensor:
  return leaf(128, 1024, cut=(None, "x")) @ leaf(1024, 128, cut=("x",))


def fsdp(batch: int) -> list[Tensor]:
  w1, w2 = leaf(256, 1024, cut=("x",)), leaf(1024, 256, cut=("x",))
  return sgd(mlp(leaf(batch, 256, cut=("x",)), w1, w2).square().mean(), w1, w2)


def block_on_a_grid() -> list[Tensor]:
  x = leaf(8, 32, 256, cut=("dp",), mesh=GRID)
  w1, w2 = leaf(256, 1024, cut=(None, "tp"), mesh=GRID), leaf(1024, 256, cut=("tp",), mesh=GRID)
  scale, shift = leaf(256, mesh=GRID), leaf(256, mesh=GRID)
  loss = (x + mlp(x.layernorm() * scale + shift, w1, w2)).square().mean()
  return [loss, *sgd(loss, w1, w2, scale, shift)]


def ids() -> Tensor:
  return Tensor.empty(64, dtype=dtypes.int32, device=Sharding(LINE))


def lookup() -> list[Tensor]:
  return [leaf(4096, 256, cut=("x",))[ids()].shard(LINE)]


def lookup_gradient() -> list[Tensor]:
  table = leaf(4096, 256, cut=("x",))
  return table[ids()].square().mean().gradient(table)


def joined(axis: int) -> list[Tensor]:
  return [Tensor.cat(leaf(1024, 64, cut=("x",)), leaf(1024, 64, cut=("x",)), dim=axis).shard(LINE, P("x"))]


def layernorm() -> list[Tensor]:
  scale, shift = leaf(1024, cut=("x",)), leaf(1024, cut=("x",))
  return [leaf(64, 1024, cut=(None, "x")).layernorm() * scale + shift]


def convolution() -> list[Tensor]:
  x, w = leaf(8, 32, 32, 16, cut=("x",)), leaf(3, 3, 16, 32)
  return [x.permute(0, 3, 1, 2).conv2d(w.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1)]


PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {
  "a": mlp_forward,
  "a_grad": mlp_gradients,
  "b": data_parallel,
  "c": attention,
  "d": lambda: [product().sum()],
  "d2": lambda: [product() + product()],
  "d3": lambda: [product().shard(LINE, P("x"))],
  "e": lambda: fsdp(64),
  "e2": lambda: fsdp(4096),
  "f": block_on_a_grid,
  "g1": lambda: [leaf(1024, 64, cut=("x",)).transpose(0, 1).contiguous()],
  "g2": lambda: [leaf(32, 512, cut=(None, "x")).reshape(32, 16, 32).contiguous()],
  "g3": lambda: [leaf(16, 64, 32, cut=("x",)).reshape(1024, 32).contiguous()],
  "g4": lambda: [leaf(16, 64, 32, cut=(None, "x")).reshape(1024, 32).shard(LINE, P("x"))],
  "g5": lambda: [leaf(1024, cut=("x",)).reshape(4, 256).contiguous()],
  "g8": lambda: [(leaf(1024, cut=("x",)).reshape(4, 256) * 2).reshape(1024).shard(LINE, P("x"))],
  "g7": lambda: [leaf(1024, 64, cut=("x",)).shard(LINE, P(None, "x"))],
  "h": lambda: joined(0),
  "h2": lambda: joined(1),
  "i": lambda: [leaf(1024, 64, cut=("x",))[:512].contiguous().shard(LINE, P("x"))],
  "i2": lambda: [leaf(1024, 64, cut=("x",))[:512].contiguous()],
  "j": lambda: [leaf(64, 4096, cut=(None, "x")).softmax().shard(LINE, P(None, "x"))],
  "k": lookup,
  "k3": lookup_gradient,
  "l": layernorm,
  "m1": lambda: [leaf(64, 4096, cut=(None, "x")).max(1).relu()],
  "m2": lambda: [product().relu()],
  "m4": lambda: [leaf(64, 4096, cut=(None, "x")).cumsum(1).shard(LINE, P(None, "x"))],
  "m5": convolution,
}


def count(name: str) -> Report:
  """What realizing the results of a program moves."""
  return explain(*PROGRAMS[name]())


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.collectives", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("file", type=Path, nargs="?", default=DATA, help="default: test/data/collectives.json")
  parser.add_argument("--moves", action="store_true", help="list every move of each program")
  args = parser.parse_args(argv)
  cases = json.loads(args.file.read_text())["cases"]
  print(f"{'case':7s} {'ours':>9s} {'XLA':>9s} {'enough':>9s}  program")
  worse, enough, fewer = 0, 0, 0
  for case in cases:
    if case["case"] not in PROGRAMS:
      raise SystemExit(f"no program for case {case['case']!r}\n  fix: add it to PROGRAMS in {__file__}")
    moved = count(case["case"])
    xla, least = case["xla_wire"], case["enough_wire"]
    worse += moved.wire > xla
    if least < xla:
      fewer += 1
      enough += moved.wire <= least
    verdict = "  MORE THAN XLA" if moved.wire > xla else "  more than enough" if moved.wire > least else ""
    print(f"{case['case']:7s} {moved.wire:9.0f} {xla:9.0f} {least:9.0f}  {case['desc'][:70]}{verdict}")
    if args.moves and moved.rows:
      print("".join(f"    {line}\n" for line in str(moved).splitlines()), end="")
  print(
    f"{len(cases) - worse} of {len(cases)} move at most XLA's bytes; "
    f"{enough} of {fewer} where XLA moves more than enough get by with enough"
  )
  return 1 if worse or enough < min(ENOUGH, fewer) or more_by_hints() else 0


def more_by_hints() -> int:
  """Prints what a transformer's layer moves by three hints and by hand; how often by hints more."""
  print(f"\n{'a layer, forward and backward':30s} {'hints':>5s} {'by hints':>9s} {'by hand':>9s}")
  more = 0
  for name, (mesh, placed, moves, hints) in CASES.items():
    (by_hints, nbytes), (by_hand, least) = trained(mesh, hints), trained(mesh, moves, placed)
    same = "" if by_hints == by_hand else "  OTHER PLACEMENTS OF WEIGHTS"
    more += nbytes > least or bool(same)
    print(f"{name + ' on ' + 'x'.join(map(str, mesh.shape)):30s} {len(hints):5d} {nbytes:9.0f} {least:9.0f}{same}")
  return more


if __name__ == "__main__":
  sys.exit(main())
