"""Which tests prove what docs/training_engine.md says of each system. tools/write_engines.py writes
its table from results.json, which a test run
with TITANRUN_WRITE_FAMILIES set keeps up."""

from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).with_name("results.json")


class Row(NamedTuple):
    """What there is, and the tests that prove it, each standing for all of its cases."""

    what: str
    tests: tuple[str, ...]


def row(what: str, *tests: str) -> Row:
    """Tests are named without their folder `tests/`."""
    return Row(what, tuple(f"tests/{test}" for test in tests))


RL, ENGINE, VERL = (
    "rl/test_runs.py::",
    "integrations/test_open_engine.py::",
    "integrations/test_verl.py::",
)
OPEN, HERE = "worker/test_open_engine.py::", "integrations/test_rows.py::"

ROWS: dict[str, Row] = {
    "A1": row(
        "typed recipes: a misspelled key is reported with the right one",
        "recipe/test_typos.py::test_a_misspelt_key_of_the_schema_gets_the_right_key_first",
        f"{HERE}test_a_misspelt_key_ends_validate_with_its_place_and_the_right_key",
    ),
    "A2": row(
        "components by name, each with its own settings",
        "recipe/test_components.py::test_the_defaults_of_every_choice_validate",
        "recipe/test_components.py::test_the_implementation_takes_the_config_and_the_keywords_of_its_slot",
    ),
    "A3": row(
        "one schema for recipes",
        "config/test_units.py::test_the_json_schema_takes_what_the_config_takes",
        "recipe/schemas/test_recipe_schema.py::test_shipped_recipes_and_their_resolved_forms_agree_with_it",
        "test_house.py::test_schema_is_fresh",
    ),
    "A4": row(
        "recipes composed of parts, and the differences between two",
        "recipes/test_shipped.py::test_a_shipped_recipe_resolves_to_the_committed_form",
        "cli/test_commands.py::test_diff_config_exits_as_diff_does",
        f"{HERE}test_a_derived_recipe_is_its_base_and_what_it_says_itself",
    ),
    "A5": row(
        "overrides on the command line",
        "config/test_apply_overrides.py::test_a_value_is_set",
        "config/test_apply_overrides.py::test_a_misspelt_override_is_shown_where_it_goes_wrong",
        f"{HERE}test_every_leaf_of_every_recipe_takes_its_own_value_on_the_command_line",
        f"{HERE}test_a_value_of_the_wrong_type_ends_validate",
    ),
    "A6": row(
        "the resolved recipe describes the whole run",
        "cli/test_commands.py::test_diff_config_of_a_recipe_and_its_resolved_form_is_empty",
        "test_house.py::test_a_resolved_recipe_resolves_to_its_own_bytes",
        "worker/test_rank_main.py::test_the_same_recipe_gives_the_same_losses_bit_for_bit",
    ),
    "A7": row(
        "torchtitan's files are migrated, and no key is dropped silently",
        "recipe/migrate/test_torchtitan_table.py::test_the_table_has_every_leaf_once",
        "recipe/migrate/test_torchtitan.py::test_nothing_is_dropped_silently",
    ),
    "A8": row(
        "pretraining reproduces its recorded numbers bitwise, in every format of the recipe",
        "numerics/test_golden.py::test_the_golden_run_has_its_golden_numbers",
        "test_house.py::test_yaml_and_toml_of_the_debug_recipe_resolve_to_the_same_bytes",
        "recipe/test_round_trip.py::test_yaml_toml_and_overrides_resolve_to_the_same_bytes",
    ),
    "B1": row(
        "PolicyTrainer.forward_backward: calls accumulate, with one normalizer",
        f"{OPEN}test_gradients_of_unequal_parts_add_up_to_those_of_the_whole",
        f"{VERL}test_ranks_have_the_gradients_and_log_probs_of_one_process",
    ),
    "B2": row(
        "optim_step: learning rate of one step, non-finite updates",
        f"{OPEN}test_an_update_counts_takes_its_own_rate_and_is_left_out_where_it_is_no_number",
    ),
    "B3": row(
        "save_checkpoint, and resuming a stopped run",
        f"{ENGINE}test_a_policy_trainer_saves_and_takes_up_what_it_saved",
        f"{RL}test_a_run_that_is_stopped_goes_on_as_if_nothing_had_been",
        "faults/test_rl.py::test_a_run_killed_between_answers_and_update_goes_on_to_the_same_numbers",
    ),
    "B4": row(
        "weights pushed by version, in the generator's dtype",
        f"{OPEN}test_pushed_weights_are_those_of_their_version",
        "rl/test_weight_sync.py::test_parameters_are_cast_and_buffers_are_not",
        f"{OPEN}test_parameters_are_pushed_in_the_generators_type_and_buffers_as_they_are_under_wrappers_too",
    ),
    "B5": row(
        "losses of GRPO, DAPO and the others",
        "rl/test_algorithms.py::test_a_loss_is_that_of_its_paper",
        "rl/test_algorithms.py::test_three_tokens_computed_on_paper",
        "rl/test_algorithms.py::test_answers_that_are_worse_than_the_rest_get_gradients",
        "rl/test_algorithms.py::test_a_token_whose_logprob_is_no_number_counts_nowhere",
    ),
    "B6": row(
        "log-probabilities are verified each step",
        f"{RL}test_log_probabilities_are_verified_at_each_step",
    ),
    "B7": row(
        "batch invariance",
        "rl/test_generators.py::test_an_answer_does_not_depend_on_those_beside_it",
        "rl/test_generators.py::test_a_batch_invariant_generator_computes_whole_rows",
        f"{RL}test_nothing_differs_by_a_bit_where_that_is_asked_for",
    ),
    "B8": row(
        "adapters, activation checkpointing and parallel layouts in RL",
        "rl/test_ranks.py::test_ranks_learn_what_one_process_learns",
    ),
    "B9": row(
        "multi-turn environments, tools, weighted rewards",
        "rl/test_rollout_runner.py::test_guessing_takes_several_turns",
        "rl/test_rollout_runner.py::test_a_tool_looks_words_up",
        "rl/test_rollout_runner.py::test_what_ends_a_conversation",
        "rl/test_rewards.py::test_a_rubric_is_the_weighted_mean",
        "rl/test_rewards.py::test_answers_that_were_cut_off_and_worlds_that_failed_have_rewards_of_their_own",
        "rl/test_learning.py::test_a_policy_learns_to_find_a_number_in_several_turns",
        "rl/test_learning.py::test_a_policy_learns_to_use_a_tool",
    ),
    "B10": row(
        "turns become samples, samples are packed into sequences",
        "rl/test_rollout_runner.py::test_turns_that_continue_each_other_are_one_sequence_and_an_edited_history_is_two",
        "rl/test_rollout_runner.py::test_packing_keeps_every_token_and_filling_is_a_document_of_its_own",
    ),
    "B11": row(
        "completions are not older than the limit",
        "rl/test_rollout_buffer.py::test_no_group_gets_older_than_the_bound_and_some_get_that_old",
        f"{RL}test_answers_run_ahead_as_far_as_they_may",
        f"{RL}test_groups_of_one_reward_are_left_out_unless_they_are_wanted",
    ),
    "B12": row(
        "recorder, renderer, validation",
        f"{RL}test_a_run_asks_scores_learns_and_leaves_its_files",
        f"{RL}test_the_recorder_keeps_what_it_should",
        "rl/test_chat_renderer.py::test_a_conversation_is_put_into_the_words_of_a_template",
        f"{RL}test_validation_comes_as_often_as_it_should",
    ),
    "B13": row(
        "generators with one interface: native, vLLM, static",
        "rl/test_generators.py::test_remembered_keys_say_what_whole_passes_say",
        "rl/test_generators.py::test_static_answers_are_given_in_turn",
        "rl/test_vllm.py::test_log_probabilities_are_those_of_the_policy",
        "rl/test_vllm.py::test_a_policy_learns_from_what_vllm_says",
    ),
    "C1": row(
        "models from a recipe, and from a plug-in",
        f"{HERE}test_a_new_model_of_four_layers_learns_without_python",
        "plugins/test_pebble.py::test_every_part_trains_from_a_recipe",
    ),
    "C2": row(
        "converters modify the model before it is parallelized",
        "components/converters/test_conversions.py::test_float8_takes_linear_modules_in_blocks_that_no_filter_names",
        "components/converters/test_conversions.py::test_a_module_has_one_converter",
        f"{OPEN}test_what_follows_from_the_weights_is_told_once_an_update",
    ),
    "C3": row(
        "sections and rules of a plug-in",
        "plugins/test_pebble.py::test_it_is_overridden_and_compared_as_what_ships_is",
        "plugins/test_pebble.py::test_its_rule_is_asked_and_its_ranges_hold",
    ),
    "D1": row(
        "TitanTrainer's documented fields",
        "integrations/torchforge/test_actor_fields.py::test_a_field_has_its_documented_default_and_another_value_changes_the_run",
        "integrations/torchforge/test_actor_fields.py::test_the_table_has_every_field_and_few_are_refused",
    ),
    "D2": row(
        "setup, train_step, push_weights, cleanup",
        "integrations/torchforge/test_forge_loop.py::test_forge_main_loop_learns_and_its_losses_are_those_of_the_engine",
        "integrations/torchforge/test_titan_trainer.py::test_steps_are_those_of_the_engine_and_gradients_are_clipped",
    ),
    "D3": row(
        "weights through a store or a folder, written atomically",
        "integrations/torchforge/test_titan_trainer.py::test_pushed_weights_have_the_names_of_transformers",
        "integrations/torchforge/test_titan_trainer.py::test_a_version_that_breaks_off_while_it_is_written_is_not_there",
        "integrations/torchforge/test_titan_trainer.py::test_a_reader_never_sees_half_of_what_is_pushed_whenever_the_trainer_is_killed",
        "rl/test_weight_sync.py::test_a_reader_never_sees_half_a_version_whenever_its_writer_is_killed",
        "rl/test_weight_sync.py::test_the_last_versions_can_be_pulled_and_no_others",
    ),
    "D4": row(
        "ReferenceModel, replay buffer",
        "integrations/torchforge/test_reference_actor.py::test_its_weights_are_those_it_began_with_whatever_is_learned",
        "integrations/torchforge/test_replay_buffer.py::test_what_is_too_old_is_never_sampled",
        "rl/test_algorithms.py::test_estimates_of_the_divergence_against_the_exact_sum",
    ),
    "D5": row(
        "the GRPO and SFT apps as recipes",
        "recipes/test_shipped.py::test_a_shipped_recipe_resolves_to_the_committed_form",
        "integrations/torchforge/test_recipes.py::test_grpo_learns_from_random_weights",
        "integrations/torchforge/test_recipes.py::test_sft_learns_and_leaves_what_transformers_opens",
        "integrations/torchforge/test_recipes.py::test_the_small_recipe_learns_by_the_loss_of_the_large_one",
    ),
    "E1": row(
        "an existing process group is used, and not destroyed",
        f"{OPEN}test_a_process_group_that_is_there_is_taken_over_and_stays",
        f"{OPEN}test_a_group_that_the_degrees_do_not_fit_is_a_problem",
    ),
    "E2": row(
        "an engine that reads no data",
        f"{HERE}test_an_engine_opens_no_data_and_who_trains_hears_which_key_is_missing",
        f"{ENGINE}test_a_loop_goes_on_from_a_checkpoint_as_if_it_had_not_stopped",
    ),
    "E3": row(
        "computing outputs of a batch changes no state",
        f"{OPEN}test_looking_at_a_batch_changes_nothing",
        f"{VERL}test_inference_changes_nothing_and_has_losses_of_one_without_a_loss",
    ),
    "E4": row(
        "documents by positions, by either rule; packed sequences equal separate ones",
        f"{VERL}test_documents_begin_by_either_rule_on_positions",
        f"{VERL}test_losses_gradients_and_log_probs_are_those_of_each_sequence_by_itself",
        f"{VERL}test_filled_up_sequences_give_what_jagged_ones_do",
        "components/data/test_document_ids.py::test_two_sources_at_once_are_a_problem",
    ),
    "E5": row(
        "given microbatches in a pipeline",
        f"{ENGINE}test_microbatches_that_were_cut_before_go_through_a_pipeline_as_they_are",
    ),
    "E6": row(
        "learning rates counted from 0 or 1",
        f"{ENGINE}test_learning_rates_of_both_indices_where_the_loop_moves_the_schedule",
        f"{VERL}test_verls_configs_build_the_model_of_their_folder",
    ),
    "E7": row(
        "weights tensor by tensor, offload to host memory, checkpoints by global step",
        f"{ENGINE}test_ranks_give_the_same_names_in_the_same_order_and_save_together",
        f"{ENGINE}test_weights_under_the_names_of_transformers_give_its_logits",
        f"{ENGINE}test_state_that_was_moved_away_and_back_trains_on",
        f"{VERL}test_weights_go_out_in_bfloat16_with_a_tied_head_named_twice",
        f"{VERL}test_verls_own_loop_learns_and_goes_on_from_its_checkpoint",
    ),
    "E8": row(
        "verl's contract: methods, data, losses times dp_size",
        f"{VERL}test_every_method_is_there_with_the_parameters_of_verl",
        f"{VERL}test_ranks_have_the_gradients_and_log_probs_of_one_process",
    ),
}
"""By the letter of the system (A and C: torchtitan's configs and extension points, B: its RL, D:
TorchForge, E: verl) and a number."""


def rows_of(nodeid: str) -> list[str]:
    """The rows that a test proves."""
    test = nodeid.partition("[")[0]
    return [name for name, row in ROWS.items() if test in row.tests]
