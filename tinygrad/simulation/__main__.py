"""What a training step takes on a cluster that is not here: `python -m tinygrad.simulation --help`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tinygrad.device import DeviceError, Mesh, ShardError
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context, difflib, prod, size_to_str, while_read
from tinygrad.simulation.machine import PRESETS, ClusterError, cluster_of
from tinygrad.simulation.models import AXES, MODELS, Size, operations
from tinygrad.simulation.pictures import duration
from tinygrad.simulation.report import Simulation, check_ending
from tinygrad.simulation.session import simulate, standing_for

HELP = """Simulates one training step on a cluster: the schedule that each device would run becomes a timeline of
kernels and communications. Nothing is compiled and nothing computed, so this takes seconds on any machine.

  python -m tinygrad.simulation --cluster h100x8:4 --model transformer --layers 8 --mesh dp=4,tp=8
  python -m tinygrad.simulation --cluster h100x8:512 --layers 80 --mesh dp=512,tp=8 --out step.html
  python -m tinygrad.simulation --cluster my.toml --mesh fsdp=16 --out step.json     # for ui.perfetto.dev

A cluster is KINDxPER_HOST:HOSTS, or a TOML file (docs/simulation.md). Kinds: {kinds}.

A mesh is AXIS=DEVICES, the last axis with the nearest devices. Axes: dp cuts the batch; fsdp cuts the batch and the
weights, which are gathered where they are used; tp cuts matrices and heads, two all-reduces a layer and direction. So
tp belongs inside a host, and dp or fsdp across.

What it prints: the predicted seconds; for each class of devices (those that do the same) the share of kernels and of
communication, and how much of that kernels hide; bytes by link; memory against what the chip has; then the lines of
the model that take most. A script of your own is simulated as it stands: SIM=h100x8:4 python train.py
"""


def parsed(args: list[str] | None) -> argparse.Namespace:
  kinds = ", ".join(f"{name} ({p.chip.name})" for name, p in PRESETS.items())
  parser = argparse.ArgumentParser(
    prog="python -m tinygrad.simulation",
    description=HELP.format(kinds=kinds),
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--cluster", default=os.environ.get("SIM") or "h100x8:1", help="such as h100x8:64, or a .toml file"
  )
  parser.add_argument("--model", default="transformer", choices=list(MODELS), help="what is trained (transformer)")
  parser.add_argument("--mesh", default="", help="such as dp=512,tp=8; without it dp over all devices")
  parser.add_argument("--layers", type=int, default=8, help="of the model (8)")
  parser.add_argument("--width", type=int, default=4096, help="numbers of a token (4096)")
  parser.add_argument("--heads", type=int, default=32, help="of attention (32)")
  parser.add_argument("--vocabulary", type=int, default=32768, help="tokens that there are (32768)")
  parser.add_argument("--batch", type=int, default=0, help="sequences in all (one for each part of dp and fsdp)")
  parser.add_argument("--context", type=int, default=2048, help="tokens of a sequence (2048)")
  parser.add_argument("--dtype", default="bfloat16", help="of weights and values (bfloat16)")
  parser.add_argument("--out", action="append", default=[], metavar="FILE", help=".html, .svg or .json (Perfetto)")
  return parser.parse_args(args)


def mesh_from(text: str, devices: int) -> Mesh:
  """The mesh of simulated devices that a text says. Raises: ClusterError."""
  axes = [part.partition("=") for part in (text or f"dp={devices}").split(",")]
  for name, _, n in axes:
    if not n.isdigit() or int(n) < 1:
      raise ClusterError(f"--mesh {text}: {name!r} has no number of devices\n  fix: --mesh dp={devices}")
    if name not in AXES:
      near = (difflib.get_close_matches(name, AXES, 1) or AXES)[0]
      raise ClusterError(f"--mesh {text}: there is no axis {name!r}\n  fix: {near}={n}  # one of {', '.join(AXES)}")
  shape = [int(n) for _, _, n in axes]
  return Mesh([f"NULL:{i}" for i in range(prod(shape))], shape, [name for name, _, _ in axes])


def size_of_model(args: argparse.Namespace, mesh: Mesh) -> Size:
  """Raises: ClusterError for a type that is none, and heads that do not divide the width."""
  if (dtype := dtypes.by_name.get(args.dtype)) is None or not dtypes.is_float(dtype):
    raise ClusterError(f"--dtype {args.dtype}: no type of floats\n  fix: --dtype bfloat16")
  if args.width % args.heads:
    raise ClusterError(
      f"--heads {args.heads} do not divide --width {args.width}\n  fix: --heads {args.width // 128 or 1}"
    )
  parts = prod(n for name, n in zip(mesh.names, mesh.shape) if name != "tp")
  batch = args.batch or parts
  return Size(args.layers, args.width, args.heads, args.vocabulary, batch, args.context, dtype)


def print_simulation(found: Simulation, options: argparse.Namespace, size: Size, devices: int) -> None:
  print(found)
  if options.model == "transformer":
    rate = operations(size) / found.seconds / devices
    tokens = size.batch * size.context / found.seconds
    print(f"{tokens:,.0f} tokens a second, {rate * 1e-12:.0f} TFLOP/s of each device")


def simulate_model(args: list[str] | None = None) -> int:
  options = parsed(args)
  try:
    cluster = cluster_of(options.cluster)
    mesh = mesh_from(options.mesh, len(cluster))
    size = size_of_model(options, mesh)
    for file in options.out:
      check_ending(file)
    start = time.perf_counter()
    with standing_for(cluster), Context(DEV="NULL"):  # nothing is computed, optimizers' counters neither
      found = simulate(MODELS[options.model](mesh, size), cluster=cluster)
  except (ClusterError, ShardError, DeviceError, ValueError) as problem:
    print(problem, file=sys.stderr)
    return 2
  with while_read():
    print_simulation(found, options, size, len(mesh))
  try:
    for file in options.out:
      found.save(file)
  except OSError as problem:
    print(f"--out: {problem}\n  fix: the name of a file in a folder that can be written", file=sys.stderr)
    return 2
  took = f"planned in {duration(time.perf_counter() - start)} for {len(mesh):,} devices"
  written = [f"{file} ({size_to_str(os.path.getsize(file))})" for file in options.out]
  with while_read():
    print("; ".join([took, *(["written: " + ", ".join(written)] if written else [])]))
  return 0


if __name__ == "__main__":
  sys.exit(simulate_model())
