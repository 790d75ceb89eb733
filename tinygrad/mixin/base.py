"""What the mixins share: the value a tensor stands for, its shape and type, and how operands are brought together."""

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Number
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

from tinygrad.device import (
  Device,
  DeviceError,
  Mesh,
  P,
  Placement,
  ShardError,
  Sharding,
  ShardTypeError,
  as_index,
  device_set,
  reduced_placement,
  refuse,
)
from tinygrad.dtype import DType, dtypes, holds_number, least_upper_dtype, range_rule, sum_acc_dtype, to_dtype
from tinygrad.helpers import all_int, prod
from tinygrad.mixin.foreign_names import FOREIGN_PARAMETERS, name_here, with_fix, without_foreign
from tinygrad.uop import Move, Ops, UOp, describe

sint = int | UOp
Shape = tuple[sint, ...]
Scalar = int | float | bool
"""A number that takes the type of the tensor beside it where that can hold its kind."""
DeviceLike = str | Sharding | Sequence[str]
DeviceArg = DeviceLike | None
DTypeArg = DType | str | None
Method = TypeVar("Method", bound=Callable[..., Any])


def also_named(**names: str) -> Callable[[Method], Method]:
  """Of a method: it also takes parameters by what PyTorch or NumPy call them, as `also_named(dim="axis")`.
  TypeError for one that is given by both names."""

  def with_names(method: Method) -> Method:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
      for name in kwargs.keys() & names.keys() if kwargs else ():
        if names[name] in kwargs:
          problem = f"{method.__name__}: {name} is another name of {names[name]}, and both are given"
          raise TypeError(f"{problem}\n  fix: leave one of them out")
        kwargs[names[name]] = kwargs.pop(name)
      return method(*args, **kwargs)

    return cast("Method", call)

  return with_names


def tensors_alone(method: Method, name: str = "", tensor: Any = None) -> Method:
  """The method with its parameters that are annotated as tensors checked: TypeError for what is none. `name`: what it
  is called where that is not its own name; `tensor`: their type, where it is no method of one."""
  own, accepted = (Self, (Base, UOp)) if tensor is None else (tensor, tensor)
  parameters = enumerate(inspect.signature(method).parameters.items())
  named = [(i, k, p.annotation) for i, (k, p) in parameters if p.kind is not p.VAR_POSITIONAL]
  wanted = [(i, k, kind != own) for i, k, kind in named if kind == own or kind == own | None]
  name = name or method.__name__

  @functools.wraps(method)
  def call(*args: Any, **kwargs: Any) -> Any:
    for i, parameter, optional in wanted:
      if i >= len(args) and parameter not in kwargs:
        continue
      x = args[i] if i < len(args) else kwargs[parameter]
      if not isinstance(x, accepted) and not (optional and x is None):
        problem = f"{name}: {parameter}={reprlib.repr(x)} is of type {_kind(x)}, and no Tensor"
        of = " of tinygrad" if type(x).__name__ == "Tensor" else ""
        raise TypeError(f"{problem}{of}\n  fix: Tensor({parameter})")
    return method(*args, **kwargs)

  return cast("Method", call) if wanted else method


def python_number(x: Any) -> Any:
  """A number of numpy's as Python's."""
  return x.item() if isinstance(x, Number) and not isinstance(x, (int, float)) and hasattr(x, "item") else x


def dim_arguments(*given: Any) -> tuple[Any, ...]:
  """`f(2, 3)`, `f((2, 3))` and `f(numpy.array((2, 3)))` mean the same. Integers, bound variables or None; TypeError for
  anything else."""
  one = given[0] if len(given) == 1 else None
  whole = isinstance(one, Iterable) and not isinstance(one, (str, Base)) and getattr(one, "ndim", 1) != 0
  dims = tuple(one) if whole else given  # type: ignore[arg-type]
  if all(type(n) is int for n in dims):
    return dims
  for n in dims:
    if n is not None and not isinstance(n, UOp) and not hasattr(n, "__index__"):
      raise TypeError(f"{n!r} in {dims} is a {type(n).__name__}\n  fix: give integers, one sequence or separate ones")
  return tuple(n if n is None or isinstance(n, UOp) else int(n) for n in dims)


