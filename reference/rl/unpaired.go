package rl

// UnpairedKind is a loss of answers that are each good or bad, without a partner.
type UnpairedKind int

const (
	UnpairedKTO UnpairedKind = iota // 1 − σ(±β·(g − z)): Ethayarajh et al. 2024, Eq. 8
	UnpairedBCO                     // −ln σ(±(β·g − z)): Jung et al. 2024, arXiv 2404.04656
)

var unpairedKinds = enumeration[UnpairedKind]("unpaired.kind", "kto", "bco")

func (k UnpairedKind) String() string { return unpairedKinds.text(k) }

// ParseUnpairedKind reads the name of a loss of labelled answers.
func ParseUnpairedKind(s string) (UnpairedKind, error) { return unpairedKinds.parse(s) }

// UnpairedOptions selects a loss of labelled answers.
type UnpairedOptions struct {
	Kind                   UnpairedKind
	Beta                   float64 // TRL 0.1
	Desirable, Undesirable float64 // weights of good and bad answers; TRL 1
}

// Unpaired stores in loss the loss of every answer and in dpolicy its derivative with respect to the policy's log-prob of it. With
// the log-ratio g = policy − reference of the sequence and the sign + for a desirable answer, − for another,
//
//	KTO  w·(1 − σ(x)),  x = ±β·(g − z), z the estimate of KL(policy‖reference) over the batch, at least 0
//	BCO  w·(−ln σ(x)),  x = ±(β·g − z), z the running mean of the rewards β·g
//
// z is taken as a constant. All slices have one length; nil results are allocated.
func Unpaired(loss, dpolicy, policy, reference []float64, desirable []bool, z float64, o UnpairedOptions) (l, d []float64) {
	n := len(policy)
	need(len(reference) == n && len(desirable) == n, badLength)
	need(unpairedKinds.has(o.Kind), badOption)
	loss, dpolicy = output(loss, n), output(dpolicy, n)
	for i := range n {
		g, w, sign := policy[i]-reference[i], o.Undesirable, -1.0
		if desirable[i] {
			w, sign = o.Desirable, 1
		}
		if o.Kind == UnpairedKTO {
			y := logistic(-sign * float64(o.Beta*(g-z)))
			loss[i], dpolicy[i] = float64(w*y), -sign*float64(w*o.Beta)*float64(y*(1-y))
			continue
		}
		x := sign * (float64(o.Beta*g) - z)
		loss[i], dpolicy[i] = float64(w*softplus(-x)), -sign*float64(w*o.Beta)*logistic(-x)
	}
	return loss, dpolicy
}
