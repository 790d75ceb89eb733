"""Mistakes raise where the user made them, before anything runs, and say what was given, which rule it broke and what
helps.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tinygrad import (
  Context,
  Device,
  Mesh,
  P,
  ShardError,
  Sharding,
  Tensor,
  TinyJit,
  Variable,
  cond,
  dtypes,
  grad,
  jvp,
  nn,
  scan,
  vmap,
)
from tinygrad.device import DeviceError
from tinygrad.engine.errors import JitError

D2 = ("CPU:0", "CPU:1")
D4 = tuple(f"CPU:{i}" for i in range(4))


def ones(*shape):
  return Tensor.ones(*shape).contiguous()


def logits():
  return Tensor([[1.0, 2.0], [3.0, 4.0]])


def small():
  return Tensor([1, 200], dtype="uint8")


def lengthy():
  """A tensor whose first dim is a variable's value."""
  return ones(4, 2).contiguous()[: Variable("n", 1, 4).bind(3)]


MISTAKES = [
  ("add_shapes", lambda: ones(2, 3) + ones(4, 3), ValueError, [r"\[2, 3\]", r"\[4, 3\]", "fix: "]),
  ("matmul_shapes", lambda: ones(2, 3) @ ones(4, 5), ValueError, [r"\[2, 3\]", r"\[4, 5\]", "fix: "]),
  ("reshape_count", lambda: ones(2, 3).reshape(4, 2), ValueError, ["reshape", r"\[2, 3\]"]),
  ("reduce_axis", lambda: ones(2, 3).sum(axis=2), (ValueError, IndexError), ["2"]),
  ("index_range", lambda: ones(2, 3)[5], IndexError, ["5", "2"]),
  ("cat_shapes", lambda: ones(2, 3).cat(ones(2, 4), dim=0), ValueError, [r"\[2, 3\]", r"\[2, 4\]"]),
  ("unknown_device", lambda: Tensor([1.0], device="ZPU"), DeviceError, ["ZPU", "fix: "]),
  ("unknown_shard_device", lambda: ones(4).shard(("CPU:0", "ZPU:1"), axis=0), DeviceError, ["ZPU", "fix: "]),
  ("cut_missing_dim", lambda: ones(4, 4).shard(D2, axis=2), ShardError, ["dim 2", r"\(4, 4\)"]),
  ("repeated_device", lambda: ones(4).shard(("CPU:0", "CPU:1", "CPU"), axis=0), ShardError, ["distinct"]),
  ("axis_twice", lambda: ones(4, 4).shard(Mesh(D4, (2, 2), ("dp", "tp")), P("dp", "dp")), ShardError, ["used twice"]),
  (
    "two_device_sets",
    lambda: ones(4).shard(D2, axis=0) + ones(4).shard(("CPU:2", "CPU:3"), axis=0),
    ShardError,
    ["src\\[0\\]", "CPU:0-1", "CPU:2-3", "fix: "],
  ),
  ("two_devices", lambda: ones(4).to("CPU:0") + ones(4).to("CPU:1"), ShardError, ["src\\[1\\]", "CPU:1", "fix: "]),
  ("half_owed_nowhere", lambda: ones(4, 4).shard(D2, axis=0).shard(D2, axis=5), ShardError, ["dim 5"]),
  ("backward_of_many", lambda: ones(3).requires_grad_(True).backward(), (RuntimeError, ValueError), ["scalar"]),
  (
    "backward_of_a_list",
    lambda: ones(2).backward([1.0, 1.0]),
    TypeError,
    ["not list", r"fix: give Tensor"],
  ),
  (
    "gradient_by_a_list",
    lambda: ones(2).sum().gradient([ones(2)]),
    TypeError,
    ["not list", r"fix: .*\(\*p"],
  ),
  ("flip_twice", lambda: ones(2, 3).flip(0, 0), ValueError, [r"\(0, 0\)", "fix: give every dim once"]),
  ("topk_of_a_number", lambda: Tensor(3.5).topk(2), ValueError, ["k = 2", "fix: take 1"]),
  ("seed_of_text", lambda: Tensor.manual_seed("a"), TypeError, ["'a'", r"fix: Tensor.manual_seed\(0\)"]),
  (
    "saved_number",
    lambda: nn.state.safe_save({"epoch": 3}, "numbers.safetensors"),
    nn.state.SafetensorsError,
    ["'epoch' is 3, of type int", r"fix: give Tensor\(3\)"],
  ),
  ("unknown_dtype", lambda: Tensor.zeros(2, dtype="f33"), ValueError, ["'f33'", "fix: give one of .*float32"]),
  ("optimizer_of_ints", lambda: nn.optim.SGD([Tensor([1, 2])]), TypeError, [r"int32\[2\]", "fix: cast it"]),
  ("diag_of_a_matrix", lambda: ones(2, 2).diag(), ValueError, [r"float32\[2, 2\]", r"fix: x.diagonal\(\)"]),
  ("label_of_no_class", lambda: logits().cross_entropy(Tensor([0, 5])), IndexError, ["label 5", "fix: .* 0 to 1"]),
  (
    "label_to_ignore",
    lambda: logits().cross_entropy(Tensor([-100, 0])),
    IndexError,
    ["-100", "fix: .*ignore_in"],
  ),
  (
    "label_ignored_otherwise",
    lambda: logits().sparse_categorical_crossentropy(Tensor(np.array([-1, -100]))),
    IndexError,
    ["label -100 is no class of 2", "fix: .*ignore_index=-100"],
  ),
  (
    "label_of_no_class_of_nll",
    lambda: logits().nll_loss(Tensor([0, 2]), ignore_index=3),
    IndexError,
    ["nll_loss: label 2", "fix: .*ignore_index=2"],
  ),
  ("dtype_of_nothing", lambda: Tensor(object()), (TypeError, RuntimeError, ValueError), ["object"]),
  ("dtype_class", lambda: ones(2).cast(np.float32), TypeError, ["float32", "fix: .*name"]),
  ("too_wide_for_an_int", lambda: Tensor([2**40]), OverflowError, ["1099511627776 is no int32", "fix: .*int64"]),
  ("a_bound_beyond_a_type", lambda: small().clamp(300), OverflowError, ["clamp: 300 is no uint8", "fix: cast"]),
  ("a_fill_beyond_a_type", lambda: small().masked_fill(small() > 1, -1), OverflowError, ["masked_fill: -1 is no"]),
  ("dim_is_a_float", lambda: ones(4).reshape(2.0, 2), TypeError, ["2.0", "fix: give integers"]),
  ("dim_is_negative", lambda: Tensor.empty(2, -1), ValueError, [r"empty: a dim of \(2, -1\)", "fix: "]),
  ("axis_is_a_name", lambda: ones(2, 3).sum("rows"), TypeError, ["'rows'", "fix: give integers"]),
  ("dim_missing", lambda: ones(2, 3).softmax(2), IndexError, [r"dim 2 out of range \[-2, 1\]", r"\(2, 3\)", "fix: "]),
  ("dim_twice", lambda: ones(2, 3).permute(0, 0), ValueError, [r"\(0, 0\)", "fix: .*transpose"]),
  ("too_many_indices", lambda: ones(2, 3)[0, 0, 0], IndexError, ["3 indices for the 2 dims", "fix: "]),
  ("index_is_a_float", lambda: ones(2, 3)[Tensor([0.0])], IndexError, ["float32", r"fix: use index.int\(\)"]),
  ("mask_shape", lambda: ones(2, 3)[Tensor([True])], IndexError, ["mask", r"bool\[1\]", "fix: .*mask.where"]),
  (
    "mask_under_vmap",
    lambda: vmap(lambda x: x[x > 0])(ones(2, 3)),
    JitError,
    ["how many elements of bool", "fix: x.mas"],
  ),
  (
    "mask_while_captured",
    lambda: [step(ones(3)) for step in [TinyJit(lambda x: x[x > 0].realize())] for _ in "ab"],
    JitError,
    [r"how many elements of bool\[3\]", "fix: x.masked_select"],
  ),
  ("mask_values", lambda: ones(4).__setitem__(Tensor([True] * 4), ones(3)), ValueError, [r"\(4,\)", "fix: "]),
  ("index_of_a_list", lambda: ones(2, 3)[[0, 5]], IndexError, ["index 5 is out of range for dim 0", "fix: .* -2 to 1"]),
  ("index_of_an_array", lambda: ones(2, 3)[:, np.array([[0, -4]])], IndexError, ["index -4", "dim 1", r"\(2, 3\)"]),
  ("write_at_a_list", lambda: ones(3).__setitem__([7], 1.0), IndexError, ["index 7 is out of range for dim 0"]),
  ("cat_with_a_list", lambda: ones(2).cat([ones(2)]), TypeError, ["cannot join list", r"fix: x.cat\(\*tensors\)"]),
  ("cat_dim", lambda: Tensor.cat((ones(2), ones(2)), 1), TypeError, [r"fix: Tensor.cat\(\*tensors, dim=1\)"]),
  ("stack_dim", lambda: Tensor.stack([ones(2)], 1), TypeError, [r"fix: Tensor.stack\(\*tensors, dim=1\)"]),
  ("times_each", lambda: ones(2).repeat_interleave([1, 2]), TypeError, ["values decide", r"fix: x\[numpy.repeat\("]),
  (
    "classes_last",
    lambda: ones(2, 4, 3).cross_entropy(Tensor([[0] * 4] * 2)),
    ValueError,
    ["without dim 1", r"fix: classes are dim 1: logits.flatten\(0, -2\), Y.flatten\(\)"],
  ),
  ("add_text", lambda: ones(2) + "a", TypeError, ["add: cannot use str", "fix: .*number"]),
  ("equal_to_none", lambda: ones(2) == None, TypeError, ["eq: cannot use NoneType", "fix: x is None"]),  # noqa: E711
  ("add_a_list", lambda: ones(2) + [1, 2], TypeError, ["add: cannot use list", r"fix: .*Tensor\(x\)"]),
  ("pad_by_a_number", lambda: ones(2, 3).pad(1), TypeError, ["pad: .* 1 ", r"fix: x.pad\(\(1, 1, 1, 1\)\)"]),
  ("full_of_a_list", lambda: Tensor.full((2,), [1, 2]), TypeError, ["full: .*list", r"fix: Tensor\(.*\).expand"]),
  ("optimizer_of_a_model", lambda: nn.optim.SGD(nn.Linear(2, 2)), TypeError, ["Linear", r"fix: .*get_parameters"]),
  ("optimizer_of_a_tensor", lambda: nn.optim.SGD(ones(2)), TypeError, ["not Tensor", r"fix: .*get_parameters"]),
  ("optimizer_of_numbers", lambda: nn.optim.Adam([1, 2]), TypeError, ["int", r"fix: .*get_parameters"]),
  (
    "attention_widths",
    lambda: ones(2, 4, 8).scaled_dot_product_attention(ones(2, 4, 7), ones(2, 4, 8)),
    ValueError,
    ["attention: .*one width", r"\[2, 4, 7\]", "fix: "],
  ),
  (
    "attention_lengths",
    lambda: ones(2, 4, 8).scaled_dot_product_attention(ones(2, 5, 8), ones(2, 4, 8)),
    ValueError,
    ["attention: .*one length", r"\[2, 5, 8\]", "fix: "],
  ),
  ("linear_features", lambda: nn.Linear(3, 2)(ones(4, 5)), ValueError, ["Linear.*3 features", r"\[4, 5\]", "fix: "]),
  (
    "norm_channels",
    lambda: nn.BatchNorm(3)(ones(2, 4, 5, 5)),
    ValueError,
    ["BatchNorm.*3 channels", r"\[2, 4, 5, 5\]", "fix: "],
  ),
  ("rearrange_adds", lambda: ones(2, 3).rearrange("a b -> a b c"), ValueError, ["'c'", "left of ->", "fix: "]),
  ("rearrange_one_side", lambda: ones(2, 3).rearrange("a b"), ValueError, ["one ->", "fix: "]),
  ("rearrange_odd", lambda: ones(2, 3).rearrange("a (b c) -> a b c", b=2), ValueError, ["dim 1", "b=2", "fix: "]),
  ("rearrange_name", lambda: ones(2, 3).rearrange("a b -> b a", z=3), ValueError, ["'z'", "'a b -> b a'", "fix: "]),
  ("cat_with_a_number", lambda: ones(2).cat(3), TypeError, ["cannot join int", r"fix: .*Tensor\(x\)"]),
  ("split_of_nothing", lambda: ones(4).split(0), ValueError, ["parts of 0", "fix: "]),
  (
    "conv_channels",
    lambda: ones(1, 3, 5, 5).conv2d(ones(2, 4, 3, 3)),
    ValueError,
    ["4 channels", r"\[2, 4, 3, 3\]", "fix: "],
  ),
  (
    "conv_stride",
    lambda: ones(1, 3, 5, 5).conv2d(ones(2, 3, 3, 3), stride=0),
    ValueError,
    ["must be positive", "fix: "],
  ),
  (
    "window_too_long",
    lambda: ones(1, 1, 2, 2).max_pool2d(3),
    ValueError,
    ["a window of 3", r"\[1, 1, 2, 2\]", "fix: pad"],
  ),
  (
    "unpool_shapes",
    lambda: ones(1, 1, 2, 2).max_unpool2d(ones(1, 2).int()),
    ValueError,
    ["max_unpool2d", r"int32\[1, 2\]", "fix: "],
  ),
  ("einsum_sizes", lambda: Tensor.einsum("ij,jk->ik", ones(2, 3), ones(2, 3)), ValueError, ["'j'", "3", "fix: "]),
  ("einsum_operands", lambda: Tensor.einsum("ij->i"), ValueError, ["no operands", "fix: "]),
  (
    "attention_mask",
    lambda: ones(1, 2, 3).scaled_dot_product_attention(ones(1, 2, 3), ones(1, 2, 3), ones(3, 5), is_causal=True),
    ValueError,
    ["attention: the mask .* which are \\(1, 2, 2\\)", r"float32\[3, 5\]", r"fix: a mask of shape \(2, 2\)"],
  ),
  (
    "attention_heads",
    lambda: ones(4, 2, 3).scaled_dot_product_attention(ones(2, 2, 3), ones(2, 2, 3)),
    ValueError,
    ["attention: the dims before the last two", r"float32\[2, 2, 3\]", "fix: enable_gqa=True"],
  ),
  (
    "attention_batches",
    lambda: ones(3, 2, 2, 3).scaled_dot_product_attention(ones(2, 2, 2, 3), ones(2, 2, 2, 3), enable_gqa=True),
    ValueError,
    ["attention: the dims before the last two", r"float32\[3, 2, 2, 3\]", r"fix: bring them to \(.., heads"],
  ),
  ("integer_loss", lambda: Tensor([1, 2]).sum().backward(), TypeError, ["only floats", r"int32\[\]", "fix: cast"]),
  ("qr_of_a_vector", lambda: ones(3).qr(), ValueError, ["needs matrices", r"\[3\]", "fix: reshape"]),
  ("svd_of_a_vector", lambda: ones(3).svd(), ValueError, ["needs matrices", "fix: reshape"]),
  ("masked_select_shapes", lambda: ones(3).masked_select(ones(2).bool()), ValueError, [r"bool\[2\]", "fix: "]),
  ("truth", lambda: 1 if ones(1) == 1 else 2, TypeError, ["truth of a tensor", "fix: .*item"]),
  ("unknown_keyword", lambda: Tensor.randn(2, sed=1), TypeError, ["sed"]),
  ("dtype_name", lambda: ones(2).cast("float31"), ValueError, ["float31"]),
  ("arange_step", lambda: Tensor.arange(0, 3, 0), ValueError, ["arange: the step", "fix: .*full"]),
  ("linspace_steps", lambda: Tensor.linspace(0, 1, -1), ValueError, ["linspace", "-1", "fix: "]),
  ("eye_dims", lambda: Tensor.eye(-1), ValueError, [r"eye.*\(-1, -1\)", "fix: "]),
  ("slice_step", lambda: ones(3)[::0], IndexError, [r"slice\(None, None, 0\)", "fix: leave"]),
  ("slice_of_floats", lambda: ones(3)[0.5:], IndexError, ["0.5", r"fix: int\(x\)"]),
  ("slice_of_a_variable_by_2", lambda: ones(4)[: Variable("n", 1, 4).bind(2) : 2], IndexError, ["step 1", "fix: "]),
  ("two_ellipses", lambda: ones(3)[..., ...], IndexError, ["has 2", "fix: write :"]),
  ("one_hot_of_none", lambda: Tensor([0]).one_hot(0), ValueError, ["one_hot", "got 0", "fix: "]),
  ("orthogonal_vector", lambda: ones(3).newton_schulz(1, (1.0,)), ValueError, [r"\[3\]", r"fix: .*reshape\(1, -1\)"]),
  ("steps_without_end", lambda: ones(2, 2).newton_schulz(2**70, (1.0,)), ValueError, ["than 1000", "fix: "]),
  ("resampled_to_a_name", lambda: ones(1, 4).interpolate("a"), ValueError, ["size 'a' must be", "fix: "]),
  (
    "more_than_an_address_reaches",
    lambda: ones(2**62).contiguous().realize(),
    MemoryError,
    [str(2**64), rf"float32\[{2**62}\]\), realized at test_user_mistakes.py:\d+", "fix: "],
  ),
  ("rounded_to_digits", lambda: round(ones(3), 2), TypeError, [r"fix: \(x \* 10\*\*2\).round\(\) / 10\*\*2"]),
  ("rearranged_dims", lambda: ones(3, 3).rearrange("a b c -> a"), ValueError, [r"\(3, 3\)", "fix: name 2 .*\\.\\.\\."]),
  ("nothing_added", lambda: ones(3) + None, TypeError, ["cannot use NoneType", "fix: give a number"]),
  ("length_of_a_variable", lambda: list(lengthy()), TypeError, [r"\(n=3\)", "fix: x.vmax"]),
  ("windows_of_a_variable", lambda: lengthy().unfold(0, 4, 1), ValueError, ["do not fit", r"n=3", "fix: "]),
  ("einsum_dims", lambda: Tensor.einsum("ijk->i", ones(2, 3)), ValueError, ["'ijk' names 3", "fix: name 2"]),
  ("clamp_to_nothing", lambda: ones(3).clamp(), ValueError, ["neither", r"fix: .*x.clamp\(0\)"]),
  ("rearrange_parentheses", lambda: ones(3).rearrange("(a -> a"), ValueError, [r"'\(a", "fix: close"]),
  ("pad_reflected_by_much", lambda: ones(3).pad((3, 0), mode="reflect"), ValueError, ["at most 2", "fix: less"]),
  ("no_chunks", lambda: ones(3).chunk(0), ValueError, ["chunk", "got 0", "fix: give 1"]),
  ("diagonal_of_one_dim", lambda: ones(3, 3).diagonal(0, 1, 1), ValueError, ["are both 1", "fix: .*dim2=1"]),
  ("shrink_outside", lambda: ones(3).shrink(((1, 5),)), ValueError, [r"\(1, 5\)", r"fix: .*\(0, 3\)"]),
  ("roll_without_dims", lambda: ones(3, 3).roll((1, 2)), ValueError, [r"\(1, 2\)", "fix: dims="]),
  (
    "conv_padding",
    lambda: ones(1, 3, 5, 5).conv2d(ones(2, 3, 3, 3), padding=(1, 1, 1)),
    ValueError,
    [r"\(1, 1, 1\)", r"fix: padding=\(0, 0\)"],
  ),
  ("interpolate_to_nothing", lambda: ones(1, 1, 3).interpolate((0,)), ValueError, [r"\(0,\)", r"fix: size=\(3,\)"]),
  ("dropout_of_all_and_more", lambda: ones(3).dropout(1.5), ValueError, ["got 1.5", "fix: p=0.5"]),
  ("smoothing", lambda: logits().cross_entropy(Tensor([0, 1]), label_smoothing=2.0), ValueError, ["got 2.0", "fix: "]),
  ("random_shape", lambda: Tensor.rand(-2), ValueError, [r"-2", "fix: "]),
  ("randint_of_floats", lambda: Tensor.randint(3, low=0.5, high=2), TypeError, ["0.5", "fix: .*uniform"]),
  ("multinomial_of_none", lambda: ones(3).multinomial(0), ValueError, ["0 samples", "fix: .*num_samples=1"]),
  ("no_groups", lambda: nn.GroupNorm(0, 4), ValueError, ["into 0 groups", "fix: .*e.g. 1"]),
  ("groups_that_do_not_divide", lambda: nn.GroupNorm(3, 4), ValueError, ["4 channels", "3 groups", "fix: "]),
  ("length_of_a_number", lambda: len(Tensor(1.0)), TypeError, ["0-d", r"fix: x.reshape\(1\)"]),
  ("int_of_inf", lambda: Tensor.full((2,), float("inf"), dtype="int32"), ValueError, ["inf", "fix: a finite"]),
  ("complex_array", lambda: Tensor(np.ones(2, np.complex64)), TypeError, ["complex64", "fix: array.astype"]),
  ("cat_of_none", lambda: Tensor.cat([]), ValueError, ["cat: no tensors", "fix: "]),
  ("stack_of_none", lambda: Tensor.stack([]), ValueError, ["stack: no tensors", "fix: "]),
  ("stack_with_a_number", lambda: ones(2).stack(3), TypeError, ["stack: cannot join int", r"fix: .*Tensor\(x\)"]),
  ("cat_of_numbers", lambda: Tensor.cat([1, ones(2)]), TypeError, ["cat: cannot join int", r"fix: .*Tensor\(x\)"]),
  ("repeat_negative", lambda: ones(2, 3).repeat(2, -1), ValueError, [r"repeat: \(2, -1\)", "fix: .*0"]),
  ("interleave_negative", lambda: ones(2).repeat_interleave(-1), ValueError, ["repeat_interleave: .*-1", "fix: .*0"]),
  ("arange_to_inf", lambda: Tensor.arange(float("inf")), ValueError, ["arange: .*inf", "fix: finite"]),
  ("arange_to_nan", lambda: Tensor.arange(0, float("nan")), ValueError, ["arange: .*nan", "fix: finite"]),
  ("linspace_of_half_a_step", lambda: Tensor.linspace(0, 1, 2.5), TypeError, ["linspace: .*2.5", "fix: .*integer"]),
  ("triangle_of_a_vector", lambda: ones(3).tril(), ValueError, ["tril: needs matrices", r"\[3\]", "fix: "]),
  ("upper_triangle_of_a_number", lambda: Tensor(1.0).triu(), ValueError, ["triu: needs matrices", "fix: "]),
  ("replace_by_a_number", lambda: ones(2).replace(3), TypeError, ["replace: .*not int", r"fix: .*assign"]),
  ("nll_loss_of_a_vector", lambda: ones(3).nll_loss(Tensor(1)), ValueError, ["nll_loss: .*classes", r"\[3\]", "fix: "]),
  ("einsum_with_a_number", lambda: Tensor.einsum("i,->i", ones(2), 3), TypeError, ["einsum: .*int", r"fix: Tensor\("]),
  ("einsum_of_a_number", lambda: Tensor.einsum("", 3), TypeError, ["einsum: .*int", r"fix: Tensor\("]),
  ("scatter_of_a_word", lambda: ones(2).scatter(0, Tensor([0]), "a"), TypeError, ["scatter: .*str", "fix: "]),
  (
    "selected_by_numbers",
    lambda: ones(3).masked_select(Tensor([0, 2, 1])),
    TypeError,
    ["masked_select: the mask must be a bool tensor", r"int32\[3\]", r"fix: .*!= 0"],
  ),
  ("convolution_without_a_kernel", lambda: nn.Conv2d(3, 4, 0), ValueError, ["Conv2d: .*kernel_size", "fix: "]),
  ("convolution_in_groups", lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, ["Conv2d: .*groups=2", "fix: .*1"]),
  ("convolution_out_of_groups", lambda: nn.Conv2d(4, 3, 3, groups=2), ValueError, ["Conv2d: .*groups=2", "fix: .*1"]),
  ("no_groups_of_a_convolution", lambda: nn.Conv1d(4, 3, 3, groups=0), ValueError, ["Conv2d: .*groups=0", "fix: "]),
  (
    "transposed_in_groups",
    lambda: nn.ConvTranspose2d(4, 3, 3, groups=2),
    ValueError,
    ["ConvTranspose2d: .*groups=2", "fix: .*1"],
  ),
  ("jvp_of_a_tensor", lambda: jvp(lambda x: x, logits(), logits()), TypeError, ["jvp: .*tuple", r"fix: .*\(x,\)"]),
  ("norm_of_one_feature", lambda: nn.RMSNorm(4)(ones(2, 1)), ValueError, ["RMSNorm.*4 features", r"\[2, 1\]", "fix: "]),
  (
    "norm_over_dims",
    lambda: nn.LayerNorm((3, 4))(ones(2, 4)),
    ValueError,
    [r"over \(3, 4\)", r"fix: x of.*\.\., 3, 4\)"],
  ),
  ("norm_of_one_channel", lambda: nn.GroupNorm(1, 4)(ones(2, 1, 3)), ValueError, ["GroupNorm.*4 channels", "fix: "]),
  ("norm_of_other_channels", lambda: nn.InstanceNorm(4)(ones(2, 6, 3)), ValueError, ["InstanceNorm.*4 ch", "fix: "]),
  (
    "labels_of_floats",
    lambda: logits().cross_entropy(Tensor([0.0, 1.0])),
    TypeError,
    [r"float32\[2\]", r"fix: .*Y.int"],
  ),
  ("labels_of_floats_in_nll", lambda: logits().nll_loss(Tensor([0.0, 1.0])), TypeError, ["nll_loss", r"fix: .*Y.int"]),
  ("labels_too_few", lambda: ones(4, 3).nll_loss(Tensor([2])), ValueError, ["nll_loss.*dim 1", r"fix: .*\(4,\)"]),
  ("labels_too_few_of_logits", lambda: ones(4, 3).cross_entropy(Tensor([2])), ValueError, ["dim 1", r"fix: .*\(4,\)"]),
  ("layers_with_none", lambda: ones(2).sequential([None]), TypeError, ["element 0 is None", "fix: .*callable"]),
  ("layers_that_are_one", lambda: ones(2).sequential(nn.Linear(2, 2)), TypeError, ["Linear", r"fix: .*\(\[f, g\]\)"]),
  ("layer_not_made", lambda: ones(2).sequential([nn.Linear]), TypeError, ["the class Linear", r"fix: Linear\(\.\.\)"]),
  ("captured_number", lambda: TinyJit(3), TypeError, ["not 3", r"fix: TinyJit\(f\)"]),
  (
    "mapped_array",
    lambda: vmap(lambda a: a)(np.ones(3)),
    TypeError,
    [r"ndarray \(3,\) is no Tensor", r"fix: Tensor\(x\)"],
  ),
  (
    "array_beside",
    lambda: vmap(lambda a, b: a + Tensor(b))(ones(3, 3), np.ones(3)),
    TypeError,
    ["would not be mapped"],
  ),
  (
    "gradient_of_an_item",
    lambda: grad(lambda x: (x * x).sum().item())(ones(3)),
    ValueError,
    ["returns 3.0", "without .item"],
  ),
  ("unknown_setting", lambda: Context(DEBUGG=2), ValueError, ["'DEBUGG'", "fix: DEBUG"]),
]


