package fault

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// regrouped returns the input in which group ids are made from the position of a row; nothing shows where the partition stays
// the same.
func regrouped(id func(c *stage.Case, row int) float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		old := c.B.Row("group_id")
		if old == nil {
			return nil, nil, false
		}
		ids := make([]float64, c.B.Rows)
		pair := map[[2]float64]bool{}
		groups, was := map[float64]bool{}, map[float64]bool{}
		for r := range ids {
			ids[r] = id(c, r)
			pair[[2]float64{ids[r], old[r]}] = true
			groups[ids[r]], was[old[r]] = true, true
		}
		return c.B.With("group_id", ids), c.Set, !(len(pair) == len(groups) && len(pair) == len(was))
	}
}

var advantageFaults = []*Hypothesis{
	{ID: "ADV-GROUPS-INTERLEAVED", Rows: []string{"P179", "P110", "P111"}, Checks: []string{"advantage"},
		Title: "groups are taken with a stride: rows of different prompts share a baseline",
		Cause: "reshape(G, −1) in place of reshape(−1, G), or repeat against repeat_interleave",
		Fix:   "group by the id of the prompt, not by position",
		Input: regrouped(func(c *stage.Case, r int) float64 {
			g := c.FactOr("num_generations", 0)
			if g <= 0 {
				return 0
			}
			return float64(r % max(1, c.B.Rows/int(g)))
		})},
	{ID: "ADV-GROUPS-BY-POSITION", Rows: []string{"P110", "P179"}, Checks: []string{"advantage"},
		Title: "groups are blocks of neighbouring rows although the rows were shuffled",
		Cause: "view(−1, G) after a permutation, or of a micro-batch that cuts groups",
		Fix:   "group by the id of the prompt, not by position",
		Input: regrouped(func(c *stage.Case, r int) float64 {
			return math.Floor(float64(r) / max(1, c.FactOr("num_generations", 1)))
		})},
	{ID: "ADV-GROUPS-PER-FILE", Rows: []string{"P179", "P164"}, Checks: []string{"advantage"},
		Title: "groups are cut by micro-batches or ranks: mean and deviation are those of a part",
		Cause: "statistics are taken before the rewards are gathered",
		Fix:   "gather the rewards of whole groups first",
		Input: regrouped(func(c *stage.Case, r int) float64 {
			return c.B.Row("group_id")[r] + 0.5*float64(c.B.File(r))/float64(len(c.B.Files))
		})},
	{ID: "ADV-ONE-GROUP", Rows: []string{"P021", "P180"}, Checks: []string{"advantage"},
		Title: "mean and deviation are those of the whole batch",
		Cause: "the group is not looked at",
		Fix:   "take both within the group of a prompt",
		Input: regrouped(func(*stage.Case, int) float64 { return 0 })},
	{ID: "ADV-ROWS-ROLLED", Rows: []string{"P023", "P077"}, Checks: []string{"advantage"},
		Title: "advantages belong to other rows",
		Cause: "one tensor was permuted and another was not",
		Fix:   "permute all tensors of a batch together",
		Input: rolled("scores", 1)},
	{ID: "ADV-ROWS-ROLLED-BACK", Rows: []string{"P023"}, Checks: []string{"advantage"},
		Title: "advantages belong to other rows",
		Cause: "one tensor was permuted and another was not",
		Fix:   "permute all tensors of a batch together",
		Input: rolled("scores", -1)},
	{ID: "GAE-TOOL-TOKENS", Rows: []string{"P169", "P083", "P206"}, Checks: []string{"gae"},
		Title: "the recursion runs over tool tokens as if they were the policy's",
		Cause: "no mask in the loop, or a mask without holes",
		Fix:   "leave masked tokens out of the recursion (gae.hole)",
		Predict: recursion(mask(func(row []bool) {
			if first, last := firstLast(row); first >= 0 {
				for i := first; i <= last; i++ {
					row[i] = true
				}
			}
		}))},
	{ID: "GAE-R-MINUS-V", Rows: []string{"P171"}, Checks: []string{"gae/advantage"},
		Title:   "the advantage is r − V, without anything from the future",
		Cause:   "the per-token reward stands in for the return",
		Fix:     "A = Σ (γλ)ᵏ δ",
		Predict: recursion(number("gae.gamma", func(float64) float64 { return 0 }))},
	{ID: "GAE-GAMMA-LAMBDA-EXCHANGED", Rows: []string{"C3"}, Checks: []string{"gae"},
		Title: "γ and λ are exchanged",
		Cause: "the order of arguments",
		Fix:   "pass them by name",
		Predict: recursion(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			g, l := c.Set.Value("gae.gamma"), c.Set.Value("gae.lambda")
			if g.Kind() != convention.Number || l.Kind() != convention.Number || g == l {
				return nil, nil, false
			}
			return c.B, c.Set.With("gae.gamma", l, "hypothesis").With("gae.lambda", g, "hypothesis"), true
		})},
	{ID: "GAE-VALUES-NEW", Rows: []string{"P162"}, Checks: []string{"gae"},
		Title:   "advantages use the values of the critic being trained, not those of the rollout",
		Cause:   "values are recomputed after the update",
		Fix:     "keep the values of the rollout",
		Predict: recursion(instead("values", "values_new"))},
	{ID: "GAE-VALUES-EARLY", Rows: []string{"P059", "P190"}, Checks: []string{"gae"},
		Title:   "values are cut out one position early",
		Cause:   "the value slice is not that of the tokens",
		Fix:     "values of [p−1 : p+r−1], as for the logits",
		Predict: recursion(shifted("values", 1))},
	{ID: "GAE-REWARD-SHIFT", Rows: []string{"P170", "P190"}, Checks: []string{"gae"},
		Title:   "the rewards are one position late",
		Cause:   "an index of one past the last token",
		Fix:     "the reward of a token stands in its own column",
		Predict: recursion(shifted("token_rewards", 1))},
	{ID: "RETURNS-ARE-ADVANTAGES", Rows: []string{"P171"}, Checks: []string{"gae/returns"},
		Title: "the returns lack V",
		Cause: "A is stored where A + V belongs",
		Fix:   "R = A + V, before whitening",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := ch.Predict(c.Of(c.B, c.Set))
			v := c.B.Token("values")
			if p == nil || len(v) != len(p.Want) {
				return nil
			}
			q := *p
			q.Want = make([]float64, len(v))
			for i := range v {
				q.Want[i] = p.Want[i] - v[i]
			}
			return &q
		}},
}

