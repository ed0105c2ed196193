package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// ofGroups returns the input of other groups.
func ofGroups(ids []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		return c.B.With("group_id", ids), c.Set, true
	}
}

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
	{ID: "ADV-GROUPS-INTERLEAVED", Checks: []string{"advantage"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			stride := int(float64(c.B.Rows) / max(1, c.FactOr("num_generations", float64(c.B.Rows))))
			if stride < 2 { // one stride is one group
				return nil, nil, false
			}
			return regrouped(func(_ *stage.Case, r int) float64 { return float64(r % stride) })(c)
		}},
	{ID: "ADV-GROUPS-BY-POSITION", Checks: []string{"advantage"},
		Input: regrouped(func(c *stage.Case, r int) float64 {
			return math.Floor(float64(r) / max(1, c.FactOr("num_generations", 1)))
		})},
	{ID: "ADV-GROUPS-PER-FILE", Checks: []string{"advantage"},
		Input: regrouped(func(c *stage.Case, r int) float64 {
			return c.B.Row("group_id")[r] + 0.5*float64(c.B.File(r))/float64(len(c.B.Files))
		})},
	{ID: "ADV-ONE-GROUP", Checks: []string{"advantage"},
		Input: regrouped(func(*stage.Case, int) float64 { return 0 })},
	{ID: "ADV-ROWS-ROLLED", Checks: []string{"advantage"},
		Input: rolled("scores", 1)},
	{ID: "ADV-ROWS-ROLLED-BACK", Checks: []string{"advantage"},
		Input: rolled("scores", -1)},
	{ID: "GAE-TOOL-TOKENS", Checks: []string{"gae"},
		Predict: recursion(mask(withHoles))},
	{ID: "GAE-R-MINUS-V", Checks: []string{"gae/advantage"},
		Predict: recursion(number("gae.gamma", func(float64) float64 { return 0 }))},
	{ID: "GAE-GAMMA-LAMBDA-EXCHANGED", Checks: []string{"gae"},
		Predict: recursion(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			g, l := c.Set.Value("gae.gamma"), c.Set.Value("gae.lambda")
			if g.Kind() != convention.Number || l.Kind() != convention.Number || g == l {
				return nil, nil, false
			}
			return c.B, c.Set.With("gae.gamma", l, "hypothesis").With("gae.lambda", g, "hypothesis"), true
		})},
	{ID: "GAE-VALUES-NEW", Checks: []string{"gae/advantage"},
		Title:   "the advantages are the returns less the values of the update, not of the rollout",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return returnsLessNewValues(true, c, ch) }},
	{ID: "GAE-VALUES-NEW", Checks: []string{"gae/advantage"},
		Title:   "the advantages are the returns less the values of the update, not of the rollout, and nothing whitens them",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return returnsLessNewValues(false, c, ch) }},
	{ID: "GAE-VALUES-NEW", Checks: []string{"gae"},
		Predict: recursion(instead("values", "values_new"))},
	{ID: "GAE-VALUES-EARLY", Checks: []string{"gae"},
		Predict: recursion(shifted("values", 1))},
	{ID: "GAE-DONES", Checks: []string{"gae"},
		Predict: recursion(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if c.B.Tensors["dones"] == nil {
				return nil, nil, false
			}
			return c.B.Without("dones"), c.Set, true
		})},
	{ID: "GAE-REWARD-SHIFT", Checks: []string{"gae"},
		Predict: recursion(shifted("token_rewards", 1))},
	{ID: "RETURNS-ARE-ADVANTAGES", Checks: []string{"gae/returns"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := ch.Predict(c.Of(c.B, c.Set))
			v := c.B.Token("values")
			if p == nil || len(v) != len(p.Want) {
				return nil
			}
			q := *p
			q.Want = eachOf(len(v), func(i int) float64 { return p.Want[i] - v[i] })
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
		return mapped(x, func(v float64) float64 { return -v })
	})
}

