"""Python's cyclic garbage collector, kept out of where much is made and nothing of it is garbage that only it finds."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Without collections within, or in the function that it decorates; they go on after it if they did before."""
  collects = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if collects:
      gc.enable()