@pytest.mark.parametrize(("make", "kind", "parts"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistake_raises_at_the_call(make, kind, parts):
  with pytest.raises(kind) as caught:
    make()
  for part in parts:
    assert caught.match(part)


def test_cat_and_stack_take_tensors_or_one_list_of_them():
  a, b = ones(2), ones(2) * 2
  assert Tensor.cat([a, b]).tolist() == Tensor.cat(a, b).tolist() == [1, 1, 2, 2]
  assert Tensor.cat((a.reshape(1, 2), b.reshape(1, 2)), dim=1).tolist() == [[1, 1, 2, 2]]
  assert Tensor.stack([a, b], dim=1).tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("cut", [lambda x: x.split(2), lambda x: x.split([1, 1]), lambda x: x.chunk(2)])
def test_a_dim_of_variable_length_has_no_number_of_parts_and_the_fix_has(cut):
  with pytest.raises(ValueError, match=r"depends on a variable(.|\n)*float32\[n=3, 2\]") as e:
    cut(lengthy())
  first, second = eval(str(e.value).partition("fix: ")[2], {"x": lengthy()})
  assert first.numpy().tolist() + second.numpy().tolist() == [[1, 1]] * 3


def test_the_truth_of_a_length_is_not_known():
  with pytest.raises(ValueError, match=r"the truth of CMPLT is not known before it runs\n  fix: compare x.vmin"):
    bool(lengthy().shape[0] < 3)


def truth(x):
  return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
  "traced",
  [
    lambda x: vmap(truth)(x),
    lambda x: scan(lambda c, y: (c, truth(y)), Tensor.ones(1), x),
  ],
)
def test_the_truth_of_what_nobody_knows_yet(traced):
  with pytest.raises(TypeError, match=r"the truth of a tensor is not defined\n  fix: \(x > 0\).where\(a, b\)") as e:
    traced(ones(3, 4))
  names = {"x": Tensor([1.0, -1.0]), "a": 2.0, "b": 3.0}
  assert eval(str(e.value).partition("fix: ")[2].partition(" chooses")[0], names).tolist() == [2, 3]
  f, g = (lambda x: x * 2), (lambda x: x * 3)
  assert vmap(lambda x: cond(x.sum() > 0, f, g, x))(Tensor([[1.0], [-1.0]])).tolist() == [[2], [-3]]
  with pytest.raises(TypeError, match=r"fix: use x.item\(\)"):
    bool(Tensor([1.0]))


def test_a_shard_error_names_the_users_line():
  a, b = ones(4).shard(D2, axis=0), ones(4).shard(("CPU:2", "CPU:3"), axis=0)
  with pytest.raises(ShardError, match=r"test_user_mistakes.py:\d+: _ = a \* b"):
    _ = a * b


def test_reshard_0_forbids_an_implied_move_and_names_the_fix():
  a, b = ones(8, 8).shard(D2, axis=0).realize(), ones(8, 8).shard(D2, axis=1).realize()
  with Context(RESHARD=0), pytest.raises(ShardError, match=r"(?s)src\[0\].*src\[1\].*fix: "):
    _ = a + b
  assert (a + b).numpy().tolist() == (2 * np.ones((8, 8))).tolist()


def test_a_jit_that_captures_nothing_says_so():
  step = TinyJit(lambda x: None)
  with pytest.raises((RuntimeError, ValueError), match="(?i)nothing|no kernel|capture"):
    for _ in range(3):
      step(ones(2).realize())


def test_unknown_context_variables_are_named():
  with pytest.raises(ValueError, match="unknown context variable 'DEBUGG'"):
    Context(DEBUGG=2)


@pytest.mark.parametrize(
  ("key", "value"),
  [
    ("DEFAULT_FLOAT", "float99"),
    ("DEFAULT_FLOAT", "int32"),
    ("DEFAULT_INT", "half"),
    ("REDUCE_DTYPE", "foo"),
    ("REDUCE_DTYPE", "int32"),
  ],
)
def test_a_type_of_a_setting_that_is_none_is_named(key, value):
  """Where it is set: partial sums of halves in integers were wrong without a word."""
  message = f"{key}: '{value}' is none of dtypes.{'ints' if key == 'DEFAULT_INT' else 'floats'}.*fix: {key}="
  with pytest.raises(ValueError, match=f"(?s){message}"):
    Context(**{key: value})
  code = "import tinygrad"
  said = subprocess.run([sys.executable, "-c", code], env={**os.environ, key: value}, capture_output=True, text=True)
  assert re.search(message, said.stderr, re.DOTALL), said.stderr
  before = dtypes.default_float
  with pytest.raises(ValueError, match="fix: "):
    dtypes.default_float = dtypes.int32
  assert dtypes.default_float is before


@pytest.mark.parametrize("key", ["DEBUG", "BEAM", "SPEC", "BEAM_SECONDS"])
def test_a_setting_that_is_no_number_is_named(key):
  with pytest.raises(ValueError, match=f"(?s){key}='2' is no number.*fix: {key}="):
    Context(**{key: "2"})


def test_after_an_error_everything_goes_on():
  before = Device.DEFAULT
  with pytest.raises(ShardError):
    ones(4, 4).shard(D2, axis=2)
  assert ones(4, 4).shard(D2, axis=1).sum().item() == 16 and Sharding(D2, 0).axis == 0 and Device.DEFAULT == before


IMAGE, FOUR = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), np.arange(4, dtype=np.float32)
OF_INTEGERS = {
  "arange": lambda n: Tensor.arange(n(1), n(7), n(2)),
  "eye": lambda n: Tensor.eye(n(3)),
  "full": lambda n: Tensor.full((n(2),), n(3)),
  "randint": lambda n: Tensor.randint(n(3), low=n(5), high=n(6)),
  "randperm": lambda n: Tensor.randperm(n(1)),
  "one_hot": lambda n: Tensor([1, 0]).one_hot(n(3)),
  "pad": lambda n: Tensor(FOUR).pad((n(1), n(2))),
  "pad pairs": lambda n: Tensor(FOUR).pad(((n(1), n(2)),)),
  "shrink": lambda n: Tensor(FOUR).shrink(((n(1), n(3)),)),
  "split": lambda n: Tensor(FOUR).split(n(3))[0],
  "chunk": lambda n: Tensor(FOUR).chunk(n(2))[1],
  "roll": lambda n: Tensor(FOUR).roll(n(1), n(0)),
  "squeeze": lambda n: Tensor(IMAGE).squeeze(n(0)),
  "unfold": lambda n: Tensor(FOUR).unfold(n(0), n(2), n(1)),
  "diagonal": lambda n: Tensor(IMAGE).diagonal(n(1), n(2), n(3)),
  "avg_pool2d": lambda n: Tensor(IMAGE).avg_pool2d(n(2), stride=n(1), padding=n(1)),
  "max_pool2d": lambda n: Tensor(IMAGE).max_pool2d(n(2), dilation=n(2), ceil_mode=True),
  "conv2d": lambda n: Tensor(IMAGE).conv2d(Tensor(IMAGE), padding=n(1), stride=n(2), dilation=n(1), groups=n(1)),
  "conv_transpose2d": lambda n: Tensor(IMAGE).conv_transpose2d(Tensor(IMAGE), stride=n(2), output_padding=n(1)),
  "interpolate": lambda n: Tensor(IMAGE).interpolate((n(2), n(3))),
  "lerp": lambda n: Tensor(FOUR).lerp(Tensor(FOUR) + 1, n(1)),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_of_numpy_are_integers(name):
  """As of shapes that were computed. They were AttributeErrors, and integers that are "not iterable"."""
  got, want = OF_INTEGERS[name](np.int64), OF_INTEGERS[name](int)
  assert got.dtype is want.dtype and got.tolist() == want.tolist()
  assert all(type(n) is int for n in got.shape)


def test_layers_take_integers_of_numpy():
  assert nn.Conv2d(np.int64(1), 2, np.int64(3))(Tensor(IMAGE)).shape == (1, 2, 2, 2)


NO_TENSORS = {
  "gather: index=3": lambda x: x.gather(0, 3),
  "scatter: index=3": lambda x: x.scatter(0, 3, 1.0),
  "scatter_reduce: src=1.0": lambda x: x.scatter_reduce(0, Tensor([0]), 1.0, "sum"),
  "lerp: end=3": lambda x: x.lerp(3, 0.5),
  "masked_select: mask=True": lambda x: x.masked_select(True),
  "masked_fill: mask=True": lambda x: x.masked_fill(True, 1),
  "linear: weight=2": lambda x: x.linear(2),
  "conv2d: weight=None": lambda x: Tensor(IMAGE).conv2d(None),
  "conv2d: bias=0": lambda x: Tensor(IMAGE).conv2d(Tensor(IMAGE), 0),
  "batchnorm: mean=0": lambda x: x.reshape(2, 2).batchnorm(None, None, 0, 1),
  "binary_crossentropy: Y=1": lambda x: x.binary_crossentropy(1),
  "cross_entropy: Y=1": lambda x: x.reshape(2, 2).cross_entropy(1),
  "sparse_categorical_crossentropy: Y=": lambda x: x.reshape(2, 2).sparse_categorical_crossentropy([0, 1]),
  "nll_loss: Y=": lambda x: x.reshape(2, 2).nll_loss(np.array([0, 1])),
  "scaled_dot_product_attention: value=None": lambda x: x.reshape(2, 2).scaled_dot_product_attention(x, value=None),
}


@pytest.mark.parametrize("message", NO_TENSORS)
def test_what_is_no_tensor_where_one_is_meant_is_named(message):
  """They were AttributeErrors of the inside."""
  with pytest.raises(TypeError, match=f"(?s){re.escape(message)}.* and no Tensor.*fix: Tensor\\("):
    NO_TENSORS[message](Tensor(FOUR))


LAYERS = {
  "Linear: x": nn.Linear(2, 2),
  "Conv2d: x": nn.Conv2d(1, 1, 1),
  "ConvTranspose2d: x": nn.ConvTranspose2d(1, 1, 1),
  "Embedding: idx": nn.Embedding(4, 2),
  "LayerNorm: x": nn.LayerNorm(2),
  "LayerNorm2d: x": nn.LayerNorm2d(2),
  "RMSNorm: x": nn.RMSNorm(2),
  "GroupNorm: x": nn.GroupNorm(1, 2),
  "BatchNorm: x": nn.BatchNorm(2),
  "LSTMCell: x": nn.LSTMCell(2, 2),
}


@pytest.mark.parametrize("message", LAYERS)
@pytest.mark.parametrize("x", [np.ones((1, 2)), [[1, 2]], 3.0])
def test_what_is_no_tensor_for_a_layer_is_named(message, x):
  """They were AttributeErrors of the inside."""
  name = message.rpartition(" ")[2]
  for call in (lambda: LAYERS[message](x), lambda: LAYERS[message](**{name: x})):
    with pytest.raises(TypeError, match=f"(?s){message}=.* of type {type(x).__name__}, and no Tensor") as said:
      call()
    assert str(said.value).endswith(f"fix: Tensor({name})")


def test_fixes_of_labels_work():
  x, labels = Tensor.arange(24).reshape(4, 3, 2).float(), Tensor([[0, 1], [1, 2], [2, 0], [0, 0]])
  want = x.cross_entropy(labels).item()
  for Y in (labels.float(), labels.reshape(4, 1, 2), labels.flatten(), labels.T):
    for loss in (x.cross_entropy, x.log_softmax(1).nll_loss):
      with pytest.raises((TypeError, ValueError), match="class numbers") as said:
        loss(Y)
      fix = str(said.value).partition("fix: ")[2].rpartition(": ")[2]
      if Y.shape == labels.T.shape:  # in another order, which no reshape gives
        assert "reshape" not in fix and "(4, 2)" in fix
      else:
        np.testing.assert_allclose(loss(eval(fix, {"Y": Y})).item(), want, rtol=1e-6)


NO_LOSS = {
  "accuracy": lambda x, Y: (x.argmax(1) == Y).float().mean(),
  "a comparison": lambda x, Y: (x > 0).float().sum(),
  "integers": lambda x, Y: x.int().float().sum(),
}


@pytest.mark.parametrize("name", NO_LOSS)
def test_what_has_no_gradient_but_zeros_is_no_loss(name):
  """It was learned from in silence: nothing ever changed."""
  x, Y = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), Tensor([0, 1])
  with pytest.raises(RuntimeError, match=r"by integers and bools alone(.|\n)*float32\[\](.|\n)*fix: ") as said:
    NO_LOSS[name](x, Y).backward()
  assert x.grad is None
  eval(str(said.value).rpartition("e.g. ")[2], {"x": x, "Y": Y}).backward()
  assert np.abs(x.grad.numpy()).min() > 0.1
  x.grad = None
  x.round().sum().backward()  # a float of floats: flat almost everywhere
  (x * (x > 1.5)).sum().backward()
  assert x.grad.tolist() == [[0, 1], [1, 1]]