def _refuse_dtype(given: Any) -> None:
  """ShardTypeError for a type, or its name, where a device is meant, as PyTorch's `to` takes both."""
  try:
    dtype = to_dtype(getattr(given, "__name__", str(given)).removeprefix("torch.").removeprefix("dtypes."))
  except ValueError:
    return
  refuse(f"{given!r} is a type of elements, and no device", f"x.cast({dtype})", error=ShardTypeError)


def to_placement(device: DeviceArg) -> Placement:
  """A device's canonical name, the default one's for None; a sequence of names is a replicated `Sharding`.
  Raises: ShardTypeError for what is none of these.
  """
  if device is None or isinstance(device, str):
    try:
      return Device.canonicalize(device)
    except DeviceError:
      _refuse_dtype(device)
      raise
  if isinstance(device, Sharding):
    return device
  if isinstance(device, Mesh):
    fix = "Sharding(mesh)  # a copy on each device; a P as its second argument says which dims are cut"
    refuse(f"{device} says on which devices, and not how dims are cut over them", fix, error=ShardTypeError)
  if isinstance(device, P):
    fix = f"Sharding(mesh, {device!r})"
    refuse(f"{device} says how dims are cut, and not over which devices", fix, error=ShardTypeError)
  if not isinstance(device, Iterable) or isinstance(device, Base):
    _refuse_dtype(device)
    number = as_index(device)
    kind = Device.DEFAULT.partition(":")[0]
    fix = repr(Device.DEFAULT if number is None or number < 0 else f"{kind}:{number}")
    rule = f"a device is a name, a Sharding or a sequence of names, got {device!r} of type"
    refuse(f"{rule} {type(device).__name__}", fix, error=ShardTypeError)
  return Sharding(device)  # type: ignore[arg-type]  # any sequence or array


def _kind(operand: Any) -> str:
  """Its type, with the package that it is from where that has a Tensor, too."""
  kind = type(operand)
  return f"{kind.__module__.partition('.')[0]}.Tensor" if kind.__name__ == "Tensor" else kind.__name__


def _instead_of(name: str, operand: Any) -> str:
  if operand is None and name in ("eq", "ne"):
    return "x is None asks whether there is a tensor"
  data = isinstance(operand, (list, tuple)) or hasattr(operand, "__array__")
  return "wrap it, e.g. Tensor(x)" if data else "give a number or a tensor"


def mismatch(name: str, rule: str, operands: Iterable[UOp], fix: str, error: type[Exception] = ValueError) -> NoReturn:
  """Raises an error that names the op, its operands, the rule that was broken and a fix."""
  rows = "".join(f"\n    operand {i}: {describe(u)}" for i, u in enumerate(operands))
  raise error(f"{name}: {rule}{rows}\n  fix: {fix}")


@contextlib.contextmanager
def told_of(name: str, *operands: UOp) -> Iterator[None]:
  """A ShardError that tells of operands on several device sets, raised by what they are made into, tells of them."""
  try:
    yield
  except ShardError as e:
    problem, fix = str(e).partition("\n")[0].partition(": ")[2], str(e).rpartition("\n  fix: ")[2]
    if not problem.startswith("the operands live on "):
      raise
    rows = [f"operand {i}: {describe(u)}" for i, u in enumerate(operands)]
    refuse(f"{name}: {problem}", fix, *rows)


def check_matrices(name: str, u: UOp) -> None:
  if len(u.shape) < 2:
    mismatch(name, "needs matrices", [u], "reshape it to at least 2 dims, e.g. x.reshape(1, -1)")


def check_choice(name: str, what: str, given: Any, *known: Any) -> None:
  """ValueError unless `given` is one of those `known`."""
  if given not in known:
    raise ValueError(f"{name}: unknown {what} {given!r}\n  fix: use {', '.join(map(repr, known))}")


