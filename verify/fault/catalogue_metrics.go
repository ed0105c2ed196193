package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// roughly widens the bounds of p to those of a float32 computation whose steps are not known.
func roughly(p *stage.Prediction) *stage.Prediction {
	if p == nil {
		return nil
	}
	for i, w := range p.Want {
		p.Bound[i] += 0x1p-19 * (math.Abs(w) + 1e-3)
	}
	return p
}

var clipMetrics = []string{"scalars/clip_frac", "scalars/clip_fraction", "scalars/actor_pg_clipfrac", "scalars/ppo_clip_ratio", "scalars/clip_ratio_low_mean", "scalars/clip_ratio_high_mean", "scalars/clip_ratio_region_mean",
	"scalars/clip_ratio_low_min", "scalars/clip_ratio_high_max"}

var metricFaults = slices.Concat(rowMetrics(), klMetrics(), []*Hypothesis{
	{ID: "METRIC-SIGN", Checks: []string{"scalars"}, Predict: opposite},
	{ID: "METRIC-CLIP-SIGN-BLIND", Checks: clipMetrics,
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return combined(1, under(constant("advantages", -1), c, ch), 1, under(constant("advantages", 1), c, ch))
		}},
	{ID: "METRIC-CLIP-SIGN", Checks: clipMetrics,
		Input: negated("advantages")},
	{ID: "METRIC-PPO-KL-RATIO", Checks: []string{"scalars/ppo_kl", "scalars/approx_kl", "scalars/actor_ppo_kl"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
			if lp == nil || old == nil {
				return nil
			}
			// The metric is a mean of old − new: with new = old + ρ it is that of −ρ.
			x := eachOf(len(lp), func(i int) float64 { return old[i] + math.Exp(lp[i]-old[i]) })
			p := under(perToken("logp_new", x), c, ch)
			if p == nil {
				return nil
			}
			for i, w := range p.Want {
				p.Bound[i] += 0x1p-20 * math.Abs(w)
			}
			return p
		}},
	{ID: "METRIC-LAST-MICRO", Checks: []string{"scalars"}, Predict: lastMicro},
	{ID: "METRIC-LAST-MICRO", Checks: []string{"scalars"},
		Title: "the logged number is that of the last micro-batch, not divided by their number",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			n := c.FactOr("gradient_accumulation_steps", float64(c.B.Meta.MicroBatches))
			p := lastMicro(c, ch)
			if p == nil || !(n > 1) {
				return nil
			}
			return combined(n, p, 0, p)
		}},
	{ID: "METRIC-INTEGER-MASK", Checks: rolloutMetrics, Predict: integerMask},
	{ID: "METRIC-RANK-MEANS", Checks: []string{"scalars/kl", "scalars/entropy"}, Predict: meanOfRanks},
	{ID: "METRIC-KL-K1", Checks: []string{"scalars/kl", "scalars/objective_kl", "scalars/actor_kl_loss"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			ref, lp := c.B.Token("logp_ref"), c.B.Token("logp_new")
			if v := c.Set.Value("kl.place"); v.Kind() == convention.Enum && v.Text() != "loss" && v.Text() != "none" {
				lp = c.B.Token("logp_old")
			}
			if ref == nil || lp == nil {
				return nil
			}
			d := eachOf(len(lp), func(i int) float64 { return lp[i] - ref[i] })
			return roughly(under(perToken("kl", d), c, ch))
		}},
	{ID: "METRIC-ENTROPY-SENTINEL", Checks: []string{"scalars/entropy", "scalars/actor_entropy"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			lp := c.B.Token("logp_new")
			if lp == nil {
				return nil
			}
			x := make([]float64, len(lp))
			for i := range x {
				if x[i] = -1; c.B.Mask[i] {
					x[i] = -lp[i]
				}
			}
			every := slices.Repeat([]bool{true}, len(lp))
			return roughly(under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				b, set, ok := perToken("entropy", x)(c)
				return b.WithMask(every), set, ok
			}, c, ch))
		}},
	{ID: "METRIC-ENTROPY-INPUTS", Checks: []string{"scalars/entropy"},
		Input: ofInputs},
	{ID: "METRIC-APPROX-KL-PADS", Checks: []string{"scalars/ppo_kl", "scalars/approx_kl", "scalars/actor_ppo_kl"},
		Input: mask(everyCell)},
	{ID: "METRIC-POLICY-IS-TOTAL", Checks: []string{"scalars/pg_loss"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			t := c.B.Tensors["loss"]
			if t == nil || c.B.Tensors["pg_loss"] == nil {
				return nil, nil, false
			}
			return c.B.With("pg_loss", t.Data), c.Set, true
		}},
	{ID: "METRIC-MAX-AVERAGED", Checks: []string{"scalars/ratio_max", "scalars/clip_ratio_high_max"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if ch.ID == "scalars/clip_ratio_high_max" {
				return meanOfRows(c, ch)
			}
			d := c.Of(c.B, c.Set)
			meta := *c.B
			meta.Meta.ScalarsScope = "micro_batch"
			d.B = &meta
			p := ch.Predict(d)
			if p == nil || !d.OK() || len(p.Want) < 2 {
				return nil
			}
			var sum, err float64
			for i := range p.Want {
				sum += p.Want[i] / float64(len(p.Want))
				err = max(err, p.Bound[i])
			}
			for i := range p.Want {
				p.Want[i], p.Bound[i] = sum, err+0x1p-20*math.Abs(sum)
			}
			return p
		}},
	{ID: "METRIC-LOCAL-OVER-GLOBAL", Checks: []string{"scalars/completions_clipped_ratio"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != len(c.B.Files) || len(p.Want) < 2 {
				return nil
			}
			for f, file := range c.B.Files {
				rows := make([]int, 0, file.Hi-file.Lo)
				for r := file.Lo; r < file.Hi; r++ {
					rows = append(rows, r)
				}
				d := c.Of(c.B.Select(rows), c.Set)
				local := ch.Predict(d)
				if local == nil || !d.OK() || len(local.Want) != len(p.Want) {
					return nil
				}
				share := float64(len(rows)) / float64(c.B.Rows)
				p.Want[f], p.Bound[f] = local.Want[f]*share, local.Bound[f]*share+0x1p-20
			}
			if c.B.Meta.ScalarsScope == "optimizer_step" { // what the first file logs is repeated
				for f := range p.Want {
					p.Want[f], p.Bound[f] = p.Want[0], p.Bound[0]
				}
			}
			return p
		}},
	{ID: "METRIC-DUPLICATED-ROWS", Checks: []string{"scalars/reward"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			score := c.B.Row("scores")
			p := under(sameInput, c, ch)
			if p == nil || len(score) == 0 {
				return nil
			}
			x := append(slices.Clone(score), score[:(len(score)+1)/2]...)
			mean := total(x) / float64(len(x))
			for i := range p.Want {
				p.Want[i] = mean
			}
			return roughly(p)
		}},
	{ID: "METRIC-REWARD-UNWEIGHTED", Checks: []string{"scalars/reward", "scalars/reward_std"},
		Input: summedRewards(func(c *stage.Case, n int) []float64 { return slices.Repeat([]float64{1}, n) })},
	{ID: "METRIC-REWARD-WEIGHTED", Checks: []string{"scalars/reward", "scalars/reward_std"},
		Input: summedRewards(func(c *stage.Case, _ int) []float64 { return c.FactList("reward_weights") })},
})

