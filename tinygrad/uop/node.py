"""`UOp`, the IR's node: interned and immutable `(op, dtype, src, arg)`, from `Tensor` down to linear code."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.device import HOST_DEVICE, Buffer, Constraint, Mesh, Placement, Sharding, check_fits, line_at
from tinygrad.dtype import ConstType, DType, as_const, dtypes, from_numpy_dtype, to_dtype
from tinygrad.helpers import CHECK_NAN, DEBUG, DEFER, PROFILE, SPEC, VIZ, exact, prod, user_frame
from tinygrad.uop.dims import as_dims, is_int, simplify_sint, sint, upper
from tinygrad.uop.op import BufferArg, GroupOp, Move, Ops

_table: dict[tuple[Any, ...], Ref] = {}
_uids, _numbers = itertools.count(), itertools.count()


class Ref(weakref.ref["UOp"]):
  """A weak reference to a node, one for each: what side tables are keyed by. It knows its key in the table of nodes."""

  __slots__ = ("key",)
  key: tuple[Any, ...]
  __hash__, __eq__ = object.__hash__, object.__eq__


_side_tables: list[dict[Ref, Any]] = []


def side_table() -> dict[Ref, Any]:
  """A table for what somebody notes of nodes, by `u.ref`; an entry goes with its node. Nodes are interned: they carry
  nothing that belongs to one pass."""
  _side_tables.append({})
  return _side_tables[-1]


def _forget(ref: Ref, nodes: dict[Any, Ref] = _table, tables: list[dict[Ref, Any]] = _side_tables) -> None:
  if nodes.get(ref.key) is ref:  # by names of its own: at the end of the process the module's are gone first
    nodes.pop(ref.key, None)
  for table in tables:
    table.pop(ref, None)


_memory: dict[Ref, Buffer] = side_table()  # of BUFFERs


def _operator(op: Ops) -> tuple[Callable[[UOp, Any], UOp], Callable[[UOp, Any], UOp]]:
  """The methods `self op x` and `x op self`; x may be a Python scalar. With a tensor the tensor's methods do it."""

  def beside(self: UOp, x: Any) -> UOp | None:
    return x if isinstance(x, UOp) else None if hasattr(x, "uop") else self.const_like(x)

  return (
    lambda self, x: NotImplemented if (y := beside(self, x)) is None else self.alu(op, y),
    lambda self, x: NotImplemented if (y := beside(self, x)) is None else y.alu(op, self),
  )


_NEUTRAL: dict[Ops | None, int] = {Ops.ADD: 0, Ops.MUL: 1}  # what a partial sum or product is padded with


class Hooks:
  """What modules above this package put in: the placement function (`sharding/`), so that methods of `UOp` can call it;
  the checks of `SPEC=2`; and the line that new nodes are said to come from (of a gradient the forward line; None: the
  user's frame is looked up)."""

  build: Callable[[Ops, DType, tuple[UOp, ...], Any], UOp]  # the node on its sources, brought to where it runs
  result: Callable[[UOp], Placement | None]  # the device of a node whose sources are placed
  deliver: Callable[[UOp, Placement], UOp]  # the cheapest form of a value at a placement, by implied moves
  check: Callable[[UOp], None]
  render: Callable[[UOp], str]  # an integer expression as text, by the cards of its ops
  describe: Callable[[UOp], str]  # a value as errors name it
  propagated: Callable[[Sequence[UOp], Mesh], list[UOp]]  # what values become where hints are spread over a mesh
  reports: Any  # debug/report.py, which tells what a program moves
  origin: tuple[str, int] | None = None
  lines = False  # whether nodes on one device know their line too: there are hints, and explanations name lines


# what a node knows of itself, given that its sources know it of themselves: filled in by attributes.py and symbolic.py
ATTRIBUTES: dict[str, Callable[[UOp], Any]] = {}


