"""Random programs of the law test for as long as one likes: sharded must equal unsharded.

    python -m extra.fuzz_sharding --seconds 600
    python -m extra.fuzz_sharding --seed 123456 --compiled --defer 1
    python -m extra.fuzz_sharding --scripts --seconds 600

Programs with the seeds that follow --seed run until the time is over or one fails; the steps of every second one are
mostly methods of Tensor (--methods 0 or 1: of none, of all). The failing one is shrunk, while it
fails in the same way, and printed as a program that can be run from the root of the repository. With --scripts they are
statements over live tensors, which must show what numpy does (test/laws/scripts.py). Exit status: 0 if all agreed, 1 if
one failed. Ctrl-C ends the run with its counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "laws"))
import harness
import programs
import scripts

from tinygrad.device import Mesh, Sharding
from tinygrad.dtype import DType
from tinygrad.helpers import Context, tqdm
from tinygrad.transforms.own_rules import OwnRules
from tinygrad.uop import Ops, UOp
from tinygrad.uop.node import uops_in
from tinygrad.uop.rewrite import substitute

DIFFERS = "the values differ"
SHRINK_SECONDS = 300.0


@dataclass(frozen=True, eq=False)
class Case:
  """Placed values whose sharded run may not be what one device computes. `content`: of the buffers below `roots`."""

  roots: tuple[UOp, ...]
  content: dict[UOp, np.ndarray]
  mesh: Mesh
  variable: int = 1
  seed: int = 0  # of the parts that partial leaves are made of
  compiled: bool = False
  defer: int = 1
  exact: tuple[bool, ...] = (True,)  # for each root: equal bit for bit, else within a tolerance
  methods: bool = False


@dataclass(frozen=True)
class Failure:
  """`kind`: DIFFERS, or the name of the exception."""

  kind: str
  text: str


def on_one_device(root: UOp, content: dict[UOp, np.ndarray]) -> UOp:
  """The same value without placement; its buffers are added to `content`."""
  made: dict[UOp, UOp] = {}
  for u in root.toposort():
    if u.op is Ops.BUFFER:
      made[u] = UOp.buffer(u.shape, u.dtype, programs.REFERENCE)
      content[made[u]] = content[u]
    elif u.op is Ops.MOVE:
      made[u] = made[u.src[0]]
    else:
      made[u] = u.replace(src=tuple(made[s] for s in u.src if s.op is not Ops.UNIQUE))
  return made[root]


def attempt(case: Case) -> Failure | None:
  """How the case fails; None if it does not, or if its values are too large to be exact."""
  below = {u for r in case.roots for u in r.toposort()}
  content = {u: a for u, a in case.content.items() if u in below}
  p = programs.Program(case.seed, case.mesh, case.variable, content, methods=case.methods)
  reference = programs.Program(case.seed, case.mesh, case.variable, dict(content), methods=case.methods)
  try:
    plain = [on_one_device(r, reference.content) for r in case.roots]
    if harness.too_large(reference, plain):
      return None
    with Context(DEFER=case.defer):
      got = (harness.compiled if case.compiled else harness.interpret)(p, case.roots)
  except (AssertionError, ValueError, TypeError, IndexError, RuntimeError) as e:
    return Failure(type(e).__name__, str(e))
  for x, u, exact in zip(got, plain, case.exact, strict=True):
    want = reference.value(u)
    if not programs.same(x, want, exact, programs.tolerance_of(u)):
      return Failure(DIFFERS, f"sharded\n{x}\non one device\n{want}")
  return None


def case_of(seed: int, steps: int, compiled: bool, defer: int, methods: bool = False) -> Case:
  """The program of a seed, with its gradients if it is differentiated."""
  with Context(DEFER=defer):
    p = programs.make(seed, steps, "CPU" if compiled else "NULL", methods)
    values = harness.pairs(p)
    roots = harness.without_numbers([v.placed for v in values])
  content = {u: p.content[u] for r in roots for u in r.toposort() if u.op is Ops.BUFFER}
  exact = tuple(v.exact for v in values)
  return Case(tuple(roots), content, p.mesh, p.variable, seed, compiled, defer, exact, methods)


# ---------------------------------------------------------------- shrinking


def smaller(case: Case) -> Iterator[Case]:
  """Cases with less in them, the boldest first."""
  if len(case.roots) > 1:
    for r, exact in zip(case.roots, case.exact):
      yield replace(case, roots=(r,), exact=(exact,))
    return
  for way in (cut_above, given_inside, bypassed, simpler_numbers):
    yield from way(case)


def cut_above(case: Case) -> Iterator[Case]:
  """A value inside is the root."""
  for u in case.roots[0].toposort():
    if u is not case.roots[0] and u.op not in (Ops.ASSIGN, Ops.CONST) and u.device is not None:
      yield replace(case, roots=(u,))


def given_inside(case: Case) -> Iterator[Case]:
  """A value inside is given, as memory."""
  (root,) = case.roots
  reference = programs.Program(case.seed, case.mesh, case.variable, dict(case.content))
  plain: dict[UOp, UOp] = {}
  for u in reversed(root.toposort()):
    if u is root or u.op in (Ops.BUFFER, Ops.CONST, Ops.ASSIGN, Ops.SINK) or not u.src:
      continue
    if not isinstance(u.device, str | Sharding) or not all(isinstance(n, int) for n in u.shape):
      continue
    if isinstance(u.device, Sharding) and len(u.device.partial) > 1:
      continue
    if u not in plain:
      plain[u] = on_one_device(u, reference.content)
    leaf = UOp.buffer(u.shape, u.dtype, u.device)
    content = {**case.content, leaf: reference.value(plain[u])}
    yield replace(case, roots=(substitute(root, {u: leaf}),), content=content)


def bypassed(case: Case) -> Iterator[Case]:
  """A node's place is taken by a source of its type, shape and placement."""
  (root,) = case.roots
  for u in reversed(root.toposort()):
    for s in u.src:
      if s.dtype is u.dtype and s.shape == u.shape and s.device is u.device and u.op not in (Ops.ASSIGN, Ops.AFTER):
        yield replace(case, roots=(substitute(root, {u: s}),))


