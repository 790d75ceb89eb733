"""Sums of products of narrow numbers, by instructions that take several at a time.

Such an instruction (VNNI, AVX512-BF16) multiplies the parts of two words of 32 bits, pair by pair, and adds the
products to a number of 32 bits. So the operands become words of neighbours along the reduction: values like any other,
which codegen stages in scratch memory where they are used often. DOT of two words is what the accumulator gains.
Without VNNI a DOT of bytes is two sums of pairs of 16 bits (AVX2: `pmaddwd`); the result is the same. Its arg says
which numbers an instruction takes, and how many at once.

A sum over four bytes that lie side by side is one word times another, however rarely each is used: nothing has to be
put in order for it. What is computed of the bytes (the nibbles of quantised weights) is computed of the word, in a
register.
"""

from __future__ import annotations

from tinygrad.device import Target
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.numerics.idle_loops import parts_of
from tinygrad.uop import AxisKind, GroupOp, Ops, UOp
from tinygrad.uop.affine import affine, index, plain
from tinygrad.uop.loops import LoopIds, extent, static
from tinygrad.uop.rewrite import substitute_free

REUSE = 16  # least times that a word is used, and length of the reduction in words: else it is not worth making
FEW_WORDS = 8  # that are added up in registers
SPREAD = 1 | 1 << 7 | 1 << 14 | 1 << 21  # times four bits: bit i is at 8·i, too
WHOLE = 0xFFFFFFFF  # all bits of a word
BIAS = 0x80808080  # in each byte, the difference of what it is as a signed and as an unsigned number
VNNI = {"avx512vnni", "avxvnni"}


def multiplies_bytes(target: Target) -> bool:
  """Whether it has an instruction for words of four, or for pairs of 16 bits as wide as its vectors are."""
  has = set(target.features)
  return bool(VNNI & has) or "avx512bw" in has or ("avx2" in has and "avx512f" not in has)


def is_product_of_bytes(u: UOp) -> bool:
  """Whether integers of 32 bits are multiplied that come from bytes: of four the sum is one instruction, and exact."""
  if u.op is not Ops.MUL or u.dtype is not dtypes.int32:
    return False
  sources = [next(v for v in s.down() if v.op not in GroupOp.Movement) for s in u.src]
  return [s.src[0].dtype.itemsize for s in sources if s.op is Ops.CAST] == [1, 1]


def adds_few_words(u: UOp) -> bool:
  """The sum of four products of bytes, one instruction, or of few such sums, which stays in a register."""
  if u.op is not Ops.REDUCE or u.dtype is not dtypes.int32:
    return False
  length = prod(u.src[0].max_shape[i] for i in u.arg[1])
  if length == 4 and is_product_of_bytes(u.src[0]):
    return True
  return length <= FEW_WORDS and adds_few_words(next(v for v in u.src[0].down() if v.op not in GroupOp.Movement))


