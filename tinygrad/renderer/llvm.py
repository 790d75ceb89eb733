"""Linear UOps to LLVM IR text.

A kernel is `void name(ptr args)`; args is an array of 8-byte words: [0] scratch memory, [1 + slot] the buffer (or table
of peers' buffers) of each parameter slot, then the variables by name. Values of a vector dtype are LLVM vectors. bool
is i1 in registers and a byte in memory; bfloat16 and fp8 are carried as their bits, since arithmetic on them has been
decomposed.
"""

import functools
import itertools
import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence

from tinygrad.device import Launch, Rendered
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.elementwise import MIRROR
from tinygrad.renderer.scoped_names import ScopedNames
from tinygrad.renderer.streamed import LINE, streamed_stores
from tinygrad.uop import CARDS, GroupOp, Ops, PieceArg, UOp

_TYPES = {
  dtypes.bool: "i1", dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double",
  dtypes.bfloat16: "i16", dtypes.fp8e4m3: "i8", dtypes.fp8e5m2: "i8",
}  # fmt: skip
_SELDOM = 32  # once in so many times
Typed = tuple[str, str]  # an operand: its type, and what it is
_ZEROS = 512  # bytes that a load whose condition is false reads instead: the widest vector
# the instruction, or the reduction of lanes, of floats, signed and unsigned integers, and bools
_CODES = {
  Ops.ADD: ("fadd", "add", "add", "or"), Ops.SUB: ("fsub", "sub", "sub", ""),
  Ops.MUL: ("fmul", "mul", "mul", "and"), Ops.FDIV: ("fdiv", "", "", ""),
  Ops.MAX: ("fmaximum", "smax", "umax", "or"), Ops.MIN: ("fminimum", "smin", "umin", "and"),
  Ops.AND: ("", "and", "and", "and"), Ops.OR: ("", "or", "or", "or"), Ops.XOR: ("", "xor", "xor", "xor"),
  Ops.SHL: ("", "shl", "shl", ""), Ops.SHR: ("", "ashr", "lshr", ""),
  Ops.IDIV: ("", "sdiv", "udiv", ""), Ops.MOD: ("", "srem", "urem", ""),
  Ops.CMPLT: ("fcmp olt", "icmp slt", "icmp ult", "icmp ult"), Ops.CMPEQ: ("fcmp oeq", *("icmp eq",) * 3),
  Ops.CMPNE: ("fcmp une", *("icmp ne",) * 3),
}  # fmt: skip

_ON_LANES: dict[Ops, Callable[[int, int], int]] = {  # of which masks are made
  Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.CMPLT: operator.lt, Ops.AND: operator.and_
}  # fmt: skip


@functools.cache
def intrinsic(op: Ops) -> str | None:
  """The LLVM intrinsic of an op whose card renders it as a plain call, `exp({0})`."""
  called = re.fullmatch(r"(\w+)\(\{0\}(?:, \{1\})?\)", CARDS[op].render or "")
  return None if called is None else {"rint": "roundeven"}.get(called[1], called[1])


def argument_words(params: Sequence[UOp]) -> dict[UOp, int]:
  """The word of `args` that holds each PARAM and VARIABLE."""
  slots = 1 + max((u.arg.slot for u in params if u.op is Ops.PARAM), default=-1)
  variables = sorted((u for u in params if u.op is Ops.VARIABLE), key=lambda u: u.arg)
  return {u: 1 + u.arg.slot for u in params if u.op is Ops.PARAM} | {u: 1 + slots + i for i, u in enumerate(variables)}


@functools.cache
def ir_type(dtype: DType, memory: bool = False) -> str:
  scalar = dtype.scalar()
  name = "i8" if memory and scalar is dtypes.bool else _TYPES.get(scalar) or f"i{scalar.itemsize * 8}"
  return name if dtype.count == 1 else f"<{dtype.count} x {name}>"


def _literal(value: object, dtype: DType) -> str:
  assert isinstance(value, (int, float))
  if dtype is dtypes.bool:
    return "true" if value else "false"
  if dtype is dtypes.float16:
    return f"0xH{struct.pack('>e', value).hex().upper()}"
  if dtypes.is_float(dtype) and ir_type(dtype)[0] == "i":  # carried as its bits
    return str(int(numpy.array(value, to_numpy_dtype(dtype)).view(f"uint{dtype.bitsize}")))
  return f"0x{struct.pack('>d', value).hex().upper()}" if dtypes.is_float(dtype) else str(int(value))


