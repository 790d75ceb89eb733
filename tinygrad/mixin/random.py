"""Random numbers from a counter: element i of call number c is threefry-2x32 of key (seed, c) and counter (i, 0).

So every number depends on nothing but the seed, the number of the call and the element's place: a sharded tensor holds
the very values of the unsharded one, and a captured step draws in each replay what it would draw uncaptured. (J.
Salmon, M. Moraes, R. Dror, D. Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.) And hashes, which mix bits
as well.
"""

import math
from typing import Any, ClassVar, Self

from tinygrad.device import Buffer, Device, Placement, Sharding, as_index, check_fits, reduced_placement
from tinygrad.dtype import DType, dtypes, to_dtype
from tinygrad.engine.errors import JitError
from tinygrad.engine.realize import random_states as _states
from tinygrad.engine.run import before_replays, recorders
from tinygrad.helpers import all_int, ceildiv, make_tuple, numpy, prod
from tinygrad.mixin.base import DeviceArg, DTypeArg, dim_arguments, mismatch, python_number, to_placement
from tinygrad.mixin.indexing import Indexing
from tinygrad.transforms.batching import drawn_for
from tinygrad.uop import GroupOp, Ops, UOp, buffer_of, substitute

WORD = 1 << 32  # numbers of a call that one word of the counter tells apart
Words = tuple[int, ...]  # of 32 bits


def threefry(*words: UOp) -> tuple[UOp, UOp]:
  """Threefry-2x32 of uint32 nodes of one shape: two of the counter, two of the key."""
  first, second = (UOp.build(Ops.THREEFRY, dtypes.uint32, words, which) for which in range(2))
  return first, second


def _state(words: Words, where: Placement) -> UOp:
  """A uint32 buffer of these words; a copy on every device of `where`."""
  u = UOp.buffer((len(words),), dtypes.uint32, where.with_dims(()) if isinstance(where, Sharding) else where)
  _set_words(buffer_of(u).allocate(), words)
  _states[u] = words
  return u


def _set_words(memory: Buffer, words: Words) -> None:
  data = memoryview(numpy.array(words, dtype=numpy.uint32)).cast("B")
  for i, handle in enumerate(memory.handles):
    Device[memory.devices[i]].copyin(handle, data)


class Draws:
  """What a captured step draws: a replay counts on from the last call, wherever that was. A part of the step is to add
  `count` to its states before it reads them, so that nothing is copied where replay follows replay."""

  def __init__(self) -> None:
    self.count = 0
    self.states: list[tuple[Buffer, int]] = []  # where in a replay it is drawn
    self.expected = -1, -1  # for which seed and number of the next call the states are right as they are

  def __call__(self) -> None:
    """Before a replay."""
    if (Random._seed, Random._calls) != self.expected:
      for memory, place in self.states:
        _set_words(memory, (Random._seed, (Random._calls + place - self.count) % WORD, 0, self.count))
    Random._calls += self.count
    self.expected = Random._seed, Random._calls

  def state(self, where: Placement, count: int) -> UOp:
    """Of the next call, which takes `count` numbers of calls: seed, number, 0, and how far each replay goes on."""
    memory = _state((Random._seed, Random._calls, 0, 0), where)
    self.states.append((buffer_of(memory), self.count))
    self.count += count
    number = UOp.iota(4, dtypes.int32).eq(1).cast(dtypes.uint32)
    further = number * memory.shrink(((3, 4),)).reshape(()).broadcast_to((4,))
    return memory.after(memory.assign(memory + further))


def _draws() -> Draws | None:
  """Of the step that is being captured, if one is."""
  if not recorders:
    return None
  before: list[Any] = before_replays[-1]
  if not before:
    before.append(Draws())
  draws: Draws = before[0]
  return draws


