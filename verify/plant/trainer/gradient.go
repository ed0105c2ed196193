package trainer

// gradient carries the losses back to the log-probs of the new policy and to its values.
func (r *run[F]) gradient() {
	n := r.cells()
	r.dlogp = make([]F, n)
	toRatio := make([]F, n) // ∂loss/∂ρ of every cell
	if r.plant != "RATIO-DETACHED" {
		for i := range n {
			if r.weight[i] == 0 {
				continue
			}
			r.dlogp[i] = r.mul(r.weight[i], r.direct[i])
			toRatio[i] = r.mul(r.weight[i], r.dratio[i])
		}
	}
	if r.o.term() {
		r.backKL(toRatio)
	}
	r.backRatio(toRatio)
	last := r.spans[len(r.spans)-1].micro
	for _, s := range r.spans {
		for i := s.lo * r.cols; i < s.hi*r.cols; i++ {
			switch {
			case r.plant == "GRAD-LAST-CHUNK" && s.micro != last:
				r.dlogp[i] = 0
			case r.plant == "GRAD-GA":
				r.dlogp[i] = r.mul(F(r.micros()), r.dlogp[i])
			}
		}
	}
	r.backValues()
}

// backKL adds the derivatives of the KL term.
func (r *run[F]) backKL(toRatio []F) {
	w := r.klWeights()
	beta := r.klSign() * r.beta()
	if r.o.klKind == "seq_prob" {
		for row := range r.rows {
			lo, hi := row*r.cols, (row+1)*r.cols
			_, slope := r.sequenceProb(row)
			g := r.mul(r.mul(beta, r.sum(w[lo:hi])), -slope)
			if r.plant == "KL-DETACHED" {
				g = 0
			}
			for i := lo; i < hi; i++ {
				if r.lossMask[i] {
					r.dlogp[i] = r.add(r.dlogp[i], g)
				}
			}
		}
		return
	}
	for i := range w {
		if w[i] == 0 {
			continue
		}
		direct, ratio := r.klGradient(i)
		b := r.mul(beta, w[i])
		r.dlogp[i] = r.add(r.dlogp[i], r.mul(b, direct))
		toRatio[i] = r.add(toRatio[i], r.mul(b, ratio))
	}
}

// backRatio carries gradients of ratios to log-probs: ∂ρ/∂lp = ρ·∂ ln ρ/∂lp, along the whole row where it shares a ratio, unless every
// token's is written as ln ρ + lp − sg(lp).
func (r *run[F]) backRatio(toRatio []F) {
	sequence := r.o.ratioLevel == "seq_mean" || r.o.ratioLevel == "seq_sum"
	for row := range r.rows {
		lo, hi := row*r.cols, (row+1)*r.cols
		total := r.sum(toRatio[lo:hi])
		for i := lo; i < hi; i++ {
			g := toRatio[i]
			if sequence && !r.o.ratioPerToken && r.plant != "RATIO-GRAD-PER-TOKEN" {
				g = total
			}
			if g != 0 && r.share[i] != 0 {
				r.dlogp[i] = r.add(r.dlogp[i], r.mul(r.mul(g, r.ratio[i]), r.share[i]))
			}
		}
	}
}

// backValues carries the value loss to the new values.
func (r *run[F]) backValues() {
	if r.valueCells == nil {
		return
	}
	r.dvalues = make([]F, r.cells())
	coef := r.num(1)
	if r.o.valueInLoss {
		coef = r.num(r.o.valueCoef)
	}
	for i := range r.dvalues {
		if r.valueW[i] == 0 || r.plant == "VALUE-DETACHED" {
			continue
		}
		g := r.mul(r.mul(coef, r.valueW[i]), r.dvalue[i])
		r.dvalues[i] = r.add(r.dvalues[i], g)
		if next := i + 1; r.plant == "VALUE-TARGET-GRAD" && next%r.cols != 0 && r.valueW[next] != 0 {
			r.dvalues[next] = r.sub(r.dvalues[next], r.mul(r.num(r.o.gamma), g))
		}
	}
	if r.plant == "GRAD-GA" {
		for i := range r.dvalues {
			r.dvalues[i] = r.mul(F(r.micros()), r.dvalues[i])
		}
	}
}
