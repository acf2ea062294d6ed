"""Readers for untrusted files: nothing in a file is executed, and time and memory are bounded by its real size.

Read :mod:`tensors` first: it returns the tensors of any supported file. It relies on :mod:`container` (which kind of
file this is; the safetensors header), :mod:`npz` (NumPy arrays) and :mod:`torch_file` (files of ``torch.save``). These
stand on :mod:`archive` (zip), :mod:`pickle_reader` (a pickle interpreter that calls nothing) and :mod:`pickle_globals`
(the names that a pickle may use). :mod:`documents` parses JSON.
"""
