"""A run directory on disk: who may write to it, and the files that a resume reads.

Read `folder.py` first: it chooses the directory, checks whether a run may start or resume there, and writes
recipe.yaml. `lock.py` makes sure that only one run uses a directory. `folder_content.py` names the files that a run
writes, refuses unsafe links and removes unfinished files. `state_file.py` is the file format of checkpoints; what they
hold is in `vitreous.train.resume.state`. `shards.py` is the format of those that several processes write together.
"""
