package rl

import (
	"cmp"
	"math"
	"slices"
)

// dpoPair returns the loss of a pair and its derivatives by the policy's log-probs.
func dpoPair(chosen, rejected, refChosen, refRejected float64, o DPOOptions) (loss, dchosen, drejected float64) {
	if !o.Kind.Margin() && o.Kind != DPOORPO {
		return dpoAnswers(chosen-refChosen, rejected-refRejected, o)
	}
	h, hc, hr := DPOMargin(chosen, rejected, refChosen, refRejected, o)
	x, e := float64(o.Beta*h), o.LabelSmoothing
	var slope float64 // by h
	switch o.Kind {
	case DPOSigmoid:
		loss = float64((1-e)*softplus(-x)) + float64(e*softplus(x))
		slope = float64(o.Beta * (float64(e*logistic(x)) - float64((1-e)*logistic(-x))))
	case DPORobust:
		loss = (float64((1-e)*softplus(-x)) - float64(e*softplus(x))) / (1 - 2*e)
		slope = -float64(o.Beta*(float64(e*logistic(x))+float64((1-e)*logistic(-x)))) / (1 - 2*e)
	case DPOHinge:
		loss = max(0, 1-x)
		if !(x >= 1) {
			slope = -o.Beta
		}
	case DPOIPO:
		d := h - 1/(2*o.Beta)
		loss, slope = float64(d*d), 2*d
	case DPOORPO:
		loss, slope = float64(o.Beta*softplus(-h)), -o.Beta*logistic(-h)
	case DPOEXO:
		q, p := logistic(x), logistic(-x)
		a, b := -softplus(-x)-log1m(e), -softplus(x)-math.Log(e) // ln of q over 1 − ε, of 1 − q over ε
		loss, slope = float64(q*a)+float64(p*b), float64(o.Beta*q*p)*(a-b)
	case DPODiscoPOP:
		m, k := logistic(x/o.Tau), logistic(-x/o.Tau)
		a, b := softplus(-x), math.Exp(-x)
		loss = float64(a*k) + float64(b*m)
		slope = float64(o.Beta * (float64(float64(m*k)/o.Tau*(b-a)) - float64(logistic(-x)*k) - float64(b*m)))
	}
	return loss, float64(slope * hc), float64(slope * hr)
}

// dpoAnswers is dpoPair of the losses that read each answer's log-ratio by itself.
func dpoAnswers(c, r float64, o DPOOptions) (loss, dchosen, drejected float64) {
	b := o.Beta
	x, y := float64(b*c), float64(b*r)
	switch o.Kind {
	case DPONCA:
		loss = softplus(-x) + float64(.5*softplus(x)) + float64(.5*softplus(y))
		return loss, float64(b * (float64(.5*logistic(x)) - logistic(-x))), float64(.5 * b * logistic(y))
	case DPOBCO:
		return softplus(-x) + softplus(y), -float64(b * logistic(-x)), float64(b * logistic(y))
	case DPOSPPO:
		c, r = c-1/(2*b), r+1/(2*b)
		return float64(c*c) + float64(r*r), 2 * c, 2 * r
	case DPOAPOZero:
		return logistic(-x) + logistic(y), -float64(b * float64(logistic(x)*logistic(-x))), float64(b * float64(logistic(y)*logistic(-y)))
	case DPOAPODown:
		z := float64(b * (c - r))
		d := float64(b * float64(logistic(z)*logistic(-z)))
		return logistic(x) + logistic(-z), float64(b*float64(logistic(x)*logistic(-x))) - d, d
	}
	panic(badOption)
}

// log1m returns ln(1 − e).
func log1m(e float64) float64 { return math.Log(1 - e) }

// SortedPairs are the pairs of ranks that [DPOSorted] makes, and the rows whose log-probs stand in them.
type SortedPairs struct {
	Chosen, Rejected, RefChosen, RefRejected []float64
	ChosenRow, RejectedRow                   []int
}

// DPOSorted returns the pairs by whose sigmoid loss a batch is aligned in distribution (Melnyk et al. 2024, arXiv 2406.05882; TRL 1.16 aot,
// aot_unpaired). With both sides sorted, rank i has the margin
//
//	aot           (chosen − rejected)₍ᵢ₎ − (refChosen − refRejected)₍ᵢ₎, the two answers of a row in one rank
//	aot_unpaired  (chosen − refChosen)₍ᵢ₎ − (rejected − refRejected)₍ᵢ₎
//
// and stands as Chosen less RefChosen, or as Chosen less Rejected; the rest is 0. Equal numbers keep the order of their rows.
func DPOSorted(chosen, rejected, refChosen, refRejected []float64, kind DPOKind) SortedPairs {
	need(kind.Sorts(), badOption)
	n := len(chosen)
	zero := make([]float64, n)
	if kind == DPOAOT {
		policy, rows := sortedDifference(chosen, rejected)
		reference, _ := sortedDifference(refChosen, refRejected)
		return SortedPairs{policy, zero, reference, zero, rows, rows}
	}
	good, goodRows := sortedDifference(chosen, refChosen)
	bad, badRows := sortedDifference(rejected, refRejected)
	return SortedPairs{good, bad, zero, zero, goodRows, badRows}
}

// sortedDifference returns x − y in ascending order, and the row of each.
func sortedDifference(x, y []float64) (d []float64, rows []int) {
	d, rows = make([]float64, len(x)), make([]int, len(x))
	for i := range x {
		d[i], rows[i] = x[i]-y[i], i
	}
	slices.SortStableFunc(rows, func(i, j int) int { return cmp.Compare(d[i], d[j]) })
	slices.Sort(d)
	return d, rows
}