var lossFaults = []*Hypothesis{
	{ID: "CLIP-MIN-MAX", Checks: policyOutputs,
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if k := c.Set.Value("loss.kind"); k.Kind() == convention.Enum && !slices.Contains([]string{"ppo", "gspo", "luspo", "clip_cov"}, k.Text()) {
				return nil // there is no smaller of two
			}
			return policyTerm(-1, negated("advantages"))(c, ch)
		}},
	{ID: "CLIP-SIDES-SWAPPED", Checks: policyOutputs,
		Input: swapClip},
	{ID: "CLIP-HIGH-AS-LOW", Checks: policyOutputs,
		Input: oneClip("clip.low", "clip.high")},
	{ID: "CLIP-LOW-AS-HIGH", Checks: policyOutputs,
		Input: oneClip("clip.high", "clip.low")},
	{ID: "CLIP-ABSENT", Checks: policyOutputs,
		Input: both(option("clip.low", "none"), option("clip.high", "none"))},
	{ID: "ADV-SIGN", Checks: policyOutputs,
		Predict: policyTerm(1, negated("advantages"))},
	{ID: "ADV-SIGN", Checks: []string{"advantage/group", "advantage/return", "gae/advantage"},
		Title:   "the advantages have the wrong sign: the baseline minus the reward",
		Predict: opposite},
	{ID: "POLICY-SIGN", Checks: policyOutputs, Predict: policyTerm(-1, sameInput)},
	{ID: "LOSS-SIGN", Checks: []string{"preference", "distill"}, Predict: opposite},
	{ID: "DPO-NO-REFERENCE", Checks: pairOutputs, Input: noReference},
	{ID: "DPO-NO-REFERENCE", Checks: pairOutputs,
		Title: "the preference loss leaves the reference out, and has the wrong sign",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(noReference, c, ch)
			return combined(-1, p, 0, p)
		}},
	{ID: "DPO-NLL-LENGTH-TWICE", Checks: []string{"preference/dpo_loss"}, Input: lengthTwice},
	{ID: "DPO-REFERENCE-IS-POLICY", Checks: pairOutputs,
		Input: both(instead("ref_chosen", "logp_chosen"), instead("ref_rejected", "logp_rejected"))},
	{ID: "JSD-MIXTURE-SWAPPED", Checks: []string{"distill"},
		Predict: func(c *stage.Case, _ *stage.Check) *stage.Prediction {
			beta, t := c.Num("distill.beta"), c.NumOr("distill.temperature", 1)
			if !c.OK() || !(beta > 0 && beta < 1) || beta == .5 {
				return nil
			}
			return c.Distill(t, beta, func(p, q []float64, vocab int) []float64 { return mixtureSwapped(p, q, beta, t) })
		}},
	{ID: "JSD-HARD-LABELS", Checks: []string{"distill"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return combined(.5, under(sameInput, c, ch), .5, under(sameInput, c, stage.Find("preference/sft_loss")))
		}},
	{ID: "TOP-ENTROPY-PER-RANK", Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if v := c.Set.Value("loss.top_entropy"); v.Kind() != convention.Number || c.B.Meta.WorldSize < 2 || c.B.Meta.MicroBatches > 1 {
				return nil, nil, false
			}
			b := *c.B
			b.Files = slices.Clone(b.Files)
			for f := range b.Files { // each file is a micro-batch of its own
				b.Files[f].MicroBatch = f
			}
			return &b, c.Set, true
		}},
	{ID: "POLICY-MISSING", Checks: policyOutputs,
		Input: noPolicy},
	{ID: "ADV-ROWS-OF-OTHERS", Checks: policyOutputs,
		Input: rolled("advantages", 1)},
	{ID: "VALUE-CLIP-ABSENT", Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Input: option("value.clip", "none")},
	{ID: "VALUE-AGAINST-ADVANTAGES", Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Input: instead("returns", "advantages")},
	{ID: "VALUE-COEF-MISSING", Checks: []string{"aggregate/loss", "gradient/dvalues"},
		Input: number("value.coef", func(float64) float64 { return 1 })},
	{ID: "VALUE-SIGN", Checks: []string{"aggregate/loss", "gradient/dvalues"},
		Input: number("value.coef", func(x float64) float64 { return -x })},
	{ID: "VALUE-MISSING", Checks: []string{"aggregate/loss", "gradient/dvalues"},
		Input: number("value.coef", func(float64) float64 { return 0 })},
	{ID: "ENTROPY-SIGN", Checks: []string{"aggregate/loss", "aggregate/entropy_loss"},
		Input: number("entropy.coef", func(x float64) float64 { return -x })},
	{ID: "ENTROPY-MISSING", Checks: []string{"aggregate/loss"},
		Input: number("entropy.coef", func(float64) float64 { return 0 })},
}