def drawn_there(u: UOp, where: Placement) -> UOp | None:
  """The same numbers as `u`, which is not realised and computed from nothing but random states, made on `where` itself.

  So no device ever holds the whole of a tensor that is cut after its creation. None if `u` depends on anything else.
  """
  states: dict[UOp, UOp] = {}
  for x in u.toposort():
    if x.op is Ops.BUFFER and x in _states:
      states[x] = _state(_states[x], where)
    elif not (x.op in GroupOp.KeepsPlacement or x.op in GroupOp.Movement or x.op is Ops.CONST or x.op is Ops.IOTA):
      return None
  return substitute(u, states).copy_to_device(where) if states else None


def _float_type(name: str, dtype: DTypeArg) -> DType:
  if not dtypes.is_float(d := to_dtype(dtype or dtypes.default_float)):
    raise TypeError(f"{name}: makes floats, not {d}\n  fix: use randint for integers, or cast the result")
  return d


def _kaiming_std(shape: tuple[int, ...], a: float) -> float:
  return math.sqrt(2.0 / (1 + a**2)) / math.sqrt(max(1, prod(shape[1:])))


# (rate in bytes, the domain's suffix with the first bit of padding)
CONFIGURATIONS = {"sha3_224": (144, 0x06), "sha3_256": (136, 0x06), "shake_128": (168, 0x1F)}
# section 3.2.2, table 2: how far lane x + 5y is turned
OFFSETS = (0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14)
LEAF = 156  # bytes of a leaf of `hash`: with the number of bytes one block of shake_128


def _round_constants() -> list[int]:
  """Section 3.2.5: bit 2**j - 1 of round r is output j + 7r of the register x⁸ + x⁶ + x⁵ + x⁴ + 1."""
  out, state = [], 1
  for _ in range(24):
    word = 0
    for j in range(7):
      word |= (state & 1) << ((1 << j) - 1)
      state = (state << 1) ^ (0x171 if state & 0x80 else 0)
    out.append(word)
  return out


