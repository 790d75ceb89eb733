"""Graphs that differ in numbers alone have one plan, as loops over slices and steps of a falling rate need it: from the
second such graph on, the numbers that differ are variables (as every number of Python is in JAX; PyTorch's compiler
calls it automatic dynamic shapes)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes, to_dtype, to_numpy_dtype
from tinygrad.helpers import KEPT_KERNELS, PROCESS, numpy
from tinygrad.ops import Trait, having
from tinygrad.sharding.outcomes import is_partial
from tinygrad.uop import Ops, UOp, simplify_sint, sint, substitute

DIVIDES = having(Trait.DIVIDES)
NUMBER = "_number"  # how the variables' names begin
Number = tuple[int, int, int, int]  # for which dim (of a constant 0), and the bounds
Form = tuple[list[int], set[int], dict[tuple[int, ...], UOp]]
"""Its first numbers, which have differed, and by those that have not the graphs with variables for the others."""
_forms: dict[UOp, Form] = PROCESS.table(KEPT_KERNELS)


def numbers_of(u: UOp) -> Iterator[Number]:
  """Which numbers of a node may be variables: the bits of a constant that no rule of algebra knows; where SHRINK begins
  in a dim, and PAD puts it, if every device has all of that."""
  if u.op is Ops.CONST and u.dtype is not dtypes.bool and u.dtype is not dtypes.index:
    if math.isfinite(u.arg) and abs(u.arg) not in (0, 1):
      end = 1 << u.dtype.bitsize - 1
      bits = numpy.array(u.arg, to_numpy_dtype(u.dtype)).view(f"i{u.dtype.itemsize}")
      yield 0, bits.item(), -end, end - 1
  elif u.op is Ops.SHRINK or u.op is Ops.PAD:
    pairs = zip(u.arg if u.op is Ops.SHRINK else u.arg[0], u.src[0].shape, u.shape, strict=True)
    for i, ((lo, hi), n, m) in enumerate(pairs):
      whole = not isinstance(u.device, Sharding) or not u.device.cut(i)
      if type(lo) is type(hi) is type(n) is int and n != m and whole:
        yield i, lo, 0, abs(n - m)


def with_numbers(u: UOp, src: tuple[UOp, ...], numbers: Mapping[int, UOp]) -> UOp:
  """`u` over other sources, with variables for some of its numbers."""
  if u.op is Ops.CONST:
    return numbers[0].cast(to_dtype(f"int{u.dtype.bitsize}")).bitcast(u.dtype)
  shrinks = u.op is Ops.SHRINK
  pairs: list[tuple[sint, sint]] = list(u.arg if shrinks else u.arg[0])
  for i, n in numbers.items():
    lo, hi = pairs[i]
    pairs[i] = n, simplify_sint(n + (hi - lo) if shrinks else lo + hi - n)
  return u.replace(src=src, arg=tuple(pairs) if shrinks else (tuple(pairs), u.arg[1]))


def with_variables(sink: UOp, found: list[tuple[UOp, Number]], which: Iterable[int]) -> UOp:
  """`sink` with variables for these of its numbers."""
  chosen = defaultdict[UOp, dict[int, UOp]](dict)
  for k in which:
    u, (i, _, lo, hi) = found[k]
    chosen[u][i] = UOp.variable(f"{NUMBER}{k}", lo, hi)

  def make(u: UOp, src: tuple[UOp, ...], _: object) -> UOp:
    return with_numbers(u, src, chosen[u]) if u in chosen else u.replace(src=src)

  return substitute(sink, {}, rules=dict.fromkeys({u.op for u in chosen}, make))


def generalize(sink: UOp, values: Mapping[str, int]) -> tuple[UOp, dict[str, int]]:
  """A canonical graph, whose variables have `values`, with more variables for those of its numbers in which it has ever
  differed from the first of its form, and all values; itself, if it is the first."""
  order = sink.toposort()
  fixed = {u.src[1].base for u in order if u.op in DIVIDES}  # a known divisor is a product and a shift
  if any(is_partial(u.device) for u in order):  # whose rules ask what constants are
    fixed.update(u for u in order if u.op is Ops.CONST)
  found = [(u, number) for u in order if u not in fixed for number in numbers_of(u)]
  if not found or any(name.startswith(NUMBER) for name in values):
    return sink, {**values}
  numbers = [n for _, (_, n, _, _) in found]
  form = with_variables(sink, found, range(len(found)))
  if (known := _forms.get(form)) is None:
    known = _forms[form] = numbers, set(), {}
  first, differing, graphs = known
  differing.update(k for k, n in enumerate(numbers) if n != first[k])
  which = frozenset(differing)  # another thread may add to it
  same = tuple([n for k, n in enumerate(numbers) if k not in which])
  if (graph := graphs.get(same)) is None:
    graph = graphs[same] = with_variables(sink, found, sorted(which))
  return graph, {**values, **{f"{NUMBER}{k}": numbers[k] for k in which}}


def as_given(v: UOp, value: int) -> UOp:
  """A variable as it was before: the number in whose place it is, or bound."""
  return UOp.const(v.dtype, value) if v.arg[0].startswith(NUMBER) else v.bind(value)
