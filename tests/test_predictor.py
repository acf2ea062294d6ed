"""The classifier's results are those of model, pipeline and temperature, however the images are passed."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import vitreous
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.images.reading import read_image
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, DataError
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer
from vitreous.predictions import Failure, Prediction
from vitreous.predictor import Classifier

CONFIG = ViTConfig(
    image_size=(32, 48), patch_size=8, num_classes=4, width=32, depth=2, heads=2, mlp_dim=64, init="timm"
)
PIPELINE = EvalPipeline((32, 48), 3, PreprocessConfig(fit="pad", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
INFO = ModelInfo(("cat", "dog", "eel", "fox"), PIPELINE, temperature=2.5)


def model_of(config: ViTConfig) -> VisionTransformer:
    torch.manual_seed(1)
    model = build(config)
    with torch.no_grad():
        model.head.weight.mul_(30)
    return model.eval()


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(model_of(CONFIG), INFO, device="cpu")


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    china, flower = load_sample_images().images
    return [china, flower, china[:200], flower[:, :200], np.ascontiguousarray(china[:, ::-1])]


@pytest.fixture
def paths(tmp_path, photos) -> list[str]:
    files = [str(tmp_path / f"photo {n}.png") for n in range(len(photos))]
    for file, photo in zip(files, photos, strict=True):
        Image.fromarray(photo).save(file)
    return files


def by_hand(classifier: Classifier, photo: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return classifier.model(PIPELINE(read_image(photo))[None])[0]


def test_a_prediction_is_the_softmax_of_the_tempered_logits(classifier, photos):
    logits = by_hand(classifier, photos[0])
    expected = (logits / 2.5).softmax(0)
    found = classifier.predict(photos[0], top_k=4)
    order = expected.argsort(descending=True).tolist()
    assert [label for label, _ in found.top] == [INFO.classes[i] for i in order]
    torch.testing.assert_close(torch.tensor([p for _, p in found.top]), expected[order])
    assert (found.label, found.probability) == found.top[0]
    assert found.name == "#0"
    assert sum(p for _, p in found.top) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(classifier.logits(photos[0]), logits, rtol=1e-4, atol=1e-5)


def test_embeddings_are_what_the_head_reads(classifier, photos):
    vectors = classifier.embed(photos)
    assert vectors.shape == (5, classifier.features) == (5, 32)
    assert vectors.dtype == np.float32
    head = classifier.model.head
    logits = vectors @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(logits, classifier.logits(photos), rtol=1e-4, atol=1e-5)
    assert classifier.embed(photos[0]).shape == (32,)
    assert classifier.embed([]).shape == (0, 32)
    assert classifier.logits([]).shape == (0, 4)


def test_an_mlp_head_embeds_its_hidden_layer(photos):
    config = ViTConfig(image_size=(32, 48), patch_size=8, num_classes=4, width=32, depth=1, heads=2, mlp_dim=64)
    hidden = Classifier(
        model_of(vitreous.ViTConfig(**{**vars(config), "head": {"kind": "mlp", "hidden": 20}})), INFO, "cpu"
    )
    assert hidden.embed(photos[0]).shape == (hidden.features,) == (20,)


def test_paths_images_and_arrays_give_the_same(classifier, photos, paths, tmp_path):
    from_paths = classifier.predict(paths)
    from_arrays = classifier.predict(photos)
    from_images = classifier.predict(Image.fromarray(photo) for photo in photos)
    opened = classifier.predict([Image.open(path) for path in paths])
    for each in (from_arrays, from_images, opened):
        assert [p.top for p in each] == [p.top for p in from_paths]
    assert [p.name for p in from_paths] == [p.name for p in opened] == paths
    assert [p.name for p in from_arrays] == ["#0", "#1", "#2", "#3", "#4"]
    single = classifier.predict(tmp_path / "photo 0.png")
    assert isinstance(single, Prediction)
    assert single.label == from_paths[0].label


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_the_batch_size_changes_nothing_but_the_last_bits(classifier, photos, batch_size):
    np.testing.assert_allclose(
        classifier.logits(photos, batch_size=batch_size), classifier.logits(photos), rtol=1e-4, atol=1e-5
    )


def test_top_k_stops_at_the_number_of_classes(classifier, photos):
    assert len(classifier.predict(photos[0], top_k=50).top) == 4
    assert len(classifier.predict(photos[0], top_k=1).top) == 1
    with pytest.raises(ConfigError, match="top_k is 0, it must be at least 1"):
        classifier.predict(photos[0], top_k=0)
    with pytest.raises(ConfigError, match="batch_size is -1"):
        classifier.predict(photos[0], batch_size=-1)


def test_a_stream_yields_failures_in_order(classifier, paths, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"not an image at all")
    (tmp_path / "empty.jpg").write_bytes(b"")
    sources = [
        paths[0],
        str(tmp_path / "bad.jpg"),
        paths[1],
        str(tmp_path / "gone.jpg"),
        str(tmp_path / "empty.jpg"),
        paths[2],
    ]
    found = list(classifier.predict_stream(sources, batch_size=2))
    assert [each.name for each in found] == sources
    assert [isinstance(each, Failure) for each in found] == [False, True, False, True, True, False]
    assert [found[n].reason for n in (1, 3, 4)] == ["not an image", "no such file", "empty, 0 bytes"]
    assert [found[n].top for n in (0, 2, 5)] == [classifier.predict(path).top for path in paths[:3]]
    assert [isinstance(each, Failure) for each in classifier.embed_stream(sources)] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_list_with_unreadable_images_counts_them_and_names_the_first(classifier, paths, tmp_path):
    gone = [str(tmp_path / f"gone {n}.jpg") for n in range(7)]
    with pytest.raises(DataError) as caught:
        classifier.predict([*paths, *gone])
    assert str(caught.value).startswith(f"7 of 12 images cannot be read: {gone[0]}: no such file; {gone[1]}")
    assert str(caught.value).endswith("; and 2 more")
    with pytest.raises(DataError, match=r"gone 0\.jpg: no such file$"):
        classifier.predict(gone[0])
    with pytest.raises(DataError, match="a value of type int is not an image"):
        classifier.predict(3)
    with pytest.raises(DataError, match="shape"):
        classifier.predict(np.zeros((2, 3, 4, 5)))


def test_an_endless_stream_is_read_only_a_few_batches_ahead_and_closes(classifier, photos):
    taken = 0

    def endless():
        nonlocal taken
        for photo in itertools.cycle(photos):
            taken += 1
            yield photo

    stream = classifier.predict_stream(endless(), batch_size=4)
    assert len(list(itertools.islice(stream, 10))) == 10
    assert taken <= 10 + 3 * 4
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitreous-decode")]


def test_load_takes_a_file_or_a_run_folder(tmp_path, photos, classifier):
    save_model(tmp_path / "model.safetensors", model_of(CONFIG), INFO)
    for source in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        loaded = vitreous.load(source, device="cpu")
        assert loaded.classes == ("cat", "dog", "eel", "fox")
        assert loaded.predict(photos[0]) == classifier.predict(photos[0])
    assert str(vitreous.load(tmp_path).device) in ("cpu", "cuda", "mps")


def test_an_unknown_device_is_refused():
    said = {"tpu9": "'tpu9' is unknown", "cuda:99": "cuda:99 is not available", "meta": "'meta' is unknown"}
    for name, message in said.items():
        with pytest.raises(ConfigError, match=f"device {message}"):
            Classifier(model_of(CONFIG), INFO, device=name)


def test_damaged_weights_raise_an_error(photos):
    model = model_of(CONFIG)
    with torch.no_grad():
        model.head.bias[1] = float("nan")
    with pytest.raises(CheckpointError, match="not finite"):
        Classifier(model, INFO, device="cpu").predict(photos[0])


def test_test_time_augmentation_is_the_mean_over_the_image_and_its_mirror_image(classifier, photos):
    augmented = Classifier(model_of(CONFIG), INFO, device="cpu", tta=True)
    batch = torch.stack([PIPELINE(read_image(photo)) for photo in photos])
    with torch.inference_mode():
        views = [(classifier.model(images) / 2.5).softmax(1) for images in (batch, batch.flip(3))]
    expected = (views[0] + views[1]) / 2
    assert (views[0] - views[1]).abs().max() > 1e-2
    for batch_size in (1, 2, 32):
        found = augmented.predict(photos, top_k=4, batch_size=batch_size)
        for prediction, chances in zip(found, expected, strict=True):
            assert [dict(prediction.top)[name] for name in INFO.classes] == pytest.approx(chances.tolist(), abs=1e-5)
    tempered = torch.from_numpy(augmented.logits(photos)) / 2.5
    torch.testing.assert_close(tempered.softmax(1), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(augmented.embed(photos), classifier.embed(photos), rtol=1e-4, atol=1e-5)
    mirrored = [np.ascontiguousarray(photo[:, ::-1]) for photo in photos]  # also where resizing is not quite symmetric
    for one, other in zip(augmented.predict(photos), augmented.predict(mirrored), strict=True):
        assert one.probability == pytest.approx(other.probability, abs=0.02)


def test_load_takes_test_time_augmentation_and_float32_is_its_default(tmp_path, photos):
    save_model(tmp_path / "model.safetensors", model_of(CONFIG), INFO)
    augmented = vitreous.load(tmp_path, device="cpu", tta=True)
    expected = Classifier(model_of(CONFIG), INFO, device="cpu", tta=True).predict(photos[0])
    assert augmented.predict(photos[0]).probability == pytest.approx(expected.probability, abs=1e-5)
    assert augmented.prepare(100).precision == "float32"
    headless = Classifier(
        build(vitreous.ViTConfig(**{**vars(CONFIG), "num_classes": 0})),
        ModelInfo((), PIPELINE),
        "cpu",
        tta=True,
    )
    assert headless.embed(photos[0]).shape == (32,)


def with_thresholds(threshold: float, score: SelectionScore, thresholds: tuple[float, ...] = (0.6,)) -> ModelInfo:
    rule = AbstentionRule(score, threshold, 0.95, 0.95, 0.5, 1.0)
    return dataclasses.replace(INFO, abstention=rule, conformal=ConformalSets("lac", 0.9, thresholds, 4))


@pytest.mark.parametrize("tta", [False, True])
@pytest.mark.parametrize("name", ["max_probability", "margin", "max_logit"])
def test_predictions_honour_thresholds(classifier, photos, name, tta):
    plain = Classifier(model_of(CONFIG), INFO, device="cpu", tta=tta)
    calibrated = plain.logits(photos).astype(np.float64) / 2.5
    odds = np.exp(calibrated - calibrated.max(1, keepdims=True))
    chances = odds / odds.sum(1, keepdims=True)
    falling = -np.sort(-chances, axis=1)
    scores = {
        "max_probability": falling[:, 0],
        "margin": falling[:, 0] - falling[:, 1],
        "max_logit": calibrated.max(1),
    }[name]
    low, high = np.sort(scores)[[1, 2]]
    info = with_thresholds((low + high) / 2, SelectionScore(name), (0.5, 0.7, 0.9, 0.6))
    found = Classifier(model_of(CONFIG), info, device="cpu", tta=tta).predict(photos, top_k=2, batch_size=2)
    assert [each.unsure for each in found] == (scores < (low + high) / 2).tolist()
    held = 1 - chances <= np.array([0.5, 0.7, 0.9, 0.6])
    assert [set(each.set) for each in found] == [{INFO.classes[k] for k in np.flatnonzero(row)} for row in held]
    for each, row in zip(found, chances, strict=True):
        assert [INFO.classes.index(k) for k in each.set] == sorted(
            (INFO.classes.index(k) for k in each.set), key=lambda k: -row[k]
        )
        assert each.set_coverage == 0.9
        assert len(each.top) == 2
    same = Classifier(model_of(CONFIG), INFO, device="cpu", tta=tta).predict(photos, top_k=2, batch_size=2)
    assert [each.top for each in same] == [each.top for each in found]
    assert all((each.unsure, each.set, each.set_coverage) == (None, None, None) for each in same)


def test_averaged_logits_keep_their_level(photos):
    """A photograph that equals its mirror image has the logits of one view, to which thresholds were fitted."""
    symmetric = np.concatenate([photos[0], photos[0][:, ::-1]], axis=1)
    one, both = (Classifier(model_of(CONFIG), INFO, "cpu", tta=tta).logits(symmetric) for tta in (False, True))
    np.testing.assert_allclose(both, one, rtol=1e-3, atol=1e-3)


def test_thresholds_are_ignored_on_request_and_notes_say_when_they_may_not_hold(tmp_path, photos):
    info = with_thresholds(0.5, SelectionScore("max_probability"))
    save_model(tmp_path / "model.safetensors", model_of(CONFIG), info)
    told: list[str] = []
    prediction = vitreous.load(tmp_path, "cpu", tell=told.append).predict(photos[0])
    assert prediction.unsure is not None
    assert ("unsure" in prediction._repr_html_()) == prediction.unsure
    assert told == []
    plain = vitreous.load(tmp_path, "cpu", ignore_thresholds=True, tta=True, tell=told.append).predict(photos[0])
    assert (plain.unsure, plain.set) == (None, None)
    assert told == []
    vitreous.load(tmp_path, "cpu", tta=True, merge_tokens=1, engine="torch", tell=told.append)
    assert [line[:56] for line in told] == ["the thresholds were fitted without merge tokens and tta:"]
    told.clear()
    changed = vitreous.load(tmp_path, "cpu", image_size=(48, 48), tell=told.append)
    assert changed.predict(photos[0]).unsure is None
    assert told == ["the thresholds of `vitreous calibrate` are left out: they hold only for the model as it was"]
    with pytest.raises(ConfigError, match=r"conformal\.classes is 4, the model has 2"):
        dataclasses.replace(info, classes=("cat", "dog"))
