package stage

import (
	"math"
	"slices"

	"plumbline/verify/tol"
)

// batchMetrics are logged numbers of the rows that were sampled together: their rewards, lengths and engine. TRL 1.16's _generate and
// _generate_and_score_completions, verl 0.9.1's compute_data_metrics, and names that any loop may have, by every meaning that such a
// name has.
var batchMetrics = []metric{
	{name: "completions/mean_terminated_length", framework: "trl", title: "mean length of completions that ended", formula: "mean of Σ mask over the rows with an EOS, 0 if there is none", generation: true, pooled: true, of: endedLengths(mean)},
	{name: "completions/min_terminated_length", framework: "trl", title: "length of the shortest completion that ended", formula: "smallest Σ mask of a row with an EOS, 0 if there is none", generation: true, pooled: true, of: endedLengths(smallest)},
	{name: "completions/max_terminated_length", framework: "trl", title: "length of the longest completion that ended", formula: "largest Σ mask of a row with an EOS, 0 if there is none", generation: true, pooled: true, of: endedLengths(largest)},
	{name: "reward_std", framework: "trl", title: "standard deviation of the rewards", formula: "std of scores over the generation batch, ddof 1; in older releases the mean of the groups' std", generation: true, pooled: true, of: scoreSpread(1), among: spreadOfGroups},
	{name: "frac_reward_zero_std", framework: "trl", title: "share of completions whose group has equal rewards", formula: "mean over rows of std ≤ 1e-8, the std that adv.scale divides by", generation: true, pooled: true, of: equalGroups},
	{name: "sampling/sampling_logp_difference/mean", framework: "trl", title: "mean difference of engine and trainer", formula: "mean over the mask of |logp_old − logp_gen|", generation: true, pooled: true, of: engineGap(mean)},
	{name: "sampling/sampling_logp_difference/max", framework: "trl", title: "largest difference of engine and trainer", formula: "largest |logp_old − logp_gen| in the mask", generation: true, pooled: true, of: engineGap(largest)},

	{name: "critic/score/mean", framework: "verl", title: "mean score", formula: "mean of scores over the rows with tokens", rollout: true, pooled: true, of: scoresOf(mean)},
	{name: "critic/score/max", framework: "verl", title: "largest score", formula: "largest score of the rows with tokens", rollout: true, pooled: true, of: scoresOf(largest)},
	{name: "critic/score/min", framework: "verl", title: "smallest score", formula: "smallest score of the rows with tokens", rollout: true, pooled: true, of: scoresOf(smallest)},
	{name: "response_length/mean", framework: "verl", title: "mean length of responses", formula: "mean over rows of the attended tokens of the response", rollout: true, pooled: true, of: whole(lengths(mean))},
	{name: "response_length/max", framework: "verl", title: "length of the longest response", formula: "largest number of attended tokens of a response", rollout: true, pooled: true, of: whole(lengths(largest))},
	{name: "response_length/min", framework: "verl", title: "length of the shortest response", formula: "smallest number of attended tokens of a response", rollout: true, pooled: true, of: whole(lengths(smallest))},
	{name: "prompt_length/mean", framework: "verl", title: "mean length of prompts", formula: "mean over rows of prompt_len", rollout: true, pooled: true, of: perRow("prompt_len", mean)},
	{name: "prompt_length/max", framework: "verl", title: "length of the longest prompt", formula: "largest prompt_len", rollout: true, pooled: true, of: perRow("prompt_len", largest)},
	{name: "prompt_length/min", framework: "verl", title: "length of the shortest prompt", formula: "smallest prompt_len", rollout: true, pooled: true, of: perRow("prompt_len", smallest)},
	{name: "critic/vpred_mean", framework: "verl", title: "mean of the new values", formula: "mean over the mask of values_new", of: maskedMean("values_new")},

	{name: "rewards/mean", framework: ownLoop, also: []alias{{"", "reward_mean"}, {"", "reward/mean"}, {"", "mean_reward"}, {"", "score_mean"}}, title: "mean reward", formula: "mean of scores, or of Σ token_rewards, over the rows", rollout: true, of: scoresOf(mean), among: otherScores(mean)},
	{name: "rewards/max", framework: ownLoop, also: []alias{{"", "reward_max"}, {"", "reward/max"}, {"", "max_reward"}}, title: "largest reward", formula: "largest score, or Σ token_rewards, of a row", rollout: true, over: largest, of: scoresOf(largest), among: otherScores(largest)},
	{name: "rewards/min", framework: ownLoop, also: []alias{{"", "reward_min"}, {"", "reward/min"}, {"", "min_reward"}}, title: "smallest reward", formula: "smallest score, or Σ token_rewards, of a row", rollout: true, over: smallest, of: scoresOf(smallest), among: otherScores(smallest)},
	{name: "rewards/std", framework: ownLoop, also: []alias{{"", "reward_std"}, {"", "reward/std"}, {"", "std_reward"}}, title: "standard deviation of the rewards", formula: "std of scores over the rows, or the mean of the groups' std, of either ddof", rollout: true, of: scoreSpread(1), among: anySpread},
	{name: "lengths/mean", framework: ownLoop, also: []alias{{"", "response_length_mean"}, {"", "completion_length"}, {"", "completion_length_mean"}, {"", "response_length"}, {"", "response_length/mean"}, {"", "completions/mean_length"}, {"", "mean_length"}}, title: "mean length of responses", formula: "mean over rows of Σ mask, or from the first token to the last", rollout: true, of: lengths(mean), among: spannedLengths(mean)},
	{name: "lengths/max", framework: ownLoop, also: []alias{{"", "response_length_max"}, {"", "completion_length_max"}, {"", "response_length/max"}, {"", "completions/max_length"}, {"", "max_length"}}, title: "length of the longest response", formula: "largest Σ mask of a row, or from its first token to the last", rollout: true, over: largest, of: lengths(largest), among: spannedLengths(largest)},
	{name: "lengths/min", framework: ownLoop, also: []alias{{"", "response_length_min"}, {"", "completion_length_min"}, {"", "response_length/min"}, {"", "completions/min_length"}, {"", "min_length"}}, title: "length of the shortest response", formula: "smallest Σ mask of a row, or from its first token to the last", rollout: true, over: smallest, of: lengths(smallest), among: spannedLengths(smallest)},
}

