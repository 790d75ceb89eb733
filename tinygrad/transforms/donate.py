"""`donate`: results of a function in the memory of its arguments."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops


def donate(fun: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
  """`fun`, whose results are assigned to the memory of the arguments `argnums`, which nobody needs after the call:
  each result that is still to be computed to the first Tensor in them of its shape, type and placement. What was
  donated shows the result then, as memory does that is assigned to; what was computed from it before keeps its value.

  A step that is a function of its parameters then needs no more memory, and moves no more, than one that assigns:
  `TinyJit(donate(step, (0, 1)))`. Arguments that are no memory, as inside other transforms, take none.
  """

  @functools.wraps(fun, updated=())
  def donated(*args: Any, **kwargs: Any) -> Any:
    result = fun(*args, **kwargs)
    kept = {t.uop.base for t in tree_leaves(result) if t.follows}  # given back as it is, or a view of it
    given = [t for i in ([argnums] if isinstance(argnums, int) else argnums) for t in tree_leaves(args[i])]
    free = {t.uop: t for t in given if t.follows and t.uop.op is Ops.BUFFER and t.uop not in kept}
    taken: dict[int, Any] = {}

    def leaf(t: Any) -> Any:
      fits = (u for u in free if (u.shape, u.dtype, u.device) == (t.shape, t.dtype, t.device))
      if not t.follows and id(t) not in taken and (u := next(fits, None)) is not None:
        taken[id(t)] = free.pop(u).assign(t)
      return taken.get(id(t), t)

    return tree_map(leaf, result)

  return donated