def fused_products(linear: Sequence[UOp]) -> dict[UOp, int]:
  """Which sums and differences of floats take a product in, and as which operand: the first that nothing else reads and
  that is computed in the same loop. It is rounded once (where the processor has such an instruction), and whatever
  LLVM makes of the kernel, in a hurry or not, has the same bits. So with sums of integers that take in a DOT, which
  adds to what it is given."""
  uses = Counter(s for u in linear for s in u.src)
  block, number = dict[UOp, int](), 0
  fused: dict[UOp, int] = {}
  for u in linear:
    number += u.op is Ops.RANGE or u.op is Ops.ENDRANGE
    block[u] = number
    if u.op is Ops.ADD or u.op is Ops.SUB:
      taken = is_taken if dtypes.is_float(u.dtype) else is_dot_alone
      mine = [i for i, s in enumerate(u.src) if taken(u, i) and uses[s] == 1 and block[s] == number]
      if mine:
        fused[u] = mine[0]
  return fused


def is_beside(offset: UOp) -> bool:
  """Whether an offset is another one and a number."""
  return offset.op is Ops.ADD and offset.dtype is dtypes.index and offset.src[1].op is Ops.CONST


def only_in_places(linear: Sequence[UOp]) -> set[UOp]:
  """Sums with a number that nothing reads but places, which take the number in themselves."""
  one = {u.src[1] for u in linear if u.op is Ops.INDEX and u.src[0].dtype.count == 1 and is_beside(u.src[1])}
  read = {s for u in linear for i, s in enumerate(u.src) if u.op is not Ops.INDEX or i != 1 or u.src[0].dtype.count > 1}
  return one - read


def is_taken(u: UOp, i: int) -> bool:
  return u.src[i].op is Ops.MUL


def is_dot_alone(u: UOp, i: int) -> bool:
  """Whether operand i is a DOT that adds to nothing, and is not subtracted."""
  x = u.src[i]
  if x.op is not Ops.DOT or (u.op is Ops.SUB and i == 1):
    return False
  start = x.src[0].src if x.src[0].op is Ops.VECTORIZE else x.src[:1]
  return all(s.op is Ops.CONST and s.arg == 0 for s in start)


def perhaps_once(end: UOp) -> UOp | None:
  """The condition on which a loop has its one iteration, if it has no more."""
  once = end.op is Ops.WHERE and all(x.op is Ops.CONST for x in end.src[1:]) and [x.arg for x in end.src[1:]] == [1, 0]
  return end.src[0] if once else None