// ownLoop stands for every framework whose log has no dictionary here.
const ownLoop = "own loop"

// dictionaries are the frameworks that say themselves what the names of their logs mean.
var dictionaries = []string{"trl", "verl", "openrlhf", "open-instruct", "cleanrl"}

// folded returns how a list of numbers becomes one.
func folded(how combine, x []float64) float64 {
	switch {
	case len(x) == 0:
		return math.NaN()
	case how == smallest:
		return slices.Min(x)
	case how == largest:
		return slices.Max(x)
	}
	var sum float64
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}

// perSpan returns a metric of every range of rows, and its error.
func perSpan(rows []span, of func(s span) (x, e float64)) (x, e []float64) {
	x, e = make([]float64, len(rows)), make([]float64, len(rows))
	for f, s := range rows {
		x[f], e[f] = of(s)
	}
	return x, e
}

// foldRows returns a metric of numbers of rows, and its error: fold(n) + 2u of their magnitudes for a mean, theirs for an extreme. of gives
// the numbers of a range of rows.
func (c *Case) foldRows(rows []span, how combine, of func(r int) (x, err float64, ok bool)) (x, e []float64) {
	return perSpan(rows, func(s span) (x, e float64) {
		var list []float64
		var size, err, worst float64
		for r := s.lo; r < s.hi; r++ {
			if v, d, ok := of(r); ok {
				list = append(list, v)
				size += math.Abs(v)
				err += d
				worst = max(worst, d)
			}
		}
		n := float64(max(len(list), 1))
		x, e = folded(how, list), worst
		if how == mean {
			e = (err + (foldError(len(list), c.Unit)+2*(c.Unit+tol.U64))*size) / n
		}
		return x, e
	})
}

// tokensOf returns the number of tokens of a row in the mask, and from the first to the last of them.
func (c *Case) tokensOf(r int) (n, reach float64) {
	first := -1
	for t, m := range c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols] {
		if m {
			if first < 0 {
				first = t
			}
			n++
			reach = float64(t - first + 1)
		}
	}
	return n, reach
}

