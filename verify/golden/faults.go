package golden

import (
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"

	"plumbline/verify/check"
)

type fault = check.Fault[*Set]

// with returns a copy of s whose section name is a copy that change may change.
func (s *Set) with(name string, change func(*Section)) *Set {
	c := *s
	c.Sections = maps.Clone(s.Sections)
	section := Section{Name: name, File: name + ".json"}
	if old := s.Sections[name]; old != nil {
		section = *old
		section.Entries = slices.Clone(old.Entries)
	}
	change(&section)
	c.Sections[name] = &section
	return &c
}

// copied returns a copy of e whose maps and values may be changed, but not their data.
func (e *Entry) copied() *Entry {
	c := *e
	c.Options, c.In, c.Out = maps.Clone(e.Options), map[string]*Value{}, map[string]*Value{}
	for _, group := range []struct{ from, to map[string]*Value }{{e.In, c.In}, {e.Out, c.Out}} {
		for name, v := range group.from {
			w := *v
			group.to[name] = &w
		}
	}
	return &c
}

// entryFault changes one entry of a section, drawn among those that fit.
func entryFault(section, id, title, cause string, fits func(*Entry) bool, change func(r *rand.Rand, e *Entry)) fault {
	return fault{ID: id, Title: title, Cause: cause, Source: "house rule 1", Plant: func(r *rand.Rand, s *Set) *Set {
		return s.with(section, func(x *Section) {
			var at []int
			for i, e := range x.Entries {
				if fits(e) {
					at = append(at, i)
				}
			}
			i := at[r.IntN(len(at))]
			e := x.Entries[i].copied()
			change(r, e)
			x.Entries[i] = e
		})
	}}
}

// has returns a predicate: the entry has an output of that name with n finite numbers or more, and finite inputs.
func has(output string, n int) func(*Entry) bool {
	return func(e *Entry) bool {
		v := e.Out[output]
		if v == nil || len(v.Data) < n || e.nonFinite() {
			return false
		}
		return !slices.ContainsFunc(v.Data, func(x float64) bool { return x-x != 0 })
	}
}

// edit replaces the data of an output by a changed copy.
func (e *Entry) edit(output string, change func(x []float64)) {
	v := e.Out[output]
	v.Data = slices.Clone(v.Data)
	change(v.Data)
}

// numberFaults are the faults of the numbers of one output, in entries where all of it is compared without a leak.
func numberFaults(section, output string, fits func(*Entry) bool) []fault {
	is := func(e *Entry) bool {
		return fits(e) && has(output, 1)(e) && e.Options["dtype"] != "float32" && e.Options["dtype"] != "bfloat16"
	}
	several := func(e *Entry) bool {
		return is(e) && slices.Max(e.Out[output].Data)-slices.Min(e.Out[output].Data) > 1e-3
	}
	return []fault{
		entryFault(section, "GOLDEN-NUDGED", "one number off by 1e-9", "an edited golden, or another release", is, func(r *rand.Rand, e *Entry) {
			e.edit(output, func(x []float64) { i := r.IntN(len(x)); x[i] += 1e-9 * max(1, math.Abs(x[i])) })
		}),
		entryFault(section, "GOLDEN-NAN", "NaN in place of a number", "0/0 in the producer", is, func(r *rand.Rand, e *Entry) {
			e.edit(output, func(x []float64) { x[r.IntN(len(x))] = math.NaN() })
		}),
		entryFault(section, "GOLDEN-INF", "an infinity in place of a number", "overflow in the producer", is, func(r *rand.Rand, e *Entry) {
			e.edit(output, func(x []float64) { x[r.IntN(len(x))] = math.Inf(1) })
		}),
		entryFault(section, "GOLDEN-ROTATED", "elements one place late", "rows swapped, or an index that starts at 1", several, func(_ *rand.Rand, e *Entry) {
			e.edit(output, func(x []float64) {
				most := slices.Index(x, slices.Max(x))
				least := slices.Index(x, slices.Min(x))
				x[most], x[least] = x[least], x[most]
			})
		}),
		undetermined(entryFault(section, "GOLDEN-FUNCTION", "a function that the reference does not know", "a later release", is, func(_ *rand.Rand, e *Entry) {
			e.Function += "_v2"
		})),
		undetermined(entryFault(section, "GOLDEN-OPTION", "an option that the reference does not know", "a later release", is, func(_ *rand.Rand, e *Entry) {
			e.Options["new_option"] = true
		})),
		undetermined(entryFault(section, "GOLDEN-RAISED", "an exception where the reference has a number", "the call failed in the producer", is, func(_ *rand.Rand, e *Entry) {
			e.Out[output] = &Value{Raises: "RuntimeError", Message: "planted"}
		})),
	}
}

