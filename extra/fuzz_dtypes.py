"""Random chains of operations over 13 types, beside numpy, for as long as one likes.

    python -m extra.fuzz_dtypes --seconds 600
    python -m extra.fuzz_dtypes --seed 123456 --devices 2

A program is a few leaves and 2 to 7 operations: casts, stack and cat, shifts, comparisons, choices, gathers, scans,
sorts, reductions, matmul, movement. All values are whole numbers that the type of the result holds exactly, sums of
their magnitudes too, so that what numpy computes is what has to come out, bit for bit, however it is fused, rounded or
cut; integers of full width wrap. Leaves are realized or not, expressions, or views of larger buffers; every second
program is sharded over two devices; in every fifth one values may have no elements. Programs with the seeds that
follow --seed run until the time is over or one fails; that one is shrunk and printed as a program that can be run. Exit
status: 0 if all agreed, 1 if one failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygrad import Device, Sharding, Tensor, dtypes
from tinygrad.dtype import DType, to_numpy_dtype

INTEGERS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
INTEGERS += (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
TYPES = (dtypes.bool, *INTEGERS, *FLOATS)
# whole numbers below are exact, and their halves
EXACT = {dtypes.float16: 1 << 10, dtypes.bfloat16: 1 << 7, dtypes.float32: 1 << 23, dtypes.float64: 1 << 52}
DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33)
FEW = (0, 1, 1, 2, 3)  # of each fifth program, whose values may have no elements
MOST = 1200  # elements of a value
SHRINK_SECONDS = 60.0
KINDS = ("realized", "host", "expression", "view")


@dataclass(frozen=True)
class Node:
  """A value: `code`, an expression of others (`v3`) and of `Tensor`, or a leaf; what numpy makes of it; whether it is
  realized before it is used."""

  code: str
  src: tuple[int, ...]
  value: np.ndarray
  dtype: DType
  kind: str = ""  # of a leaf
  axis: int | None = None  # along which a leaf is cut, if the program is sharded
  realized: bool = False


@dataclass(frozen=True)
class Program:
  nodes: tuple[Node, ...]
  roots: tuple[int, ...]
  devices: int

  @property
  def used(self) -> list[int]:
    """The nodes that the roots are made of, in order."""
    out = set(self.roots)
    for i in reversed(range(len(self.nodes))):
      out |= set(self.nodes[i].src) if i in out else set()
    return sorted(out)


# ---------------------------------------------------------------- making


def exact(value: np.ndarray, dtype: DType) -> bool:
  """Whether a type holds these numbers, and would the sum of their magnitudes' halves."""
  if dtypes.is_float(dtype):
    wide = value.astype(np.float64)
    return bool(np.isfinite(wide).all() and (np.abs(wide) <= EXACT[dtype]).all() and (wide == np.rint(wide)).all())
  return True


def magnitude(value: np.ndarray) -> np.ndarray:
  return np.abs(value.astype(np.float64))


def sum_type(dtype: DType) -> DType:
  """What a sum of the type is: floats stay, others have at least 32 bits."""
  if dtypes.is_float(dtype):
    return dtype
  least = dtypes.uint32 if dtypes.is_unsigned(dtype) else dtypes.int32
  return dtype if dtype.itemsize > 4 else least


