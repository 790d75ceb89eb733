"""Random programs over transforms of functions, beside loops and differences in numpy.

    python -m extra.fuzz_transforms --seconds 600
    CPU_THREADS=1 python -m extra.fuzz_transforms --seed 5061 --count 1

A program is text: a function of Tensors, with functions in it that read what stands around them, on which `vmap`,
`scan`, `while_loop`, `cond`, `checkpoint`, `custom_vjp`, `custom_jvp`, `shard_map`, `TinyJit` and derivatives of all
kinds are called, in each other, over arguments and results in tuples and dicts. Devices and elements speak to each
other (`psum`, ...) in loops, maps, checkpoints and derivatives, too; random numbers are drawn; in some programs values
have no elements and loops no steps. It is called, with its results computed together or apart, captured, captured with
donated arguments, interpreted, or given arguments that are cut over two devices, or over both axes of a mesh of four,
in float64; or, of whole numbers, in float32, float16 or bfloat16. The oracle runs the same text over numpy: loops of
calls, a thread for each device, which wait for each other, and derivatives by central differences of the sixth order;
random numbers are those of one call for all elements and steps. Where a comparison or an order of elements changes
within a difference, the program is left out, as is one with large numbers. A refusal passes where a document says so
(REFUSALS), and if its message says what to do. What a program has read must be as it was. Programs with the seeds that
follow --seed run until the time is over; each that fails is printed, with as few lines as it takes (--whole: all). Exit
status: 0 if all agreed, else 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad
from extra.fuzz_programs import options, seeds
from extra.plain_transforms import PLAIN, POLICIES, Course, Unsure, leaves
from extra.transform_programs import Function, Line, Program
from tinygrad import Context, Device, Mesh, P, Tensor, TinyJit, checkpoint_policies, dtypes
from tinygrad.engine.errors import JitError
from tinygrad.transforms.tree import tree_leaves, tree_map

# what is documented to be refused, where a program has it
REFUSALS: dict[str, tuple[type[Exception], str]] = {
  "while_loop in reverse": (TypeError, "while_loop: there is no gradient"),
  "custom_vjp forward": (TypeError, "which says nothing of tangents"),
  "while_loop between assignments": (TypeError, "of which the content before that is still to be read"),
  "while_loop in a graph": (TypeError, "a graph without the loop is asked for"),
  "loops in a captured while_loop": (JitError, "a loop within it cannot be captured"),
}
ROUGH = (1e-9, 1e-8, 1e-6, 1e-4)  # of a result's greatest element, by how many differences stand in each other
NARROW = {"float64": 0.0, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}  # if gradients are no small numbers
SHRINK_SECONDS = 60.0
REFUSED = "refused"
CUT = (f"{Device.DEFAULT}:0", f"{Device.DEFAULT}:1")
CROSSED = Mesh([f"{Device.DEFAULT}:{i}" for i in range(4)], (2, 2), ("x", "y"))


# ---------------------------------------------------------------- the same names, of Tensors


def lanes(n: int, way: str, name: str, stages: Sequence[Any]) -> Any:
  """Functions of a device's, or an element's, block of the first argument, and between them collectives."""

  def block(x: Tensor, *others: Tensor) -> Tensor:
    for stage in stages:
      x = COLLECTIVE[stage](x, name, n) if isinstance(stage, str) else stage(x, *others)
    return x

  def over_elements(x: Tensor, *others: Tensor) -> Tensor:
    axes = (0, *(None for _ in others))
    y = tinygrad.vmap(block, axes, axis_name=name)(x.reshape(n, x.shape[0] // n, *x.shape[1:]), *others)
    flat: Tensor = y.reshape(-1, *y.shape[2:])
    return flat

  def over_devices(x: Tensor, *others: Tensor) -> Tensor:
    mesh = Mesh([f"{Device.DEFAULT}:{i}" for i in range(n)], names=(name,))
    y: Tensor = tinygrad.shard_map(block, mesh, (P(name), *(P() for _ in others)), P(name))(x, *others)
    return y

  return over_elements if way == "vmap" else over_devices


COLLECTIVE: dict[str, Callable[[Tensor, str, int], Tensor]] = {
  "psum": lambda x, d, n: tinygrad.psum(x, d),
  "pmean": lambda x, d, n: tinygrad.pmean(x, d),
  "pmax": lambda x, d, n: tinygrad.pmax(x, d),
  "pmin": lambda x, d, n: tinygrad.pmin(x, d),
  "all_gather": lambda x, d, n: tinygrad.all_gather(x, d),
  "all_gather tiled": lambda x, d, n: tinygrad.all_gather(x, d, tiled=True),
  "psum_scatter": lambda x, d, n: tinygrad.psum_scatter(x, d, tiled=True),
  "all_to_all": lambda x, d, n: tinygrad.all_to_all(x, d, x.ndim - 1, 0, tiled=True),
  "ppermute": lambda x, d, n: tinygrad.ppermute(x, d, [(i, (i + 1) % n) for i in range(n)]),
  "axis_index": lambda x, d, n: x * (tinygrad.axis_index(d) + 1),
}


def inside(n: int, way: str, name: str, what: str, f: Any) -> Any:
  """A derivative on each device."""

  def derivative(x: Tensor, *others: Tensor) -> Tensor:
    if what == "grad":
      found: Tensor = tinygrad.grad(f)(x, *others)
    else:
      found = tinygrad.jvp(lambda x: f(x, *others), (x,), (x * 0.5 + 1,))[1]
    return found

  return lanes(n, way, name, (derivative,))


def say(x: Tensor, what: str, name: str, n: int) -> Tensor:
  return COLLECTIVE[what](x, name, n)


def own_vjp(f: Any) -> Any:
  own = tinygrad.custom_vjp(f)
  own.defvjp(lambda *xs: (f(*xs), xs), lambda xs, g: tinygrad.vjp(f, *xs)[1](g))
  return own


def own_jvp(f: Any) -> Any:
  own = tinygrad.custom_jvp(f)
  own.defjvp(lambda xs, ts: tinygrad.jvp(f, xs, ts))
  return own


def scaled(x: Tensor, c: float, way: str) -> Tensor:
  own: Any = (tinygrad.custom_vjp if way == "vjp" else tinygrad.custom_jvp)(lambda x: x * 1)
  if way == "vjp":
    own.defvjp(lambda x: (x * 1, None), lambda kept, g: (g * c,))
  else:
    own.defjvp(lambda xs, ts: (xs[0] * 1, ts[0] * c))
  y: Tensor = own(x)
  return y


def pulled(made: Any) -> Any:
  """(result, derivatives, and what else there is) of cotangents like the result."""
  out, pull, *aux = made
  return out, pull(tree_map(lambda y: y * 0.5 + 1, out)), *aux


def at(x: Tensor, d: int, i: Tensor) -> Tensor:
  return x[(slice(None),) * d + (i,)]


def convolved(x: Tensor, w: Tensor) -> Tensor:
  n = x.shape[-1] - w.shape[0] + 1
  return x.reshape(x.numel() // x.shape[-1], 1, x.shape[-1]).conv2d(w.reshape(1, 1, -1)).reshape(*x.shape[:-1], n)


def pooled(x: Tensor, k: int, stride: int, padding: int, way: str) -> Tensor:
  n = x.shape[-1]
  of = Tensor.avg_pool2d if way == "mean" else Tensor.max_pool2d
  y: Tensor = of(x.reshape(x.numel() // n, 1, 1, n), (1, k), stride=(1, stride), padding=(0, padding))
  return y.reshape(*x.shape[:-1], y.shape[-1])


def strided(x: Tensor, stride: int, padding: int, dilation: int, w: Tensor) -> Tensor:
  rows = x.reshape(x.numel() // x.shape[-1], 1, x.shape[-1])
  y = rows.conv2d(w.reshape(1, 1, -1), stride=stride, padding=padding, dilation=dilation)
  return y.reshape(*x.shape[:-1], y.shape[-1])


def widened(x: Tensor, stride: int, w: Tensor) -> Tensor:
  rows = x.reshape(x.numel() // x.shape[-1], 1, x.shape[-1])
  y = rows.conv_transpose2d(w.reshape(1, 1, -1), stride=stride)
  return y.reshape(*x.shape[:-1], y.shape[-1])


def noise(line: int, shape: Sequence[int]) -> Tensor:
  return Tensor.rand(*shape, dtype=dtypes.float64)


def filled(x: Tensor, shape: Sequence[int]) -> Tensor:
  return x.sum().expand(shape)


def put(x: Tensor, k: int, y: Any) -> Tensor:
  out = x.clone()
  out[k] = y
  return out


def smeared(x: Tensor) -> Tensor:
  out = x.clone()
  out[1:] *= 0.5
  out[1:] += x[:-1]
  return out


def replayed(f: Any) -> Any:
  step = TinyJit(f)

  def third(*args: Any) -> Any:
    step(*args)
    step(*tree_map(lambda x: x.logical_not() if x.dtype == dtypes.bool else x * 0 + 1, args))
    return step(*args)

  return third


NAMES = (
  "vmap scan while_loop cond jvp linearize vjp grad value_and_grad hessian hvp jacfwd jacrev checkpoint stop_gradient"
)
METHODS = "sum mean prod cumsum cumprod argsort argmax flip logsumexp softmax max min any"
OURS: dict[str, Any] = {
  **{name: getattr(tinygrad, name) for name in NAMES.split()},
  **{f.__name__: f for f in (lanes, inside, say, own_vjp, own_jvp, scaled, pulled, at, put, smeared, noise, filled)},
  **{f.__name__: f for f in (pooled, strided, widened)},
  "replayed": replayed,
  **{n: getattr(Tensor, n) for n in "sin cos tanh exp log tril sigmoid relu abs maximum minimum".split()},
  **{n: getattr(Tensor, n) for n in METHODS.split()},
  **{n: getattr(checkpoint_policies, n) for n in POLICIES},
  "mapped": tree_map, "where": lambda m, x, y: m.where(x, y), "above": lambda x, y: x > y, "total": lambda x: x.sum(),
  "var": lambda x, d: x.var(d, correction=0), "sort": lambda x, d: x.sort(d)[0], "swap": Tensor.transpose,
  "reshape": Tensor.reshape, "part": lambda x, d, a, b: x[(slice(None),) * d + (slice(a, b),)],
  "pick": lambda x, i, j: x[i, j], "padded": lambda x, d: x.pad([(1, 1) if k == d else (0, 0) for k in range(x.ndim)]),
  "cat": lambda x, y, d: x.cat(y, dim=d), "stack": lambda x, y, d: x.stack(y, dim=d), "along": Tensor.gather,
  "scattered": lambda x, d, i, y: x.scatter(d, i, y, reduce="add"), "roll": Tensor.roll,
  "conv": convolved,
  "repeated": lambda x, n: x.unsqueeze(0).expand(n, *x.shape),
  "whole": lambda b: b.cast("int64"), "fit": lambda x, shape: (x.sum() * 0.1).expand(shape),
}  # fmt: skip


def of_type(dtype: str) -> dict[str, Any]:
  """What makes floats."""
  return {
    "one_hot": lambda i, n: i.one_hot(n).cast(dtype),
    "real": lambda i: i.cast(dtype),
    "full": lambda shape, v: tensor(np.full(shape, v), dtype),
  }


def tensor(x: np.ndarray, dtype: str) -> Tensor:
  return Tensor(x, dtype=dtype) if x.dtype.kind == "f" else Tensor(x)


# ---------------------------------------------------------------- running


def plain(p: Program, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
  """What numpy computes. Raises: Unsure."""
  space = dict(PLAIN | p.given)
  exec(str(p.main), space)
  Course.calls, Course.drawn = 0, {}
  with np.errstate(all="ignore"):
    found = [np.asarray(x) for _, x in leaves(space["program"](*xs))]
  if any(not np.all(np.isfinite(x)) or np.abs(np.asarray(x, float)).max(initial=0) > 1e4 for x in found):
    raise Unsure("large numbers")
  return found


def ours(p: Program) -> Iterator[list[np.ndarray]]:
  """What tinygrad computes of each set of arguments. Raises: AssertionError where it writes to what it reads."""
  given = {name: placed(tensor(x, p.dtype), p) for name, x in p.given.items()}
  space = OURS | of_type(p.dtype) | given
  exec(str(p.main), space)
  f = space["program"]
  if p.mode == "donated":
    f = tinygrad.donate(f, 0)
  if p.mode in ("captured", "donated"):
    f = TinyJit(f)
  for xs in p.sets:
    args = [placed(tensor(x, p.dtype), p) for x in xs]
    with Context(INTERPRET=int(p.mode == "interpreted")):
      out = tree_leaves(f(*args))
      for some in [[x] for x in reversed(out)] if p.mode == "apart" else [out]:
        Tensor.realize(*some)
      assert all(x.dtype.name == p.dtype for x in out if dtypes.is_float(x.dtype)), [x.dtype for x in out]
      yield [x.numpy().astype(np.float64) if dtypes.is_float(x.dtype) else x.numpy() for x in out]
    read = [*given.items(), *list(zip(p.main.parameters, args))[p.mode == "donated" :]]
    for (name, x), y in zip(read, [*p.given.values(), *xs[p.mode == "donated" :]], strict=True):
      assert np.array_equal(x.numpy().astype(y.dtype), y), f"{name} was written to"


def placed(x: Tensor, p: Program) -> Tensor:
  if p.mode != "cut":
    return x.realize()
  if p.crossed:
    axes = iter(CROSSED.names)
    return x.shard(CROSSED, P(*(next(axes, None) if n > 1 else None for n in x.shape))).realize()
  return x.shard(CUT, next((d for d, n in enumerate(x.shape) if n % 2 == 0), None)).realize()


def fault(p: Program) -> str | None:
  """What is wrong with a program, if anything; REFUSED where that is documented. Raises: Unsure."""
  Course.draw = lambda shape: Tensor.rand(*shape, dtype=dtypes.float64).numpy()
  Tensor.manual_seed(p.seed)
  want = [plain(p, xs) for xs in p.sets]
  Tensor.manual_seed(p.seed)
  try:
    for k, (got, wanted) in enumerate(zip(ours(p), want)):
      if said := differs(got, wanted, max(ROUGH[p.differences], NARROW[p.dtype])):
        return f"{said}, in call {k}"
  except Exception as e:
    expected = [REFUSALS[name] for name in p.refusals]
    if any(type(e) is kind and text in str(e) and "fix:" in str(e) for kind, text in expected):
      return REFUSED
    where = "".join(f" {Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(e.__traceback__)[-1:])
    return f"{type(e).__name__}: {e} at{where}"
  return None


def differs(got: Sequence[np.ndarray], want: Sequence[np.ndarray], rough: float) -> str | None:
  if len(got) != len(want):
    return f"differs: {len(got)} results, not {len(want)}"
  for i, (x, y) in enumerate(zip(got, want)):
    if x.shape != y.shape or x.dtype.kind != y.dtype.kind or (y.dtype.kind == "f" and x.dtype != np.float64):
      return f"differs: result {i} is {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
    error = float(np.abs(x.astype(float) - y.astype(float)).max(initial=0))
    if not error <= rough * max(1.0, float(np.abs(y.astype(float)).max(initial=0))):
      return f"differs: result {i} is {error:.1e} off"
  return None


# ---------------------------------------------------------------- shrinking


def constants(value: Any) -> str:
  """A structure like it, of the same number."""
  if isinstance(value, tuple):
    return "(" + "".join(f"{constants(x)}, " for x in value) + ")"
  if isinstance(value, dict):
    return "{" + ", ".join(f"{k!r}: {constants(x)}" for k, x in value.items()) + "}"
  kind = np.asarray(value).dtype.kind
  return "None" if value is None else f"full({np.shape(value)}, {0.25 if kind == 'f' else 1 if kind == 'i' else True})"


def smaller(f: Function, text: str) -> Iterator[Function]:
  """Functions with a line less, or simpler. `text`: the whole program, in which names are looked for."""
  for i, line in enumerate(f.lines):
    others = f.lines[:i], f.lines[i + 1 :]
    if len(re.findall(rf"\b{line.name}\b", text)) == 1:
      yield dataclasses.replace(f, lines=others[0] + others[1])
    else:
      if line.text != (simple := constants(line.value)):
        yield dataclasses.replace(f, lines=(*others[0], Line(line.name, simple, (), line.value), *others[1]))
    for k, inner in enumerate(line.functions):
      for less in smaller(inner, text):
        functions = (*line.functions[:k], less, *line.functions[k + 1 :])
        yield dataclasses.replace(f, lines=(*others[0], dataclasses.replace(line, functions=functions), *others[1]))


def kind_of(said: str) -> str:
  """What is said of a fault, without numbers."""
  return re.sub(r"[\d.e+-]+|float|int|bool", "", said.split("\n")[0])[:60]


def shrunk(p: Program, said: str) -> Program:
  """While it fails in the same way."""
  end, kind = time.monotonic() + SHRINK_SECONDS, kind_of(said)
  while time.monotonic() < end:
    for less in candidates(p):
      with contextlib.suppress(Exception):
        if (found := fault(less)) and kind_of(found) == kind:
          p = less
          break
      if time.monotonic() > end:
        return p
    else:
      return p
  return p


def candidates(p: Program) -> Iterator[Program]:
  if p.mode not in ("called", "apart"):
    yield p.variant(mode="called")
  results = re.findall(r"v\d+\S*?(?=, )", p.main.result)
  for some in [[one] for one in results] + [[r for r in results if r != one] for one in results]:
    if some and some != results:
      yield p.variant(main=dataclasses.replace(p.main, result=f"({', '.join(some)}, )"))
  for less in smaller(p.main, str(p.main)):
    yield p.variant(main=less)


# ---------------------------------------------------------------- main


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_transforms", __doc__, "CPU")
  parser.add_argument("--whole", action="store_true", help="print programs as they are drawn")
  asked = parser.parse_args(arguments)
  counts = dict.fromkeys(("done", REFUSED, "left out", "failed"), 0)
  for seed in seeds(asked):
    counts["done"] += 1
    p = Program(seed)
    try:
      said = fault(p)
    except Unsure:
      counts["left out"] += 1
      continue
    if said == REFUSED:
      counts[REFUSED] += 1
    elif said:
      counts["failed"] += 1
      p = p if asked.whole else shrunk(p, said)
      print(f"--seed {seed} --count 1: {said}\n{p}\n", flush=True)
  print(f"programs from --seed {asked.seed}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
  return int(counts["failed"] > 0)


if __name__ == "__main__":
  sys.exit(main())
