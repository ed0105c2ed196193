package diff

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// trained is two steps of a run of 16 rows in float32: log-probs, rewards, advantages, losses and gradients, in so many micro-batches.
type trained struct {
	rows, cols, micros int
	local              bool    // every micro-batch divides by its own tokens
	factor             float64 // of the gradient
	dropout            float64 // of the log-probs of the second pass
	order              []int   // of the rows
	wider              int     // columns of padding behind the responses
	from               int     // the step from which the random numbers are others
	weights            int     // the step from which the weights are others
	noise              float64 // of the forward pass
	bias               float64 // of all log-probs
	prompt             float64 // id of the prompts
	steps              []int
}

func (s trained) run() run {
	if s.factor == 0 {
		s.factor = 1
	}
	if s.order == nil {
		for r := range s.rows {
			s.order = append(s.order, r)
		}
	}
	var out run
	for _, step := range s.steps {
		seed := uint64(step)
		if s.from > 0 && step >= s.from {
			seed += 100
		}
		r := rand.New(rand.NewPCG(seed, 1))
		noise := rand.New(rand.NewPCG(seed, 2))
		if s.dropout > 0 || s.noise > 0 {
			noise = rand.New(rand.NewPCG(seed, 3))
		}
		cols := s.cols + s.wider
		n := s.rows * cols
		ids, lp, dlogp, adv, mask := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, s.rows), make([]bool, n)
		length := make([]int, s.rows)
		type row struct{ ids, lp []float64 }
		rows := make([]row, s.rows)
		total := 0
		for i := range rows {
			length[i] = 2 + r.IntN(s.cols-1)
			total += length[i]
			for t := range length[i] {
				id := float64(r.IntN(50))
				if t == 0 {
					id = float64(i) // the first token is drawn alike
				}
				p := -1.5 - 1.4*math.Sin(3*id+float64(5*t+i)) // of the same weights after the same tokens
				if s.weights > 0 && step >= s.weights {
					p += 0.01 * math.Sin(float64(7*t+i))
				}
				p += (s.dropout+s.noise)*noise.NormFloat64()*-math.Expm1(p) + s.bias*(1+0.1*noise.NormFloat64())*-math.Expm1(p)
				rows[i].ids, rows[i].lp = append(rows[i].ids, id), append(rows[i].lp, float64(float32(min(p, 0))))
			}
			adv[i] = float64(float32(r.NormFloat64()))
		}
		b := newBatch(step, s.rows, cols)
		b.Meta.ComputeDType = "float32"
		per := s.rows / s.micros
		b.Files = nil
		for k := range s.micros {
			b.Files = append(b.Files, dump.FileInfo{Name: "f", Step: step, MicroBatch: k, Lo: k * per, Hi: (k + 1) * per, Cols: cols, PromptCols: -1})
		}
		perRow := make([]float64, s.rows)
		loss := make([]float64, s.micros)
		tokens := make([]int, s.micros)
		for at, from := range s.order {
			tokens[at/per] += length[from]
		}
		prompts := make([]float64, s.rows)
		for at, from := range s.order {
			b.Origin[at] = dump.Origin{File: at / per, Row: at % per}
			prompts[at] = 7
			perRow[at] = adv[from]
			denominator := float64(total)
			if s.local {
				denominator = float64(s.micros * tokens[at/per])
			}
			for t := range length[from] {
				c := at*cols + t
				mask[c] = true
				ids[c], lp[c] = rows[from].ids[t], rows[from].lp[t]
				dlogp[c] = float64(float32(-adv[from] / denominator * s.factor))
				loss[at/per] += dlogp[c]
			}
		}
		b.Mask = mask
		b.token("response_ids", ids)
		b.token("logp_old", lp)
		b.token("logp_new", slices.Clone(lp))
		b.token("dlogp", dlogp)
		b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerRow, Width: 1, Shape: []int{s.rows}, Type: format.F32, Data: perRow}
		b.Tensors["prompt_len"] = &dump.Tensor{Name: "prompt_len", Layout: dump.PerRow, Width: 1, Shape: []int{s.rows}, Type: format.I32, Data: prompts}
		b.Tensors["input_ids"] = &dump.Tensor{Name: "input_ids", Layout: dump.PerRow, Width: 7, Shape: []int{s.rows, 7}, Type: format.I32, Data: slices.Repeat([]float64{1 + s.prompt}, 7*s.rows)}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Type: format.F32, Data: loss}
		out = append(out, b.Batch)
	}
	return out
}

