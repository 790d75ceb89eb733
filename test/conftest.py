"""Settings that hold for every test: hypothesis draws the same examples on every machine and in every run."""

import os

from hypothesis import HealthCheck, settings

# derandomize: a failure seen once is seen again, by anybody. No deadline: a first example pays for compilation.
settings.register_profile(
  "derandomized",
  derandomize=True,
  deadline=None,
  print_blob=True,
  suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("derandomized")

# PoCL makes OpenCL devices of the processor's cores, as many as it is told to: the laws' largest meshes have nine.
os.environ.setdefault("POCL_DEVICES", " ".join(["pthread"] * 9))
