package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/internal/words"
	"plumbline/verify/check"
)

// Checks of what the files are, before any number of theirs is recomputed: without them a name that nobody reads, a rank that is
// not there or the steps of another run leave a report that is green because little was judged.
const (
	inputComplete = "input/complete"
	inputNames    = "input/names"
	inputOneRun   = "input/one_run"
	inputProfile  = "input/profile"
)

var inputInfos = []check.Info{
	{Name: inputComplete, Doc: "every rank and micro-batch of a step is there\n\nranks 0 … world_size − 1, and micro-batches 0 … micro_batches − 1 of each rank", Source: "dump.md, Reading a run",
		Fix: "dump every rank and micro-batch of the steps that are dumped, into one folder"},
	{Name: inputNames, Doc: "tensors, options and keys have names that are read\n\nA name near to one that is read, or another framework's word for it, is taken for a mistake; an option that the declared release does not have is one.",
		Source: "dump.md, Tensors; conventions.md", Fix: "use the names of verify explain dump and verify profiles"},
	{Name: inputOneRun, Doc: "all files are of one run\n\nframework, version, algorithm and profile are the same in every file; no step has types or options that no step before and behind it has; " +
		"a sample_id is of the same tokens at every step; files of two runs (metadata key run) are refused", Source: "dump.md, Metadata",
		Fix: "name the files of one run; let every run write into a folder of its own"},
	{Name: inputProfile, Doc: "the profile is of the framework, algorithm and release that the files say\n\nA release whose numbers nobody has looked at has no profile: it is searched, and what fits is named.", Source: "conventions.md",
		Fix: "declare the profile of the release that runs (verify profiles), or --profile none"},
}

// otherWords are the names that frameworks, and people, have for the tensors of a dump.
var otherWords = map[string]string{
	"mask": "response_mask", "completion_mask": "response_mask", "action_mask": "response_mask", "loss_mask": "response_mask", "response_masks": "response_mask",
	"logprobs": "logp_new", "log_probs": "logp_new", "log_prob": "logp_new", "logps": "logp_new", "logp": "logp_new", "new_logprobs": "logp_new", "per_token_logps": "logp_new",
	"action_log_probs": "logp_new", "policy_logprobs": "logp_new", "newlogprob": "logp_new", "logprobs_new": "logp_new",
	"old_logprobs": "logp_old", "old_log_probs": "logp_old", "old_log_prob": "logp_old", "old_per_token_logps": "logp_old", "old_logps": "logp_old", "oldlogprob": "logp_old", "logprobs_old": "logp_old",
	"ref_logprobs": "logp_ref", "ref_log_probs": "logp_ref", "ref_log_prob": "logp_ref", "ref_per_token_logps": "logp_ref", "ref_logps": "logp_ref", "base_action_log_probs": "logp_ref",
	"gen_logprobs": "logp_gen", "rollout_log_probs": "logp_gen", "sampling_per_token_logps": "logp_gen", "vllm_logprobs": "logp_gen", "generation_logprobs": "logp_gen", "logprobs_gen": "logp_gen",
	"advantage": "advantages", "advs": "advantages", "adv": "advantages", "return": "returns", "value": "values", "old_values": "values", "vpreds": "values_new", "vpred": "values_new", "new_values": "values_new",
	"reward": "scores", "rewards": "scores or token_rewards", "score": "scores", "token_level_scores": "scores", "token_level_rewards": "token_rewards", "per_token_kl": "kl", "kld": "kl", "kls": "kl",
	"completion_ids": "response_ids", "responses": "response_ids", "entropies": "entropy", "per_token_loss": "token_loss", "rollout_is_weights": "is_weights", "importance_sampling_ratio": "is_weights",
	"policy_loss": "pg_loss", "actor_loss": "pg_loss", "vf_loss": "value_loss", "critic_loss": "value_loss", "group_ids": "group_id", "uid": "group_id", "index": "group_id",
	"b_logprobs": "logp_old", "b_values": "values", "b_returns": "returns", "b_advantages": "advantages", "mb_advantages": "advantages", "newvalue": "values_new", "next_value": "next_values",
	"next_done": "dones", "v_loss": "value_loss", // CleanRL
	"grad_logp": "dlogp", "dlogprobs": "dlogp", "grad_logprobs": "dlogp",
}

