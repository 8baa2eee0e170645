"""A root file system from elsewhere becomes an image without a look, or a hand, outside of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.errors import ConfigError
from components.sandbox.base_image import add
from components.sandbox.store import ImageStore


def test_folders_that_are_emptied_are_the_image_s_own_wherever_its_links_lead(tmp_path: Path) -> None:
    host, root = tmp_path / "host", tmp_path / "root"
    host.mkdir()
    (host / "kept").write_text("x")
    root.mkdir()
    (root / "tmp").symlink_to(host)
    base = add(ImageStore(tmp_path / "images"), root, ["a"], {}, {})
    assert (host / "kept").is_file()
    made = tmp_path / "images" / "bases" / base.key / "root" / "tmp"
    assert made.is_dir()
    assert not made.is_symlink()


@pytest.mark.parametrize("name", ["var", "etc", "usr"])
def test_an_image_of_which_a_folder_of_the_system_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    host, root = tmp_path / "host", tmp_path / "root"
    (host / "cache/apt/archives").mkdir(parents=True)
    (host / "cache/apt/archives/kept").write_text("x")
    root.mkdir()
    (root / name).symlink_to(host)
    with pytest.raises(ConfigError, match=name):
        add(ImageStore(tmp_path / "images"), root, ["a"], {}, {})
    assert (host / "cache/apt/archives/kept").is_file()


def test_a_file_that_is_added_is_not_written_through_a_link_out_of_the_image(tmp_path: Path) -> None:
    host, root, given = tmp_path / "host", tmp_path / "root", tmp_path / "given"
    host.mkdir()
    root.mkdir()
    (root / "opt").symlink_to(host)
    given.write_text("x")
    with pytest.raises(ConfigError, match="opt/tool"):
        add(ImageStore(tmp_path / "images"), root, ["a"], {}, {"/opt/tool": given})
    assert not [*host.iterdir()]


def test_the_same_image_that_two_add_at_once_is_added_once_and_stays(tmp_path: Path) -> None:
    store, roots = ImageStore(tmp_path / "images"), [tmp_path / name for name in "ab"]
    for root in roots:
        (root / "usr").mkdir(parents=True)
        (root / "usr/file").write_text("x")
    with ThreadPoolExecutor(2) as threads:
        with store.naming():
            adding = [threads.submit(add, ImageStore(store.folder), root, [root.name], {}, {}) for root in roots]
            with pytest.raises(TimeoutError):
                adding[0].result(0.2)
            assert not [*store.bases()], "nobody adds while another does"
        first, second = (each.result(10) for each in adding)
    assert first.key == second.key
    (base,) = store.bases()
    assert set(base.names) == {"a:latest", "b:latest"}
    assert (tmp_path / "images/bases" / base.key / "root/usr/file").read_text() == "x"
