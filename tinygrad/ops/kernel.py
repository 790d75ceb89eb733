"""Kernel-level ops: scalars, loops, loads and stores. Codegen lowers them; no placement or gradient applies."""

from tinygrad.dtype import dtypes
from tinygrad.ops.common import any_dtype, define_kernel_op
from tinygrad.uop import Ops, ParamArg, UOp


def check_param(u: UOp) -> None:
  if not isinstance(u.arg, ParamArg):
    raise TypeError(f"a PARAM's arg is a ParamArg, not {u.arg!r}")


def check_range(u: UOp) -> None:
  if u.dtype is not dtypes.index or u.src[0].dtype is not dtypes.index:
    raise TypeError(f"a RANGE counts in dtype index, not {u.src[0].dtype} -> {u.dtype}")


def check_pointer(u: UOp) -> None:
  if u.src[0].op not in (Ops.PARAM, Ops.PEER, Ops.SCRATCH, Ops.ACC, Ops.AFTER):
    raise TypeError(f"INDEX into {u.src[0].op.name}")
  if u.src[0].op in (Ops.PARAM, Ops.PEER) and u.dtype.scalar() not in (u.src[0].dtype.scalar(), dtypes.uint32):
    raise TypeError(f"INDEX of {u.dtype} into {u.src[0].dtype}")


def check_load(u: UOp) -> None:
  if u.src[0].op not in (Ops.INDEX, Ops.ACC) or (len(u.src) == 2 and u.src[1].dtype is not u.dtype):
    raise TypeError(f"LOAD of {u.dtype} from {[s.op.name for s in u.src]}")


def check_store(u: UOp) -> None:
  if u.src[0].op not in (Ops.INDEX, Ops.ACC) or u.dtype is not dtypes.void:
    raise TypeError(f"STORE of dtype {u.dtype} to {u.src[0].op.name}")


def check_fold(u: UOp) -> None:
  """Over ranges; or, without ranges, over the lanes of a vector."""
  lanes = len(u.src) == 1 and u.src[0].dtype.count > 1 and u.src[0].dtype.scalar() is u.dtype
  if not lanes and (u.src[0].dtype is not u.dtype or any(s.op is not Ops.RANGE for s in u.src[1:])):
    raise TypeError(f"FOLD of {u.src[0].dtype} over {[s.op.name for s in u.src[1:]]} -> {u.dtype}")


def check_one_hot(u: UOp) -> None:
  """(row, place, value): the value where the row is the place, else the identity of the reduction `arg`."""
  if [s.dtype for s in u.src] != [dtypes.index, dtypes.index, u.dtype]:
    raise TypeError(f"ONE_HOT of {[s.dtype for s in u.src]} -> {u.dtype}")


CHECKS = {
  Ops.PARAM: check_param, Ops.RANGE: check_range, Ops.INDEX: check_pointer, Ops.LOAD: check_load,
  Ops.STORE: check_store, Ops.FOLD: check_fold, Ops.ONE_HOT: check_one_hot,
}  # fmt: skip
for _op in map(Ops, range(Ops.PARAM, Ops.MMA + 1)):
  define_kernel_op(_op, dtype=CHECKS.get(_op, any_dtype))
