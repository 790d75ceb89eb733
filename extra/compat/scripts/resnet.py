"""A small ResNet (basic blocks, strides, shortcuts, batch norm): forward in both modes, SGD with momentum."""

from common import digits, initialise, report

from tinygrad import Context, Tensor, nn


class Block:
  def __init__(self, planes_in, planes, stride):
    self.conv1 = nn.Conv2d(planes_in, planes, kernel_size=3, stride=stride, padding=1, bias=False)
    self.bn1 = nn.BatchNorm2d(planes)
    self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, stride=1, bias=False)
    self.bn2 = nn.BatchNorm2d(planes)
    self.downsample = []
    if stride != 1 or planes_in != planes:
      self.downsample = [nn.Conv2d(planes_in, planes, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(planes)]

  def __call__(self, x):
    out = self.bn1(self.conv1(x)).relu()
    out = self.bn2(self.conv2(out))
    return (out + x.sequential(self.downsample)).relu()


class ResNet:
  def __init__(self, classes=10):
    self.conv1 = nn.Conv2d(1, 8, kernel_size=3, stride=1, bias=False, padding=1)
    self.bn1 = nn.BatchNorm2d(8)
    self.layer1 = [Block(8, 8, 1), Block(8, 8, 1)]
    self.layer2 = [Block(8, 16, 2), Block(16, 16, 1)]
    self.fc = nn.Linear(16, classes)

  def __call__(self, x):
    x = self.bn1(self.conv1(x)).relu().max_pool2d(kernel_size=3, stride=1, padding=1)
    x = x.sequential(self.layer1).sequential(self.layer2)
    return self.fc(x.mean([2, 3]))


def main():
  x, y, x_test, _ = digits()
  model = initialise(ResNet(), seed=2, scale=1.4)
  before = model(Tensor(x_test[:4])).realize()
  opt = nn.optim.SGD(nn.state.get_parameters(model), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
  losses = []
  with Context(TRAINING=1):
    for i in range(4):
      opt.zero_grad()
      images, labels = Tensor(x[i * 32 : i * 32 + 32]), Tensor(y[i * 32 : i * 32 + 32])
      loss = model(images).sparse_categorical_crossentropy(labels, label_smoothing=0.1).backward()
      loss.realize(*opt.schedule_step())
      losses.append(loss.item())
  report(logits=before, losses=losses, mean=model.bn1.running_mean, norm=(model.fc.weight**2).sum())


if __name__ == "__main__":
  main()