COUNTS = {
  "x[mask]": lambda x: x[x > 0],
  "masked_select": lambda x: x.masked_select(x > 0),
  "nonzero": lambda x: (x > 0).nonzero(),
}
COUNTED_IN = {
  "vmap": vmap,
  "scan": lambda f: lambda x: scan(lambda c, row: (c, f(row)), Tensor.ones(1), x)[1],
  "TinyJit": TinyJit,
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("how", COUNTED_IN)
def test_shapes_that_depend_on_values_where_there_are_none(name, how):
  f, data = COUNTED_IN[how](COUNTS[name]), Tensor([[1.0, -1.0], [-2.0, 3.0]]).realize()
  with pytest.raises(JitError, match="how many elements of bool.* a shape cannot depend on values") as said:
    for _ in range(2):
      f(data)
  fixes = str(said.value).partition("fix: ")[2].replace("or ", "")
  chosen, places, whole = eval(fixes, {"mask": data > 0, "x": data, "n": 3})
  assert chosen.tolist() == [1, 3, 0] and places.tolist() == [[0, 0], [1, 1], [0, 0]]
  assert whole.tolist() == [[1, 0], [0, 3]]


def test_the_truth_within_a_step_is_chosen_by_where():
  f = TinyJit(lambda x: (x + 1 if x.sum() > 0 else x).realize())
  with pytest.raises(TypeError, match=r"fix: \(x > 0\).where\(a, b\)"):
    f(Tensor([1.0]))
  g = TinyJit(lambda x: (x + 1 if x.sum().item() > 0 else x).realize())
  g(Tensor([1.0]))
  with pytest.raises(RuntimeError, match=r"is being captured(.|\n)*fix: .*inside: \(x > 0\).where\(a, b\)"):
    g(Tensor([1.0]))


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda x: x.sum(0).cumsum(1.5), "dim 1.5 is a float, and no integer.*fix: give one dim"),
    (lambda x: x.cat(x, dim="0"), "dim '0' is a str, and no integer.*fix: give one dim"),
    (lambda x: x.sort(None), "dim None is a NoneType, and no integer.*fix: give one dim"),
    (lambda x: x.split(1.5), "1.5 is a float, where an integer is meant.*fix: give an integer, or one for each dim"),
    (lambda x: x.max_pool2d(2, stride=1.5), "1.5 is a float, where an integer is meant.*fix: give an integer"),
    (lambda x: x.conv2d(x, padding=0.5), "0.5 is a float, where an integer is meant.*fix: give an integer"),
    (lambda x: x.topk(1.5), "1.5 is a float, where an integer is meant.*fix: give an integer"),
    (lambda x: x[0, 0].multinomial("2"), "'2' is a str, where an integer is meant.*fix: give an integer"),
    (lambda x: Tensor.eye("2"), "'2' in .* is a str.*fix: give integers"),
    (lambda x: x.rearrange("a b (c d) e -> a b c d e", c="2"), "'2' in .* is a str.*fix: give integers"),
    (lambda x: x.rearrange(3), "rearrange: a formula of dims is a string, not 3 of type int.*fix: e.g. 'b h w"),
    (lambda x: Tensor.einsum(x, x), "einsum: a formula of dims is a string, not <Tensor.*fix: e.g. 'ij,jk->ik'"),
    (lambda x: Tensor.arange("2"), "arange: '2' is of type str, and no number.*fix: give numbers"),
    (lambda x: x[0, 0, 0].meshgrid(3), "meshgrid: 3 is of type int, and no Tensor.*fix: Tensor"),
    (lambda x: x.shrink(3), r"shrink: needs ranges of dims, 3 is none.*fix: x.shrink\(\(\(0, "),
    (lambda x: x[0, 0].shrink(((0, 1), 3)), r"shrink: 3 is no pair.*fix: \(\(0, .*None for a dim as it is"),
    (lambda x: x[0, 0].pad(((0, 1), (1, 2, 3))), r"pad: \(1, 2, 3\) is no pair.*fix: \(\(0, 0\), .*None for a dim"),
  ],
)
def test_what_is_no_integer_where_one_is_meant_is_named(make, message):
  with pytest.raises(TypeError, match=f"(?s){message}"):
    make(Tensor(IMAGE))


