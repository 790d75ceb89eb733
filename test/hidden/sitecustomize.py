"""With this folder on PYTHONPATH, the packages that HIDE names cannot be imported, as if they were not installed:
`HIDE=pyopencl PYTHONPATH=test/hidden python -m pytest` is the suite on a machine without OpenCL."""

import os
import sys

sys.modules.update(dict.fromkeys(os.environ.get("HIDE", "").split()))
