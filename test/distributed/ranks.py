"""A plugin of pytest under which every process that mpiexec has started runs the same tests, on devices that they have
together: `PYTHONPATH=test/distributed mpiexec -n 2 python -m pytest -p ranks test/laws`. The first one reports; a
failure in any of them is a failure of the run."""

import os
import sys

RANK, COUNT = (int(os.environ.get(f"PMI_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
DEVICES = -(-9 // COUNT)  # of each process: the laws' largest meshes have nine
if RANK:
  sys.stdout = open(os.devnull, "w")


def pytest_configure(config):
  from tinygrad import distributed

  distributed.initialize(DEVICES)
  if RANK and (reporter := config.pluginmanager.get_plugin("terminalreporter")):
    config.pluginmanager.unregister(reporter)


def pytest_runtest_logreport(report):
  if RANK and report.failed:
    print(f"process {RANK}: {report.nodeid}\n{report.longreprtext}", file=sys.stderr)
