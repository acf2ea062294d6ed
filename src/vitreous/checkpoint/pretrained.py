"""The table of pretrained models to start from. To add one, add a row to ``ROWS``: it is data, with its sources.

:mod:`vitreous.train.finetune.choice` selects a row for a machine and a set of images, :mod:`hub` downloads it. A fact
that no source states is None, never a guess; a model of which no source states a commit or a hash in full has no row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LICENCES", "ROWS", "Licence", "Row", "find_hub_id", "find_row"]


@dataclass(frozen=True)
class Licence:
    """The terms of a row's weights."""

    commercial: bool  # whether commercial use is allowed
    permissive: bool  # whether it has no conditions beyond keeping the notices: only such rows are chosen unasked
    terms: str  # for people


LICENCES: Mapping[str, Licence] = {
    "Apache-2.0": Licence(True, True, "commercial use allowed"),
    "MIT": Licence(True, True, "commercial use allowed"),
    "DINOv3": Licence(True, False, "Meta's licence: commercial use under its conditions, passed on with the model"),
    "CC-BY-NC-4.0": Licence(False, False, "no commercial use"),
    "ImageNet-research": Licence(False, False, "made by us from images of ImageNet, which are for research only"),
}
"""What each licence of the table allows, by the name that rows give."""


@dataclass(frozen=True)
class Row:
    """One pretrained model on the hub.

    Accuracies are top-1 on the validation split of ImageNet-1k in percent, as published for these weights; None if
    their source states none. `fine_tuned` is that of the whole network after fine-tuning on ImageNet-1k, and says
    little about the frozen features.
    """

    name: str  # short name, as in `--from dinov2-s`
    hub_id: str
    revision: str  # commit, or pull request where sha256 is given
    file: str  # of the weights
    parameters: int  # of the backbone, without a head or a text tower
    width: int
    depth: int
    image_size: int  # pixels to fine-tune at, those of the published accuracy where it states them
    patch_size: int
    data: str  # what it was trained on
    licence: str  # a key of LICENCES
    gated: bool
    linear: float | None
    knn: float | None
    fine_tuned: float | None
    source: str  # of the accuracies, or of the licence and the files
    megabytes: float | None  # download; None: not stated, about 4 bytes for each parameter
    sha256: str | None = None  # of the file, where its source states it; the hub's is checked where the cache names it

    @property
    def full_id(self) -> str:
        """The id with its revision, as every `--from` takes it."""
        return f"{self.hub_id}@{self.revision}"

    @property
    def download_bytes(self) -> float:
        """The size of the download, estimated where it is not stated."""
        return 1e6 * self.megabytes if self.megabytes else 4.0 * self.parameters

    def flops(self, image_size: int) -> float:
        """Return the FLOPs of a forward pass of one image, 2 per multiply-add: products with weights, and attention."""
        tokens = (image_size // self.patch_size) ** 2
        return 2.0 * self.parameters * tokens + 4.0 * self.depth * tokens**2 * self.width

    def download(self) -> str:
        """Describe the size of the download."""
        size = self.download_bytes / 1e6
        text = f"{size:,.0f} MB" if size < 1000 else f"{size / 1000:.2f} GB"
        return text if self.megabytes else f"about {text}"


_DINOV2 = "facebookresearch/dinov2, README.md"
_TIMM = "pytorch-image-models, results/results-imagenet.csv"
_MAE = "facebookresearch/mae, FINETUNE.md"
_PROBES = "yberreby/dinov3-in1k-probes, README.md: probes of another author, at 512 pixels"
_CARD = "licence and files: the model's pages on the hub"
_S, _B, _L = (384, 12), (768, 12), (1024, 24)
_IN21K, _IN21K_1K, _WIT_1K = "ImageNet-21k, labels", "ImageNet-21k and 1k, labels", "WIT-400M, texts; ImageNet-1k"
_LVD142M, _LVD1689M = "LVD-142M, no labels", "distilled from 7B, LVD-1689M, no labels"
_SAFE, _BIN = "model.safetensors", "pytorch_model.bin"

ROWS: tuple[Row, ...] = (
    # AugReg, arXiv 2106.10270
    Row("augreg-ti", "timm/vit_tiny_patch16_224.augreg_in21k", "be259528f793cb777bb6b1127e95d3a85d3932e8", _BIN,
        5_524_416, 192, 12, 224, 16, _IN21K, "Apache-2.0", False, None, None, 75.5, _TIMM, 39),
    Row("augreg-s", "timm/vit_small_patch16_224.augreg_in21k_ft_in1k", "5bbc78bad2961a2cee98d6e4a03fa92969175f24",
        _SAFE, 21_665_664, *_S, 224, 16, _IN21K_1K, "Apache-2.0", False, None, None, 81.4, _TIMM, None),
    Row("augreg-b", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", "3feba41e737e1b28af8e1fd7dca8eed073385972",
        _SAFE, 85_798_656, *_B, 224, 16, _IN21K_1K, "Apache-2.0", False, None, None, 85.1, _TIMM, 346),
    Row("augreg-b32", "timm/vit_base_patch32_224.augreg_in21k", "2217173718b9f19458044866005b7c47bd0ed640", _SAFE,
        87_455_232, *_B, 224, 32, _IN21K, "Apache-2.0", False, None, None, 80.7, _TIMM, 417),
    # DINOv2 with registers, arXiv 2309.16588
    Row("dinov2-s", "timm/vit_small_patch14_reg4_dinov2.lvd142m", "d1f0cb319687bb5f5dd976acf47835785e850bcb", _SAFE,
        22_057_344, *_S, 224, 14, _LVD142M, "Apache-2.0", False, 80.9, 79.1, None, _DINOV2, 88.2),
    Row("dinov2-b", "timm/vit_base_patch14_reg4_dinov2.lvd142m", "32195f3ad637569d156f54ce12e0629f651f669a", _SAFE,
        86_582_016, *_B, 224, 14, _LVD142M, "Apache-2.0", False, 84.6, 82.0, None, _DINOV2, None),
    Row("dinov2-l", "timm/vit_large_patch14_reg4_dinov2.lvd142m", "757db394c14a33b44296267d6dac0982d6c63a61", _SAFE,
        304_370_688, *_L, 224, 14, _LVD142M, "Apache-2.0", False, 86.7, 83.8, None, _DINOV2, 1220),
    Row("dinov2-g", "timm/vit_giant_patch14_reg4_dinov2.lvd142m", "26e9575163f301cdaad22003873900b13e923d87", _SAFE,
        1_136_483_840, 1536, 40, 224, 14, _LVD142M, "Apache-2.0", False, 87.1, 83.7, None, _DINOV2, 4550),
    # SigLIP 2, arXiv 2502.14786
    Row("siglip2-b", "timm/vit_base_patch16_siglip_gap_256.v2_webli", "8d09c6bf920b3f56e9bbafeb9cb96465decb34ba", _SAFE,
        85_843_200, *_B, 256, 16, "WebLI, texts", "Apache-2.0", False, None, None, None, _CARD, None),
    Row("siglip2-so400m", "timm/vit_so400m_patch14_siglip_224.v2_webli", "897c2e2e04a678247ec4d1c12cd267c5f9073395",
        _SAFE, 427_680_704, 1152, 27, 224, 14, "WebLI, texts", "Apache-2.0", False, None, None, None, _CARD, 1710),
    # CLIP, arXiv 2103.00020; the file of the second also holds its text tower
    Row("clip-b32", "timm/vit_base_patch32_clip_224.openai_ft_in1k", "099338905d92785fb969bb047d469a9c6102fed4", _SAFE,
        87_456_000, *_B, 224, 32, _WIT_1K, "Apache-2.0", False, None, None, 81.9, _TIMM, 353),
    Row("clip-b", "openai/clip-vit-base-patch16", "refs/pr/10", _SAFE,
        85_799_424, *_B, 224, 16, "WIT-400M, texts", "MIT", False, None, None, None,
        "licence: openai/CLIP, LICENSE; files: the model's pages on the hub", 599,
        "846bf12e84b91c2a65b44833a915241443b39356f1000ac1345c61d7bf8a209e"),
    Row("clip-l", "timm/vit_large_patch14_clip_224.openai_ft_in1k", "1c4a663021a8df32220a64cb2e0c477f5b70538e", _SAFE,
        303_179_776, *_L, 224, 14, _WIT_1K, "Apache-2.0", False, None, None, 87.9, _TIMM, 1220),
    # DeiT III, arXiv 2204.07118
    Row("deit3-s", "timm/deit3_small_patch16_224.fb_in22k_ft_in1k", "0c14598baba9dff214e388f4ea18a1ccf40f3981", _SAFE,
        21_674_496, *_S, 224, 16, _IN21K_1K, "Apache-2.0", False, None, None, 83.1, _TIMM, 88.3),
    Row("deit3-l", "timm/deit3_large_patch16_224.fb_in22k_ft_in1k", "51971edc9c4b1a58901ac0c441592a6e98f2b713", _SAFE,
        303_349_760, *_L, 224, 16, _IN21K_1K, "Apache-2.0", False, None, None, 87.0, _TIMM, 1220),
    # MAE, arXiv 2111.06377. The hub's card of the first says Apache-2.0, the authors' own LICENSE says CC BY-NC.
    Row("mae-b", "facebook/vit-mae-base", "f4bf8a536816f4f7d5c8b7fbd4621396c195001f", _BIN,
        85_798_656, *_B, 224, 16, "ImageNet-1k, no labels", "CC-BY-NC-4.0", False, 68.0, None, 83.7, _MAE, 448),
    Row("mae-l", "timm/vit_large_patch16_224.mae", "c6421a822d7e8973bab74ed0d00695a506410faf", _SAFE,
        303_301_632, *_L, 224, 16, "ImageNet-1k, no labels", "CC-BY-NC-4.0", False, 75.8, None, 86.0, _MAE, 1210),
    # DINOv3, arXiv 2508.10104
    Row("dinov3-s", "facebook/dinov3-vits16-pretrain-lvd1689m", "114c1379950215c8b35dfcd4e90a5c251dde0d32", _SAFE,
        21_586_944, *_S, 224, 16, _LVD1689M, "DINOv3", True, 81.4, None, None, _PROBES, None),
    Row("dinov3-s+", "timm/vit_small_plus_patch16_dinov3.lvd1689m", "c35074f0e1a65242948168c9358ce26705c4deb2", _SAFE,
        28_683_264, *_S, 256, 16, _LVD1689M, "DINOv3", False, 82.9, None, None, _PROBES, 115),
    Row("dinov3-b", "timm/vit_base_patch16_dinov3.lvd1689m", "c6a5fb7d12bbd3cf3b0079253141c3332aaed7da", _SAFE,
        85_641_216, *_B, 256, 16, _LVD1689M, "DINOv3", False, 85.0, None, None, _PROBES, None),
    Row("dinov3-l", "timm/vit_large_patch16_dinov3_qkvb.lvd1689m", "3653d393df9fd16a9c1bae8a6c5a514f683b70ce", _SAFE,
        303_128_576, *_L, 256, 16, _LVD1689M, "DINOv3", False, 87.4, None, None, _PROBES, 1210),
    Row("dinov3-h+", "timm/vit_huge_plus_patch16_dinov3.lvd1689m", "dd0addc09788111fa893d24799a44744ba022eee", _SAFE,
        840_509_440, 1280, 32, 256, 16, _LVD1689M, "DINOv3", False, 87.7, None, None, _PROBES, 3360),
)  # fmt: skip
"""The table of `vitreous models --pretrained`: one row per backbone, with its source and scores."""


def find_row(name: str) -> Row | None:
    """Return the row with a short name."""
    return next((row for row in ROWS if row.name == name), None)


def find_hub_id(hub_id: str) -> Row | None:
    """Return the row with a hub id; a revision and a prefix make no difference."""
    bare = re.sub(r"^(hf[-_]hub:|hf://)", "", hub_id).partition("@")[0]
    return next((row for row in ROWS if row.hub_id == bare), None)