def check_formula(name: str, formula: Any, example: str) -> None:
  """TypeError unless it is a string."""
  if not isinstance(formula, str):
    problem = f"{name}: a formula of dims is a string, not {formula!r} of type {type(formula).__name__}"
    raise TypeError(f"{problem}\n  fix: e.g. {example!r}")


def broadcast_shape(*shapes: tuple[sint, ...]) -> tuple[sint, ...] | None:
  """The shape that all of `shapes` expand to, aligned at the last dim; None if there is none."""
  rank = max(map(len, shapes))
  out: list[sint] = []
  for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes)):
    wide = [d for d in dims if not (isinstance(d, int) and d == 1)]
    if any(d is not wide[0] and d != wide[0] for d in wide[1:]):
      return None
    out.append(wide[0] if wide else 1)
  return tuple(out)


def common_shape(name: str, us: Sequence[UOp], what: str = "shapes", error: type[Exception] = ValueError) -> Shape:
  """The shape that the operands broadcast to; an error if there is none."""
  shape = broadcast_shape(*(u.shape for u in us))
  if shape is None:
    rule = f"{what} must be equal or 1 in every dim, aligned at the last"
    mismatch(name, rule, us, "reshape them so that dims line up, or put a dim of 1 where one repeats", error)
  return shape


def common_dtype(*ds: DType) -> DType:
  """What operands of these types become together. Integers that no integer type holds both of (uint64, int8) become the
  default float."""
  if all(d is ds[0] for d in ds):
    return ds[0]
  upper = least_upper_dtype(*ds)
  return dtypes.default_float if dtypes.is_float(upper) and not any(map(dtypes.is_float, ds)) else upper


def weak_dtype(dtype: DType, value: Scalar) -> DType:
  """The type of (tensor of `dtype`) op (Python number): the tensor's, unless the number is of a higher kind."""
  if isinstance(value, bool) or dtypes.is_float(dtype):
    return dtype
  if isinstance(value, float):
    return dtypes.default_float
  return dtypes.default_int if dtypes.is_bool(dtype) else dtype


