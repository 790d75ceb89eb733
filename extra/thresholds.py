"""What pays, drawn anew for each program (extra/fuzz_programs.py, `--thresholds`): programs of a few elements take the
ways of large ones. They are fused and recomputed as values of many megabytes are, summed in blocks and in parts, laid
out anew and unrolled, or nothing of it; the results are the same."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

from tinygrad import Device
from tinygrad.codegen import nests, row_blocks
from tinygrad.codegen.analysis import accesses
from tinygrad.codegen.heuristics import cpu, gpu
from tinygrad.helpers import PROCESS
from tinygrad.numerics import (
  cuts,
  dots,
  idle_blocks,
  idle_loops,
  layouts,
  own_memory,
  parts,
  products,
  scatter,
  split_sums,
  streaming,
  windows,
)
from tinygrad.schedule import fuse, row_groups, row_memory, schedule, tile_and_fuse

Values = dict[str, tuple[float, ...]]
THRESHOLDS: dict[ModuleType, Values] = {
  fuse: {
    "INSTRUCTIONS_A_BYTE": (1, 64), "CHEAP_OPS": (0, 1, 32), "CHEAP_MASK_OPS": (0, 4, 200), "MANY_READS": (2, 3, 40),
    "MANY_WAYS": (1, 2, 500), "GATED_READS": (1, 4),
  },
  row_groups: {
    "LEAST_ROWS": (2, 3), "LEAST_PARALLEL": (1, 3), "SMALL": (64, 1024), "STREAMED": (1, 20, 2000), "RUN": (4, 16),
    "SHARED": (1, 100), "FEW": (64, 1 << 20), "MOST_KEPT": (64, 1024, 1 << 14), "RECOMPUTE_RATIO": (1, 2),
    "ROW_WORK": (64, 1024),
  },
  tile_and_fuse: {
    "RECOMPUTE": (64, 1024, 1 << 13), "RECOMPUTE_ON_GRID": (64, 1024), "RECOMPUTE_RATIO": (1, 2), "WIDE": (1, 20, 2000),
    "STREAMED": (1, 20, 2000), "WORKERS": (8, 32), "LOOK_BACK": (2, 8), "MOST_MEMBERS": (2, 4, 60),
  },
  row_memory: {"SLOW": (8, 100)},
  schedule: {"FAR": (1, 4)},
  row_blocks: {"LEAST": (1, 2, 4, 8), "MOST": (1, 4, 16), "BLOCK_PARTS": (64, 1024)},
  nests: {"WRITTEN_OUT": (1, 4, 16, 256)},
  idle_loops: {"CHUNK": (1, 2, 4, 16)},
  accesses: {"GATHER": (1.0, 10.0), "TURN": (0.1, 1.0, 50.0), "MAX_ROWS": (2, 3, 4), "INLINE_NODES": (1, 5, 500)},
  cpu: {
    "ACCUMULATORS": (1, 2, 4, 12), "EPILOGUE": (10, 100, 5000), "TOGETHER": (1, 16, 1024), "LONGEST": (1, 4, 40),
    "LOADS": (0.1, 2.0), "JUMP": (1, 50), "PANEL_PARTS": (1024, 1 << 13), "MOST_STAGED": (1, 2), "FAR": (2, 4, 16),
    "STAGE_WORK": (1, 64), "FAR_BLOCKS": (1, 4), "FAR_REUSE": (1, 64), "BLOCK_OUTPUTS": (1, 8), "V_FIRST": (1, 8),
  },
  gpu: {"SHARED": (1, 2, 16), "STEPS": (4, 8, 64), "STEPS_OF_ROWS": (4, 16), "FULL": (8, 16)},
  cuts: {"LONG": (2, 4, 16), "MOST": (1, 4)},
  dots: {"REUSE": (1, 4), "FEW_WORDS": (1, 32)},
  idle_blocks: {"MOST_WAYS": (1, 2)},
  layouts: {"REUSED": (1, 4, 16)},
  own_memory: {"MOST": (4, 16, 64)},
  parts: {
    "MANY_BYTES": (16, 256), "LARGE": (16, 256, 1024), "LONG": (8, 64), "ROWS": (1, 4, 64), "PARTS": (2, 4, 16),
    "PART": (2, 16, 64), "JOINED": (2, 3), "COUNTS": (2, 4),
  },
  products: {"MOST": (2, 4)},
  scatter: {"LEAST": (1, 4, 1000), "CHEAP": (0, 32)},
  split_sums: {"LEAST_ROWS": (1, 4), "LEAST": (2, 16), "LAUNCH": (16, 1 << 12)},
  streaming: {"SWEEPS": (1, 4), "LONG": (64, 128)},
  windows: {"FEW_TERMS": (1, 8, 1000)},
}  # fmt: skip
OF_TARGETS: Values = {"cache": (256, 1024, 4096, 1 << 14), "intensity": (1, 10, 1000), "few_rows": (0, 4)}


@contextlib.contextmanager
def drawn_thresholds(seed: int, device: str) -> Iterator[None]:
  """Within, some of them, few or many, have other values, by a seed; those of a target on this device and its next."""
  rng = random.Random(seed)
  share = rng.choice((0.2, 0.5, 0.9))

  def some(values: Values) -> dict[str, Any]:
    return {name: rng.choice(of_name) for name, of_name in values.items() if rng.random() < share}

  with contextlib.ExitStack() as stack:
    stack.enter_context(PROCESS.anew())
    for room, values in THRESHOLDS.items():
      if found := some(values):
        stack.enter_context(mock.patch.multiple(room, **found))
    found = some(OF_TARGETS)
    for d in (Device[f"{device}:{i}"] for i in range(2)):
      stack.enter_context(mock.patch.object(d, "target", replace(d.target, **found)))
    yield
