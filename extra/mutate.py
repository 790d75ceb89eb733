"""Mutation runs: small faults put into the code one at a time, and whether a test notices.

  python -m extra.mutate tinygrad/uop --tests test/uop -n 60
  python -m extra.mutate tinygrad/sharding/partial.py --tests test/sharding test/laws/test_laws.py -n 40 --seed 7

A mutant swaps an operator (`<` for `<=`, `and` for `or`, `+` for `-`, `min` for `max`), shifts an integer by one, turns
`not x` into `x`, a condition into True or False, a returned value into None. It lives in a copy of the repository, in
which the tests run until the first fails. What survives is printed with its line: a weak test, or code that changes
nothing (equal to the original, a fast path, a message). A run that is longer than four times that of the unchanged code
counts as noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinygrad.helpers import atomic_write, tqdm

ROOT = Path(__file__).parents[1]
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
  ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
  ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
  ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
  ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
  """One fault: `old` at (line, column) to (line, column) of a file becomes `new`."""

  file: str
  start: tuple[int, int]
  end: tuple[int, int]
  new: str

  def applied(self, text: str) -> str:
    lines = text.split("\n")
    (a, b), (c, d) = self.start, self.end
    lines[a - 1 : c] = [cut(lines[a - 1], 0, b) + self.new + cut(lines[c - 1], d)]
    return "\n".join(lines)

  def shown(self, text: str) -> str:
    before, after = (x.split("\n")[self.start[0] - 1].strip() for x in (text, self.applied(text)))
    return f"{self.file}:{self.start[0]}\n  - {before}\n  + {after}"


def cut(line: str, start: int, end: int | None = None) -> str:
  """Part of a line by offsets in UTF-8, which is how `ast` counts."""
  return line.encode()[start:end].decode()


def faults(node: ast.AST) -> Iterator[ast.AST]:
  """What a node becomes by one small fault."""
  match node:
    case ast.Compare(ops=[op]) if type(op) in SWAPS:
      yield ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)  # type: ignore[list-item]
    case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPS:
      swapped = copy.copy(node)
      swapped.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
      yield swapped
    case ast.UnaryOp(op=ast.Not()):
      yield node.operand
    case ast.Constant(value=bool(x)):
      yield ast.Constant(not x)
    case ast.Constant(value=int(x)):
      yield ast.Constant(x + 1)
    case ast.Name(id=name) if name in NAMES:
      yield ast.Name(NAMES[name], node.ctx)


def parts(node: ast.AST) -> Iterator[ast.AST]:
  """The expressions of a tree that are computed when the program runs: no annotations, messages, or what is raised."""
  for name, value in ast.iter_fields(node):
    if name in ("annotation", "returns", "decorator_list", "type_params"):
      continue
    for child in value if isinstance(value, list) else [value]:
      if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
        continue
      if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "not TYPE_CHECKING"):
        continue
      yield child
      yield from parts(child)


def mutants(file: Path) -> Iterator[Mutant]:
  """Every mutant of a file, in order."""
  name = str(file.relative_to(ROOT))
  for node in parts(ast.parse(file.read_text(encoding="utf-8"))):
    places: list[tuple[ast.AST, Iterator[ast.AST]]] = []
    if isinstance(node, ast.expr):
      places.append((node, faults(node)))
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
      places.append((node.test, iter([ast.Constant(True), ast.Constant(False)][: 2 - isinstance(node, ast.While)])))
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
      places.append((node.value, iter([ast.Constant(None)])))
    for at, becomes in places:
      assert isinstance(at, ast.expr) and at.end_lineno is not None and at.end_col_offset is not None
      for new in becomes:
        start, end = (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)
        yield Mutant(name, start, end, f"({ast.unparse(ast.fix_missing_locations(new))})")


def noticed(folder: Path, tests: list[str], seconds: float) -> bool:
  """Whether the tests fail, or do not end in time, in that copy of the repository."""
  command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
  env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
  try:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(command, cwd=folder, env=env, timeout=seconds, **quiet).returncode != 0  # type: ignore[call-overload, no-any-return]
  except subprocess.TimeoutExpired:
    return True


def copied(folder: Path) -> None:
  """The files of the repository that git knows, as they are now."""
  for file in subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
    "\n"
  ):
    if file and (ROOT / file).is_file():
      (folder / file).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / file, folder / file)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("code", nargs="+", help="files or folders to put faults into")
  parser.add_argument("--tests", nargs="+", required=True, help="what should notice them")
  parser.add_argument("-n", type=int, default=40, help="how many mutants, drawn at random (default 40)")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--json", help="a file for the report")
  args = parser.parse_args()
  files = [f for c in args.code for f in ([ROOT / c] if c.endswith(".py") else sorted((ROOT / c).rglob("*.py")))]
  every = [m for f in files for m in mutants(f)]
  drawn = random.Random(args.seed).sample(every, min(args.n, len(every)))
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    copied(folder)
    started = time.perf_counter()
    if noticed(folder, args.tests, 3600):
      raise SystemExit("the tests fail without a fault")
    limit = 4 * (time.perf_counter() - started) + 10
    alive = []
    for m in (bar := tqdm(drawn, desc="mutants")):
      text = (ROOT / m.file).read_text(encoding="utf-8")
      (folder / m.file).write_text(m.applied(text), encoding="utf-8")
      if not noticed(folder, args.tests, limit):
        alive.append(m.shown(text))
        bar.write(alive[-1])
      (folder / m.file).write_text(text, encoding="utf-8")
  print(f"{len(drawn)} of {len(every)} mutants: {len(drawn) - len(alive)} noticed, {len(alive)} survived")
  if args.json:
    with atomic_write(args.json) as f:
      f.write(json.dumps({"code": args.code, "tests": args.tests, "drawn": len(drawn), "alive": alive}).encode())


if __name__ == "__main__":
  main()
