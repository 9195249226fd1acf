"""PyTorch's GradScaler over a series of overflows: a line for each step, with its scale, growth tracker, whether the update
was skipped, and the weight after it.

    grad_scaler.py INIT GROWTH BACKOFF INTERVAL SERIES        SERIES has a letter for each step: o overflows

Knows nothing of Lockstep. A PyTorch without a scaler for CPUs has one for CUDA only: its class runs here, with the two
kernels that it calls written out.
"""
import sys
import warnings

import torch

warnings.filterwarnings("ignore")


class OneDevice:
    def __init__(self, tensor):
        self.tensor = tensor
        self._per_device_tensors = {tensor.device: tensor}

    def get(self, device):
        return self.tensor


def on_cpu(init, growth, backoff, interval):
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init, growth, backoff, interval)

    def check_and_unscale(gradients, found, inverse):
        for gradient in gradients:
            if not torch.isfinite(gradient).all():
                found.fill_(1)
            gradient.mul_(inverse)

    def update_scale(scale, tracker, found, growth, backoff, interval):
        if found.item():
            scale.copy_(scale.double() * backoff)
            tracker.fill_(0)
            return
        if tracker.item() + 1 < interval:
            tracker.add_(1)
            return
        grown = (scale.double() * growth).float()
        if torch.isfinite(grown):
            scale.copy_(grown)
        tracker.fill_(0)

    torch._amp_foreach_non_finite_check_and_unscale_ = check_and_unscale
    torch._amp_update_scale_ = update_scale
    module = torch.cuda.amp.grad_scaler
    module.amp_definitely_not_available = lambda: False
    module._MultiDeviceReplicator = OneDevice
    scaler = module.GradScaler(init, growth, backoff, interval)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    scaler.scale = lambda loss: loss * scaler._scale[()].reshape(())
    return scaler


init, growth, backoff = (float(word) for word in sys.argv[1:4])
scaler = on_cpu(init, growth, backoff, int(sys.argv[4]))
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.25)
for letter in sys.argv[5]:
    optimizer.zero_grad()
    factor = torch.tensor([1.0, float("inf") if letter == "o" else 2.0, 3.0])
    before = weight.detach().clone()
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print(repr(scaler.get_scale()), int(scaler._growth_tracker.item()), int(torch.equal(before, weight)),
          repr(weight[0].item()))
