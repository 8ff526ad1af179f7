# SPDX-License-Identifier: Apache-2.0
"""``python -m fork COMMAND``"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fork import config as configuration
from fork.errors import ForkError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 a check found something, 2 a mistake or something missing, told in one line, 130
    interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        return status
    except ForkError as error:
        print(f"fork: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `fork diff | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("fork: interrupted; nothing was left half done", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in ("libcst", "packaging"):
            raise
        print(
            f"fork: {error.name} is missing; `pip install libcst packaging`, or use the .venv that `make` makes",
            file=sys.stderr,
        )
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fork", description="Carries this fork's patches and added files over upstream's wheel."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="write the fork's wheel")
    build.add_argument(
        "--out", type=Path, default=configuration.ROOT / "dist", help="folder for the wheel (default: dist)"
    )
    build.set_defaults(run=_build)

    install = commands.add_parser(
        "install", help="build the fork and install it into this Python, unless it is there already"
    )
    install.add_argument(
        "--flavour",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what it will run on (default: auto, cuda if there is a GPU)",
    )
    install.add_argument("--dry-run", action="store_true", help="only let pip resolve what it needs")
    install.set_defaults(run=_install)

    check = commands.add_parser("check", help="apply every patch in memory, look for its test, print a table")
    check.add_argument("--upstream", metavar="VERSION", help="against this release (default: the pinned one)")
    check.set_defaults(run=_check)

    matrix = commands.add_parser("matrix", help="patches and symbols on all releases that are hashed")
    matrix.add_argument("releases", metavar="VERSION", nargs="*", help="these only")
    matrix.set_defaults(run=_matrix)

    diff = commands.add_parser("diff", help="print the effect on upstream")
    diff.add_argument("--upstream", metavar="VERSION", help="against this release (default: the pinned one)")
    diff.add_argument("--stat", action="store_true", help="one line a file")
    diff.add_argument("--added", action="store_true", help="added files too, not only edited ones")
    diff.set_defaults(run=_diff)

    rebase = commands.add_parser("rebase", help="say what another release would break, and move the fork to it")
    rebase.add_argument("--to", metavar="VERSION", required=True, help="the release")
    rebase.add_argument("--all", action="store_true", help="symbols that are as they were too")
    rebase.add_argument("--brief", action="store_true", help="upstream's changes as counts, not as a diff")
    rebase.add_argument("--write", action="store_true", help="if nothing fails, the tests among it: pin that release")
    rebase.add_argument(
        "--tests", metavar="PATHS", default="", help="with --write: these tests only, as for make TESTS="
    )
    rebase.add_argument("--anyway", action="store_true", help="with --write: also when something failed")
    rebase.set_defaults(run=_rebase)

    needs = commands.add_parser("needs", help="take each patch away and see its test fail (long)")
    needs.add_argument("patches", metavar="PATCH", nargs="*", help="these only, such as 0120-backend-choice")
    needs.set_defaults(run=_needs)

    pin = commands.add_parser("pin", help="fetch a release and print its hashes for upstream.toml")
    pin.add_argument("version", metavar="VERSION")
    pin.set_defaults(run=_pin)

    newest = commands.add_parser(
        "newest", help="print the release on PyPI that is newer than all in upstream.toml, if any"
    )
    newest.set_defaults(run=_newest)

    doctor = commands.add_parser("doctor", help="examine the fork that is installed in this Python")
    doctor.add_argument("--json", action="store_true", help="machine-readable")
    doctor.add_argument("--quick", action="store_true", help="without asking SGLang which backend a model would get")
    doctor.set_defaults(run=_doctor)
    return parser


def _build(arguments: argparse.Namespace) -> int:
    from fork import upstream, wheel

    began = time.monotonic()
    config = configuration.load()
    wheel.make_folder(arguments.out)
    source = upstream.fetch(config)
    tree = wheel.make_tree(config, source)
    print(f"{len(tree.outcomes)} patches, {len(tree.edited)} files edited, {len(tree.added)} added", file=sys.stderr)
    path = wheel.build(config, source, tree, arguments.out)
    print(f"{upstream.sha256_of(path)}  {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(path)
    return 0


def _install(arguments: argparse.Namespace) -> int:
    from fork import install

    flavour = install.detect_flavour() if arguments.flavour == "auto" else arguments.flavour
    if arguments.dry_run:
        install.check_dependencies(configuration.load(), flavour)
    else:
        install.install(configuration.load(), flavour)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from fork import apply, halves, named, patches, upstream

    config = configuration.load()
    source = upstream.fetch(config, arguments.upstream)
    series = patches.load_series(config.patches)
    tree = halves.apply_series_in_halves(source, series, source.version)
    width = max((len(patch.name) for patch in series), default=5)
    print(f"{'patch':{width}}  edits  files  {config.name} {source.version}")
    for outcome in tree.outcomes:
        state = "FAILED" if outcome.error else "ok" if outcome.edits else "not for this release"
        skipped = f" ({outcome.skipped} not for this release)" if outcome.skipped and outcome.edits else ""
        print(f"{outcome.patch.name:{width}}  {outcome.edits:5}  {len(outcome.files):5}  {state}{skipped}")
    for error in tree.errors:
        print(f"\n{error}")
    unnamed = list(named.problems(config.root, series))
    for problem in unnamed:
        print(f"\n{problem}")
    added = apply.read_added(config, source)
    print(
        f"\n{len(series) - len(tree.errors)} of {len(series)} patches apply, "
        f"{len(tree.edited)} files edited, {len(added)} added"
    )
    return 1 if tree.errors or unnamed else 0


def _matrix(arguments: argparse.Namespace) -> int:
    from packaging.version import Version

    from fork.rebase import matrix

    config = configuration.load()
    reports = matrix.check(config, arguments.releases or sorted(config.hashes, key=Version))
    for line in matrix.lines(config, reports):
        print(line)
    return 0 if matrix.holds(config, reports) else 1


def _diff(arguments: argparse.Namespace) -> int:
    from fork import apply, diff, halves, patches, upstream

    config = configuration.load()
    source = upstream.fetch(config, arguments.upstream)
    tree = halves.apply_series_in_halves(source, patches.load_series(config.patches), source.version)
    tree.added = apply.read_added(config, source)
    if arguments.stat:
        lines = diff.stat(source, tree, added=arguments.added)
    else:
        lines = diff.unified(source, tree, added=arguments.added, colour=sys.stdout.isatty())
    for line in lines:
        print(line)
    for error in tree.errors:
        print(f"fork: {error}", file=sys.stderr)
    return 1 if tree.errors else 0


def _rebase(arguments: argparse.Namespace) -> int:
    from fork import patches
    from fork.rebase import move, report

    config = move.with_hashes(configuration.load(), arguments.to)
    series = patches.load_series(config.patches)
    old = report.Carried(config, config.pinned, series)
    made = report.make(old, report.Carried(config, arguments.to, series))
    for line in report.lines(made, everything=arguments.all, diffs=not arguments.brief, colour=sys.stdout.isatty()):
        print(line, flush=True)
    if not arguments.write:
        return 0 if made.ok else 1
    if not made.ok and not arguments.anyway:
        print("\nfork: nothing was written: mend what failed, or say --anyway", file=sys.stderr)
        return 1
    target = config.at(arguments.to)
    text = move.written((config.root / "upstream.toml").read_text("utf-8"), arguments.to, config.hashes[arguments.to])
    passed, copy = move.try_out(target, text, arguments.tests)
    if not passed and not arguments.anyway:
        print(f"fork: nothing was written: tests failed in {copy}", file=sys.stderr)
        return 1
    move.write(config, text)
    print(f"upstream.toml pins {arguments.to} now; the copy in {copy} may go")
    for place in move.still_named(config.root, config.pinned):
        print(f"  {place} still names {config.pinned}")
    return 0 if made.ok and passed else 1


def _needs(arguments: argparse.Namespace) -> int:
    from fork import needs

    wrong = 0
    for verdict in needs.check(configuration.load(), arguments.patches):
        mark = {True: "ok", False: "WRONG", None: "-"}[verdict.ok]
        wrong += verdict.ok is False
        print(f"{mark:5}  {verdict.patch:36}  {verdict.said}  ({verdict.seconds:.0f} s)", flush=True)
        if verdict.ok is False:
            print(f"       {verdict.needs}")
    print(f"{wrong} patches whose test says nothing")
    return 1 if wrong else 0


def _pin(arguments: argparse.Namespace) -> int:
    from fork import pin

    print(pin.table(arguments.version, pin.hashes(configuration.load(), arguments.version)))
    return 0


def _newest(arguments: argparse.Namespace) -> int:
    from fork import pin

    print(pin.newest(configuration.load()) or "")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from fork import doctor

    return doctor.main(as_json=arguments.json, quick=arguments.quick)
