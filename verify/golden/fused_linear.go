package golden

import (
	"math"

	"plumbline/reference/rl"
)

// maxLogits is the largest number of logits that are recomputed from hidden states: they are the one thing here that can be
// larger than the files.
const maxLogits = 1 << 24

// fused is Liger's loss from hidden states [B,T,H] and the weight of a head [V,H].
type fused struct {
	rows, cols, width, vocab int
	hidden, weight           []float64
	ids                      []int
	batch                    rl.PolicyBatch
	opt                      rl.PolicyOptions
	logits                   []float64
}

// ligerFused recomputes Liger's fused loss in float64 from its float32 inputs.
func ligerFused(c *call) []answer {
	f := readFused(c)
	if !c.ok() {
		return nil
	}
	cells := f.rows * f.cols
	f.logits = make([]float64, cells*f.vocab)
	for n := range cells {
		for v := range f.vocab {
			var sum float64
			for h := range f.width {
				sum += float64(f.hidden[n*f.width+h] * f.weight[v*f.width+h])
			}
			f.logits[n*f.vocab+v] = sum
		}
	}
	f.batch.LogProbs = rl.LogProbs(nil, f.logits, f.ids, f.vocab, rl.LogProbOptions{})
	var r rl.PolicyResult
	if err := rl.Policy(&r, f.batch, f.opt); err != nil {
		return []answer{refused("loss", nil, err)}
	}
	dlogits := rl.LogProbsBackward(nil, r.DLogp, f.logits, f.ids, f.vocab, rl.LogProbOptions{})
	dhidden, dweight := make([]float64, len(f.hidden)), make([]float64, len(f.weight))
	f.transposed(dlogits, f.hidden, f.weight, dhidden, dweight)
	loss, boundHidden, boundWeight := f.bounds(&r, dlogits)
	return []answer{
		bounded("loss", []float64{r.Loss}, []float64{loss}, LeakFused),
		bounded("dloss_dhidden", dhidden, boundHidden, LeakFused),
		bounded("dloss_dweight", dweight, boundWeight, LeakFused),
	}
}

// transposed adds d·W to dhidden and dᵀ·X to dweight.
func (f *fused) transposed(d, x, w, dhidden, dweight []float64) {
	for n := range f.rows * f.cols {
		for v := range f.vocab {
			g := d[n*f.vocab+v]
			for h := range f.width {
				dhidden[n*f.width+h] += float64(g * w[v*f.width+h])
				dweight[v*f.width+h] += float64(g * x[n*f.width+h])
			}
		}
	}
}

func readFused(c *call) *fused {
	f := new(fused)
	hidden, weight := c.tensor("hidden"), c.tensor("weight")
	if len(hidden.Shape) != 3 || len(weight.Shape) != 2 {
		c.malformed("inputs hidden and weight have shapes %v and %v, want [B,T,H] and [V,H]", hidden.Shape, weight.Shape)
		return f
	}
	f.hidden, f.rows, f.cols, f.width, f.vocab = hidden.Data, hidden.Shape[0], hidden.Shape[1], hidden.Shape[2], weight.Shape[0]
	f.weight = c.shaped("weight", f.vocab, f.width)
	if f.rows*f.cols > maxLogits/f.vocab {
		c.undetermined("more than %d logits: too large to recompute", maxLogits)
		return f
	}
	f.ids = c.ints("ids", 0, f.vocab, f.rows, f.cols)
	f.batch = rl.PolicyBatch{Rows: f.rows, Cols: f.cols, Mask: c.mask("mask", f.rows, f.cols), Old: c.shaped("old_logp", f.rows, f.cols)}
	adv := c.shaped("advantages", f.rows)
	f.opt = rl.PolicyOptions{Clip: rl.ClipOptions{Low: c.value("epsilon_low"), High: c.value("epsilon_high")}, KLBeta: c.value("beta"), KL: rl.KLOptions{Kind: rl.KLK3}}
	if f.opt.KLBeta != 0 {
		f.batch.Ref = c.shaped("ref_logp", f.rows, f.cols)
	}
	length := c.numOr("max_completion_length", 0)
	if dtype := c.text("dtype"); dtype != "float32" {
		c.undetermined("dtype %q", short(dtype))
	}
	switch kind := c.text("loss_type"); kind {
	case "grpo":
		f.opt.Agg = rl.AggOptions{Kind: rl.AggSeqMeanTokenMean, EmptyRows: rl.AggCounted}
	case "bnpo", "dapo": // without num_items, dapo counts the tokens at hand
	case "dr_grpo":
		f.opt.Agg = rl.AggOptions{Kind: rl.AggSeqSumConst, DivBatch: true, Length: length}
	default:
		c.undetermined("loss_type %q", short(kind))
	}
	if c.ok() {
		f.batch.Adv = repeated(adv, f.cols)
	}
	return f
}

