"""Cases of `extra.bench.sweep --random N`: operations of shapes drawn at random, as models have them and otherwise.

What is slow for a few shapes only is found by these: a block that has one row, a sum without vectors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Case = tuple[str, ...]  # inputs, the expression, PyTorch's where it is another
SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 20, 31, 32, 33, 48, 50, 64, 65, 96, 100, 127, 128, 129, 200, 256, 300, 384)
LONG = (512, 768, 1000, 1024, 2048, 4096)
LEAST, MOST = 20_000, 4_000_000  # elements
MOST_STEPS = 200_000_000  # of a sum of products
CHANNELS = (1, 3, 8, 16, 32, 33, 64, 128)
IMAGES = (7, 8, 14, 16, 28, 32, 33, 56, 64, 100)


def text(*shape: int) -> str:
  return "x".join(map(str, shape))


class Draw(random.Random):
  """What cases are drawn with."""

  def shape(self, dims: int) -> tuple[int, ...]:
    """Of so many dims and a moderate number of elements."""
    while True:
      shape = tuple(self.choice(SIZES + LONG) for _ in range(dims))
      if LEAST < math.prod(shape) < MOST:
        return shape

  def with_gradient(self, case: Case, of: str = "a") -> Case:
    """The case, or in two of five the derivative of its squares by one input."""
    if self.random() < 0.6:
      return case
    shapes, *both = case
    return shapes, *(f"grad(lambda {of}:({e}).square().sum(),{of})" for e in both)


def reduction(draw: Draw) -> Case:
  shape = draw.shape(draw.randint(2, 4))
  dims = tuple(sorted(draw.sample(range(len(shape)), draw.randint(1, len(shape) - 1))))
  name = draw.choice(("sum", "mean", "var", "std", "logsumexp", "max", "argmax"))
  if name == "argmax":
    return text(*shape), f"a.argmax({dims[0]})"
  if name == "max":
    return draw.with_gradient((text(*shape), f"a.max({dims[0]})", f"a.amax({dims[0]})"))
  return draw.with_gradient((text(*shape), f"a.{name}({dims})"))


def product(draw: Draw) -> Case:
  while True:
    batch, m, k, n = draw.choice((1, 1, 1, 2, 8, 100)), *(draw.choice(SIZES + LONG) for _ in range(3))
    if batch * m * k * n < MOST_STEPS and batch * max(m * k, k * n, m * n) < MOST:
      break
  lead, turned = (batch,) if batch > 1 else (), (draw.random() < 0.3, draw.random() < 0.4)
  x, y = ((*lead, *(d[::-1] if t else d)) for d, t in zip(((m, k), (k, n)), turned))
  a, b = (name + ".transpose(-1,-2)" * t for name, t in zip("ab", turned))
  return draw.with_gradient((f"{text(*x)}, {text(*y)}", f"{a}@{b}"), draw.choice("ab"))


def convolution(draw: Draw) -> Case:
  while True:
    batch, size, k = draw.choice((1, 2, 4, 8)), draw.choice(IMAGES), draw.choice((1, 2, 3, 3, 3, 5, 7))
    inputs, outputs, groups = draw.choice(CHANNELS), draw.choice(CHANNELS), 1
    if draw.random() < 0.25:  # each channel by itself
      inputs = outputs = groups = draw.choice((16, 32, 96))
    stride, padding = draw.choice((1, 1, 2, k)), draw.choice((0, k // 2))
    if size >= k and batch * inputs * outputs // groups * (size * k) ** 2 < MOST_STEPS * stride**2:
      break
  how = f"stride={stride},padding={padding},groups={groups}"
  shapes = f"{text(batch, inputs, size, size)}, {text(outputs, inputs // groups, k, k)}"
  return draw.with_gradient((shapes, f"a.conv2d(b,{how})", f"F.conv2d(a,b,{how})"), draw.choice("ab"))


def transposed_convolution(draw: Draw) -> Case:
  batch, size, k = draw.choice((1, 4)), draw.choice((7, 16, 28)), draw.choice((2, 3, 4))
  inputs, outputs = draw.choice((8, 32, 64)), draw.choice((3, 16, 32))
  shapes = f"{text(batch, inputs, size, size)}, {text(inputs, outputs, k, k)}"
  case = shapes, "a.conv_transpose2d(b,stride=2)", "F.conv_transpose2d(a,b,stride=2)"
  return draw.with_gradient(case, draw.choice("ab"))


def pooling(draw: Draw) -> Case:
  shape, k = (
    (draw.choice((1, 4, 8)), draw.choice((3, 16, 32)), *[draw.choice((16, 28, 56))] * 2),
    draw.choice((2, 3, 5)),
  )
  name, stride = draw.choice(("max", "avg")), draw.choice((1, 2, k))
  theirs = f"F.{name}_pool2d(a,{k},{stride})"
  return draw.with_gradient((text(*shape), f"a.{name}_pool2d({k},{stride})", theirs))


def normalisation(draw: Draw) -> Case:
  shape = draw.shape(draw.randint(2, 4))
  dim, last = draw.randrange(len(shape)), shape[-1]
  softmax = text(*shape), f"a.{draw.choice(('softmax', 'log_softmax'))}({dim})"
  layernorm = text(*shape), "a.layernorm()", f"F.layer_norm(a,({last},))"
  centred = f"(a-a.mean({dim},keepdim=True))*(a.var({dim},keepdim=True)+1)**-0.5"
  return draw.with_gradient(draw.choice((softmax, softmax, layernorm, (text(*shape), centred))))


def attention(draw: Draw) -> Case:
  while True:
    batch, heads, width = draw.choice((1, 2, 8)), draw.choice((1, 4, 8)), draw.choice((16, 32, 64, 80, 128))
    length, causal = draw.choice((16, 50, 64, 128, 197, 256, 500)), draw.choice((True, False))
    if batch * heads * length**2 * width < MOST_STEPS // 2:
      break
  call = f"scaled_dot_product_attention(b,c,is_causal={causal})"
  shapes = ", ".join([text(batch, heads, length, width)] * 3)
  return draw.with_gradient((shapes, f"a.{call}", "F." + call.replace("(b", "(a,b")), draw.choice("abc"))


def movement(draw: Draw) -> Case:
  shape = draw.shape(draw.randint(2, 5))
  order = draw.sample(range(len(shape)), len(shape))
  other = tuple(n if draw.random() < 0.6 else 1 for n in shape)
  wide, dim = draw.shape(2), draw.randrange(2)
  return draw.choice(
    (
      (text(*shape), f"a.permute({', '.join(map(str, order))}).contiguous()"),
      (f"{text(*shape)}, {text(*other)}", draw.choice(("a*b+a", "(a+b).relu()", "(a-b).square()"))),
      (f"{text(*wide)}, {text(*wide)}", f"cat(a,b,{dim})"),
      (text(*wide), f"a.{draw.choice(('cumsum', 'flip'))}({dim})"),
      (text(*wide), f"a.roll({draw.randint(1, 9)},{dim})"),
    )
  )


def moments(draw: Draw) -> Case:
  """Of weights' gradient, a product or a convolution's, as an optimizer keeps them."""
  keep = "(lambda g:(c*.9+g*.1,d*.99+g*g*.01))"
  if draw.random() < 0.5:
    rows, inputs, outputs = draw.choice((1, 8, 32, 64, 128)), *(draw.choice(SIZES[-12:] + LONG[:4]) for _ in range(2))
    weights = text(outputs, inputs)
    return f"{text(rows, outputs)}, {text(rows, inputs)}, {weights}, {weights}", f"{keep}(a.transpose(0,1)@b)"
  size, k = draw.choice((4, 7, 8, 14, 16)), draw.choice((1, 3))
  inputs, outputs = draw.choice((3, 32, 128, 256)), draw.choice((32, 128, 256))
  image, weights = text(draw.choice((1, 4)), inputs, size, size), text(outputs, inputs, k, k)
  by = f"{keep}(grad(lambda b:{{}}.square().sum(),b))"
  both = (by.format(e + f"padding={k // 2})") for e in ("a.conv2d(b,", "F.conv2d(a,b,"))
  return f"{image}, {weights}, {weights}, {weights}", *both


KINDS: tuple[Callable[[Draw], Case], ...] = (
  reduction, reduction, product, product, convolution, convolution, transposed_convolution, pooling, normalisation,
  attention, movement, moments,
)  # fmt: skip


def random_cases(seed: int, count: int) -> dict[str, Case]:
  """So many cases, the same for a seed, by names that say what they are."""
  draw = Draw(seed)
  cases = [draw.choice(KINDS)(draw) for _ in range(count)]
  return {f"{i} {case[0]}: {case[1]}": case for i, case in enumerate(cases)}
