"""What the tests of measures share: one thread, and a small trained model.

Tiny models are faster on one thread than on two that others want too.
"""

from collections.abc import Iterator

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn, normalised, (1797, 1, 8, 8), and their classes."""
    bunch = load_digits()
    return torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 8 - 1, torch.tensor(bunch.target)


@pytest.fixture(scope="session")
def trained(digits: tuple[Tensor, Tensor]) -> VisionTransformer:
    """A model with 16 patches that was trained on the first 1,400 digits for some seconds."""
    torch.manual_seed(0)
    images, labels = (each[:1400] for each in digits)
    config = ViTConfig(
        image_size=8, patch_size=2, in_channels=1, num_classes=10, width=48, depth=3, heads=4, mlp_dim=96
    )
    model = VisionTransformer(config).train()
    steps = 200
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(1400, (100,))
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()
