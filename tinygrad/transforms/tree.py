"""Nested structures of Tensors: lists, tuples, dicts, dataclasses, and objects such as models, as `get_state_dict`
finds them. JAX calls them pytrees; here a class need not be registered."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.helpers import children_of

Leaf = Callable[..., Any]


def tree_leaves(tree: Any) -> list[Any]:
  """The Tensors of a structure, each place once, in the order of lists, keys and attributes. A Tensor that stands in
  two places, as tied weights do, is there twice."""
  return list(_leaves(tree, set(), is_tensor))


def tree_numbers(tree: Any) -> list[Any]:
  """The Python numbers of a structure, which no transform changes."""
  return list(_leaves(tree, set(), lambda x: isinstance(x, (int, float))))


def _leaves(x: Any, inside: set[int], is_leaf: Callable[[Any], bool]) -> Iterator[Any]:
  if is_leaf(x):
    yield x
  elif id(x) not in inside and not is_tensor(x):  # an object that holds itself
    for _, y in children_of(x):
      yield from _leaves(y, inside | {id(x)}, is_leaf)


def tree_map(leaf: Leaf, tree: Any, *others: Any) -> Any:
  """The structure with `leaf(tensor, *what stands there in the others)` for each Tensor. Lists, tuples and dicts are
  made anew; of objects that hold Tensors a copy is made; all else is shared with `tree`.
  Raises: ValueError where another has no such place."""
  return _mapped(leaf, tree, others, (), set())


def _mapped(leaf: Leaf, x: Any, others: tuple[Any, ...], path: tuple[Any, ...], inside: set[int]) -> Any:
  if is_tensor(x):
    return leaf(x, *others)
  if id(x) in inside or not (children := list(children_of(x))):
    return x
  here = inside | {id(x)}
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
  return any(True for _ in _leaves(x, set(), is_tensor))


def _at(tree: Any, key: Any, path: tuple[Any, ...]) -> Any:
  """What stands at `key` of one of the other structures."""
  for k, y in children_of(tree):
    if k == key:
      return y
  where = ".".join(map(str, (*path, key)))
  raise ValueError(f"the structures differ: there is no {where} in {tree!r}\n  fix: give two of the same structure")
