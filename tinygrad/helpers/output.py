"""What a command prints, for a reader who may leave."""

import contextlib
import os
import sys
from collections.abc import Iterator


def leave_output() -> None:
  """What cannot be written is not tried again when the program ends."""
  try:
    sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(text: str) -> None:
  """Prints what was asked to be told of a computation, which goes on, whether or not it is still read, as by `head`:
  characters that standard output has not, as in a file's name, become escapes."""
  try:
    print(text)
  except UnicodeEncodeError:
    print(text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding))
  except BrokenPipeError:
    leave_output()


@contextlib.contextmanager
def while_read() -> Iterator[None]:
  """A block that prints for a reader who may have seen enough, as `head` has: it ends then, and nothing is said."""
  try:
    yield
    if sys.stdout is not None:  # it may be closed
      sys.stdout.flush()
  except BrokenPipeError:
    leave_output()
