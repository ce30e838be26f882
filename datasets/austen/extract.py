#!/usr/bin/env python3
"""Jane Austen's novels out of Debian's r-cran-janeaustenr, one chapter a line, as JSON lines.

Usage: extract.py FOLDER > austen.jsonl
FOLDER is .../usr/lib/R/site-library/janeaustenr/data of the unpacked package. Standard library only.
"""
import json
import re
import struct
import sys
import zlib

NOVELS = [
    ("sensesensibility", "Sense and Sensibility"),
    ("prideprejudice", "Pride and Prejudice"),
    ("mansfieldpark", "Mansfield Park"),
    ("emma", "Emma"),
    ("northangerabbey", "Northanger Abbey"),
    ("persuasion", "Persuasion"),
]


class R:
    """A reader of R's serialisation (XDR, versions 2 and 3), as far as these files need it."""

    def __init__(self, data):
        self.data, self.at, self.seen = data, 14, []
        if struct.unpack(">i", data[2:6])[0] == 3:
            self.at = 18 + struct.unpack(">i", data[14:18])[0]

    def int(self):
        self.at += 4
        return struct.unpack(">i", self.data[self.at - 4 : self.at])[0]

    def item(self):
        flags = self.int()
        kind = flags & 255
        if kind == 254:  # NULL
            return None
        if kind == 255:  # a symbol seen before
            return self.seen[(flags >> 8) - 1]
        if kind == 1:  # symbol
            self.seen.append(self.item())
            return self.seen[-1]
        if kind == 9:  # string
            size = self.int()
            self.at += max(size, 0)
            return self.data[self.at - max(size, 0) : self.at].decode()
        if kind == 2:  # pair list
            if flags & 512:
                self.item()
            tag = self.item() if flags & 1024 else None
            value = self.item()
            return [(tag, value)] + (self.item() or [])
        size = self.int()
        if kind in (16, 19):  # strings, list
            values = [self.item() for _ in range(size)]
        elif kind in (10, 13):  # logicals, integers
            values = [self.int() for _ in range(size)]
        else:
            raise ValueError(f"R type {kind}")
        names = dict(self.item()).get("names") if flags & 512 else None
        return dict(zip(names, values)) if names else values


def chapters(lines):
    """(heading, body) of each chapter; what comes before the first and after the end is dropped."""
    volume, found = "", []
    for line in lines:
        if re.match(r"\s*(the end|finis)\.?\s*$", line, re.I) or line.startswith("A NOTE ON THE TEXT"):
            break
        if match := re.match(r"\s*(volume) (\w+)\s*$", line, re.I):
            volume = f"Volume {match[2]}, "
        elif match := re.match(r"\s*(chapter) (\w+)\s*$", line, re.I):
            found.append((f"{volume}Chapter {match[2]}", []))
        elif found:
            found[-1][1].append(line.rstrip())
    return [(heading, "\n".join(body)) for heading, body in found]


def unwrapped(body):
    """Paragraphs of one line each; verse and letterheads, which are indented, keep their lines."""
    paragraphs = []
    body = re.sub(r"\[End volume.*?\]", "", body, flags=re.S)  # the edition's, not the author's
    for paragraph in re.split(r"\n\s*\n", body.strip("\n")):
        lines = paragraph.split("\n")
        verse = len(lines) > 1 and all(line.startswith(" ") for line in lines)
        paragraphs.append("\n".join(lines) if verse else " ".join(" ".join(lines).split()))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph.strip())


def main():
    folder = sys.argv[1]
    with open(f"{folder}/Rdata.rdx", "rb") as file:
        index = R(zlib.decompress(file.read(), 31)).item()["variables"]
    with open(f"{folder}/Rdata.rdb", "rb") as file:
        database = file.read()
    for name, title in NOVELS:
        start, size = index[name]
        novel = R(zlib.decompress(database[start + 4 : start + size])).item()
        for heading, body in chapters(novel):
            text = f"{title}, {heading}\n\n{unwrapped(body)}\n"
            print(json.dumps({"text": text}, ensure_ascii=False))


main()
