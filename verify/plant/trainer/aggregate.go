package trainer

import (
	"math"
	"slices"
)

// value computes the value loss of every cell and its derivative.
func (r *run[F]) value() {
	if r.values0 == nil || r.o.valueFactor == 0 {
		return
	}
	n := r.cells()
	r.valueCells, r.dvalue = make([]F, n), make([]F, n)
	factor := r.num(r.o.valueFactor)
	if r.plant == "VALUE-NO-HALF" {
		factor = 1
	}
	c := F(r.o.valueClip)
	if r.plant == "VALUE-CLIP-ABSENT" {
		c = F(math.Inf(1))
	}
	for i := range n {
		v, old, target := r.values1[i], r.values0[i], r.returns[i]
		lo, hi := r.sub(old, c), r.add(old, c)
		d := r.sub(v, target)
		square, slope := r.mul(d, d), r.mul(2, d)
		if !math.IsInf(float64(c), 1) {
			dc := r.sub(clip(v, lo, hi), target)
			other := r.mul(dc, dc)
			take := other > square
			if r.plant == "VALUE-CLIP-MIN" {
				take = other < square
			}
			if take { // the two differ only where v is clipped
				square, slope = other, 0
			}
		}
		r.valueCells[i], r.dvalue[i] = r.mul(factor, square), r.mul(factor, slope)
	}
}

// valueSpanMask returns which cells the value loss takes.
func (r *run[F]) valueSpanMask() []bool {
	m := make([]bool, r.cells())
	for row := range r.rows {
		lo := row * r.cols
		_, last := ends(r.mask[lo : lo+r.cols])
		for t := range r.cols {
			switch {
			case r.o.valueMask == "none" || r.plant == "VALUE-MASK":
				m[lo+t] = true
			case r.o.valueMask == "p1":
				m[lo+t] = t <= last+1 // TRL: padding_mask_p1 = response_idxs > sequence_lengths + 1, and −1 is the length of an empty one
			default:
				m[lo+t] = r.counts(lo + t)
			}
		}
	}
	return m
}

// steps returns the factor of what is divided by the accumulation steps.
func (r *run[F]) steps() float64 {
	f, ga := 1.0, float64(r.micros())
	if r.o.divSteps && r.plant != "AGG-GA-MISSING" {
		f /= ga
	}
	switch r.plant {
	case "AGG-GA-TWICE":
		f /= ga
	case "FACTOR-USED-STEPS":
		f *= ga / (ga + 1)
	case "FACTOR-GROUP":
		f /= float64(r.Group)
	}
	return f
}

// cellWeights returns the factor of every cell in the loss of its file: the reciprocal of what is divided by. The bugs of the
// policy loss's denominator are planted if policy is true.
func (r *run[F]) cellWeights(mask []bool, policy bool) []F {
	plant := ""
	if policy {
		plant = r.plant
	}
	w := make([]F, r.cells())
	kind, where := r.o.agg, r.o.denominator
	scale := r.steps()
	switch plant {
	case "AGG-LOCAL-DENOMINATOR":
		where = "micro"
		if !r.o.divSteps { // a mean of means is divided by their number once
			scale /= float64(r.micros())
		}
	case "AGG-SAMPLE-MEAN":
		kind = "seq_mean_token_mean"
	case "AGG-TOKEN-FOR-SEQUENCE":
		kind = "token"
	}
	if policy && r.o.loss == "gmpo" {
		kind, where = "seq_sum", "micro"
	}
	if where == "global" && plant != "FACTOR-WORLD-SIZE" && kind != "luspo" {
		scale *= float64(r.ranks())
	}
	long := func(row int) int {
		n := count(mask[row*r.cols : (row+1)*r.cols])
		switch {
		case plant == "AGG-PAD-DENOMINATOR":
			n = r.cols
		case plant == "AGG-COUNTS-MASKED" && r.dropped[row]:
			n = r.length[row]
		}
		return n
	}
	for _, s := range r.spans {
		var tokens, rows float64
		for _, other := range r.spans {
			if where == "rank" && other.rank != s.rank || where != "rank" && where != "global" && other != s {
				continue
			}
			for row := other.lo; row < other.hi; row++ {
				n := long(row)
				tokens += float64(n)
				if n > 0 || r.o.countEmpty || policy && r.o.loss == "gmpo" {
					rows++
				}
			}
		}
		if where == "global" && kind == "token" && r.generations > 1 {
			tokens += float64(r.otherTokens)
			if plant != "AGG-NUM-ITEMS-GENERATION" {
				tokens /= float64(r.generations)
			}
		}
		if where == "constant" {
			tokens = r.constant()
			rows = tokens
		}
		for row := s.lo; row < s.hi; row++ {
			var x F
			n := r.add(F(long(row)), r.num(r.o.aggLenEps))
			switch kind {
			case "token":
				x = r.div(r.num(scale), r.num(tokens))
			case "token_sum":
				x = r.num(scale)
			case "seq_mean_token_mean":
				if n == 0 && plant != "NAN-EMPTY-ROW" {
					continue
				}
				x = r.div(r.div(r.num(scale), n), r.num(rows))
				if plant == "NAN-EMPTY-ROW" && long(row) == 0 {
					x = F(math.NaN())
				}
			case "seq_mean_token_sum":
				x = r.div(r.num(scale), r.num(rows))
			case "seq_sum":
				x = r.div(r.num(scale), r.num(rows))
			case "seq_sum_const":
				length := F(r.maxLength)
				if where == "constant" && !r.o.divBatch {
					length = F(r.constant())
				}
				x = r.div(r.num(scale), length)
				if r.o.divBatch && plant != "AGG-NO-BATCH" {
					x = r.div(x, r.num(rows))
				} else if where == "global" {
					x = r.div(x, F(r.ranks())) // nothing is counted, so nothing is undone
				}
			case "luspo":
				x = r.div(r.mul(r.num(scale), F(long(row))), F((s.hi-s.lo)*r.cols))
			}
			for t := range r.cols {
				if i := row*r.cols + t; mask[i] || kind == "luspo" || x != x {
					w[i] = x
				}
			}
		}
		if plant == "LOSS-MASKED-BY-ADVANTAGES" {
			lo, hi := s.lo*r.cols, s.hi*r.cols
			total := r.sum(r.adv[lo:hi])
			for i := lo; i < hi; i++ {
				w[i] = r.div(r.mul(r.num(r.steps()), r.adv[i]), total)
			}
		}
	}
	return w
}