def use_dots(sink: UOp, target: Target) -> UOp:
  """The kernel with the FOLDs of products that the target has an instruction for."""
  # Intel's for bfloat16 does half of what multiplications of float32 do (Sapphire Rapids: a quarter of their rate)
  bytewise = multiplies_bytes(target)
  bf16 = "avx512bf16" in target.features and target.vendor == "AMD"
  if not bytewise and not bf16:
    return sink
  as_bytes = numbers_at_once(dtypes.int8 if VNNI & set(target.features) else dtypes.int16, target)
  (stores, clipped), ids, made, ends = parts_of(sink), LoopIds(sink), dict[UOp, UOp](), list[UOp]()
  limits = {x.src[0]: x for x in clipped}
  whole = {r for s in stores for r in s.src[2:]}  # a sum over rows is one of parts (row_blocks.py): these stay FOLDs
  for f, parallel in ((u, s.src[2:]) for s in stores for u in s.toposort() if u.op is Ops.FOLD):
    if (pair := narrow_product(f)) is None or not (bf16 if pair[0].dtype is dtypes.bfloat16 else bytewise):
      continue
    if f in made or not whole.isdisjoint(f.src[1:]):
      continue
    numbers = numbers_at_once(dtypes.bfloat16, target) if pair[0].dtype is dtypes.bfloat16 else as_bytes
    always = limits.keys().isdisjoint(f.src[1:])
    if bytewise and always and (short := dot_of_neighbours(f, pair, numbers, ids)) is not None:
      made[f] = short
      continue
    reached = [x.loops for x in pair]
    length = 4 // pair[0].dtype.itemsize
    along = [r for r in f.src[1:] if static(r) and extent(r) >= REUSE * length]
    along = [r for r in along if r not in limits or ends_with_words(r, limits[r].src[1], length)]
    if along and all(prod(r.src[0].vmax for r in parallel if r not in have) >= REUSE for have in reached):
      r = max(along, key=extent)
      steps = ids.loop(index(r.src[0].arg // length), AxisKind.REDUCE)
      made[f] = words_of(f, pair, r, steps, length, numbers)
      if r in limits:
        ends.append(UOp.new(Ops.CMPLT, dtypes.bool, (steps, affine(limits[r].src[1], {}).split(length)[0].uop())))
  if not made:
    return sink
  words = substitute_free(UOp.sink(*stores), made)
  left = {*words.toposort()}
  return UOp.sink(*words.src, *(x for x in (*clipped, *ends) if x.src[0] in left))


def ends_with_words(r: UOp, limit: UOp, length: int) -> bool:
  """Whether a loop that may end early has whole words until there, and until its end."""
  return r.src[0].arg % length == 0 and affine(limit, {}).divisor() % length == 0


def numbers_at_once(kind: DType, target: Target) -> DType:
  """The numbers that an instruction for words takes."""
  return kind.vec(target.vector_bytes // kind.itemsize)


def narrow_product(f: UOp) -> tuple[UOp, UOp] | None:
  """(x, y) where f sums x·y in 32 bits: both bfloat16, or bytes of which x may be unsigned."""
  is_sum = f.op is Ops.FOLD and f.arg is Ops.ADD and f.src[0].op is Ops.MUL
  if not is_sum or any(s.op is not Ops.CAST for s in f.src[0].src):
    return None
  x, y = (s.src[0] for s in f.src[0].src)
  if f.dtype is dtypes.float32:
    return (x, y) if x.dtype is y.dtype is dtypes.bfloat16 else None
  x, y = (y, x) if y.dtype is dtypes.uint8 else (x, y)
  fits = f.dtype is dtypes.int32 and x.dtype in (dtypes.int8, dtypes.uint8) and y.dtype is dtypes.int8
  return (x, y) if fits else None


def words_of(f: UOp, pair: tuple[UOp, UOp], r: UOp, steps: UOp, length: int, numbers: DType) -> UOp:
  """The FOLD of x·y with `length` iterations of its range r in each of `steps`, and those that are left over."""
  (whole, left), kind = divmod(extent(r), length), pair[0].dtype
  x, y = (word(v, r, steps, length) for v in pair)
  over = tuple(steps if s is r else s for s in f.src[1:])

  def total(x: UOp, y: UOp) -> UOp:
    return UOp.new(Ops.FOLD, f.dtype, (UOp.new(Ops.DOT, f.dtype, (x, y), numbers), *over), Ops.ADD)

  if kind is dtypes.int8:  # the instruction takes x as unsigned: x + 128, and 128·y less
    bias = UOp.const(dtypes.uint32, BIAS)
    out = UOp.new(Ops.SUB, f.dtype, (total(UOp.new(Ops.XOR, dtypes.uint32, (x, bias)), y), total(bias, y)))
  else:
    out = total(x, y)
  others = tuple(s for s in f.src[1:] if s is not r)
  for i in range(left):
    value = substitute_free(f.src[0], {r: index(whole * length + i)})
    value = UOp.new(Ops.FOLD, f.dtype, (value, *others), Ops.ADD) if others else value
    out = UOp.new(Ops.ADD, f.dtype, (out, value))
  return out


def word(value: UOp, r: UOp, steps: UOp, length: int) -> UOp:
  """`length` neighbours of a value along r, the first in the lowest bits."""
  bits: DType = dtypes.uint8 if value.dtype.itemsize == 1 else dtypes.uint16
  out: UOp | None = None
  for i in range(length):
    at = UOp.new(Ops.ADD, dtypes.index, (UOp.new(Ops.MUL, dtypes.index, (steps, index(length))), index(i)))
    part = UOp.new(Ops.BITCAST, bits, (substitute_free(value, {r: at}),))
    part = UOp.new(Ops.CAST, dtypes.uint32, (part,))
    part = UOp.new(Ops.SHL, dtypes.uint32, (part, UOp.const(dtypes.uint32, i * 32 // length))) if i else part
    out = part if out is None else UOp.new(Ops.OR, dtypes.uint32, (out, part))
  assert out is not None
  return out


def dot_of_neighbours(f: UOp, pair: tuple[UOp, UOp], numbers: DType, ids: LoopIds) -> UOp | None:
  """The FOLD of x·y over four neighbours in memory, as one DOT."""
  r = f.src[1]
  if len(f.src) != 2 or r.src[0] is not index(4) or pair[0].dtype.itemsize != 1:
    return None
  (x, less), second = unsigned_word(pair[0], r), word_of_bytes(pair[1], r)
  if x is None or second is None:
    return None
  y, _ = second

  def total(x: UOp) -> UOp:
    dot = UOp.new(Ops.DOT, f.dtype, (x, y), numbers)
    return UOp.new(Ops.FOLD, f.dtype, (dot, ids.loop(index(1), AxisKind.UPCAST)), Ops.ADD)

  return UOp.new(Ops.SUB, f.dtype, (total(x), total(in_each_byte(less)))) if less else total(x)


def each_byte(n: int) -> int:
  return n * 0x01010101


def in_each_byte(n: int) -> UOp:
  return UOp.const(dtypes.uint32, each_byte(n))


def unsigned_word(x: UOp, r: UOp) -> tuple[UOp | None, int]:
  """(A word of unsigned bytes, what each of them is more than x), x with r = 0, 1, 2, 3 in its bytes."""
  if x.op is Ops.SUB and x.dtype is dtypes.int8 and x.src[1].op is Ops.CONST and 0 <= x.src[1].arg:
    word, less = word_of_bytes(x.src[0], r), int(x.src[1].arg)
    if word is not None and word[1] <= dtypes.max(dtypes.int8):
      return word[0], less
  if (found := word_of_bytes(x, r)) is None:
    return None, 0
  if x.dtype is dtypes.uint8 or found[1] <= dtypes.max(dtypes.int8):
    return found[0], 0
  return UOp.new(Ops.XOR, dtypes.uint32, (found[0], in_each_byte(128))), 128


def word_of_bytes(x: UOp, r: UOp) -> tuple[UOp, int] | None:
  """(The word of the bytes x with r = 0, 1, 2, 3, the greatest that a byte is, taken as unsigned), where these lie side
  by side in memory, or are computed of such without carries from one to the next."""
  if dtypes.is_bool(x.dtype) or x.dtype.itemsize > 1:
    return None
  if x.op is Ops.CONST:
    return in_each_byte(int(x.arg) & 255), int(x.arg) & 255
  if x.op is Ops.LOAD and len(x.src) == 1:
    return word_in_memory(x.src[0], r)
  if x.op is Ops.CAST and (bits := four_bits(x.src[0], r)) is not None:
    return bits, 1
  if x.op is Ops.CAST or x.op is Ops.BITCAST:
    return word_of_bytes(x.src[0], r)
  if x.op is Ops.WHERE:
    return chosen_by_bit(x, r)
  shifts = x.op is Ops.SHL or x.op is Ops.SHR
  if not shifts and x.op is not Ops.AND and x.op is not Ops.OR and x.op is not Ops.XOR:
    return None
  if (a := word_of_bytes(x.src[0], r)) is None:
    return None
  if shifts:
    return shifted_bytes(x, *a)
  if (b := word_of_bytes(x.src[1], r)) is None:
    return None
  if x.op is Ops.AND and b[0].op is Ops.CONST:
    return part_of_word(a[0], 0, int(b[0].arg)), min(a[1], b[1])
  if x.op is Ops.AND:
    return UOp.new(x.op, dtypes.uint32, (a[0], b[0])), min(a[1], b[1])
  return UOp.new(x.op, dtypes.uint32, (a[0], b[0])), (1 << max(a[1], b[1]).bit_length()) - 1


def four_bits(x: UOp, r: UOp) -> UOp | None:
  """Four bits of a number side by side, each as a byte: number >> (first + r) & 1."""
  if x.op is not Ops.AND or x.src[1].op is not Ops.CONST or x.src[1].arg != 1 or x.src[0].op is not Ops.SHR:
    return None
  number, by = x.src[0].src[0], plain(x.src[0].src[1])
  if by is None or not dtypes.is_unsigned(number.dtype) or r in number.toposort():
    return None
  terms = affine(by, {}).terms
  if terms.get(r) != 1 or any(atom is not r and r in atom.toposort() for atom in terms):
    return None

  def new(op: Ops, x: UOp, y: UOp | int) -> UOp:
    return UOp.new(op, dtypes.uint32, (x, UOp.const(dtypes.uint32, y) if isinstance(y, int) else y))

  word, first = (UOp.new(Ops.CAST, dtypes.uint32, (u,)) for u in (number, substitute_free(by, {r: index(0)})))
  four = new(Ops.AND, new(Ops.SHR, word, first), 15)
  return new(Ops.AND, new(Ops.MUL, four, SPREAD), each_byte(1))


def chosen_by_bit(x: UOp, r: UOp) -> tuple[UOp, int] | None:
  """By a bit of each byte, one byte or another: b ^ ((a ^ b) & (255, where the bit is set))."""
  condition, *either = x.src
  if condition.op is not Ops.CMPNE or condition.src[1].op is not Ops.CONST or condition.src[1].arg != 0:
    return None
  one = condition.src[0]
  if one.op is not Ops.AND or one.src[1].op is not Ops.CONST or int(one.src[1].arg).bit_count() != 1:
    return None
  word, a, b = word_of_bytes(one, r), *(word_of_bytes(s, r) for s in either)
  if word is None or a is None or b is None:
    return None

  def new(op: Ops, *src: UOp) -> UOp:
    return UOp.new(op, dtypes.uint32, src)

  ones = new(Ops.SHR, word[0], UOp.const(dtypes.uint32, int(one.src[1].arg).bit_length() - 1))
  every = new(Ops.SUB, new(Ops.SHL, ones, UOp.const(dtypes.uint32, 8)), ones)
  return new(Ops.XOR, b[0], new(Ops.AND, new(Ops.XOR, a[0], b[0]), every)), a[1] | b[1]


def shifted_bytes(x: UOp, word: UOp, most: int) -> tuple[UOp, int] | None:
  """Of bytes shifted by as many bits each: what a byte loses does not come into the next."""
  by = plain(x.src[1])
  if x.dtype is not dtypes.uint8 or by is None or by.vmin < 0 or by.vmax > 7:
    return None
  amount = UOp.new(Ops.CAST, dtypes.uint32, (by,)) if by.op is not Ops.CONST else UOp.const(dtypes.uint32, by.vmin)

  def new(op: Ops, *src: UOp) -> UOp:
    return UOp.new(op, dtypes.uint32, src)

  kept = new(Ops.MUL, new(Ops.SHR, UOp.const(dtypes.uint32, 255), amount), in_each_byte(1))
  if by.op is Ops.CONST and x.op is Ops.SHR:
    return part_of_word(word, -by.vmin, each_byte(255 >> by.vmin)), most >> by.vmin
  if by.op is Ops.CONST:
    kept_bits = WHOLE if most << by.vmin < 256 else each_byte(255 & 255 << by.vmin)
    return part_of_word(word, by.vmin, kept_bits), min(most << by.vmin, 255)
  if x.op is Ops.SHR:
    return new(Ops.AND, new(Ops.SHR, word, amount), kept), most >> by.vmin
  return new(Ops.SHL, word if most << by.vmax < 256 else new(Ops.AND, word, kept), amount), min(most << by.vmax, 255)


def bits_up(bits: int, left: int) -> int:
  """The bits of a word, so many places further up."""
  return bits << left & WHOLE if left >= 0 else bits >> -left


def part_of_word(word: UOp, left: int, kept: int) -> UOp:
  """A word, so many places further up, and of that the bits of `kept`; one shift and one AND, whatever it was."""
  if word.op is Ops.AND and word.src[1].op is Ops.CONST:
    return part_of_word(word.src[0], left, kept & bits_up(int(word.src[1].arg), left))
  if (word.op is Ops.SHL or word.op is Ops.SHR) and word.src[1].op is Ops.CONST:
    before = int(word.src[1].arg) if word.op is Ops.SHL else -int(word.src[1].arg)
    return part_of_word(word.src[0], before + left, kept & bits_up(bits_up(WHOLE, before), left))
  out = word
  if left:
    amount = UOp.const(dtypes.uint32, abs(left))
    out = UOp.new(Ops.SHL if left > 0 else Ops.SHR, dtypes.uint32, (word, amount))
  every = kept | bits_up(WHOLE, left) ^ WHOLE
  return out if every == WHOLE else UOp.new(Ops.AND, dtypes.uint32, (out, UOp.const(dtypes.uint32, kept)))


def word_in_memory(where: UOp, r: UOp) -> tuple[UOp, int] | None:
  """Four bytes beside each other as they lie."""
  at = affine(where.src[1], {})
  if len(where.src) > 2 or at.terms.get(r) != 1 or where.src[0].op not in GroupOp.Memory:
    return None
  if r in where.src[0].toposort() or any(atom is not r and r in atom.toposort() for atom in at.terms):
    return None
  first = substitute_free(where.src[1], {r: index(0)})
  place = UOp.new(Ops.INDEX, dtypes.uint32, (where.src[0], first))
  return UOp.new(Ops.LOAD, dtypes.uint32, (place,)), 255


def put_together(u: UOp) -> UOp:
  """A LOAD of bytes beside each other as one number, the first in its lowest bits, of loads of each."""
  param, offset, *valid = u.src[0].src
  out = UOp.const(u.dtype, 0)
  for i in range(u.dtype.itemsize // param.dtype.itemsize):
    where = UOp.new(Ops.INDEX, param.dtype, (param, UOp.new(Ops.ADD, dtypes.index, (offset, index(i))), *valid))
    zero = (UOp.const(param.dtype, 0),) if valid else ()
    part = UOp.new(Ops.BITCAST, dtypes.uint8, (UOp.new(Ops.LOAD, param.dtype, (where, *zero)),))  # no sign goes on
    part = UOp.new(Ops.CAST, u.dtype, (part,))
    part = UOp.new(Ops.SHL, u.dtype, (part, UOp.const(u.dtype, 8 * i * param.dtype.itemsize)))
    out = UOp.new(Ops.OR, u.dtype, (out, part))
  return UOp.new(Ops.WHERE, u.dtype, (*valid, out, u.src[1])) if valid and len(u.src) > 1 else out
