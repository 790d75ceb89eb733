"""What methods of PyTorch and NumPy are called that have no namesake here: an AttributeError names it."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

# x the tensor, y, z others; dim, n, q, value, dtype, index, mask as those methods take them; loss is computed of x.
# test/tensor/test_foreign_names.py runs each line beside NumPy or PyTorch.
FOREIGN_NAMES = {
  "absolute": "x.abs()",
  "adaptive_avg_pool2d": "x.avg_pool2d((x.shape[-2] // n, x.shape[-1] // n))  # where n divides both",
  "addcdiv": "x + value * y / z",
  "addcmul": "x + value * y * z",
  "addmm": "x + y @ z",
  "addmv": "x + y @ z",
  "addr": "x + y.reshape(-1, 1) * z.reshape(1, -1)",
  "adjoint": "x.transpose(-2, -1)",
  "affine_grid": "Tensor.stack(*Tensor.meshgrid((Tensor.arange(n) * 2 + 1) / n - 1, (Tensor.arange(n) * 2 + 1) / n -"
  ' 1, indexing="xy"), Tensor.ones(n, n), dim=-1) @ x.transpose(1, 2).unsqueeze(1)  # (n, n) places',
  "amax": "x.max(dim)",
  "amin": "x.min(dim)",
  "aminmax": "(x.min(), x.max())",
  "arccos": "x.acos()",
  "arccosh": "x.acosh()",
  "arcsin": "x.asin()",
  "arcsinh": "x.asinh()",
  "arctan": "x.atan()",
  "arctan2": "(x / y).atan() + (y < 0).where(x.full_like(math.pi), 0).copysign(x)  # nan of two zeros",
  "arctanh": "x.atanh()",
  "argwhere": "x.nonzero()",
  "array_split": "x.split([x.shape[dim] // n + (i < x.shape[dim] % n) for i in range(n)], dim)",
  "astype": "x.cast(dtype)",
  "atan2": "(x / y).atan() + (y < 0).where(x.full_like(math.pi), 0).copysign(x)  # nan of two zeros",
  "avg_pool1d": "x.avg_pool2d((n,))",
  "avg_pool3d": "x.avg_pool2d((n, n, n))",
  "baddbmm": "x + y @ z",
  "bernoulli": "(x.rand_like() < x).cast(x.dtype)",
  "bernoulli_": "x.assign((x.rand_like() < 0.5).cast(x.dtype))",
  "binary_cross_entropy": "x.binary_crossentropy(y)",
  "binary_cross_entropy_with_logits": "x.binary_crossentropy_logits(y)",
  "bincount": "index.one_hot(n).sum(0)",
  "bitwise_left_shift": "x << y",
  "bitwise_right_shift": "x >> y",
  "block_until_ready": "x.numpy()  # what is read is waited for; realize() starts it",
  "bmm": "x @ y",
  "broadcast_to": "x.expand((2, 3))",
  "bucketize": "(x.unsqueeze(-1) > edges).sum(-1)",
  "byte": "x.cast(dtypes.uint8)",
  "cdist": "(x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1).sqrt()",
  "char": "x.cast(dtypes.int8)",
  "clamp_max": "x.minimum(value)",
  "clamp_min": "x.maximum(value)",
  "conj": "x  # there are no complex numbers",
  "conv1d": "x.conv2d(y)",
  "conv3d": "x.conv2d(y)",
  "copy": "x.clone()",
  "copy_": "x.assign(y)",
  "corrcoef": "(d := (d := x - x.mean(1, keepdim=True)) / d.square().sum(1, keepdim=True).sqrt()) @ d.T",
  "cosine_similarity": "(x.normalize(dim=dim) * y.normalize(dim=dim)).sum(dim)",
  "count_nonzero": "(x != 0).sum(dim)",
  "cov": "(d := x - x.mean(1, keepdim=True)) @ d.T / (x.shape[1] - 1)",
  "cpu": 'x.to("CPU")',
  "cross": "x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)",
  "cuda": 'x.to("CUDA")',
  "deg2rad": "x * (math.pi / 180)",
  "diag_embed": "x.unsqueeze(-1) * Tensor.eye(x.shape[-1])",
  "diagflat": "x.flatten().diag()",
  "diagonal_scatter": "Tensor.eye(n, dtype=dtypes.bool).where(y, x)  # of (n, n)",
  "diff": "x[:, 1:] - x[:, :-1]",
  "dim": "x.ndim",
  "dist": "(x - y).square().sum().sqrt()",
  "divide": "x / y",
  "dsplit": "x.chunk(n, 2)",
  "embedding": "x[index]",
  "equal": "(x == y).all()",
  "erfc": "1 - x.erf()  # digits are lost where x is beyond 2",
  "expand_as": "x.expand(y.shape)",
  "expm1": "(u := x.exp()).eq(1).where(x, (u == 0).where(-1, u.isinf().where(u, (u - 1) * x / u.log())))",
  "exponential_": "x.assign(-(1 - x.rand_like()).log())",
  "fft": "numpy.fft.fft(x.numpy())  # an array of complex numbers, which no Tensor holds",
  "fill": "x.assign(x.full_like(value))",
  "fill_": "x.assign(x.full_like(value))",
  "fill_diagonal_": "x.assign(Tensor.eye(n, dtype=dtypes.bool).where(value, x))  # of (n, n)",
  "fix": "x.trunc()",
  "fliplr": "x.flip(1)",
  "flipud": "x.flip(0)",
  "float_power": "x.double() ** y.double()",
  "floor_divide": "x // y",
  "fmax": "x.isnan().where(y, y.isnan().where(x, x.maximum(y)))",
  "fmin": "x.isnan().where(y, y.isnan().where(x, x.minimum(y)))",
  "frac": "x - x.trunc()",
  "ger": "x.reshape(-1, 1) * y.reshape(1, -1)",
  "get_device": "x.device",
  "glu": "(parts := x.chunk(2, dim))[0] * parts[1].sigmoid()",
  "grad_fn": "x.uop  # the node of the graph that it is; x.uop.src are what that is computed of",
  "greater": "x > y",
  "greater_equal": "x >= y",
  "gumbel_softmax": "(x - (-x.rand_like().log()).log()).softmax(-1)",
  "H": "x.T",
  "hardshrink": "(x.abs() > value).where(x, 0)",
  "heaviside": "(x == 0).where(y, (x > 0).cast(x.dtype))",
  "hsplit": "x.chunk(n, 1)",
  "huber_loss": "((d := (x - y).abs()) < 1).where(d.square() / 2, d - 0.5).mean()",
  "hypot": "(x.square() + y.square()).sqrt()",
  "imag": "x.zeros_like()  # there are no complex numbers",
  "index_add": 'x.scatter_reduce(dim, index.unsqueeze(0).expand(y.shape), y, "sum")  # index along the last dim',
  "index_copy": "x.scatter(dim, index.unsqueeze(0).expand(y.shape), y)  # index along the last dim",
  "index_fill": "x.scatter(dim, index.unsqueeze(0).expand((x.shape[0], len(index))), value)  # index along the last"
  " dim",
  "index_select": "x[:, index]",
  "indices": "x.argmax(dim)  # max, sort and others give plain tensors or tuples",
  "inner": "x @ y.T",
  "is_complex": "False  # there are no complex numbers",
  "is_contiguous": "True  # a tensor has no strides: its elements are in one order",
  "is_cpu": "x.device",
  "is_cuda": "x.device",
  "is_leaf": "x.requires_grad  # backward fills .grad of all tensors for which it is True",
  "is_nonzero": "bool(x.item())",
  "is_signed": "not dtypes.is_unsigned(x.dtype)",
  "is_sparse": "False  # all tensors are dense",
  "isin": "(x.unsqueeze(-1) == y.flatten()).any(-1)",
  "isneginf": "x == -math.inf",
  "isposinf": "x == math.inf",
  "itemsize": "x.element_size()",
  "kl_div": "(y == 0).where(0, y * (y.log() - x)).mean()  # reduction='batchmean': .sum() / x.shape[0]",
  "kron": "(x[:, None, :, None] * y[None, :, None, :]).reshape(x.shape[0] * y.shape[0], -1)",
  "kthvalue": "x.sort(dim)[0][:, n - 1]",
  "l1_loss": "(x - y).abs().mean()",
  "layer_norm": "x.layernorm()",
  "ldexp": "x * 2**y",
  "less": "x < y",
  "less_equal": "x <= y",
  "lgamma": "Tensor([math.lgamma(v) for v in x.flatten().tolist()]).reshape(x.shape)  # in Python: no gradient",
  "log1p": "(u := 1 + x).eq(1).where(x, u.isinf().where(u, u.log() * x / (u - 1)))",
  "log_normal_": "x.assign(x.randn_like().exp())",
  "logaddexp2": "(x * math.log(2)).logaddexp(y * math.log(2)) / math.log(2)",
  "logical_and": "(x != 0) & (y != 0)",
  "logical_or": "(x != 0) | (y != 0)",
  "logical_xor": "(x != 0) ^ (y != 0)",
  "logit": "(x / (1 - x)).log()",
  "masked_scatter": "mask.where(y.flatten()[(mask.flatten().cumsum(0) - 1).maximum(0)].reshape(x.shape), x)",
  "matrix_power": "x @ x  # as often as there are factors",
  "max_pool1d": "x.max_pool2d((n,))",
  "max_pool3d": "x.max_pool2d((n, n, n))",
  "median": "x.sort(dim)[0][:, (x.shape[dim] - 1) // 2]",
  "mH": "x.transpose(-2, -1)",
  "mm": "x @ y",
  "mode": "(s := x.sort(-1)[0]).gather(-1, (s.unsqueeze(-1) == s.unsqueeze(-2)).sum(-1).argmax(-1, keepdim=True))"
  ".squeeze(-1)  # of the last dim: the least of those that are there most often",
  "moveaxis": "x.permute(1, 0)",
  "movedim": "x.permute(1, 0)",
  "mse_loss": "(x - y).square().mean()",
  "msort": "x.sort(0)[0]",
  "mT": "x.transpose(-2, -1)",
  "multiply": "x * y",
  "mv": "x @ y",
  "nan_to_num": "x.isnan().where(0, x.clamp(-3.4028234663852886e38, 3.4028234663852886e38))  # float32's largest",
  "nanmean": "x.isnan().where(0, x).sum(dim) / x.isnan().logical_not().sum(dim)",
  "nanmedian": "(s := x.isnan().where(math.inf, x).sort(dim)[0]).gather(dim, ((x == x).sum(dim, keepdim=True) - 1) //"
  " 2).squeeze(dim)",
  "nansum": "x.isnan().where(0, x).sum(dim)",
  "narrow": "x[:, 1:3]",
  "ndimension": "x.ndim",
  "negative": "-x",
  "nelement": "x.numel()",
  "new_empty": "Tensor.empty(2, 3, dtype=x.dtype, device=x.device)",
  "new_full": "Tensor.full((2, 3), value, dtype=x.dtype, device=x.device)",
  "new_ones": "Tensor.ones(2, 3, dtype=x.dtype, device=x.device)",
  "new_tensor": "Tensor([1, 2], dtype=x.dtype, device=x.device)",
  "new_zeros": "Tensor.zeros(2, 3, dtype=x.dtype, device=x.device)",
  "norm": "x.square().sum(dim).sqrt()  # without dim of all elements",
  "normal_": "x.assign(x.randn_like())",
  "not_equal": "x != y",
  "outer": "x.reshape(-1, 1) * y.reshape(1, -1)",
  "pairwise_distance": "(x - y + 1e-6).square().sum(-1).sqrt()",
  "pin_memory": "x  # copies to devices take the host's memory as it is",
  "pixel_shuffle": 'x.rearrange("b (c r s) h w -> b c (h r) (w s)", r=n, s=n)',
  "pixel_unshuffle": 'x.rearrange("b c (h r) (w s) -> b (c r s) h w", r=n, s=n)',
  "positive": "x",
  "prelu": "(x > 0).where(x, value * x)",
  "ptp": "x.max(dim) - x.min(dim)",
  "put": "x.flatten().scatter(0, index, y.flatten()).reshape(x.shape)",
  "quantile": "(s := x.flatten().sort()[0])[int(at := q * (len(s) - 1))].lerp(s[int(-(-at // 1))], at % 1)",
  "rad2deg": "x * (180 / math.pi)",
  "ravel": "x.flatten()",
  "real": "x  # there are no complex numbers",
  "register_hook": "loss.gradient(x)[0]  # the gradient, to compute with; custom_vjp gives a function a rule of its"
  " own",
  "remainder": "x % y",
  "renorm": "x * (value / x.square().sum(0, keepdim=True).sqrt()).minimum(1)  # columns whose norm is above value",
  "reshape_as": "x.reshape(y.shape)",
  "retain_grad": "x.requires_grad_()",
  "rfft": "numpy.fft.rfft(x.numpy())  # an array of complex numbers, which no Tensor holds",
  "rms_norm": "x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()",
  "rot90": "x.transpose(0, 1).flip(0)",
  "scatter_": "x.assign(x.scatter(dim, index, y))",
  "scatter_add": 'x.scatter_reduce(dim, index, y, "sum")',
  "searchsorted": "(y.unsqueeze(-1) > x).sum(-1)",
  "select": "x[:, n]",
  "select_scatter": "(Tensor.arange(x.shape[-1]) == n).where(y.unsqueeze(-1), x)  # along the last dim",
  "sgn": "x.sign()",
  "signbit": "x.full_like(1).copysign(x) < 0",
  "sinc": "(x == 0).where(1, (math.pi * x).sin() / (math.pi * x))",
  "slice_scatter": "x[:, :n].cat(y, x[:, n + y.shape[1] :], dim=1)",
  "smooth_l1_loss": "((d := (x - y).abs()) < 1).where(d.square() / 2, d - 0.5).mean()",
  "softshrink": "x.sign() * (x.abs() - value).relu()",
  "split_with_sizes": "x.split((1, 2), dim)",
  "stride": "x.numpy().strides  # in bytes, of an array: a tensor has none",
  "subtract": "x - y",
  "swapaxes": "x.transpose(0, 1)",
  "swapdims": "x.transpose(0, 1)",
  "t": "x.T",
  "take": "x.flatten()[index]",
  "take_along_axis": "x.gather(dim, index)",
  "take_along_dim": "x.gather(dim, index)",
  "tanhshrink": "x - x.tanh()",
  "tensor_split": "x.split([x.shape[dim] // n + (i < x.shape[dim] % n) for i in range(n)], dim)",
  "tensordot": 'Tensor.einsum("ij,kj->ik", x, y)  # one letter for each dim',
  "threshold": "(x > value).where(x, 0)",
  "tile": "x.repeat(2, 1)",
  "to_dense": "x",
  "trace": "x.diagonal().sum()",
  "trapezoid": "(x[:, 1:] + x[:, :-1]).sum(1) / 2",
  "trapz": "(x[:, 1:] + x[:, :-1]).sum(1) / 2",
  "true_divide": "x / y",
  "type": "x.cast(dtype)",
  "type_as": "x.cast(y.dtype)",
  "unbind": "[part.squeeze(dim) for part in x.split(1, dim)]",
  "uniform_": "x.assign(x.rand_like())",
  "unique": "numpy.unique(x.numpy())",
  "upsample": "x.interpolate((8, 8))",
  "values": "x  # x.max(dim) is the values alone; sort and topk give a tuple",
  "vander": "x.unsqueeze(-1) ** Tensor.arange(n - 1, -1, -1)",
  "vdot": "(x * y).sum()",
  "view_as": "x.view(y.shape)",
  "vsplit": "x.chunk(n, 0)",
  "xlogy": "(x == 0).where(0, x * y.log())",
  "zero_": "x.assign(x.zeros_like())",
}
# what numpy or scipy computes
BY_NUMPY = {
  "cholesky": "numpy.linalg.cholesky(x.numpy())",
  "det": "numpy.linalg.det(x.numpy())",
  "digamma": "scipy.special.digamma(x.numpy())",
  "eigh": "numpy.linalg.eigh(x.numpy())[0]",
  "erfinv": "scipy.special.erfinv(x.numpy())",
  "histc": "numpy.histogram(x.numpy(), n)[0]",
  "inv": "numpy.linalg.inv(x.numpy())",
  "inverse": "numpy.linalg.inv(x.numpy())",
  "logdet": "numpy.linalg.slogdet(x.numpy())[1]",
  "lstsq": "numpy.linalg.lstsq(x.numpy(), y.numpy())[0]",
  "matrix_exp": "scipy.linalg.expm(x.numpy())",
  "pinverse": "numpy.linalg.pinv(x.numpy())",
  "slogdet": "numpy.linalg.slogdet(x.numpy())[1]",
  "solve": "numpy.linalg.solve(x.numpy(), y.numpy())",
}
# what is a function of the class
FOREIGN_CREATORS = {
  "array": "Tensor(data)",
  "as_tensor": "Tensor(data)",
  "asarray": "Tensor(data)",
  "bernoulli": "Tensor.rand(2, 3) < 0.5",
  "block_diag": "Tensor.cat(x.pad((0, y.shape[1])), y.pad((x.shape[1], 0)), dim=0)",
  "concat": "Tensor.cat(x, y, dim=dim)",
  "concatenate": "Tensor.cat(x, y, dim=dim)",
  "from_numpy": "Tensor(data)",
  "hstack": "Tensor.cat(x, y, dim=1)",
  "is_tensor": "isinstance(x, Tensor)",
  "logspace": "10 ** Tensor.linspace(0, 2, 3)",
  "tensor": "Tensor(data)",
  "tril_indices": "Tensor.ones(n, n).tril().nonzero().T",
  "triu_indices": "Tensor.ones(n, n).triu().nonzero().T",
  "vstack": "Tensor.cat(x, y, dim=0)",
}
# what would take a program of its own
NO_COUNTERPART = {
  **{
    name: f"a tensor keeps its shape; x = x.{name[:-1]}(...) has the new one, and x = x.T that of two dims exchanged"
    for name in ("squeeze_", "t_", "transpose_", "unsqueeze_")
  },
  "index_put": "y = x.clone(), and then y[index] = value; sums, of an index that comes twice too, are x.scatter_reduce",
  "index_put_": "x[index] = value; sums, of an index that comes twice too, are x.scatter_reduce",
  "at": "y = x.clone(), and then y[index] = value; sums, of an index that comes twice too, are x.scatter_reduce",
  "ctc_loss": "write the recursion over frames as a scan, or give custom_op another library's values and gradients",
  **dict.fromkeys(("as_strided", "resize_", "set_"), "reshape, expand, flip, slices and unfold make views"),
  **dict.fromkeys(
    ("data_ptr", "storage", "untyped_storage"), "no value has an address before it is computed; x.numpy() has one"
  ),
  **dict.fromkeys(("istft", "polar", "stft", "view_as_complex"), "keep real and imaginary parts along a dim of two"),
  **dict.fromkeys(("coalesce", "to_sparse"), "keep values and their indices; x.scatter_reduce adds them up"),
  "grid_sample": "read the four corners with x[:, :, rows, columns], and weigh them; a regular grid: x.interpolate",
}
# what functions of torch and jax are that are no methods; layer, path, params as they take them
FOREIGN_FUNCTIONS = {
  "compile": "TinyJit(f)",
  "jit": "TinyJit(f)",
  "float16": "dtypes.float16",
  "float32": "dtypes.float32",
  "int64": "dtypes.int64",
  "bfloat16": "dtypes.bfloat16",
  "lax": "scan, while_loop, cond, psum, all_gather  # functions of the package",
  "load": "nn.state.torch_load(path)  # or nn.state.safe_load, of a file of safetensors",
  "manual_seed": "Tensor.manual_seed(0)",
  "inference_mode": "Tensor.no_grad()",
  "no_grad": "Tensor.no_grad()",
  "numpy": "Tensor  # functions are methods, as x.sum()",
  "optim": "nn.optim",
  "pmap": 'shard_map(f, Mesh(("CPU:0", "CPU:1"), names=("d",)), (P("d"),), P("d"))',
  "random": "Tensor.manual_seed(0)  # and then Tensor.rand, Tensor.randn, …: there are no keys",
  "save": "nn.state.safe_save(nn.state.get_state_dict(layer), path)",
}
# parameters of PyTorch's and NumPy's functions that those of the same name do not take; "*": what is given in their
# order, "*dims": all dims, where two are taken; of several that are given the first counts
FOREIGN_PARAMETERS = {
  **{name: {"out": f"x.{name}(dim)  # numpy.{name} takes x.numpy()"} for name in ("all", "any", "prod", "sum")},
  **{
    name: {"out": f"x.{name}(dim)  # numpy.{name} takes x.numpy()", "dtype": f"x.cast(dtype).{name}(dim)"}
    for name in ("mean", "std", "var")
  },
  "add": {"alpha": "x + alpha * y"},
  "backward": {
    "create_graph": "loss.gradient(x)  # tensors, of which there are gradients again",
    "retain_graph": "loss.backward()  # the graph stays until loss is realized",
  },
  "dropout": {"training": "x.dropout(p)  # drops within `with Tensor.train():`", "inplace": "x.assign(x.dropout(p))"},
  "interpolate": {"scale_factor": "x.interpolate(tuple(int(n * scale_factor) for n in x.shape[2:]))"},
  "max": {  # PyTorch's gives both, so that what unpacks it must not go on
    "dim": "x.max(axis=dim), x.argmax(dim)",
    "out": "x.max(dim)  # numpy.max takes x.numpy()",
  },
  "min": {"dim": "x.min(axis=dim), x.argmin(dim)", "out": "x.min(dim)  # numpy.min takes x.numpy()"},
  "nonzero": {"as_tuple": "tuple(x.nonzero().T)"},
  "normal": {
    "*": "Tensor.normal({2}, mean={0}, std={1})",
    "size": "Tensor.normal(*size, mean=0.0, std=1.0)",
  },
  "ones": {"size": "Tensor.ones(*size)"},
  "rand": {"size": "Tensor.rand(*size)"},
  "randint": {
    "*": "Tensor.randint({2}, low={0}, high={1})",
    "size": "Tensor.randint(*size, low=0, high=10)",
  },
  "randn": {"size": "Tensor.randn(*size)"},
  "round": {"decimals": "(x * 10**n).round() / 10**n"},
  "scaled_dot_product_attention": {"scale": "(x * (scale * x.shape[-1] ** 0.5)).scaled_dot_product_attention(y, z)"},
  "sub": {"alpha": "x - alpha * y"},
  "to": {
    "dtype": "x.cast(dtype)",
    "non_blocking": "x.to(device)  # nothing is waited for before a value is read",
    "copy": "x.to(device)",
    "*more": "x.to(device).cast(dtype)",
  },
  "transpose": {"axes": "x.permute(axes)", "*dims": "x.permute{}"},
  "zeros": {"size": "Tensor.zeros(*size)"},
}
PER_ELEMENT = ".elementwise", ".casts", ".math"  # the modules whose methods are
ALSO_IN_PLACE = "cumprod", "cumsum", "scatter_reduce", "tril", "triu"


def with_fix(problem: object, code: str | None) -> str:
  return f"{problem}" if code is None else f"{problem}\n  fix: {code}"


def name_here(cls: type, name: str) -> str | None:
  """The code that does here what a method of that name does there; None if there is none. What works in place, element
  by element, is an assignment."""
  if name in FOREIGN_NAMES:
    return FOREIGN_NAMES[name]
  if name in BY_NUMPY:
    return f"Tensor({BY_NUMPY[name]})  # computed by {BY_NUMPY[name].partition('.')[0]}: no gradient flows through it"
  if name in NO_COUNTERPART:
    return f"nothing does the same in a line: {NO_COUNTERPART[name]}"
  if not name.endswith("_") or name.startswith("_"):
    return None
  if (plain := name[:-1]) in FOREIGN_NAMES:
    code, mark, comment = FOREIGN_NAMES[plain].partition("  #")
    return f"x.assign({code}){mark}{comment}"
  module = getattr(getattr(cls, plain, None), "__module__", "")
  return f"x.assign(x.{plain}(...))" if module.endswith(PER_ELEMENT) or plain in ALSO_IN_PLACE else None


def creator_here(cls: type, name: str) -> str | None:
  """As `name_here`, of the class: what makes tensors, or a method as a function."""
  return FOREIGN_CREATORS.get(name) or name_here(cls, name)


def function_here(cls: type, name: str) -> str | None:
  """As `name_here`, of the package: functions of torch and jax, most of which are methods here."""
  if name in FOREIGN_FUNCTIONS:
    return FOREIGN_FUNCTIONS[name]
  return creator_here(cls, name) or (f"Tensor.{name}" if not name.startswith("_") and hasattr(cls, name) else None)


def without_foreign(name: str, function: Function, fixes: Mapping[str, str]) -> Function:
  """The function, where a parameter of PyTorch's that it does not take is a TypeError with what does the same here; so
  is a shape that comes last, or are all dims where two are taken, as there."""

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    for given in (name for name in fixes if name in kwargs) if kwargs else ():
      if given not in inspect.signature(function).parameters:
        raise TypeError(with_fix(f"{name}() got an unexpected keyword argument {given!r}", fixes[given]))
    if "*" in fixes and len(args) == 4 and isinstance(args[3], (tuple, list)):
      raise TypeError(with_fix(f"{name}() takes the shape first", fixes["*"].format(*args[1:])))
    if "*dims" in fixes and args[1:] and (len(args) > 3 or isinstance(args[1], (tuple, list))):
      dims = tuple(args[1] if len(args) == 2 else args[1:])
      raise TypeError(with_fix(f"{name}() exchanges two dims", fixes["*dims"].format(dims)))
    if "*more" in fixes and len(args) > 2:
      raise TypeError(with_fix(f"{name}() takes one argument", fixes["*more"]))
    return function(*args, **kwargs)

  return cast("Function", call)


NO_TENSOR = "x.data is no tensor, as it is in PyTorch: x.data() is the memory of x, to be read"


class OfMemory:
  """`x.data`: called, it gives the memory. What is asked of it as of PyTorch's tensor of that name is an error that
  says what does the same."""

  __slots__ = ("_read",)

  def __init__(self, read: Callable[[], Any]) -> None:
    self._read = read

  def __call__(self) -> Any:
    return self._read()

  def __getattr__(self, name: str) -> NoReturn:
    cls = type(self._read.__self__)  # type: ignore[attr-defined]
    code = name_here(cls, name) or (f"x.detach().{name}" if hasattr(cls, name) else None)
    raise AttributeError(with_fix(NO_TENSOR, code), name=name)

  def __setitem__(self, *_: Any) -> NoReturn:
    raise TypeError(with_fix(NO_TENSOR, "x[index] = value"))


class MemoryMethod:
  """The method of a class by which its memory is read: in each tensor an `OfMemory`, and no place for another value."""

  def __init__(self, function: Callable[[Any], Any]) -> None:
    self.function = function

  def __get__(self, x: Any, cls: type) -> Callable[..., Any]:
    return self.function if x is None else OfMemory(self.function.__get__(x))

  def __set__(self, x: Any, value: Any) -> NoReturn:
    raise AttributeError(with_fix(NO_TENSOR, "x.assign(y)"), name="data", obj=x)


def memory_method(function: Function) -> Function:
  return cast(Function, MemoryMethod(function))


def _refused(code: str) -> Callable[..., NoReturn]:
  def refuse_operand(*_: Any) -> NoReturn:
    raise TypeError(with_fix(NO_TENSOR, code))

  return refuse_operand


for _operator in ("add", "sub", "mul", "truediv", "pow", "matmul"):
  setattr(OfMemory, f"__{_operator}__", _refused("x.detach()"))
  setattr(OfMemory, f"__r{_operator}__", _refused("x.detach()"))
  _same = {"truediv": "div"}.get(_operator, _operator)
  setattr(OfMemory, f"__i{_operator}__", _refused(f"x.assign(x.detach().{_same}(y))"))
for _operator in ("getitem", "neg", "lt", "le", "gt", "ge"):
  setattr(OfMemory, f"__{_operator}__", _refused("x.detach()"))
