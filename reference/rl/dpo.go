package rl

import "math"

// DPOKind is the preference loss of one pair.
type DPOKind int

const (
	DPOSigmoid     DPOKind = iota // −(1 − ε)·ln σ(βh) − ε·ln σ(−βh): Rafailov et al. 2023, Eq. 7; ε of conservative DPO
	DPOHinge                      // max(0, 1 − βh): SLiC, Zhao et al. 2023
	DPOIPO                        // (h − 1/(2β))²: Azar et al. 2023, Eq. 17
	DPOORPO                       // −β·ln σ(h), h the logarithm of the ratio of the odds: Hong et al. 2024, Eqs. 4 and 7
	DPORobust                     // (−(1 − ε)·ln σ(βh) + ε·ln σ(−βh))/(1 − 2ε): Chowdhury et al. 2024, arXiv 2403.00409, Eq. 12
	DPOEXO                        // q·ln(q/(1 − ε)) + (1 − q)·ln((1 − q)/ε), q = σ(βh): Ji et al. 2024, arXiv 2402.00856, Eq. 16
	DPONCA                        // −ln σ(βc) − ½·ln σ(−βc) − ½·ln σ(−βr): Chen et al. 2024, arXiv 2402.05369, Eq. 11 of pairs
	DPOBCO                        // −ln σ(βc) − ln σ(−βr): Jung et al. 2024, arXiv 2404.04656, without its running mean
	DPOSPPO                       // (c − 1/(2β))² + (r + 1/(2β))²: Wu et al. 2024, arXiv 2405.00675, Eq. 4.7 with P of 1 and 0
	DPOAPOZero                    // 1 − σ(βc) + σ(βr): D'Oosterlinck et al. 2024, arXiv 2408.06266, Eq. 7
	DPOAPODown                    // σ(βc) + 1 − σ(β(c − r)): the same, Eq. 8
	DPODiscoPOP                   // −(1 − m)·ln σ(βh) + m·e^{−βh}, m = σ(βh/τ): Lu et al. 2024, arXiv 2406.08414, Eq. 5
	DPOAOT                        // sigmoid of pairs that [DPOSorted] makes: Melnyk et al. 2024, arXiv 2406.05882, paired
	DPOAOTUnpaired                // sigmoid of pairs that [DPOSorted] makes: the same, unpaired
)

var dpoKinds = enumeration[DPOKind]("dpo.loss", "sigmoid", "hinge", "ipo", "orpo", "robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down",
	"discopop", "aot", "aot_unpaired")

func (k DPOKind) String() string { return dpoKinds.text(k) }

// ParseDPOKind reads the name of a preference loss as TRL has it.
func ParseDPOKind(s string) (DPOKind, error) { return dpoKinds.parse(s) }

// Margin reports whether the loss reads the answers of a pair in its margin h alone, so that a divergence applies.
func (k DPOKind) Margin() bool {
	return k <= DPOIPO || k == DPORobust || k == DPOEXO || k == DPODiscoPOP
}

// Smooths reports whether the loss reads the label smoothing.
func (k DPOKind) Smooths() bool {
	return k == DPOSigmoid || k == DPORobust || k == DPOEXO || k.Sorts()
}

// Sorts reports whether the loss sorts the pairs of a batch.
func (k DPOKind) Sorts() bool { return k == DPOAOT || k == DPOAOTUnpaired }

// DPODivergence is what keeps the policy near the reference.
type DPODivergence int

const (
	DPOReverseKL DPODivergence = iota // h = c − r
	DPOJS                             // h = c − r − (ln(1 + eᶜ) − ln(1 + eʳ))
	DPOAlpha                          // h = (e^{−αr} − e^{−αc})/α; c − r for α = 0, its limit
	DPOForwardKL                      // h = e^{−r} − e^{−c}: DPOAlpha of α = 1
)

var dpoDivergences = enumeration[DPODivergence]("dpo.divergence", "reverse_kl", "js", "alpha", "forward_kl")

func (k DPODivergence) String() string { return dpoDivergences.text(k) }

// ParseDPODivergence reads the name of a divergence.
func ParseDPODivergence(s string) (DPODivergence, error) { return dpoDivergences.parse(s) }

// DPOOptions selects a preference loss.
type DPOOptions struct {
	Kind           DPOKind
	Beta           float64 // TRL 0.1
	LabelSmoothing float64 // ε, the probability that a label is wrong; TRL 0
	Divergence     DPODivergence
	Alpha          float64 // of DPOAlpha; TRL 1
	Tau            float64 // τ of DPODiscoPOP; TRL 0.05
}

// DPO stores in loss the preference loss of every pair, and in dchosen and drejected the derivatives of their sum with respect to the
// policy's log-probs of the chosen and of the rejected responses. With the log-ratios
//
//	c = chosen − refChosen     r = rejected − refRejected
//
// of sequence log-probs ([RowSums]; TRL's ipo takes means over the tokens), h is what the divergence makes of them (Wang et al. 2024,
// arXiv 2309.16240, where f′ inverts the reward: ln u for the reverse KL). nil reference log-probs stand for 0. ORPO has no reference
// and takes means over the tokens, which are below 0:
//
//	h = (chosen − rejected) − (ln(1 − e^{chosen}) − ln(1 − e^{rejected}))
//
// It implements the losses of TRL 1.16 DPOTrainer._compute_loss. Those that sort have the losses of ranks, see [DPOSorted], in the order of
// the ranks. All slices have one length; nil results are allocated. At the kink of the hinge the derivative is 0, as torch's relu has it. It
// panics if ORPO has a reference, if a loss that is not of h has a divergence, if robust has ε = ½ or exo has not 0 < ε < 1.
func DPO(loss, dchosen, drejected, chosen, rejected, refChosen, refRejected []float64, o DPOOptions) (l, dc, dr []float64) {
	n := len(chosen)
	need(len(rejected) == n && len(refChosen) == len(refRejected) && (refChosen == nil || len(refChosen) == n), badLength)
	need(dpoKinds.has(o.Kind) && dpoDivergences.has(o.Divergence), badOption)
	need(o.Kind != DPOORPO || refChosen == nil, badOption)
	need(o.Kind.Margin() || o.Divergence == DPOReverseKL, badOption)
	need(o.Kind != DPORobust || o.LabelSmoothing != .5, badOption)
	need(o.Kind != DPOEXO || o.LabelSmoothing > 0 && o.LabelSmoothing < 1, badOption)
	need(o.Kind != DPODiscoPOP || o.Tau > 0, badOption)
	loss, dchosen, drejected = output(loss, n), output(dchosen, n), output(drejected, n)
	if refChosen == nil {
		refChosen, refRejected = make([]float64, n), make([]float64, n)
	}
	if o.Kind.Sorts() {
		s := DPOSorted(chosen, rejected, refChosen, refRejected, o.Kind)
		o.Kind = DPOSigmoid
		for i := range n {
			var dc, dr float64
			loss[i], dc, dr = dpoPair(s.Chosen[i], s.Rejected[i], s.RefChosen[i], s.RefRejected[i], o)
			dchosen[s.ChosenRow[i]], drejected[s.RejectedRow[i]] = dc, dr
		}
		return loss, dchosen, drejected
	}
	for i := range n {
		loss[i], dchosen[i], drejected[i] = dpoPair(chosen[i], rejected[i], refChosen[i], refRejected[i], o)
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
	case o.Divergence == DPOForwardKL:
		c, r = math.Exp(-c), math.Exp(-r)
		return r - c, c, -r
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
