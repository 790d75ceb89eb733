"""Small functions of integers, sequences and nested objects."""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, TypeVar

T = TypeVar("T")


def prod(x: Iterable[T]) -> T | int:
  """The product; 1 for nothing. Works for symbolic integers."""
  return functools.reduce(operator.mul, x, 1)


def ceildiv(num: Any, amt: Any) -> Any:
  """ceil(num / amt) for integers, symbolic ones included."""
  return -(-num // amt) if isinstance(num, int) else (num + (amt - 1)) // amt


def round_up(num: int, amt: int) -> int:
  """The least multiple of `amt` that is not below `num`."""
  return -(-num // amt) * amt


def efficiency(n: int, step: int) -> float:
  """The used part of n iterations in steps of `step`."""
  return n / round_up(n, step) if n else 1.0


def power_of_two(n: int) -> int:
  """The greatest that is at most `n`, at least 1."""
  return 1 << max(n, 1).bit_length() - 1


def dedup(x: Iterable[T]) -> list[T]:
  """Each element once, in the order of first appearance."""
  return list(dict.fromkeys(x))


def argfix(*x: Any) -> tuple[Any, ...]:
  """The arguments of `f(1, 2)` and of `f((1, 2))` alike."""
  if x and isinstance(x[0], (tuple, list)):
    if len(x) != 1:
      raise ValueError(f"give the numbers one by one or as one sequence, not {x}")
    return tuple(x[0])
  return x


def argsort(x: Sequence[Any]) -> Any:
  """The indices that sort x, as a tuple (of a list: a list)."""
  return type(x)(sorted(range(len(x)), key=x.__getitem__))  # type: ignore[call-arg]


def flatten(l: Iterable[Iterable[T]]) -> list[T]:
  return [x for inner in l for x in inner]


def all_int(t: Iterable[Any]) -> bool:
  return all(isinstance(x, int) for x in t)


def make_tuple(x: int | Sequence[int], cnt: int) -> tuple[int, ...]:
  """An integer of any kind `cnt` times, or those of a sequence. TypeError for what is neither."""
  if type(x) is int:
    return (x,) * cnt
  given: tuple[Any, ...] = tuple(x) if isinstance(x, Iterable) else (x,) * cnt
  if odd := [n for n in given if not hasattr(n, "__index__")]:
    rule = f"{odd[0]!r} is a {type(odd[0]).__name__}, where an integer is meant"
    raise TypeError(f"{rule}\n  fix: give an integer, or one for each dim")
  return tuple(int(n) if isinstance(n, Integral) else n for n in given)


def get_child(obj: Any, key: str) -> Any:
  """`get_child(model, "layers.0.weight")`: through attributes, lists and dicts."""
  for part in key.split("."):
    obj = obj[int(part)] if part.isdigit() else obj[part] if isinstance(obj, dict) else getattr(obj, part)
  return obj


def children_of(obj: Any) -> Iterable[tuple[Any, Any]]:
  """What an object holds, by name: a dict's and a list's elements, an object's attributes."""
  if hasattr(obj, "_asdict"):
    return obj._asdict().items()  # type: ignore[no-any-return]
  if isinstance(obj, dict):
    return obj.items()
  if isinstance(obj, (list, tuple)):
    return enumerate(obj)
  return vars(obj).items() if hasattr(obj, "__dict__") and not isinstance(obj, type) else ()


def partition(itr: Iterable[T], fxn: Callable[[T], bool]) -> tuple[list[T], list[T]]:
  """(those that fulfil the condition, the others)."""
  yes, no = list[T](), list[T]()
  for x in itr:
    (yes if fxn(x) else no).append(x)
  return yes, no


def walk(x: Any, leaf: Callable[[Any], Any]) -> Any:
  """Nested tuples, lists and dicts with `leaf` of what is in them in its place."""
  if isinstance(x, dict):
    return {k: walk(y, leaf) for k, y in x.items()}
  if not isinstance(x, (list, tuple)):
    return leaf(x)
  parts = [walk(y, leaf) for y in x]
  return type(x)(*parts) if hasattr(type(x), "_fields") else type(x)(parts)


def exact(arg: Any) -> Any:
  """A key in which -0.0 differs from 0.0 and nan equals itself (for CONST, and the fill of PAD)."""
  if isinstance(arg, tuple) and arg:
    return (*arg[:-1], exact(arg[-1]))
  return (arg.hex(), "f") if isinstance(arg, float) else arg
