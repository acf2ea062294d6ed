"""Loads models by name, in a process of tests or as a program: what each is, or its error."""

from __future__ import annotations

import json
import sys

from vitreous.errors import VitreousError
from vitreous.predictor import load


def loaded(names: list[str]) -> list[dict[str, object]]:
    """Load models one after the other; return the width and the sum of the weights of each, or the error."""
    found: list[dict[str, object]] = []
    for name in names:
        try:
            model = load(name, device="cpu").model
        except VitreousError as error:
            found.append({"error": str(error), "kind": type(error).__name__})
        else:
            total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
            found.append({"width": model.config.width, "sum": total})
    return found


if __name__ == "__main__":
    print(json.dumps(loaded(sys.argv[1:])))
