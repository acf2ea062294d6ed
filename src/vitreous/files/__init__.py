"""The border between the package and the user's files and screen; nothing here knows about images or models.

- `opening.py`: open untrusted files: regular files of a bounded size.
- `writing.py`: write the user's files atomically, without overwriting anything by accident.
- `private.py`: files that only the user can have written; `user_cache.py`: folders of them that may be removed.
- `text.py`: make untrusted text safe for terminals, CSV, JSON, YAML and HTML; `html.py` builds small tables from it,
  `shell.py` quotes commands.
"""
