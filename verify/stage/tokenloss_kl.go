package stage

import (
	"math"
	"slices"

	"plumbline/verify/tol"
)

// showsKL reports whether token_loss holds the KL term by its numbers: it does unless they are those of the policy term alone. They tell
// where one of the two readings fits, or both do because the KL term is 0. What the readings depend on is read, and unknown, in c.
func (c *Case) showsKL() (holds, told bool) {
	d := c.Of(c.B, c.Set)
	p := d.policy(false)
	if p == nil || c.B.Token("token_loss") == nil {
		c.asks(d)
		return false, false
	}
	kl := d.tokenKL()
	c.asks(d)
	if !d.OK() {
		return true, false
	}
	alone, both := p.tokenLoss(d, Input{}), p.tokenLoss(d, kl)
	switch without, with := alone.wrong(c, "token_loss"), both.wrong(c, "token_loss"); {
	case without > 0:
		return true, with == 0
	case with > 0:
		return false, true
	}
	return false, slices.Equal(alone.Want, both.Want)
}

// asks takes over which options another case of the same batch has read, and of which it had no value.
func (c *Case) asks(d *Case) {
	for _, name := range d.Read {
		note(&c.Read, name)
	}
	for _, name := range d.Unknown {
		note(&c.Unknown, name)
	}
}

// wrong returns the number of elements of a tensor per token that are beyond their bound and that of storing them.
func (p *Prediction) wrong(c *Case, name string) (n int) {
	t := c.B.Tensors[name]
	u, eta := t.Type.Unit()
	for i, x := range t.Data {
		off := func(want float64) bool {
			return !same(want, x) && !(math.Abs(x-want) <= p.Bound[i]+tol.Storage(want, u, eta))
		}
		if c.B.Mask[i] && off(p.Want[i]) && (p.Alt == nil || math.IsNaN(p.Alt[i]) || off(p.Alt[i])) {
			n++
		}
	}
	return n
}

// tokenLoss predicts the losses of tokens, with the KL term where kl has estimates.
func (p *policy) tokenLoss(c *Case, kl Input) *Prediction {
	q := &Prediction{}
	q.Want, q.Bound, q.Alt = p.terms(c.B)
	for i := range q.Want {
		alt := math.NaN()
		if q.Alt != nil {
			alt = q.Alt[i]
		}
		if w := p.weight; w.X != nil {
			known := q.Bound[i] == 0
			q.Bound[i] = (math.Abs(w.X[i])+w.E(i))*q.Bound[i] + math.Abs(q.Want[i])*w.E(i) + p.u*math.Abs(w.X[i]*q.Want[i]) +
				underflow(p.unit, w.X[i], q.Want[i])
			q.Want[i] = float64(w.X[i] * q.Want[i])
			if u := p.lossHalf(); u > 0 && w.Half == u { // so has the product
				if q.Bound[i] += 2 * u * math.Abs(q.Want[i]); known {
					q.Bound[i] = 0
				}
				q.Want[i], _ = rounded(q.Want[i], u)
			}
			alt *= w.X[i]
		}
		if kl.X != nil {
			beta, betaE := p.beta, 0.0
			if p.klInside {
				beta *= p.weight.X[i]
				betaE = math.Abs(p.beta) * p.weight.E(i)
			}
			k := float64(beta * kl.X[i])
			q.Bound[i] += kl.Half * math.Abs(k)
			q.Want[i] += k
			alt += k
			q.Bound[i] += (math.Abs(beta)+betaE)*kl.E(i) + betaE*math.Abs(kl.X[i]) + 3*p.u*math.Abs(k) + p.u*math.Abs(q.Want[i])
		}
		if q.Alt != nil {
			q.Alt[i] = alt
		}
		q.settle(i, overflow(c.Unit))
	}
	return q
}
