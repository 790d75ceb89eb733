"""Object files of this processor, loaded without a compiler: what LLVM writes for one kernel on Linux is a text, a few
constants, and the places in it that hold an address (System V ABI, ELF-64 object files; x86-64 psABI, relocations)."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
from typing import Any, NamedTuple

from tinygrad.helpers import round_up

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_KIND = b"\x7fELF\x02\x01"  # 64 bits, the least significant byte first
_RELOCATABLE, _X86_64 = 1, 62
_SYMTAB, _RELA, _NOBITS, _REL = 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
# of a relocation: the format of what is written, and whether it is a distance from there
_PLACES = {1: ("<Q", False), 2: ("<i", True), 4: ("<i", True), 24: ("<q", True)}


class Section(NamedTuple):
  name: int
  kind: int
  flags: int
  address: int
  offset: int
  size: int
  link: int
  info: int
  align: int
  each: int


@functools.cache
def _here() -> bool:
  return platform.machine() == "x86_64" and hasattr(mmap, "MAP_ANONYMOUS")


def load_object(data: bytes, name: str) -> tuple[int, Any] | None:
  """The address of function `name` of an object file, and what keeps it in memory; None for what is not such a file, or
  asks for more than is done here."""
  try:
    return _load(data, name) if _here() else None
  except (struct.error, ValueError, IndexError, OverflowError, OSError, AttributeError):  # cut off, not what it says
    return None


def _load(data: bytes, name: str) -> tuple[int, Any] | None:
  ident, kind, machine, *_, where, _, _, _, _, each, count, _ = _HEADER.unpack_from(data)
  if not ident.startswith(_KIND) or (kind, machine, each) != (_RELOCATABLE, _X86_64, _SECTION.size):
    return None
  sections = [Section(*_SECTION.unpack_from(data, where + i * each)) for i in range(count)]
  if any(s.kind == _REL or (s.flags & _WRITE and s.size) for s in sections):
    return None
  at, size = dict[int, int](), 0
  for i, s in enumerate(sections):
    if s.flags & _ALLOC:
      at[i] = round_up(size, max(s.align, 1))
      size = at[i] + s.size
  memory = mmap.mmap(-1, max(round_up(size, mmap.PAGESIZE), mmap.PAGESIZE))
  base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
  for i, offset in at.items():
    s = sections[i]
    if s.kind != _NOBITS:
      memory[offset : offset + s.size] = data[s.offset : s.offset + s.size]
  found = None
  for s in sections:
    if s.kind == _SYMTAB:
      symbols, found = _addresses(data, sections, s, {i: base + offset for i, offset in at.items()}, name)
  for s in sections:
    if s.kind == _RELA and s.info in at:
      for offset, info, addend in _RELOCATION.iter_unpack(data[s.offset : s.offset + s.size]):
        place = at[s.info] + offset
        form, relative = _PLACES.get(info & 0xFFFFFFFF, ("", False))
        target = symbols[info >> 32]
        if not form or target is None:
          return None
        struct.pack_into(form, memory, place, target + addend - (base + place if relative else 0))
  if found is None or _protect(base, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
    return None
  return found, memory


def _addresses(
  data: bytes, sections: list[Section], table: Section, at: dict[int, int], name: str
) -> tuple[list[int | None], int | None]:
  """Where each symbol is (None: nowhere that is loaded), and the one of this name."""
  names, found = sections[table.link], None
  out: list[int | None] = []
  for text, _, _, section, value, _ in _SYMBOL.iter_unpack(data[table.offset : table.offset + table.size]):
    start = names.offset + text
    spelled = data[start : data.index(b"\0", start)].decode()
    if section == 0 and spelled:
      out.append(ctypes.cast(getattr(_process(), spelled), ctypes.c_void_p).value)
    else:
      out.append(at[section] + value if section in at else None)
      if spelled == name:
        found = out[-1]
  return out, found


@functools.cache
def _process() -> Any:
  return ctypes.CDLL(None)


def _protect(address: int, size: int, rights: int) -> int:
  return int(_process().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), rights))
