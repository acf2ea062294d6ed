"""Figures and pages for people: of runs, batches and audits.

`run_report` writes report.json, the page and the learning curves of a run, which `figures` draws; the page is that of
`evaluation`, the report of a model on labelled images. `batch_figure` draws an augmented batch. All figures share the
colours and settings of `style` and the fonts of `fonts`. `audit_page` writes an audit as an HTML page.

The pages of `evaluation` and `inspection` share the frame of `document` with its style `shared.css`, the colours of
`drawing`, the overlays of `stage`, and the charts of `svg`.
"""