func undetermined(f fault) fault {
	f.Want = check.Undetermined
	return f
}

// answered turns an exception that the reference refuses with into a value.
func answered(section, function, output string) fault {
	return entryFault(section, "GOLDEN-ANSWERED", "a value where the framework raises", "the exception was caught and 0 recorded",
		func(e *Entry) bool {
			return e.Function == function && e.Out[output] != nil && e.Out[output].Raises != ""
		},
		func(_ *rand.Rand, e *Entry) { e.Out[output] = &Value{Data: []float64{0}, Raw: 0.0} })
}

// optionFault changes an option of one entry.
func optionFault(section, id, title, key string, from, to any) fault {
	return entryFault(section, id, title, "recorded under another option than it ran with",
		func(e *Entry) bool {
			if e.Options[key] != from || e.raised() || e.nonFinite() {
				return false
			}
			for _, v := range e.Out { // on equal rewards or an empty mask options make no difference
				if len(v.Data) == 0 || slices.Max(v.Data) == slices.Min(v.Data) && len(v.Data) > 1 {
					return false
				}
			}
			return true
		},
		func(_ *rand.Rand, e *Entry) { e.Options[key] = to })
}

// inputFault changes a scalar input of one entry.
func inputFault(section, id, title, key string, by float64, fits func(*Entry) bool) fault {
	return entryFault(section, id, title, "recorded with another value than it ran with",
		func(e *Entry) bool { return e.In[key] != nil && fits(e) && !e.raised() },
		func(_ *rand.Rand, e *Entry) { e.In[key].Data = []float64{e.In[key].Data[0] + by} })
}

func of(function, name string) func(*Entry) bool {
	return func(e *Entry) bool { return e.Function == function && e.Case == name }
}

func anyEntry(*Entry) bool { return true }

func named(functions ...string) func(*Entry) bool {
	return func(e *Entry) bool { return slices.Contains(functions, e.Function) }
}

// both is a and b.
func both(a, b func(*Entry) bool) func(*Entry) bool {
	return func(e *Entry) bool { return a(e) && b(e) }
}

