package stage

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// Laws of the aggregation are stated for token losses that were dumped, alone in the loss.
const tokensAlone = "kl.agg=same entropy.coef=0 "

// openReduction is what profiles do not say of a reduction that they do not have.
const openReduction = "agg.empty_rows=excluded agg.div_batch=false agg.len_eps=0 mean.empty=zero "

// losses draws token losses of rows that are not equally long, now and then with an empty row.
func (s *subject) losses() grid {
	g := s.grid(true)
	if g.Rows > 1 && s.r.IntN(4) == 0 {
		for t := range g.Cols {
			g.Mask[t] = false
		}
	}
	return g.token("token_loss", s.draw(len(g.Mask), s.r.NormFloat64)...)
}

func (s *subject) loss(g grid) *Prediction { return s.predict("aggregate/loss", g.Batch) }

// fact returns the subject under a fact of the run.
func (s *subject) fact(name string, v any) *subject {
	c := *s
	c.set = s.set.WithFact(name, v)
	return &c
}

var wrongReduction = map[string]fault{
	"agg.kind token":               {options: "agg.kind=token"},
	"agg.kind seq_mean_token_mean": {options: "agg.kind=seq_mean_token_mean agg.len_eps=0 agg.empty_rows=counted"},
	"agg.kind seq_mean_token_sum":  {options: "agg.kind=seq_mean_token_sum agg.empty_rows=counted"},
	"agg.kind token_sum":           {options: "agg.kind=token_sum"},
	"per micro-batch":              {options: "agg.denominator=micro"},
	"a mean of means":              {options: "agg.denominator=micro agg.div_ga=true"},
	"padding counted":              {options: "mask.tokens=none"},
	"the sum": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for f := range p.Want {
			p.Want[f] *= float64(b.Rows)
		}
	}},
	"a relative error": {after: func(_ *subject, b *dump.Batch, p *Prediction) {
		for f := range p.Want {
			p.Want[f] *= 1 + 1e-9*float64(b.Rows)*float64(len(b.Files)*len(b.Files))
		}
	}},
}