class UOp:
  """A node. Equal nodes are the same object, so `is` compares whole graphs and passes memoise by identity.

  Build leaves with `UOp.const`, `UOp.iota`, `UOp.buffer`, `UOp.variable` and the rest with methods; they insert what
  placements need (docs/architecture.md). `UOp.new` builds exactly the node given and is for passes."""

  __slots__ = (
    "__weakref__", "abstract", "arg", "bound", "bounds", "device", "dtype", "key", "loops", "mesh", "number", "op",
    "order", "origin", "ref", "shape", "simplified", "src",
  )  # fmt: skip
  op: Ops
  dtype: DType
  src: tuple[UOp, ...]
  arg: Any
  origin: tuple[str, int] | None  # the user's line; outside every key
  mesh: Mesh  # of a BUFFER or MOVE: the one with whose names the user placed it; outside every key
  ref: Ref
  number: int  # of the node in the order in which they were made: more than those of its sources
  abstract: UOp  # what placement can see of it (sharding/abstract_values.py)
  order: list[UOp]  # of a SINK or STORE, for which every stage asks: what is below it, sources first
  # filled in when first asked for, by the functions in ATTRIBUTES
  shape: tuple[Any, ...]  # the logical one; () for scalars and all inside kernels. Ints, or integer expressions
  device: Placement | None  # where the value lives, partial or not; None for constants, which live anywhere
  bounds: tuple[int, int]  # inclusive (least, greatest) value of an integer or bool expression
  bound: frozenset[tuple[UOp, int]]  # the variables that have values in it, those in args too
  loops: frozenset[UOp]  # of a kernel, on which its value depends: those below it that it does not bind
  key: bytes  # a digest of the graph that is the same in every process: what orders operands
  simplified: UOp  # the simplest equal expression

  @staticmethod
  def new(op: Ops, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
    """The interned node of exactly these fields."""
    key = (op, dtype, src, arg) if op not in _WITH_FLOATS else (op, dtype, src, exact(arg))
    ref = _table.get(key)
    if ref is not None and (found := ref()) is not None:
      return found
    self = object.__new__(UOp)
    self.op, self.dtype, self.src, self.arg, self.origin = op, dtype, src, arg, None
    self.number, self.ref = next(_numbers), (ref := Ref(self, _forget))
    ref.key = key
    if (other := _table.setdefault(key, ref)) is not ref:  # another thread's, or one that is being forgotten
      if (found := other()) is not None:
        return found
      _table[key] = ref
    if SPEC.value >= 2:
      Hooks.check(self)
    return self

  def __reduce__(self) -> tuple[Any, ...]:
    return UOp.new, (self.op, self.dtype, self.src, self.arg)

  def replace(self, **fields: Any) -> UOp:
    """This node with some fields changed; the origin is inherited."""
    get = fields.get
    u = UOp.new(get("op", self.op), get("dtype", self.dtype), get("src", self.src), get("arg", self.arg))
    if u.origin is None:
      u.origin = self.origin
    return u

  def stamp(self) -> UOp:
    """Itself, with the line it comes from; the first one wins."""
    if self.origin is None:
      if Hooks.origin is not None:
        self.origin = Hooks.origin
      elif (frame := user_frame()) is not None:
        self.origin = line_at(frame)
    return self

  # ---- properties

  if not TYPE_CHECKING:  # else every name would pass for an attribute

    def __getattr__(self, name: str) -> Any:
      """What is not filled in yet, computed for all nodes below first: graphs may be deeper than the stack."""
      if (rule := ATTRIBUTES.get(name)) is None:
        raise AttributeError(f"a UOp has no attribute {name!r}")
      known = _slots[name]
      try:
        for s in self.src:
          known(s)
      except AttributeError:
        for u in self.toposort(lambda u: not knows(u, name)):
          setattr(u, name, rule(u))
        return known(self)
      setattr(self, name, fact := rule(self))
      return fact

  @property
  def ndim(self) -> int:
    return len(self.shape)

  @property
  def max_shape(self) -> tuple[int, ...]:
    """The shape with upper bounds for symbolic dims."""
    return tuple(map(upper, self.shape))

  @property
  def size(self) -> Any:
    return prod(self.shape)

  @property
  def base(self) -> UOp:
    """What the value is a view of: itself below movement ops, ASSIGN targets and AFTER."""
    return next(u for u in self.down() if u.op not in GroupOp.Movement and u.op not in _BASED)

  def down(self) -> Iterator[UOp]:
    """This node, its first source, the first source of that, and so on to a leaf."""
    u = self
    yield u
    while u.src:
      u = u.src[0]
      yield u

  @property
  def vmin(self) -> int:
    return self.bounds[0]

  @property
  def vmax(self) -> int:
    return self.bounds[1]

  def toposort(self, gate: Callable[[UOp], bool] | None = None, known: Collection[UOp] = ()) -> list[UOp]:
    """Every node below and including this one, sources first; with `gate`, only nodes that pass it (and are reached
    through such), which is not asked of what is `known`: that does not pass."""
    if (kept := gate is None and not known and self.op in _KEEPS_ORDER) and knows(self, "order"):
      return [*self.order, self]
    seen: set[UOp] = set()
    out: list[UOp] = []
    stack: list[UOp | None] = [self]
    pop, push = stack.pop, stack.append
    while stack:
      u = pop()
      if u is None:  # the sources of the node below it on the stack are done
        out.append(pop())  # type: ignore[arg-type]
      elif u not in seen and u not in known and (gate is None or gate(u)):
        seen.add(u)
        push(u)
        push(None)
        for s in reversed(u.src):
          if s not in seen:
            push(s)
    if kept:
      self.order = out[:-1]
    return out

  def variables(self) -> list[UOp]:
    """The VARIABLEs below this node, those inside args included, by name."""
    order = self.toposort()
    inner = {v for u in order for x in uops_in(u.arg) for v in x.variables()}
    return sorted(inner.union(u for u in order if u.op is Ops.VARIABLE), key=lambda v: v.arg)

  # ---- leaves

  @staticmethod
  def const(dtype: DType, value: ConstType, unique: bool = False) -> UOp:
    """A constant. `unique`: one that differs from every other node, for tensors that users create: a derivative by
    one of two tensors of ones, or a write to it, must not be one of the other. The number goes as it is realised."""
    src = (UOp.new(Ops.UNIQUE, dtypes.void, (), next(_uids)),) if unique else ()
    return UOp.new(Ops.CONST, dtype, src, as_const(value, dtype))

  def const_like(self, value: ConstType) -> UOp:
    """`value` with this node's dtype and shape."""
    return UOp.const(self.dtype, value).broadcast_to(self.shape)

  def broadcast_to(self, shape: Sequence[sint]) -> UOp:
    """Prepends dims of 1 and expands."""
    shape = tuple(shape)
    if self.shape == shape:
      return self
    return self.reshape((1,) * (len(shape) - self.ndim) + self.shape).expand(shape)

  @staticmethod
  def iota(n: sint, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, …, n-1."""
    return UOp.new(Ops.IOTA, dtype, (), n)

  @staticmethod
  def buffer(
    shape: Sequence[int], dtype: DType, device: Placement, memory: Buffer | None = None, origin: Any = None
  ) -> UOp:
    """A new buffer; its memory (`buffer_of`) is allocated on first use. `origin`: its line, if not the user's."""
    check_fits(device, shape)
    u = UOp.new(Ops.BUFFER, dtype, (), BufferArg(next(_uids), tuple(shape), device)).named(device)
    u.origin, _memory[u.ref] = origin, memory if memory is not None else Buffer(device, tuple(shape), dtype)
    return u if origin is not None else u.stamp()

  @staticmethod
  def from_numpy(array: Any) -> UOp:
    """A buffer on the host device `NPY` that holds `array` itself (no copy; a strided view stays one).

    A device copies from it and never takes the memory over, though `CPU.wrap` could: whoever gave the array may write
    to it, or hold a view of it that does, and kernels that write in place would write to it. (numpy's own large arrays
    lie 16 bytes after a page's start besides, where wide aligned loads are not possible.)"""
    memory = Buffer(HOST_DEVICE, tuple(array.shape), from_numpy_dtype(array.dtype)).allocate([array])
    return UOp.buffer(array.shape, memory.dtype, HOST_DEVICE, memory)

  @staticmethod
  def variable(name: str, min_val: int, max_val: int, dtype: DType | str | None = None) -> UOp:
    """An integer, given a value at run time (`bind`) within [min_val, max_val]; ValueError for no such. `dtype`, which
    holds both, is only checked (TypeError): in shapes it counts as an index, beside tensors as the default integer."""
    made = f"Variable({name!r}, {min_val}, {max_val})"
    if not hasattr(min_val, "__index__") or not hasattr(max_val, "__index__") or min_val > max_val:
      raise ValueError(f"{made}: the bounds are no integers, or the lower bound is above the upper bound\n  fix: 1, 10")
    if dtype is not None and (d := to_dtype(dtype)) is not dtypes.index:
      if not dtypes.is_int(d):
        raise TypeError(f"{made}: a variable is an integer, not {d}\n  fix: leave dtype out, and cast what it makes")
      if not dtypes.min(d) <= min_val <= max_val <= dtypes.max(d):
        raise ValueError(f"{made}: {d} does not hold its bounds\n  fix: leave dtype out, or take a wider one")
    return UOp.new(Ops.VARIABLE, dtypes.index, (), (name, min_val, max_val))

  def bind(self, value: int) -> UOp:
    """This variable with its value for one call. Raises ValueError outside the bounds."""
    assert self.op is Ops.VARIABLE, f"bind of {self}, which is bound, or no variable; bind the variable itself"
    name, lo, hi = self.arg
    if not hasattr(value, "__index__") or not lo <= value <= hi:
      raise ValueError(f"{name} = {value} is outside its bounds [{lo}, {hi}], or no integer\n  fix: bind one of these")
    return UOp.new(Ops.BIND, dtypes.index, (self, UOp.const(dtypes.index, value)))

  # ---- the hooks: every node that a user's op makes comes through here

  @staticmethod
  def build(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any = None) -> UOp:
    """The node, after its sources have been brought to where the placement rules want them.

    Fast: nothing sharded, or an elementwise op on sources placed alike. Otherwise `Hooks.build` is asked."""
    device: Any = None
    slow = False
    for s in src:
      d = s.device
      if d is not None and d is not device:
        slow, device = (slow or device is not None), d
    if not slow and ((one := device is None or type(device) is str) or (op in _KEEPS_PLACEMENT and not device.partial)):
      u = UOp.new(op, dtype, src, arg)
      if op is not Ops.WAIT:  # which is where its value is, whatever it waits for
        u.device = device
      told = Hooks.lines or VIZ.value or CHECK_NAN.value or PROFILE.value or DEBUG.value >= 2
      return u if one and not told else u.stamp()
    u = Hooks.build(op, dtype, src, arg).stamp()
    d = u.device
    return u.move(d.reduced, pinned=False) if isinstance(d, Sharding) and d.partial and not DEFER.value else u

  def alu(self, op: Ops, *others: UOp) -> UOp:
    """An elementwise op; shapes and dtypes must agree already."""
    dtype = dtypes.bool if op in GroupOp.Comparison else others[0].dtype if op is Ops.WHERE else self.dtype
    if self.dtype is dtypes.index or (others and others[0].dtype is dtypes.index):
      return UOp.new(op, dtype, (self, *others)).simplified
    if op is Ops.NEG and self.partial is Ops.MUL and not dtypes.is_unsigned(dtype):
      return self.alu(Ops.MUL, self.const_like(-1))  # one of the factors is made partial
    return UOp.build(op, dtype, (self, *others))

  @property
  def axis(self) -> int | None:
    """The one dim that is cut; None if none is. Raises ShardError if several are."""
    return self.device.axis if isinstance(self.device, Sharding) else None

  @property
  def partial(self) -> Ops | None:
    """The one op by which this value is still to be reduced; None where it is not partial, or by several."""
    d = self.device
    ops = {o.op for o in d.partial} if isinstance(d, Sharding) and d.partial else ()
    return next(iter(ops)) if len(ops) == 1 else None

  def cast(self, dtype: DType) -> UOp:
    if self.dtype is dtype:
      return self
    if self.op is Ops.CONST and not self.src:  # one with a source is a tensor of its own, to which gradients flow
      return UOp.const(dtype, _cast_const(self.arg, dtype))
    return UOp.build(Ops.CAST, dtype, (self,))

  def bitcast(self, dtype: DType) -> UOp:
    """The same bits read as another type of the same width."""
    if dtype.itemsize != self.dtype.itemsize:
      types = f"{self.dtype} ({self.dtype.itemsize} bytes) to {dtype} ({dtype.itemsize} bytes)"
      raise TypeError(f"bitcast from {types}: the widths must be equal")
    return self if self.dtype is dtype else UOp.build(Ops.BITCAST, dtype, (self,))

  def r(self, op: Ops, axes: Sequence[int]) -> UOp:
    """Reduce over `axes`, which stay as dims of 1. Over a cut dim the result is partial; it is reduced here unless
    DEFER."""
    axes = tuple(sorted(a for a in axes if not (isinstance(self.shape[a], int) and self.shape[a] == 1)))
    if not axes:
      return self
    if op is Ops.ADD and dtypes.is_float(self.dtype) and any(is_int(self.shape[a], 0) for a in axes):
      return UOp.build(Ops.REDUCE, self.dtype, (self,), (op, axes)) + 0.0  # of nothing the -0.0 that sums begin with
    d = self.device
    if self.dtype in HALVES and op in (Ops.ADD, Ops.MUL) and isinstance(d, Sharding) and any(d.cut(a) for a in axes):
      # parts of a half are carried in a wider type, so that sharding loses neither range nor precision
      wide = self.cast(dtypes.reduce_float)
      return UOp.build(Ops.REDUCE, wide.dtype, (wide,), (op, axes)).cast(self.dtype)
    return UOp.build(Ops.REDUCE, self.dtype, (self,), (op, axes))

  def reshape(self, shape: Sequence[sint]) -> UOp:
    shape = as_dims(shape)
    return self if shape == self.shape else UOp.build(Ops.RESHAPE, self.dtype, (self,), shape)

  def permute(self, order: Sequence[int]) -> UOp:
    order = tuple(order)
    return self if order == tuple(range(len(order))) else UOp.build(Ops.PERMUTE, self.dtype, (self,), order)

  def expand(self, shape: Sequence[sint]) -> UOp:
    shape = as_dims(shape)
    return self if shape == self.shape else UOp.build(Ops.EXPAND, self.dtype, (self,), shape)

  def pad(self, pairs: Sequence[tuple[sint, sint]], fill: ConstType = 0) -> UOp:
    pairs = tuple(as_dims(pair) for pair in pairs)
    if all(is_int(a, 0) and is_int(b, 0) for a, b in pairs):
      return self
    fill, identity = as_const(fill, self.dtype), _NEUTRAL.get(self.partial)
    if identity is not None and fill != identity:  # what is partial is padded with the identity, and then filled
      inside = UOp.const(dtypes.bool, True).broadcast_to(self.shape).pad(pairs, False)
      return inside.where(self.pad(pairs, identity), fill)
    return UOp.build(Ops.PAD, self.dtype, (self,), (pairs, fill))

  def shrink(self, pairs: Sequence[tuple[sint, sint]]) -> UOp:
    pairs = tuple(as_dims(pair) for pair in pairs)
    if all(is_int(a, 0) and (b is n or is_int(b, n)) for (a, b), n in zip(pairs, self.shape, strict=True)):
      return self
    return UOp.build(Ops.SHRINK, self.dtype, (self,), pairs)

  def flip(self, axes: Sequence[int]) -> UOp:
    axes = tuple(sorted(axes))
    return UOp.build(Ops.FLIP, self.dtype, (self,), axes) if axes else self

  @staticmethod
  def cat(xs: Sequence[UOp], axis: int) -> UOp:
    return xs[0] if len(xs) == 1 else UOp.build(Ops.CAT, xs[0].dtype, tuple(xs), axis)

  def window(self, axis: int, kaxis: int, stride: int, dilation: int, size: sint) -> UOp:
    """y[.., o, .., k, ..] = x[.., o*stride + k*dilation, .., k, ..]; dim `axis` becomes `size`."""
    return UOp.build(Ops.WINDOW, self.dtype, (self,), (axis, kaxis, stride, dilation, size))

  def spread(self, axis: int, kaxis: int, stride: int, dilation: int, size: sint) -> UOp:
    """The adjoint of `window`: z[.., i, .., k, ..] = y[.., (i - k*dilation)/stride, .., k, ..] or 0."""
    return UOp.build(Ops.SPREAD, self.dtype, (self,), (axis, kaxis, stride, dilation, size))

  def gather(self, index: UOp, batch: int = 0) -> UOp:
    """Rows of dim `batch`: shape index.shape + self.shape[batch + 1:]; an index outside [0, n) gives 0. The first
    `batch` dims of the index and of self are those of the result."""
    return UOp.build(Ops.GATHER, self.dtype, (self, index), batch)

  def scatter(self, index: UOp, n: sint, op: Ops, batch: int = 0) -> UOp:
    """The adjoint of `gather`: shape index.shape[:batch] + (n,) + self.shape[index.ndim:]. Row i is the reduction by
    `op` of these rows whose index is i, its identity where there are none. The first `batch` dims of the index and of
    self are those of the result; an index outside [0, n) is dropped."""
    arg = (op, as_dims((n,))[0], batch)
    cut = [(d, i) for d in (self.device, index.device) for i in range(batch, index.ndim) if isinstance(d, Sharding)]
    if self.dtype in HALVES and op in (Ops.ADD, Ops.MUL):  # what is added to, in memory, is not rounded each time
      wide = self.cast(dtypes.reduce_float if any(d.cut(i) for d, i in cut) else dtypes.float32)
      return UOp.build(Ops.SCATTER, wide.dtype, (index, wide), arg).cast(self.dtype)
    return UOp.build(Ops.SCATTER, self.dtype, (index, self), arg)

  def move(self, device: Placement, pinned: bool) -> UOp:
    """The value at another placement; itself if it is there."""
    if self.device is None or self.device == device:
      return self
    return UOp.new(Ops.MOVE, self.dtype, (self,), Move(device, pinned)).stamp()

  def copy_to_device(self, device: Placement) -> UOp:
    """What the user's `to` and `shard` make: a pinned move. An implied move behind it is not made twice."""
    x = self.src[0] if self.op is Ops.MOVE and not self.arg.pinned else self
    if isinstance(device, Sharding):
      check_fits(device, x.shape)
    u = UOp.new(Ops.MOVE, x.dtype, (x,), Move(device, True)) if x.device is None else x.move(device, pinned=True)
    return u.named(device)

  def named(self, device: Placement, names: Mesh | None = None) -> UOp:
    """Itself, placed with the names of that mesh (None: those with which `device` was last written)."""
    if isinstance(device, Sharding):
      self.mesh = names or device.mesh
    return self

  def assign(self, value: UOp) -> UOp:
    """Writes `value` into this view of a buffer; the result is the view's new content, at the buffer's placement."""
    if self.shape != value.shape or self.dtype is not value.dtype:
      problem = f"assign: the target is {Hooks.describe(self)}, the value {Hooks.describe(value)}"
      raise ValueError(f"{problem}\n  fix: cast and reshape the value to the target")
    device = self.device
    assert device is not None
    at = value if value.device is None or value.device == device else Hooks.deliver(value, device)
    return UOp.new(Ops.ASSIGN, self.dtype, (self, at)).stamp()

  def after(self, *effects: UOp) -> UOp:
    """This buffer's content once `effects` have happened."""
    return UOp.new(Ops.AFTER, self.dtype, (self, *effects))

  def wait(self, *others: UOp) -> UOp:
    """This value, which nothing reads before the others are computed: what is computed from it is computed anew."""
    return UOp.new(Ops.WAIT, self.dtype, (self, *others))

  def contiguous(self) -> UOp:
    """A value that gets a buffer of its own: each call makes another one, for what is written to one must not show in
    the other."""
    return self if self.op in (Ops.CONTIGUOUS, Ops.BUFFER) else self.clone()

  def clone(self) -> UOp:
    """A copy in a new buffer."""
    return UOp.build(Ops.CONTIGUOUS, self.dtype, (self,), next(_uids))

  def detach(self) -> UOp:
    """The value, through which no gradient flows; even of what is detached a new one, for a derivative may be by it."""
    return UOp.build(Ops.DETACH, self.dtype, (self,))

  def with_gradient(self, own: Any) -> UOp:
    """The value, whose derivative is the given one (an `OwnGradient`)."""
    return UOp.build(Ops.DETACH, self.dtype, (self,), own)

  def constrain(self, hint: Constraint) -> UOp:
    """The value, with a hint of how it is to be placed on a mesh. From here on all nodes know the user's line."""
    Hooks.lines = True
    return UOp.build(Ops.CONSTRAIN, self.dtype, (self,), hint).stamp()

  @staticmethod
  def sink(*src: UOp) -> UOp:
    return UOp.new(Ops.SINK, dtypes.void, src)

  # ---- operators

  __add__, __radd__ = _operator(Ops.ADD)
  __sub__, __rsub__ = _operator(Ops.SUB)
  __mul__, __rmul__ = _operator(Ops.MUL)
  __truediv__, __rtruediv__ = _operator(Ops.FDIV)
  __floordiv__, __rfloordiv__ = _operator(Ops.IDIV)
  __mod__, __rmod__ = _operator(Ops.MOD)
  __lt__, __gt__ = _operator(Ops.CMPLT)
  __and__, __or__, __xor__ = (_operator(op)[0] for op in (Ops.AND, Ops.OR, Ops.XOR))
  eq, ne, maximum, minimum = (_operator(op)[0] for op in (Ops.CMPEQ, Ops.CMPNE, Ops.MAX, Ops.MIN))

  def __neg__(self) -> UOp:
    return self.alu(Ops.NEG)

  def __ge__(self, x: Any) -> UOp:
    return NotImplemented if hasattr(x, "uop") else UOp.alu(self < x, Ops.NOT)

  def __le__(self, x: Any) -> UOp:
    return NotImplemented if hasattr(x, "uop") else UOp.alu(self > x, Ops.NOT)

  def where(self, x: Any, y: Any) -> UOp:
    """x where this condition holds, else y; one of them may be a Python scalar."""
    if not isinstance(x, UOp):
      x = y.const_like(x)
    return self.alu(Ops.WHERE, x, y if isinstance(y, UOp) else x.const_like(y))

  def __bool__(self) -> bool:
    """Of an integer or bool expression whose bounds decide it. Raises ValueError otherwise."""
    if self.shape == () and (self.dtype is dtypes.index or self.dtype is dtypes.bool):
      lo, hi = self.bounds
      if lo == hi or lo > 0 or hi < 0:
        return bool(lo)
    fix = "compare x.vmin or x.vmax, its bounds, or the number that a variable is bound to"
    raise ValueError(f"the truth of {self.op.name} is not known before it runs\n  fix: {fix}")

  def __index__(self) -> int:
    if self.op is Ops.CONST:
      return int(self.arg)
    problem = f"a symbolic value ({Hooks.render(self)}) where an int is needed"
    raise TypeError(f"{problem}\n  fix: x.vmax, its upper bound, or the number that a variable is bound to")

  def __repr__(self) -> str:
    if self.dtype is dtypes.index:
      return Hooks.render(self)
    return f"UOp({self.op.name}, {self.dtype}, arg={self.arg!r}, {len(self.src)} src)"


_WITH_FLOATS = frozenset((Ops.CONST, Ops.PAD))
_KEEPS_PLACEMENT = GroupOp.KeepsPlacement
HALVES = frozenset((dtypes.float16, dtypes.bfloat16))  # what is added up in a wider type
_KEEPS_ORDER = frozenset((Ops.SINK, Ops.STORE))
_BASED = frozenset((Ops.ASSIGN, Ops.AFTER, Ops.DETACH, Ops.CONSTRAIN))


def buffer_of(u: UOp) -> Buffer:
  """The memory of a BUFFER."""
  assert u.op is Ops.BUFFER, u.op
  return _memory[u.ref]


def give_memory(u: UOp, memory: Buffer) -> None:
  """A BUFFER's values stand in other memory of its shape from here on."""
  assert buffer_of(u).shape == memory.shape, (u, memory.shape)
  _memory[u.ref] = memory


def unseen(memory: Iterable[Buffer]) -> list[Buffer]:
  """That which no BUFFER has: nobody can look at it."""
  return list({*memory} - {*_memory.values()})


def _cast_const(value: ConstType, dtype: DType) -> ConstType:
  """A constant's cast; a float that no integer holds becomes 0, as the interpreter and LLVM's saturating casts of nan
  do."""
  if isinstance(value, float) and not dtypes.is_float(dtype) and dtype is not dtypes.bool:
    return 0 if math.isnan(value) else int(max(min(value, float(dtypes.max(dtype))), float(dtypes.min(dtype))))
  return value


_slots: dict[str, Callable[[UOp], Any]] = {name: vars(UOp)[name].__get__ for name in UOp.__slots__}


def knows(u: UOp, name: str) -> bool:
  """Whether that slot of `u` is filled in."""
  try:
    _slots[name](u)
  except AttributeError:
    return False
  return True


def viewed(u: UOp) -> UOp:
  """What `u` is a view of."""
  return next(v for v in u.down() if v.op not in GroupOp.View)


def stored(u: UOp, device: Placement) -> UOp:
  """The ASSIGN of a computed value to a new buffer; moves that it forces are said to come from where that was made."""
  view = UOp.buffer(u.max_shape, u.dtype, device).shrink([(0, n) for n in u.shape])
  view.base.named(device, mesh_of(u))
  store = view.assign(u)
  store.origin = u.origin
  return store


def uops_in(arg: Any) -> Sequence[UOp]:
  """The UOps inside an arg: symbolic dims in its tuples."""
  if isinstance(arg, tuple):
    return [u for x in arg if type(x) is not int for u in uops_in(x)]
  return (arg,) if isinstance(arg, UOp) else ()


def map_arg(arg: Any, f: Callable[[UOp], Any]) -> Any:
  """`arg` with every UOp inside replaced by f of it, dims in normal form (a constant is an int, the operands of sums
  and products are in the order of their keys); the same object if nothing changed."""
  if isinstance(arg, UOp):
    v = f(arg)
    if isinstance(v, UOp) and v.dtype is dtypes.index:
      return simplify_sint(v)
    return v.arg if isinstance(v, UOp) and v.op is Ops.CONST else v
  if type(arg) is tuple:
    mapped = tuple([x if type(x) is int else map_arg(x, f) for x in arg])
    return arg if mapped == arg else mapped
  return arg


def sint_to_uop(x: sint) -> UOp:
  return x if isinstance(x, UOp) else UOp.const(dtypes.index, x)


def mesh_of(u: UOp) -> Mesh | None:
  """The mesh with whose names the user placed `u`, or else the nearest value below it on these devices."""
  if not isinstance(here := u.device, Sharding):
    return None
  nearest, seen = deque([u]), {u}
  while nearest:
    v = nearest.popleft()
    if knows(v, "mesh") and v.mesh.home is here.home:
      return v.mesh
    fresh = dict.fromkeys(s for s in v.src if s not in seen)
    seen.update(fresh)
    nearest.extend(fresh)
  return None


Variable = UOp.variable
