package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func nllCheck() *Check {
	return &Check{
		ID: "preference/nll_loss", Stage: convention.TokenLoss, Output: "nll_loss",
		Title:   "cross-entropy beside the preference loss",
		Formula: "nll_loss = −Σ logp_chosen / N of the pairs of a file, N their tokens or their number, or the mean of −logp_chosen per token",
		Source:  "TRL 1.16 DPOTrainer (rpo_alpha), Liger alpha; Pang et al. 2024, Eq. 3",
		Fix:     "take the log-probs of the chosen answers, with a minus, and divide by their tokens once",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Assert:  assertNLL,
	}
}

// nllForm is a cross-entropy of the answers of a file, of their log-probs and tokens on both sides.
type nllForm struct {
	words string // of a wrong one; "" for those that trainers have
	fault string
	of    func(n, chosen, rejected, means, rejectedMeans, tokens, rejectedTokens float64) float64
}

// nllForms are what trainers compute, and what slips make of it: n pairs, the sums of the log-probs of their answers and of these per token,
// and their tokens.
var nllForms = []nllForm{
	{"", "", func(n, c, _, _, _, _, _ float64) float64 { return -c / n }},
	{"", "", func(_, c, _, _, _, tokens, _ float64) float64 { return -c / tokens }},
	{"", "", func(n, _, _, m, _, _, _ float64) float64 { return -m / n }},
	{"the mean over the rejected answers, not over the chosen ones", "DPO-NLL", func(n, _, r, _, _, _, _ float64) float64 { return -r / n }},
	{"the mean over the tokens of the rejected answers, not of the chosen ones", "DPO-NLL", func(_, _, r, _, _, _, tokens float64) float64 { return -r / tokens }},
	{"the mean over the rejected answers of their means, not over the chosen ones", "DPO-NLL", func(n, _, _, _, m, _, _ float64) float64 { return -m / n }},
	{"the mean over the tokens of both answers", "DPO-NLL", func(_, c, r, _, _, t, u float64) float64 { return -(c + r) / (t + u) }},
	{"the mean over both answers", "DPO-NLL", func(n, c, r, _, _, _, _ float64) float64 { return -(c + r) / (2 * n) }},
	{"the mean over both answers of their means", "DPO-NLL", func(n, _, _, m, o, _, _ float64) float64 { return -(m + o) / (2 * n) }},
	{"the sum over the chosen answers, not divided by anything", "DPO-NLL", func(_, c, _, _, _, _, _ float64) float64 { return -c }},
	{"the sum over the chosen answers of their means, not divided by their number", "DPO-NLL", func(_, _, _, m, _, _, _ float64) float64 { return -m }},
	{"the log-probs of the chosen answers over the tokens of the rejected ones", "DPO-NLL", func(_, c, _, _, _, _, u float64) float64 { return -c / u }},
	{"divided by one token of every answer too few", "DPO-NLL", func(n, c, _, _, _, t, _ float64) float64 { return -c / (t - n) }},
	{"divided by one token of every answer too many", "DPO-NLL", func(n, c, _, _, _, t, _ float64) float64 { return -c / (t + n) }},
	{"divided by the tokens and by the answers", "DPO-NLL-LENGTH-TWICE", func(n, c, _, _, _, t, _ float64) float64 { return -c / t / n }},
	{"divided by the mean number of tokens twice", "DPO-NLL-LENGTH-TWICE", func(n, c, _, _, _, t, _ float64) float64 { return -c / t / (t / n) }},
	{"the log-prob of the chosen answers, without a minus", "DPO-NLL", func(n, c, _, _, _, _, _ float64) float64 { return c / n }},
	{"the log-prob of the tokens of the chosen answers, without a minus", "DPO-NLL", func(_, c, _, _, _, t, _ float64) float64 { return c / t }},
	{"the log-prob per token of the chosen answers, without a minus", "DPO-NLL", func(n, _, _, m, _, _, _ float64) float64 { return m / n }},
}

// assertNLL names a cross-entropy that is one of the wrong forms in all files and none of the right ones: what is neither may be one of prompts
// and answers, as ORPO has it, of which the log-probs say nothing. Of sums of n float32 numbers a form is told by 1e-5 of it from another.
func assertNLL(c *Case) *Assertion {
	b := c.B
	lp, other, t, u, nll := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("chosen_tokens"), b.Row("rejected_tokens"), b.PerFile("nll_loss")
	kind, _ := rl.ParseDPOKind(c.EnumOr("dpo.loss", "sigmoid"))
	if len(lp) != b.Rows || len(other) != b.Rows || len(nll) != len(b.Files) || kind == rl.DPOORPO || c.BoolOr("dpo.logp_mean", false) || kind == rl.DPOIPO {
		return nil
	}
	for _, name := range []string{"logp_chosen", "logp_rejected", "nll_loss"} {
		if unit, _ := b.Tensors[name].Type.Unit(); unit > tol.U32 || Grid(b.Tensors[name].Data) > tol.U32 {
			return nil
		}
	}
	wrong := -1
	for i, f := range nllForms {
		fits := true
		for k, file := range b.Files {
			x := f.file(file, lp, other, t, u)
			fits = fits && math.Abs(nll[k]-x) <= 1e-5*math.Abs(x)
		}
		switch {
		case fits && f.words == "":
			return &Assertion{Checked: len(nll)}
		case fits && wrong < 0:
			wrong = i
		}
	}
	if wrong < 0 {
		return c.paddedNLL(nll)
	}
	f := nllForms[wrong]
	return &Assertion{Checked: len(nll), Violations: []Violation{{Row: -1, Col: -1, Got: nll[0], Fault: f.fault, Reason: fmt.Sprintf("nll_loss of every file is %s", f.words)}}}
}

// paddedNLL finds a cross-entropy that is the mean over all columns of the log-probs of the chosen answers, those of prompts and of padding too, which no
// trainer means: of prompts alone ORPO does.
func (c *Case) paddedNLL(nll []float64) *Assertion {
	x, mask, cols := c.AnswerTokens("logp_chosen")
	if len(x) != c.B.Rows*cols || cols == 0 || !slices.Contains(mask, false) {
		return nil
	}
	for k, file := range c.B.Files {
		var sum float64
		for _, v := range x[file.Lo*cols : file.Hi*cols] {
			sum -= v
		}
		mean := sum / float64((file.Hi-file.Lo)*cols)
		if !(math.Abs(nll[k]-mean) <= 1e-5*math.Abs(mean)) {
			return nil
		}
	}
	return &Assertion{Checked: len(nll), Violations: []Violation{{Row: -1, Col: -1, Got: nll[0], Fault: "DPO-NLL",
		Reason: "nll_loss of every file is the mean over all columns of the chosen answers, prompts and padding among them"}}}
}

// file is the form of one file, NaN where it needs numbers of tokens that are not there.
func (f nllForm) file(file dump.FileInfo, lp, other, t, u []float64) float64 {
	var n, c, r, m, o, tokens, rejected float64
	for i := file.Lo; i < file.Hi; i++ {
		n, c, r = n+1, c+lp[i], r+other[i]
		if len(t) == len(lp) && len(u) == len(lp) {
			m, o, tokens, rejected = m+lp[i]/t[i], o+other[i]/u[i], tokens+t[i], rejected+u[i]
		} else {
			m, o, tokens, rejected = math.NaN(), math.NaN(), math.NaN(), math.NaN()
		}
	}
	return f.of(n, c, r, m, o, tokens, rejected)
}
