"""Order, memory and streams: the same batches for any number of workers, and a run that stops goes on where it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from photos import digits, pipeline
from PIL import Image

from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.batches.sampler import OrderedSampler, TrainSampler
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import CheckpointError, DataError

CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
CROPPED = AugmentConfig(resized_crop=0.4)


def from_files(flowers: Path, folder: str, count: int) -> Split:
    paths = [path for name in CLASSES for path in sorted((flowers / folder / name).iterdir())[:count]]
    labels = np.repeat(np.arange(len(CLASSES)), count)
    return Split(labels, tuple(path.name for path in paths), paths=paths)


@pytest.fixture(scope="module")
def photographs(flowers) -> ImageData:
    """50 photographs to train on and 15 to validate."""
    splits = {"train": from_files(flowers, "train", 10), "val": from_files(flowers, "val", 3)}
    return ImageData("flowers", CLASSES, splits, 3, None, (240, 320), "")


@pytest.fixture(scope="module")
def digit_data() -> ImageData:
    pixels, labels = digits()
    splits = {
        name: Split(labels[part], tuple(f"{name}/{i}" for i in range(len(labels[part]))), arrays=pixels[part])
        for name, part in (("train", slice(0, 1000)), ("val", slice(1000, 1400)), ("test", slice(1400, None)))
    }
    return ImageData("digits", tuple("0123456789"), splits, 1, (8, 8), (8, 8), "")


GREY = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key] for key in a
    )


def test_every_epoch_has_its_own_order_of_the_same_images():
    plans = TrainSampler(100, batch_size=24, seed=1)
    epochs = []
    for epoch in range(3):
        plans.set_epoch(epoch)
        drawn = list(plans)
        assert [(p.epoch, p.step, p.offset, len(p.indices)) for p in drawn] == [(epoch, s, 0, 24) for s in range(4)]
        seen = np.concatenate([p.indices for p in drawn])
        assert len(np.unique(seen)) == 96
        epochs.append(seen)
    assert len(plans) == plans.steps == 4
    plans.set_epoch(1)
    assert np.array_equal(np.concatenate([p.indices for p in plans]), epochs[1])
    assert all((a != b).mean() > 0.9 for a, b in pairwise(epochs))
    other = np.concatenate([p.indices for p in TrainSampler(100, batch_size=24, seed=2)])
    assert (other != epochs[0]).mean() > 0.9


@pytest.mark.parametrize(("images", "batch_size", "accumulate"), [(100, 24, 4), (100, 24, 3), (10, 24, 4), (2, 24, 4)])
def test_accumulation_cuts_the_same_steps_into_parts(images, batch_size, accumulate):
    whole = list(TrainSampler(images, batch_size))
    cut = list(TrainSampler(images, batch_size, accumulate))
    assert len(cut) == len(TrainSampler(images, batch_size, accumulate)) == len(whole) * min(accumulate, images)
    for plan in whole:
        parts = [p for p in cut if p.step == plan.step]
        assert np.array_equal(np.concatenate([p.indices for p in parts]), plan.indices)
        assert [p.offset for p in parts] == np.cumsum([0, *(len(p.indices) for p in parts[:-1])]).tolist()


def test_a_set_smaller_than_a_batch_is_one_batch():
    assert [len(p.indices) for p in TrainSampler(10, batch_size=24)] == [10]


@pytest.mark.parametrize(("images", "expected"), [(10, [4, 4, 2]), (8, [4, 4]), (0, [])])
def test_evaluation_goes_through_all_images_in_order(images, expected):
    plans = list(OrderedSampler(images, 4))
    assert [len(p.indices) for p in plans] == expected
    assert [int(i) for p in plans for i in p.indices] == list(range(images))


def test_known_sets_of_the_models_size_are_used_where_they_lie(digit_data):
    module = ImageDataModule(digit_data, GREY, batch_size=100, memory_gb=0)
    module.setup("fit")
    assert module.in_memory
    assert module.train_dataloader().dataset.pixels.data_ptr() == digit_data.splits["train"].arrays.ctypes.data
    for name, loader in (("train", module.train_dataloader()), ("val", module.val_dataloader())):
        split = digit_data.splits[name]
        for batch in loader:
            index = batch["index"].numpy()
            assert batch["images"].dtype == torch.uint8
            assert np.array_equal(batch["images"].permute(0, 2, 3, 1).numpy(), split.arrays[index])
            assert np.array_equal(batch["labels"].numpy(), split.labels[index])
    assert module.steps_per_epoch == 10
    assert sum(len(batch["labels"]) for batch in module.test_dataloader()) == 397


def test_arrays_of_another_size_or_kind_go_through_the_pipeline(digit_data):
    larger = EvalPipeline((12, 16), 3, PreprocessConfig(fit="pad", mean=(0.3,) * 3, std=(0.4,) * 3))
    module = ImageDataModule(digit_data, larger, batch_size=64)
    batch = next(iter(module.val_dataloader()))
    assert batch["images"].shape == (64, 3, 12, 16)
    for i in range(0, 64, 9):
        expected = larger.pixels(digit_data.splits["val"].image(i))
        assert np.array_equal(batch["images"][i].permute(1, 2, 0).numpy(), expected)


def test_memory_and_streams_hold_what_the_pipeline_makes(photographs):
    where = pipeline(40, 48)
    done = []
    memory = ImageDataModule(photographs, where, batch_size=8, progress=lambda *at: done.append(at))
    stream = ImageDataModule(photographs, where, batch_size=8, memory_gb=0, workers=0)
    memory.setup("fit")
    memory.setup("fit")  # decodes once
    assert done == [(i + 1, 50) for i in range(50)] + [(i + 1, 15) for i in range(15)]
    assert (memory.in_memory, stream.in_memory) == (True, False)
    for held, read in ((memory.train_dataloader(), stream.train_dataloader()), (memory.val_dataloader(),) * 2):
        assert all(same(a, b) for a, b in zip(held, read, strict=True))
    first = next(iter(stream.val_dataloader()))
    assert np.array_equal(first["images"][3].permute(1, 2, 0).numpy(), where.pixels(photographs.splits["val"].image(3)))


@pytest.mark.parametrize("augment", [AugmentConfig(), CROPPED])
def test_any_number_of_workers_gives_the_same_batches(photographs, augment):
    epochs = {}
    for workers in (0, 1, 2):
        module = ImageDataModule(
            photographs, pipeline(24, 24), augment, batch_size=12, accumulate=2, seed=5, memory_gb=0, workers=workers
        )
        loader = module.train_dataloader()
        epochs[workers] = []
        for epoch in range(2):
            module.set_epoch(epoch)
            epochs[workers] += list(loader)
        assert len(epochs[workers]) == 2 * len(loader) == 16
    for a, b, c in zip(*epochs.values(), strict=True):
        assert same(a, b)
        assert same(a, c)


def test_crops_from_memory_and_from_files_are_the_same_crops(photographs):
    where = pipeline(48, 48)
    memory = ImageDataModule(photographs, where, CROPPED, batch_size=10)
    stream = ImageDataModule(photographs, where, CROPPED, batch_size=10, memory_gb=0, workers=0)
    augment = BatchAugment(CROPPED, where, 5, seed=0)
    for held, read in zip(memory.train_dataloader(), stream.train_dataloader(), strict=True):
        assert held["images"].shape == (10, 3, 60, 60)
        assert held["boxes"].shape == (10, 4)
        assert "boxes" not in read
        ours, theirs = augment.augment_batch(held)[0], augment.augment_batch(read)[0]
        # The stored images have less detail than the files, but each pair shows the same part of the same image.
        together = torch.stack([ours.flatten(1), theirs.flatten(1)], 1)
        closeness = torch.stack([torch.corrcoef(pair)[0, 1] for pair in together])
        assert closeness.min() > 0.9
        strangers = torch.corrcoef(torch.cat([ours[:1].flatten(1), theirs[1:2].flatten(1)]))[0, 1]
        assert closeness.min() > strangers


def test_crops_from_files_are_pillows_of_the_full_image(photographs):
    fine = AugmentConfig(resized_crop=0.01)  # so small a least share that no JPEG is decoded at reduced size
    module = ImageDataModule(photographs, pipeline(32, 40), fine, batch_size=5, memory_gb=0, workers=0)
    memory = ImageDataModule(photographs, pipeline(32, 40), fine, batch_size=5)
    read, held = next(iter(module.train_dataloader())), next(iter(memory.train_dataloader()))
    for index, image, (top, left, height, width) in zip(
        read["index"].tolist(), read["images"], held["boxes"].tolist(), strict=True
    ):
        original = photographs.splits["train"].image(index)
        W, H = original.size
        box = (left * W, top * H, min(left + width, 1) * W, min(top + height, 1) * H)
        expected = np.asarray(original.resize((40, 32), Image.Resampling.BILINEAR, box=box))
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_boxes_are_drawn_in_the_true_shape_of_the_image(photographs):
    module = ImageDataModule(photographs, pipeline(48, 48), CROPPED, batch_size=10)
    loader, shapes = module.train_dataloader(), []
    for epoch in range(4):
        module.set_epoch(epoch)
        for batch in loader:
            for index, (_, _, height, width) in zip(batch["index"].tolist(), batch["boxes"].tolist(), strict=True):
                W, H = photographs.splits["train"].image(index).size
                shapes.append(width * W / (height * H))
    assert 0.74 < min(shapes) < 0.8
    assert 1.25 < max(shapes) < 1.35


@pytest.mark.parametrize("memory_gb", [0, 1])
def test_a_loader_goes_on_at_any_batch(photographs, memory_gb):
    def loader_of() -> tuple[ImageDataModule, object]:
        module = ImageDataModule(
            photographs, pipeline(24, 24), CROPPED, batch_size=8, accumulate=2, memory_gb=memory_gb, workers=2
        )
        return module, module.train_dataloader()

    module, loader = loader_of()
    module.set_epoch(3)
    whole = list(loader)
    module.set_epoch(4)
    following = list(loader)
    module.set_epoch(3)
    passing = iter(loader)
    for _ in range(5):
        next(passing)
    state = loader.state_dict()  # workers have read ahead: the state does not count that
    resumed_module, resumed = loader_of()
    resumed.load_state_dict(state)
    resumed_module.set_epoch(3)
    assert len(resumed) == len(whole) == 12
    assert all(same(a, b) for a, b in zip(resumed, whole[5:], strict=True))
    resumed_module.set_epoch(4)
    assert all(same(a, b) for a, b in zip(resumed, following, strict=True))


def test_other_batches_are_no_continuation(digit_data):
    state = ImageDataModule(digit_data, GREY, batch_size=100).train_dataloader().state_dict()
    other = ImageDataModule(digit_data, GREY, batch_size=50, seed=1).train_dataloader()
    with pytest.raises(CheckpointError, match="seed was 0, now 1; batch_size was 100, now 50"):
        other.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("augment", [AugmentConfig(), CROPPED])
def test_an_image_that_goes_bad_is_named_in_one_line(photographs, tmp_path, workers, augment):
    split = photographs.splits["train"]
    paths = [Path(shutil.copy(path, tmp_path)) for path in split.paths[:8]]
    paths[5].write_bytes(paths[5].read_bytes()[:2000])
    broken = ImageData(
        "mine", CLASSES, {"train": Split(split.labels[:8], split.names[:8], paths=paths)}, 3, None, (240, 320), ""
    )
    module = ImageDataModule(broken, pipeline(24, 24), augment, batch_size=8, memory_gb=0, workers=workers)
    loader, said = module.train_dataloader(), ""
    try:
        next(iter(loader))
    except DataError as error:
        said = str(error)
    assert paths[5].name in said
    assert "truncated" in said
    assert "\n" not in said
    gone = weakref.ref(loader)
    del loader
    assert gone() is None or not workers, "torch waits 10 seconds for each worker that the garbage collector ends"
    with pytest.raises(DataError, match="truncated"):
        ImageDataModule(broken, pipeline(24, 24), augment, batch_size=8).setup("fit")


LEFT_OPEN = """
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.preprocess import EvalPipeline

