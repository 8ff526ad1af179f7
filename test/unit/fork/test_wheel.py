# SPDX-License-Identifier: Apache-2.0
"""What is in the wheel, and that it is what RECORD, METADATA and the manifest say.

Read with the standard library and `packaging` only.
"""

import base64
import csv
import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from fork import apply, metadata, patches, wheel
from fork import config as configuration
from fork.config import AddedTree
from fork.errors import ForkError

VERSION = configuration.load().version
INFO = f"sglang-{VERSION}+ddtree.1.dist-info"
MANIFEST = "sglang/_ddtree_manifest.json"
TABLE = "sglang/_ddtree_symbols.json"


@pytest.fixture(scope="module")
def files(built):
    with zipfile.ZipFile(built) as archive:
        names = [info.filename for info in archive.infolist()]
        assert len(names) == len(set(names)), "a file is in the wheel twice"
        return {name: archive.read(name) for name in names}


@pytest.fixture(scope="module")
def theirs(pinned):
    with zipfile.ZipFile(pinned.path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_name_and_tags_are_upstreams(built, pinned):
    name, version, build, tags = parse_wheel_filename(built.name)
    assert (name, str(version), build) == ("sglang", f"{VERSION}+ddtree.1", ())
    assert tags == parse_wheel_filename(pinned.path.name)[3]


def test_record_lists_every_file_with_its_hash(files):
    rows = list(csv.reader(files[f"{INFO}/RECORD"].decode().splitlines()))
    recorded = {name: (digest, size) for name, digest, size in rows}
    assert len(recorded) == len(rows)
    assert set(recorded) == set(files)
    assert recorded.pop(f"{INFO}/RECORD") == ("", "")
    for name, (digest, size) in recorded.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={expected}", len(files[name])), name


def test_all_but_the_manifests_files_are_upstreams(files, theirs):
    manifest = json.loads(files[MANIFEST])
    ours = {*manifest["edited"], *manifest["added"], MANIFEST, TABLE}
    package = {name: content for name, content in files.items() if not name.startswith(INFO)}
    upstream = {name: content for name, content in theirs.items() if not name.startswith(f"sglang-{VERSION}.dist-info")}
    assert set(package) - set(upstream) == {*manifest["added"], MANIFEST, TABLE}
    assert set(upstream) <= set(package)
    changed = [name for name in upstream if upstream[name] != package[name]]
    assert sorted(changed) == sorted(manifest["edited"])
    assert ours & set(upstream) == set(manifest["edited"])


def test_manifest(files, theirs, pinned, config):
    manifest = json.loads(files[MANIFEST])
    assert manifest["version"] == f"{VERSION}+ddtree.1"
    assert manifest["upstream"] == {
        "name": "sglang",
        "version": VERSION,
        "wheel": pinned.path.name,
        "sha256": sha256(pinned.path.read_bytes()),
    }
    paths = sorted(config.patches.glob("[0-9]*"))
    assert {name: entry["sha256"] for name, entry in manifest["patches"].items()} == {
        path.stem: sha256(path.read_bytes()) for path in paths
    }
    assert manifest["edited"] and manifest["added"]
    for name, entry in manifest["edited"].items():
        assert entry["before"] == sha256(theirs[name])
        assert entry["after"] == sha256(files[name])
        assert entry["patches"] == [
            patch for patch in manifest["patches"] if name in manifest["patches"][patch]["files"]
        ]
    for name, digest in manifest["added"].items():
        assert digest == sha256(files[name])
    for tree in config.trees:
        for path in tree.source.rglob("*.py"):
            name = f"{tree.target}/{path.relative_to(tree.source)}"
            assert manifest["added"][name] == sha256(path.read_bytes())


def test_edited_files_say_so(files):
    manifest = json.loads(files[MANIFEST])
    for name, entry in manifest["edited"].items():
        first = files[name].decode().splitlines()[0]
        assert first == f"# Modified by sglang-ddtree, see {MANIFEST}: {', '.join(entry['patches'])}"


def test_licences(files, theirs, config):
    assert files[f"{INFO}/licenses/LICENSE"] == theirs[f"sglang-{VERSION}.dist-info/licenses/LICENSE"]
    assert files[f"{INFO}/licenses/NOTICE"] == (config.root / "NOTICE").read_bytes()
    parsed = Metadata.from_email(files[f"{INFO}/METADATA"], validate=False)
    assert parsed.license_files == ["LICENSE", "NOTICE"]


def test_metadata_splits_the_dependencies(files, theirs, config):
    ours = Metadata.from_email(files[f"{INFO}/METADATA"], validate=False)
    upstream = Metadata.from_email(theirs[f"sglang-{VERSION}.dist-info/METADATA"], validate=False)
    assert str(ours.version) == f"{VERSION}+ddtree.1"
    assert ours.provides_extra == ["cuda", *upstream.provides_extra]
    assert (ours.summary, ours.description) == (upstream.summary, upstream.description)

    def needed(requirements, extra):
        environment = {"extra": extra, "sys_platform": "linux", "platform_machine": "x86_64"}
        return {
            f"{need.name}{sorted(need.extras)}{need.specifier}"
            for need in requirements
            if need.marker is None or need.marker.evaluate(environment)
        }

    base = needed(ours.requires_dist, "")
    assert {need.name for need in ours.requires_dist if need.marker is None} >= {
        Requirement(text).name for text in config.base_requires
    }
    assert needed(ours.requires_dist, "cuda") - base >= needed(upstream.requires_dist, "") - base
    assert needed(ours.requires_dist, "cuda") == base | needed(upstream.requires_dist, "")
    assert any(need.startswith("sglang-kernel[]==") for need in needed(ours.requires_dist, "cuda") - base)
    for extra in upstream.provides_extra:
        assert needed(ours.requires_dist, extra) - base == (
            needed(upstream.requires_dist, extra) - needed(upstream.requires_dist, "") - base
        )


def test_every_base_range_admits_what_upstream_pins(theirs, config):
    """The extra adds to the base: if they excluded each other, pip could not install it."""
    upstream = Metadata.from_email(theirs[f"sglang-{VERSION}.dist-info/METADATA"], validate=False)
    base = {need.name.lower(): need for need in map(Requirement, config.base_requires)}
    pins = 0
    for need in upstream.requires_dist:
        for pin in need.specifier:
            if pin.operator == "==" and need.name.lower() in base:
                pins += 1
                assert base[need.name.lower()].specifier.contains(pin.version), need
    assert pins > 3


def test_the_cpu_pins_fit_the_base(config):
    base = {need.name: need for need in map(Requirement, config.base_requires)}
    for pin in map(Requirement, config.cpu_pins):
        (version,) = (specifier.version for specifier in pin.specifier)
        assert base[pin.name].specifier.contains(version)


def test_same_bytes_twice(built, config, pinned, tree, tmp_path):
    again = wheel.build(config, pinned, wheel.make_tree(config, pinned), tmp_path)
    assert again.name == built.name
    assert again.read_bytes() == built.read_bytes()


def test_timestamps_and_modes_do_not_depend_on_the_machine(built, pinned):
    with zipfile.ZipFile(built) as archive, zipfile.ZipFile(pinned.path) as theirs:
        infos = archive.infolist()
        assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
        assert {oct(info.external_attr >> 16) for info in infos} == {"0o100644", "0o100755"}
        executable = {info.filename for info in infos if info.external_attr >> 16 & 0o111}
        assert executable == {
            info.filename for info in theirs.infolist() if not info.is_dir() and info.external_attr >> 16 & 0o111
        }


def test_an_added_file_never_overwrites(config, pinned, tmp_path):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "utils.py").write_text("x = 1\n")
    ours = replace(config, root=tmp_path, trees=(AddedTree(tmp_path / "python", "sglang"),))
    with pytest.raises(ForkError, match=r"python/utils.py would overwrite sglang/utils.py of upstream"):
        apply.read_added(ours, pinned)


