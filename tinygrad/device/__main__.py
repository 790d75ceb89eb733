"""`python -m tinygrad.device`: which kinds of device work here, and what brings those that do not.

A file of its own: the package imports `tinygrad.device`, whose text would run a second time as `__main__`.
"""

from tinygrad.device import print_kinds
from tinygrad.helpers import while_read

if __name__ == "__main__":
  with while_read():
    print_kinds()