from vitreous.data.sources.opening import open_source
pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.5,), std=(0.5,)))
module = ImageDataModule(open_source(DataConfig(source="digits")), pipeline, batch_size=32, memory_gb=0, workers=2)
batches = iter(module.train_dataloader())
next(batches)
"""


def test_a_program_that_leaves_its_workers_waiting_ends():
    subprocess.run([sys.executable, "-c", LEFT_OPEN], timeout=120, check=True)  # it waited for ever


def test_a_missing_split_is_named(photographs):
    with pytest.raises(DataError, match="flowers has no 'test' split, it has train, val"):
        ImageDataModule(photographs, pipeline(24, 24)).test_dataloader()


def within_lightning(test):
    """What Lightning 2.6 warns about by itself: how it asks torch about trees, no workers, and a GPU not used."""
    for about in ("LeafSpec:FutureWarning", "does not have many workers:UserWarning", "GPU available but:UserWarning"):
        test = pytest.mark.filterwarnings(f"ignore:.*{about}")(test)
    return test


class Linear(LightningModule):
    """A module that knows nothing of this package: (images, targets) in, loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.correct = self.seen = 0

    def training_step(self, batch, _):
        images, targets = batch
        return F.cross_entropy(self.layer(images.flatten(1)), targets)

    def validation_step(self, batch, _):
        images, labels = batch
        self.correct += int((self.layer(images.flatten(1)).argmax(1) == labels).sum())
        self.seen += len(labels)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


