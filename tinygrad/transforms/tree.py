"""Nested structures of Tensors: lists, tuples, dicts, dataclasses, and objects such as models, as `get_state_dict`
finds them. JAX calls them pytrees; here a class need not be registered."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.helpers import Remade, children_of

Leaf = Callable[..., Any]
SAME = "give two of the same structure"


class StructureError(Remade, ValueError):
  """Of two structures that are to be alike, one has a place that the other has not, as `problem` says."""

  def __init__(self, problem: str) -> None:
    super().__init__(f"the structures differ: {problem}\n  fix: {SAME}")
    self.problem = problem


def tree_leaves(tree: Any) -> list[Any]:
  """The Tensors of a structure, each place once, in the order of lists, keys and attributes. A Tensor that stands in
  two places, as tied weights do, is there twice."""
  return list(_leaves(tree, (), is_tensor))


def tree_numbers(tree: Any) -> list[Any]:
  """The Python numbers of a structure, which no transform changes."""
  return list(_leaves(tree, (), lambda x: isinstance(x, (int, float))))


def _leaves(x: Any, around: tuple[Any, ...], is_leaf: Callable[[Any], bool]) -> Iterator[Any]:
  if is_leaf(x):
    yield x
  elif not is_tensor(x) and not _holds_itself(x, around):
    for _, y in children_of(x):
      yield from _leaves(y, (*around, x), is_leaf)


def _holds_itself(x: Any, around: tuple[Any, ...]) -> bool:
  """Whether x is one of the objects that it stands in, the outermost first, as a module may that knows what it is a
  part of. Raises: ValueError for a list, tuple or dict that is held by nothing but such: it has no end."""
  for i, y in enumerate(around):
    if y is x:
      if all(isinstance(z, (list, tuple, dict)) for z in around[i:]):
        kind = type(x).__name__
        raise ValueError(f"a {kind} among the arguments or results holds itself: {x!r}\n  fix: give one that does not")
      return True
  return False


def tree_map(leaf: Leaf, tree: Any, *others: Any) -> Any:
  """The structure with `leaf(tensor, *what stands there in the others)` for each Tensor. Lists, tuples and dicts are
  made anew; of objects that hold Tensors a copy is made; all else is shared with `tree`.
  Raises: StructureError where another has no such place."""
  return _mapped(leaf, tree, others, (), ())


def _mapped(leaf: Leaf, x: Any, others: tuple[Any, ...], path: tuple[Any, ...], around: tuple[Any, ...]) -> Any:
  if is_tensor(x):
    return leaf(x, *others)
  if _holds_itself(x, around) or not (children := list(children_of(x))):
    return x
  here = (*around, x)
  found = []
  for k, y in children:
    there = tuple([_at(o, k, path) for o in others])
    found.append((k, _mapped(leaf, y, there, (*path, k), here)))
  if isinstance(x, dict):
    made = copy.copy(x)
    made.update(found)
    return made
  if isinstance(x, (list, tuple)):
    parts = [y for _, y in found]
    return type(x)(*parts) if hasattr(type(x), "_fields") else type(x)(parts)
  changed = [(k, new) for (k, old), (_, new) in zip(children, found) if new is not old and _holds(old)]
  if not changed:
    return x
  made = copy.copy(x)
  for k, new in changed:
    object.__setattr__(made, k, new)  # a frozen dataclass too
  return made


def _holds(x: Any) -> bool:
  return any(True for _ in _leaves(x, (), is_tensor))


def _at(tree: Any, key: Any, path: tuple[Any, ...]) -> Any:
  """What stands at `key` of one of the other structures."""
  for k, y in children_of(tree):
    if k == key:
      return y
  where = ".".join(map(str, (*path, key)))
  raise StructureError(f"there is no {where} in {tree!r}")


def tree_map_alike(leaf: Leaf, tree: Any, other: Any, rule: str, fix: str = SAME) -> Any:
  """`tree_map` of two structures, the second of which has Tensors in no other places than the first.
  Raises: ValueError, which begins with `rule`, where they differ."""
  try:
    made = tree_map(leaf, tree, other)
  except StructureError as e:
    raise ValueError(f"{rule}: {e.problem}\n  fix: {fix}") from None
  if len(tree_leaves(other)) > len(tree_leaves(tree)):
    raise ValueError(f"{rule}: {other!r} has Tensors in other places than {tree!r}\n  fix: {fix}")
  return made
