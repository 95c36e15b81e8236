"""The command `mlirc`: look into the compiler (`dump`, `explain`), compile ahead of time (`export`), look after the cache (`cache`)."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import CompileError
from .options import Options

if TYPE_CHECKING:
    from .frontend.dump import Captured, GraphSummary, Selection, Snapshot
    from .passes.registry import UserCode

COMMENTS = {"py": "#", "mlir": "//", "ll": ";", "s": "#"}


class _Commands(click.Group):
    """Our errors are messages, not tracebacks: exit code 1 where compiling fails, 2 where the command line is wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CompileError as e:
            raise click.ClickException(str(e)) from e
        except OSError as e:
            if e.errno == errno.EPIPE or e.filename is None:
                raise
            raise click.ClickException(f"{e.filename}: {e.strerror}") from e


@click.group(cls=_Commands, help=__doc__)
@click.version_option(importlib.metadata.version("mlirc"), prog_name="mlirc")
def main() -> None:
    pass


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that compiles."""
    for option in reversed(
        (
            click.argument("what", metavar="FILE"),
            click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="An argument: 1x3x224x224xf32. May be repeated."),
            click.option("--target", metavar="CPU", help="host, x86-64-v3, sapphirerapids, ..."),
            click.option("--mode", help="A named set of options."),
            click.option("--option", "settings", multiple=True, metavar="NAME=VALUE", help="An option of the compiler."),
            click.option("--passes", multiple=True, metavar="FILE", help="A Python file with passes of your own."),
        )
    ):
        command = option(command)
    return command


def _options(settings: Iterable[str], mode: str | None, target: str | None, passes: tuple[str, ...]) -> dict[str, object]:
    """The options as torch.compile takes them, checked."""
    from .lowering.target import Target
    from .passes.strategy import parse_pins

    out: dict[str, object] = {}
    for text in settings:
        name, eq, value = text.partition("=")
        if not eq:
            raise click.UsageError(f"--option wants NAME=VALUE, not {text!r}")
        out[name] = value
    out |= {name: value for name, value in (("mode", mode), ("target", target), ("passes", passes)) if value}
    try:
        made = Options.make(out)
        Target.parse(made.target)
        parse_pins(made.pin)
    except ValueError as e:
        raise click.UsageError(str(e).removeprefix("mlirc: ")) from None
    return out


_train = click.option("--train", is_flag=True, help="With gradients: forward and backward graphs.")


@main.command()
@_shared
@_train
@click.option("--list", "only_list", is_flag=True, help="List stages and kernels, show no code.")
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Show the code after this stage. May be repeated.")
@click.option("--after", multiple=True, metavar="PASS", help="Show the code after every run of this pass; `all`: after each.")
@click.option("--kernel", metavar="NAME", help="Only this kernel: k07_linear_gelu, or 7.")
@click.option("--graph", type=int, metavar="N", help="Only this graph.")
@click.option("--changed-only", is_flag=True, help="Leave out stages that change nothing.")
@click.option("--locations", is_flag=True, help="Print the lines of the model's source, and keep them down to the assembly.")
@click.option("--dynamic", is_flag=True, help="Compile for symbolic sizes.")
@click.option("-o", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write numbered files into this folder.")
def dump(
    what: str, inputs: tuple[str, ...], train: bool, target: str | None, mode: str | None, settings: tuple[str, ...],
    passes: tuple[str, ...], only_list: bool, stages: tuple[str, ...], after: tuple[str, ...], kernel: str | None,
    graph: int | None, changed_only: bool, locations: bool, dynamic: bool, folder: Path | None,
) -> None:  # fmt: skip
    """Show what each stage of the compiler makes of a model.

    FILE is FILE.py:NAME (a module, a module class or a function), a program saved by torch.export (.pt2), or the text of
    one kernel (.mlir), as a failing compilation leaves it. Without a selection, stages and kernels are listed.
    Nothing that is compiled runs, so any target can be looked at.
    """
    from .lowering.codegen import own_process
    from .passes.registry import graph_stages, kernel_stages, load, read_files

    own_process()  # as the workers are, whose code this shows
    options = Options.make(_options(settings, mode, target, passes))
    user = load(read_files(options.passes))
    of_graph, of_kernel = graph_stages(user), kernel_stages(user, locations)
    known = of_kernel if kernel or what.endswith(".mlir") else [*of_graph, *of_kernel]
    chosen = {s for name in stages for s in _pick("stage", name, known)} | {s for name in after for s in _runs(name, known)}
    everything = bool(folder or kernel or changed_only) or what.endswith(".mlir")
    only_list = only_list or not (chosen or everything)

    from .frontend.dump import Selection

    picked = frozenset() if only_list else frozenset(chosen or known)
    selection = Selection(picked, locations=locations, compare=not only_list and bool(folder or changed_only))
    shown: list[Snapshot] = []
    numbers = {stage: n for n, stage in enumerate([*of_graph, *of_kernel])}

    def show(snapshot: Snapshot) -> None:
        if (changed_only or folder) and not snapshot.changed:
            return
        shown.append(snapshot)
        if folder:
            path = folder / snapshot.graph / snapshot.kernel / f"{numbers[snapshot.stage]:02d}_{snapshot.stage}.{snapshot.suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(snapshot.text)
        else:
            title = " ".join(filter(None, [snapshot.graph, snapshot.kernel, snapshot.stage]))
            click.echo(f"{COMMENTS[snapshot.suffix]} ---- {title}\n{snapshot.text}")

    if what.endswith(".mlir"):
        _dump_file(Path(what), options, user, selection, show)
        summaries: list[GraphSummary] = []
    else:
        graphs = _graphs(what, inputs, dynamic, train, graph, options)
        summaries = _dump_graphs(graphs, options, user, selection, show, kernel)
    if only_list:
        _list(of_graph, of_kernel, summaries)
    elif folder:
        click.echo(f"{len(shown)} files in {folder}")


def _pick(kind: str, name: str, known: list[str]) -> list[str]:
    if name not in known:
        raise click.UsageError(f"no {kind} {name!r}; there are: {', '.join(known)}")
    return [name]


def _runs(name: str, known: list[str]) -> list[str]:
    """The stages that a pass name means: `cse` is each of its runs."""
    if name == "all":
        return known
    name = name.removeprefix("func.func(").partition("{")[0].rstrip(")")
    found = [s for s in known if re.fullmatch(re.escape(name) + r"(-\d+)?", s)]
    return found or _pick("pass", name, known)


def _dump_file(path: Path, options: Options, user: UserCode, selection: Selection, show: Callable[[Snapshot], None]) -> None:
    from .dialects.mlir import ir
    from .frontend.dump import dump_kernel
    from .passes.outline import Kernel

    if not path.is_file():
        raise click.UsageError(f"there is no file {path}")
    try:
        text = path.read_text()
        dump_kernel(Kernel(re.sub(r"\W", "_", path.stem), text, text), options, user, selection, show)
    except (ir.MLIRError, UnicodeDecodeError) as e:
        raise CompileError(f"{path} is not the text of a kernel: {e}") from None


@contextlib.contextmanager
def _user_code(what: str) -> Iterator[None]:
    """Report what the user's code raises by its own line, without the frames of torch and of this command."""
    from .frontend.user_model import NotFound

    try:
        yield
    except NotFound as e:
        raise click.UsageError(str(e)) from e
    except Exception as e:
        # torch wraps what a backend raises.
        error = getattr(e, "inner_exception", e)
        if isinstance(error, (CompileError, click.ClickException)):
            raise error from None
        path = str(Path(what.rpartition(":")[0]).resolve())
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if str(Path(f.filename).resolve()) == path]
        where = f"{path}:{lines[-1]}: " if lines else ""
        # What torch's C++ code was doing is of no use to anybody here.
        message = str(error).partition("\nException raised from ")[0]
        raise click.ClickException(f"{where}{type(error).__name__}: {message}") from e