class LLVMRenderer:
  """Renders one kernel."""

  def __init__(self, linear: Sequence[UOp], name: str) -> None:
    self.linear, self.name, self.fused = linear, name, fused_products(linear)
    self.within = {u.src[i] for u, i in self.fused.items()} | only_in_places(linear)
    self.names, self.declared = ScopedNames[str](), dict[str, None]()
    self.bytes = ScopedNames[str]()  # bools as they lie in memory: lanes of single bits are slow to bring into order
    self.bases: list[dict[tuple[str, UOp], str]] = [{}]  # of each open loop: places by memory and offset
    self.known: dict[UOp, list[int] | None] = {}  # lanes of constants
    self.streamed = streamed_stores(linear)
    self.begins_line = dict[UOp, str]()  # whether memory does
    self.body, self.entry, self.count = list[str](), list[str](), 0

  def render(self) -> Rendered:
    words = argument_words([u for u in self.linear if u.op in GroupOp.Argument])
    values = dict.fromkeys(_CODES, self.alu) | {Ops.INDEX: self.index, Ops.LOAD: self.load}
    for u in self.linear:
      if u in self.within:
        continue
      if u in self.fused:
        self.names[u] = self.multiply_add(u, self.fused[u])
      elif (value := values.get(u.op)) is not None:
        self.names[u] = value(u)
      else:
        self.one(u, words)
    lines = [f"@zeros = private unnamed_addr constant [{_ZEROS} x i8] zeroinitializer, align 64", *self.declared]
    lines += [f"define void @{self.name}(ptr noalias readonly %args) #0 {{", "entry:", *self.entry, *self.body]
    lines += ["  fence seq_cst"] * bool(self.streamed)  # other cores see what went past the caches
    lines += ["  ret void", "}", 'attributes #0 = { nounwind "prefer-vector-width"="512" "no-builtins" }']
    return Rendered("\n".join(lines) + "\n", self.launch(words))

  def launch(self, words: dict[UOp, int]) -> Launch:
    stored = [u.src[0].src[0] for u in self.linear if u.op is Ops.STORE and u.src[0].op is Ops.INDEX]
    writes = 1 + max((p.arg.slot for p in stored if p.op is Ops.PARAM), default=0)
    for u, word in words.items():
      if isinstance(piece := u.arg, PieceArg):
        return Launch(writes=writes, pieces=piece.max_val + 1, word=word, workers=piece.threads)
    return Launch(writes=writes)

  # ---- text

  def fresh(self) -> str:
    self.count += 1
    return f"%v{self.count}"

  def ins(self, text: str) -> str:
    """Appends an instruction that has a value, and gives its name."""
    out = self.fresh()
    self.body.append(f"  {out} = {text}")
    return out

  def call(self, result: str, function: str, args: Sequence[Typed], flags: str = "") -> str:
    self.declared[f"declare {result} @{function}({', '.join(t for t, _ in args)})"] = None
    text = f"call {flags}{result} @{function}({', '.join(f'{t} {v}' for t, v in args)})"
    if result == "void":
      self.body.append("  " + text)
      return ""
    return self.ins(text)

  def operand(self, u: UOp) -> str:
    return self.splat(u.arg, u.dtype) if u.op is Ops.CONST else self.names[u]

  @staticmethod
  def suffix(dtype: DType, memory: bool = False) -> str:
    """How an intrinsic's name spells the type: v16f32."""
    name = ir_type(dtype.scalar(), memory)
    name = {"half": "f16", "float": "f32", "double": "f64"}.get(name, name)
    return name if dtype.count == 1 else f"v{dtype.count}{name}"

  # ---- ops

  def one(self, u: UOp, words: dict[UOp, int]) -> None:
    match u.op:
      case Ops.PARAM | Ops.VARIABLE | Ops.SCRATCH:
        word = 0 if u.op is Ops.SCRATCH else words[u]
        out = self.fresh()
        self.entry.append(f"  {out}.p = getelementptr i64, ptr %args, i64 {word}")
        kind = "i64" if u.op is Ops.VARIABLE else "ptr"
        self.entry.append(f"  {out} = load {kind}, ptr {out}.p, align 8, !invariant.load !{{}}")
        if u.op is Ops.SCRATCH and u.arg[0]:
          self.entry.append(f"  {out}.o = getelementptr i8, ptr {out}, i64 {u.arg[0]}")
          out += ".o"
        self.names[u] = out
      case Ops.RANGE:
        self.range(u)
      case Ops.ENDRANGE:
        r = self.names[u.src[0]]
        tag, end = r[2:], u.src[0].src[0]
        if perhaps_once(end) is None:
          self.body += [f"  br label %latch{tag}", f"latch{tag}:", f"  {r}.next = add nuw nsw i64 {r}, 1"]
          self.body += [f"  {r}.more = icmp ult i64 {r}.next, {self.operand(end)}"]
          self.body += [f"  br i1 {r}.more, label %body{tag}, label %exit{tag}", f"exit{tag}:"]
        else:
          self.body += [f"  br label %exit{tag}", f"exit{tag}:"]
        self.names.close()
        self.bytes.close()
        self.bases.pop()
      case Ops.ACC:
        self.names[u] = out = self.fresh()
        self.entry.append(f"  {out} = alloca {ir_type(u.dtype)}, align 64")
      case Ops.STORE:
        self.store(u)
      case Ops.EXTRACT:
        bytewise = all(s in self.bytes for s in u.src)
        kind, names = ir_type(u.src[0].dtype, memory=bytewise), self.bytes if bytewise else self.names
        x, y = names[u.src[0]], names[u.src[1]] if len(u.src) > 1 else "poison"
        picks = ", ".join(f"i32 {i}" for i in u.arg)
        names[u] = self.ins(f"shufflevector {kind} {x}, {kind} {y}, <{len(u.arg)} x i32> <{picks}>")
        if bytewise:
          self.names[u] = self.truth(u, names[u])
      case op if op is not Ops.CONST:
        self.names[u] = (self.peer if op is Ops.PEER else self.vectorize if op is Ops.VECTORIZE else self.alu)(u)

  def range(self, u: UOp) -> None:
    self.names[u] = r = self.fresh()
    tag, end = r[2:], u.src[0]
    once = perhaps_once(end)
    if end.op is Ops.CONST and end.arg > 0:
      self.body.append(f"  br label %pre{tag}")
    else:
      some = self.ins(f"icmp sgt i64 {self.operand(end)}, 0") if once is None else self.operand(once)
      self.body.append(f"  br i1 {some}, label %pre{tag}, label %exit{tag}")
    self.body += [f"pre{tag}:", f"  br label %body{tag}", f"body{tag}:"]
    more = f", [ {r}.next, %latch{tag} ]" if once is None else ""
    self.body.append(f"  {r} = phi i64 [ 0, %pre{tag} ]{more}")
    self.names.open()
    self.bytes.open()
    self.bases.append({})

  def peer(self, u: UOp) -> str:
    """The pointer of one device's buffer, from the table."""
    n, number = u.src[1].dtype.count, f"{ir_type(u.src[1].dtype)} {self.operand(u.src[1])}"
    places = self.ins(f"getelementptr ptr, ptr {self.operand(u.src[0])}, {number}")
    if n == 1:
      return self.ins(f"load ptr, ptr {places}, align 8")
    return self.masked("gather", f"v{n}p0", n, places, 8, None, (f"<{n} x ptr>", "zeroinitializer"))

  def masked(self, name: str, kind: str, n: int, pointer: str, align: int, mask: str | None, value: Typed) -> str:
    """A call of llvm.masked.gather or load (`value`: for lanes whose condition is false), scatter or store."""
    many = name in ("gather", "scatter")
    args = [(f"<{n} x ptr>" if many else "ptr", pointer), ("i32", str(align))]
    args.append((f"<{n} x i1>", mask or "splat (i1 true)"))
    result, args = ("void", [value, *args]) if name in ("scatter", "store") else (value[0], [*args, value])
    return self.call(result, f"llvm.masked.{name}.{kind}.{f'v{n}' if many else ''}p0", args)

  def index(self, u: UOp) -> str:
    """A place; one that is constantly far from another by way of that: LLVM then has less to find out."""
    memory, offset = u.src[0], u.src[1]
    element, start = ir_type(u.dtype.scalar(), memory=True), self.operand(memory)
    if offset.dtype is not dtypes.index or memory.dtype.count > 1:
      pointer = "ptr" if memory.op is not Ops.PEER or memory.dtype.count == 1 else f"<{memory.dtype.count} x ptr>"
      return self.ins(f"getelementptr {element}, {pointer} {start}, {ir_type(offset.dtype)} {self.operand(offset)}")
    at, beside = (offset.src[0], offset.src[1].arg) if is_beside(offset) else (offset, 0)
    key = f"{element}, ptr {start}", at
    if (base := self.known_base(key)) is None:
      base = self.bases[-1][key] = self.ins(f"getelementptr {key[0]}, i64 {self.operand(at)}")
    return self.ins(f"getelementptr {element}, ptr {base}, i64 {beside}") if beside else base

  @staticmethod
  def scattered(index: UOp) -> bool:
    return index.src[1].dtype.count > 1 or index.src[0].dtype.count > 1

  def condition(self, index: UOp) -> tuple[str | None, bool]:
    """(mask of an access, whether it is one condition for all lanes)"""
    if len(index.src) < 3:
      return None, True
    mask = index.src[2]
    if mask.op is Ops.VECTORIZE and len(mask.src) == 1 and not self.scattered(index):
      return self.operand(mask.src[0]), True
    return self.operand(mask), mask.dtype.count == 1

  def lanes_of(self, u: UOp) -> list[int] | None:
    """What is in each lane of a condition, or of indices, that depend on neither memory nor loops."""
    if u not in self.known:
      src = [self.lanes_of(s) for s in u.src] if u.op is Ops.VECTORIZE or u.op in _ON_LANES else [None]
      of = [x for x in src if x is not None]
      if u.op is Ops.CONST:
        self.known[u] = [int(u.arg)] * u.dtype.count
      elif len(of) < len(src):
        self.known[u] = None
      elif u.op is Ops.VECTORIZE:
        self.known[u] = list(itertools.chain.from_iterable(of)) * (u.dtype.count // len(of))
      else:
        self.known[u] = [int(_ON_LANES[u.op](*xs)) for xs in zip(*of, strict=True)]
    return self.known[u]

  def load(self, u: UOp) -> str:
    if u.src[0].op is Ops.ACC:
      return self.ins(f"load {ir_type(u.dtype)}, ptr {self.names[u.src[0]]}, align 64")
    where, dtype, n = u.src[0], u.dtype, u.dtype.count
    pointer, (mask, uniform) = self.names[where], self.condition(where)
    kind, align = ir_type(dtype, memory=True), dtype.itemsize
    other = self.operand(u.src[1]) if len(u.src) > 1 else "zeroinitializer"
    if len(u.src) > 1 and dtype.scalar() is dtypes.bool:
      other = self.ins(f"zext {ir_type(dtype)} {other} to {kind}")
    if (scattered := self.scattered(where)) or not uniform:
      name = "gather" if scattered else "load"
      near = self.every_other(u, mask, other) if scattered and mask else None
      load = functools.partial(self.masked, name, self.suffix(dtype, True), n, pointer, align, mask, (kind, other))
      out = near or (self.if_any(mask, n, load, (kind, other)) if mask and self.is_seldom(where.src[2]) else load())
    elif mask is None:
      out = self.ins(f"load {kind}, ptr {pointer}, align {align}")
    else:
      out = self.ins(f"load {kind}, ptr {self.there_or_zeros(where, mask)}, align {align}")
      if len(u.src) > 1 and other != self.splat(0, dtype):
        out = self.ins(f"select i1 {mask}, {kind} {out}, {kind} {other}")
    if dtypes.is_bool(dtype):
      self.bytes[u] = out
      return self.truth(u, out)
    return out

  def there_or_zeros(self, where: UOp, mask: str) -> str:
    """A place, or zeros where the condition is false: chosen once for all places that are constantly far from one."""
    (memory, offset, *_), each = where.src, where.dtype.itemsize
    element, room = ir_type(where.dtype.scalar(), memory=True), _ZEROS // each - where.dtype.count
    assert room >= 0, where.dtype
    at, beside = (offset.src[0], offset.src[1].arg) if is_beside(offset) else (offset, 0)
    name = f"{element}, ptr {self.operand(memory)}"
    if not 0 <= beside <= room or (there := self.known_base((name, at))) is None:
      return self.ins(f"select i1 {mask}, ptr {self.names[where]}, ptr @zeros")
    key = f"{name} if {mask}", at
    if (base := self.known_base(key)) is None:
      base = self.bases[-1][key] = self.ins(f"select i1 {mask}, ptr {there}, ptr @zeros")
    return self.ins(f"getelementptr {element}, ptr {base}, i64 {beside}") if beside else base

  def known_base(self, key: tuple[str, UOp]) -> str | None:
    return next((of[key] for of in self.bases if key in of), None)

  def is_seldom(self, mask: UOp) -> bool:
    """Whether lanes < x, x all over its bounds, hardly ever holds of any lane."""
    if mask.op is not Ops.CMPLT or (lanes := self.lanes_of(mask.src[0])) is None or len(mask.src[1].src) != 1:
      return False
    x = mask.src[1].src[0]
    low, high = (x.src[0] if x.op is Ops.CAST else x).bounds
    return (high - min(lanes)) * _SELDOM < high - low

  def if_any(self, mask: str, n: int, value: Callable[[], str], other: Typed) -> str:
    """A value, if the mask has any lane; else another. What no lane reads would be fetched."""
    some = self.call("i1", f"llvm.vector.reduce.or.v{n}i1", [(f"<{n} x i1>", mask)])
    tag = f"any{some[2:]}"
    self.body += [f"  br label %{tag}.before", f"{tag}.before:", f"  br i1 {some}, label %{tag}, label %{tag}.end"]
    self.body.append(f"{tag}:")
    out = value()
    self.body += [f"  br label %{tag}.end", f"{tag}.end:"]
    return self.ins(f"phi {other[0]} [ {out}, %{tag} ], [ {other[1]}, %{tag}.before ]")

  def every_other(self, u: UOp, mask: str, other: str) -> str | None:
    """Each second element, in the lanes that the mask has, by two loads of neighbours: gathering takes longer. In the
    other lanes is the same everywhere."""
    (memory, offset, *_), n, kind = u.src[0].src, u.dtype.count, ir_type(u.dtype, memory=True)
    alike = other == "zeroinitializer" or other.startswith("splat")
    if not alike or offset.op is not Ops.ADD or memory.dtype.count > 1 or u.dtype.itemsize < 4 or n % 2:
      return None
    both, steps = (offset.src, offset.src[::-1]), [*range(0, 2 * n, 2)]
    at = [a.src[0] for a, b in both if a.op is Ops.VECTORIZE and len(a.src) == 1 and self.lanes_of(b) == steps]
    if not at:
      return None
    element, (bits, numbers) = ir_type(u.dtype.scalar(), memory=True), (f"<{n} x i1>", f"<{n} x i32>")
    start = self.ins(f"getelementptr {element}, ptr {self.operand(memory)}, i64 {self.operand(at[0])}")
    loads = []
    for first in (0, n):
      place = self.ins(f"getelementptr {element}, ptr {start}, i64 {first}")
      lanes = ", ".join(f"i32 {n if i % 2 else (first + i) // 2}" for i in range(n))
      some = self.ins(f"shufflevector {bits} {mask}, {bits} zeroinitializer, {numbers} <{lanes}>")
      name, align = self.suffix(u.dtype, True), u.dtype.scalar().itemsize
      loads.append(self.masked("load", name, n, place, align, some, (kind, other)))
    lanes = ", ".join(f"i32 {i}" for i in steps)
    return self.ins(f"shufflevector {kind} {loads[0]}, {kind} {loads[1]}, {numbers} <{lanes}>")

  def truth(self, u: UOp, of: str) -> str:
    zero = "zeroinitializer" if u.dtype.count > 1 else "0"
    return self.ins(f"icmp ne {ir_type(u.dtype, memory=True)} {of}, {zero}")

  def store(self, u: UOp) -> None:
    where, value = u.src
    v, dtype, n = self.operand(value), value.dtype, value.dtype.count
    if where.op is Ops.ACC:
      v = v if n == where.dtype.count else f"splat ({ir_type(dtype)} {v})"
      self.body.append(f"  store {ir_type(where.dtype)} {v}, ptr {self.names[where]}, align 64")
      return
    pointer, (mask, uniform) = self.names[where], self.condition(where)
    kind, align = ir_type(dtype, memory=True), dtype.itemsize
    if dtype.scalar() is dtypes.bool:
      v = self.ins(f"zext {ir_type(dtype)} {v} to {kind}")
    scattered, known = self.scattered(where), self.lanes_of(where.src[2]) if mask and not uniform else None
    if not scattered and known is not None and sum(known) == 1:
      # LLVM 22 stores the wide element where such a mask meets a conversion to a narrower integer, with AVX-512
      lane, element = known.index(True), ir_type(dtype.scalar(), memory=True)
      v, kind = self.ins(f"extractelement {kind} {v}, i32 {lane}"), element
      pointer, mask = self.ins(f"getelementptr {element}, ptr {pointer}, i64 {lane}"), None
    elif scattered or not uniform:
      self.masked("scatter" if scattered else "store", self.suffix(dtype, True), n, pointer, align, mask, (kind, v))
      return
    lines = [f"  store {kind} {v}, ptr {pointer}, align {align}"]
    self.count += 1
    tag = f"store{self.count}"
    if u in self.streamed:
      bits = f"<{n} x i{align * 8}>"  # LLVM stores a vector of halves in its own way
      word = v if kind == bits else self.ins(f"bitcast {kind} {v} to {bits}")
      past = f"  store {bits} {word}, ptr {pointer}, align {min(align * n, LINE)}, !nontemporal !{{i32 1}}"
      choice = f"  br i1 {self.at_line(where.src[0])}, label %{tag}.past, label %{tag}"
      end = f"  br label %{tag}.end"
      lines = [choice, f"{tag}.past:", past, end, f"{tag}:", *lines, end, f"{tag}.end:"]
    if mask is not None:
      lines[:0] = [f"  br i1 {mask}, label %{tag}, label %{tag}.end", f"{tag}:"]
      lines += [f"  br label %{tag}.end", f"{tag}.end:"]
    self.body += lines

  def at_line(self, memory: UOp) -> str:
    """Whether a PARAM begins at a line of the caches: some is a part of what a user has."""
    if memory not in self.begins_line:
      self.begins_line[memory] = out = self.fresh()
      self.entry.append(f"  {out}.a = ptrtoint ptr {self.operand(memory)} to i64")
      self.entry += [f"  {out}.l = and i64 {out}.a, {LINE - 1}", f"  {out} = icmp eq i64 {out}.l, 0"]
    return self.begins_line[memory]

  def vectorize(self, u: UOp) -> str:
    kind, scalar = ir_type(u.dtype), ir_type(u.dtype.scalar())
    if all(s.op is Ops.CONST for s in u.src):
      parts = [f"{scalar} {self.operand(s)}" for s in u.src]
      return f"splat ({parts[0]})" if len(parts) == 1 else f"<{', '.join(parts)}>"
    out = "poison"
    for i, s in enumerate(u.src):
      out = self.ins(f"insertelement {kind} {out}, {scalar} {self.operand(s)}, i32 {i}")
    if len(u.src) > 1:
      return out
    return self.ins(f"shufflevector {kind} {out}, {kind} poison, <{u.dtype.count} x i32> zeroinitializer")

  def multiply_add(self, u: UOp, product: int) -> str:
    """A sum or difference one operand of which is a product, or a DOT."""
    kind, taken, c = ir_type(u.dtype), u.src[product], self.operand(u.src[1 - product])
    if taken.op is Ops.DOT:
      start = c if u.op is Ops.ADD else self.ins(f"sub {kind} {self.splat(0, u.dtype)}, {c}")
      return self.dot(taken, [start, *map(self.operand, taken.src[1:])])
    a, b = taken.src
    x = self.operand(a)
    if u.op is Ops.SUB and product:
      x = self.ins(f"fneg {kind} {x}")
    elif u.op is Ops.SUB:
      c = self.ins(f"fneg {kind} {c}")
    return self.call(kind, f"llvm.fmuladd.{self.suffix(u.dtype)}", [(kind, y) for y in (x, self.operand(b), c)])

  def alu(self, u: UOp) -> str:
    dtype, kind, of = u.dtype, ir_type(u.dtype), u.src[0].dtype
    xs, is_float, code = [self.operand(s) for s in u.src], dtypes.is_float(of), ""
    if (op := u.arg if u.op is Ops.FOLD else u.op) in _CODES:
      column = 0 if is_float else 3 if dtypes.is_bool(of) else 2 if dtypes.is_unsigned(of) or u.arg is True else 1
      code = _CODES[op][column]
      if code and u.op is not Ops.FOLD and (column == 3 or u.op not in MIRROR):
        return self.ins(f"{code} {ir_type(of)} {xs[0]}, {xs[1]}")
    match u.op:
      case Ops.FOLD:
        return self.fold_lanes(u, code.split()[0], (ir_type(of), xs[0]))
      case Ops.CAST:
        return self.cast(xs[0], of, dtype)
      case Ops.BITCAST:
        return self.ins(f"bitcast {ir_type(of)} {xs[0]} to {kind}")
      case Ops.WHERE:
        return self.ins(f"select {ir_type(of)} {xs[0]}, {kind} {xs[1]}, {kind} {xs[2]}")
      case Ops.NEG:
        return self.ins(f"fneg {kind} {xs[0]}" if is_float else f"sub {kind} {self.splat(0, dtype)}, {xs[0]}")
      case Ops.NOT:
        return self.ins(f"xor {kind} {xs[0]}, {self.splat(1 if dtypes.is_bool(of) else -1, dtype)}")
      case Ops.RECIP:
        return self.ins(f"fdiv {kind} {self.splat(1.0, dtype)}, {xs[0]}")
      case Ops.DOT:
        return self.dot(u, xs)
      case Ops.MAX | Ops.MIN if is_float:
        return self.extremum(u, xs)
      case Ops.MAX | Ops.MIN:
        return self.call(kind, f"llvm.{code}.{self.suffix(dtype)}", [(kind, x) for x in xs])
    if (function := intrinsic(u.op)) is not None:
      return self.call(kind, f"llvm.{function}.{self.suffix(dtype)}", [(kind, x) for x in xs])
    raise NotImplementedError(f"{u.op.name} of {dtype.name}: no instruction, and its card renders it as no call")

  def dot(self, u: UOp, xs: list[str]) -> str:
    """xs[0] plus the products of the parts of two words."""
    n, scalar = max(u.dtype.count, 4), ir_type(u.dtype.scalar())
    kinds = [f"<{n} x {scalar}>", *[f"<{n} x i32>"] * 2]
    if u.dtype.count == 1:
      parts = zip(kinds, (scalar, "i32", "i32"), xs)
      xs = [self.ins(f"insertelement {kind} zeroinitializer, {one} {x}, i32 0") for kind, one, x in parts]
    out = self.dot_of_words(n, xs, scalar, u.arg)
    return out if u.dtype.count == n else self.ins(f"extractelement {kinds[0]} {out}, i32 0")

  def dot_of_words(self, n: int, xs: list[str], scalar: str, numbers: DType) -> str:
    """For n words. `numbers`: those that an instruction takes at once; more are halved."""
    kinds, half = [f"<{n} x {scalar}>", *[f"<{n} x i32>"] * 2], n // 2
    if n * 4 > numbers.count * numbers.scalar().itemsize:
      halves = []
      for at in (0, half):
        places = ", ".join(f"i32 {i}" for i in range(at, at + half))
        parts = zip(kinds, xs)
        mine = [self.ins(f"shufflevector {k} {x}, {k} poison, <{half} x i32> <{places}>") for k, x in parts]
        halves.append(f"<{half} x {scalar}> {self.dot_of_words(half, mine, scalar, numbers)}")
      return self.ins(f"shufflevector {', '.join(halves)}, <{n} x i32> <{', '.join(f'i32 {i}' for i in range(n))}>")
    match numbers.scalar():
      case dtypes.int16:
        return self.dot_by_pairs(n, xs)
      case dtypes.bfloat16:
        xs = [xs[0], *[self.ins(f"bitcast {kinds[1]} {x} to <{2 * n} x bfloat>") for x in xs[1:]]]
        kinds[1:] = [f"<{2 * n} x bfloat>"] * 2
        name = "avx512bf16.dpbf16ps"
      case _:
        name = "avx512.vpdpbusd"
    return self.call(kinds[0], f"llvm.x86.{name}.{32 * n}", list(zip(kinds, xs)))

  def dot_by_pairs(self, n: int, xs: list[str]) -> str:
    """xs[0] plus the products of four bytes, of which xs[1]'s are unsigned: of those at even places, and of the others,
    as numbers of 16 bits, two of which are multiplied and added up at once."""
    kind, eight, least = f"<{2 * n} x i16>", "splat (i16 8)", "splat (i16 255)"
    x, y = (self.ins(f"bitcast <{n} x i32> {v} to {kind}") for v in xs[1:])
    raised = self.ins(f"shl {kind} {y}, {eight}")
    parts = [(self.ins(f"and {kind} {x}, {least}"), self.ins(f"ashr {kind} {raised}, {eight}"))]
    parts.append((self.ins(f"lshr {kind} {x}, {eight}"), self.ins(f"ashr {kind} {y}, {eight}")))
    name, out = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[n], xs[0]
    for a, b in parts:
      product = self.call(f"<{n} x i32>", f"llvm.x86.{name}", [(kind, a), (kind, b)])
      out = self.ins(f"add <{n} x i32> {out}, {product}")
    return out

  def splat(self, value: float, dtype: DType) -> str:
    literal = _literal(value, dtype.scalar())
    return literal if dtype.count == 1 else f"splat ({ir_type(dtype.scalar())} {literal})"

  def fold_lanes(self, u: UOp, code: str, x: Typed) -> str:
    """All lanes reduced to one; floats pairwise."""
    if dtypes.is_float(u.dtype) and u.arg in MIRROR:
      return self.extreme_lane(u, x[1])
    scalar, is_sum = ir_type(u.dtype), dtypes.is_float(u.dtype)
    start = [(scalar, self.splat(-0.0 if u.arg is Ops.ADD else 1.0, u.dtype))] if is_sum else []
    function = f"llvm.vector.reduce.{code}.{self.suffix(u.src[0].dtype)}"
    return self.call(scalar, function, [*start, x], "reassoc " if is_sum else "")

  def extreme_lane(self, u: UOp, x: str) -> str:
    """The greatest or least lane, by halves, each of one instruction; NaN, which that loses, if any lane is."""
    whole, scalar, n = u.src[0].dtype, ir_type(u.dtype), u.src[0].dtype.count
    bits = self.ins(f"fcmp uno {ir_type(whole)} {x}, {x}")
    lost = self.call("i1", f"llvm.vector.reduce.or.v{n}i1", [(f"<{n} x i1>", bits)])
    best, code = x, "ogt" if u.arg is Ops.MAX else "olt"
    while n > 1:
      m, kind = n - n // 2, f"<{n - n // 2} x {scalar}>"  # of an odd number the middle one is in both
      parts = (", ".join(f"i32 {i}" for i in range(first, first + m)) for first in (0, n - m))
      of = f"<{n} x {scalar}>"
      a, b = [self.ins(f"shufflevector {of} {best}, {of} poison, <{m} x i32> <{part}>") for part in parts]
      above = self.ins(f"fcmp {code} {kind} {a}, {b}")
      best, n = self.ins(f"select <{m} x i1> {above}, {kind} {a}, {kind} {b}"), m
    best = self.ins(f"extractelement <1 x {scalar}> {best}, i32 0")
    return self.ins(f"select i1 {lost}, {scalar} {self.splat(math.nan, u.dtype)}, {scalar} {best}")

  def extremum(self, u: UOp, xs: list[str]) -> str:
    """max or min that gives NaN if either operand is; `x > y ? x : y` (one instruction) gives y where either is NaN."""
    kind, code = ir_type(u.dtype), "ogt" if u.op is Ops.MAX else "olt"
    bits = f"<{u.dtype.count} x i1>" if u.dtype.count > 1 else "i1"
    x, y = xs
    if known := Ops.CONST in (u.src[1].op, *(s.op for s in u.src[1].src[:1] if u.src[1].op is Ops.VECTORIZE)):
      x, y = y, x
    out = self.ins(f"select {bits} {self.ins(f'fcmp {code} {kind} {x}, {y}')}, {kind} {x}, {kind} {y}")
    if known:
      return out
    return self.ins(f"select {bits} {self.ins(f'fcmp uno {kind} {x}, {x}')}, {kind} {x}, {kind} {out}")

  def cast(self, x: str, a: DType, b: DType) -> str:
    """Conversion: float to integer truncates (through 32 or 64 bits, so that narrow types wrap), to bool is `!= 0`."""
    source, target = ir_type(a), ir_type(b)
    if a is b or (source == target and not dtypes.is_float(a)):
      return x
    if dtypes.is_bool(b):
      zero = self.splat(0, a)
      return self.ins(f"fcmp une {source} {x}, {zero}" if dtypes.is_float(a) else f"icmp ne {source} {x}, {zero}")
    if dtypes.is_float(a) and dtypes.is_float(b):
      out = self.ins(f"{'fpext' if a.itemsize < b.itemsize else 'fptrunc'} {source} {x} to {target}")
      if a.itemsize > b.itemsize:
        return out
      # else LLVM 22 compares what is widened in the narrow type, and there takes `x > 0 ? 0 : x` for 0 where x is -0.0
      return self.call(target, f"llvm.arithmetic.fence.{self.suffix(b)}", [(target, out)])
    if dtypes.is_float(a):
      narrow = b.itemsize < 4 or b.scalar() is dtypes.int32
      wide = ir_type((dtypes.int32 if narrow else dtypes.int64).vec(a.count))
      code = "fptoui" if b.scalar() is dtypes.uint64 else "fptosi"
      out = self.ins(f"freeze {wide} {self.ins(f'{code} {source} {x} to {wide}')}")
      return out if wide == target else self.ins(f"trunc {wide} {out} to {target}")
    unsigned = dtypes.is_unsigned(a) or dtypes.is_bool(a)
    if dtypes.is_float(b):
      return self.ins(f"{'uitofp' if unsigned else 'sitofp'} {source} {x} to {target}")
    if dtypes.is_bool(a) or a.itemsize < b.itemsize:
      return self.ins(f"{'zext' if unsigned else 'sext'} {source} {x} to {target}")
    return self.ins(f"trunc {source} {x} to {target}")


def render(linear: Sequence[UOp], name: str) -> Rendered:
  """The LLVM module of one kernel, as text, and how it is launched."""
  return LLVMRenderer(linear, name).render()