// summedRewards returns the input whose scores are sums of the rewards of n functions by these weights, of those that gave one.
func summedRewards(weights func(c *stage.Case, n int) []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		t := c.B.Tensors["rewards_per_func"]
		if t == nil || c.B.Row("scores") == nil {
			return nil, nil, false
		}
		w, sums := weights(c, t.Width), make([]float64, c.B.Rows)
		if len(w) != t.Width {
			return nil, nil, false
		}
		for i, x := range t.Data {
			if !math.IsNaN(x) {
				sums[i/t.Width] += float64(x * w[i%t.Width])
			}
		}
		return c.B.With("scores", sums), c.Set, true
	}
}

// lastMicro returns for the step what ch says of its last file.
func lastMicro(c *stage.Case, ch *stage.Check) *stage.Prediction {
	n := len(c.B.Files)
	if n < 2 {
		return nil
	}
	last := c.B.Files[n-1]
	rows := make([]int, 0, last.Hi-last.Lo)
	for r := last.Lo; r < last.Hi; r++ {
		rows = append(rows, r)
	}
	b := c.B.Select(rows)
	b.Files = b.Files[n-1:]
	b.Origin = slices.Clone(b.Origin)
	for i := range b.Origin {
		b.Origin[i].File = 0
	}
	for name, t := range b.Tensors {
		if t.Layout == dump.PerFile {
			u := *t
			u.Data = t.Data[n-1:]
			b.Tensors[name] = &u
		}
	}
	d := c.Of(b, c.Set)
	p := ch.Predict(d)
	if p == nil || !d.OK() || len(p.Want) != 1 {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale}
	for range n {
		q.Want, q.Bound = append(q.Want, p.Want[0]), append(q.Bound, p.Bound[0])
	}
	return q
}

