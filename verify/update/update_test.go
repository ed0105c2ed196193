package update

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/cases"
	"plumbline/verify/check"
)

// Optimisers that do what they say pass, with everything declared and with nothing, with update and with weights alone, read before the
// step or behind it.
func TestHealthy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if rapid.IntRange(1, cases.Every).Draw(t, "one in") > 1 {
			return
		}
		p := healthy()
		p.kind = rapid.SampledFrom([]string{"adamw", "adamw", "adam", "adam_tf1", "sgd"}).Draw(t, "kind")
		p.lr = rapid.SampledFrom([]float64{1e-2, 1e-3, 1e-4}).Draw(t, "lr")
		betas := rapid.SampledFrom([][2]float64{{0.9, 0.999}, {0.9, 0.95}}).Draw(t, "betas")
		p.beta1, p.beta2 = betas[0], betas[1]
		p.eps = rapid.SampledFrom([]float64{1e-8, 1e-5}).Draw(t, "eps")
		p.decay = rapid.SampledFrom([]float64{0, 0.01, 0.1}).Draw(t, "decay")
		p.clip = rapid.SampledFrom([]float64{0, 1, 0.1}).Draw(t, "clip")
		p.after = rapid.Bool().Draw(t, "after")
		p.spare = rapid.Bool().Draw(t, "spare")
		if p.kind == "sgd" {
			p.decay, p.lr = 0, 0.1
		}
		if rapid.Bool().Draw(t, "warm") {
			p.schedule = func(step int) float64 { return min(1, float64(step-1)/3) }
		}
		fields := rapid.SampledFrom([]string{"all", "weights"}).Draw(t, "fields")
		r := p.run(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), rapid.IntRange(3, 8).Draw(t, "steps"), fields)
		d := declaredOf(p)
		if rapid.Bool().Draw(t, "nothing declared") {
			d = Undeclared()
		}
		for _, res := range Judge(r, d) {
			require.NotEqual(t, check.Fail, res.Verdict, "%s: %s", res.Check, res.Reason)
		}
		want := check.Pass
		if p.kind == "adam" && p.decay > 0 && p.after && fields == "weights" {
			want = check.Undetermined // the moments hold weights that are not in the dump
		}
		require.Equal(t, want, verdicts(Judge(r, d))[stepID], "%+v", Judge(r, d))
	})
}

// Each bug is found and named where the optimiser is declared.
func TestBugs(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-RESET":         func(p *program) { p.reset = true },
		"OPTIM-L2":            func(p *program) { p.l2, p.decay = true, 0.1 },
		"OPTIM-NO-CORRECTION": func(p *program) { p.raw = true },
		"OPTIM-EPS-FORM":      func(p *program) { p.kind, p.eps = "adam_tf1", 1e-5 },
		"OPTIM-CLIP-MISSING":  func(p *program) { p.noClip = true },
		"OPTIM-CLIP-TENSOR":   func(p *program) { p.eachTensor, p.clip = true, 0.05 },
		"OPTIM-LATE":          func(p *program) { p.late = true },
		"OPTIM-TWICE":         func(p *program) { p.twice = true },
		"OPTIM-DECAY-RATE":    func(p *program) { p.flat = true },
		"OPTIM-ASCENT":        func(p *program) { p.ascent = true },
		"OPTIM-NOT-STEPPED":   func(p *program) { p.still = true },
		"OPTIM-PARAM-MISSED":  func(p *program) { p.without = true },
		"OPTIM-CLIP-VALUE":    func(p *program) { p.byValue, p.clip = true, 2e-3 },
		"OPTIM-CLIP-SCALED":   func(p *program) { p.clipScale, p.clip = 4, 0.5 },
		"OPTIM-GRAD-KEPT":     func(p *program) { p.kept = true },
		"OPTIM-EPS-ROOT":      func(p *program) { p.root, p.eps = 1, 1e-7 },
		"OPTIM-COUNT":         func(p *program) { p.ahead = true },
		"OPTIM-DECAY-SIGN":    func(p *program) { p.grows = true },
	} {
		t.Run(id, func(t *testing.T) {
			for seed := range uint64(4) {
				p := healthy()
				d := declaredOf(p)
				plant(&p)
				if p.decay != healthy().decay || p.eps != healthy().eps || p.clip != healthy().clip {
					kind := d.Kind
					d = declaredOf(p)
					d.Kind = kind
				}
				d.Micro = 4
				p.after = seed == 1 // with the update: weights alone behind the first step lack those before it
				fields := []string{"all", "weights"}[seed/2]
				if p.late {
					fields = "all"
				}
				results := Judge(p.run(rand.New(rand.NewPCG(seed, 7)), 6, fields), d)
				var names []string
				for _, r := range results {
					if r.Verdict == check.Fail {
						names = append(names, r.Explanations[0].Fault)
					}
				}
				require.Contains(t, names, id, "%+v", results)
				require.Len(t, names, 1, "%+v", results)
			}
		})
	}
}

// What no optimiser does is a bug, whoever says nothing, and so is another decay than the declared one.
func TestConvictsUndeclared(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-TWICE":      func(p *program) { p.twice = true },
		"OPTIM-GRAD-KEPT":  func(p *program) { p.kept = true },
		"OPTIM-DECAY-SIGN": func(p *program) { p.grows, p.decay = true, 0.1 },
	} {
		p := healthy()
		plant(&p)
		results := Judge(p.run(rand.New(rand.NewPCG(6, 8)), 5, "all"), Undeclared())
		res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
		require.Equal(t, check.Fail, res.Verdict, "%s %+v", id, res)
		require.Equal(t, id, res.Explanations[0].Fault)
	}
	p := healthy()
	d := Undeclared()
	d.Decay = 0.1
	results := Judge(p.run(rand.New(rand.NewPCG(6, 9)), 5, "all"), d)
	res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
	require.Equal(t, check.Fail, res.Verdict, "%+v", res)
	require.Contains(t, res.Reason, "weight_decay is 0.01, and 0.1 is declared")
}

// A bound that is smaller than the declared one of a gradient whose other parameters are not in the dump is no finding.
func TestPartOfTheParameters(t *testing.T) {
	p := healthy()
	d := declaredOf(p)
	d.Clip = 0.5
	r := p.run(rand.New(rand.NewPCG(9, 9)), 5, "all")
	for _, rec := range r.steps {
		rec.norm = math.NaN()
	}
	require.NotEqual(t, check.Fail, verdicts(Judge(r, d))[stepID])
}

// Groups of parameters may have rates of their own.
func TestGroups(t *testing.T) {
	p := healthy()
	p.rates = []float64{1, 0.1, 1}
	r := p.run(rand.New(rand.NewPCG(9, 11)), 5, "all")
	results := Judge(r, declaredOf(p))
	require.Equal(t, check.Pass, verdicts(results)[stepID], "%+v", results)
	require.Equal(t, check.Note, verdicts(results)[rateID], "%+v", results)
	require.Equal(t, check.Pass, verdicts(Judge(r, Undeclared()))[stepID])
}

// Two steps with one gradient are followed to second order: the decay of the second takes off what the first added.
func TestTwiceWithDecay(t *testing.T) {
	p := healthy()
	p.lr, p.decay, p.twice, p.spare = 1e-2, 0.1, true, true
	results := Judge(p.run(rand.New(rand.NewPCG(12, 8)), 5, "all"), declaredOf(p))
	res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
	require.Equal(t, check.Fail, res.Verdict, "%+v", res)
	require.Equal(t, "OPTIM-TWICE", res.Explanations[0].Fault)
}
