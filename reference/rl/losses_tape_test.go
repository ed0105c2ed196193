package rl

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The policy loss written once more on the tape: the second derivation. It follows the frameworks' own expressions, with
// sg = Detach, and the tape's rules at kinks are torch's.

// onTape is a batch on a tape.
type onTape struct {
	tape                  *ad.Tape
	b                     *PolicyBatch
	mask                  ad.Mask
	lp, old, adv, zero, n *ad.Var // n: true cells of a row, at least 1
}

func newOnTape(b *PolicyBatch) *onTape {
	x := &onTape{tape: new(ad.Tape), b: b}
	shape := []int{b.Rows, b.Cols}
	x.lp = x.tape.Param(append([]float64{}, b.LogProbs...), shape...)
	x.old = x.tape.Const(b.Old, shape...)
	x.adv = x.tape.Const(b.Adv, shape...)
	x.zero = x.tape.Const(make([]float64, b.Rows*b.Cols), shape...)
	x.mask = ad.Mask{Shape: shape, On: b.Mask}
	counts := make([]float64, b.Rows)
	for r := range counts {
		for _, m := range b.Mask[r*b.Cols : (r+1)*b.Cols] {
			if m {
				counts[r]++
			}
		}
		counts[r] = max(counts[r], 1)
	}
	x.n = x.tape.Const(counts, b.Rows, 1)
	return x
}

// rowSum is the sum over the true cells of a row, [Rows, 1].
func (x *onTape) rowSum(v *ad.Var) *ad.Var { return ad.Sum(ad.Where(x.mask, v, x.zero), true, 1) }

func (x *onTape) spread(v *ad.Var) *ad.Var { return ad.BroadcastTo(v, x.b.Rows, x.b.Cols) }

func (x *onTape) ratio(o RatioOptions) *ad.Var {
	d := ad.Sub(x.lp, x.old)
	if o.LogClamp > 0 {
		d = ad.Clamp(d, -o.LogClamp, o.LogClamp)
	}
	if o.Level == RatioToken {
		return ad.Exp(d)
	}
	s := x.rowSum(d)
	if o.Level == RatioSeqMean {
		s = ad.Div(s, ad.AddScalar(x.n, o.LenEps))
	}
	if o.PerToken {
		s = ad.Add(ad.Sub(x.lp, ad.Detach(x.lp)), x.spread(ad.Detach(s)))
	}
	if o.SeqLogMax > 0 {
		s = ad.Clamp(s, math.Inf(-1), o.SeqLogMax)
	}
	return x.spread(ad.Exp(s))
}

func (x *onTape) surrogate(ratio *ad.Var, o ClipOptions) *ad.Var {
	lo, hi := o.bounds()
	r := ratio
	if o.Delta > 0 {
		r = ad.Clamp(r, math.Inf(-1), o.Delta)
	}
	minus := ad.Neg(x.adv)
	l := ad.Max(ad.Mul(minus, r), ad.Mul(minus, ad.Clamp(ratio, lo, hi)))
	if o.Dual > 0 {
		negative := ad.Mask{Shape: x.mask.Shape}
		for _, a := range x.b.Adv {
			negative.On = append(negative.On, a < 0)
		}
		l = ad.Where(negative, ad.Min(ad.Scale(minus, o.Dual), l), l)
	}
	return l
}

