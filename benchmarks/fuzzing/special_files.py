"""Paths that are not regular files, and folders of links: pipes, devices, sparse files, link loops."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from PIL import Image

__all__ = ["PLACES", "folders_of_links", "special_file"]

PLACES = ("special files", "folders of links")


def special_file(path: Path, photograph: bytes, chance: random.Random) -> tuple[Path, bool]:
    """Create a special or regular file at a path; return it and whether it is a readable image."""
    kind = chance.choice(
        ("pipe", "socket", "device", "sparse", "folder", "loop", "gone", "chain", "good", "closed", "nul", "long")
    )
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as made:
            try:
                made.bind(f"/proc/self/fd/{here}/{path.name}")
            except OSError:  # a long name
                path.touch()
        os.close(here)
    elif kind == "device":
        path.symlink_to(
            chance.choice(
                (
                    "/dev/zero",
                    "/dev/null",
                    "/dev/full",
                    "/dev/urandom",
                    "/proc/self/mem",
                    "/proc/kmsg",
                )
            )
        )
    elif kind == "sparse":
        with path.open("wb") as file:
            file.write(chance.choice((photograph[:2000], b"", b"BM", b"\x89PNG\r\n\x1a\n")))
            file.truncate(chance.choice((1 << 20, 1 << 28, 1 << 35, 1 << 40)))
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "gone":
        path.symlink_to("nowhere")
    elif kind == "chain":
        target = path.with_suffix(".real")
        target.write_bytes(photograph)
        path.symlink_to(target)
        return path, True
    elif kind == "good":
        path.write_bytes(photograph)
        return path, True
    elif kind == "closed":
        path.touch(mode=0)
    elif kind == "nul":
        return Path(f"{path}\0{chance.randrange(9)}.jpg"), False
    else:
        return path.with_name("x" * chance.choice((255, 260, 300))), False
    return path, False


def folders_of_links(place: Path, chance: random.Random) -> set[tuple[int, int]]:
    """Create folders with one image each and many links to each other; return device and inode of each image."""
    count = 26 if chance.random() < 0.01 else chance.choice((2, 3, 4, 6, 12))
    folders = []
    for n in range(count):
        parent = chance.choice([place, *folders])
        folders.append(parent / f"{n:02}")
        folders[-1].mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(folders[-1] / "image.png")
    for folder in folders:
        for n in range(50 if count == 26 else chance.choice((1, 2, 11))):
            (folder / f"link{n}").symlink_to(chance.choice([place, *folders]), target_is_directory=True)
    images = [folder / "image.png" for folder in folders]
    return {(status.st_dev, status.st_ino) for status in map(os.stat, images)}
