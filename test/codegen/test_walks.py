"""A graph is a DAG, and the paths through it are exponential: what a stage does grows with the nodes, in every stage
and for every kind of graph.

Each case makes a graph of n steps, of which each reads the one before at least twice; what more of them take is counted
in lines that run (`steps.py`), and it must not grow with how many there are already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from codegen_kernels import dot, fold, load, loop, num, op, reduce, sink, store
from steps import growth

from tinygrad.codegen import lower_kernel
from tinygrad.device import Device, Rendered, Target
from tinygrad.dtype import dtypes
from tinygrad.renderer import cstyle, dialects
from tinygrad.schedule.loops import tidy
from tinygrad.uop import Ops, ParamArg, UOp

GRID = Target("GRID", vector_registers=64, scratch=32 << 10, threads=True, cooperates=True)
TARGETS = {"CPU": Device["CPU"].target, "grid": GRID}
ROWS, COLUMNS = 64, 48
# steps of a case, by name: a function is hundreds of operations; rows in blocks are cut otherwise while there are few
STEPS = {"sines": 3, "powers": 2, "functions": 4, "integers_read_from_memory": 6, "several_stores": 32}
# and before they are counted: so many operands do not fit the local memory of a group
FROM = {"several_operands_of_one_product": 40}
KERNELS: dict[str, Callable[[int], UOp]] = {}


def case(f: Callable[[int], UOp]) -> Callable[[int], UOp]:
  KERNELS[f.__name__] = f
  return f


def array(n: int, dtype: str = "float32") -> np.ndarray:
  return np.zeros(n, dtype)


def doubled(x: UOp, n: int, code: Ops = Ops.ADD) -> UOp:
  """2**n paths lead from here to x."""
  for _ in range(n):
    x = op(code, x, x)
  return x


def const(x: UOp, value: float) -> UOp:
  return UOp.const(x.dtype, value)


def element(n: int, slot: int = 1, *ranges: tuple[UOp, int], dtype: str = "float32") -> UOp:
  """A load of memory that no other number of steps has."""
  size = n + sum((int(r.src[0].arg)) * step for r, step in ranges)
  return load(slot, array(size, dtype), dot(*ranges))


def over_i(value: Callable[[UOp], UOp]) -> UOp:
  i = loop(ROWS, 0)
  return sink(store(i, value(i), i, size=ROWS))


def summed(value: Callable[[UOp, UOp], UOp], code: Ops = Ops.ADD) -> UOp:
  i, k = loop(ROWS, 0), reduce(COLUMNS, 1)
  return sink(store(i, fold(code, value(i, k), k), i, size=ROWS))


@case
def arithmetic(n: int) -> UOp:
  return over_i(lambda i: doubled(element(n, 1, (i, 1)), n))


@case
def a_reduction(n: int) -> UOp:
  return summed(lambda i, k: doubled(element(n, 1, (i, COLUMNS), (k, 1)), n))


@case
def a_product_of_operands_known_further_out(n: int) -> UOp:
  """A matmul whose operands take many operations each."""
  i, j, k = loop(256, 0), loop(256, 1), reduce(256, 2)
  x, y = (doubled(element(n, s, (r, 256), (k, 1)), n, Ops.MUL) for s, r in ((1, i), (2, j)))
  return sink(store(dot((i, 256), (j, 1)), fold(Ops.ADD, op(Ops.MUL, x, y), k), i, j, size=256 * 256))


@case
def several_operands_of_one_product(n: int) -> UOp:
  """Σ_k Σ_s x[i, k]·f_s(y[k, j]), where each f_s is made of the one before."""
  i, j, k = loop(256, 0), loop(256, 1), reduce(256, 2)
  x, y = element(n, 1, (i, 256), (k, 1)), element(n, 2, (k, 256), (j, 1))
  total = op(Ops.MUL, x, y)
  for _ in range(n):
    y = op(Ops.MUL, y, y)
    total = op(Ops.ADD, total, op(Ops.MUL, x, y))
  return sink(store(dot((i, 256), (j, 1)), fold(Ops.ADD, total, k), i, j, size=256 * 256))


@case
def random_bits(n: int) -> UOp:
  """Rounds of additions, turns and exclusive ors, as a generator of random bits has them."""

  def rounds(i: UOp, k: UOp) -> UOp:
    x = y = UOp.new(Ops.CAST, dtypes.uint32, (dot((i, COLUMNS), (k, 1)),))
    y = op(Ops.ADD, y, const(y, n))
    for turn in range(n):
      x = op(Ops.ADD, x, y)
      left, right = (op(code, y, const(y, by)) for code, by in ((Ops.SHL, 5 + turn % 7), (Ops.SHR, 27 - turn % 7)))
      y = op(Ops.XOR, op(Ops.OR, left, right), x)
    return op(Ops.ADD, x, y)

  return summed(rounds)


@case
def conditions(n: int) -> UOp:
  """A condition of many, each of which holds the one before twice."""

  def value(i: UOp, k: UOp) -> UOp:
    x = element(n, 1, (i, COLUMNS), (k, 1))
    valid = op(Ops.CMPLT, k, i)
    for number in range(n):
      valid = op(Ops.OR, op(Ops.AND, valid, op(Ops.CMPLT, i, k + number)), op(Ops.NOT, valid))
    return op(Ops.WHERE, valid, x, const(x, 0.0))

  return summed(value)


@case
def conditions_of_loads(n: int) -> UOp:
  """Every load's condition holds that of the one before."""

  def value(i: UOp, k: UOp) -> UOp:
    valid, total = op(Ops.CMPLT, k, i), element(n, 1, (i, COLUMNS), (k, 1))
    for number in range(n):
      valid = op(Ops.AND, valid, op(Ops.CMPLT, i, k + number))
      more = load(2 + number % 3, array(ROWS * COLUMNS + n), dot((i, COLUMNS), (k, 1)), valid, const(total, 0.0))
      total = op(Ops.ADD, total, more)
    return total

  return summed(value)


