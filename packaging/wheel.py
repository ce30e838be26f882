"""Puts the release binary into a Python wheel: `pip install` copies it to the environment's bin/, and
beside it `gptrain-plan`, which is `gptrain estimate`.

    python3 packaging/wheel.py BINARY FOLDER
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
# Platform that `make release` links against.
PLATFORM = "manylinux_2_28_x86_64"
# For who plans and does not train.
PLAN = b"""#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/gptrain" estimate "$@"
"""


def main(binary, folder):
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    name = f"gptrain-{version}"
    tag = f"py3-none-{PLATFORM}"
    about = "Pretrains GPT models: one binary, from a laptop's CPU to a GPU cluster"
    metadata = (
        f"Metadata-Version: 2.4\nName: gptrain\nVersion: {version}\nSummary: {about}\n"
        "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n\n" + (ROOT / "README.md").read_text()
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: gptrain\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {
        f"{name}.data/scripts/gptrain": pathlib.Path(binary).read_bytes(),
        f"{name}.data/scripts/gptrain-plan": PLAN,
        f"{name}.dist-info/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{name}.dist-info/METADATA": metadata.encode(),
        f"{name}.dist-info/WHEEL": wheel.encode(),
    }
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    record = f"{name}.dist-info/RECORD"
    rows = [f"{path},sha256={digest(data).decode()},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join(rows + [f"{record},,", ""]).encode()

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, data in files.items():
            # Equal binaries make equal wheels: the time is the earliest a zip can say.
            entry = zipfile.ZipInfo(place)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in place else 0o100644) << 16
            archive.writestr(entry, data)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


main(*sys.argv[1:])
