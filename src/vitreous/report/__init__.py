"""Figures and pages for people: of runs, batches and audits.

`run_report` writes report.json and the figures of a run: `figures` draws learning curves, confusion matrix and
calibration, `mistakes` the sheet of worst mistakes. `batch_figure` draws an augmented batch. All figures share the
colours and settings of `style` and the fonts of `fonts`. `audit_page` writes an audit as an HTML page.
"""