@case
def choices(n: int) -> UOp:
  def value(i: UOp) -> UOp:
    x = element(n, 1, (i, 1))
    for number in range(n):
      x = op(Ops.WHERE, op(Ops.CMPLT, x, const(x, number)), op(Ops.NEG, x), x)
    return x

  return over_i(value)


@case
def casts(n: int) -> UOp:
  def value(i: UOp) -> UOp:
    x = element(n, 1, (i, 1))
    for _ in range(n):
      x = op(Ops.ADD, op(Ops.CAST, op(Ops.CAST, x, dtype=dtypes.int32), dtype=dtypes.float32), x)
    return x

  return over_i(value)


@case
def narrow_floats(n: int) -> UOp:
  return over_i(lambda i: doubled(element(n, 1, (i, 1), dtype="float16"), n))


def of_functions(*codes: Ops) -> Callable[[int], UOp]:
  def value(n: int, i: UOp) -> UOp:
    x = element(n, 1, (i, 1))
    for number in range(n):
      code = codes[number % len(codes)]
      x = op(Ops.ADD, op(code, *((x, x) if code is Ops.POW else (x,))), x)
    return x

  return lambda n: over_i(lambda i: value(n, i))


KERNELS["sines"] = of_functions(Ops.SIN)
KERNELS["powers"] = of_functions(Ops.POW)
KERNELS["functions"] = of_functions(Ops.EXP, Ops.LOG, Ops.TANH, Ops.ERF)


@case
def integers_read_from_memory(n: int) -> UOp:
  """Each place is read from where the one before says."""

  def value(i: UOp) -> UOp:
    place = i
    for number in range(n):
      x = load(1 + number % 3, array(ROWS + n, "int32"), place)
      x = op(Ops.ADD, x, x)
      place = op(Ops.MOD, UOp.new(Ops.CAST, dtypes.index, (x,)), num(ROWS))
    return load(4, array(ROWS + n), place)

  return over_i(value)


@case
def a_place_that_is_computed(n: int) -> UOp:
  """Many loads at a place that takes many operations."""

  def value(i: UOp) -> UOp:
    x = doubled(load(1, array(ROWS + n, "int32"), i), n, Ops.XOR)
    place = UOp.new(Ops.CAST, dtypes.index, (x,))
    total = load(2, array(ROWS + n), place)
    for number in range(n):
      total = op(Ops.ADD, total, load(2, array(ROWS + n), op(Ops.ADD, place, num(number))))
    return total

  return over_i(value)


@case
def indices(n: int) -> UOp:
  """Quotients and remainders of quotients and remainders."""

  def value(i: UOp, k: UOp) -> UOp:
    at = dot((i, 3 * COLUMNS), (k, 3))
    for number in range(n):
      at = op(Ops.ADD, op(Ops.IDIV, at, num(2 + number % 3)), op(Ops.MOD, at, num(7 + 2 * (number % 5))))
    return load(1, array(3 * ROWS * COLUMNS + n), at)

  return summed(value)


@case
def indices_doubled(n: int) -> UOp:
  return over_i(lambda i: load(1, array(ROWS + n), op(Ops.IDIV, doubled(i, min(n, 50)), num(1 << min(n, 50)))))


@case
def counters_as_values(n: int) -> UOp:
  """Integers of loops, of which codegen asks whether they are indices."""

  def value(i: UOp, k: UOp) -> UOp:
    x = doubled(UOp.new(Ops.CAST, dtypes.int32, (k,)), n)
    y = element(n, 1, (i, COLUMNS), (k, 1), dtype="int32")
    return op(Ops.WHERE, op(Ops.CMPLT, x, y), x, const(y, 0))

  return summed(value)