var (
	gaeFaults = append(numberFaults("gae", "returns", func(e *Entry) bool { return e.Peer != "trl-ppo" }),
		inputFault("gae", "GAE-GAMMA", "γ off by 1e-6", "gamma", 1e-6, of("compute_gae_advantage_return", "holes")),
		inputFault("gae", "GAE-LAMBDA", "λ off by 1e-6", "lam", 1e-6, of("RemoteExperienceMaker.get_advantages_and_returns", "contiguous_dense")),
		entryFault("gae", "GAE-HOLE", "verl's numbers under OpenRLHF's name", "another rule for holes", of("compute_gae_advantage_return", "holes"), func(_ *rand.Rand, e *Entry) {
			e.Peer, e.Version, e.Function, e.Options["whiten"] = "openrlhf", releases["openrlhf"], "RemoteExperienceMaker.get_advantages_and_returns", false
		}),
		entryFault("gae", "GAE-WHITENED", "raw advantages where whitened ones are named", "whitening was replaced in the call",
			both(named("compute_gae_advantage_return"), func(e *Entry) bool { return e.Options["whiten"] == false && e.Case == "contiguous_dense" }),
			func(_ *rand.Rand, e *Entry) { e.Options["whiten"] = true }))

	maskedStatsFaults = append(numberFaults("masked_stats", "whitened", func(e *Entry) bool { return e.Case != "offset" }),
		answered("masked_stats", "masked_var", "var"),
		entryFault("masked_stats", "STATS-DDOF", "ddof 0 where 1 is named", "unbiased recorded wrong",
			func(e *Entry) bool {
				return e.Function == "masked_var" && e.Options["unbiased"] == false && e.Case == "plain"
			},
			func(_ *rand.Rand, e *Entry) { e.Options["unbiased"] = true }),
		entryFault("masked_stats", "STATS-PEER", "TRL's numbers under verl's name", "the mean without its 1e-8",
			func(e *Entry) bool {
				return e.Peer == "trl-ppo" && e.Function == "masked_mean" && e.Case == "plain" && e.Options["axis"] == nil
			},
			func(_ *rand.Rand, e *Entry) { e.Peer, e.Version = "verl", releases["verl"] }))

	groupAdvantagesFaults = append(numberFaults("group_advantages", "returns", named("compute_remax_outcome_advantage")),
		answered("group_advantages", "compute_grpo_passk_outcome_advantage", "advantages"),
		entryFault("group_advantages", "ADV-EPS", "another ε", "OpenRLHF's 1e-9 in place of verl's 1e-6",
			func(e *Entry) bool {
				return e.Function == "compute_grpo_outcome_advantage" && e.Options["norm_adv_by_std_in_grpo"] == true && e.Case == "two_groups_of_4"
			},
			func(_ *rand.Rand, e *Entry) { e.Options["epsilon"] = 1e-9 }),
		entryFault("group_advantages", "ADV-GROUPS", "rewards grouped by stride", "uid lost when the batch was made", of("compute_rloo_outcome_advantage", "interleaved_partial"), func(_ *rand.Rand, e *Entry) {
			e.In["uid"].Raw = []any{"a", "a", "a", "b", "b", "b", "c", "c", "c"}
		}),
		optionFault("group_advantages", "ADV-SCALE", "the deviation of the batch where that of the group is named", "scale_rewards", "batch", "group"))

	klFaults = append(numberFaults("kl", "reward", anyEntry),
		answered("kl", "kl_penalty", "kl"),
		entryFault("kl", "KL-KIND", "k2 where k3 is named", "another estimator",
			func(e *Entry) bool {
				return e.Function == "kl_penalty" && e.Options["kind"] == "k2" && e.Case == "ordinary"
			},
			func(_ *rand.Rand, e *Entry) { e.Options["kind"] = "k3" }),
		undetermined(entryFault("kl", "GOLDEN-KIND", "an estimator that the reference does not know", "a later release",
			named("kl_penalty"), func(_ *rand.Rand, e *Entry) { e.Options["kind"] = "k4" })),
		entryFault("kl", "KL-GRADIENT", "the gradient of k2 where the estimator's own is named", "a + lost",
			func(e *Entry) bool { return e.Options["kind"] == "k1+" && e.Case == "ordinary" },
			func(_ *rand.Rand, e *Entry) { e.Options["kind"] = "k1" }),
		entryFault("kl", "KL-FLOAT32", "off by 1e-5 where float32 allows 1e-7", "computed in bfloat16",
			func(e *Entry) bool { return e.Function == "compute_approx_kl" && e.Case == "ordinary" },
			func(_ *rand.Rand, e *Entry) { e.edit("kl", func(x []float64) { x[0] += 1e-5 }) }))

	policyLossFaults = append(numberFaults("policy_loss", "dloss_dmat", anyEntry),
		entryFault("policy_loss", "LOSS-NUDGED", "a loss off by 1e-9", "an edited golden", named("PolicyLoss", "compute_policy_loss_vanilla", "RLOOTrainer._compute_loss"),
			func(_ *rand.Rand, e *Entry) {
				e.edit("loss", func(x []float64) { x[0] += 1e-9 * max(1, math.Abs(x[0])) })
			}),
		entryFault("policy_loss", "LOSS-AGG", "mean over rows where over tokens is named", "loss_agg_mode recorded wrong",
			func(e *Entry) bool { return e.Options["loss_agg_mode"] == "token-mean" && e.Case == "contiguous" },
			func(_ *rand.Rand, e *Entry) { e.Options["loss_agg_mode"] = "seq-mean-token-mean" }),
		entryFault("policy_loss", "LOSS-CLIP", "another clip bound", "DAPO's 0.28 in place of 0.2",
			func(e *Entry) bool {
				return e.Function == "compute_policy_loss_vanilla" && e.Case == "contiguous" && e.Options["loss_agg_mode"] == "seq-mean-token-mean"
			},
			func(_ *rand.Rand, e *Entry) { e.Options["clip_ratio_high"] = 0.28 }),
		entryFault("policy_loss", "LOSS-TAU", "Liger's temperatures under TRL's name off by 1e-6", "sapo",
			func(e *Entry) bool {
				return e.Peer == "trl" && e.Options["loss_type"] == "sapo" && e.Case == "contiguous"
			},
			func(_ *rand.Rand, e *Entry) { e.edit("loss", func(x []float64) { x[0] += 1e-6 }) }),
		entryFault("policy_loss", "LOSS-FUSED", "off by 1e-4 where float32 allows less", "computed in bfloat16", named("LigerFusedLinearGRPOLoss"),
			func(_ *rand.Rand, e *Entry) { e.edit("dloss_dweight", func(x []float64) { x[0] += 1e-4 }) }),
		entryFault("policy_loss", "METRIC-CLIPFRAC", "a clip fraction of another mean", "mean over cells in place of tokens",
			both(has("pg_clipfrac", 1), func(e *Entry) bool { return e.Out["pg_clipfrac"].Data[0] > 0 }),
			func(_ *rand.Rand, e *Entry) { e.edit("pg_clipfrac", func(x []float64) { x[0] *= .9 }) }))

	valueLossFaults = append(numberFaults("value_loss", "dloss_dvpred", anyEntry),
		entryFault("value_loss", "VALUE-CLIP", "another clip range", "cliprange_value recorded wrong",
			func(e *Entry) bool { return e.Options["cliprange_value"] == 0.5 && e.Case == "plain" },
			func(_ *rand.Rand, e *Entry) { e.Options["cliprange_value"] = 0.2 }))

	logProbEntropyFaults = append(numberFaults("logprob_entropy", "logp", anyEntry),
		entryFault("logprob_entropy", "LOGP-TEMPERATURE", "log-probs without the temperature", "temperature recorded, not applied",
			func(e *Entry) bool {
				return e.Function == "log_probs_from_logits" && e.Options["temperature"] == 1.0 && e.Case == "ordinary_float64"
			},
			func(_ *rand.Rand, e *Entry) { e.Options["temperature"] = 0.7 }),
		entryFault("logprob_entropy", "LOGP-DTYPE", "float32's numbers where float64 is named", "computed in another type than recorded",
			func(e *Entry) bool { return e.Function == "logprobs_from_logits" && e.Case == "ordinary_float32" },
			func(_ *rand.Rand, e *Entry) { e.Options["dtype"] = "float64" }))

	adamWFaults = append(numberFaults("adamw", "exp_avg_sq", anyEntry),
		entryFault("adamw", "ADAMW-EPS", "ε under the root, or TensorFlow's", "another form of Adam",
			func(e *Entry) bool { return e.Case == "rl_float64" }, func(_ *rand.Rand, e *Entry) { e.Options["eps"] = 2e-5 }),
		entryFault("adamw", "ADAMW-DECAY", "no weight decay", "decay of another group of parameters",
			func(e *Entry) bool { return e.Case == "rl_float64" }, func(_ *rand.Rand, e *Entry) { e.Options["weight_decay"] = 0.0 }),
		entryFault("adamw", "ADAMW-FLOAT32", "off by 1e-5 where float32 allows 1e-7", "computed in bfloat16",
			func(e *Entry) bool { return e.Case == "default_float32" },
			func(_ *rand.Rand, e *Entry) { e.edit("params", func(x []float64) { x[len(x)-1] += 1e-5 }) }))
)

