package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func distillChecks() []*Check {
	return []*Check{{
		ID: "distill/loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "divergence of the student from the teacher",
		Formula: "loss = Σ D·labels_mask / N, D = β·KL(q‖m) + (1 − β)·KL(p‖m), m = β·q + (1 − β)·p, p and q the student's and the teacher's softmax at distill.temperature; β = 0: KL(q‖p), β = 1: KL(p‖q)",
		Source:  "Agarwal et al. 2024, arXiv 2306.13649, Eq. 1; TRL GKDTrainer.generalized_jsd_loss",
		Fix:     "compare β in the mixture with β before the divergences (trl#3043, Liger-Kernel#609), the temperature, and the tokens that the sum is divided by",
		Applies: func(c *Case) bool { return c.distilled() },
		Predict: predictDistillLoss,
	}}
}

func predictDistillLoss(c *Case) *Prediction {
	o := rl.JSDOptions{Beta: c.Num("distill.beta"), Temperature: c.NumOr("distill.temperature", 1)}
	if !c.OK() {
		return nil
	}
	return c.distill(o.Temperature, func(p, q []float64, vocab int) []float64 {
		d, _ := rl.JSD(nil, nil, p, q, vocab, o)
		return d
	}, o.Beta)
}

// Distill predicts the loss of distillation with another divergence of each token in place of the declared one, and with the weight beta of
// the teacher's part for its bound; nil if something is not there.
func (c *Case) Distill(temperature, beta float64, divergence func(student, teacher []float64, vocab int) []float64) *Prediction {
	return c.distill(temperature, divergence, beta)
}

// distill predicts the loss whose tokens have a divergence. Let δ bound the error of ln p_j, and ln m_j be computed as ln(e^a + e^b), whose
// error e_m is at most the larger of those of ln p_j and ln q_j, and 2·e_exp·(1 + |ln m_j|) of its own. Then p_j·(ln p_j − ln m_j) is off by
// at most
//
//	p_j·((δ + e_exp)(1 + δ)·|ln p_j − ln m_j| + δ + e_m + u·(|ln p_j| + |ln m_j|))
//
// and their weighted sum by fold(2·V·tokens)·Σ|terms| more, since a program may add up the terms of all tokens at once.
func (c *Case) distill(temperature float64, divergence func(p, q []float64, vocab int) []float64, beta float64) *Prediction {
	red := c.reduction()
	student, vocab := c.vocabularies("logits")
	teacher, other := c.vocabularies("teacher_logits")
	if vocab != other {
		note(&c.Absent, "teacher_logits of the student's vocabulary")
	}
	if !c.OK() || red == nil {
		return nil
	}
	b := c.B
	n := b.Rows * b.Cols
	x := Input{X: make([]float64, n), Err: make([]float64, n)}
	tokens := 0
	for _, m := range red.mask {
		if m {
			tokens++
		}
	}
	rounding := 2 * (c.Unit + tol.U64)
	if temperature == 1 {
		rounding = 0
	}
	for i := range n {
		if !red.mask[i] {
			continue
		}
		p, q := student[i*vocab:(i+1)*vocab], teacher[i*vocab:(i+1)*vocab]
		x.X[i] = divergence(p, q, vocab)[0]
		x.Err[i] = c.divergenceError(p, q, temperature, rounding, beta, x.X[i], tokens)
	}
	s := red.apply(c, x, nil)
	if !c.OK() {
		return nil
	}
	return s.prediction(func(f int) []Term { return red.denominatorTerms(s, f) })
}

// vocabularies returns logits of every cell, which noted as absent are nil.
func (c *Case) vocabularies(name string) (x []float64, vocab int) {
	t := c.B.Tensors[name]
	if t == nil || t.Layout != dump.PerToken || t.Width < 1 || len(t.Data) != c.B.Rows*c.B.Cols*t.Width {
		note(&c.Absent, name)
		return nil, 0
	}
	return t.Data, t.Width
}

func (c *Case) divergenceError(p, q []float64, t, rounding, beta, value float64, tokens int) float64 {
	u := c.Unit + tol.U64
	var logs, errs [2][]float64
	for k, x := range [][]float64{p, q} {
		s := softmaxErrors(x, t, rounding, c.Unit)
		logs[k], errs[k] = make([]float64, len(x)), make([]float64, len(x))
		for j, v := range x {
			logs[k][j] = v/t - s.top - s.logS
			errs[k][j] = s.logp(v/t, logs[k][j], rounding, c.Unit)
		}
	}
	weights, ends := [2]float64{1 - beta, beta}, beta == 0 || beta == 1
	if ends {
		weights[0], weights[1] = beta, 1-beta
	}
	var err, size float64
	for j := range p {
		for k, w := range weights {
			a := logs[k][j]
			e := math.Exp(a)
			if w == 0 || e == 0 {
				continue
			}
			m, em := logs[1-k][j], errs[1-k][j]
			if !ends {
				m = math.Log(beta*math.Exp(logs[1][j]) + (1-beta)*math.Exp(logs[0][j]))
				em = max(em, errs[k][j]) + 2*elementaryError(c.Unit)*(1+math.Abs(m))
			}
			d := errs[k][j]
			size += w * e * math.Abs(a-m)
			err += w * e * (math.Abs(a-m)*(d+elementaryError(c.Unit))*(1+d) + d + em + u*(math.Abs(a)+math.Abs(m)))
		}
	}
	return err + (foldError(2*len(p)*tokens, c.Unit)+4*u)*size + u*math.Abs(value)
}