// perRow returns the mean, smallest or largest number of rows.
func perRow(name string, how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Row(name)
		if !c.OK() {
			return nil, nil
		}
		return c.foldRows(rows, how, func(r int) (float64, float64, bool) { return in.X[r], in.E(r), true })
	}
}

// scoresOf returns the mean, smallest or largest score of the rows with tokens.
func scoresOf(how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		in := c.Row("scores")
		if !c.OK() {
			return nil, nil
		}
		return c.foldRows(rows, how, func(r int) (float64, float64, bool) {
			n, _ := c.tokensOf(r)
			return in.X[r], in.E(r), n > 0
		})
	}
}

// otherScores returns what else a reward may be: that of the rows without tokens, too, or the sum of the token rewards.
func otherScores(how combine) func(*Case, []span) [][]float64 {
	return func(c *Case, rows []span) (list [][]float64) {
		x, _ := perRow("scores", how)(c, rows)
		list = append(list, x)
		if r := c.B.Token("token_rewards"); r != nil {
			y, _ := c.foldRows(rows, how, func(row int) (sum, _ float64, ok bool) {
				for i := range c.B.TokensOf(row) {
					sum += r[i]
				}
				return sum, 0, true
			})
			list = append(list, y)
		}
		return list
	}
}

// whole is a metric of lengths where no row has a hole: the mask of attention has none.
func whole(of func(*Case, []span) ([]float64, []float64)) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) ([]float64, []float64) {
		for r := range c.B.Rows {
			if n, reach := c.tokensOf(r); n != reach {
				note(&c.Absent, "the attended tokens of the responses, which response_mask is not")
				return nil, nil
			}
		}
		return of(c, rows)
	}
}

// spannedLengths returns lengths with the tokens of tools in them.
func spannedLengths(how combine) func(*Case, []span) [][]float64 {
	return func(c *Case, rows []span) [][]float64 {
		x, _ := c.foldRows(rows, how, func(r int) (float64, float64, bool) {
			_, reach := c.tokensOf(r)
			return reach, 0, true
		})
		return [][]float64{x}
	}
}

// endedLengths returns the mean, smallest or largest length of the rows with an EOS in the mask, 0 if there is none.
func endedLengths(how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		ended := c.ends()
		if v, ok := c.Set.Fact("mask_truncated_completions"); ok && v == true {
			note(&c.Absent, "the masks before truncated completions were masked")
		}
		if !c.OK() {
			return nil, nil
		}
		x, e = c.foldRows(rows, how, func(r int) (float64, float64, bool) {
			n, _ := c.tokensOf(r)
			return n, 0, ended(r)
		})
		for f := range x {
			if math.IsNaN(x[f]) {
				x[f] = 0
			}
		}
		return x, e
	}
}

// deviationOf returns the standard deviation of some scores, 0 of fewer than two, and its error. Of σ² = Σ(x − μ)²/(n − ddof), a relative error δ
// of the x − μ is one of σ, and the mean, of relative error fold(n) + 2u, moves σ by the error of μ at most.
func (c *Case) deviationOf(list []float64, ddof float64) (sigma, err float64) {
	n := float64(len(list))
	if n <= ddof || n < 2 {
		return 0, 0
	}
	mu := folded(mean, list)
	var square, size float64
	for _, x := range list {
		square += float64((x - mu) * (x - mu))
		size += math.Abs(x) / n
	}
	sigma = math.Sqrt(square / (n - ddof))
	u := c.Unit + tol.U64
	return sigma, (foldError(len(list), c.Unit)+8*u)*(sigma+2*size) + 2*(foldError(len(list), c.Unit)+2*u)*size
}

// scoreSpread returns the standard deviation of the scores of some rows.
func scoreSpread(ddof float64) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		in := c.Row("scores")
		if !c.OK() {
			return nil, nil
		}
		return perSpan(rows, func(s span) (x, e float64) {
			x, e = c.deviationOf(given(in.X[s.lo:s.hi]), ddof)
			for r := s.lo; r < s.hi; r++ {
				e += 2 * in.E(r)
			}
			return x, e
		})
	}
}

