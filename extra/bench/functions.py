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
FUNCTIONS = {f"{name}_1M": case for name, case in FUNCTIONS.items()}
