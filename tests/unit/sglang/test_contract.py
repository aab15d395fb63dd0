"""The contract of a small SGLang, stated by hand."""

from __future__ import annotations

import ast

import pytest

from stack_builder.errors import UsageError
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.contract import delegation_for


def asked(contract) -> set[tuple[str, str, bool]]:
    return {(r.role.value, r.attribute, r.required) for r in contract.requirements}


def test_what_eagle3_asks_for(make_tree):
    contract = contracts.read(make_tree())
    assert asked(contract) == {
        ("target", "get_embed_and_head", True),
        ("target", "set_eagle3_layers_to_capture", True),
        ("target", "forward", True),
        ("target", "lm_head", False),  # getattr with a default, two functions away
        ("draft", "load_lm_head_from_target", False),
        ("draft", "set_embed_and_head", False),  # guarded by hasattr
        ("draft", "set_embed", True),
        ("draft", "hot_token_id", True),
        ("draft", "forward", True),
    }
    sites = {r.attribute: r.sites for r in contract.requirements if r.role is Role.TARGET}
    assert sites["get_embed_and_head"] == ("sglang/srt/speculative/eagle_worker.py:4",)


def test_who_has_it(make_tree):
    contract = contracts.read(make_tree())
    assert contract.satisfying(Role.TARGET) == ("LlamaForCausalLM", "LlamaForCausalLMEagle3")
    assert contract.satisfying(Role.DRAFT) == ("LlamaForCausalLMEagle3",)
    assert contract.missing("Wrapper") == ("get_embed_and_head", "set_eagle3_layers_to_capture")
    assert set(contract.registry.architectures) == {"LlamaForCausalLM", "LlamaForCausalLMEagle3", "Wrapper", "Plain"}
    with pytest.raises(UsageError, match="registers no architecture 'Nobody'"):
        contract.missing("Nobody")


def test_the_traps_of_this_release(make_tree):
    traps = contracts.read(make_tree()).traps
    assert traps.default_layers == ("sglang/srt/model_executor/cuda_graph_runner.py:5",)
    assert traps.one_layer == "sglang/srt/models/llama_eagle3.py:8"
    assert traps.three_states == "sglang/srt/models/llama_eagle3.py:5"


def test_a_delegation_hands_every_argument_on(make_tree):
    tree = make_tree()
    contract = contracts.read(tree)
    (wrapper,) = contract.wrappers()
    assert (wrapper.architecture, wrapper.inner, wrapper.complete) == ("Wrapper", "language_model", True)
    delegation = delegation_for(tree, contract, "Wrapper")
    assert (delegation.path, delegation.class_name) == ("sglang/srt/models/wrapper.py", "Wrapper")

    class Inner:
        def get_embed_and_head(self):
            return "embed", "head"

        def set_eagle3_layers_to_capture(self, layer_ids=None, *, strict="default"):
            return layer_ids, strict

    space: dict[str, type] = {}
    exec("class Wrapper:\n" + "\n\n".join(delegation.methods.values()), space)
    made = space["Wrapper"]()
    made.language_model = Inner()
    assert made.get_embed_and_head() == ("embed", "head")
    assert made.set_eagle3_layers_to_capture([1, 2], strict=False) == ([1, 2], False)
    for text in delegation.methods.values():
        ast.parse("class C:\n" + text)


@pytest.mark.parametrize(
    ("architecture", "message"), [("Plain", "has no inner model with"), ("LlamaForCausalLM", "already has all")]
)
def test_no_delegation_where_none_helps(make_tree, architecture, message):
    tree = make_tree()
    with pytest.raises(UsageError, match=message):
        delegation_for(tree, contracts.read(tree), architecture)


def test_the_contract_comes_back_from_the_cache_as_it_was(make_tree):
    tree = make_tree()
    first, again = contracts.read(tree), contracts.read(tree)
    assert (first.requirements, first.traps) == (again.requirements, again.traps)
    assert first.registry.files == again.registry.files
    assert first.satisfying() == again.satisfying()


def test_negated_and_other_conditions(make_tree):
    worker = """
class EagleWorker:
    def go(self, target_worker):
        model = target_worker.model_runner.model
        if not hasattr(model, "needed"):
            raise ValueError
        model.needed()
        model.maybe if hasattr(model, "maybe") else None
        if self.dspark:
            model.only_dspark()
        try:
            model.tried()
        except AttributeError:
            model.fallback
        self.runner_of(i).model.unrelated()
        for m in [self.draft_runner_list[0].model]:
            m.unseen()
        self.draft_runner_list[0].model.listed = 1
"""
    tree = make_tree({"sglang/srt/speculative/eagle_worker.py": worker})
    found = {(r, a): need for r, a, need in asked(contracts.read(tree)) if a != "forward"}
    assert found == {
        ("target", "needed"): True,
        ("target", "maybe"): False,
        ("target", "tried"): True,
        ("target", "fallback"): False,
        ("target", "set_eagle3_layers_to_capture"): True,
        ("draft", "listed"): True,
    }