class Maker:
  """Makes one program; a method that adds an operation to x gives False where it does not apply."""

  def __init__(self, seed: int, devices: int) -> None:
    self.rng, self.devices, self.dims = random.Random(seed), devices, FEW if seed % 5 == 4 else DIMS
    self.nodes: list[Node] = []

  def program(self) -> Program:
    self.leaf(self.shape(), self.rng.choice(TYPES))
    steps = self.rng.randint(2, 7)
    made = 0
    while made < steps:
      last = len(self.nodes) - 1
      x = last if self.rng.random() < 0.8 else self.rng.randrange(len(self.nodes))
      before = len(self.nodes)
      made += self.rng.choice(OPERATIONS)(self, x) and len(self.nodes) > before
    steps_made = [i for i, n in enumerate(self.nodes) if n.src]
    roots = {len(self.nodes) - 1, *(self.rng.choice(steps_made) for _ in range(self.rng.choice((0, 0, 1, 2))))}
    return Program(tuple(self.nodes), tuple(sorted(roots)), self.devices)

  # ---- values

  def shape(self) -> tuple[int, ...]:
    return tuple(self.rng.choice(self.dims) for _ in range(self.rng.choice((1, 2, 2, 2, 3))))

  def numbers(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Small whole numbers; of integers sometimes ones of full width."""
    made, full = np.random.default_rng(self.rng.randrange(1 << 30)), self.rng.random() < 0.4
    if dtype is dtypes.bool:
      return made.integers(0, 2, shape).astype(bool)
    if dtypes.is_int(dtype) and full:
      return made.integers(int(dtypes.min(dtype)), int(dtypes.max(dtype)), shape, to_numpy_dtype(dtype), endpoint=True)
    low = 0 if dtypes.is_unsigned(dtype) else -4
    return made.integers(low, 5, shape).astype(to_numpy_dtype(dtype))

  def leaf(self, shape: tuple[int, ...], dtype: DType, numbers: np.ndarray | None = None) -> int:
    value = self.numbers(shape, dtype) if numbers is None else numbers
    kind = self.rng.choice(KINDS)
    if numbers is None and kind == "expression":
      value = (np.arange(value.size).reshape(shape) % 7).astype(value.dtype)
    elif kind == "expression":
      kind = "realized"
    if not shape and kind == "view":
      kind = "host"
    axis = self.rng.choice((None, *range(len(shape))))
    self.nodes.append(Node("", (), value, dtype, kind, axis))
    return len(self.nodes) - 1

  def add(self, code: str, value: Any, dtype: DType, *src: int) -> bool:
    """The operation, if the type holds its values."""
    value = np.asarray(value)
    if not int(0 not in self.dims) <= value.size <= MOST or not exact(value, dtype):
      return False
    value = value.astype(to_numpy_dtype(dtype))
    names = {f"x{i}": f"v{s}" for i, s in enumerate(src)}
    self.nodes.append(Node(code.format(**names), src, value, dtype, realized=self.rng.random() < 0.15))
    return True

  def of(self, x: int) -> tuple[np.ndarray, DType]:
    return self.nodes[x].value, self.nodes[x].dtype

  def like(self, x: int) -> int:
    """Another value of the shape and type of x: one that is there, or a leaf."""
    value, dtype = self.of(x)
    same = [i for i, n in enumerate(self.nodes) if n.value.shape == value.shape and n.dtype is dtype]
    return self.rng.choice(same) if self.rng.random() < 0.5 else self.leaf(value.shape, dtype)

  def axis(self, value: np.ndarray) -> int:
    return self.rng.randrange(value.ndim)

  # ---- operations

  def cast(self, x: int) -> bool:
    (value, dtype), to = self.of(x), self.rng.choice(TYPES)
    if to is dtype:
      return False
    if dtypes.is_float(dtype) and dtypes.is_int(to):
      wide = value.astype(np.float64)
      if wide.min(initial=0) < dtypes.min(to) or wide.max(initial=0) > dtypes.max(to):
        return False
    if dtypes.is_float(to) and dtype is not dtypes.bool and magnitude(value).max(initial=0) > EXACT[to]:
      return False
    wide = value.astype(np.float64) if dtypes.is_float(dtype) else value
    return self.add(f"{{x0}}.cast(dtypes.{to.name})", (wide != 0) if to is dtypes.bool else wide, to, x)

  def bitcast(self, x: int) -> bool:
    value, dtype = self.of(x)
    if dtype not in INTEGERS:
      return False
    to = INTEGERS[(INTEGERS.index(dtype) + 4) % 8]
    return self.add(f"{{x0}}.bitcast(dtypes.{to.name})", value.view(to_numpy_dtype(to)), to, x)

  def stack(self, x: int) -> bool:
    (value, dtype), y = self.of(x), self.like(x)
    dim = self.rng.randint(0, value.ndim)
    return self.add(f"{{x0}}.stack({{x1}}, dim={dim})", np.stack([value, self.of(y)[0]], dim), dtype, x, y)

  def cat(self, x: int) -> bool:
    value, dtype = self.of(x)
    y, dim = self.like(x), self.axis(value) if value.ndim else 0
    if not value.ndim:
      return False
    return self.add(f"{{x0}}.cat({{x1}}, dim={dim})", np.concatenate([value, self.of(y)[0]], dim), dtype, x, y)

  def shift(self, x: int) -> bool:
    (value, dtype), right = self.of(x), self.rng.random() < 0.5
    if dtype not in INTEGERS:
      return False
    by = self.rng.choice((1, 2, dtype.bitsize // 2, dtype.bitsize - 1))
    shifted = (np.right_shift if right else np.left_shift)(value, value.dtype.type(by))
    return self.add(f"{{x0}} {'>>' if right else '<<'} {by}", shifted, dtype, x)

  def compare(self, x: int) -> bool:
    y, (name, f) = self.like(x), self.rng.choice((("<", np.less), ("==", np.equal), ("!=", np.not_equal)))
    return self.add(f"{{x0}} {name} {{x1}}", f(self.of(x)[0], self.of(y)[0]), dtypes.bool, x, y)

  def where(self, x: int) -> bool:
    value, dtype = self.of(x)
    y = self.like(x)
    masks = [i for i, n in enumerate(self.nodes) if n.dtype is dtypes.bool and n.value.shape == value.shape]
    c = self.rng.choice(masks) if masks else self.leaf(value.shape, dtypes.bool)
    return self.add("{x0}.where({x1}, {x2})", np.where(self.of(c)[0], value, self.of(y)[0]), dtype, c, x, y)

  def arithmetic(self, x: int) -> bool:
    y = self.like(x)
    (a, dtype), (b, _) = self.of(x), self.of(y)
    names: dict[str, Any] = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
    if dtype is not dtypes.bool:
      both = {"+": np.add, "-": np.subtract, "*": np.multiply}
      names = both if dtypes.is_float(dtype) else names | both
    name = self.rng.choice(list(names))
    wide = [v.astype(np.float64) if dtypes.is_float(dtype) else v for v in (a, b)]
    with np.errstate(all="ignore"):
      return self.add(f"{{x0}} {name} {{x1}}", names[name](*wide), dtype, x, y)

  def extremum(self, x: int) -> bool:
    y, name = self.like(x), self.rng.choice(("maximum", "minimum"))
    return self.add(f"{{x0}}.{name}({{x1}})", getattr(np, name)(self.of(x)[0], self.of(y)[0]), self.of(x)[1], x, y)

  def division(self, x: int) -> bool:
    (value, dtype), modulo = self.of(x), self.rng.random() < 0.5
    by = self.rng.choice((1, 2, 3, 7, 8) if dtypes.is_unsigned(dtype) else (1, 2, 3, 7, 8, -1, -2, -5))
    if dtype not in INTEGERS:
      return False
    with np.errstate(all="ignore"):
      out = (np.mod if modulo else np.floor_divide)(value, value.dtype.type(by))
    return self.add(f"{{x0}} {'%' if modulo else '//'} {by}", out, dtype, x)

  def unary(self, x: int) -> bool:
    value, dtype = self.of(x)
    if dtype is dtypes.bool:
      return self.add("{x0}.logical_not()", ~value, dtype, x)
    names: dict[str, Callable[[np.ndarray], Any]] = {"-{x0}": np.negative, "{x0}.abs()": np.abs}
    names |= {"{x0}.relu()": lambda a: np.maximum(a, a.dtype.type(0)), "{x0}.sign()": np.sign}
    if dtypes.is_float(dtype):
      names["({x0} * 0.5).floor()"] = lambda a: np.floor(a.astype(np.float64) / 2)
    else:
      names["~{x0}"] = np.invert
    code = self.rng.choice(list(names))
    with np.errstate(all="ignore"):
      return self.add(code, names[code](value), dtype, x)

  def gather(self, x: int) -> bool:
    value, dtype = self.of(x)
    if not value.ndim:
      return False
    if not value.shape[0]:
      return False
    count, kind = (
      self.rng.choice((1, 3, 8, 11) if 0 not in self.dims else (0, 1, 3)),
      self.rng.choice((dtypes.int32, dtypes.int64, dtypes.uint8)),
    )
    rows = np.random.default_rng(self.rng.randrange(1 << 30)).integers(0, value.shape[0], count)
    index = self.leaf((count,), kind, rows.astype(to_numpy_dtype(kind)))
    return self.add("{x0}[{x1}]", value[self.of(index)[0].astype(np.int64)], dtype, x, index)

  def scan(self, x: int) -> bool:
    value, dtype = self.of(x)
    if not value.ndim:
      return False
    axis, name = self.axis(value), self.rng.choice(("cumsum", "cummax", "cummin"))
    if name != "cumsum":
      f = np.maximum if name == "cummax" else np.minimum
      return self.add(f"{{x0}}.{name}({axis})[0]", f.accumulate(value, axis), dtype, x)
    to = sum_type(dtype)
    if dtypes.is_float(to) and magnitude(value).sum(axis).max(initial=0) > EXACT[to]:
      return False
    wide = np.float64 if dtypes.is_float(to) else to_numpy_dtype(to)
    return self.add(f"{{x0}}.cumsum({axis})", value.astype(wide).cumsum(axis, dtype=wide), to, x)

  def sort(self, x: int) -> bool:
    value, dtype = self.of(x)
    if not value.ndim or value.size > 300:
      return False
    axis, down = self.axis(value), self.rng.random() < 0.5
    out = np.sort(value, axis)
    return self.add(f"{{x0}}.sort({axis}, descending={down})[0]", np.flip(out, axis) if down else out, dtype, x)

  def reduce(self, x: int) -> bool:
    value, dtype = self.of(x)
    if not value.ndim:
      return False
    axis, keep = self.axis(value), self.rng.random() < 0.3
    name = self.rng.choice(("sum", "sum", "max", "max", "min", "min", "any", "argmax"))
    if not value.shape[axis] and name in ("max", "min", "argmax"):
      return False
    code, to = f"{{x0}}.{name}({axis}, keepdim={keep})", dtype
    if name == "argmax":
      return self.add(code, value.argmax(axis, keepdims=keep), dtypes.int32, x)
    if name == "any":
      return self.add(code, (value != 0).any(axis, keepdims=keep), dtypes.bool, x)
    if name == "sum":
      to = sum_type(dtype)
      if dtypes.is_float(to) and magnitude(value).sum(axis).max(initial=0) > EXACT[to]:
        return False
      wide = np.float64 if dtypes.is_float(to) else to_numpy_dtype(to)
      return self.add(code, value.astype(wide).sum(axis, dtype=wide, keepdims=keep), to, x)
    return self.add(code, getattr(np, name)(value, axis, keepdims=keep), to, x)

  def matmul(self, x: int) -> bool:
    value, dtype = self.of(x)
    if value.ndim != 2 or dtype is dtypes.bool:
      return False
    y, code = x, "{x0} @ {x0}.transpose()"
    other = value.T
    if self.rng.random() < 0.5:
      y, code = self.leaf((value.shape[1], self.rng.choice(self.dims)), dtype), "{x0} @ {x1}"
      other = self.of(y)[0]
    if dtypes.is_float(dtype):
      if (magnitude(value) @ magnitude(other)).max(initial=0) > EXACT[dtype]:
        return False
      value, other = value.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
      return self.add(code, value @ other, dtype, *dict.fromkeys((x, y)))

  def move(self, x: int) -> bool:
    value, dtype = self.of(x)
    if not value.ndim:
      return False
    axis, n = self.axis(value), value.ndim
    k = self.rng.randrange(6)
    if k == 0:
      order = self.rng.sample(range(n), n)
      return self.add(f"{{x0}}.permute({order})", value.transpose(order), dtype, x)
    if k == 1:
      return self.add(f"{{x0}}.flip({axis})", np.flip(value, axis), dtype, x)
    if k == 2:
      pads = [(self.rng.randint(0, 2), self.rng.randint(0, 2)) for _ in range(n)]
      return self.add(f"{{x0}}.pad({tuple(pads)})", np.pad(value, pads), dtype, x)
    if k == 3:
      pair = self.rng.sample if 0 not in self.dims else self.rng.choices
      cut = [sorted(pair(range(m + 1), k=2)) for m in value.shape]
      code, at = ", ".join(f"{a}:{b}" for a, b in cut), tuple(slice(a, b) for a, b in cut)
      return self.add(f"{{x0}}[{code}]", value[at], dtype, x)
    if k == 4:
      return self.add(f"{{x0}}.reshape({value.size})", value.reshape(-1), dtype, x)
    times = self.rng.choice((2, 3))
    return self.add(f"{{x0}}.expand({times}, *{value.shape})", np.broadcast_to(value, (times, *value.shape)), dtype, x)


OPERATIONS: tuple[Callable[[Maker, int], bool], ...] = (
  *(Maker.cast,) * 4, Maker.bitcast, *(Maker.stack,) * 2, *(Maker.cat,) * 2, *(Maker.shift,) * 2, *(Maker.compare,) * 2,
  *(Maker.where,) * 2, *(Maker.arithmetic,) * 3, Maker.extremum, Maker.division, *(Maker.unary,) * 2, Maker.gather,
  *(Maker.scan,) * 3, Maker.sort, *(Maker.reduce,) * 4, *(Maker.matmul,) * 2, *(Maker.move,) * 2,
)  # fmt: skip


def make(seed: int, devices: int | None = None) -> Program:
  """The program of a seed; odd ones run on two devices."""
  return Maker(seed, 1 + seed % 2 if devices is None else devices).program()


# ---------------------------------------------------------------- running


def leaf_code(node: Node, devices: int) -> str:
  """The Python that makes a leaf, of `array`."""
  dtype, shape = f"dtypes.{node.dtype.name}", node.value.shape
  code = f"Tensor(array, dtype={dtype})"
  if node.kind == "expression":
    code = f"(Tensor.arange({node.value.size}, dtype=dtypes.int32) % 7).reshape({shape}).cast({dtype})"
  elif node.kind == "view":
    code += f".pad({tuple((1, 2) for _ in shape)}).contiguous().realize()[{', '.join(f'1:{n + 1}' for n in shape)}]"
  if devices > 1:
    where = tuple(f"{Device.DEFAULT}:{i}" for i in range(devices))
    code += f".shard({where!r}, axis={node.axis})"
  return code + (".realize()" if node.kind == "realized" else "")


def run(program: Program) -> list[np.ndarray]:
  """What the roots are."""
  env: dict[str, Any] = {"Tensor": Tensor, "dtypes": dtypes, "Sharding": Sharding}
  for i in program.used:
    node = program.nodes[i]
    code = node.code if node.src else leaf_code(node, program.devices)
    made = eval(code, {**env, "array": node.value})
    env[f"v{i}"] = made.realize() if node.realized else made
  roots = [env[f"v{i}"] for i in program.roots]
  for i, t in zip(program.roots, roots, strict=True):
    node = program.nodes[i]
    assert t.dtype is node.dtype and t.shape == node.value.shape, f"v{i} is {t.dtype} {t.shape}"
  Tensor.realize(*roots)
  return [t.numpy() for t in roots]


def fault(program: Program) -> str | None:
  """How the program fails; None if it does not."""
  try:
    got = run(program)
  except Exception as e:  # whatever it is, it is what is to be found
    return f"{type(e).__name__}: {e}"
  for i, x in zip(program.roots, got, strict=True):
    want = program.nodes[i].value
    if not np.array_equal(x.astype(want.dtype), want):
      return f"v{i} is\n{x.tolist()}\nnot\n{want.tolist()}"
  return None


# ---------------------------------------------------------------- shrinking and printing


def smaller(program: Program) -> Iterator[Program]:
  """Programs with less in them, the boldest first."""
  for r in program.roots if len(program.roots) > 1 else ():
    yield replace(program, roots=(r,))
  (*_, root), used = program.roots, program.used
  for i in reversed(used):
    if i != root and program.nodes[i].src:
      yield replace(program, roots=(i,))

  def with_node(i: int, node: Node) -> Program:
    return replace(program, nodes=(*program.nodes[:i], node, *program.nodes[i + 1 :]))

  for i in reversed(used):
    if program.nodes[i].src and i not in program.roots:
      yield with_node(i, replace(program.nodes[i], code="", src=(), kind="realized", realized=False))
  if program.devices > 1:
    yield replace(program, devices=1)
  for i in used:
    if program.nodes[i].kind not in ("", "realized"):
      yield with_node(i, replace(program.nodes[i], kind="realized"))
    if program.nodes[i].realized:
      yield with_node(i, replace(program.nodes[i], realized=False))
    if program.devices > 1 and program.nodes[i].axis is not None:
      yield with_node(i, replace(program.nodes[i], axis=None))


def shrink(program: Program, seconds: float = SHRINK_SECONDS) -> Program:
  """Smaller and smaller programs that fail, until none of the next ones does or the time is over."""
  end, found = time.monotonic() + seconds, True
  while found and time.monotonic() < end:
    smallest = next((p for p in smaller(program) if time.monotonic() < end and fault(p) is not None), None)
    program, found = smallest or program, smallest is not None
  return program


def text(program: Program) -> str:
  """The program as one that raises AssertionError while it fails."""
  lines = ["import numpy as np", "from tinygrad import Tensor, dtypes", ""]
  for i in program.used:
    node = program.nodes[i]
    code = node.code if node.src else leaf_code(node, program.devices)
    made = f"np.array({node.value.tolist()}, {node.value.dtype.name!r})"
    if node.dtype is dtypes.bfloat16:
      made = f"np.array({node.value.astype(np.float32).tolist()}, 'float32')"
    lines.append(f"v{i} = {code.replace('array', made)}" + (".realize()" if node.realized else ""))
  names = ", ".join(f"v{i}" for i in program.roots)
  lines.append(f"Tensor.realize({names})")
  for i in program.roots:
    lines.append(f"assert v{i}.tolist() == {program.nodes[i].value.tolist()}, v{i}.tolist()")
  return "\n".join(lines) + "\n"


def fuzz(
  seeds: Iterator[int], seconds: float = 60.0, devices: int | None = None
) -> tuple[int, Program | None, str | None]:
  """(programs run, a shrunk failing one, how it fails)."""
  end, done = time.monotonic() + seconds, 0
  for seed in seeds:
    if time.monotonic() > end:
      break
    program, done = make(seed, devices), done + 1
    if fault(program) is not None:
      program = shrink(program)
      return done, program, fault(program)
  return done, None, None


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (default: %(default)s)")
  parser.add_argument("--seed", type=int, default=1_000_000, help="the first program (default: %(default)s)")
  parser.add_argument("--devices", type=int, choices=(1, 2), help="of all programs (default: one and two by turns)")
  args = parser.parse_args(argv)
  count, program, how = fuzz(iter(range(args.seed, sys.maxsize)), args.seconds, args.devices)
  if program is None:
    print(f"{count} programs agreed (seeds {args.seed} to {args.seed + count - 1})")
    return 0
  print(f"# seed {args.seed + count - 1} fails")
  print("".join(f"# {line}\n" for line in (how or "not again").splitlines()) + text(program), end="")
  return 1


if __name__ == "__main__":
  sys.exit(main())