func sameInput(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B, c.Set, true }

var aggregates = []string{"aggregate", "gradient"}

// noGradient predicts a gradient of 0 where may says that it may be the whole of a bug.
func noGradient(may func(*stage.Case, *stage.Check) bool) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		if !may(c, ch) {
			return nil
		}
		return multiple(0, c, ch)
	}
}

// anyOf reports whether a tensor has a number that is not 0; absent stands for one that was not dumped.
func anyOf(c *stage.Case, name string, absent bool) bool {
	t := c.B.Tensors[name]
	if t == nil {
		return absent
	}
	return slices.ContainsFunc(t.Data, func(x float64) bool { return x != 0 })
}

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
				all = altered(p)
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

// overWidth predicts a loss of one kind of aggregation whose sums of rows are divided by the columns of their file and by the rows.
func overWidth(kind string) func(*stage.Case, *stage.Check) *stage.Prediction {
	return perFile(func(c *stage.Case, f int) *convention.Set {
		if v := c.Set.Value("agg.kind"); v.Kind() != convention.Enum || v.Text() != kind {
			return nil
		}
		return c.Set.With("agg.kind", parsed("agg.kind", "seq_sum_const"), "hypothesis").
			With("agg.div_batch", parsed("agg.div_batch", "true"), "hypothesis").
			WithFact("loss_scale_factor", float64(c.B.Files[f].Cols))
	})
}