func (x *onTape) term(ratio *ad.Var, o PolicyOptions) *ad.Var {
	weighted := func(w *ad.Var) *ad.Var { return ad.Neg(ad.Mul(ad.Mul(ad.Detach(w), x.adv), x.lp)) }
	switch o.Kind {
	case LossReinforce:
		return ad.Neg(ad.Mul(x.adv, x.lp))
	case LossCISPO:
		lo, hi := o.Clip.bounds()
		return weighted(ad.Clamp(ratio, lo, hi))
	case LossVESPO:
		s := ad.Clamp(x.rowSum(ad.Clamp(ad.Sub(x.lp, x.old), -20, 20)), math.Log(1e-8), 20)
		var k, lambda []float64
		for _, a := range x.b.Adv {
			if a >= 0 {
				k, lambda = append(k, o.VESPO.KPos), append(lambda, o.VESPO.LambdaPos)
			} else {
				k, lambda = append(k, o.VESPO.KNeg), append(lambda, o.VESPO.LambdaNeg)
			}
		}
		kv, lv := x.tape.Const(k, x.b.Rows, x.b.Cols), x.tape.Const(lambda, x.b.Rows, x.b.Cols)
		s = x.spread(s)
		return weighted(ad.Exp(ad.Sub(ad.Add(lv, ad.Mul(kv, s)), ad.Mul(lv, ad.Exp(s)))))
	case LossDRO:
		d := ad.Sub(x.lp, x.old)
		return ad.Sub(ad.Scale(ad.Mul(d, d), o.DROBeta/2), ad.Mul(x.lp, x.adv))
	case LossSAPO:
		var tau []float64
		for _, a := range x.b.Adv {
			if a > 0 {
				tau = append(tau, o.TauPos)
			} else {
				tau = append(tau, o.TauNeg)
			}
		}
		tv := x.tape.Const(tau, x.b.Rows, x.b.Cols)
		return ad.Neg(ad.Mul(x.adv, ad.Div(ad.Scale(ad.Sigmoid(ad.Mul(tv, ad.AddScalar(ratio, -1))), 4), tv)))
	case LossGMPO:
		d := ad.Sub(x.lp, x.old)
		if o.GMPO.LogClamp > 0 {
			d = ad.Clamp(d, -o.GMPO.LogClamp, o.GMPO.LogClamp)
		}
		sign := x.tape.Const(signs(x.b.Adv), x.b.Rows, x.b.Cols)
		c := ad.Mul(sign, ad.Min(ad.Mul(sign, d), ad.Mul(sign, ad.Clamp(d, -o.GMPO.Low, o.GMPO.High))))
		n := ad.AddScalar(x.n, o.GMPO.LenEps)
		return x.spread(ad.Neg(ad.Mul(ad.Div(x.rowSum(x.adv), n), ad.Exp(ad.Div(x.rowSum(c), n)))))
	}
	return x.surrogate(ratio, o.Clip)
}

func signs(x []float64) []float64 {
	s := make([]float64, len(x))
	for i, v := range x {
		switch {
		case v > 0:
			s[i] = 1
		case v < 0:
			s[i] = -1
		}
	}
	return s
}

func (x *onTape) kl(ratio *ad.Var, o KLOptions) *ad.Var {
	d := ad.Sub(x.lp, x.tape.Const(x.b.Ref, x.b.Rows, x.b.Cols))
	k := d
	clamps := o.ClampAll || o.Kind == KLK3
	if clamps && o.ClampIn > 0 {
		hi := o.ClampIn
		if o.ClampInBelow {
			hi = math.Inf(1)
		}
		k = ad.Clamp(k, -o.ClampIn, hi)
	}
	switch o.Kind {
	case KLK2:
		k = ad.Scale(ad.Mul(k, k), 0.5)
	case KLK3:
		k = ad.Add(ad.Expm1(ad.Neg(k)), k)
	case KLAbs:
		k = ad.Abs(k)
	}
	if clamps && o.ClampOut > 0 {
		k = ad.Clamp(k, -o.ClampOut, o.ClampOut)
	}
	if o.Kind == KLRatioD || o.Grad == KLISCorrected {
		k = ad.Mul(ratio, k)
	}
	switch o.Grad {
	case KLScoreFunction:
		return ad.Mul(k, ad.Exp(ad.Sub(x.lp, ad.Detach(x.lp))))
	case KLStraightThroughK2:
		k2 := ad.Scale(ad.Mul(d, d), 0.5)
		if o.ISCap > 0 {
			k2 = ad.Mul(k2, ad.Clamp(ad.Exp(ad.Detach(ad.Sub(x.lp, x.old))), 0, o.ISCap))
		}
		return ad.Add(ad.Detach(k), ad.Sub(k2, ad.Detach(k2)))
	}
	return k
}