def _graphs(what: str, inputs: tuple[str, ...], dynamic: bool, train: bool, number: int | None, options: Options) -> list[Captured]:
    from .frontend.dump import capture_graphs
    from .frontend.user_model import load_model

    with _user_code(what):
        graphs = capture_graphs(load_model(what, inputs), options, dynamic or None, train)
    if not graphs:
        raise click.ClickException(f"{what} calls no tensor function: there is no graph")
    if number is None:
        return graphs
    if not 0 <= number < len(graphs):
        raise click.UsageError(f"no graph {number}; there are: {', '.join(f'{g.number} ({g.direction})' for g in graphs)}")
    return [graphs[number]]


def _dump_graphs(
    graphs: list[Captured], options: Options, user: UserCode, selection: Selection, show: Callable[[Snapshot], None], kernel: str | None
) -> list[GraphSummary]:
    from .frontend.dump import dump_graph

    matched = False

    def wanted(number: int, name: str) -> bool:
        nonlocal matched
        fits = kernel is None or kernel == name or re.fullmatch(f"k?0*{number}", kernel) is not None
        matched = matched or fits
        return fits

    selection.kernel = wanted
    summaries = [dump_graph(g, options, user, selection, show) for g in graphs]
    if not matched and kernel is not None:
        names = [k.name for s in summaries for k, _ in s.kernels]
        raise click.UsageError(f"no kernel {kernel!r}; there are: {', '.join(names)}")
    return summaries


