"""What a kernel is called with."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad.uop.ops import Ops, UOp


@dataclass(frozen=True, slots=True)
class Signature:
  """`params`: the PARAMs by slot; `variables`: the VARIABLEs by name, `_device_num` among them. Calls give values in
  these orders."""

  params: tuple[UOp, ...]
  variables: tuple[UOp, ...]


def signature(ast: UOp) -> Signature:
  nodes = ast.toposort()
  params = {u.arg.slot: u for u in nodes if u.op is Ops.PARAM}
  return Signature(
    tuple(params[k] for k in sorted(params)),
    tuple(sorted((u for u in nodes if u.op is Ops.VARIABLE), key=lambda u: u.arg)),
  )
