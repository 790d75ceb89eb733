"""Checkpoints of a training run, written by all of its processes and read by any other number of them.

A folder holds one folder for each step that was saved: an index (JSON: for each tensor its type, its shape, and which
box of it lies in which file) and a safetensors file for each process, with the boxes that its devices hold, each box
once. All of it is written under a temporary name, and the first process renames it when all files are there: what has
its name is whole.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad.device import HOST_DEVICE, Box, Buffer, Device, box_of, meet
from tinygrad.distributed import process_count, process_index
from tinygrad.dtype import DType, to_numpy_dtype
from tinygrad.helpers import FilePath, atomic_write, json, numpy, started
from tinygrad.mixin.arrays import readable
from tinygrad.mixin.random import Random
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.state import SAFE_DTYPES, SAFE_NAMES, StateError, safe_views
from tinygrad.runtime.transfer import at_rest, copy_blocks, host_array
from tinygrad.tensor import Tensor
from tinygrad.uop import Ops, UOp

INDEX = "index.json"
POLL = 0.02  # seconds between looks for the files of other processes
# folders of a run that did not come to its end; nothing else that is hidden is ours
LEFT = re.compile(r"\.(\d+)(\.before|\.old|\.failed)?")
Arrays = dict[str, Any]  # by name: an array


class SavedBox(NamedTuple):
  """A box of a tensor, and under which name in which file it lies."""

  file: str
  name: str
  box: Box


class SavedTensor(NamedTuple):
  """What the index says of a tensor."""

  dtype: DType
  shape: tuple[int, ...]
  parts: tuple[SavedBox, ...]


class SavedIndex(NamedTuple):
  step: int
  more: dict[str, Any]
  random: tuple[int, int]
  tensors: dict[str, SavedTensor]


class Checkpoints:
  """The checkpoints in a folder, of which `keep` stay: the one just saved, and of the others those of the greatest
  steps. Every process has one, and calls it alike."""

  def __init__(self, folder: FilePath, keep: int = 3) -> None:
    """Raises: ValueError for a number of checkpoints below one."""
    if keep < 1:
      raise ValueError(f"Checkpoints: keep={keep} would keep none\n  fix: keep=1, or more")
    self.folder, self.keep = Path(folder), keep
    self.writing: threading.Thread | None = None
    self.error: BaseException | None = None
    if process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      for left in self._left():
        if left.suffix == ".before" and not (whole := self.folder / left.stem[1:]).exists():
          os.replace(left, whole)  # the run ended between two renamings
        else:
          shutil.rmtree(left, ignore_errors=True)
    self._meet("checkpoints begin")
    atexit.register(self.wait)  # what went wrong with the last one is told

  def steps(self) -> list[int]:
    """Those that are whole, in order."""
    return sorted(int(path.parent.name) for path in self.folder.glob(f"[0-9]*/{INDEX}") if path.parent.name.isdecimal())

  def _left(self) -> list[Path]:
    return [path for path in self.folder.iterdir() if LEFT.fullmatch(path.name)]

  # ---- writing

  def save(self, step: int, tensors: Mapping[str, Tensor], more: Mapping[str, Any] | None = None) -> None:
    """Saves tensors by name, the state of the random numbers, and `more`, what JSON knows. Returns when the values are
    copied; the files are written beside what follows.

    Raises: what the writing of the checkpoint before has raised; ValueError for a step below 0; StateError for a type
    that the files have not; TypeError for `more` that JSON does not know.
    """
    self.wait()
    if not isinstance(step, int) or step < 0:
      raise ValueError(f"Checkpoints.save: step={step!r} is no number from 0 on\n  fix: the number of steps done")
    if (odd := next(((name, t) for name, t in tensors.items() if t.dtype not in SAFE_NAMES), None)) is not None:
      fix = f"cast it to one of {', '.join(d.name for d in SAFE_NAMES)}"
      raise StateError(f"Checkpoints.save: {odd[0]!r} is {odd[1].dtype}, which no file has\n  fix: {fix}")
    index: dict[str, Any] = {"step": step, "processes": process_count(), "more": dict(more or {}), "tensors": {}}
    index["random"] = [Random._seed, Random._calls]
    buffers = {name: _memory(t) for name, t in tensors.items()}
    own: Arrays = {}
    with at_rest(*buffers.values()):
      for name, b in buffers.items():
        parts = [_part(name, box, i, b) for box, i in _distinct(b).items()]
        index["tensors"][name] = {"dtype": SAFE_NAMES[b.dtype], "shape": b.shape, "parts": [p for p, _ in parts]}
        own |= {part["name"]: array for part, array in parts if array is not None}
    text = json.dumps(index).encode()
    temporary = self.folder / f".{step}"
    temporary.mkdir(exist_ok=True)
    self._meet(f"checkpoint of step {step}")
    write = functools.partial(self._write, temporary, step, text, own)
    self.writing = started(f"checkpoint {step}", write)
    if self.writing is None:
      write()

  def wait(self) -> None:
    """Until the last one is whole. Raises what went wrong."""
    if self.writing is not None:
      self.writing.join()
      self.writing = None
    if (error := self.error) is not None:
      self.error = None
      raise error

  def _write(self, temporary: Path, step: int, index: bytes, own: Arrays) -> None:
    """A process that cannot write renames the folder, by which the first one knows; that one removes what is left."""
    failed = temporary.with_name(f"{temporary.name}.failed")
    try:
      write_arrays(temporary / _file(process_index()), own)
      if process_index() == 0 and self._all_there(temporary, failed):
        with atomic_write(temporary / INDEX) as f:
          f.write(index)
        self._show(temporary, self.folder / str(step))
    except BaseException as e:  # told by the next call
      self.error = e
      with contextlib.suppress(OSError):
        os.replace(temporary, failed)
    if process_index() == 0:
      for left in (temporary, failed):
        shutil.rmtree(left, ignore_errors=True)

  def _all_there(self, temporary: Path, failed: Path) -> bool:
    """Waits for the other processes' files; False if one of these is gone, or has failed."""
    while missing := [i for i in range(process_count()) if not (temporary / _file(i)).exists()]:
      if failed.exists() or (Device.world is not None and any(Device.world.lost(i) for i in missing)):
        return False
      time.sleep(POLL)
    return True

  def _show(self, temporary: Path, final: Path) -> None:
    """Gives a checkpoint its name, and removes those that are too many."""
    _to_disk(temporary)
    if final.exists():
      os.replace(final, self.folder / f".{final.name}.before")
    os.replace(temporary, final)
    _to_disk(self.folder)
    others = [step for step in self.steps() if str(step) != final.name]  # greater ones where a run has gone back
    for old in others[: max(0, len(others) + 1 - self.keep)]:
      os.replace(self.folder / str(old), self.folder / f".{old}.old")
    for left in self._left():
      shutil.rmtree(left)

  # ---- reading

  def load(self, tensors: Mapping[str, Tensor], step: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """Gives tensors the values of a checkpoint, the last one unless `step` says which, and random numbers their state:
    (its step, `more`). None where there is no checkpoint. Each process reads only what its devices hold.

    Raises: StateError for a tensor that is not there, or of another shape or type; CheckpointError for a step that is
    not there, and for files that are damaged; OSError for one that is not there: all before anything is changed."""
    self.wait()
    there = self.steps()
    self._meet(f"checkpoints of the steps {there} are read")
    if step is None and not there:
      return None
    folder = self.folder / str(there[-1] if step is None else step)
    if not (folder / INDEX).exists():
      raise CheckpointError(str(self.folder), f"holds no step {step}, but {there}", "load() takes the last one")
    index = read_index(folder / INDEX)
    files: dict[str, Arrays] = {}
    for name, t in tensors.items():
      _check_entry(folder, name, t, index.tensors.get(name), files)
    for name, t in tensors.items():
      t.assign(_read(index.tensors[name], t, files)).realize()
    Random._seed, Random._calls = index.random
    return index.step, index.more

  def _meet(self, what: str) -> None:
    if Device.world is not None:
      Device.world.exchange(what)


def _file(process: int) -> str:
  return f"{process:05d}.safetensors"


def _memory(t: Tensor) -> Buffer:
  """The memory with a tensor's value."""
  whole = t if t.uop.op is Ops.BUFFER and t.follows else t.contiguous()
  return readable(whole.realize().uop)


def _distinct(b: Buffer) -> dict[Box, int]:
  """The boxes of a buffer, and the first device that holds each."""
  boxes = {box_of(b.device, i, b.shape): i for i in reversed(range(len(b.devices)))}
  return {box: i for box, i in boxes.items() if all(lo < hi for lo, hi in box)}


def _part(name: str, box: Box, i: int, b: Buffer) -> tuple[dict[str, Any], Any]:
  """(what the index says of a box, a copy of it if this process writes it)."""
  owner = (Device.world.owner(b.devices[i]) if Device.world is not None else None) or 0
  array = None
  if owner == process_index():
    array = numpy.array(host_array(b, i)[tuple(slice(hi - lo) for lo, hi in box)], order="C")
  key = name if not b.shape else f"{name}[{', '.join(f'{lo}:{hi}' for lo, hi in box)}]"
  return {"file": _file(owner), "name": key, "box": box}, array


def write_arrays(path: Path, arrays: Arrays) -> None:
  """A safetensors file of arrays, whole or not at all, and on the disk when this returns."""
  names = {to_numpy_dtype(d): name for name, d in SAFE_DTYPES.items()}
  header, offset = {}, 0
  for name, array in arrays.items():
    ends = [offset, offset + array.nbytes]
    header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": ends}
    offset += array.nbytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  with atomic_write(path) as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for array in arrays.values():
      f.write(memoryview(array.reshape(-1).view(numpy.uint8)))


def _to_disk(folder: Path) -> None:
  """What a folder says of its files is on the disk."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def read_index(path: Path) -> SavedIndex:
  """The index of a checkpoint. Raises: CheckpointError where it is damaged."""
  try:
    data = json.loads(path.read_bytes())
    seed, calls = map(int, data["random"])
    tensors = {name: _entry(name, entry) for name, entry in data["tensors"].items()}
    index = SavedIndex(int(data["step"]), dict(data["more"]), (seed, calls), tensors)
    if str(index.step) != path.parent.name:
      raise ValueError(f"it is of step {index.step}")
  except KeyError as e:
    raise CheckpointError(str(path), f"there is no {e}") from e
  except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as e:
    raise CheckpointError(str(path), f"is no index of a checkpoint: {e}") from e
  return index


def _entry(name: str, data: Any) -> SavedTensor:
  """Raises: ValueError where the boxes are not, together, the tensor; what reading JSON of another form raises."""
  if data["dtype"] not in SAFE_DTYPES:
    raise ValueError(f"{name!r} is of the type {data['dtype']!r}")
  shape = tuple(map(int, data["shape"]))
  parts = tuple(
    SavedBox(str(p["file"]), str(p["name"]), tuple((int(lo), int(hi)) for lo, hi in p["box"])) for p in data["parts"]
  )
  inside = all(len(p.box) == len(shape) and all(0 <= lo < hi <= n for (lo, hi), n in zip(p.box, shape)) for p in parts)
  covered = sum(math.prod(hi - lo for lo, hi in box) for box in {p.box for p in parts})
  if not inside or covered != math.prod(shape):
    raise ValueError(f"the boxes of {name!r} are not its {list(shape)} elements")
  if any(Path(p.file).name != p.file for p in parts):
    raise ValueError(f"{name!r} lies in another folder")
  return SavedTensor(SAFE_DTYPES[data["dtype"]], shape, parts)


def _check_entry(folder: Path, name: str, t: Tensor, entry: SavedTensor | None, files: dict[str, Arrays]) -> None:
  """Opens the files that hold a tensor. Raises: StateError; CheckpointError; OSError."""
  if entry is None:
    raise StateError(f"checkpoint {folder}: there is no tensor {name!r}\n  fix: load what was saved, by the same names")
  if entry[:2] != (t.dtype, t.shape):
    said = f"tensor {name!r} is {entry.dtype.name}{[*entry.shape]} there and {t.dtype.name}{[*t.shape]} here"
    raise StateError(f"checkpoint {folder}: {said}\n  fix: build the model as it was saved")
  for part in entry.parts:
    if part.file not in files:
      files[part.file] = safe_views(folder / part.file)
    array, want = files[part.file].get(part.name), tuple(hi - lo for lo, hi in part.box)
    if array is None or array.shape != want or array.dtype != to_numpy_dtype(entry.dtype):
      raise CheckpointError(str(folder / part.file), f"holds no {part.name!r} of {entry.dtype.name}{[*want]}")


def _read(entry: SavedTensor, t: Tensor, files: dict[str, Arrays]) -> Tensor:
  """A tensor at t's placement, of which this process reads what its devices hold."""
  shape = t.numpy_shape()
  whole = Buffer(t.device, shape, t.dtype).allocate()
  read: dict[Box, Buffer] = {}
  for i in (i for i, d in enumerate(whole.devices) if Device.here(d)):
    box = box_of(t.device, i, shape)
    if box not in read:
      array = numpy.empty([hi - lo for lo, hi in box], to_numpy_dtype(t.dtype))
      for part in entry.parts:
        if (both := meet(box, part.box)) is not None:
          at, ours = (tuple(slice(lo - a, hi - a) for (lo, hi), (a, _) in zip(both, b)) for b in (part.box, box))
          array[ours] = files[part.file][part.name][at]
      read[box] = Buffer(HOST_DEVICE, array.shape, t.dtype).allocate([array])
    copy_blocks(shape, {box: (read[box], 0)}, [(box, whole, i)])
  return Tensor(UOp.buffer(shape, t.dtype, t.device, whole))
