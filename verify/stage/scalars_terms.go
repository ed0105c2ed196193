package stage

import (
	"math"
	"slices"
	"strings"
)

// fileTerm returns the dumped scalar of every file.
func fileTerm(name string) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		in := c.perFile(name)
		if !c.OK() || len(in.X) != len(rows) {
			return nil, nil
		}
		e = make([]float64, len(rows))
		copy(e, in.Err)
		return slices.Clone(in.X), e
	}
}

// fileKL returns the KL term of every file, without its coefficient.
func fileKL(c *Case, rows []span) (x, e []float64) {
	p := c.klPlace()
	red := c.klReduction(c.policyReduction())
	if red == nil || !c.OK() {
		return nil, nil
	}
	s, ok := c.klSums(p, red, "kl_loss")
	if !ok {
		return nil, nil
	}
	return s.x, s.err
}

// fileEntropy returns the entropy term of every file, without its coefficient.
func fileEntropy(c *Case, rows []span) (x, e []float64) {
	red, h := c.entropyReduction(), c.Token("entropy")
	if red == nil || !c.OK() {
		return nil, nil
	}
	s := red.apply(c, h, c.poisoned("entropy_loss"))
	return s.x, s.err
}

// extreme returns the largest or the smallest cell of a tensor in the mask.
func extreme(name string, of combine) func(*Case, []span) ([]float64, []float64) {
	return func(c *Case, rows []span) (x, e []float64) {
		in := c.Token(name)
		if !c.OK() {
			return nil, nil
		}
		return perSpan(rows, func(s span) (x, e float64) {
			x = math.NaN()
			for i := range c.B.TokensIn(s.lo, s.hi) {
				if v := in.X[i]; math.IsNaN(x) || of == largest && v > x || of == smallest && v < x {
					x = v
				}
				e = max(e, in.E(i))
			}
			return x, e
		})
	}
}

// largestRatio returns the largest token ratio in the mask.
func largestRatio(c *Case, rows []span) (x, e []float64) {
	if level := c.Enum("ratio.level"); level != "" && level != "token" {
		note(&c.Absent, "a ratio per token (ratio.level "+level+")")
	}
	limit := c.NumOr("ratio.log_clamp", math.Inf(1))
	lp, old := c.Token("logp_new"), c.Token("logp_old")
	if !c.OK() {
		return nil, nil
	}
	return perSpan(rows, func(s span) (x, e float64) {
		for i := range c.B.TokensIn(s.lo, s.hi) {
			d := min(max(lp.X[i]-old.X[i], -limit), limit)
			rho := math.Exp(d)
			x = max(x, rho)
			e = max(e, rho*(lp.E(i)+old.E(i)+(math.Abs(d)+elementary+1)*c.Unit))
		}
		return x, e
	})
}

// ends returns whether a row has an EOS in its mask, and notes what is not known of that.
func (c *Case) ends() func(r int) bool {
	eos := c.eosIDs()
	if eos == nil {
		note(&c.Absent, "eos_token_id")
	}
	if c.B.Token("response_ids") == nil && c.B.Tensors["input_ids"] == nil {
		note(&c.Absent, "response_ids")
	}
	return func(r int) bool {
		for t := range c.B.Cols {
			if id, ok := c.B.TokenID(r, t); ok && eos[id] && c.B.Mask[r*c.B.Cols+t] {
				return true
			}
		}
		return false
	}
}

// truncatedShare returns the share of rows without an EOS in the mask.
func truncatedShare(c *Case, rows []span) (x, e []float64) {
	ended := c.ends()
	if !c.OK() {
		return nil, nil
	}
	return perSpan(rows, func(s span) (x, e float64) {
		for r := s.lo; r < s.hi; r++ {
			if !ended(r) {
				x++
			}
		}
		x /= float64(s.hi - s.lo)
		return x, 2 * c.Unit * x
	})
}

func isGradient(name string) bool { return name == "grad" || strings.HasPrefix(name, "grad/") }

// gradientNorm returns the norm of all tensors named grad, or grad/NAME.
func gradientNorm(c *Case, rows []span) (x, e []float64) {
	var sum float64
	n := 0
	for _, name := range c.B.Names() {
		if !isGradient(name) {
			continue
		}
		for _, g := range c.B.Tensors[name].Data {
			sum += float64(g * g)
			n++
		}
	}
	if n == 0 {
		note(&c.Absent, "grad")
		return nil, nil
	}
	norm := math.Sqrt(sum)
	return perSpan(rows, func(_ span) (x, e float64) { return norm, (0.5*foldError(n, c.Unit) + 2*c.Unit) * norm })
}