// ofInputs returns the input in which a cell counts where the model read a token at the position that predicts it: what comes of the
// attention mask beside numbers of logits that are not shifted. It is nil where the grid lacks a position that was read.
func ofInputs(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b := c.B
	t := b.Tensors["attention_mask"]
	if t == nil || t.Width < 1 || len(t.Data) != b.Rows*t.Width {
		return nil, nil, false
	}
	m := make([]bool, len(b.Mask))
	for _, file := range b.Files {
		for r := file.Lo; r < file.Hi; r++ {
			for at, read := range t.Data[r*t.Width : (r+1)*t.Width] {
				cell := at + 1 - file.PromptCols
				switch {
				case read == 0:
				case file.PromptCols < 0 || cell < 0 || cell >= b.Cols:
					return nil, nil, false
				default:
					m[r*b.Cols+cell] = true
				}
			}
		}
	}
	return b.WithMask(m), c.Set, !slices.Equal(m, b.Mask)
}

// rolloutMetrics are the logged largest and smallest cells of tensors of a rollout.
var rolloutMetrics = []string{"scalars/critic_advantages_max", "scalars/critic_advantages_min", "scalars/critic_returns_max", "scalars/critic_returns_min",
	"scalars/critic_values_max", "scalars/critic_values_min"}

// integerMask returns what ch says of rows 0 and 1 with all their columns, which a mask of integers gathers when it is an index.
func integerMask(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if c.B.Rows < 3 || count(c.B.Mask) == float64(len(c.B.Mask)) {
		return nil
	}
	whole := make([]bool, len(c.B.Mask))
	for i := range 2 * c.B.Cols {
		whole[i] = true
	}
	return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B.WithMask(whole), c.Set, true }, c, ch)
}

