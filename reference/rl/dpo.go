package rl

import "math"

// DPOKind is the preference loss of one pair.
type DPOKind int

const (
	DPOSigmoid DPOKind = iota // −(1 − ε)·ln σ(βh) − ε·ln σ(−βh): Rafailov et al. 2023, Eq. 7; ε of conservative DPO
	DPOHinge                  // max(0, 1 − βh): SLiC, Zhao et al. 2023
	DPOIPO                    // (h − 1/(2β))²: Azar et al. 2023, Eq. 17
)

var dpoKinds = enumeration[DPOKind]("dpo.loss", "sigmoid", "hinge", "ipo")

func (k DPOKind) String() string { return dpoKinds.text(k) }

// ParseDPOKind reads the name of a preference loss as TRL has it.
func ParseDPOKind(s string) (DPOKind, error) { return dpoKinds.parse(s) }

// DPOOptions selects a preference loss.
type DPOOptions struct {
	Kind           DPOKind
	Beta           float64 // TRL 0.1
	LabelSmoothing float64 // ε of sigmoid, the probability that a label is wrong; TRL 0
}

// DPO stores in loss the preference loss of every pair, in dchosen its derivative with respect to the policy's log-prob of
// the chosen response; that with respect to the rejected one is −dchosen. With
//
//	h = (chosen − rejected) − (refChosen − refRejected)
//
// of sequence log-probs ([RowSums]; TRL's ipo takes means over the tokens). nil reference log-probs stand for 0. All slices
// have one length; nil results are allocated. At the kink of the hinge the derivative is 0, as torch's relu has it.
func DPO(loss, dchosen, chosen, rejected, refChosen, refRejected []float64, o DPOOptions) (l, d []float64) {
	n := len(chosen)
	need(len(rejected) == n && len(refChosen) == len(refRejected) && (refChosen == nil || len(refChosen) == n), badLength)
	need(dpoKinds.has(o.Kind), badOption)
	loss, dchosen = output(loss, n), output(dchosen, n)
	for i := range n {
		h := chosen[i] - rejected[i]
		if refChosen != nil {
			h -= refChosen[i] - refRejected[i]
		}
		x, e := float64(o.Beta*h), o.LabelSmoothing
		switch o.Kind {
		case DPOSigmoid:
			loss[i] = float64((1-e)*softplus(-x)) + float64(e*softplus(x))
			dchosen[i] = float64(o.Beta * (float64(e*logistic(x)) - float64((1-e)*logistic(-x))))
		case DPOHinge:
			loss[i], dchosen[i] = max(0, 1-x), 0
			if !(x >= 1) {
				dchosen[i] = -o.Beta
			}
		case DPOIPO:
			r := h - 1/(2*o.Beta)
			loss[i], dchosen[i] = float64(r*r), 2*r
		}
	}
	return loss, dchosen
}

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