def simpler_numbers(case: Case) -> Iterator[Case]:
  """A buffer holds zeros, or ones."""
  for u in case.roots[0].toposort():
    if u.op is Ops.BUFFER:
      for simple in (np.zeros_like(case.content[u]), np.ones_like(case.content[u])):
        if np.count_nonzero(case.content[u] != simple) and np.count_nonzero(case.content[u] != 0):
          yield replace(case, content={**case.content, u: simple})


def shrink(case: Case, failure: Failure, seconds: float = SHRINK_SECONDS) -> tuple[Case, Failure]:
  """Smaller and smaller cases that fail in the same way, until none of the next ones does or the time is over."""
  end = time.monotonic() + seconds
  found = True
  while found:
    found = False
    for candidate in smaller(case):
      if time.monotonic() > end:
        return case, failure
      if (again := attempt(candidate)) is not None and again.kind == failure.kind:
        case, failure, found = candidate, again, True
        break
  return case, failure


# ---------------------------------------------------------------- printing


def code(x: Any, name: dict[Any, str]) -> str:
  """Python that evaluates to `x`; the classes that it names are added to `name`, which has the nodes' names."""
  match x:
    case UOp():
      return name[x]
    case Mesh():
      return f"Mesh({x.devices!r}, {x.shape!r})"
    case Sharding():
      return f"Sharding.of({code(x.mesh, name)}, {code(x.dims, name)}, {code(x.partial, name)})"
    case DType():
      return f"dtypes.{x.name}"
    case enum.Enum():
      return f"{named(type(x), name)}.{x.name}"
    case OwnRules():  # derivatives are a part of the program already
      return "None"
    case tuple():
      return f"({', '.join(code(y, name) for y in x)}{',' if len(x) == 1 else ''})"
    case float() if not math.isfinite(x):
      return f'float("{x}")'
    case np.ndarray():
      return f"np.array({x.tolist()}, to_numpy_dtype(dtypes.{x.dtype.name})).reshape({x.shape})"
    case _ if dataclasses.is_dataclass(x):
      return f"{named(type(x), name)}({', '.join(code(getattr(x, f.name), name) for f in dataclasses.fields(x))})"
  return repr(x)


def named(cls: type, name: dict[Any, str]) -> str:
  return name.setdefault(cls, cls.__name__)


