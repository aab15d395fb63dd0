"""Rules ABI…: would the loader find every library, version and symbol? Pure functions of recorded facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.abi import fixes, relevance
from stack_builder.diagnose.abi.broken import judge_files, judge_foreign
from stack_builder.diagnose.abi.history import versions_text
from stack_builder.diagnose.abi.relevance import Knowledge
from stack_builder.diagnose.abi.requirements import judge_requirements
from stack_builder.diagnose.environment import cuda_wheels
from stack_builder.diagnose.environment.facts import Environment, MissingLibrary, MissingSymbol, Object
from stack_builder.elf.needed import cuda_majors
from stack_builder.elf.torch_names import is_stable_name, is_torch_name
from stack_builder.report import Finding, Severity

MAX_NAMED = 6
"""Symbols that a sentence names; the evidence has them all."""

_DRIVER = re.compile(r"cu(?!File)[A-Z]\w+")  # cuFile… is libcufile's, which comes as a wheel
_PYTHON = re.compile(r"_?Py[A-Z_]\w+")
_SYSTEM = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC|GOMP)_[\w.]+")
_CXX11_MARK, _OLD_STRING = "__cxx11", re.compile(r"(?<![a-zA-Z0-9])S[sS]_?|[EKRPI]S[sS]")
_MODULE_TAG = re.compile(r"\.cpython-(\d)(\d+)-[\w-]+\.so$")


def judge_abi(environment: Environment, known: Knowledge) -> list[Finding]:
    """Apply all ABI rules."""
    findings = [
        *_owners(environment),
        *(finding for found in environment.objects for finding in _object(environment, found, known)),
    ]
    weighed = [relevance.weighed(finding, environment, known) for finding in findings]
    files = [
        finding if finding.severity is Severity.ERROR else relevance.weighed(finding, environment, known)
        for finding in judge_files(environment)
    ]
    return [*judge_foreign(environment), *files, *judge_requirements(environment), *weighed]


def _object(environment: Environment, found: Object, known: Knowledge) -> Iterator[Finding]:
    if found.at_fault:
        return  # judged by distribution
    yield from _foreign_module(environment, found)
    yield from _libraries(environment, found, known)
    yield from _versions(found)
    yield from _symbols(environment, found, known)
    yield from _stable(found, known)


def _libraries(environment: Environment, found: Object, known: Knowledge) -> Iterator[Finding]:
    """Libraries that are nowhere, and those that lie where the loader does not look."""
    missing = relevance.libraries_to_report(environment, found, known)
    absent = [m for m in missing if not m.on_disk and not (m.other_majors and cuda_majors([m.soname]))]  # CUDA001's
    if absent:
        names = ", ".join(m.soname for m in absent)
        foreign = [m for m in absent if _is_of_other_cuda(environment, m.soname)]
        majors = cuda_majors(m.soname for m in foreign)
        mixed = fixes.for_other_cuda(environment, found, min(majors), known.fixes, known.unopened) if majors else ()
        yield catalogue.finding(
            "ABI002",
            detail=f"No folder of the target holds {names}{_needed_by(environment, found, absent[0])}.",
            object=found.path,
            distribution=found.owner,
            evidence={"libraries": [m.soname for m in absent], "needed_by": absent[0].needed_by},
            cause="cuda_major_mixed_between_wheels" if foreign else None,
            fix=(*mixed, *dict.fromkeys(_library_fix(environment, m.soname) for m in absent if m not in foreign)),
        )
    for hidden in (m for m in missing if m.on_disk):
        place = environment.short(hidden.on_disk[0])
        who = _needed_by(environment, found, hidden)
        yield catalogue.finding(
            "ABI003",
            detail=f"{hidden.soname} lies at {place}; the search never goes there{who}.",
            object=found.path,
            distribution=found.owner,
            evidence={
                "libraries": [hidden.soname],
                "needed_by": hidden.needed_by,
                "on_disk": list(hidden.on_disk),
                "other_majors": list(hidden.other_majors),
            },
            severity=Severity.NOTE if relevance.is_opened_by_package(environment, hidden) else None,
            fix=_visible_fixes(environment, hidden),
        )


def _is_of_other_cuda(environment: Environment, soname: str) -> bool:
    """Whether a library is of another CUDA major than torch, so that to install it would only mix the two further."""
    torch, majors = environment.torch, cuda_majors([soname])
    return bool(majors) and torch is not None and torch.cuda_major is not None and torch.cuda_major not in majors


def _needed_by(environment: Environment, found: Object, missing: MissingLibrary) -> str:
    return "" if missing.needed_by == found.path else f" (needed by {environment.short(missing.needed_by)})"


def _visible_fixes(environment: Environment, missing: MissingLibrary) -> tuple[str, ...]:
    """Ways to make a library visible; what keeps torch from opening it comes first.

    Torch opens the first match of ``nvidia/<library>/lib/<name>.so.*`` before it looks into ``nvidia/cu13/lib``
    (``torch/__init__.py`` ``_get_cuda_dep_paths``), so that a wheel of CUDA 12 that was left hides CUDA 13's.
    """
    folder = missing.on_disk[0].rpartition("/")[0]
    visible = (
        f"Let the loader look in {folder}: add it to /etc/ld.so.conf.d and run ldconfig, or to LD_LIBRARY_PATH before "
        "the process starts"
    )
    stem = missing.soname.partition(".so")[0]
    left = [
        distribution.name
        for distribution in environment.distributions
        for other in missing.other_majors
        if distribution.name == cuda_wheels.wheel_of(f"{stem}.so.{other.rpartition('.so.')[2]}")
    ]
    if left and any(missing.on_disk[0].startswith(f"{site}/") for site in environment.python.site):
        hides = f"pip uninstall {' '.join(dict.fromkeys(left))}: torch opens that one and then not {missing.soname}"
        return hides, visible
    return (visible,)


def _library_fix(environment: Environment, soname: str) -> str:
    if relevance.TORCH_LIBRARY.fullmatch(soname):
        if environment.torch is None:
            return "Install torch in the release that the package was built for"
        return f"Install a torch that has {soname}; this one is {environment.torch.version}"
    wheel = fixes.wheel_of_library(soname, environment)
    if wheel is not None:
        return f"Install {wheel}, which ships {soname}"
    return f"Install the system package that ships {soname} (Debian: apt-file search {soname})"


def _versions(found: Object) -> Iterator[Finding]:
    """Group the versions that libraries lack by whether the system or another library is too old."""
    system = [text for text in found.missing_versions if _SYSTEM.fullmatch(text.rpartition(" ")[2])]
    others = [text for text in found.missing_versions if text not in system]
    for rule, lacking in (("ABI004", system), ("ABI005", others)):
        if lacking:
            yield catalogue.finding(
                rule,
                detail=f"Asked for and not there: {'; '.join(lacking[:MAX_NAMED])}.",
                object=found.path,
                distribution=found.owner,
                evidence={"versions": list(lacking)},
            )


def _symbols(environment: Environment, found: Object, known: Knowledge) -> Iterator[Finding]:
    """Group an object's missing symbols by who should have them."""
    groups: dict[str, list[MissingSymbol]] = {}
    for symbol in found.missing_symbols:
        if not relevance.is_own_fault(environment, found, symbol, known):
            continue
        groups.setdefault(_rule_of(environment, found, symbol), []).append(symbol)
    for rule, symbols in sorted(groups.items()):
        match rule:
            case "ABI001" | "ABI007":
                yield _torch_symbols(environment, found, symbols, known, rule)
            case "ABI005":
                yield _older_library(found, symbols)
            case "ABI014":
                yield _out_of_scope(found, symbols)
            case _:
                yield catalogue.finding(
                    rule,
                    detail=f"Nothing that it loads exports {_named(symbols)}.",
                    object=found.path,
                    distribution=found.owner,
                    evidence={"symbols": [symbol.name for symbol in symbols]},
                )


