"""The ``stackb`` command: a table of commands, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer
from typer.exceptions import TyperException

from stack_builder import __version__
from stack_builder.cli import output
from stack_builder.errors import ExitCode, StackbError, from_os_error
from stack_builder.terminal import printable

# name -> one line for --help. Each is a module of this package with a function ``command`` or, for a group, a Typer
# ``app``. Only the one that is called gets imported: start-up time is a feature.
COMMANDS = {
    "lock": "Resolve a stack and pin every wheel by hash.",
    "fetch": "Download the wheels of a lock into the content-addressed store.",
    "build": "Build a container image from a lock.",
    "verify": "Build an image again from its receipt, apart from the cache, and compare.",
    "doctor": "Check that torch, kernels and CUDA libraries of a target fit together.",
    "explain": "Read an error text or a whole server log: ranked causes, evidence lines, fix.",
    "patch": "List, judge, apply and take back patches of installed packages.",
    "rules": "Show the catalogue of rules.",
    "sglang": "Ask an SGLang release: its options, what is active on a GPU, the EAGLE-3 contract; check a launch line.",
    "serve": "Launch an SGLang server, wait until it is ready, and show what is active in it.",
    "bench": "Measure a server under load, or compare servers in pairs.",
    "policy": "Turn the results of a bench into SGLang's own configuration for adaptive speculation.",
    "history": "Show the experiment log as a table, Markdown, a page or a plot.",
    "probe": "Run small programs in a target's own interpreter: what is mapped, what compiles, what runs.",
    "diff": "Show what changes from one stack to another.",
    "sbom": "Print the bill of materials of a stack.",
    "push": "Bring an image to a registry; only the blobs that it lacks travel.",
    "pull": "Bring an image from a registry into an OCI layout.",
    "cache": "Show, check and clear what stackb keeps for later runs.",
    "export": "Write a compose file or Kubernetes objects that serve a stack.",
    "schema": "Print the JSON schema of a document that stackb writes.",
}

_EPILOG = "Exit codes:\n\n\b\n" + "\n".join(f"{code:>4}  {code.meaning}" for code in ExitCode)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"stackb {__version__}")
        raise typer.Exit


def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
    redact: bool = typer.Option(
        True, "--redact/--no-redact", help="Take home folders, names and secrets out of reports."
    ),
) -> None:
    """Reproducible CUDA 13 serving stacks: lock, build, diagnose, serve and measure."""
    output.redact_reports(redact)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Make the command line for one call: the command that it names is imported, the others are only listed."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True, epilog=_EPILOG)
    app.callback()(root)
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, line in COMMANDS.items():
        if name != called:
            app.command(name, help=line)(_not_loaded)
            continue
        module = import_module(f"stack_builder.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=line)
        else:
            app.command(name)(module.command)
    return app


def _not_loaded() -> None:
    raise AssertionError("a command was run that the call does not name")


def run(arguments: Sequence[str]) -> int:
    """Run one call.

    Returns:
        the exit code; every failure has been reported on stderr in one line.
    """
    closed = sys.stdout is None  # by the caller (>&-)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lives
    if closed:
        return _fail("stdout is closed: what is asked for has nowhere to go", ExitCode.COULD_NOT_CHECK)
    try:
        command = typer.main.get_command(build_app(arguments))
        with command.make_context("stackb", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except TyperException as error:
        return _misused(error)
    except KeyboardInterrupt:
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except StackbError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) has gone; keep Python from complaining again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.CLEAN
    except OSError as error:
        failure = from_os_error(error)
        return _fail(str(failure), failure.exit_code)
    except Exception as error:
        if os.environ.get("STACKB_DEBUG"):
            raise
        where = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(f"internal error: {where}. Report it with STACKB_DEBUG=1 set.", ExitCode.COULD_NOT_CHECK)
    return ExitCode.CLEAN


def _misused(error: TyperException) -> int:
    """Report a call that typer could not read in one line; it has several, with the usage first."""
    text = error.format_message()
    if text.startswith("Usage:"):  # a group without a command: the text is its help
        typer.echo(text, err=True)
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    what = " ".join(text.replace("Value error, ", "").split()).rstrip(".")
    called = "stackb" if context is None else context.command_path
    end = "" if what.endswith("?") else "."
    return _fail(f"{what[:1].lower()}{what[1:]}{end} See {called} --help.", ExitCode.USAGE)


def _fail(line: str, code: ExitCode) -> int:
    typer.echo(f"stackb: {printable(output.redacted(line))}", err=True)
    return code
