package update

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// A clipped step of SGD is one of a smaller rate: a bound that nobody declares explains rates below the logged ones where it is one of all
// steps. A rate that is a tenth off everywhere it does not.
func TestBoundOfRates(t *testing.T) {
	p := healthy()
	p.kind, p.decay, p.beta1 = "sgd", 0, 0
	norms := func(r *Run) (largest float64) {
		for _, s := range r.steps {
			largest = math.Max(largest, s.whole)
		}
		return largest
	}
	free := p.run(rand.New(rand.NewPCG(3, 8)), 6, "weights")
	p.clip = 0.9 * norms(free)
	r := p.run(rand.New(rand.NewPCG(3, 8)), 6, "weights")
	log := func(rate float64) map[string]check.Verdict {
		for _, rec := range r.steps {
			rec.rate = rate
		}
		return verdicts(Judge(r, Undeclared()))
	}
	require.Equal(t, check.Pass, log(p.lr)[rateID])
	require.Equal(t, check.Fail, log(p.lr * 1.1)[rateID])
	d := Undeclared()
	d.Clip = math.Inf(1)
	log(p.lr)
	require.NotEqual(t, check.Pass, verdicts(Judge(r, d))[rateID], "a bound is declared: there is none")
}