class StopAt(Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
            raise KeyboardInterrupt


def trainer_of(tmp_path: Path, epochs: int, *callbacks: Callback, accumulate: int = 1) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        callbacks=list(callbacks),
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def module_of(data: ImageData, **fields: object) -> ImageDataModule:
    augment = AugmentConfig(flip=0.0, pad_crop=1, mixup=0.2, erasing=0.1, off_last=0.5)
    return ImageDataModule(data, GREY, augment, batch_size=100, seed=1, label_smoothing=0.1, ready=True, **fields)


@within_lightning
def test_a_script_of_ones_own_trains_on_it(digit_data, tmp_path):
    seed_everything(0)
    model, module = Linear(), module_of(digit_data)
    trainer = trainer_of(tmp_path, 6)
    trainer.fit(model, datamodule=module)
    assert trainer.global_step == 60
    model.correct = model.seen = 0
    trainer.test(model, datamodule=module, verbose=False)
    assert model.seen == 397
    assert model.correct / model.seen > 0.75


@within_lightning
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_stopped_within_an_epoch_ends_in_the_same_bits(digit_data, tmp_path, accumulate):
    def fitted(epochs: int, *callbacks: Callback, resume: Path | None = None) -> dict:
        seed_everything(0)
        model = Linear()
        trainer = trainer_of(tmp_path, epochs, *callbacks, accumulate=accumulate)
        try:
            trainer.fit(model, datamodule=module_of(digit_data, accumulate=accumulate), ckpt_path=resume)
        except (KeyboardInterrupt, SystemExit):
            assert resume is None
        return model.state_dict()

    whole = fitted(3)
    fitted(3, StopAt(13, tmp_path / "middle.ckpt"))  # in the second of three epochs of 10 steps
    resumed = fitted(3, resume=tmp_path / "middle.ckpt")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
