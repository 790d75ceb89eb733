"""`vmap`: a function of one element, for many at once, without a loop."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.jit import is_tensor
from tinygrad.transforms.batching import Batching, Lanes, in_front, one_lane
from tinygrad.transforms.tracing import Outside, check_function, next_hole, tracing, unknown
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops, UOp, describe, sint

Axes = Any  # an int, None, or a list, tuple or dict of such, in the structure of what they are said of


def vmap(
  fun: Callable[..., Any],
  in_axes: Axes = 0,
  out_axes: Axes = 0,
  axis_name: str | None = None,
  axis_size: int | None = None,
  spmd_axis_name: str | tuple[str, ...] | None = None,
  randomness: str = "different",
) -> Callable[..., Any]:
  """`fun`, written for one element, on many: the Tensors in its arguments have one more dim, at the place that
  `in_axes` says (one number for all, or one for each argument, or in the structure of the arguments; None: the same for
  every element; keyword arguments are mapped along dim 0). `out_axes` says where it stands in the results (None: for
  what is the same for every element).

  `fun` is called once, on Tensors without values, so that nothing can be read in it; what it computes is then given the
  dim, op by op. It launches as many kernels as for one element. `axis_name`: by which `psum` and the others find the
  elements. `axis_size`: how many there are, where no argument says it. `spmd_axis_name`: the mesh axes that cut the new
  dim of what `fun` places (`shard`, `constrain`); without it that dim stays as it is. `randomness`: "different" numbers
  for each element, those that `Tensor.rand(n, ...)` would draw, or the "same".
  Raises: ValueError for dims that are not there or differ in length, RuntimeError where memory that is not the
  element's own is written.

  Examples:
    >>> vmap(lambda x: x / x.sum())(Tensor([[1.0, 3.0], [2.0, 2.0]])).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
  """
  check_function("vmap", fun)
  if randomness not in ("different", "same"):
    raise ValueError(f"vmap: unknown randomness {randomness!r}\n  fix: use 'different' or 'same'")
  spmd = (spmd_axis_name,) if isinstance(spmd_axis_name, str) else spmd_axis_name

  @functools.wraps(fun, updated=())
  def over_many(*args: Any, **kwargs: Any) -> Any:
    given = (args, kwargs)
    axes = (in_axes if isinstance(in_axes, (list, tuple)) else (in_axes,) * len(args), 0)
    found = list(_spread(axes, given, "in_axes"))
    n = _length(tree_leaves(given), found, axis_size)
    index = UOp.new(Ops.HOLE, dtypes.int32, (), (next_hole(), ()))
    lanes = Lanes((axis_name,), (n,), (index,), (spmd,), next(iter(tree_leaves(given)), None), randomness == "same")
    before = Outside.now()
    mapped, batching = _elements(given, found, lanes)
    with tracing(lanes, before):
      result = fun(*mapped[0], **mapped[1])
    places = iter(list(_spread(out_axes, result, "out_axes")))
    return tree_map(lambda y: y._new(_result(y.uop, next(places), batching, n)), result)

  return over_many


def _spread(axes: Axes, x: Any, name: str) -> Iterator[int | None]:
  """For each Tensor of a structure its axis."""
  if axes is None or isinstance(axes, int):
    for _ in tree_leaves(x):
      yield axes
    if isinstance(axes, int) and isinstance(x, (int, float)) and name != "out_axes":
      raise ValueError(f"vmap: {x!r} has no dim {axes}\n  fix: in_axes=None for it, or Tensor({x!r})")
    if isinstance(axes, int) and hasattr(x, "__array__") and name != "out_axes" and not is_tensor(x):
      raise TypeError(f"vmap: {type(x).__name__} {x.shape} is no Tensor, and would not be mapped\n  fix: Tensor(x)")
    return
  if is_tensor(x) or not isinstance(axes, (list, tuple, dict)):
    raise ValueError(
      f"vmap: {name} says {axes!r} of {x!r}\n  fix: give a number, None, or the structure of what it is of"
    )
  keys = axes.keys() if isinstance(axes, dict) else range(len(axes))
  there = x.keys() if isinstance(x, dict) else range(len(x)) if isinstance(x, (list, tuple)) else ()
  if set(keys) != set(there):
    raise ValueError(f"vmap: {name} has entries {list(keys)} for {list(there)}\n  fix: give as many as there are")
  for k in there:
    yield from _spread(axes[k], x[k], name)


def _length(leaves: list[Any], axes: list[int | None], size: int | None) -> sint:
  """How many elements there are."""
  said: list[tuple[sint, str]] = [] if size is None else [(size, "axis_size")]
  for x, axis in zip(leaves, axes, strict=True):
    if axis is not None:
      if not -x.ndim <= axis < x.ndim:
        fix = "in_axes=None for what is the same for every element"
        raise ValueError(f"vmap: in_axes says dim {axis} of {describe(x.uop)}, which it has not\n  fix: {fix}")
      said.append((x.shape[axis], f"dim {axis} of {describe(x.uop)}"))
  if not said:
    fix = "map an argument, or say axis_size=…"
    raise ValueError(
      f"vmap: no argument has a dim that is mapped, so nothing says how many elements there are\n  fix: {fix}"
    )
  if any(n is not said[0][0] and n != said[0][0] for n, _ in said):
    rows = "".join(f"\n    {n} by {where}" for n, where in said)
    raise ValueError(f"vmap: the dims that are mapped must have one length{rows}\n  fix: check in_axes")
  return said[0][0]


def _elements(given: Any, axes: list[int | None], lanes: Lanes) -> tuple[Any, Batching]:
  """The arguments with a Tensor of one element in the place of each that is mapped."""
  actual: dict[UOp, UOp] = {}
  where = iter(axes)

  def leaf(x: Any) -> Any:
    if (axis := next(where)) is None:
      return x
    u = in_first_place(x.uop, axis)
    one = x._new(unknown(u.shape[1:], u, one_lane(u.device, 1)))
    actual[one.uop] = u
    return one

  return tree_map(leaf, given), Batching(lanes, actual)


def in_first_place(u: UOp, axis: int) -> UOp:
  """`u` with that dim before the others."""
  axis %= u.ndim
  return u.permute((axis, *(i for i in range(u.ndim) if i != axis)))


def _result(u: UOp, at: int | None, batching: Batching, n: sint) -> UOp:
  """What a result for one element is for all."""
  made, varies = batching.of(u), u in batching.varies
  if at is None:
    if varies and isinstance(made.shape[0], int) and made.shape[0] == 1:  # of one element there is no other
      return made.reshape(made.shape[1:])
    if varies:
      fix = "out_axes=0, or reduce it over the elements (psum, pmean)"
      raise ValueError(f"vmap: out_axes=None for {describe(u)}, which differs from element to element\n  fix: {fix}")
    return made
  made = in_front(made, 1, (n,), varies)
  if not -made.ndim <= at < made.ndim:
    raise ValueError(f"vmap: out_axes says dim {at} of a result with {made.ndim} dims\n  fix: a dim that it has")
  at %= made.ndim
  return made.permute((*range(1, at + 1), 0, *range(at + 1, made.ndim)))
