"""Lets ``python -m vitreous`` be the `vitreous` command."""

import sys

from vitreous.cli.main import main

sys.exit(main())