// relate judges a relation over two runs and returns the verdict, the cause and the reason.
func relate(t *testing.T, relation string, a, b Source) (check.Verdict, string, string) {
	rel := Relation{}
	if relation != "" {
		var err error
		rel, err = ParseRelation(relation)
		require.NoError(t, err)
	}
	r, err := Runs(t.Context(), a, b, Options{Relation: rel})
	require.NoError(t, err)
	require.NotEmpty(t, r.Results)
	return r.Results[0].Verdict, cause(r), r.Results[0].Reason
}

// Every relation is silent where it holds, up to rounding, and names what breaks it.
func TestRelations(t *testing.T) {
	base := trained{rows: 16, cols: 12, micros: 1, steps: []int{1, 2, 3, 4}}
	with := func(change func(*trained)) run {
		s := base
		change(&s)
		return s.run()
	}
	same := func(*trained) {}
	for _, c := range []struct {
		relation string
		change   func(*trained)
		verdict  check.Verdict
		want     string
	}{
		{"repeat", same, check.Pass, ""},
		{"repeat", func(s *trained) { s.noise = 1e-7 }, check.Pass, ""},
		{"repeat", func(s *trained) { s.dropout = 0.05 }, check.Fail, dropoutOn},
		{"repeat", func(s *trained) { s.bias = 5e-7 }, check.Fail, oneSided},
		{"repeat", func(s *trained) { s.from = 1 }, check.Fail, notRepeated},
		{"partition", func(s *trained) { s.micros = 2 }, check.Pass, ""},
		{"partition", func(s *trained) { s.micros = 4; s.noise = 1e-7 }, check.Pass, ""},
		{"partition", func(s *trained) { s.micros = 2; s.local = true }, check.Fail, meanOfMeans},
		{"partition", func(s *trained) { s.micros = 8; s.local = true }, check.Fail, meanOfMeans},
		{"partition", func(s *trained) { s.micros = 2; s.factor = 2 }, check.Fail, notDivided},
		{"partition", func(s *trained) { s.micros = 4; s.factor = 0.25 }, check.Fail, dividedTwice},
		{"partition", func(s *trained) { s.micros = 2; s.dropout = 0.05 }, check.Fail, batchSeen},
		{"padding", func(s *trained) { s.wider = 5 }, check.Pass, ""},
		{"padding", func(s *trained) { s.wider = 5; s.dropout = 0.05 }, check.Fail, paddingSeen},
		{"permute", func(s *trained) { s.order = rand.New(rand.NewPCG(1, 1)).Perm(16) }, check.Pass, ""},
		{"permute", func(s *trained) { s.order = rand.New(rand.NewPCG(1, 1)).Perm(16); s.factor = 1.5 }, check.Fail, "ADV-ROWS-OF-OTHERS"},
		{"resume", same, check.Pass, ""},
		{"resume", func(s *trained) { s.steps = []int{3, 4} }, check.Pass, ""},
		{"resume", func(s *trained) { s.from = 3 }, check.Fail, rngLost},
		{"resume", func(s *trained) { s.from = 3; s.steps = []int{3, 4} }, check.Fail, rngLost},
		{"resume", func(s *trained) { s.weights = 3; s.steps = []int{3, 4} }, check.Fail, weightsLost},
		{"resume", func(s *trained) { s.weights = 4; s.steps = []int{3, 4} }, check.Fail, momentsLost},
		{"resume", func(s *trained) { s.prompt = 3; s.from = 3; s.steps = []int{3, 4} }, check.Fail, dataLost},
		{"toggle=kl.beta", func(s *trained) { s.factor = 1.01 }, check.Pass, ""},
		{"toggle=kl.beta", same, check.Fail, ignored},
		{"toggle=kl.beta", func(s *trained) { s.noise = 1e-7 }, check.Fail, ignored},
		{"", same, check.Pass, ""},
		{"", func(s *trained) { s.factor = 2 }, check.Fail, idRuns},
	} {
		verdict, got, reason := relate(t, c.relation, with(same), with(c.change))
		require.Equal(t, []any{c.verdict, c.want}, []any{verdict, got}, "%s: %s", c.relation, reason)
	}
}