// bounds returns the bounds of the loss and the gradients of a program that does the same in float32, roundoff u, each
// step with the roundings of its formula and the errors of what it takes:
//
//	z     (H + 1)·u·Σ|x·w|, at most e over the row
//	lp    2e + (V + 8 + 2max|z|)·u + u·(|z_id| + |lse| + |lp|)
//	ρ     ρ·(δlp + 4u + u|lp − old|);   at a clip bound within δρ the slope may be either side's
//	KL    |1 − e^{ref − lp}|·δlp + 4u·(e^{ref − lp} + |ref − lp|),   slope e^{ref − lp}·(δlp + 4u)
//	g     w·(|A|·δρ + β·(slope of KL)) + 8u|g|,   w = ∂loss/∂ℓ and g = ∂loss/∂lp of the cell
//	dz    |δg|·|1[j=id] − p_j| + |g|·p_j·(2e + (V + 12 + 2max|z|)·u + u·|lse|) + 2u|dz|
//	dx    Σ_v |w|·δdz + (V + 2)·u·Σ|dz·w|,   and for dW over the cells
func (f *fused) bounds(r *rl.PolicyResult, dlogits []float64) (loss float64, boundHidden, boundWeight []float64) {
	b, o, cells := &f.batch, &f.opt, f.rows*f.cols
	errDLogits := make([]float64, len(dlogits))
	var size float64 // Σ w·|ℓ|
	l := &logits{x: f.logits, ids: f.ids, vocab: f.vocab, temperature: 1}
	l.scale()
	for n := range cells {
		row := &l.rows[n]
		var e float64
		for v := range f.vocab {
			var s float64
			for h := range f.width {
				s += math.Abs(float64(f.hidden[n*f.width+h] * f.weight[v*f.width+h]))
			}
			e = max(e, float64(float64(f.width+1)*u32*s))
		}
		id, lp := f.ids[n], b.LogProbs[n]
		errLP := float64(2*e) + row.logProbError(u32, id)
		ratio, adv, w := r.Ratio[n], math.Abs(b.Adv[n]), math.Abs(r.Weights[n])
		errRatio := ratio * (errLP + 4*u32 + float64(u32*math.Abs(lp-b.Old[n])))
		errToken, errGrad := float64(adv*errRatio), float64(adv*errRatio)
		if min(math.Abs(ratio-1-o.Clip.High), math.Abs(ratio-1+o.Clip.Low)) <= errRatio {
			errGrad += float64(adv * ratio)
		}
		if o.KLBeta != 0 {
			x := b.Ref[n] - lp
			q := math.Exp(x)
			errToken += float64(math.Abs(o.KLBeta) * (float64(math.Abs(1-q)*errLP) + float64(4*u32*(q+math.Abs(x)))))
			errGrad += float64(math.Abs(o.KLBeta) * float64(q*(errLP+4*u32)))
		}
		loss += float64(w*errToken) + float64(8*u32*math.Abs(w*r.Token[n]))
		size += math.Abs(float64(w * r.Token[n]))
		g := math.Abs(r.DLogp[n])
		errG := float64(w*errGrad) + float64(8*u32*g)
		errP := float64(2*e) + row.sumError(u32) + float64(u32*(4+math.Abs(row.lse)))
		for v := range f.vocab {
			p := row.p[v]
			one := 0.0
			if v == id {
				one = 1
			}
			at := n*f.vocab + v
			errDLogits[at] = float64(errG*math.Abs(one-p)) + float64(g*float64(p*errP)) + float64(2*u32*math.Abs(dlogits[at]))
		}
	}
	loss += float64(float64(cells) * u32 * size)
	boundHidden, boundWeight = f.sums(errDLogits, dlogits)
	return loss, boundHidden, boundWeight
}

// sums returns the bounds of both products of dlogits, whose elements are off by err.
func (f *fused) sums(err, dlogits []float64) (boundHidden, boundWeight []float64) {
	abs := func(x []float64, scale float64, more []float64) []float64 {
		y := make([]float64, len(x))
		for i, v := range x {
			if y[i] = float64(scale * math.Abs(v)); more != nil {
				y[i] += more[i]
			}
		}
		return y
	}
	boundHidden, boundWeight = make([]float64, len(f.hidden)), make([]float64, len(f.weight))
	x, w := abs(f.hidden, 1, nil), abs(f.weight, 1, nil)
	f.transposed(abs(dlogits, float64(f.vocab+2)*u32, err), x, w, boundHidden, make([]float64, len(f.weight)))
	f.transposed(abs(dlogits, float64(f.rows*f.cols+2)*u32, err), x, w, make([]float64, len(f.hidden)), boundWeight)
	return boundHidden, boundWeight
}