var policyOutputs = []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"}

func swapClip(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	lo, hi := c.Set.Value("clip.low"), c.Set.Value("clip.high")
	if lo.Kind() != convention.Number || hi.Kind() != convention.Number || lo == hi {
		return nil, nil, false
	}
	return c.B, c.Set.With("clip.low", hi, "hypothesis").With("clip.high", lo, "hypothesis"), true
}

func oneClip(from, to string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		v := c.Set.Value(from)
		if v == c.Set.Value(to) || !v.Known() {
			return nil, nil, false
		}
		return c.B, c.Set.With(to, v, "hypothesis"), true
	}
}

func negated(name string) input {
	return token(name, func(_ *stage.Case, x []float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = -x[i]
		}
		return y
	})
}

var lossFaults = []*Hypothesis{
	{ID: "CLIP-MIN-MAX", Rows: []string{"P016", "C3"}, Checks: policyOutputs,
		Title:   "the smaller of the two losses is taken",
		Cause:   "min of losses where the objective has min, so that clipping works the wrong way",
		Fix:     "loss = max(−Aρ, −A·clip(ρ)), which is −min(Aρ, A·clip(ρ))",
		Predict: policyTerm(-1, negated("advantages"))},
	{ID: "CLIP-SIDES-SWAPPED", Rows: []string{"P016"}, Checks: policyOutputs,
		Title: "clip.low and clip.high are exchanged", Cause: "the order of arguments", Fix: "bounds are 1 − clip.low and 1 + clip.high",
		Input: swapClip},
	{ID: "CLIP-HIGH-AS-LOW", Rows: []string{"P210"}, Checks: policyOutputs,
		Title: "clip.high is ignored, clip.low stands for both sides", Cause: "the option is not handed down", Fix: "bounds are 1 − clip.low and 1 + clip.high",
		Input: oneClip("clip.low", "clip.high")},
	{ID: "CLIP-LOW-AS-HIGH", Rows: []string{"P210"}, Checks: policyOutputs,
		Title: "clip.low is ignored, clip.high stands for both sides", Cause: "the option is not handed down", Fix: "bounds are 1 − clip.low and 1 + clip.high",
		Input: oneClip("clip.high", "clip.low")},
	{ID: "CLIP-ABSENT", Rows: []string{"P191", "C13"}, Checks: policyOutputs,
		Title: "nothing is clipped", Cause: "the clipped term is computed and not used", Fix: "take the larger of the two losses",
		Input: both(option("clip.low", "none"), option("clip.high", "none"))},
	{ID: "ADV-SIGN", Rows: []string{"P181"}, Checks: policyOutputs,
		Title: "the policy term has the wrong sign: good answers become less likely", Cause: "a missing minus", Fix: "loss = −A·ρ",
		Predict: policyTerm(1, negated("advantages"))},
	{ID: "POLICY-SIGN", Rows: []string{"P181"}, Checks: policyOutputs,
		Title: "the policy term is the negative of what it should be", Cause: "a maximised objective is minimised", Fix: "loss = −objective",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return combined(-1, policyOnly(sameInput, c, ch), 1, klOnly(c, ch))
		}},
	{ID: "POLICY-MISSING", Rows: []string{"P182", "P196"}, Checks: policyOutputs,
		Title: "the policy term is missing", Cause: "advantages are 0, or detached with the ratio", Fix: "multiply the advantage by the ratio, not by a constant",
		Input: noPolicy},
	{ID: "ADV-ROWS-OF-OTHERS", Rows: []string{"P023", "P077"}, Checks: policyOutputs,
		Title: "the loss uses the advantages of other rows", Cause: "one tensor was permuted and another was not", Fix: "permute all tensors of a batch together",
		Input: rolled("advantages", 1)},
	{ID: "VALUE-CLIP-ABSENT", Rows: []string{"C3"}, Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Title: "the value loss is not clipped", Cause: "the clipped term is not used", Fix: "max of both squares, or declare value.clip=none",
		Input: option("value.clip", "none")},
	{ID: "VALUE-AGAINST-ADVANTAGES", Rows: []string{"P171"}, Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Title: "the critic is fitted to the advantages", Cause: "A stands where R belongs", Fix: "fit it to the returns",
		Input: instead("returns", "advantages")},
	{ID: "VALUE-COEF-MISSING", Rows: []string{"P075"}, Checks: []string{"aggregate/loss", "gradient/dvalues"},
		Title: "the value loss is not multiplied by its coefficient", Cause: "the coefficient is left out", Fix: "loss + value.coef·value_loss",
		Input: number("value.coef", func(float64) float64 { return 1 })},
	{ID: "VALUE-MISSING", Rows: []string{"P195"}, Checks: []string{"aggregate/loss", "gradient/dvalues"},
		Title: "the value loss is not part of the loss", Cause: "it is computed and not added", Fix: "loss + value.coef·value_loss",
		Input: number("value.coef", func(float64) float64 { return 0 })},
	{ID: "ENTROPY-SIGN", Rows: []string{"P193", "C21"}, Checks: []string{"aggregate/loss", "aggregate/entropy_loss"},
		Title: "the entropy bonus has the wrong sign", Cause: "entropy is added to the loss, which makes it small", Fix: "loss − entropy.coef·entropy",
		Input: number("entropy.coef", func(x float64) float64 { return -x })},
	{ID: "ENTROPY-MISSING", Rows: []string{"P107"}, Checks: []string{"aggregate/loss"},
		Title: "the entropy bonus is missing", Cause: "the option is not handed down", Fix: "loss − entropy.coef·entropy",
		Input: number("entropy.coef", func(float64) float64 { return 0 })},
}

