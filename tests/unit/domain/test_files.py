"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import files


class TestWriting:
    def test_a_text_arrives_with_its_mode_and_the_folders_above_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "file.json"
        files.write(path, "one\r\ntwo é\n", 0o640, durable=True)
        assert files.read(path) == "one\r\ntwo é\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert [one.name for one in path.parent.iterdir()] == ["file.json"]

    def test_the_old_file_is_there_until_the_new_one_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        files.write(path, "old")
        with files.replacing(path) as stream:
            stream.write(b"new")
            assert files.read(path) == "old"
            (other,) = (one.name for one in tmp_path.iterdir() if one != path)
            assert other.startswith(".file.") and not other.endswith((".json", ".yaml", ".toml", ".conf"))
        assert files.read(path) == "new"

    def test_whatever_goes_wrong_leaves_everything_as_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        files.write(path, "old")

        def refuse(temporary: Path, _path: Path) -> None:
            assert temporary.read_text() == "new"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            files.write(path, "new", move=refuse)
        with pytest.raises(OSError), files.replacing(path) as stream:
            raise OSError(28, os.strerror(28), stream.name)
        assert files.read(path) == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_none_takes_the_file_away_once_and_again(self, tmp_path: Path) -> None:
        path = tmp_path / "none" / "file"
        files.write(path, None)
        assert not path.parent.exists()
        files.write(path, "text")
        files.write(path, None)
        assert files.read(path) is None


class TestReading:
    def test_what_is_no_text_or_no_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "bytes").write_bytes(b"\xff")
        with pytest.raises(UnicodeDecodeError):
            files.read(tmp_path / "bytes")
        with pytest.raises(IsADirectoryError):
            files.read(tmp_path)