func (x *onTape) aggregate(l *ad.Var, o AggOptions) *ad.Var {
	var tokens, full float64
	for r := range x.b.Rows {
		any := false
		for _, m := range x.b.Mask[r*x.b.Cols : (r+1)*x.b.Cols] {
			if m {
				tokens++
				any = true
			}
		}
		if any || o.EmptyRows == AggCounted {
			full++
		}
	}
	if o.Denominator != AggMicro {
		tokens, full = o.Tokens, o.Rows
	}
	rows := x.rowSum(l)
	var total *ad.Var
	switch o.Kind {
	case AggLUSPO:
		empty := ad.Mask{Shape: []int{x.b.Rows, 1}}
		for r := range x.b.Rows {
			empty.On = append(empty.On, !slices.Contains(x.b.Mask[r*x.b.Cols:(r+1)*x.b.Cols], true))
		}
		n := ad.Where(empty, ad.Sub(x.n, x.n), x.n)
		total = ad.Mean(ad.Mul(ad.Sum(l, true, 1), n), false, 0, 1)
		total = ad.Scale(total, 1/float64(x.b.Cols))
	case AggToken:
		total = ad.Scale(ad.Sum(rows, false, 0, 1), 1/(tokens+o.Eps))
	case AggTokenSum:
		total = ad.Sum(rows, false, 0, 1)
	case AggSeqMeanTokenMean:
		total = ad.Scale(ad.Sum(ad.Div(rows, ad.AddScalar(x.n, o.LenEps)), false, 0, 1), 1/(full+o.Eps))
	case AggSeqMeanTokenSum:
		total = ad.Scale(ad.Sum(rows, false, 0, 1), 1/(full+o.Eps))
	case AggSeqSumConst:
		den := o.Length
		if o.DivBatch {
			den *= full
		}
		total = ad.Scale(ad.Sum(rows, false, 0, 1), 1/den)
	}
	if o.Steps != 0 {
		total = ad.Scale(total, 1/o.Steps)
	}
	if o.Scale != 0 {
		total = ad.Scale(total, o.Scale)
	}
	return total
}

// tapePolicy is [Policy] on the tape.
func tapePolicy(b PolicyBatch, o PolicyOptions) (loss float64, grad []float64) {
	x := newOnTape(&b)
	ratio := x.ratio(o.Ratio)
	l := x.term(ratio, o)
	if b.Weight != nil {
		l = ad.Mul(l, x.tape.Const(b.Weight, b.Rows, b.Cols))
	}
	if o.KLBeta != 0 {
		kl := ad.Scale(x.kl(ratio, o.KL), o.KLBeta)
		if b.Weight != nil && o.KLUnderWeight {
			kl = ad.Mul(kl, x.tape.Const(b.Weight, b.Rows, b.Cols))
		}
		l = ad.Add(l, kl)
	}
	agg := o.Agg
	if o.Kind == LossGMPO {
		agg = AggOptions{Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted}
	}
	y := x.aggregate(l, agg)
	ad.Backward(y, []float64{1})
	return y.Item(), x.lp.Grad()
}

