"""Models of images, one step of training each: from LeNet to vision transformers, detectors and segmentation."""

from common import integers, normal, one_step, report

from tinygrad import Tensor, nn


def conv_bn(i, o, kernel=3, stride=1, groups=1, act=Tensor.relu):
  return [nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm(o), act]


def identity(x):
  return x


class LeNet:
  def __init__(self):
    self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
    self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

  def __call__(self, x):
    x = self.c2(self.c1(x).tanh().avg_pool2d()).tanh().avg_pool2d().flatten(1)
    return self.f3(self.f2(self.f1(x).tanh()).tanh())


class VGG:
  def __init__(self):
    self.blocks = [[*conv_bn(3, 8), *conv_bn(8, 8)], [*conv_bn(8, 16), *conv_bn(16, 16)]]
    self.head = [nn.Linear(64, 32), Tensor.relu, nn.Linear(32, 10)]

  def __call__(self, x):
    for block in self.blocks:
      x = x.sequential(block).max_pool2d()
    return x.flatten(1).sequential(self.head)


class Bottleneck:
  """ResNeXt's: grouped 3x3 between 1x1 convolutions."""

  def __init__(self, i, width, stride):
    self.inner = [*conv_bn(i, width, 1), *conv_bn(width, width, 3, stride, 4), *conv_bn(width, 2 * width, 1)[:2]]
    self.short = conv_bn(i, 2 * width, 1, stride)[:2]

  def __call__(self, x):
    return (x.sequential(self.inner) + x.sequential(self.short)).relu()


class ResNeXt:
  def __init__(self):
    self.stem, self.body = conv_bn(3, 8, 3), [Bottleneck(8, 8, 1), Bottleneck(16, 16, 2)]
    self.fc = nn.Linear(32, 10)

  def __call__(self, x):
    return self.fc(x.sequential(self.stem).max_pool2d(3, 2, padding=1).sequential(self.body).mean((2, 3)))


class DenseNet:
  def __init__(self):
    self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    self.layers = [[nn.BatchNorm(8 + 4 * i), Tensor.relu, nn.Conv2d(8 + 4 * i, 4, 3, padding=1)] for i in range(4)]
    self.fc = nn.Linear(24, 10)

  def __call__(self, x):
    x = self.stem(x)
    for layer in self.layers:
      x = x.cat(x.sequential(layer), dim=1)
    return self.fc(x.mean((2, 3)))


class SqueezeNet:
  def __init__(self):
    self.stem = nn.Conv2d(3, 8, 3, stride=2)
    self.fires = [(nn.Conv2d(c, 4, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)) for c in (8, 16)]
    self.last = nn.Conv2d(16, 10, 1)

  def __call__(self, x):
    x = self.stem(x).relu().max_pool2d(3, 2)
    for squeeze, one, three in self.fires:
      s = squeeze(x).relu()
      x = one(s).relu().cat(three(s).relu(), dim=1)
    return self.last(x.dropout(0.0)).relu().mean((2, 3))


class MBConv:
  """An inverted bottleneck with squeeze and excitation, as in MobileNet and EfficientNet."""

  def __init__(self, i, o, stride):
    self.expand, self.depth = conv_bn(i, 4 * i, 1, act=Tensor.swish), conv_bn(4 * i, 4 * i, 3, stride, 4 * i)
    self.squeeze, self.excite = nn.Conv2d(4 * i, 4, 1), nn.Conv2d(4, 4 * i, 1)
    self.project, self.skip = conv_bn(4 * i, o, 1)[:2], stride == 1 and i == o

  def __call__(self, x):
    y = x.sequential(self.expand).sequential(self.depth)
    y = y * self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).swish()).sigmoid()
    y = y.sequential(self.project)
    return x + y if self.skip else y


class EfficientNet:
  def __init__(self):
    self.stem, self.body = conv_bn(3, 8, 3, 2, act=Tensor.swish), [MBConv(8, 8, 1), MBConv(8, 12, 2)]
    self.fc = nn.Linear(12, 10)

  def __call__(self, x):
    return self.fc(x.sequential(self.stem).sequential(self.body).mean((2, 3)))