class Random(Indexing):
  """Keywords of the creators: those of `zeros`. Equal seeds and equal calls give equal numbers on every machine and
  placement."""

  __slots__ = ()
  _seed: ClassVar[int] = 0
  _calls: ClassVar[int] = 0

  @classmethod
  def manual_seed(cls, seed: int = 0) -> None:
    """Sets the seed (its lower 32 bits) and starts the counter anew. TypeError for what is no integer, JitError in a
    captured function, whose replays go on from where the counter then is.

    Examples:
      >>> Tensor.manual_seed(1)
      >>> a = Tensor.rand(3).realize()
      >>> Tensor.manual_seed(1)
      >>> (Tensor.rand(3) == a).all().item()
      True
    """
    if (number := as_index(seed)) is None:
      raise TypeError(f"manual_seed: the seed is an integer, got {seed!r}\n  fix: Tensor.manual_seed(0)")
    if recorders:
      fix = "call it before the captured function"
      raise JitError(f"manual_seed: a captured function cannot do it in each replay\n  fix: {fix}")
    Random._seed, Random._calls = number & 0xFFFFFFFF, 0

  @classmethod
  def _random_words(cls, shape: tuple[int, ...], device: DeviceArg) -> tuple[UOp, UOp]:
    """Two independent uint32 of every element."""
    if not all_int(shape) or any(n < 0 for n in shape):
      rule = "random numbers need a shape of known, non-negative dims"
      raise ValueError(f"{rule}, got {shape}\n  fix: give integers from 0 on; a part of them by x[:variable]")
    where = reduced_placement(to_placement(device))
    check_fits(where, shape)  # before a number is taken
    lane, lanes = drawn_for()
    size = prod(shape) * lanes
    count = max(1, ceildiv(size, WORD))
    draws = _draws()
    state = _state((Random._seed, Random._calls, 0), where) if draws is None else draws.state(where, count)
    Random._calls += count
    words = [state.shrink(((i, i + 1),)).reshape(()).broadcast_to(shape) for i in range(3)]
    place = UOp.iota(prod(shape), dtypes.int64 if size >= 1 << 31 else dtypes.int32)
    if lane is not None:  # the numbers that one call for all lanes would draw
      place = place + (lane.cast(place.dtype) * prod(shape)).broadcast_to(place.shape)
    if size > WORD:  # beyond what one word counts it goes on as the next calls would
      words[1] = words[1] + place.alu(Ops.SHR, place.const_like(32)).cast(dtypes.uint32).reshape(shape)
    x, y = threefry(place.cast(dtypes.uint32).reshape(shape), words[2], words[0], words[1])
    return (x, y) if x.device == where else (x.copy_to_device(where), y.copy_to_device(where))

  @classmethod
  def _uniform(cls, word: UOp, other: UOp, dtype: DType) -> Self:
    """Bits as a float in [0, 1): as many of the highest as the type's mantissa holds exactly."""
    if dtype is dtypes.float64:
      high, low = (cls._wrap(w.cast(dtypes.uint64)) for w in (word, other))
      return high.lshift(21).bitwise_xor(low.rshift(11)).cast(dtype).mul(2.0**-53)
    bits = dtypes.finfo(dtype)[1] + 1
    return cls._wrap(word).rshift(32 - bits).cast(dtypes.float32).mul(2.0**-bits).cast(dtype)

  def threefry(self, seed: Self) -> Self:
    """Threefry-2x32 of uint64 counters under uint64 keys: 64 random bits each.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([0], dtype=dtypes.uint64).threefry(Tensor([0], dtype=dtypes.uint64)).tolist()
      [11077253088097075545]
    """
    counter, key = ((t, t.rshift(32)) for t in (self.cast(dtypes.uint64), seed.cast(dtypes.uint64)))
    words = [t._expand_to(self.shape).cast(dtypes.uint32).uop for t in (*counter, *key)]
    low, high = (self._wrap(u).cast(dtypes.uint64) for u in threefry(*words))
    return high.lshift(32).bitwise_or(low)

  @classmethod
  def random_bits(cls, key: Self, counter: Self, num: int) -> Self:
    """`num` random uint32 (num < 2**32) of a key and a counter, each two uint32: those at counter, counter + 1, …
    Shape: `(2), (2) -> (num)`.

    Examples:
      >>> key, counter = Tensor([1, 2], dtype=dtypes.uint32), Tensor([0, 0], dtype=dtypes.uint32)
      >>> Tensor.random_bits(key, counter, 4).dtype
      dtypes.uint32
    """
    place = counter.bitcast(dtypes.uint64).add(cls.arange((num + 1) // 2, dtype=dtypes.uint64))
    return place.threefry(key.bitcast(dtypes.uint64)).bitcast(dtypes.uint32)._slice(0, 0, num)

  @classmethod
  def rand(
    cls, *shape: Any, device: DeviceArg = None, dtype: DTypeArg = None, contiguous: bool = True, **kwargs: Any
  ) -> Self:
    """Uniform in [0, 1). TypeError if `dtype` is no float.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.rand(2, 3).shape
      (2, 3)
    """
    d = _float_type("rand", dtype)
    return cls._make(cls._uniform(*cls._random_words(dim_arguments(*shape), device), d).uop, **kwargs)

  @classmethod
  def randn(
    cls, *shape: Any, dtype: DTypeArg = None, device: DeviceArg = None, contiguous: bool = True, **kwargs: Any
  ) -> Self:
    """Normal with mean 0 and variance 1, by the method of Box and Muller (1958); of another type than a float, cast.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.randn(2, 3).shape
      (2, 3)
    """
    d = to_dtype(dtype or dtypes.default_float)
    first, second = cls._random_words(dim_arguments(*shape), device)
    u, v = cls._uniform(first, second, dtypes.float32), cls._uniform(second, first, dtypes.float32)
    radius = u.sub(1, reverse=True).log().mul(-2).sqrt()
    normal = radius.mul(v.mul(2 * math.pi).cos())
    return cls._make(normal.cast(d).uop, **kwargs)

  @classmethod
  def randint(
    cls, *shape: Any, low: int = 0, high: int = 10, dtype: DTypeArg = None, device: DeviceArg = None, **kwargs: Any
  ) -> Self:
    """Integers in [low, high), int32 unless given: floor(r * (high - low) / 2**32) of 32 random bits r.
    TypeError unless the bounds and the type are integers, ValueError unless low < high.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.randint(2, 3, low=5, high=6).tolist()
      [[5, 5, 5], [5, 5, 5]]
    """
    low, high = python_number(low), python_number(high)
    if not isinstance(low, int) or not isinstance(high, int):
      raise TypeError(
        f"randint: low and high must be integers, got {low!r} and {high!r}\n  fix: int(x) of each; uniform takes floats"
      )
    d = to_dtype(dtype or dtypes.default_int)
    if not dtypes.is_int(d):
      raise TypeError(f"randint: makes integers, not {d}\n  fix: use uniform for floats")
    if not low < high or high - low > 1 << 32:
      fix = f"low={high}, high={low}" if high < low else f"low={low}, high={low + 1}"
      raise ValueError(f"randint: [{low}, {high}) must hold between 1 and 2**32 numbers\n  fix: {fix}")
    word, _ = cls._random_words(dim_arguments(*shape), device)
    steps = cls._wrap(word).cast(dtypes.uint64).mul(high - low).rshift(32).cast(dtypes.int64)
    return cls._make(steps.add(low).cast(d).uop, **kwargs)

  @classmethod
  def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """Uniform in [low, high).
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.uniform(1000, low=2, high=3).min().item() >= 2
      True
    """
    d = to_dtype(dtype or dtypes.default_float)
    t = cls.rand(*shape, dtype=d if dtypes.is_float(d) else None, **kwargs)
    return t.mul(high - low).add(low).cast(d).requires_grad_(t.requires_grad)

  @classmethod
  def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """Normal with that mean and standard deviation; of another type than a float, cast.
    Shape: `-> (*shape)`. Raises: ValueError for a standard deviation below 0.

    Examples:
      >>> Tensor.normal(2, 3, mean=1.0, std=0.1).shape
      (2, 3)
    """
    if isinstance(std, int | float) and not std >= 0:
      raise ValueError(f"normal: a standard deviation is 0 or more, got {std}\n  fix: std={-std if std < 0 else 1.0}")
    d = to_dtype(dtype or dtypes.default_float)
    t = cls.randn(*shape, dtype=d if dtypes.is_float(d) else None, **kwargs)
    return t.mul(std).add(mean).cast(d).requires_grad_(t.requires_grad)

  @classmethod
  def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
    """Uniform in [-1, 1) over sqrt(number of elements).
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.scaled_uniform(2, 3).shape
      (2, 3)
    """
    bound = prod(dim_arguments(*shape)) ** -0.5
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

  @classmethod
  def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
    """Uniform within sqrt(6 / (fan in + fan out)) (https://proceedings.mlr.press/v9/glorot10a.html).
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.glorot_uniform(2, 3).shape
      (2, 3)
    """
    dims = dim_arguments(*shape)
    bound = (6 / (dims[0] + prod(dims[1:]))) ** 0.5
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

  @classmethod
  def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
    """Uniform within sqrt(6 / (1 + a²) / fan in) (https://arxiv.org/abs/1502.01852).
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.kaiming_uniform(2, 3).shape
      (2, 3)
    """
    bound = math.sqrt(3.0) * _kaiming_std(dim_arguments(*shape), a)
    return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

  @classmethod
  def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
    """Normal with variance 2 / (1 + a²) / fan in (https://arxiv.org/abs/1502.01852).
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.kaiming_normal(2, 3).shape
      (2, 3)
    """
    return cls.normal(*shape, mean=0.0, std=_kaiming_std(dim_arguments(*shape), a), **kwargs)

  @classmethod
  def randperm(cls, n: int, device: DeviceArg = None, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """The numbers 0 … n-1 in random order.
    Shape: `-> (n)`.

    Examples:
      >>> Tensor.randperm(4).sort()[0].tolist()
      [0, 1, 2, 3]
    """
    # whole: of floats more would be equal, and stay in order
    words = cls._wrap(cls._random_words((python_number(n),), device)[0])
    order = cls._make(words.argsort().cast(dtype or dtypes.default_int).uop, **kwargs)
    return order if device is None else order._new(order.uop.copy_to_device(reduced_placement(to_placement(device))))

  def rand_like(self, dtype: DTypeArg = None, device: DeviceArg = None, **kwargs: Any) -> Self:
    """`rand` of this shape, type and placement.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.zeros(2, 3).rand_like().shape
      (2, 3)
    """
    return self.rand(self.shape, dtype=dtype or self.dtype, device=self._beside(device), **kwargs)

  def randn_like(self, dtype: DTypeArg = None, device: DeviceArg = None, **kwargs: Any) -> Self:
    """`randn` of this shape, type and placement.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.zeros(2, 3).randn_like().shape
      (2, 3)
    """
    return self.randn(self.shape, dtype=dtype or self.dtype, device=self._beside(device), **kwargs)

  def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
    """int32 positions drawn with probability proportional to the elements of the last dim; (n,) or (rows, n). A scalar
    is a row of one.

    Without replacement by the exponential race: the k least of -log(u)/p. What is below 0 counts as 0. A row that has
    no positive sum, or holds a NaN, gives some position in it.
    ValueError for more than two dims, for no samples, and without replacement for more than there are.
    Shape: `(n) -> (num_samples) or (rows, n) -> (rows, num_samples)`.

    Examples:
      >>> Tensor([0.0, 1.0]).multinomial(3, replacement=True).tolist()
      [1, 1, 1]
    """
    (num_samples,) = make_tuple(num_samples, 1)
    if not self.ndim:
      return self.reshape(1).multinomial(num_samples, replacement)
    if self.ndim > 2 or num_samples < 1:
      rule = "needs at most 2 dims and at least one sample"
      fix = "x.reshape(-1, x.shape[-1]) of more dims, num_samples=1 or more"
      raise ValueError(f"multinomial: {rule}, got shape {self.shape}, {num_samples} samples\n  fix: {fix}")
    if not replacement and isinstance(self.shape[-1], int) and num_samples > self.shape[-1]:
      rule = f"cannot draw {num_samples} of {self.shape[-1]} without replacement"
      raise ValueError(f"multinomial: {rule}\n  fix: replacement=True")
    weight = self.reshape(-1, self.shape[-1]).float().maximum(0)
    if not replacement and num_samples > 1:
      draw = weight.rand_like().sub(1, reverse=True).log().neg().div(weight)
      picked = weight.gt(0).where(draw, math.inf).topk(num_samples, -1, largest=False)[1]
    else:
      edges = weight.cumsum(1).unsqueeze(1)
      total = edges._slice(2, edges.shape[2] - 1, edges.shape[2])
      at = self.rand(weight.shape[0], num_samples, 1, device=self._beside(None)).mul(total)
      picked = at.ge(edges).mul(edges.lt(total)).sum(-1)  # the last where something is added, though at be rounded up
    picked = picked.cast(dtypes.int32)
    return picked.reshape(num_samples) if self.ndim == 1 else picked

  # ---- hashes (FIPS 202: SHA-3 Standard, https://doi.org/10.6028/NIST.FIPS.202), of many messages at once

  def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
    """The hash of each row of bytes (.., n) -> (.., digest): "sha3_224", "sha3_256", "shake_128" (16 bytes), or (rate
    in bytes, suffix) with a digest of half the capacity, e.g. (136, 1) for Ethereum's. TypeError unless uint8.
    ValueError for an unknown hash.
    Shape: `(.., n) -> (.., digest)`.

    Examples:
      >>> Tensor([1, 2], dtype=dtypes.uint8).keccak().shape
      (32,)
    """
    if self.dtype is not dtypes.uint8 or not self.ndim:
      mismatch("keccak", "works on rows of uint8", [self.uop], "x.flatten().bitcast(dtypes.uint8)", TypeError)
    if isinstance(cfg, str) and cfg not in CONFIGURATIONS:
      raise ValueError(f"keccak: unknown hash {cfg!r}\n  fix: use {', '.join(CONFIGURATIONS)}, or (rate, suffix)")
    rate, suffix = CONFIGURATIONS[cfg] if isinstance(cfg, str) else cfg
    digest = 16 if cfg == "shake_128" else (200 - rate) // 2
    *lead, n = self.numpy_shape()
    blocks = n // rate + 1
    place = self.arange(blocks * rate)
    end = place.eq(n).where(suffix, 0).bitwise_xor(place.eq(blocks * rate - 1).where(0x80, 0)).cast(dtypes.uint8)
    message = self.reshape(prod(lead), n).pad((0, blocks * rate - n)).bitwise_xor(end).bitcast(dtypes.uint64)
    lanes = message.reshape(prod(lead), blocks, rate // 8).permute(1, 2, 0).pad(((0, 0), (0, 25 - rate // 8), (0, 0)))
    state = lanes[0].zeros_like()
    for block in range(blocks):
      state = state.bitwise_xor(lanes[block])._permutation()
    out = state._slice(0, 0, ceildiv(digest, 8)).transpose().bitcast(dtypes.uint8)
    return out._slice(1, 0, digest).reshape((*lead, digest))

  def _permutation(self) -> Self:
    """Keccak-f[1600] of lanes (25, rows): theta, rho and pi, chi, iota, 24 times (sections 3.2 and 3.3)."""
    state, number = self, self.arange(25)
    source = number.mod(5).mul(5).add(number.div(5, rounding_mode="floor").mul(3).add(number).mod(5))
    first, *others = (self.const(n, dtypes.uint64).reshape(1) for n in OFFSETS)
    turn = first.cat(*others).reshape(25, 1)
    for constant in _round_constants():
      rows = [state._slice(0, 5 * y, 5 * y + 5) for y in range(5)]
      column = rows[0].bitwise_xor(rows[1]).bitwise_xor(rows[2]).bitwise_xor(rows[3]).bitwise_xor(rows[4]).contiguous()
      after = column.roll(-1, 0)
      mixed = column.roll(1, 0).bitwise_xor(after.lshift(1)).bitwise_xor(after.rshift(63))
      state = state.bitwise_xor(mixed.repeat(5, 1))
      state = state.lshift(turn).bitwise_or(turn.eq(0).where(0, state.rshift(turn.sub(64, reverse=True).mod(64))))
      grid = state.contiguous()._rows(source).reshape(5, 5, state.shape[1]).contiguous()
      state = grid.bitwise_xor(grid.roll(-1, 1).bitwise_not().bitwise_and(grid.roll(-2, 1))).reshape(state.shape)
      state = state.bitwise_xor(number.eq(0).where(self.const(constant, dtypes.uint64), 0).reshape(25, 1)).contiguous()
    return state

  def hash(self) -> Self:
    """16 bytes that tell the elements' bytes apart from others: shake_128 of each 156 (zeros behind the last) and the
    number of all, of these digests again, and so on, up to one.
    Shape: `(..) -> (16)`.

    Examples:
      >>> Tensor([1, 2]).hash().shape
      (16,)
    """
    data = self.contiguous().flatten().bitcast(dtypes.uint8)
    while True:
      n = int(data.numel())
      chunks = max(1, ceildiv(n, LEAF))
      rows = data.pad((0, chunks * LEAF - n)).reshape(chunks, LEAF)
      number = self.full((chunks, 1), n, dtypes.uint64).bitcast(dtypes.uint8)
      data = rows.cat(number, dim=1).keccak("shake_128").flatten()
      if chunks == 1:
        return data