// policyCases are the options that the tape follows; each names a release's choice where there is one.
var policyCases = map[string]PolicyOptions{
	"ppo":           {Clip: ClipOptions{Low: .2, High: .28}},
	"ppo clamp":     {Clip: ClipOptions{Low: .2, High: .2, Dual: 3}, Ratio: RatioOptions{LogClamp: 1}},
	"dual":          {Clip: ClipOptions{Low: .2, High: .2, Dual: 1.5}, Agg: AggOptions{Kind: AggSeqMeanTokenMean, LenEps: 1e-8}},
	"delta":         {Clip: ClipOptions{Low: .2, High: .2, Delta: 1.5}, Agg: AggOptions{Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted}},
	"no clip":       {Clip: NoClip, Agg: AggOptions{Kind: AggTokenSum, Scale: 2}},
	"gspo":          {Kind: LossGSPO, Ratio: RatioOptions{Level: RatioSeqMean}, Clip: ClipOptions{Low: .2, High: .2}},
	"gspo verl":     {Kind: LossGSPO, Ratio: RatioOptions{Level: RatioSeqMean, SeqLogMax: .5, PerToken: true}, Clip: ClipOptions{Low: .2, High: .2}},
	"gspo eps":      {Kind: LossGSPO, Ratio: RatioOptions{Level: RatioSeqMean, LenEps: .01, LogClamp: 2}, Clip: NoClip},
	"seq_sum":       {Ratio: RatioOptions{Level: RatioSeqSum}, Clip: ClipOptions{Low: .2, High: .2}, Agg: AggOptions{Kind: AggSeqMeanTokenSum}},
	"luspo":         {Kind: LossLUSPO, Clip: ClipOptions{Low: .2, High: .2}, Agg: AggOptions{Kind: AggLUSPO}},
	"luspo seq":     {Kind: LossLUSPO, Ratio: RatioOptions{Level: RatioSeqMean}, Clip: NoClip, Agg: AggOptions{Kind: AggLUSPO}},
	"reinforce":     {Kind: LossReinforce, Agg: AggOptions{Kind: AggSeqMeanTokenSum, EmptyRows: AggCounted}},
	"cispo verl":    {Kind: LossCISPO, Clip: ClipOptions{Low: .2, High: .2}},
	"cispo trl":     {Kind: LossCISPO, Clip: ClipOptions{Low: math.Inf(1), High: 1.3, HighAbsolute: true}},
	"vespo":         {Kind: LossVESPO, VESPO: VESPODefaults},
	"sapo":          {Kind: LossSAPO, TauPos: 1, TauNeg: 1.05},
	"dro":           {Kind: LossDRO, DROBeta: .3},
	"gmpo":          {Kind: LossGMPO, GMPO: GMPOOptions{Low: .2, High: .4, LogClamp: 3, LenEps: 1e-8}},
	"k1":            {Clip: NoClip, KLBeta: .1},
	"k2 st":         {Clip: NoClip, KLBeta: .1, KL: KLOptions{Kind: KLK3, Grad: KLStraightThroughK2, ClampIn: 2, ClampOut: 1}},
	"k1 st cap":     {Clip: NoClip, KLBeta: .1, KL: KLOptions{Grad: KLStraightThroughK2, ISCap: 1.2}},
	"k1 st seq":     {Kind: LossGSPO, Ratio: RatioOptions{Level: RatioSeqMean}, Clip: NoClip, KLBeta: .1, KL: KLOptions{Grad: KLStraightThroughK2, ISCap: 1.2}},
	"k3 st cap":     {Clip: NoClip, KLBeta: .1, KL: KLOptions{Kind: KLK3, Grad: KLStraightThroughK2, ClampIn: 1, ISCap: 1.2}},
	"kl weighted":   {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLK3}, KLUnderWeight: true},
	"k3":            {Clip: ClipOptions{Low: .2, High: .2}, KLBeta: .5, KL: KLOptions{Kind: KLK3}, Agg: AggOptions{Kind: AggSeqSumConst, DivBatch: true, Length: 7}},
	"k3 clamped":    {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLK3, ClampIn: 2, ClampOut: 1}},
	"k3 below":      {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLK3, ClampIn: 1, ClampInBelow: true, ClampOut: 1, ClampAll: true}},
	"k3 score":      {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLK3, Grad: KLScoreFunction}},
	"k2 score":      {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLK2, Grad: KLScoreFunction, ClampOut: 1, ClampAll: true}},
	"k3 is":         {Clip: ClipOptions{Low: .2, High: .2}, KLBeta: .5, KL: KLOptions{Kind: KLK3, Grad: KLISCorrected}},
	"k3 is gspo":    {Clip: NoClip, Ratio: RatioOptions{Level: RatioSeqMean}, KLBeta: .5, KL: KLOptions{Kind: KLK3, Grad: KLISCorrected}},
	"abs":           {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLAbs}},
	"ratio_d score": {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLRatioD, Grad: KLScoreFunction, ClampIn: 1, ClampAll: true}},
	"ratio_d st":    {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLRatioD, Grad: KLStraightThroughK2}},
	"ratio_d":       {Clip: NoClip, KLBeta: .5, KL: KLOptions{Kind: KLRatioD, ClampIn: 1, ClampAll: true}},
	"global":        {Clip: NoClip, Agg: AggOptions{Kind: AggSeqMeanTokenMean, Denominator: AggGlobal, Rows: 9, Tokens: 50, Steps: 4}},
	"global tokens": {Clip: NoClip, Agg: AggOptions{Denominator: AggGlobal, Rows: 9, Tokens: 50, Eps: 1e-8, Scale: 2}},
}

// drawPolicy draws a batch with at least one token; log-ratios are around 0 and often on a kink.
func drawPolicy(t *rapid.T) PolicyBatch {
	old, mask, rows, cols := drawBatch(t, 1)
	n := rows * cols
	b := PolicyBatch{Rows: rows, Cols: cols, Mask: mask, Old: old, Ref: drawCells(t, "ref", n), Adv: drawCells(t, "adv", n)}
	b.LogProbs = make([]float64, n)
	for i, d := range drawCells(t, "logratio", n) {
		old[i] = -math.Abs(old[i])
		b.LogProbs[i] = old[i] + d/4
	}
	if rapid.Bool().Draw(t, "weighted") {
		b.Weight = drawCells(t, "weight", n)
	}
	return b
}

// closeTo returns an error unless |got − want| ≤ 1e-12·max(1, largest |want|).
func closeTo(got, want []float64) error {
	scale := 1.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	return off(got, want, 1e-12*scale)
}