class ShuffleNet:
  def __init__(self):
    self.stem, self.fc = conv_bn(3, 16), nn.Linear(16, 10)
    self.unit = [*conv_bn(8, 8, 1), *conv_bn(8, 8, 3, 1, 8)[:2], *conv_bn(8, 8, 1)]

  def __call__(self, x):
    x = x.sequential(self.stem)
    left, right = x.chunk(2, dim=1)
    x = left.cat(right.sequential(self.unit), dim=1)
    b, c, h, w = x.shape
    return self.fc(x.reshape(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w).mean((2, 3)))


class ConvNeXt:
  def __init__(self):
    self.stem = nn.Conv2d(3, 12, 4, 4)
    self.depth = [nn.Conv2d(12, 12, 7, padding=3, groups=12) for _ in range(2)]
    self.norm, self.last = [nn.LayerNorm2d(12) for _ in range(2)], nn.LayerNorm(12, eps=1e-6)
    self.mlp = [[nn.Linear(12, 48), Tensor.gelu, nn.Linear(48, 12)] for _ in range(2)]
    self.scale = [Tensor.ones(12) * 0.1 for _ in range(2)]
    self.fc = nn.Linear(12, 10)

  def __call__(self, x):
    x = self.stem(x)
    for depth, norm, mlp, scale in zip(self.depth, self.norm, self.mlp, self.scale):
      y = norm(depth(x)).permute(0, 2, 3, 1).sequential(mlp) * scale
      x = x + y.permute(0, 3, 1, 2)
    return self.fc(self.last(x.mean((2, 3))))


class Inception:
  def __init__(self):
    self.one, self.pool = conv_bn(3, 4, 1), conv_bn(3, 4, 1)
    self.three, self.five = [*conv_bn(3, 4, 1), *conv_bn(4, 6, 3)], [*conv_bn(3, 2, 1), *conv_bn(2, 4, 5)]
    self.fc = nn.Linear(18, 10)

  def __call__(self, x):
    pooled = x.max_pool2d(3, 1, padding=1).sequential(self.pool)
    parts = x.sequential(self.three), x.sequential(self.five), pooled
    return self.fc(x.sequential(self.one).cat(*parts, dim=1).mean((2, 3)))


class Attention:
  def __init__(self, dim, heads):
    self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

  def __call__(self, x):
    b, t, c = x.shape
    q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
    return self.out(q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(b, t, c))


class Block:
  def __init__(self, dim):
    self.n1, self.n2, self.attn = nn.LayerNorm(dim), nn.LayerNorm(dim), Attention(dim, 4)
    self.mlp = [nn.Linear(dim, 2 * dim), Tensor.gelu, nn.Linear(2 * dim, dim)]

  def __call__(self, x):
    x = x + self.attn(self.n1(x))
    return x + self.n2(x).sequential(self.mlp)


class ViT:
  def __init__(self):
    self.patch, self.cls, self.pos = nn.Conv2d(3, 16, 4, 4), Tensor.ones(1, 1, 16), Tensor.zeros(1, 17, 16)
    self.blocks, self.norm, self.head = [Block(16), Block(16)], nn.LayerNorm(16), nn.Linear(16, 10)

  def __call__(self, x):
    x = self.patch(x).flatten(2).permute(0, 2, 1)
    x = self.cls.expand(x.shape[0], 1, 16).cat(x, dim=1) + self.pos
    return self.head(self.norm(x.sequential(self.blocks))[:, 0])


class Mixer:
  def __init__(self):
    self.patch, self.n1, self.n2 = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16), nn.LayerNorm(16)
    self.tokens = [nn.Linear(16, 32), Tensor.gelu, nn.Linear(32, 16)]
    self.channels = [nn.Linear(16, 32), Tensor.gelu, nn.Linear(32, 16)]
    self.head = nn.Linear(16, 10)

  def __call__(self, x):
    x = self.patch(x).flatten(2).transpose(1, 2)
    x = x + self.n1(x).transpose(1, 2).sequential(self.tokens).transpose(1, 2)
    return self.head((x + self.n2(x).sequential(self.channels)).mean(1))


