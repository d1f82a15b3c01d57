"""The tests of `pytest -m smoke`: something of every room, in a minute on two cores.

A line is a file below ``tests/``, or a file and what the names of its tests contain. Tests are
chosen here and not where they stand, so that one sees what is left to choose from the time.
"""

SMOKE = """
autodiff/test_accumulate.py::null
autodiff/test_derive.py::of_one_name
autodiff/test_reverse.py
autodiff/test_jvp.py::test_signature
autodiff/test_mutation.py
autodiff/test_silent_zeros.py
autodiff/test_vjp.py
bridges/test_as_torch.py::refuses
check/test_compare.py
check/test_samples.py
check/test_tensor_expressions.py
cli/test_cache.py
cli/test_check.py::wrong_node
cli/test_main.py::test_bad_input
cli/test_output.py
fallback/bindings/test_bindings.py::tree_grows
fallback/externs/test_match.py
fallback/forms/test_cost.py
fallback/forms/test_residues.py
fallback/indices/test_affine.py
fallback/kernels/test_saved.py
fallback/lift/test_order.py
fallback/lowering/test_explicit_bindings.py
fallback/reductions/test_combiner.py
fallback/reductions/test_reduce.py::argmax
fallback/scans/test_scan.py::rnn
fallback/test_gradient.py
fallback/test_graph.py
fallback/test_views.py
frontend/converters/test_conv.py::test_transposed_convolutions[pads]
frontend/converters/test_pool.py::test_global_pool[GlobalMaxPool
frontend/exported/test_program.py
frontend/writer/test_ops.py::test_versions
frontend/test_branches.py
frontend/test_constant_weights.py
frontend/test_model.py
ir/test_kernel_structure.py
ir/test_passes.py
ir/test_provenance.py
ir/test_rewrite.py
ir/test_tensor.py
layout/test_orders.py
layout/test_rules.py::conv
layout/test_choice.py
lower/cpu/contraction/test_replace.py
lower/cpu/contraction/test_tile.py
lower/fusion/horizontal/test_flat.py
lower/cpu/rowwise/test_emit.py::test_every_combiner
lower/cpu/attention/test_kernels.py::definition[plain]
lower/cpu/test_schedule.py
lower/cpu/test_vector_math.py
lower/cpu/winograd/test_form.py
lower/cpu/winograd/test_nest.py::forward-1x8x8x16x16-1111
lower/cuda/library/test_problems.py
lower/cuda/tensor_cores/test_kernel.py::test_products_of_halves_are_taken[bfloat16]
lower/cuda/test_schedule.py
lower/cuda/test_stages.py
lower/fusion/test_multi_output.py
lower/fusion/test_recompute.py
lower/graph/test_direct_calls.py
lower/graph/test_static_kernels.py
lower/kernels/test_contraction.py
lower/kernels/test_epilogue.py
lower/test_pipeline.py::stock_pipeline
lower/test_target.py
memory/test_alias.py
memory/test_donation.py
memory/test_overlap.py
memory/test_packing.py
memory/test_rematerialize.py
memory/test_reorder.py
models/test_lenet.py
models/test_mlp.py
ops/test_linalg.py
ops/test_norm.py
ops/conv/test_ops.py
ops/test_copy.py
ops/test_pool.py
profile/test_terms.py
precision/test_mixed.py::follow
profile/test_text.py
registry/test_reduce.py
registry/test_rule.py
registry/test_rules.py::relax.tanh-
lower/codegen/cache/test_store.py
report/test_coverage.py
report/test_table.py
runtime/cudnn/test_engine.py
runtime/test_cores.py
runtime/test_storage.py
test_errors.py
test_suite.py
train/test_forward.py
train/test_step.py::test_a_non_finite_step_changes_nothing
train/test_update.py
train/test_value_and_grad.py::test_inputs_parameters_and_intermediates_by_name
tvm_fixes/test_private_hooks.py
"""

_CHOSEN: dict[str, list[str]] = {}
for _line in SMOKE.split("\n"):
    _file, _, _name = _line.partition("::")
    _CHOSEN.setdefault(_file, []).append(_name)


def is_smoke_file(file: str) -> bool:
    """Whether some tests of a file, given by its path below ``tests/``, are among them."""
    return bool(file) and file in _CHOSEN


def is_smoke(file: str, name: str) -> bool:
    """Whether a test is among them."""
    return is_smoke_file(file) and any(part in name for part in _CHOSEN[file])
