"""`python -m tinygrad.viz trace.json` makes the page of a recording (VIZ=1 VIZ_FILE=trace.json) or of PROFILE=1's."""

import argparse
import sys
from pathlib import Path

from tinygrad.viz import page


def make_page() -> None:
  parser = argparse.ArgumentParser(prog="python -m tinygrad.viz", description=__doc__)
  parser.add_argument("trace", help="what VIZ=1 VIZ_FILE=trace.json, or PROFILE=1, has written")
  parser.add_argument("-o", "--output", help="the page; by default the trace's name with .html")
  args = parser.parse_args()
  output = args.output or str(Path(args.trace).with_suffix(".html"))
  try:
    page.write_recording(page.read_recording(args.trace), output)
  except (page.TraceError, OSError) as e:
    sys.exit(f"{parser.prog}: {e}")
  print(output)


if __name__ == "__main__":
  make_page()