def _out_of_scope(found: Object, symbols: list[MissingSymbol]) -> Finding:
    return catalogue.finding(
        "ABI014",
        detail=f"{len(symbols)} symbols that torch exports, among them {_named(symbols[:1])}.",
        object=found.path,
        distribution=found.owner,
        evidence={"symbols": [symbol.name for symbol in symbols]},
    )


def _rule_of(environment: Environment, found: Object, symbol: MissingSymbol) -> str:
    if _DRIVER.fullmatch(symbol.name):
        return "ABI013"
    if _PYTHON.fullmatch(symbol.name):
        return "ABI008"
    if symbol.out_of_scope is not None:
        return "ABI014"
    if is_torch_name(symbol.name):
        return "ABI007" if _other_strings(environment, symbol.name) else "ABI001"
    if symbol.library is not None or fixes.library_of_symbol(symbol.name, found.needed) is not None:
        return "ABI005"
    return "ABI006"


def _other_strings(environment: Environment, name: str) -> bool:
    """Whether a symbol of torch is spelled with the std::string that this torch does not use."""
    torch = environment.torch
    if torch is None or torch.cxx11_abi is None:
        return False
    if torch.cxx11_abi:
        return _CXX11_MARK not in name and _OLD_STRING.search(name) is not None
    return _CXX11_MARK in name