@case
def sums_by_index(n: int) -> UOp:
  """Σ_k (e[k] == i and … ? x[k] : 0)"""

  def value(i: UOp, k: UOp) -> UOp:
    chosen = doubled(element(n, 1, (k, 1), dtype="int32"), n)
    x = doubled(element(n, 2, (k, 1)), n)
    hit = op(Ops.CMPEQ, chosen, UOp.new(Ops.CAST, dtypes.int32, (i,)))
    more = op(Ops.CMPLT, element(n, 3, (k, 1), dtype="int32"), const(chosen, 5))
    for _ in range(n):
      more = op(Ops.AND, more, more)
    return op(Ops.WHERE, op(Ops.AND, hit, more), x, const(x, 0.0))

  return summed(value)


@case
def reductions_side_by_side(n: int) -> UOp:
  def value(i: UOp) -> UOp:
    k = reduce(COLUMNS, 1)
    x = element(n, 1, (i, COLUMNS), (k, 1))
    total = fold(Ops.ADD, x, k)
    for number in range(n):
      total = op(Ops.ADD, total, fold(Ops.ADD, op(Ops.MUL, x, const(x, number)), k))
    return total

  return over_i(value)


@case
def reductions_of_reductions(n: int) -> UOp:
  """Each over a loop of its own, of what the one before gives."""

  def value(i: UOp) -> UOp:
    x = element(n, 1, (i, 1))
    for number in range(n):
      k = reduce(16 + number % 3, 1 + number)
      x = fold(Ops.ADD, op(Ops.MUL, element(n, 2, (k, 1)), op(Ops.ADD, x, x)), k)
    return x

  return over_i(value)


@case
def short_reductions(n: int) -> UOp:
  """Written out, one inside of the other's operand."""

  def value(i: UOp) -> UOp:
    x = element(n, 1, (i, 1))
    for number in range(n):
      k = reduce(3, 1 + number)
      x = op(Ops.ADD, x, fold(Ops.ADD, load(2, array(ROWS + 3 + n), op(Ops.ADD, i, k)), k))
    return x

  return over_i(value)


def row_memory(slot: int, size: int, at: UOp) -> UOp:
  return UOp.new(Ops.INDEX, dtypes.float32, (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, size)), at))


def put(where: UOp, value: UOp, *ranges: UOp) -> UOp:
  return UOp.new(Ops.STORE, dtypes.void, (where, value, *ranges))


@case
def several_stores(n: int) -> UOp:
  """Rows of a softmax, of scores that take many operations and have a mask."""
  i, j, j2, k, k2 = loop(ROWS, 0), loop(COLUMNS, 1), loop(COLUMNS, 2), reduce(COLUMNS, 3), reduce(COLUMNS, 4)
  x = doubled(element(n, 1, (i, COLUMNS), (j, 1)), n)
  mask = op(Ops.CMPLT, i, j)
  for _ in range(n):
    mask = op(Ops.OR, op(Ops.AND, mask, mask), mask)
  scores = op(Ops.WHERE, mask, const(x, -np.inf), x)

  def read(slot: int, size: int, at: UOp) -> UOp:
    return UOp.new(Ops.LOAD, dtypes.float32, (row_memory(slot, size, at),))

  weights = op(Ops.EXP, op(Ops.SUB, read(-1, COLUMNS, k2), read(-2, 1, num(0))))
  value = op(Ops.MUL, read(-1, COLUMNS, j2), read(-3, 1, num(0)))
  return sink(
    put(row_memory(-1, COLUMNS, j), scores, i, j),
    put(row_memory(-2, 1, num(0)), fold(Ops.MAX, read(-1, COLUMNS, k), k), i),
    put(row_memory(-3, 1, num(0)), fold(Ops.ADD, doubled(weights, n, Ops.MUL), k2), i),
    put(row_memory(0, ROWS * COLUMNS, dot((i, COLUMNS), (j2, 1))), doubled(value, n), i, j2),
  )


@case
def many_stores(n: int) -> UOp:
  """Of each row what the store before made of it."""
  i, stores = loop(ROWS, 0), list[UOp]()
  x = element(n, 1, (i, COLUMNS), (j := loop(COLUMNS, 1), 1))
  for number in range(n):
    stores.append(put(row_memory(-1 - number, COLUMNS, j), x, i, j))
    j = loop(COLUMNS, 2 + number)
    x = UOp.new(Ops.LOAD, dtypes.float32, (row_memory(-1 - number, COLUMNS, j),))
    x = op(Ops.ADD, x, x)
  return sink(*stores, put(row_memory(0, ROWS * COLUMNS, dot((i, COLUMNS), (j, 1))), x, i, j))


def renderer(target: str) -> Callable[[list[UOp], str], Rendered]:
  return Device["CPU"].render if target == "CPU" else functools.partial(cstyle.render, dialect=dialects.CUDA)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, target):
  def lower(n: int) -> None:
    threads = 4 if target == "CPU" else 1
    ast = tidy(KERNELS[name](n + FROM.get(name, 0)))
    renderer(target)(lower_kernel(ast, TARGETS[target], threads), "kernel")

  assert growth(lower, STEPS.get(name, 16)) < 1.25