func sameInput(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B, c.Set, true }

var aggregates = []string{"aggregate", "gradient"}

// perFile predicts every file of the batch by itself under a changed input, and puts the predictions together. It gives nil
// where one file alone does not determine its denominators.
func perFile(change func(c *stage.Case, file int) *convention.Set) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		all := &stage.Prediction{}
		for f, info := range c.B.Files {
			set := change(c, f)
			if set == nil {
				return nil
			}
			p := ch.Predict(c.Of(c.B, set))
			if p == nil {
				return nil
			}
			if all.Want == nil {
				q := *p
				q.Want, q.Bound = append([]float64(nil), p.Want...), append([]float64(nil), p.Bound...)
				q.Alt = nil
				all = &q
			}
			lo, hi := f, f+1
			if len(p.Want) != len(c.B.Files) {
				w := len(p.Want) / max(1, c.B.Rows)
				lo, hi = info.Lo*w, info.Hi*w
			}
			copy(all.Want[lo:hi], p.Want[lo:hi])
			copy(all.Bound[lo:hi], p.Bound[lo:hi])
		}
		return all
	}
}

func parsed(name, text string) convention.Value {
	v, err := convention.Parse(name, text)
	if err != nil {
		panic("fault: " + err.Error())
	}
	return v
}

var aggregateFaults = []*Hypothesis{
	{ID: "AGG-PAD-DENOMINATOR", Rows: []string{"P014", "P047", "P208"}, Checks: aggregates,
		Title: "the mean of a row divides by the padded width, not by the row's length",
		Cause: "(loss·mask).mean(−1) in place of (loss·mask).sum(−1)/mask.sum(−1)",
		Fix:   "divide by the number of response tokens of the row",
		Predict: perFile(func(c *stage.Case, f int) *convention.Set {
			if v := c.Set.Value("agg.kind"); v.Kind() != convention.Enum || v.Text() != "seq_mean_token_mean" {
				return nil
			}
			return c.Set.With("agg.kind", parsed("agg.kind", "seq_sum_const"), "hypothesis").
				With("agg.div_batch", parsed("agg.div_batch", "true"), "hypothesis").
				WithFact("max_completion_length", float64(c.B.Files[f].Cols))
		})},
	{ID: "AGG-COUNTS-MASKED", Rows: []string{"P030", "P047"}, Checks: aggregates,
		Title: "the token mean divides by all cells, masked ones included",
		Cause: "the number of tokens is that of the padded tensor",
		Fix:   "divide by the sum of the mask",
		Predict: perFile(func(c *stage.Case, f int) *convention.Set {
			if v := c.Set.Value("agg.kind"); v.Kind() != convention.Enum || v.Text() != "token" {
				return nil
			}
			return c.Set.With("agg.kind", parsed("agg.kind", "seq_sum_const"), "hypothesis").
				With("agg.div_batch", parsed("agg.div_batch", "true"), "hypothesis").
				WithFact("max_completion_length", float64(c.B.Files[f].Cols))
		})},
	{ID: "AGG-LOCAL-DENOMINATOR", Rows: []string{"P014", "P080", "P137", "P164", "P165", "P166", "P167", "P096"}, Checks: aggregates,
		Title: "every micro-batch divides by its own number of tokens: a mean of means",
		Cause: "the denominator is not summed over micro-batches and ranks",
		Fix:   "divide by the number of tokens of the whole step",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			v := c.Set.Value("agg.denominator")
			if v.Kind() != convention.Enum || v.Text() == "micro" {
				return nil, nil, false
			}
			return c.B, c.Set.With("agg.denominator", parsed("agg.denominator", "micro"), "hypothesis").
				With("agg.div_ga", parsed("agg.div_ga", "true"), "hypothesis"), true
		}},
	{ID: "AGG-GA-MISSING", Rows: []string{"P012", "P002", "P067", "P209"}, Checks: aggregates,
		Title: "the loss is not divided by the accumulation steps",
		Cause: "the framework believes that the model or the loss function has done it",
		Fix:   "divide by gradient_accumulation_steps once",
		Input: option("agg.div_ga", "false")},
	{ID: "AGG-GA-TWICE", Rows: []string{"P184", "P137", "P078"}, Checks: aggregates,
		Title: "the loss is divided by the accumulation steps twice",
		Cause: "the trainer divides again what the loss function has divided",
		Fix:   "divide by gradient_accumulation_steps once",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ga := c.FactOr("gradient_accumulation_steps", float64(len(c.B.Files)))
			if !(ga > 1) {
				return nil
			}
			p := under(sameInput, c, ch)
			return combined(1/ga, p, 0, p)
		}},
	{ID: "AGG-NUM-ITEMS-GENERATION", Rows: []string{"P031"}, Checks: aggregates,
		Title: "the denominator is that of the generation batch, not of this optimiser step",
		Cause: "num_items_in_batch is not scaled by accumulation/steps_per_generation",
		Fix:   "count the tokens of the micro-batches of the step",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ga, generation := c.FactOr("gradient_accumulation_steps", math.NaN()), c.FactOr("steps_per_generation", math.NaN())
			if _, ok := c.Set.Fact("num_items_in_batch"); !ok || !(ga/generation > 0) || ga == generation {
				return nil
			}
			p := under(sameInput, c, ch)
			return combined(ga/generation, p, 0, p)
		}},
	{ID: "AGG-EMPTY-ROWS", Rows: []string{"P132"}, Checks: aggregates,
		Title: "rows without a token are counted, or left out, against the declaration",
		Cause: "0/0 is guarded in another way",
		Fix:   "agree on agg.empty_rows",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			v := c.Set.Value("agg.empty_rows")
			if v.Kind() != convention.Enum {
				return nil, nil, false
			}
			other := "counted"
			if v.Text() == other {
				other = "excluded"
			}
			return c.B, c.Set.With("agg.empty_rows", parsed("agg.empty_rows", other), "hypothesis"), true
		}},
}

