package rl

import "math"

// DPOKind is the preference loss of one pair.
type DPOKind int

const (
	DPOSigmoid DPOKind = iota // −(1 − ε)·ln σ(βh) − ε·ln σ(−βh): Rafailov et al. 2023, Eq. 7; ε of conservative DPO
	DPOHinge                  // max(0, 1 − βh): SLiC, Zhao et al. 2023
	DPOIPO                    // (h − 1/(2β))²: Azar et al. 2023, Eq. 17
	DPOORPO                   // −β·ln σ(h), h the logarithm of the ratio of the odds: Hong et al. 2024, Eqs. 4 and 7
)

var dpoKinds = enumeration[DPOKind]("dpo.loss", "sigmoid", "hinge", "ipo", "orpo")

func (k DPOKind) String() string { return dpoKinds.text(k) }

// ParseDPOKind reads the name of a preference loss as TRL has it.
func ParseDPOKind(s string) (DPOKind, error) { return dpoKinds.parse(s) }

// DPODivergence is what keeps the policy near the reference.
type DPODivergence int

const (
	DPOReverseKL DPODivergence = iota // h = c − r
	DPOJS                             // h = c − r − (ln(1 + eᶜ) − ln(1 + eʳ))
	DPOAlpha                          // h = (e^{−αr} − e^{−αc})/α; c − r for α = 0, its limit
)

var dpoDivergences = enumeration[DPODivergence]("dpo.divergence", "reverse_kl", "js", "alpha")

func (k DPODivergence) String() string { return dpoDivergences.text(k) }

// ParseDPODivergence reads the name of a divergence.
func ParseDPODivergence(s string) (DPODivergence, error) { return dpoDivergences.parse(s) }

// DPOOptions selects a preference loss.
type DPOOptions struct {
	Kind           DPOKind
	Beta           float64 // TRL 0.1
	LabelSmoothing float64 // ε of sigmoid, the probability that a label is wrong; TRL 0
	Divergence     DPODivergence
	Alpha          float64 // of DPOAlpha; TRL 1
}

// DPO stores in loss the preference loss of every pair, and in dchosen and drejected its derivatives with respect to the policy's
// log-probs of the chosen and of the rejected response. With the log-ratios
//
//	c = chosen − refChosen     r = rejected − refRejected
//
// of sequence log-probs ([RowSums]; TRL's ipo takes means over the tokens), h is what the divergence makes of them (Wang et al. 2024,
// arXiv 2309.16240, where f′ inverts the reward: ln u for the reverse KL). nil reference log-probs stand for 0. ORPO has no reference
// and takes means over the tokens, which are below 0:
//
//	h = (chosen − rejected) − (ln(1 − e^{chosen}) − ln(1 − e^{rejected}))
//
// All slices have one length; nil results are allocated. At the kink of the hinge the derivative is 0, as torch's relu has it. It
// panics if ORPO has a reference.
func DPO(loss, dchosen, drejected, chosen, rejected, refChosen, refRejected []float64, o DPOOptions) (l, dc, dr []float64) {
	n := len(chosen)
	need(len(rejected) == n && len(refChosen) == len(refRejected) && (refChosen == nil || len(refChosen) == n), badLength)
	need(dpoKinds.has(o.Kind) && dpoDivergences.has(o.Divergence), badOption)
	need(o.Kind != DPOORPO || refChosen == nil && o.Divergence == DPOReverseKL, badOption)
	loss, dchosen, drejected = output(loss, n), output(dchosen, n), output(drejected, n)
	for i := range n {
		var rc, rr float64
		if refChosen != nil {
			rc, rr = refChosen[i], refRejected[i]
		}
		h, hc, hr := DPOMargin(chosen[i], rejected[i], rc, rr, o)
		x, e := float64(o.Beta*h), o.LabelSmoothing
		var slope float64 // by h
		switch o.Kind {
		case DPOSigmoid:
			loss[i] = float64((1-e)*softplus(-x)) + float64(e*softplus(x))
			slope = float64(o.Beta * (float64(e*logistic(x)) - float64((1-e)*logistic(-x))))
		case DPOHinge:
			loss[i] = max(0, 1-x)
			if !(x >= 1) {
				slope = -o.Beta
			}
		case DPOIPO:
			d := h - 1/(2*o.Beta)
			loss[i], slope = float64(d*d), 2*d
		case DPOORPO:
			loss[i], slope = float64(o.Beta*softplus(-h)), -o.Beta*logistic(-h)
		}
		dchosen[i], drejected[i] = float64(slope*hc), float64(slope*hr)
	}
	return loss, dchosen, drejected
}

// DPOMargin returns the h of one pair, see [DPO], and its derivatives by the log-probs of the chosen and of the rejected response.
func DPOMargin(chosen, rejected, refChosen, refRejected float64, o DPOOptions) (h, dchosen, drejected float64) {
	c, r := chosen-refChosen, rejected-refRejected
	switch {
	case o.Kind == DPOORPO:
		return chosen - rejected - (logComplement(chosen) - logComplement(rejected)), -1 / math.Expm1(chosen), 1 / math.Expm1(rejected)
	case o.Divergence == DPOJS:
		return c - r - (softplus(c) - softplus(r)), logistic(-c), -logistic(-r)
	case o.Divergence == DPOAlpha && o.Alpha != 0:
		c, r = math.Exp(-o.Alpha*c), math.Exp(-o.Alpha*r)
		return (r - c) / o.Alpha, c, -r
	}
	return chosen - rejected - (refChosen - refRejected), 1, -1
}

// logComplement returns ln(1 − eˣ) for x ≤ 0.
func logComplement(x float64) float64 { return math.Log(-math.Expm1(x)) }

// softplus returns ln(1 + eˣ) = −ln σ(−x) without overflow. math.Log1p would do, but a compiler may fuse its products into
// sums; ln u·e/(u − 1) with u = 1 + e takes back the rounding of u.
func softplus(x float64) float64 {
	e := math.Exp(-math.Abs(x))
	u := 1 + e
	if u != 1 {
		e = float64(math.Log(u)*e) / (u - 1)
	}
	return max(x, 0) + e
}