// groupSpreads returns the standard deviation of the group of every row, nil where groups are not known.
func (c *Case) groupSpreads(ddof float64) []float64 {
	score, id := c.B.Row("scores"), c.B.Row("group_id")
	if len(score) != c.B.Rows || len(id) != c.B.Rows {
		return nil
	}
	members := map[float64][]float64{}
	for r, g := range id {
		members[g] = append(members[g], score[r])
	}
	sigma := map[float64]float64{}
	for g, list := range members {
		sigma[g], _ = c.deviationOf(list, ddof)
	}
	x := make([]float64, c.B.Rows)
	for r, g := range id {
		x[r] = sigma[g]
	}
	return x
}

// spreadOfGroups returns the mean over rows of the standard deviation of their group.
func spreadOfGroups(c *Case, rows []span) [][]float64 {
	of := c.groupSpreads(1)
	if of == nil {
		return nil
	}
	x, _ := c.foldRows(rows, mean, func(r int) (float64, float64, bool) { return of[r], 0, true })
	return [][]float64{x}
}

// anySpread returns what else a standard deviation of rewards may be.
func anySpread(c *Case, rows []span) [][]float64 {
	x, _ := scoreSpread(0)(c, rows)
	list := append(spreadOfGroups(c, rows), x)
	if of := c.groupSpreads(0); of != nil {
		y, _ := c.foldRows(rows, mean, func(r int) (float64, float64, bool) { return of[r], 0, true })
		list = append(list, y)
	}
	return list
}

// equalGroups returns the share of rows whose rewards have no spread: that of the group, or under adv.scale batch_std that of all rows.
func equalGroups(c *Case, rows []span) (x, e []float64) {
	scale := c.Enum("adv.scale")
	of := c.groupSpreads(1)
	switch {
	case c.EnumOr("adv.multi", "sum_then_normalize") == "normalize_then_sum":
		note(&c.Absent, "the sum of the normalised rewards")
	case of == nil && scale != "batch_std":
		note(&c.Absent, "group_id")
	case scale == "batch_std":
		score := c.Row("scores")
		if c.OK() {
			all, _ := c.deviationOf(score.X, 1)
			of = slices.Repeat([]float64{all}, c.B.Rows)
		}
	}
	if !c.OK() || of == nil {
		return nil, nil
	}
	return c.foldRows(rows, mean, func(r int) (x, err float64, _ bool) {
		switch {
		case of[r] <= 1e-9:
			x = 1
		case of[r] <= 1e-6: // rewards that float32 hardly tells apart
			err = 1
		}
		return x, err, true
	})
}

// engineGap returns the mean or largest |logp_old − logp_gen| over the mask. Each rank takes its own.
func engineGap(how combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		old, gen := c.Token("logp_old"), c.Token("logp_gen")
		if how == mean && c.worldSize() > 1 {
			note(&c.Absent, "the means of the ranks")
		}
		if v, ok := c.Set.Fact("mask_truncated_completions"); ok && v == true {
			note(&c.Absent, "the masks before truncated completions were masked")
		}
		if old.X != nil && gen.X != nil && c.EnumOr("ratio.old", "stored") == "stopgrad_new" {
			note(&c.Absent, "the log-probs before the update")
		}
		if !c.OK() || old.X == nil || gen.X == nil {
			return nil, nil
		}
		u := c.Unit + tol.U64
		if h := half(old, gen); h > 0 {
			u += h
		}
		return perSpan(rows, func(s span) (x, e float64) {
			var list []float64
			var err, worst, size float64
			for i := s.lo * c.B.Cols; i < s.hi*c.B.Cols; i++ {
				d := math.Abs(old.X[i] - gen.X[i])
				if !c.B.Mask[i] || math.IsNaN(d) {
					continue
				}
				own := old.E(i) + gen.E(i) + u*d
				list = append(list, d)
				size += d
				err += own
				worst = max(worst, own)
			}
			if len(list) == 0 {
				return x, e
			}
			x, e = folded(how, list), worst
			if how == mean {
				e = (err + (foldError(len(list), c.Unit)+2*u)*size) / float64(len(list))
			}
			return x, e
		})
	}
}
