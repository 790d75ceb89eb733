"""Derivatives of functions, in reverse: `grad`, `value_and_grad`, `vjp`, and Jacobians row by row.

The function is called on Tensors that stand in for its arguments; the graph of what it returns is differentiated by
these (`gradient.py`), and the arguments then take their places. So a derivative is a graph like any other, of which
there are derivatives again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.jit import is_tensor
from tinygrad.transforms.gradient import compute_gradients
from tinygrad.transforms.tracing import check_function, replaced, stand_ins, tracing, twins_of
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike
from tinygrad.transforms.vmap import vmap
from tinygrad.uop import UOp, describe

Function = Callable[..., Any]
ArgNums = int | Sequence[int]


def value_and_grad(fun: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
  """A function that returns (what `fun` returns, its derivative by the arguments `argnums`), for a `fun` that returns a
  float Tensor of one element (with `has_aux`: and something else, which is passed on).

  A derivative has the structure of its argument: a Tensor, nested lists, tuples and dicts, dataclasses, or a module, of
  which it is a copy with derivatives in the places of Tensors; None for what is no float. For several `argnums` it is a
  tuple. Zeros for what the result does not depend on. What `fun` assigns to its arguments stays inside, but for their
  state (`requires_grad=False`): a BatchNorm updates its statistics.
  Raises: ValueError for a result of another shape, TypeError for one, or an argument, that is no float, and for what
  is no function.

  Examples:
    >>> value, g = value_and_grad(lambda x: (x**2).sum())(Tensor([1.0, 2.0]))
    >>> value.item(), g.tolist()
    (5.0, [2.0, 4.0])
  """
  check_function("grad", fun)

  @functools.wraps(fun, updated=())
  def with_gradient(*args: Any, **kwargs: Any) -> Any:
    called = Called("grad", fun, args, kwargs, argnums)
    value, aux = called.split(has_aux)
    if not is_tensor(value) or value.numel() != 1:
      given = describe(value.uop) if is_tensor(value) else repr(value)
      fix = "reduce it, e.g. .sum() or .mean(); vjp, jacrev and jacfwd take functions with any results"
      if isinstance(value, (int, float)):
        fix = "return the Tensor itself, without .item(): no gradient flows through a number of Python"
      raise ValueError(f"grad: the function must return one number, and returns {given}\n  fix: {fix}")
    found = called.gradients([(value, UOp.const(value.dtype, 1.0).broadcast_to(value.shape))])
    value, aux, found = called.back((value, aux, found))
    result = found[0] if isinstance(argnums, int) else found
    return ((value, aux) if has_aux else value), result

  return with_gradient


def grad(fun: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
  """The derivative of `fun` alone, with `has_aux` together with what else it returns: see `value_and_grad`.

  Examples:
    >>> grad(lambda x: (x**3).sum())(Tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
  """
  both = value_and_grad(fun, argnums, has_aux)

  @functools.wraps(fun, updated=())
  def gradient(*args: Any, **kwargs: Any) -> Any:
    value, found = both(*args, **kwargs)
    return (found, value[1]) if has_aux else found

  return gradient


def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
  """(what `fun` returns of the primals, a function of cotangents): that gives, for a structure like the result, the
  tuple of the derivatives of the sum of it times the result by each primal. With `has_aux` a third: what else `fun`
  returned.
  Raises: ValueError for cotangents of another structure, or other shapes or types; TypeError for what is no function,
  or no float.
  Shape: `(*primal), … -> (*result), …`.

  Examples:
    >>> y, pull = vjp(lambda x: x**2, Tensor([1.0, 2.0]))
    >>> y.tolist(), pull(Tensor([1.0, 10.0]))[0].tolist()
    ([1.0, 4.0], [2.0, 40.0])
  """
  check_function("vjp", fun)
  called = Called("vjp", fun, primals, {}, tuple(range(len(primals))))
  out, aux = called.split(has_aux)

  def pullback(cotangents: Any) -> tuple[Any, ...]:
    pairs: list[tuple[Any, UOp]] = []

    def pair(y: Any, g: Any) -> None:
      if dtypes.is_float(y.dtype):
        check_direction("vjp", "cotangent", y, g)
        pairs.append((y, g.uop))

    tree_map_alike(pair, out, cotangents, "vjp: the cotangents are structured in another way than the result")
    found: tuple[Any, ...] = called.back(called.gradients(pairs))
    return found

  result = called.back(out), pullback
  return (*result, called.back(aux)) if has_aux else result


def jacrev(fun: Function, argnums: ArgNums = 0) -> Function:
  """The Jacobian, a row at a time (`vmap` of `vjp`): in the structure of the result, for each Tensor there in the
  structure of the argument, of shape (*result, *argument). For results smaller than arguments.

  Examples:
    >>> jacrev(lambda x: x * x.sum())(Tensor([1.0, 2.0])).tolist()
    [[4.0, 1.0], [2.0, 5.0]]
  """
  check_function("jacrev", fun)

  @functools.wraps(fun, updated=())
  def jacobian(*args: Any, **kwargs: Any) -> Any:
    from_args, numbers = with_arguments(fun, args, kwargs, argnums)
    out, pullback = vjp(from_args, *(args[i] for i in numbers))
    results = tree_leaves(out)
    rows = []
    for y in results:
      basis = one_hots(y)
      found = vmap(lambda g, y=y: pullback(tree_map(lambda z: g if z is y else z.zeros_like(), out)))(basis)
      shaped = tree_map(lambda t, y=y: t.reshape((*y.shape, *t.shape[1:])), found)
      rows.append(shaped[0] if isinstance(argnums, int) else shaped)
    each = iter(rows)
    return tree_map(lambda _: next(each), out)

  return jacobian


def stop_gradient(x: Any) -> Any:
  """The same values, as constants to every derivative: of a Tensor, or of each in a structure.
  Shape: `(..) -> (..)`.

  Examples:
    >>> grad(lambda x: (x * stop_gradient(x)).sum())(Tensor([3.0])).tolist()
    [3.0]
  """
  return tree_map(lambda t: t.detach(), x)


def with_arguments(fun: Function, args: Sequence[Any], kwargs: Any, argnums: ArgNums) -> tuple[Function, list[int]]:
  """A function of the arguments `argnums` alone, and their numbers."""
  numbers = argument_numbers(args, argnums)

  def of_some(*some: Any) -> Any:
    all_args = list(args)
    for i, x in zip(numbers, some, strict=True):
      all_args[i] = x
    return fun(*all_args, **kwargs)

  return of_some, numbers


def argument_numbers(args: Sequence[Any], argnums: ArgNums) -> list[int]:
  """Arguments by their numbers, counted from the front. ValueError for one that is not there."""
  given = [argnums] if isinstance(argnums, int) else list(argnums)
  if any(not isinstance(i, int) for i in given):
    raise TypeError(f"grad: argnums={argnums!r} are no numbers of arguments\n  fix: 0, or (0, 1)")
  if not args:
    raise ValueError("grad: there is no argument to take a derivative by\n  fix: give it by place, not by keyword")
  if wrong := [i for i in given if not -len(args) <= i < len(args)]:
    fix = f"0 to {len(args) - 1}, and arguments by place, not by keyword"
    raise ValueError(f"grad: argnums={argnums} names argument {wrong[0]} of {len(args)}\n  fix: {fix}")
  if len({i % len(args) for i in given}) < len(given):
    raise ValueError(f"grad: argnums={argnums} names an argument twice\n  fix: name each once")
  return [i % len(args) for i in given]


def one_hots(y: Any) -> Any:
  """As many Tensors like y as it has elements, each 1 in one place, stacked."""
  n = y.numel()
  return y.eye(n, dtype=y.dtype).reshape(n, *y.shape).to(y.device)


class Called:
  """A function that was called on stand-ins for the arguments `argnums`. Each argument has its own, even of one Tensor;
  what is twice in one argument, as tied weights are, is one. What the function assigns to them stays inside, but for
  state: Tensors with requires_grad=False, as the running statistics of a BatchNorm."""

  def __init__(self, name: str, fun: Function, args: Sequence[Any], kwargs: Any, argnums: ArgNums) -> None:
    self.name, self.by = name, list[Any]()
    self.actual: dict[UOp, UOp] = {}
    of_some, numbers = with_arguments(fun, args, kwargs, argnums)
    state, twins = list[tuple[Any, Any]](), dict[int, Any]()
    for i in numbers:
      check_argument(name, i, args[i])
      beside: dict[int, Any] = {}
      inner, actual = stand_ins(args[i], beside)
      self.by.append(inner)
      self.actual |= actual
      each = {id(t): t for t in tree_leaves(args[i])}
      state += [(t, beside[number]) for number, t in each.items() if t.requires_grad is False]
    within = twins_of(self.by, twins=twins)
    with tracing(name):
      self.out = of_some(*within)
    for t, stand_in in state:
      if (twin := twins[id(stand_in)]).uop is not stand_in.uop:
        t.assign(self.back(twin.detach()))

  def split(self, has_aux: bool) -> tuple[Any, Any]:
    """(the result, what else was returned)."""
    if not has_aux:
      return self.out, None
    if not isinstance(self.out, tuple) or len(self.out) != 2:
      raise ValueError(f"{self.name}: with has_aux the function returns {self.out!r}\n  fix: return (result, aux)")
    return self.out

  def gradients(self, pairs: Sequence[tuple[Any, UOp]]) -> tuple[Any, ...]:
    """The sum of the derivatives of results, times their cotangents, in the structure of the arguments."""
    for y, _ in pairs:
      if not dtypes.is_float(y.dtype):
        raise TypeError(f"{self.name}: only floats have derivatives, not {describe(y.uop)}\n  fix: cast the result")
    targets = [t.uop for t in tree_leaves(self.by)]
    found = compute_gradients([(y.uop, g) for y, g in pairs], targets) if pairs else {}

    def leaf(t: Any) -> Any:
      if not dtypes.is_float(t.dtype):
        return None
      return t._new(found[t.uop]) if t.uop in found else t.zeros_like()

    return tuple(tree_map(leaf, x) for x in self.by)

  def back(self, tree: Any) -> Any:
    """With the arguments in their places again."""
    return replaced(tree, self.actual)


def check_direction(name: str, kind: str, x: Any, t: Any) -> None:
  """ValueError for a tangent or cotangent of a Tensor that is not like it."""
  if not is_tensor(t) or t.shape != x.shape or t.dtype is not x.dtype:
    given = describe(t.uop) if is_tensor(t) else repr(t)
    cast = is_tensor(t) and t.shape == x.shape
    fix = f"cast it: .cast({x.dtype.name!r})" if cast else f"give a Tensor of its shape and type, {x.dtype.name!r}"
    raise ValueError(f"{name}: {given} is no {kind} of {describe(x.uop)}\n  fix: {fix}")


def check_argument(name: str, i: int, x: Any) -> None:
  if is_tensor(x) and not dtypes.is_float(x.dtype):
    others = "name other arguments by argnums" if name == "grad" else "let the function read it: lambda x: f(x, i)"
    fix = f"cast it to a float, or {others}"
    raise TypeError(f"{name}: argument {i} is {describe(x.uop)}, by which there is no derivative\n  fix: {fix}")
  if not tree_leaves(x):
    fix = f"Tensor({x!r})" if isinstance(x, (int, float)) else "give a Tensor, or a structure that holds some"
    raise TypeError(f"{name}: argument {i} is {x!r}, which holds no Tensor\n  fix: {fix}")
