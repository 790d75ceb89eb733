"""What a model is read from: metadata by GGUF's keys, weights by GGUF's names, as they lie in their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from tinygrad.nn.block_formats import BlockFormat
from tinygrad.nn.gguf import GGUF, REFETCH

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
  """A weight in a file: its format, and its blocks [.., blocks, nbytes]."""

  format: BlockFormat
  blocks: NDArray[Any]

  @property
  def shape(self) -> tuple[int, ...]:
    *rows, blocks, _ = self.blocks.shape
    return (*rows, blocks * self.format.weights)

  def rows(self, part: slice) -> Stored:
    """Some of its rows."""
    return Stored(self.format, self.blocks[part])


class Checkpoint(Protocol):
  """`shapes` by name; `halves`: the pairs that turn are the halves of a head, whatever the family's GGUF files have."""

  @property
  def metadata(self) -> Mapping[str, Any]: ...
  @property
  def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
  @property
  def halves(self) -> bool: ...
  def get(self, key: str, kind: type[T], default: T | None = None) -> T: ...
  def check(self, ok: Any, field: str, problem: str, fix: str = REFETCH, at: int | None = None) -> None: ...
  def stored(self, name: str) -> Stored: ...
  def place(self, name: str) -> int | None:
    """Where a weight begins in its file, for errors."""


class GGUFCheckpoint:
  """A GGUF file."""

  halves = False

  def __init__(self, g: GGUF):
    self.g, self.metadata, self.get, self.check = g, g.metadata, g.get, g.check
    self.shapes = {name: t.shape for name, t in g.tensors.items()}

  def stored(self, name: str) -> Stored:
    return Stored(*self.g.blocks(name))

  def place(self, name: str) -> int | None:
    return int(self.g.info(name).offset)
