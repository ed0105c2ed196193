package rl

import (
	"cmp"
	"math"
)

// JSDOptions selects a divergence between the next-token distributions of a student and a teacher.
type JSDOptions struct {
	Beta        float64 // β, the teacher's share, in [0, 1]; TRL GKD 0.5
	Temperature float64 // divides both logits; 0 stands for 1
}

// JSD stores in loss the generalised Jensen-Shannon divergence of each row of logits, n×vocab, and in dstudent its derivative by the
// student's logits. With p = softmax(student/T), q = softmax(teacher/T) and m = β·q + (1 − β)·p,
//
//	D = β·KL(q‖m) + (1 − β)·KL(p‖m)         (Agarwal et al. 2024, Eq. 1)
//	∂D/∂z_j = (1 − β)·p_j·(ln(p_j/m_j) − KL(p‖m))/T
//
// At the ends it is what D/(β(1 − β)) tends to, as TRL has it since 0.16: KL(q‖p) for β = 0, derivative (p − q)/T, and KL(p‖q) for β = 1,
// derivative p_j·(ln(p_j/q_j) − KL(p‖q))/T. nil results are allocated.
func JSD(loss, dstudent, student, teacher []float64, vocab int, o JSDOptions) (l, d []float64) {
	need(vocab > 0 && len(student)%vocab == 0 && len(teacher) == len(student), badLength)
	need(0 <= o.Beta && o.Beta <= 1 && o.Temperature >= 0, badOption)
	n := len(student) / vocab
	loss, dstudent = output(loss, n), output(dstudent, len(student))
	t := cmp.Or(o.Temperature, 1)
	p, q := make([]float64, vocab), make([]float64, vocab) // logarithms
	for r := range n {
		logSoftmax(p, student[r*vocab:(r+1)*vocab], t)
		logSoftmax(q, teacher[r*vocab:(r+1)*vocab], t)
		dx := dstudent[r*vocab : (r+1)*vocab]
		var ofTeacher, ofStudent float64
		for j := range p {
			m := p[j]
			switch o.Beta {
			case 0:
			case 1:
				m = q[j]
			default:
				m = logAdd(math.Log(1-o.Beta)+p[j], math.Log(o.Beta)+q[j])
			}
			ofTeacher += entropyTerm(q[j], m)
			ofStudent += entropyTerm(p[j], m)
			dx[j] = m
		}
		share := 1 - o.Beta
		switch o.Beta {
		case 0:
			loss[r] = ofTeacher
			for j := range dx {
				dx[j] = (math.Exp(p[j]) - math.Exp(q[j])) / t
			}
			continue
		case 1:
			loss[r], share = ofStudent, 1
		default:
			loss[r] = float64(o.Beta*ofTeacher) + float64(share*ofStudent)
		}
		for j := range dx {
			dx[j] = share * (entropyTerm(p[j], dx[j]) - float64(math.Exp(p[j])*ofStudent)) / t
		}
	}
	return loss, dstudent
}

// entropyTerm returns eᵃ·(a − b), 0 where eᵃ is.
func entropyTerm(a, b float64) float64 {
	if e := math.Exp(a); e > 0 {
		return float64(e * (a - b))
	}
	return 0
}

// logSoftmax stores ln softmax(x/t) in dst.
func logSoftmax(dst, x []float64, t float64) {
	top, s := softmaxSum(x, t)
	s = math.Log(s)
	for j, v := range x {
		dst[j] = v/t - top - s
	}
}

// logAdd returns ln(eᵃ + eᵇ).
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(a, -1) {
		return a
	}
	return a + softplus(b-a)
}