var aggregateLaws = []law{{
	name: "one sequence: the mean of its tokens (B)", given: tokensAlone, open: openReduction + "agg.denominator=micro", where: always,
	holds: func(s *subject) string {
		c := *s
		c.rows = 1
		g := c.losses()
		var sum, n float64
		for i, l := range g.Token("token_loss") {
			g.Mask[i] = true
			sum += l
			n++
		}
		kinds := []*subject{s, s.with("agg.kind=token"), s.with("agg.kind=seq_mean_token_mean"),
			s.with("agg.kind=seq_sum_const agg.div_batch=true").fact("loss_scale_factor", n)}
		for _, k := range kinds {
			if k.set.Value("agg.denominator").String() == "constant" {
				k = k.fact("loss_denominator", n)
			}
			p := k.loss(g)
			slack := (s.num("agg.len_eps", 0) + s.num("mean.eps", 0)) / n
			if broken := near(nil, p.Want, []float64{sum / n}, func(f int) float64 {
				return p.Bound[f] + math.Abs(p.Want[f])*slack + 2*tol.U64*math.Abs(sum/n)
			}); broken != "" {
				return broken
			}
		}
		return ""
	},
	faults: only(wrongReduction, "agg.kind token_sum", "agg.kind seq_mean_token_sum", "a relative error"),
}, {
	name: "every row twice leaves the loss (B)", given: tokensAlone, open: openReduction + "agg.denominator=micro", where: always,
	holds: func(s *subject) string {
		g := s.losses()
		var rows []int
		for r := range 2 * g.Rows {
			rows = append(rows, r%g.Rows)
		}
		p, q := s.loss(g), s.loss(rowsOf(g, rows...))
		return near(nil, q.Want, p.Want, func(f int) float64 { return p.Bound[f] + q.Bound[f] })
	},
	faults: only(wrongReduction, "agg.kind token_sum", "the sum"),
}, {
	name: "the amount of padding leaves the loss (E)", given: tokensAlone, open: openReduction, where: always,
	holds: func(s *subject) string {
		g := s.losses()
		return identical(nil, s.loss(widened(g, 1+s.r.IntN(3), s.junk)).Want, s.loss(g).Want)
	},
	faults: and(only(wrongReduction, "padding counted"), "a mean over columns", fault{after: func(_ *subject, b *dump.Batch, p *Prediction) {
		p.Want[0] /= float64(b.Cols)
	}}),
}, {
	name: "micro-batches add up to the batch (B)", given: tokensAlone, open: openReduction + "agg.denominator=global agg.denominator=constant agg.div_ga=false", where: always,
	holds: func(s *subject) string {
		s.rows = max(s.rows, 2)
		g := s.losses()
		p, q := s.loss(g), s.loss(split(g, 1+s.r.IntN(g.Rows-1), 1))
		return near(nil, []float64{q.Want[0] + q.Want[1]}, p.Want, func(int) float64 {
			return p.Bound[0] + q.Bound[0] + q.Bound[1] + tol.U64*math.Abs(p.Want[0])
		})
	},
	faults: only(wrongReduction, "per micro-batch", "a mean of means", "a relative error"),
}, {
	name: "the mean over ranks is the batch (B)", given: tokensAlone, open: openReduction + "agg.denominator=global agg.denominator=constant agg.div_ga=false", where: always,
	holds: func(s *subject) string {
		s.rows = max(s.rows, 2)
		g := s.losses()
		p, q := s.loss(g), s.loss(split(g, 1+s.r.IntN(g.Rows-1), 2))
		return near(nil, []float64{(q.Want[0] + q.Want[1]) / 2}, p.Want, func(int) float64 {
			return p.Bound[0] + q.Bound[0] + q.Bound[1] + tol.U64*math.Abs(p.Want[0])
		})
	},
	faults: and(only(wrongReduction, "per micro-batch", "a relative error"), "by rank", fault{options: "agg.denominator=rank"}),
}, {
	name: "the mean over tokens and that over rows differ (X)", given: tokensAlone + "agg.denominator=micro", open: openReduction, where: always,
	holds: func(s *subject) string {
		g := ofOneFile(newGrid(4, 1, 4)).token("token_loss", 1, 9, 9, 9, 3, 5, 2, 4) // 15/5, and (1 + 14/4)/2
		token, row := s.with("agg.kind=token").loss(g), s.with("agg.kind=seq_mean_token_mean").loss(g)
		if !(math.Abs(token.Want[0]-3) <= 1e-6) || !(math.Abs(row.Want[0]-2.25) <= 1e-6) {
			return fmt.Sprintf("%v and %v are not 3 and 2.25", token.Want[0], row.Want[0])
		}
		return ""
	},
	faults: only(wrongReduction, "agg.kind token", "agg.kind seq_mean_token_mean", "padding counted"),
}, {
	name: "NaN outside the mask leaves the loss (E)", given: tokensAlone, open: openReduction + "mean.nan_outside=ignore", where: always,
	holds: func(s *subject) string {
		g := s.losses()
		g.Mask[len(g.Mask)-1] = g.Rows == 1 && g.Cols == 1
		if g.Mask[len(g.Mask)-1] {
			return ""
		}
		if !slices.Contains(g.Mask, true) {
			g.Mask[0] = true
		}
		want := s.loss(g).Want
		dirty := replaced(g, "token_loss", changedAt(g.Token("token_loss"), func(i int) bool { return !g.Mask[i] }, func(int) float64 { return math.NaN() }))
		// What a program computed that is NaN itself decides whether it multiplies by the mask.
		dirty.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Data: []float64{math.NaN()}, Type: format.F32}
		return identical(nil, s.loss(dirty).Want, want)
	},
	faults: map[string]fault{"mean.nan_outside propagate": {options: "mean.nan_outside=propagate"}},
}}

const (
	everyCell = "mask.tokens none: every cell counts"
	micro     = "agg.denominator micro: every micro-batch is divided by its own tokens"
)

var aggregateSkips = skips{
	"one sequence: the mean of its tokens (B)": {
		"agg.kind seq_mean_token_sum: the sum": "nanogpt-grpo@1da2900 grpo-mlm@1",
	},
	"the amount of padding leaves the loss (E)":          {everyCell: "oai@2019 nplus@2023 cleanrl@020cf0e recrl@0ce4bed"},
	"the mean over tokens and that over rows differ (X)": {everyCell: "oai@2019 nplus@2023 cleanrl@020cf0e recrl@0ce4bed"},
	"micro-batches add up to the batch (B)": {
		micro: "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e tinier-ppo@d3ec1cf ppo-gsm8k@1 nanogpt-grpo@1da2900 grpo-mlm@1 recrl@0ce4bed trl-rloo@1.16",
	},
	"the mean over ranks is the batch (B)": {
		micro: "oai@2019 nplus@2023 trl-ppo@1.9 trl-ppo@1.12 cleanrl@020cf0e tinier-ppo@d3ec1cf ppo-gsm8k@1 nanogpt-grpo@1da2900 grpo-mlm@1 recrl@0ce4bed trl-rloo@1.16",
		"agg.denominator rank: every rank is divided by its own tokens": "trl-rloo@1.9 shielded@1",
	},
	"NaN outside the mask leaves the loss (E)": {
		everyCell: "oai@2019 nplus@2023 cleanrl@020cf0e recrl@0ce4bed",
		"mean.nan_outside propagate: NaN times 0 is NaN": "trl-ppo@1.9 trl-ppo@1.12 openrlhf-ppo@0.11 nemo-ppo@7ea279a trl-grpo@1.16 openrlhf-group@0.11 open-instruct@e6c3044 nemo-grpo@7ea279a",
	},
}

func TestAggregateLaws(t *testing.T) { testLaws(t, aggregateLaws, aggregateSkips) }