@pytest.mark.parametrize(
  "make",
  [
    lambda x: x.avg_pool2d(2, stride=0, ceil_mode=True),
    lambda x: x.conv_transpose2d(x, stride=0),
    lambda x: x.conv_transpose2d(x, stride=-1),
    lambda x: x.conv_transpose2d(x, groups=0),
    lambda x: x.softplus(0),
  ],
)
def test_steps_that_are_not_positive_are_named(make):
  """They were ZeroDivisionErrors."""
  with pytest.raises(ValueError, match="(?s)(must be positive|must not be 0|c a multiple of groups).*fix: "):
    make(Tensor(IMAGE))


def test_integers_of_arrays_are_dims():
  x = Tensor(IMAGE)
  assert x.reshape(np.array(x.shape[::-1])).shape == x.shape[::-1]
  assert x.permute(np.array([3, 2, 1, 0])).shape == x.shape[::-1]
  assert x.flatten().unflatten(0, np.array(x.shape)).shape == x.shape
  assert x.sum(np.array([0, 1])).shape == x.shape[2:] and x.sum(np.array(1)).ndim == x.ndim - 1


def test_labels_to_be_left_out_are_no_mistake():
  """The fixes that the errors name; labels that were computed are as they were: they have loss 0, and count."""
  alone = logits()[:1].cross_entropy(Tensor([0])).item()
  assert logits().sparse_categorical_crossentropy(Tensor([0, -100]), ignore_index=-100).item() == alone
  assert logits().log_softmax().nll_loss(Tensor([0, 5]), ignore_index=5).item() == alone
  assert logits().sparse_categorical_crossentropy(Tensor([0, -1])).item() == alone
  np.testing.assert_allclose(logits().cross_entropy(Tensor([0, 5]).realize()).item(), alone / 2, rtol=1e-6)
  assert Tensor.zeros(0, 3).cross_entropy(Tensor(np.zeros(0, np.int32)), reduction="sum").item() == 0


MANY = 10_000


@pytest.mark.parametrize(
  "make",
  [
    lambda: Tensor([[1, 2]] * MANY + [[3]]),
    lambda: Tensor([10**30] * MANY + [None], dtype="float32"),
    lambda: ones(3)[["a"] * MANY],
    lambda: ones(3).split([1] * MANY),
  ],
  ids=["lengths", "numbers", "index", "sizes"],
)
def test_a_message_does_not_hold_all_the_data(make):
  with pytest.raises((ValueError, TypeError, IndexError), match="(?s)fix: ") as caught:
    make()
  assert len(str(caught.value)) < 400
