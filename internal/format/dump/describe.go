package dump

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MetadataKeys are the keys of a dump's metadata and what they mean.
var MetadataKeys = [][2]string{
	{"schema", "2, or 1 for a file without sample_id, next_values and scores_shaped; the only key that is needed"},
	{"framework", "trl, verl, openrlhf or another name: whose names the options have, and with version and algorithm which profile is declared"},
	{"version", "of the framework"},
	{"algorithm", "ppo, grpo, rloo, …; sft, gkd, dpo, kto and bco have masks and tensors of their own"},
	{"profile", "the convention that the trainer follows, such as trl-grpo@1.16"},
	{"run", "the name of the run, the same in all of its files and in no other run's: files of two runs are refused"},
	{"step", "of the run; 0 where it is not said"},
	{"rank", "of this file, from 0"},
	{"world_size", "how many ranks there are"},
	{"micro_batch", "of this file in its step, from 0"},
	{"micro_batches", "how many a step has"},
	{"align", "response (column t is response token t), shifted ([B, S-1], entry s is of ids[s+1]) or unshifted ([B, S], entry 0 is a dummy)"},
	{"options", "an object of plumbline's options (clip.low, kl.beta: verify profiles prints them) or the framework's own (epsilon, beta); facts of a run belong here, too (eos_token_id, num_generations, num_mini_batches, num_items_in_batch)"},
	{"scalars", "an object of the numbers that the trainer logged; null for one that is not finite"},
	{"scalars_scope", "optimizer_step (the same numbers in every file of a step) or micro_batch"},
	{"token_loss_includes_kl", "true if token_loss holds kl.beta·KL, false if it is the policy term alone; not said: unknown, both readings are tried"},
	{"scores_shaped", "true if scores stand after what the trainer makes of them: the penalty of responses without EOS (eos.rule), before or after the clip (reward.clip); else they are as the reward functions gave them"},
	{"masked_fill", "what the trainer keeps outside the mask"},
	{"dlogp_scale", "what dlogp and dvalues are still to be multiplied by"},
	{"compute_dtype", "float64, float32, bfloat16 or float16: what the arithmetic from log-probs to losses ran in, not what the model's weights have; else recognised from the numbers"},
	{"lossy", "names of tensors that were cast down for the dump"},
	{"logits_rows", "the rows that logits are of, where they are not of all"},
	{"bf16", "names of tensors of an .npz file that are uint16 views of bfloat16"},
}

