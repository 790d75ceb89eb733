"""What sharding costs in Python, in microseconds a UOp: the graph of a training step of a transformer, placed and
localized.

    python -m extra.bench.place_cost [--layers 32] [--cuts tp|dp|both|none] [--rounds 5] [--profile place|localize]

The graph is forward, backward and Adam of `layers` pre-norm layers (attention, feed-forward, tensor or data parallel)
over simulated devices, as `Tensor.realize` hands it to the stages. It is timed in four parts, each per UOp of that
graph:

* hooks: the graph of the loss, its gradient and the optimizer's step through the public API, placed as it is made.
* renumber: what `realize` does to find a plan in its cache: the graph again, its buffers numbered. All of its nodes are
  new; their shapes and placements are those that the hooks found.
* place: `placed(sink)`.
* localize: the rest of `localize(sink)`, i.e. all of it but `place`.

Figures are process CPU time, the least of `rounds` in one process. Each round makes a model and a graph of its own, and
nothing of the round before is left alive, so that no node brings a shape or a placement along; what stays are the
tables of decisions by shapes and placements, as in any process that trains. `first` is the first round, which fills
them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import pstats
import time
import weakref
from collections.abc import Callable
from typing import Any

from tinygrad import Mesh, P, Sharding, Tensor, dtypes, nn
from tinygrad.debug.report import as_realized
from tinygrad.engine.canonical import canonical
from tinygrad.sharding.localize import PASSES, run_passes
from tinygrad.sharding.place import placed
from tinygrad.uop import UOp

BATCH, CONTEXT, DIM, HEADS, VOCAB = 8, 64, 64, 8, 256
CUTS = ("tp", "dp", "both", "none")


class Transformer:
  """`weights` are Megatron's: q, k, v and up cut by columns, out and down by rows over "tp", where the mesh has one."""

  def __init__(self, layers: int, mesh: Mesh | str, unit: int = 1) -> None:
    self.layers, self.mesh, self.batch = layers, mesh, BATCH * unit
    self.heads, self.dim = HEADS * unit, DIM * unit
    self.weights = {"embed": self.leaf(VOCAB, self.dim), "head": self.leaf(self.dim, VOCAB)}
    for i in range(layers):
      for name in ("q", "k", "v"):
        self.weights[f"{name}{i}"] = self.leaf(self.dim, self.dim, cut=(None, "tp"))
      self.weights[f"out{i}"] = self.leaf(self.dim, self.dim, cut=("tp",))
      self.weights[f"up{i}"] = self.leaf(self.dim, 4 * self.dim, cut=(None, "tp"))
      self.weights[f"down{i}"] = self.leaf(4 * self.dim, self.dim, cut=("tp",))
      for name in ("norm", "norm_"):
        self.weights[f"{name}{i}"] = self.leaf(self.dim)

  def leaf(self, *shape: int, cut: tuple[str | None, ...] = (), dtype: Any = dtypes.float32) -> Tensor:
    if isinstance(self.mesh, str):
      return Tensor.empty(*shape, dtype=dtype, device=self.mesh)
    names = (name if name in self.mesh.names else None for name in cut)
    return Tensor.empty(*shape, dtype=dtype, device=Sharding(self.mesh, P(*names)))

  def norm(self, x: Tensor, name: str) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weights[name]

  def split(self, x: Tensor) -> Tensor:
    return x.reshape(self.batch, CONTEXT, self.heads, self.dim // self.heads).transpose(1, 2)

  def hidden(self, x: Tensor) -> Tensor:
    """What is between the two matmuls of a layer."""
    return x

  def stream(self, x: Tensor) -> Tensor:
    """What each half of a layer adds to."""
    return x

  def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
    w = self.weights
    x = w["embed"][tokens]
    seen = Tensor.arange(CONTEXT) <= Tensor.arange(CONTEXT).unsqueeze(-1)
    for i in range(self.layers):
      y = self.norm(x, f"norm{i}")
      q, k, v = (self.split(y @ w[f"{name}{i}"]) for name in ("q", "k", "v"))
      scores = seen.where(q @ k.transpose(-1, -2) * (self.dim // self.heads) ** -0.5, -math.inf)
      mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(self.batch, CONTEXT, self.dim)
      x = self.stream(x + mixed @ w[f"out{i}"])
      x = self.stream(x + self.hidden((self.norm(x, f"norm_{i}") @ w[f"up{i}"]).relu()) @ w[f"down{i}"])
    return (x @ w["head"]).sparse_categorical_crossentropy(targets)


def mesh_of(cuts: str, devices: int) -> Mesh | str:
  names = tuple(f"NULL:{i}" for i in range(devices))
  if cuts == "none":
    return names[0]
  return Mesh(names, (2, devices // 2), ("dp", "tp")) if cuts == "both" else Mesh(names, (devices,), (cuts,))


def training(layers: int, mesh: Mesh | str, unit: int = 1) -> Callable[[], UOp]:
  """A function that builds the graph of one training step, not its first: the effects on the loss, all weights and the
  optimizer's state. `unit` scales the batch and the number of heads, for meshes of more devices than those have
  parts."""
  return training_of(Transformer(layers, mesh, unit))


def training_of(model: Transformer) -> Callable[[], UOp]:
  """The same of a model."""
  optimizer = nn.optim.Adam(list(model.weights.values()))
  tokens, targets = (model.leaf(model.batch, CONTEXT, cut=("dp",), dtype=dtypes.int32) for _ in range(2))
  optimizer.lr.realize(optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v)

  def step() -> UOp:
    with Tensor.train():
      loss = model.loss(tokens, targets)
      loss.backward()
      changed = optimizer.schedule_step()
    return as_realized([loss.uop, *(t.uop for t in changed)])

  return step


class Clock:
  """Process CPU seconds of each part; one of them profiled."""

  def __init__(self, profiled: str | None) -> None:
    self.profiled, self.profile, self.seconds = profiled, cProfile.Profile(), dict[str, float]()

  def __call__(self, part: str, f: Callable[..., Any], *args: Any) -> Any:
    gc.collect()
    start = time.process_time()
    got = self.profile.runcall(f, *args) if part == self.profiled else f(*args)
    self.seconds[part] = time.process_time() - start
    return got


def localized(sink: UOp) -> UOp:
  """What `localize` does behind the placement."""
  return run_passes({name: lower for name, lower in PASSES.items() if lower is not placed}, sink)


def measure(
  layers: int, mesh: Mesh | str, alive: weakref.WeakSet[UOp], profiled: str | None = None
) -> tuple[dict[str, float], dict[str, int], Clock]:
  """Seconds of each part, and the UOps of the graph, placed and localized. `alive` holds on to no node: those of the
  graph measured before it, which must be gone."""
  clock = Clock(profiled)
  sink = clock("hooks", training(layers, mesh))
  fresh, _, _ = clock("renumber", canonical, sink)
  order = fresh.toposort()
  uops = {"graph": len(order)}
  if len(alive) > len(order) / 10:
    raise RuntimeError(
      f"{len(alive)} nodes of the graph before are alive: these would bring what was computed for them"
    )
  alive.clear()
  alive.update(order)
  del order
  at_place = clock("place", placed, fresh)
  local = clock("localize", localized, at_place)
  uops |= {"placed": len(at_place.toposort()), "local": len(local.toposort())}
  return clock.seconds, uops, clock


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", type=int, default=32, help="transformer layers (32)")
  parser.add_argument("--devices", type=int, default=2, help="simulated devices (2)")
  parser.add_argument("--cuts", choices=CUTS, default="tp", help="over which axes the program is parallel (tp)")
  parser.add_argument("--rounds", type=int, default=5, help="graphs that are measured (5)")
  parser.add_argument("--profile", choices=("hooks", "place", "localize"), help="show where this part spends its time")
  args = parser.parse_args()
  mesh = mesh_of(args.cuts, args.devices)
  alive: weakref.WeakSet[UOp] = weakref.WeakSet()
  rounds = [measure(args.layers, mesh, alive)[:2] for _ in range(args.rounds)]
  uops = rounds[0][1]
  print(
    f"{args.cuts} over {args.devices} devices, {args.layers} layers: " + ", ".join(f"{n} {k}" for k, n in uops.items())
  )
  for part in ("hooks", "renumber", "place", "localize"):
    first, least = rounds[0][0][part], min(seconds[part] for seconds, _ in rounds)
    print(f"  {part:9s} {least / uops['graph'] * 1e6:6.2f} us a UOp   (first {first / uops['graph'] * 1e6:.2f})")
  both = min(s["place"] + s["localize"] for s, _ in rounds)
  print(f"  {'together':9s} {both / uops['graph'] * 1e6:6.2f} us a UOp for place and localize")
  if args.profile:
    pstats.Stats(measure(args.layers, mesh, alive, args.profile)[2].profile).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
  main()
