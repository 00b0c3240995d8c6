"""Makes the reference values of the optimizers' tests; needs PyTorch.

    python make.py

Each CSV file is one run of an optimizer of PyTorch over 300 steps, in float64. A line is the state after as
many steps as lines came before it (the first is the start): the values, then slot 0, then slot 1, three
numbers each, to eight digits. The settings are those in `../tests.rs`, and so is the gradient. It depends on
the step and the element only, so that an error in one step does not come back through the next gradient.
"""

from math import sqrt
from pathlib import Path

import torch

STEPS = 300
# Values that run away from 0, fast: 1e-6 of a value is then little of a step, too.
START = [-0.5, -0.03125, -1.0]
SCALES = [1.0, 0.0625, 4.0]


def gradient(step):
    """Of both signs once the slots are settled, and multiples of 1/1024, so that f32 has them too."""
    numbers = [(7 * step * step + 37 * step + 29 * i) % 97 - 16 for i in range(len(SCALES))]
    if step < 10:
        numbers = [abs(number) for number in numbers]
    return [scale * number / 64 for scale, number in zip(SCALES, numbers)]


def clipped(gradient, limit):
    norm = sqrt(sum(g * g for g in gradient))
    return [g * min(1.0, limit / norm) for g in gradient]


def run(name, make, slots=(), base=0.1, rate=lambda step: 1.0, clip=None):
    values = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = make([values], base)
    numbers = []

    def note():
        state = optimizer.state[values]
        columns = [values.detach()] + [state.get(slot, torch.zeros_like(values)) for slot in slots]
        numbers.append([number for column in columns for number in column.tolist()])

    note()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = base * rate(step)
        grad = gradient(step) if clip is None else clipped(gradient(step), clip)
        values.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        note()
    for step, (before, after) in enumerate(zip(numbers, numbers[1:])):
        # What is left of two numbers that cancel has few digits, in whatever way it is computed from a state
        # in f32: such a step says nothing about the rule.
        assert all(abs(a) > abs(b) / 4 for b, a in zip(before, after)), f"{name} cancels in step {step}"
    lines = [",".join(f"{number:.8g}" for number in line) for line in numbers]
    path = Path(__file__).with_name(f"{name}.csv")
    path.write_text("\n".join(lines) + "\n")


def smooth(decay, steps):
    return lambda step: decay ** (step / steps)


def stairs(decay, steps, warmup):
    return lambda step: decay ** (step // steps) * min(1.0, (step + 1) / warmup)


optim = torch.optim
run("sgd", lambda p, lr: optim.SGD(p, lr))
run(
    "sgd_clip_l2_smooth",
    lambda p, lr: optim.SGD(p, lr, weight_decay=0.01),
    base=0.2,
    rate=smooth(0.9, 40),
    clip=1.5,
)
run("momentum", lambda p, lr: optim.SGD(p, lr, momentum=0.9), ["momentum_buffer"], base=0.05)
run(
    "nesterov_l2",
    lambda p, lr: optim.SGD(p, lr, momentum=0.9, nesterov=True, weight_decay=0.001),
    ["momentum_buffer"],
    base=0.05,
)
# With an epsilon large enough to tell whether it is inside of the root.
run(
    "adagrad_smooth",
    lambda p, lr: optim.Adagrad(p, lr, initial_accumulator_value=0.1, eps=1e-3),
    ["sum"],
    base=0.2,
    rate=smooth(0.9, 40),
)
run("rmsprop", lambda p, lr: optim.RMSprop(p, lr, alpha=0.99, eps=1e-8), ["square_avg"])
run(
    "rmsprop_momentum_stairs",
    lambda p, lr: optim.RMSprop(p, lr, alpha=0.9, eps=1e-8, momentum=0.9),
    ["square_avg", "momentum_buffer"],
    base=0.02,
    rate=stairs(0.5, 70, 20),
)
run(
    "adam_l2",
    lambda p, lr: optim.Adam(p, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0001),
    ["exp_avg", "exp_avg_sq"],
)
run(
    "adamw_stairs",
    lambda p, lr: optim.AdamW(p, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    ["exp_avg", "exp_avg_sq"],
    rate=stairs(0.5, 70, 20),
)
