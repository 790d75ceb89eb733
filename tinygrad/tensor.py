"""The public `Tensor`: a value in the graph, how it is placed, realised, read and assigned to."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

from tinygrad.device import (
  HOST_DEVICE,
  Buffer,
  Device,
  DeviceNames,
  Mesh,
  P,
  Placement,
  Sharding,
  ShardTypeError,
  ambient_mesh,
  around,
  as_index,
  check_fits,
  constraint,
  device_set,
  reduced_placement,
  refuse,
  shape_of_blocks,
  show_placement,
)
from tinygrad.dtype import (
  DType,
  dtypes,
  from_numpy_dtype,
  to_dtype,
  to_numpy_dtype,
)
from tinygrad.engine.program_order import VIEWS, memory_state, program_order
from tinygrad.helpers import (
  NO_GRAD,
  TRAINING,
  Context,
  GlobalCounters,
  LazyModule,
  Setting,
  all_int,
  dedup,
  fetch,
  html_block,
  html_cell,
  html_rows,
  numpy,
  prod,
  uninterrupted,
)
from tinygrad.mixin.arrays import READ_OUTSIDE, Held, check_countable, check_outside, join, to_numpy, to_numpy_once
from tinygrad.mixin.base import DeviceArg, DTypeArg, broadcast_shape, mismatch, to_placement
from tinygrad.mixin.data import node_of
from tinygrad.mixin.differentiation import Differentiation
from tinygrad.mixin.foreign_names import creator_here, memory_method, with_fix
from tinygrad.mixin.random import drawn_there
from tinygrad.ops import Trait, having
from tinygrad.propagation import place_on
from tinygrad.runtime import storage
from tinygrad.runtime.transfer import copy_blocks, own_parts
from tinygrad.transforms.batching import placed_again
from tinygrad.transforms.ended import note_written
from tinygrad.transforms.tracing import check_write
from tinygrad.uop import GroupOp, Ops, UOp, buffer_of, describe, substitute

ONE_TO_ONE = having(Trait.ONE_TO_ONE)

if TYPE_CHECKING:
  from tinygrad.drawing import grid
  from tinygrad.sharding import view_assigns
else:
  grid = LazyModule("tinygrad.drawing.grid")
  view_assigns = LazyModule("tinygrad.sharding.view_assigns")


_to_np_dtype = to_numpy_dtype  # by which programs know it


class _Training(type(Differentiation)):  # type: ignore[misc]
  """`Tensor.training` reads and sets the context variable TRAINING."""

  training = Setting(TRAINING, bool, int)

  if not TYPE_CHECKING:  # else every name would pass for an attribute

    def __getattr__(cls, name: str) -> NoReturn:
      """Of a name that the class does not have: an AttributeError with what does here what that of PyTorch does."""
      problem = f"type object {cls.__name__!r} has no attribute {name!r}"
      raise AttributeError(with_fix(problem, creator_here(cls, name)), name=name, obj=cls)


class Tensor(Differentiation, metaclass=_Training):
  """An array of one type on one device or cut over several.

  `Tensor(data, device, dtype)` takes numbers, nested lists, bytes (uint8), a path (its bytes), numpy arrays, a bound
  variable or nothing (an empty tensor). Nothing is computed before `realize`, `numpy`, `item`, …
  `grad` is what `backward` has left; `requires_grad` says whether it does (None: as the optimizer likes).

  Examples:
    >>> Tensor([[1, 2], [3, 4]])
    <Tensor int32[2, 2] on CPU>
    >>> (Tensor([1.0, 2.0]) * Tensor([[10.0], [20.0]])).tolist()
    [[10.0, 20.0], [20.0, 40.0]]
  """

  __slots__ = ("__weakref__", "_uop")
  _uop: UOp

  def __init__(
    self, data: Any = None, device: DeviceArg = None, dtype: DTypeArg = None, requires_grad: bool | None = None
  ) -> None:
    d = None if dtype is None else to_dtype(dtype)
    self._uop = u = node_of(data, None if device is None else to_placement(device), d)
    if u.dtype is dtypes.float64:
      _check_float64(u)
    # a Tensor or a node is shown as it is; all else becomes memory only when it is realised
    given = type(data) is UOp or (isinstance(data, Tensor) and data.follows)
    self.follows = given and (u.op is Ops.BUFFER or memory_state(u, moved=True) is not None)
    self._grad, self.requires_grad = None, requires_grad
    program_order.enter(self)

  @classmethod
  def _wrap(cls, uop: UOp, follows: bool = False) -> Self:
    t = object.__new__(cls)
    t._uop = u = uop if not NO_GRAD.value else uop.detach()
    if u.dtype is dtypes.float64:
      _check_float64(u)
    t._grad, t.requires_grad, t.follows = None, None, follows
    program_order.enter(t)
    return t

  @property
  def uop(self) -> UOp:
    """The node that this tensor stands for.

    Examples:
      >>> Tensor([1.0]).uop.shape
      (1,)
    """
    return self._uop

  @uop.setter
  def uop(self, u: UOp) -> None:
    program_order.sees(self, u)
    self._uop = u
    if u.dtype is dtypes.float64:
      _check_float64(u)

  # ---- what it shows

  def __repr__(self) -> str:
    return f"<Tensor {describe(self.uop)}{'' if self._stored_grad is None else ', with grad'}>"

  def _repr_html_(self) -> str:
    """Shape, type, placement in colour, and the first values where they are in memory; nothing is computed for it but
    the copy of those."""
    drawn = isinstance(self.device, Sharding) and all_int(self.shape)
    parts = f'<div style="background:#fff;width:max-content">{grid.draw_grid(self.uop).svg}</div>' if drawn else ""
    said = "" if self._in_memory() else "<div>not computed yet</div>"
    return html_block(f"Tensor {describe(self.uop)}", self._first_values() if not said else said, parts)

  def _in_memory(self) -> bool:
    """Whether it is memory, or a view of some, that holds values."""
    base = memory_state(self.uop)
    if base is None or base.op is not Ops.BUFFER or not all_int(self.shape):
      return False
    return bool(buffer_of(base).handles) and not any(Device[d].capabilities.simulated for d in device_set(self.device))

  def _first_values(self) -> str:
    """The first rows and columns of the last two dims, as HTML."""
    first = self[(0,) * max(0, self.ndim - 2)]
    values = first.shrink(tuple((0, min(n, k)) for n, k in zip(first.shape, (6, 10)[-first.ndim :]))).numpy()
    more = "…" if values.size < self.numel() else ""
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return html_rows([html_cell(f"{x:.4g}" if x.dtype.kind == "f" else x) for x in row] for row in rows) + more

  def __hash__(self) -> int:
    return id(self)

  def __len__(self) -> int:
    if not self.ndim:
      raise TypeError("len() of a 0-d tensor\n  fix: x.reshape(1) has one dim, x.item() is its number")
    return int(self.shape[0])

  def __bool__(self) -> bool:
    fix = "use x.item(), x.any().item() or x.all().item()"
    if program_order.steps or any(u.op is Ops.HOLE for u in self.uop.toposort()):  # nobody knows its value yet
      fix = "(x > 0).where(a, b) chooses by values, cond(x > 0, f, g, *operands) what is computed"
    raise TypeError(f"the truth of a tensor is not defined\n  fix: {fix}")

  def __iter__(self) -> Iterator[Self]:
    if not self.ndim:
      raise TypeError("iteration over a 0-d tensor\n  fix: x.reshape(1) has one element, x.item() is its number")
    return (self[i] for i in range(len(self)))

  def __delitem__(self, indices: Any) -> None:
    raise TypeError("a tensor does not support deleting elements\n  fix: join the parts that stay with Tensor.cat")

  # ---- placement

  def to(self, device: DeviceArg) -> Self:
    """The value on another device (None: the default one) or placement; itself if it is there.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1]).to("CPU:1").device
      'CPU:1'
    """
    return self._at(to_placement(device))

  def _at(self, placement: Placement) -> Self:
    if self.uop.device == placement:
      return self if (u := placed_again(self.uop, placement)) is self.uop else self._wrap(u)
    if storage.only_stored(self.uop.device):  # read where it arrives
      return self._wrap(storage.read(self.uop))._at(placement)
    if storage.only_stored(placement):
      return self._wrap(UOp.buffer(self.numpy_shape(), self.dtype, placement), True).assign(self)
    t = self._wrap(self.uop.copy_to_device(placement))
    t.requires_grad = self.requires_grad
    return t

  def to_(self, device: DeviceArg) -> Self:
    """`to` in place.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1]).to_("CPU:1").device
      'CPU:1'
    """
    return self._become(self.to(device))

  def _become(self, x: Self) -> Self:
    if (grad := self._stored_grad) is not None:
      self.grad = grad.to(x.device)
    drawn = drawn_there(self.uop, x.device) if x.uop is not self.uop else None
    self.uop, self.follows = (x.uop, x.follows) if drawn is None else (drawn, False)
    program_order.reenter(self)
    return self

  @overload
  def shard(self, devices: Sharding) -> Self: ...
  @overload
  def shard(self, devices: DeviceNames | Mesh, axis: int | P | None = None) -> Self: ...
  def shard(self, devices: Any, axis: int | P | None = None) -> Self:
    """The value over several devices: `shard(names, axis)` cuts one dim (None: a copy on each), `shard(mesh, P(...))`
    by mesh axes, or `shard(sharding)`, which over one device is its name. On a sharded tensor it reshards. Names of one
    device are that device, with a warning.

    Raises: ShardError for a dim that is not there and for a placement that cannot be, ShardTypeError for what is none.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.arange(5).shard(("CPU:0", "CPU:1"), axis=0)
      >>> x.shape, [part.tolist() for part in x.shards]
      ((5,), [[0, 1, 2], [3, 4]])
      >>> Tensor.ones(4, 4).shard(Mesh(("CPU:0", "CPU:1"), names=("d",)), P(None, "d")).device.axis
      1
    """
    if isinstance(devices, Sharding):
      if axis is not None:
        rule = f"shard: the placement says already how dims are cut, beside it axis={axis!r} is one too many"
        refuse(rule, f"x.shard(placement.devices, axis={axis!r})", describe(self.uop), show_placement(devices))
      return self._at(devices)
    if isinstance(devices, str) and axis is None:
      return self.to(devices)  # what a Sharding over one device is
    if isinstance(devices, (str, P)):
      fix = f"x.to({devices!r})" if isinstance(devices, str) else f"x.shard(mesh, {devices!r})"
      refuse(f"shard: needs a sequence of devices, got {devices!r}", fix, describe(self.uop), error=ShardTypeError)
    if (number := as_index(axis)) is not None and not -self.ndim <= number < self.ndim:
      mesh, last = "mesh" if isinstance(devices, Mesh) else "devices", f", axis={self.ndim - 1}" if self.ndim else ""
      rule = f"shard: dim {number} is out of range, the tensor of shape {self.shape} has {self.ndim} dims"
      refuse(rule, f"x.shard({mesh}{last})", describe(self.uop))
    if isinstance(devices, (tuple, list)) and len(devices) > 1 and len({*map(Device.canonicalize, devices)}) == 1:
      warnings.warn(f"shard: {tuple(devices)} are one device, so nothing is cut", stacklevel=2)
      return self.to(devices[0])
    return self._at(Sharding(devices, axis if number is None else number % self.ndim))

  @overload
  def shard_(self, devices: Sharding) -> Self: ...
  @overload
  def shard_(self, devices: DeviceNames | Mesh, axis: int | P | None = None) -> Self: ...
  def shard_(self, devices: Any, axis: int | P | None = None) -> Self:
    """`shard` in place.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.ones(4)
      >>> x.shard_(("CPU:0", "CPU:1"), axis=0).device.axis
      0
    """
    return self._become(self.shard(devices, axis))

  def shard_like(self, y: Tensor) -> Self:
    """The value at y's placement. ShardTypeError (a ShardError) if y is no tensor.
    Shape: `(*dims), (*other) -> (*dims)`.

    Examples:
      >>> x = Tensor.ones(4).shard(("CPU:0", "CPU:1"), axis=0)
      >>> Tensor.zeros(4).shard_like(x).device == x.device
      True
    """
    if not isinstance(y, Tensor):
      refuse(f"shard_like: y is a tensor, not {y!r}", "x.to(y)", describe(self.uop), error=ShardTypeError)
    return self._at(y.device)

  def constrain(
    self,
    spec: P | None = None,
    priority: int | Sequence[int] = 0,
    replicated: Sequence[str] = (),
    reduced: Sequence[str] = (),
    group: Hashable = None,
    propagate: str = "both",
  ) -> Self:
    """The value, with a hint of how it is to be placed: `x.constrain(P("dp", None, OPEN))`. It changes nothing before
    a mesh is there to place values on: `propagate(*outputs, mesh=mesh)`, `TinyJit(f, mesh=mesh)` or `with mesh:`.

    `spec` has for each dim the axes that cut it; `OPEN` alone or behind them: others may cut it further; None, and dims
    that are not reached: none may. Without a spec all dims are open. `priority`: in which round the hint is propagated,
    0 first, one number or one for each dim. `replicated`: axes that cut no dim. `reduced`: axes over which a sum is not
    put off beyond this point. Values of one `group` are placed alike. `propagate`: what passes this point, "both"
    directions, "forward", "backward" or "none".
    Raises: ShardError and ShardTypeError for what is no hint for this tensor, and an axis that is named twice; for
    names that are no axes, when a mesh is there.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.ones(4, 2).constrain(P("d"))
      >>> said = propagate(x, mesh=Mesh(("CPU:0", "CPU:1"), names=("d",)))
      >>> x.device.axis
      0
    """
    return self._wrap(
      self.uop.constrain(constraint(self.ndim, spec, priority, replicated, reduced, group, propagate)), self.follows
    )

  @property
  def shards(self) -> list[Self]:
    """The part of each device, there; a list of one where the tensor is on one device. Where devices are spread over
    processes, those of this one, realized, as host data: what is done with them is this process's own affair.
    Shape: `(*dims) -> (*block), …`.

    Examples:
      >>> [part.shape for part in Tensor.ones(5).shard(("CPU:0", "CPU:1"), axis=0).shards]
      [(3,), (2,)]
    """
    where = self.device
    if Device.world is not None:
      return [self._wrap(UOp.from_numpy(array)) for array in own_parts(buffer_of(self.contiguous().realize().uop))]
    if isinstance(where, str):
      return [self]
    shape = self.numpy_shape()
    return [self.shrink(where.box(i, shape)).to(name) for i, name in enumerate(where.devices)]

  @classmethod
  def from_shards(cls, parts: Sequence[Any], placement: Placement) -> Self:
    """The tensor whose block on device i is `parts[i]`, a Tensor or an array; the inverse of `shards`.

    Its shape follows from the parts. Replicas may be given once: then `parts` holds the distinct blocks, in the order
    of the first device that holds each. A part that lies on its device gives its memory to the new tensor, and reads
    from there from now on; any other is copied once. The result is a leaf: no gradient flows to the parts.
    Raises: ShardError for another number of parts, for shapes that are not the placement's blocks of one shape, and
    for a partial placement; TypeError if the dtypes differ.
    Shape: `(*block), … -> (*dims)`.

    Examples:
      >>> Tensor.from_shards([[1, 2], [3, 4]], Sharding(("CPU:0", "CPU:1"), axis=0)).shape
      (4,)
    """
    placement = to_placement(placement)
    tensors = [p if isinstance(p, Tensor) else Tensor(p) for p in parts]
    shape, number = shape_of_blocks([t.numpy_shape() for t in tensors], placement)
    if len(kinds := dedup(t.dtype for t in tensors)) > 1:
      rule = f"the parts must have one dtype, not {', '.join(d.name for d in kinds)}"
      mismatch("from_shards", rule, [t.uop for t in tensors], f"cast them, e.g. part.cast({kinds[0]!r})", TypeError)
    if isinstance(placement, str):
      one = tensors[0].to(placement)
      return cls._wrap(one.uop, one.follows)
    with Context(NO_GRAD=0):
      sources = [_source(t.uop) for t in tensors]
      made = [cls._wrap(u, True) if u.op is Ops.BUFFER else cls._wrap(u.contiguous()) for u in sources]
      made[0].realize(*made[1:])
    whole = join([made[i].uop for i in number], placement, shape)
    given = {}
    for i, (name, k) in enumerate(zip(placement.devices, number, strict=True)):
      if buffer_of(whole).handle(i) is buffer_of(made[k].uop).handle() and not Device[name].capabilities.simulated:
        given[made[k].uop] = whole.shrink(placement.box(i, shape)).copy_to_device(name)
    if given:  # what shared memory would be written through two buffers
      memo: dict[UOp, UOp] = {}
      for t in program_order.live():
        t.uop = substitute(t.uop, given, memo)
        t.follows = t.follows and memory_state(t.uop, moved=True) is not None
    return cls._wrap(whole, True)

  @classmethod
  def from_process_local(cls, array: Any, placement: Placement, shape: Sequence[int] | None = None) -> Self:
    """The tensor of which this process gives `array`: the smallest box that holds the blocks of its devices. So no
    process has to have the whole; in one process alone the array is the whole. `shape` of the whole is needed where
    blocks are not all of one size. Done by all processes together.

    Raises: ShardError if the array is not that box; DivergedError where processes give other values for one block.
    Shape: `-> (*shape)`.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("dp",))
      >>> batch = Tensor.from_process_local(np.arange(4), Sharding(mesh, P("dp")))
      >>> batch.shape, batch.sum().item()
      ((4,), 6)
    """
    array = numpy.ascontiguousarray(array)
    if isinstance(placement := to_placement(placement), str):
      return cls(array, device=placement)
    blocks = tuple(placement.parts(i) for i in range(array.ndim))
    own = [i for i, name in enumerate(placement.devices) if Device.here(name)]
    if shape is None:  # even blocks
      held = around([placement.box(i, blocks) for i in own])
      shape = [n * k // max(hi - lo, 1) for n, k, (lo, hi) in zip(array.shape, blocks, held)]
    check_fits(placement, shape)
    box = around([placement.box(i, shape) for i in own])
    if array.shape != tuple(hi - lo for lo, hi in box):
      rule = f"from_process_local: this process's part of {[*shape]} is {[*box]}, the array has shape {array.shape}"
      refuse(rule, "array[tuple(slice(lo, hi) for lo, hi in part)], and shape= of the whole", show_placement(placement))
    whole = Buffer(placement, tuple(shape), from_numpy_dtype(array.dtype)).allocate()
    source = {box: (buffer_of(UOp.from_numpy(array)), 0)}
    copy_blocks(shape, source, [(placement.box(i, shape), whole, i) for i in range(len(placement.devices))])
    return cls._wrap(UOp.buffer(whole.shape, whole.dtype, placement, whole), True)

  def bitcast(self, dtype: DType | str) -> Self:
    """The same bits read as another type; between widths the last dim grows or shrinks. ValueError if it does not
    divide. What is only stored stays where it is.
    Shape: `(.., n) -> (.., m)`; n and m have the same bits.

    Examples:
      >>> Tensor([1.0]).bitcast(dtypes.int32).tolist()
      [1065353216]
      >>> Tensor([1.0]).bitcast(dtypes.uint8).shape
      (4,)
    """
    if storage.only_stored(self.uop.device):
      return self._wrap(storage.bitcast_stored(self.uop, to_dtype(dtype)))
    return super().bitcast(dtype)

  # ---- realisation

  def realize(self, *lst: Tensor, do_update_stats: bool = True) -> Self:
    """Computes this tensor and `lst` in one go; each then has memory of its own, if it is no view of another's.
    `GlobalCounters` count it or don't.
    Shape: `(..) -> (..)`.

    Raises: TypeError for what is no Tensor, as a `.grad` that is None.

    Examples:
      >>> x = Tensor.ones(2) + 1
      >>> x.realize().tolist()
      [2.0, 2.0]
    """
    counted = [(k, getattr(GlobalCounters, k)) for k in ("global_ops", "global_mem", "time_sum_s", "kernel_count")]
    tensors: tuple[Tensor, ...] = (self, *lst)
    arguments: tuple[object, ...] = tensors
    for i, x in enumerate(arguments):
      if not isinstance(x, Tensor):
        fix = "give Tensors; a .grad is None before backward(), and where a tensor's requires_grad is not True"
        refuse(f"realize: argument {i} is {x!r}, of type {type(x).__name__}", fix, error=TypeError)
    given = {id(t): t for t in tensors}
    if asked := [t for t in given.values() if t.uop.op is not Ops.BUFFER or not t.follows]:
      if (mesh := ambient_mesh()) is not None:
        place_on(mesh, [t.uop for t in asked])
      program_order.own(asked)
      program_order.run(asked)
    if not do_update_stats:
      for k, v in counted:
        setattr(GlobalCounters, k, v)
    return self

  def numpy(self) -> Any:
    """The value as a numpy array of its own; bfloat16 and fp8 come as float32. The tensor itself stays a graph, so that
    it can still be differentiated.

    Examples:
      >>> Tensor([1, 2]).numpy()
      array([1, 2], dtype=int32)
    """
    if storage.only_stored(self.uop.device):
      return self.to(HOST_DEVICE).numpy()
    if (mesh := ambient_mesh()) is not None:
      place_on(mesh, [self.uop])
    x = self if self.dtype.fmt is not None else self.float()
    if 0 in x.shape:
      return numpy.empty(x.shape, to_numpy_dtype(x.dtype))
    check_outside(x.uop, "value", READ_OUTSIDE)  # before anything that waits is run
    u, computed = x.uop, memory_state(x.uop) is None
    (done,) = program_order.run([], [Tensor(u)])
    alone = computed and done.op is Ops.BUFFER and not program_order.views(done)
    return to_numpy_once(done) if alone else to_numpy(done)

  __array_priority__ = 1000  # numpy leaves `number * tensor` to the tensor, and its gradient with it

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    """What numpy's functions take of a tensor: `numpy()`. ValueError for copy=False."""
    if copy is False:
      raise ValueError("a tensor's values are copied for numpy\n  fix: numpy.from_dlpack(x) shares memory")
    array = self.numpy()
    return array if dtype is None else array.astype(dtype)

  def __dlpack_device__(self) -> tuple[int, int]:
    """(1, 0): the host's memory."""
    return 1, 0

  def __dlpack__(self, **kwargs: Any) -> Any:
    """The realised memory for another library, e.g. `torch.from_dlpack(x)`; no copy where the tensor has all of a
    buffer, and a write on either side is seen on both (one of ours after `Device[x.device].synchronize()`).

    Raises: TypeError for types that DLPack's users lack (bfloat16, fp8), ValueError for a tensor that the host cannot
    address or that lies on several devices.
    """
    if self.dtype.fmt is None:
      fix = f"x.bitcast(dtypes.uint{self.dtype.bitsize}), and back on the other side"
      mismatch("dlpack", f"{self.dtype} is no type of numpy", [self.uop], fix, TypeError)
    x = self.realize()
    u = x.uop if x.uop.op is Ops.BUFFER else x.contiguous().realize().uop
    if not isinstance(u.device, str) or not Device.capabilities(u.device).wraps:
      mismatch("dlpack", "shares the memory of one CPU device", [u], 'x.to("CPU")')
    memory = buffer_of(u)
    memory.lent = True
    return numpy.asarray(Held(memory)).__dlpack__(**kwargs)

  @classmethod
  def from_dlpack(cls, x: Any, device: str | None = None) -> Self:
    """A tensor over the memory of a torch, numpy, … array of the host (any with `__dlpack__`): no copy if it is
    contiguous and may be written. Tensors over the same bytes do not know of each other: what is assigned to one is
    seen by the other once it is realised.
    Shape: `-> (*dims)`, as the array.

    Examples:
      >>> Tensor.from_dlpack(np.array([1.0, 2.0], np.float32)).tolist()
      [1.0, 2.0]
    """
    array = numpy.from_dlpack(x)
    where = Device.canonicalize(device or Device.DEFAULT)
    shared = _share(array, where) if array.flags.c_contiguous and array.flags.writeable else None
    return cls(array, device=where) if shared is None else cls._wrap(shared, True)

  @classmethod
  def from_blob(cls, ptr: int, shape: Sequence[int], dtype: DTypeArg = None, device: str | None = None) -> Self:
    """A tensor over the memory at the address `ptr` (row-major, float32 unless given), which must outlive it; what is
    assigned to the tensor is written there. ValueError where the device cannot use the host's memory.
    Shape: `-> (*shape)`.

    Examples:
      >>> a = np.array([1.0, 2.0], np.float32)
      >>> Tensor.from_blob(a.ctypes.data, (2,), device="CPU").tolist()
      [1.0, 2.0]
    """
    d = dtypes.default_float if dtype is None else to_dtype(dtype)
    nbytes = prod(shape) * d.itemsize
    array = numpy.frombuffer((ctypes.c_char * nbytes).from_address(ptr), to_numpy_dtype(d)).reshape(shape)
    where = Device.canonicalize(device or Device.DEFAULT)
    if (shared := _share(array, where)) is None:
      fix = 'device="CPU" and a pointer to the host\'s memory, a multiple of the element size'
      raise ValueError(f"from_blob: {where} cannot use {d.name}{list(shape)} at {ptr:#x} in place\n  fix: give {fix}")
    return cls._wrap(shared, True)

  @classmethod
  def from_url(cls, url: str, gunzip: bool = False, **kwargs: Any) -> Self:
    """The bytes behind a URL (uint8), unpacked if `gunzip`; downloaded once (`fetch`). Keywords: those of Tensor.
    Shape: `-> (n)`.

    Examples:
      >>> path = pathlib.Path("bytes")
      >>> path.write_bytes(b"abc")
      3
      >>> Tensor.from_url(path.resolve().as_uri()).tolist()
      [97, 98, 99]
    """
    return cls(fetch(url, gunzip=gunzip), **kwargs)

  def __reduce__(self) -> tuple[Any, ...]:
    """Pickled and deep-copied with its values, placement and gradient."""
    kind = self.dtype
    bits = self if kind.fmt is not None else self.bitcast(f"uint{kind.bitsize}")
    return _restore, (bits.numpy(), kind, self.device, self.requires_grad, self._stored_grad)

  @memory_method
  def data(self) -> memoryview:
    """The value as a memoryview with its format and shape. TypeError for types of which a memoryview has none.

    Examples:
      >>> Tensor([[1, 2]]).data().tolist()
      [[1, 2]]
    """
    if self.dtype.fmt is None:
      raise TypeError(f"data: {self.dtype} has no buffer format\n  fix: cast it, e.g. x.float().data(), or use numpy()")
    return memoryview(self.numpy())

  def item(self) -> float | int | bool:
    """The one element as a Python number. ValueError if there are several.

    Examples:
      >>> Tensor([[2.5]]).item()
      2.5
    """
    if self.numel() != 1:
      fix = "reduce or index it first, or use tolist()"
      raise ValueError(f"item: needs one element, the shape is {self.shape}\n  fix: {fix}")
    result: float | int | bool = self.tolist() if self.ndim == 0 else self.reshape(()).tolist()
    return result

  def tolist(self) -> Any:
    """The elements as (nested lists of) Python numbers.

    Examples:
      >>> Tensor([[1, 2], [3, 4]]).tolist()
      [[1, 2], [3, 4]]
    """
    return self.numpy().tolist()

  def __float__(self) -> float:
    """The one element: `item()` as a float. ValueError if there are several."""
    return float(self.item())

  def __int__(self) -> int:
    """The one element, truncated toward zero. ValueError if there are several."""
    return int(self.item())

  def __format__(self, spec: str) -> str:
    """`f"{loss:.4f}"` reads and formats the one element; without a format it is the tensor's `repr`."""
    return format(self.item(), spec) if spec else repr(self)

  def clone(self, device: DeviceArg = None) -> Self:
    """A copy in memory of its own, through which gradients flow to this tensor; it takes gradients if this one does,
    and a copy of `.grad` goes with it.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([1.0]).realize()
      >>> y = x.clone()
      >>> x.assign([2.0]).tolist(), y.tolist()
      ([2.0], [1.0])
    """
    t = self._wrap(self.uop.clone())
    t = (t if device is None else t.to(device)).requires_grad_(self.requires_grad)
    t.grad = None if (grad := self._stored_grad) is None else grad.clone(device)
    return t

  # ---- assignment

  def replace(self, x: Tensor) -> Self:
    """This tensor now stands for x's value, whose type it takes; the shapes must agree. ValueError for another shape,
    TypeError for what is no tensor.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> x = Tensor([1.0])
      >>> x.replace(Tensor([2.0])).tolist()
      [2.0]
    """
    if not isinstance(x, Tensor):
      raise TypeError(f"replace: takes a tensor, not {type(x).__name__}\n  fix: Tensor(x), or x.assign")
    if x.shape != self.shape:
      mismatch("replace", "the shapes must be equal", (self.uop, x.uop), "reshape the new value")
    self.uop, self.follows = x.uop, x.follows
    program_order.reenter(self)
    return self

  def assign(self, x: Any) -> Self:
    """Writes x, broadcast to this shape, into this tensor's memory (or, if it has none yet, makes it stand for x).
    Returns the tensor.

    Memory is what `realize` or `empty` gives. Views of it (`reshape`, slices, … of a tensor that has memory) see the
    new value; what was computed from it before keeps the old one, and is realised before the memory is written
    (docs/assignment.md). The placement stays; x moves. Raises TypeError if the dtypes differ, ValueError if x does not
    broadcast.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> x = Tensor.zeros(2).contiguous().realize()
      >>> x.assign([1.0, 2.0]).tolist()
      [1.0, 2.0]
    """
    v = x if isinstance(x, Tensor) else self._wrap(node_of(x, None, self.dtype))
    if v.dtype is not self.dtype:
      fix = f"cast the value: x.cast({self.dtype!r})"
      mismatch("assign", "the dtypes must be equal", (self.uop, v.uop), fix, TypeError)
    if broadcast_shape(v.shape, self.shape) != self.shape:
      mismatch("assign", "the value must broadcast to the target", (self.uop, v.uop), "reshape the value to the target")
    self._write(self.uop, v._expand_to(self.shape).uop)
    return self

  def _counted(self) -> Any:
    """The bools of which the True ones are to be counted, as a numpy array."""
    check_countable(self.uop)
    return self.numpy()

  def _write(self, view: UOp, value: UOp) -> None:
    """Puts `value` into `view`, a view of this tensor's memory; without memory the tensor stands for `value`."""
    if value is view:
      return
    if storage.only_stored(view.device):
      storage.write(_without_detach(view), self._wrap(value).numpy())
      return
    state = memory_state(view, moved=True) if self.follows else None
    check_write(self, view, value, state)
    if state is None:
      note_written(self)
      here = self.uop.device
      if here is None or here == value.device:  # a node of its own: to realise it is not to realise x
        self.uop = UOp.build(Ops.RESHAPE, value.dtype, (value,), value.shape)
      else:
        self.uop = value.copy_to_device(here)
      program_order.reenter(self, assigned=True)
      return
    if len(dict(bound := view.bound | value.bound)) < len(bound):  # what waits is of another value of a variable
      self.realize()
      view, value, state = (substitute(u, {state: state.base}) for u in (view, value, state))
    view = _without_detach(view)
    if any(u.op in GroupOp.View and u.op not in ONE_TO_ONE for u in view.toposort(lambda u: u is not state)):
      rule = "several elements of the target share memory"
      mismatch("assign", rule, (view, value), "assign to the tensor before expand or windows", ValueError)
    if memory_state(view) is None:  # elements had to move for the view: all of the memory is written
      views = [u for u in reversed(view.toposort(lambda u: u is not state)) if u.op in GroupOp.Movement]
      view, value = state, view_assigns.overlaid(views, value, state)
    # a copy from other devices lands in memory of its own before it is laid into a part
    after = state.after(view.assign(value.contiguous() if value.op is Ops.MOVE and view is not state else value))
    with uninterrupted():  # all views, or none
      for t in program_order.views(state):
        if t.follows and memory_state(t.uop, moved=True) is state:
          note_written(t)
          t.uop = substitute(t.uop, {state: after})
          program_order.reenter(t, assigned=True)


