package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// pairScores are the slopes by the log-ratios of a pair of its scores per token, and their relative errors.
type pairScores struct{ chosen, rejected, chosenErr, rejectedErr float64 }

// scorePairs makes of the pairs their scores per token: a divergence is of the log-ratios of whole answers, and what it makes of each is divided by
// the tokens of the answer,
//
//	h = s(c)/n − s(r)/m    s(x) = h(x, 0)
//
// (TRL 1.16 DPOTrainer._compute_loss, ipo and sigmoid_norm of chosen_scores and rejected_scores). The loss reads them as log-probs of no reference.
// The errors are those of [marginError], divided, and u of the quotient.
func (c *Case) scorePairs(p *pairs, q *pairPart) {
	u := c.Unit + tol.U64
	q.of, q.stored, q.scores = make([]Pair, len(p.raw)), make([]float64, len(p.raw)), make([]pairScores, len(p.raw))
	for r, raw := range p.raw {
		score := func(lp, ref, n float64) (y, e, slope, slopeErr float64) {
			stored := p.stored[r] + 2*u*(math.Abs(lp)+math.Abs(ref))
			s, d, _ := rl.DPOMargin(lp, 0, ref, 0, q.o)
			e = (marginError(q.o, lp, 0, ref, 0, stored, s, u) + 2*u*math.Abs(s)) / n
			power := 1.0 // of the log-ratio in the slope, or more
			if q.o.Divergence == rl.DPOAlpha {
				power = math.Abs(q.o.Alpha)
			}
			return s / n, e, d / n, math.Expm1(power*(stored+2*u*math.Abs(lp-ref))) + (elementary+4)*u
		}
		var chosen, rejected float64
		s := &q.scores[r]
		q.of[r].Chosen, chosen, s.chosen, s.chosenErr = score(raw.Chosen, raw.RefChosen, raw.ChosenTokens)
		q.of[r].Rejected, rejected, s.rejected, s.rejectedErr = score(raw.Rejected, raw.RefRejected, raw.RejectedTokens)
		q.stored[r] = chosen + rejected
	}
	q.o.Divergence = rl.DPOReverseKL
}

// chain makes a derivative by a score, off by err, one by the log-prob.
func (s pairScores) chain(d, err float64, chosen bool, u float64) (float64, float64) {
	by, e := s.rejected, s.rejectedErr
	if chosen {
		by, e = s.chosen, s.chosenErr
	}
	return d * by, math.Abs(by)*(err+e*math.Abs(d)) + u*math.Abs(d*by)
}

// weigh multiplies a loss of a pair, or its derivative, by the weight of the pair.
func (p *pairs) weigh(r int, x, err, u float64) (float64, float64) {
	w := p.weights[r]
	return float64(w * x), math.Abs(w)*err + 2*u*math.Abs(w*x) + Input{Err: p.weightErr}.E(r)*math.Abs(x)
}
