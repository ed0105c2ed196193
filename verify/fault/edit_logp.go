package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// vocabularyForm is another number that a program makes of the logits x of a token, where its log-prob or its entropy should be. t is the
// temperature, and z = x/t.
type vocabularyForm struct {
	id, title string
	of        func(x []float64, id int, t float64) float64
}

// logSumExp returns ln Σ e to the k·x.
func logSumExp(x []float64, k float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, k*v)
	}
	var sum float64
	for _, v := range x {
		sum += math.Exp(k*v - top)
	}
	return top + math.Log(sum)
}

// overVocabulary sums f of the log-probs and the logits of a token, divided by the temperature.
func overVocabulary(x []float64, t float64, f func(logp, z float64) float64) (sum float64) {
	lse := logSumExp(x, 1/t)
	for _, v := range x {
		if lp := v/t - lse; !math.IsInf(lp, -1) {
			sum += f(lp, v/t)
		}
	}
	return sum
}

func entropyOf(x []float64, t float64) float64 {
	return overVocabulary(x, t, func(lp, _ float64) float64 { return -math.Exp(lp) * lp })
}

var logpForms = []vocabularyForm{
	{"LOGP-FORM", "the logit itself: no log-sum-exp is subtracted", func(x []float64, id int, t float64) float64 { return x[id] / t }},
	{"LOGP-FORM", "the logit less twice the log-sum-exp", func(x []float64, id int, t float64) float64 { return x[id]/t - 2*logSumExp(x, 1/t) }},
	{"LOGP-FORM", "the logit plus the log-sum-exp", func(x []float64, id int, t float64) float64 { return x[id]/t + logSumExp(x, 1/t) }},
	{"LOGP-FORM", "the negative of the log-sum-exp, without the logit", func(x []float64, _ int, t float64) float64 { return -logSumExp(x, 1/t) }},
	{"LOGP-FORM", "the logit less the largest one, not less the log-sum-exp", func(x []float64, id int, t float64) float64 { return (x[id] - slices.Max(x)) / t }},
	{"LOGP-FORM", "the probability, not its logarithm", func(x []float64, id int, t float64) float64 { return math.Exp(x[id]/t - logSumExp(x, 1/t)) }},
	{"LOGP-FORM", "the negative log-probability: a cross-entropy", func(x []float64, id int, t float64) float64 { return logSumExp(x, 1/t) - x[id]/t }},
	{"LOGP-FORM", "the logarithm to the base of 2", func(x []float64, id int, t float64) float64 { return (x[id]/t - logSumExp(x, 1/t)) / math.Ln2 }},
	{"LOGP-FORM", "the logarithm to the base of 10", func(x []float64, id int, t float64) float64 { return (x[id]/t - logSumExp(x, 1/t)) / math.Ln10 }},
	{"LOGP-FORM", "the log-softmax of the probabilities: the softmax is taken twice", func(x []float64, id int, t float64) float64 {
		p, lse := make([]float64, len(x)), logSumExp(x, 1/t)
		for j, v := range x {
			p[j] = math.Exp(v/t - lse)
		}
		return p[id] - logSumExp(p, 1)
	}},
	{"LOGP-FORM", "the log-prob of the likeliest token, not of the one that was sampled", func(x []float64, _ int, t float64) float64 { return slices.Max(x)/t - logSumExp(x, 1/t) }},
	{"LOGP-FORM", "the mean log-prob over the vocabulary", func(x []float64, _ int, t float64) float64 {
		return overVocabulary(x, t, func(lp, _ float64) float64 { return lp }) / float64(len(x))
	}},
	{"LOGP-FORM", "the negative of the entropy", func(x []float64, _ int, t float64) float64 { return -entropyOf(x, t) }},
	{"LOGP-TEMPERATURE", "of logits that are multiplied by the temperature, not divided", func(x []float64, id int, t float64) float64 { return x[id]*t - logSumExp(x, t) }},
	{"LOGP-TEMPERATURE", "of logits that are not divided by the temperature", func(x []float64, id int, _ float64) float64 { return x[id] - logSumExp(x, 1) }},
	{"LOGP-TEMPERATURE", "of logits that are divided by the root of the temperature", func(x []float64, id int, t float64) float64 {
		return x[id]/math.Sqrt(t) - logSumExp(x, 1/math.Sqrt(t))
	}},
	{"LOGP-TEMPERATURE", "that of temperature 1, divided by the temperature afterwards", func(x []float64, id int, t float64) float64 { return (x[id] - logSumExp(x, 1)) / t }},
	{"LOGP-TEMPERATURE", "that of temperature 1, multiplied by the temperature afterwards", func(x []float64, id int, t float64) float64 { return (x[id] - logSumExp(x, 1)) * t }},
	{"LOGP-TEMPERATURE", "with the temperature in the logit alone, not in the log-sum-exp", func(x []float64, id int, t float64) float64 { return x[id]/t - logSumExp(x, 1) }},
	{"LOGP-TEMPERATURE", "with the temperature in the log-sum-exp alone, not in the logit", func(x []float64, id int, t float64) float64 { return x[id] - logSumExp(x, 1/t) }},
}

