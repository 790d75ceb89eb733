"""`donate`: results of a function in the memory of its arguments."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinygrad.transforms.tracing import with_replaced
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops, UOp


def donate(fun: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
  """`fun`, whose results are assigned to the memory of the arguments `argnums`, which nobody needs after the call:
  each result that is still to be computed to the first Tensor in them of its shape, type and placement. What was
  donated shows the result then, as memory does that is assigned to; what was computed from it before keeps its value.

  A step that is a function of its parameters then needs no more memory, and moves no more, than one that assigns:
  `TinyJit(donate(step, (0, 1)))`. Arguments that are no memory, as inside other transforms, take none.

  Examples:
    >>> step = TinyJit(donate(lambda w, g: w - 0.5 * g))
    >>> w = Tensor([1.0]).realize()
    >>> for _ in range(3):
    ...   w = step(w, Tensor([1.0]).realize())
    >>> w.tolist()
    [-0.5]
  """

  @functools.wraps(fun, updated=())
  def donated(*args: Any, **kwargs: Any) -> Any:
    result = fun(*args, **kwargs)
    kept = {t.uop.base for t in tree_leaves(result) if t.follows}  # given back as it is, or a view of it
    given = [t for i in ([argnums] if isinstance(argnums, int) else argnums) for t in tree_leaves(args[i])]
    free = {t.uop: t for t in given if t.follows and t.uop.op is Ops.BUFFER and t.uop not in kept}
    made = {id(t): t for t in tree_leaves(result) if not t.follows}
    taken: dict[int, Any] = {}
    for k, t in made.items():
      fits = (u for u in free if (u.shape, u.dtype, u.device) == (t.shape, t.dtype, t.device))
      if (u := next(fits, None)) is not None:
        taken[k] = free.pop(u)
    shown = donated_to(made, taken)
    return tree_map(lambda t: shown.get(id(t), t), result)

  return donated


def donated_to(made: Mapping[int, Any], taken: Mapping[int, Any]) -> dict[int, Any]:
  """What stands in the places of the results `made`, of which those in `taken` are assigned to these Tensors: where a
  result reads another, it reads the memory, so that the value needs none beside."""
  order = {u: i for i, u in enumerate(UOp.sink(*(t.uop for t in made.values())).toposort())}
  contents: dict[UOp, UOp] = {}  # of memory, by the value
  shown: dict[int, Any] = {}
  for k in sorted(made, key=lambda k: order[made[k].uop]):
    value = made[k].uop
    written = {u: u for u in value.toposort() if u.op is Ops.AFTER}  # other memory, which others read as it is
    u = value if value in contents else with_replaced(value, written | contents)
    shown[k] = made[k] if u is value else made[k]._new(u)
    if k in taken:
      shown[k] = taken[k].assign(shown[k])
      contents[value] = shown[k].uop
  return shown
