"""A model of which each process of a run holds a part, by torch's fully_shard (FSDP2).

layout.py says which rows are whose, sharding.py shards a model, module.py computes its step, saving.py saves it in
shards, and sharded.py puts these together for run.py.
"""
