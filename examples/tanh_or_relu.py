"""Tanh against ReLU in a network that is trained with DP-SGD, and why.

Run: python examples/tanh_or_relu.py [folder with mnist.npz] [picture.png]. Without a folder it takes
scikit-learn's 1,797 small digits.

A ReLU has no upper end: activations grow, and with them the gradients of the weights that they feed. DP-SGD
cuts each gradient to the clip, so that most of a long one is lost. A tanh stays in [-1, 1]. Found by
Papernot, Thakurta, Song, Chien & Erlingsson 2021 (arXiv:2007.14191).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import discreet as dp
from discreet import learning
from discreet.sampling import Entropy

torch.set_num_threads(1)
folders = [argument for argument in sys.argv[1:] if Path(argument).is_dir()]
pictures = [argument for argument in sys.argv[1:] if argument.endswith(".png")]


def images():
    """Training and test images, each with its digit."""
    if folders:
        data = np.load(Path(folders[0]) / "mnist.npz")
        x, y, fresh, truth = (data[name] for name in ("x_train", "y_train", "x_test", "y_test"))
        x, fresh = x / 255, fresh / 255
    else:
        pixels, labels = load_digits(return_X_y=True)
        order, pixels = np.random.default_rng(0).permutation(len(labels)), pixels.reshape(-1, 8, 8) / 16
        x, y, fresh, truth = (part[at] for at in (order[:1500], order[1500:]) for part in (pixels, labels))
    x, fresh = ((torch.tensor(part).float().unsqueeze(1) - 0.1) / 0.3 for part in (x, fresh))
    return x, torch.tensor(y).long(), fresh, torch.tensor(truth).long()


def network(unit):
    """The network of Papernot et al. for 28 pixels, one convolution for 8; the same start for both units."""
    torch.manual_seed(0)
    if folders:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), unit(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), unit(),
            nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), unit(), nn.Linear(32, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), unit(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )


def largest_activation(model):
    """The largest activation of each image, before it is pooled; its median over unseen images."""
    largest, x = torch.zeros(len(fresh)), fresh
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, nn.Tanh | nn.ReLU):
                largest = torch.maximum(largest, x.flatten(1).amax(1))
    return float(largest.median())


def gradient_lengths(model):
    """The lengths of the gradients of a hundred unseen images, which are public here."""
    weights = list(model.parameters())
    losses = [F.cross_entropy(model(fresh[i : i + 1]), truth[i : i + 1]) for i in range(100)]
    return [float(torch.cat([g.flatten() for g in torch.autograd.grad(x, weights)]).norm()) for x in losses]


x, y, fresh, truth = images()
public = dp.Public(table="digits", size=len(x))
settings = {"epsilon": 3, "delta": 1e-5, "epochs": 15, "batch": 2048 if folders else 256}
settings |= {"clip": 0.1, "microbatch": 512} if folders else {"clip": 0.5}
rate = learning.SGD(lr=4.0 if folders else 1.0, momentum=0.9)
shown = {}
for unit in (nn.Tanh, nn.ReLU):
    trainer = learning.Trainer(network(unit), "cross_entropy", public=public, optimizer=rate, **settings)
    model = trainer(learning.Examples(x, y, public), entropy=Entropy()).value
    with torch.no_grad():
        right = float((model(fresh).argmax(1) == truth).float().mean())
    shown[unit.__name__] = lengths = gradient_lengths(model)
    print(
        f"{unit.__name__}: {right:.1%} of unseen digits right at epsilon 3; the largest activation of an "
        f"image is {largest_activation(model):.1f}, gradients are {np.mean(lengths):.1f} long on average"
    )
print("both start alike, and differ in nothing but the unit")
if pictures:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    axis.boxplot(shown.values(), tick_labels=list(shown), orientation="horizontal")
    axis.axvline(settings["clip"], color="#c0392b", label="the clip: what is longer is cut")
    axis.set(xlabel="length of an example's gradient after training", xscale="log")
    axis.legend(frameon=False)
    figure.savefig(pictures[0], dpi=150)
