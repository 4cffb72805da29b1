"""Compressed CSV files that are damaged: refused with the way out, whatever the decompressor says."""

from __future__ import annotations

import gzip

import pytest

from discreet import InvalidInput
from discreet.tables.files import open_bytes, open_text

_WHOLE = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * i % 97) for i in range(3000)), mtime=0)
_MIDDLE = len(_WHOLE) // 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv.gz", b"a,b\n1,2\n"),
        ("plain.csv.zst", b"a,b\n1,2\n"),
        ("short.csv.gz", _WHOLE[:14]),
        ("cut.csv.gz", _WHOLE[:_MIDDLE]),
        ("changed.csv.gz", _WHOLE[:20] + b"\xff" * 40 + _WHOLE[60:]),
        ("sum.csv.gz", _WHOLE[:-8] + b"\0" * 8),
    ],
)
def test_a_damaged_file_is_refused_with_the_way_out(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with (
        pytest.raises(
            InvalidInput, match=r"cannot be decompressed: it was cut off or damaged.*Copy or compress"
        ),
        open_bytes(tmp_path / name) as file,
    ):
        file.read()
    with (
        pytest.raises(InvalidInput, match="cannot be decompressed"),
        open_text(tmp_path / name, errors="replace") as file,
    ):
        file.read()


def test_a_whole_file_is_read(tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(_WHOLE)
    with open_bytes(tmp_path / "x.csv.gz") as file:
        assert file.read() == gzip.decompress(_WHOLE)