// meanings are what the tensors are, by name.
var meanings = map[string]string{
	responseMask: "true where the token is the policy's own; every dump needs it", labelsMask: "in its place where algorithm is sft or gkd",
	segmentIDs: "packed rows: another number begins another sequence; 0 or less where the mask is false is padding", cuSeqlens: "packed rows: the columns where the sequences of a row end, after a first 0; in place of segment_ids",
	"input_ids": "prompt and response with padding", "attention_mask": "1 where input_ids are no padding",
	"response_ids": "tokens of the response", "prompt_len": "tokens of the prompt without padding",
	"logp_new": "log-probabilities under the policy being trained", "logp_old": "under the policy when the update began",
	"logp_gen": "as the engine that sampled gave them", "logp_ref": "under the reference",
	"values": "of the value head at rollout", "values_new": "of the value head now", "token_rewards": "rewards after shaping",
	"kl": "the estimate of KL as it was used", "returns": "targets of the values", "entropy": "of the distribution at each token",
	"token_loss": "policy loss of each token before it is aggregated", "dlogp": "∂loss/∂logp_new", "dvalues": "∂loss/∂values_new",
	"dones": "1 where an episode ends with this step, after its action: nothing of the next one flows back over it; CleanRL's dones[t + 1], and next_done in the last column", "scores": "reward of each response, before penalties and clips (see scores_shaped)",
	"next_values": "value of the state after the last step of each row, where a rollout is cut off: CleanRL's V(next_obs)",
	"sample_id":   "names the response in the whole run: the same wherever a later update uses the row again", "rewards_per_func": "one column for each reward function",
	"reward_baselines": "reward of the greedy response to the prompt of each row (ReMax)",
	"sum_pi_squared":   "Σ of the squared probabilities of the policy when the update began, at each token (verl's optimal_token_baseline)",
	"group_id":         "equal for the responses to one prompt", "advantages": "as used in the loss", "is_weights": "importance weights between engine and trainer, as used in the loss",
	"loss": "as back-propagated", "pg_loss": "the policy term of loss", "kl_loss": "the KL term of loss, without kl.beta", "value_loss": "the value term of loss, without value.coef", "entropy_loss": "the entropy term of loss, without entropy.coef",
	"logits": "as the model gives them, not divided by the temperature; of small vocabularies, or of some rows", "logp_chosen": "of the chosen answers", "logp_rejected": "of the rejected ones",
	"nll_loss": "cross-entropy that is added to the loss of the pairs, dpo.nll_weight times", "chosen_tokens": "tokens of the chosen answers that logp_chosen is of",
	"rejected_tokens": "tokens of the rejected answers that logp_rejected is of", "pair_loss": "preference loss of each pair before the mean, weighted where dpo.weighting is true, without nll_loss",
	"pair_weights":       "what the loss of each pair is multiplied by where dpo.weighting is true (WPO), without a gradient",
	"chosen_token_logps": "log-probabilities of the tokens that logp_chosen is made of, with prompt and padding if they are there", "rejected_token_logps": "the same of logp_rejected",
	"ref_chosen_token_logps": "the same of ref_chosen", "ref_rejected_token_logps": "the same of ref_rejected",
	"chosen_mask": "1 where chosen_token_logps is of a token of the answer", "rejected_mask": "the same of rejected_token_logps",
	"dlogp_chosen": "∂loss/∂logp_chosen", "dlogp_rejected": "∂loss/∂logp_rejected",
	"logp_policy":    "of the answers (kto, bco)",
	"logp_reference": "of the answers under the reference (kto, bco)", "desirable": "1 where the answer is a good one (kto, bco)",
	"reference_point": "what the loss of kto and bco compares rewards or log-ratios with: the estimate of KL, or the running mean of the rewards",
	"teacher_logits":  "of the teacher at the same tokens (gkd)",
	"ref_chosen":      "of the chosen answers under the reference", "ref_rejected": "of the rejected ones",
	"grad": "gradients, one or many as grad/NAME", "update": "what the optimiser added", "weights": "weights before the step, one or many as weights/NAME", "weights_init": "weights before training",
}

// extents are the shapes in words.
var extents = map[extent]string{perToken: "[B, T]", perRow: "[B]", tokenOrRow: "[B] or [B, T]", rowVector: "[B, F]", idGrid: "[B, S]",
	tokenVector: "[B, T, V]", scalar: "[]", anyShape: "any"}

// contents are the element types in words.
var contents = map[content]string{number: "float", integer: "integer", natural: "integer ≥ 0", flag: "bool or 0, 1"}

// Meaning says what a tensor of that name is, "" where none has it.
func Meaning(name string) string { return meanings[name] }

// Description returns the format of a dump as text: container, keys of the metadata, tensors with shape and element type.
func Description() string {
	var b strings.Builder
	b.WriteString(`A dump is one file for one micro-batch of one rank at one step: NAME.safetensors, or NAME.npz. Its metadata are one JSON object,
the entry plumbline of the safetensors metadata, or the file NAME.json beside it. A run is a folder of such files.

What was not there is left out, never filled with zeros. B rows, T response tokens, S tokens of prompt and response.

Metadata:
`)
	for _, k := range MetadataKeys {
		fmt.Fprintf(&b, "  %-22s  %s\n", k[0], k[1])
	}
	b.WriteString("\nTensors:\n")
	line := func(name, shape, elements string) {
		fmt.Fprintf(&b, "  %-16s  %-13s  %-12s  %s\n", name, shape, elements, meanings[name])
	}
	line(responseMask, extents[perToken], contents[flag])
	line(labelsMask, extents[perToken], contents[flag])
	line(segmentIDs, extents[perToken], contents[integer])
	line(cuSeqlens, "[B, n]", contents[integer])
	for g, of := range []string{"", "dpo", "kto or bco"} {
		if of != "" {
			b.WriteString("\nWhere algorithm is " + of + ":\n")
		}
		for _, name := range slices.Sorted(maps.Keys(definitions)) {
			if d := definitions[name]; d.of == grid(g) {
				line(name, extents[d.extent], contents[d.content])
			}
		}
	}
	return b.String()
}