// meanOfRanks returns for every micro-batch the plain mean over its ranks of what ch says of each rank alone: ranks with few tokens count
// as much as those with many.
func meanOfRanks(c *stage.Case, ch *stage.Check) *stage.Prediction {
	ranks := c.B.Meta.WorldSize
	if ranks < 2 || c.B.Meta.ScalarsScope != "micro_batch" || len(c.B.Missing) > 0 {
		return nil
	}
	alone := *c.B
	alone.Meta.WorldSize = 1
	alone.Files = slices.Clone(alone.Files)
	for f := range alone.Files {
		alone.Files[f].Rank = 0
	}
	d := c.Of(&alone, c.Set)
	p := ch.Predict(d)
	if p == nil || !d.OK() || len(p.Want) != len(c.B.Files) {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Judge: p.Judge, Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
	for f, file := range c.B.Files {
		n := 0
		for g, other := range c.B.Files {
			if other.Step == file.Step && other.MicroBatch == file.MicroBatch {
				n++
				q.Want[f] += p.Want[g] / float64(ranks)
				q.Bound[f] += (p.Bound[g] + 4*c.Unit*math.Abs(p.Want[g])) / float64(ranks)
			}
		}
		if n != ranks {
			return nil
		}
	}
	return q
}

// meanOfRows averages over the rows of the files what ch would say of each row alone, and over the files where the numbers are
// those of the step.
func meanOfRows(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(c.B.Files) {
		return nil
	}
	q := &stage.Prediction{Scale: p.Scale, Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
	for f, file := range c.B.Files {
		n := float64(file.Hi - file.Lo)
		for r := file.Lo; r < file.Hi; r++ {
			d := c.Of(c.B.Select([]int{r}), c.Set)
			row := ch.Predict(d)
			if row == nil || !d.OK() || len(row.Want) <= f {
				return nil
			}
			if x := row.Want[f]; !math.IsNaN(x) { // a row without tokens has none
				q.Want[f] += x / n
				q.Bound[f] += row.Bound[f]/n + 0x1p-20*math.Abs(x)/n
			}
		}
	}
	if c.B.Meta.ScalarsScope == "optimizer_step" {
		var mean, err float64
		for f := range q.Want {
			mean += q.Want[f] / float64(len(q.Want))
			err += q.Bound[f] / float64(len(q.Want))
		}
		for f := range q.Want {
			q.Want[f], q.Bound[f] = mean, err
		}
	}
	return q
}

// updateMetrics are logged means of log π_old − log π_new, or of an estimate made of it.
var updateMetrics = []string{"scalars/ppo_kl", "scalars/approx_kl", "scalars/actor_ppo_kl"}

// klMetrics are other estimates than the declared one of how far an update has gone.
func klMetrics() []*Hypothesis {
	var list []*Hypothesis
	for _, f := range []struct {
		title string
		of    func(d float64) float64 // d = logp_new − logp_old
	}{
		{"½(log ρ)²", func(d float64) float64 { return d * d / 2 }},
		{"ρ − 1 − log ρ", func(d float64) float64 { return math.Expm1(d) - d }},
		{"|log ρ|", math.Abs},
		{"ρ − 1 + log ρ, with the sign of the log-ratio exchanged", func(d float64) float64 { return math.Expm1(d) + d }},
		{"−log ρ", func(d float64) float64 { return -d }},
		{"log ρ", func(d float64) float64 { return d }},
		{"1/ρ − 1 + log ρ, with the ratio inverted", func(d float64) float64 { return math.Expm1(-d) + d }},
	} {
		for _, padded := range []bool{false, true} {
			title := "the logged number is the mean of " + f.title
			if padded {
				title += ", over all cells, with 0 in those outside the mask"
			}
			list = append(list, &Hypothesis{ID: "METRIC-UPDATE-KL", Checks: updateMetrics, Title: title,
				Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return meanOfUpdate(c, ch, f.of, padded) }})
		}
	}
	return list
}

// meanOfUpdate predicts the mean of a function of d = logp_new − logp_old that is 0 at 0, of every file: over its tokens, or over its cells.
func meanOfUpdate(c *stage.Case, ch *stage.Check, of func(d float64) float64, padded bool) *stage.Prediction {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil || len(lp) != len(c.B.Mask) {
		return nil
	}
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(c.B.Files) {
		return nil
	}
	q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Got: p.Got, GotUnit: p.GotUnit, Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want))}
	for i, info := range c.B.Files {
		var sum, size, n float64
		for k := range c.B.TokensIn(info.Lo, info.Hi) {
			sum += of(lp[k] - old[k])
			size += math.Abs(lp[k]) + math.Abs(old[k])
			n++
		}
		if padded {
			n = float64((info.Hi - info.Lo) * info.Cols)
		}
		q.Want[i], q.Bound[i] = sum/max(n, 1), 8*c.Unit*size/max(n, 1)
	}
	return q
}

// rowMetrics are means over responses of their means or sums where a mean over tokens is meant.
func rowMetrics() []*Hypothesis {
	var list []*Hypothesis
	for _, m := range []struct {
		tensor string
		checks []string
	}{{"kl", []string{"scalars/kl"}}, {"entropy", []string{"scalars/entropy", "scalars/actor_entropy"}}} {
		for _, sums := range []bool{false, true} {
			h := &Hypothesis{ID: "METRIC-ROW-MEANS", Checks: m.checks}
			if sums {
				h.ID, h.Title, h.Cause = "METRIC-ROW-SUMS", "the logged number is the mean over responses of their sums", "a sum over columns, then a mean over rows"
			}
			h.Input = token(m.tensor, func(c *stage.Case, x []float64) []float64 {
				if len(x) != len(c.B.Mask) {
					return nil
				}
				y, n := slices.Clone(x), tokensOf(c.B, c.B.Mask)
				for _, f := range c.B.Files {
					var all float64
					for r := f.Lo; r < f.Hi; r++ {
						all += n[r]
					}
					for r := f.Lo; r < f.Hi; r++ {
						weight := all / float64(f.Hi-f.Lo)
						if !sums {
							weight /= max(n[r], 1)
						}
						for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
							y[i] *= weight
						}
					}
				}
				return y
			})
			list = append(list, h)
		}
	}
	return list
}
