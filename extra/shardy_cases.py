"""Runs cases of sharding propagation in the format of test/data/shardy_propagation.json, which explains itself.

    python -m extra.shardy_cases FILE.json [--only NAME ...] [--without FEATURE ...]

Prints each case that fails with what was expected and what came out, then `N passed, N failed`; the exit status is 1 if
any failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinygrad.device import Mesh
from tinygrad.helpers import prod
from tinygrad.solver.axes import Axes, within_axes
from tinygrad.solver.problem import Direction, Edge, Hint, Problem, Rule
from tinygrad.solver.solve import Policy, Solution, solve

FEATURES = (
  "aggressive", "levels", "rounds", "groups", "barriers", "conservative", "replicated", "unreduced", "closed",
  "sub-axes",
)  # fmt: skip


def mesh_of(case: dict[str, Any]) -> Mesh:
  names, sizes = zip(*case["mesh"])
  return Mesh([f"NULL:{i}" for i in range(prod(sizes))], sizes, names)


def axes_of(mesh: Mesh, entries: Sequence[str]) -> Axes:
  return tuple(mesh.sub_axis(e) for e in entries if e != "?")


def hint_of(mesh: Mesh, said: dict[str, Any] | None, without: Sequence[str] = ()) -> Hint | None:
  """A sharding of the file as a hint."""
  if said is None:
    return None
  dims = said["dims"]
  opened = ["?" in d or "closed" in without for d in dims]
  kept, gone = (axes_of(mesh, said.get(k, ())) if k not in without else () for k in ("replicated", "unreduced"))
  return Hint.of(mesh, [axes_of(mesh, d) for d in dims], opened, said.get("prio", ()), kept, gone)


def rule_of(op: dict[str, Any], without: Sequence[str]) -> Rule | None:
  if (rule := op.get("rule")) is None:
    return None
  number = {name: i for i, name in enumerate(rule["factors"])}
  tensors = tuple(tuple(tuple(number[f] for f in dim) for dim in dims) for dims in (*rule["ins"], *rule["outs"]))
  named = {k: frozenset(number[f] for f in rule.get(k, ())) for k in ("reduction", "need_replication", "permutation")}
  said = Direction[op["direction"]] if "direction" in op and "barriers" not in without else Direction.BOTH
  return Rule(
    tensors,
    tuple(rule["factors"].values()),
    len(rule["ins"]),
    frozenset(number[f] for f in rule.get("blocked", ())),
    frozenset().union(*named.values()),
    op.get("elementwise", False),
    said,
  )


def solved(case: dict[str, Any], without: Sequence[str] = ()) -> tuple[Solution, dict[str, int], Mesh]:
  """(what came out, the number of each value by its name, the mesh) of a case; some features left out."""
  mesh = mesh_of(case)
  problem, number = Problem(mesh), dict[str, int]()
  for a in case["args"]:
    number[a["name"]] = problem.value(tuple(a["shape"]), hint_of(mesh, a["sharding"], without))
  for op in case["ops"]:
    for i, (name, shape) in enumerate(zip(op["out"], op["out_shapes"])):
      said = op["out_sharding"][i] if "out_sharding" in op else None
      number[name] = problem.value(tuple(shape), hint_of(mesh, said, without))
    if (rule := rule_of(op, without)) is not None:
      problem.edges.append(Edge(rule, tuple(number[name] for name in (*op["in"], *op["out"]))))
  for i, r in enumerate(case["results"]):
    number[f"result{i}"] = problem.value(problem.shapes[number[r["value"]]], hint_of(mesh, r["sharding"], without))
    problem.results.append((number[r["value"]], number[f"result{i}"]))
  if "groups" not in without:
    problem.groups = [tuple(number[name] for name in group) for group in case.get("groups", ())]
  kind = case["pass"]
  settings = Policy(
    "basic" if kind == "basic" or "aggressive" in without else "aggressive",
    rounds=kind == "user_priority" and "rounds" not in without,
    levels=kind in ("op_priority", "user_priority") and "levels" not in without,
    atomic="sub-axes" in without or (case.get("conservative", False) and "conservative" not in without),
  )
  return solve(problem, settings), number, mesh


def written(mesh: Mesh, hint: Hint | None) -> str:
  """A hint as text, in normal form."""
  if hint is None:
    return "no annotation"

  def name(axes: Axes) -> str:
    return ",".join(n for d in axes for n in mesh.axes_of((d,)))

  dims = [
    "{" + ",".join(x for x in (name(within_axes(axes, mesh)), "?" * is_open) if x) + "}"
    for axes, is_open in zip(hint.dims, hint.opened)
  ]
  more = [f" {k}={{{name(v)}}}" for k in ("replicated", "unreduced") if (v := getattr(hint, k))]
  return f"[{', '.join(dims)}]" + "".join(more)


def difference(case: dict[str, Any], without: Sequence[str] = ()) -> list[str]:
  """What is not as expected, a line each."""
  solution, number, mesh = solved(case, without)
  lines = []
  for name, said in case["expect"].items():
    want, got = written(mesh, hint_of(mesh, said)), written(mesh, solution.hints[number[name]])
    if got != want:
      lines.append(f"  {name}: expected {want}, got {got}")
  return lines


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("file", type=Path, help="cases, as in test/data/shardy_propagation.json")
  parser.add_argument("--only", nargs="*", metavar="NAME", help="run these cases")
  parser.add_argument("--without", nargs="*", default=[], choices=FEATURES, help="switch features of the solver off")
  args = parser.parse_args(argv)
  failed = 0
  cases = [c for c in json.loads(args.file.read_text())["cases"] if not args.only or c["name"] in args.only]
  for case in cases:
    if lines := difference(case, args.without):
      failed += 1
      print(f"{case['name']} ({case['pass']}, {' '.join(f'{n}={k}' for n, k in case['mesh'])})", *lines, sep="\n")
  print(f"{len(cases) - failed} passed, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