def test_an_added_file_is_valid_python(config, pinned, tmp_path):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "own.py").write_text("x = 1\ndef (:\n")
    ours = replace(config, root=tmp_path, trees=(AddedTree(tmp_path / "python", "sglang"),))
    with pytest.raises(ForkError, match=r"python/own.py: line 2: "):
        apply.read_added(ours, pinned)


def test_two_trees_may_not_bring_one_file(config, pinned, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text("x = 1\n")
    ours = replace(config, root=tmp_path, trees=tuple(AddedTree(tmp_path / name, "sglang") for name in "ab"))
    with pytest.raises(ForkError, match=r"b/own.py and a/own.py both become sglang/own.py"):
        apply.read_added(ours, pinned)


def test_a_failing_patch_stops_the_build(config, pinned, tmp_path):
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "0001-x.toml").write_text(
        'why = "w"\nneeds = "n"\nretire = "r"\n[[edit]]\nfile = "sglang/utils.py"\nin = "no_such_thing"\nappend = "1"\n'
    )
    ours = replace(config, root=tmp_path)
    assert len(patches.load_series(ours.patches)) == 1
    with pytest.raises(ForkError, match=r"0001-x, edit 1: sglang/utils.py, in no_such_thing: there is no such symbol"):
        wheel.make_tree(ours, pinned)


METADATA = (
    "Metadata-Version: 2.4\nName: sglang\nVersion: 1\nLicense: a\n        b\nRequires-Dist: sglang-kernel==0.4.10\n"
)


def test_metadata_of_an_upstream_that_moved(config):
    with pytest.raises(ForkError, match=r"holds sglang-kernel, but upstream does not require that"):
        metadata.rewrite(METADATA.replace("sglang-kernel", "sglang-kernels") + "\nwords\n", config)
    with pytest.raises(ForkError, match="upstream has an extra named cuda of its own now"):
        metadata.rewrite(METADATA + "Provides-Extra: cuda\n\nwords\n", config)
    text = metadata.rewrite(METADATA + "\nwords: more\n\nend\n", config)
    assert "License: a\n        b\n" in text
    assert text.endswith("\n\nwords: more\n\nend\n")
    assert 'Requires-Dist: sglang-kernel==0.4.10; extra == "cuda"' in text


def test_a_name_alone_takes_upstreams_range(config):
    ours = replace(config, base_requires=("torch>=1", "Transformers", "dill"))
    theirs = METADATA + "Requires-Dist: torch==2.14.1\nRequires-Dist: transformers[a]<6,==5.19.0\n\nwords\n"
    base = [
        line for line in metadata.rewrite(theirs, ours).splitlines() if line[:13] == "Requires-Dist" and ";" not in line
    ]
    assert base == [f"Requires-Dist: {need}" for need in ("torch>=1", "Transformers<6,==5.19.0", "dill")]


def test_differences_of_requirements():
    old = METADATA + 'Requires-Dist: torch==1\nRequires-Dist: gone\nRequires-Dist: x; extra == "y"\n\nwords\n'
    new = METADATA + 'Requires-Dist: torch==2\nRequires-Dist: come\nRequires-Dist: z; extra == "y"\n\nwords\n'
    assert metadata.differences(old, new) == ["none -> come", "gone -> none", "torch==1 -> torch==2"]
    assert metadata.differences(old, old) == []