def program_text(case: Case) -> str:
  """The case as a program that raises AssertionError as long as it fails."""
  name: dict[Any, str] = {}
  lines = ["content = {}"]

  def define(u: UOp) -> None:
    if u in name:
      return
    for x in (*uops_in(u.arg), *u.src) if isinstance(u.arg, tuple) else u.src:
      define(x)
    n = name[u] = f"u{len(name)}"
    if u.op is Ops.BUFFER:
      lines.append(f"{n} = UOp.buffer({u.shape!r}, {code(u.dtype, name)}, {code(u.device, name)})")
      lines.append(f"content[{n}] = {code(case.content[u], name)}")
    else:
      kind, src, arg = (code(x, name) for x in (u.dtype, u.src, u.arg))
      lines.append(f"{n} = UOp.new(Ops.{u.op.name}, {kind}, {src}, {arg})")

  for r in case.roots:
    define(r)
  names = ("variable", "seed", "compiled", "defer", "exact", "methods")
  settings = ", ".join(f"{n}={getattr(case, n)}" for n in names)
  lines.append(f"failure = attempt(Case({code(case.roots, name)}, content, {code(case.mesh, name)}, {settings}))")
  lines.append("assert failure is None, failure.text")
  imports = [
    "import numpy as np",
    "from extra.fuzz_sharding import Case, attempt",
    "from tinygrad.device import Mesh, Sharding",
    "from tinygrad.dtype import dtypes, to_numpy_dtype",
    "from tinygrad.uop import Ops, UOp",
    *(f"from {x.__module__} import {x.__name__}" for x in name if isinstance(x, type)),
  ]
  return "\n".join([*imports, "", *lines]) + "\n"


# ---------------------------------------------------------------- the run


def fuzz(
  seeds: Iterator[int],
  steps: int = 9,
  compiled: bool = False,
  defer: int | None = None,
  seconds: float = 60.0,
  methods: int | None = None,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[int, Case | None, Failure | None]:
  """(programs run, a shrunk failing case, how it fails). Without `defer` odd seeds run with 1, even ones with 0;
  without `methods` every second pair of seeds has methods."""
  end = time.monotonic() + seconds
  done = 0
  for seed in seeds:
    if time.monotonic() > end:
      break
    with_methods = bool(seed // 2 % 2 if methods is None else methods)
    try:
      case = case_of(seed, steps, compiled, seed % 2 if defer is None else defer, with_methods)
      failure = attempt(case)
    except Exception as e:
      e.add_note(f"seed {seed} cannot be built or run")
      raise
    done += 1
    progress(done)
    if failure is not None:
      return done, *shrink(case, failure)
  return done, None, None


def fuzz_scripts(
  seeds: Iterator[int],
  steps: int = 12,
  compiled: bool = False,
  seconds: float = 60.0,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[int, scripts.Script | None, scripts.Failure | None]:
  """(scripts run, a shrunk failing one, how it fails)."""
  end = time.monotonic() + seconds
  done = 0
  for seed in seeds:
    if time.monotonic() > end:
      break
    script = scripts.written(seed, steps, not compiled)
    failure = scripts.attempt(script)
    done += 1
    progress(done)
    if failure is not None:
      return done, *scripts.shrink(script, failure)
  return done, None, None


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (default: %(default)s)")
  parser.add_argument("--seed", type=int, default=1_000_000, help="the first program (default: %(default)s)")
  parser.add_argument("--steps", type=int, default=9, help="ops a program (default: %(default)s)")
  parser.add_argument("--compiled", action="store_true", help="compile and run on CPU devices instead of interpreting")
  parser.add_argument("--defer", type=int, choices=(0, 1), help="DEFER for all programs (default: both by turns)")
  parser.add_argument(
    "--methods", type=int, choices=(0, 1), help="methods of Tensor (default: in every second program)"
  )
  parser.add_argument("--scripts", action="store_true", help="scripts over live tensors, compared with numpy")
  args = parser.parse_args(argv)

  start, count = time.monotonic(), 0
  case: Case | scripts.Script | None = None
  failure: Failure | scripts.Failure | None = None
  with tqdm(total=args.seconds, leave=False, bar_format="{desc} {bar} {n:.0f}/{total:.0f} s") as bar:

    def shown(done: int) -> None:
      nonlocal count
      count = done
      spent = time.monotonic() - start
      bar.set_description_str(f"{done} programs, {done / spent:.0f}/s", refresh=False)
      bar.update(min(spent, bar.total) - bar.n)

    try:
      numbers = iter(range(args.seed, sys.maxsize))
      if args.scripts:
        count, case, failure = fuzz_scripts(numbers, args.steps, args.compiled, args.seconds, shown)
      else:
        count, case, failure = fuzz(numbers, args.steps, args.compiled, args.defer, args.seconds, args.methods, shown)
    except KeyboardInterrupt:
      bar.close()
      print("stopped", file=sys.stderr)
  if case is None or failure is None:
    print(f"{count} programs agreed (seeds {args.seed} to {args.seed + count - 1})")
    return 0
  print(f"# seed {args.seed + count - 1} fails: {failure.kind}")
  text = program_text(case) if isinstance(case, Case) else f"{case}\n"
  print("".join(f"# {line}\n" for line in failure.text.splitlines()) + text, end="")
  return 1


if __name__ == "__main__":
  sys.exit(main())
