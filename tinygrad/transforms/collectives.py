"""What lanes have to say to each other, by the name of their axis: inside `vmap(axis_name=…)` and `shard_map`.

The lanes are dims of one value, so a sum over them is a reduction, a gather a dim that all of them see, an exchange two
dims in each other's place. Over the axes of a mesh these dims are cut, and that is what travels. Each is a `LanesOp`;
its gradient is that of what it does to the dims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.run import tracers
from tinygrad.transforms.batching import Lanes, lanes_op, placed_on
from tinygrad.transforms.tree import tree_map
from tinygrad.uop import Ops, UOp, describe, render_shape

Names = str | Sequence[str]


def _found(name: str, axis_name: Names) -> list[tuple[Lanes, tuple[int, ...]]]:
  """The lanes that have these axes, the innermost first, with the numbers of their dims. NameError if none have."""
  wanted = [axis_name] if isinstance(axis_name, str) else list(axis_name)
  around = [t for t in reversed(tracers) if isinstance(t, Lanes)]
  of: dict[str, Lanes] = {}
  for lanes in around:
    for n in lanes.names:
      if n is not None:
        of.setdefault(n, lanes)
  if unknown := [n for n in wanted if n not in of]:
    known = ", ".join(map(repr, of)) or "none"
    fix = "call it inside shard_map over a mesh that has it, or vmap(axis_name=…)"
    raise NameError(f"{name}: no axis is named {unknown[0]!r} here; those around are: {known}\n  fix: {fix}")
  return [(x, dims) for x in around if (dims := tuple(x.names.index(n) for n in wanted if of[n] is x))]


def _one(name: str, axis_name: str) -> tuple[Lanes, int]:
  ((lanes, dims),) = _found(name, axis_name)
  return lanes, dims[0]


@dataclass(frozen=True, slots=True)
class Reduced:
  """A reduction over dims of lanes: along them the result is the same for all."""

  op: Ops
  dims: tuple[int, ...]

  def __call__(self, nodes: tuple[UOp, ...]) -> UOp:
    return nodes[0].r(self.op, self.dims)


def _reduced(name: str, x: Any, axis_name: Names, op: Ops) -> Any:
  def leaf(t: Any) -> Any:
    u = _counted(t.uop) if op is Ops.ADD else t.uop
    for lanes, dims in _found(name, axis_name):
      u = lanes_op(f"{name} over {axis_name}", lanes, dims, Reduced(op, dims), (u,))
    return t._new(u)

  return tree_map(leaf, x)


def psum(x: Any, axis_name: Names) -> Any:
  """The sum over the lanes of one axis or several: of a Tensor, or of each in a structure. Of a number: so many times
  it; of truths: how many hold, int32. Over mesh axes an all-reduce.
  Shape: `(..) -> (..)`.

  Examples:
    >>> vmap(lambda x: x / psum(x, "i"), axis_name="i")(Tensor([1.0, 3.0])).tolist()
    [0.25, 0.75]
  """
  return x * axis_size(axis_name) if isinstance(x, (int, float)) else _reduced("psum", x, axis_name, Ops.ADD)


def pmean(x: Any, axis_name: Names) -> Any:
  """The mean over the lanes.
  Shape: `(..) -> (..)`.

  Examples:
    >>> vmap(lambda x: x - pmean(x, "i"), axis_name="i")(Tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
  """
  n = axis_size(axis_name)
  return tree_map(lambda t: t / n, _reduced("pmean", x, axis_name, Ops.ADD))


def pmax(x: Any, axis_name: Names) -> Any:
  """The greatest over the lanes, element by element.
  Shape: `(..) -> (..)`.

  Examples:
    >>> vmap(lambda x: x / pmax(x, "i"), axis_name="i")(Tensor([1.0, 4.0])).tolist()
    [0.25, 1.0]
  """
  return _reduced("pmax", x, axis_name, Ops.MAX)


def pmin(x: Any, axis_name: Names) -> Any:
  """The least over the lanes, element by element.
  Shape: `(..) -> (..)`.

  Examples:
    >>> vmap(lambda x: x - pmin(x, "i"), axis_name="i")(Tensor([1.0, 4.0])).tolist()
    [0.0, 3.0]
  """
  return _reduced("pmin", x, axis_name, Ops.MIN)


def axis_size(axis_name: Names) -> Any:
  """How many lanes there are along an axis, or along several together.

  Examples:
    >>> vmap(lambda x: x * axis_size("i"), axis_name="i")(Tensor([1, 2, 3])).tolist()
    [3, 6, 9]
  """
  size: Any = 1
  for lanes, dims in _found("axis_size", axis_name):
    for i in dims:
      size = size * lanes.sizes[i]
  return size


def axis_index(axis_name: str) -> Any:
  """The number of the lane along an axis, a scalar int32 Tensor.
  Shape: `-> ()`.

  Examples:
    >>> vmap(lambda x: x + axis_index("i"), axis_name="i")(Tensor([10, 10])).tolist()
    [10, 11]
  """
  lanes, i = _one("axis_index", axis_name)
  return lanes.example._new(lanes.index[i])


def all_gather(x: Any, axis_name: str, axis: int = 0, tiled: bool = False) -> Any:
  """What all lanes have, in a new dim `axis`; `tiled`: one after the other in dim `axis`, which is there already. Every
  lane has the same result.
  Raises: IndexError where there is no such dim, ValueError for a tiled number.
  Shape: `(*a, *b) -> (*a, lanes, *b)`; tiled: (*a, n, *b) -> (*a, lanes*n, *b).

  Examples:
    >>> vmap(lambda x: all_gather(x, "i"), axis_name="i")(Tensor([1, 4])).tolist()
    [[1, 4], [1, 4]]
  """
  lanes, i = _one("all_gather", axis_name)
  k, n, at = len(lanes.sizes), lanes.sizes[i], _dim_of("all_gather", x, axis, not tiled)

  def fn(nodes: tuple[UOp, ...]) -> UOp:
    u = nodes[0]
    order = [j for j in range(u.ndim) if j != i]
    order.insert(k - 1 + at, i)
    lead = tuple([1 if j == i else m for j, m in enumerate(u.shape[:k])])
    y = u.permute(order).reshape((*lead, *u.shape[k : k + at], n, *u.shape[k + at :]))
    y = placed_on(y, lanes.mesh, [None if m == 1 else lanes.names[j] for j, m in enumerate(lead)])
    if not tiled:
      return y
    s = y.shape
    return y.reshape((*s[: k + at], s[k + at] * s[k + at + 1], *s[k + at + 2 :]))

  return x._new(lanes_op(f"all_gather over {axis_name}", lanes, (i,), fn, (x.uop,)))


def psum_scatter(x: Any, axis_name: str, scatter_dimension: int = 0, tiled: bool = False) -> Any:
  """The sum over the lanes, of which each gets its part of dim `scatter_dimension`: lane i the i-th index (the dim is
  as long as there are lanes, and goes), `tiled`: the i-th block. Over a mesh axis a reduce-scatter.
  Raises: ValueError where the dim has not as many parts, IndexError where there is no such dim.
  Shape: `(*a, lanes, *b) -> (*a, *b)`; tiled: (*a, n*lanes, *b) -> (*a, n, *b).

  Examples:
    >>> vmap(lambda x: psum_scatter(x, "i"), axis_name="i")(Tensor([[1, 2], [3, 4]])).tolist()
    [4, 6]
  """
  lanes, i = _one("psum_scatter", axis_name)
  k, n, d = len(lanes.sizes), lanes.sizes[i], _dim_of("psum_scatter", x, scatter_dimension)
  _check_parts("psum_scatter", x, d, n, tiled)

  def fn(nodes: tuple[UOp, ...]) -> UOp:
    total = _counted(nodes[0]).r(Ops.ADD, (i,))
    split = total.reshape((*total.shape[: k + d], n, total.shape[k + d] // n, *total.shape[k + d + 1 :]))
    order = [k + d if j == i else i if j == k + d else j for j in range(split.ndim)]
    y = lanes.cut(split.permute(order))
    return y.reshape((*y.shape[: k + d], *y.shape[k + d + (1 if tiled else 2) :]))

  return x._new(lanes_op(f"psum_scatter over {axis_name}", lanes, (i,), fn, (x.uop,)))


def all_to_all(x: Any, axis_name: str, split_axis: int, concat_axis: int, tiled: bool = False) -> Any:
  """Lane i gets the i-th part of dim `split_axis` of every lane. Without `tiled` that dim is as long as there are lanes
  and goes, and a new dim `concat_axis` has what comes from each; `tiled`: the parts are blocks, and stand one after the
  other in dim `concat_axis`.
  Raises: ValueError where the dim has not as many parts, IndexError where there is no such dim.
  Shape: `(*a, lanes, *b) -> (*c, lanes, *d)`; tiled: dim `split_axis` is divided, dim `concat_axis` multiplied by
  lanes.

  Examples:
    >>> vmap(lambda x: all_to_all(x, "i", 0, 0), axis_name="i")(Tensor([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
  """
  lanes, i = _one("all_to_all", axis_name)
  k, n, d = len(lanes.sizes), lanes.sizes[i], _dim_of("all_to_all", x, split_axis)
  c = _dim_of("all_to_all", x, concat_axis)
  _check_parts("all_to_all", x, d, n, tiled)

  def fn(nodes: tuple[UOp, ...]) -> UOp:
    u = nodes[0]  # of a lane: from which one, in whose part
    split = u.reshape((*u.shape[: k + d], n, u.shape[k + d] // n, *u.shape[k + d + 1 :]))
    rest = [j for j in range(k, split.ndim) if j != k + d and (tiled or j != k + d + 1)]
    rest.insert(c, i)
    lead = [k + d if j == i else j for j in range(k)]
    ones = [] if tiled else [k + d + 1]  # of length one
    y = split.permute([*lead, *rest, *ones])
    y = lanes.cut(y if tiled else y.reshape(y.shape[:-1]))
    s = y.shape
    return y.reshape((*s[: k + c], s[k + c] * s[k + c + 1], *s[k + c + 2 :])) if tiled else y

  return x._new(lanes_op(f"all_to_all over {axis_name}", lanes, (i,), fn, (x.uop,)))


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
  """Each pair (source, destination) sends the value of one lane to another; who gets nothing has zeros.
  Raises: ValueError for lanes that are not there, or that send or get twice.
  Shape: `(..) -> (..)`.

  Examples:
    >>> vmap(lambda x: ppermute(x, "i", [(0, 1), (1, 0)]), axis_name="i")(Tensor([1, 4])).tolist()
    [4, 1]
  """
  lanes, i = _one("ppermute", axis_name)
  n = lanes.sizes[i]
  sources = [s for s, _ in perm]
  targets = [t for _, t in perm]
  if len({*sources}) < len(perm) or len({*targets}) < len(perm) or not all(0 <= j < n for j in (*sources, *targets)):
    fix = f"[(j, (j + 1) % {n}) for j in range({n})]  # a ring"
    raise ValueError(f"ppermute: {list(perm)} is no permutation of {n} lanes of {axis_name!r}\n  fix: {fix}")
  by_target = dict(zip(targets, sources))

  def fn(nodes: tuple[UOp, ...]) -> UOp:
    return lanes.cut(UOp.cat([_lanes_of(nodes[0], i, run) for run in _runs([by_target.get(t) for t in range(n)])], i))

  return tree_map(lambda t: t._new(lanes_op(f"ppermute over {axis_name}", lanes, (i,), fn, (t.uop,))), x)


def _runs(sources: Sequence[int | None]) -> list[tuple[int | None, int]]:
  """(first source, how many), where one lane after the other gets what one after the other has; None: nothing."""
  runs: list[tuple[int | None, int]] = []
  for s in sources:
    if runs and ((s is None) == (runs[-1][0] is None)) and (s is None or s == runs[-1][0] + runs[-1][1]):  # type: ignore[operator]
      runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
      runs.append((s, 1))
  return runs


def _lanes_of(u: UOp, i: int, run: tuple[int | None, int]) -> UOp:
  first, count = run
  if first is None:
    return UOp.const(u.dtype, 0).broadcast_to([count if j == i else m for j, m in enumerate(u.shape)])
  return u.shrink([(first, first + count) if j == i else (0, m) for j, m in enumerate(u.shape)])


def _counted(u: UOp) -> UOp:
  """What is summed: of truths, how many hold."""
  return u.cast(dtypes.int32) if dtypes.is_bool(u.dtype) else u


def _dim_of(name: str, x: Any, dim: int, extra: bool = False) -> int:
  """A dim counted from the front; `extra` allows one past the last. Raises: IndexError if there is no such dim,
  ValueError if there is none at all."""
  if not x.ndim and not extra:
    raise ValueError(f"{name}: {describe(x.uop)} has no dim\n  fix: x.reshape(1), or all_gather, which makes one")
  return int(x._dim(dim, extra))


def _check_parts(name: str, x: Any, d: int, n: int, tiled: bool) -> None:
  size = x.shape[d]
  if size % n or (not tiled and size != n):
    rule = f"a multiple of the {n} lanes" if tiled else f"as long as there are lanes, {n}; blocks are tiled=True"
    fix = f"pad it to {-(-size // n) * n if tiled else n}"
    raise ValueError(f"{name}: dim {d} of {render_shape(x.shape)} must be {rule}\n  fix: {fix}")
