"""What `vitreous audit --model` says of the classifier that judges labels."""

from __future__ import annotations

import numpy as np
import pytest

from vitreous.cli.work.suspects import _agreement_of_several


@pytest.mark.parametrize(("wrong", "cautious"), [(0, False), (8, False), (12, True), (20, True)])
def test_of_several_labels_the_commoner_answers_are_the_measure(wrong, cautious):
    """100 images, two labels that a tenth of them have: to say that none has any is right in 90 % of the pairs."""
    has = np.zeros((100, 2), np.int64)
    has[:10] = 1
    chances = has * 0.8 + 0.1
    chances[:10].reshape(-1)[:wrong] = 0.1
    text = _agreement_of_several(chances, has)
    assert text.startswith(f"it agrees with {100 - wrong / 2:.1f} % of the pairs of image and label")
    assert ("commoner answer, given to all images, with 90.0 %: so few more that most" in text) == cautious
