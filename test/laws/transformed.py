"""A part of a random program that goes through transforms (`vmap`, `grad`, `scan`, `checkpoint`, `shard_map`) where it
is placed, and is a Python loop over elements, steps and devices' blocks on one device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad import Mesh, P, Tensor, checkpoint, grad, pmax, psum, scan, shard_map, vmap

Part = Callable[[Tensor, Tensor], Tensor]
LARGEST = 64  # elements: a loop has nodes for each of them

# element by element, of what is given and something of its shape
OF_BOTH: dict[str, Part] = {
  "a + b": lambda a, b: a + b,
  "a - b": lambda a, b: a - b,
  "a * b": lambda a, b: a * b,
  "max(a, b)": lambda a, b: a.maximum(b),
  "min(a, b)": lambda a, b: a.minimum(b),
  "b > 0 ? a : b": lambda a, b: (b > 0).where(a, b),
}
OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
  "-a": lambda a: -a,
  "a * 2": lambda a: a * 2,
  "a + 3": lambda a: a + 3,
  "relu(a)": lambda a: a.relu(),
  "flip(a)": lambda a: a.flip(0) if a.ndim else a,
  "sum(a, 0)": lambda a: a.sum(0) if a.ndim else a,
  "sum(a)": lambda a: a.sum(),
  "transposed a": lambda a: a.permute(tuple(reversed(range(a.ndim)))),
  "flat a": lambda a: a.reshape(-1),
  "padded a": lambda a: a.pad(((1, 0), *[(0, 0)] * (a.ndim - 1))) if a.ndim else a,
}
FORWARD: dict[str, Callable[[Tensor], Tensor]] = {  # whose derivatives are chosen among equals
  "max(a, 0)": lambda a: a.max(0) if a.ndim else a,
  "min(a)": lambda a: a.min(),
  "prod(a, 0)": lambda a: a.prod(0) if a.ndim else a,
}


@dataclass(frozen=True)
class Through:
  """A step: `text`; `transform`, of what is placed; `loop`, of what is on one device; the shapes of what it takes
  beside its operand."""

  text: str
  transform: Callable[..., Tensor]
  loop: Callable[..., Tensor]
  others: Sequence[tuple[int, ...]]


def drawn(rng: random.Random, backward: bool) -> tuple[str, Part]:
  """A part of one to three operations, the first of two values."""
  names = [rng.choice(list(OF_BOTH))]
  ones = OF_ONE if backward else OF_ONE | FORWARD
  names += [rng.choice(list(ones)) for _ in range(rng.randint(0, 2))]

  def part(a: Tensor, b: Tensor) -> Tensor:
    y = OF_BOTH[names[0]](a, b)
    for name in names[1:]:
      y = ones[name](y)
    return y

  return "; ".join(names), part


def element(x: Tensor, axis: int | None, i: int) -> Tensor:
  if axis is None:
    return x
  return x.shrink(tuple((i, i + 1) if d == axis else (0, n) for d, n in enumerate(x.shape))).squeeze(axis)


def without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
  return shape[:axis] + shape[axis + 1 :]


def mapped(rng: random.Random, shape: tuple[int, ...], part: Part, plain: Part, text: str) -> Through | None:
  """vmap, or a map in a map."""
  if not shape or 0 in shape:
    return None
  axis, both = rng.randrange(len(shape)), rng.random() < 0.5
  rest, n = without(shape, axis), shape[axis]
  inner = mapped(rng, rest, part, plain, text) if rest and rng.random() < 0.3 else None
  f, g = (inner.transform, inner.loop) if inner else (part, plain)
  of_element = inner.others[0] if inner else rest
  axes = (axis, 0 if both else None)

  def loop(x: Tensor, b: Tensor) -> Tensor:
    return Tensor.stack(*[g(element(x, axes[0], i), element(b, axes[1], i)) for i in range(n)])

  said = inner.text if inner else text
  return Through(f"vmap({said}, {axes})", vmap(f, axes), loop, [(n, *of_element) if both else of_element])


def kept_little(rng: random.Random, shape: tuple[int, ...], part: Part, plain: Part, text: str) -> Through:
  return Through(f"checkpoint({text})", checkpoint(part), plain, [shape])


def weighted(y: Tensor) -> Tensor:
  counts = Tensor.arange(y.numel()).reshape(y.shape).cast(y.dtype) - 2
  return (y * counts).sum()


def differentiated(rng: random.Random, shape: tuple[int, ...], part: Part, plain: Part, text: str) -> Through | None:
  """grad, or of each element; beside the derivative by the graph itself."""

  def loss(a: Tensor, b: Tensor) -> Tensor:
    return weighted(part(a, b))

  def slope(a: Tensor, b: Tensor) -> Tensor:
    found: Tensor = weighted(plain(a, b)).gradient(a)[0]
    return found

  if rng.random() < 0.5:
    return Through(f"grad({text})", grad(loss), slope, [shape])

  if not shape or 0 in shape:
    return None
  n, rest = shape[0], shape[1:]

  def loop(x: Tensor, b: Tensor) -> Tensor:
    return Tensor.stack(*[slope(element(x, 0, i), b) for i in range(n)])

  return Through(f"vmap(grad({text}))", vmap(grad(loss), (0, None)), loop, [rest])


def stepped(rng: random.Random, shape: tuple[int, ...], part: Part, plain: Part, text: str) -> Through | None:
  """scan along dim 0: the last carry, or the results of all steps."""
  if not shape or 0 in shape:
    return None
  name = rng.choice([n for n in OF_BOTH if n != "a * b"])
  last, reverse, unroll = rng.random() < 0.5, rng.random() < 0.5, rng.choice((1, 1, 2))
  n = shape[0]

  def step(c: Tensor, x: Tensor, f: Part = part) -> tuple[Tensor, Tensor]:
    return OF_BOTH[name](c, x), f(x, c)

  def transform(x: Tensor, c: Tensor) -> Tensor:
    carry, ys = scan(step, c, x, reverse=reverse, unroll=unroll)
    return carry if last else ys

  def loop(x: Tensor, c: Tensor) -> Tensor:
    ys: list[Any] = [None] * n
    for i in reversed(range(n)) if reverse else range(n):
      c, ys[i] = step(c, element(x, 0, i), plain)
    return c if last else Tensor.stack(*ys)

  said = f"scan(carry {name}, {'the last' if last else text}{', reverse' if reverse else ''}, unroll={unroll})"
  return Through(said, transform, loop, [shape[1:]])


def on_devices(
  rng: random.Random, shape: tuple[int, ...], part: Part, plain: Part, text: str, mesh: Mesh
) -> Through | None:
  """shard_map: the parts' sum or maximum over all devices that have others, or element by element the blocks."""
  fits = [(d, a) for d, n in enumerate(shape) for a, m in enumerate(mesh.shape) if m > 1 and n and n % m == 0]
  if not fits:
    return None
  (dim, axis), how = rng.choice(fits), rng.choice(("psum", "pmax", "blocks"))
  name, parts = mesh.names[axis], mesh.shape[axis]
  spec = P(*[None] * dim, name)
  if how == "blocks":
    text = rng.choice(list(OF_BOTH))
    part = plain = OF_BOTH[text]
  said = {"psum": lambda y: psum(y, name), "pmax": lambda y: pmax(y, name), "blocks": lambda y: y}[how]
  transform = shard_map(lambda a, b: said(part(a, b)), mesh, spec, spec if how == "blocks" else P())

  def loop(x: Tensor, b: Tensor) -> Tensor:
    size = shape[dim] // parts
    cuts = [
      tuple((i * size, (i + 1) * size) if d == dim else (0, n) for d, n in enumerate(shape)) for i in range(parts)
    ]
    ys = [plain(x.shrink(cut), b.shrink(cut)) for cut in cuts]
    if how == "blocks":
      return Tensor.cat(*ys, dim=dim)
    out = ys[0]
    for y in ys[1:]:
      out = out + y if how == "psum" else out.maximum(y)
    return out

  return Through(f"shard_map({how} of {text}, {spec})", transform, loop, [shape])


def draw(rng: random.Random, shape: tuple[int, ...], floats: bool, backward: bool, mesh: Mesh) -> Through | None:
  """A transform of a part for an operand of that shape; None where the one that was drawn does not fit."""
  if math.prod(shape) > LARGEST:
    return None
  text, plain = drawn(rng, backward)
  part, kind = plain, rng.choice(KINDS)
  if rng.random() < 0.3:
    part, text = checkpoint(plain), f"checkpoint({text})"
  if kind is on_devices:
    return on_devices(rng, shape, part, plain, text, mesh)
  if kind is differentiated and (backward or not floats):
    return None
  found: Through | None = kind(rng, shape, part, plain, text)
  return found


KINDS: list[Callable[..., Through | None]] = [mapped, mapped, kept_little, differentiated, stepped, stepped, on_devices]
NAMES = ["vmap(vmap(", "vmap(checkpoint(", "checkpoint(", "grad(", "vmap(grad(", "scan(", "shard_map("]
"""What the steps of many programs say."""
