"""What `vitreous train` resolves before it trains."""

from __future__ import annotations

import pytest

from vitreous.cli.main import main
from vitreous.cli.train import configure


@pytest.mark.parametrize("name", ["digits", "cifar10", "simple-vit"])
def test_printed_configuration_is_the_run_itself(name, tmp_path, capsys):
    words = ["digits", "--recipe", name, "--optim.lr", "0.000123", "--model", "Ti/8", "--model.image_size=[16,32]"]
    assert main(["train", *words, "--print-config"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    config, _, _ = configure(words)
    again, _, _ = configure(["--config", str(printed)])
    assert again == config
    assert (again.optim.lr, again.model.width, again.model.image_size) == (0.000123, 192, (16, 32))


def test_options_without_dashes_and_with_either_dash():
    config, _, _ = configure(["digits", "optim.lr=0.5", "--batch-size", "32", "--label_smoothing=0.2"])
    assert (config.optim.lr, config.batch_size, config.label_smoothing) == (0.5, 32, 0.2)
