"""Random programs with captured functions and state, beside the interpreter, which runs each line at once.

    python -m extra.fuzz_captured --seconds 600
    PLAN_CACHE=0 CPU_THREADS=1 python -m extra.fuzz_captured --seed 5061 --count 1
    DEV=CL python -m extra.fuzz_captured --device CL

A program (extra/captured_programs.py draws it) is text: functions that are captured (`TinyJit`), each of which reads,
writes in parts and at places that variables say, shifts, exchanges and differentiates state and arguments, by way of
convolutions, loops, conditions, `vmap` and `checkpoint`, adds to gradients, uses and empties them, draws random
numbers, and calls others; and a main part, which calls them again and again with new tensors, results of earlier calls,
views, the same tensor twice or the state itself, alone or in dicts and lists, with other values of variables and other
Python numbers, in training or not, lets them fail within, forgets what was captured, and which does the same between
the calls, replaces state, keeps what it has computed and takes views, some of it again with other numbers. State are
floats, whole numbers, truths, views of other state, and optimizers with their schedules. It is run on one device or cut
over up to four, in float32, float64, float16 or bfloat16; whatever memory it gets, and scratch memory, is not a number
before. The oracle runs the same text with nothing captured, in float64 on one device of the interpreter, and realises
every line before the next. After each call, or at the end, everything that has a name must be what it is there.
Programs with the seeds that follow --seed run until the time is over; each that fails is printed, with as few
lines as it takes (--whole: all). Exit status: 0 if all agreed, else 1.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import gc
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from extra.captured_programs import Script, Shape, written
from extra.fuzz_programs import POISONED, options, poison, seeds
from tinygrad import (
  Context,
  Device,
  Tensor,
  TinyJit,
  Variable,
  checkpoint,
  cond,
  donate,
  dtypes,
  grad,
  nn,
  scan,
  vmap,
  while_loop,
)
from tinygrad.device import Mesh, P
from tinygrad.dtype import to_dtype, to_numpy_dtype
from tinygrad.engine.errors import JitError
from tinygrad.helpers import PROCESS
from tinygrad.nn.state import get_state_dict
from tinygrad.runtime import cpu
from tinygrad.transforms.step_gradients import UNKEPT
from tinygrad.transforms.tree import tree_leaves

# of a value's greatest element, after one call
ROUGH = {"float64": 1e-6, "float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}
LARGEST = {"float16": 60.0}  # number that is compared: products of two such are summed
SMALL = 0.25  # what smaller numbers are measured by: sums of which terms cancel are no better than these
# what there is an error for, with what to do instead
REFUSED: dict[type, tuple[str, ...]] = {
  JitError: ("has used this gradient",),
  ValueError: ("in one computation\n  fix: realize",),  # parts of one memory written at two values of a variable
  TypeError: ("content before that is still to be read\n  fix: call realize",),
}
HELD = 1 << 22  # bytes of fresh memory at most that is filled: more is seldom, and takes its time


class Invalid(Exception):
  """The oracle refuses the program too."""


class Halt(Exception):
  """What a function raises by itself."""


# ---------------------------------------------------------------- the two worlds


class World:
  """What the names of a program's text mean on devices."""

  exact = trained = False

  def __init__(self, script: Script, device: str) -> None:
    self.script, self.device = script, device
    self.wide = "float64" if script.dtype == "float64" else "float32"
    self.looks: list[dict[str, np.ndarray]] = []
    self.due, self.failed = False, list[int | None]()  # whether a call is to fail; where each did that was to
    self.m = types.SimpleNamespace()
    self.names: dict[str, Any] = {
      "m": self.m,
      "Tensor": Tensor,
      "TinyJit": TinyJit,
      "nn": nn,
      **{f.__name__: f for f in (scan, while_loop, cond, vmap, checkpoint, grad)},
      "F": self.float(script.dtype),
      "G": self.float(self.wide),
      "dtypes": dtypes,
      "attend": attend,
      **{name: getattr(self, name) for name in ("new", "at", "bind", "grads", "fit", "training", "uniform", "module")},
      **{name: getattr(self, name) for name in ("backward", "clip", "step", "graded", "drop")},
      **{name: getattr(self, name) for name in ("donated", "trouble", "attempt")},
    }

  def float(self, name: str) -> Any:
    return to_dtype(name)

  def new(self, seed: int, shape: Shape, dtype: str, where: int, how: str = "memory") -> Tensor:
    """Numbers that the seed draws: of a float type about 1, else below `dtype`'s number of rows."""
    made = np.random.default_rng(seed)
    if "<" in dtype:
      kind, below = dtype.split("<")
      values, d = made.integers(0, int(below), shape), to_dtype(kind)
    else:
      d = dtypes.bool if dtype == "bool" else self.names[dtype]
      narrow = to_dtype(self.script.dtype if dtype == "F" else self.wide)
      values = made.standard_normal(shape).astype(to_numpy_dtype(narrow))
      values = values > 0 if dtype == "bool" else values
    t = self.at(Tensor(values.astype(to_numpy_dtype(d)), dtype=d, device="PYTHON" if self.exact else None), where)
    return t if how == "lazy" and not self.exact else t.contiguous().realize() if how == "memory" else t.realize()

  def at(self, t: Tensor, where: int) -> Tensor:
    placement = self.script.placements[where]
    if isinstance(placement, str):
      return t.to(placement)
    mesh, axes = placement
    if isinstance(mesh, Mesh):
      return t.shard(mesh, P(*axes[: t.ndim]))
    return t.shard(mesh, axes if axes is None or axes < t.ndim else None)

  def bind(self, name: str, most: int, value: int) -> Any:
    return Variable(name, 0, most).bind(value)

  def grads(self, loss: Callable[..., Tensor], *targets: Tensor) -> Tensor:
    """The first one's gradient."""
    return loss().gradient(*targets)[0]

  def fit(self, optimizer: Any, loss: Callable[[], Tensor]) -> None:
    with Tensor.train():
      optimizer.zero_grad()
      loss().backward()
      optimizer.step()

  def backward(self, loss: Callable[[], Tensor]) -> None:
    loss().backward()

  def clip(self, optimizer: Any) -> None:
    if any(p.grad is not None for p in optimizer.params):
      nn.utils.clip_grad_norm_(optimizer.params, 1.0)

  def step(self, optimizer: Any) -> None:
    if all(p.grad is not None for p in optimizer.params):
      with Tensor.train():
        optimizer.step()

  def graded(self, p: Tensor) -> Tensor:
    return p.detach() * 0 if p.grad is None else p.grad.detach()

  def training(self, f: Callable[[], Tensor]) -> Tensor:
    with Tensor.train():
      return f()

  def drop(self, t: Tensor) -> Tensor:
    """Half of the numbers, in training."""
    kept = self.at(Tensor.rand(*t.shape, dtype=dtypes.float32), 0) < 0.5 if Tensor.training else None
    return t if kept is None else kept.where(t, 0)

  def donated(self, made: Sequence[int]) -> Callable[..., Any]:
    """Of a function whose results of these numbers are still to be computed, in the memory of the first argument."""
    return donate

  def trouble(self, number: int, x: Tensor, kind: str) -> None:
    """Fails, where the call is to."""
    if self.due:
      self.due, self.failed[-1] = False, number
      if kind == "item":
        x.sum().item()  # which is an error in a capture alone
        self.failed[-1] = None
      elif kind == "shape":
        Tensor.ones(2) + Tensor.ones(3)
      elif kind == "write":
        x.assign(x.reshape(1, *x.shape).expand(2, *x.shape))
      else:
        raise Halt

  def attempt(self, call: Callable[[], Any]) -> None:
    self.due = True
    self.failed.append(None)
    try:
      call()
    except Exception as e:
      if self.failed[-1] is None or not (isinstance(e, Halt) or "fix: " in str(e)):
        raise
    finally:
      self.due = False

  def module(self, made: Any, where: int) -> Any:
    """Its weights in the program's type, at a place."""
    for t in get_state_dict(made).values():
      moved = self.at(t.to("PYTHON") if self.exact else t, where)
      kind = self.names["F"] if dtypes.is_float(t.dtype) else t.dtype
      t.replace(moved.cast(kind).contiguous().realize())
    return made

  def uniform(self, *shape: int) -> Tensor:
    return self.at(Tensor.rand(*shape, dtype=dtypes.float32).cast(self.names["F"]), 0)

  def named(self) -> dict[str, Tensor]:
    """All that has a name, and gradients."""
    found = get_state_dict({k: v for k, v in {**vars(self.m), **self.names}.items() if is_shown(k)})
    for k, p in enumerate(self.m.opt.params if hasattr(self.m, "opt") else ()):
      if p._grad is not None:
        found[f"gradient{k}"] = p._grad
    return {k: t for k, t in found.items() if not k.startswith(("rate.opt", "opt.optimizers"))}

  def look(self) -> None:
    self.looks.append({k: UNKEPT if t is UNKEPT else values(t) for k, t in self.named().items()})

  def text(self, line: str) -> list[str]:
    return [line]

  def run(self, before: Callable[[], None]) -> None:
    """All of it; `before` each line of the main part."""
    for line in self.script.state:
      exec(line, self.names)
    for head, lines, last in self.script.functions:
      body = [f"  {x}" for line in lines for x in self.text(line)]
      exec("\n".join([self.head(head), *body, f"  {last}"]), self.names)
    with Tensor.train(self.trained):
      self.run_main(before)

  def run_main(self, before: Callable[[], None]) -> None:
    for line in self.script.main:
      before()
      for x in self.text(line):
        exec(x, self.names)
      if self.script.each and "# call" in line:
        self.look()
    self.look()

  def head(self, head: str) -> str:
    return head


