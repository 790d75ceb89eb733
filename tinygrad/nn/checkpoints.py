"""Checkpoints of a training run, written by all of its processes and read by any other number of them.

A folder holds one folder for each step that was saved: an index (JSON: for each tensor its type, its shape, and which
box of it lies in which file) and a safetensors file for each process, with the boxes that its devices hold, each box
once. All of it is written under a temporary name, and the first process renames it when all files are there: what has
its name is whole.
"""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinygrad.device import HOST_DEVICE, Box, Buffer, Device, box_of, meet
from tinygrad.distributed import process_count, process_index
from tinygrad.dtype import to_numpy_dtype
from tinygrad.engine.realize import readable
from tinygrad.helpers import atomic_write, json, numpy
from tinygrad.mixin.random import Random
from tinygrad.nn.files import CheckpointError, FilePath
from tinygrad.nn.state import SAFE_DTYPES, SAFE_NAMES, StateError, safe_views
from tinygrad.runtime.transfer import at_rest, copy_blocks, host_array
from tinygrad.tensor import Tensor
from tinygrad.uop import Ops, UOp

INDEX = "index.json"
POLL = 0.02  # seconds between looks for the files of other processes
Arrays = dict[str, Any]  # by name: an array


class Checkpoints:
  """The checkpoints in a folder, of which the last `keep` stay. Every process has one, and calls it alike."""

  def __init__(self, folder: FilePath, keep: int = 3) -> None:
    """Raises: ValueError for a number of checkpoints below one."""
    if keep < 1:
      raise ValueError(f"Checkpoints: keep={keep} would keep none\n  fix: keep=1, or more")
    self.folder, self.keep = Path(folder), keep
    self.writing: threading.Thread | None = None
    self.error: BaseException | None = None
    if process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      for left in self.folder.glob(".*"):  # by a run that did not come to its end
        shutil.rmtree(left, ignore_errors=True)
    self._meet("checkpoints begin")
    atexit.register(self.wait)  # what went wrong with the last one is told

  def steps(self) -> list[int]:
    """Those that are whole, in order."""
    return sorted(int(path.parent.name) for path in self.folder.glob(f"[0-9]*/{INDEX}"))

  # ---- writing

  def save(self, step: int, tensors: Mapping[str, Tensor], more: Mapping[str, Any] | None = None) -> None:
    """Saves tensors by name, the state of the random numbers, and `more`, what JSON knows. Returns when the values are
    copied; the files are written beside what follows. Raises: what the writing of the checkpoint before has raised."""
    self.wait()
    index: dict[str, Any] = {"step": step, "processes": process_count(), "more": dict(more or {}), "tensors": {}}
    index["random"] = [Random._seed, Random._calls]
    buffers = {name: _memory(t) for name, t in tensors.items()}
    own: Arrays = {}
    with at_rest(*buffers.values()):
      for name, b in buffers.items():
        parts = [_part(name, box, i, b) for box, i in _distinct(b).items()]
        index["tensors"][name] = {"dtype": SAFE_NAMES[b.dtype], "shape": b.shape, "parts": [p for p, _ in parts]}
        own |= {part["name"]: array for part, array in parts if array is not None}
    temporary = self.folder / f".{step}"
    temporary.mkdir(exist_ok=True)
    self._meet(f"checkpoint of step {step}")
    self.writing = threading.Thread(target=self._write, args=(temporary, step, index, own), name=f"checkpoint {step}")
    self.writing.start()

  def wait(self) -> None:
    """Until the last one is whole. Raises what went wrong."""
    if self.writing is not None:
      self.writing.join()
      self.writing = None
    if (error := self.error) is not None:
      self.error = None
      raise error

  def _write(self, temporary: Path, step: int, index: dict[str, Any], own: Arrays) -> None:
    try:
      write_arrays(temporary / _file(process_index()), own)
      if process_index() == 0 and self._all_there(temporary):
        with atomic_write(temporary / INDEX) as f:
          f.write(json.dumps(index).encode())
        self._show(temporary, self.folder / str(step))
    except BaseException as e:  # told by the next call
      self.error = e

  def _all_there(self, temporary: Path) -> bool:
    """Waits for the other processes' files; False if one of these is gone."""
    while missing := [i for i in range(process_count()) if not (temporary / _file(i)).exists()]:
      if Device.world is not None and any(Device.world.lost(i) for i in missing):
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
    for old in self.steps()[: -self.keep]:
      os.replace(self.folder / str(old), self.folder / f".{old}.old")
    for left in self.folder.glob(".*.*"):
      shutil.rmtree(left)

  # ---- reading

  def load(self, tensors: Mapping[str, Tensor], step: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """Gives tensors the values of a checkpoint, the last one unless `step` says which, and random numbers their state:
    (its step, `more`). None where there is no checkpoint. Each process reads only what its devices hold.

    Raises: StateError for a tensor that is not there, or of another shape or type, before anything is changed;
    CheckpointError for a step that is not there."""
    self.wait()
    there = self.steps()
    self._meet(f"checkpoints of the steps {there} are read")
    if step is None and not there:
      return None
    folder = self.folder / str(there[-1] if step is None else step)
    if not (folder / INDEX).exists():
      raise CheckpointError(str(self.folder), f"holds no step {step}, but {there}", "load() takes the last one")
    index: dict[str, Any] = json.loads((folder / INDEX).read_bytes())
    for name, t in tensors.items():
      _check_entry(folder, name, t, index["tensors"].get(name))
    files: dict[str, Arrays] = {}
    for name, t in tensors.items():
      t.assign(_read(folder, index["tensors"][name], t, files)).realize()
    Random._seed, Random._calls = index["random"]
    return int(index["step"]), index["more"]

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
    f.flush()
    os.fsync(f.fileno())


def _to_disk(folder: Path) -> None:
  """What a folder says of its files is on the disk."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def _check_entry(folder: Path, name: str, t: Tensor, entry: Any) -> None:
  """Raises: StateError."""
  if entry is None:
    raise StateError(f"checkpoint {folder}: there is no tensor {name!r}\n  fix: load what was saved, by the same names")
  have, want = (SAFE_DTYPES[entry["dtype"]], tuple(entry["shape"])), (t.dtype, t.shape)
  if have != want:
    said = f"tensor {name!r} is {have[0].name}{[*have[1]]} there and {t.dtype.name}{[*t.shape]} here"
    raise StateError(f"checkpoint {folder}: {said}\n  fix: build the model as it was saved")


def _read(folder: Path, entry: Any, t: Tensor, files: dict[str, Arrays]) -> Tensor:
  """A tensor at t's placement, of which this process reads what its devices hold."""
  shape = t.numpy_shape()
  whole = Buffer(t.device, shape, t.dtype).allocate()
  read: dict[Box, Buffer] = {}
  for i in (i for i, d in enumerate(whole.devices) if Device.here(d)):
    box = box_of(t.device, i, shape)
    if box not in read:
      array = numpy.empty([hi - lo for lo, hi in box], to_numpy_dtype(t.dtype))
      for part in entry["parts"]:
        there = tuple((lo, hi) for lo, hi in part["box"])
        if (both := meet(box, there)) is not None:
          if part["file"] not in files:
            files[part["file"]] = safe_views(folder / part["file"])
          at, ours = (tuple(slice(lo - a, hi - a) for (lo, hi), (a, _) in zip(both, b)) for b in (there, box))
          array[ours] = files[part["file"]][part["name"]][at]
      read[box] = Buffer(HOST_DEVICE, array.shape, t.dtype).allocate([array])
    copy_blocks(shape, {box: (read[box], 0)}, [(box, whole, i)])
  return Tensor(UOp.buffer(shape, t.dtype, t.device, whole))
