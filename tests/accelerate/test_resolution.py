"""Any resolution at forward time, and the cache of position tables: fresh, bounded, and never carried along."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit_reference import embed, encode, head, reference, small_config, stir
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.model.config import PARTS, ViTConfig, pair

POSITIONS = [kind.kind for kind in PARTS["position"]]
RESIZED = ["learned", "learned-2d"]
LARGER = (20, 24)


def built(position: str, **overrides: object) -> FastVisionTransformer:
    return stir(build(small_config(position=position, **overrides)))  # type: ignore[return-value]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("size", [(12, 16), (16, 12), (20, 24), (4, 4), (8, 40)], ids=str)
def test_every_position_works_at_every_size(position: str, size: tuple[int, int]) -> None:
    model = built(position, registers=1, pool="mean")
    images = torch.randn(2, 3, *size)
    tokens = model(images, "tokens")
    assert tokens.shape == (2, 1 + size[0] * size[1] // 16, 24)
    assert model(images).isfinite().all()
    model(images).sum().backward()
    learned = [p for n, p in model.named_parameters() if "pos_embed" in n or "relative" in n]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned) or size == (4, 4)


@pytest.mark.parametrize("position", ["sincos-2d", "rope-2d", "none"])
def test_positions_without_weights_are_exact_at_any_size(position: str) -> None:
    model = built(position).double().eval()
    images = torch.randn(2, 3, *LARGER, dtype=torch.float64)
    expected = reference(images, dict(model.state_dict()), model.config)
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


def test_relative_positions_are_stretched_with_their_ends_fixed() -> None:
    model = built("relative").double().eval()
    larger = build(small_config(position="relative", image_size=LARGER)).double().eval()
    state = model.state_dict()
    for name in [n for n in state if n.endswith("relative")]:
        old, new = len(state[name]), 2 * 30 - 1
        at = torch.arange(new, dtype=torch.float64) * (old - 1) / (new - 1)
        low = at.floor().clamp(max=old - 2).long()
        share = (at - low)[:, None]
        state[name] = state[name][low] * (1 - share) + state[name][low + 1] * share
    larger.load_state_dict(state)
    images = torch.randn(2, 3, *LARGER, dtype=torch.float64)
    torch.testing.assert_close(model(images), larger(images), rtol=1e-9, atol=1e-9)


def fresh(model: FastVisionTransformer, images: Tensor) -> Tensor:
    """What a model that has met no picture before answers."""
    other = build(model.config).to(images.dtype).train(model.training)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        return other(images)


def write_data(model: FastVisionTransformer) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-1.5)


def write_no_grad(model: FastVisionTransformer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def step(model: FastVisionTransformer) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(2, 3, *LARGER)).square().sum().backward()
    optimizer.step()


def step_fused(model: FastVisionTransformer) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(torch.randn(2, 3, *LARGER)).square().sum().backward()
    optimizer.step()


def load(model: FastVisionTransformer) -> None:
    model.load_state_dict(stir(build(model.config), seed=9).state_dict())


def assign(model: FastVisionTransformer) -> None:
    model.load_state_dict(stir(build(model.config), seed=8).state_dict(), assign=True)


def there_and_back(model: FastVisionTransformer) -> None:
    model.bfloat16().float()


def swap_weights(model: FastVisionTransformer) -> None:
    """As Lightning's WeightAveraging does before validation."""
    other = stir(build(model.config), seed=7)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        kept = mine.data.clone()
        mine.data.copy_(theirs.data)
        theirs.data.copy_(kept)


CHANGES = [write_data, write_no_grad, step, step_fused, load, assign, there_and_back, swap_weights]


@pytest.mark.parametrize("position", RESIZED)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_table_is_never_stale(position: str, change: Callable[[FastVisionTransformer], None]) -> None:
    model = built(position).eval()
    images = torch.randn(2, 3, *LARGER)
    with torch.no_grad():
        before = model(images)
    change(model)
    with torch.no_grad():
        after = model(images)
    assert not torch.equal(before, after)
    assert torch.equal(after, fresh(model, images))


