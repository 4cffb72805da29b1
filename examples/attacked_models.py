"""What a model remembers: membership inference (LiRA, Carlini et al. 2022), attribute inference (Yeom et al.
2018) and model inversion (Fredrikson et al. 2015), and membership inference against a private model.

Run: python examples/attacked_models.py [picture.png]
"""

import sys
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from discreet import auditing, learning

warnings.simplefilter("ignore", ConvergenceWarning)  # 60 iterations do not converge, and need not
PEOPLE, CLASSES, EPSILON, DELTA = 400, 10, 2.0, 1e-5

# 400 handwritten digits, each taken as one person's. For a fifth the label is drawn at random, as some labels
# of real data are wrong: a network that fits them all has to memorize these.
rng = np.random.default_rng(0)
x, y = load_digits(return_X_y=True)
some = rng.permutation(len(x))[:PEOPLE]
x, y = x[some] / 16, np.where(rng.random(PEOPLE) < 0.2, rng.integers(0, CLASSES, PEOPLE), y[some])


def overfitted(inputs, labels):
    network = MLPClassifier((64,), solver="lbfgs", alpha=1e-6, max_iter=60, random_state=0)
    return network.fit(inputs, labels)


def plain(members):
    """Train on the members; the function that it returns tells the margin of everybody's true label."""
    model = overfitted(x[members], y[members])
    return lambda: auditing.margins(np.maximum(model.predict_log_proba(x), -50.0), y)


def private(members):
    facts = {"classes": list(range(CLASSES)), "n": PEOPLE // 2, "lower": 0, "upper": 1, "batch": 50}
    model = learning.DPClassifier(epsilon=EPSILON, delta=DELTA, **facts, epochs=10)
    model.fit(x[members], y[members])
    return lambda: auditing.margins(np.log(model.predict_proba(x) + 1e-12), y)


# Membership: the attacker trains networks with and without each person, and compares.
shadows = auditing.train_shadows(plain, PEOPLE, models=24, seed=1)
guarded = auditing.train_shadows(private, PEOPLE, models=8, seed=2)
margins, included = shadows.scores[:, :, 0], shadows.included
curves = {
    "one threshold on the loss": auditing.Roc.of(margins[included], margins[~included]),
    "LiRA": auditing.lira_roc(shadows, fixed_variance=True),
    "LiRA, private model": auditing.lira_roc(guarded, fixed_variance=True),
}
print("members found at 1% false alarms, and the area under the curve")
for name, roc in curves.items():
    print(f"{name:26} {roc.tpr_at(0.01):6.1%}  {roc.auc:.2f}")
print(f"epsilon {EPSILON:g} allows no attack to find more than {np.exp(EPSILON) * 0.01 + DELTA:.1%}\n")

# Attribute: a random bit, which says nothing about the digit, is added to every record (as 0 or 4). Whoever
# knows the rest of a record tries both, and takes the one with the smaller loss.
coin = np.random.default_rng(1).integers(0, 2, PEOPLE)
member = np.arange(PEOPLE) < PEOPLE // 2
model = overfitted(np.hstack([x, 4.0 * coin[:, None]])[member], y[member])
tried = [model.predict_log_proba(np.hstack([x, np.full((PEOPLE, 1), 4.0 * bit)])) for bit in (0, 1)]
losses = np.stack([np.minimum(-logs[np.arange(PEOPLE), y], 50.0) for logs in tried], axis=1)
attack = auditing.attribute_inference(losses, coin, member)
print(f"a bit of the record is guessed right for {attack.right / attack.members:.0%} of the members, "
      f"{attack.right_of_others / attack.others:.0%} of others")  # fmt: skip

# Inversion: of a class that has a single person in it, the picture that the model finds most typical.
person, others = x[y == 3][0], y != 3
model = LogisticRegression(max_iter=300).fit(np.vstack([x[others], person]), np.append(y[others], 3))
three = list(model.classes_).index(3)


def objective(picture):  # the loss of this class, and its gradient by the picture
    chances = model.predict_proba(picture[None])[0]
    return -float(np.log(chances[three])), -(model.coef_[three] - chances @ model.coef_)


inverted = auditing.invert(objective, np.full(64, 0.5), steps=200)
print(f"the inverted class has correlation {np.corrcoef(person, inverted)[0, 1]:.2f} with the person in it")

if sys.argv[-1].endswith(".png"):
    from matplotlib import pyplot

    figure, (axis, left, right) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name, roc in curves.items():
        axis.loglog(*roc.curve(), lw=2, label=name)
    grid = np.geomspace(1e-3, 1)
    axis.loglog(grid, np.minimum(1, np.exp(EPSILON) * grid + DELTA), "k:", label="all that epsilon allows")
    axis.set(xlabel="false positives", ylabel="true positives", xlim=(1e-3, 1), ylim=(1e-3, 1))
    axis.legend(frameon=False)
    for part, picture, title in ((left, person, "the only person of a class"), (right, inverted, "inverted")):
        part.imshow(picture.reshape(8, 8), cmap="gray_r")
        part.set_title(title)
    figure.savefig(sys.argv[-1], dpi=150)
