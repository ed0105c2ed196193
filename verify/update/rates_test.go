package update

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// The rate that is logged is held against the one that is in the steps, a step earlier or later allowed.
func TestLoggedRate(t *testing.T) {
	p := healthy()
	p.schedule = func(step int) float64 { return 1 / float64(step) }
	r := p.run(rand.New(rand.NewPCG(3, 8)), 6, "weights")
	d := Undeclared()
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[rateID])
	for i, rec := range r.steps {
		rec.rate = p.lr / float64(i+2)
	}
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[rateID], "as the Trainer logs it, behind the step of the scheduler")
	for _, rec := range r.steps {
		rec.rate = p.lr / 10
	}
	require.Equal(t, check.Fail, verdicts(Judge(r, d))[rateID])
}

// A schedule that only falls begins with the declared rate; of one that may have a warm-up nobody knows.
func TestScheduleThatFalls(t *testing.T) {
	for ahead, want := range map[int]check.Verdict{0: check.Pass, 1: check.Fail} {
		p := healthy()
		p.schedule = func(step int) float64 { return 1 - float64((step-1)/2+ahead)/4 }
		r := p.run(rand.New(rand.NewPCG(3, 8)), 6, "weights")
		d := Undeclared()
		d.Rate, d.Schedule = p.lr, "linear"
		require.Equal(t, check.Pass, verdicts(Judge(r, d))[rateID])
		d.Falls = true
		require.Equal(t, want, verdicts(Judge(r, d))[rateID])
	}
}

// A norm that stands at the bound while the gradients are larger was taken behind the clipping.
func TestNorm(t *testing.T) {
	p := healthy()
	r := p.run(rand.New(rand.NewPCG(3, 9)), 6, "weights")
	d := declaredOf(p)
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[normID])
	p.clip, d.Clip = 0.05, 0.05
	r = p.run(rand.New(rand.NewPCG(3, 9)), 6, "weights")
	for _, rec := range r.steps {
		rec.norm = min(rec.norm, 0.05)
	}
	require.Equal(t, check.Fail, verdicts(Judge(r, d))[normID])
	for _, rec := range r.steps {
		rec.norm = rec.whole * 2
	}
	require.Equal(t, check.NotSeen, verdicts(Judge(r, Undeclared()))[normID], "other parameters are trained, too")
	for _, rec := range r.steps {
		rec.norm = rec.norms
	}
	results := Judge(r, Undeclared())
	require.Equal(t, check.Fail, verdicts(results)[normID])
	require.NotEqual(t, check.Undetermined, verdicts(results)[stepID], "the gradient is clipped by its own norm")
}

// A schedule that is stepped in every micro-batch, or once too early, is told from the declared one.
func TestSchedule(t *testing.T) {
	for name, c := range map[string]struct{ per, ahead int }{"right": {1, 0}, "every micro-batch": {4, 0}, "before the first step": {1, 1}} {
		for kind, course := range map[string]func(x float64) float64{
			"linear": func(x float64) float64 { return max(0, 1-x) },
			"cosine": func(x float64) float64 { return 0.5 * (1 + math.Cos(math.Pi*min(1, x))) },
		} {
			p := healthy()
			p.schedule = func(step int) float64 {
				at := float64((step-1)*c.per + c.ahead)
				if at < 2 {
					return at / 2
				}
				return course((at - 2) / 38)
			}
			r := p.run(rand.New(rand.NewPCG(9, 8)), 6, "all")
			d := declaredOf(p)
			d.Schedule, d.Steps, d.WarmUp = kind, 40, 2
			results := Judge(r, d)
			res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == rateID })]
			if c.per == 1 && c.ahead == 0 {
				require.Equal(t, check.Pass, res.Verdict, "%s %s: %+v", name, kind, res)
				continue
			}
			require.Equal(t, check.Fail, res.Verdict, "%s %s: %+v", name, kind, res)
			require.Equal(t, "OPTIM-SCHEDULE", res.Explanations[0].Fault)
		}
	}
}

// Without a decay a wrong bias correction is a factor of the rate alone: it is told from the logged or declared one.
func TestCorrectionWithoutDecay(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-NO-CORRECTION": func(p *program) { p.raw = true },
		"OPTIM-COUNT":         func(p *program) { p.frozen = true },
	} {
		p := healthy()
		p.decay, p.eps = 0, 1e-12
		d := declaredOf(p)
		plant(&p)
		for _, d := range []Declared{d, Undeclared()} {
			var names []string
			for _, r := range Judge(p.run(rand.New(rand.NewPCG(12, 7)), 6, "all"), d) {
				if r.Verdict == check.Fail {
					names = append(names, r.Explanations[0].Fault)
				}
			}
			require.Equal(t, []string{id}, names)
		}
	}
}

// A tensor whose gradients no step has does not keep the others from being compared.
func TestTensorWithoutGradients(t *testing.T) {
	r := healthy().run(rand.New(rand.NewPCG(4, 5)), 6, "all")
	for _, rec := range r.steps {
		rec.of[r.names[1]].grad = nil
	}
	s := r.pairs(beforeUpdate, nil)
	require.Len(t, s.groups, 2)
	require.NotContains(t, []string{s.groups[0].name, s.groups[1].name}, r.names[1])
	require.NotEmpty(t, s.list)
}

// A search for several numbers begins at every value of each, with every value of the others.
func TestStartsOfASearch(t *testing.T) {
	s := searched(healthy().run(rand.New(rand.NewPCG(4, 5)), 6, "all").pairs(beforeUpdate, nil))
	values := map[unknown]func(r rule) float64{ofBeta1: func(r rule) float64 { return r.beta1 }, ofBeta2: func(r rule) float64 { return r.beta2 }, ofEps: func(r rule) float64 { return r.eps }, ofCount: func(r rule) float64 { return r.count }}
	counts := map[unknown]int{ofBeta1: 2, ofBeta2: 2, ofEps: 2, ofCount: 3}
	for a, of := range values {
		for b, beside := range values {
			if a == b {
				continue
			}
			seen := map[[2]float64]bool{}
			for _, r := range s.starts(rule{kind: "adamw"}, []unknown{a, b}) {
				seen[[2]float64{of(r), beside(r)}] = true
			}
			require.Len(t, seen, counts[a]*counts[b])
		}
	}
}
