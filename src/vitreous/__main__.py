"""Entry point of ``python -m vitreous``."""

import sys

from vitreous.cli.main import main

sys.exit(main())