def _list(of_graph: list[str], of_kernel: list[str], summaries: list[GraphSummary]) -> None:
    click.echo("stages of a graph:\n" + "".join(f"  {name}\n" for name in of_graph), nl=False)
    click.echo("stages of a kernel:\n" + "".join(f"  {name}\n" for name in of_kernel), nl=False)
    for summary in summaries:
        click.echo(f"{summary.name}: {summary.nodes} nodes")
        for kernel, calls in summary.kernels:
            click.echo(f"  {kernel.name}  {calls} call{'s' * (calls != 1)}")
        for (op, reason), calls in Counter(summary.aten).items():
            click.echo(f"  left to ATen: {op}  {calls} call{'s' * (calls != 1)}  {reason}")


@main.command()
@_shared
@_train
def explain(
    what: str, inputs: tuple[str, ...], train: bool, target: str | None, mode: str | None, settings: tuple[str, ...],
    passes: tuple[str, ...],
) -> None:  # fmt: skip
    """Compile a model and report graphs, kernels, what is left to ATen and its cost, and compile time per stage.

    FILE is FILE.py:NAME (a module, a module class or a function) or a program saved by torch.export (.pt2).
    """
    if what.endswith(".mlir"):
        raise click.UsageError(f"{what} is a kernel, to be looked at with `dump`; explain wants FILE.py:NAME or a .pt2 file")
    options = _options(settings, mode, target, passes)

    import torch

    from .frontend.explain import measure, show
    from .frontend.user_model import load_model

    with _user_code(what), torch.set_grad_enabled(train):
        model = load_model(what, inputs)
        report = measure(model.function, model.args, model.kwargs, options)
    show(report)


@main.command()
@_shared
@click.option("--dynamic", is_flag=True, help="Leave open what sizes the model leaves open.")
@click.option("-o", "output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="model.a, a static library, or model.so, a shared one.")
def export(
    what: str, inputs: tuple[str, ...], target: str | None, mode: str | None, settings: tuple[str, ...], passes: tuple[str, ...],
    dynamic: bool, output: Path,
) -> None:  # fmt: skip
    """Compile a model to a library that runs without Python and torch, with a C header beside it.

    FILE is FILE.py:NAME (a module, a module class or a function) or a program saved by torch.export (.pt2).
    """
    options = _options(settings, mode, target, passes)

    from .frontend.export import export as compiled
    from .frontend.user_model import load_program

    with _user_code(what):
        program = load_program(what, inputs, dynamic)
    try:
        done = compiled(program, output, options=options)
    except ValueError as e:
        raise click.UsageError(str(e).removeprefix("mlirc: ")) from None
    click.echo(f"{done.library}: {done.nbytes / 2**20:.1f} MiB, of which weights {done.weight_bytes / 2**20:.1f}; {done.kernels} kernels")
    click.echo(f"{done.header}: how to call it")
    if not done.threads:
        click.echo("linked without OpenMP, which the C compiler does not have: it computes in the thread that calls it", err=True)


@main.command()
@click.option("--stats", is_flag=True, help="Entries, size and place (what is done without options, too).")
@click.option("--clear", is_flag=True, help="Remove all entries.")
@click.option("--dir", "folder", type=click.Path(file_okay=False), help="Another folder than the one that the options name.")
def cache(stats: bool, clear: bool, folder: str | None) -> None:
    """Look after the disk cache of compiled kernels."""
    from .runtime.cache import KernelCache

    try:
        options = Options.make()
    except ValueError as e:
        raise click.UsageError(str(e).removeprefix("mlirc: ")) from None
    place = folder or options.cache_dir
    found = KernelCache(Path(place) if place else None, options.cache_size_mb)
    if clear:
        click.echo(f"removed {found.clear()} entries from {found.directory}")
    if stats or not clear:
        now = found.stats()
        limit = options.cache_size_mb
        click.echo(f"{now.entries} entries (kernels, and what tuning found), {now.bytes / 2**20:.1f} MiB of at most {limit} MiB in {now.directory}")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    main()
