"""The static linker: what ld.so would do, without loading anything.

Bottom up: ``layout`` (header, segments, dynamic section), ``versions``, ``hashing``, ``symbols`` and ``object`` (one
ELF object); ``needed`` (an object's first bytes); ``files`` (objects of a tree), ``ldcache``, ``search`` (where a
library is found), ``scope`` and ``linker`` (a process: closures, bindings, what is missing, as ``linked`` facts);
``torch_loading`` (what ``import torch`` has loaded before); ``providers`` (who brings what no wheel brings);
``fatbin`` (code for GPUs); ``demangle``; ``processor``.
"""
