"""Stand-ins for packages that are not installed, so that SGLang's own modules run on any machine.

Shared by ``real_parser.py`` and ``real_registry.py``, which are run as programs of their own.
"""

import abc
import importlib.abc
import importlib.machinery
import types


class _Meta(abc.ABCMeta):
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

    def __setitem__(cls, item, value):
        pass

    def register(cls, *args, **kwargs):
        return None

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

    def __init_subclass__(cls, **kwargs):
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


class StubModule(types.ModuleType):
    """A module that has every name."""

    __path__ = ()
    __version__ = "9.9.9"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stub


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a stand-in for every module that ``wanted`` asks for."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if self.wanted(name) else None

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass
