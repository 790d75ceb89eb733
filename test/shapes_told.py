"""What docstrings say of shapes, and whether it is so.

Shape: `(.., m, k), (.., k, n) -> (.., m, n)`, at the beginning of a line of a docstring: the Tensors that are given, in
their order, and those that come back; what is left out at the end need not be given. `..` is any number of dims, which
broadcast; `*name` dims that an argument or an earlier shape gives, a name a length, or what the argument of that name
is; `n*k` is computed. `…` ends a list of any length. " or " parts several forms. `(..) without axis` is what a
reduction leaves along the arguments `axis` and `keepdim`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tinygrad import Tensor

SAID = re.compile(r"^Shape: `([^`]+)`", re.MULTILINE)
SHAPE = re.compile(r"\(([^()]*)\)( without axis)?")
Bound = dict[str, Any]
T = TypeVar("T")


def told(documentation: str) -> str | None:
  """What a docstring says of shapes."""
  found = SAID.search(documentation)
  return None if found is None else " ".join(found[1].split())


def tensors(x: Any) -> list[Tensor]:
  """The Tensors in lists, tuples and dicts of them, in order."""
  if isinstance(x, Tensor):
    return [x]
  inside = x.values() if isinstance(x, dict) else x if type(x) in (list, tuple) else ()
  return [t for y in inside for t in tensors(y)]


def dims_of(pattern: str) -> list[str]:
  return [x.strip() for x in pattern.split(",") if x.strip()]


def matches(dims: Sequence[str], shape: Sequence[int], bound: Bound, given: bool) -> Iterator[Bound]:
  """The ways to read a shape as a pattern, given what names are. What is given broadcasts along `..`."""
  if not dims:
    if not shape:
      yield bound
    return
  first, *rest = dims
  if first[0] not in ".*":
    length = computed(first, bound)
    if shape and length in (None, shape[0]):
      yield from matches(rest, shape[1:], bound | ({first: shape[0]} if length is None else {}), given)
    return
  for n in range(len(shape) + 1):
    run, known = tuple(shape[:n]), bound.get(first)
    if first == ".." and given and known is not None:
      run = together(known, run)
    elif known is not None and not is_as(run, known):
      continue
    if run is not None:
      yield from matches(rest, shape[n:], bound | {first: run}, given)


def is_as(run: tuple[int, ...], said: tuple[int | None, ...]) -> bool:
  """Whether dims are as an argument says, which leaves out what -1 and None do."""
  return len(run) == len(said) and all(m in (-1, None, n) for n, m in zip(run, said))


def together(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
  try:
    return np.broadcast_shapes(a, b)
  except ValueError:
    return None


def computed(dim: str, bound: Bound) -> int | None:
  """The length that a dim of a pattern has, where its names are known."""
  if dim in bound:
    return int(bound[dim])
  if not set(re.findall(r"[A-Za-z_]\w*", dim)) <= set(bound):
    return None
  return int(eval(dim, {"__builtins__": {}}, bound))


def without(shape: tuple[int, ...], axis: Any, keepdim: bool) -> tuple[int, ...]:
  """What a reduction leaves."""
  axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
  gone = {a % len(shape) for a in axes} if shape else set()
  return tuple(1 if i in gone else n for i, n in enumerate(shape) if keepdim or i not in gone)


def more(patterns: list[T], side: str, count: int) -> list[T]:
  """The patterns of `count` Tensors: of a list of any length the last one goes on."""
  return patterns + [patterns[-1]] * (count - len(patterns)) if side.rstrip().endswith("…") else patterns


def operands(side: str, given: Sequence[Tensor], bound: Bound) -> list[Bound]:
  """The ways to read what is given as one side of a form."""
  patterns = [dims_of(x) for x, _ in SHAPE.findall(side)]
  if len(given) > len(more(patterns, side, len(given))):
    return []
  found = before = [bound]
  for i, t in enumerate(given):
    if i < len(patterns):
      before = found
      found = [y for x in found for y in matches(patterns[i], t.shape, x, True)]
    elif not any(True for x in before for _ in matches(patterns[-1], t.shape, x, True)):
      return []
  return found


def results(side: str, made: Sequence[Tensor], bound: Bound) -> bool:
  """Whether what came back is as the right side of a form says."""
  patterns = SHAPE.findall(side)
  if len(made) != len(more(patterns, side, len(made))):
    return False
  before = bound
  for i, t in enumerate(made):
    text, reduced = patterns[min(i, len(patterns) - 1)]
    if i < len(patterns):
      before = bound
    if reduced:
      axis = next((bound[x] for x in ("axis", "dim") if x in bound), None)
      if tuple(t.shape) != without(bound[".."], axis, bound.get("keepdim", False)):
        return False
    elif (read := next(matches(dims_of(text), t.shape, before, False), None)) is None:
      return False
    else:
      bound = read
  return True


def holds(said: str, given: Sequence[Tensor], made: Sequence[Tensor], arguments: Bound) -> bool:
  """Whether a call is as a docstring says."""
  for form in said.split(" or "):
    left, _, right = form.partition("->")
    if any(results(right, made, bound) for bound in operands(left, given, arguments)):
      return True
  return False


class Calls:
  """Notes what a function is given and gives, while its examples run."""

  def __init__(self) -> None:
    self.seen: list[tuple[list[Tensor], list[Tensor], Bound]] = []
    self.inside = 0
    self.made_with: dict[int, Bound] = {}  # by the id of a layer

  def of(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """The function, watched."""
    parameters = inspect.signature(f)

    def call(*args: Any, **kwargs: Any) -> Any:
      shapes = [(t, t.shape) for t in tensors([args, kwargs])]
      self.inside += 1
      try:
        result = f(*args, **kwargs)
      finally:
        self.inside -= 1
      known = all(isinstance(n, int) for x in (*shapes, *((t, t.shape) for t in tensors(result))) for n in x[1])
      if not self.inside and known and tensors(result):
        names = {} if not args else self.made_with.get(id(args[0]), {})
        self.seen.append(([t for t, _ in shapes], tensors(result), names | arguments(parameters.bind(*args, **kwargs))))
      return result

    return call

  def layer(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """The `__init__` of a layer, whose arguments are names in what it says of its calls."""
    parameters = inspect.signature(f)

    def call(layer: Any, *args: Any, **kwargs: Any) -> None:
      self.made_with[id(layer)] = arguments(parameters.bind(layer, *args, **kwargs)) | self.made_with.get(id(layer), {})
      f(layer, *args, **kwargs)

    return call


def arguments(bound: inspect.BoundArguments) -> Bound:
  """What names in a docstring's shapes are by the arguments of a call."""
  bound.apply_defaults()
  names: Bound = {}
  for name, x in bound.arguments.items():
    if isinstance(x, int) or (isinstance(x, tuple) and name == "axis"):
      names[name] = x
    if isinstance(x, (int, tuple, list)):  # f((2, 3)) is f(2, 3)
      dims = (x,) if isinstance(x, int) else tuple(x)
      dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
      names[f"*{name}"] = (*dims, *bound.arguments.get("args", ())) if isinstance(x, int) else dims
  return names
