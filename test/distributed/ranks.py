"""A plugin of pytest (`-p test.distributed.ranks`) under which every process that mpiexec has started runs the same
tests on devices that they have together. The first one reports; a failure in any of them is a failure of the run."""

import os
import sys

RANK, COUNT = (int(os.environ.get(f"PMI_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
DEVICES = -(-9 // COUNT)  # of each process: the laws' largest meshes have nine
if RANK:
  sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def pytest_configure(config):
  from tinygrad import distributed

  distributed.initialize(DEVICES)
  if RANK and (reporter := config.pluginmanager.get_plugin("terminalreporter")):
    config.pluginmanager.unregister(reporter)