class Exact(World):
  """The oracle: in float64, and each line at once. `seen`: what the devices showed at each look; state goes on from
  that, so that what a call adds to an error is compared."""

  exact = True

  def __init__(self, script: Script, seen: Sequence[dict[str, np.ndarray]], failed: Sequence[int | None]) -> None:
    super().__init__(script, "PYTHON")
    self.seen, self.faults, self.fails = seen, list[str](), iter(failed)
    self.failed_there: int | None = None
    self.names.update(now=self.now, settle=self.settle, given=self.given)

  def float(self, name: str) -> Any:
    return dtypes.float64

  def at(self, t: Tensor, where: int) -> Tensor:
    return t.to("PYTHON")

  def bind(self, name: str, most: int, value: int) -> Any:
    return value

  def head(self, head: str) -> str:
    return "\n".join(["@given", *(x for x in head.split("\n") if not x.startswith("@TinyJit"))])

  def given(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """f, whose arguments are realised first, as those of what is captured are."""

    def call(*args: Any, **kwargs: Any) -> Any:
      if found := tree_leaves((args, kwargs)):
        Tensor.realize(*found)
      return f(*args, **kwargs)

    call.reset = lambda: None  # type: ignore[attr-defined]
    return call

  def donated(self, made: Sequence[int]) -> Callable[..., Any]:
    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
      def call(*args: Any, **kwargs: Any) -> Any:
        results = list(f(*args, **kwargs))
        kept = {t.uop.base for i, t in enumerate(results) if t.follows and i not in made}
        free = {t.uop: t for t in tree_leaves(args[0]) if is_memory(t) and t.uop not in kept}
        for i in made:
          if (u := next((u for u in free if u.shape == results[i].shape), None)) is not None:
            results[i] = free.pop(u).assign(results[i]).realize()
        return tuple(results)

      return call

    return decorate

  def trouble(self, number: int, x: Tensor, kind: str) -> None:
    """Fails where the devices did."""
    if number == self.failed_there:
      raise Halt

  def attempt(self, call: Callable[[], Any]) -> None:
    self.failed_there = next(self.fails, None)
    with contextlib.suppress(Halt):
      call()
    self.failed_there = None

  def now(self, t: Tensor) -> Tensor:
    """A value, computed."""
    return t.clone().realize()

  def settle(self) -> None:
    """What has been assigned, is done."""
    if found := list(self.named().values()):
      Tensor.realize(*found)

  def text(self, line: str) -> list[str]:
    name, is_value, _ = line.partition(" = ")
    if is_value and name.isidentifier() and "# call" not in line and "# view" not in line:
      return [line, f"{name} = now({name})"]
    return [line, "settle()"]

  def look(self) -> None:
    super().look()
    if len(self.looks) > len(self.seen):  # it has failed there
      return
    most = max(np.abs(x).max(initial=0) for x in self.looks[-1].values() if x.dtype.kind == "f")
    if not self.faults and most > LARGEST.get(self.script.dtype, 1e3):
      raise Invalid("numbers grow")
    mine, theirs = self.looks[-1], self.seen[len(self.looks) - 1]
    rough = ROUGH[self.script.dtype] * (1 if self.script.each else 20)
    if more := [k for k in theirs if k.startswith("gradient") and k not in mine]:
      self.faults.append(f"look {len(self.looks)}: {more} should not be")
    for k, x in mine.items():
      if theirs.get(k) is UNKEPT:
        continue
      self.faults += [f"look {len(self.looks)}: {k} {why}" for why in differs(theirs.get(k), x, rough)]
    for k, t in self.named().items():
      if is_memory(t) and k in theirs and theirs[k] is not UNKEPT and theirs[k].shape == t.shape:
        t.assign(Tensor(theirs[k].astype(to_numpy_dtype(t.dtype)), device="PYTHON")).realize()


def is_shown(name: str) -> bool:
  return name in ("opt", "rate", "bn") or (name[0] in "abrsvwxi" and name[1:].isdigit())


def is_memory(t: Tensor) -> bool:
  return t.uop.op.name == "BUFFER" and t.follows


def values(t: Tensor) -> np.ndarray:
  x = t.numpy()
  return x.astype(np.float64) if x.dtype.kind not in "iub" else x


def differs(got: np.ndarray | None, want: np.ndarray, rough: float) -> Iterator[str]:
  if got is None or got.shape != want.shape:
    yield f"is {None if got is None else got.shape}, not {want.shape}"
  elif want.dtype.kind in "iub":
    if (wrong := int((got != want).sum())) > 0:
      yield f"has {wrong} wrong whole numbers of {want.size}"
  else:
    with np.errstate(invalid="ignore"):
      apart = np.where(got == want, 0, np.abs(got - want))  # infinity is as far from itself
    greatest = max(float(np.abs(want[np.isfinite(want)]).max(initial=0)), SMALL)
    error = float(apart.max(initial=0)) / greatest
    if not error <= rough:
      where = np.argwhere(~(apart <= rough * greatest))
      yield f"is {error:.1e} off, at {len(where)} of {want.size} from {where[0].tolist() if len(where) else '?'} on"


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
  """(r, c), (n, c), (n, c) -> (r, c), in heads."""
  split = [x.reshape(x.shape[0], heads, -1).transpose(0, 1) for x in (q, k, v)]
  scores = split[0] @ split[1].transpose(1, 2) * (q.shape[1] / heads) ** -0.5
  return (scores.softmax(-1) @ split[2]).transpose(0, 1).reshape(q.shape[0], q.shape[1])


# ---------------------------------------------------------------- running


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
  """Fresh memory of processors is not a number."""
  inner = cpu.CPU.alloc

  def alloc(self: Any, nbytes: int) -> Any:
    handle = inner(self, nbytes)
    if type(handle) is cpu.Memory and handle.owner is None and nbytes <= HELD:
      self.synchronize()
      ctypes.memset(handle.address, 0xFF, handle.nbytes)
    return handle

  cpu.CPU.alloc = alloc  # type: ignore[method-assign]
  try:
    yield
  finally:
    cpu.CPU.alloc = inner  # type: ignore[method-assign]


def on_devices(script: Script) -> World:
  first = script.placements[0]
  names = [first] if isinstance(first, str) else first[0].devices if isinstance(first[0], Mesh) else first[0]
  world = World(script, names[0])

  def before() -> None:
    for name in names:
      Device[name].synchronize()  # what is queued has its scratch memory
      poison(Device[name], POISONED >> 4)

  with Context(**dict(script.settings)), poisoned():
    world.run(before)
  return world


def faults(script: Script) -> list[str]:
  """What is wrong with a program, if anything. Raises: Invalid if it is none."""
  gc.collect()  # an earlier program is not to have a part in this one
  problem, looks, failed = "", list[dict[str, np.ndarray]](), list[int | None]()
  for _ in range(1 + script.again):
    if script.again:
      PROCESS.forget()
    Tensor.manual_seed(7)
    try:
      world = on_devices(script)
      looks, failed = world.looks, world.failed
    except Exception as e:
      if type(e) in REFUSED and any(said in str(e) for said in REFUSED[type(e)]):
        raise Invalid(str(e)) from e
      problem = f"{type(e).__name__}: {e}"
      break
  Tensor.manual_seed(7)
  oracle = Exact(script, looks, failed)
  try:
    oracle.run(lambda: None)
  except Exception as e:
    if problem or isinstance(e, Invalid):
      raise Invalid(f"{problem} | {e}") from e
    return [f"the oracle: {type(e).__name__}: {e}"]
  return [problem] if problem else oracle.faults


def kind_of(found: list[str]) -> str:
  return found[0].split(":")[0] if found and not found[0].startswith("look") else "values"


def with_part(tree: Any, whole: ast.AST, part: ast.AST) -> Any:
  """The tree with `part` where `whole` stands."""
  if tree is whole:
    return part
  if isinstance(tree, list):
    return [with_part(x, whole, part) for x in tree]
  if not isinstance(tree, ast.AST):
    return tree
  return type(tree)(**{k: with_part(v, whole, part) for k, v in ast.iter_fields(tree)}, lineno=1, col_offset=0)


def simpler(line: str) -> Iterator[str]:
  """The line with a part of an expression in the place of that expression."""
  code, mark, comment = line.partition("  # ")
  tree = ast.parse(code)
  value = getattr(tree.body[0], "value", None)
  for u in ast.walk(value) if isinstance(value, ast.expr) else ():
    parts = [x for x in ast.iter_child_nodes(u) if isinstance(x, ast.expr)]
    shown = u is value and code.startswith("v")  # which stays a value, not a name of another
    for part in parts if isinstance(u, ast.BinOp | ast.Call | ast.Subscript) and not shown else ():
      inner = part.value if isinstance(part, ast.Attribute) and isinstance(u, ast.Call) else part
      yield ast.unparse(with_part(tree, u, inner)) + mark + comment


def shrink(script: Script, found: list[str], seconds: float) -> tuple[Script, list[str]]:
  """With as few lines, and these as short, as fail in the same way."""
  end, smaller = time.monotonic() + seconds, True
  while smaller:
    smaller = False
    for one in candidates(script):
      if time.monotonic() > end:
        return script, found
      with contextlib.suppress(Exception):
        if (again := faults(one)) and kind_of(again) == kind_of(found):
          script, found, smaller = one, again, True
          break
  return script, found


def candidates(script: Script) -> Iterator[Script]:
  for size in (8, 4, 2, 1):
    for i in range(0, len(script.main), size):
      yield dataclasses.replace(script, main=script.main[:i] + script.main[i + size :])
  for k, (head, lines, last) in enumerate(script.functions):
    for i in range(len(lines)):
      for instead in ((), *((x,) for x in simpler(lines[i]))):
        fewer = (head, lines[:i] + instead + lines[i + 1 :], last)
        yield dataclasses.replace(script, functions=(*script.functions[:k], fewer, *script.functions[k + 1 :]))
  for i, line in enumerate(script.main):
    for x in simpler(line):
      yield dataclasses.replace(script, main=(*script.main[:i], x, *script.main[i + 1 :]))
  for i in range(len(script.state)):
    yield dataclasses.replace(script, state=script.state[:i] + script.state[i + 1 :])


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_captured", __doc__, "CPU, CL")
  parser.add_argument("--whole", action="store_true", help="print failing programs as they were drawn")
  parser.add_argument("--shrink", type=float, default=60, help="seconds to make a failing program smaller (60)")
  asked = parser.parse_args(arguments)
  done = failed = invalid = 0
  for seed in seeds(asked):
    done += 1
    script = written(seed, asked.device)
    try:
      found = faults(script)
    except Invalid as e:
      found, invalid = [], invalid + 1
      if asked.count == 1:
        print(f"{script}\n# no program: {e}")
    if found:
      failed += 1
      if not asked.whole:
        script, found = shrink(script, found, asked.shrink)
      print(f"# --seed {seed} --count 1\n{script}\n# {'; '.join(found[:4])}\n", flush=True)
  print(f"{done} programs from --seed {asked.seed} on {asked.device}, {failed} failed, {invalid} are none")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