var entropyForms = []vocabularyForm{
	{"ENTROPY-FORM", "Σ p·ln p, without the minus", func(x []float64, _ int, t float64) float64 { return -entropyOf(x, t) }},
	{"ENTROPY-FORM", "−ln p of the token that was sampled", func(x []float64, id int, t float64) float64 { return logSumExp(x, 1/t) - x[id]/t }},
	{"ENTROPY-FORM", "ln p of the token that was sampled", func(x []float64, id int, t float64) float64 { return x[id]/t - logSumExp(x, 1/t) }},
	{"ENTROPY-FORM", "−p·ln p of the token that was sampled", func(x []float64, id int, t float64) float64 {
		lp := x[id]/t - logSumExp(x, 1/t)
		return -math.Exp(lp) * lp
	}},
	{"ENTROPY-FORM", "the mean of −p·ln p over the vocabulary, not the sum", func(x []float64, _ int, t float64) float64 { return entropyOf(x, t) / float64(len(x)) }},
	{"ENTROPY-FORM", "−Σ ln p, without the probabilities", func(x []float64, _ int, t float64) float64 {
		return -overVocabulary(x, t, func(lp, _ float64) float64 { return lp })
	}},
	{"ENTROPY-FORM", "the mean of −ln p over the vocabulary, without the probabilities", func(x []float64, _ int, t float64) float64 {
		return -overVocabulary(x, t, func(lp, _ float64) float64 { return lp }) / float64(len(x))
	}},
	{"ENTROPY-FORM", "−Σ p·z of the logits z, without their log-sum-exp", func(x []float64, _ int, t float64) float64 {
		return -overVocabulary(x, t, func(lp, z float64) float64 { return math.Exp(lp) * z })
	}},
	{"ENTROPY-FORM", "the log-sum-exp of the logits alone", func(x []float64, _ int, t float64) float64 { return logSumExp(x, 1/t) }},
	{"ENTROPY-FORM", "in bits", func(x []float64, _ int, t float64) float64 { return entropyOf(x, t) / math.Ln2 }},
	{"ENTROPY-FORM", "divided by ln V, as a share of the largest one", func(x []float64, _ int, t float64) float64 { return entropyOf(x, t) / math.Log(float64(len(x))) }},
	{"ENTROPY-FORM", "e to the entropy, the perplexity", func(x []float64, _ int, t float64) float64 { return math.Exp(entropyOf(x, t)) }},
	{"ENTROPY-FORM", "−Σ p·ln q, q the softmax of the probabilities p: the softmax is taken twice for the logarithm", func(x []float64, _ int, t float64) float64 {
		return twiceEntropy(x, t, false)
	}},
	{"ENTROPY-FORM", "−Σ q·ln q, q the softmax of the probabilities: the softmax is taken twice", func(x []float64, _ int, t float64) float64 {
		return twiceEntropy(x, t, true)
	}},
	{"ENTROPY-FORM", "1 − Σ p²", func(x []float64, _ int, t float64) float64 {
		return 1 - overVocabulary(x, t, func(lp, _ float64) float64 { return math.Exp(2 * lp) })
	}},
	{"ENTROPY-TEMPERATURE", "−Σ p·ln p with p of the logits before the temperature, and ln p of those after it", func(x []float64, _ int, t float64) float64 {
		return mixedEntropy(x, 1, t)
	}},
	{"ENTROPY-TEMPERATURE", "−Σ p·ln p with p of the logits after the temperature, and ln p of those before it", func(x []float64, _ int, t float64) float64 {
		return mixedEntropy(x, t, 1)
	}},
	{"ENTROPY-TEMPERATURE", "the log-sum-exp of the logits after the temperature less the mean of those before it", func(x []float64, _ int, t float64) float64 {
		return logSumExp(x, 1/t) - overVocabulary(x, t, func(lp, z float64) float64 { return math.Exp(lp) * z * t })
	}},
	{"ENTROPY-TEMPERATURE", "of logits that are multiplied by the temperature, not divided", func(x []float64, _ int, t float64) float64 { return entropyOf(x, 1/t) }},
}