def _torch_symbols(
    environment: Environment, found: Object, symbols: list[MissingSymbol], known: Knowledge, rule: str
) -> Finding:
    torch = environment.torch
    installed = torch.version if torch is not None else "none"
    history = known.history
    exporters = {s.name: history.exporters(s.name, installed, exported=False) for s in symbols}
    never = any(versions == () for versions in exporters.values())
    fitting = () if never else history.fitting(found.torch_imports)
    sentences = [
        f"Of {len(found.torch_imports)} symbols that it takes from torch {len(symbols)} are not in torch {installed}: "
        f"{_named(symbols)}.",
        *_when(exporters, installed),
    ]
    if fitting:
        sentences.append(f"Torch releases that export all that it needs: {versions_text(fitting)}.")
    elif never:
        sentences.append("No recorded torch release exports all of them.")
    return catalogue.finding(
        rule,
        detail=" ".join(sentences),
        object=found.path,
        distribution=found.owner,
        evidence={
            "missing": [
                {"symbol": s.name, "demangled": s.demangled, "exported_by": list(exporters[s.name] or ())}
                for s in symbols
            ],
            "fitting_torch": list(fitting),
            "torch": installed,
        },
        fix=fixes.for_torch_mismatch(environment, found, _fitting_all(environment, found, known, fitting), known.fixes),
    )


def _fitting_all(
    environment: Environment, found: Object, known: Knowledge, fitting: tuple[str, ...]
) -> tuple[str, ...]:
    """The releases among ``fitting`` that suit all objects of the distribution: they move together."""
    together = [found, *fixes.siblings(environment, found, known.unopened)]
    others = {name for other in together for name in other.torch_imports}
    return tuple(version for version in known.history.fitting(others) if version in fitting)


def _when(exporters: dict[str, tuple[str, ...] | None], installed: str) -> Iterator[str]:
    """Say in which release symbols vanished or came, seen from the installed one."""
    here = Version(installed) if installed != "none" else Version("0")
    vanished = {max(v, key=Version) for v in exporters.values() if v and max(map(Version, v)) < here}
    came = {min(v, key=Version) for v in exporters.values() if v and min(map(Version, v)) > here}
    if vanished:
        yield f"Last exported by torch {versions_text(sorted(vanished, key=Version))}."
    if came:
        yield f"First exported by torch {versions_text(sorted(came, key=Version))}."


