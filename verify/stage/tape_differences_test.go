package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// differentiable are the loss kinds whose gradient is the derivative of their value. The others multiply by a weight that is a
// constant in the gradient, or leave out tokens by chance.
var differentiable = []string{"ppo", "reinforce", "gspo", "gmpo", "sapo", "luspo", "dro", "kl_cov"}

// differences compares dlogp of a token with central differences of the predicted loss of their file. For a step h,
//
//	D(h) = g + T(h) + R(h),   T(h) = h²/6·L‴ + O(h⁴),   |R(h)| ≤ ε/h
//
// with ε = (n + 64)·u·Σ w·(1 + |ℓ|), the roundings of n terms and of what each is made of, of which none is larger than 1 or ℓ;
// so that T(h/2) is no larger than T(h) − T(h/2) as soon as halving the step halves it, and |D(h/2) − g| ≤ |D(h) − D(h/2)| + 5ε/h.
// With h = 10⁻⁶ of 1 or of the log-prob this is about 10⁻⁹; where it is not below 10⁻⁶ there is a kink within the step.
func (s *subject) differences(judged, kinks *int) string {
	g := s.moved()
	on := s.counted(g.Batch)
	p, token := s.dlogp(g), s.tokenLoss(g)
	lp := g.Token("logp_new")
	i := s.r.IntN(len(lp))
	for !on[i] {
		i = (i + 1) % len(lp)
	}
	f := g.File(i / g.Cols)
	var eps float64
	for k := g.Files[f].Lo * g.Cols; k < g.Files[f].Hi*g.Cols; k++ {
		eps += float64(len(lp)+64) * tol.U64 * math.Abs(p.Terms(k)[0].Value) * (1 + math.Abs(token[k]))
	}
	at := func(h float64) (loss, x float64) {
		x = lp[i] + h
		q := s.loss(replaced(g, "logp_new", changedAt(lp, func(k int) bool { return k == i }, func(int) float64 { return x })))
		return q.Want[f], x
	}
	difference := func(h float64) float64 {
		up, above := at(h)
		down, below := at(-h)
		return (up - down) / (above - below)
	}
	h := 1e-6 * max(1, math.Abs(lp[i]))
	whole, half := difference(h), difference(h/2)
	bound := math.Abs(whole-half) + 5*eps/h
	if !(bound <= 1e-6*max(1, math.Abs(half))) {
		*kinks++
		return ""
	}
	if *judged++; !(math.Abs(half-p.Want[i]) <= bound) {
		return fmt.Sprintf("dlogp of cell %d: %v, by differences %v ± %.2g", i, p.Want[i], half, bound)
	}
	return ""
}

// smooth are options under which the gradient is the derivative of the value, which that of a row through a token is not; which tokens kl_cov holds back is no matter of a
// derivative.
func smooth(set *convention.Set) *convention.Set {
	set = with(set, "kl.agg=same ratio.old=stored ratio.grad=row cov.fraction=1")
	if !has("kl.grad", "is_corrected")(set) {
		set = with(set, "kl.grad=naive")
	}
	return set
}

func tryDifferences(p *convention.Profile, kind string, d drawn, f *fault, judged, kinks *int) string {
	return tryTape(p, kind, d, f, func(s *subject) string {
		s.set = smooth(s.set)
		return s.differences(judged, kinks)
	})
}

// TestDifferences: the predicted gradient is the difference quotient of the predicted loss.
func TestDifferences(t *testing.T) {
	for _, kind := range differentiable {
		t.Run(kind, func(t *testing.T) {
			judged, kinks := 0, 0
			for _, p := range convention.Profiles() {
				t.Run(p.Name, func(t *testing.T) {
					rapid.Check(t, func(t *rapid.T) {
						d := drawCase(t)
						if broken := tryDifferences(p, kind, d, nil, &judged, &kinks); broken != "" {
							t.Fatal(broken, " under", described(configuration(p, kind, d.completion)))
						}
					})
				})
			}
			require.Less(t, kinks*10, judged, "too many differences that tell nothing")
		})
	}
}

func TestDifferencesReject(t *testing.T) {
	wrong := fault{swap: func(_ *subject, id string) func(*Case) *Prediction {
		if id != "gradient/dlogp" {
			return nil
		}
		return func(c *Case) *Prediction {
			p := Find(id).Predict(c)
			p.Want = mapped(p.Want, func(_ int, d float64) float64 { return d * (1 + 1e-4) })
			return p
		}
	}}
	for _, kind := range differentiable {
		for _, p := range convention.Profiles() {
			r := rand.New(rand.NewPCG(7, 3))
			rejected, judged, kinks := false, 0, 0
			for k := 0; k < 40 && !rejected; k++ {
				rejected = tryDifferences(p, kind, drawn{1 + r.IntN(5), 1 + r.IntN(8), k % variants, r.Uint64()}, &wrong, &judged, &kinks) != ""
			}
			require.True(t, rejected, "%s on top of %s", kind, p.Name)
		}
	}
}