// twiceEntropy is −Σ p·ln q, or −Σ q·ln q, of the softmax p of logits and the softmax q of p.
func twiceEntropy(x []float64, t float64, both bool) (h float64) {
	lse := logSumExp(x, 1/t)
	p := mapped(x, func(v float64) float64 { return math.Exp(v/t - lse) })
	if both {
		return entropyOf(p, 1)
	}
	again := logSumExp(p, 1)
	for _, v := range p {
		h -= v * (v - again)
	}
	return h
}

// mixedEntropy is −Σ p·ln q of the softmaxes p and q of logits at two temperatures.
func mixedEntropy(x []float64, tp, tq float64) (h float64) {
	lp, lq := logSumExp(x, 1/tp), logSumExp(x, 1/tq)
	for _, v := range x {
		h -= math.Exp(v/tp-lp) * (v/tq - lq)
	}
	return h
}

// logpEdits returns edits of log-probs and entropies where the logits are there.
func logpEdits(o *stage.Outcome) []edit {
	what, forms := "log-prob", logpForms
	switch o.Check.ID {
	case "logp/new":
	case "logp/entropy":
		what, forms = "entropy", slices.Concat(entropyForms, largestLogits(o))
	default:
		return nil
	}
	var list []edit
	for _, f := range forms {
		list = append(list, edit{id: f.id, title: "the " + what + " of a token is " + f.title, changes: 1, predict: f.predict})
	}
	if what == "log-prob" {
		if b := o.Case.B; b.Tensors["logits"] != nil {
			for _, f := range partShifts(o) {
				list = append(list, edit{id: f.id, title: f.title, changes: 1, foreign: true, predict: f.predict})
			}
			if t, ok := stage.TemperatureOf(b, b.Token("logp_new")); ok {
				title := fmt.Sprintf("the logits are divided by %.6g before the softmax, not by %g", t, numberOr(o.Case, "logp.temperature", 1))
				list = append(list, edit{id: "LOGP-TEMPERATURE", title: title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
						return c.B, c.Set.With("logp.temperature", convention.NumberValue(t), "hypothesis"), true
					}, c, ch)
				}})
			}
		}
		for _, overRows := range []bool{false, true} {
			axis := map[bool]string{false: "the positions of the row", true: "the rows of the micro-batch"}[overRows]
			list = append(list, edit{id: "LOGP-FORM", title: "the softmax of a log-prob is taken over " + axis + ", not over the vocabulary", changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return softmaxOver(overRows, c, ch) }})
		}
		for _, of := range []struct {
			id, title string
			by        int
		}{
			{"LOGP-SAME-POSITION", "the log-prob is that of the token before, which the logits have just read: labels are not shifted", -1},
			{"LOGP-SHIFT", "the log-prob is that of the token behind: labels are shifted twice", 1},
		} {
			list = append(list, edit{id: of.id, title: of.title, changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return ofNeighbour(of.by, c, ch) }})
		}
	}
	return list
}

// logitsOf returns logits of every token and what divides them, nil where the dump has none.
func logitsOf(c *stage.Case) (z *dump.Tensor, t float64) {
	z, t = c.B.Tensors["logits"], numberOr(c, "logp.temperature", 1)+numberOr(c, "logp.temp_eps", 0)
	if z == nil || z.Layout != dump.PerToken || len(z.Data) != len(c.B.Mask)*z.Width {
		return nil, t
	}
	return z, t
}

