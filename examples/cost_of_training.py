"""What does it cost to train on people's data? The same run, read by every accountant. Run: python
examples/cost_of_training.py"""

from discreet import accounting as acc

people, batch, epochs, noise = 60_000, 256, 60, 1.1
steps = epochs * people // batch
run = acc.Gaussian(noise_multiplier=noise).sampled(rate=batch / people).repeated(steps)

print(acc.compare(run, delta=1e-5), "\n")
lower, upper = acc.bounds(run, delta=1e-5)
print(f"proved: epsilon lies between {lower:.5f} and {upper:.5f}")

found = acc.calibrate(
    lambda s: acc.Gaussian(noise_multiplier=s).sampled(rate=batch / people).repeated(steps),
    epsilon=1,
    delta=1e-5,
)
print(f"for epsilon 1 the noise must be {found:.4f} times the clipping norm")

budget = acc.Filter(epsilon=3, delta=1e-6)
spent = budget.replay([acc.PureDP(epsilon=1)])
view = budget.preview(spent, acc.DiscreteLaplace(scale=20))
print(f"after one release of epsilon 1, a budget of (3, 1e-06) still buys {view.fits} counts of epsilon 0.05")
