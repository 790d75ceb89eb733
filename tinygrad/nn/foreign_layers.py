"""What modules of torch.nn, its optimizers and their schedules are called that have no namesake here: an AttributeError
names it."""

from collections.abc import Mapping
from typing import NoReturn

from tinygrad.mixin.foreign_names import with_fix

# x, y, z tensors, logits and labels those of a loss, layer one of this package; c, d channels, p a probability, k a
# window; devices names. test/nn/test_foreign_layers.py runs each line.
FOREIGN_LAYERS = {
  "AdaptiveAvgPool2d": "x.mean((-2, -1), keepdim=True)",
  "AdaptiveMaxPool2d": "x.max((-2, -1), keepdim=True)",
  "AvgPool1d": "x.avg_pool2d((k,))",
  "AvgPool2d": "x.avg_pool2d(k)",
  "AvgPool3d": "x.avg_pool2d((k, k, k))",
  "BCELoss": "x.sigmoid().binary_crossentropy(y)",
  "BCEWithLogitsLoss": "x.binary_crossentropy_logits(y)",
  "BatchNorm1d": "nn.BatchNorm(c)",
  "CELU": "x.celu()",
  "CTCLoss": "nothing does the same in a line: write the recursion over frames as a scan",
  "CircularPad2d": 'x.pad((k, k, k, k), mode="circular")',
  "ConstantPad2d": "x.pad((k, k, k, k))",
  "Conv3d": "nn.Conv2d(c, d, (k, k, k))",
  "ConvTranspose3d": "nn.ConvTranspose2d(c, d, (k, k, k))",
  "CosineEmbeddingLoss": "(1 - (x.normalize(dim=1) * y.normalize(dim=1)).sum(1)).mean()  # of pairs that are alike",
  "CosineSimilarity": "(x.normalize(dim=1) * y.normalize(dim=1)).sum(1)",
  "CrossEntropyLoss": "logits.cross_entropy(labels)",
  "DataParallel": "x.shard(devices, axis=0)",
  "Dropout": "x.dropout(p)",
  "Dropout1d": "x * x[..., :1].ones_like().dropout(p)  # whole channels",
  "Dropout2d": "x * x[..., :1, :1].ones_like().dropout(p)  # whole channels",
  "Dropout3d": "x * x[..., :1, :1, :1].ones_like().dropout(p)  # whole channels",
  "ELU": "x.elu()",
  "EmbeddingBag": "rows = weight[i]; x = weight[0].zeros_like().expand(n, -1).scatter_reduce(0, bag.unsqueeze(1)"
  ".expand(rows.shape), rows, 'sum')  # bag: for each i, below n; 'mean', 'amax': include_self=False",
  "Flatten": "x.flatten(1)",
  "GELU": 'x.gelu("none")',
  "GLU": "(parts := x.chunk(2, -1))[0] * parts[1].sigmoid()",
  "GRU": "scan  # of steps as the fix of nn.GRUCell has them",
  "GRUCell": "(ir, iz, i), (hr, hz, hn) = of_x(x).chunk(3, 1), of_h(h).chunk(3, 1); z = (iz + hz).sigmoid();"
  " h = z * h + (1 - z) * (i + (ir + hr).sigmoid() * hn).tanh()  # of_x, of_h: nn.Linear to 3 * d",
  "Hardshrink": "(x.abs() > 0.5).where(x, 0)",
  "Hardsigmoid": "x.hardsigmoid()",
  "Hardswish": "x.hardswish()",
  "Hardtanh": "x.hardtanh()",
  "HuberLoss": "((d := (x - y).abs()) < 1).where(d.square() / 2, d - 0.5).mean()",
  "Identity": "lambda x: x",
  "InstanceNorm1d": "nn.InstanceNorm(c)",
  "InstanceNorm2d": "nn.InstanceNorm(c)",
  "InstanceNorm3d": "nn.InstanceNorm(c)",
  "KLDivLoss": "(y == 0).where(0, y * (y.log() - x)).mean()  # reduction='batchmean': .sum() / x.shape[0]",
  "L1Loss": "(x - y).abs().mean()",
  "LSTM": "nn.LSTMCell(c, d)",
  "LazyConv2d": "nn.Conv2d(x.shape[1], d, k)",
  "LazyLinear": "nn.Linear(x.shape[-1], d)",
  "LeakyReLU": "x.leaky_relu(0.01)",
  "LogSigmoid": "x.logsigmoid()",
  "LogSoftmax": "x.log_softmax(1)",
  "MSELoss": "(x - y).square().mean()",
  "MaxPool1d": "x.max_pool2d((k,))",
  "MaxPool2d": "x.max_pool2d(k)",
  "MaxPool3d": "x.max_pool2d((k, k, k))",
  "Mish": "x.mish()",
  "Module": "object  # a model is any object with tensors",
  "ModuleDict": '{"a": layer}',
  "ModuleList": "[layer, layer]",
  "MultiheadAttention": "x.scaled_dot_product_attention(x, x)",
  "NLLLoss": "logits.log_softmax(1).nll_loss(labels)",
  "PReLU": "(x > 0).where(x, Tensor.full((c, 1, 1), 0.25, requires_grad=True) * x)  # of a weight that the model keeps",
  "PairwiseDistance": "(x - y + 1e-6).square().sum(-1).sqrt()",
  "Parameter": "Tensor.zeros(c, d, requires_grad=True)",
  "ParameterDict": '{"a": Tensor.zeros(c, requires_grad=True)}',
  "ParameterList": "[Tensor.zeros(c, requires_grad=True)]",
  "PixelShuffle": 'x.rearrange("b (c r s) h w -> b c (h r) (w s)", r=k, s=k)',
  "PixelUnshuffle": 'x.rearrange("b c (h r) (w s) -> b (c r s) h w", r=k, s=k)',
  "PoissonNLLLoss": "(x.exp() - y * x).mean()",
  "RNN": "scan  # of steps as the fix of nn.RNNCell has them",
  "RNNCell": "h = (of_x(x) + of_h(h)).tanh()  # of_x, of_h: nn.Linear to d",
  "ReLU": "x.relu()",
  "ReLU6": "x.relu6()",
  "ReflectionPad2d": 'x.pad((k, k, k, k), mode="reflect")',
  "ReplicationPad2d": 'x.pad((k, k, k, k), mode="replicate")',
  "SELU": "x.selu()",
  "Sequential": "x.sequential([layer, Tensor.relu])",
  "SiLU": "x.silu()",
  "Sigmoid": "x.sigmoid()",
  "SmoothL1Loss": "((d := (x - y).abs()) < 1).where(d.square() / 2, d - 0.5).mean()",
  "Softmax": "x.softmax(1)",
  "Softmax2d": "x.softmax(1)",
  "Softmin": "(-x).softmax(1)",
  "Softplus": "x.softplus()",
  "Softshrink": "x.sign() * (x.abs() - 0.5).relu()",
  "Softsign": "x.softsign()",
  "SyncBatchNorm": "nn.BatchNorm(c)  # of a batch that is cut it takes the whole",
  "Tanh": "x.tanh()",
  "Tanhshrink": "x - x.tanh()",
  "Threshold": "(x > p).where(x, 0)",
  "TransformerEncoder": "x.sequential([layer, layer])",
  "TransformerEncoderLayer": "q, k, v = qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4);"
  " x = norm1(x + out(q.scaled_dot_product_attention(k, v).transpose(1, 2).flatten(2)));"
  " x = norm2(x + down(up(x).relu()))  # qkv: nn.Linear(c, 3 * c); out, up, down: nn.Linear; norm1, 2: nn.LayerNorm(c)",
  "TripletMarginLoss": "((x - y).square().sum(-1).sqrt() - (x - z).square().sum(-1).sqrt() + 1).relu().mean()",
  "Unflatten": "x.unflatten(1, (1, c))",
  "Unfold": "x.unfold(2, k, 1).unfold(3, k, 1).permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)",
  "Upsample": "x.interpolate((8, 8))",
  "UpsamplingBilinear2d": "x.interpolate((8, 8), align_corners=True)",
  "UpsamplingNearest2d": 'x.interpolate((8, 8), mode="nearest")',
  "ZeroPad2d": "x.pad((k, k, k, k))",
  "functional": "Tensor  # functions are methods, as x.relu()",
  "init": "Tensor.kaiming_uniform(c, d)",
  "parallel": "x.shard(devices, axis=0)",
}
# optimizer: one of this package
FOREIGN_OPTIMIZERS = {
  "ASGD": "nn.optim.SGD(params)  # a mean of the weights is one that you keep: mean.assign(mean + (w - mean) / n)",
  "Adadelta": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "Adagrad": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "Adamax": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "LBFGS": "nn.optim.SGD(params, momentum=0.9, nesterov=True)  # nothing here evaluates a loss several times a step",
  "NAdam": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "RAdam": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "Rprop": "nn.optim.Adam(params)  # another rule: one of your own is an Optimizer with its `_step`",
  "SparseAdam": "nn.optim.Adam(params)  # a gradient is a whole tensor, zeros for rows that are not looked up",
  "RMSprop": "nn.optim.Adam(params, b1=0.0, b2=0.99)  # which corrects for the start at zero, as RMSprop does not",
  "lr_scheduler": "nn.lr_scheduler",
}
FOREIGN_SCHEDULES = {
  "ConstantLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - (1 - factor) * (n < total_iters));"
  " optimizer.lr = schedule.get_lr()",
  "CosineAnnealingWarmRestarts": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: (1 + (n % t / t * math.pi)"
  ".cos()) / 2)  # t: T_0, with eta_min=0 and T_mult=1",
  "ExponentialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: gamma**n)",
  "LinearLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: start + (1 - start) * n.minimum(total_iters)"
  " / total_iters); optimizer.lr = schedule.get_lr()  # start: start_factor",
  "MultiplicativeLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: gamma**n)  # of a factor that stays",
  "PolynomialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: (1 - n.minimum(total_iters) / total_iters)"
  "**power)",
  "SequentialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: (n < milestone).where(first(n),"
  " second(n - milestone))); optimizer.lr = schedule.get_lr()  # first, second: as LambdaLR takes them",
  "StepLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: gamma ** (n / step_size).floor())",
}
FOREIGN_UTILS = {
  "clip_grad_value_": "for p in params: p.grad = p.grad.clamp(-clip_value, clip_value)",
  "parameters_to_vector": "Tensor.cat(*[p.flatten() for p in params])",
  "rnn": "h = (i < lengths).unsqueeze(1).where(new, h)  # step i of padded sequences: those that ended keep theirs",
  "vector_to_parameters": "for p, part in zip(params, vector.split([p.numel() for p in params])):"
  " p.assign(part.reshape(p.shape))",
  "weight_norm": "w = g * v / v.square().sum(1, keepdim=True).sqrt()  # of a Linear, where g and v are learnt",
}
# what an optimizer has in PyTorch, a schedule, and what its arguments are
OF_OPTIMIZER = {
  "add_param_group": "both = nn.optim.OptimizerGroup(optimizer, nn.optim.SGD(more))",
  "load_state_dict": "nn.state.load_state_dict(optimizer, state, verbose=False)",
  "param_groups": "optimizer.params, optimizer.lr  # groups: nn.optim.OptimizerGroup(optimizer, nn.optim.SGD(more))",
  "state_dict": "nn.state.get_state_dict(optimizer)",
}
OF_SCHEDULE = {
  "get_last_lr": "[schedule.optimizer.lr.item()]",
  "last_epoch": "schedule.epoch_counter.item()",
  "state_dict": "nn.state.get_state_dict(schedule)",
}
_PARAMETERS = "for t in nn.state.get_parameters(layer): "
# state: a state dict, device, dtype what they are
OF_LAYER = {
  "bfloat16": f"{_PARAMETERS}t.replace(t.cast(dtypes.bfloat16))",
  "cpu": f'{_PARAMETERS}t.to_("CPU")',
  "cuda": f'{_PARAMETERS}t.to_("CUDA")',
  "double": f"{_PARAMETERS}t.replace(t.cast(dtypes.float64))",
  "eval": "Tensor.training = False  # of all layers",
  "forward": "layer(x)",
  "half": f"{_PARAMETERS}t.replace(t.cast(dtypes.float16))",
  "load_state_dict": "nn.state.load_state_dict(layer, state, verbose=False)",
  "named_parameters": "nn.state.get_state_dict(layer).items()",
  "parameters": "nn.state.get_parameters(layer)",
  "requires_grad_": f"{_PARAMETERS}t.requires_grad = False",
  "state_dict": "nn.state.get_state_dict(layer)",
  "to": f"{_PARAMETERS}t.to_(device)",
  "train": "Tensor.training = True  # of all layers; or within `with Tensor.train():`",
  "zero_grad": "optimizer.zero_grad()",
}
LAYER_OPTIONS = {
  "device": f"{_PARAMETERS}t.to_(device)  # of the layer",
  "dtype": f"{_PARAMETERS}t.replace(t.cast(dtype))  # of the layer",
  "padding_mode": 'x.pad((k, k, k, k), mode="reflect")  # before a layer without padding',
}
OF_EMBEDDING = {
  "padding_idx": "nn.Embedding(vocab_size, embed_size)(i) * (i != padding_idx).unsqueeze(-1)  # zeros",
}
OPTIONS = {
  "amsgrad": "nn.optim.Adam(params)  # nothing here keeps the greatest second moment",
  "betas": "nn.optim.Adam(params, b1=betas[0], b2=betas[1])",
  "dampening": "nn.optim.SGD(params, momentum=0.9)  # no part of the gradient is left out",
  "foreach": "nn.optim.Adam(params)  # the scheduler decides which updates share a kernel",
  "maximize": "(-loss).backward()",
  "weight_decay": "for p in params: p.grad = p.grad + weight_decay * p.detach()  # before the step",
}


def no_such(problem: str, name: str, fixes: Mapping[str, str]) -> NoReturn:
  """An AttributeError, with what does here what that does in PyTorch."""
  raise AttributeError(with_fix(problem, fixes.get(name)), name=name)
