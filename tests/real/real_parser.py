"""Oracle: run SGLang's own ``ServerArgs.add_cli_args`` and print every argument that argparse then holds.

Called as ``python real_parser.py SITE_PACKAGES``. Packages that are not installed (torch, triton, …) are replaced by
stand-ins, so the real definitions run on any machine; the arguments themselves come from the real argparse.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types


class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stub

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # a decorator
        return super().__call__()

    def __or__(cls, other):
        return object

    __ror__ = __or__

    def __getitem__(cls, item):
        return Stub

    def __iter__(cls):
        return iter(())

    def __len__(cls):
        return 0

    def __contains__(cls, item):
        return False

    def __lt__(cls, other):
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __int__(cls):
        return 0

    __index__ = __int__

    def __mul__(cls, other):
        return Stub

    __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __mul__


class Stub(metaclass=_Meta):
    """Stands for anything of a package that is not there."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stub

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else Stub()

    def __iter__(self):
        return iter(())

    def __getitem__(self, item):
        return Stub

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def __lt__(self, other):
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __int__(self):
        return 0

    __index__ = __int__


class _StubModule(types.ModuleType):
    __path__ = ()
    __version__ = "9.9.9"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stub


class _Lenient(importlib.abc.Loader):
    """Runs a module of sglang; where it stops at a stand-in, the names bound so far stay and the rest are stand-ins."""

    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        try:
            self.real.exec_module(module)
        except Exception as error:
            if module.__name__ == "sglang.srt.server_args":
                raise
            sys.stderr.write(f"{module.__name__}: {type(error).__name__}: {error}".splitlines()[0] + "\n")
            module.__getattr__ = _StubModule.__getattr__.__get__(module)


class _SglangFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "sglang":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Lenient(spec.loader)
        return spec


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "sglang" else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StubModule(spec.name)

    def exec_module(self, module):
        pass


def main(site_packages):
    sys.path.insert(0, site_packages)
    sys.meta_path.insert(0, _SglangFinder())
    sys.meta_path.append(_Finder())
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    rows = []
    for action in parser._actions:
        if "--help" in action.option_strings:
            continue
        choices = None if action.choices is None else [str(c) for c in action.choices]
        rows.append(
            {
                "names": action.option_strings,
                "dest": action.dest,
                "action": type(action).__name__,
                "nargs": action.nargs,
                "type": getattr(action.type, "__name__", None),
                "choices": sorted(choices) if isinstance(action.choices, set) else choices,
                "default": action.default if _is_json(action.default) else repr(action.default),
                "required": action.required,
            }
        )
    json.dump(rows, sys.stdout)


def _is_json(value):
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
