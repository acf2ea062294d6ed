"""The page and the files of an evaluation of several labels: `results.py` measures, `page.py` shows it."""