func TestPolicyTape(t *testing.T) {
	for name, o := range policyCases {
		t.Run(name, func(t *testing.T) {
			o.Agg.Outside = OutsideIgnore
			rapid.Check(t, func(t *rapid.T) {
				b := drawPolicy(t)
				if o.Kind == LossGMPO {
					b.Weight = nil
				}
				var r PolicyResult
				if err := Policy(&r, b, o); err != nil {
					t.Fatal(err)
				}
				loss, grad := tapePolicy(b, o)
				if err := closeTo([]float64{r.Loss}, []float64{loss}); err != nil {
					t.Fatalf("loss: %v", err)
				}
				if err := closeTo(r.DLogp, grad); err != nil {
					t.Fatalf("gradient: %v", err)
				}
			})
		})
	}
}

// TestPolicyTapeRejects: the comparison tells each case from its neighbour on one batch.
func TestPolicyTapeRejects(t *testing.T) {
	b := PolicyBatch{Rows: 2, Cols: 3, Mask: []bool{true, true, true, true, false, true}, Old: []float64{-1, -2, -.5, -1, -1, -2},
		LogProbs: []float64{-.2, -2.4, -.7, -1.9, -1, -.7}, Ref: []float64{-3, -.9, -1.8, -.5, -2, -1.1}, Adv: []float64{1, -2, -.5, 1.5, 3, -1}}
	faults := map[string]func(o *PolicyOptions){
		"ppo":           func(o *PolicyOptions) { o.Clip.High = .2 },
		"dual":          func(o *PolicyOptions) { o.Clip.Dual = 0 },
		"delta":         func(o *PolicyOptions) { o.Clip.Delta = 0 },
		"ppo clamp":     func(o *PolicyOptions) { o.Ratio.LogClamp = 0 },
		"gspo":          func(o *PolicyOptions) { o.Ratio.PerToken = true },
		"gspo eps":      func(o *PolicyOptions) { o.Ratio.LenEps = 0 },
		"seq_sum":       func(o *PolicyOptions) { o.Ratio.Level = RatioSeqMean },
		"luspo":         func(o *PolicyOptions) { o.Agg.Kind = AggSeqMeanTokenSum },
		"reinforce":     func(o *PolicyOptions) { o.Kind, o.Clip = LossPPO, NoClip },
		"cispo trl":     func(o *PolicyOptions) { o.Clip.HighAbsolute = false },
		"vespo":         func(o *PolicyOptions) { o.VESPO.KNeg = 2 },
		"sapo":          func(o *PolicyOptions) { o.TauNeg = 1 },
		"dro":           func(o *PolicyOptions) { o.DROBeta *= 2 },
		"gmpo":          func(o *PolicyOptions) { o.GMPO.LenEps = 0 },
		"k2 st":         func(o *PolicyOptions) { o.KL.Grad = KLNaive },
		"k1 st cap":     func(o *PolicyOptions) { o.KL.ISCap = 0 },
		"k1 st seq":     func(o *PolicyOptions) { o.KL.ISCap = 0 },
		"ratio_d score": func(o *PolicyOptions) { o.KL.Kind = KLK1 },
		"ratio_d st":    func(o *PolicyOptions) { o.KL.Kind = KLK1 },
		"k3 clamped":    func(o *PolicyOptions) { o.KL.ClampOut = 0 },
		"k3 score":      func(o *PolicyOptions) { o.KL.Grad = KLNaive },
		"k3 is":         func(o *PolicyOptions) { o.KL.Grad = KLScoreFunction },
		"k3 is gspo":    func(o *PolicyOptions) { o.Ratio.Level = RatioToken },
		"abs":           func(o *PolicyOptions) { o.KL.Kind = KLK1 },
		"ratio_d":       func(o *PolicyOptions) { o.KL.ClampIn = 0 },
		"global":        func(o *PolicyOptions) { o.Agg.Denominator = AggMicro },
		"k1":            func(o *PolicyOptions) { o.KLBeta = .2 },
		"global tokens": func(o *PolicyOptions) { o.Agg.Scale = 0 },
	}
	for name, fault := range faults {
		o := policyCases[name]
		o.Agg.Outside = OutsideIgnore
		loss, grad := tapePolicy(b, o)
		var r PolicyResult
		require.NoError(t, Policy(&r, b, o), name)
		require.NoError(t, closeTo(append(r.DLogp, r.Loss), append(grad, loss)), name)
		fault(&o)
		require.NoError(t, Policy(&r, b, o), name)
		require.Error(t, closeTo(append(r.DLogp, r.Loss), append(grad, loss)), name)
	}
}
