package update

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Another form of the declared optimiser, moments that begin anew after some steps, and gradients that are gone before the step are named.
func TestForms(t *testing.T) {
	sgd := func(p *program) { p.kind, p.lr, p.decay = "sgd", 0.5, 0 }
	for name, c := range map[string]struct {
		base, plant func(*program)
		change      func(*Declared)
		id, says    string
	}{
		"nesterov":    {sgd, func(p *program) { p.nesterov = true }, nil, "OPTIM-FORM", "Nesterov"},
		"dampened":    {sgd, func(p *program) { p.dampen = 0.9 }, nil, "OPTIM-FORM", "dampened"},
		"no momentum": {sgd, func(p *program) { p.beta1 = 0 }, nil, "OPTIM-DECLARED", "beta1 is 0, and 0.9 is declared"},
		"amsgrad":     {nil, func(p *program) { p.amsgrad, p.beta2 = true, 0.5 }, func(d *Declared) { d.Beta2 = 0.5 }, "OPTIM-FORM", "AMSGrad"},
		"amsgrad with betas that nobody declares": {nil, func(p *program) { p.amsgrad, p.beta2 = true, 0.5 },
			func(d *Declared) { d.Beta1, d.Beta2 = math.NaN(), math.NaN() }, "OPTIM-FORM", "AMSGrad"},
		"anew every rollout":    {nil, func(p *program) { p.every = 2 }, nil, "OPTIM-RESET", "again"},
		"zeroed":                {nil, func(p *program) { p.zero, p.lr = true, 1e-2 }, func(d *Declared) { d.Rate = 1e-2 }, "OPTIM-GRAD-ZERO", "decay"},
		"by a value of its own": {nil, func(p *program) { p.byValue, p.clip = true, 2.5e-3 }, nil, "OPTIM-CLIP-VALUE", "clipped to 0.0025"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy()
			if c.base != nil {
				c.base(&p)
			}
			d := declaredOf(p)
			c.plant(&p)
			if c.change != nil {
				c.change(&d)
			}
			results := Judge(p.run(rand.New(rand.NewPCG(5, 7)), 6, "all"), d)
			var failed []check.Result
			for _, r := range results {
				if r.Verdict == check.Fail {
					failed = append(failed, r)
				}
			}
			require.Len(t, failed, 1, "%+v", results)
			require.Equal(t, c.id, failed[0].Explanations[0].Fault, "%+v", failed)
			require.Contains(t, failed[0].Explanations[0].Evidence, c.says)
		})
	}
}
