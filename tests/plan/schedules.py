"""The learning rates of PyTorch's schedulers: a line for each, its name and then one rate for each step.

    schedules.py STEPS

Knows nothing of Lockstep. schedules_test.cpp has the same schedulers.
"""
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lrs

warnings.filterwarnings("ignore")
STEPS = int(sys.argv[1])
METRICS = [5, 4, 4, 4, 4, 3.9999, 3, 3, 3, 3, 3, 3, 2.5, 2.6, 2.7, 2.5, 2.5, 2.5, 2.5, 2.5, 2.4, 2.4, 2.4, 2.4, 2.4]


def optimizer(lr=0.1):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def show(name, make, lr=0.1, steps=STEPS):
    of = optimizer(lr)
    scheduler = make(of)
    rates = []
    for step in range(steps):
        rates.append(of.param_groups[0]["lr"])
        of.step()
        if step + 1 < steps:
            scheduler.step()
    print(name, *(repr(rate) for rate in rates))


def show_plateau(name, **options):
    of = optimizer()
    scheduler = lrs.ReduceLROnPlateau(of, **options)
    rates = []
    for metric in METRICS:
        scheduler.step(metric)
        rates.append(of.param_groups[0]["lr"])
    print(name, *(repr(rate) for rate in rates))


show("constant", lambda o: lrs.ConstantLR(o))
show("linear", lambda o: lrs.LinearLR(o))
show("linear-down", lambda o: lrs.LinearLR(o, start_factor=1, end_factor=0.01, total_iters=50))
show("step", lambda o: lrs.StepLR(o, 7, gamma=0.5))
show("multi-step", lambda o: lrs.MultiStepLR(o, [3, 10, 11, 60]))
show("exponential", lambda o: lrs.ExponentialLR(o, 0.97))
show("cosine", lambda o: lrs.CosineAnnealingLR(o, 20, eta_min=0.001))
show("restarts", lambda o: lrs.CosineAnnealingWarmRestarts(o, 9))
show("restarts-growing", lambda o: lrs.CosineAnnealingWarmRestarts(o, 5, T_mult=2, eta_min=0.002))
show("one-cycle", lambda o: lrs.OneCycleLR(o, 0.4, total_steps=STEPS, cycle_momentum=False))
show("one-cycle-three", lambda o: lrs.OneCycleLR(o, 0.4, total_steps=STEPS, pct_start=0.25, anneal_strategy="linear",
                                                  div_factor=10, final_div_factor=50, three_phase=True,
                                                  cycle_momentum=False))
show("polynomial", lambda o: lrs.PolynomialLR(o))
show("polynomial-0.9", lambda o: lrs.PolynomialLR(o, total_iters=80, power=0.9))
show("lambda", lambda o: lrs.LambdaLR(o, lambda t: 1 / (1 + t)))
show("sequential", lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, start_factor=0.25, total_iters=10),
                                                  lrs.ExponentialLR(o, 0.9)], [10]))
show_plateau("plateau", patience=2)
show_plateau("plateau-max", mode="max", factor=0.5, patience=1, threshold=0.5, threshold_mode="abs", cooldown=2,
             min_lr=0.01)
