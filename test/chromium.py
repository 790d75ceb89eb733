"""A Chromium for the tests of pages. A test module that imports this is skipped where there is none."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra test)")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
  pytest.skip("needs a Chromium on this machine (Debian: apt-get install chromium)", allow_module_level=True)

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
  with playwright.sync_playwright() as p:
    browser = p.chromium.launch(executable_path=BROWSER, args=QUIET)
    yield browser
    browser.close()