// meant returns the name that is read and that an unread one seems to stand for, "" if none is near. read holds the names, and
// synonyms those that stand for one of them elsewhere.
func meant(name string, read []string, synonyms map[string]string) string {
	plain := func(s string) string {
		return strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(strings.ToLower(s))
	}
	of := plain(name)
	for _, r := range read {
		if plain(r) == of {
			return r
		}
	}
	for word, r := range synonyms {
		if plain(word) == of {
			return r
		}
	}
	near := check.Nearest(name, read)
	if near == "" || len(name) > 64 {
		return ""
	}
	if d := words.Distance(name, near); d == 1 && len(name) > 3 || d == 2 && len(name) > 6 {
		return near
	}
	return ""
}

// input collects what is wrong with the files of a run as such.
type input struct {
	lost, names, mixed, profile []string // a line each
	steps                       int      // with something lost
	same                        sameRun
}

const maxInputLines = 8 // of one kind

func addLine(list *[]string, line string) {
	if len(*list) < maxInputLines && !slices.Contains(*list, line) {
		*list = append(*list, line)
	}
}

// look takes down what is wrong with the files of a step.
func (in *input) look(n *StepNotes, m *dump.Meta) {
	in.same.look(n, m)
	if len(n.Missing) > 0 {
		in.steps++
		for _, line := range n.Missing {
			addLine(&in.lost, line)
		}
	}
	tensors := dump.TensorNames()
	var keys []string
	for _, k := range dump.MetadataKeys {
		keys = append(keys, k[0])
	}
	for _, u := range n.Unread {
		if u.Key {
			if m := meant(u.Name, keys, nil); m != "" {
				addLine(&in.names, fmt.Sprintf("the key %.64q of the metadata is not read; did you mean %s?", u.Name, m))
			}
			continue
		}
		prefix, _, _ := strings.Cut(u.Name, "/")
		m := meant(prefix, tensors, otherWords)
		if m == "" || n.has(m) || m == "response_mask" { // without its mask no dump is read
			continue
		}
		addLine(&in.names, fmt.Sprintf("the tensor %.64q is not read; did you mean %s?", u.Name, m))
	}
}

// results are the findings about the files, whatever checks are selected; a check that was asked for by name says so where it found
// nothing.
func (in *input) results(sel check.Selection) []check.Result {
	var results []check.Result
	for _, c := range []struct {
		id    string
		lines []string
		what  string // if more than one
	}{{inputComplete, in.lost, "files are missing"}, {inputNames, in.names, "names are not read"}, {inputOneRun, slices.Concat(in.mixed, in.same.lines()), "files contradict each other"}, {inputProfile, in.profile, "the profile"}} {
		if ignored := (check.Selection{Ignore: sel.Ignore}); !ignored.Takes(c.id) || len(c.lines) == 0 && !sel.Demands(c.id) {
			continue
		}
		r := check.Result{Check: c.id, Verdict: check.Pass, Formal: true, Demanded: sel.Demands(c.id)}
		if len(c.lines) > 0 {
			r.Verdict, r.Reason, r.Details = check.Undetermined, c.lines[0], c.lines[1:]
			if n := len(c.lines) - 1; n > 0 {
				r.Reason += fmt.Sprintf("; and %d more (-v)", n)
			}
			if c.id == inputComplete && in.steps > 1 {
				r.Subject = steps(in.steps, "step")
			}
			r.Fix = inputInfos[slices.IndexFunc(inputInfos, func(i check.Info) bool { return i.Name == c.id })].Fix
		}
		results = append(results, r)
	}
	return results
}
