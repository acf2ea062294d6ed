"""Find problems in labelled images before a model is trained on them: unreadable files, copies, and label conflicts.

`run` states the steps. `findings` lists the kinds of findings and holds the result; `checks` finds problems of files
and classes, `copies` those of copies, which `duplicates` finds by perceptual hashes. `look` inspects one file, `watch`
runs it in the processes of `worker`, and `cache` keeps the inspections.
"""
