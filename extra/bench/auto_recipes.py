"""What `auto` chooses against what people write by hand (extra/recipes.py): a step of training six models, placed by
data parallel (DP), tensor parallel (TP), fully sharded (FSDP) and sequence parallel (SP) recipes, by each two of them
on a mesh of two axes, and by `auto`. Nothing runs: the devices are simulated.

    python -m extra.bench.auto_recipes [--devices 4] [--scale 32] [--models MLP,llama]

Each row is one placed program, priced by what every device runs and receives (extra/roofline.py), not by the model that
`auto` minimizes: microseconds, of these in kernels and in moves, megabytes received and held. `auto` is asked on the
mesh of one axis, against the recipes, and on that of two, against pairs; and once more with less memory than DP takes
and more than FSDP does, halfway, against what fits it (`--each`: and in the memory of each recipe to which no faster
one fits). A row of `auto` that a recipe beats by more than 0.1 %, or where nothing was found that fits, ends with the
names of such recipes, and the exit status is 1; else with the gap that `auto` certifies. A recipe that does not suit a
model is listed with the reason.
`--brief` prints a line for each model, of microseconds alone, and of the pairs the best one.

`--scale` multiplies the width and the context; what travels grows with its square where what is computed grows with its
cube. `--link` is what a device receives, in GB/s: with slow links other recipes are the best ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extra.recipes import MODELS, PAIRS, RECIPES, reason, training
from extra.roofline import Price, memory_of, roofline
from tinygrad import Mesh, ShardError, Tensor, auto
from tinygrad.helpers import tqdm
from tinygrad.solver.auto.machine import H100, Machine

EQUAL = 1e-3  # of the time


@dataclass(frozen=True, slots=True)
class Row:
  """A recipe, or `auto`, on a model; `price`: None where it does not suit, `note` says why. `memory`: None if it was
  not planned; `limit` on it. `faster`: the recipes that beat `auto`."""

  model: str
  recipe: str
  price: Price | None
  memory: float | None = None
  limit: float = 0.0
  note: str = ""
  faster: tuple[str, ...] = ()

  @property
  def us(self) -> str:
    return "" if self.price is None else f"{1e6 * self.price.seconds:.1f}"

  def __str__(self) -> str:
    if (p := self.price) is None:
      return f"| {self.model} | {self.recipe} | | | | | | {self.note} |"
    times = " | ".join(f"{1e6 * s:.1f}" for s in (p.seconds, p.kernels, p.moves))
    held = "" if self.memory is None else f"{self.memory / 1e6:.1f}"
    return f"| {self.model} | {self.recipe} | {times} | {p.wire / 1e6:.2f} | {held} | {self.note} |"


@dataclass(frozen=True, slots=True)
class Contest:
  """A model on a machine; `plan`: whether to plan memory, and to ask `auto` for placements in less."""

  model: str
  scale: int
  machine: Machine
  plan: bool = True
  each: bool = False  # in the memory of each recipe

  def row(self, name: str, outputs: Sequence[Tensor]) -> Row:
    return Row(self.model, name, roofline(outputs, self.machine), memory_of(outputs) if self.plan else None)

  def by_hand(self, mesh: Mesh, recipe: str) -> Row:
    if (why := reason(self.model, recipe)) is not None:
      return Row(self.model, recipe, None, note=why)
    return self.row(recipe, training(self.model, self.scale, recipe, mesh))

  def chosen(self, name: str, mesh: Mesh, others: Sequence[Row], memory: float | None = None) -> Row:
    """What `auto` builds, with the names of what is faster."""
    outputs = training(self.model, self.scale, None, mesh)
    try:
      said = auto(*outputs, mesh=mesh, machine=self.machine, memory=memory)
    except ShardError:
      fits = tuple([r.recipe for r in others if r.price is not None])
      return Row(self.model, name, None, limit=memory or 0.0, note=f"refused, and {', '.join(fits)} fits", faster=fits)
    row = self.row(name, outputs)
    assert row.price is not None
    least = row.price.seconds / (1 + EQUAL)
    faster = tuple([r.recipe for r in others if r.price is not None and r.price.seconds < least])
    note = f"slower than {', '.join(faster)}" if faster else f"gap {said.gap:.1%}"
    return dataclasses.replace(row, limit=memory or 0.0, note=note, faster=faster)

  def rows(self, devices: int) -> Iterator[Row]:
    for mesh, recipes in meshes(devices).items():
      hand = [self.by_hand(mesh, recipe) for recipe in recipes]
      yield from hand
      yield self.chosen(f"auto, {len(mesh.names)} mesh axes", mesh, hand)
      held = {r.recipe: r.memory for r in hand if r.memory is not None}
      if "FSDP" in held and held["FSDP"] < held["DP"]:
        limit = (held["FSDP"] + held["DP"]) / 2
        fitting = [r for r in hand if held.get(r.recipe, limit) < limit]
        yield self.chosen(f"auto in {limit / 1e6:.1f} MB", mesh, fitting, limit)
      for r in hand if self.each else ():
        fitting = [other for other in hand if other.memory and r.memory and other.memory <= r.memory]
        if r.price and all(r.price.seconds <= other.price.seconds for other in fitting if other.price):
          yield self.chosen(f"auto as {r.recipe}", mesh, fitting, r.memory)


def meshes(devices: int) -> dict[Mesh, Sequence[str]]:
  """The mesh of one axis with the recipes, that of two with the pairs."""
  names = [f"NULL:{i}" for i in range(devices)]
  return {Mesh(names, names=("x",)): list(RECIPES), Mesh(names, (2, devices // 2), ("x", "y")): PAIRS}


HEAD = "| model | placed by | us | kernels | moves | MB received | MB held | |"
BRIEF = f"| model | {' | '.join(RECIPES)} | auto | best pair | auto | best in less memory | auto |"


def brief(rows: Sequence[Row]) -> str:
  """The line of a model."""
  us = {r.recipe: r.us for r in rows}
  one, two = (us[f"auto, {n} mesh axes"] for n in (1, 2))
  pair = min((r for r in rows if r.recipe in PAIRS and r.price), key=lambda r: r.price.seconds if r.price else 0)
  limited = next((r for r in rows if r.recipe.startswith("auto in ")), None)
  fitting = [r for r in rows if limited and r.recipe in RECIPES and r.memory and r.memory < limited.limit]
  best = min(fitting, key=lambda r: r.price.seconds if r.price else 0, default=None)
  last = f"{best.us} ({best.recipe}) | {limited.us}" if best and limited else "|"
  return (
    f"| {rows[0].model} | {' | '.join(us[r] for r in RECIPES)} | {one} | {pair.us} ({pair.recipe}) | {two} | {last} |"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--devices", type=int, default=4, help="simulated devices, an even number (4)")
  parser.add_argument("--scale", type=int, default=32, help="size of the models: width 64 times this (32)")
  parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)} (all)")
  parser.add_argument("--link", type=float, default=450.0, help="GB/s between devices (450)")
  parser.add_argument("--each", action="store_true", help="ask `auto` for the memory of each recipe, too")
  parser.add_argument("--brief", action="store_true", help="a line for each model")
  args = parser.parse_args()
  if wrong := [m for m in args.models.split(",") if m not in MODELS]:
    parser.error(f"no model: {', '.join(wrong)}; there are {', '.join(MODELS)}")
  if args.devices < 2 or args.devices % 2:
    parser.error(f"--devices {args.devices}: an even number, for pairs of recipes are on a mesh of two axes")
  machine = dataclasses.replace(H100, link=args.link * 1e9)
  head = BRIEF if args.brief else HEAD
  print(head)
  print("| --- " * (head.count("|") - 1) + "|")
  slower = 0
  for model in tqdm(args.models.split(","), desc="models", unit="model"):
    rows = []
    for row in Contest(model, args.scale, machine, each=args.each).rows(args.devices):
      rows.append(row)
      if not args.brief:
        print(row, flush=True)
    if args.brief:
      print(brief(rows), flush=True)
    slower += sum(bool(row.faster) for row in rows)
  sys.exit(slower > 0)


if __name__ == "__main__":
  main()