def _older_library(found: Object, symbols: list[MissingSymbol]) -> Finding:
    libraries = sorted(
        {symbol.library or fixes.library_of_symbol(symbol.name, found.needed) or "unknown" for symbol in symbols}
    )
    chosen = {loaded.soname: loaded.path for loaded in found.cuda_libraries}
    where = ", ".join(f"{library} ({chosen[library]})" if library in chosen else library for library in libraries)
    return catalogue.finding(
        "ABI005",
        detail=f"{where} lacks {_named(symbols)}.",
        object=found.path,
        distribution=found.owner,
        evidence={"symbols": [symbol.name for symbol in symbols], "libraries": libraries},
    )


def _named(symbols: list[MissingSymbol]) -> str:
    names = [symbol.demangled if len(symbol.demangled) <= 200 else symbol.name for symbol in symbols[:MAX_NAMED]]
    more = f" and {len(symbols) - MAX_NAMED} more" if len(symbols) > MAX_NAMED else ""
    return "; ".join(names) + more


def _stable(found: Object, known: Knowledge) -> Iterator[Finding]:
    imports = found.torch_imports
    if not imports or found.missing_symbols or not all(map(is_stable_name, imports)):
        return
    fitting = known.history.fitting(imports)
    floor = f"torch {fitting[0]} or later" if fitting else "a torch that is not recorded"
    yield catalogue.finding(
        "ABI012",
        detail=f"All {len(imports)} symbols that it takes from torch are of the stable ABI; it needs {floor}.",
        object=found.path,
        distribution=found.owner,
        evidence={"minimum_torch": fitting[0] if fitting else None},
    )


def _foreign_module(environment: Environment, found: Object) -> Iterator[Finding]:
    match = _MODULE_TAG.search(found.path)
    if match is None or f"{match[1]}.{match[2]}" == environment.python.version:
        return
    only_one = not any(o.owner == found.owner and not _MODULE_TAG.search(o.path) for o in environment.objects)
    yield catalogue.finding(
        "ABI008",
        severity=Severity.WARNING if only_one else None,
        detail=f"It can only be imported by Python {match[1]}.{match[2]}; this is {environment.python.version}.",
        object=found.path,
        distribution=found.owner,
        evidence={"module_python": f"{match[1]}.{match[2]}", "python": environment.python.version},
    )


def _owners(environment: Environment) -> Iterator[Finding]:
    """Distributions that wrote different files to one path; the wheels of NVIDIA's two majors are rule CUDA007's."""
    pairs: dict[tuple[str, ...], list[str]] = {}
    for shared in environment.shared_files:
        if len({fixes.family(owner) for owner in shared.owners}) > 1:
            pairs.setdefault(shared.owners, []).append(shared.path)
    for owners, paths in sorted(pairs.items()):
        won = {s.matching for s in environment.shared_files if s.owners == owners}
        content = f"what lies there is {next(iter(won))}'s" if len(won) == 1 and None not in won else "no one owner won"
        names = [owner.partition(" ")[0] for owner in owners]
        if not any(
            path.endswith((".so", "/__init__.py")) for path in paths
        ):  # build scripts and the like, never loaded
            yield catalogue.finding(
                "ABI009",
                title="Two distributions ship a file at one path",
                severity=Severity.NOTE,
                detail=f"{' and '.join(owners)} both ship {environment.short(paths[0])}; {content}.",
                object=paths[0],
                distribution=owners[-1],
                evidence={"owners": list(owners), "files": paths[:MAX_NAMED], "count": len(paths)},
                fix=(),
            )
            continue
        yield catalogue.finding(
            "ABI009",
            detail=f"{' and '.join(owners)} both installed {len(paths)} files with different content; {content}.",
            object=_package(paths[0], environment),
            distribution=owners[-1],
            evidence={"owners": list(owners), "files": paths[:MAX_NAMED], "count": len(paths)},
            fix=(fixes.for_double_install(environment, names),),
        )


def _package(path: str, environment: Environment) -> str:
    for site in environment.python.site:
        if path.startswith(f"{site}/"):
            return f"{site}/{path.removeprefix(f'{site}/').partition('/')[0]}"
    return path