@pytest.mark.parametrize("position", [*RESIZED, "sincos-2d", "rope-2d"])
def test_tables_follow_the_dtype(position: str) -> None:
    model = built(position).eval()
    images = torch.randn(2, 3, *LARGER)
    with torch.no_grad():
        model(images)
        model.double()
        assert torch.equal(model(images.double()), fresh(model, images.double()))
        model.bfloat16()
        assert model(images.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("position", RESIZED)
def test_evaluation_reuses_the_table_and_training_does_not(position: str) -> None:
    model = built(position).eval()
    images = torch.randn(2, 3, *LARGER)
    grid = (5, 6)
    with torch.no_grad():
        model(images)
        first = model._embedding(grid)
        assert model._embedding(grid) is first
    with torch.enable_grad():
        made = model.train()._embedding(grid)
        assert made is not first
        assert made is not None
        assert made.requires_grad
    for parameter in model.parameters():  # frozen positions need no gradient, so their table may be kept
        parameter.requires_grad_(False)
    assert model._embedding(grid) is first


@pytest.mark.parametrize("position", POSITIONS)
def test_the_cache_is_bounded(position: str) -> None:
    model = built(position).eval()
    with torch.inference_mode():
        for rows in range(1, 30):
            model(torch.zeros(1, 3, 4 * rows, 8))
    assert len(model._tables) <= 8


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("size", [(12, 16), LARGER], ids=str)
def test_training_works_after_inference_mode(position: str, size: tuple[int, int]) -> None:
    model = built(position)
    images = torch.randn(2, 3, *size)
    with torch.inference_mode():
        model.eval()(images)
    model.train()(images).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if not n.startswith("head"))


@pytest.mark.parametrize("position", POSITIONS)
def test_a_model_made_in_inference_mode_answers(position: str) -> None:
    with torch.inference_mode():
        model = build(small_config(position=position)).eval()
        images = torch.randn(2, 3, *LARGER)
        assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("position", POSITIONS)
def test_copies_pickles_and_state_dicts_carry_no_table(position: str) -> None:
    model = built(position).eval()
    images = torch.randn(2, 3, *LARGER)
    keys = list(model.state_dict())
    with torch.no_grad():
        expected = model(images)
    assert list(model.state_dict()) == keys
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)
    for other in copies:
        assert other._tables == {}
        with torch.no_grad():
            assert torch.equal(other(images), expected)
    twice = copy.deepcopy(model)
    write_data(twice)
    with torch.no_grad():
        assert torch.equal(model(images), expected)


def test_a_copy_of_a_compiled_model_computes_with_its_own_weights() -> None:
    model = built(position="learned").eval()
    images = torch.randn(2, 3, *LARGER)
    model.compile(backend="eager")
    twin = copy.deepcopy(model)
    write_data(twin)
    with torch.no_grad():
        assert torch.equal(twin(images), twin.forward(images))
        assert not torch.equal(twin(images), model(images))


@pytest.mark.parametrize("position", POSITIONS)
def test_batches_of_any_length(position: str) -> None:
    model = built(position).eval()
    images = torch.randn(5, 3, *LARGER)
    with torch.no_grad():
        together = model(images)
        apart = torch.cat([model(image[None]) for image in images])
        assert model(images[:0]).shape == (0, 5)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_torch_export_traces_it_at_another_size(position: str) -> None:
    model = built(position).eval()
    images = torch.randn(1, 3, *LARGER)
    with torch.no_grad():
        exported = torch.export.export(model, (images,)).module()
        torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_gradients_of_each_image_by_vmap(position: str) -> None:
    model = built(position).double().eval()
    weights = {n: p.detach() for n, p in model.named_parameters()}
    images = torch.randn(3, 3, 12, 16, dtype=torch.float64)

    def loss(w: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(model, w, (image[None],)).square().sum()

    with sdpa_kernel(SDPBackend.MATH):  # torch cannot batch its fused kernel on a CPU
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, images)
    for i, image in enumerate(images):
        model.zero_grad()
        model(image[None]).square().sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[name][i], parameter.grad, rtol=1e-8, atol=1e-10)


def test_reference_parts_make_the_whole() -> None:
    """Guards the reference itself: its own halves are what ``reference`` computes."""
    config: ViTConfig = small_config()
    model = built("learned").double()
    weights, images = dict(model.state_dict()), torch.randn(1, 3, 12, 16, dtype=torch.float64)
    z, grid = embed(images, weights, config)
    whole = head(encode(z, weights, config, [list(range(12))], grid), weights, config)
    assert torch.equal(whole, reference(images, weights, config))


@pytest.mark.parametrize(
    "part",
    [*((part, kind.kind) for part in ("position", "stem", "attention") for kind in PARTS[part])],
    ids=str,
)
def test_every_position_stem_and_attention_exports_with_a_dynamic_batch(part: tuple[str, str]) -> None:
    """Such as ``len(tensor)`` in a forward pass fixes the batch of an exported graph."""
    name, kind = part
    fit = {"resnet": {"image_size": 32, "patch_size": 16}, "axial": {"pool": "mean"}}.get(kind, {})
    model = build(small_config(**{name: kind, **fit})).eval()
    height, width = pair(model.config.image_size)
    images = torch.randn(2, 3, height, width)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    five = torch.randn(5, 3, height, width)
    torch.testing.assert_close(exported(five), model(five), rtol=1e-4, atol=1e-5)
