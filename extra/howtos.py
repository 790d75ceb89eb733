"""Tries each how-to as a new user does: from its page alone, in a virtual environment and a folder of its own, with an
empty cache.

python -m extra.howtos [PAGE ...]     pages by name (serve, fsdp, …); without one all, and the first page of the site

A line `pip install -e …` runs in the clone, all others in the folder; what a page prints is compared with what it says.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {page.stem: page for page in sorted((ROOT / "docs/howto").glob("*.md")) if page.stem != "index"}
PAGES |= {"start": ROOT / "docs/index.md", "hosts": ROOT / "docs/hosts.md"}
INSTALL = re.compile(r"^pip install .*$", re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
  """Nothing of the one that runs this but where programs and registries are."""
  kept = {name: x for name, x in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP", "no_", "NO_"))}
  path = os.pathsep.join((str(folder / "venv/bin"), "/usr/local/bin", "/usr/bin", "/bin"))
  return kept | {"PATH": path, "HOME": str(folder), "CACHEDIR": str(folder / "cache"), "LANG": "C.UTF-8"}


def installed(page: Path, folder: Path) -> float:
  """Makes the environment by the page's own lines; the seconds that it took."""
  lines, begun = INSTALL.findall(page.read_text(encoding="utf-8")), time.perf_counter()
  if not lines:
    raise SystemExit(f"{page}: does not say what to install")
  subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
  for line in lines:
    cwd = ROOT if line.startswith("pip install -e") else folder
    subprocess.run(["bash", "-c", line.partition("#")[0] + " -q"], check=True, cwd=cwd, env=environment(folder))
  return time.perf_counter() - begun


def tried(page: Path, folder: Path) -> tuple[bool, str, float]:
  """(whether it prints what it says, what it prints else, seconds)."""
  (folder / "work").mkdir()
  command, begun = [folder / "venv/bin/python", ROOT / "test/page.py", page], time.perf_counter()
  run = subprocess.run(command, capture_output=True, text=True, cwd=folder / "work", env=environment(folder))
  return run.returncode == 0, run.stdout + run.stderr, time.perf_counter() - begun


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("pages", nargs="*", choices=[*PAGES, []], metavar="PAGE", help=", ".join(PAGES))
  names, failed = parser.parse_args().pages or list(PAGES), []
  for name in names:
    with tempfile.TemporaryDirectory() as place:
      setup = installed(PAGES[name], Path(place))
      well, said, seconds = tried(PAGES[name], Path(place))
    print(f"{name:16} {'well' if well else 'FAILED':6}  installed in {setup:.0f} s, ran {seconds:.0f} s", flush=True)
    if not well:
      print(said)
      failed.append(name)
  sys.exit(bool(failed))


if __name__ == "__main__":
  main()