def _check_float64(u: UOp) -> None:
  """TypeError if a device of `u`, in float64, has no such numbers."""
  if bad := [d for d in device_set(reduced_placement(u.device)) if not Device[d].target.float64]:
    mismatch("float64", f"{bad[0]} has no float64", [u], "use float32 there, or compute in float64 on CPU", TypeError)


def _share(array: Any, device: str) -> UOp | None:
  """A buffer over an array's memory; None where the device cannot use it."""
  handle = Device[device].wrap(array)
  memory = Buffer(device, tuple(array.shape), from_numpy_dtype(array.dtype), lent=True)
  return None if handle is None else UOp.buffer(memory.shape, memory.dtype, device, memory.allocate([handle], array))


def _restore(array: Any, dtype: DType, device: Placement, requires_grad: bool | None, grad: Tensor | None) -> Tensor:
  t = Tensor(array.view(to_numpy_dtype(dtype)), device=device, requires_grad=requires_grad)
  t.grad = grad
  return t


def _source(u: UOp) -> UOp:
  """What to copy from: host data itself rather than its pending copy to another device."""
  return u.src[0] if u.op is Ops.MOVE and u.src[0].op is Ops.BUFFER and u.src[0].device == HOST_DEVICE else u


def _without_detach(view: UOp) -> UOp:
  """A view as the target of a write."""
  if view.op is Ops.DETACH or view.op is Ops.CONSTRAIN:
    return _without_detach(view.src[0])
  return view.replace(src=(_without_detach(view.src[0]),)) if view.op in VIEWS else view