class Base:
  """A value: a node of the graph. `Tensor` adds how it is made, placed and realised."""

  __slots__ = ("follows", "requires_grad")
  uop: UOp
  requires_grad: bool | None
  follows: bool
  """Whether it is memory, or a view of it: what is written there shows here. Otherwise it is a value, which stays as it
  was when it was made, although its node may have simplified to a view of memory (docs/assignment.md)."""

  def __init_subclass__(cls) -> None:
    for name, member in list(vars(cls).items()):
      if inspect.isfunction(member) and not name.startswith("_") and name != "alu":
        member = tensors_alone(member)
        setattr(cls, name, member)
      if (foreign := FOREIGN_PARAMETERS.get(name)) is not None:
        made = isinstance(member, classmethod)
        function = without_foreign(name, member.__func__ if made else member, foreign)
        setattr(cls, name, classmethod(function) if made else function)

  if not TYPE_CHECKING:  # else every name would pass for an attribute

    def __getattr__(self, name: str) -> NoReturn:
      """Of a name that there is not, or whose property has raised an AttributeError: that error, with what the method
      of PyTorch or NumPy is called here."""
      try:
        return object.__getattribute__(self, name)
      except AttributeError as e:
        if (here := name_here(type(self), name)) is None:
          raise
        raise AttributeError(with_fix(e, here), name=name) from None

  def __init__(self, data: Any = None, device: DeviceArg = None, dtype: DTypeArg = None) -> None:
    """A tensor of a list or an array."""
    raise NotImplementedError

  @classmethod
  def _wrap(cls, uop: UOp, follows: bool = False) -> Self:
    """A new tensor that stands for `uop`."""
    raise NotImplementedError

  def _new(self, uop: UOp) -> Self:
    """A value that was computed from this one: a new tensor even where nothing was left to compute."""
    return self._wrap(uop)

  def _value(self) -> Self:
    """What this is now, for methods that find nothing to do: a later write to its memory does not show."""
    return self._new(self.uop)

  def _seen(self, uop: UOp) -> Self:
    """A view of this one, which follows what is written to the memory if this one does."""
    return self._wrap(uop, self.follows)

  def _taken_whole(self, where: Sharding) -> Self:
    """The value at `where`, for an op that takes dims whole along which it is cut; so it is wherever it comes to be."""
    if self.uop.device == where:
      return self
    implied = self.uop.op is Ops.MOVE and not self.uop.arg.pinned
    x = self.uop.src[0] if implied else self.uop  # which may be at `where`, and has to stay there
    return self._new(UOp.new(Ops.MOVE, x.dtype, (x,), Move(where, True, whole=True)).stamp().named(where))

  @property
  def device(self) -> Placement:
    """Where the value is once it is realised: a device name or a `Sharding` that is not partial.

    Examples:
      >>> Tensor([1], device="CPU:1").device
      'CPU:1'
      >>> Tensor([1, 2]).shard(("CPU:0", "CPU:1"), axis=0).device
      Sharding(('CPU', 'CPU:1'), axis=0)
    """
    return reduced_placement(self.uop.device)

  @property
  def shape(self) -> tuple[sint, ...]:
    """The global shape; a dim is an int, or an expression of bound variables.

    Examples:
      >>> Tensor.ones(2, 3).shard(("CPU:0", "CPU:1"), axis=0).shape
      (2, 3)
    """
    return self.uop.shape

  @property
  def dtype(self) -> DType:
    """The type of the elements.

    Examples:
      >>> Tensor([1.0]).dtype
      dtypes.float32
    """
    return self.uop.dtype

  @property
  def ndim(self) -> int:
    """The number of dims.

    Examples:
      >>> Tensor.ones(2, 3).ndim
      2
    """
    return len(self.uop.shape)

  @property
  def max_shape(self) -> tuple[int, ...]:
    """The shape with every symbolic dim at its upper bound.

    Examples:
      >>> Tensor.ones(8)[: Variable("n", 1, 8).bind(3)].max_shape
      (8,)
    """
    return tuple(s if isinstance(s, int) else int(s.vmax) for s in self.shape)

  def numel(self) -> sint:
    """The number of elements.

    Examples:
      >>> Tensor.ones(2, 3).numel()
      6
    """
    return prod(self.shape)

  def max_numel(self) -> int:
    """The number of elements, of a symbolic shape its upper bound.

    Examples:
      >>> Tensor.ones(8)[: Variable("n", 1, 8).bind(3)].max_numel()
      8
    """
    return int(prod(self.max_shape))

  def element_size(self) -> int:
    """Bytes of one element.

    Examples:
      >>> Tensor([1.0]).element_size()
      4
    """
    return self.dtype.itemsize

  def nbytes(self) -> int:
    """Bytes of all elements (of the upper bound of a symbolic shape).

    Examples:
      >>> Tensor.ones(2, 3).nbytes()
      24
    """
    return self.max_numel() * self.dtype.itemsize

  def _wide(self) -> DType:
    """The type in which the errors of several steps do not show: float64 for float32, where the device has it."""
    target = Device[device_set(self.device)[0]].target
    return dtypes.float64 if self.dtype is dtypes.float32 and target.float64 else sum_acc_dtype(self.dtype)

  def is_floating_point(self) -> bool:
    """Whether the elements are floats.

    Examples:
      >>> Tensor([1.0]).is_floating_point(), Tensor([1]).is_floating_point()
      (True, False)
    """
    return bool(dtypes.is_float(self.dtype))

  def size(self, dim: int | None = None) -> sint | tuple[sint, ...]:
    """The shape, or the length of one dim.

    Examples:
      >>> Tensor.ones(2, 3).size(), Tensor.ones(2, 3).size(1)
      ((2, 3), 3)
    """
    return self.shape if dim is None else self.shape[self._dim(dim)]

  def _dim(self, dim: int, extra: bool = False) -> int:
    """A dim counted from the front; `extra` allows one past the last. IndexError if there is no such dim."""
    n = max(1, self.ndim + extra)
    given: object = dim
    if not isinstance(given, Integral):
      rule = f"dim {dim!r} is a {type(dim).__name__}, and no integer"
      raise TypeError(f"{rule}\n  fix: give one dim of a tensor of shape {self.shape}, from {-n} to {n - 1}")
    if not -n <= dim < n:
      rule = f"dim {dim} out of range [{-n}, {n - 1}] of a tensor of shape {self.shape}"
      raise IndexError(f"{rule}\n  fix: count dims from 0, or from the end from -1")
    return dim + n if dim < 0 else dim

  def _dims(self, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Sorted dims of an `axis` argument; None means all. ValueError for a dim given twice."""
    if axis is None:
      return tuple(range(self.ndim))
    dims = tuple(sorted(self._dim(a) for a in dim_arguments(axis)))
    if len(set(dims)) != len(dims):
      raise ValueError(f"axis {axis} names a dim twice (shape {self.shape})\n  fix: give every dim once")
    return dims if self.ndim else ()

  def _lift(self, x: Any, name: str) -> UOp:
    """An operand beside this tensor as a node: a tensor's own, or a number in the type that `weak_dtype` gives."""
    if isinstance(x, Base):
      return x.uop
    if isinstance(x, UOp):
      return x if x.dtype is not dtypes.index else x.cast(dtypes.default_int)
    if not isinstance(x, (bool, int, float)):
      if getattr(x, "shape", None) != ():  # a numpy scalar is a number too
        raise TypeError(f"{name}: cannot use {_kind(x)} as an operand\n  fix: {_instead_of(name, x)}")
      x = x.item()
    d = weak_dtype(self.dtype, x)
    if not holds_number(d, x):
      mismatch(
        name, range_rule(d, x), [self.uop], 'cast the tensor to a wider type, e.g. x.cast("int64")', OverflowError
      )
    return UOp.const(d, x)

  def _operands(self, x: Any, name: str, reverse: bool = False) -> list[UOp]:
    """This tensor and an operand, as nodes of their least upper type and their common shape."""
    a, b = self.uop, self._lift(x, name)
    if a.dtype is b.dtype and (a.shape == b.shape or b.shape == ()):  # the everyday cases
      b = b.broadcast_to(a.shape)
      return [b, a] if reverse else [a, b]
    dtype, us = common_dtype(a.dtype, b.dtype), (b, a) if reverse else (a, b)
    shape = common_shape(name, us)
    return [u.cast(dtype).broadcast_to(shape) for u in us]

  def _both(self, x: Any, name: str) -> tuple[Self, Self]:
    """This tensor and an operand, in their common type and shape."""
    a, b = self._operands(x, name)
    return self._wrap(a), self._wrap(b)

  def cast(self, dtype: DType | str) -> Self:
    """Elements converted to `dtype`, itself if they have it; floats to integers truncate toward zero, anything to bool
    is `!= 0`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.9, -1.9]).cast(dtypes.int32).tolist()
      [1, -1]
    """
    d, u = to_dtype(dtype), self.uop
    if u.dtype is d:
      return self
    return self._new(u.cast(d) if d is not dtypes.bool else u.alu(Ops.CMPNE, u.const_like(0)))

  def _counted(self) -> Any:
    """The bools of which the True ones are to be counted, as a numpy array."""
    raise NotImplementedError

  def numpy(self) -> Any:
    """The value as a numpy array.

    Examples:
      >>> Tensor([1, 2]).numpy()
      array([1, 2], dtype=int32)
    """
    raise NotImplementedError

  def requires_grad_(self, requires_grad: bool | None = True) -> Self:
    """Says whether `backward` fills `.grad` here. Unset (None), it does for floats.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0]).requires_grad_(False).requires_grad
      False
    """
    self.requires_grad = requires_grad
    return self

  def numpy_shape(self) -> tuple[int, ...]:
    """The shape, all of it known. ValueError if a dim is symbolic.

    Examples:
      >>> Tensor.ones(2, 3).numpy_shape()
      (2, 3)
    """
    if not all_int(self.shape):
      fix = "reduce over it, or pad to its upper bound first"
      raise ValueError(f"the shape {self.shape} has a symbolic dim\n  fix: {fix}")
    return tuple(int(s) for s in self.shape if isinstance(s, int))
