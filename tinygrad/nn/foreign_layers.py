"""What modules of torch.nn, its optimizers and their schedules are called that have no namesake here: an AttributeError
names it."""

from collections.abc import Mapping
from typing import NoReturn

from tinygrad.mixin.foreign_names import with_fix

# x, y tensors, logits and labels those of a loss, layer one of this package; c, d channels, p a probability, k a
# window; devices names. test/nn/test_foreign_layers.py runs each line.
FOREIGN_LAYERS = {
  "AdaptiveAvgPool2d": "x.mean((-2, -1), keepdim=True)",
  "AvgPool1d": "x.avg_pool2d((k,))",
  "AvgPool2d": "x.avg_pool2d(k)",
  "BCELoss": "x.sigmoid().binary_crossentropy(y)",
  "BCEWithLogitsLoss": "x.binary_crossentropy_logits(y)",
  "BatchNorm1d": "nn.BatchNorm(c)",
  "CTCLoss": "nothing does the same in a line: write the recursion over frames as a scan",
  "Conv3d": "nn.Conv2d(c, d, (k, k, k))",
  "ConvTranspose3d": "nn.ConvTranspose2d(c, d, (k, k, k))",
  "CrossEntropyLoss": "logits.cross_entropy(labels)",
  "DataParallel": "x.shard(devices, axis=0)",
  "Dropout": "x.dropout(p)",
  "ELU": "x.elu()",
  "EmbeddingBag": "rows = weight[i]; x = weight[0].zeros_like().expand(n, -1).scatter_reduce(0, bag.unsqueeze(1)"
  ".expand(rows.shape), rows, 'sum')  # bag: for each i, below n; 'mean', 'amax': include_self=False",
  "Flatten": "x.flatten(1)",
  "GELU": "x.gelu()",
  "GRU": "scan  # of steps as the fix of nn.GRUCell has them",
  "GRUCell": "(ir, iz, i), (hr, hz, hn) = of_x(x).chunk(3, 1), of_h(h).chunk(3, 1); z = (iz + hz).sigmoid();"
  " h = z * h + (1 - z) * (i + (ir + hr).sigmoid() * hn).tanh()  # of_x, of_h: nn.Linear to 3 * d",
  "Hardswish": "x.hardswish()",
  "Identity": "lambda x: x",
  "InstanceNorm1d": "nn.InstanceNorm(c)",
  "InstanceNorm2d": "nn.InstanceNorm(c)",
  "InstanceNorm3d": "nn.InstanceNorm(c)",
  "KLDivLoss": "(y == 0).where(0, y * (y.log() - x)).mean()  # reduction='batchmean': .sum() / x.shape[0]",
  "L1Loss": "(x - y).abs().mean()",
  "LSTM": "nn.LSTMCell(c, d)",
  "LeakyReLU": "x.leaky_relu(0.01)",
  "LogSoftmax": "x.log_softmax(1)",
  "MSELoss": "(x - y).square().mean()",
  "MaxPool1d": "x.max_pool2d((k,))",
  "MaxPool2d": "x.max_pool2d(k)",
  "Mish": "x.mish()",
  "Module": "object  # a model is any object with tensors",
  "ModuleList": "[layer, layer]",
  "MultiheadAttention": "x.scaled_dot_product_attention(x, x)",
  "NLLLoss": "logits.log_softmax(1).nll_loss(labels)",
  "Parameter": "Tensor.zeros(c, d, requires_grad=True)",
  "ReLU": "x.relu()",
  "SiLU": "x.silu()",
  "Sequential": "x.sequential([layer, Tensor.relu])",
  "Sigmoid": "x.sigmoid()",
  "Softmax": "x.softmax(1)",
  "Softplus": "x.softplus()",
  "Tanh": "x.tanh()",
  "TransformerEncoderLayer": "q, k, v = qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4);"
  " x = norm1(x + out(q.scaled_dot_product_attention(k, v).transpose(1, 2).flatten(2)));"
  " x = norm2(x + down(up(x).relu()))  # qkv: nn.Linear(c, 3 * c); out, up, down: nn.Linear; norm1, 2: nn.LayerNorm(c)",
  "Upsample": "x.interpolate((8, 8))",
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
  "ExponentialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: gamma**n)",
  "LinearLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: start + (1 - start) * n.minimum(total_iters)"
  " / total_iters); optimizer.lr = schedule.get_lr()  # start: start_factor",
  "PolynomialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: (1 - n.minimum(total_iters) / total_iters)"
  "**power)",
  "SequentialLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: (n < milestone).where(first(n),"
  " second(n - milestone))); optimizer.lr = schedule.get_lr()  # first, second: as LambdaLR takes them",
  "StepLR": "schedule = nn.lr_scheduler.LambdaLR(optimizer, lambda n: gamma ** (n / step_size).floor())",
}
FOREIGN_UTILS = {
  "clip_grad_value_": "for p in params: p.grad = p.grad.clamp(-clip_value, clip_value)",
  "parameters_to_vector": "Tensor.cat(*[p.flatten() for p in params])",
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