// constant is what agg.denominator constant divides by.
func (r *run[F]) constant() float64 { return float64(r.maxLength * (r.spans[0].hi - r.spans[0].lo)) }

// dot sums the cells of every file with their weights. Cells of weight 0 are not read, unless the trainer multiplies by its
// mask.
func (r *run[F]) dot(w, x []F) []F {
	sums := make([]F, len(r.spans))
	for f, s := range r.spans {
		var terms []F
		for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
			if w[i] != 0 || r.plant == "NAN-OUTSIDE" {
				terms = append(terms, r.mul(w[i], x[i]))
			}
		}
		sums[f] = r.sum(terms)
	}
	return sums
}

// aggregate makes one number of the losses of a file.
func (r *run[F]) aggregate() {
	n := len(r.spans)
	r.weight = r.cellWeights(r.lossMask, true)
	if r.o.loss == "gmpo" {
		r.pg = make([]F, n)
		for f, s := range r.spans {
			rows := r.rowLoss[s.lo:s.hi]
			r.pg[f] = r.mul(r.num(r.steps()), r.div(r.sum(rows), F(len(rows))))
		}
	} else {
		r.pg = r.dot(r.weight, r.policyLoss)
	}
	r.loss = slices.Clone(r.pg)
	if r.o.term() {
		r.klTerm()
	}
	if r.valueCells != nil {
		kind := r.o.agg
		if r.o.valueTokens {
			r.o.agg = "token"
		}
		r.valueW = r.cellWeights(r.valueSpanMask(), false)
		r.o.agg = kind
		r.vf = r.dot(r.valueW, r.valueCells)
		if r.o.valueInLoss {
			for f := range r.vf {
				r.vf[f] = r.mul(r.num(r.o.valueCoef), r.vf[f])
				r.loss[f] = r.add(r.loss[f], r.vf[f])
			}
		}
	}
	if r.entropy != nil && r.o.entropyCoef != 0 {
		mask := r.mask
		if r.o.maskAll {
			mask = r.lossMask
		}
		r.ent = r.dot(r.entropyWeights(mask), r.entropy)
		sign := F(-1)
		if r.plant == "ENTROPY-SIGN" {
			sign = 1
		}
		for f := range r.ent {
			r.ent[f] = sign * r.mul(r.num(r.o.entropyCoef), r.ent[f])
			r.loss[f] = r.add(r.loss[f], r.ent[f])
		}
	}
}

// entropyWeights returns the factor of every cell of the entropy term in the loss, without its coefficient.
func (r *run[F]) entropyWeights(mask []bool) []F {
	o := r.o
	defer func() { r.o = o }()
	switch r.o.entropyAgg {
	case "token":
		r.o.agg = "token"
	case "micro":
		r.o.agg, r.o.denominator, r.o.divSteps = "token", "micro", true
	}
	return r.cellWeights(mask, false)
}

// klTerm adds the KL term to the losses.
func (r *run[F]) klTerm() {
	w := r.klWeights()
	x := r.kl
	if r.o.klKind == "seq_prob" {
		x = make([]F, r.cells())
		r.kl = make([]F, r.rows)
		for row := range r.rows {
			r.kl[row], _ = r.sequenceProb(row)
			for t := range r.cols {
				x[row*r.cols+t] = r.kl[row]
			}
		}
	}
	r.klLoss = r.dot(w, x)
	for f := range r.klLoss {
		r.klLoss[f] = r.mul(r.klSign()*r.beta(), r.klLoss[f])
		r.loss[f] = r.add(r.loss[f], r.klLoss[f])
	}
}

func (r *run[F]) klSign() F {
	if r.plant == "KL-SIGN" {
		return -1
	}
	return 1
}

// klWeights returns the factor of every cell of the KL term in the loss, without β.
func (r *run[F]) klWeights() []F {
	w := slices.Clone(r.weight)
	if r.o.loss == "gmpo" {
		w = r.cellWeights(r.lossMask, false)
	}
	if r.o.klTokens {
		kind := r.o.agg
		r.o.agg = "token"
		w = r.cellWeights(r.lossMask, true)
		r.o.agg = kind
	}
	if r.plant == "KL-OUTSIDE-MASK" {
		every := slices.Repeat([]bool{true}, r.cells())
		w = r.cellWeights(every, true)
	}
	if r.isw != nil && r.o.klWeighted {
		for i := range w {
			w[i] = r.mul(w[i], r.isw[i])
		}
	}
	return w
}