// rightOfLogits returns what the right formula gives of the logits with these and what it divides them by; nil where nothing does.
func rightOfLogits(c *stage.Case, ch *stage.Check) (p *stage.Prediction, z *dump.Tensor, t float64) {
	z, t = logitsOf(c)
	if v := c.Set.Value("entropy.logits"); ch.Output == "entropy" && v.Kind() == convention.Enum && v.Text() == "unscaled" {
		t = 1
	}
	if p = under(sameInput, c, ch); z == nil || p == nil || len(p.Want) != len(c.B.Mask) || !(t > 0) {
		return nil, nil, 0
	}
	return p, z, t
}

// predict predicts a number of the logits of every token. Of the size of the largest logit and of the log-sum-exp, each form takes at most V
// terms of at most 8 roundings, as the right number does, whose bound has what errors of the logits do.
func (f vocabularyForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, z, t := rightOfLogits(c, ch)
	if p == nil {
		return nil
	}
	q := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want)), Judge: p.Judge, Scale: 1}
	for i := range q.Want {
		if p.Judge != nil && !p.Judge[i] || !c.B.Mask[i] {
			continue
		}
		x := z.Data[i*z.Width : (i+1)*z.Width]
		id, ok := c.B.TokenID(i/c.B.Cols, i%c.B.Cols)
		if ch.Output != "entropy" && !ok || id < 0 || id >= len(x) {
			return nil
		}
		w := f.of(x, id, t)
		size := math.Abs(logSumExp(x, 1/t)) + math.Abs(x[id]/t) + math.Abs(w)
		q.Want[i], q.Bound[i] = w, 4*p.Bound[i]*max(1, math.Abs(w))+64*c.Unit*size
	}
	return q
}

// ofNeighbour predicts log-probs z_id − ln Σ e^z with the id of the token by columns behind, where it is a token of the same row. Cells whose
// neighbour is not there are not judged.
func ofNeighbour(by int, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	p, z, t := rightOfLogits(c, ch)
	if p == nil {
		return nil
	}
	q := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want)), Judge: make([]bool, len(p.Want)), Scale: 1}
	for i, m := range b.Mask {
		id, ok := b.TokenID(i/b.Cols, i%b.Cols+by)
		if !m || p.Judge != nil && !p.Judge[i] || !ok || id < 0 || id >= z.Width {
			continue
		}
		x := z.Data[i*z.Width : (i+1)*z.Width]
		lse := logSumExp(x, 1/t)
		w := x[id]/t - lse
		q.Want[i], q.Bound[i], q.Judge[i] = w, 4*p.Bound[i]*max(1, math.Abs(w))+64*c.Unit*(math.Abs(lse)+math.Abs(x[id]/t)+math.Abs(w)), true
	}
	return q
}

// softmaxOver predicts log-probs whose softmax is taken over the positions of a row, or over the rows of a file, of the logit of the token.
func softmaxOver(rows bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	p, z, t := rightOfLogits(c, ch)
	if p == nil {
		return nil
	}
	q := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want)), Judge: p.Judge, Scale: 1}
	for i := range b.Tokens() {
		r, col := i/b.Cols, i%b.Cols
		id, ok := b.TokenID(r, col)
		if !ok || id < 0 || id >= z.Width {
			return nil
		}
		file := b.Files[b.File(r)]
		var other []float64
		if rows {
			for s := file.Lo; s < file.Hi; s++ {
				other = append(other, z.Data[(s*b.Cols+col)*z.Width+id])
			}
		} else {
			for s := range min(b.Cols, max(file.Cols, 1)) {
				other = append(other, z.Data[(r*b.Cols+s)*z.Width+id])
			}
		}
		w := z.Data[i*z.Width+id]/t - logSumExp(other, 1/t)
		q.Want[i], q.Bound[i] = w, 4*p.Bound[i]+64*c.Unit*(math.Abs(w)+math.Abs(z.Data[i*z.Width+id]/t))
	}
	return q
}