// Runs that cannot be compared are undetermined, and say why.
func TestRelationsHostile(t *testing.T) {
	base := trained{rows: 16, cols: 12, micros: 1, steps: []int{1, 2}}
	a := base.run()
	other := base
	other.from = 1
	for _, c := range []struct {
		name, relation string
		b              func() run
		verdict        check.Verdict
		words          string
	}{
		{"other steps", "repeat", func() run { s := base; s.steps = []int{8, 9}; return s.run() }, check.Undetermined, "no step in common"},
		{"other rows", "partition", other.run, check.Undetermined, "other rows"},
		{"fewer rows", "partition", func() run { s := base; s.rows = 8; return s.run() }, check.Undetermined, "16 rows against 8"},
		{"fewer rows", "repeat", func() run { s := base; s.rows = 8; return s.run() }, check.Fail, "16 rows against 8"},
		{"no ids", "permute", func() run {
			r := base.run()
			for i := range r {
				r[i] = r[i].Without("response_ids", "input_ids")
			}
			return r
		}, check.Undetermined, "cannot be paired"},
		{"nothing in common", "repeat", func() run {
			r := base.run()
			for i := range r {
				r[i] = r[i].Without(r[i].Names()...)
			}
			return r
		}, check.Undetermined, "no tensor in common"},
		{"NaN", "repeat", func() run {
			r := base.run()
			r[0].Tensors["logp_new"].Data[0] = math.NaN()
			return r
		}, check.Fail, "logp_new of step 1"},
		{"infinite", "partition", func() run {
			r := base.run()
			r[1].Tensors["dlogp"].Data[0] = math.Inf(1)
			return r
		}, check.Fail, "dlogp of step 2"},
		{"another layout", "repeat", func() run {
			r := base.run()
			r[0].Tensors["advantages"] = r[0].Tensors["logp_new"]
			return r
		}, check.Fail, "another layout"},
	} {
		verdict, _, reason := relate(t, c.relation, a, c.b())
		require.Equal(t, c.verdict, verdict, "%s: %s", c.name, reason)
		require.Contains(t, reason, c.words, c.name)
	}
	// One that lacks a tensor is compared in the others, and says so.
	r, err := Runs(t.Context(), a, run{a[0].Without("dlogp"), a[1].Without("dlogp")}, Options{Relation: Relation{Name: "repeat"}})
	require.NoError(t, err)
	require.Contains(t, r.Lines[0], "dlogp")
	for _, s := range []string{"", "repeats", "toggle", "toggle=", "repeat=x"} {
		_, err := ParseRelation(s)
		require.Error(t, err, s)
	}
	_, err = Runs(t.Context(), a, a, Options{Tensor: "loss"})
	require.Error(t, err)
}

// Two runs with other log-probs of the same ids: where they part, and why.
func TestRunsNameTheCause(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	c := drawnLogits(r, 24, 40)
	p := c.plant(r, plant{make: func(r *rand.Rand, z []float64) (a, b, s []float64) {
		return logSoftmax(noisy(r, z, 0.02), 1), logSoftmax(noisy(r, z, 0.02), 0.7), logSoftmax(z, 1)
	}}, true)
	a, b := p.With("logp_new", p.Token("logp_old")).Without("logp_gen", "logp_old"), p.With("logp_new", p.Token("logp_gen")).Without("logp_gen", "logp_old")
	rep, err := Runs(t.Context(), run{a}, run{b}, Options{})
	require.NoError(t, err)
	require.Equal(t, "LOGP-TEMPERATURE", cause(rep))
	require.Equal(t, idRuns, rep.Brief.Findings[1].Name)
	require.Equal(t, check.ExitFail, check.Exit(rep.Results, check.Policy{}))
}
