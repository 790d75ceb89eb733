"""Small things that every stage uses, a file a noun; programs import them from here."""

from tinygrad.helpers.busy_times import BusyTimes
from tinygrad.helpers.collector import uncollected
from tinygrad.helpers.counters import GlobalCounters
from tinygrad.helpers.download import cache_dir, fetch
from tinygrad.helpers.files import FilePath, atomic_write, file_size, home_folder, stamp
from tinygrad.helpers.formatting import PACKAGE, colored, is_passed, size_to_str, source_line, user_frame, user_line
from tinygrad.helpers.holders import Holder, living
from tinygrad.helpers.html import html_block, html_cell, html_rows, html_table, hue
from tinygrad.helpers.interrupts import interruptible, uninterrupted
from tinygrad.helpers.lazy import LazyModule, blake2b, difflib, hashlib, json, numpy
from tinygrad.helpers.machine import CI, OSX, WIN, cores, processor_model, processor_traits
from tinygrad.helpers.members import Members
from tinygrad.helpers.memory_log import MEMORY
from tinygrad.helpers.output import leave_output, say, while_read
from tinygrad.helpers.process import KEPT_KERNELS, PROCESS
from tinygrad.helpers.progress import tqdm, trange
from tinygrad.helpers.remade import Remade
from tinygrad.helpers.scopes import UserScope, scope_at
from tinygrad.helpers.sequences import (
  all_int,
  argfix,
  argsort,
  ceildiv,
  children_of,
  dedup,
  efficiency,
  exact,
  flatten,
  get_child,
  make_tuple,
  partition,
  power_of_two,
  prod,
  round_up,
  walk,
)
from tinygrad.helpers.settings import (
  ALLOW_TF32,
  BEAM,
  BEAM_SECONDS,
  CHECK_NAN,
  CPU_THREADS,
  DEBUG,
  DEFAULT_FLOAT,
  DEFAULT_INT,
  DEFER,
  DEV,
  JIT,
  KERNEL_SCHEDULES,
  MIXED,
  NO_COLOR,
  NO_GRAD,
  NOOPT,
  PLAN_CACHE,
  PROFILE,
  PROFILE_FILE,
  QUICK_CODE,
  REDUCE_DTYPE,
  RESHARD,
  SIM,
  SPEC,
  STAGES,
  STRATEGY,
  TILE_AND_FUSE,
  TRAINING,
  VIZ,
  VIZ_FILE,
  Context,
  ContextVar,
  Setting,
  Settings,
  getenv,
  settings_from,
  watched,
)
from tinygrad.helpers.threads import OfThread, ThreadList, at_fork, in_turn, started
from tinygrad.helpers.tracing import (
  MOST_EVENTS,
  Event,
  Profile,
  Profiling,
  Timing,
  events_since,
  note,
  profile_marker,
  span,
  write_trace,
)

globals().update(ContextVar.all)  # those that are accepted only, too