var gradientFaults = []*Hypothesis{
	{ID: "RATIO-DETACHED", Rows: []string{"P182", "P196", "P130"}, Checks: []string{"gradient/dlogp"},
		Title: "the ratio is detached: the policy term has no gradient",
		Cause: "ratio.detach(), or a ratio of two detached tensors; the value of the loss is right",
		Fix:   "let the gradient flow through exp(logp_new − logp_old)",
		Input: both(noPolicy, func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if v := c.Set.Value("kl.grad"); v.Kind() == convention.Enum && v.Text() == "is_corrected" {
				return c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"), true
			}
			return c.B, c.Set, true
		})},
	{ID: "POLICY-GRADIENT-LOST", Rows: []string{"P182", "P196"}, Checks: []string{"gradient/dlogp"},
		Title: "only the KL term has a gradient",
		Cause: "the advantage is multiplied by a detached ratio",
		Fix:   "let the gradient flow through exp(logp_new − logp_old)",
		Input: noPolicy},
	{ID: "KL-DETACHED", Rows: []string{"P008", "P129"}, Checks: []string{"gradient/dlogp"},
		Title: "the KL term has no gradient",
		Cause: "it is computed under no_grad, or of detached log-probs",
		Fix:   "compute it of the log-probs being trained",
		Input: noKL},
	{ID: "GRADIENT-ZERO", Rows: []string{"P182", "P183", "P195", "P196"}, Checks: []string{"gradient"},
		Title: "the gradient is 0 everywhere",
		Cause: "the loss is detached from the log-probs, or from the values",
		Fix:   "find the .detach(), .item() or no_grad between the loss and the model",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			return combined(0, p, 0, p)
		}},
	{ID: "CLIP-GRADIENT-LEAK", Rows: []string{"P114", "P130"}, Checks: []string{"gradient/dlogp"},
		Title: "clipped tokens have a gradient",
		Cause: "the clip is applied to a detached ratio, or straight through",
		Fix:   "clamp the ratio that carries the gradient",
		Input: both(option("clip.low", "none"), option("clip.high", "none"))},
	{ID: "CISPO-NOT-DETACHED", Rows: []string{"P130"}, Checks: []string{"gradient/dlogp"},
		Title: "the weight of CISPO is not detached",
		Cause: "the gradient flows through the capped ratio too",
		Fix:   "detach the weight: −sg(min(ρ, cap))·A·logp",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			kind, high := c.Set.Value("loss.kind"), c.Set.Value("clip.high")
			lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages")
			if kind.Kind() != convention.Enum || kind.Text() != "cispo" || high.Kind() != convention.Number || lp == nil || old == nil || adv.X == nil {
				return nil
			}
			limit := 1 + high.Num()
			if v := c.Set.Value("clip.high_is_absolute"); v.Kind() == convention.Bool && v.Bool() {
				limit = high.Num()
			}
			a := make([]float64, len(lp))
			for i := range a {
				a[i] = adv.X[i]
				if math.Exp(lp[i]-old[i]) < limit {
					a[i] = adv.X[i] * (1 + lp[i])
				}
			}
			return combined(1, policyOnly(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				b := c.B.With("advantages", a)
				t := *b.Tensors["advantages"]
				t.Layout = dump.PerToken
				b.Tensors["advantages"] = &t
				return b, c.Set, true
			}, c, ch), 1, klOnly(c, ch))
		}},
	{ID: "K1-LOSS", Rows: []string{"P008", "P129"}, Checks: []string{"gradient/dlogp"},
		Title: "the KL term is k1, whose expected gradient is 0",
		Cause: "logp_new − logp_ref is added to the loss as it stands",
		Fix:   "use k2, or k3 with the score-function term (kl.grad)",
		Input: both(option("kl.kind", "k1"), option("kl.grad", "naive"))},
}
