package rl

// ValueOptions selects a value loss. The zero value is the unclipped ½·mean((v − R)²).
type ValueOptions struct {
	Factor float64 // value.factor; 0 means 0.5
	Clip   float64 // value.clip, in units of the value; 0 means none. OAI, TRL 0.2, verl, OpenRLHF 0.5
	Coef   float64 // value.coef, vf_coef; 0 means 1. OAI, TRL 0.1, CleanRL 0.5

	Agg AggOptions // over the mask of value.mask, which the caller passes
}

// ValueResult receives what [ValueLoss] computes; slices that are nil are allocated, others must fit and are overwritten.
type ValueResult struct {
	Loss   float64
	Token  []float64 // Coef·Factor·max(…) of every cell, before aggregation
	DValue []float64 // ∂Loss/∂v
}

// ValueLoss computes the clipped value loss of v, rows×cols, and its gradient; old holds the values V at rollout, returns
// the targets R:
//
//	Loss = Agg(Coef·Factor·max((v − R)², (v_c − R)²)),   v_c = clip(v, V − Clip, V + Clip)
//
// The mask is the caller's: the response mask (verl, OpenRLHF), one token more (TRL PPO, see [LengthMask]), or nil for all
// cells (OAI, CleanRL). No gradient flows into V and R. On a bound of the clip and at equal squares the derivative is that
// of [PPO]. A masked cell has gradient 0.
//
// Errors: those of [Aggregate].
//
// Source: OpenAI baselines ppo2; the golden section value_loss pins verl 0.9.1 and OpenRLHF 0.11.2, the block loss.value of
// the design's golden batch TRL PPO.
func ValueLoss(res *ValueResult, v, old, returns []float64, mask []bool, rows, cols int, o ValueOptions) error {
	checkGrid(rows, cols, mask, v, old, returns)
	factor := 0.5
	if o.Factor != 0 {
		factor = o.Factor
	}
	if o.Coef != 0 {
		factor *= o.Coef
	}
	res.Token, res.DValue = output(res.Token, rows*cols), output(res.DValue, rows*cols)
	for i, x := range v {
		l, _ := o.cell(x, old[i], returns[i])
		res.Token[i] = float64(factor * l)
	}
	var err error
	res.Loss, res.DValue, err = Aggregate(res.DValue, res.Token, mask, rows, cols, o.Agg)
	if err != nil {
		return err
	}
	for i, w := range res.DValue {
		if w == 0 && mask != nil && !mask[i] && o.Agg.Outside == OutsideIgnore {
			continue
		}
		_, d := o.cell(v[i], old[i], returns[i])
		res.DValue[i] = float64(w * float64(factor*d))
	}
	return nil
}

// cell returns the larger square and its derivative.
func (o *ValueOptions) cell(v, old, target float64) (l, d float64) {
	e := v - target
	if o.Clip <= 0 {
		return float64(e * e), 2 * e
	}
	c, pass := max(min(v, old+o.Clip), old-o.Clip), 1.0
	if !(old-o.Clip < v && v < old+o.Clip) {
		pass = 0
	}
	ec := c - target
	return greater(float64(e*e), 2*e, float64(ec*ec), 2*ec*pass)
}

// ValueClipped stores in dst, 1 or 0, whether the clipped square is the larger one, verl's vf_clipfrac. All slices have one
// length; a nil dst is allocated.
func ValueClipped(dst, v, old, returns []float64, clip float64) []float64 {
	n := len(v)
	need(len(old) == n && len(returns) == n, badLength)
	dst = output(dst, n)
	for i, x := range v {
		e := x - returns[i]
		c := max(min(x, old[i]+clip), old[i]-clip) - returns[i]
		dst[i] = 0
		if float64(c*c) > float64(e*e) {
			dst[i] = 1
		}
	}
	return dst
}