var aggregateFaults = []*Hypothesis{
	{ID: "AGG-PAD-DENOMINATOR", Checks: aggregates,
		Predict: overWidth("seq_mean_token_mean")},
	{ID: "AGG-PAD-DENOMINATOR", Checks: aggregates,
		Title:   "the token mean divides by all cells, masked ones included",
		Predict: overWidth("token")},
	{ID: "AGG-PAD-DENOMINATOR", Checks: aggregates,
		Title: "the sum is divided by the padded width of the batch, not by the declared constant",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			declared := c.FactOr("loss_denominator", 0)
			if c.EnumOr("agg.denominator", "micro") != "constant" || !(declared > 0) {
				return nil
			}
			by := eachOf(c.B.Rows, func(r int) float64 { return declared / float64(width(c.B, r)) })
			return weighted(c.B, c, ch, by)
		}},
	{ID: "AGG-LOCAL-DENOMINATOR", Checks: aggregates,
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			v := c.Set.Value("agg.denominator")
			if v.Kind() != convention.Enum || v.Text() == "micro" {
				return nil, nil, false
			}
			return c.B, c.Set.With("agg.denominator", parsed("agg.denominator", "micro"), "hypothesis").
				With("agg.div_ga", parsed("agg.div_ga", "true"), "hypothesis"), true
		}},
	{ID: "AGG-ZERO", Checks: []string{"aggregate"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return multiple(0, c, ch)
		}},
	{ID: "AGG-GA-MISSING", Checks: aggregates, Configured: []string{"agg.div_ga"},
		Input: option("agg.div_ga", "false")},
	{ID: "AGG-GA-TWICE", Checks: aggregates,
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ga := c.FactOr("gradient_accumulation_steps", float64(c.B.Meta.MicroBatches))
			if !(ga > 1) || ga == c.FactOr(stage.GenerationSteps, 0) { // a count of all steps of the generation batch is as much
				return nil
			}
			return multiple(1/ga, c, ch)
		}},
	{ID: "FACTOR-WORLD-SIZE", Checks: append([]string{"preference/sft_loss"}, aggregates...), // a loss over the tokens of all ranks is multiplied by them, since gradients are averaged
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			world := float64(c.B.Meta.WorldSize)
			_, counted := c.Set.Fact("num_items_in_batch")
			if c.EnumOr("agg.denominator", "") != "global" && !counted || !(world > 1) {
				return nil
			}
			return multiple(1/world, c, ch)
		}},
	{ID: "AGG-NUM-ITEMS-GENERATION", Checks: aggregates,
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ga, generation := c.FactOr("gradient_accumulation_steps", math.NaN()), c.FactOr("steps_per_generation", math.NaN())
			if _, ok := c.Set.Fact("num_items_in_batch"); !ok || !(ga/generation > 0) || ga == generation {
				return nil
			}
			return multiple(ga/generation, c, ch)
		}},
	{ID: "AGG-NUM-ITEMS-GENERATION", Checks: aggregates, // where the losses of the run say how many steps were counted
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			steps := c.FactOr(stage.GenerationSteps, 0)
			if !(steps > 1) {
				return nil
			}
			return multiple(1/steps, c, ch)
		}},
	{ID: "AGG-EMPTY-ROWS", Checks: aggregates,
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
	{ID: "RATIO-DETACHED", Checks: []string{"gradient/dlogp"},
		Input: both(noPolicy, func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if v := c.Set.Value("kl.grad"); v.Kind() == convention.Enum && v.Text() == "is_corrected" {
				return c.B, c.Set.With("kl.grad", parsed("kl.grad", "naive"), "hypothesis"), true
			}
			return c.B, c.Set, true
		})},
	{ID: "POLICY-GRADIENT-LOST", Checks: []string{"gradient/dlogp"},
		Input: noPolicy},
	{ID: "KL-DETACHED", Checks: []string{"gradient/dlogp"},
		Input: noKL},
	{ID: "GRADIENT-ZERO", Checks: []string{"gradient"}, Predict: noGradient(func(c *stage.Case, ch *stage.Check) bool { return ch.Output != "dvalues" || !anyOf(c, "dlogp", true) })},
	{ID: "VALUE-DETACHED", Checks: []string{"gradient/dvalues"}, Predict: noGradient(func(c *stage.Case, _ *stage.Check) bool { return anyOf(c, "dlogp", true) })},
	{ID: "CLIP-GRADIENT-LEAK", Checks: []string{"gradient/dlogp"},
		Input: both(option("clip.low", "none"), option("clip.high", "none"))},
	{ID: "CISPO-NOT-DETACHED", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			kind := c.Set.Value("loss.kind")
			lp, old, adv := c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages")
			if kind.Kind() != convention.Enum || kind.Text() != "cispo" || lp == nil || old == nil || adv.X == nil {
				return nil
			}
			through := make([]float64, len(lp)) // −A·ρ·logp has this slope besides, where no bound holds ρ
			for i := range through {
				if rho := math.Exp(lp[i] - old[i]); rho < upperBound(c) && rho > 1-numberOr(c, "clip.low", math.Inf(1)) {
					through[i] = adv.X[i] * lp[i]
				}
			}
			return combined(1, combined(1, policyOnly(sameInput, c, ch), 1, policyOnly(perToken("advantages", through), c, ch)), 1, klOnly(c, ch))
		}},
	{ID: "K1-LOSS", Checks: []string{"gradient/dlogp"},
		Input: both(option("kl.kind", "k1"), option("kl.grad", "naive"))},
}