func init() {
	files := func(id, title, cause string, change func(s *Set)) fault {
		return fault{ID: id, Title: title, Cause: cause, Source: "house rule 5", Plant: func(_ *rand.Rand, s *Set) *Set {
			c := *s
			c.Files = slices.Clone(s.Files)
			change(&c)
			return &c
		}}
	}
	at := func(s *Set) int {
		return slices.IndexFunc(s.Files, func(f File) bool { return path.Base(f.Name) == "kl.json" })
	}
	ManifestCheck.Faults = []fault{
		files("FILE-CHANGED", "an entry removed from a section that the manifest lists", "goldens edited by hand", func(s *Set) {
			s.Files[at(s)].SHA256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
		}),
		files("FILE-MISSING", "a file that the manifest lists is gone", "copied in part", func(s *Set) { s.Files = slices.Delete(s.Files, at(s), at(s)+1) }),
		files("FILE-EXTRA", "a file beside the listed ones", "a section added by hand", func(s *Set) { s.Files = append(s.Files, File{Name: "more.json", SHA256: "00"}) }),
		files("FILE-LINK", "a file became a link that leads out", "unpacked from a hostile archive", func(s *Set) { s.Files[at(s)].Odd = "a link that leads out of the folder or to nothing" }),
	}
	none := files("NO-MANIFEST", "no manifest", "a folder made by hand", func(s *Set) { s.Manifest = nil })
	none.Want = check.Warn
	ManifestCheck.Faults = append(ManifestCheck.Faults, none)
	UnknownCheck.Faults = []fault{
		undetermined(fault{ID: "SECTION-NEW", Title: "a section that no check knows", Cause: "a later set", Source: "verify golden", Plant: func(_ *rand.Rand, s *Set) *Set {
			return s.with("rope", func(x *Section) {
				x.Entries = []*Entry{{ID: "rope/0000", Peer: "transformers", Version: "5.23.0", Function: "apply_rotary_pos_emb"}}
			})
		}}),
		undetermined(files("OTHER-LAYOUT", "a golden of another layout", "a later set", func(s *Set) { s.Others = []Other{{Name: "rope.json", What: "3 entries"}} })),
	}
}