class Swin:
  """Attention within windows, and within windows that are shifted."""

  def __init__(self):
    self.patch, self.blocks, self.head = nn.Conv2d(3, 16, 2, 2), [Block(16), Block(16)], nn.Linear(16, 10)

  def windows(self, x, f):
    b, h, w, c = x.shape
    x = x.reshape(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    x = f(x).reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(b, h, w, c)

  def __call__(self, x):
    x = self.patch(x).permute(0, 2, 3, 1)
    x = self.windows(x, self.blocks[0]).roll((-2, -2), (1, 2))
    return self.head(self.windows(x, self.blocks[1]).roll((2, 2), (1, 2)).mean((1, 2)))


class UNet:
  def __init__(self):
    self.down, self.deep = [conv_bn(3, 8), conv_bn(8, 16)], conv_bn(16, 16)
    self.up = [nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(8, 8, 2, 2)]
    self.merge, self.last = [conv_bn(32, 8), conv_bn(16, 8)], nn.Conv2d(8, 2, 1)

  def __call__(self, x):
    kept = []
    for block in self.down:
      kept.append(x := x.sequential(block))
      x = x.max_pool2d()
    x = x.sequential(self.deep)
    for up, merge, skip in zip(self.up, self.merge, reversed(kept)):
      x = up(x).cat(skip, dim=1).sequential(merge)
    return self.last(x)


class UNet3D:
  def __init__(self):
    def block(i, o):
      return [nn.Conv2d(i, o, (3, 3, 3), padding=(1, 1, 1, 1, 1, 1)), nn.InstanceNorm(o), Tensor.relu]

    self.enter, self.deep, self.leave = block(1, 4), block(4, 8), block(12, 4)
    self.last = nn.Conv2d(4, 3, (1, 1, 1))

  def __call__(self, x):
    kept = x.sequential(self.enter)
    x = kept.max_pool2d((2, 2, 2)).sequential(self.deep)
    x = x.reshape(*x.shape[:2], 4, 1, 4, 1, 4, 1).expand(*x.shape[:2], 4, 2, 4, 2, 4, 2).reshape(*x.shape[:2], 8, 8, 8)
    return self.last(x.cat(kept, dim=1).sequential(self.leave))


class RetinaNet:
  """A feature pyramid with one head for all levels."""

  def __init__(self):
    self.stages = [conv_bn(3, 8, 3, 2), conv_bn(8, 16, 3, 2)]
    self.lateral = [nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)]
    self.head, self.classes, self.boxes = conv_bn(8, 8), nn.Conv2d(8, 9, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)

  def __call__(self, x):
    fine = x.sequential(self.stages[0])
    coarse = self.lateral[1](fine.sequential(self.stages[1]))
    fine = self.lateral[0](fine) + coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)
    out = []
    for level in (fine, coarse):
      y = level.sequential(self.head)
      out.append(self.classes(y).sigmoid().cat(self.boxes(y), dim=1).flatten(2))
    return out[0].cat(out[1], dim=2)


class YOLO:
  def __init__(self):
    self.body = [*conv_bn(3, 8, 3, 2, act=Tensor.leaky_relu), *conv_bn(8, 16, 3, 2, act=Tensor.leaky_relu)]
    self.head = nn.Conv2d(16, 18, 1)

  def __call__(self, x):
    y = self.head(x.sequential(self.body))
    b, _, h, w = y.shape
    y = y.reshape(b, 3, 6, h, w).permute(0, 1, 3, 4, 2)
    grid = Tensor.arange(w).reshape(1, 1, 1, w, 1).expand(1, 1, h, w, 1)
    place = (y[..., 0:1].sigmoid() + grid) / w
    return place.cat(y[..., 1:4].exp().clip(0, 10), y[..., 4:].sigmoid(), dim=-1)


def main():
  images, labels = normal(1, 2, 3, 16, 16), integers(2, 10, 2)

  def classify(y):
    return y.sparse_categorical_crossentropy(labels)

  def segment(y):
    return y.permute(0, 2, 3, 1).reshape(-1, 2).sparse_categorical_crossentropy(integers(4, 2, 512))

  results = {"lenet": one_step(LeNet(), normal(3, 2, 1, 28, 28), loss=classify)}
  small = normal(5, 2, 3, 8, 8)
  results |= {"vgg": one_step(VGG(), small, loss=classify, scale=1.4)}
  kinds = ResNeXt, DenseNet, SqueezeNet, EfficientNet, ShuffleNet, ConvNeXt, Inception, ViT, Mixer, Swin
  results |= {kind.__name__.lower(): one_step(kind(), images, loss=classify) for kind in kinds}
  results["unet"] = one_step(UNet(), images, loss=segment)
  results["unet3d"] = one_step(UNet3D(), normal(6, 1, 1, 8, 8, 8))
  results["retinanet"] = one_step(RetinaNet(), images)
  results["yolo"] = one_step(YOLO(), images)
  report(**results)


if __name__ == "__main__":
  main()