// noReference takes the reference out of a preference loss.
var noReference = both(constant("ref_chosen", 0), constant("ref_rejected", 0))

// lengthTwice returns the input in which the cross-entropy beside a preference loss is −Σ logp_chosen/tokens/pairs, where log-probs are means
// over tokens already and it is −Σ logp_chosen/pairs. It is nil where the cross-entropy is another, as of log-probs that are sums.
func lengthTwice(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	lp, tokens, nll := b.Row("logp_chosen"), b.Row("chosen_tokens"), b.PerFile("nll_loss")
	if len(lp) != b.Rows || len(tokens) != b.Rows || nll == nil {
		return nil, nil, false
	}
	twice := make([]float64, len(b.Files))
	for f, file := range b.Files {
		n := float64(file.Hi - file.Lo)
		var mean float64
		for r := file.Lo; r < file.Hi; r++ {
			if !(tokens[r] > 0) {
				return nil, nil, false
			}
			mean -= lp[r] / n
			twice[f] -= lp[r] / tokens[r] / n
		}
		if !(math.Abs(mean-nll[f]) <= 1e-3*math.Abs(mean)) {
			return nil, nil, false
		}
	}
	return b.With("nll_loss", twice), c.Set, true
}

// mixtureSwapped is the divergence of one token with β and 1 − β exchanged in the mixture alone:
// β·KL(q‖m) + (1 − β)·KL(p‖m), m = β·p + (1 − β)·q.
func mixtureSwapped(student, teacher []float64, beta, t float64) []float64 {
	ids := make([]int, len(student))
	var p, q [][]float64
	for j := range ids {
		p, q = append(p, student), append(q, teacher)
		ids[j] = j
	}
	lp := rl.LogProbs(nil, slices.Concat(p...), ids, len(ids), rl.LogProbOptions{Temperature: t})
	lq := rl.LogProbs(nil, slices.Concat(q...), ids, len(ids), rl.LogProbOptions{Temperature: t})
	var d float64
	for j := range lp {
		x, y := math.Exp(lp[j]), math.Exp(lq[j])
		if m := math.Log(float64(beta*x) + float64((1-beta)*y)); x > 0 && y > 0 {
			d += float64(beta*y*(lq[j]-m)) + float64((1-beta)*x*(lp[j]-m))
		}
	}
	return []float64{d}
}

// opposite predicts the negative of the right numbers.
func opposite(c *stage.Case, ch *stage.Check) *stage.Prediction { return multiple(-1, c, ch) }

// multiple predicts a multiple of the right numbers.
func multiple(k float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p := under(sameInput, c, ch)
	return combined(k, p, 0, p)
}

// returnsLessNewValues predicts R − V' of the values V' of the update, whitened as declared or not at all.
func returnsLessNewValues(whitened bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	ret, v := c.B.Token("returns"), c.B.Token("values_new")
	if len(ret) != len(c.B.Mask) || len(v) != len(ret) || stage.Judge(stage.Find("gae/returns"), c.B, c.Set).Verdict != check.Pass {
		return nil // what is wrong in the returns is in the advantages, too
	}
	x, bound, most := make([]float64, len(ret)), make([]float64, len(ret)), 0.0
	for i, in := range c.B.Mask {
		if in {
			x[i], bound[i] = ret[i]-v[i], 4*c.Unit*(math.Abs(ret[i])+math.Abs(v[i]))
			most = max(most, bound[i])
		}
	}
	if scope := c.Set.Value("whiten.scope"); !whitened {
		if scope.Kind() != convention.Enum || scope.Text() == "none" {
			return nil
		}
		return &stage.Prediction{Want: x, Bound: bound, Judge: c.B.Mask, Scale: 1}
	}
	return withErrors(under(withoutFuture(x), c, ch), x, most, c)
}
