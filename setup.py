"""Packaging of the distribution `tinygrad`: every subpackage, the type marker and the model file of the app."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'^__version__ = "(.+)"$', (Path(__file__).parent / "tinygrad/__init__.py").read_text(), re.M)[1]
TEST = [
  "pytest",
  "pytest-xdist",
  "hypothesis",
  "scikit-learn",
  "rich",
  "matplotlib",
  "onnx",
  "ruff",
  "mypy",
  "import-linter",
  "highspy",
  "setuptools>=77",  # the wheel test builds without isolation; 77 reads the SPDX licence field below
  "wheel",
]
SERVE = ["starlette", "uvicorn", "httptools", "uvloop; sys_platform != 'win32'", "llguidance", "prometheus_client"]
CHAT = ["prompt_toolkit"]
HUB = ["huggingface_hub"]
TEST += [*SERVE, *CHAT, *HUB, "openai", "httpx2", "playwright"]  # the clients of the server's tests
NOTEBOOKS = ["nbclient", "ipykernel"]  # which run the notebooks of docs/
DOCS = ["mkdocs-material", "mkdocstrings[python]", "mkdocs-jupyter", "ruff"]
TEST += [*NOTEBOOKS, "basedpyright"]
MPI = ["mpi4py", "mpich"]
TEST += MPI
ON_X86 = "sys_platform == 'linux' and platform_machine == 'x86_64'"
OPENCL_DRIVERS = ["intel-opencl-rt", "intel-cmplr-lib-rt", "pocl-binary-distribution"]  # of the processor
OPENCL = ["pyopencl", *(f"{name}; {ON_X86}" for name in OPENCL_DRIVERS)]
CUDA = ["cuda-bindings", "nvidia-cuda-nvrtc"]
NCCL = ["nccl4py", "nvidia-nccl-cu13"]
SASS = ["nvidia-cuda-nvdisasm"]
METAL = ["pyobjc-framework-Metal; sys_platform == 'darwin'"]
ORACLE = ["torch==2.13.0", "transformers", "jax"]

setup(
  name="tinygrad",
  version=VERSION,
  description="A fork of tinygrad in which the device of a tensor carries its sharding",
  long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="MIT",
  license_files=["LICENSE"],
  python_requires=">=3.11",
  packages=find_packages(include=["tinygrad", "tinygrad.*"]),
  package_data={
    "tinygrad": ["py.typed"],
    "tinygrad.runtime": ["*.ll"],
    "tinygrad.apps": ["*.gguf"],
    "tinygrad.apps.server": ["*.html"],
    "tinygrad.viz": ["bundle/*"],
  },
  install_requires=["numpy", "llvmlite>=0.45", "ml-dtypes", "tokenizers", "jinja2", "tqdm", "gguf", "safetensors"],
  extras_require={
    "onnx": ["onnx>=1.19"],
    "auto": ["highspy"],
    "opencl": OPENCL,
    "cuda": CUDA,
    "metal": METAL,
    "mpi": MPI,
    "nccl": NCCL,
    "serve": SERVE,
    "chat": CHAT,
    "hub": HUB,
    "docs": DOCS + NOTEBOOKS,
    "test": TEST + OPENCL + CUDA + SASS,
    "oracle": ORACLE,
  },
  classifiers=["Programming Language :: Python :: 3", "Operating System :: POSIX :: Linux"],
)
