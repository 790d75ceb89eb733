"""Functions of one or two tensors of a million elements, as cases of `extra.bench.sweep --functions`: name -> (inputs,
expression[, PyTorch's])."""

SIZE = "1000x1000"
REAL, POSITIVE, UNIT = SIZE, f"positive {SIZE}", f"unit {SIZE}"
ALIKE = """exp exp2 sin cos tan tanh erf square floor ceil round trunc atan sinh cosh asinh sign abs neg isnan isinf
  isfinite relu sigmoid half bfloat16 double int long short bool reciprocal logical_not"""
ACTIVATIONS = "hardsigmoid silu leaky_relu relu6 hardswish hardtanh elu celu selu softplus softsign mish logsigmoid"
BINARY = "add sub mul div fmod maximum minimum copysign logaddexp lt gt eq ne le ge isclose"
INTEGERS = "add mul maximum lt bitwise_and bitwise_or bitwise_xor"

FUNCTIONS: dict[str, tuple[str, ...]] = {
  **{name: (REAL, f"a.{name}()") for name in ALIKE.split()},
  **{name: (POSITIVE, f"a.{name}()") for name in ("log", "log2", "log10", "sqrt", "rsqrt")},
  **{name: (UNIT, f"a.{name}()") for name in ("asin", "acos", "atanh")},
  "acosh": (POSITIVE, "(a+1).acosh()"),
  **{name: (REAL, f"a.{name}()", f"F.{name}(a)") for name in ACTIVATIONS.split()},
  "gelu_tanh": (REAL, "a.gelu()", "F.gelu(a,approximate='tanh')"),
  "gelu_erf": (REAL, "a.gelu('none')", "F.gelu(a)"),
  "quick_gelu": (REAL, "a.quick_gelu()", "a*(a*1.702).sigmoid()"),
  "softplus_2": (REAL, "a.softplus(2.)", "F.softplus(a,2.)"),
  "clamp": (REAL, "a.clamp(-1,1)"),
  "square_root_of_sum": (REAL, "(a*a+1).sqrt()"),
  "logit": (UNIT, "((a+1.5)/3).log()-(1-(a+1.5)/3).log()", "((a+1.5)/3).logit()"),
  "dropoutless_swiglu": (f"{REAL}, {REAL}", "a.silu()*b", "F.silu(a)*b"),
  **{f"pow_{name}": (POSITIVE, f"a**{y}") for name, y in (("2", 2), ("3", 3), ("-1", -1), ("half", 0.5), ("1.7", 1.7))},
  "pow_7": (POSITIVE, "a**7"),
  "pow_of": (POSITIVE, "2.5**a"),
  "pow": (f"{POSITIVE}, {REAL}", "a**b"),
  "pow_any": (f"{REAL}, {POSITIVE}", "a**b"),
  **{name: (f"{REAL}, {REAL}", f"a.{name}(b)") for name in BINARY.split()},
  "mod": (f"{REAL}, {REAL}", "a%b"),
  "div_floor": (f"{REAL}, {REAL}", "a.div(b,rounding_mode='floor')"),
  "div_trunc": (f"{REAL}, {REAL}", "a.div(b,rounding_mode='trunc')"),
  "lerp": (f"{REAL}, {REAL}", "a.lerp(b,.3)"),
  "where": (f"{REAL}, {REAL}", "(a>0).where(a,b)", "where(a>0,a,b)"),
  "masked_fill": (f"{REAL}, {REAL}", "a.masked_fill(b>0,0.)"),
  **{f"int_{name}": (f"int32<99 {SIZE}, int32<99 {SIZE}", f"a.{name}(b)") for name in INTEGERS.split()},
  "int_mod": (f"int32<9999 {SIZE}, int32<99 {SIZE}", "a%(b+1)"),
  "int_div": (f"int32<9999 {SIZE}, int32<99 {SIZE}", "a//(b+1)"),
  "int_mod_7": (f"int32<9999 {SIZE}", "a%7"),
  "int_div_7": (f"int32<9999 {SIZE}", "a//7"),
  "int_shift": (f"int32<9999 {SIZE}, int32<9 {SIZE}", "a<<b"),
  "int_pow_3": (f"int32<99 {SIZE}", "a**3"),
  "long_mul": (f"int64<9999 {SIZE}, int64<9999 {SIZE}", "a*b"),
  "long_div": (f"int64<9999 {SIZE}, int64<99 {SIZE}", "a//(b+1)"),
  "byte_add": (f"uint8<99 {SIZE}, uint8<99 {SIZE}", "a+b"),
  "byte_float": (f"uint8<99 {SIZE}", "a.float()"),
  "int_float": (f"int32<99 {SIZE}", "a.float()"),
  "long_float": (f"int64<99 {SIZE}", "a.float()"),
  "long_int": (f"int64<99 {SIZE}", "a.int()"),
  "half_float": (f"float16 {SIZE}", "a.float()"),
  "half_exp": (f"float16 {SIZE}", "a.exp()"),
  "half_mul": (f"float16 {SIZE}, float16 {SIZE}", "a*b"),
  "double_exp": (f"float64 {SIZE}", "a.exp()"),
  "double_log": (f"float64 {SIZE}", "(a*a+.1).log()"),
  "double_sin": (f"float64 {SIZE}", "a.sin()"),
  "double_tanh": (f"float64 {SIZE}", "a.tanh()"),
  "double_erf": (f"float64 {SIZE}", "a.erf()"),
  "double_atan": (f"float64 {SIZE}", "a.atan()"),
  "double_pow": (f"float64 {SIZE}", "(a*a+.1)**1.7"),
  "double_sigmoid": (f"float64 {SIZE}", "a.sigmoid()"),
}
_STEPS = {
  "relu": "relu()", "tanh": "tanh()", "sigmoid": "sigmoid()", "exp": "exp()", "abs": "abs()", "square": "square()",
  "atan": "atan()", "sin": "sin()", "sinh": "sinh()",
}  # fmt: skip
FUNCTIONS |= {f"{k}_grad": (REAL, f"grad(lambda a:(a.{f}*a).sum(),a)") for k, f in _STEPS.items()}
FUNCTIONS |= {
  f"{k}_grad": (REAL, f"grad(lambda a:(a.{k}()*a).sum(),a)", f"grad(lambda a:(F.{k}(a)*a).sum(),a)")
  for k in ("silu", "softplus", "elu", "mish", "hardswish", "leaky_relu", "logsigmoid")
}
FUNCTIONS["gelu_grad"] = (
  REAL,
  "grad(lambda a:(a.gelu('none')*a).sum(),a)",
  "grad(lambda a:(F.gelu(a)*a).sum(),a)",
)
DIMS: dict[str, tuple[str, ...]] = {
  "sum_7x9": ("7x9x16001", "a.sum((0,2))"),
  "max_odd": ("33x777x41", "a.max(1)", "a.max(1).values"),
  "prod_odd": ("333x3001", "a.prod(1)"),
  "std_0": ("1001x999", "a.std(0)"),
  "argmin_mid": ("33x777x41", "a.argmin(1)"),
  "cummax_1": ("1000x1000", "a.cummax(1)[0]"),
  "cummax_0": ("1000x1000", "a.cummax(0)[0]"),
  "cumsum_mid": ("100x100x100", "a.cumsum(1)"),
  "logcumsumexp": ("1000x1000", "a.logcumsumexp(1)"),
  "argsort": ("1000x1000", "a.argsort(1)"),
  "sort_0": ("1000x1000", "a.sort(0)[0]"),
  "sort_long": ("1000000", "a.sort(0)[0]"),
  "topk_100": ("100x10000", "a.topk(100)[0]"),
  "scatter": ("1000x1000, int64<1000 1000x500, 1000x500", "a.scatter(1,b,c)"),
  "gather_0": ("1000x1000, int64<1000 500x1000", "a.gather(0,b)"),
  "index_rows": ("int64<1000 20000, 1000x64", "b[a]"),
  "conv3d": ("1x8x16x32x32, 16x8x3x3x3", "a.conv2d(b,padding=1)", "F.conv3d(a,b,padding=1)"),
  "conv_dw7": ("4x64x32x32, 64x1x7x7", "a.conv2d(b,padding=3,groups=64)", "F.conv2d(a,b,padding=3,groups=64)"),
  "conv_dw3": ("4x64x56x56, 64x1x3x3", "a.conv2d(b,padding=1,groups=64)", "F.conv2d(a,b,padding=1,groups=64)"),
  "conv_dw31": ("1x64x56x56, 64x1x31x31", "a.conv2d(b,padding=15,groups=64)", "F.conv2d(a,b,padding=15,groups=64)"),
  "maxpool_5_s1": ("4x64x28x28", "a.max_pool2d((5,5),stride=1,padding=2)", "F.max_pool2d(a,5,1,2)"),
  "avgpool_3_s1": ("8x64x56x56", "a.avg_pool2d((3,3),stride=1,padding=1)", "F.avg_pool2d(a,3,1,1)"),
  "conv1d_dw4": ("4x512x2000, 512x1x4", "a.conv2d(b,padding=3,groups=512)", "F.conv1d(a,b,padding=3,groups=512)"),
  "conv_dw3_s2": (
    "4x64x56x56, 64x1x3x3",
    "a.conv2d(b,padding=1,stride=2,groups=64)",
    "F.conv2d(a,b,padding=1,stride=2,groups=64)",
  ),
  "conv_t3_s2": (
    "2x64x28x28, 64x64x3x3",
    "a.conv_transpose2d(b,stride=2,padding=1)",
    "F.conv_transpose2d(a,b,stride=2,padding=1)",
  ),
  "conv_dilated": (
    "2x32x56x56, 32x32x3x3",
    "a.conv2d(b,padding=2,dilation=2)",
    "F.conv2d(a,b,padding=2,dilation=2)",
  ),
  "interpolate_nearest": (
    "4x32x64x64",
    "a.interpolate((128,128),mode='nearest')",
    "F.interpolate(a,(128,128),mode='nearest')",
  ),
  "interpolate_grad": (
    "4x16x64x64",
    "grad(lambda a:a.interpolate((128,128)).square().sum(),a)",
    "grad(lambda a:F.interpolate(a,(128,128),mode='bilinear').square().sum(),a)",
  ),
  "groupnorm": (
    "8x64x32x32",
    "a.reshape(8,8,-1).layernorm().reshape(8,64,32,32)",
    "F.group_norm(a,8)",
  ),
  "groupnorm_grad": (
    "8x64x32x32",
    "grad(lambda a:(a.reshape(8,8,-1).layernorm().reshape(8,64,32,32)*a).sum(),a)",
    "grad(lambda a:(F.group_norm(a,8)*a).sum(),a)",
  ),
  "batchnorm_grad": (
    "16x64x28x28",
    "grad(lambda a:(a.permute(1,0,2,3).reshape(64,-1).layernorm().square()*a.permute(1,0,2,3).reshape(64,-1)).sum(),a)",
    "grad(lambda a:(F.batch_norm(a,None,None,training=True).square()*a).sum(),a)",
  ),
  "avgpool_grad": (
    "8x64x56x56",
    "grad(lambda a:a.avg_pool2d((2,2)).square().sum(),a)",
    "grad(lambda a:F.avg_pool2d(a,2).square().sum(),a)",
  ),
  "pad_reflect": ("64x64x56x56", "a.pad((2,2,2,2),mode='reflect')", "F.pad(a,(2,2,2,2),mode='reflect')"),
  "pad_replicate": ("64x64x56x56", "a.pad((2,2,2,2),mode='replicate')", "F.pad(a,(2,2,2,2),mode='replicate')"),
  "embedding_bag": ("50000x64, int64<50000 4096x20", "a[b].sum(1)", "F.embedding_bag(b,a,mode='sum')"),
  "scatter_mean": ("1000x64, int64<1000 20000x64, 20000x64", "a.scatter_reduce(0,b,c,'mean')"),
  "take_along": ("2000x1000, int64<1000 2000x1000", "a.gather(1,b)"),
  "cumsum_reversed": ("300x3000", "a.flip(1).cumsum(1).flip(1)"),
  "std_tall": ("5000x400", "a.std(0)"),
  "cdist_1": ("500x64, 500x64", "(a.reshape(500,1,64)-b.reshape(1,500,64)).abs().sum(2)", "torch.cdist(a,b,1)"),
  "double_mm": ("float64 500x500, float64 500x500", "a@b"),
  "minmax": (
    "2000x1000",
    "(a-a.min(1,keepdim=True))/(a.max(1,keepdim=True)-a.min(1,keepdim=True))",
    "(a-a.amin(1,keepdim=True))/(a.amax(1,keepdim=True)-a.amin(1,keepdim=True))",
  ),
  "interpolate_nearest_grad": (
    "4x32x64x64",
    "grad(lambda a:a.interpolate((128,128),mode='nearest').square().sum(),a)",
    "grad(lambda a:F.interpolate(a,(128,128),mode='nearest').square().sum(),a)",
  ),
  "scatter_grad": (
    "1000x1000, int64<1000 1000x500",
    "grad(lambda a:a.gather(1,b).square().sum(),a)",
  ),
}
FUNCTIONS = {f"{name}_1M": case for name, case in FUNCTIONS.items()} | DIMS
