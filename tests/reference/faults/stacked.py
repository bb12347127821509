"""Mistakes in the stacked engine: masks, padding, layout, layers, losses, memories."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults

FOLDER = "engines/stacked"
STACK, FEED, ENGINE = f"{FOLDER}/stack.py", f"{FOLDER}/feed.py", f"{FOLDER}/engine.py"
MEMORY, LAYERS, KERNELS = f"{FOLDER}/memory.py", f"{FOLDER}/layers.py", f"{FOLDER}/kernels.py"
LOOK = f"{FOLDER}/look.py"
CONVOLUTIONS, BANK, RECURRENT = f"{FOLDER}/convolutions.py", f"{FOLDER}/bank.py", f"{FOLDER}/recurrent.py"
DROPOUT, MASKS, ATTENTION = "engines/dropout.py", "engines/masks.py", "engines/attention.py"
LAYOUT, LOSSES, NETWORKS = f"{FOLDER}/layout.py", f"{FOLDER}/losses.py", f"{FOLDER}/networks.py"

FAULTS: Faults = {
    "layout: channels at the wrong place": (
        LAYOUT,
        "movedim(-1, -len(place.shape) + 1)",
        "movedim(-1, -len(place.shape) + 2)",
    ),
    "layout: the model's order is the engine's": (
        LAYOUT,
        "for index in self.order:\n            part",
        "for index in range(len(parts)):\n            part",
    ),
    "convolution: bias by sample instead of client": (
        CONVOLUTIONS,
        "bias.repeat_interleave(len(y) // len(bias), dim=0)",
        "bias.repeat(len(y) // len(bias), 1)",
    ),
    "bias: mean instead of sum": (LAYERS, "own_dy.sum(dim=1)", "own_dy.mean(dim=1)"),
    "layer norm: scale forgotten on the way back": (
        LAYERS,
        "(own_dy * weight[:, None]).view_as(x)",
        "own_dy.reshape(x.shape)",
    ),
    "embedding: padding is trained": (LAYERS, "dy * (x != self.padding_idx).unsqueeze(-1)", "dy"),
    "embedding: the last of equal words alone": (LAYERS, "accumulate=True", "accumulate=False"),
    "convolution: clients' images mixed": (
        KERNELS,
        "*x.shape[2:]).transpose(0, 1).flatten(0, 1)",
        "*x.shape[2:]).flatten(0, 1)",
    ),
    "group norm: scale by sample instead of client": (
        KERNELS,
        "values.repeat_interleave(len(x) // len(values), dim=0)",
        "values.repeat(len(x) // len(values), 1)",
    ),
    "group norm: ReLU forgotten on the way back": (KERNELS, "torch.where(y > 0, dy,", "torch.where(y >= 0, dy,"),
    "losses: ignored positions divide": (LOSSES, "taken.view(len(weights), -1).sum(dim=1)", "(weights > 0).sum(dim=1)"),
    "losses: smoothing forgotten": (LOSSES, '["label_smoothing"] = smoothing', '["label_smoothing"] = 0.0'),
    "losses: classes weigh the same": (LOSSES, "if by_class is not None and is_class:", "if False:"),
    "losses: three targets are tried": (LOSSES, "_is_mean_of_all(loss, output, targets())", "True"),
    "losses: mean over padding": (LOSSES, "(kept * weights).sum(dim=1)", "kept.mean(dim=1)"),
    "networks: mean over clients": (NETWORKS, "losses.sum()", "losses.mean()"),
    "networks: gradients added up": (NETWORKS, "self.grads[name].copy_(grad)", "self.grads[name].add_(grad)"),
    "who has finished goes on": (STACK, "torch.where(active, new.params, local.params)", "new.params"),
    "states of who has finished go on": (LOOK, "torch.where(active, value, place)", "value"),
    "one step too many": (STACK, "self.step_number < self.num_steps", "self.step_number <= self.num_steps"),
    "losses after the last step count": (
        STACK,
        "torch.where(active, losses.double(), torch.zeros_like(self.losses))",
        "losses.double()",
    ),
    "losses of the last round stay": (STACK, "self.losses.zero_()", "pass"),
    "rate of the first round": (STACK, "self.lr.fill_(lr)", "self.lr.fill_(float(self.lr) or lr)"),
    "steps of the client with most": (STACK, "clamp(min=1)[:, None]", "clamp(min=1).max()"),
    "held tensors in another order": (
        STACK,
        "method.with_tensor_fields(network.layout.inward)",
        "method.with_tensor_fields(lambda one: network.layout.inward(one.flip(-1)))",
    ),
    "look: gradient where it stands": (LOOK, "copy_(points[len(gradients)])", "copy_(local.params)"),
    "look: always from the parameters": (LOOK, "points[0] is shapes.params", "True"),
    "look: loss where it looks": (LOOK, "return losses[0]\n\n    def _as", "return losses[-1]\n\n    def _as"),
    "look: the first gradient is overwritten": (LOOK, "else grads.clone()", "else grads"),
    "look by numbers: kept gradient is overwritten": (LOOK, "grads.to(point.dtype, copy=True)", "grads"),
    "look: states before it": (LOOK, "if is_last:", "if False:"),
    "padding counts": (FEED, "weights[step, client, : len(batch)] = ", "weights[step, client] = "),
    "a short batch divided by a whole one": (FEED, "1 / len(batch)", "1 / batch_size"),
    "steps of the first client": (FEED, "[one.num_steps for one in work]", "[work[0].num_steps for one in work]"),
    "random words of the last step": (FEED, "draws[step, client, : len(batch)]", "draws[:, client, : len(batch)]"),
    "work laid out without whose": (ENGINE, "(work[0].seed, places", "(0, places"),
    "uploads go to the client before": (ENGINE, "rows[place], upload)", "rows[place - 1], upload)"),
    "losses by the first client's steps": (
        ENGINE,
        "losses[place] / one.num_steps",
        "losses[place] / work[0].num_steps",
    ),
    "layers: the last use alone": (BANK, "place.add_(more)", "place.copy_(more)"),
    "transposed: bias forgotten": (
        CONVOLUTIONS,
        "like, _kernel(self.rows()), shape)\n        return _like(_with_bias(y, self.rows_of_bias()), x)",
        "like, _kernel(self.rows()), shape)\n        return _like(y, x)",
    ),
    "recurrent: cell kept by the wrong gate": (RECURRENT, "f * cell", "o * cell"),
    "recurrent: reset forgotten on the way back": (
        RECURRENT,
        "gates[..., -size:] * slopes.reset[time]",
        "gates[..., -size:]",
    ),
    "recurrent: backwards is not turned round": (RECURRENT, "hiddens.flip(0) if backwards else hiddens", "hiddens"),
    "attention: sees the next place": (ATTENTION, ".tril()", ".tril(1)"),
    "dropout: one mask for all calls": (DROPOUT, "self.num_calls += 1", "self.num_calls = 1"),
    "dropout: one mask for all steps": (STACK, "self.keys.index_select(0, self.step_number)[0]", "self.keys[0]"),
    "dropout: keys in another order": (FEED, "= step_keys(one)", "= step_keys(one)[::-1]"),
    "dropout: one key for all clients": (DROPOUT, "bits(work.seed, ", "bits(0, "),
    "dropout: what stays is not scaled": (DROPOUT, "1 / (1 - p)", "1.0"),
    "dropout: a mask by the batch's size": (
        MASKS,
        "_multiples(0, size, device)",
        "_multiples(0, size, device).flip(0)",
    ),
    "a model's branch is taken for all": ("engines/stacked/choice.py", "and reference.read:", "and False:"),
    "a transform's branch is taken for all": ("methods/testing/observed.py", "if operations.reads_own:", "if False:"),
    "few samples tell how they are mixed": ("engines/stacked/choice.py", "reference.check_parts(samples)", "pass"),
    "subclasses of losses are known": (
        "engines/stacked/losses.py",
        "type(loss).__module__ != nn.modules.loss.__name__",
        "False",
    ),
    "memory of the first client": (MEMORY, "inward(one.memory[part][name])", "inward(here[0].memory[part][name])"),
    "memory in another order": (
        MEMORY,
        "self.layout.inward(one.memory[part][name])",
        "self.layout.inward(one.memory[part][name].flip(-1))",
    ),
    "memory in the engine's order": (MEMORY, "self.layout.outward(rows[place]).clone()", "rows[place].clone()"),
    "memory is a view": (MEMORY, "outward(rows[place]).clone()", "outward(rows[place])"),
}


def checks() -> list[Check]:
    """The stacked engine against the sequential one, its parts against one client alone."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from engines import test_dropout as dropout
    from engines import test_forms as forms
    from engines import test_stacked_parts as parts
    from equivalence import test_held_tensors as held
    from equivalence import test_messages_in_engines as messages
    from equivalence import test_open_contract as contract
    from equivalence import test_stacked_equals_sequential as suite
    from equivalence import test_stacked_traps as traps
    from equivalence import test_user_models as users

    alone = parts.test_gradients_are_those_of_each_client_alone
    found = [partial(alone, model, form) for form in ("layered", "vmapped") for model in (parts.Words, parts.Pictures)]
    found += [
        partial(parts.test_losses_are_those_of_each_batch_alone, loss, ()) for loss in (parts.squared, parts.SMOOTH)
    ]
    found.append(partial(parts.test_losses_are_those_of_each_batch_alone, F.cross_entropy, (4,)))
    found += [partial(parts.test_layout_there_and_back, (10, 64))]
    found += [parts.test_a_memory_that_is_kept_is_no_view_of_the_stack]
    found += [partial(traps.test_states_that_are_old_values, traps.RemembersLook())]
    found += [partial(traps.test_classes_may_weigh_more_and_targets_be_ignored, nn.CrossEntropyLoss, torch.float64)]
    found += [partial(traps.test_a_single_target_may_weigh_more_although_it_is_not_on_trial, traps.masked)]
    found += [partial(contract.test_any_look_is_stacked, look) for look in contract.LOOKS]
    found += [contract.test_a_look_that_asks_by_numbers_is_each_clients_own]
    found += [partial(traps.test_a_models_branch_on_a_number_is_each_clients_own, "sum")]
    found += [partial(traps.test_a_transforms_branch_on_a_number_is_each_clients_own, nn.Linear(4, 3))]
    found += [traps.test_a_subclass_of_a_loss_of_torchs_is_tried_like_any_other]
    found += [partial(traps.test_what_depends_on_the_size_of_a_batch_is_not_filled_up, traps.InGroups())]
    found += [partial(suite.test_losses, suite.squared), suite.test_a_loss_that_compares_samples]
    found += [partial(suite.test_every_method, name, places) for name, places in ENGINES]
    found += [partial(suite.test_layers, "plain"), partial(held.test_engines_agree, "convolutional")]
    found += [partial(messages.test_engines_agree, "fedavg", messages.CODED)]
    found += [partial(forms.test_gradients_are_those_of_each_client_alone, name) for name in ("mixed", "lstm", "gru")]
    found += [
        dropout.test_keys_of_steps_depend_on_seed_round_client_and_step,
        dropout.test_gradients_go_where_values_went,
    ]
    found += [partial(dropout.test_attention_written_out_is_torchs, dropout.MASKS["causal"])]
    found += [dropout.test_many_calls_have_keys_of_their_own, dropout.test_a_place_keeps_its_mask_in_a_larger_batch]
    found.append(partial(users.test_masks_do_not_depend_on_who_is_beside, 2))
    return found


ENGINES = [("scaffold", None), ("scaffold", 2), ("fedlada", None), ("fedsam", None), ("fedsmoo", None)]
