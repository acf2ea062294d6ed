"""Writes the files of a pretraining run: the backbone, and a report with reconstructions and nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vitreous.data.rng import generator
from vitreous.machine.device import describe_machine, versions
from vitreous.model.vit import VisionTransformer
from vitreous.report.pretraining import Figures, PretrainReport, write_pretraining_report
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.module import PretrainModule
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.results import RunWriter, copy_weights

__all__ = ["PretrainWriter"]

_SHOWN = 8  # images of the figures
_NEIGHBOURS = 6
_TERMS = {
    "val_knn": ("k-NN", 100, " %"),
    "val_linear": ("linear probe", 100, " %"),
    "val_knn_map": ("k-NN mAP", 100, " %"),
    "val_linear_map": ("linear probe mAP", 100, " %"),
    "effective_rank": ("effective rank", 1, ""),
    "rankme": ("RankMe", 1, ""),
}


class PretrainWriter(RunWriter):
    """Writes the files of a pretraining run; model files have the backbone alone."""

    def exported(self, weights: Mapping[str, Tensor]) -> VisionTransformer:
        """Return the backbone with the weights of an objective."""
        objective = cast(Objective, self.model)
        objective.load_state_dict(weights)
        return objective.trained_backbone

    def save_backbone(self, module: PretrainModule, epochs: int) -> None:
        """Write the model file of a finished run."""
        self._save("model.safetensors", copy_weights(module.model), epochs, 1.0, {})

    def measure(self, module: PretrainModule, history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the measures of the last weights with all probes, which the last epoch has unless time ran out."""
        module.eval()  # the figures follow
        last = history[-1] if history else {}
        if all(last.get(name) is not None for name in module.monitor.columns):
            return {name: last[name] for name in module.monitor.columns}
        return module.monitor.measure(module.objective.trained_backbone, probes=True)

    def describe(self, measures: Mapping[str, float]) -> str:
        """Return measures as a line."""
        found = [(name, _TERMS[name]) for name in _TERMS if name in measures]
        return ", ".join(f"{label} {scale * measures[name]:.1f}{unit}" for name, (label, scale, unit) in found)

    def next_command(self, has_labels: bool = False) -> list[str]:
        """Return a command that uses the backbone: fine-tuning where there are two labels, else features or a page."""
        model, source = str(self.folder / "model.safetensors"), self.setup.config.data.source
        if has_labels:
            return ["vitreous", "finetune", source, "--from", str(self.folder)]
        if not Path(source).expanduser().is_dir():  # a manifest or a known dataset, which `embed` does not take
            return ["vitreous", "inspect", model]
        return ["vitreous", "embed", model, source, "-o", str(self.folder / "features.npz")]

    def write_pretraining(
        self,
        module: PretrainModule,
        measures: Mapping[str, float],
        *,
        history: Sequence[Mapping[str, Any]],
        seconds: Mapping[str, float],
    ) -> None:
        """Write report.json, the page and the figures."""
        setup, config = self.setup, cast(PretrainConfig, self.setup.config)
        report = {
            "recipe": config.recipe,
            "method": config.method,
            "options": config.to_dict()[config.method],
            "seed": config.seed,
            "device": str(setup.device),
            "precision": setup.precision,
            "data": {
                "source": config.data.source,
                "fingerprint": setup.data.fingerprint,
                "images": {name: len(split) for name, split in setup.data.splits.items()},
                "unreadable": len(setup.data.unreadable),
            },
            "model": {"parameters": setup.cost.parameters, "flops": setup.cost.flops},
            "training": {
                "epochs": len(history),
                "selected_epoch": len(history),
                "seconds": dict(seconds),
                "extended_from": list(self.extended),
            },
            "pretrained_from": setup.pretrained.to_dict() if setup.pretrained is not None else None,
            "features": dict(measures),
            **({"features_before": dict(module.start)} if module.start else {}),
            "last_epoch": dict(history[-1]) if history else {},
            "machine": describe_machine(setup.device).to_dict(),
            "versions": versions(),
        }
        about = f"{config.method} on {config.data.source}: {self.describe(measures)}"
        write_pretraining_report(
            self.folder, PretrainReport(self.folder.name, about, report, history, self._figures(module))
        )

    def _figures(self, module: PretrainModule) -> Figures:
        """Reconstruct some validation images, and find those most similar to them."""
        monitor, objective = module.monitor, module.objective
        images = monitor.dataset("val").pixels  # (n, H, W, C)
        chosen = generator(self.setup.config.seed, stream="figures").permutation(len(images))[:_SHOWN]
        features = monitor.val_features
        if features is None:  # training had ended before this process began
            features = monitor.features(objective.trained_backbone, "val")
        features = torch.nn.functional.normalize(features, dim=1)
        similarity = features[chosen] @ features.T  # (queries, n)
        similarity[torch.arange(len(chosen)), torch.from_numpy(chosen)] = -2.0  # not the image itself
        values, index = similarity.topk(min(_NEIGHBOURS, len(images) - 1), dim=1)
        rows = [images[int(n)].numpy() for n in chosen]
        neighbours = [[images[int(n)].numpy() for n in row] for row in index]
        if not objective.reconstructs:
            return Figures(rows, neighbours, values.tolist())
        torch.manual_seed(self.setup.config.seed)
        pixels = images[chosen].permute(0, 3, 1, 2)
        made = objective.reconstruct(self.setup.pipeline.normalise(pixels.to(module.device)))
        as_rows = [each.round().byte().permute(0, 2, 3, 1).cpu().numpy() for each in (made.visible, made.completed)]
        return Figures(rows, neighbours, values.tolist(), list(as_rows[0]), list(as_rows[1]))
